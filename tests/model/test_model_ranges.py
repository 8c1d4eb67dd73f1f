"""The smallest programs that go wrong without a rule of launches that name ranges of a block."""
from __future__ import annotations

import pytest
from model_bench import Bench, needs
from ordering_model.driver import Violation
from ordering_model.frontiers import Block, Range, State
from ordering_model.ranges import MOST_PARTS
from ordering_model.rules import READ, READ_WRITE, WRITE, HostRules, UseAfterFree, run

RULES = HostRules()


def cells(block: Block, first: int, end: int) -> Range:
    return Range(block, block.range[first:end])


# ------------------------------------------------------------------------------------ what ranges are for
def test_disjoint_ranges_do_not_wait_for_each_other():
    x = Bench(RULES, sealed="S")
    block = x.allocate(x.S, 2)
    x.use(x.T, (cells(block, 0, 1), WRITE))
    x.use(x.U, (cells(block, 1, 2), WRITE))
    records, waits = x.driver.calls["record"], x.driver.calls["wait"]
    for _ in range(3):
        x.use(x.T, (cells(block, 0, 1), WRITE))
        x.use(x.U, (cells(block, 1, 2), READ_WRITE))
    assert (x.driver.calls["record"], x.driver.calls["wait"]) == (records, waits)


def test_ranges_with_a_common_cell_do():
    x = Bench(RULES)
    block = x.allocate(x.S, 3)
    op = x.use(x.T, (cells(block, 0, 2), WRITE))
    x.use(x.U, (cells(block, 2, 3), READ))
    assert not x.is_ordered(op, x.U)
    x.use(x.U, (cells(block, 1, 3), READ))
    assert x.is_ordered(op, x.U)


def test_the_host_waits_for_the_range_that_it_reads():
    x = Bench(RULES)
    block = run(x.core.allocate_host(2))
    ops = [x.use(stream, (cells(block, place, place + 1), WRITE)) for place, stream in enumerate((x.T, x.U))]
    run(x.core.finish_host(run(x.core.prepare_host([(cells(block, 0, 1), READ)]))))
    assert [x.driver.host_has_seen(op) for op in ops] == [True, False]
    run(x.core.prepare_host([(block, READ)]))
    assert x.driver.host_has_seen(ops[1])


# ------------------------------------------------------------------------------------ parts
@needs("range_begins_with_entries")
def test_a_range_comes_after_a_use_of_all_of_the_block(rules):
    x = Bench(rules)
    block = x.allocate(x.S, 2)
    op = x.use(x.T, (block, WRITE))
    x.use(x.U, (cells(block, 0, 1), READ))
    return x.is_ordered(op, x.U)


@needs("range_begins_fresh")
def test_a_range_comes_after_the_fill(rules):
    """A fence that was recorded before the fill covers the allocation."""
    x = Bench(rules)
    block = x.allocate(x.S, 2)
    run(x.core.record_fence(x.S))
    fill = x.work(x.S)
    x.use(x.T, (cells(block, 0, 1), READ))
    return x.is_ordered(fill, x.T)


@needs("range_begins_at_home")
def test_a_range_is_handed_back(rules):
    x = Bench(rules, opaque="S")
    block = x.allocate(x.S, 2)
    op = x.use(x.T, (cells(block, 0, 1), WRITE))
    return x.is_ordered(op, x.S)


@needs("range_cut_is_used")
def test_a_launch_writes_a_range_and_reads_one_that_overlaps(rules):
    """The second range cuts the part that the launch has named to write it: both sides are written."""
    x = Bench(rules)
    block = x.allocate(x.S, 4)
    op = x.use(x.T, (cells(block, 0, 3), WRITE), (cells(block, 2, 4), READ))
    x.use(x.U, (cells(block, 2, 3), READ))
    return x.is_ordered(op, x.U)


# ------------------------------------------------------------------------------------ whatever means all of the block
@needs("range_record_joins")
def test_work_without_a_window_is_on_every_range(rules):
    x = Bench(rules)
    block = x.allocate(x.S, 2)
    x.use(x.S, (cells(block, 0, 1), WRITE))
    op = x.work(x.T)
    run(x.core.record_use(x.T, block))
    x.use(x.U, (cells(block, 0, 1), READ))
    return x.is_ordered(op, x.U)


@needs("range_join_keeps_newest")
def test_a_use_of_all_comes_after_the_newest_use_of_a_range(rules):
    """Both parts have an entry of T, and the one of the second part is older: a fence covers it."""
    x = Bench(rules)
    block = x.allocate(x.S, 2)
    x.use(x.T, (block, WRITE))
    run(x.core.record_fence(x.T))
    op = x.use(x.T, (cells(block, 0, 1), WRITE))
    x.use(x.U, (block, READ))
    return x.is_ordered(op, x.U)


@needs("range_join_keeps_fresh")
def test_a_use_of_all_comes_after_the_fill_of_what_is_fresh(rules):
    x = Bench(rules)
    block = x.allocate(x.S, 2)
    x.use(x.T, (cells(block, 0, 1), READ))
    run(x.core.record_fence(x.S))
    fill = x.work(x.S, "of the second cell")
    x.use(x.U, (block, READ))
    return x.is_ordered(fill, x.U)


