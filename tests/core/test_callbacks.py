"""Python code that the runtime calls may use the runtime, in any number of threads."""
from __future__ import annotations

import contextlib
import gc
import logging
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator

import pytest
from cuda.bindings import driver as cuda
from stress import nothing_lost, together

from xlogmem import (
    AsyncMemoryResource,
    BlockingStreamWarning,
    DeviceBlock,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    Stream,
    StreamPool,
    use,
)
from xlogmem.sim.kernels import check

THREADS = 8


class Caller:
    """Uses the runtime in whatever it is called from; not again in what that calls in turn."""

    def __init__(self, runtime: DeviceRuntime, stream: Stream) -> None:
        self.runtime, self.stream = runtime, stream
        self.inside = threading.local()
        self.calls = 0

    def __call__(self) -> None:
        if getattr(self.inside, "now", False):
            return
        self.inside.now = True
        try:
            kept = self.runtime.allocate(128, self.stream)
            with use(self.stream, write=kept):
                pass
            self.runtime.allocate(64, self.stream).free()
            assert self.runtime.find_block(kept.ptr + 5) == kept.id
            assert self.runtime.bytes_outstanding >= kept.nbytes
            self.runtime.reap_pending(blocking=self.calls % 2 == 0)
            self.calls += 1
        finally:
            self.inside.now = False


class Owner:
    """Owns adopted memory; its finalizer uses the runtime that tracked it."""

    def __init__(self, call: Callable[[], None], gone: list[int], number: int) -> None:
        self.call, self.gone, self.number = call, gone, number

    def __del__(self) -> None:
        self.call()
        self.gone.append(self.number)


@pytest.mark.usefixtures("_busy_interpreter")
def test_owners_of_adopted_memory_use_the_runtime_when_they_go(kernels, _context):
    """Every owner goes exactly once, in whichever thread and call drops it, and may do anything there."""
    runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=THREADS + 1))
    streams = [runtime.acquire_stream() for _ in range(THREADS + 1)]
    call = Caller(runtime, streams[-1])
    arena = int(check(cuda.cuMemAlloc(256 * 30 * THREADS)))
    gone: list[int] = []
    board: list[DeviceBlock | None] = [None] * 10

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        draw = random.Random(f"owners {number}")
        for turn in range(30):
            own, other = streams[number], draw.choice(streams)
            name = 30 * number + turn
            block = runtime.adopt(arena + 256 * name, 256, own if turn % 3 else None, owner=Owner(call, gone, name))
            with use(other, write=block):
                kernels.fill(other.handle, block.ptr, turn, 64)
            if turn % 2:
                block.free()
            else:
                board[draw.randrange(len(board))] = block           # drops another thread's
            del block

    together(work, THREADS)
    board.clear()
    runtime.reap_pending()
    assert sorted(gone) == list(range(30 * THREADS))
    assert call.calls > 0
    nothing_lost(runtime)
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFree(arena))


class Reentrant(DeviceMemoryResource):
    """Passes everything on, and uses the runtime above it while it does."""

    call: Callable[[], None] | None = None
    last_words: list[int]

    def __init__(self, inner: DeviceMemoryResource) -> None:
        super().__init__()
        self.inner = inner

    def allocate(self, nbytes, stream):
        ptr = self.inner.allocate(nbytes, stream)
        if self.call:
            self.call()
        return ptr

    def deallocate(self, ptr, nbytes, stream):
        if self.call:
            self.call()
        self.inner.deallocate(ptr, nbytes, stream)

    def __del__(self):
        if self.call:
            call, self.call = self.call, None
            call()
            call.runtime.reap_pending()                 # what it dropped may come too late for the runtime's own end
            self.last_words.append(call.calls)


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.parametrize(("order", "turns"), [("stream", 20), ("host", 6)])
def test_resources_in_python_use_the_runtime_above_them(order, turns, kernels, _context):
    """From allocate and deallocate in many threads, and from the finalizer, which the collector calls while both are
    still whole."""
    class Ordered(Reentrant):
        pass

    Ordered.order = order
    last_words = Ordered.last_words = []

    def run() -> tuple[weakref.ref[DeviceRuntime], int]:
        resource = Ordered(AsyncMemoryResource() if order == "stream" else DirectMemoryResource())
        runtime = DeviceRuntime(resource=resource, stream_pool=StreamPool(max_streams=THREADS + 1))
        streams = [runtime.acquire_stream() for _ in range(THREADS + 1)]
        call = resource.call = Caller(runtime, streams[-1])

        def work(number: int) -> None:
            check(cuda.cuCtxSetCurrent(_context))
            for turn in range(turns):
                own, other = streams[number], streams[number - 1]
                block = runtime.allocate(256, own)
                with use(other, write=block):
                    kernels.fill(other.handle, block.ptr, turn, 64)
                if turn % 2:
                    block.free()
                del block

        together(work, THREADS)
        resource.call = None                            # what it drops itself would be freed by the next call only
        nothing_lost(runtime)
        resource.call = call
        return weakref.ref(runtime), call.calls

    gone, calls = run()
    gc.collect()
    assert gone() is None
    assert calls >= turns * THREADS
    assert last_words == [calls + 1]


