"""Resources written in C, below a runtime."""
from __future__ import annotations

import contextlib
import ctypes
import threading

import pytest
from c_table import (
    ALLOCATE,
    CUDA_POOL,
    DEALLOCATE,
    FAILED,
    FINDS_DEVICE,
    NEW_CAPSULE,
    OUT_OF_MEMORY,
    U64,
    Hold,
    Refused,
    Upstream,
)
from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime, DriverError, StreamMisuseError
from xlogmem._table import table
from xlogmem.resources.foreign import ForeignMemoryResource
from xlogmem.sim.kernels import check


class Bump:
    """A resource in C: hands out memory of the driver, and notes the stream and context of each call."""

    def __init__(self, version: int = 1, flags: int = 0) -> None:
        self.calls: list[tuple[str, int]] = []
        self.contexts: list[int] = []
        self.flags = flags
        self.refuse: tuple[int, bytes] | None = None
        self.pool: cuda.CUmemoryPool | None = None
        if flags & CUDA_POOL:
            properties = cuda.CUmemPoolProps()
            properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            self.pool = check(cuda.cuMemPoolCreate(properties))
        self.functions = ALLOCATE(self.allocate), DEALLOCATE(self.deallocate)
        self.upstream = Upstream(version, ctypes.sizeof(Upstream), None, *self.functions, flags)
        self.capsule = NEW_CAPSULE(ctypes.addressof(self.upstream), b"xlogmem.upstream", None)

    def close(self, hold: Hold) -> None:
        hold.close()
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemPoolDestroy(self.pool))

    @contextlib.contextmanager
    def on_device(self):
        """As CUDA's runtime does for its callers."""
        current = check(cuda.cuCtxGetCurrent())
        self.contexts.append(int(current))
        if self.flags & FINDS_DEVICE and not int(current):
            check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
        yield
        if self.flags & FINDS_DEVICE and not int(current):
            check(cuda.cuCtxPopCurrent())
            check(cuda.cuDevicePrimaryCtxRelease(0))

    def allocate(self, _self, nbytes, stream, ptr, error):
        self.calls.append(("allocate", stream or 0))
        if self.refuse:
            error[0].kind, error[0].text = self.refuse
            return 1
        with self.on_device():
            ptr[0] = int(check(cuda.cuMemAllocFromPoolAsync(nbytes, self.pool, stream) if self.pool is not None
                               else cuda.cuMemAllocAsync(nbytes, stream)))
        return 0

    def deallocate(self, _self, ptr, nbytes, stream, error):
        self.calls.append(("deallocate", stream or 0))
        if self.refuse:
            error[0].kind, error[0].text = self.refuse
            return 1
        with self.on_device():
            check(cuda.cuMemFreeAsync(ptr, stream))
        return 0


def test_a_resource_in_c():
    bump = Bump()
    runtime = DeviceRuntime(resource=ForeignMemoryResource(bump.capsule))
    stream = runtime.acquire_stream()
    block = runtime.allocate(100, stream)
    bump.refuse = FAILED, b"not today"
    with pytest.raises(DriverError, match="not today"):
        block.free()
    with pytest.raises(DriverError, match="not today"):
        runtime.allocate(100, stream)
    bump.refuse = OUT_OF_MEMORY, b"nothing left"
    with pytest.raises(MemoryError, match="nothing left"):
        runtime.allocate(100, stream)
    bump.refuse = None
    block.free()
    kinds = [name for name, _ in bump.calls]
    assert kinds == ["allocate", "deallocate", "allocate", "allocate", "allocate", "deallocate"]    # one twice
    assert {handle for _, handle in bump.calls} == {stream.handle}


def in_a_thread_without_context(function) -> None:
    def run() -> None:
        function()
        assert not int(check(cuda.cuCtxGetCurrent()))   # what the caller has stays

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def over_c(flags: int, order: str = "stream") -> tuple[Bump, DeviceRuntime, Hold]:
    bump = Bump(flags=flags)
    runtime = DeviceRuntime(resource=ForeignMemoryResource(bump.capsule, order=order))
    return bump, runtime, Hold(runtime)


@pytest.mark.simulator
def test_a_pair_on_the_legacy_stream_makes_no_driver_call_of_ours_over_a_resource_that_finds_its_device(driver):
    _, runtime, hold = over_c(FINDS_DEVICE)
    hold.free(hold.allocate(8))
    before = driver.all_calls()
    hold.free(hold.allocate(8))
    made = {name for name, count in driver.all_calls().items() if count > before.get(name, 0)}
    of_the_resource = {"cuMemAllocAsync", "cuMemFreeAsync", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent",
                       "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"}
    assert driver.calls("cuCtxGetCurrent") - before["cuCtxGetCurrent"] == 2
    assert made <= of_the_resource
    assert runtime.live_bytes == 0
    hold.close()


@pytest.mark.simulator
def test_a_free_that_has_to_wait_has_the_device_current():
    bump, runtime, hold = over_c(FINDS_DEVICE)
    stream = runtime.acquire_stream()
    hold.free(hold.allocate(8))
    ptr = hold.allocate(8)
    runtime.record_block_use(ptr, stream)               # without a hand-back
    waits = runtime.counters()["waits"]
    in_a_thread_without_context(lambda: hold.free(ptr))
    runtime.reap_pending()                              # would raise what went wrong
    assert (runtime.live_bytes, runtime.counters()["waits"]) == (0, waits + 1)
    assert bump.contexts[-1]
    hold.close()


