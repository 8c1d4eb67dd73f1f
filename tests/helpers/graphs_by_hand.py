"""Graphs as programs capture and launch them by plain calls of the driver, and what tests of graphs share."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from cuda.bindings import driver as cuda
from four_streams import READ, WRITE, FourStreams

from xlogmem import DeviceBlock, Graph, capture
from xlogmem.sim.kernels import check

MODES = {name: getattr(cuda.CUstreamCaptureMode, f"CU_STREAM_CAPTURE_MODE_{name.upper()}")
         for name in ("global", "thread_local", "relaxed")}


def take_races(x: FourStreams) -> list[str]:
    """The races so far, which are expected."""
    found = x.driver.races()
    x.driver.clear_races()
    return found


def raw_launch(graph: Graph, stream: Any) -> None:
    """Launch a graph without a record."""
    check(cuda.cuGraphLaunch(cuda.CUgraphExec(graph.handle), stream.handle))


def join_by_event(source: Any, stream: Any) -> None:
    """Order a stream after another one, as programs do by hand."""
    event = check(cuda.cuEventCreate(0))
    check(cuda.cuEventRecord(event, source.handle))
    check(cuda.cuStreamWaitEvent(stream.handle, event, 0))
    check(cuda.cuEventDestroy(event))


def used_blocks(x: FourStreams, count: int) -> list[DeviceBlock]:
    """Blocks whose contents are filed: no longer fresh."""
    made = [x.alloc(x.S) for _ in range(count)]
    x.use(x.S, *((block, WRITE) for block in made))
    x.use(x.V, *((block, READ) for block in made))
    return made


def some_graph(x: FourStreams, *uses: tuple[DeviceBlock, str]) -> Graph:
    """A graph of one use."""
    with capture(x.S) as graph:
        x.use(x.S, *uses)
    return graph


@contextmanager
def by_hand(stream: Any, mode: str = "relaxed") -> Iterator[SimpleNamespace]:
    """A capture by hand: ``executable`` afterwards, or ``failed``, the names of the driver's errors."""
    made = SimpleNamespace(executable=None, failed=[])
    check(cuda.cuStreamBeginCapture(stream.handle, MODES[mode]))
    try:
        yield made
    finally:
        error, graph = cuda.cuStreamEndCapture(stream.handle)
        if error:
            made.failed.append(error.name)
        else:
            made.executable = check(cuda.cuGraphInstantiate(graph, 0))
            check(cuda.cuGraphDestroy(graph))


def in_thread(call: Callable[[], object]) -> Any:
    """What another thread returns, in the same context."""
    context, answer = check(cuda.cuCtxGetCurrent()), []

    def run() -> None:
        check(cuda.cuCtxSetCurrent(context))
        answer.append(call())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return answer[0]
