"""Graph captures: what is refused, what is deferred, and that no capture is spoiled by a call of ours."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import READ, RELAXED, WRITE, Capture

from xlogmem import (
    Access,
    AsyncMemoryResource,
    BlockState,
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    GuardResourceAdaptor,
    LaunchRecorder,
    LimitingResourceAdaptor,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
GLOBAL = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL


def test_work_on_a_capturing_stream_is_refused(driver):
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)
    with Capture(T):
        before = driver.all_calls()
        with pytest.raises(StreamMisuseError, match="is capturing a graph"):
            LaunchRecorder(T).read(block).preflight()
        with pytest.raises(StreamMisuseError, match="is capturing a graph"):
            runtime.allocate(64, T)
        changed = {name for name, count in driver.all_calls().items() if count != before.get(name, 0)}
        assert changed <= {"cuCtxGetCurrent", "cuStreamIsCapturing"}
    with use(T, read=block):
        pass
    block.free()


@pytest.mark.parametrize("policy", ["adaptive", "precise", "lazy"])
@pytest.mark.parametrize("resource", [
    AsyncMemoryResource, PoolMemoryResource, DirectMemoryResource,
    lambda: GuardResourceAdaptor(AsyncMemoryResource()), lambda: LimitingResourceAdaptor(AsyncMemoryResource(), 4096)])
def test_a_reap_that_does_not_wait_raises_for_no_capture(driver, resource, policy):
    """The stream captures that freed memory, or a blocking stream does, so that the legacy stream may not be used."""
    runtime = DeviceRuntime(resource=resource(), policy=policy)
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    blocking = check(cuda.cuStreamCreate(0))
    runtime.allocate(1024, S).free(T)
    runtime.allocate(1024, S).free(runtime.register_stream(1))
    for stream in (T.handle, blocking):
        for mode in (RELAXED, GLOBAL):
            check(cuda.cuStreamBeginCapture(stream, mode))
            runtime.reap_pending(blocking=False)
            check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(stream))))
    runtime.reap_pending(blocking=False)
    runtime.reap_pending()
    assert runtime.pending_bytes == 0
    check(cuda.cuStreamDestroy(blocking))


def test_an_allocation_without_memory_leaves_no_capture_to_the_next_reap(driver):
    """To make room, it has waited for the frees on all streams that do not capture."""
    runtime = DeviceRuntime(resource=LimitingResourceAdaptor(AsyncMemoryResource(), 4096))
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    runtime.allocate(4096, S).free(T)
    with Capture(T):
        with pytest.raises(OutOfBudgetError):
            runtime.allocate(4096, S)
        runtime.reap_pending(blocking=False)
    runtime.allocate(4096, S).free()


def test_a_capture_that_begins_beside_the_record_of_a_poll_is_no_failure(driver):
    """The driver refuses the legacy stream from then on, and the query before the record has not seen it."""
    runtime = DeviceRuntime()
    runtime.allocate(1024, runtime.acquire_stream()).free(runtime.register_stream(1))
    blocking = check(cuda.cuStreamCreate(0))
    driver.on_call("cuEventRecord", lambda: check(cuda.cuStreamBeginCapture(blocking, RELAXED)))
    runtime.reap_pending(blocking=False)
    cuda.cuStreamEndCapture(blocking)
    check(cuda.cuStreamDestroy(blocking))
    runtime.reap_pending()


def test_a_pool_whose_memory_a_capturing_stream_has_used_is_out_of_memory(driver):
    pool = PoolMemoryResource(initial_pool_size=1 << 20, maximum_pool_size=1 << 20)
    runtime = DeviceRuntime(resource=pool)
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    runtime.allocate(1 << 20, S).free()
    with Capture(S):
        with pytest.raises(OutOfDeviceMemoryError, match=f"stream {S.id}, which used them, is capturing a graph"):
            runtime.allocate(1 << 20, T)
        runtime.reap_pending(blocking=False)
    runtime.allocate(1 << 20, T).free()


def test_a_stream_that_has_joined_a_capture_is_refused_too(driver):
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)
    event = check(cuda.cuEventCreate(2))
    with Capture(S):
        check(cuda.cuEventRecord(event, S.handle))
        runtime.allocate(64, T).free()          # it does not capture yet
        check(cuda.cuStreamWaitEvent(T.handle, event, 0))
        with pytest.raises(StreamMisuseError, match="is capturing a graph"):
            LaunchRecorder(T).read(block).preflight()
        with pytest.raises(StreamMisuseError, match="is capturing a graph"):
            runtime.allocate(64, T)
    with use(T, read=block):
        pass
    check(cuda.cuEventDestroy(event))
    block.free()


@pytest.mark.parametrize("retired", [False, True])
@pytest.mark.parametrize("foreign", [False, True])
def test_what_a_capture_took_cannot_be_recorded(four, driver, foreign, retired):
    """It is queued when the graph is launched, perhaps after the free.  Nothing is filed; later it can be."""
    x = four()
    owner = ForeignStream()
    T = x.runtime.register_stream(owner) if foreign else x.T
    state = DeviceState(x.runtime)
    buffer = state.empty(64, "uint8", x.S)
    block = buffer.access()
    window = x.prepare(x.S, (block, READ))
    identity, before = block.id, dict(block.frontier)
    calls = [lambda: x.runtime.record_block_use(identity, T),
             lambda: x.runtime.finish_block_use(identity, T, Access.WRITE),
             lambda: x.runtime.finish_block_use(identity, T, Access.READ)]
    if retired:
        block.free()
    else:
        calls.append(lambda: buffer.record_write(T))
    with Capture(T):
        for call in calls:
            queries = driver.calls("cuStreamIsCapturing")
            with pytest.raises(StreamMisuseError, match="is capturing a graph"):
                call()
            assert driver.calls("cuStreamIsCapturing") <= queries + 1 + foreign
            assert block.frontier == before
    if retired:
        with pytest.raises(UseAfterFreeError):
            calls[0]()
    else:
        calls[0]()
    assert block.frontier.keys() == {("allocated", x.S.id), ("written", T.id)}
    window.commit()


def test_a_capturing_source_is_refused_before_any_wait(four, driver):
    """S committed before its owner began a capture; a fence recorded there now would belong to the graph."""
    x = four()
    b, c = x.alloc(x.S), x.alloc(x.U)
    x.use(x.S, (b, WRITE))
    x.use(x.U, (c, WRITE))
    with Capture(x.S):
        records, waits = x.records(), x.waits()
        with pytest.raises(StreamMisuseError, match="which this work has to wait for"):
            x.prepare(x.T, (c, READ), (b, READ))
        assert (x.records(), x.waits()) == (records, waits)
        x.use(x.T, (c, READ))                           # what does not need S goes on
    x.use(x.T, (b, READ))


def test_a_capture_that_begins_under_a_record_is_noticed_after_it(four, driver):
    """S was not capturing when it was queried; when the event is recorded it is, and the event belongs to the graph."""
    x = four()
    b = x.alloc(x.S)
    write = x.use(x.S, (b, WRITE))
    capture = Capture(x.S)
    driver.on_call("cuEventRecord", capture.__enter__)
    with pytest.raises(StreamMisuseError, match="which this work has to wait for"):
        x.prepare(x.T, (b, READ))
    assert x.waits() == 0
    capture.__exit__()
    x.use(x.T, (b, READ))
    assert x.ordered(write, x.T)


def test_a_fence_that_is_there_serves_during_a_capture(four, driver):
    x = four(sealed="S", policy="precise")
    b = x.alloc(x.S)
    write = x.use(x.S, (b, WRITE))
    with Capture(x.S):
        x.use(x.T, (b, READ))
    assert x.ordered(write, x.T)


def test_frees_are_deferred_until_the_capture_is_over(four, driver):
    x = four()
    blocks = [x.alloc(x.S) for _ in range(20)]
    other = x.alloc(x.T)
    with Capture(x.S):
        for b in blocks:
            b.free()
        assert {b.state for b in blocks} == {BlockState.RETIRED}
        assert x.runtime.live_bytes == 21 * 512
        before = driver.calls("cuStreamIsCapturing")
        x.use(x.T, (other, WRITE))
        assert driver.calls("cuStreamIsCapturing") - before <= 3    # not one for each of them
        x.runtime.reap_pending()                        # deferred is not failed
    assert x.runtime.counters()["failed_frees"] == 0
    x.runtime.reap_pending()
    assert {b.state for b in blocks} == {BlockState.FREED}
    assert x.runtime.bytes_outstanding == 512


def test_a_dropped_block_waits_for_the_end_of_a_capture_of_its_reader(four, driver):
    """Without an error: its free would need a fence of T.  Others of the same home are freed."""
    x = four()
    read, other = x.alloc(x.S), x.alloc(x.S)
    launch = x.use(x.T, (read, READ))
    word = read.ptr
    with Capture(x.T):
        del read, other
        for blocking in (True, False, True):
            x.runtime.reap_pending(blocking=blocking)
        assert x.runtime.live_bytes == 512
        assert x.runtime.find_block(word) is not None
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0
    assert x.runtime.counters()["failed_frees"] == 0
    assert x.ordered(launch, x.S)


def test_a_global_capture_of_other_code_is_not_spoiled(four, driver):
    """In global mode every thread's allocations, frees, queries and synchronizes would be refused and spoil it."""
    x = four()
    kept = x.alloc(x.S)
    with Capture(x.V, GLOBAL):
        b = x.alloc(x.S)
        x.use(x.S, (b, WRITE))
        x.use(x.T, (b, READ), (kept, READ))
        b.free()
        x.runtime.reap_pending(blocking=False)
        x.runtime.reap_pending()
    assert x.runtime.pending_bytes == 0
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert check(cuda.cuThreadExchangeStreamCaptureMode(mode)) == mode          # and the thread's mode is its own


