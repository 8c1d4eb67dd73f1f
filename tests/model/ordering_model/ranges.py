"""Launches that name ranges of a block: the block is cut into parts, each of which is a block for prepare and finish.

Whatever means all of the block joins its parts first.  A window on a part counts on the block, too, and a part that was
joined while a window was open on it hands its entries over when that window closes.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ordering_model.driver import Clock, Driver
from ordering_model.frontiers import Block, Entries, State
from ordering_model.graphs import GraphCore
from ordering_model.rules import READ_WRITE, Operation, RangeRules
from ordering_model.streams import Stream
from ordering_model.windows import Uses


@dataclass(eq=False)
class Part(Block):
    whole: Block = None                         # type: ignore[assignment]  # always given


@dataclass(frozen=True)
class Range:
    """The cells `first` to `end` of a block, as a use names them."""

    block: Block
    first: int
    end: int


def add_entries(block: Block, part: Block, newest: bool = True) -> None:
    """The newest entry of each kind and stream stays."""
    for key, position in part.frontier.items():
        block.frontier[key] = max(block.frontier.get(key, 0), position) if newest else position


class RangeCore(GraphCore):
    rules: RangeRules

    def __init__(self, driver: Driver, rules: RangeRules) -> None:
        super().__init__(driver, rules)
        self.parts: dict[Block, list[Part]] = {}

    # ------------------------------------------------------------------------------------ parts
    def part_of(self, block: Block, like: Block, address: int, cells: int) -> Part:
        frontier = dict(like.frontier) if self.rules.range_begins_with_entries else {}
        return Part(block.generation, address, cells, block.stream, like.home, block.memory, frontier, like.fresh,
                    whole=block)

    def join(self, block: Block) -> None:
        """The block gets the entries of all parts (range-join)."""
        parts = self.parts.pop(block, [])
        if parts:
            block.frontier = {}
            block.fresh = any(part.fresh for part in parts) and self.rules.range_join_keeps_freshness
        for part in parts:
            add_entries(block, part, self.rules.range_join_keeps_newest)

    def cut(self, block: Block, at: int, named: dict[Block, str]) -> None:
        """Begin a part at this cell, except inside a part with an open window.  Where the launch has named the part
        that is cut, it names both."""
        for place, part in enumerate(self.parts[block]):
            if part.address < at < part.address + part.cells:
                if part.windows and self.rules.range_not_cut_in_window:
                    return
                upper = self.part_of(block, part, at, part.address + part.cells - at)
                part.cells = at - part.address
                self.parts[block].insert(place + 1, upper)
                if part in named and self.rules.range_names_both_sides:
                    named[upper] = named[part]
                return

    def may_be_cut(self, block: Block) -> bool:
        """Not while a window is open on all of the block (range-whole)."""
        return block in self.parts or not block.windows or not self.rules.range_waits_for_whole

    # ------------------------------------------------------------------------------------ uses
    def merge(self, uses: Uses) -> dict[Block, str]:
        ranges = [(named, access) for named, access in uses if isinstance(named, Range)]
        merged = super().merge([use for use in uses if isinstance(use[0], Block)] if ranges else uses)
        for block in merged:
            self.join(block)
        for named, access in ranges:
            self.check_live(named.block)
            for block in self._reached(named, merged):
                merged[block] = access if merged.get(block, access) == access else READ_WRITE
        return merged

    def _reached(self, named: Range, merged: dict[Block, str]) -> list[Block]:
        """The parts that a range reaches, cut at its ends; or all of the block."""
        block = named.block
        if block in merged or not self.may_be_cut(block):
            return [block]
        if block not in self.parts:
            self.parts[block] = [self.part_of(block, block, block.address, block.cells)]
        first, end = block.address + named.first, block.address + named.end
        self.cut(block, first, merged)
        self.cut(block, end, merged)
        return [part for part in self.parts[block] if part.address < end and first < part.address + part.cells]

    def open_windows(self, blocks: Iterable[Block]) -> None:    # type: ignore[override]
        for block in blocks:
            block.windows += 1
            if isinstance(block, Part) and self.rules.range_window_counts:
                block.whole.windows += 1

    def close_windows(self, blocks: list[Block]) -> list[Block]:
        claimed = []
        for block in blocks:
            if not isinstance(block, Part):
                claimed += super().close_windows([block])
                continue
            block.windows -= 1
            whole = block.whole
            if block not in self.parts.get(whole, []) and self.rules.range_close_hands_over:
                add_entries(whole, block)
                whole.fresh = whole.fresh or block.fresh
            if not self.rules.range_window_counts:
                continue
            whole.windows -= 1
            if whole.state is State.RETIRED and not whole.windows and self.rules.last_close_claims:
                whole.state = State.FREEING
                claimed.append(whole)
        return claimed

    # ------------------------------------------------------------------------------------ whatever means all of it
    def collect(self, block: Block, stream: Stream | None, access: str, raised: Clock) -> Entries:
        self.join(block)
        return super().collect(block, stream, access, raised)

    def free(self, block: Block, stream: Stream | None = None) -> Operation[None]:
        yield from self.free_deferred()
        self.join(block)
        yield from super().free(block, stream)

    def free_inside_operation(self, block: Block) -> Operation[None]:
        self.join(block)
        yield from super().free_inside_operation(block)

    def record_use(self, stream: Stream, block: Block) -> Operation[None]:
        yield from self.free_deferred()
        self.join(block)
        yield from super().record_use(stream, block)
