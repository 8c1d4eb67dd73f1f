"""Contract 70 to 87 and 155 to 160: the runtime, the process's own, the stream pool, and arguments that make no
sense."""
from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from bench import READ, WRITE, nothing_happens
from cuda.bindings import driver as cuda

from xlogmem import (
    MAX_DEVICE_ORDINALS,
    Access,
    AsyncMemoryResource,
    BlockId,
    BlockState,
    DeviceBlock,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    LaunchRecorder,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
    get_runtime,
    runtime,
    use,
)
from xlogmem._kernels import check
from xlogmem.sim import Simulator

UNKNOWN = 999


@pytest.fixture
def _cold(monkeypatch):
    """As if nobody had asked for the process's runtimes yet."""
    monkeypatch.setattr(runtime, "_runtimes", [None] * MAX_DEVICE_ORDINALS)


# ---------------------------------------------------------------------------------------- the process's own
@pytest.mark.simulator
@pytest.mark.contract(70, 72)
def test_ordinals_out_of_range_do_not_touch_the_driver(driver):
    """16 and more, and negative ones, are refused by name; what is no integer is a TypeError."""
    before = driver.all_calls()
    assert MAX_DEVICE_ORDINALS == 16
    for ordinal in (16, 17, 9999, 1 << 70, -1):
        with pytest.raises(ValueError, match=f"ordinal {ordinal} exceeds MAX_DEVICE_ORDINALS=16"):
            get_runtime(ordinal)
    for wrong in ("0", 0.5, None):
        with pytest.raises(TypeError):
            get_runtime(wrong)
    assert driver.all_calls() == before


@pytest.mark.usefixtures("_cold")
@pytest.mark.contract(73, 76, 77, 81)
def test_the_same_object_every_time_and_without_a_lock():
    """A runtime that was made is returned as it is, even while the slot's lock is held, and nobody has to keep it."""
    first = get_runtime()
    assert first.ordinal == 0
    assert isinstance(first.stream_pool, StreamPool)
    number = id(first)
    block = first.allocate(64)
    del first
    gc.collect()
    with runtime._locks[0]:
        assert id(get_runtime(0)) == number
    assert block.core is get_runtime()


@pytest.mark.usefixtures("_cold")
@pytest.mark.contract(71, 74)
def test_one_build_for_each_ordinal(monkeypatch):
    """Callers that come while a runtime is made wait and get that one; other ordinals do not wait."""
    made, inside, go_on = [], threading.Event(), threading.Event()

    class Slow:
        def __init__(self, ordinal: int) -> None:
            made.append(ordinal)
            if ordinal == 0:
                inside.set()
                assert go_on.wait(60)

    monkeypatch.setattr(runtime, "DeviceRuntime", Slow)
    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(get_runtime, 0) for _ in range(8)]
        assert inside.wait(60)
        assert get_runtime(3) is get_runtime(3)         # not behind the first
        assert not any(result.done() for result in results)
        go_on.set()
        assert len({id(result.result(60)) for result in results}) == 1
    assert sorted(made) == [0, 3]


@pytest.mark.simulator
@pytest.mark.usefixtures("_cold")
@pytest.mark.contract(75)
def test_a_failed_build_leaves_the_slot_empty(driver, monkeypatch):
    """The error has the ordinal and the cause, whatever it is; the next caller tries again."""
    driver.fail("cuMemPoolCreate", code=UNKNOWN)
    with pytest.raises(DriverError, match=r"cuMemPoolCreate.*device 1"):
        get_runtime(1)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "DeviceRuntime", lambda ordinal: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            get_runtime(1)
    with pytest.raises(DriverError, match="ordinal 9 is out of range"):
        get_runtime(9)
    assert runtime._runtimes == [None] * MAX_DEVICE_ORDINALS
    assert get_runtime(1).ordinal == 1


