"""The host's side: host accesses, and host memory whose free spans carry a frontier.

A host access is a use on the pseudo-stream of the host.  The host waits before it, and files nothing after it: what is
enqueued after the access has ended begins later than it ended.
"""
from __future__ import annotations

from dataclasses import dataclass

from ordering_model.driver import Clock, Driver, DriverError, merge
from ordering_model.frontiers import Block, Entries, newest_positions
from ordering_model.rules import (
    ALLOCATED,
    HAS_READ,
    READ,
    REFUSED,
    HostRules,
    Operation,
    StreamMisuse,
)
from ordering_model.streams import Fence, Stream, calling
from ordering_model.windows import Core, Uses

FIRST_HOST_ADDRESS = 5000
MOST_LOOKS = 4                                  # then an awaited access opens as one that blocks does


@dataclass(eq=False)
class HostWindow:
    uses: list[tuple[Block, str, Entries]]
    waited_with_window: bool = True


class HostPool:
    """Host memory, which is never returned in the model.  `limit` is the number of its cells."""

    def __init__(self, core: Core, limit: int = 24, chunk_cells: int = 6) -> None:
        self.core, self.limit, self.chunk_cells = core, limit, chunk_cells
        self.made = 0
        self.spans: dict[int, tuple[int, Clock]] = {}       # address: cells and frontier

    def take(self, cells: int, stream: Stream | None) -> Operation[tuple[int, Clock]]:
        """For the host: memory that it has seen idle, else new memory, else any; for a stream, new memory comes last.

        A poll drops the lock, so everything is chosen after the polls (host-recheck).  The caller orders the stream,
        or the host, after the frontier.
        """
        if stream is None:
            yield from self._poll(cells)
        fitting = self._fitting(cells)
        ordered = [address for address in fitting if self._is_ordered(address, stream)]
        if stream is None:
            candidates = ordered or self._grow(cells) or fitting
        else:
            candidates = ordered or fitting or self._grow(cells)
        if not candidates:
            raise DriverError("out of host memory")
        address = candidates[0]
        size, frontier = self.spans.pop(address)
        if size > cells:
            self.spans[address + cells] = (size - cells, dict(frontier))
        return address, dict(frontier)

    def _fitting(self, cells: int) -> list[int]:
        return [address for address, (size, _) in self.spans.items() if size >= cells]

    def _is_ordered(self, address: int, stream: Stream | None) -> bool:
        return all(self.core.is_ordered(stream, self.core.streams[number], position)
                   for number, position in self.spans[address][1].items())

    def _poll(self, cells: int) -> Operation[None]:
        """Query the fences that cover the frontiers of fitting memory.  Another thread may take it meanwhile."""
        for address in self._fitting(cells):
            if address in self.spans and not self._is_ordered(address, None):
                for number, position in list(self.spans[address][1].items()):
                    yield from self.core.host_polls(self.core.streams[number], position)

    def _grow(self, cells: int) -> list[int]:
        """The address of new memory, if the limit allows it."""
        size = max(cells, self.chunk_cells)
        if self.made + size > self.limit:
            return []
        address = FIRST_HOST_ADDRESS + self.made
        self.made += size
        self.spans[address] = (size, {})
        return [address]

    def put(self, address: int, cells: int, frontier: Clock) -> None:
        for other in [other for other, (size, _) in self.spans.items()
                      if other + size == address or other == address + cells]:
            size, theirs = self.spans.pop(other)
            frontier = dict(frontier)
            merge(frontier, theirs)
            address, cells = min(address, other), cells + size
        self.spans[address] = (cells, frontier)


