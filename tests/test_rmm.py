"""RMM both ways: its resources below a runtime, a runtime below its containers, adaptors and map of devices.

RMM's own CUDA runtime does not start on the simulated driver; what is tested here gets along without it.
"""
from __future__ import annotations

import ctypes
import gc
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from conftest import SIMULATED
from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import DeviceRuntime, DriverError, OutOfDeviceMemoryError, StreamMisuseError, launch, sim, use
from xlogmem import runtime as runtimes
from xlogmem._kernels import check
from xlogmem.bench._loops import Allocator

try:
    import rmm
    import rmm.mr
    from rmm.pylibrmm.stream import Stream

    import xlogmem.rmm
    from xlogmem.rmm import RmmMemoryResource, RuntimeMemoryResource, _binding
except ImportError as error:
    if error.name != "rmm":
        raise
    rmm = None

pytestmark = pytest.mark.skipif(rmm is None, reason="needs RMM")
OUT_OF_MEMORY, UNKNOWN = 2, 999


class Foreign:
    """A stream of somebody else, as RMM takes it."""

    def __init__(self) -> None:
        self.stream = check(cuda.cuStreamCreate(1))
        self.handle = int(self.stream)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def __del__(self) -> None:
        check(cuda.cuStreamDestroy(self.stream))


class Source:
    """An RMM resource with memory of the driver, as callbacks; counts."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.live: dict[int, int] = {}
        self.streams: list[int] = []
        self.limit = limit
        self.mr = rmm.mr.CallbackMemoryResource(self.allocate, self.deallocate)

    def allocate(self, nbytes: int, stream: Stream) -> int:
        if sum(self.live.values()) + nbytes > self.limit:
            raise MemoryError("the source is dry")
        handle = stream.__cuda_stream__()[1]
        ptr = int(check(cuda.cuMemAllocAsync(nbytes, handle)))
        self.live[ptr] = nbytes
        self.streams.append(handle)
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: Stream) -> None:
        assert self.live.pop(ptr) == nbytes
        handle = stream.__cuda_stream__()[1]
        self.streams.append(handle)
        check(cuda.cuMemFreeAsync(ptr, handle))


def runtime_resource() -> RuntimeMemoryResource:
    return RuntimeMemoryResource(DeviceRuntime())


@pytest.fixture
def map_of_devices():
    """RMM's map is given back as it was."""
    before = rmm.mr.get_per_device_resource(0)
    yield
    rmm.mr.set_per_device_resource(0, before)


# ---------------------------------------------------------------------------------------------- us below RMM
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
    """A static type under RMM's heap types dies after a dozen."""
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
def test_a_device_buffer_is_tracked_and_its_free_waits_for_its_uses(bench):
    b = bench()
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
def test_unrecorded_work_of_an_rmm_stream_is_waited_for(bench):
    b = bench()
    mr = RuntimeMemoryResource(b.runtime)
    foreign = Foreign()
    buffer = rmm.DeviceBuffer(size=512, stream=Stream(foreign), mr=mr)
    b.kernels.fill(foreign.handle, buffer.ptr, 1, 1)    # as libcudf does: nobody says so
    with use(b.T, read_write=buffer):
        b.kernels.add(b.T.handle, buffer.ptr, 1, 1)
    b.kernels.add(foreign.handle, buffer.ptr, 1, 1)     # and again, after the hand-back
    del buffer
    check(cuda.cuCtxSynchronize())


@pytest.mark.simulator
def test_the_stream_given_to_the_free_frees(bench):
    b = bench()
    mr = RuntimeMemoryResource(b.runtime)
    ptr = mr.allocate(512, Stream(b.S))
    with use(b.U, write=ptr):
        b.kernels.fill(b.U.handle, ptr, 1, 1)
        written = b.work(b.U)
    mr.deallocate(ptr, 512, Stream(b.T))
    assert b.ordered(written, b.T)
    assert not b.ordered(written, b.S)


