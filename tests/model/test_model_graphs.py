"""The smallest programs that go wrong without a rule of captures and launches of graphs."""
from __future__ import annotations

import pytest
from model_bench import Bench, needs
from ordering_model.driver import Op
from ordering_model.frontiers import Block, State
from ordering_model.graphs import Graph, Nodes, Session
from ordering_model.rules import READ, WRITE, GraphRules, StreamMisuse, UseAfterFree, run
from ordering_model.streams import Stream
from ordering_model.windows import Window

RULES = GraphRules()


class Capture:
    """A session on the stream S of a bench, and its nodes."""

    def __init__(self, x: Bench, foreign: bool = False) -> None:
        self.x, self.nodes = x, Nodes()
        self.memory = x.allocate(x.S, 2)
        self.session = Session(x.core, self.nodes, x.S, self.memory, foreign)

    def use(self, stream: Stream, *uses: tuple[Block, str]) -> Op:
        return self.finish(self.session.prepare(stream, list(uses)))

    def use_memory(self, stream: Stream, block: Block) -> Op:
        """Of the graph."""
        return self.finish(self.session.prepare_memory(stream, block))

    def finish(self, window: Window) -> Op:
        op = self.nodes.launch(window.stream.handle, "use")
        self.session.finish(window)
        return op

    def is_ordered(self, op: Op, stream: Stream) -> bool:
        return self.nodes.is_before_later_work(op, self.session.inside[stream].handle)


def launch(x: Bench, graph: Graph, stream: Stream) -> Op:
    window = run(x.core.prepare_launch(graph, stream))
    op = x.work(stream, "graph")
    run(x.core.finish(window))
    return op


def captured(x: Bench, *uses: tuple[Block, str]) -> Graph:
    capture = Capture(x)
    capture.use(x.S, *uses)
    return capture.session.end()


# ------------------------------------------------------------------------------------ inside a capture
@needs("graph_own_time")
def test_clocks_of_outside_mean_nothing_inside(rules):
    """T has waited for much of U outside, and for nothing that U captures."""
    x = Bench(rules)
    block = x.allocate(x.U)
    for _ in range(3):
        x.use(x.U, (block, WRITE))
    x.use(x.T, (block, WRITE))
    capture = Capture(x)
    capture.session.join(x.T), capture.session.join(x.U)
    op = capture.use(x.U, (block, WRITE))
    capture.use(x.T, (block, READ))
    return capture.is_ordered(op, x.T)


