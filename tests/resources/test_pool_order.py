"""The order of what a pool hands out again: scenarios with twins, see `scenarios`."""
from __future__ import annotations

import contextlib

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, READ_WRITE, WRITE, FourStreams
from pools import GRAIN, HALF, QUARTER, WHOLE, Recycling, one_chunk, simulated
from scenarios import Scenarios

from xlogmem import (
    DirectMemoryResource,
    DriverError,
    PoolMemoryResource,
)
from xlogmem.interop.devices import DeviceState
from xlogmem.sim.kernels import check

scenario = Scenarios(one_chunk)


@scenario(spare=1)
def an_allocation_orders_its_stream(x: FourStreams) -> bool:
    """Memory last read on V, freed on S, taken on T and handed to U: U is ordered through T's new position."""
    b = x.alloc(x.S, WHOLE)
    one, two = x.use(x.V, (b, READ)), x.use(x.V, (b, READ))
    late = x.work(x.S, (b, READ))
    b.free()
    c = x.alloc(x.T, WHOLE)
    x.use(x.U, (c, WRITE))
    return x.ordered(one, x.T) and x.ordered(two, x.U) and x.ordered(late, x.T)


@scenario(opaque="T", spare=2)
def hidden_work_on_an_opaque_stream_is_handed_over_as_a_new_position(x: FourStreams) -> bool:
    """The entry of the opaque T is raised for the last time when b is freed: a position that U knows is not enough.
    (T waits for S a second time, for what may have been filled into the other block: nothing was.)"""
    b, other = x.alloc(x.S, HALF), x.alloc(x.S, HALF)
    x.use(x.T, (b, READ))
    x.use(x.T, (other, READ))
    x.use(x.U, (other, READ_WRITE))                     # U knows T
    hidden = x.work(x.T, (b, READ))
    late = x.work(x.S, (b, READ))
    b.free()
    x.alloc(x.U, HALF)
    return x.ordered(hidden, x.U) and x.ordered(late, x.U)


@scenario(spare=1)
def fill_then_free_then_reuse_elsewhere(x: FourStreams) -> bool:
    """T knows S; b is filled on S without a recorder and freed on S; T gets the bytes."""
    b, other = x.alloc(x.S, HALF), x.alloc(x.S, HALF)
    x.use(x.T, (other, READ))
    fill = x.work(x.S, (b, WRITE))
    b.free()
    x.alloc(x.T, HALF)
    return x.ordered(fill, x.T)


@scenario()
def work_before_a_free_on_the_same_stream(x: FourStreams) -> bool:
    """The same after a use elsewhere: all callers rely on "freed on S" meaning "after everything queued on S"."""
    b = x.alloc(x.S, WHOLE)
    write = x.work(x.S, (b, WRITE))
    x.use(x.T, (b, READ))                               # T knows S
    late = x.work(x.S, (b, READ))
    b.free()
    x.alloc(x.T, WHOLE)
    return x.ordered(late, x.T) and x.ordered(write, x.T)


@scenario()
def the_rest_of_a_new_chunk(x: FourStreams) -> bool:
    """The pool grows for S; T takes from the rest of that chunk, which is not there before S's allocation."""
    x.alloc(x.S, QUARTER)
    rest = x.alloc(x.T, QUARTER)
    x.work(x.T, (rest, WRITE))
    return not x.driver.races()


@scenario()
def adjacent_spans_with_different_readers_are_coalesced(x: FourStreams) -> bool:
    """Two adjacent blocks are freed; T takes the whole, and waits for both readers."""
    a, b = x.alloc(x.S, HALF), x.alloc(x.S, HALF)
    one, two = x.use(x.U, (a, READ)), x.use(x.V, (b, READ))
    late = x.work(x.S, (a, READ))
    a.free()
    b.free()
    x.alloc(x.T, WHOLE)
    return x.ordered(one, x.T) and x.ordered(two, x.T) and x.ordered(late, x.T)


