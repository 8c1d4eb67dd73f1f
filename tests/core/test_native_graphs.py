"""Captures and graphs of xlogmem_graph.hpp: the same as `xlogmem.capture`, from C++."""
from __future__ import annotations

import ctypes
import gc
import signal
import threading
from contextlib import nullcontext

import pytest
from c_table import INVALID, NOT_FOUND, Access, Error, Hold, functions
from cuda.bindings import driver as cuda
from four_streams import READ, READ_WRITE, RELAXED, WRITE, Capture
from graphs_by_hand import in_thread, used_blocks
from native_calls import OF_OTHERS, Graph, NativeRuntime, Thrown
from other_threads import interrupted_after

from xlogmem import DeviceRuntime, PoolMemoryResource, StreamMisuseError, capture, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
THREAD_LOCAL = 1
RECORDED = pytest.mark.parametrize("recorded", [True, False])
FOREIGN = pytest.mark.parametrize("handles", ["own", "foreign"])


@pytest.fixture
def n(native, foreign, handles):
    """Four streams, their handles or those of streams of others, and three blocks whose contents are filed."""
    x, runtime = native()
    x.native = runtime
    x.handles = {name: getattr(x, name).handle if handles == "own" else foreign() for name in "STUV"}
    x.blocks = used_blocks(x, 3)
    yield x
    while x.blocks:
        x.blocks.pop().close()


def work(n, name, *uses):
    """Work on a stream by its name, without a record."""
    for block, access in uses:
        kernel = {READ: n.kernels.count_unequal, WRITE: n.kernels.fill, READ_WRITE: n.kernels.add}[access]
        if access == READ:
            kernel(n.handles[name], n.next_word(), block.ptr, 0, 1)
        else:
            kernel(n.handles[name], block.ptr, 1, 1)


def launch(n, name, *uses):
    """A launch of xlogmem.hpp with its work."""
    named = {access: [block.ptr for block, kind in uses if kind == access] for access in (READ, WRITE, READ_WRITE)}
    with n.native.launch(n.handles[name], read=named[READ], write=named[WRITE], read_write=named[READ_WRITE]):
        work(n, name, *uses)


def take_races(n):
    found = n.driver.races()
    n.driver.clear_races()
    return found


# ------------------------------------------------------------------------------------------------ order inside
@FOREIGN
@RECORDED
@pytest.mark.parametrize(("first", "then"), [(WRITE, READ), (READ, WRITE), (WRITE, WRITE)])
def test_launches_inside_come_after_one_another(n, first, then, recorded):
    a = n.blocks[0]
    captured = n.native.capture(n.handles["S"])
    captured.fork(n.handles["T"])
    launch(n, "S", (a, first))
    (launch if recorded else work)(n, "T", (a, then))
    graph = captured.finish()
    graph.launch(n.handles["U"])
    assert bool(take_races(n)) is not recorded
    graph.delete()


@FOREIGN
def test_waits_inside_order_a_stream_without_a_use(n):
    a = n.blocks[0]
    captured = n.native.capture(n.handles["S"])
    captured.fork(n.handles["T"])
    launch(n, "S", (a, WRITE))
    n.native.wait(n.handles["T"], a.ptr)
    work(n, "T", (a, READ))
    graph = captured.finish()
    graph.launch(n.handles["U"])
    assert take_races(n) == []
    graph.delete()


@pytest.mark.parametrize("handles", ["own"])
def test_launches_of_python_and_of_cpp_inside_come_after_one_another(n):
    a = n.blocks[0]
    with capture(n.S) as graph:
        graph.fork(n.T)
        n.use(n.S, (a, WRITE))
        launch(n, "T", (a, READ_WRITE))
        n.use(n.S, (a, READ))
    graph.launch(n.U)
    assert take_races(n) == []
    graph.close()


