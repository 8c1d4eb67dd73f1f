"""Whether the work on a block, or all of a runtime's, is complete: `synchronize`, `ready`; blocks that are closed."""
from __future__ import annotations

import threading

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream, foreign
from four_streams import READ, WRITE, nothing_happens

from xlogmem import (
    Access,
    AsyncMemoryResource,
    BlockState,
    DeviceBlock,
    DeviceLostError,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    PoolMemoryResource,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
UNKNOWN, LOST = 999, 700


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("what", ["block", "runtime"])
def test_the_host_waits_for_every_use(four, driver, what, dropped):
    """Of several streams; the twin drops one of the waits, and the work there is unordered."""
    x = four()
    driver.set_policy("min")
    block = x.alloc(x.S)
    done = [x.use(x.S, (block, WRITE)), x.use(x.T, (block, READ)), x.use(x.U, (block, READ))]
    if dropped:
        for number in range(1, 5):
            driver.drop("cuEventSynchronize", number)
    {"block": block, "runtime": x.runtime}[what].synchronize()
    assert [x.ordered(operation, x.V) for operation in done] == [not dropped] * 3


@pytest.mark.simulator
@pytest.mark.parametrize("access", Access)
def test_the_host_waits_for_what_an_access_comes_after(four, driver, access):
    """A read comes after writers alone."""
    x = four()
    driver.set_policy("min")
    block = x.alloc(x.S)
    written = x.use(x.S, (block, WRITE))
    read = x.use(x.T, (block, READ))
    assert not block.is_ready(access)
    block.synchronize(access)
    assert x.ordered(written, x.V)
    assert x.ordered(read, x.V) is access.writes
    assert block.is_ready(access)
    assert block.ready is block.is_ready() is access.writes


@pytest.mark.parametrize("access", ["read", 1, None])
def test_an_access_that_is_none_is_refused(access):
    with DeviceRuntime().allocate(64) as block:
        for call in (block.synchronize, block.is_ready):
            with pytest.raises(TypeError, match=r"access must be Access\.READ"):
                call(access)


@pytest.mark.simulator
def test_a_block_waits_for_its_own_uses_alone(four, driver):
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    x.use(x.T, (block, READ))
    driver.set_policy("min")
    other = x.work(x.V)
    block.synchronize()
    assert driver.pending_operations() == 1
    assert not x.ordered(other, x.U)
    waits = x.runtime.counters()["host_waits"]
    block.synchronize()
    assert x.runtime.counters()["host_waits"] == waits      # nothing is waited for twice
    assert block.ready


@pytest.mark.simulator
@pytest.mark.parametrize("opaque", ["", "S"])
def test_a_first_fill_without_a_record_counts(four, driver, opaque):
    x = four(opaque=opaque)
    block = x.alloc(x.S)
    driver.set_policy("min")
    fill = x.work(x.S, (block, WRITE))
    assert not block.ready
    assert not x.runtime.ready
    block.synchronize()
    assert x.ordered(fill, x.T)


@pytest.mark.simulator
def test_ready_queries_and_does_not_wait(four, driver):
    """One query for each stream; it becomes true by itself, without a wait, also where no use was recorded."""
    x = four()
    block = x.alloc(x.S)
    driver.set_policy("min")
    x.use(x.S, (block, WRITE))
    x.use(x.T, (block, READ))
    assert not block.ready
    assert driver.calls("cuEventQuery") + driver.calls("cuStreamQuery") == 1    # the first says enough
    assert not x.runtime.ready
    while driver.pending_operations():
        driver.step()
    assert block.ready
    fresh = x.alloc(x.U)
    x.work(x.U, (fresh, WRITE))
    while driver.pending_operations():
        driver.step()
    for _ in range(3):
        assert fresh.ready
        assert x.runtime.ready
    assert driver.calls("cuEventSynchronize") == driver.calls("cuStreamSynchronize") == 0


@pytest.mark.simulator
def test_what_ready_has_seen_the_host_is_ordered_after(four, driver):
    x = four()
    block = x.alloc(x.S)
    work = [x.use(x.S, (block, WRITE)), x.work(x.T)]
    assert block.ready
    assert x.runtime.ready
    assert [x.ordered(operation, x.U) for operation in work] == [True, True]


@pytest.mark.simulator
def test_a_use_that_is_not_closed_does_not_count(four, driver):
    x = four()
    block = x.alloc(x.S)
    driver.set_policy("min")
    with use(x.T, write=block):
        block.synchronize()
        inside = x.work(x.T, (block, WRITE))
        assert block.ready
    assert not block.ready
    block.synchronize()
    assert x.ordered(inside, x.U)


@pytest.mark.simulator
@pytest.mark.parametrize("name", ["synchronize", "ready"])
def test_no_lock_and_no_gil_is_held(four, driver, name):
    x = four()
    call = {"synchronize": "cuEventSynchronize", "ready": "cuStreamQuery"}[name]
    for what in (x.alloc(x.S), x.runtime):
        x.work(x.S)
        hold = driver.hold(call)
        thread = threading.Thread(target=what.synchronize if name == "synchronize" else lambda what=what: what.ready)
        thread.start()
        assert hold.reached()
        x.runtime.allocate(64, x.T).free()
        assert hold.release()
        thread.join()


@pytest.mark.simulator
@pytest.mark.parametrize("pool", [False, True])
def test_a_block_may_be_freed_while_it_is_waited_for(four, driver, pool):
    x = four(resource=PoolMemoryResource()) if pool else four()
    block = x.alloc(x.S)
    x.work(x.S, (block, WRITE))
    hold = driver.hold("cuEventSynchronize")
    thread = threading.Thread(target=block.synchronize)
    thread.start()
    assert hold.reached()
    block.free()
    x.use(x.S, (x.alloc(x.S), WRITE))
    assert hold.release()
    thread.join()
    for call in (block.synchronize, lambda: block.ready, lambda: block.is_ready(Access.READ)):
        with pytest.raises(UseAfterFreeError):
            call()


@pytest.mark.simulator
def test_streams_of_others(four, driver, _context):
    """One that is gone, one that may be, and another thread's default stream, which cannot be queried."""
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    owner, gone = foreign(x)
    done = [x.use(gone, (block, READ))]
    x.runtime.unregister_stream(owner)
    raw = ForeignStream()
    done.append(x.use(x.runtime.register_stream(raw.handle), (block, READ)))

    def read_there() -> None:
        check(cuda.cuCtxSetCurrent(_context))
        done.append(x.use(x.runtime.register_stream(2), (block, READ)))
    thread = threading.Thread(target=read_there)
    thread.start()
    thread.join()
    block.synchronize()
    assert all(x.ordered(operation, x.U) for operation in done)
    assert not block.ready
    x.runtime.synchronize()
    x.runtime.unregister_stream(raw.handle)


@pytest.mark.simulator
def test_a_capture_is_not_ended(four, driver):
    x = four()
    block = x.alloc(x.S)
    check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
    for call in (block.synchronize, lambda: block.ready, x.runtime.synchronize, lambda: x.runtime.ready):
        with pytest.raises(StreamMisuseError, match="captur"):
            call()
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))      # it is whole
    block.synchronize()
    assert x.runtime.ready