@pytest.mark.simulator
def test_a_buffer_that_is_dropped_inside_a_use_is_freed_at_its_end(bench):
    b = bench()
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
    asked = []

    def spill(nbytes: int) -> bool:
        asked.append(nbytes)
        driver.fail("cuMemAllocFromPoolAsync", 1, OUT_OF_MEMORY)        # and again the first try of the two
        return True

    top = rmm.mr.FailureCallbackResourceAdaptor(ours, spill)
    driver.fail("cuMemAllocFromPoolAsync", 1, OUT_OF_MEMORY)
    driver.fail("cuMemAllocFromPoolAsync", 2, OUT_OF_MEMORY)
    ptr = top.allocate(512)
    assert asked == [512]
    top.deallocate(ptr, 512)
    stubborn = rmm.mr.FailureCallbackResourceAdaptor(ours, lambda nbytes: asked.append(nbytes))
    driver.fail("cuMemAllocFromPoolAsync", 1, OUT_OF_MEMORY)
    driver.fail("cuMemAllocFromPoolAsync", 2, OUT_OF_MEMORY)
    with pytest.raises(MemoryError, match="out_of_memory"):
        stubborn.allocate(256)
    assert asked == [512, 256]


@pytest.mark.simulator
def test_what_is_no_lack_of_memory_is_no_memory_error(driver):
    ours = runtime_resource()
    asked = []
    top = rmm.mr.FailureCallbackResourceAdaptor(ours, lambda nbytes: asked.append(nbytes))
    driver.fail("cuMemAllocFromPoolAsync", 1, UNKNOWN)
    with pytest.raises(RuntimeError, match="cuMemAllocFromPoolAsync gave CUDA_ERROR_UNKNOWN"):
        top.allocate(512)
    stream = ours.runtime.acquire_stream()
    check(cuda.cuStreamBeginCapture(stream.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(RuntimeError, match="is capturing a graph"):
        top.allocate(512, Stream(stream))
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(stream.handle))))
    assert asked == []


@pytest.mark.simulator
def test_a_free_that_fails_is_logged_and_raised_by_the_next_reap(driver, caplog):
    ours = runtime_resource()
    buffer = rmm.DeviceBuffer(size=512, mr=ours)
    driver.fail("cuMemFreeAsync", 1, UNKNOWN)
    with caplog.at_level(logging.ERROR, logger="xlogmem"):
        del buffer
        for _ in range(100):                            # the interpreter runs errands between two of these
            pass
    assert "cuMemFreeAsync gave CUDA_ERROR_UNKNOWN" in caplog.text
    with pytest.raises(DriverError, match="CUDA_ERROR_UNKNOWN"):
        ours.runtime.reap_pending()
    assert ours.runtime.live_bytes == 0


# ---------------------------------------------------------------------------------------------- without the GIL
@pytest.mark.simulator
@pytest.mark.parametrize("kind", ["ours", "callback"])
def test_allocations_in_cpp_need_no_gil(kind):
    """The main thread keeps the GIL and watches: ours goes on, callbacks (the twin) do not."""
    calls = ctypes.PyDLL(sim.simulator()._library._name).xsim_calls     # PyDLL: the GIL is kept
    calls.restype, calls.argtypes = ctypes.c_uint64, [ctypes.c_char_p]
    sleep = ctypes.PyDLL(None).usleep                   # the processor is given away, the GIL is kept
    seen: list[int] = []
    if kind == "ours":
        mr = runtime_resource()
    else:
        mr = rmm.mr.CallbackMemoryResource(lambda nbytes, stream: seen.append(nbytes) or 4096, lambda *freed: None)

    def progress() -> int:
        return calls(b"cuMemAllocFromPoolAsync") if kind == "ours" else len(seen)

    def made_meanwhile(seconds: float) -> int:
        first = progress()
        thread = threading.Thread(target=Allocator.of(_binding.upstream_of(mr)).pairs, args=(64, [0], 3000))
        thread.start()                                  # comes back when the thread lets go of the GIL: in the loop,
        before = progress()                             # or after it, if this thread was late
        until = time.monotonic() + seconds
        while progress() - before < 100 and progress() - first < 3000 and time.monotonic() < until:
            sleep(100)
        made = progress() - before
        thread.join()
        return made

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        if kind == "ours":
            assert any(made_meanwhile(30) >= 100 for _ in range(100))
        else:
            assert made_meanwhile(0.1) == 0
    finally:
        sys.setswitchinterval(switch)


