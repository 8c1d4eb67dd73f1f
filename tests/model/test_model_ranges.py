"""The smallest programs that go wrong without a rule of ranges."""
from __future__ import annotations

from model_bench import Bench, needs
from ordering_model.frontiers import Block
from ordering_model.ranges import Range
from ordering_model.rules import READ, WRITE, RangeRules, run

RULES = RangeRules()


def halves(x: Bench) -> tuple[Block, Range, Range]:
    """A block of two cells, and its halves."""
    block = x.allocate(x.S, 2)
    return block, Range(block, 0, 1), Range(block, 1, 2)


def test_disjoint_ranges_do_not_wait_for_each_other():
    x = Bench(RULES)
    block, left, right = halves(x)
    x.use(x.S, (block, WRITE))
    for _ in range(2):
        x.use(x.T, (left, WRITE))
        x.use(x.U, (right, WRITE))
    op = x.use(x.T, (left, WRITE))
    x.use(x.U, (right, WRITE))
    assert not x.is_ordered(op, x.U)
    x.use(x.U, (left, READ))
    assert x.is_ordered(op, x.U)


@needs("range_begins_with_entries")
def test_a_range_comes_after_a_use_of_all_of_it(rules):
    x = Bench(rules)
    block, left, _ = halves(x)
    op = x.use(x.S, (block, WRITE))
    x.use(x.T, (left, READ))
    return x.is_ordered(op, x.T)


@needs("range_names_both_sides")
def test_a_launch_names_a_range_and_a_part_of_it(rules):
    """Its second range cuts the part that the first has named."""
    x = Bench(rules)
    block, left, right = halves(x)
    op = x.use(x.T, (Range(block, 0, 2), WRITE), (left, READ))
    x.use(x.U, (right, READ))
    return x.is_ordered(op, x.U)


@needs("range_join_keeps_newest")
def test_both_halves_have_an_entry_of_one_stream(rules):
    """The upper one is older, and a fence covers it."""
    x = Bench(rules, sealed="T")
    block, left, right = halves(x)
    other = x.allocate(x.T)
    x.use(x.T, (right, READ), (other, WRITE))
    x.use(x.U, (other, READ))
    op = x.use(x.T, (left, READ))
    x.use(x.S, (block, WRITE))
    return x.is_ordered(op, x.S)


@needs("range_join_keeps_freshness")
def test_memory_is_filled_beside_a_range_that_another_stream_has(rules):
    """The parts are joined before the fill."""
    x = Bench(rules)
    block, left, _ = halves(x)
    for _ in range(2):
        x.use(x.T, (left, READ))
    x.use(x.S, (block, READ))
    op = x.work(x.S, "fill")
    x.use(x.T, (block, READ))
    return x.is_ordered(op, x.T)


@needs("range_window_counts")
def test_a_block_is_freed_inside_a_window_on_a_range(rules):
    x = Bench(rules)
    block, left, _ = halves(x)
    window = x.prepare(x.T, (left, WRITE))
    x.free(block)
    op = x.work(x.T, "use")
    run(x.core.finish(window))
    return x.is_ordered(op, x.S)


@needs("range_not_cut_in_window")
def test_a_range_is_cut_inside_a_window(rules):
    """U reads a half of what T reads, and writes the other half afterwards."""
    x = Bench(rules)
    block, left, right = halves(x)
    window = x.prepare(x.T, (Range(block, 0, 2), READ))
    op = x.work(x.T, "use")
    x.use(x.U, (left, READ))
    run(x.core.finish(window))
    x.use(x.U, (right, WRITE))
    return x.is_ordered(op, x.U)


@needs("range_close_hands_over")
def test_all_of_it_is_read_inside_a_window_on_a_range(rules):
    x = Bench(rules)
    block, left, _ = halves(x)
    window = x.prepare(x.T, (left, READ))
    op = x.work(x.T, "use")
    x.use(x.U, (block, READ))
    run(x.core.finish(window))
    x.use(x.U, (block, WRITE))
    return x.is_ordered(op, x.U)


@needs("range_waits_for_whole")
def test_a_range_is_used_inside_a_window_on_all_of_it(rules):
    """The parts, which are made meanwhile, do not get what that window files."""
    x = Bench(rules)
    block, left, right = halves(x)
    window = x.prepare(x.T, (block, READ))
    op = x.work(x.T, "use")
    x.use(x.U, (left, READ))
    run(x.core.finish(window))
    x.use(x.U, (right, WRITE))
    return x.is_ordered(op, x.U)
