"""What a DLPack consumer does until it releases the export."""
from __future__ import annotations

import pytest
from capsules import Taken, settle
from cuda.bindings import driver as cuda
from four_streams import WRITE

from xlogmem import (
    BlockState,
    DeviceRuntime,
    DeviceState,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem.blocks import unfinished_runtimes
from xlogmem.sim.kernels import check


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("when", ["exported", "after a write elsewhere", "released", "freed"])
def test_what_a_consumer_does_on_its_stream_is_waited_for(four, driver, when, dropped):
    """Its work is unrecorded: its stream counts as opaque for this block until the deleter runs, and no longer."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    taken = Taken(buffer.__dlpack__(stream=x.T.handle))
    if when == "after a write elsewhere":
        x.use(x.S, (buffer.access(), WRITE))
        event = check(cuda.cuEventCreate(2))            # the consumer orders its stream after it, and goes on
        check(cuda.cuEventRecord(event, x.S.handle))
        check(cuda.cuStreamWaitEvent(x.T.handle, event, 0))
        check(cuda.cuEventDestroy(event))
    done = x.work(x.T, (buffer.access(), WRITE))
    if when in ("released", "freed"):
        taken.delete()
        settle()
        x.work(x.T)                                     # later work of its stream is not the block's
    if dropped:
        for nth in (1, 2):
            driver.drop("cuStreamWaitEvent", nth)
    if when == "freed":
        buffer.access().free(x.S)                       # named: else T, which has used it, would free it
    else:
        with use(x.U, write=buffer):
            x.work(x.U, (buffer.access(), WRITE))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    if not dropped:
        assert x.ordered(done, x.S if when == "freed" else x.U)
    if when in ("exported", "after a write elsewhere"):
        taken.delete()
        settle()
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.simulator
@pytest.mark.promise(194)
def test_a_free_waits_for_the_deleter(four, driver):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    block = buffer.access()
    taken = [Taken(buffer.__dlpack__(stream=stream)) for stream in (1, x.T.handle, x.T.handle)]
    block.free()
    assert block.state is BlockState.RETIRED
    with pytest.raises(UseAfterFreeError):
        buffer.__dlpack__(stream=1)
    with pytest.raises(UseAfterFreeError):
        buffer.__dlpack__(stream=-1)
    for number, one in enumerate(taken):
        last = x.work(x.T)
        assert block.state is BlockState.RETIRED
        one.delete()
        settle()
        x.runtime.reap_pending(blocking=False)
        assert (block.state is BlockState.FREED) == (number == 2)
    assert x.ordered(last, x.S)                         # freed there, after the consumer


@pytest.mark.simulator
@pytest.mark.parametrize("stream", ["raw", "minus one"])
def test_a_consumers_stream_without_a_known_owner_is_never_touched_again(four, driver, stream):
    """It may be destroyed before the deleter runs.  The block is freed by a blocking reap, after the whole context."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    other = check(cuda.cuStreamCreate(1))
    taken = Taken(buffer.__dlpack__(stream=int(other) if stream == "raw" else -1))
    if stream == "minus one":
        check(cuda.cuStreamSynchronize(x.S.handle))
    x.kernels.fill(int(other), taken.tensor.data, 1, 1)
    check(cuda.cuStreamDestroy(other))
    taken.delete()
    settle()
    del buffer
    x.runtime.reap_pending(blocking=False)
    assert x.runtime.live_bytes == 512                  # the consumer's work is not known to be done
    syncs = driver.calls("cuCtxSynchronize")
    x.runtime.reap_pending()
    assert driver.calls("cuCtxSynchronize") == syncs + 1
    assert x.runtime.bytes_outstanding == 0
    x.runtime.reap_pending()
    assert driver.calls("cuCtxSynchronize") == syncs + 1
    assert not driver.races()                           # nor a use of a destroyed stream


@pytest.mark.simulator
def test_an_export_without_a_stream_is_not_waited_for_when_memory_runs_out(four, driver):
    x = four()
    state = DeviceState(x.runtime)
    Taken(state.full(512, 1, "uint8", x.S).__dlpack__(stream=-1)).delete()
    settle()
    assert x.runtime.live_bytes == 512
    driver.fail("cuMemAllocFromPoolAsync", code=2)
    syncs = driver.calls("cuCtxSynchronize")
    buffer = state.empty(64, "uint8")
    assert x.runtime.live_bytes == 512 + 64
    for nth in (1, 2):
        driver.fail("cuMemAllocFromPoolAsync", nth, code=2)
    with pytest.raises(OutOfDeviceMemoryError, match=r"OUT_OF_MEMORY.*reap_pending.*while allocating 64 bytes"):
        state.empty(64, "uint8")
    assert driver.calls("cuCtxSynchronize") == syncs
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == buffer.nbytes == 64


@pytest.mark.simulator
def test_a_runtime_ends_with_an_export_without_a_stream(driver):
    state = DeviceState(DeviceRuntime())
    Taken(state.full(512, 1, "uint8").__dlpack__(stream=-1)).delete()
    del state
    settle()
    assert unfinished_runtimes() == 1                   # a finalizer does not wait for the context
    assert driver.live_bytes() == 512
    DeviceRuntime()
    assert unfinished_runtimes() == 0
    assert driver.live_bytes() == 0


@pytest.mark.simulator
def test_exports_cost_no_event_in_a_steady_state(four, driver):
    """One wait where the consumer's stream is not ordered yet, and no event made."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    for turn in range(20):
        if turn == 10:
            before = driver.all_calls()
        buffer.fill(turn, x.S)
        Taken(buffer.__dlpack__(stream=x.T.handle)).delete()
        settle()
    after = driver.all_calls()
    assert after.get("cuEventCreate", 0) == before.get("cuEventCreate", 0)
    assert after["cuStreamWaitEvent"] - before["cuStreamWaitEvent"] == 20    # there and back, ten times
    before = driver.all_calls()
    for _ in range(10):                                 # nothing new to wait for
        Taken(buffer.__dlpack__(stream=x.T.handle)).delete()
        settle()
    after = driver.all_calls()
    assert after["cuStreamWaitEvent"] == before["cuStreamWaitEvent"]


@pytest.mark.simulator
def test_a_consumer_that_captures_is_refused(four, driver):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    check(cuda.cuStreamBeginCapture(x.T.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(StreamMisuseError, match="capturing"):
        buffer.__dlpack__(stream=x.T.handle)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.T.handle))))
    Taken(buffer.__dlpack__(stream=x.T.handle)).delete()
    settle()
