"""Graphs: a launch as a use of its blocks, from Python and from C++, and what orders two streams inside a capture."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem.sim.kernels import Kernels, check
from xlogmem_bench import _loops
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PYTHON
from xlogmem_bench.cases.model import Build, Candidate, timed
from xlogmem_bench.cases.patterns import BY_HAND
from xlogmem_bench.world import Failed, World

__all__ = ["handed_over_inside", "launched", "launched_natively"]

RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
MOST_LAUNCHES = 256                         # before the turn ends, and the device catches up
MOST_NODES = 512


def some_graph(blocks: int, stack: ExitStack) -> tuple[xlogmem.DeviceRuntime, xlogmem.Stream, xlogmem.Graph]:
    """A graph of one kernel."""
    runtime = xlogmem.DeviceRuntime()
    stream = runtime.acquire_stream()
    held = [runtime.allocate(256, stream) for _ in range(blocks)]
    kernels = Kernels()
    with xlogmem.capture(stream) as graph, xlogmem.use(stream, write=held):
        kernels.fill(stream.handle, held[0].ptr, 1, 1)
    stack.callback(kernels.close)
    stack.callback(graph.close)
    return runtime, stream, graph


def launched_natively(blocks: int) -> Build:
    """The same as `launched`, from C++."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        runtime, stream, graph = some_graph(blocks, stack)
        native = _loops.GraphLaunches(runtime, graph, stream.handle)
        yield Candidate("driver", CPP, FLOOR, native.driver, "cuGraphLaunch", MOST_LAUNCHES)
        yield Candidate("xlogmem", CPP, OURS, native.run, "through the C table", MOST_LAUNCHES)

    return build


def launched(blocks: int) -> Build:
    """A graph of one kernel, launched again and again on one stream."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        _, stream, graph = some_graph(blocks, stack)
        executable, handle = cuda.CUgraphExec(graph.handle), cuda.CUstream(stream.handle)
        yield Candidate("driver", PYTHON, FLOOR, timed(partial(cuda.cuGraphLaunch, executable, handle)),
                        "cuGraphLaunch through cuda.bindings", MOST_LAUNCHES)
        yield Candidate("xlogmem", PYTHON, OURS, timed(partial(graph.launch, stream)), most=MOST_LAUNCHES)
        by_others = partial(launch_inside, graph, stream, executable, handle)
        yield Candidate("xlogmem, launching", PYTHON, OURS, timed(by_others),
                        "the launch of another library, inside `with graph.launching(stream)`", MOST_LAUNCHES)

    return build


def launch_inside(graph: xlogmem.Graph, stream: Any, executable: Any, handle: Any) -> None:
    with graph.launching(stream):
        cuda.cuGraphLaunch(executable, handle)


def handed_over_inside() -> Build:
    """Two streams of a capture that write one block in turn."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        runtime = xlogmem.DeviceRuntime()
        streams = runtime.acquire_stream(), runtime.acquire_stream()
        block = runtime.allocate(256, streams[0])
        handles = [cuda.CUstream(stream.handle) for stream in streams]
        event = check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        stack.callback(cuda.cuEventDestroy, event)
        kernels = Kernels()
        stack.callback(kernels.close)
        node = partial(kernels.fill, target=block.ptr, value=1, count=1)
        yield Candidate("driver", PYTHON, FLOOR, partial(by_events, handles, event, node), BY_HAND, MOST_NODES)
        yield Candidate("xlogmem", PYTHON, OURS, partial(by_uses, streams, block, node), most=MOST_NODES)

    return build


def by_events(streams: list[Any], event: Any, node: Callable[[int], object], count: int) -> float:
    first, second = streams
    check(cuda.cuStreamBeginCapture(first, RELAXED))
    cuda.cuEventRecord(event, first)
    cuda.cuStreamWaitEvent(second, event, 0)
    started = time.perf_counter_ns()
    for _ in range(count):
        for stream, other in ((first, second), (second, first)):
            node(int(stream))
            cuda.cuEventRecord(event, stream)
            cuda.cuStreamWaitEvent(other, event, 0)
    took = time.perf_counter_ns() - started
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(first))))
    return took


def by_uses(streams: tuple[Any, ...], block: Any, node: Callable[[int], object], count: int) -> float:
    first, second = streams
    with xlogmem.capture(first) as graph:
        graph.fork(second)
        started = time.perf_counter_ns()
        for _ in range(count):
            for stream in streams:
                with xlogmem.use(stream, write=block):
                    node(stream.handle)
        took = time.perf_counter_ns() - started
    graph.close()
    return took
