"""A pool when driver calls fail, streams capture, and other threads call it in between."""
from __future__ import annotations

import threading

import pytest
from cuda.bindings import driver as cuda
from four_streams import WRITE, FourStreams
from pools import GRAIN, HALF, QUARTER, WHOLE, Counted, no_driver_call, one_chunk, simulated

from xlogmem import (
    DeviceRuntime,
    DriverError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StreamMisuseError,
    _driver,
)
from xlogmem.sim.kernels import check

RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


CALLS = ("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing", "cuMemAllocFromPoolAsync",
         "cuMemFreeAsync", "cuCtxGetCurrent", "cuMemPoolTrimTo")


def attempt(function, refused):
    """Call until it succeeds, three times at most."""
    for _ in range(3):
        try:
            return function()
        except DriverError as error:
            refused.append(error)
    raise AssertionError("it goes on failing")


def program(x, pool, refused):
    """Splits, coalesces, waits, grows and trims."""
    a = attempt(lambda: x.alloc(x.S, HALF), refused)
    b = attempt(lambda: x.alloc(x.T, QUARTER), refused)
    x.work(x.S, (a, WRITE))
    x.work(x.T, (b, WRITE))
    for block in (a, b):
        attempt(block.free, refused)
    del a, b
    c = attempt(lambda: x.alloc(x.U, WHOLE), refused)
    x.work(x.U, (c, WRITE))
    attempt(c.free, refused)
    d = attempt(lambda: x.alloc(x.V, 3 * WHOLE), refused)
    x.work(x.V, (d, WRITE))
    attempt(d.free, refused)
    attempt(pool.trim, refused)
    return pool.statistics()


@simulated
@pytest.mark.parametrize("call", CALLS)
def test_a_failure_of_any_call_loses_nothing_and_leaks_nothing(driver, call):
    """Each call fails once, at each place of the program."""
    nth = 0
    while True:
        nth += 1
        driver.reset("eager")
        _driver.trim_events()
        pool = PoolMemoryResource(chunk_size=WHOLE)
        x = FourStreams(driver, resource=pool)
        refused = []
        calls = driver.calls(call)
        driver.fail(call, nth, 999)
        seen = program(x, pool, refused)
        happened = driver.calls(call) - calls
        assert (seen["used_bytes"], seen["pool_size"], seen["free_spans"]) == (0, 0, 0)
        assert x.runtime.bytes_outstanding == 0
        assert driver.races() == []
        x.close()
        if happened < nth:
            break
        assert len(refused) <= 1
    assert nth > 1


@simulated
def test_a_chunk_that_cannot_be_returned_stays(four):
    upstream = Counted()
    pool = PoolMemoryResource(upstream, maximum_pool_size=2 * WHOLE, chunk_size=WHOLE)
    x = four(resource=pool)
    blocks = [x.alloc(x.S, WHOLE), x.alloc(x.T, WHOLE)]
    blocks.clear()
    x.runtime.reap_pending()
    upstream.fail_frees = 1
    with pytest.raises(ZeroDivisionError):
        pool.trim()
    assert pool.pool_size() == WHOLE == sum(upstream.given.values())
    b = x.alloc(x.S, WHOLE)
    assert b.ptr in upstream.given
    b.free()
    assert pool.trim() == WHOLE


@simulated
def test_what_a_resource_in_python_raises_when_idle_chunks_go_is_dropped():
    upstream = Counted(2 * WHOLE)
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, chunk_size=WHOLE))
    runtime.allocate(HALF).free()
    upstream.fail_frees = 1
    with pytest.raises(OutOfDeviceMemoryError):
        runtime.allocate(2 * WHOLE)
    assert runtime.allocate(2 * WHOLE).ptr


@simulated
def test_memory_freed_on_a_stream_that_captures_is_left_alone_while_there_is_other(four, driver):
    pool = PoolMemoryResource(chunk_size=WHOLE, maximum_pool_size=2 * WHOLE)
    x = four(resource=pool)
    b = x.alloc(x.S, WHOLE)
    check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
    with no_driver_call(driver):
        b.free()                                        # a free queries nothing
    assert b.state.value == "freed"
    other = x.alloc(x.T, WHOLE)
    assert other.ptr != b.id.ptr
    with pytest.raises(OutOfDeviceMemoryError, match=f"stream {x.S.id}, which used them, is capturing a graph"):
        x.alloc(x.T, WHOLE)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    assert x.alloc(x.T, WHOLE).ptr == b.id.ptr
    assert other.ptr


@simulated
def test_a_chunk_used_on_a_stream_that_captures_is_not_returned(four):
    pool = one_chunk()
    x = four(resource=pool)
    x.alloc(x.S, WHOLE).free()
    check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
    with pytest.raises(StreamMisuseError, match="is capturing a graph"):
        pool.trim()
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    assert pool.trim() == WHOLE