def test_a_resource_that_refers_to_its_runtime_frees_what_was_dropped():
    """The two are a cycle: the collector empties the resource before the runtime's own end."""
    returned = []

    class Mine(Reentrant):
        order = "stream"

        def deallocate(self, ptr, nbytes, stream):
            super().deallocate(ptr, nbytes, stream)
            returned.append(nbytes)

    resource = Mine(AsyncMemoryResource())
    resource.runtime = runtime = DeviceRuntime(resource=resource)
    block = runtime.allocate(64)
    gone = weakref.ref(runtime)
    del block, runtime, resource
    gc.collect()
    assert gone() is None
    assert returned == [64]


@contextlib.contextmanager
def warnings_to(sink: str, call: Callable[[], None]) -> Iterator[list[type[Warning]]]:
    """Warnings go to a hook, or to a log, that uses the runtime."""
    seen: list[type[Warning]] = []

    def hook(message, category, filename, lineno, file=None, line=None):
        seen.append(category)
        call()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(ResourceWarning if "ResourceWarning" in record.getMessage() else BlockingStreamWarning)
            call()

    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("always")
        if sink == "hook":
            patch.setattr(warnings, "showwarning", hook)    # a free-threaded Python restores the filters alone
            yield seen
            return
        handler = Handler()
        logging.captureWarnings(True)
        logging.getLogger("py.warnings").addHandler(handler)
        try:
            yield seen
        finally:
            logging.captureWarnings(False)
            logging.getLogger("py.warnings").removeHandler(handler)


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.promise(107)
@pytest.mark.parametrize("sink", ["hook", "logging"])
def test_handlers_of_warnings_may_use_the_runtime(sink, kernels, _context):
    """A dropped recorder warns from a finalizer, a blocking stream while it is registered."""
    runtime = DeviceRuntime()
    streams = [runtime.acquire_stream() for _ in range(5)]
    blocking = [int(check(cuda.cuStreamCreate(0))) for _ in range(4)]
    own = Caller(runtime, streams[-1])

    def call() -> None:
        own()
        runtime.allocate(32, blocking[0]).free()        # which is registered by then, or warns itself

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        runtime.register_stream(blocking[number])
        for turn in range(25):
            block = runtime.allocate(256, streams[number])
            recorder = use(streams[number - 1], write=block)
            recorder.preflight()
            kernels.fill(streams[number - 1].handle, block.ptr, turn, 64)
            del recorder, block

    with warnings_to(sink, call) as seen:
        together(work, 4)
    assert seen.count(ResourceWarning) == 100
    # From 3.14 on a logger leaves out what its handler logs.
    assert seen.count(BlockingStreamWarning) >= (3 if sink == "logging" else 4)
    assert own.calls > 0
    nothing_lost(runtime)
    assert runtime.counters()["abandoned"] == 100
    for stream in blocking:
        runtime.unregister_stream(stream)
        check(cuda.cuStreamDestroy(stream))
    runtime.reap_pending()