@scenario()
def adjacent_spans_of_one_stream_are_coalesced_on_the_newest_position(x: FourStreams) -> bool:
    """The lower was freed before U came to know S, the upper after."""
    lower, upper, other = x.alloc(x.S, HALF), x.alloc(x.S, QUARTER), x.alloc(x.S, QUARTER)
    first = x.work(x.S, (lower, WRITE))
    lower.free()
    other.free()
    taken = x.alloc(x.U, QUARTER)                       # U waits for S
    known = x.ordered(first, x.U)
    second = x.work(x.S, (upper, WRITE))
    upper.free()
    whole = x.alloc(x.U, HALF + QUARTER)
    assert (taken.ptr, whole.ptr) == (other.id.ptr, lower.id.ptr)
    x.work(x.U, (whole, WRITE))
    return known and x.ordered(second, x.U)


@scenario()
def adjacent_spans_that_a_tight_pool_coalesces(x: FourStreams) -> bool:
    """S has a larger span of its own, and takes what U and V had: it waits for both."""
    a, b, filled = x.alloc(x.S, HALF // 4), x.alloc(x.S, HALF // 4), x.alloc(x.S, QUARTER + GRAIN)
    one, two = x.use(x.U, (a, READ)), x.use(x.V, (b, READ))
    a.free()
    b.free()
    taken = x.alloc(x.S, QUARTER)
    assert a.id.ptr == taken.ptr < filled.id.ptr
    x.work(x.S, (taken, WRITE))
    return x.ordered(one, x.S) and x.ordered(two, x.S)


@scenario(spare=1)
def both_parts_of_what_is_split_are_waited_for(x: FourStreams) -> bool:
    b = x.alloc(x.S, WHOLE)
    one, two = x.use(x.V, (b, READ)), x.use(x.V, (b, READ))
    three, four = x.work(x.S, (b, READ)), x.work(x.S, (b, READ))
    b.free()
    lower, upper = x.alloc(x.T, HALF), x.alloc(x.U, HALF)
    assert lower.ptr != upper.ptr
    return x.ordered(one, x.T) and x.ordered(two, x.U) and x.ordered(three, x.T) and x.ordered(four, x.U)


@scenario()
def memory_freed_on_a_stream_that_the_caller_named(x: FourStreams) -> bool:
    """Fresh on S, freed on T, taken on U: what was filled on S without a recorder, and what T did."""
    b = x.alloc(x.S, WHOLE)
    fill = x.work(x.S, (b, WRITE))
    later = x.work(x.T)
    b.free(x.T)
    x.alloc(x.U, WHOLE)
    return x.ordered(fill, x.U) and x.ordered(later, x.U)


@scenario()
def memory_of_a_stream_that_was_unregistered(x: FourStreams) -> bool:
    """Its last fence answers for the memory that was freed there."""
    handle = int(check(cuda.cuStreamCreate(1)))
    stream = x.runtime.register_stream(handle)
    b = x.alloc(stream, WHOLE)
    word = x.next_word()
    x.kernels.fill(handle, word, 1, 1)
    b.free()
    x.runtime.unregister_stream(stream, successor=x.V)
    check(cuda.cuStreamDestroy(handle))
    c = x.alloc(x.T, WHOLE)
    x.work(x.T, (c, WRITE))
    x.kernels.fill(x.T.handle, word, 2, 1)              # a race, if T is not ordered after the destroyed stream
    return not x.driver.races()


@scenario()
def memory_whose_home_was_unregistered_before_it_was_freed(x: FourStreams) -> bool:
    """The successor frees it; the new owner waits for what was queued on the former home."""
    handle = int(check(cuda.cuStreamCreate(1)))
    stream = x.runtime.register_stream(handle)
    b = x.alloc(stream, WHOLE)
    x.kernels.fill(handle, b.ptr, 1, 1)
    x.runtime.unregister_stream(stream, successor=x.V)
    check(cuda.cuStreamDestroy(handle))
    later = x.work(x.V)
    b.free()
    c = x.alloc(x.T, WHOLE)
    x.work(x.T, (c, WRITE))
    return x.ordered(later, x.T) and not x.driver.races()


@scenario(sealed="S", spare=1)
def the_entries_of_a_sealed_home_are_kept_one_and_all(x: FourStreams) -> bool:
    """S knows U's read, but a sealed home takes no new position: a stream that knows S's write alone does not know that
    read.  (S waits for U to know it.)"""
    b = x.alloc(x.S, HALF)
    write = x.use(x.S, (b, WRITE))
    read = x.use(x.U, (b, READ))
    other = x.alloc(x.U, HALF)
    x.use(x.S, (other, READ))
    b.free()
    x.alloc(x.T, HALF)
    return x.ordered(read, x.T) and x.ordered(write, x.T)


@scenario(sealed="S", spare=1)
def memory_that_was_exported_on_a_sealed_home(x: FourStreams) -> bool:
    """Sealed is a promise of the code that allocated.  A consumer of the interface works on the stream that it names,
    and T knows S up to there: the library's own window was the last that was recorded."""
    state = DeviceState(x.runtime)
    buffer = state.empty(HALF // 4, "uint32", x.S)
    assert buffer.__cuda_array_interface__["stream"] == x.S.handle
    other = x.alloc(x.S, HALF)
    x.use(x.T, (other, READ))
    block = buffer.access()
    late = x.work(x.S, (block, WRITE))
    block.free()
    x.alloc(x.T, HALF)
    return x.ordered(late, x.T)


@scenario()
def a_chunk_goes_upstream_after_the_uses_of_its_memory(x: FourStreams) -> bool:
    a, b = x.alloc(x.S, HALF), x.alloc(x.T, HALF)
    x.use(x.U, (a, READ))
    x.use(x.V, (b, READ))
    x.work(x.S, (a, READ))
    x.work(x.T, (b, READ))
    a.free()
    b.free()
    return x.runtime.resource.trim() == WHOLE and not x.driver.races()


@scenario()
def an_allocation_that_could_not_wait_leaves_the_frontier_with_the_memory(x: FourStreams) -> bool:
    b = x.alloc(x.S, WHOLE)
    late = x.work(x.S, (b, WRITE))
    b.free()
    x.driver.fail("cuStreamWaitEvent", 1, 999)
    with contextlib.suppress(DriverError):
        x.alloc(x.T, HALF)
    x.alloc(x.T, WHOLE)
    return x.ordered(late, x.T)


@simulated
@pytest.mark.parametrize(("name", "policy"), scenario.under_each_policy())
@pytest.mark.promise(33)
def test_scenario(driver, name, policy):
    verdict, _ = scenario.play(driver, name, policy)
    assert verdict


@simulated
@pytest.mark.parametrize("name", scenario.named)
def test_twin_without_a_wait_is_noticed(driver, name):
    scenario.twin_is_noticed(driver, name)


@simulated
@pytest.mark.parametrize("dropped", [False, True])
def test_the_host_waits_before_a_chunk_goes_to_an_upstream_without_streams(four, driver, dropped):
    upstream = Recycling()
    pool = PoolMemoryResource(upstream, maximum_pool_size=WHOLE, chunk_size=WHOLE)
    x = four(resource=pool)
    b = x.alloc(x.S, WHOLE)
    x.use(x.T, (b, WRITE))
    b.free()
    assert driver.calls("cuEventSynchronize") == 0      # a free waits for nothing
    if dropped:
        driver.drop("cuEventSynchronize", 1)            # the wait for T
    assert pool.trim() == WHOLE
    c = x.alloc(x.U, WHOLE)
    assert c.ptr == b.id.ptr
    x.work(x.U, (c, WRITE))
    assert bool(driver.races()) == dropped
    driver.clear_races()
    c.free()
    pool.trim()
    upstream.below.deallocate(upstream.kept.pop(), WHOLE, x.S)


@simulated
def test_memory_from_an_upstream_without_streams_is_ready_on_all_streams(four):
    x = four(resource=PoolMemoryResource(DirectMemoryResource(), chunk_size=WHOLE))
    blocks = [x.alloc(stream, QUARTER) for stream in (x.S, x.T, x.U, x.V)]
    for block, stream in zip(blocks, (x.S, x.T, x.U, x.V), strict=True):
        x.work(stream, (block, WRITE))
    assert (x.records(), x.waits()) == (0, 0)
