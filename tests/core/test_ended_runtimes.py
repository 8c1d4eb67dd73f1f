"""Runtimes and pools that end beside captures: nothing that a collector does waits for the context, and what waits
looks at the streams of every runtime before."""
from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import warnings

import pytest
from capsules import Taken, settle
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from other_threads import Beside

import xlogmem
from xlogmem import (
    DeviceMemoryResource,
    DeviceRuntime,
    DeviceState,
    PoolMemoryResource,
    StreamMisuseError,
    StreamPool,
    _driver,
)
from xlogmem.blocks import unfinished_runtimes
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class Capture:
    """A capture on a stream, which has to come to a good end."""

    def __init__(self, handle: object = None) -> None:
        self.own = ForeignStream() if handle is None else None
        self.handle = int(self.own.handle if handle is None else handle)

    def __enter__(self) -> None:
        check(cuda.cuStreamBeginCapture(self.handle, RELAXED))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        result, graph = cuda.cuStreamEndCapture(self.handle)
        if kind is None:
            assert int(result) == 0, "the capture was ended"
            check(cuda.cuGraphDestroy(graph))


def leave_an_export(runtime: DeviceRuntime) -> None:
    """Only a wait for the context can free this."""
    state = DeviceState(runtime)
    Taken(state.full(512, 1, "uint8").__dlpack__(stream=-1)).delete()
    settle()


class Upstream(DeviceMemoryResource):
    """A resource written in Python, with something that a collector would take from it."""

    order = "stream"

    def __init__(self) -> None:
        super().__init__()
        self.below = xlogmem.AsyncMemoryResource()

    def allocate(self, nbytes, stream):
        return self.below.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.below.deallocate(ptr, nbytes, stream)


# ---------------------------------------------------------------------------------------------- a collector ends a pool
@pytest.mark.parametrize("upstream", [None, Upstream])
@pytest.mark.parametrize("first", ["runtime", "pool"])
@pytest.mark.parametrize("bare", [False, True])
def test_a_collector_that_ends_a_pool_does_not_wait_for_the_context(driver, bare, first, upstream):
    """The pool's memory was freed on a stream that may be gone.  What comes later in the collector's list of objects is
    finalized later: each collection before moves what is reached through the runtime behind it."""
    pool = PoolMemoryResource(None if upstream is None else upstream(), chunk_size=4096)
    runtime, owner = DeviceRuntime(resource=pool), ForeignStream()
    runtime.allocate(64, owner.handle if bare else owner).free()
    cycle: list[object] = [runtime, pool] if first == "runtime" else [pool, runtime]
    if not bare:
        cycle.append(owner)
    cycle.append(cycle)
    del runtime, pool
    gc.collect()
    with Capture():
        if bare:
            owner.destroy()
        del cycle, owner
        gc.collect()
    assert driver.calls("cuCtxSynchronize") == 0
    assert unfinished_runtimes() == 1
    assert driver.live_bytes() == 4096
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DeviceRuntime().reap_pending()
    assert (unfinished_runtimes(), driver.live_bytes()) == (0, 0)
    assert not driver.races()


def test_a_resource_that_refers_to_its_runtime_is_not_kept_for_ever(driver):
    """A collector may not empty it while something is left, and the runtime is reached through it."""
    upstream = Upstream()
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, chunk_size=4096))
    upstream.runtime = runtime
    stream = ForeignStream()
    runtime.allocate(64, stream.handle).free()
    stream.destroy()
    with Capture():
        del runtime, upstream
        gc.collect()
    assert driver.calls("cuCtxSynchronize") == 0
    assert unfinished_runtimes() == 1
    DeviceRuntime().reap_pending()
    assert driver.live_bytes() == 0
    gc.collect()
    assert unfinished_runtimes() == 0


# ---------------------------------------------------------------------------------------------- captures elsewhere
@pytest.mark.parametrize("kind", ["own", "default", "foreign", "without a runtime"])
@pytest.mark.parametrize("call", ["make", "reap"])
def test_a_wait_for_the_context_looks_at_the_streams_of_all_runtimes(driver, kind, call):
    one, other, owner, pool = DeviceRuntime(), DeviceRuntime(), ForeignStream(), StreamPool()
    stream = {"own": lambda: one.acquire_stream(), "default": lambda: one.default_stream,
              "foreign": lambda: one.register_stream(owner), "without a runtime": pool.acquire}[kind]()
    if call == "make":
        ending = DeviceRuntime()
        leave_an_export(ending)
        del ending
        settle()
        with Capture(stream.handle):
            DeviceRuntime()
            assert unfinished_runtimes() == 1
        DeviceRuntime()
        assert unfinished_runtimes() == 0
    else:
        bare = ForeignStream()
        other.allocate(64, bare.handle).free()
        with Capture(stream.handle), pytest.raises(StreamMisuseError, match="is capturing a graph"):
            other.reap_pending()
        other.reap_pending()
    assert driver.calls("cuCtxSynchronize") == 1


