"""A pool without a maximum, where the host runs ahead of the device: memory without a wait comes first."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE, FourStreams, Operation
from pools import GRAIN, Counted, no_driver_call, simulated

from xlogmem import (
    AsyncMemoryResource,
    DeviceBlock,
    LimitingResourceAdaptor,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
)
from xlogmem.sim.kernels import check

pytestmark = simulated
MIB = 1 << 20
BIG = 64 * MIB                                          # more than a pool lets pass between two marks
LEAST = 512 * MIB                                       # a 32nd of the simulated device


@pytest.fixture
def ahead(four, driver):
    """Makes four streams on a pool; nothing is complete before the program waits for it."""
    def make(*arguments, **options) -> FourStreams:
        made = four(resource=PoolMemoryResource(*arguments, **options), policy="lazy")
        driver.set_policy("min")
        driver.set_fills(False)
        return made
    return make


def freed_after_a_read(x: FourStreams, nbytes: int) -> tuple[DeviceBlock, Operation]:
    """A block of S, freed after T has read it."""
    block = x.alloc(x.S, nbytes)
    read = x.use(x.T, (block, READ))
    block.free()
    return block, read


def figures(x: FourStreams) -> dict:
    return x.runtime.resource.statistics()


# ---------------------------------------------------------------------------------------- new memory, or a wait
@pytest.mark.parametrize("maximum", [None, BIG])
def test_a_stream_gets_new_memory_rather_than_a_wait(ahead, maximum):
    """With the maximum, as its twin: the same memory, and a wait."""
    x = ahead(maximum_pool_size=maximum)
    freed, read = freed_after_a_read(x, BIG)
    block = x.alloc(x.S, BIG)
    assert (block.ptr == freed.id.ptr) == (maximum is not None)
    assert x.ordered(read, x.S) == (maximum is not None)
    assert figures(x)["waited"] == (maximum is not None)


def test_memory_that_a_query_sees_complete_comes_before_new_memory(ahead, driver):
    x = ahead()
    freed, _ = freed_after_a_read(x, BIG)
    driver.set_policy("eager")
    waits = x.waits()
    assert x.alloc(x.S, BIG).ptr == freed.id.ptr
    assert (x.waits(), figures(x)["grown"], figures(x)["waited"]) == (waits, 1, 0)


def test_the_pool_expands_up_to_a_part_of_the_device(ahead):
    x = ahead()
    for _ in range(2 * LEAST // BIG):
        freed_after_a_read(x, BIG)
    assert LEAST - BIG < figures(x)["pool_size"] <= LEAST
    assert figures(x)["waited"]


def test_the_pool_expands_up_to_twice_its_peak(ahead):
    x = ahead()
    kept = [x.alloc(x.U, BIG) for _ in range(LEAST // BIG)]
    for _ in range(2 * LEAST // BIG):
        freed_after_a_read(x, BIG)
    peak = figures(x)["peak_bytes"]
    assert LEAST < peak < LEAST + 2 * BIG
    assert 2 * peak - 2 * BIG < figures(x)["pool_size"] <= 2 * peak
    kept.clear()


def test_the_pool_leaves_half_of_the_device_to_others(ahead):
    x = ahead()
    kept = [x.alloc(x.U, BIG) for _ in range(17 * LEAST // BIG)]
    freed_after_a_read(x, BIG)
    grown = figures(x)["grown"]
    for _ in range(40):
        freed_after_a_read(x, BIG)
    assert figures(x)["grown"] == grown
    assert figures(x)["waited"]
    kept.clear()


def test_an_upstream_that_refused_is_not_tried_again(ahead):
    upstream = Counted(4 * BIG)
    x = ahead(upstream, chunk_size=BIG)
    for _ in range(4):
        freed_after_a_read(x, BIG)
    requests = len(upstream.requests)
    for _ in range(20):
        freed_after_a_read(x, BIG)
    assert len(upstream.requests) == requests + 1
    x.runtime.reap_pending()                            # drops the exceptions of `Counted`


def test_a_budget_is_left_to_those_who_share_it(ahead):
    x = ahead(LimitingResourceAdaptor(AsyncMemoryResource(), LEAST), chunk_size=BIG)
    for _ in range(20):
        freed_after_a_read(x, BIG)
    assert (figures(x)["pool_size"], figures(x)["grown"]) == (BIG, 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_error_of_upstream_is_reported(ahead, error):
    """... where the pool would have had memory for a wait; the next allocation takes that."""
    upstream = Counted(LEAST)
    x = ahead(upstream, chunk_size=BIG)
    freed, _ = freed_after_a_read(x, BIG)
    allocate, upstream.allocate = upstream.allocate, lambda *_: raise_(error)
    with pytest.raises(error):
        x.alloc(x.S, BIG)
    upstream.allocate = lambda *_: raise_(OutOfDeviceMemoryError)
    block = x.alloc(x.S, BIG)
    assert block.ptr == freed.id.ptr
    upstream.allocate = allocate
    x.runtime.reap_pending()                            # drops the exceptions of `Counted`


def raise_(error):
    raise error("by the test")


def test_what_was_taken_ahead_does_not_make_chunks_larger(ahead):
    """A request that is larger than all before gets what the pool would have got without that."""
    x = ahead()
    for _ in range(40):
        freed_after_a_read(x, 16 * MIB)
    before = figures(x)["pool_size"]
    assert before > 8 * BIG - 16 * MIB
    block = x.alloc(x.S, 3 * BIG)
    assert figures(x)["pool_size"] == before + 3 * BIG
    block.free()


def test_streams_that_need_little_share_a_chunk(ahead, driver):
    x = ahead()
    driver.set_policy("eager")
    for stream in [x.S, x.T, x.U, x.V, *(x.runtime.acquire_stream() for _ in range(12))]:
        x.alloc(stream, 4096).free()
    assert figures(x)["grown"] == 1


def test_one_stream_takes_what_it_freed(ahead, driver):
    x = ahead()
    x.alloc(x.S, BIG).free()
    with no_driver_call(driver):
        for _ in range(20):
            x.alloc(x.S, BIG).free()
    assert figures(x)["grown"] == 1


# ---------------------------------------------------------------------------------------- the oldest first
def test_a_stream_waits_for_the_oldest_memory_alone(ahead):
    """Four places in turn: the tenth block gets the second place, read five rounds ago, and not the first, which was
    read just now."""
    x = ahead(Counted(4 * BIG), chunk_size=BIG)
    reads = [freed_after_a_read(x, BIG)[1] for _ in range(9)]
    block = x.alloc(x.S, BIG)
    assert x.ordered(reads[5], x.S)
    assert not x.ordered(reads[6], x.S)
    block.free()
    x.runtime.reap_pending()


def test_a_mark_for_as_many_bytes_as_a_chunk(ahead, driver):
    """A record of S and one of T for each chunk that they pass on, beside those of S for which T waits each time."""
    x = ahead()
    driver.set_policy("eager")
    for _ in range(640):
        freed_after_a_read(x, MIB)
    assert (figures(x)["grown"], figures(x)["waited"]) == (1, 0)
    assert 2 * 18 <= x.records() - 640 <= 2 * 20 + 1


def test_streams_that_exchange_no_memory_have_no_marks(ahead):
    x = ahead()
    blocks = [x.alloc(stream, BIG) for stream in (x.S, x.T)]
    blocks.clear()
    records = x.records()
    for _ in range(20):
        for stream in (x.S, x.T):
            x.alloc(stream, BIG).free()
    assert x.records() == records


def test_no_mark_where_a_graph_is_captured(ahead):
    x = ahead()
    for _ in range(2):
        freed_after_a_read(x, BIG)
    check(cuda.cuStreamBeginCapture(x.T.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    x.alloc(x.S, BIG).free()
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.T.handle))))


# ---------------------------------------------------------------------------------------- neighbours
def neighbours_with_a_fence_between(x: FourStreams) -> tuple[DeviceBlock, DeviceBlock]:
    """Two neighbours that S has freed, with a fence between the frees."""
    lower, upper, other = x.alloc(x.S, BIG), x.alloc(x.S, BIG), x.alloc(x.S, GRAIN)
    x.alloc(x.T, GRAIN).free()                          # from now on two streams have free memory
    lower.free()
    x.use(x.T, (other, READ))
    upper.free()
    return lower, upper


def test_neighbours_stay_apart_where_coalescing_makes_one_younger(ahead):
    x = ahead(Counted(LEAST), initial_pool_size=LEAST)
    fresh = x.alloc(x.S, GRAIN)
    lower, _ = neighbours_with_a_fence_between(x)
    late = x.work(x.S)
    x.use(x.U, (fresh, READ))                           # another fence, behind the later work
    rest = x.alloc(x.T, LEAST - 3 * BIG)                # of the memory that is ready there is too little left
    block = x.alloc(x.V, BIG)
    assert block.ptr == lower.id.ptr
    assert not x.ordered(late, x.V)
    rest.free()
    x.runtime.reap_pending()                            # drops the exceptions of `Counted`


def test_many_neighbours_are_coalesced_before_the_pool_expands(ahead):
    """Freed in the order of their addresses, with a fence between each two."""
    x = ahead(chunk_size=4 * BIG, stream_cache_size=0)
    tiny = x.alloc(x.S, GRAIN)
    blocks = [x.alloc(x.S, MIB) for _ in range(200)]
    kept = x.alloc(x.T, GRAIN), x.alloc(x.T, GRAIN)
    kept[0].free()                                      # from now on two streams have free memory
    while blocks:
        blocks.pop(0).free()
        x.use(x.S, (tiny, WRITE))
        x.use(x.T, (tiny, READ))
    x.alloc(x.S, 190 * MIB)
    assert figures(x)["grown"] == 1


def test_neighbours_are_coalesced_for_a_stream_that_is_ordered_after_both(ahead):
    x = ahead(chunk_size=4 * BIG)
    lower, _ = neighbours_with_a_fence_between(x)
    x.alloc(x.S, 2 * BIG - 2 * GRAIN)                   # the end of the chunk
    before, waits = figures(x), x.waits()
    assert x.alloc(x.S, 2 * BIG).ptr == lower.id.ptr
    assert (figures(x)["joins"], figures(x)["grown"], x.waits()) == (before["joins"] + 1, before["grown"], waits)