@pytest.mark.usefixtures("_cold")
@pytest.mark.contract(69, 78)
def test_the_default_backend_is_stream_ordered(monkeypatch):
    """Where the device has memory pools the process's runtime is asynchronous, so recorders work with it."""
    monkeypatch.delenv("XLOGMEM_RESOURCE", raising=False)
    own = get_runtime()
    assert type(own.resource) is AsyncMemoryResource
    block = own.allocate(64)
    with use(own.default_stream, write=block):
        pass
    monkeypatch.setattr(runtime, "supports_memory_pools", lambda ordinal: False)
    assert type(DeviceRuntime().resource) is DirectMemoryResource


# ---------------------------------------------------------------------------------------- made by hand
@pytest.mark.usefixtures("_cold")
@pytest.mark.contract(79, 83)
@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource])
def test_a_runtime_of_ones_own_is_nobody_elses(resource):
    """It is in no table; what it allocates and frees shows in its books alone, and they come back to what they were."""
    assert not any(runtime._runtimes)
    own, pool = resource(), StreamPool()
    mine = DeviceRuntime(resource=own, stream_pool=pool)
    assert not any(runtime._runtimes)
    assert (mine.resource, mine.stream_pool) == (own, pool)
    stream = mine.acquire_stream()
    kept = mine.allocate(100, stream)
    before = mine.bytes_outstanding
    block = mine.allocate(4096, stream)
    assert mine.bytes_outstanding == before + 4096
    assert get_runtime() is not mine
    assert get_runtime().bytes_outstanding == 0
    mine.deallocate(block)
    mine.reap_pending()
    assert mine.bytes_outstanding == before == kept.nbytes


@pytest.mark.simulator
@pytest.mark.contract(80, 81)
def test_parts_that_do_not_fit_are_refused(driver):
    """Another device, a pool in use, things that are no parts: refused, and the parts may be used elsewhere."""
    pool, resource = StreamPool(), AsyncMemoryResource(1)
    with nothing_happens(driver):
        with pytest.raises(StreamMisuseError, match="device 0, the resource on device 1"):
            DeviceRuntime(stream_pool=pool, resource=resource)
        for wrong in ({"stream_pool": 3}, {"resource": "async"}, {"resource": AsyncMemoryResource}):
            with pytest.raises(TypeError):
                DeviceRuntime(**{"stream_pool": pool, "resource": resource} | wrong)
    one, two = DeviceRuntime(stream_pool=pool), DeviceRuntime(1, resource=resource)
    assert (one.ordinal, two.ordinal, one.stream_pool, two.resource) == (0, 1, pool, resource)
    with pytest.raises(StreamMisuseError, match="belongs to another runtime"):
        DeviceRuntime(stream_pool=pool)


@pytest.mark.simulator
@pytest.mark.contract(82)
def test_no_lock_is_held_across_driver_calls(bench, driver):
    """Every operation can be called, and used, from inside a driver call of every other, from another thread too."""
    x = bench(policy="precise")
    kept = x.alloc(x.S)

    def everything() -> None:
        block = x.runtime.allocate(64, x.U)
        with use(x.V, read=[block, kept]):
            pass
        x.runtime.record_block_use(block, x.V)
        block.free()
        assert x.runtime.bytes_outstanding >= kept.nbytes
        x.runtime.reap_pending()

    def elsewhere() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(everything).result(60)

    calls = ("cuMemAllocFromPoolAsync", "cuStreamIsCapturing", "cuEventRecord", "cuStreamWaitEvent", "cuMemFreeAsync",
             "cuEventSynchronize")
    for name in calls:
        for inside in (everything, elsewhere):
            entered = []
            driver.on_call(name, lambda inside=inside, entered=entered: (entered.append(1), inside()))
            block = x.alloc(x.S)
            x.use(x.S, (block, WRITE))
            x.use(x.T, (block, READ))
            block.free()
            x.runtime.reap_pending()
            assert entered, name
    assert x.runtime.live_bytes == kept.nbytes


