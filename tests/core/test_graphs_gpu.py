"""What only a GPU can show of graphs: captured events, launches as uses, memory that is held."""
from __future__ import annotations

import ctypes
from typing import Any

import pytest
from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime, Graph, PinnedMemoryResource, PoolMemoryResource, capture, capturing, host, use
from xlogmem.sim.kernels import Kernels, check

pytestmark = pytest.mark.gpu
WORDS = 1024
DELAY = 300_000                                         # nanoseconds
TURNS = 40


class Work:
    """Three streams, and two blocks that begin with zeros."""

    def __init__(self) -> None:
        self.runtime = DeviceRuntime()
        self.S, self.T, self.U = (self.runtime.acquire_stream() for _ in range(3))
        self.kernels = Kernels()
        self.a, self.b = (self.runtime.allocate(4 * WORDS, self.S) for _ in range(2))

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.kernels.close()
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime

    def clear(self) -> None:
        with use(self.S, write=[self.a, self.b]):
            self.kernels.fill(self.S.handle, self.a.ptr, 0, WORDS)
            self.kernels.fill(self.S.handle, self.b.ptr, 0, WORDS)

    def write_late(self, stream: Any) -> None:
        self.kernels.delay(stream.handle, DELAY)
        self.kernels.fill(stream.handle, self.a.ptr, 1, WORDS)

    def copy(self, stream: Any) -> None:
        self.kernels.copy(stream.handle, self.b.ptr, self.a.ptr, WORDS)

    def result(self, block: Any) -> int:
        self.runtime.synchronize()
        seen = ctypes.c_uint32()
        check(cuda.cuMemcpyDtoH(ctypes.addressof(seen), block.ptr + 4 * WORDS - 4, 4))
        return seen.value


@pytest.fixture
def x():
    made = Work()
    yield made
    made.close()


def raw_launch(graph: Graph, stream: Any) -> None:
    check(cuda.cuGraphLaunch(cuda.CUgraphExec(graph.handle), stream.handle))


@pytest.mark.parametrize("mode", ["relaxed", "thread_local", "global"])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_captured_use_comes_after_what_it_reads(x, recorded, mode):
    with capture(x.S, mode=mode) as graph:
        graph.fork(x.T)
        with use(x.S, write=x.a):
            x.write_late(x.S)
        if recorded:
            with use(x.T, read=x.a, write=x.b):
                x.copy(x.T)
        else:
            x.copy(x.T)
    wrong = 0
    for _ in range(TURNS):
        x.clear()
        with graph.launching(x.S):
            raw_launch(graph, x.S)
        wrong += x.result(x.b) != 1
    assert wrong == 0 if recorded else wrong >= TURNS // 2
    graph.close()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_launch_is_a_use(x, recorded):
    with capture(x.S) as graph, use(x.S, write=x.a):
        x.write_late(x.S)
    wrong = 0
    for _ in range(TURNS):
        x.clear()
        x.runtime.synchronize()
        if recorded:
            graph.launch(x.T)
        else:
            raw_launch(graph, x.T)
        with use(x.U, read=x.a, write=x.b):
            x.copy(x.U)
        wrong += x.result(x.b) != 1
    assert wrong == 0 if recorded else wrong >= TURNS // 2
    graph.close()


@pytest.mark.parametrize("held", [True, False])
def test_memory_that_was_freed_has_no_other_owner_while_the_graph_is_open(x, held):
    """The twin closes the graph, so that it holds nothing, and launches what the driver has made of it."""
    wrong = 0
    for _ in range(TURNS):
        block = x.runtime.allocate(4 * WORDS, x.S)
        if held:
            with capture(x.S) as graph, use(x.S, write=block):
                x.kernels.fill(x.S.handle, block.ptr, 5, WORDS)
        else:
            check(cuda.cuStreamBeginCapture(x.S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
            x.kernels.fill(x.S.handle, block.ptr, 5, WORDS)
            captured = check(cuda.cuStreamEndCapture(x.S.handle))
            executable = check(cuda.cuGraphInstantiate(captured, 0))
            check(cuda.cuGraphDestroy(captured))
        block.free()
        other = x.runtime.allocate(4 * WORDS, x.S)
        with use(x.S, write=other):
            x.kernels.fill(x.S.handle, other.ptr, 7, WORDS)
        if held:
            graph.launch(x.S)
        else:
            check(cuda.cuGraphLaunch(executable, x.S.handle))
        wrong += x.result(other) != 7
        other.free()
        if held:
            graph.close()
        else:
            check(cuda.cuGraphExecDestroy(executable))
    assert wrong == 0 if held else wrong >= TURNS // 2
    assert x.runtime.live_bytes == 2 * 4 * WORDS


@pytest.mark.parametrize("recorded", [True, False])
def test_the_host_waits_before_it_changes_what_a_graph_copies(x, recorded):
    staging = x.runtime.allocate(4 * WORDS, host, resource=PoolMemoryResource(PinnedMemoryResource()))
    with capture(x.S) as graph, use(x.S, read=staging, write=x.b):
        x.kernels.delay(x.S.handle, DELAY)
        check(cuda.cuMemcpyHtoDAsync(x.b.ptr, staging.ptr, 4 * WORDS, x.S.handle))
    wrong = 0
    for turn in range(1, TURNS + 1):
        with use(host, write=staging):
            ctypes.memset(staging.ptr, turn, 4 * WORDS)
        if recorded:
            graph.launch(x.T)
        else:
            raw_launch(graph, x.T)
        with use(host, write=staging):
            ctypes.memset(staging.ptr, 0, 4 * WORDS)
        check(cuda.cuStreamSynchronize(x.T.handle))
        wrong += x.result(x.b) != turn * 0x01010101
    assert wrong == 0 if recorded else wrong >= TURNS // 2
    graph.close()
    staging.free()


def test_a_capture_of_another_library(x):
    check(cuda.cuStreamBeginCapture(x.S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with capturing(x.S, write=[x.a, x.b]) as graph:
        graph.fork(x.T)
        x.write_late(x.S)
        with use(x.T, read=x.a, write=x.b):
            x.copy(x.T)
        x.kernels.add(x.S.handle, x.b.ptr, 1, WORDS)
    captured = check(cuda.cuStreamEndCapture(x.S.handle))
    executable = check(cuda.cuGraphInstantiate(captured, 0))
    check(cuda.cuGraphDestroy(captured))
    for _ in range(TURNS):
        x.clear()
        with graph.launching(x.U):
            check(cuda.cuGraphLaunch(executable, x.U.handle))
        assert x.result(x.b) == 2
    graph.close()
    check(cuda.cuGraphExecDestroy(executable))


def test_events_are_recorded_inside_and_outside_in_turn(x):
    for _ in range(TURNS):
        x.clear()
        with capture(x.S) as graph:
            graph.fork(x.T)
            with use(x.S, write=x.a):
                x.write_late(x.S)
            with use(x.T, read=x.a, write=x.b):
                x.copy(x.T)
            with use(x.S, read_write=x.b):
                x.kernels.add(x.S.handle, x.b.ptr, 1, WORDS)
        graph.launch(x.U)
        assert x.result(x.b) == 2
        graph.close()
