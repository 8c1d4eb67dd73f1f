"""What is done with the GIL, and what is not: docs/ordering.md, at-once and query-with-gil.

The simulated driver counts the calls of threads that have the GIL.  An operation that was done at once made one query
for a capture with it, or no driver call at all; one that was not done at once made none with it.
"""
from __future__ import annotations

import threading

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE
from gil import QUERY, only_one_query, pooled_runtime, queries_with_gil, read
from stress import PATIENCE, together

from xlogmem import (
    Access,
    BlockState,
    DeviceRuntime,
    DeviceState,
    LimitingResourceAdaptor,
    OutOfBudgetError,
    PoolMemoryResource,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


# ---------------------------------------------------------------------------------------------- at once
def test_a_use_that_waits_for_nothing_is_one_query(driver):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    blocks = [runtime.allocate(64, stream) for _ in range(3)]
    for arguments in ({"read": blocks[0]}, {"write": blocks}, {"read": tuple(blocks[:2]), "read_write": blocks[2]},
                      {"read": blocks[0].id}, {"read": blocks[0].ptr}, {"write": blocks[0], "on_conflict": "raise"}):
        with only_one_query(driver), use(stream, **arguments):
            pass
    assert runtime.counters()["uses"] == 6


def test_what_a_stream_has_waited_for_is_not_waited_for_again(four, driver):
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    x.use(x.T, (block, READ))
    read(x.T, block)                                    # its commit recorded a fence, perhaps
    with only_one_query(driver):
        read(x.T, block)


def test_a_pool_allocates_with_one_query_and_frees_with_no_driver_call(driver):
    pooled = pooled_runtime()
    stream = pooled.acquire_stream()
    pooled.allocate(64, stream).free()
    with only_one_query(driver):
        pooled.allocate(64, stream).free()
    with only_one_query(driver):
        block = pooled.allocate(64, stream)
    other = pooled.acquire_stream()
    before = driver.all_calls()
    block.free(other)
    assert driver.all_calls() == before
    assert block.state is BlockState.FREED
    with pytest.raises(UseAfterFreeError):
        block.free()


def test_blocks_that_were_dropped_are_freed_into_a_pool_at_once(driver):
    """Also those that a window keeps: after it."""
    pooled = pooled_runtime()
    stream = pooled.acquire_stream()
    pooled.allocate(64, stream).free()
    frees, addresses = pooled.counters()["frees"], set()
    for _ in range(5):
        with only_one_query(driver):
            block = pooled.allocate(64, stream)
        addresses.add(block.ptr)
        del block
    assert len(addresses) == 1
    assert pooled.counters()["frees"] == frees + 5      # the cache of the stream takes them
    kept = pooled.allocate(64, stream)
    ptr = kept.ptr
    with use(stream, write=kept):
        del kept
        assert pooled.allocate(64, stream).ptr != ptr
    assert pooled.find_block(ptr) is None
    assert pooled.counters()["deferred_frees"] == 1


def test_a_free_into_a_pool_waits_for_windows_and_exports(driver):
    pooled = pooled_runtime()
    stream = pooled.acquire_stream()
    first, second = (pooled.allocate(64, stream) for _ in range(2))
    with use(stream, write=first):
        first.free()
        assert first.state is BlockState.RETIRED
        assert pooled.allocate(64, stream).ptr not in (first.ptr, second.ptr)
    assert first.state is BlockState.FREED
    state = DeviceState(pooled)
    buffer = state.empty(64, "uint8", stream)
    with buffer.pointer(stream, Access.READ) as ptr:
        pass
    capsule = buffer.__dlpack__(stream=stream.handle)
    del buffer
    assert pooled.allocate(64, stream).ptr != ptr
    kept = pooled.find_block(ptr)
    assert kept is not None
    del capsule
    pooled.allocate(64, stream)
    assert pooled.find_block(ptr) != kept


def test_many_dropped_blocks_are_not_freed_with_the_gil(driver):
    pooled = pooled_runtime()
    stream = pooled.acquire_stream()
    blocks = [pooled.allocate(64, stream) for _ in range(300)]
    blocks.clear()
    with queries_with_gil(driver, 0):
        block = pooled.allocate(64, stream)
    assert pooled.counters()["live_blocks"] == 1
    block.free()


def test_threads_that_use_streams_of_their_own_keep_the_gil(driver, _context):
    """Nothing here makes a thread wait: no operation is done without the GIL but where two threads met at the lock."""
    pooled = pooled_runtime()
    streams = [pooled.acquire_stream() for _ in range(4)]
    for stream in streams:
        pooled.allocate(64, stream).free()
    before = driver.all_calls().get(QUERY, 0), driver.calls_with_gil().get(QUERY, 0)

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        for _ in range(200):
            block = pooled.allocate(64, streams[number])
            with use(streams[number], write=block):
                pass
            block.free()

    together(work, 4)
    made, with_gil = (calls.get(QUERY, 0) - count for calls, count in
                      zip((driver.all_calls(), driver.calls_with_gil()), before, strict=True))
    assert made >= with_gil > 4 * 200
    assert set(driver.calls_with_gil()) == {QUERY}


# ---------------------------------------------------------------------------------------------- not at once
def test_a_wait_is_queued_without_the_gil(four, driver):
    """The conftest looks at every call; here there are some."""
    x = four()
    block = x.alloc(x.S)
    write = x.use(x.S, (block, WRITE))
    waits = x.waits()
    with queries_with_gil(driver, 1):
        read(x.T, block)
    assert x.waits() == waits + 1
    assert x.ordered(write, x.T)


def test_a_stream_with_an_open_window_is_queried_without_the_gil(driver):
    """A thread may be launching there, inside of a call that a full queue keeps."""
    pooled = pooled_runtime()
    stream, other = pooled.acquire_stream(), pooled.acquire_stream()
    blocks = [pooled.allocate(64, stream) for _ in range(2)]
    with use(stream, read=blocks[0]):
        with queries_with_gil(driver, 0):
            read(stream, blocks[1])
            pooled.allocate(64, stream).free()
        with queries_with_gil(driver, 1):
            pooled.allocate(1 << 20, other)
    with queries_with_gil(driver, 1):
        read(stream, blocks[1])


def test_a_stream_with_a_call_in_flight_is_queried_without_the_gil(four, driver):
    x = four()
    block, own = x.alloc(x.S), x.alloc(x.T)
    x.use(x.S, (block, WRITE))
    hold = driver.hold("cuEventRecord")                 # on S, for T's sake
    thread = threading.Thread(target=lambda: read(x.T, block))
    thread.start()
    assert hold.reached()
    other = x.alloc(x.S)
    with queries_with_gil(driver, 0):
        read(x.S, other)
    with queries_with_gil(driver, 1):
        read(x.U, own)
    assert hold.release()
    thread.join(PATIENCE)


def test_default_streams_are_queried_without_the_gil(driver):
    runtime = DeviceRuntime()
    for stream in (0, 1, 2):
        block = runtime.allocate(64, stream)
        with queries_with_gil(driver, 0):
            read(stream, block)


def test_a_launch_of_very_many_blocks_releases_the_gil(driver):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    blocks = [runtime.allocate(64, stream) for _ in range(257)]
    with queries_with_gil(driver, 0):
        read(stream, blocks)
    with queries_with_gil(driver, 1):
        read(stream, blocks[1:])


def test_resources_that_call_the_driver_are_called_without_the_gil(driver):
    runtime = DeviceRuntime()
    with queries_with_gil(driver, 0):
        runtime.allocate(64).free()


def test_an_adaptor_books_once(driver):
    """Over a pool: a request that is admitted is booked, so an adaptor is not tried twice."""
    limit = LimitingResourceAdaptor(PoolMemoryResource(), 1 << 20)
    runtime = DeviceRuntime(resource=limit)
    stream = runtime.acquire_stream()
    for _ in range(3):
        runtime.allocate(1 << 19, stream).free()
    with pytest.raises(OutOfBudgetError):
        runtime.allocate(1 << 21, stream)
    assert limit.current_bytes == runtime.bytes_outstanding == 0


def test_a_pool_whose_memory_others_used_is_waited_for_without_the_gil(driver):
    """Whatever is at hand for another stream is not taken at once."""
    small = DeviceRuntime(resource=PoolMemoryResource(initial_pool_size=1 << 20, maximum_pool_size=1 << 20))
    S, T = small.acquire_stream(), small.acquire_stream()
    block = small.allocate(1 << 20, S)
    ptr = block.ptr
    block.free()
    waits = driver.calls("cuStreamWaitEvent")
    assert small.allocate(1 << 20, T).ptr == ptr
    assert driver.calls("cuStreamWaitEvent") == waits + 1


def test_a_thread_without_a_context(driver):
    pooled = pooled_runtime()
    stream = pooled.acquire_stream()
    seen = []

    def work() -> None:
        block = pooled.allocate(64, stream)
        with use(stream, write=block):
            pass
        block.free()
        seen.append(int(check(cuda.cuCtxGetCurrent())))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)
    assert seen == [0]