def test_the_loops_of_the_benchmarks_run_on_rmms_resources():
    ours = runtime_resource()
    loops = Allocator.of(_binding.upstream_of(ours))
    assert len(loops.each_pair(64, [0], 100)) == 100
    assert loops.pairs(64, [0], 50) > 0
    assert ours.runtime.counters()["allocations"] == ours.runtime.counters()["frees"] == 150


@pytest.mark.simulator
def test_threads(bench):
    b = bench()
    mr = RuntimeMemoryResource(b.runtime)
    failures = []

    def run(stream: Stream) -> None:
        try:
            for turn in range(100):
                kept = [rmm.DeviceBuffer(size=256 + turn, stream=stream, mr=mr) for _ in range(3)]
                with use(b.T, read=kept, on_conflict="count"):
                    pass
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(stream,)) for stream in (
        Stream(b.S), Stream(b.U), Stream(Foreign()), rmm.pylibrmm.stream.DEFAULT_STREAM)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    b.runtime.reap_pending()
    assert (b.runtime.live_bytes, b.runtime.counters()["frees"]) == (0, 1200)


# ---------------------------------------------------------------------------------------------- RMM below us
def test_an_rmm_resource_below_a_runtime():
    source = Source()
    runtime = DeviceRuntime(resource=RmmMemoryResource(source.mr))
    stream, other = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(1000, stream)
    assert source.live == {block.ptr: 1000}
    block.free(other)
    assert source.live == {}
    assert source.streams == [stream.handle, other.handle]


@pytest.mark.simulator
def test_frees_into_an_rmm_resource_come_after_the_uses(bench):
    b = bench(resource=RmmMemoryResource(Source().mr))
    block = b.alloc(b.S)
    written = b.use(b.T, (block, "write"))
    block.free()
    assert b.ordered(written, b.S)


def test_adaptors_below():
    source = Source()
    statistics = rmm.mr.StatisticsResourceAdaptor(source.mr)
    limiting = rmm.mr.LimitingResourceAdaptor(statistics, 4096)
    runtime = DeviceRuntime(resource=RmmMemoryResource(limiting))
    block = runtime.allocate(1000)
    assert statistics.allocation_counts.current_bytes == 1000
    with pytest.raises(OutOfDeviceMemoryError, match="Exceeded memory limit"):
        runtime.allocate(10_000)
    block.free()
    assert statistics.allocation_counts.current_bytes == 0


def test_an_rmm_exception_comes_out_above_as_it_went_in_below():
    source = Source(limit=4096)
    asked = []
    ours = RuntimeMemoryResource(DeviceRuntime(resource=RmmMemoryResource(source.mr)))
    above = rmm.mr.FailureCallbackResourceAdaptor(ours, lambda nbytes: asked.append(nbytes))
    with pytest.raises(MemoryError, match="the source is dry"):
        above.allocate(5000)
    assert asked == [5000]

    def broken(nbytes: int, stream: Stream) -> int:
        raise ValueError("broken below")

    callback = rmm.mr.CallbackMemoryResource(broken, lambda ptr, nbytes, stream: None)
    above = RuntimeMemoryResource(DeviceRuntime(resource=RmmMemoryResource(callback)))
    with pytest.raises(RuntimeError, match="broken below"):
        above.allocate(8)
    assert asked == [5000]


def test_an_exception_that_went_no_further_is_not_thrown_above():
    """A resource in Python catches what an RMM resource threw and raises its own; a second try fails in another way."""
    asked = []

    def broken(nbytes: int, stream: Stream) -> int:
        raise ValueError("broken below")

    inner = DeviceRuntime(resource=RmmMemoryResource(rmm.mr.CallbackMemoryResource(broken, print)))

    class Catches(xlogmem.DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes: int, stream: int) -> int:
            with pytest.raises(DriverError, match="broken below"):
                inner.allocate(nbytes)
            raise MemoryError("the source is dry")

        def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
            raise AssertionError

    ours = RuntimeMemoryResource(DeviceRuntime(resource=Catches()))
    with pytest.raises(MemoryError):
        rmm.mr.FailureCallbackResourceAdaptor(ours, lambda nbytes: asked.append(nbytes)).allocate(8)
    assert asked == [8]

    def dry_and_then_null(nbytes: int, stream: Stream) -> int:
        asked.append(nbytes)
        if len(asked) == 2:
            raise MemoryError("the source is dry")
        return 0

    source = rmm.mr.CallbackMemoryResource(dry_and_then_null, print)
    with pytest.raises(RuntimeError, match="null pointer"):
        RuntimeMemoryResource(DeviceRuntime(resource=RmmMemoryResource(source))).allocate(16)
    assert asked == [8, 16, 16]