@pytest.mark.simulator
@pytest.mark.parametrize(("name", "call"), [
    ("cuEventSynchronize", lambda runtime, block: block.synchronize()),
    ("cuStreamQuery", lambda runtime, block: block.ready),
    ("cuEventSynchronize", lambda runtime, block: runtime.synchronize()),
    ("cuStreamQuery", lambda runtime, block: runtime.ready)])
def test_failures_are_raised_and_a_lost_device_is_noticed(four, driver, name, call):
    x = four()
    block = x.alloc(x.S)
    x.work(x.S)
    for code, error in ((UNKNOWN, DriverError), (LOST, DeviceLostError)):
        driver.fail(name, code=code)
        with pytest.raises(error, match=name):
            call(x.runtime, block)
    calls = driver.all_calls()
    with pytest.raises(DeviceLostError):
        call(x.runtime, block)
    assert driver.all_calls() == calls
    check(cuda.cuMemFreeAsync(block.ptr, x.S.handle))   # the simulated device lives on


# ---------------------------------------------------------------------------------------------- close
@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_a_block_is_closed_at_the_end_of_with(four, driver, dropped):
    """After every use, as a free is."""
    x = four()
    with x.alloc(x.S) as block:
        x.use(x.T, (block, READ))
        x.work(x.S, (block, READ))                      # which T waits for, because it frees
        if dropped:
            driver.drop("cuStreamWaitEvent")
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    assert block.state is BlockState.FREED


def test_close_may_be_repeated_and_free_may_not(memory):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    block.close(stream)
    frees = runtime.counters()["frees"]
    block.close()
    block.close("what is closed has no use for a stream")
    assert runtime.counters()["frees"] == frees == 1
    with pytest.raises(UseAfterFreeError):
        block.free()
    with pytest.raises(UseAfterFreeError), block:
        pass
    with runtime.allocate(64) as block:
        block.free()
    with pytest.raises(ValueError, match="inside"), runtime.allocate(64) as block:
        raise ValueError("inside")
    assert block.state is BlockState.FREED
    whole = runtime.adopt(memory, 64)
    part = runtime.adopt(memory + 8, 8)
    part.close()                                        # it owns nothing
    assert whole.state is BlockState.LIVE
    with pytest.raises(TypeError, match="not a CUDA stream"):
        whole.close("x")
    unmade = DeviceBlock.__new__(DeviceBlock)
    for call in (unmade.close, unmade.free, unmade.synchronize, lambda: unmade.ready, unmade.__enter__,
                 lambda: unmade.__cuda_array_interface__, lambda: unmade.id):
        with pytest.raises(StreamMisuseError, match="never allocated"):
            call()


@pytest.mark.simulator                                  # which has two devices
def test_one_name_for_the_device():
    runtime = DeviceRuntime(1)
    block, stream = runtime.allocate(64), runtime.acquire_stream()
    for thing in (runtime, block, block.id, stream, runtime.stream_pool, runtime.resource):
        assert thing.device_id == 1
    assert (block.size, block.nbytes) == (64, 64)
    for make in (DeviceRuntime, StreamPool, AsyncMemoryResource, DirectMemoryResource, PoolMemoryResource):
        assert make(device_id=1).device_id == 1
        with pytest.raises(ValueError, match=r"^device_id must be the number of a device"):
            make(device_id=1 << 40)


@pytest.mark.simulator
def test_a_free_looks_at_its_stream_first(driver):
    """As allocations and uses do; then at the block, and nothing happens."""
    runtime, other = DeviceRuntime(), DeviceRuntime()
    block = runtime.allocate(64)
    block.free()
    with nothing_happens(driver, runtime):
        for stream, error in (("x", TypeError), (-5, ValueError), (other.default_stream, StreamMisuseError),
                              (None, UseAfterFreeError), (runtime.default_stream, UseAfterFreeError)):
            with pytest.raises(error) as raised:
                runtime.deallocate(block, stream)
            assert type(raised.value) is error
