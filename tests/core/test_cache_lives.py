"""Caches of streams at the borders of lives: of streams, devices, runtimes, adopted memory and handles."""
from __future__ import annotations

import gc
import random
import threading
from types import SimpleNamespace

import pytest
from c_table import Hold, Refused
from cuda.bindings import driver as cuda
from foreign_streams import NON_BLOCKING, ForeignStream
from four_streams import WRITE, at

from xlogmem import (
    AsyncMemoryResource,
    DeviceLostError,
    DeviceRuntime,
    LimitingResourceAdaptor,
    PoolMemoryResource,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
SIZE = 512
ROOM = 64 << 20
ILLEGAL_ADDRESS, INVALID_CONTEXT = 700, 201


@pytest.fixture
def x(four):
    return four(resource=PoolMemoryResource(initial_pool_size=ROOM))


@pytest.fixture
def hold(x):
    hold = Hold(x.runtime)
    yield hold
    hold.close()


@pytest.fixture
def bare():
    """The handle of a stream that its owner may destroy."""
    stream = check(cuda.cuStreamCreate(NON_BLOCKING))
    yield int(stream)
    check(cuda.cuStreamDestroy(stream))


def warm(hold, handle):
    """The stream has SIZE bytes in its cache, at this address."""
    for _ in range(6):
        ptr = hold.allocate(SIZE, handle)
        hold.free(ptr, handle)
    return ptr


def with_handle(handle):
    """New streams until one has this handle, and all of them."""
    made = []
    while not made or int(made[-1]) != handle:
        made.append(check(cuda.cuStreamCreate(NON_BLOCKING)))
        assert len(made) < 64
    return made


def fenced(x, hold, handle):
    """Allocate and free until a free has left a fence on the stream."""
    before = x.records()
    for _ in range(16):
        hold.free(hold.allocate(SIZE, handle), handle)
        if x.records() > before:
            return
    raise AssertionError("16 frees left no fence")


def test_a_query_that_fails_takes_nothing(x, hold, driver):
    """Nor does a lookup meanwhile, which brings all local blocks in, leave anything behind."""
    ptr = warm(hold, x.S.handle)
    driver.on_call("cuStreamIsCapturing", lambda: x.runtime.find_block(1))
    driver.fail("cuStreamIsCapturing", code=INVALID_CONTEXT)
    again = hold.allocate(SIZE, x.S.handle)             # the device's context is entered, and the query repeated
    assert x.runtime.live_bytes == SIZE
    hold.free(again, x.S.handle)
    assert x.runtime.live_bytes == 0
    assert hold.allocate(SIZE, x.S.handle) in (ptr, again)
    hold.free(again, x.S.handle)


@pytest.mark.parametrize("after", ["statistics", "trim", "runtime"])
def test_a_pool_and_its_streams_survive_the_runtime_of_a_lost_device(driver, after):
    streams, resource = StreamPool(), PoolMemoryResource(initial_pool_size=ROOM)
    runtime = DeviceRuntime(resource=resource, stream_pool=streams)
    S = runtime.acquire_stream()
    for _ in range(6):
        runtime.allocate(SIZE, S).free()
    driver.fail("cuStreamIsCapturing", code=ILLEGAL_ADDRESS)
    with pytest.raises(DeviceLostError):
        runtime.allocate(ROOM // 2, S)
    del S, runtime
    gc.collect()
    if after == "runtime":
        other = DeviceRuntime(resource=AsyncMemoryResource(), stream_pool=streams)
        other.allocate(SIZE, other.acquire_stream()).free()
    elif after == "trim":
        assert resource.trim() == ROOM
    else:
        assert resource.statistics()["used_bytes"] == 0


class Renamed:
    """Stands for one stream, and then for another."""

    def __init__(self) -> None:
        self.stream = check(cuda.cuStreamCreate(NON_BLOCKING))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, int(self.stream)


@pytest.mark.parametrize("cache", [None, 0])
def test_a_stream_that_loses_its_owner_loses_its_cache(four, driver, cache):
    """Its owner names another stream, it is destroyed, and its handle means a new one."""
    x = four(resource=PoolMemoryResource(initial_pool_size=ROOM, stream_cache_size=cache))
    hold, owner = Hold(x.runtime), Renamed()
    first, second = owner.stream, check(cuda.cuStreamCreate(NON_BLOCKING))
    registered = [x.runtime.register_stream(owner)]
    warm(hold, int(first))
    owner.stream = second
    registered.append(x.runtime.register_stream(owner, discipline="ordinary"))
    ptr = hold.allocate(SIZE, int(first))
    x.work(SimpleNamespace(handle=int(first)), (SimpleNamespace(ptr=ptr), WRITE))
    hold.free(ptr, int(first))
    registered.clear()
    check(cuda.cuStreamDestroy(first))
    made = with_handle(int(first))
    again = hold.allocate(SIZE, int(first))
    x.kernels.fill(int(first), again, 3, 1)
    assert driver.races() == []
    hold.free(again, int(first))
    hold.close()
    check(cuda.cuCtxSynchronize())
    for stream in made:
        check(cuda.cuStreamDestroy(stream))


def test_the_cache_of_a_destroyed_stream_is_closed_if_it_cannot_be_unregistered(x, hold, driver):
    """A window is open on it."""
    owner = ForeignStream()
    S, handle = x.runtime.register_stream(owner), owner.handle
    warm(hold, handle)
    block = x.alloc(x.T)
    window = use(S, write=block)
    window.preflight()
    owner.destroy()
    made = with_handle(handle)
    with pytest.raises(StreamMisuseError, match="in use"):
        x.runtime.allocate(SIZE, handle)
    with pytest.raises(Refused, match="in use"):
        hold.allocate(SIZE, handle)
    window.cancel()
    block.free()
    for stream in made:
        check(cuda.cuStreamDestroy(stream))


@pytest.mark.parametrize("freed", ["before", "on the next stream", "dropped"])
def test_the_next_stream_with_a_handle_does_not_get_what_the_former_one_has_cached(x, hold, freed):
    """Nor a block that is local on the former one, and freed on the next one, or dropped."""
    former = check(cuda.cuStreamCreate(NON_BLOCKING))
    handle = int(former)
    warm(hold, handle)
    block = x.runtime.allocate(SIZE, handle) if freed == "dropped" else None
    ptr = block.ptr if freed == "dropped" else hold.allocate(SIZE, handle)
    late, again = x.work(at(handle)), x.work(at(handle))
    if freed == "before":
        hold.free(ptr, handle)
    check(cuda.cuStreamDestroy(former))
    made = with_handle(handle)
    assert not x.ordered(late, at(handle))              # nothing else orders the two streams
    if freed == "on the next stream":
        hold.free(ptr, handle)
    del block
    following = hold.allocate(SIZE, handle)
    assert following != ptr or x.ordered(again, at(handle))
    hold.free(following, handle)
    check(cuda.cuCtxSynchronize())
    for stream in made:
        check(cuda.cuStreamDestroy(stream))


@pytest.mark.parametrize("tail", [0, 15])
def test_what_a_destroyed_stream_has_cached_comes_back_through_its_fence(four, driver, tail):
    """What it has freed since then comes back by a reap, which waits for the whole context."""
    x = four(resource=PoolMemoryResource(LimitingResourceAdaptor(AsyncMemoryResource(), ROOM), initial_pool_size=ROOM))
    hold, former = Hold(x.runtime), check(cuda.cuStreamCreate(NON_BLOCKING))
    handle = int(former)
    warm(hold, handle)
    blocks = [hold.allocate(SIZE, handle) for _ in range(48)]
    early, late = x.work(at(handle)), x.work(at(handle))
    for ptr in blocks:
        hold.free(ptr, handle)
    fenced(x, hold, handle)
    cached = [hold.allocate(SIZE, handle) for _ in range(tail)]
    unfenced = x.work(at(handle))
    for ptr in cached:
        hold.free(ptr, handle)
    check(cuda.cuStreamDestroy(former))
    assert not x.ordered(early, x.T)
    syncs = driver.calls("cuCtxSynchronize")
    held = [hold.allocate(SIZE, x.T.handle) for _ in range(ROOM // SIZE - tail)]
    assert set(blocks) - set(held) == set(cached)
    assert x.ordered(late, x.T)
    assert driver.calls("cuCtxSynchronize") == syncs
    if tail:
        with pytest.raises(Refused, match="reap_pending"):
            hold.allocate(SIZE, x.T.handle)
        x.runtime.reap_pending()
        held += [hold.allocate(SIZE, x.T.handle) for _ in range(tail)]
        assert x.ordered(unfenced, x.T)
    for ptr in held:
        hold.free(ptr, x.T.handle)
    hold.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("full", [False, True])
def test_no_memory_is_handed_out_too_early_where_bare_handles_come_and_go(four, driver, full, seed):
    """Blocks are filled without a record, and freed on their stream, on another one, or after its end."""
    upstream = LimitingResourceAdaptor(AsyncMemoryResource(), ROOM) if full else None
    x, chance = four(resource=PoolMemoryResource(upstream, initial_pool_size=ROOM)), random.Random(seed)
    hold, live = Hold(x.runtime), []
    streams = [check(cuda.cuStreamCreate(NON_BLOCKING)) for _ in range(4)]
    for _ in range(1500):
        place = chance.randrange(len(streams))
        handle = int(streams[place])
        if chance.random() < .02:
            check(cuda.cuStreamDestroy(streams[place]))
            streams[place] = check(cuda.cuStreamCreate(NON_BLOCKING))
        elif len(live) < chance.choice((2, 40)):
            nbytes = chance.choice((1, 1, 1, 2, 512)) << 11
            try:
                live.append((hold.allocate(nbytes, handle), handle))
            except Refused:                             # what destroyed streams have freed last is out of reach
                x.runtime.reap_pending()
                continue
            x.kernels.fill(handle, live[-1][0], 1, nbytes // 4)
        else:
            ptr, home = live.pop(chance.randrange(len(live)))
            hold.free(ptr, home if home in map(int, streams) and chance.random() < .9 else handle)
    for ptr, _ in live:
        hold.free(ptr, int(streams[0]))
    hold.close()
    check(cuda.cuCtxSynchronize())
    assert driver.races() == []
    assert x.runtime.counters()["cached"] > 100
    for stream in streams:
        check(cuda.cuStreamDestroy(stream))


def test_threads_share_bare_handles_while_others_promise_to_keep_them(x, hold, driver):
    """And while the pool is trimmed and looked at.  Each thread has a handle of its own too, which comes and goes."""
    context = check(cuda.cuCtxGetCurrent())
    shared = [check(cuda.cuStreamCreate(NON_BLOCKING)) for _ in range(2)]
    errors, stop = [], threading.Event()

    def allocate_and_free(seed):
        check(cuda.cuCtxSetCurrent(context))
        chance, own, live = random.Random(seed), check(cuda.cuStreamCreate(NON_BLOCKING)), []
        for _ in range(600):
            handle = int(chance.choice([*shared, own]))
            if chance.random() < .02:
                for ptr, home in live:
                    hold.free(ptr, home)
                live.clear()
                check(cuda.cuStreamDestroy(own))
                own = check(cuda.cuStreamCreate(NON_BLOCKING))
            elif len(live) < chance.choice((2, 20)):
                live.append((hold.allocate(SIZE, handle), handle))
                x.kernels.fill(handle, live[-1][0], 1, SIZE // 4)
            else:
                hold.free(*live.pop(chance.randrange(len(live))))
        for ptr, home in live:
            hold.free(ptr, home)
        check(cuda.cuStreamDestroy(own))

    def disturb():
        check(cuda.cuCtxSetCurrent(context))
        while not stop.is_set():
            hold.hold_stream(int(shared[0]))
            x.runtime.resource.trim()
            hold.counters()
            hold.release_stream(int(shared[0]))
            x.runtime.snapshot()

    def kept(work, *arguments):
        try:
            work(*arguments)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=kept, args=(allocate_and_free, seed)) for seed in range(4)]
    other = threading.Thread(target=kept, args=(disturb,))
    for thread in [*threads, other]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    other.join()
    check(cuda.cuCtxSynchronize())
    assert errors == []
    assert driver.races() == []
    assert x.runtime.live_bytes == 0
    for stream in shared:
        check(cuda.cuStreamDestroy(stream))


def test_a_pair_on_a_bare_handle_makes_two_queries_twice_and_a_fence_for_sixteen(x, hold, driver, bare):
    warm(hold, bare)
    fenced(x, hold, bare)
    before, cached = driver.all_calls(), x.runtime.counters()["cached"]
    for _ in range(15):
        hold.free(hold.allocate(SIZE, bare), bare)
    calls = driver.all_calls()
    assert {name: count - before.get(name, 0) for name, count in calls.items() if count != before.get(name, 0)} == {
        "cuStreamIsCapturing": 30, "cuStreamGetId": 30}
    records = x.records()
    for _ in range(49):
        hold.free(hold.allocate(SIZE, bare), bare)
    assert x.records() == records + 4
    assert x.runtime.counters()["cached"] == cached + 64


def test_a_free_on_a_bare_handle_that_captures_leaves_the_capture(x, hold, bare):
    warm(hold, bare)
    ptr = hold.allocate(SIZE, bare)
    check(cuda.cuStreamBeginCapture(bare, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    hold.free(ptr, bare)
    with pytest.raises(Refused, match="capturing"):
        hold.allocate(SIZE, bare)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(bare))))
    assert x.runtime.live_bytes == 0


def test_a_query_of_the_id_that_fails_takes_nothing(x, hold, driver, bare):
    warm(hold, bare)
    driver.fail("cuStreamGetId", code=INVALID_CONTEXT)
    ptr = hold.allocate(SIZE, bare)                     # the device's context is entered, and the query repeated
    assert x.runtime.live_bytes == SIZE
    driver.fail("cuStreamGetId", code=INVALID_CONTEXT)
    hold.free(ptr, bare)
    assert x.runtime.live_bytes == 0


@pytest.mark.parametrize("kept", ["promised", "owned"])
def test_a_bare_handle_that_is_kept_from_now_on_has_its_cache_by_the_handle(x, hold, driver, kept):
    owner = ForeignStream()
    warm(hold, owner.handle)
    if kept == "promised":
        hold.hold_stream(owner.handle)
    else:
        x.runtime.register_stream(owner)
    warm(hold, owner.handle)
    queries, before = driver.calls("cuStreamGetId"), x.runtime.counters()["cached"]
    hold.free(hold.allocate(SIZE, owner.handle), owner.handle)
    assert driver.calls("cuStreamGetId") == queries
    assert x.runtime.counters()["cached"] == before + 1
    if kept == "promised":
        hold.release_stream(owner.handle)


@pytest.mark.parametrize("device", [0, 1])
def test_a_capture_on_the_runtimes_device_is_seen_from_another(x, driver, device):
    """The handle of a default stream means the one of the current device."""
    for _ in range(6):
        x.runtime.allocate(SIZE, 0).free()
    block = x.runtime.allocate(SIZE, 0)
    with use(block.stream, write=block):
        pass
    blocking, before = check(cuda.cuStreamCreate(0)), check(cuda.cuCtxGetCurrent())
    check(cuda.cuStreamBeginCapture(blocking, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(device))))))
    try:
        with pytest.raises(StreamMisuseError, match="capturing"):
            x.runtime.allocate(SIZE, 0)
        with pytest.raises(StreamMisuseError, match="capturing"):
            use(block.stream, write=block).preflight()
    finally:
        check(cuda.cuCtxSetCurrent(before))
        check(cuda.cuDevicePrimaryCtxRelease(check(cuda.cuDeviceGet(device))))
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(blocking))))
    check(cuda.cuStreamDestroy(blocking))


