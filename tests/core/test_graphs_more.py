"""Graphs beside the rest: batches, frees and imports inside, exports, several graphs, forks, interrupts."""
from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from capsules import Producer, Taken
from cuda.bindings import driver as cuda
from forking import outcomes
from four_streams import READ, READ_WRITE, WRITE, Capture
from graphs_by_hand import in_thread, raw_launch, some_graph, take_races
from interrupts import interrupted

from xlogmem import (
    BlockState,
    DeviceState,
    Graph,
    PinnedMemoryResource,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    capture,
    capturing,
    from_cuda_array,
    from_dlpack,
    host,
    use,
    why,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


@pytest.fixture
def x(four):
    return four()


@pytest.fixture
def state(x):
    state = DeviceState(x.runtime)
    yield state
    state.__dict__.clear()                              # pytest keeps the state, which must not keep the runtime


def launch_on(stream: Any, graph: Graph, recorded: bool) -> None:
    if recorded:
        graph.launch(stream)
    else:
        raw_launch(graph, stream)


def races_in(x: Any) -> list[str]:
    """The races of all that was queued so far."""
    check(cuda.cuCtxSynchronize())
    return take_races(x)


# ---------------------------------------------------------------------------------------------- memory inside
def test_a_batch_is_the_graphs_on_streams_that_take_part_alone(x):
    with capture(x.S) as graph:
        graph.fork(x.T)
        inside = [block for stream in (x.S, x.T) for block in x.runtime.allocate_many([64, 0, 64], stream)]
        batch = x.runtime.allocate_many([64, 64], x.U)  # not the graph's, until it is named
        x.use(x.S, (batch[0], WRITE))
    assert [block.generation for block in graph.writes] == [
        block.generation for block in (*inside, batch[0]) if block.nbytes]
    for blocks in (batch, inside):
        x.runtime.deallocate_many(blocks)
    assert [block.state for block in batch] == [BlockState.RETIRED, BlockState.FREED]
    graph.launch(x.S)
    graph.close()
    x.runtime.synchronize()
    assert x.runtime.live_bytes == 0


@pytest.mark.parametrize("how", ["free", "deallocate_many", "drop", "another thread"])
def test_memory_that_is_freed_inside_is_not_handed_out_again(x, how):
    """Not inside and not outside: each launch writes it."""
    with capture(x.S) as graph:
        graph.fork(x.T)
        first, second = (x.runtime.allocate(512, stream) for stream in (x.S, x.T))
        x.use(x.S, (first, WRITE), (second, WRITE))
        taken = {first.ptr, second.ptr}
        if how == "deallocate_many":
            x.runtime.deallocate_many([first, second])
        elif how == "another thread":
            in_thread(first.free)
            in_thread(second.free)
        elif how == "free":
            first.free()
            second.free()
        if how != "drop":
            with pytest.raises(UseAfterFreeError, match="freed"):
                x.use(x.S, (first, READ))
        del first, second
        gc.collect()
        again = [x.runtime.allocate(512, stream) for stream in (x.S, x.T, x.U)]
        assert not taken & {block.ptr for block in again}
        x.use(x.T, *((block, WRITE) for block in again[:2]))
    for stream in (x.S, x.T):
        other = x.alloc(x.S)
        assert other.ptr not in taken
        x.use(x.S, (other, WRITE))
        graph.launch(stream)
        other.free()
    graph.close()
    reused = [x.alloc(x.V) for _ in range(8)]           # after the last launch
    x.use(x.V, *((block, WRITE) for block in reused))
    assert taken < {block.ptr for block in reused}


def test_memory_of_the_graph_is_used_outside(x):
    """By its handle; what the last launch wrote is there."""
    with capture(x.S) as graph:
        block = x.runtime.allocate(512, x.S)
        x.use(x.S, (block, WRITE))
    graph.launch(x.T)
    x.use(x.U, (block, READ_WRITE))
    graph.close()
    assert block.state is BlockState.LIVE
    x.use(x.V, (block, READ_WRITE))
    check(cuda.cuCtxSynchronize())
    assert x.driver.peek(block.ptr, 1) == b"\x03"       # filled with 1, and 1 more twice
    block.free()


def test_a_block_that_a_use_outside_has_open_may_be_captured(x, blocks):
    """The launch is what conflicts."""
    a = blocks[0]
    with use(x.T, write=a):
        graph = some_graph(x, (a, READ_WRITE))
        with pytest.raises(StreamMisuseError, match="another use"):
            graph.launch(x.S)
    graph.launch(x.S)
    graph.close()


# ---------------------------------------------------------------------------------------------- imports and exports
class Foreign:
    """An array of another library, whose work is on `stream`."""

    def __init__(self, ptr: int, stream: Any) -> None:
        self.ptr, self.stream = ptr, stream.handle

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (128,), "typestr": "<u4", "data": (self.ptr, False), "version": 3, "stream": self.stream}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("of", ["cuda_array", "dlpack"])
def test_an_array_that_is_imported_inside_is_held(x, state, memory, of, recorded):
    """The launch comes after what its library had queued; and the library has its array back after the last launch."""
    x.kernels.fill(x.T.handle, memory, 1, 1)
    with capture(x.S) as graph:
        if of == "cuda_array":
            array = Foreign(memory, x.T)
            there = weakref.ref(array)
            buffer = from_cuda_array(array, stream=x.S, state=state)
            del array
        else:
            producer = Producer(memory, (512,))
            there = lambda: producer.deleted == 0       # noqa: E731
            buffer = from_dlpack(producer, state=state) # on the runtime's own stream, which takes no part
            if recorded:
                x.runtime.default_stream.wait(x.T)      # as its library has to
        with use(x.S, read_write=buffer):
            x.kernels.add(x.S.handle, memory, 1, 1)
        buffer.release()
        del buffer
    gc.collect()
    assert there()
    launch_on(x.U, graph, recorded)
    found = races_in(x)
    assert bool(found) is not recorded, found
    assert there()
    graph.close()
    x.runtime.reap_pending()
    assert not there()


