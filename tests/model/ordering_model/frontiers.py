"""Blocks and their frontiers: what the next user of a block must be ordered after.

A frontier has at most one position for each kind of entry and stream.  Unrecorded work may stand behind an entry: then
the entry is raised to a new position of its stream before another stream is ordered after it.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from ordering_model.driver import Clock
from ordering_model.rules import ALLOCATED, HAS_READ, READ, Operation, StreamMisuse
from ordering_model.streams import Stream
from ordering_model.tombstones import Tombstones

Entries = dict[tuple[str, int], int]            # (kind, number of the stream): position
State = Enum("State", ["LIVE", "RETIRED", "FREEING", "FREED"])


@dataclass(eq=False)
class Block:
    """`stream` is the allocation stream for ever; `home` is the stream on which the block will be freed."""

    generation: int
    address: int
    cells: int
    stream: Stream | None
    home: Stream | None
    memory: str                                 # driver, pool, adopted or host
    frontier: Entries = field(default_factory=dict)
    fresh: bool = True                          # no use on a stream other than the allocation stream was filed yet
    windows: int = 0
    state: State = State.LIVE

    @property
    def range(self) -> range:
        return range(self.address, self.address + self.cells)


@dataclass(frozen=True)
class Range:
    """What a launch names in place of a block: some of its cells, by their addresses."""

    block: Block
    cells: range


def newest_positions(snapshots: Iterable[Entries]) -> Clock:
    """For each stream, the newest position that any snapshot names (one-wait-per-source)."""
    newest: Clock = {}
    for snapshot in snapshots:
        for (_, number), position in snapshot.items():
            newest[number] = max(newest.get(number, 0), position)
    return newest


class Frontiers(Tombstones):
    def join(self, block: Block) -> None:
        """Called where all of a block is meant, before its entries are looked at: see ranges.py."""

    def home_of(self, block: Block) -> Stream | None:
        """The home, or the successor of an unregistered one.

        Stream order protected a free at home from all work there.  It does not protect a free on the successor, so the
        last position of the former home enters the frontier (successor).
        """
        self.join(block)
        moves = 0
        while block.home is not None and block.home.last_fence is not None:
            if moves > len(self.streams):
                raise AssertionError("the successors form a circle")
            if self.rules.successor_files_last:
                block.frontier[ALLOCATED, block.home.number] = block.home.last_fence.position
            block.home = block.home.successor
            moves += 1
        return block.home

    def hides_work(self, block: Block, kind: str, stream: Stream) -> bool:
        """May unrecorded work stand behind an entry of this stream?  (unrecorded-work)"""
        if stream.opaque:
            return True
        return (block.fresh and stream is block.stream and self.rules.fresh_hides_work
                and (kind == ALLOCATED or self.rules.raises_every_entry))

    def collect(self, block: Block, stream: Stream | None, access: str, raised: Clock) -> Entries:
        """The snapshot of one use: the entries that the stream, or the host, must be ordered after.

        Entries that hide work are raised first.  `raised` has the new positions of this operation: one for each source
        stream, however many blocks share it (raise-entries).
        """
        self.home_of(block)
        snapshot: Entries = {}
        for (kind, number), position in list(block.frontier.items()):
            source = self.streams[number]
            if kind == HAS_READ and access == READ:
                continue
            if source is not stream and self.hides_work(block, kind, source):
                if number not in raised:
                    raised[number] = self._raised_position(source)
                position = block.frontier[kind, number] = raised[number]
            snapshot[kind, number] = position
        return snapshot

    def _raised_position(self, source: Stream) -> int:
        if self.rules.raising_advances or source.last_fence is not None:
            return self.advance(source)
        return source.count

    def order_after(self, stream: Stream, snapshots: Iterable[Entries]) -> Operation[None]:
        """At most one wait for each source stream."""
        for number, position in newest_positions(snapshots).items():
            yield from self.order(stream, self.streams[number], position)

    def refuse_capturing_sources(self, stream: Stream | None, snapshots: Iterable[Entries]) -> None:
        """A fence on a stream that captures would belong to the graph: refuse before any driver call."""
        if not self.rules.capturing_source:
            return
        for snapshot in snapshots:
            for (_, number), position in snapshot.items():
                source = self.streams[number]
                if (source.alive and source.handle.capturing and not self.is_ordered(stream, source, position)
                        and not self.covering_fence(source, position)):
                    raise StreamMisuse("a stream that this work depends on is capturing")