@pytest.mark.contract(84, 85, 86)
def test_refused_uses_leave_the_block_usable():
    """Memory of nobody is refused by record, prepare and finish; a block that was refused elsewhere is freed as
    ever."""
    mine, other = DeviceRuntime(), DeviceRuntime()
    stream, block = mine.acquire_stream(), mine.allocate(64)
    theirs = check(cuda.cuMemAlloc(256))
    for what in (int(theirs), 0):
        with pytest.raises(StreamMisuseError, match="untracked buffer rejected"):
            mine.prepare_block_use(what, stream, Access.WRITE)
        for call in (lambda what=what: mine.finish_block_use(what, stream, Access.WRITE),
                     lambda what=what: mine.record_block_use(what, stream)):
            with pytest.raises(StreamMisuseError, match="is not memory of <DeviceRuntime"):
                call()
    with pytest.raises(StreamMisuseError):
        other.record_block_use(block, other.default_stream)
    mine.record_block_use(block, stream)
    mine.deallocate(block)
    assert block.state is BlockState.FREED
    check(cuda.cuMemFree(theirs))


@pytest.mark.simulator
@pytest.mark.contract(85, 86, 87)
@pytest.mark.parametrize("too_late", [False, True])
def test_scratch_is_prepared_before_the_work_and_finished_after(bench, driver, too_late):
    """Scratch from one stream, used at once on another: safe if the prepare comes before the launch."""
    x = bench()
    old = x.alloc(x.S)
    x.use(x.V, (old, WRITE))
    old.free()
    scratch = x.alloc(x.S)                              # the address of `old`
    if not too_late:
        x.runtime.prepare_block_use(scratch, x.T, Access.WRITE)
    write = x.work(x.T, (scratch, WRITE))
    if too_late:
        x.runtime.prepare_block_use(scratch, x.T, Access.WRITE)
    x.runtime.finish_block_use(scratch, x.T, Access.WRITE)
    assert bool(driver.races()) == too_late
    driver.clear_races()
    scratch.free()
    assert x.ordered(write, x.S)


# ---------------------------------------------------------------------------------------- the stream pool
@pytest.mark.simulator
@pytest.mark.contract(156, 157, 160)
def test_a_full_pool_and_a_driver_that_refuses(driver):
    """Neither falls back to the default stream; the books stay right."""
    pool = StreamPool(max_streams=2)
    driver.fail("cuStreamCreateWithPriority", code=UNKNOWN)
    with pytest.raises(DriverError, match=r"cuStreamCreateWithPriority.*creating a stream"):
        pool.acquire()
    assert len(pool) == 0
    streams = [pool.acquire(), pool.acquire()]
    assert driver.calls("cuEventRecord") == driver.calls("cuStreamWaitEvent") == 0  # it waits for nothing
    before = driver.all_calls()
    with pytest.raises(StreamMisuseError, match=r"stream pool at capacity \(max=2\)"):
        pool.acquire()
    assert driver.all_calls() == before
    assert (len(pool), pool.max_streams, pool.default in streams) == (2, 2, False)


@pytest.mark.contract(158, 159)
def test_streams_come_back_ids_do_not():
    """A dropped stream is handed out again under a new id; the old id is unknown from then on."""
    pool = StreamPool(max_streams=1)
    seen = set()
    for number in range(1, 30):
        stream = pool.acquire()
        assert stream.id == number
        seen.add(stream.handle)
        if number > 1:
            with pytest.raises(StreamMisuseError, match="unknown"):
                pool.stream(number - 1)
        del stream
    assert len(seen) == 1
    assert pool.stream(0) == pool.default