# ------------------------------------------------------------------------------------------------ launches
@FOREIGN
@pytest.mark.parametrize("how", ["launch", "launching", "by hand"])
def test_a_launch_is_one_use_of_all_blocks(n, how):
    """It comes after former users, and later users come after it."""
    a, b, _ = n.blocks
    captured = n.native.capture(n.handles["S"])
    launch(n, "S", (a, READ), (b, WRITE))
    graph = captured.finish()
    held = n.native.graph(python_graph(n)) if how == "by hand" else None
    launch(n, "T", (a, WRITE))
    if how == "launch":
        graph.launch(n.handles["U"])
    else:
        one = graph.open(n.handles["U"])
        work(n, "U", (a, READ), (b, WRITE))
        one.commit()
        one.delete()
    launch(n, "T", (b, READ), (a, WRITE))
    assert take_races(n) == []
    graph.delete()
    if held is not None:
        held.delete()


def python_graph(n):
    with capture(n.V) as graph:
        n.use(n.V, (n.blocks[2], READ))
    return graph


@pytest.mark.parametrize("handles", ["own"])
def test_without_the_use_a_launch_races(n):
    a, b, _ = n.blocks
    with capture(n.S) as graph:
        n.use(n.S, (a, READ), (b, WRITE))
    launch(n, "T", (a, WRITE))
    check(cuda.cuGraphLaunch(cuda.CUgraphExec(graph.handle), n.U.handle))
    assert take_races(n)
    check(cuda.cuStreamSynchronize(n.U.handle))
    graph.close()


@FOREIGN
def test_a_graph_of_python_is_launched_from_cpp(n):
    a = n.blocks[0]
    with capture(n.S) as graph:
        n.use(n.S, (a, READ_WRITE))
    held = n.native.graph(graph)
    launch(n, "T", (a, WRITE))
    held.launch(n.handles["U"])
    launch(n, "T", (a, READ))
    assert take_races(n) == []
    moved = held.move()
    with pytest.raises(Thrown, match=r"the xlogmem::graph is empty") as refused:
        held.launch(n.handles["U"])
    assert refused.value.name == "invalid_argument"
    held.delete()
    graph.close()
    with pytest.raises(Thrown, match=r"this graph was closed, and cannot be launched: capture it again") as refused:
        moved.launch(n.handles["U"])
    assert refused.value.name == "invalid_argument"
    moved.delete()


@pytest.mark.parametrize("handles", ["own"])
def test_a_launch_makes_the_driver_calls_of_a_use(n):
    """Of a stream that is known, with nothing to wait for: the query of the capture, and the launch."""
    captured = n.native.capture(n.handles["S"])
    launch(n, "S", *((block, WRITE) for block in n.blocks))
    graph = captured.finish()
    for _ in range(100):                                # until no wait is expected any more
        graph.launch(n.handles["S"])
    before = n.driver.all_calls()
    graph.launch(n.handles["S"])
    calls = {name: count - before.get(name, 0) for name, count in n.driver.all_calls().items()
             if count != before.get(name, 0)}
    assert {name: calls[name] for name in calls if not name.startswith("cuCtx")} == {
        "cuStreamIsCapturing": 1, "cuGraphLaunch": 1}
    graph.delete()


# ------------------------------------------------------------------------------------------------ what is held
@FOREIGN
def test_blocks_stay_until_the_graph_ends_and_its_last_launch_is_complete(n):
    a = n.alloc(n.S)
    captured = n.native.capture(n.handles["S"])
    launch(n, "S", (a, WRITE))
    graph = captured.finish()
    a.free()
    graph.launch(n.handles["U"])
    assert take_races(n) == []
    graph.delete()
    n.runtime.synchronize()
    assert n.driver.races() == []


@pytest.mark.parametrize("handles", ["own"])
def test_a_capture_that_is_given_up_makes_no_graph_and_holds_nothing(n):
    a = n.alloc(n.S)
    before = n.driver.all_calls().get("cuGraphInstantiateWithFlags", 0)
    captured = n.native.capture(n.handles["S"])
    launch(n, "S", (a, WRITE))
    captured.delete()
    assert n.driver.all_calls().get("cuGraphInstantiateWithFlags", 0) == before
    a.free()
    n.runtime.synchronize()
    n.use(n.S, (n.blocks[0], WRITE))                    # the stream captures no more
    with pytest.raises(Thrown, match="has ended before") as refused:
        captured = n.native.capture(n.handles["S"])
        captured.finish().delete()
        captured = n.native.capture(n.handles["T"])
        graph = captured.end()
        graph.delete()
        captured.end()
    assert refused.value.name == "invalid_argument"
    captured.delete()


