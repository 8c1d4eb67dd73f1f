"""The smallest programs that go wrong without a rule of the host's side."""
from __future__ import annotations

import pytest
from model_bench import Bench, needs
from ordering_model.driver import DriverError, Op
from ordering_model.frontiers import State
from ordering_model.rules import READ, WRITE, HostRules, UseAfterFree, run
from waiting_model import Close, Open, explore

RULES = HostRules()


# ------------------------------------------------------------------------------------ host accesses
@needs("host_write_waits_for_readers")
def test_host_write_waits_for_the_copy_that_reads(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    read = x.use(x.T, (block, READ))
    run(x.core.prepare_host([(block, WRITE)]))
    return x.driver.host_has_seen(read)


@needs("host_read_waits_for_writers")
def test_host_read_waits_for_the_copy_that_writes(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    write = x.use(x.T, (block, WRITE))
    run(x.core.prepare_host([(block, READ)]))
    return x.driver.host_has_seen(write)


def test_host_read_does_not_wait_for_readers():
    x = Bench(RULES)
    block = x.allocate(x.S)
    read = x.use(x.T, (block, READ))
    run(x.core.prepare_host([(block, READ)]))
    assert not x.driver.host_has_seen(read)


@needs("host_raises_entries")
def test_host_waits_for_unrecorded_work(rules):
    """The host has seen the position of the allocation complete; the fill came later."""
    x = Bench(rules)
    block = x.allocate(x.S)
    run(x.core.host_waits(x.S, x.S.count))
    fill = x.work(x.S)
    run(x.core.prepare_host([(block, READ)]))
    return x.driver.host_has_seen(fill)


@needs("host_opens_window")
def test_free_inside_a_host_access(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    window = run(x.core.prepare_host([(block, READ)]))
    x.free(block)
    freed_early = block.state is State.FREED
    run(x.core.finish_host(window))
    return not freed_early and block.state is State.FREED


@needs("host_keeps_entries")
def test_host_write_leaves_an_entry_to_raise(rules):
    """A fresh block stays fresh, and without an entry there is nothing to raise: T would not wait for the fill."""
    x = Bench(rules)
    block = x.allocate(x.S)
    run(x.core.finish_host(run(x.core.prepare_host([(block, WRITE)]))))
    fill = x.work(x.S)
    x.use(x.T, (block, READ))
    return x.is_ordered(fill, x.T)


def test_host_access_files_nothing():
    x = Bench(RULES)
    block = x.allocate(x.S)
    x.use(x.S, (block, WRITE))
    window = run(x.core.prepare_host([(block, WRITE)]))
    frontier, positions = dict(block.frontier), [stream.count for stream in x.core.streams.values()]
    run(x.core.finish_host(window))
    assert block.frontier == frontier
    assert block.fresh
    assert [stream.count for stream in x.core.streams.values()] == positions


def test_failed_host_wait_closes_the_window():
    x = Bench(RULES)
    block = x.allocate(x.S)
    x.use(x.T, (block, WRITE))
    x.driver.fail_next("sync")
    with pytest.raises(DriverError):
        run(x.core.prepare_host([(block, READ)]))
    assert not block.windows


# ------------------------------------------------------------------------------------ two threads of the host
def nested(*windows: Open) -> list[Open | Close]:
    return [*windows, *(Close(window.name) for window in reversed(windows))]


def test_host_accesses_of_two_threads_conflict():
    """host-threads, in the model of conflicting windows: each thread has its own pseudo-stream.

    A write of one thread waits for the other thread's access, and is not refused.  With one pseudo-stream for both the
    same two windows would be open at once, because windows of one stream do not conflict.
    """
    write, read = Open("a", "host 1", writes="x"), Open("b", "host 2", reads="x")
    assert write.conflicts(read)
    assert not write.conflicts(Open("b", "host 1", reads="x"))
    assert explore([nested(write), nested(read)]) == set()


def test_host_accesses_of_one_thread_do_not_conflict():
    """But a launch inside its own host access does: neither can come first (conflict-circle)."""
    outer = Open("a", "host 1", writes="x")
    assert explore([nested(outer, Open("b", "host 1", writes="x"))]) == set()
    assert explore([nested(outer, Open("b", "S", reads="x"))]) == {"refused b"}


# ------------------------------------------------------------------------------------ awaited accesses
@needs("host_looks_again")
def test_awaited_access_looks_again(rules):
    """A launch is filed while the access is suspended: it is right when it opens."""
    x = Bench(rules)
    block = x.allocate(x.S)
    x.use(x.T, (block, WRITE))
    access = x.core.acquire_host([(block, READ)])
    next(access)                                        # suspended in its first wait
    write = x.use(x.U, (block, WRITE))
    run(access)
    return x.driver.host_has_seen(write)


def test_awaited_access_opens_before_its_wait_on_a_busy_block():
    """After a few looks it opens as an access that blocks does: else a busy block would starve it."""
    x = Bench(RULES)
    block = x.allocate(x.S)
    access = x.core.acquire_host([(block, READ)])
    for _ in range(100):
        x.use(x.U, (block, WRITE))
        next(access)
        if block.windows:
            break
    assert block.windows
    assert run(access).waited_with_window


def test_suspended_access_holds_no_window():
    x = Bench(RULES)
    block = x.allocate(x.S)
    x.use(x.T, (block, WRITE))
    access = x.core.acquire_host([(block, READ)])
    next(access)
    x.free(block)
    assert block.state is State.FREED
    with pytest.raises(UseAfterFree):
        run(access)


# ------------------------------------------------------------------------------------ host memory
def use_all_host_memory(x: Bench) -> list[Op]:
    """Allocate it, read it on T and free it."""
    blocks = [run(x.core.allocate_host(6)) for _ in range(4)]
    reads = [x.use(x.T, (block, READ)) for block in blocks]
    for block in blocks:
        x.free(block)
    return reads


@needs("host_first_is_idle")
def test_memory_for_the_host_is_idle(rules):
    """The copies that read all of the host memory are not complete: the host waits for those of the memory it gets."""
    x = Bench(rules)
    x.driver.event_query = lambda event: False
    reads = use_all_host_memory(x)
    run(x.core.allocate_host(6))
    return x.driver.host_has_seen(reads[0])


@needs("host_free_keeps_frontier")
def test_freed_host_memory_keeps_its_frontier(rules):
    x = Bench(rules)
    x.driver.event_query = lambda event: False
    reads = use_all_host_memory(x)
    run(x.core.allocate_host(6))
    return x.driver.host_has_seen(reads[0])


@needs("host_poll_reads_fence")
def test_poll_claims_the_position_of_its_fence_alone(rules):
    """A copy that was filed after the fence is not complete because the fence is."""
    x = Bench(rules)
    block = run(x.core.allocate_host(6))
    x.use(x.T, (block, READ))
    x.free(block)
    run(x.core.record_fence(x.T))
    other = x.allocate(x.T)
    write = x.use(x.T, (other, WRITE))
    run(x.core.allocate_host(6))                        # polls the fence
    other.fresh = False
    run(x.core.prepare_host([(other, READ)]))
    return x.driver.host_has_seen(write)


def test_host_prefers_idle_memory_to_new_memory():
    x = Bench(RULES)
    block = run(x.core.allocate_host(6))
    x.use(x.T, (block, READ))
    x.free(block)
    run(x.core.record_fence(x.T))
    again = run(x.core.allocate_host(6))
    assert again.address == block.address
    assert x.driver.calls["sync"] == 0                  # the poll was enough
    assert (again.stream, again.home, again.frontier, again.fresh) == (None, None, {}, False)


def test_host_memory_on_a_stream_is_reached_by_an_access():
    """host-stream-first: the block is fresh, so the access waits for fills on its stream."""
    x = Bench(RULES)
    block = run(x.core.allocate_host(6, x.S))
    fill = x.work(x.S)
    run(x.core.prepare_host([(block, READ)]))
    assert x.driver.host_has_seen(fill)


def test_free_of_host_memory_makes_no_driver_call():
    x = Bench(RULES)
    block = run(x.core.allocate_host(6))
    x.use(x.T, (block, WRITE))
    calls = x.driver.calls.total()
    x.free(block)
    assert x.driver.calls.total() == calls


def test_memory_that_a_poll_lost_is_not_taken():
    """host-recheck: a poll drops the lock, and another thread takes the memory meanwhile."""
    x = Bench(RULES)
    use_all_host_memory(x)
    run(x.core.record_fence(x.T))
    allocating = x.core.allocate_host(6)
    next(allocating)
    others = [run(x.core.allocate_host(6)) for _ in range(3)]
    block = run(allocating)
    assert block.address not in {other.address for other in others}