@pytest.mark.simulator
@pytest.mark.contract(160)
def test_the_pool_of_a_resource_keeps_what_it_is_told(driver):
    """Each resource has a driver pool of its own, with a threshold; the device's default pool is not used."""
    one, two = AsyncMemoryResource(release_threshold=0), AsyncMemoryResource()
    assert driver.calls("cuMemPoolCreate") == driver.calls("cuMemPoolSetAttribute") == 2
    for wrong in (-1, 1 << 64):
        with pytest.raises(ValueError, match="release_threshold"):
            AsyncMemoryResource(release_threshold=wrong)
    for resource in (one, two):
        block = DeviceRuntime(resource=resource).allocate(64)
        block.free()
    assert driver.calls("cuMemAllocFromPoolAsync") == 2
    assert driver.calls("cuMemAllocAsync") == driver.calls("cuDeviceGetDefaultMemPool") == 0


# ---------------------------------------------------------------------------------------- nonsense
class World:
    """A runtime with everything that an argument can be mistaken for."""

    def __init__(self, resource: str) -> None:
        kind = {"async": AsyncMemoryResource, "direct": DirectMemoryResource}[resource]
        self.mine, self.other, self.device1 = (DeviceRuntime(n, resource=kind(n)) for n in (0, 0, 1))
        self.stream, self.foreign = self.mine.acquire_stream(), self.other.acquire_stream()
        self.raw = check(cuda.cuStreamCreate(1))
        self.dead = self.mine.register_stream(self.raw)
        self.mine.unregister_stream(self.dead)
        self.block, self.theirs, self.far = (x.allocate(64) for x in (self.mine, self.other, self.device1))
        self.freed = self.mine.allocate(64)
        self.stale = self.freed.id
        self.freed.free()
        self.mine.reap_pending()
        self.done = use(self.stream)
        self.done.preflight()
        self.done.commit()
        self.late = LaunchRecorder(self.stream).read(self.block)
        self.late.preflight()


