"""The stream pool: limits, failures and ids."""
from __future__ import annotations

import gc
import threading

import pytest
from cuda.bindings import driver as cuda

from xlogmem import (
    AsyncMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    StreamMisuseError,
    StreamPool,
)
from xlogmem.sim.kernels import check

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
    assert [pool.acquire() for _ in range(5)] == [streams[at] for at in (0, 1, 0, 1, 0)]    # each in its turn
    for wanted in ({"discipline": "sealed"}, {"priority": -1}):
        with pytest.raises(StreamMisuseError, match=r"stream pool at capacity \(max=2\), and no stream in use is"):
            pool.acquire(**wanted)
    assert driver.all_calls() == before
    assert (len(pool), pool.max_streams, pool.default in streams) == (2, 2, False)


def test_a_shared_stream_returns_to_its_pool_once():
    """With the last of its handles; until then it keeps its id."""
    pool = StreamPool(max_streams=1)
    mine = pool.acquire()
    theirs = pool.acquire()
    assert mine == theirs
    number = mine.id
    del mine
    assert (len(pool), theirs.id, pool.acquire().id) == (1, number, number)
    del theirs
    assert len(pool) == 0
    assert pool.acquire().id != number


@pytest.mark.simulator
def test_a_full_pool_whose_streams_are_being_made_has_one_soon(driver):
    """The second thread waits for the first one's stream, and does not keep the GIL meanwhile."""
    pool = StreamPool(max_streams=1)
    hold = driver.hold("cuStreamCreateWithPriority")
    acquired = []
    threads = [threading.Thread(target=lambda: acquired.append(pool.acquire())) for _ in range(2)]
    threads[0].start()
    assert hold.reached()
    threads[1].start()
    assert hold.release()
    for thread in threads:
        thread.join()
    assert acquired[0] == acquired[1]
    assert driver.calls("cuStreamCreateWithPriority") == 2      # with the default stream


def test_arguments_that_do_not_fit_are_named():
    for name, call in (("device_id", lambda: StreamPool(1 << 70)), ("device_id", lambda: AsyncMemoryResource(1 << 40)),
                       ("device_id", lambda: DirectMemoryResource(1 << 40)),
                       ("device_id", lambda: DeviceRuntime(1 << 70)),
                       ("max_streams", lambda: StreamPool(max_streams=1 << 40)),
                       ("priority", lambda: StreamPool().acquire(priority=1 << 40))):
        with pytest.raises(ValueError, match=f"^{name} must be"):
            call()
    with pytest.raises(TypeError, match="priority must be an int"):
        StreamPool().acquire(priority=None)


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
