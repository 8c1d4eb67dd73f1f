"""A runtime with four streams and short names, and the query that ordering tests make of the simulated driver.

An operation is a kernel that writes a word of its own.  ``ordered(operation, stream)`` writes the same word on the
stream and looks whether the driver reports a race: it reports one exactly if the operation is not ordered before
everything that is queued on that stream from now on, whatever the schedule.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from cuda.bindings import driver as cuda

from xlogmem import DeviceBlock, DeviceMemoryResource, DeviceRuntime, LaunchRecorder, Stream, StreamPool, use
from xlogmem.sim import Simulator
from xlogmem.sim.kernels import Kernels, check

RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
READ, WRITE, READ_WRITE = "read", "write", "read_write"
WORDS = 4096                                            # operations that can be marked


def at(handle: int) -> SimpleNamespace:
    """A stream of which only the handle is known, as `FourStreams.ordered` takes one."""
    return SimpleNamespace(handle=handle)


@dataclass(frozen=True)
class Operation:
    """A kernel that was queued: the word that it wrote."""

    word: int


class FourStreams:
    """Streams S, T, U and V of one runtime on the simulated driver.

    `opaque` and `sealed` name the streams with that discipline, as in ``opaque="ST"``.
    """

    def __init__(self, driver: Simulator, policy: str = "adaptive", opaque: str = "", sealed: str = "",
                 resource: DeviceMemoryResource | None = None) -> None:
        self.driver = driver
        self.runtime = DeviceRuntime(policy=policy, resource=resource, stream_pool=StreamPool())
        self.kernels = Kernels()
        self.words = int(check(cuda.cuMemAlloc(4 * WORDS)))
        self.marked = 0
        self.S, self.T, self.U, self.V = (
            self.runtime.acquire_stream(
                discipline="opaque" if name in opaque else "sealed" if name in sealed else "ordinary")
            for name in "STUV")

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemFree(self.words))
        self.kernels.close()
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime

    # ------------------------------------------------------------------------------------------ operations
    def alloc(self, stream: Stream, nbytes: int = 512) -> DeviceBlock:
        return self.runtime.allocate(nbytes, stream)

    def work(self, stream: Stream, *uses: tuple[DeviceBlock, str]) -> Operation:
        """Queue unrecorded kernels: one for each (block, access), and the mark."""
        for block, access in uses:
            if access == READ:
                self.kernels.count_unequal(stream.handle, self.next_word(), block.ptr, 0, 1)
            elif access == WRITE:
                self.kernels.fill(stream.handle, block.ptr, 1, 1)
            else:
                self.kernels.add(stream.handle, block.ptr, 1, 1)
        word = self.next_word()
        self.kernels.fill(stream.handle, word, 1, 1)
        return Operation(word)

    def next_word(self) -> int:
        self.marked += 1
        return self.words + 4 * (self.marked - 1)

    def recorder(self, stream: Stream, *uses: tuple[DeviceBlock, str], **options: str) -> LaunchRecorder:
        """By one thread, which cannot wait for its own windows: conflicting ones are counted."""
        recorder = LaunchRecorder(stream, **{"on_conflict": "count", **options})
        for block, access in uses:
            getattr(recorder, access)(block)
        return recorder

    def prepare(self, stream: Stream, *uses: tuple[DeviceBlock, str], **options: str) -> LaunchRecorder:
        recorder = self.recorder(stream, *uses, **options)
        recorder.preflight()
        return recorder

    def use(self, stream: Stream, *uses: tuple[DeviceBlock, str]) -> Operation:
        """Prepare, launch, finish."""
        accesses: dict[str, list[DeviceBlock]] = {READ: [], WRITE: [], READ_WRITE: []}
        for block, access in uses:
            accesses[access].append(block)
        with use(stream, **accesses, on_conflict="count"):
            return self.work(stream, *uses)

    # ------------------------------------------------------------------------------------------ queries
    def ordered(self, operation: Operation, stream: Stream) -> bool:
        """Is the operation ordered before everything that is queued on the stream from now on?"""
        before = self.driver.races()
        self.kernels.fill(stream.handle, operation.word, 2, 1)
        after = self.driver.races()
        self.driver.clear_races()
        for race in before:
            raise AssertionError(f"a race that the test does not know of: {race}")
        return len(after) == 0

    def records(self) -> int:
        return self.driver.calls("cuEventRecord")

    def waits(self) -> int:
        return self.driver.calls("cuStreamWaitEvent")


class Capture:
    """A capture on a stream; it has to end well."""

    def __init__(self, stream, mode=RELAXED) -> None:
        self.stream, self.mode = stream, mode

    def __enter__(self) -> None:
        check(cuda.cuStreamBeginCapture(self.stream.handle, self.mode))

    def __exit__(self, *_) -> None:
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(self.stream.handle))))


# Driver calls that change nothing, and those around every call of ours.
QUERIES = {"cuCtxGetCurrent", "cuCtxGetDevice", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuGetErrorName",
           "cuGetErrorString", "cuPointerGetAttribute", "cuPointerGetAttributes",
           "cuStreamGetCtx", "cuStreamGetFlags", "cuStreamGetId",
           "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"}


@contextlib.contextmanager
def nothing_happens(driver: Simulator, *runtimes: DeviceRuntime) -> Iterator[None]:
    """No driver call but queries is made inside, and no counter of the runtimes changes."""
    def state() -> tuple[object, ...]:
        effects = {name: count for name, count in driver.all_calls().items() if name not in QUERIES and count}
        return effects, [(x.counters(), x.live_bytes, x.pending_bytes, x.stream_count()) for x in runtimes]

    before = state()
    yield
    assert state() == before