class HostCore(Core):
    rules: HostRules

    def __init__(self, driver: Driver, rules: HostRules) -> None:
        super().__init__(driver, rules)
        self.host_pool = HostPool(self)

    def raise_host_clock(self, source: Stream, fence: Fence) -> None:
        if self.rules.host_poll_reads_fence:
            super().raise_host_clock(source, fence)
        else:
            merge(self.host_clock, {source.number: source.count})

    # ------------------------------------------------------------------------------------ host accesses
    def prepare_host(self, uses: Uses) -> Operation[HostWindow]:
        """Open the windows in the acquisition that validates; then the host waits (host-access)."""
        yield from self.free_deferred()
        window = self._look(uses)
        self._open(window)
        try:
            yield from self._host_waits_for(self._missing(window))
        except REFUSED:
            yield from self._close_host(window)
            raise
        return window

    def acquire_host(self, uses: Uses) -> Operation[HostWindow]:
        """The asynchronous form: no window is open while the caller is suspended (host-await).

        It looks, is suspended until what it saw is complete, and looks again.  It opens in the acquisition that finds
        nothing left to wait for.
        """
        yield from self.free_deferred()
        for look in range(MOST_LOOKS):
            window = self._look(uses)
            missing = self._missing(window)
            if not missing or (look and not self.rules.host_looks_again):
                self._open(window)
                window.waited_with_window = False
                return window
            yield from self._host_waits_for(missing)
        return (yield from self.prepare_host(uses))

    def finish_host(self, window: HostWindow) -> Operation[None]:
        """No position is taken and no entry is filed or removed; a fresh block stays fresh (host-files-none)."""
        if not self.rules.host_keeps_entries:
            for block, access, snapshot in window.uses:
                if access != READ:
                    self._remove_entries(block, snapshot)
        yield from self._close_host(window)

    def _look(self, uses: Uses) -> HostWindow:
        """Validate, and collect what the host must have seen complete: for a read the allocated and written entries."""
        raised: Clock = {}
        window = HostWindow([(block, access, self._collect_for_host(block, access, raised))
                             for block, access in self.merge(uses).items()])
        self.refuse_capturing_sources(None, [snapshot for _, _, snapshot in window.uses])
        return window

    def _collect_for_host(self, block: Block, access: str, raised: Clock) -> Entries:
        if self.rules.host_raises_entries:
            snapshot = self.collect(block, None, access, raised)
        else:
            self.home_of(block)
            snapshot = {key: position for key, position in block.frontier.items()
                        if key[0] != HAS_READ or access != READ}
        if not self.rules.host_write_waits_for_readers:
            snapshot = {key: position for key, position in snapshot.items() if key[0] != HAS_READ}
        if not self.rules.host_read_waits_for_writers and access == READ:
            snapshot = {}
        return snapshot

    def _missing(self, window: HostWindow) -> Clock:
        newest = newest_positions(snapshot for _, _, snapshot in window.uses)
        return {number: position for number, position in newest.items()
                if not self.is_ordered(None, self.streams[number], position)}

    def _host_waits_for(self, positions: Clock) -> Operation[None]:
        for number, position in positions.items():
            yield from self.host_waits(self.streams[number], position)

    def _open(self, window: HostWindow) -> None:
        if self.rules.host_opens_window:
            self.open_windows([block for block, _, _ in window.uses])

    def _close_host(self, window: HostWindow) -> Operation[None]:
        if self.rules.host_opens_window:
            for block in self.close_windows([block for block, _, _ in window.uses]):
                yield from self.free_inside_operation(block)

    # ------------------------------------------------------------------------------------ host memory
    def allocate_host(self, cells: int, stream: Stream | None = None) -> Operation[Block]:
        """Without a stream: idle for the host, no home, no entry (host-first).  With one: as from a pool
        (host-stream-first).
        """
        yield from self.free_deferred()
        if stream is not None and not stream.usable:
            raise StreamMisuse("an allocation on an unregistered or capturing stream")
        with calling(stream):
            address, frontier = yield from self.host_pool.take(cells, stream)
            try:
                yield from self._order_owner(stream, frontier)
            except REFUSED:
                self.host_pool.put(address, cells, frontier)
                raise
            entry = {(ALLOCATED, stream.number): self.advance(stream)} if stream is not None else {}
        fresh = stream is not None and not stream.sealed
        return self.add(Block(next(self._generations), address, cells, stream, stream, "host", entry, fresh))

    def _order_owner(self, stream: Stream | None, frontier: Clock) -> Operation[None]:
        if stream is None:
            if self.rules.host_first_is_idle:
                yield from self._host_waits_for(frontier)
            return
        for number, position in frontier.items():
            yield from self.order(stream, self.streams[number], position)

    def return_bytes(self, block: Block, home: Stream | None) -> Operation[None]:
        """A free of host memory makes no driver call; raised entries are raised for the last time (host-free)."""
        if block.memory != "host":
            yield from super().return_bytes(block, home)
            return
        frontier = self.frontier_after_free(block, home) if self.rules.host_free_keeps_frontier else {}
        yield
        self.host_pool.put(block.address, block.cells, frontier)
        self.live -= block.cells
