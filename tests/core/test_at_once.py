"""What is done with the GIL, and what is not: docs/ordering.md, at-once and query-with-gil.

The simulated driver counts the calls of threads that have the GIL.  An operation that was done at once made one query
for a capture with it, or no driver call at all; one that was not done at once made none with it.
"""
from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE, at
from stress import PATIENCE, together

from xlogmem import (
    Access,
    BlockState,
    DeviceLostError,
    DeviceRuntime,
    DeviceState,
    DriverError,
    LimitingResourceAdaptor,
    OutOfBudgetError,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem._kernels import check

pytestmark = pytest.mark.simulator
QUERY = "cuStreamIsCapturing"


@contextlib.contextmanager
def queries_with_gil(driver, expected: int) -> Iterator[None]:
    before = driver.calls_with_gil().get(QUERY, 0)
    yield
    assert driver.calls_with_gil().get(QUERY, 0) - before == expected


@contextlib.contextmanager
def only_one_query(driver) -> Iterator[None]:
    """One driver call in all, and with the GIL."""
    before = sum(driver.all_calls().values())
    with queries_with_gil(driver, 1):
        yield
    assert sum(driver.all_calls().values()) - before == 1


def pooled_runtime() -> DeviceRuntime:
    """With a pool that has memory."""
    runtime = DeviceRuntime(resource=PoolMemoryResource())
    runtime.allocate(1 << 20).free()
    return runtime


def read(stream, block) -> None:
    with use(stream, read=block):
        pass


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
        pooled.allocate(64, stream)
    assert pooled.counters()["live_blocks"] == 1


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


# ---------------------------------------------------------------------------------------------- what is wrong
OPERATIONS: dict[str, Callable[[DeviceRuntime, object, object], object]] = {
    "use": lambda runtime, stream, block: read(stream, block),
    "allocate": lambda runtime, stream, block: runtime.allocate(64, stream)}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_capture_is_refused(driver, name):
    pooled = pooled_runtime()
    stream = pooled.acquire_stream()
    block = pooled.allocate(64, stream)
    check(cuda.cuStreamBeginCapture(stream.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    before = pooled.counters()
    with pytest.raises(StreamMisuseError, match="captur"):
        OPERATIONS[name](pooled, stream, block)
    graph = check(cuda.cuStreamEndCapture(stream.handle))
    check(cuda.cuGraphDestroy(graph))
    assert pooled.counters() == before


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_query_that_fails_is_reported_once(driver, name):
    """And changes nothing: no window stays open."""
    pooled = pooled_runtime()
    stream = pooled.acquire_stream()
    block = pooled.allocate(64, stream)
    driver.fail(QUERY, code=999)
    with queries_with_gil(driver, 1), pytest.raises(DriverError, match="cuStreamIsCapturing"):
        OPERATIONS[name](pooled, stream, block)
    assert not pooled.lost
    block.free()
    assert block.state is BlockState.FREED


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_sticky_error_of_the_query_loses_the_device(driver, name):
    runtime = DeviceRuntime(resource=PoolMemoryResource())
    stream = runtime.acquire_stream()
    block = runtime.adopt(1 << 45, 64, stream)
    driver.fail(QUERY, code=700)
    with pytest.raises(DeviceLostError):
        OPERATIONS[name](runtime, stream, block)
    assert runtime.lost
    before = sum(driver.all_calls().values())
    with pytest.raises(DeviceLostError):
        OPERATIONS[name](runtime, stream, block)
    assert sum(driver.all_calls().values()) == before


def test_a_stale_block_is_refused(driver):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block, stale = runtime.allocate(64, stream), runtime.allocate(64, stream)
    stale.free()
    recorder = use(stream, write=[block, stale])
    with queries_with_gil(driver, 1), pytest.raises(UseAfterFreeError, match="argument 2"):
        recorder.preflight()
    block.free()
    assert block.state is BlockState.FREED


def test_what_finalizers_left_comes_first(driver):
    """A recorder that was dropped in its window is filed before the next use opens."""
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)
    recorder = use(S, write=block)
    recorder.preflight()
    with pytest.warns(ResourceWarning, match="dropped between preflight and commit"):
        del recorder
    waits = driver.calls("cuStreamWaitEvent")
    read(T, block)
    assert driver.calls("cuStreamWaitEvent") == waits + 1
    assert runtime.counters()["abandoned"] == 1


def test_a_source_is_not_deleted_between_the_window_and_its_wait(four, driver):
    """The window was opened with the GIL, its wait is queued without it.  Meanwhile the stream that is waited for is
    unregistered, and its place in the tables is wanted by others.  They do not get it before."""
    x = four(policy="lazy")
    foreign = [int(check(cuda.cuStreamCreate(1))) for _ in range(4)]
    block = x.alloc(x.S)
    with use(foreign[0], write=block):
        write = x.work(at(foreign[0]), (block, WRITE))

    def interfere() -> None:
        x.runtime.unregister_stream(foreign[0])
        check(cuda.cuCtxSynchronize())
        x.runtime.reap_pending()
        before = x.runtime.stream_count()
        for handle in foreign[1:3]:
            x.runtime.register_stream(handle)
        grown.append(x.runtime.stream_count() - before)

    grown = []
    driver.on_call("cuCtxGetCurrent", interfere)        # the first call of `prepare_rest`
    read(x.T, block)
    assert x.ordered(write, x.T)
    assert grown == [2]
    x.runtime.register_stream(foreign[3])
    assert x.runtime.stream_count() == 5 + 3            # now it is used again
    for handle in foreign[1:]:
        x.runtime.unregister_stream(handle)
    for handle in foreign:
        check(cuda.cuStreamDestroy(handle))


@pytest.mark.parametrize("conflict", [False, True])
def test_a_context_that_cannot_be_entered_leaves_no_window(four, driver, conflict):
    """After the window was opened, or queued behind another one, with the GIL."""
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    other = None
    if conflict:
        thread = threading.Thread(target=lambda: made.append(x.prepare(x.U, (block, WRITE))))
        made = []
        thread.start()
        thread.join(PATIENCE)
        (other,) = made
    recorder = use(x.T, write=block)
    driver.fail("cuCtxGetCurrent", code=999)
    with pytest.raises(DriverError, match="cuCtxGetCurrent"):
        recorder.preflight()
    if other is not None:
        other.commit()
    with use(x.V, write=block, on_conflict="raise"):    # nothing is open, and nothing waits
        pass
    recorder.preflight()
    recorder.commit()
    block.free()
    assert block.state is BlockState.FREED