def test_spilling_below_frees_buffers_of_ours():
    """cuDF's way: its callback drops buffers, which come back here while the allocation is under way."""
    source = Source(limit=4096)
    kept = []
    below = rmm.mr.FailureCallbackResourceAdaptor(source.mr, lambda nbytes: bool(kept) and kept.pop() is not None)
    mr = RuntimeMemoryResource(DeviceRuntime(resource=RmmMemoryResource(below)))
    kept += [rmm.DeviceBuffer(size=2000, mr=mr), rmm.DeviceBuffer(size=2000, mr=mr)]
    buffer = rmm.DeviceBuffer(size=3000, mr=mr)
    assert not kept
    assert list(source.live.values()) == [3000]
    del buffer
    mr.runtime.reap_pending()


def test_a_callback_lives_as_long_as_the_runtime():
    source = Source()
    alive = weakref.ref(source)
    runtime = DeviceRuntime(resource=RmmMemoryResource(source.mr))
    del source
    gc.collect()
    runtime.allocate(8).free()
    assert alive() is not None
    del runtime
    gc.collect()
    assert alive() is None


def test_what_a_resource_promises_of_its_frees():
    cuda_mr, source = rmm.mr.CudaMemoryResource(), Source().mr
    pool = rmm.mr.PoolMemoryResource(source, initial_pool_size=1 << 16, maximum_pool_size=1 << 16)
    for mr, order in ((cuda_mr, "host"), (rmm.mr.LimitingResourceAdaptor(cuda_mr, 1), "host"),
                      (rmm.mr.ManagedMemoryResource(), "host"), (rmm.mr.BinningMemoryResource(cuda_mr), "host"),
                      (source, "stream"), (rmm.mr.StatisticsResourceAdaptor(source), "stream")):
        assert RmmMemoryResource(mr).order == order
    assert xlogmem.rmm.order_of(pool) == "stream"
    bins = rmm.mr.BinningMemoryResource(source)
    assert RmmMemoryResource(bins).order == "stream"
    bins.add_bin(1 << 20, cuda_mr)
    assert RmmMemoryResource(bins).order == "host"      # of one bin
    assert RmmMemoryResource(source, order="host").order == "host"
    with pytest.raises(ValueError, match="unknown"):
        RmmMemoryResource(source, order="maybe")
    with pytest.raises(TypeError):
        RmmMemoryResource("no resource")


def test_a_pool_that_is_too_old_is_warned_of(monkeypatch):
    pool = rmm.mr.PoolMemoryResource(Source().mr, initial_pool_size=1 << 16, maximum_pool_size=1 << 16)
    adaptor = rmm.mr.LimitingResourceAdaptor(pool, 1 << 16)
    monkeypatch.setattr(xlogmem.rmm, "VERSION", (26, 6))
    with pytest.warns(RuntimeWarning, match="issue 2489"):
        RmmMemoryResource(adaptor)
    RmmMemoryResource(Source().mr)
    monkeypatch.setattr(xlogmem.rmm, "VERSION", (26, 8))
    RmmMemoryResource(adaptor)


def test_a_pool_of_ours_below_rmm_and_over_rmm():
    """RMM's resource, our pool over it, and RMM on top again: chunks come from below, buffers from the pool."""
    source = Source()
    pool = xlogmem.PoolMemoryResource(RmmMemoryResource(source.mr), maximum_pool_size=1 << 16, chunk_size=1 << 16)
    ours = RuntimeMemoryResource(DeviceRuntime(resource=pool))
    assert ours.upstream_mr is source.mr
    stream = Foreign()
    kept = rmm.DeviceBuffer(size=1000, mr=ours, stream=Stream(stream))
    for _ in range(100):
        ours.deallocate(ours.allocate(5000, Stream(stream)), 5000, Stream(stream))
        ours.deallocate(ours.allocate(5000), 5000)
    assert list(source.live.values()) == [1 << 16] == [pool.pool_size()]
    assert pool.statistics()["allocations"] == 201
    with pytest.raises(MemoryError):
        ours.allocate(1 << 17)
    ours.runtime.reap_pending()
    del kept
    ours.runtime.reap_pending()
    assert pool.trim() == 1 << 16
    assert source.live == {}
    ours.runtime.unregister_stream(stream.handle)


