"""A pool while other threads' calls upstream are in flight: what they have in hand is not gone."""
from __future__ import annotations

import ctypes
import threading
import time

import pytest
from c_table import VOID, Error, Hold, functions
from pools import GRAIN, HALF, QUARTER, WHOLE, Counted, one_chunk, simulated
from stress import PATIENCE, together

from xlogmem import DeviceRuntime, OutOfDeviceMemoryError, PoolMemoryResource

AWHILE = .2                                             # seconds that a call is held up, so that others come meanwhile


def in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    return thread


class Slow(Counted):
    """Takes a while for one call, where a test wants that, and needs the GIL for it."""

    slow = None

    def wait(self):
        slow, self.slow = self.slow, None
        if slow is not None:
            slow.set()
            time.sleep(AWHILE)

    def allocate(self, nbytes, stream):
        self.wait()
        return super().allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.wait()
        super().deallocate(ptr, nbytes, stream)


@simulated
def test_an_allocation_waits_for_chunks_on_their_way(driver):
    """Two threads have reserved all room, half each, and need a quarter of it."""
    runtime = DeviceRuntime(resource=PoolMemoryResource(maximum_pool_size=WHOLE))
    streams = [runtime.acquire_stream() for _ in range(3)]
    kept = []
    holds = [driver.hold("cuMemAllocFromPoolAsync", 1, AWHILE), driver.hold("cuMemAllocFromPoolAsync", 2, AWHILE)]
    threads = []
    for stream, hold in zip(streams, holds, strict=False):
        threads.append(in_a_thread(lambda stream=stream: kept.append(runtime.allocate(QUARTER, stream))))
        assert hold.reached()
    kept.append(runtime.allocate(QUARTER, streams[2]))
    for thread in threads:
        thread.join(PATIENCE)
    assert len(kept) == 3
    assert runtime.resource.pool_size() == WHOLE


@simulated
def test_an_allocation_waits_for_a_chunk_that_is_returned(driver):
    """And then takes it again from upstream."""
    runtime = DeviceRuntime(resource=one_chunk())
    runtime.allocate(HALF).free()
    hold = driver.hold("cuMemFreeAsync", 1, AWHILE)
    thread = in_a_thread(runtime.resource.trim)
    assert hold.reached()
    assert runtime.allocate(HALF).ptr
    thread.join(PATIENCE)
    assert runtime.resource.statistics()["grown"] == 2


@simulated
def test_an_allocation_waits_for_memory_that_goes_back_to_upstream():
    """There is room below the maximum, but upstream has all its memory in the chunk that is being returned."""
    upstream = Slow(WHOLE)
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, chunk_size=WHOLE))
    runtime.allocate(HALF).free()
    upstream.slow = inside = threading.Event()
    thread = in_a_thread(runtime.resource.trim)
    assert inside.wait(PATIENCE)
    assert runtime.allocate(HALF).ptr
    thread.join(PATIENCE)


@pytest.mark.parametrize("limits", [{}, {"maximum_pool_size": WHOLE}])
def test_calls_that_all_fail_do_not_wait_for_each_other_for_ever(limits):
    runtime = DeviceRuntime(resource=PoolMemoryResource(Counted(0), chunk_size=QUARTER, **limits))
    streams = [runtime.acquire_stream() for _ in range(4)]
    refused = []

    def work(number: int) -> None:
        for _ in range(10):
            with pytest.raises(OutOfDeviceMemoryError):
                runtime.allocate(HALF, streams[number])
            refused.append(number)

    together(work, 4)
    assert len(refused) == 40


class Inward(Counted):
    """Allocates, inside of a call, from the runtime above it."""

    def __init__(self):
        super().__init__()
        self.above = None
        self.refused = 0

    def allocate(self, nbytes, stream):
        runtime, self.above = self.above, None
        if runtime is not None:
            with pytest.raises(OutOfDeviceMemoryError):
                runtime.allocate(WHOLE)
            self.refused += 1
        return super().allocate(nbytes, stream)


def test_a_call_does_not_wait_for_itself():
    upstream = Inward()
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, maximum_pool_size=WHOLE))
    upstream.above = runtime
    block = runtime.allocate(WHOLE)
    assert upstream.refused == 1
    block.free()


class NotYetError(MemoryError):
    """Calls something when it is dropped."""

    def __init__(self, then):
        super().__init__("not yet")
        self.then = then

    def __del__(self):
        self.then()


class Reluctant(Counted):
    """Refuses the first request."""

    def __init__(self, then):
        super().__init__()
        self.then = [then]

    def allocate(self, nbytes, stream):
        if self.then:
            raise NotYetError(self.then.pop())
        return super().allocate(nbytes, stream)


@pytest.mark.parametrize(("wanted", "gets"), [(QUARTER + GRAIN, False), (QUARTER, True)])
def test_between_two_tries_another_call_may_have_taken_the_room(wanted, gets):
    """While an error is dropped anything may run; here an allocation of three quarters."""
    kept = []
    upstream = Reluctant(lambda: kept.append(runtime.allocate(HALF + QUARTER)))
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, maximum_pool_size=WHOLE))
    if gets:
        kept.append(runtime.allocate(wanted))
    else:
        with pytest.raises(OutOfDeviceMemoryError, match="may not grow so far"):
            runtime.allocate(wanted)
    assert runtime.resource.pool_size() <= WHOLE
    assert len(kept) == 1 + gets


@simulated
@pytest.mark.with_gil
def test_a_caller_of_the_table_that_has_the_gil_gives_it_up_while_it_waits(driver):
    """The call that it waits for is of a resource in Python."""
    runtime = DeviceRuntime(resource=PoolMemoryResource(Slow(), maximum_pool_size=WHOLE, chunk_size=WHOLE))
    hold, kept = Hold(runtime), []
    kept.append(Hold.allocate(hold, QUARTER))           # streams are registered
    hold.free(kept.pop())
    runtime.resource.trim()
    runtime.resource.upstream.slow = inside = threading.Event()
    thread = in_a_thread(lambda: kept.append(runtime.allocate(QUARTER)))
    assert inside.wait(PATIENCE)
    allocate = type(functions.allocate)
    with_gil = ctypes.PYFUNCTYPE(allocate._restype_, *allocate._argtypes_)(ctypes.cast(functions.allocate, VOID).value)
    ptr, error = VOID(), Error()
    assert with_gil(hold.runtime, QUARTER, 0, ctypes.byref(ptr), ctypes.byref(error)) == 0, error.text
    thread.join(PATIENCE)
    hold.free(ptr.value)
    hold.close()
