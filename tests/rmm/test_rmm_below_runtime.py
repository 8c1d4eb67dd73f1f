"""RMM's resources below a runtime."""
from __future__ import annotations

import gc
import weakref

import pytest
from foreign_streams import ForeignStream
from rmm_if_installed import RmmMemoryResource, RuntimeMemoryResource, Source, Stream, needs_rmm, rmm

import xlogmem
from xlogmem import DeviceRuntime, DriverError, OutOfDeviceMemoryError, use
from xlogmem import runtime as runtimes

pytestmark = needs_rmm


def test_an_rmm_resource_below_a_runtime():
    source = Source()
    runtime = DeviceRuntime(resource=RmmMemoryResource(source.mr))
    stream, other = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(1000, stream)
    assert source.live == {block.ptr: 1000}
    block.free(other)
    assert source.live == {}
    assert source.streams == [stream.handle, other.handle]


def test_the_device_by_place_and_by_name():
    source = Source()
    assert RmmMemoryResource(source.mr, 1).device_id == RmmMemoryResource(source.mr, device_id=1).device_id == 1


@pytest.mark.simulator
def test_frees_into_an_rmm_resource_come_after_the_uses(four):
    b = four(resource=RmmMemoryResource(Source().mr))
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
    requests = []
    ours = RuntimeMemoryResource(DeviceRuntime(resource=RmmMemoryResource(source.mr)))
    above = rmm.mr.FailureCallbackResourceAdaptor(ours, lambda nbytes: requests.append(nbytes))
    with pytest.raises(MemoryError, match="the source is dry"):
        above.allocate(5000)
    assert requests == [5000]

    def broken(nbytes: int, stream: Stream) -> int:
        raise ValueError("broken below")

    callback = rmm.mr.CallbackMemoryResource(broken, lambda ptr, nbytes, stream: None)
    above = RuntimeMemoryResource(DeviceRuntime(resource=RmmMemoryResource(callback)))
    with pytest.raises(RuntimeError, match="broken below"):
        above.allocate(8)
    assert requests == [5000]


def test_an_exception_that_went_no_further_is_not_thrown_above():
    """A resource in Python catches what an RMM resource threw and raises its own; a second try fails in another way."""
    requests = []

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
        rmm.mr.FailureCallbackResourceAdaptor(ours, lambda nbytes: requests.append(nbytes)).allocate(8)
    assert requests == [8]

    def dry_and_then_null(nbytes: int, stream: Stream) -> int:
        requests.append(nbytes)
        if len(requests) == 2:
            raise MemoryError("the source is dry")
        return 0

    source = rmm.mr.CallbackMemoryResource(dry_and_then_null, print)
    with pytest.raises(RuntimeError, match="null pointer"):
        RuntimeMemoryResource(DeviceRuntime(resource=RmmMemoryResource(source))).allocate(16)
    assert requests == [8, 16, 16]


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
    stream = ForeignStream()
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
