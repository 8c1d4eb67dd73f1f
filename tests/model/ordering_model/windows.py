"""Windows: the time from the prepare of a launch to its finish."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ordering_model.driver import Clock
from ordering_model.frees import Frees
from ordering_model.frontiers import Block, Entries, Range, State
from ordering_model.rules import (
    ALLOCATED,
    HAS_READ,
    READ,
    READ_WRITE,
    REFUSED,
    WRITTEN,
    Operation,
    StreamMisuse,
    UseAfterFree,
)
from ordering_model.streams import Stream, calling

EAGER_COMMITS = 64
Uses = Sequence[tuple[Block | Range, str]]      # blocks, or ranges of them, and their access


@dataclass(eq=False)
class Window:
    stream: Stream
    uses: list[tuple[Block, str, Entries]]      # block, access and snapshot
    handback: str = "all"                       # or "writes"
    open: bool = True
    early_position: int = 0                     # only for the planted defect of position-after-work


class Core(Frees):
    """The whole runtime of the model, without the host's side."""

    def prepare(self, stream: Stream, uses: Uses, handback: str = "all") -> Operation[Window]:
        """Validate and open the windows in one acquisition, then queue the waits (validate-before-wait).

        If a wait cannot be queued, the windows close again and nothing was launched (failed-prepare-closes).
        """
        yield from self.free_deferred()
        merged = self.merge(uses)
        if not stream.usable:
            raise StreamMisuse("a launch on an unregistered or capturing stream")
        window = Window(stream, self.collect_all(merged, stream), handback)
        snapshots = [snapshot for _, _, snapshot in window.uses]
        self.refuse_capturing_sources(stream, snapshots)
        waited_for = self._waited_for(stream, snapshots)
        if not self.rules.position_after_work:
            window.early_position = self.advance(stream)
        stream.windows += 1
        if self.rules.windows_open_with_validation:
            self.open_windows(merged)
        try:
            with calling(stream):
                yield from self.order_after(stream, snapshots)
        except REFUSED:
            if not self.rules.windows_open_with_validation:
                self.open_windows(merged)
            yield from self._close(window, filed=False)
            raise
        if not self.rules.windows_open_with_validation:
            self.open_windows(merged)
        for source in waited_for:
            source.eager_commits = EAGER_COMMITS
        if not self.rules.fresh_until_filed:
            for block in merged:
                block.fresh = block.fresh and stream is block.stream
        return window

    def merge(self, uses: Uses) -> dict[Block, str]:
        """One use for each block: read and write together are read-write."""
        merged: dict[Block, str] = {}
        for named, access in uses:
            block = named.block if isinstance(named, Range) else named      # ranges.py knows better
            merged[block] = access if merged.get(block, access) == access else READ_WRITE
        for block in merged:
            self.check_live(block)
        return merged

    def collect_all(self, merged: dict[Block, str], stream: Stream) -> list[tuple[Block, str, Entries]]:
        raised: Clock = {}
        return [(block, access, self.collect(block, stream, access, raised)) for block, access in merged.items()]

    def open_windows(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.windows += 1

    def _waited_for(self, stream: Stream, snapshots: list[Entries]) -> list[Stream]:
        """The sources whose next commits record a fence: waits for allocations do not count (eager-commits)."""
        return [self.streams[number] for snapshot in snapshots for (kind, number), position in snapshot.items()
                if kind != ALLOCATED and not self.is_ordered(stream, self.streams[number], position)]

    def finish(self, window: Window) -> Operation[None]:
        """File the launch.  An exception in the body does the same: filing too much is harmless."""
        yield from self._close(window, filed=True)

    def cancel(self, window: Window) -> Operation[None]:
        """Nothing was launched: nothing is filed or removed."""
        yield from self._close(window, filed=False)

    def _close(self, window: Window, filed: bool) -> Operation[None]:
        """One acquisition files the launch, notes the opaque homes, closes the windows and claims the frees.

        The rest has no lock: the fence of the commit, the hand-back, and the claimed frees (finish-files, finish-rest).
        """
        if not window.open:
            raise StreamMisuse("the window is closed")
        window.open = False
        stream = window.stream
        position = self._file(window) if filed else 0
        homes = self._homes_to_hand_back(window) if filed else []
        claimed = self.close_windows([block for block, _, _ in window.uses])
        stream.windows -= 1
        with calling(stream):
            if filed and self._commit_records(stream):
                yield from self._record_if_possible(stream)
            failure = yield from self._hand_back(stream, homes, position)
            for block in claimed:
                yield from self.free_inside_operation(block)
            if not self.rules.last_close_claims:
                yield from self._free_retired([block for block, _, _ in window.uses])
            if failure is not None:             # raised last: neither uses nor frees are lost
                raise failure

    def close_windows(self, blocks: list[Block]) -> list[Block]:
        """The close of a retired block's last window claims the block, and alone frees it (last-close-claims)."""
        claimed = []
        for block in blocks:
            block.windows -= 1
            if block.state is State.RETIRED and not block.windows and self.rules.last_close_claims:
                block.state = State.FREEING
                claimed.append(block)
        return claimed

    def _free_retired(self, blocks: list[Block]) -> Operation[None]:
        """The planted defect of last-close-claims: the lock was dropped since the windows closed."""
        for block in blocks:
            if block.state is State.RETIRED and not block.windows:
                yield from self.free_inside_operation(block)

    # ------------------------------------------------------------------------------------ filing
    def _file(self, window: Window) -> int:
        """One position for all blocks of the launch."""
        stream = window.stream
        position = self.advance(stream) if self.rules.position_after_work else window.early_position
        raised: Clock = {}
        for block, access, snapshot in window.uses:
            self._raise_fresh_entries(block, stream, raised)
            if access != READ:
                self._remove_entries(block, snapshot)
            written = access != READ or (stream.opaque and self.rules.opaque_counts_as_written)
            block.frontier[WRITTEN if written else HAS_READ, stream.number] = position
            if stream is not block.stream and self.ends_freshness(window, block):
                block.fresh = False
        return position

    def ends_freshness(self, window: Window, block: Block) -> bool:
        """Does this use elsewhere mean all of the block?  (ranges.py)"""
        return True

    def _raise_fresh_entries(self, block: Block, stream: Stream, raised: Clock) -> None:
        """The first use elsewhere is not ordered after fills since its prepare, and later users have to be.

        So its finish raises the entries of the allocation stream, which its write does not remove then: they differ
        from the snapshot (fresh-entries-stay).
        """
        source = block.stream
        if (not block.fresh or source is None or source is stream or source.sealed or source.opaque or source.unowned
                or not self.rules.fresh_entries_stay):
            return
        for kind, number in block.frontier:
            if number == source.number:
                if number not in raised:
                    raised[number] = self.advance(source)
                block.frontier[kind, number] = raised[number]

    def _remove_entries(self, block: Block, snapshot: Entries) -> None:
        """A write removes the entries of its own snapshot that have not changed since (write-removes-snapshot).

        Its waits imply these.  Entries of opaque streams stay (opaque-entries-stay).
        """
        if not self.rules.write_removes_snapshot:
            block.frontier.clear()
        for (kind, number), position in snapshot.items():
            stays = self.streams[number].opaque and self.rules.opaque_entries_stay
            if block.frontier.get((kind, number)) == position and not stays:
                del block.frontier[kind, number]

    def _commit_records(self, stream: Stream) -> bool:
        """Does this commit record a fence at once?  (eager-commits, unowned-source)"""
        if self.rules.policy == "adaptive" and stream.eager_commits:
            stream.eager_commits -= 1
            return True
        return self.rules.policy == "precise" or stream.unowned

    def _record_if_possible(self, stream: Stream) -> Operation[None]:
        """The position is filed; if the record fails, a fence is recorded when it is needed."""
        with suppress(*REFUSED):
            yield from self.record_fence(stream)

    def record_use(self, stream: Stream, block: Block) -> Operation[None]:
        """Work that was enqueued without a window counts as written, removes nothing and ends no freshness (record).

        On a retired block it is filed first; then the call raises (record-on-retired).
        """
        yield from self.free_deferred()
        if block.state not in (State.LIVE, State.RETIRED):
            raise UseAfterFree(block.generation)
        if not stream.usable:                   # nothing is filed, not even on a retired block (record-capturing)
            raise StreamMisuse("a use on an unregistered or capturing stream")
        if block.state is State.LIVE or self.rules.late_record_files:
            self.join_for_record(block)
            block.frontier[WRITTEN, stream.number] = self.advance(stream)
        self.check_live(block)
        if stream.unowned:
            yield from self._record_if_possible(stream)

    def join_for_record(self, block: Block) -> None:
        self.join(block)

    # ------------------------------------------------------------------------------------ hand-back
    def _homes_to_hand_back(self, window: Window) -> list[Stream]:
        """The opaque homes of the launch's blocks, noted while the blocks cannot be freed."""
        homes: list[Stream] = []
        for block, access, _ in window.uses:
            home = self.home_of(block)
            wanted = window.handback == "all" or access != READ
            if home is not None and home.opaque and home is not window.stream and wanted and home not in homes:
                homes.append(home)
        return homes if self.rules.hands_back else []

    def _hand_back(self, stream: Stream, homes: list[Stream], position: int) -> Operation[Exception | None]:
        """Order each opaque home after the launch: its owner enqueues work there without a record.

        If the wait cannot be queued, the host waits for the launch (hand-back-falls-back).
        """
        try:
            for home in homes:
                if home.alive:                  # else it was unregistered meanwhile
                    with calling(home):
                        yield from self._order_home(home, stream, position)
        except REFUSED as error:
            return error
        return None

    def _order_home(self, home: Stream, stream: Stream, position: int) -> Operation[None]:
        try:
            if home.handle.capturing:
                raise StreamMisuse("the opaque home is capturing")
            yield from self.order(home, stream, position)
        except REFUSED:
            yield from self.host_waits(stream, position)
