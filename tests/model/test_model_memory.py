"""The smallest programs that go wrong without a rule about frees, the pool and adopted memory."""
from __future__ import annotations

import pytest
from model_bench import Bench, needs
from ordering_model.driver import DriverError, Op
from ordering_model.frontiers import State
from ordering_model.rules import READ, WRITE, HostRules, StreamMisuse, run

RULES = HostRules()


# ------------------------------------------------------------------------------------ frees
@needs("leaves_index_first")
def test_address_comes_back_during_the_free(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    freeing = x.core.free(block)
    while x.driver.calls["free"] == 0:
        next(freeing)                                   # the driver has the bytes; the lock is not taken again yet
    try:
        new = x.allocate(x.S)
    except AssertionError:
        return False
    run(freeing)
    return new.address == block.address and x.core.index[new.address] is new


@needs("marker_after_free")
def test_reap_just_before_the_free(rules):
    """Bytes must not become reapable before their free is queued."""
    x = Bench(rules)
    block = x.allocate(x.S)
    x.use(x.T, (block, READ))
    freeing = x.core.free(block)
    while x.core.pending == 0 and x.driver.calls["free"] == 0:
        next(freeing)
    run(x.core.reap())
    return x.core.live + x.core.pending > 0 or x.driver.calls["free"] > 0


def test_failed_free_keeps_the_block():
    x = Bench(RULES)
    block = x.allocate(x.S)
    x.driver.fail_next("free")
    with pytest.raises(DriverError):
        x.free(block)
    assert block.state is State.LIVE
    assert x.core.index[block.address] is block
    assert x.core.live == 1
    x.free(block)
    assert block.state is State.FREED
    assert x.core.live + x.core.pending == 1


def test_free_that_names_a_stream_orders_that_stream():
    x = Bench(RULES)
    block = x.allocate(x.S)
    read = x.use(x.T, (block, READ))
    run(x.core.free(block, x.U))
    assert x.is_ordered(read, x.U)
    assert not x.is_ordered(read, x.S)


# ------------------------------------------------------------------------------------ the pool
@needs("pool_free_advances")
def test_fill_then_free_then_reuse_elsewhere(rules):
    """T is ordered after S before the fill."""
    x = Bench(rules)
    block, other = x.allocate(x.S, 8, "pool"), x.allocate(x.S)
    x.use(x.T, (other, READ))
    fill = x.work(x.S)
    x.free(block)
    x.allocate(x.T, 8, "pool")
    return x.is_ordered(fill, x.T)


@needs("pool_free_advances")
def test_freed_on_a_stream_means_after_everything_there(rules):
    """Also after the first use elsewhere: the driver's own allocator keeps this promise, so the pool has to."""
    x = Bench(rules)
    block = x.allocate(x.S, 8, "pool")
    for _ in range(2):
        x.use(x.T, (block, READ))                       # T is ordered after S
    late_read = x.work(x.S)
    x.free(block)
    x.allocate(x.T, 8, "pool")
    return x.is_ordered(late_read, x.T)


@needs("chunk_has_frontier")
def test_rest_of_a_new_chunk(rules):
    """The pool grows for S, and T takes the rest of the chunk."""
    x = Bench(rules)
    x.allocate(x.S, 1, "pool")
    growth = Op(x.S.handle.id, 1, "the upstream allocation")
    x.allocate(x.T, 1, "pool")
    return x.is_ordered(growth, x.T)


@needs("pool_allocation_waits")
def test_allocation_orders_its_stream_after_the_memory(rules):
    """Read on V, freed on S, allocated on T: U is ordered through T's allocation entry."""
    x = Bench(rules)
    block = x.allocate(x.S, 8, "pool")
    read = x.use(x.V, (block, READ))
    x.free(block)
    new = x.allocate(x.T, 8, "pool")
    x.use(x.U, (new, WRITE))
    return x.is_ordered(read, x.T) and x.is_ordered(read, x.U)


@needs("join_keeps_both")
def test_joined_memory_waits_for_the_users_of_both_parts(rules):
    x = Bench(rules)
    one, other = x.allocate(x.S, 4, "pool"), x.allocate(x.S, 4, "pool")
    reads = x.use(x.U, (one, READ)), x.use(x.V, (other, READ))
    x.free(one)
    x.free(other)
    x.allocate(x.T, 8, "pool")
    return all(x.is_ordered(read, x.T) for read in reads)


def test_free_into_the_pool_makes_no_driver_call():
    x = Bench(RULES)
    block = x.allocate(x.S, 8, "pool")
    x.use(x.T, (block, WRITE))
    calls = x.driver.calls.total()
    x.free(block)
    assert x.driver.calls.total() == calls
    block = x.allocate(x.S, 8, "pool")                  # S waits for T's write
    assert x.driver.calls["wait"] == 2
    x.free(block)
    calls = x.driver.calls.total()
    x.allocate(x.S, 8, "pool")                          # S is ordered already
    assert x.driver.calls.total() == calls


# ------------------------------------------------------------------------------------ adopted memory
def test_range_inside_a_tracked_block_is_that_block():
    x = Bench(RULES)
    block = x.allocate(x.S, 4)
    assert x.core.adopt(block.address + 1, 2, x.T) is block
    with pytest.raises(StreamMisuse, match="overlaps"):
        x.core.adopt(block.address + 2, 4, x.T)


def test_adopted_memory_is_released_after_its_uses():
    x = Bench(RULES)
    with_home, without = x.core.adopt(1000, 1, x.S), x.core.adopt(2000, 1, None)
    read, write = x.use(x.T, (with_home, READ)), x.use(x.U, (without, WRITE))
    x.free(with_home)
    x.free(without)
    assert x.is_ordered(read, x.S)
    assert x.driver.host_has_seen(write)
    assert x.driver.calls["free"] == 0
