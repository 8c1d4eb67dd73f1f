"""The stream pool: limits, failures and ids."""
from __future__ import annotations

import gc

import pytest
from cuda.bindings import driver as cuda

from xlogmem import (
    AsyncMemoryResource,
    DeviceRuntime,
    DriverError,
    StreamMisuseError,
    StreamPool,
)
from xlogmem._kernels import check

UNKNOWN = 999


@pytest.mark.promise(2, 155, 156, 159)
def test_pool_streams():
    """Ids 1, 2, 3; non-blocking; found by id; the default stream is id 0 and does not count."""
    pool = StreamPool(max_streams=0)
    assert pool.max_streams == 1
    pool = StreamPool(max_streams=3)
    assert StreamPool().max_streams == 16
    assert len(pool) == 0
    streams = [pool.acquire() for _ in range(3)]
    assert [stream.id for stream in streams] == [1, 2, 3]
    assert len({stream.handle for stream in (pool.default, *streams)}) == 4
    for stream in (pool.default, *streams):
        assert check(cuda.cuStreamGetFlags(stream.handle)) == 1
        assert pool.stream(stream.id) == stream
    assert len(pool) == 3
    for unknown in (4, -1, 1 << 70, None):
        with pytest.raises(StreamMisuseError, match="unknown"):
            pool.stream(unknown)


@pytest.mark.simulator
@pytest.mark.promise(156, 157, 160)
def test_a_full_pool_and_a_driver_that_refuses(driver):
    """Neither falls back to the default stream; the accounting stays right."""
    pool = StreamPool(max_streams=2)
    driver.fail("cuStreamCreateWithPriority", code=UNKNOWN)
    with pytest.raises(DriverError, match=r"cuStreamCreateWithPriority.*creating a stream"):
        pool.acquire()
    assert len(pool) == 0
    streams = [pool.acquire(), pool.acquire()]
    assert driver.calls("cuEventRecord") == driver.calls("cuStreamWaitEvent") == 0  # it waits for nothing
    before = driver.all_calls()
    with pytest.raises(StreamMisuseError, match=r"stream pool at capacity \(max=2\)"):
        pool.acquire()
    assert driver.all_calls() == before
    assert (len(pool), pool.max_streams, pool.default in streams) == (2, 2, False)


@pytest.mark.promise(158, 159)
def test_streams_come_back_ids_do_not():
    """A dropped stream is handed out again under a new id; the old id is unknown from then on."""
    pool = StreamPool(max_streams=1)
    seen = set()
    for number in range(1, 30):
        stream = pool.acquire()
        assert stream.id == number
        seen.add(stream.handle)
        if number > 1:
            with pytest.raises(StreamMisuseError, match="unknown"):
                pool.stream(number - 1)
        del stream
    assert len(seen) == 1
    assert pool.stream(0) == pool.default


@pytest.mark.simulator
@pytest.mark.promise(160)
def test_the_pool_of_a_resource_keeps_its_threshold(driver):
    """Each resource has a driver pool of its own, with a threshold; the device's default pool is not used."""
    one, two = AsyncMemoryResource(release_threshold=0), AsyncMemoryResource()
    assert driver.calls("cuMemPoolCreate") == driver.calls("cuMemPoolSetAttribute") == 2
    for wrong in (-1, 1 << 64):
        with pytest.raises(ValueError, match="release_threshold"):
            AsyncMemoryResource(release_threshold=wrong)
    for resource in (one, two):
        block = DeviceRuntime(resource=resource).allocate(64)
        block.free()
    assert driver.calls("cuMemAllocFromPoolAsync") == 2
    assert driver.calls("cuMemAllocAsync") == driver.calls("cuDeviceGetDefaultMemPool") == 0


@pytest.mark.simulator
def test_streams_outlive_the_variable_of_their_pool(driver):
    """They are destroyed with the last handle, whether a runtime used the pool or not."""
    pool = StreamPool()
    streams = [pool.acquire(), pool.default]
    made = driver.calls("cuStreamDestroy")
    del pool
    gc.collect()
    assert driver.calls("cuStreamDestroy") == made
    for stream in streams:
        check(cuda.cuStreamQuery(stream.handle))
    del streams, stream
    assert driver.calls("cuStreamDestroy") == made + 2