@needs("graph_edges")
def test_a_use_inside_comes_after_another(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    capture = Capture(x)
    capture.session.join(x.T)
    op = capture.use(x.S, (block, WRITE))
    capture.use(x.T, (block, READ))
    return capture.is_ordered(op, x.T)


def test_what_came_before_the_capture_makes_no_edge():
    x = Bench(RULES)
    block = x.allocate(x.T)
    x.use(x.T, (block, WRITE))
    capture = Capture(x)
    capture.use(x.S, (block, READ))
    assert (capture.nodes.calls["record"], capture.nodes.calls["wait"]) == (1, 0)       # the commit's


@needs("graph_joins")
def test_the_end_joins_all_streams(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    capture = Capture(x)
    op = capture.use(x.T, (block, WRITE))
    capture.session.end()
    return capture.is_ordered(op, x.S)


@needs("graph_memory_is_ordered")
def test_memory_of_the_graph_is_allocated_again_after_its_uses(rules):
    x = Bench(rules)
    capture = Capture(x)
    capture.session.join(x.T)
    first = capture.session.allocate(2, x.T)
    op = capture.use_memory(x.T, first)
    run(capture.session.core.free(first))
    capture.session.allocate(2, x.S)
    return capture.is_ordered(op, x.S)


@needs("graph_foreign_is_opaque")
def test_work_of_another_library_comes_first(rules):
    """What it has captured on its stream was not recorded."""
    x = Bench(rules)
    block = x.allocate(x.S)
    capture = Capture(x, foreign=True)
    capture.session.join(x.T)
    op = capture.nodes.launch(capture.session.origin.handle, "of another library")
    capture.use(x.T, (block, READ))
    return capture.is_ordered(op, x.T)


@needs("graph_foreign_is_opaque")
def test_work_of_another_library_comes_after_a_use(rules):
    """By the hand-back."""
    x = Bench(rules)
    block = x.allocate(x.S)
    capture = Capture(x, foreign=True)
    op = capture.use(x.T, (block, WRITE))
    return capture.is_ordered(op, x.S)


# ------------------------------------------------------------------------------------ launches
@needs("graph_launch_writes")
def test_a_reader_comes_after_a_launch_that_writes(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    op = launch(x, captured(x, (block, WRITE)), x.T)
    x.use(x.U, (block, READ))
    return x.is_ordered(op, x.U)


@needs("graph_launch_reads")
def test_a_launch_comes_after_the_writer_of_what_it_reads(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    graph = captured(x, (block, READ))
    op = x.use(x.U, (block, WRITE))
    launch(x, graph, x.T)
    return x.is_ordered(op, x.T)


@needs("graph_launch_reads")
def test_the_host_writes_after_a_launch_that_copies(rules):
    """The copy in the graph reads host memory at each launch, and not at its capture (graph-host)."""
    x = Bench(rules)
    block = run(x.core.allocate_host(1, None))
    graph = captured(x, (block, READ))
    op = launch(x, graph, x.T)
    run(x.core.prepare_host([(block, WRITE)]))
    return x.driver.host_has_seen(op)


def test_launches_that_read_wait_for_each_other_only_where_the_graph_has_memory():
    for allocates in (False, True):
        x = Bench(RULES)
        block = x.allocate(x.S)
        capture = Capture(x)
        capture.use(x.S, (block, READ))
        if allocates:
            capture.session.allocate(1, x.S)
        graph = capture.session.end()
        op = launch(x, graph, x.T)
        launch(x, graph, x.U)
        assert x.is_ordered(op, x.U) is allocates


# ------------------------------------------------------------------------------------ what a graph holds
@needs("graph_holds")
def test_a_free_waits_until_the_graph_is_closed(rules):
    x = Bench(rules)
    block = x.allocate(x.S)
    graph = captured(x, (block, WRITE))
    x.free(block)
    held = block.state is State.RETIRED
    op = launch(x, graph, x.T)
    run(x.core.close_graph(graph))
    return held and block.state is State.FREED and x.is_ordered(op, x.S)


def test_others_do_not_use_what_a_graph_alone_holds():
    x = Bench(RULES)
    block = x.allocate(x.S)
    graph = captured(x, (block, WRITE))
    x.free(block)
    with pytest.raises(UseAfterFree):
        x.use(x.T, (block, READ))
    with pytest.raises(UseAfterFree):
        Capture(x).use(x.S, (block, READ))
    launch(x, graph, x.T)


def test_two_graphs_hold_a_block():
    x = Bench(RULES)
    block = x.allocate(x.S)
    graphs = [captured(x, (block, WRITE)) for _ in range(2)]
    x.free(block)
    run(x.core.close_graph(graphs[0]))
    assert block.state is State.RETIRED
    launch(x, graphs[1], x.T)
    run(x.core.close_graph(graphs[1]))
    assert block.state is State.FREED


def test_a_graph_is_not_closed_inside_a_launch_nor_launched_afterwards():
    x = Bench(RULES)
    graph = captured(x, (x.allocate(x.S), WRITE))
    window = run(x.core.prepare_launch(graph, x.T))
    with pytest.raises(StreamMisuse, match="being launched"):
        run(x.core.close_graph(graph))
    run(x.core.cancel(window))
    run(x.core.close_graph(graph))
    with pytest.raises(StreamMisuse, match="the graph is closed"):
        run(x.core.prepare_launch(graph, x.T))
    assert graph.memory.state is State.FREED