def test_a_pool_that_rmm_goes_through_is_what_enable_takes(fresh):
    runtime = DeviceRuntime(resource=xlogmem.PoolMemoryResource(chunk_size=1 << 16))
    runtimes.set_runtime(runtime)
    rmm.mr.set_per_device_resource(0, RuntimeMemoryResource(runtime))
    xlogmem.rmm.enable()
    assert xlogmem.get_runtime() is runtime
    ours = rmm.mr.get_per_device_resource(0)
    buffer = rmm.DeviceBuffer(size=1000, mr=ours)
    with use(runtime.default_stream, read=buffer):
        pass
    assert runtime.resource.statistics()["used_bytes"] == 1024
    del buffer, ours
    assert runtime.resource.statistics()["used_bytes"] == 0


# ---------------------------------------------------------------------------------------------- enable, disable
@pytest.fixture
def fresh(monkeypatch, map_of_devices):
    """No runtime was made for device 0, nothing was enabled, RMM's resource is a source of ours."""
    monkeypatch.setattr(runtimes, "_runtimes", [None] * runtimes.MAX_DEVICE_ORDINALS)
    monkeypatch.setattr(xlogmem.rmm, "_wrapped", {})
    monkeypatch.setattr(launch, "explanations", [])
    gc.collect()
    source = Source()
    rmm.mr.set_per_device_resource(0, source.mr)
    return source


def current() -> rmm.mr.DeviceMemoryResource:
    return rmm.mr.get_per_device_resource(0)


def test_enable_puts_a_runtime_on_the_current_resource(fresh):
    xlogmem.rmm.enable()
    runtime = xlogmem.get_runtime()
    assert isinstance(current(), RuntimeMemoryResource)
    assert current().runtime is runtime
    assert current().upstream_mr is fresh.mr
    buffer = rmm.DeviceBuffer(size=512, mr=current())
    assert fresh.live == {buffer.ptr: 512}
    stream = runtime.acquire_stream()
    with use(stream, read=buffer):
        pass
    with use(0, read=buffer):                           # a foreign stream: the process's own runtime is meant
        pass
    mine = current()
    xlogmem.rmm.enable(0)                               # twice is once
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(mine))
    xlogmem.rmm.enable([0])                             # below an adaptor too
    assert current().upstream_mr is mine
    del buffer


def test_enable_puts_a_pool_between_if_asked_to(fresh):
    xlogmem.rmm.enable(0, pool_allocator=True, initial_pool_size=1 << 16, maximum_pool_size=1 << 17)
    runtime = xlogmem.get_runtime()
    assert current().upstream_mr is fresh.mr
    assert list(fresh.live.values()) == [1 << 16] == [runtime.resource.pool_size()]
    buffers = [rmm.DeviceBuffer(size=1 << 14, mr=current()) for _ in range(4)]
    with use(runtime.acquire_stream(), read=buffers):
        pass
    assert list(fresh.live.values()) == [1 << 16]       # all from the pool
    kept = rmm.DeviceBuffer(size=1 << 16, mr=current())
    assert sum(fresh.live.values()) == 1 << 17
    with pytest.raises(MemoryError):
        rmm.DeviceBuffer(size=256, mr=current())
    del buffers, kept
    runtime.reap_pending()
    xlogmem.rmm.disable()
    assert current() is fresh.mr
    xlogmem.rmm.enable(0)                               # on the same resource the same pool goes on
    assert current().runtime is runtime
    runtime.resource.trim()
    assert fresh.live == {}


@pytest.mark.parametrize("sizes", [
    {"initial_pool_size": 1}, {"maximum_pool_size": 1 << 20},
    {"pool_allocator": True, "initial_pool_size": 1 << 20, "maximum_pool_size": 1 << 19}])