@FOREIGN
@pytest.mark.parametrize("resource", ["async", "pool"])
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_memory_that_is_allocated_inside_is_the_graphs(native, foreign, handles, resource, many, named):
    """Also where no use names it, as in a library's own temporary memory."""
    x, runtime = native(**({"resource": PoolMemoryResource()} if resource == "pool" else {}))
    stream = x.S.handle if handles == "own" else foreign()
    live = x.runtime.live_bytes
    captured = runtime.capture(stream)
    memory = runtime.allocate_many([64, 0, 64], stream) if many else [runtime.allocate(64, stream)]
    assert (len(memory) == 1) is not many
    assert all(memory[::2])
    with runtime.launch(stream, write=memory) if named else nullcontext():
        for address in filter(None, memory):
            x.kernels.fill(stream, address, 1, 1)
    if many:
        runtime.free_many(memory, stream)
    else:
        runtime.free(memory[0], stream)
    graph = captured.finish()
    again = runtime.allocate(64, x.T.handle)            # not the memory of the graph
    assert again not in memory
    for name in (x.U, x.V):
        graph.launch(name.handle)
    assert x.driver.races() == []
    runtime.free(again, x.T.handle)
    assert x.runtime.live_bytes >= live
    graph.delete()
    x.runtime.synchronize()
    x.runtime.reap_pending()                            # raises what a free has failed with
    assert x.runtime.live_bytes == live


# ------------------------------------------------------------------------------------------------ captures of others
@FOREIGN
@RECORDED
def test_a_capture_of_others_holds_what_it_names(n, recorded):
    a, b, _ = n.blocks
    handle = n.handles["S"]
    check(cuda.cuStreamBeginCapture(handle, RELAXED))
    captured = n.native.capture(handle, OF_OTHERS, read=a.ptr, write=b.ptr)
    work(n, "S", (a, READ), (b, WRITE))                 # by a library that knows nothing of xlogmem
    graph = captured.finish()
    made = check(cuda.cuStreamEndCapture(handle))
    executable = check(cuda.cuGraphInstantiate(made, 0))
    launch(n, "T", (a, WRITE))
    if recorded:
        with pytest.raises(Thrown, match="another library has captured this graph: call prepare_graph before"):
            graph.launch(n.handles["U"])
        one = graph.open(n.handles["U"])
        check(cuda.cuGraphLaunch(executable, n.handles["U"]))
        one.commit()
        one.delete()
    else:
        check(cuda.cuGraphLaunch(executable, n.handles["U"]))
    launch(n, "T", (b, READ))
    assert bool(take_races(n)) is not recorded
    check(cuda.cuStreamSynchronize(n.handles["U"]))
    graph.delete()
    check(cuda.cuGraphExecDestroy(executable))
    check(cuda.cuGraphDestroy(made))