@pytest.mark.parametrize("how", ["runtime and streams", "owner"])
def test_the_other_runtime_may_end_inside_of_the_query(driver, how):
    """A callback ends it, and one whose turn comes later: their streams are not touched any more."""
    one, waiting, owner, bare = [DeviceRuntime(), DeviceRuntime()], DeviceRuntime(), [ForeignStream()], ForeignStream()
    one[0].register_stream(owner[0])
    waiting.allocate(64, bare.handle).free()
    queries = driver.calls("cuStreamIsCapturing")
    waiting.reap_pending()
    queries = driver.calls("cuStreamIsCapturing") - queries

    def end() -> None:
        if how == "owner":
            with contextlib.suppress(StreamMisuseError):        # it is being queried: it stays
                one[0].unregister_stream(owner[0])
                owner[0].destroy()
        else:
            one.clear()
            owner.clear()
            gc.collect()

    for nth in range(1, queries + 1):
        one[:], owner[:] = [DeviceRuntime(), DeviceRuntime()], [ForeignStream()]
        one[0].register_stream(owner[0])
        waiting.allocate(64, bare.handle).free()
        driver.on_call("cuStreamIsCapturing", end, nth)
        waiting.reap_pending()
    driver.reset("eager")
    assert not driver.races()


def test_a_runtime_that_ends_waits_for_the_query_of_another_thread(driver):
    waiting, bare, context = DeviceRuntime(), ForeignStream(), check(cuda.cuCtxGetCurrent())
    others: list[object] = []

    def end() -> None:
        check(cuda.cuCtxSetCurrent(context))
        others.clear()

    def make() -> None:
        check(cuda.cuCtxSetCurrent(context))
        others.extend([DeviceRuntime(), ForeignStream()])

    for nth in range(1, 4):                             # its own default stream, the other's, the one with an owner
        Beside(make).result()                           # a free-threaded Python ends them in this thread, if it lives
        others[0].register_stream(others[1])
        waiting.allocate(64, bare.handle).free()
        held_up = driver.hold("cuStreamIsCapturing", nth)
        thread = Beside(lambda: (check(cuda.cuCtxSetCurrent(context)), waiting.reap_pending()))
        assert held_up.reached()
        ending = Beside(end)
        assert held_up.release()
        thread.result()
        ending.result()
    assert not driver.races()


def test_two_runtimes_wait_for_the_context_at_once(driver):
    """Each looks at the other's streams, and neither holds its own lock meanwhile."""
    runtimes, bare = [DeviceRuntime(), DeviceRuntime()], ForeignStream()
    context = check(cuda.cuCtxGetCurrent())

    def reap(runtime: DeviceRuntime) -> None:
        check(cuda.cuCtxSetCurrent(context))
        for _ in range(100):
            runtime.allocate(64, bare.handle).free()
            runtime.reap_pending()

    for thread in [Beside(lambda runtime=runtime: reap(runtime)) for runtime in runtimes]:
        thread.result()


# ---------------------------------------------------------------------------------------------- warnings
def test_a_warning_about_what_is_left_does_not_keep_a_runtime_from_being_made(driver):
    """A capture that cannot be seen: the reap says so, once for each failure, after its own work."""
    ending, bare = DeviceRuntime(), ForeignStream()
    ending.allocate(64, bare.handle)                    # dropped at once
    del ending
    settle()
    for nth in (1, 2):                                  # it tries twice
        driver.fail("cuCtxSynchronize", nth, 900)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime = DeviceRuntime()
        assert unfinished_runtimes() == 1
        for nth in (1, 2):
            driver.fail("cuCtxSynchronize", nth, 900)
        runtime.allocate(64).free()
        with pytest.raises(RuntimeWarning, match="has memory left"):
            runtime.reap_pending()
        assert runtime.bytes_outstanding == 0
        runtime.reap_pending()
    assert unfinished_runtimes() == 0


# ---------------------------------------------------------------------------------------------- host memory
class Malloc(ctypes.Structure):
    """What the C library says of itself: the first ten words of mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "mapped", "usmblks",
                                                     "fsmblks", "used", "free", "keepcost")]


def used() -> int:
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Malloc
    found = library.mallinfo2()
    return found.used + found.mapped


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not hasattr(ctypes.CDLL(None), "mallinfo2")
                    or _driver.BUILD in ("asan", "tsan"), reason="needs the allocator of a recent glibc")
def test_what_blocks_needed_is_used_again_and_returned_at_the_end():
    count = 20_000
    before = used()
    runtime = DeviceRuntime(resource=PoolMemoryResource(initial_pool_size=count * 512))
    stream = runtime.acquire_stream()
    kept = []
    for _ in range(3):
        blocks = [runtime.allocate(256, stream) for _ in range(count)]
        for block in blocks:
            block.free()
        del blocks, block
        settle()
        kept.append(used() - before)
    assert 100 * count < kept[0] < 850 * count
    assert kept[2] < kept[0] + 20 * count
    del runtime, stream
    settle()
    assert used() - before < 50 * count