def test_enable_refuses_sizes_that_no_pool_can_have(fresh, sizes):
    with pytest.raises(ValueError, match="pool_size"):
        xlogmem.rmm.enable(0, **sizes)
    assert current() is fresh.mr
    xlogmem.rmm.enable(0)


def test_disable_gives_back_what_was_there(fresh):
    xlogmem.rmm.enable()
    mine = current()
    buffer = rmm.DeviceBuffer(size=512, mr=mine)
    xlogmem.rmm.disable()
    assert current() is fresh.mr
    assert mine.runtime.live_bytes == 512
    del buffer
    assert mine.runtime.live_bytes == 0
    assert fresh.live == {}
    xlogmem.rmm.disable()
    xlogmem.rmm.enable()
    assert current() is mine                            # the same runtime: nothing changed meanwhile


def test_disable_does_not_reach_below_an_adaptor(fresh):
    xlogmem.rmm.enable()
    mine = current()
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(mine))
    with pytest.raises(RuntimeError, match="StatisticsResourceAdaptor on top of xlogmem's: take it off first"):
        xlogmem.rmm.disable()
    rmm.mr.set_per_device_resource(0, mine)
    xlogmem.rmm.disable()
    assert current() is fresh.mr


@pytest.fixture
def second_device():
    if check(cuda.cuDeviceGetCount()) < 2:
        pytest.skip("one device")
    before = rmm.mr.get_per_device_resource(1)
    rmm.mr.set_per_device_resource(1, Source().mr)
    yield
    rmm.mr.set_per_device_resource(1, before)


@pytest.mark.simulator
def test_disable_changes_nothing_where_it_fails(fresh, second_device):
    xlogmem.rmm.enable([1, 0])
    mine, other = current(), rmm.mr.get_per_device_resource(1)
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(mine))
    with pytest.raises(RuntimeError, match="take it off first"):
        xlogmem.rmm.disable()
    assert rmm.mr.get_per_device_resource(1) is other
    rmm.mr.set_per_device_resource(0, mine)
    xlogmem.rmm.disable()
    assert current() is fresh.mr


@pytest.mark.simulator
def test_what_is_tracked_is_not_told_again(fresh, second_device, recwarn):
    statistics = rmm.mr.StatisticsResourceAdaptor(fresh.mr)
    rmm.mr.set_per_device_resource(0, statistics)
    xlogmem.rmm.enable(0)
    buffer = rmm.DeviceBuffer(size=512, mr=current())
    xlogmem.rmm.enable(1)                               # another device
    xlogmem.rmm.disable()
    xlogmem.rmm.enable(0)                               # the same runtime
    with use(0, read=buffer):
        pass
    assert not recwarn.list
    del buffer


def test_enable_after_somebody_else_made_the_runtime(fresh):
    runtime = xlogmem.get_runtime()
    with pytest.raises(RuntimeError, match=r"Call xlogmem.rmm.enable\(\) before"):
        xlogmem.rmm.enable()
    assert current() is fresh.mr
    assert xlogmem.get_runtime() is runtime
    by_hand = RuntimeMemoryResource(runtime)            # what the error advises
    rmm.mr.set_per_device_resource(0, rmm.mr.StatisticsResourceAdaptor(by_hand))
    xlogmem.rmm.enable()
    assert current().upstream_mr is by_hand


def test_memory_that_was_allocated_before_is_told(fresh):
    buffer = rmm.DeviceBuffer(size=300, mr=fresh.mr)
    with pytest.warns(RuntimeWarning, match=r"300 bytes were allocated through RMM before xlogmem.rmm.enable\(\)"):
        xlogmem.rmm.enable()
    with pytest.raises(StreamMisuseError, match="untracked"), use(0, read=buffer):
        pass
    del buffer


def test_memory_that_only_an_adaptor_counted_is_told(fresh):
    statistics = rmm.mr.StatisticsResourceAdaptor(fresh.mr)
    rmm.mr.set_per_device_resource(0, statistics)
    ptr = statistics.allocate(77)
    with pytest.warns(RuntimeWarning, match="77 bytes"):
        xlogmem.rmm.enable()
    statistics.deallocate(ptr, 77)


