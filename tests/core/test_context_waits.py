"""What only a wait for the whole context could do.

Such a wait ends every graph capture in the context, also on streams that no runtime ever saw.  So finalizers and
allocations put it off until a call that says that it waits.
"""
from __future__ import annotations

import gc
import threading

import pytest
from capsules import Taken, settle
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import WRITE, FourStreams

from xlogmem import DeviceRuntime, DeviceState, OutOfDeviceMemoryError, PoolMemoryResource, use
from xlogmem.blocks import unfinished_runtimes
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


class CaptureElsewhere:
    """A capture on a stream that no runtime knows, which has to come to a good end."""

    def __enter__(self) -> None:
        self.stream = check(cuda.cuStreamCreate(1))
        check(cuda.cuStreamBeginCapture(self.stream, RELAXED))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        result, graph = cuda.cuStreamEndCapture(self.stream)
        check(cuda.cuStreamDestroy(self.stream))
        if kind is None:
            assert int(result) == 0, "the capture was ended"
            check(cuda.cuGraphDestroy(graph))


def release_without_stream(x: FourStreams) -> None:
    """Leave an export whose consumer named no stream."""
    state = DeviceState(x.runtime)
    Taken(state.full(512, 1, "uint8", x.S).__dlpack__(stream=-1)).delete()
    settle()


def drop_with_work_of_another_thread(x: FourStreams) -> None:
    """Drop a block that was used on the default stream of a thread that is gone."""
    block = x.alloc(x.S)

    def other() -> None:
        check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
        x.runtime.record_block_use(block, 2)
        check(cuda.cuCtxPopCurrent())
        check(cuda.cuDevicePrimaryCtxRelease(0))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()


@pytest.mark.parametrize("leave", [release_without_stream, drop_with_work_of_another_thread])
@pytest.mark.parametrize("call", ["allocate", "out of memory", "use", "look", "figures"])
def test_what_finalizers_left_is_put_off_by_calls_that_do_not_say_that_they_wait(four, driver, leave, call):
    x = four()
    leave(x)
    kept = x.alloc(x.T)
    with CaptureElsewhere():
        if call == "out of memory":
            driver.fail("cuMemAllocFromPoolAsync", code=2)
        if call in ("allocate", "out of memory"):
            x.alloc(x.T).free()
        elif call == "use":
            x.use(x.T, (kept, WRITE))
        elif call == "look":
            x.runtime.reap_pending(blocking=False)
        else:
            assert x.runtime.pending_bytes == 0
    assert driver.calls("cuCtxSynchronize") == 0
    assert x.runtime.live_bytes == 2 * 512
    x.runtime.reap_pending()
    assert driver.calls("cuCtxSynchronize") == 1
    assert x.runtime.bytes_outstanding == 512
    assert x.runtime.counters()["failed_frees"] == 0


def test_a_pool_is_out_of_memory_rather_than_wait_for_the_context(four, driver):
    """The memory was freed on a bare handle, whose stream is gone by now."""
    x = four(resource=PoolMemoryResource(maximum_pool_size=4096, chunk_size=4096))
    handle = int(check(cuda.cuStreamCreate(1)))
    x.runtime.allocate(4096, handle).free()
    check(cuda.cuStreamDestroy(handle))
    with CaptureElsewhere(), pytest.raises(OutOfDeviceMemoryError, match=r"reap_pending.*has 4096, of which 0 are"):
        x.alloc(x.S)
    x.runtime.reap_pending()
    x.use(x.S, (x.alloc(x.S), WRITE))
    assert driver.calls("cuCtxSynchronize") == 1


def end_with_an_export(runtime: DeviceRuntime) -> None:
    state = DeviceState(runtime)
    Taken(state.full(512, 1, "uint8").__dlpack__(stream=-1)).delete()


def end_with_a_bare_handle(runtime: DeviceRuntime) -> None:
    """Nothing keeps the stream alive that filled the block."""
    handle = int(check(cuda.cuStreamCreate(1)))
    check(cuda.cuMemsetD8Async(runtime.allocate(512, handle).ptr, 1, 512, handle))
    check(cuda.cuStreamDestroy(handle))


def end_with_a_pool(runtime: DeviceRuntime) -> None:
    end_with_a_bare_handle(runtime)
    runtime.reap_pending(blocking=False)


