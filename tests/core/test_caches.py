"""Memory that a stream frees and allocates again, in front of a pool, without the lock of the runtime."""
from __future__ import annotations

import threading

import pytest
from arrays import CudaArray
from c_table import Hold
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream, foreign
from four_streams import READ, WRITE

from xlogmem import (
    BlockState,
    LimitingResourceAdaptor,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
SIZE = 512
MIB = 1 << 20                                           # the largest that is cached
ROOM = 64 << 20                                         # bytes of a pool that is not scarce here


@pytest.fixture
def x(four):
    return four(resource=PoolMemoryResource(initial_pool_size=ROOM))


def local(x, stream):
    """A block in memory that the stream had cached."""
    for _ in range(8):
        before = x.runtime.counters()["cached"]
        block = x.alloc(stream, SIZE)
        if x.runtime.counters()["cached"] > before:
            return block
        block.free()
    raise AssertionError("no allocation came from a cache")


def catch_up(x, S):
    """T is ordered after every position of S so far."""
    other = x.alloc(x.U)
    x.use(S, (other, WRITE))
    x.use(x.T, (other, READ))
    other.free()                                        # not by the next operation, which would bring others in


def test_the_same_memory_comes_back_under_another_generation(x):
    first = local(x, x.S)
    address = first.ptr
    first.free()
    again = x.alloc(x.S, SIZE)
    assert again.ptr == address
    assert again.generation > first.generation
    with pytest.raises(UseAfterFreeError):
        first.free()
    assert (first.state, again.state) == (BlockState.FREED, BlockState.LIVE)


def test_a_handle_of_cached_memory_is_stale(x):
    block = local(x, x.S)
    alias = x.runtime.find_block(block.ptr)             # an identity, which owns nothing
    block.free()
    for generation in (block.id, alias):
        with pytest.raises(UseAfterFreeError):
            x.use(x.T, (generation, READ))
    x.alloc(x.S, SIZE)
    with pytest.raises(UseAfterFreeError):
        x.use(x.T, (alias, READ))


def test_figures_count_local_blocks(x):
    blocks = [local(x, x.S)]
    before = x.runtime.counters()
    assert x.runtime.live_bytes == SIZE
    blocks[0].free()
    blocks = [x.alloc(x.S, SIZE - 8), x.alloc(x.S, SIZE)]       # one from the cache, one from the pool
    assert x.runtime.live_bytes == 2 * SIZE - 8
    after = x.runtime.counters()
    assert after["allocations"] == before["allocations"] + 2
    assert after["cached"] == before["cached"] + 1
    assert after["live_blocks"] == 2
    assert x.runtime.resource.statistics()["allocations"] == after["allocations"]
    assert x.runtime.resource.statistics()["used_bytes"] == 2 * SIZE
    del blocks


@pytest.mark.parametrize("dropped", [False, True])
def test_another_stream_is_ordered_after_a_fill_of_a_local_block(x, driver, dropped):
    block = local(x, x.S)
    catch_up(x, x.S)
    fill = x.work(x.S, (block, WRITE))                  # without a record
    if dropped:
        driver.drop("cuStreamWaitEvent")
    x.use(x.T, (block, READ))
    driver.clear_races()
    assert x.ordered(fill, x.T) == (not dropped)


@pytest.mark.parametrize("offset", [0, 100])
def test_a_local_block_is_found_by_address(x, offset):
    block = local(x, x.S)
    assert x.runtime.find_block(block.ptr + offset).generation == block.generation
    assert x.runtime.find_block(block.ptr + SIZE) is None
    fill = x.work(x.S, (block, WRITE))
    with use(x.T, read=CudaArray(block.ptr + offset)):
        assert x.ordered(fill, x.T)


def test_what_another_stream_has_used_is_not_cached(x):
    block = local(x, x.S)
    read = x.use(x.T, (block, READ))
    block.free()
    before = x.runtime.counters()["cached"]
    x.alloc(x.S, SIZE)
    assert x.runtime.counters()["cached"] == before
    again = x.alloc(x.S, SIZE)
    assert x.ordered(read, x.S) or again.ptr != block.id.ptr


def test_a_free_elsewhere_is_not_cached_at_home(x):
    block = local(x, x.S)
    block.free(x.T)
    late = x.work(x.T)                                  # T may still be at it
    again = x.alloc(x.S, SIZE)
    assert again.ptr != block.id.ptr or x.ordered(late, x.S)


@pytest.mark.parametrize("dropped", [False, True])
def test_cached_memory_is_no_reserve(four, driver, dropped):
    """All of a pool is in the cache of S; T gets it, ordered after what was queued before the free."""
    x = four(resource=PoolMemoryResource(initial_pool_size=ROOM, maximum_pool_size=ROOM, stream_cache_size=ROOM))
    block = local(x, x.S)
    rest = x.alloc(x.T, ROOM - 256 * 256)
    x.use(x.T, (rest, WRITE))
    catch_up(x, x.S)
    late = x.work(x.S, (block, WRITE))
    block.free()
    if dropped:
        driver.drop("cuStreamWaitEvent")
    others = [x.alloc(x.T, SIZE) for _ in range(256 * 256 // SIZE)]
    driver.clear_races()
    assert block.id.ptr in [other.ptr for other in others]
    assert x.ordered(late, x.T) == (not dropped)


def test_a_stream_takes_what_it_has_cached_before_it_waits(x):
    for _ in range(4):
        own = x.alloc(x.S, MIB)
        own.free()
    rest = x.alloc(x.T, ROOM - MIB)                     # nothing is left that S need not wait for
    late = x.work(x.T, (rest, WRITE))
    rest.free()
    again = x.alloc(x.S, SIZE)
    assert own.id.ptr <= again.ptr < own.id.ptr + MIB
    assert not x.ordered(late, x.S)


def test_streams_in_turn_come_to_have_memory_of_their_own(x):
    """They begin with one after the other's, and would go on like that if caches were emptied before each wait."""
    streams = [x.runtime.acquire_stream() for _ in range(8)]

    def rounds(count):
        before = x.runtime.counters()
        for _ in range(count):
            for stream in streams:
                x.runtime.allocate(SIZE, stream).free()
        return {name: x.runtime.counters()[name] - before[name] for name in ("waits", "cached")}

    assert rounds(6)["waits"] > 0
    assert rounds(10) == {"waits": 0, "cached": 10 * len(streams)}


def test_a_trim_returns_what_is_cached(x):
    local(x, x.S).free()
    assert x.runtime.resource.trim() == ROOM
    assert x.runtime.resource.pool_size() == 0


@pytest.mark.parametrize("dropped", [False, True])
def test_a_stream_that_promises_to_record_has_no_older_cache(four, driver, dropped):
    """A local block was filled without a record; then the stream is sealed, and the block is freed."""
    x = four(resource=PoolMemoryResource(initial_pool_size=ROOM, maximum_pool_size=ROOM))
    owner, S = foreign(x)
    block = local(x, S)
    catch_up(x, S)
    fill = x.work(S, (block, WRITE))
    x.runtime.register_stream(owner, discipline="sealed")
    address = block.ptr
    block.free()
    if dropped:
        driver.drop("cuStreamWaitEvent")
    x.runtime.resource.statistics()                     # empties caches
    others = [x.alloc(x.T, SIZE)]
    while others[-1].ptr != address and len(others) < ROOM // SIZE:
        others.append(x.alloc(x.T, SIZE))
    driver.clear_races()
    assert others[-1].ptr == address
    assert x.ordered(fill, x.T) == (not dropped)


def test_a_local_block_outlives_the_registration_of_its_stream(x):
    owner, S = foreign(x)
    block, cached = local(x, S), x.alloc(S, SIZE)
    fill = x.work(S, (block, WRITE))
    cached.free()
    x.runtime.unregister_stream(S, successor=x.V)
    owner.destroy()
    assert block.state is BlockState.LIVE
    x.use(x.V, (block, READ))
    assert x.ordered(fill, x.V)
    block.free()
    with pytest.raises(StreamMisuseError):
        x.runtime.allocate(SIZE, S)


@pytest.mark.parametrize("maximum", [None, ROOM])
def test_a_stream_that_may_be_destroyed_has_a_cache_where_not_each_free_has_a_fence(four, maximum):
    x = four(resource=PoolMemoryResource(initial_pool_size=ROOM, maximum_pool_size=maximum))
    owner = ForeignStream()
    for _ in range(6):
        x.runtime.allocate(SIZE, owner.handle).free()
    assert (x.runtime.counters()["cached"] > 0) == (maximum is None)


def test_an_allocation_on_a_capturing_stream_is_refused(x):
    local(x, x.S).free()
    before = x.runtime.counters()
    check(cuda.cuStreamBeginCapture(x.S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(StreamMisuseError, match="capturing"):
        x.alloc(x.S, SIZE)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    assert x.runtime.counters() == before
    assert x.runtime.live_bytes == 0
    assert x.alloc(x.S, SIZE).state is BlockState.LIVE


def test_callers_of_the_c_table_meet_the_same_cache(x):
    local(x, x.S).free()
    hold = Hold(x.runtime)
    ptr = hold.allocate(SIZE, x.S.handle)                       # from here on the hold knows the cache
    hold.free(ptr, x.S.handle)
    before = x.runtime.counters()
    assert hold.allocate(SIZE, x.S.handle) == ptr
    assert x.runtime.live_bytes == SIZE
    hold.free(ptr, x.S.handle)
    after = x.runtime.counters()
    assert (after["cached"], after["frees"]) == (before["cached"] + 1, before["frees"] + 1)
    hold.free(ptr, x.S.handle)
    with pytest.raises(Exception, match="no block of the runtime is alive"):
        x.runtime.reap_pending()
    hold.close()


def test_an_adaptor_sees_every_call(four):
    limit = LimitingResourceAdaptor(PoolMemoryResource(initial_pool_size=ROOM), ROOM)
    x = four(resource=limit)
    for _ in range(6):
        block = x.alloc(x.S, SIZE)
        assert limit.current_bytes == SIZE
        block.free()
    assert x.runtime.counters()["cached"] == 0


def test_blocks_with_tags_are_as_without_a_cache(x):
    local(x, x.S).free()
    block = x.runtime.allocate(SIZE, x.S, tag="a tag")
    assert "a tag" in repr(block)
    block.free()


def test_threads_on_streams_of_their_own(x):
    streams = [x.runtime.acquire_stream() for _ in range(8)]
    rounds, wrong = 400, []

    def work(stream):
        for i in range(rounds):
            blocks = [x.runtime.allocate(SIZE, stream) for _ in range(3)]
            if len({block.ptr for block in blocks}) != 3:
                wrong.append(blocks)
            if i % 50 == 0:
                x.runtime.find_block(blocks[1].ptr + 8)
            blocks[1].free()
            del blocks
            if i % 100 == 0:
                x.runtime.resource.statistics()

    threads = [threading.Thread(target=work, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    counters = x.runtime.counters()
    assert counters["allocations"] == counters["frees"] + counters["live_blocks"] == 8 * rounds * 3
    assert counters["cached"] > 100
