"""Ranges: a block of which launches name ranges is in parts, and each part is a block for prepare and finish.

So all rules for blocks hold for parts as they are.  Whatever means all of the block joins its parts first, and has the
entries of all of them.  A window on a part is one on its block, too; a part with an open window outlives a join, and
the block gets its entries when that window closes.  Ranges may share a part: then more is ordered than is needed, and
never less.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ordering_model.driver import Driver
from ordering_model.frontiers import Block, Range
from ordering_model.graphs import GraphCore, LaunchUses
from ordering_model.rules import READ_WRITE, Operation, RangeRules
from ordering_model.streams import Stream
from ordering_model.windows import Uses, Window

MOST_PARTS = 5                                  # of a block
PARTS_OF_A_RANGE = 2                            # more are merged


@dataclass(eq=False)
class Part(Block):
    whole: Block = field(kw_only=True)


def whole_of(block: Block) -> Block:
    return block.whole if isinstance(block, Part) else block


def overlap(one: range, other: range) -> bool:
    return one.start < other.stop and other.start < one.stop


class RangeCore(GraphCore):
    rules: RangeRules

    def __init__(self, driver: Driver, rules: RangeRules) -> None:
        super().__init__(driver, rules)
        self.parts: dict[Block, list[Part]] = {}        # by address, of the blocks that are in parts
        self.named: dict[Window, dict[Block, set[int]]] = {}    # the cells that an open launch names

    # ------------------------------------------------------------------------------------ what a launch names
    def merge(self, uses: Uses) -> dict[Block, str]:
        """One use for each block, and then for each part that a range reaches."""
        if isinstance(uses, LaunchUses):
            return super().merge(uses)
        merged = super().merge([(named, access) for named, access in uses if isinstance(named, Block)])
        for block in merged:
            self.join(block)
        for named, access in uses:
            if isinstance(named, Range):
                self.check_live(named.block)
                for block in self._reached(named, merged):
                    merged[block] = access if merged.get(block, access) == access else READ_WRITE
        return merged

    def prepare(self, stream: Stream, uses: Uses, handback: str = "all") -> Operation[Window]:
        window = yield from super().prepare(stream, uses, handback)
        named: dict[Block, set[int]] = {}
        for one, _ in uses:
            block = one.block if isinstance(one, Range) else one
            named.setdefault(block, set()).update(one.cells if isinstance(one, Range) else block.range)
        self.named[window] = named
        return window

    def _close(self, window: Window, filed: bool) -> Operation[None]:
        try:
            yield from super()._close(window, filed)
        finally:
            self.named.pop(window, None)

    def ends_freshness(self, window: Window, block: Block) -> bool:
        """Only a use of all cells of a part does, as a program may fill the others (range-fresh).  After the first use
        elsewhere an unowned stream is not touched (fresh-entries-stay), and there a range is all of its block."""
        if not self.rules.range_shared_stays_fresh or block.stream is None or block.stream.unowned:
            return True
        return self.named[window][whole_of(block)].issuperset(block.range)

    def _may_be_cut(self, block: Block) -> bool:
        """Not inside a window on all of the block, which would file beside the parts (range-whole); nor while a block
        of an unowned stream is fresh (range-unowned)."""
        if block in self.parts:
            return True
        unowned = block.fresh and block.stream is not None and block.stream.unowned
        return ((not block.windows or not self.rules.range_not_beside_whole)
                and not (unowned and self.rules.range_unowned_is_whole))

    def _reached(self, named: Range, merged: dict[Block, str]) -> Sequence[Block]:
        """The parts that a range reaches, or its block where ranges have no parts."""
        block, cells = named.block, named.cells
        if block in merged or not self._may_be_cut(block):
            return [block]
        parts = self.parts.get(block, [])
        if len(parts) + 2 > MOST_PARTS and not block.windows and not any(part in merged for part in parts):
            self.join(block)                            # other ranges than before
        if block not in self.parts:
            self.parts[block] = [self._make_part(block, block, block.range)]
        self._cut(block, cells.start, merged)
        self._cut(block, cells.stop, merged)
        self._merge_parts(block, cells, merged)
        return [part for part in self.parts[block] if overlap(part.range, cells)]

    # ------------------------------------------------------------------------------------ parts begin
    def _make_part(self, block: Block, like: Block, cells: range) -> Part:
        """With the entries, the freshness and the home of the block, or of the part that is cut (range-parts)."""
        return Part(block.generation, cells.start, len(cells), block.stream,
                    like.home if self.rules.range_begins_at_home else None, block.memory,
                    dict(like.frontier) if self.rules.range_begins_with_entries else {},
                    like.fresh and self.rules.range_begins_fresh, whole=block)

    def _cut(self, block: Block, at: int, merged: dict[Block, str]) -> None:
        """Not inside a window on the part, which would file on one side alone (range-window), and not into too many
        (range-shared).  A launch that has named the part has named both sides."""
        parts = self.parts[block]
        for place, part in enumerate(parts):
            if part.address < at < part.range.stop:
                if (part.windows and self.rules.range_window_is_whole) or len(parts) == MOST_PARTS:
                    return
                upper = self._make_part(block, part, range(at, part.range.stop))
                part.cells = at - part.address
                parts.insert(place + 1, upper)
                if part in merged and self.rules.range_cut_is_used:
                    merged[upper] = merged[part]
                return

    def _merge_parts(self, block: Block, cells: range, merged: dict[Block, str]) -> None:
        """Those that a range reaches, if they are many, but none that a launch uses (range-shared)."""
        parts = self.parts[block]
        reached = [part for part in parts if overlap(part.range, cells)]
        in_use = any(part.windows or part in merged for part in reached)
        if len(reached) <= PARTS_OF_A_RANGE or (in_use and self.rules.range_merge_waits):
            return
        first, *others = reached
        for part in others:
            if self.rules.range_merge_keeps_entries:
                self._add_entries(first, part)
            parts.remove(part)
        first.cells = reached[-1].range.stop - first.address

    # ------------------------------------------------------------------------------------ parts end
    def _add_entries(self, block: Block, part: Part) -> None:
        """Of each kind and stream the newest stays; the block is fresh if a part is (range-join)."""
        for key, position in part.frontier.items():
            newest = max(position, block.frontier.get(key, 0)) if self.rules.range_join_keeps_newest else position
            block.frontier[key] = newest
        block.fresh = (block.fresh or part.fresh) and self.rules.range_join_keeps_fresh

    def join(self, block: Block) -> None:
        parts = self.parts.pop(block, None)
        if parts is not None:
            block.frontier, block.fresh = {}, False
            for part in parts:
                self._add_entries(block, part)

    def join_for_record(self, block: Block) -> None:
        if self.rules.range_record_joins:
            self.join(block)

    # ------------------------------------------------------------------------------------ windows
    def open_windows(self, blocks: Iterable[Block]) -> None:
        blocks = list(blocks)
        super().open_windows(blocks)
        super().open_windows(self._wholes(blocks))

    def close_windows(self, blocks: list[Block]) -> list[Block]:
        """A part that was joined meanwhile hands its entries over (range-window)."""
        for part in blocks:
            if isinstance(part, Part):
                part.windows -= 1
                if part.whole not in self.parts and self.rules.range_close_hands_over:
                    self._add_entries(part.whole, part)
        return super().close_windows([*(block for block in blocks if not isinstance(block, Part)),
                                      *self._wholes(blocks)])

    def _wholes(self, blocks: Iterable[Block]) -> list[Block]:
        """The blocks that parts are of, on which their windows count: no free comes meanwhile (range-window)."""
        return [block.whole for block in blocks if isinstance(block, Part) and self.rules.range_window_counts]
