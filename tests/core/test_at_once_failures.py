"""What goes wrong while an operation is done with the GIL, or right after: docs/ordering.md, at-once."""
from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from cuda.bindings import driver as cuda
from four_streams import WRITE, at
from gil import QUERY, pooled_runtime, queries_with_gil, read
from made_up import adopt_anywhere
from stress import PATIENCE

from xlogmem import (
    BlockState,
    DeviceLostError,
    DeviceRuntime,
    DriverError,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
OPERATIONS: dict[str, Callable[[DeviceRuntime, object, object], object]] = {
    "use": lambda runtime, stream, block: read(stream, block),
    "allocate": lambda runtime, stream, block: runtime.allocate(64, stream)}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_capture_is_refused(driver, name):
    pooled = pooled_runtime()
    stream = pooled.acquire_stream()
    block = pooled.allocate(64, stream)
    check(cuda.cuStreamBeginCapture(stream.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    before = pooled.counters()
    with pytest.raises(StreamMisuseError, match="captur"):
        OPERATIONS[name](pooled, stream, block)
    graph = check(cuda.cuStreamEndCapture(stream.handle))
    check(cuda.cuGraphDestroy(graph))
    assert pooled.counters() == before


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_query_that_fails_is_reported_once(driver, name):
    """And changes nothing: no window stays open."""
    pooled = pooled_runtime()
    stream = pooled.acquire_stream()
    block = pooled.allocate(64, stream)
    driver.fail(QUERY, code=999)
    with queries_with_gil(driver, 1), pytest.raises(DriverError, match="cuStreamIsCapturing"):
        OPERATIONS[name](pooled, stream, block)
    assert not pooled.lost
    block.free()
    assert block.state is BlockState.FREED


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_sticky_error_of_the_query_loses_the_device(driver, name):
    runtime = DeviceRuntime(resource=PoolMemoryResource())
    stream = runtime.acquire_stream()
    block = adopt_anywhere(runtime, 1 << 45, 64, stream)
    driver.fail(QUERY, code=700)
    with pytest.raises(DeviceLostError):
        OPERATIONS[name](runtime, stream, block)
    assert runtime.lost
    before = sum(driver.all_calls().values())
    with pytest.raises(DeviceLostError):
        OPERATIONS[name](runtime, stream, block)
    assert sum(driver.all_calls().values()) == before


def test_a_stale_block_is_refused(driver):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block, stale = runtime.allocate(64, stream), runtime.allocate(64, stream)
    stale.free()
    recorder = use(stream, write=[block, stale])
    with queries_with_gil(driver, 1), pytest.raises(UseAfterFreeError, match="number 2 of "):
        recorder.preflight()
    block.free()
    assert block.state is BlockState.FREED


def test_what_finalizers_left_comes_first(driver):
    """A recorder that was dropped in its window is filed before the next use opens."""
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)
    recorder = use(S, write=block)
    recorder.preflight()
    with pytest.warns(ResourceWarning, match="dropped without being left"):
        del recorder
    waits = driver.calls("cuStreamWaitEvent")
    read(T, block)
    assert driver.calls("cuStreamWaitEvent") == waits + 1
    assert runtime.counters()["abandoned"] == 1


def test_a_source_is_not_deleted_between_the_window_and_its_wait(four, driver):
    """The window was opened with the GIL, its wait is queued without it.  Meanwhile the stream that is waited for is
    unregistered, and its place in the tables is wanted by others.  They do not get it before."""
    x = four(policy="lazy")
    foreign = [int(check(cuda.cuStreamCreate(1))) for _ in range(4)]
    block = x.alloc(x.S)
    with use(foreign[0], write=block):
        write = x.work(at(foreign[0]), (block, WRITE))

    def interfere() -> None:
        x.runtime.unregister_stream(foreign[0])
        check(cuda.cuCtxSynchronize())
        x.runtime.reap_pending()
        before = x.runtime.stream_count()
        for handle in foreign[1:3]:
            x.runtime.register_stream(handle)
        grown.append(x.runtime.stream_count() - before)

    grown = []
    driver.on_call("cuCtxGetCurrent", interfere)        # the first call of `prepare_rest`
    read(x.T, block)
    assert x.ordered(write, x.T)
    assert grown == [2]
    x.runtime.register_stream(foreign[3])
    assert x.runtime.stream_count() == 5 + 3            # now it is used again
    for handle in foreign[1:]:
        x.runtime.unregister_stream(handle)
    for handle in foreign:
        check(cuda.cuStreamDestroy(handle))


@pytest.mark.parametrize("conflict", [False, True])
def test_a_context_that_cannot_be_entered_leaves_no_window(four, driver, conflict):
    """After the window was opened, or queued behind another one, with the GIL."""
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    other = None
    if conflict:
        thread = threading.Thread(target=lambda: made.append(x.prepare(x.U, (block, WRITE))))
        made = []
        thread.start()
        thread.join(PATIENCE)
        (other,) = made
    recorder = use(x.T, write=block)
    driver.fail("cuCtxGetCurrent", code=999)
    with pytest.raises(DriverError, match="cuCtxGetCurrent"):
        recorder.preflight()
    if other is not None:
        other.commit()

    def launch() -> None:
        with use(x.V, write=block, on_conflict="raise"):
            pass

    with ThreadPoolExecutor(1) as threads:              # nothing is open, and nothing waits, for another thread either
        threads.submit(launch).result(PATIENCE)
    recorder.preflight()
    recorder.commit()
    block.free()
    assert block.state is BlockState.FREED