def test_an_import_onto_a_stream_that_takes_part_is_refused(x, state, memory):
    """Its library would order the stream after work that is not captured, so it is not called."""
    producer = Producer(memory, (512,))
    with capture(x.S) as graph:
        with pytest.raises(StreamMisuseError, match="is capturing a graph"):
            from_dlpack(producer, stream=x.S, state=state)
        with pytest.raises(StreamMisuseError, match="is capturing a graph"):
            from_cuda_array(Foreign(memory, x.S), stream=x.T, state=state)
        assert producer.deleted == 0
    assert graph.writes == graph.reads == ()
    graph.close()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_graph_over_memory_that_is_exported(x, state, recorded):
    """A consumer works on its stream without a record: launches come after that, and it comes after launches."""
    buffer = state.empty(64, "uint8", x.S)
    taken = Taken(buffer.__dlpack__(stream=x.T.handle, max_version=(1, 0)))
    with capture(x.S) as graph, use(x.S, read_write=buffer):
        x.kernels.add(x.S.handle, buffer.ptr, 1, 1)
    for _ in range(2):
        x.kernels.add(x.T.handle, buffer.ptr, 1, 1)
        launch_on(x.U, graph, recorded)
    x.kernels.add(x.T.handle, buffer.ptr, 1, 1)
    found = races_in(x)
    assert bool(found) is not recorded, found
    buffer.release()
    graph.close()
    assert x.runtime.live_bytes == 64                   # the consumer still has it
    taken.delete()
    x.runtime.synchronize()
    assert x.runtime.live_bytes == 0


# ---------------------------------------------------------------------------------------------- several graphs
@pytest.mark.parametrize("recorded", [True, False])
def test_two_graphs_over_the_same_blocks_in_turn(x, blocks, recorded):
    """Launched on two streams, they come one after the other, and a free after both."""
    a, b = blocks[:2]
    first, second = some_graph(x, (a, READ), (b, READ_WRITE)), some_graph(x, (a, READ_WRITE), (b, READ))
    for _ in range(3):
        for graph, stream in ((first, x.T), (second, x.U)):
            launch_on(stream, graph, recorded)
    found = races_in(x)
    assert bool(found) is not recorded, found
    a.free()
    first.close()
    assert a.state is BlockState.RETIRED                # the second holds it
    second.launch(x.V)
    second.close()
    assert a.state is BlockState.FREED
    x.runtime.synchronize()


def test_two_graphs_that_only_read_do_not_wait_for_one_another(x, blocks):
    a = blocks[0]
    first, second = some_graph(x, (a, READ)), some_graph(x, (a, READ))
    first.launch(x.T)
    second.launch(x.U)
    before = x.waits()
    for _ in range(3):
        first.launch(x.T)
        second.launch(x.U)
    assert x.waits() == before
    first.close()
    second.close()


def test_two_captures_at_once(x, blocks):
    """Each with its own order: uses of one block in both are ordered by the launches alone."""
    a = blocks[0]
    with capture(x.S) as first, capture(x.T) as second:
        for stream in (x.S, x.T, x.S, x.T):
            before = x.waits()
            x.use(stream, (a, READ_WRITE))
            assert x.waits() == before
        with pytest.raises(StreamMisuseError, match="takes part in another capture"):
            first.fork(x.T)
        inside = x.runtime.allocate(512, x.T)
        with pytest.raises(StreamMisuseError, match="is capturing"):
            x.S.wait(x.T)
        x.use(x.T, (inside, WRITE))
    first.launch(x.U)
    second.launch(x.V)
    x.use(x.S, (a, READ))
    first.close()
    second.close()
    inside.free()


def test_captures_of_two_threads(x, blocks):
    a, b = blocks[:2]

    def make() -> Any:
        graphs = []
        for _ in range(20):
            with capture(x.T) as graph:
                graph.fork(x.U)
                x.use(x.T, (a, WRITE))
                x.use(x.U, (a, READ), (b, READ_WRITE))
            graphs.append(graph)
        return graphs

    made: list[Any] = []
    with capture(x.S) as outer:
        x.use(x.S, (a, READ))
        made += in_thread(make)
        x.use(x.S, (b, READ))
    for graph in [outer, *made]:
        graph.launch(x.V)
        graph.close()


