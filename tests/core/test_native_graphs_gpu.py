"""What only a GPU can show of graphs from C++: streams of others, captured events, launches, memory of the graph."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cuda.bindings import driver as cuda
from native_calls import OF_OTHERS, NativeRuntime

from xlogmem import DeviceRuntime, use
from xlogmem.sim.kernels import Kernels, check

pytestmark = pytest.mark.gpu
WORDS = 1024
DELAY = 300_000                                         # nanoseconds
TURNS = 40
RECORDED = pytest.mark.parametrize("recorded", [True, False])


class Work:
    """Three streams as an engine has them, by their handles, and two blocks that begin with zeros."""

    def __init__(self, library: Any) -> None:
        self.runtime = DeviceRuntime()
        self.native = NativeRuntime.of(library, self.runtime)
        self.S, self.T, self.U = (int(check(cuda.cuStreamCreate(1))) for _ in range(3))
        self.own = self.runtime.acquire_stream()
        self.kernels = Kernels()
        self.a, self.b = (self.runtime.allocate(4 * WORDS, self.own) for _ in range(2))

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.kernels.close()
        self.native.delete()
        for stream in (self.S, self.T, self.U):
            check(cuda.cuStreamDestroy(stream))
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime

    @contextmanager
    def use(self, stream: int, recorded: bool = True, **memory: Any) -> Iterator[None]:
        """A launch of xlogmem.hpp, or nothing."""
        if not recorded:
            yield
            return
        with self.native.launch(stream, **{kind: [block.ptr] for kind, block in memory.items()}):
            yield

    def clear(self) -> None:
        with use(self.own, write=[self.a, self.b]):
            self.kernels.fill(self.own.handle, self.a.ptr, 0, WORDS)
            self.kernels.fill(self.own.handle, self.b.ptr, 0, WORDS)

    def write_late(self, stream: int) -> None:
        self.kernels.delay(stream, DELAY)
        self.kernels.fill(stream, self.a.ptr, 1, WORDS)

    def copy(self, stream: int) -> None:
        self.kernels.copy(stream, self.b.ptr, self.a.ptr, WORDS)

    def is_wrong(self) -> bool:
        """True if the late write has not come through to the other block."""
        check(cuda.cuCtxSynchronize())
        seen = ctypes.c_uint32()
        check(cuda.cuMemcpyDtoH(ctypes.addressof(seen), self.b.ptr + 4 * WORDS - 4, 4))
        return seen.value != 1


@pytest.fixture
def x(library):
    made = Work(library)
    yield made
    made.close()


def is_right(wrong: int, recorded: bool) -> bool:
    return wrong == 0 if recorded else wrong >= TURNS // 2


@RECORDED
def test_launches_inside_are_ordered(x, recorded):
    captured = x.native.capture(x.S)
    captured.fork(x.T)
    with x.use(x.S, write=x.a):
        x.write_late(x.S)
    with x.use(x.T, recorded, read=x.a, write=x.b):
        x.copy(x.T)
    graph = captured.finish()
    wrong = 0
    for _ in range(TURNS):
        x.clear()
        graph.launch(x.U)
        wrong += x.is_wrong()
    assert is_right(wrong, recorded)
    graph.delete()


@RECORDED
def test_a_launch_is_a_use(x, recorded):
    captured = x.native.capture(x.S)
    with x.use(x.S, write=x.a):
        x.write_late(x.S)
    graph = captured.finish()
    wrong = 0
    for _ in range(TURNS):
        x.clear()
        graph.launch(x.T)
        with x.use(x.U, recorded, read=x.a, write=x.b):
            x.copy(x.U)
        wrong += x.is_wrong()
    assert is_right(wrong, recorded)
    graph.delete()


@RECORDED
def test_a_graph_that_the_engine_captures_and_launches(x, recorded):
    check(cuda.cuStreamBeginCapture(x.S, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    captured = x.native.capture(x.S, OF_OTHERS, write=x.a.ptr)
    x.write_late(x.S)
    graph = captured.finish()
    made = check(cuda.cuStreamEndCapture(x.S))
    executable = check(cuda.cuGraphInstantiate(made, 0))
    wrong = 0
    for _ in range(TURNS):
        x.clear()
        check(cuda.cuCtxSynchronize())
        launch = graph.open(x.T) if recorded else None
        check(cuda.cuGraphLaunch(executable, x.T))
        if launch is not None:
            launch.commit()
            launch.delete()
        with x.use(x.U, read=x.a, write=x.b):
            x.copy(x.U)
        wrong += x.is_wrong()
    assert is_right(wrong, recorded)
    graph.delete()
    check(cuda.cuGraphExecDestroy(executable))
    check(cuda.cuGraphDestroy(made))


def test_memory_that_is_allocated_inside_is_the_graphs(x):
    captured = x.native.capture(x.S)
    memory = x.native.allocate(4 * WORDS, x.S)
    with x.native.launch(x.S, write=[memory]):
        x.kernels.fill(x.S, memory, 1, WORDS)
    with x.native.launch(x.S, read=[memory], write=[x.b.ptr]):
        x.kernels.copy(x.S, x.b.ptr, memory, WORDS)
    x.native.free(memory, x.S)
    graph = captured.finish()
    for _ in range(TURNS):
        x.clear()
        other = x.runtime.allocate(4 * WORDS, x.own)
        assert other.ptr != memory
        graph.launch(x.T)
        assert not x.is_wrong()
        other.free()
    graph.delete()