def test_the_hand_back_to_a_capturing_stream_waits_on_the_host(four, driver):
    x = four(opaque="S")
    b = x.alloc(x.S)
    window = x.prepare(x.T, (b, WRITE))
    launch = x.work(x.T, (b, WRITE))
    with Capture(x.S):
        before = driver.calls("cuEventSynchronize")
        window.commit()
        assert driver.calls("cuEventSynchronize") == before + 1
    assert x.ordered(launch, x.S)


def test_the_legacy_stream_counts_as_capturing_while_a_blocking_stream_does(four, driver):
    """It may not be used then, and the driver refuses even to say whether it captures."""
    x = four()
    b, c, d = x.alloc(x.S), x.alloc(x.S), x.runtime.allocate(512, 0)
    with use(0, read_write=b, runtime=x.runtime):
        x.kernels.fill(0, b.ptr, 1, 1)
    blocking = check(cuda.cuStreamCreate(0))
    check(cuda.cuStreamBeginCapture(blocking, RELAXED))
    with pytest.raises(StreamMisuseError, match="is capturing a graph"):
        LaunchRecorder(0, runtime=x.runtime).read(c).preflight()
    with pytest.raises(StreamMisuseError, match="which this work has to wait for"):
        x.prepare(x.T, (b, WRITE))
    d.free()
    assert d.state is BlockState.RETIRED
    x.use(x.T, (c, READ))
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(blocking))))
    x.use(x.T, (b, WRITE))
    x.runtime.reap_pending()
    assert d.state is BlockState.FREED
    check(cuda.cuStreamDestroy(blocking))