def test_a_free_comes_after_all_ranges():
    for memory in ("driver", "pool"):
        x = Bench(RULES)
        block = x.allocate(x.S, 2, memory)
        ops = [x.use(stream, (cells(block, place, place + 1), WRITE)) for place, stream in enumerate((x.T, x.U))]
        x.free(block)
        x.allocate(x.S, 2, memory)
        assert all(x.is_ordered(op, x.S) for op in ops)
        with pytest.raises(UseAfterFree):
            x.use(x.T, (cells(block, 0, 1), READ))


# ------------------------------------------------------------------------------------ windows
@needs("range_close_hands_over")
def test_a_part_is_joined_inside_a_window(rules):
    x = Bench(rules)
    block = x.allocate(x.S, 2)
    window = x.prepare(x.T, (cells(block, 0, 1), READ))
    op = x.work(x.T)
    x.use(x.U, (block, READ))
    run(x.core.finish(window))
    x.use(x.V, (block, WRITE))
    return x.is_ordered(op, x.V)


@needs("range_window_counts")
def test_free_inside_a_window_on_a_range(rules):
    x = Bench(rules)
    block = x.allocate(x.S, 2)
    window = x.prepare(x.T, (cells(block, 0, 1), WRITE))
    op = x.work(x.T)
    x.free(block)
    freed_early = block.state is State.FREED
    run(x.core.finish(window))
    return not freed_early and block.state is State.FREED and x.is_ordered(op, x.S)


@needs("range_window_is_whole")
def test_another_launch_reads_a_range_inside_a_window(rules):
    """If it cut the part, the first launch would be filed on one side of the cut alone."""
    x = Bench(rules)
    block = x.allocate(x.S, 3)
    window = x.prepare(x.T, (cells(block, 0, 2), READ))
    op = x.work(x.T)
    x.use(x.U, (cells(block, 1, 2), READ))
    run(x.core.finish(window))
    x.use(x.V, (cells(block, 1, 2), WRITE))
    return x.is_ordered(op, x.V)


@needs("range_not_beside_whole")
def test_a_range_is_read_inside_a_window_on_all_of_the_block(rules):
    x = Bench(rules)
    block = x.allocate(x.S, 2)
    window = x.prepare(x.T, (block, READ))
    op = x.work(x.T)
    x.use(x.U, (cells(block, 0, 1), READ))
    run(x.core.finish(window))
    x.use(x.V, (cells(block, 0, 1), WRITE))
    return x.is_ordered(op, x.V)


# ------------------------------------------------------------------------------------ shared parts
def in_three_parts(x: Bench) -> Block:
    """Two cells each.  A range that reaches all three parts, and not all of the block, merges them."""
    block = x.allocate(x.S, 7)
    x.use(x.S, (cells(block, 0, 2), READ))
    x.use(x.S, (cells(block, 2, 4), READ))
    return block


@needs("range_merge_keeps_entries")
def test_a_range_that_merges_parts_comes_after_their_uses(rules):
    x = Bench(rules)
    block = in_three_parts(x)
    op = x.use(x.T, (cells(block, 2, 4), WRITE))
    x.use(x.U, (cells(block, 0, 6), READ))
    return x.is_ordered(op, x.U)


@needs("range_merge_waits")
def test_a_range_reaches_many_parts_inside_a_window_on_one(rules):
    x = Bench(rules)
    block = in_three_parts(x)
    window = x.prepare(x.T, (cells(block, 2, 4), READ))
    op = x.work(x.T)
    x.use(x.U, (cells(block, 0, 6), READ))
    run(x.core.finish(window))
    x.use(x.V, (cells(block, 2, 4), WRITE))
    return x.is_ordered(op, x.V)


@needs("range_shared_stays_fresh")
def test_a_fill_beside_a_range_that_shares_its_part(rules):
    """The part cannot be cut while T has it, so U uses the first cell as all of the part.  S has not given the second
    cell away: it fills that cell behind a fence which covers all entries."""
    x = Bench(rules)
    block = x.allocate(x.S, 3)
    window = x.prepare(x.T, (cells(block, 0, 2), READ))
    x.use(x.U, (cells(block, 0, 1), READ))
    run(x.core.cancel(window))
    run(x.core.record_fence(x.S))
    fill = x.work(x.S, "of the second cell")
    x.use(x.V, (cells(block, 1, 2), READ))
    return x.is_ordered(fill, x.V)


@needs("range_unowned_is_whole")
def test_a_stream_is_destroyed_after_the_first_use_of_a_range_elsewhere(rules):
    """Its owner has to keep it until another stream has used the block.  A use of the rest needs no new fence."""
    x = Bench(rules)
    stream = x.core.register(x.driver.stream_create(), unowned=True)
    block = x.allocate(stream, 2)
    fill = x.work(stream)
    x.use(x.T, (cells(block, 0, 1), READ))
    x.driver.stream_destroy(stream.handle)
    try:
        x.use(x.U, (cells(block, 1, 2), READ))
    except Violation:
        return False
    return x.is_ordered(fill, x.U)


def test_a_block_has_few_parts():
    """More ranges than parts: those behind the last cut share one, and all uses are ordered."""
    x = Bench(RULES)
    block = x.allocate(x.S, 8)
    x.use(x.S, (block, WRITE))
    window = x.prepare(x.U, (cells(block, 7, 8), READ))     # the parts are not joined meanwhile
    ops = [x.use(x.T, (cells(block, place, place + 1), WRITE)) for place in range(7)]
    assert len(x.core.parts[block]) == MOST_PARTS
    run(x.core.finish(window))
    for place, op in enumerate(ops):
        x.use(x.V, (cells(block, place, place + 1), READ))
        assert x.is_ordered(op, x.V)