Call = Callable[[World], object]
ALLOCATE: list[tuple[str, type[Exception], str, Call]] = [
    ("zero bytes", DriverError, "zero-byte", lambda w: w.mine.allocate(0)),
    ("negative", ValueError, "negative", lambda w: w.mine.allocate(-64)),
    ("too many to count", OverflowError, "", lambda w: w.mine.allocate(1 << 70)),
    ("text", TypeError, "", lambda w: w.mine.allocate("64")),
    ("a fraction", TypeError, "", lambda w: w.mine.allocate(64.0)),
    ("nothing", TypeError, "", lambda w: w.mine.allocate(None)),
    ("a tag of bytes", TypeError, "", lambda w: w.mine.allocate(64, tag=b"x")),
    ("a stream of text", TypeError, "no CUDA stream", lambda w: w.mine.allocate(64, "x")),
    ("a negative stream", ValueError, "no CUDA stream handle", lambda w: w.mine.allocate(64, -5)),
    ("a huge stream", ValueError, "no CUDA stream handle", lambda w: w.mine.allocate(64, 1 << 64)),
    ("a foreign stream", StreamMisuseError, "another runtime", lambda w: w.mine.allocate(64, w.foreign)),
    ("a dead stream", StreamMisuseError, "unregistered", lambda w: w.mine.allocate(64, w.dead)),
]
FREE: list[tuple[str, type[Exception], str, Call]] = [
    ("nothing", TypeError, "", lambda w: w.mine.deallocate(None)),
    ("an identity", TypeError, "", lambda w: w.mine.deallocate(w.block.id)),
    ("an address", TypeError, "", lambda w: w.mine.deallocate(w.block.ptr)),
    ("another runtime's", StreamMisuseError, "another runtime", lambda w: w.mine.deallocate(w.theirs)),
    ("another device's", StreamMisuseError, "another runtime", lambda w: w.mine.deallocate(w.far)),
    ("twice", UseAfterFreeError, "use-after-free on generation", lambda w: w.freed.free()),
    ("on a foreign stream", StreamMisuseError, "another runtime", lambda w: w.block.free(w.foreign)),
    ("on a dead stream", StreamMisuseError, "unregistered", lambda w: w.block.free(w.dead)),
    ("on no stream", TypeError, "no CUDA stream", lambda w: w.block.free("x")),
    ("a forged block", StreamMisuseError, "", lambda w: w.mine.deallocate(DeviceBlock.__new__(DeviceBlock))),
]
USE: list[tuple[str, type[Exception], str, Call]] = [
    ("text", TypeError, "is no block", lambda w: use(w.stream, read="x")),
    ("a set", TypeError, "is no block", lambda w: use(w.stream, read={1})),
    ("nothing", TypeError, "is no block", lambda w: use(w.stream, read=None)),
    ("an address of nobody", StreamMisuseError, "untracked", lambda w: use(w.stream, read=4711).preflight()),
    ("a negative address", StreamMisuseError, "untracked", lambda w: use(w.stream, write=-1).preflight()),
    ("a huge address", StreamMisuseError, "untracked", lambda w: use(w.stream, write=1 << 70).preflight()),
    ("a foreign block", StreamMisuseError, "another runtime", lambda w: use(w.stream, read=w.theirs)),
    ("a foreign identity", StreamMisuseError, "another runtime", lambda w: use(w.stream, read=w.theirs.id)),
    ("another device's", StreamMisuseError, "another runtime", lambda w: use(w.stream, read=w.far)),
    ("a forged identity", StreamMisuseError, "another runtime",
     lambda w: use(w.stream, read=BlockId.__new__(BlockId))),
    ("a stale block", UseAfterFreeError, "argument 2", lambda w: use(w.stream, read=[w.block, w.freed]).preflight()),
    ("a stale identity", UseAfterFreeError, "argument 2", lambda w: use(w.stream, read=[w.block, w.stale]).preflight()),
    ("a dead stream", StreamMisuseError, "unregistered", lambda w: use(w.dead, read=w.block).preflight()),
    ("no stream", TypeError, "", lambda w: use(None, read=w.block)),
    ("a stream of text", TypeError, "no CUDA stream", lambda w: use("x", read=w.block)),
    ("a mode", ValueError, "mode", lambda w: use(w.stream, mode="careless")),
    ("a late use", StreamMisuseError, "recorded after preflight", lambda w: w.late.read(w.block)),
    ("a late address", StreamMisuseError, "recorded after preflight", lambda w: w.late.write(4711)),
    ("a second preflight", StreamMisuseError, "preflighted before", lambda w: w.late.preflight()),
    ("a second commit", StreamMisuseError, "committed or cancelled before", lambda w: w.done.commit()),
    ("a cancel after the commit", StreamMisuseError, "committed or cancelled before", lambda w: w.done.cancel()),
    ("a commit without preflight", StreamMisuseError, "without a successful preflight",
     lambda w: LaunchRecorder(w.stream).read(w.block).commit()),
]
SINGLE: list[tuple[str, type[Exception], str, Call]] = [
    ("record: nothing", TypeError, "", lambda w: w.mine.record_block_use(None, w.stream)),
    ("record: nobody's", StreamMisuseError, "", lambda w: w.mine.record_block_use(4711, w.stream)),
    ("record: foreign", StreamMisuseError, "another runtime", lambda w: w.mine.record_block_use(w.theirs, w.stream)),
    ("record: stale", UseAfterFreeError, "", lambda w: w.mine.record_block_use(w.stale, w.stream)),
    ("record: dead stream", StreamMisuseError, "unregistered", lambda w: w.mine.record_block_use(w.block, w.dead)),
    ("record: foreign stream", StreamMisuseError, "another", lambda w: w.mine.record_block_use(w.block, w.foreign)),
    ("finish: stale", UseAfterFreeError, "", lambda w: w.mine.finish_block_use(w.stale, w.stream, Access.WRITE)),
    ("finish: dead stream", StreamMisuseError, "unregistered",
     lambda w: w.mine.finish_block_use(w.block, w.dead, Access.WRITE)),
    ("prepare: stale", UseAfterFreeError, "", lambda w: w.mine.prepare_block_use(w.stale, w.stream, Access.WRITE)),
    ("prepare: dead stream", StreamMisuseError, "unregistered",
     lambda w: w.mine.prepare_block_use(w.block, w.dead, Access.WRITE)),
    ("prepare: foreign", StreamMisuseError, "another",
     lambda w: w.mine.prepare_block_use(w.far.id, w.stream, Access.WRITE)),
    ("find: text", TypeError, "", lambda w: w.mine.find_block("x")),
    ("adopt: inside out", ValueError, "no range", lambda w: w.mine.adopt(1 << 40, -1)),
    ("adopt: overlap", StreamMisuseError, "overlaps", lambda w: w.mine.adopt(w.block.ptr + 32, 64)),
    ("adopt: dead stream", StreamMisuseError, "unregistered", lambda w: w.mine.adopt(1 << 40, 64, w.dead)),
    ("register: text", TypeError, "no CUDA stream", lambda w: w.mine.register_stream("x")),
    ("unregister: our own", StreamMisuseError, "pool's own", lambda w: w.mine.unregister_stream(w.stream)),
    ("unregister: twice", StreamMisuseError, "not registered", lambda w: w.mine.unregister_stream(w.dead)),
]
NONSENSE = [pytest.param(error, match, call, id=f"{group}-{name}", marks=pytest.mark.contract(*items))
            for group, items, cases in (("allocate", (37, 38), ALLOCATE), ("free", (46, 48), FREE),
                                        ("use", (97, 101, 110), USE), ("single", (26, 64, 66), SINGLE))
            for name, error, match, call in cases]


