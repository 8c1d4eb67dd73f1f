"""Graphs: a capture is an order of its own, and a launch of the graph is one use.

A session is a runtime of its own over a fake driver of its own, whose operations are the nodes of the graph.  So the
rules of streams hold inside as they are, in the time of the graph: in it nothing came before the capture, and its
positions, clocks and fences mean nothing outside.  Outside there are the graph's pins on its blocks, and its launches.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace

from ordering_model.driver import Driver, DriverError, DriverStream
from ordering_model.frontiers import Block, State
from ordering_model.host import HostCore
from ordering_model.pool import Span
from ordering_model.rules import READ, READ_WRITE, GraphRules, Operation, StreamMisuse, run
from ordering_model.streams import Stream
from ordering_model.windows import Core, Uses, Window


@dataclass(eq=False)
class Graph:
    """`accesses` are those of all launches; each block is pinned, as by a window, until the graph is closed."""

    memory: Block                                   # its own, from the runtime outside
    accesses: dict[Block, str] = field(default_factory=dict)
    launches: int = 0                               # that are open
    closed: bool = False

    def declare(self, block: Block, access: str) -> None:
        self.accesses[block] = access if self.accesses.get(block, access) == access == READ else READ_WRITE


class Nodes(Driver):
    """The fake driver of a session: its operations are nodes, and it has no memory (graph-memory)."""

    def mem_alloc(self, stream: DriverStream, cells: int) -> int:
        raise DriverError("the graph has no more memory")


class SessionCore(Core):
    rules: GraphRules

    def order(self, stream: Stream, source: Stream, position: int) -> Operation[None]:
        """By a captured event (graph-edges)."""
        if self.rules.graph_edges:
            yield from super().order(stream, source, position)

    def order_after_all(self, stream: Stream, source: Stream) -> None:
        """After all that `source` has captured so far, recorded or not."""
        run(super().order(stream, source, self.advance(source)))


class Session:
    """A capture.  `foreign`: of another library, which works on the first stream without a record."""

    def __init__(self, outside: GraphCore, driver: Driver, origin: Stream, memory: Block,
                 foreign: bool = False) -> None:
        rules = outside.rules
        self.outside, self.driver = outside, driver
        self.foreign = foreign and rules.graph_foreign_is_opaque
        self.core = SessionCore(driver, replace(rules, policy="precise",
                                                pool_allocation_waits=rules.graph_memory_is_ordered))
        self.graph = Graph(memory)
        self.inside: dict[Stream, Stream] = {}      # by the stream outside
        self.shadows: dict[Block, Block] = {}       # likewise
        self.origin = self.join(origin)
        self.core.pool.chunks[0] = (memory.address, memory.cells)
        self.core.pool.chunk_of_cell = dict.fromkeys(memory.range, 0)
        self.core.pool.spans[memory.address] = Span(memory.cells, {}, 0)

    def join(self, stream: Stream) -> Stream:
        """The stream inside.  It joins after what the first stream has captured so far, and comes with no clock of
        outside (graph-time)."""
        if stream in self.inside:
            return self.inside[stream]
        first = not self.inside
        made = self.core.register(self.driver.stream_create(), opaque=first and self.foreign)
        if not self.outside.rules.graph_own_time:
            for known, other in self.inside.items():
                made.clock[other.number] = stream.clock.get(known.number, 0)
                other.clock[made.number] = known.clock.get(stream.number, 0)
        self.inside[stream] = made
        if not first:
            self.core.order_after_all(made, self.origin)
        return made

    def shadow(self, block: Block) -> Block:
        """The block as the session knows it: nothing has happened to it, but for what another library captures on its
        stream (graph-foreign).  From now on the graph pins the block (graph-holds)."""
        if block not in self.shadows:
            self.outside.check_live(block)
            if self.outside.rules.graph_holds:
                self.outside.open_windows([block])
            self.shadows[block] = self.core.adopt(block.address, block.cells, self.origin if self.foreign else None)
        return self.shadows[block]

    def prepare(self, stream: Stream, uses: list[tuple[Block, str]]) -> Window:
        for block, access in uses:
            self.shadow(block)
            self.graph.declare(block, access)
        return run(self.core.prepare(self.join(stream), [(self.shadow(block), access) for block, access in uses]))

    def prepare_memory(self, stream: Stream, block: Block) -> Window:
        """For a use of memory of the graph (`allocate`)."""
        return run(self.core.prepare(self.join(stream), [(block, READ_WRITE)]))

    def finish(self, window: Window) -> None:
        run(self.core.finish(window))

    def allocate(self, cells: int, stream: Stream) -> Block:
        """Memory of the graph: what was freed inside, after its uses there (graph-memory)."""
        self.graph.declare(self.graph.memory, READ_WRITE)
        return run(self.core.allocate(cells, self.join(stream), "pool"))

    def end(self) -> Graph:
        """The first stream comes after all that have joined (graph-joins)."""
        for stream in self.inside.values():
            if stream is not self.origin and self.outside.rules.graph_joins:
                self.core.order_after_all(self.origin, stream)
        return self.graph


class LaunchUses(list[tuple[Block, str]]):
    """The uses of a launch, which may name what the graph pins although the program has freed it (graph-holds)."""


class GraphCore(HostCore):
    rules: GraphRules

    def __init__(self, driver: Driver, rules: GraphRules) -> None:
        super().__init__(driver, rules)
        self.launched: dict[Window, Graph] = {}     # by the open windows of launches

    def merge(self, uses: Uses) -> dict[Block, str]:
        if isinstance(uses, LaunchUses):
            return {block: access for block, access in uses if block.state in (State.LIVE, State.RETIRED)}
        return super().merge(uses)

    def prepare_launch(self, graph: Graph, stream: Stream) -> Operation[Window]:
        """One use: reads of what is only read inside, writes of the rest (graph-is-a-use)."""
        if graph.closed:
            raise StreamMisuse("the graph is closed")
        uses = LaunchUses()
        for block, access in graph.accesses.items():
            if access == READ and self.rules.graph_launch_reads:
                uses.append((block, READ))
            elif access != READ:
                uses.append((block, READ_WRITE if self.rules.graph_launch_writes else READ))
        graph.launches += 1
        try:
            window = yield from self.prepare(stream, uses)
        except BaseException:
            graph.launches -= 1
            raise
        self.launched[window] = graph
        return window

    def _close(self, window: Window, filed: bool) -> Operation[None]:
        graph = self.launched.pop(window, None)
        if graph is not None:
            graph.launches -= 1
        yield from super()._close(window, filed)

    def close_graph(self, graph: Graph) -> Operation[None]:
        """Drop the pins; the last one frees what was freed meanwhile, after the launches."""
        if graph.launches or graph.closed:
            raise StreamMisuse("the graph is closed, or is being launched")
        graph.closed = True
        pinned = [block for block in graph.accesses if block is not graph.memory and self.rules.graph_holds]
        for block in [*self.close_windows(pinned), graph.memory]:
            yield from self.free_inside_operation(block)
