"""What is around a capture: work from before it, what is refused, captures that are ended or dropped."""
from __future__ import annotations

import copy
import threading
from collections import Counter

import pytest
from c_table import ENVIRONMENT
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import READ, READ_WRITE, WRITE
from graphs_by_hand import some_graph
from sim_support import python

from xlogmem import DeviceRuntime, DeviceState, StreamMisuseError, capture, use
from xlogmem.observe.history import record_history
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


@pytest.fixture
def x(four):
    return four()


# ---------------------------------------------------------------------------------------------- around a capture
@pytest.mark.parametrize("policy", ["lazy", "adaptive"])
@pytest.mark.parametrize("which", ["captured", "forked"])
def test_work_from_before_a_capture_is_waited_for_during_it(four, policy, which):
    """Nothing can be recorded on the stream then, so a fence is recorded before."""
    x = four(policy=policy)
    freed, used, launched = (x.alloc(x.T) for _ in range(3))
    before = {"captured": x.S, "forked": x.U}[which]
    x.use(x.V, (launched, WRITE))
    with capture(x.V) as earlier:
        x.use(x.V, (launched, READ_WRITE))
    x.use(before, (freed, WRITE), (used, WRITE), (launched, WRITE))
    with capture(x.S) as graph:
        if which == "forked":
            graph.fork(x.U)
        freed.free()
        x.use(x.V, (used, READ))
        earlier.launch(x.V)
    assert x.driver.races() == []
    for one in (graph, earlier):
        one.close()
    used.free()
    launched.free()


def test_a_foreign_stream_has_a_fence_before_it_captures(x, blocks):
    stream = ForeignStream()
    with use(stream, runtime=x.runtime, write=blocks[0]):
        x.kernels.fill(stream.handle, blocks[0].ptr, 1, 1)
    with capture(stream, runtime=x.runtime) as graph:
        x.use(x.T, (blocks[0], READ))
    assert x.driver.races() == []
    graph.close()


def test_a_dropped_capture_is_forgotten_where_warnings_are_errors():
    done = python("-c", """
import warnings
from cuda.bindings import driver
import xlogmem
from xlogmem.launch import captures_are_open
runtime = xlogmem.DeviceRuntime()
stream = runtime.acquire_stream()
block = runtime.allocate(64, stream)
dropped = xlogmem.capture(stream)
dropped.__enter__()
with xlogmem.use(stream, write=block):
    pass
warnings.simplefilter("error")
del dropped
block.free()
runtime.allocate(64, runtime.acquire_stream()).free()
driver.cuStreamEndCapture(stream.handle)               # the free was put off till then
runtime.reap_pending()
print(captures_are_open(), runtime.live_bytes)
""", **ENVIRONMENT)
    assert "was entered and dropped" in done.stderr
    assert done.stdout == "False 0\n"


def test_a_capture_that_the_program_has_ended_says_so(x):
    with (pytest.raises(StreamMisuseError, match=r"ended, or was spoilt, before this `with` statement did"),
          capture(x.S)):
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    with capture(x.S) as graph:                         # nothing is left of it
        pass
    graph.close()


def test_a_capture_of_another_thread_is_left_there(x, blocks):
    entered = capture(x.S, mode="thread_local")
    graph = entered.__enter__()
    x.use(x.S, (blocks[0], WRITE))
    said: list[str] = []

    def leave() -> None:
        with pytest.raises(StreamMisuseError) as refused:
            entered.__exit__(None, None, None)
        said.append(str(refused.value))

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert said == ["capture: another thread has begun this capture, with mode='thread_local': leave the `with` "
                    "statement there, or pass mode='relaxed'. The capture goes on"]
    entered.__exit__(None, None, None)
    graph.launch(x.T)
    graph.close()


def test_no_history_is_kept_of_the_inside(x, blocks):
    """A launch is a use; what stands in for the blocks is not of the runtime."""
    with record_history() as recorded:
        for _ in range(3):
            with capture(x.S) as graph:
                x.use(x.S, (blocks[0], WRITE))
            graph.launch(x.S)
            graph.close()
    kinds = Counter(event.kind for event in recorded.events())
    assert (kinds["adopt"], kinds["use"]) == (0, 3), kinds


@pytest.mark.parametrize(("call", "error", "text"), [
    (lambda x, graph, _: graph.launch(None), TypeError, r"launch: stream is missing: launch\(stream\)"),
    (lambda x, graph, _: graph.launching(None), TypeError, r"launching: stream is missing"),
    (lambda x, graph, _: copy.copy(capture(x.S)), TypeError, r"a capture cannot be copied"),
    (lambda x, _, inside: inside.fork(DeviceRuntime().acquire_stream()), StreamMisuseError,
     r"fork: <Stream .*> belongs to another runtime than"),
    (lambda x, _, inside: x.buffer.__arrow_c_device_array__(), StreamMisuseError,
     r"__arrow_c_device_array__: the buffer's stream takes part in a capture"),
    (lambda x, _, inside: use(x.T, read=x.late).__enter__(), StreamMisuseError, r"graph\.fork\(stream\)"),
])
def test_what_is_refused_around_a_capture_says_what_to_do(four, call, error, text):
    x = four(opaque="S")
    ready = some_graph(x)
    x.late = x.alloc(x.S)
    state = DeviceState(x.runtime)
    x.buffer = state.empty(8, "uint8", x.S)
    with capture(x.S) as inside, pytest.raises(error, match=text):
        call(x, ready, inside)
    for graph in (ready, inside):
        graph.close()
    x.late.free()
    x.buffer.release()


def test_a_graph_writes_what_a_consumer_may_have_written_before_its_release(x):
    """The capture names the memory again after the release, when the consumer's stream is any stream."""
    state = DeviceState(x.runtime)
    buffer = state.empty(64, "uint8", x.S)
    block = buffer.access()
    x.use(x.T, (block, WRITE))
    capsule = buffer.__dlpack__(stream=x.T.handle)
    with capture(x.T) as graph:
        x.use(x.T, (block, READ))
        x.work(x.T, (block, WRITE))
        del capsule
        x.use(x.T, (block, READ))
    assert [one.generation for one in graph.writes] == [block.generation]
    graph.close()
    buffer.release()