@simulated
def test_a_bare_handle_whose_stream_was_destroyed_is_not_touched(four, driver):
    """It may not live as long as its blocks: the host has to wait for the context, which an allocation does not do."""
    x = four(resource=one_chunk())
    handle = int(check(cuda.cuStreamCreate(1)))
    b = x.runtime.allocate(WHOLE, handle)
    x.kernels.fill(handle, b.ptr, 1, 1)
    b.free()
    del b
    check(cuda.cuStreamDestroy(handle))
    before = driver.calls("cuCtxSynchronize")
    with pytest.raises(OutOfDeviceMemoryError, match="reap_pending"):
        x.alloc(x.S, WHOLE)
    assert driver.calls("cuCtxSynchronize") == before
    x.runtime.reap_pending()
    c = x.alloc(x.S, WHOLE)
    x.work(x.S, (c, WRITE))
    assert driver.calls("cuCtxSynchronize") == before + 1
    c.free()


@simulated
def test_the_default_stream_of_another_thread(four, driver):
    x = four(resource=one_chunk())

    def other():
        check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
        b = x.runtime.allocate(WHOLE, 2)
        x.kernels.fill(2, b.ptr, 1, 1)
        b.free()
        check(cuda.cuCtxPopCurrent())
        check(cuda.cuDevicePrimaryCtxRelease(0))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    with pytest.raises(OutOfDeviceMemoryError, match="reap_pending"):
        x.alloc(x.S, WHOLE)
    x.runtime.reap_pending()
    c = x.alloc(x.S, WHOLE)
    x.work(x.S, (c, WRITE))
    c.free()


@simulated
def test_another_call_gets_nothing_of_what_one_is_waiting_for(four, driver):
    """T waits for S's memory with the lock released; meanwhile U allocates, and the pool has nothing else: it grows."""
    pool = PoolMemoryResource(chunk_size=WHOLE)
    x = four(resource=pool)
    x.alloc(x.S, WHOLE).free()
    seen = []
    driver.on_call("cuStreamWaitEvent", lambda: seen.append(x.alloc(x.U, WHOLE)))
    b = x.alloc(x.T, WHOLE)
    assert seen[0].ptr != b.ptr
    assert pool.statistics()["grown"] == 2
    seen.clear()


@simulated
def test_two_calls_that_grow_at_once_keep_the_maximum(four, driver):
    pool = PoolMemoryResource(chunk_size=WHOLE, maximum_pool_size=WHOLE + HALF)
    x = four(resource=pool)
    seen = []
    driver.on_call("cuMemAllocFromPoolAsync", lambda: seen.append(x.alloc(x.T, HALF)))
    b = x.alloc(x.S, HALF)
    assert pool.pool_size() == WHOLE + HALF
    assert b.ptr != seen[0].ptr
    seen.clear()


@simulated
def test_a_chunk_that_is_being_returned_is_not_handed_out(four, driver):
    pool = one_chunk()
    x = four(resource=pool)
    x.alloc(x.S, WHOLE).free()
    refused = []

    def meanwhile():
        with pytest.raises(OutOfDeviceMemoryError):
            x.alloc(x.T, GRAIN)
        refused.append(pool.trim())

    driver.on_call("cuMemFreeAsync", meanwhile)
    assert pool.trim() == WHOLE
    assert refused == [0]
    x.alloc(x.T, GRAIN).free()


@simulated
@pytest.mark.parametrize("captures", ["S", "T", "neither"])
def test_a_full_pool_waits_for_the_stream_that_does_not_capture(four, captures):
    """Free memory is of S and of T: whichever captures, what the other has freed is enough."""
    x = four(resource=one_chunk())
    blocks = {"S": x.alloc(x.S, QUARTER), "V": x.alloc(x.V, HALF), "T": x.alloc(x.T, QUARTER)}
    places = {name: block.ptr for name, block in blocks.items()}
    writes = {name: x.use(getattr(x, name), (block, WRITE)) for name, block in blocks.items()}
    blocks.pop("S").free()
    blocks.pop("T").free()
    captured = getattr(x, captures, None)
    if captured:
        check(cuda.cuStreamBeginCapture(captured.handle, RELAXED))
    taken = x.alloc(x.U, QUARTER)
    other = "T" if captures == "S" else "S"
    if captured:
        assert taken.ptr == places[other]
        assert x.ordered(writes[other], x.U)
        with pytest.raises(OutOfDeviceMemoryError, match=f"stream {captured.id}, which used them, is capturing"):
            x.alloc(x.U, QUARTER)
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(captured.handle))))
    kept = x.alloc(x.U, QUARTER)
    assert kept.ptr in places.values()
    assert kept.ptr != taken.ptr
