"""The smallest programs that go wrong without a rule about windows, the hand-back and frees inside windows."""
from __future__ import annotations

from dataclasses import replace

import pytest
from model_bench import Bench, needs
from ordering_model.driver import Violation
from ordering_model.frontiers import State
from ordering_model.rules import READ, WRITE, HostRules, StreamMisuse, UseAfterFree, run

RULES = HostRules()


@needs("windows_open_with_validation")
def test_free_while_another_thread_queues_its_waits(rules):
    """A thread has validated the block, and dropped the lock before its first driver call."""
    x = Bench(rules)
    block = x.allocate(x.S)
    preparing = x.core.prepare(x.T, [(block, READ)])
    next(preparing)
    x.free(block)
    window = run(preparing)
    launch = x.work(x.T)
    freed_early = block.state is State.FREED
    run(x.core.finish(window))
    return not freed_early and x.is_ordered(launch, x.S)


@needs("free_waits_for_windows")
def test_free_inside_a_window(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    window = x.prepare(x.T, (block, WRITE))
    launch = x.work(x.T)
    x.free(block)
    freed_early = block.state is State.FREED
    run(x.core.finish(window))
    return not freed_early and x.is_ordered(launch, x.S)


@needs("write_removes_snapshot")
def test_reader_inside_the_window_of_a_writer(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    window = x.prepare(x.T, (block, WRITE))
    read = x.use(x.U, (block, READ))
    x.work(x.T)
    run(x.core.finish(window))
    x.free(block)
    return x.is_ordered(read, x.S)


@needs("last_close_claims", policy="precise")
def test_last_windows_of_two_threads_close_at_once(rules):
    """Both closes drop the lock for a fence before they look.  The first free fails and is to be tried again, the
    second close frees the block, and the new attempt frees it once more.
    """
    x = Bench(rules)
    block = x.allocate(x.S)
    windows = x.prepare(x.T, (block, READ)), x.prepare(x.U, (block, READ))
    x.free(block)
    closing = [x.core.finish(window) for window in windows]
    for operation in closing:
        next(operation)
    x.driver.fail_next("free")
    for operation in closing:
        run(operation)
    try:
        run(x.core.free_deferred())
    except Violation:
        return False
    return block.state is State.FREED and x.core.live == 0


@needs("capturing_source")
def test_no_fence_is_recorded_on_a_capturing_source(rules):
    """The owner of S has begun a capture since the write: a fence now would belong to the graph."""
    x = Bench(rules)
    block = x.allocate(x.S)
    x.use(x.S, (block, WRITE))
    x.S.handle.capturing = True
    records = x.driver.calls["record"]
    try:
        x.prepare(x.T, (block, READ))
    except StreamMisuse:
        return x.driver.calls["record"] == records and not block.windows
    except Violation:
        return False
    return False


@needs("late_record_files")
def test_use_that_is_recorded_on_a_retired_block(rules):
    """The work is in flight: to refuse it would leave it unprotected."""
    x = Bench(rules)
    block = x.allocate(x.S)
    window = x.prepare(x.T, (block, READ))
    work = x.work(x.U)
    x.free(block)
    with pytest.raises(UseAfterFree):
        run(x.core.record_use(x.U, block))
    run(x.core.finish(window))
    return x.is_ordered(work, x.S) and block.state is State.FREED


def test_windows_that_interleave_on_one_stream():
    """The order of the finishes differs from the order of the launches; both consumers are right."""
    for policy in ("lazy", "precise", "adaptive"):
        for ring in (1, 2, 4):
            x = Bench(replace(RULES, policy=policy, ring=ring))
            one, other = x.allocate(x.S), x.allocate(x.S)
            first_window, second_window = x.prepare(x.T, (one, WRITE)), x.prepare(x.T, (other, WRITE))
            first, second = x.work(x.T), x.work(x.T)
            run(x.core.finish(second_window))
            x.use(x.U, (other, READ))
            run(x.core.finish(first_window))
            x.use(x.V, (one, READ))
            assert x.is_ordered(second, x.U)
            assert x.is_ordered(first, x.V)


def test_launch_that_raised_is_filed():
    """Any other exit than a cancel files the launch (any-other-exit-files)."""
    x = Bench(RULES)
    block = x.allocate(x.S)
    read = x.use(x.U, (block, READ))
    run(x.core.finish(x.prepare(x.T, (block, WRITE))))
    x.free(block)
    assert x.is_ordered(read, x.S)


# ------------------------------------------------------------------------------------ hand-back
@needs("hands_back")
def test_opaque_home_is_ordered_after_a_launch_elsewhere(rules):
    """The next unrecorded work on the opaque S comes after T's write."""
    x = Bench(rules, opaque="S")
    block = x.allocate(x.S)
    x.work(x.S)
    write = x.use(x.T, (block, WRITE))
    return x.is_ordered(write, x.S)


def test_hand_back_of_writes_leaves_out_readers():
    x = Bench(RULES, opaque="S")
    block = x.allocate(x.S)
    window = run(x.core.prepare(x.T, [(block, READ)], handback="writes"))
    read = x.work(x.T)
    run(x.core.finish(window))
    assert not x.is_ordered(read, x.S)
    x.free(block)
    assert x.is_ordered(read, x.S)                      # the free waits all the same


def test_failed_hand_back_falls_back_to_the_host():
    x = Bench(RULES, opaque="S")
    block = x.allocate(x.S)
    window = x.prepare(x.T, (block, WRITE))
    write = x.work(x.T)
    x.driver.fail_next("wait")
    run(x.core.finish(window))
    assert x.is_ordered(write, x.S)


# ------------------------------------------------------------------------------------ costs
def test_adaptive_records_nothing_for_positions_that_are_covered():
    """An old block is read 1,000 times elsewhere while its writer goes on with other work (eager-commits)."""
    x = Bench(RULES)
    old, new = x.allocate(x.S), x.allocate(x.S)
    x.use(x.S, (old, WRITE))
    for _ in range(1000):
        x.use(x.T, (old, READ))
        x.use(x.S, (new, WRITE))
    assert x.driver.calls["record"] <= 66
    assert x.driver.calls["wait"] == 2


@pytest.mark.parametrize("policy", ["lazy", "adaptive"])
def test_program_of_one_stream_costs_nothing(policy):
    x = Bench(replace(RULES, policy=policy))
    for _ in range(100):
        block = x.allocate(x.S)
        x.use(x.S, (block, WRITE))
        x.use(x.S, (block, READ))
        x.free(block)
    assert x.driver.calls["record"] == x.driver.calls["wait"] == 0


@pytest.mark.parametrize(("policy", "most"), [("lazy", (3, 3)), ("precise", (102, 24))])
def test_wait_for_twelve_blocks(policy, most):
    """A hundred launches of ten reads and two writes (one-wait-per-source, known-is-free)."""
    x = Bench(replace(RULES, policy=policy))
    blocks = [x.allocate(x.S) for _ in range(12)]
    uses = [(block, READ) for block in blocks[:10]] + [(block, WRITE) for block in blocks[10:]]
    for _ in range(100):
        x.use(x.T, *uses)
    for block in blocks:
        x.free(block)
    assert x.driver.calls["record"] <= most[0]
    assert x.driver.calls["wait"] <= most[1]


@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
def test_thousand_reads_elsewhere_wait_twice(policy):
    """The second time for fills inside the first window (fresh-entries-stay)."""
    x = Bench(replace(RULES, policy=policy))
    block = x.allocate(x.S)
    for _ in range(1000):
        x.use(x.T, (block, READ))
    assert x.driver.calls["wait"] == 2
    assert len(block.frontier) <= 3                     # frontier-entries
    x.free(block)
    assert x.driver.calls["wait"] <= 3
    assert x.driver.calls["event_create"] <= 2 * x.core.rules.ring