# ---------------------------------------------------------------------------------------------- closing
def test_why_memory_that_was_freed_is_still_there(x, blocks):
    a = blocks[0]
    graphs = [some_graph(x, (a, READ)) for _ in range(2)]
    a.free()
    for left, text in ((2, "2 exports or graphs hold it"), (1, "1 export or graph holds it")):
        assert any(line.endswith(f"is put off: {text}") for line in why(a)), why(a)
        assert a.state is BlockState.RETIRED
        graphs[left - 1].close()
    assert a.state is BlockState.FREED


@pytest.mark.parametrize("recorded", [True, False])
def test_page_locked_memory_of_a_launch_that_runs_has_no_next_owner(x, recorded):
    """Although the program has freed it, and the graph is closed: the host could change it at once."""
    x.driver.set_policy("min")                          # work runs when it is waited for
    pool = PoolMemoryResource(PinnedMemoryResource())
    staging, target = x.runtime.allocate(64, host, resource=pool), x.alloc(x.S)
    address = staging.ptr
    with capture(x.S) as graph, use(x.S, read=staging, write=target):
        check(cuda.cuMemcpyHtoDAsync(target.ptr, staging.ptr, 4, x.S.handle))
    staging.free()
    x.runtime.synchronize()
    launch_on(x.T, graph, recorded)
    graph.close()
    owner = x.runtime.allocate(64, host, resource=pool)
    assert (owner.ptr == address) is not recorded
    check(cuda.cuCtxSynchronize())
    owner.free()
    target.free()


def test_a_cycle_through_a_graph_and_its_capture_is_collected(x):
    """Also of what is in use: a launch that is prepared, and a capture that was left."""
    block = x.alloc(x.S)
    made = capture(x.S)
    with made as graph:
        x.use(x.S, (block, WRITE))
    launch = graph.launching(x.S)
    cycle: list[Any] = [made, graph, launch, block]
    cycle.append(cycle)
    del made, graph, launch, block, cycle
    in_thread(gc.collect)
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0


def test_a_launch_that_is_prepared_outlives_the_graph(x):
    """It names the blocks, and is refused once they are gone."""
    block = x.alloc(x.S)
    graph = some_graph(x, (block, WRITE))
    launch = graph.launching(x.T)
    block.free()
    graph.close()
    x.alloc(x.S).free()
    with pytest.raises(UseAfterFreeError, match="freed"):
        launch.__enter__()
    assert x.runtime.live_bytes == 0


# ---------------------------------------------------------------------------------------------- forks and interrupts
@pytest.mark.filterwarnings("ignore::DeprecationWarning")   # of forking beside threads, in Python 3.12
def test_a_forked_child_answers_or_refuses(x, blocks):
    a = blocks[0]
    graph = some_graph(x, (a, WRITE))
    held: dict[str, Any] = {"graph": some_graph(x, (a, READ))}
    with capture(x.V) as inside:
        x.use(x.V, (a, READ))
        answered = {"repr": lambda: repr(graph), "reads": lambda: graph.reads, "writes": lambda: graph.writes,
                    "handle": lambda: graph.handle, "closed": lambda: graph.closed, "drop": held.clear}
        refused = {"launch": lambda: graph.launch(x.S), "launching": lambda: graph.launching(x.S).__enter__(),
                   "capture": lambda: capture(x.T).__enter__(), "capturing": lambda: capturing(x.V).__enter__(),
                   "fork": lambda: inside.fork(x.T), "use": lambda: use(x.V, read=a).__enter__(),
                   "allocate": lambda: x.runtime.allocate(64, x.V), "close": graph.close}
        assert outcomes(answered) == dict.fromkeys(answered, "answered")
        assert outcomes(refused) == dict.fromkeys(refused, "refused")
        x.use(x.V, (a, READ))
    for each in (graph, inside, held["graph"]):
        each.launch(x.T)
        each.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")   # in a finalizer: is printed
def test_an_interrupt_at_any_place_of_a_capture_leaves_nothing(x, blocks):
    a, b = blocks[:2]

    def program() -> None:
        with capture(x.S) as graph:
            graph.fork(x.T)
            with use(x.S, write=a):
                x.kernels.fill(x.S.handle, a.ptr, 1, 1)
            with use(x.T, read=a, write=b):
                x.kernels.copy(x.T.handle, b.ptr, a.ptr, 1)
            x.runtime.allocate(512, x.S)
        with graph:
            graph.launch(x.U)

    for _ in interrupted(program):
        gc.collect()
        for stream in (x.S, x.T):                       # nothing captures any more
            x.use(stream, (a, READ), (b, READ))
        x.runtime.reap_pending()
        assert x.runtime.live_bytes == 3 * 512


def test_an_interrupt_in_the_capture_of_another_library_holds_nothing(x, blocks):
    a = blocks[0]
    with Capture(x.S), pytest.raises(KeyboardInterrupt), capturing(x.S, write=a):
        raise KeyboardInterrupt
    a.free()
    assert x.runtime.live_bytes == 2 * 512