def test_freed_memory_that_was_adopted_gives_way_to_its_next_owner(x):
    """As without caches: it is a mistake of the program, and the new block is the right one."""
    for _ in range(6):
        freed = x.runtime.allocate(SIZE, x.S)
        freed.free()
    adopted = x.runtime.adopt(freed.id.ptr, SIZE, stream=x.T)
    block = x.runtime.allocate(SIZE, x.S)
    assert block.ptr == adopted.ptr
    x.use(x.S, (block, WRITE))
    with pytest.raises(UseAfterFreeError):
        adopted.free()
    with pytest.warns(RuntimeWarning, match="adopted after a free"):
        x.runtime.allocate(SIZE, x.S).free()
    assert x.runtime.counters()["evictions"] == 1
    assert x.runtime.find_block(block.ptr).generation == block.generation


def test_adopted_memory_gives_way_inside_of_a_launch_that_names_both(x):
    """The launch comes to know the cached block after it has opened the window on what was adopted."""
    for _ in range(6):
        freed = x.runtime.allocate(SIZE, x.S)
        freed.free()
    adopted = x.runtime.adopt(freed.id.ptr, SIZE, stream=x.S)
    block = x.runtime.allocate(SIZE, x.S)
    with use(x.S, write=[adopted, block]):
        launched = x.work(x.S, (block, WRITE))
    assert x.runtime.counters()["evictions"] == 1
    x.use(x.T, (block, WRITE))
    assert x.ordered(launched, x.T)
    assert not x.ordered(launched, x.U)
    with pytest.warns(RuntimeWarning, match="adopted after a free"):
        x.runtime.allocate(SIZE, x.S).free()


def test_a_pool_below_a_pool_counts_its_own_allocations():
    below = PoolMemoryResource(initial_pool_size=ROOM)
    above = PoolMemoryResource(below)
    runtime = DeviceRuntime(resource=above)
    S = runtime.acquire_stream()
    for _ in range(100):
        runtime.allocate(SIZE, S).free()
    assert (below.statistics()["allocations"], above.statistics()["allocations"]) == (1, 100)


@pytest.mark.parametrize("cache", [None, 0])
def test_a_handle_whose_block_was_freed_by_its_address_frees_no_other(four, cache):
    x = four(resource=PoolMemoryResource(initial_pool_size=ROOM, stream_cache_size=cache))
    hold = Hold(x.runtime)
    warm(hold, x.S.handle)
    former = x.runtime.allocate(SIZE, x.S)
    hold.free(former.ptr, x.S.handle)
    block = x.runtime.allocate(SIZE, x.S)
    assert block.ptr == former.id.ptr
    del former
    x.runtime.reap_pending()
    other = x.runtime.allocate(SIZE, x.S)
    assert other.ptr != block.ptr
    other.free()
    assert x.runtime.live_bytes == SIZE
    hold.close()