@pytest.mark.parametrize("finish", ["reap", "runtime"])
@pytest.mark.parametrize("leave", [end_with_an_export, end_with_a_bare_handle, end_with_a_pool])
def test_the_end_of_a_runtime_does_not_wait_for_the_context(driver, leave, finish):
    """What it has left is freed by the next blocking reap on the device, or when a runtime is made there."""
    other = DeviceRuntime()
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=4096) if leave is end_with_a_pool else None)
    leave(runtime)
    with CaptureElsewhere():
        del runtime
        settle()
        other.allocate(64).free()
        other.reap_pending(blocking=False)
    assert driver.calls("cuCtxSynchronize") == 0
    assert unfinished_runtimes() == 1
    assert driver.live_bytes() == (4096 if leave is end_with_a_pool else 512)
    if finish == "reap":
        other.reap_pending()
    else:
        other = DeviceRuntime()
    assert (unfinished_runtimes(), driver.live_bytes()) == (0, 0)
    assert driver.calls("cuCtxSynchronize") == 1


@pytest.mark.parametrize("blocks", [0, 1])
def test_the_end_of_a_runtime_uses_streams_whose_owner_it_holds(driver, blocks):
    """They live, so nothing has to be put off, unless they capture."""
    runtime, owner = DeviceRuntime(), ForeignStream()
    kept = [runtime.allocate(64, owner) for _ in range(blocks)]
    runtime.allocate(64, owner).free()
    runtime.reap_pending()
    check(cuda.cuStreamBeginCapture(owner.stream, RELAXED))
    kept.clear()
    del runtime
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(owner.stream))))
    assert unfinished_runtimes() == blocks
    runtime = DeviceRuntime()
    block = runtime.allocate(64, owner)
    check(cuda.cuMemsetD8Async(block.ptr, 1, 64, owner.stream))
    del block, runtime
    assert (unfinished_runtimes(), driver.live_bytes(), driver.calls("cuCtxSynchronize")) == (0, 0, 0)


def test_a_collector_may_end_the_owners_of_streams_first(driver):
    """The runtime and the object that owns a stream are in one cycle: the stream is not touched any more."""
    class Application:
        pass

    application = Application()
    application.itself = application
    application.runtime, application.owner = DeviceRuntime(), ForeignStream()
    application.block = application.runtime.allocate(64, application.owner)
    application.runtime.record_block_use(application.block, application.runtime.acquire_stream())
    with CaptureElsewhere():
        del application
        gc.collect()
    assert (unfinished_runtimes(), driver.live_bytes()) == (1, 64)
    DeviceRuntime()
    assert (unfinished_runtimes(), driver.live_bytes()) == (0, 0)
    assert not driver.races()


def test_a_stream_that_ended_with_its_runtime_needs_no_wait_where_a_fence_covers_it(driver):
    """A bare handle that was only used, with a fence for each commit."""
    runtime = DeviceRuntime(policy="precise")
    handle, S = int(check(cuda.cuStreamCreate(1))), runtime.acquire_stream()
    block = runtime.allocate(64, S)
    runtime.register_stream(handle, discipline="sealed")
    with use(handle, write=block, runtime=runtime):
        check(cuda.cuMemsetD8Async(block.ptr, 1, 64, handle))
    check(cuda.cuStreamDestroy(handle))
    del block, S, runtime
    settle()
    assert (unfinished_runtimes(), driver.live_bytes(), driver.calls("cuCtxSynchronize")) == (0, 0, 0)


def test_an_ended_runtime_waits_for_the_end_of_a_capture_that_can_be_seen(driver):
    """A reap that may wait does not end a capture on a stream that its runtime knows."""
    x = FourStreams(driver)
    end = DeviceRuntime()
    end_with_an_export(end)
    capturing = end.acquire_stream()
    handle = capturing.handle
    del capturing
    check(cuda.cuStreamBeginCapture(handle, RELAXED))
    del end
    settle()
    x.runtime.reap_pending()
    assert unfinished_runtimes() == 1
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(handle))))
    x.runtime.reap_pending()
    assert unfinished_runtimes() == 0
    x.close()


def test_a_capture_on_the_default_stream_of_this_thread_is_seen(four):
    """No runtime has heard of that stream."""
    x = four()
    release_without_stream(x)
    check(cuda.cuStreamBeginCapture(2, RELAXED))
    x.runtime.reap_pending(blocking=True)               # puts it off
    assert x.runtime.live_bytes == 512
    result, graph = cuda.cuStreamEndCapture(2)
    assert int(result) == 0, "the capture was ended"
    check(cuda.cuGraphDestroy(graph))
    x.runtime.reap_pending(blocking=True)
    assert x.runtime.live_bytes == 0
