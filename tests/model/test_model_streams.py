"""The smallest programs that go wrong without a rule about positions, fences, clocks and unrecorded work."""
from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
from model_bench import Bench, needs
from ordering_model.driver import DriverError, Op
from ordering_model.frontiers import State
from ordering_model.rules import READ, READ_WRITE, WRITE, HostRules, StreamMisuse, run

RULES = HostRules()


# ------------------------------------------------------------------------------------ positions, fences, clocks
@needs("position_after_work")
def test_position_is_taken_after_the_launch(rules):
    """Another thread records a fence on T between the prepare and the launch: it must not cover the launch."""
    x = Bench(rules)
    block, other = x.allocate(x.S), x.allocate(x.T)
    window = x.prepare(x.T, (block, WRITE))
    x.use(x.U, (other, READ))                           # a fence on T
    write = x.work(x.T)
    run(x.core.finish(window))
    x.use(x.U, (block, READ))
    return x.is_ordered(write, x.U)


@needs("allocation_position_after_call", fresh_hides_work=False)
def test_allocation_position_is_taken_after_the_call(rules):
    x = Bench(rules)
    allocation = x.core.allocate(1, x.S)
    next(allocation)                                    # the driver is not called yet
    x.use(x.T, (x.core.adopt(1000, 1, x.S), READ))      # a fence on S
    block = run(allocation)
    birth = Op(x.S.handle.id, x.S.handle.clock[x.S.handle.id], "allocation")
    x.use(x.T, (block, READ))
    return x.is_ordered(birth, x.T)


@needs("clock_after_wait")
def test_clock_does_not_rise_for_a_wait_that_failed(rules):
    """Or that another thread is about to queue."""
    x = Bench(rules)
    block = x.allocate(x.S)
    write = x.use(x.S, (block, WRITE))
    x.driver.fail_next("wait")
    with pytest.raises(DriverError):
        x.use(x.T, (block, READ))
    block.fresh = False
    x.use(x.T, (block, READ))
    return x.is_ordered(write, x.T)