def test_the_next_use_notices_that_the_resource_was_replaced(fresh):
    xlogmem.rmm.enable()
    tracked = rmm.DeviceBuffer(size=8, mr=current())
    other = Source()
    rmm.mr.set_per_device_resource(0, other.mr)
    buffer = rmm.DeviceBuffer(size=8, mr=current())
    advice = r"RMM's resource of device 0 was replaced by a CallbackMemoryResource .* call xlogmem.rmm.enable\(\) again"
    with use(0, read=tracked):                          # what is tracked stays so
        pass
    with pytest.raises(StreamMisuseError, match=advice), use(0, read=buffer):
        pass
    with pytest.warns(RuntimeWarning, match=advice), use(0, read=buffer, mode="permissive"):
        pass
    del buffer
    former = xlogmem.get_runtime()
    with pytest.warns(RuntimeWarning, match="1 buffers were allocated before RMM's resource was replaced"):
        xlogmem.rmm.enable()
    assert current().upstream_mr is other.mr
    assert xlogmem.get_runtime() is not former
    buffer = rmm.DeviceBuffer(size=8, mr=current())
    with use(0, read=buffer), use(0, read=tracked, runtime=former):
        pass
    xlogmem.rmm.disable()
    del buffer, tracked
    assert not fresh.live
    assert not other.live


def test_a_disabled_resource_explains_nothing(fresh):
    xlogmem.rmm.enable()
    xlogmem.rmm.disable()
    buffer = rmm.DeviceBuffer(size=8, mr=current())
    with pytest.raises(StreamMisuseError, match="Allocate it there, adopt it"), use(0, read=buffer):
        pass
    del buffer


# ---------------------------------------------------------------------------------------------- import, end
def python(program: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"XLOGMEM_SIMULATE": "1", "XLOGMEM_SIM_QUIET": "1"} if SIMULATED else {})
    return subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=100,
                          env=environment, cwd=Path(__file__).parents[1])


@pytest.mark.parametrize(("version", "word"), [("26.04.00", "26.06 to 26.10"), ("26.12.00", "26.06 to 26.10")])
def test_another_release_of_rmm_is_one_clear_sentence(version, word):
    run = python(f"""
import sys, types
sys.modules["rmm"] = types.ModuleType("rmm")
sys.modules["rmm"].__version__ = {version!r}
try:
    import xlogmem.rmm
except ImportError as error:
    assert {word!r} in str(error) and {version!r} in str(error), error
else:
    raise SystemExit("imported")
assert "xlogmem.rmm._binding" not in sys.modules
""")
    assert run.returncode == 0, run.stderr


def test_no_rmm_is_one_clear_sentence():
    run = python("""
import sys
sys.modules["rmm"] = None
try:
    import xlogmem.rmm
except ImportError as error:
    assert "xlogmem[rmm-cu12]" in str(error), error
else:
    raise SystemExit("imported")
""")
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("end", ["", "xlogmem.rmm.disable()", "raise SystemExit(0)", "import os; os._exit(0)"])
@pytest.mark.parametrize("first", ["xlogmem.rmm", "rmm"])
def test_a_process_ends_in_peace_with_everything_alive(first, end):
    run = python(f"""
import builtins, importlib
importlib.import_module({first!r})
import rmm, xlogmem, xlogmem.rmm
from rmm.pylibrmm.stream import DEFAULT_STREAM
rmm.mr.set_per_device_resource(0, xlogmem.rmm.RuntimeMemoryResource(xlogmem.DeviceRuntime()))
xlogmem.rmm.enable()
mr = rmm.mr.get_per_device_resource(0)
assert isinstance(mr.upstream_mr, xlogmem.rmm.RuntimeMemoryResource)
kept = [rmm.DeviceBuffer(size=8, mr=mr) for _ in range(10)]
builtins.kept = rmm.DeviceBuffer(size=8, mr=rmm.mr.StatisticsResourceAdaptor(mr))
stream = mr.runtime.acquire_stream()
recorder = xlogmem.use(stream, read=kept)
with recorder: pass
{end}
""")
    assert (run.returncode, run.stderr) == (0, "")
