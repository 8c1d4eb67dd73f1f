"""A pool whose free memory carries its frontier: for each stream, the newest position to be ordered after.

A split copies the frontier; joining two neighbours takes the newest position of each stream; the rest of a new chunk
carries a position of the stream that grew the pool.  Positions stay valid when a stream is unregistered, because the
last fence answers for them.
"""
from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from ordering_model.driver import Clock, merge
from ordering_model.rules import REFUSED, Operation, unlocked
from ordering_model.streams import Stream, Streams, calling


@dataclass(eq=False)
class Span:
    """Free memory of one chunk."""

    cells: int
    frontier: Clock
    chunk: int


class Pool:
    def __init__(self, streams: Streams, chunk_cells: int = 8) -> None:
        self.core, self.chunk_cells = streams, chunk_cells
        self.spans: dict[int, Span] = {}                    # by address
        self.chunks: dict[int, tuple[int, int]] = {}        # number of a chunk: address and cells
        self.chunk_of_cell: dict[int, int] = {}
        self._numbers = count(1)

    def take(self, cells: int, stream: Stream) -> Operation[tuple[int, Clock]]:
        """Memory for the stream, and its frontier: what the stream is ordered after, else any, else a new chunk."""
        fitting = [address for address, span in self.spans.items() if span.cells >= cells]
        ordered = [address for address in fitting if self._is_ordered(stream, self.spans[address].frontier)]
        if not fitting:
            ordered = [(yield from self._grow(cells, stream))]
        address = (ordered or fitting)[0]
        span = self.spans.pop(address)
        if span.cells > cells:
            self.spans[address + cells] = Span(span.cells - cells, dict(span.frontier), span.chunk)
        return address, dict(span.frontier)

    def _is_ordered(self, stream: Stream, frontier: Clock) -> bool:
        return all(self.core.is_ordered(stream, self.core.streams[number], position)
                   for number, position in frontier.items())

    def _grow(self, cells: int, stream: Stream) -> Operation[int]:
        """A new chunk; its position is taken after the call (pool-chunk)."""
        cells = max(cells, self.chunk_cells)
        address = yield from unlocked(self.core.driver.mem_alloc, stream.handle, cells)
        chunk = next(self._numbers)
        self.chunks[chunk] = (address, cells)
        self.chunk_of_cell |= dict.fromkeys(range(address, address + cells), chunk)
        position = self.core.advance(stream)
        frontier = {stream.number: position} if self.core.rules.chunk_has_frontier else {}
        self.spans[address] = Span(cells, frontier, chunk)
        return address

    def put(self, address: int, cells: int, frontier: Clock) -> None:
        """Freed memory, joined with its free neighbours in the chunk (pool-split-join)."""
        chunk, frontier = self.chunk_of_cell[address], dict(frontier)
        neighbours = [other for other, span in self.spans.items() if span.chunk == chunk
                      and (other + span.cells == address or other == address + cells)]
        for other in neighbours:
            span = self.spans.pop(other)
            if self.core.rules.join_keeps_both:
                merge(frontier, span.frontier)
            address, cells = min(address, other), cells + span.cells
        self.spans[address] = Span(cells, frontier, chunk)

    def trim(self, stream: Stream) -> Operation[None]:
        """Return idle chunks upstream, on a stream that is ordered after the joined frontier (pool-upstream)."""
        for address, span in list(self.spans.items()):
            if self.spans.get(address) is not span or self.chunks[span.chunk] != (address, span.cells):
                continue
            if not stream.usable:
                return
            del self.spans[address]                         # no other thread takes it during the waits
            with calling(stream):
                try:
                    for number, position in span.frontier.items():
                        yield from self.core.order(stream, self.core.streams[number], position)
                    yield from unlocked(self.core.driver.mem_free, stream.handle, address)
                except REFUSED:
                    self.spans[address] = span
                    continue
            del self.chunks[span.chunk]