@pytest.mark.simulator
@pytest.mark.parametrize("resource", ["async", "direct"])
@pytest.mark.parametrize(("error", "match", "call"), NONSENSE)
def test_nonsense_is_refused_and_nothing_happens(driver: Simulator, resource, error, match, call):
    """The documented error, no driver call but queries, every counter as before, and everything still works."""
    w = World(resource)
    before = w.block.frontier
    with nothing_happens(driver, w.mine, w.other, w.device1), pytest.raises(error, match=match or None) as raised:
        call(w)
    assert type(raised.value) is error
    del raised
    assert w.block.frontier == before
    assert w.block.state is w.theirs.state is w.far.state is BlockState.LIVE
    w.late.commit()                                     # its own use is filed all the same
    assert ("has-read", w.stream.id) in w.block.frontier
    with use(w.stream, write=w.block):
        pass
    for block in (w.block, w.theirs, w.far):
        block.free()
        assert block.state is BlockState.FREED
    assert w.mine.counters()["frees"] == 2
    check(cuda.cuStreamDestroy(w.raw))


@pytest.mark.simulator
@pytest.mark.contract(39)
def test_more_than_there_is(driver):
    """A size that no device has is out of memory, also after the second attempt, and nothing is counted."""
    mine = DeviceRuntime()
    for nbytes in (1 << 50, 1 << 63):
        with pytest.raises(OutOfDeviceMemoryError, match=f"allocating {nbytes} bytes"):
            mine.allocate(nbytes)
    assert driver.calls("cuMemAllocFromPoolAsync") == 4
    assert set(mine.counters().values()) == {0}


@pytest.mark.parametrize("access", ["read", None, 1, Access(0)])
def test_an_access_that_is_none(access):
    """What is no access is a TypeError, for prepare and finish, and opens or files nothing."""
    mine = DeviceRuntime()
    block = mine.allocate(64)
    raised = []
    for call in ("prepare_block_use", "finish_block_use"):
        try:
            getattr(mine, call)(block, mine.default_stream, access)
        except Exception as error:
            raised.append(type(error))
    entries = set(block.frontier)
    del mine, block                                     # a failing test keeps its frame
    assert all(kind in (TypeError, ValueError) for kind in raised), raised
    assert len(raised) == 2
    assert entries == {("allocated", 0)}