# ------------------------------------------------------------------------------------------------ refusals
@FOREIGN
def test_what_is_refused_says_why_and_does_nothing(n):
    a = n.blocks[0]
    handle = n.handles["S"]
    graph = end_of_new(n)

    def refused(name: str, text: str, call, *arguments, **named) -> None:
        with pytest.raises(Thrown, match=text) as found:
            call(*arguments, **named)
        assert found.value.name == name, found.value

    before = n.runtime.counters()
    refused("invalid_argument", "begin_capture: mode is not an xlogmem_capture_mode: 0x7", n.native.capture, handle, 7)
    refused("invalid_argument", "captures nothing: begin the library's capture first", n.native.capture, handle,
            OF_OTHERS, read=a.ptr)
    refused("invalid_argument", "the legacy default stream takes part in no capture", n.native.capture, 0)
    refused("invalid_argument", "begin_capture: the host captures nothing", n.native.capture, HOST)
    refused("invalid_argument", "prepare_graph: the host launches no graph", graph.launch, HOST)
    refused("invalid_argument", "flags has bits that this version does not know", graph.open, handle, 64)
    refused("python_error", "TypeError: open_graph: int is not an xlogmem.Graph", n.native.graph, 7)
    assert n.runtime.counters() == before
    captured = n.native.capture(handle)
    refused("invalid_argument", "takes part in a capture already", n.native.capture, handle)
    refused("invalid_argument", "fork_capture: the host captures nothing", captured.fork, HOST)
    refused("capturing_stream", "CUDA launches no graph inside a capture", graph.launch, handle)
    refused("untracked_memory", "access 2 of 2: no block of this runtime is alive around 0x10", n.native.open, handle,
            read=[a.ptr, 16])
    refused("capturing_stream", "is capturing a graph", n.native.record_use, a.ptr, handle)
    with n.native.launch(handle, read=[0]):             # null is no memory
        pass
    launch(n, "S", (a, WRITE))
    again = captured.finish()
    again.launch(handle)
    for one in (again, graph):
        one.delete()


HOST = (1 << 64) - 2                                    # XLOGMEM_HOST


def end_of_new(n) -> Graph:
    """A graph of one block."""
    captured = n.native.capture(n.handles["V"])
    launch(n, "V", (n.blocks[2], READ))
    return captured.finish()


@pytest.mark.parametrize("handles", ["own"])
def test_wrong_accesses_are_refused(n):
    """Those that xlogmem_graph.hpp cannot name."""
    hold, error, made = Hold(n.runtime), Error(), ctypes.c_void_p()
    good, bad, unknown = Access(n.blocks[0].ptr, 0, 0, 1), Access(n.blocks[0].ptr, 0, 0, 9), Access(16, 0, 0, 1)

    def begin(mode: int, *accesses: Access) -> tuple[int, str]:
        named = (Access * len(accesses))(*accesses)
        assert functions.begin_capture(hold.runtime, n.T.handle, mode, named, len(accesses), ctypes.byref(made),
                                       ctypes.byref(error)) == 1
        assert made.value is None
        return error.kind, error.text.decode()

    assert begin(2, good) == (INVALID, "begin_capture: accesses are for XLOGMEM_CAPTURE_OF_OTHERS alone; in another "
                                       "capture each launch is a use. Their number: 0x1. Nothing was done")
    with Capture(n.T):
        assert begin(OF_OTHERS, bad)[0] == INVALID
        assert "an access is not XLOGMEM_READ" in error.text.decode()
        assert begin(OF_OTHERS, good, unknown)[0] == NOT_FOUND
        assert error.text.decode().startswith("access 2 of 2: no block of this runtime is alive around 0x10")
    captured = n.native.capture(n.handles["S"])
    assert functions.prepare(hold.runtime, n.S.handle, bad, 1, 0, ctypes.byref(made), ctypes.byref(error)) == 1
    assert error.kind == INVALID
    assert "an access is not XLOGMEM_READ" in error.text.decode()
    captured.delete()
    assert functions.end_capture(hold.runtime, None, None, ctypes.byref(error)) == 0     # as `finish` accepts it
    functions.close_graph(hold.runtime, None)
    hold.close()


@pytest.mark.parametrize("handles", ["own"])
def test_a_graph_without_memory(n):
    captured = n.native.capture(n.handles["S"])
    graph = captured.finish()
    graph.launch(n.handles["S"])
    captured = n.native.capture(n.handles["S"])
    with pytest.raises(Thrown, match="CUDA launches no graph inside a capture") as refused:
        graph.launch(n.handles["S"])
    assert refused.value.name == "capturing_stream"
    captured.delete()
    graph.delete()


@pytest.mark.parametrize("handles", ["own"])
def test_a_failed_launch_files_nothing(n):
    a = n.blocks[0]
    captured = n.native.capture(n.handles["S"])
    launch(n, "S", (a, WRITE))
    graph = captured.finish()
    uses = n.runtime.counters()["uses"]
    n.driver.fail("cuGraphLaunch")
    with pytest.raises(Thrown, match="cuGraphLaunch"):
        graph.launch(n.handles["T"])
    assert n.runtime.counters()["uses"] == uses
    n.use(n.U, (a, READ))                               # its window is closed
    graph.launch(n.handles["T"])
    graph.delete()