@needs("fence_sampled_before_record")
def test_fence_does_not_claim_work_that_is_filed_during_the_record(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    recording = x.core.record_fence(x.S)
    next(recording)
    next(recording)                                     # recorded; the lock is not taken again yet
    write = x.use(x.S, (block, WRITE))
    run(recording)
    block.fresh = False
    x.use(x.T, (block, READ))
    return x.is_ordered(write, x.T)


@needs("fence_pinned", ring=2)
def test_event_of_a_fence_in_use_is_not_recorded_again(rules):
    """A thread has chosen a fence of S and dropped the lock.  S is unregistered, and V records its event again."""
    x = Bench(rules)
    block = x.allocate(x.S)
    write = x.use(x.S, (block, WRITE))
    run(x.core.record_fence(x.S))
    block.fresh = False
    waiting = x.core.order(x.T, x.S, x.S.count)
    next(waiting)
    run(x.core.unregister(x.S, x.U))
    run(x.core.record_fence(x.V))
    run(waiting)
    return x.is_ordered(write, x.T)


def test_clocks_are_transitive_though_events_are_recorded_again():
    """T before U before V, with one event that is recorded again in between."""
    x = Bench(replace(RULES, policy="precise", ring=1))
    block, other = x.allocate(x.S), x.allocate(x.S)
    write = x.use(x.T, (block, WRITE))
    x.use(x.U, (block, READ_WRITE))
    for _ in range(5):
        x.use(x.U, (other, READ_WRITE))                 # records U's only event again
    x.use(x.V, (other, READ))
    waits = x.driver.calls["wait"]
    x.use(x.V, (block, READ))
    assert x.is_ordered(write, x.V)
    assert x.driver.calls["wait"] == waits


def test_fence_between_launch_and_finish_is_harmless():
    """It covers the launch and not its position: the next user waits once more."""
    x = Bench(replace(RULES, policy="lazy"))
    block, other = x.allocate(x.S), x.allocate(x.T)
    window = x.prepare(x.T, (block, WRITE))
    write = x.work(x.T)
    x.use(x.U, (other, READ))                           # a fence on T
    run(x.core.finish(window))
    x.use(x.U, (block, READ))
    assert x.is_ordered(write, x.U)


# ------------------------------------------------------------------------------------ unrecorded work
@needs("fresh_hides_work")
def test_fill_after_a_use_of_another_block(rules):
    """T is ordered after S because of one block; then another block is filled on S."""
    x = Bench(rules)
    one, other = x.allocate(x.S), x.allocate(x.S)
    x.use(x.T, (one, READ))
    fill = x.work(x.S)
    x.use(x.T, (other, READ))
    return x.is_ordered(fill, x.T)


@needs("raising_advances")
def test_reader_does_not_take_an_older_fence(rules):
    """Nothing was filed on S since its last fence, so without a new position that fence covers the fill."""
    x = Bench(rules)
    one, other = x.allocate(x.S), x.allocate(x.S)
    for _ in range(2):
        x.use(x.T, (one, READ))                         # a fence on S, for its newest position
    fill = x.work(x.S)
    x.use(x.U, (other, READ))                           # takes the oldest fence that covers the entry
    return x.is_ordered(fill, x.U)


@needs("raising_advances")
def test_position_of_an_opaque_stream_is_not_covered_by_older_clocks(rules):
    """The frontier of pool memory is positions alone: a stream that is ordered after an older one skips the wait."""
    x = Bench(rules, opaque="T")
    block, other = x.allocate(x.S, memory="pool"), x.allocate(x.S)
    x.use(x.T, (block, READ))
    x.use(x.T, (other, READ))
    x.use(x.U, (other, READ_WRITE))                     # U is ordered after T
    unrecorded = x.work(x.T)
    x.free(block)
    x.allocate(x.U, memory="pool")
    return x.is_ordered(unrecorded, x.U)


@needs("raises_every_entry")
def test_write_at_home_leaves_an_entry_to_raise(rules):
    """A recorded write on the allocation stream removes the allocation entry of a fresh block."""
    x = Bench(rules)
    block, other = x.allocate(x.S), x.allocate(x.S)
    x.use(x.S, (block, WRITE))
    x.use(x.T, (other, READ))                           # T is ordered after that write
    fill = x.work(x.S)
    x.use(x.T, (block, READ))
    return x.is_ordered(fill, x.T)


@needs("fresh_until_filed")
def test_cancelled_window_is_not_a_use(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    run(x.core.cancel(x.prepare(x.T, (block, READ))))
    fill = x.work(x.S)
    x.use(x.T, (block, READ))
    return x.is_ordered(fill, x.T)


@needs("fresh_entries_stay")
def test_fill_inside_the_window_of_the_first_use_elsewhere(rules):
    """T's write is not ordered after the fill, and removes nothing that stands for it: U waits for both."""
    x = Bench(rules)
    block = x.allocate(x.S)
    window = x.prepare(x.T, (block, WRITE))
    fill = x.work(x.S)
    write = x.work(x.T)
    run(x.core.finish(window))
    x.use(x.U, (block, READ))
    return x.is_ordered(write, x.U) and x.is_ordered(fill, x.U)


@needs("opaque_entries_stay")
def test_write_keeps_the_entries_of_opaque_streams(rules):
    """T writes; then the owner of the opaque S works on the block again, ordered by events of its own."""
    x = Bench(rules, opaque="S")
    block = x.allocate(x.S)
    write = x.use(x.T, (block, WRITE))
    x.wait_with_own_event(x.S, x.T)
    unrecorded = x.work(x.S)
    x.use(x.U, (block, READ))
    return x.is_ordered(write, x.U) and x.is_ordered(unrecorded, x.U)


@needs("opaque_counts_as_written")
def test_read_on_an_opaque_stream_may_have_written(rules):
    """The block is handed to the opaque T for reading, and the owner of T writes it without a record."""
    x = Bench(rules, opaque="T")
    block = x.allocate(x.S)
    x.use(x.T, (block, READ))
    unrecorded = x.work(x.T)
    x.use(x.U, (block, READ))
    return x.is_ordered(unrecorded, x.U)


# ------------------------------------------------------------------------------------ streams that end
@needs("unregister_advances")
def test_last_fence_covers_unrecorded_work(rules):
    """S is unregistered after a fill, and an older fence has the newest position of S."""
    x = Bench(rules)
    block, other = x.allocate(x.S), x.allocate(x.S)
    for _ in range(2):
        x.use(x.T, (other, READ))                       # a fence on S, for its newest position
    fill = x.work(x.S)
    x.unregister_and_destroy(x.S, x.V)
    x.use(x.T, (block, READ))
    return x.is_ordered(fill, x.T)


@needs("successor_files_last")
def test_free_on_the_successor_waits_for_the_former_home(rules):
    """T's write has removed the entry of S; later work on S was protected by the stream order of its free alone."""
    x = Bench(rules)
    block = x.allocate(x.S)
    x.use(x.T, (block, READ))
    x.use(x.T, (block, WRITE))
    x.wait_with_own_event(x.S, x.T)
    late = x.work(x.S)
    x.unregister_and_destroy(x.S, x.V)
    x.free(block)
    return x.is_ordered(late, x.V) and block.state is State.FREED


@needs("unregister_refuses_use")
def test_unregister_is_refused_while_a_window_is_open(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    window = x.prepare(x.T, (block, READ))
    with suppress(StreamMisuse):
        run(x.core.unregister(x.T, x.V))
    launch = x.work(x.T)
    run(x.core.finish(window))
    x.free(block)
    return x.is_ordered(launch, x.S)


@needs("unregister_checks_again")
def test_streams_do_not_become_successors_of_each_other(rules):
    """Two threads unregister S and T: both pass the first checks, and drop the lock for the last fence."""
    x = Bench(rules)
    unregistering = x.core.unregister(x.S, x.T), x.core.unregister(x.T, x.S)
    for operation in unregistering:
        next(operation)
    for operation in unregistering:
        with suppress(StreamMisuse):
            run(operation)
    block = x.allocate(x.U)
    block.home = x.S
    try:
        return x.core.home_of(block).alive
    except AssertionError:
        return False


def test_stream_is_not_unregistered_while_a_fence_is_recorded_on_it():
    x = Bench(RULES)
    block = x.allocate(x.S)
    preparing = x.core.prepare(x.T, [(block, READ)])
    while not x.driver.calls["record"]:
        next(preparing)
    with pytest.raises(StreamMisuse):
        run(x.core.unregister(x.S, x.U))
    run(x.core.finish(run(preparing)))


def test_reused_handle_is_another_stream():
    """Clocks and positions belong to the registration (stream-identity)."""
    x = Bench(RULES)
    block = x.allocate(x.S)
    write = x.use(x.T, (block, WRITE))
    x.use(x.U, (block, READ))                           # U is ordered after T
    x.unregister_and_destroy(x.T, x.V)
    new = x.core.register(x.driver.stream_create())
    assert new.handle.handle == x.T.handle.handle
    assert new.number != x.T.number
    late = x.use(new, (block, WRITE))
    x.use(x.U, (block, READ))
    assert x.is_ordered(write, x.U)
    assert x.is_ordered(late, x.U)


@pytest.mark.parametrize(("policy", "sealed", "waits_for_later_work"), [
    ("lazy", "", True), ("precise", "", True), ("lazy", "S", True), ("precise", "S", False)])
def test_only_precise_fences_of_sealed_streams_never_cover_later_work(policy, sealed, waits_for_later_work):
    """A limit: T reads the block and then sets a flag that S spins on.  Where T waits for S, this is a deadlock."""
    x = Bench(replace(RULES, policy=policy), sealed=sealed)
    block = x.allocate(x.S)
    write = x.use(x.S, (block, WRITE))
    spinning = x.work(x.S, "spin on T's flag")
    x.use(x.T, (block, READ))
    assert x.is_ordered(write, x.T)
    assert x.is_ordered(spinning, x.T) is waits_for_later_work