@pytest.mark.simulator
@pytest.mark.parametrize("flags", [0, FINDS_DEVICE])
def test_a_resource_is_called_with_the_device_current_unless_it_finds_it(flags):
    bump, _, hold = over_c(flags)
    hold.free(hold.allocate(8))                         # the core has a look at a stream that it has not seen
    bump.contexts.clear()
    in_a_thread_without_context(lambda: hold.free(hold.allocate(8)))
    assert [bool(context) for context in bump.contexts] == [not flags] * 2
    hold.close()


@pytest.mark.simulator
def test_a_free_that_waits_on_the_host_has_the_device_current():
    _, runtime, hold = over_c(FINDS_DEVICE, order="host")
    in_a_thread_without_context(lambda: hold.free(hold.allocate(8)))
    ptr = hold.allocate(8)
    in_a_thread_without_context(lambda: hold.free(ptr))
    runtime.reap_pending()                              # would raise what went wrong
    assert (runtime.live_bytes, runtime.pending_bytes) == (0, 0)
    hold.close()


@pytest.mark.simulator
def test_a_resource_built_before_there_were_flags_has_none():
    bump = Bump()
    bump.upstream.flags = FINDS_DEVICE | CUDA_POOL      # what happens to stand behind it
    bump.upstream.size -= ctypes.sizeof(U64)
    hold = Hold(DeviceRuntime(resource=ForeignMemoryResource(bump.capsule)))
    hold.free(hold.allocate(8))
    in_a_thread_without_context(lambda: hold.free(hold.allocate(8)))
    assert all(bump.contexts)
    assert len(bump.calls) == 4
    hold.close()


# ---------------------------------------------------------------------------------------- ... that are CUDA pools
every_pool = pytest.mark.parametrize("flags", [CUDA_POOL, FINDS_DEVICE | CUDA_POOL])


@every_pool
@pytest.mark.simulator
def test_a_cuda_pool_is_called_once_and_the_driver_from_then_on(flags):
    bump, runtime, hold = over_c(flags)
    pointers = [hold.allocate(8) for _ in range(3)]
    assert bump.calls == [("allocate", 1)]
    pool = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    assert {int(check(cuda.cuPointerGetAttribute(pool, ptr))) for ptr in pointers} == {int(bump.pool)}
    for ptr in pointers:
        hold.free(ptr)
    assert len(bump.calls) == 1
    assert runtime.live_bytes == 0
    bump.close(hold)


@every_pool
@pytest.mark.simulator
def test_what_the_driver_refuses_is_requested_from_the_cuda_pool(flags, driver):
    """It says what is wrong in its own words, or knows what to do."""
    bump, runtime, hold = over_c(flags)
    hold.free(hold.allocate(8))
    for code in (OUT_OF_MEMORY, 201, 700):
        driver.fail("cuMemAllocFromPoolAsync", code=code)
        ptr = hold.allocate(8)
        driver.fail("cuMemFreeAsync", code=code)
        hold.free(ptr)
    assert [name for name, _ in bump.calls] == ["allocate", *["allocate", "deallocate"] * 3]
    bump.refuse = FAILED, b"not today"
    driver.fail("cuMemAllocFromPoolAsync", code=999)
    with pytest.raises(Refused, match="not today"):
        hold.allocate(8)
    bump.refuse = None
    hold.free(hold.allocate(8))
    assert runtime.live_bytes == 0
    assert not runtime.lost
    bump.close(hold)


@pytest.mark.simulator
def test_a_cuda_pool_that_finds_its_device_is_called_by_threads_that_have_none_current():
    bump, _, hold = over_c(FINDS_DEVICE | CUDA_POOL)
    hold.free(hold.allocate(8))
    bump.calls.clear()
    in_a_thread_without_context(lambda: hold.free(hold.allocate(8)))
    assert [name for name, _ in bump.calls] == ["allocate", "deallocate"]
    bump.close(hold)


@every_pool
@pytest.mark.simulator
def test_memory_of_no_cuda_pool_is_its_resource_s(flags, driver):
    """Whatever its flags say: there is no other pool to call."""
    bump, _, hold = over_c(flags)
    for _ in range(2):
        driver.fail("cuPointerGetAttribute", code=1)
        hold.free(hold.allocate(8))
    assert [name for name, _ in bump.calls] == ["allocate", "deallocate"] * 2
    bump.close(hold)


@pytest.mark.simulator
def test_the_legacy_stream_stays_registered_while_a_hold_is_open():
    _, runtime, hold = over_c(FINDS_DEVICE)
    other = Hold(runtime)
    for each in (hold, other):
        each.free(each.allocate(8))
        each.free(each.allocate(8))
    legacy = runtime.register_stream(0)
    for each in (hold, other):
        with pytest.raises(StreamMisuseError, match="in use"):
            runtime.unregister_stream(legacy)
        each.close()
        Hold(DeviceRuntime()).close()                   # an open runs what the close has left
    runtime.unregister_stream(legacy)


def test_only_capsules_of_this_version_are_taken():
    with pytest.raises(TypeError, match="capsule"):
        ForeignMemoryResource(table)
    with pytest.raises(ImportError, match=r"version 2 .* build it again"):
        ForeignMemoryResource(Bump(version=2).capsule)
    with pytest.raises(ValueError, match="unknown"):
        ForeignMemoryResource(Bump().capsule, order="maybe")
    with pytest.raises(StreamMisuseError, match="unsupported"):
        ForeignMemoryResource.__new__(ForeignMemoryResource).allocate(8, 0)
