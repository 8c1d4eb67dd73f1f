"""A runtime below RMM's containers, adaptors and map of devices."""
from __future__ import annotations

import gc
import logging
import sys
import weakref

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from rmm_if_installed import (
    RmmMemoryResource,
    RuntimeMemoryResource,
    Source,
    Stream,
    needs_rmm,
    rmm,
    runtime_resource,
)

from xlogmem import (
    DeviceMemoryResource,
    DeviceRuntime,
    DriverError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = needs_rmm


OUT_OF_MEMORY, UNKNOWN = 2, 999


def test_a_runtime_is_an_rmm_resource():
    ours = runtime_resource()
    runtime = ours.runtime
    assert isinstance(ours, rmm.mr.DeviceMemoryResource)
    ptr = ours.allocate(1000)
    found = runtime.find_block(ptr + 999)
    assert found.ptr == ptr
    assert found.alloc_stream == runtime.register_stream(0)
    assert found.alloc_stream.discipline == "opaque"
    assert runtime.live_bytes == 1000
    ours.deallocate(ptr, 1000)
    assert (runtime.live_bytes, runtime.counters()["frees"]) == (0, 1)
    runtime.reap_pending()


def test_zero_bytes_are_a_null_pointer_and_no_block():
    ours = runtime_resource()
    assert ours.allocate(0) == 0
    ours.deallocate(0, 0)
    assert rmm.DeviceBuffer(size=0, mr=ours).ptr == 0
    assert ours.runtime.counters()["allocations"] == 0
    ours.runtime.reap_pending()


def test_only_a_runtime_is_taken():
    for what in ("no runtime", None, rmm.mr.CudaMemoryResource()):
        with pytest.raises(TypeError):
            RuntimeMemoryResource(what)


def test_twenty_thousand_instances_come_and_go():
    """A static type under RMM's heap types would be destroyed after a dozen."""
    ours = runtime_resource()
    RuntimeMemoryResource(ours.runtime)
    before = sys.getrefcount(RuntimeMemoryResource), sys.getrefcount(ours.runtime)
    for _ in range(20_000):
        RuntimeMemoryResource(ours.runtime)
    assert (sys.getrefcount(RuntimeMemoryResource), sys.getrefcount(ours.runtime)) == before


def test_the_map_of_devices(map_of_devices):
    ours = runtime_resource()
    rmm.mr.set_per_device_resource(0, ours)
    assert rmm.mr.get_per_device_resource(0) is ours
    statistics = rmm.mr.StatisticsResourceAdaptor(ours)
    rmm.mr.set_per_device_resource(0, statistics)
    assert rmm.mr.get_per_device_resource(0).upstream_mr is ours


@pytest.mark.simulator
def test_a_device_buffer_is_tracked_and_its_free_waits_for_its_uses(four):
    b = four()
    mr = RuntimeMemoryResource(b.runtime)
    buffer = rmm.DeviceBuffer(size=512, stream=Stream(b.S), mr=mr)
    assert b.runtime.live_bytes == 512
    with use(b.T, write=buffer):
        b.kernels.fill(b.T.handle, buffer.ptr, 1, 1)
        written = b.work(b.T)
    del buffer
    assert b.ordered(written, b.S)
    assert not b.ordered(written, b.U)
    assert b.runtime.live_bytes == 0


@pytest.mark.simulator
def test_unrecorded_work_of_an_rmm_stream_is_waited_for(four):
    b = four()
    mr = RuntimeMemoryResource(b.runtime)
    foreign = ForeignStream()
    buffer = rmm.DeviceBuffer(size=512, stream=Stream(foreign), mr=mr)
    b.kernels.fill(foreign.handle, buffer.ptr, 1, 1)    # as libcudf does: unrecorded
    with use(b.T, read_write=buffer):
        b.kernels.add(b.T.handle, buffer.ptr, 1, 1)
    b.kernels.add(foreign.handle, buffer.ptr, 1, 1)     # and again, after the hand-back
    del buffer
    check(cuda.cuCtxSynchronize())


@pytest.mark.simulator
def test_the_stream_given_to_the_free_frees(four):
    b = four()
    mr = RuntimeMemoryResource(b.runtime)
    ptr = mr.allocate(512, Stream(b.S))
    with use(b.U, write=ptr):
        b.kernels.fill(b.U.handle, ptr, 1, 1)
        written = b.work(b.U)
    mr.deallocate(ptr, 512, Stream(b.T))
    assert b.ordered(written, b.T)
    assert not b.ordered(written, b.S)


@pytest.mark.simulator
def test_a_buffer_that_is_dropped_inside_a_use_is_freed_at_its_end(four):
    b = four()
    mr = RuntimeMemoryResource(b.runtime)
    buffer = rmm.DeviceBuffer(size=512, stream=Stream(b.S), mr=mr)
    with use(b.T, write=buffer):
        ptr = buffer.ptr
        del buffer
        b.kernels.fill(b.T.handle, ptr, 1, 1)
        assert b.runtime.live_bytes == 512
    assert b.runtime.live_bytes == 0


def test_the_runtime_lives_as_long_as_a_buffer_of_it():
    runtime = DeviceRuntime()
    alive = weakref.ref(runtime)
    buffer = rmm.DeviceBuffer(size=8, mr=RuntimeMemoryResource(runtime))
    del runtime
    gc.collect()
    assert alive() is not None
    assert alive().live_bytes == 8
    del buffer
    gc.collect()
    assert alive() is None


def test_no_attribute_upstream_mr_where_there_is_no_rmm_resource_below():
    ours = runtime_resource()
    assert not hasattr(ours, "upstream_mr")             # cuDF and dask-cuda walk the stack by it
    source = Source()
    above = RuntimeMemoryResource(DeviceRuntime(resource=RmmMemoryResource(source.mr)))
    assert above.upstream_mr is source.mr is above.get_upstream()


def test_adaptors_above():
    ours = runtime_resource()
    runtime = ours.runtime
    statistics = rmm.mr.StatisticsResourceAdaptor(ours)
    limiting = rmm.mr.LimitingResourceAdaptor(statistics, 1 << 20)
    tracking = rmm.mr.TrackingResourceAdaptor(limiting)
    top = rmm.mr.FailureCallbackResourceAdaptor(tracking, lambda nbytes: False)
    ptr = top.allocate(5000)
    assert statistics.allocation_counts.current_bytes == tracking.get_allocated_bytes() == runtime.live_bytes == 5000
    with pytest.raises(MemoryError):
        top.allocate(2 << 20)
    top.deallocate(ptr, 5000)
    assert statistics.allocation_counts.current_bytes == tracking.get_allocated_bytes() == runtime.live_bytes == 0
    assert statistics.allocation_counts.total_bytes == 5000
    runtime.reap_pending()


@pytest.mark.with_gil
def test_a_pool_above_takes_slabs_of_ours():
    runtime = DeviceRuntime()
    ours = RuntimeMemoryResource(runtime)
    pool = rmm.mr.PoolMemoryResource(ours, initial_pool_size=1 << 20, maximum_pool_size=1 << 20)
    assert (runtime.live_bytes, runtime.counters()["allocations"]) == (1 << 20, 1)
    ptr = pool.allocate(1000)
    assert runtime.find_block(ptr) is not None          # an interior pointer
    pool.deallocate(ptr, 1000)
    del pool
    assert runtime.live_bytes == 0
    runtime.reap_pending()


@pytest.mark.simulator
def test_out_of_memory_is_what_the_failure_callback_waits_for(driver):
    ours = runtime_resource()
    requests = []

    def spill(nbytes: int) -> bool:
        requests.append(nbytes)
        driver.fail("cuMemAllocFromPoolAsync", 1, OUT_OF_MEMORY)        # and again the first try of the two
        return True

    top = rmm.mr.FailureCallbackResourceAdaptor(ours, spill)
    driver.fail("cuMemAllocFromPoolAsync", 1, OUT_OF_MEMORY)
    driver.fail("cuMemAllocFromPoolAsync", 2, OUT_OF_MEMORY)
    ptr = top.allocate(512)
    assert requests == [512]
    top.deallocate(ptr, 512)
    stubborn = rmm.mr.FailureCallbackResourceAdaptor(ours, lambda nbytes: requests.append(nbytes))
    driver.fail("cuMemAllocFromPoolAsync", 1, OUT_OF_MEMORY)
    driver.fail("cuMemAllocFromPoolAsync", 2, OUT_OF_MEMORY)
    with pytest.raises(MemoryError, match="out_of_memory"):
        stubborn.allocate(256)
    assert requests == [512, 256]


@pytest.mark.parametrize("nbytes", [5000, 8192, 10**9 + 1])
def test_out_of_memory_says_what_xlogmem_says(nbytes):
    """RMM's own text would name a limit of 0 bytes, which was never set."""
    ours = RuntimeMemoryResource(DeviceRuntime(resource=PoolMemoryResource(maximum_pool_size=4096)))
    for allocate in (ours.allocate, lambda nbytes: rmm.DeviceBuffer(size=nbytes, mr=ours)):
        with pytest.raises(MemoryError) as seen:
            allocate(nbytes)
        expected = f"std::bad_alloc: out_of_memory: xlogmem: out of memory: no {nbytes} bytes, the pool may"
        assert str(seen.value).startswith(expected)
        assert "memory limit" not in str(seen.value)


@pytest.mark.parametrize("shift", range(5))
def test_out_of_memory_ends_with_a_whole_word(shift):
    """Of bytes that are cut inside of a character Python would make a UnicodeDecodeError."""
    class Dry(DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes, stream):
            raise OutOfDeviceMemoryError("too dry " + "x" * shift + "ü€" * 100)

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    ours = RuntimeMemoryResource(DeviceRuntime(resource=PoolMemoryResource(Dry(0))))
    with pytest.raises(MemoryError, match=r"OutOfDeviceMemoryError: too dry\.\.\.$"):
        rmm.DeviceBuffer(size=1000, mr=ours)
    ours.runtime.reap_pending()


@pytest.mark.simulator
def test_what_is_not_a_lack_of_memory_is_not_a_memory_error(driver):
    ours = runtime_resource()
    requests = []
    top = rmm.mr.FailureCallbackResourceAdaptor(ours, lambda nbytes: requests.append(nbytes))
    driver.fail("cuMemAllocFromPoolAsync", 1, UNKNOWN)
    with pytest.raises(RuntimeError, match="cuMemAllocFromPoolAsync gave CUDA_ERROR_UNKNOWN"):
        top.allocate(512)
    stream = ours.runtime.acquire_stream()
    check(cuda.cuStreamBeginCapture(stream.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(RuntimeError, match="is capturing a graph"):
        top.allocate(512, Stream(stream))
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(stream.handle))))
    assert requests == []


@pytest.mark.simulator
def test_a_free_that_fails_is_logged_and_raised_by_the_next_reap(driver, caplog):
    ours = runtime_resource()
    buffer = rmm.DeviceBuffer(size=512, mr=ours)
    driver.fail("cuMemFreeAsync", 1, UNKNOWN)
    with caplog.at_level(logging.ERROR, logger="xlogmem"):
        del buffer
        for _ in range(100):                            # the interpreter makes deferred calls between two of these
            pass
    assert "cuMemFreeAsync gave CUDA_ERROR_UNKNOWN" in caplog.text
    with pytest.raises(DriverError, match="CUDA_ERROR_UNKNOWN"):
        ours.runtime.reap_pending()
    assert ours.runtime.live_bytes == 0