# ------------------------------------------------------------------------------------------------ threads
@pytest.mark.parametrize("handles", ["own"])
def test_a_graph_is_not_closed_while_it_is_launched(n):
    with capture(n.S) as graph:
        n.use(n.S, (n.blocks[0], WRITE))
    held = n.native.graph(graph)
    inside = n.driver.hold("cuGraphLaunch")
    thread = threading.Thread(target=held.launch, args=[n.handles["T"]])
    thread.start()
    try:
        assert inside.reached()
        with pytest.raises(StreamMisuseError, match=r"close: this graph cannot be closed, because another thread is "
                                                    "launching it"):
            graph.close()
    finally:
        inside.release()
        thread.join()
    graph.close()
    held.delete()
    assert take_races(n) == []


@pytest.mark.parametrize("handles", ["own"])
def test_threads_of_cpp_launch_while_python_closes(n):
    """A launch that has begun keeps the graph; later ones are refused."""
    for _ in range(5):
        with capture(n.S) as graph:
            n.use(n.S, (n.blocks[0], READ))
        held = n.native.graph(graph)
        said: list[str] = []

        def go_on(held=held, said=said):
            with pytest.raises(Thrown) as refused:
                while True:
                    held.launch(n.handles["T"])
            said.append(str(refused.value))

        threads = [threading.Thread(target=go_on) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not graph.closed:
            try:
                graph.close()
            except StreamMisuseError as busy:
                assert "another thread is launching it" in str(busy)
        for thread in threads:
            thread.join()
        assert said == ["this graph was closed, and cannot be launched: capture it again"] * 2
        held.delete()
    assert take_races(n) == []


@pytest.mark.parametrize("handles", ["own"])
def test_a_graph_of_cpp_outlives_what_python_has_of_it(n):
    runtime = NativeRuntime.of(n.native.library, n.runtime)
    with capture(n.S) as graph:
        n.use(n.S, (n.blocks[0], WRITE))
    held = runtime.graph(graph)
    del graph
    gc.collect()
    held.launch(n.handles["T"])
    with use(n.U, read=n.blocks[0]):
        work(n, "U", (n.blocks[0], READ))
    assert take_races(n) == []
    held.delete()
    runtime.delete()


# ------------------------------------------------------------------------------------------------ what readers found
@pytest.mark.parametrize("handles", ["own"])
def test_a_capture_is_ended_by_its_own_thread_where_cuda_wants_that(n):
    captured = n.native.capture(n.handles["S"], THREAD_LOCAL)
    launch(n, "S", (n.blocks[0], WRITE))
    said: list[Thrown] = []

    def end_there() -> None:
        with pytest.raises(Thrown) as refused:
            captured.end()
        said.append(refused.value)

    in_thread(end_there)
    assert said[0].name == "conflicting_use"
    assert "another thread has begun this capture" in str(said[0])
    graph = captured.finish()
    graph.launch(n.handles["T"])
    assert take_races(n) == []
    graph.delete()


@pytest.mark.parametrize("handles", ["own"])
def test_a_graph_is_a_member_that_comes_later(n):
    graph = Graph(n.native.library, n.native.library.do("empty_graph") or 0)
    with pytest.raises(Thrown, match=r"the xlogmem::graph is empty: it was closed, or moved from"):
        graph.launch(n.handles["S"])
    made = end_of_new(n)
    graph.assign(made)
    made.delete()
    check(cuda.cuGraphUpload(cuda.CUgraphExec(graph.handle), n.handles["S"]))
    graph.launch(n.handles["S"])
    graph.close()
    with pytest.raises(Thrown, match="is empty"):
        graph.launch(n.handles["S"])
    graph.delete()


@pytest.mark.parametrize("forked", [False, True])
def test_memory_from_before_is_freed_inside_on_a_stream_that_was_not_named(n_foreign, forked):
    """A later call frees it: the handle was identified before the capture."""
    n = n_foreign
    memory = n.native.allocate(64, n.T.handle)
    captured = n.native.capture(n.handles["S"])
    if forked:
        captured.fork(n.handles["U"])
    n.native.free(memory, n.handles["U" if forked else "S"])
    captured.finish().delete()
    n.runtime.reap_pending()
    n.runtime.synchronize()
    assert n.runtime.find_block(memory) is None


@pytest.fixture
def n_foreign(native, foreign):
    x, runtime = native()
    x.native, x.handles = runtime, {name: foreign() for name in "SU"}
    return x


@pytest.mark.parametrize("handles", ["own"])
def test_the_end_of_a_capture_that_cannot_be_queried(n):
    captured = n.native.capture(n.handles["S"])
    n.driver.fail("cuStreamGetCaptureInfo", code=1)
    n.driver.fail("cuStreamGetCaptureInfo_v2", code=1)
    n.driver.fail("cuStreamGetCaptureInfo_v3", code=1)
    captured.delete()
    assert not int(check(cuda.cuStreamIsCapturing(n.handles["S"])))


def test_a_graph_without_memory_is_launched_in_a_thread_without_a_context(n_foreign):
    n = n_foreign
    graph = n.native.capture(n.handles["S"]).finish()

    def there() -> None:
        check(cuda.cuCtxSetCurrent(None))
        for stream in (0, 2, n.handles["S"]):
            graph.launch(stream)

    in_thread(there)
    graph.delete()


def test_a_graph_is_launched_with_a_hold_of_its_runtime(n_foreign):
    n = n_foreign
    with capture(n.S) as graph:
        pass
    own, other, error = Hold(n.runtime), Hold(DeviceRuntime()), Error()
    held = functions.open_graph(own.runtime, graph)
    assert functions.launch_graph(other.runtime, n.T.handle, held, ctypes.byref(error)) == 1
    assert (error.kind, error.text.decode()) == (
        INVALID, "this graph belongs to another runtime than the hold with which it is launched")
    assert functions.launch_graph(own.runtime, n.T.handle, held, ctypes.byref(error)) == 0
    functions.close_graph(own.runtime, held)
    graph.close()
    for one in (own, other):
        one.close()


def test_a_per_thread_default_stream_of_another_thread_is_refused(n_foreign):
    n = n_foreign
    captured = n.native.capture(2)
    said: list[Thrown] = []

    def fork_there() -> None:
        with pytest.raises(Thrown) as refused:
            captured.fork(2)
        said.append(refused.value)

    in_thread(fork_there)
    assert said[0].name == "invalid_argument"
    assert "the per-thread default stream of another thread takes part" in str(said[0])
    captured.finish().delete()


@pytest.fixture
def handled():
    """Ctrl-C is a KeyboardInterrupt: programs that a shell begins in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("handles", ["own"])
def test_an_interrupt_that_ends_a_wait_is_raised_again(n, where, handled):
    a = n.blocks[0]
    captured = n.native.capture(n.handles["S"]) if where == "inside" else None
    if captured is not None:
        captured.fork(n.handles["T"])
    opened, done = threading.Event(), threading.Event()

    def hold_open() -> None:
        one = n.native.open(n.handles["S"], write=[a.ptr])
        opened.set()
        done.wait()
        one.commit()
        one.delete()

    thread = threading.Thread(target=hold_open)
    thread.start()
    opened.wait()
    hold, error, use_of = Hold(n.runtime), Error(), ctypes.c_void_p()
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_after(.3):
            assert functions.prepare(hold.runtime, n.handles["T"], Access(a.ptr, 0, 0, 2), 1, 0, ctypes.byref(use_of),
                                     ctypes.byref(error)) == 1
            for _ in range(1000):                       # Python goes on
                pass
    finally:
        done.set()
        thread.join()
        hold.close()
        if captured is not None:
            captured.delete()
    assert "KeyboardInterrupt" in error.text.decode()
