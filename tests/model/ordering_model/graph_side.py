"""Random programs with captures and launches of graphs.

A capture is one step of the program: its uses, its own memory, and what another library captures on the first stream.
The nodes have an oracle of their own.  A launch is an operation on every block of the graph.  Beside the violations of
host_side.py there are:

graph-order     A node comes after each node that it conflicts with and that was captured before.
graph-join      When the capture ends, its first stream comes after every node.
graph-hold      No block of a graph is freed before the graph is closed.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from ordering_model.actions import MOST_WINDOWS, Action, Configuration, Launch, Use
from ordering_model.driver import Op
from ordering_model.frontiers import Block, State
from ordering_model.graphs import Graph, GraphCore, Nodes, Session
from ordering_model.host_side import HostOracle, HostProgram
from ordering_model.oracle import Access, Track
from ordering_model.rules import READ, READ_WRITE, REFUSED, WRITE, GraphRules, Operation, Rules, run
from ordering_model.streams import Stream

MEMORY = 4                                      # cells of a graph
MOST_GRAPHS = 3

GRAPH_CONFIGURATIONS = {
    "graph": Configuration(("driver",)),
    "graph-opaque": Configuration(opaque=1),
    "graph-threads": Configuration(("driver", "pool"), opaque=1, threads=3, failures=True),
}


@dataclass(eq=False)
class Captured:
    """A graph, and what its launches do with each block, whatever the runtime says."""

    graph: Graph
    uses: list[Use]


@dataclass(eq=False)
class Capture:
    """The nodes of a session: which have touched each cell, and in which order."""

    session: Session
    driver: Nodes
    nodes: list[Op] = field(default_factory=list)
    touched: dict[int, list[Access]] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)

    def node(self, stream: Stream, what: str, uses: list[tuple[Block, str]]) -> None:
        op = self.driver.launch(stream.handle, what)
        self.nodes.append(op)
        for block, access in uses:
            for cell in block.range:
                for other in self.touched.setdefault(cell, []):
                    if ((other.writes or access != READ) and other.op is not op
                            and not self.driver.is_before_later_work(other.op, stream.handle)):
                        self.problems.append(("graph-order", f"{other.op} not before {op} (cell {cell})"))
                self.touched[cell].append(Access(op, access != READ, range(cell, cell + 1)))

    def end(self) -> Graph:
        graph = self.session.end()
        for op in self.nodes:
            if not self.driver.is_before_later_work(op, self.session.origin.handle):
                self.problems.append(("graph-join", f"{op} not before the end of the capture"))
        return graph


class GraphProgram(HostProgram):
    core: GraphCore

    def make_core(self, rules: Rules) -> None:
        assert isinstance(rules, GraphRules)
        self.oracle = HostOracle(self.random)
        self.core = GraphCore(self.oracle, rules)
        self.host_accesses = []
        self.graphs: list[Captured] = []

    # ------------------------------------------------------------------------------------ captures
    def capture_graph(self) -> Operation[None]:
        origin = self.any_stream()
        if not origin or len(self.graphs) >= MOST_GRAPHS:
            return
        memory = self.track_of((yield from self.core.allocate(MEMORY, origin)))
        tracks = self.some_tracks((1, 2, 3), lambda track: track.block.state is State.LIVE)
        streams = [origin, *(stream for stream in self.streams if stream.usable and stream is not origin)][:3]
        driver = Nodes()
        capture = Capture(Session(self.core, driver, origin, memory.block, self.random.random() < .4), driver)
        for track in tracks:
            capture.session.shadow(track.block)
            capture.session.graph.declare(track.block, READ)
        foreign = capture.session.foreign or not self.core.rules.graph_foreign_is_opaque
        for _ in range(self.random.randint(2, 8)):
            chance = self.random.random()
            if foreign and chance < .3 and tracks:
                self._foreign_node(capture, self.random.choice(tracks).block)
            elif chance < .5:
                self._allocate_inside(capture, self.random.choice(streams), self.random.choice(streams))
            elif tracks:
                self._use_inside(capture, self.random.choice(streams), tracks)
        graph = capture.end()
        for kind, detail in capture.problems:
            self.oracle.report(kind, detail)
        uses = [Use(track, graph.accesses[track.block], track.block.range) for track in tracks]
        if memory.block in graph.accesses:
            uses.append(Use(memory, WRITE, memory.block.range))
        self.graphs.append(Captured(graph, uses))

    def _use_inside(self, capture: Capture, stream: Stream, tracks: list[Track]) -> None:
        chosen = self.random.sample(tracks, self.random.randint(1, len(tracks)))
        uses = [(track.block, self.random.choice((READ, READ, WRITE, READ_WRITE))) for track in chosen]
        window = capture.session.prepare(stream, uses)
        capture.node(window.stream, "use inside", uses)
        capture.session.finish(window)

    def _foreign_node(self, capture: Capture, block: Block) -> None:
        """The other library comes after uses on other streams by the hand-back, and the program declares its work."""
        access = self.random.choice((READ, READ_WRITE))
        capture.session.graph.declare(block, access)
        capture.node(capture.session.origin, "of another library", [(block, access)])

    def _allocate_inside(self, capture: Capture, stream: Stream, user: Stream) -> None:
        """It is filled without a record, used, perhaps on another stream, and freed inside or not."""
        try:
            block = capture.session.allocate(self.random.randint(1, 2), stream)
        except REFUSED:
            return
        assert block.stream is not None
        capture.node(block.stream, "fill inside", [(block, WRITE)])
        window = capture.session.prepare_memory(user, block)
        capture.node(window.stream, "use of memory inside", [(block, READ_WRITE)])
        capture.session.finish(window)
        if self.random.random() < .7:
            run(capture.session.core.free(block))

    # ------------------------------------------------------------------------------------ launches
    def launch_graph(self) -> Operation[None]:
        stream, graphs = self.any_stream(), [one for one in self.graphs if one.uses]
        if not stream or not graphs or len(self.launches) >= MOST_WINDOWS:
            return
        captured = self.random.choice(graphs)
        tracks = [use.track for use in captured.uses]
        earlier = [use.earlier() for use in captured.uses]
        for track in tracks:
            track.windows += 1
            track.foreign_uses += self.is_elsewhere(stream, track) or track.block.stream is None
        try:
            window = yield from self.core.prepare_launch(captured.graph, stream)
        except REFUSED:
            self._close(stream, captured.uses, cancelled=True)
            raise
        for track in tracks:
            if track.block.state in (State.FREEING, State.FREED):
                self.oracle.report("graph-hold", f"block {track.block.generation} was freed, and its graph is launched")
        self.launches.append(Launch(window, stream, captured.uses, earlier))

    def close_graph(self) -> Operation[None]:
        idle = [one for one in self.graphs if not one.graph.launches]
        if idle:
            yield from self._close_graph(self.random.choice(idle))

    def _close_graph(self, captured: Captured) -> Operation[None]:
        self.graphs.remove(captured)
        yield from self.core.close_graph(captured.graph)

    def actions(self) -> list[tuple[Action, int]]:
        return [*super().actions(), (self.capture_graph, 8), (self.launch_graph, 14), (self.close_graph, 4)]

    def end(self) -> None:
        for stream in self.streams:
            stream.handle.capturing = False
        while self.launches:
            self.run_alone(self._finish(self.launches[0]))
        while self.graphs:
            self.run_alone(self._close_graph(self.graphs[0]))
        super().end()
