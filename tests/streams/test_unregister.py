"""Streams that are unregistered: their last fence, and the successor of what they freed."""
from __future__ import annotations

import threading
import time

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream, foreign
from four_streams import READ, READ_WRITE, WRITE

from xlogmem import (
    BlockState,
    DeviceRuntime,
    DriverError,
    StreamMisuseError,
    use,
)
from xlogmem.sim.kernels import check


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_last_fence_covers_the_fill(four, driver, dropped):
    """S is unregistered after a fill; an older fence already has S's newest position."""
    x = four()
    owner, S = foreign(x)
    b, other = x.alloc(S), x.alloc(S)
    x.use(x.T, (other, READ))
    fill = x.work(S, (b, WRITE))
    if dropped:
        driver.drop("cuEventRecord")                    # the twin: the last fence is not recorded
    x.runtime.unregister_stream(S, successor=x.V)
    owner.destroy()
    x.use(x.T, (b, READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    assert x.ordered(fill, x.T) == (not dropped)


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.promise(47)
def test_free_on_the_successor_remembers_stream_order(four, driver, dropped):
    """T wrote b, so S's entry is gone; then S is used again, ordered by hand; S is unregistered and b is freed on V."""
    x = four()
    driver.set_policy("min")                            # the host sees nothing complete
    owner, S = foreign(x)
    b = x.alloc(S)
    x.use(x.T, (b, WRITE))
    own_event = check(cuda.cuEventCreate(2))
    check(cuda.cuEventRecord(own_event, x.T.handle))
    check(cuda.cuStreamWaitEvent(S.handle, own_event, 0))
    late = x.work(S)
    x.runtime.unregister_stream(S, successor=x.V)
    owner.destroy()
    if dropped:
        driver.drop("cuStreamWaitEvent", 2)
        driver.drop("cuStreamWaitEvent", 1)
    b.free()
    driver.clear_races()
    assert x.ordered(late, x.V) == (not dropped)
    assert b.state is BlockState.FREED
    check(cuda.cuEventDestroy(own_event))


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_work_after_the_newest_fence_is_not_forgotten(four, driver, dropped):
    """V is ordered after all positions of S; then S is used again, and V frees its blocks as its successor."""
    x = four(policy="lazy")
    driver.set_policy("min")                            # the host sees nothing complete
    owner, S = foreign(x)
    b = x.alloc(S)
    for _ in range(2):
        x.use(x.V, (b, READ))
    late = x.work(S)
    x.runtime.unregister_stream(S, successor=x.V)
    owner.destroy()
    if dropped:
        driver.drop("cuStreamWaitEvent")
    b.free()
    assert x.ordered(late, x.V) == (not dropped)
    driver.clear_races()


@pytest.mark.simulator
def test_unregister_with_an_open_window(four):
    x = four()
    _owner, T = foreign(x)
    b = x.alloc(x.S)
    window = x.prepare(T, (b, READ))
    with pytest.raises(StreamMisuseError, match="in use"):
        x.runtime.unregister_stream(T, successor=x.V)
    op = x.work(T, (b, READ))
    window.commit()
    x.runtime.unregister_stream(T)
    b.free()
    assert x.ordered(op, x.S)


@pytest.mark.simulator
def test_event_moves_to_another_stream_before_the_wait(four, driver):
    """A fence of S is chosen for a wait; before the wait S is unregistered, and its events are used elsewhere.  The
    pinned one is not."""
    x = four(policy="lazy")
    owner, S = foreign(x)
    b, c = x.alloc(S), x.alloc(x.U)
    write = x.use(S, (b, WRITE))
    x.use(x.T, (b, READ))                               # a fence covers the write now, and b is not fresh any more

    def meanwhile():
        x.runtime.unregister_stream(S, successor=x.U)
        for _ in range(12):
            x.use(x.U, (c, READ_WRITE))
            x.use(x.T, (c, READ_WRITE))

    driver.on_call("cuStreamWaitEvent", meanwhile)
    x.use(x.V, (b, READ))
    assert x.ordered(write, x.V)
    del owner


@pytest.mark.simulator
def test_two_threads_unregister_each_other(four, driver):
    x = four()
    (a, S), (b, T) = foreign(x), foreign(x)
    refused = []

    def crosswise():
        try:
            x.runtime.unregister_stream(T, successor=S)
        except StreamMisuseError as error:
            refused.append(str(error))

    driver.on_call("cuEventRecord", crosswise)
    try:
        x.runtime.unregister_stream(S, successor=T)
    except StreamMisuseError as error:
        refused.append(str(error))
    assert len(refused) == 1
    assert S.registered != T.registered
    del a, b


@pytest.mark.simulator
def test_a_stream_cannot_be_unregistered_while_a_fence_is_recorded_on_it(four, driver):
    x = four()
    owner, S = foreign(x)
    b = x.alloc(S)
    refused = []

    def unregister():
        with pytest.raises(StreamMisuseError, match="in use") as error:
            x.runtime.unregister_stream(S, successor=x.U)
        refused.append(error)

    driver.on_call("cuEventRecord", unregister)
    x.use(x.T, (b, READ))
    assert len(refused) == 1
    del owner


@pytest.mark.simulator
def test_a_use_while_the_last_fence_is_recorded_keeps_the_stream(four, driver):
    """The fence does not cover the use, so it cannot be the last."""
    x = four()
    owner, S = foreign(x)
    b = x.alloc(x.U)
    late = []
    driver.on_call("cuEventRecord", lambda: late.append(x.use(S, (b, WRITE))), when="after")
    with pytest.raises(StreamMisuseError, match="in use"):
        x.runtime.unregister_stream(S, successor=x.V)
    assert S.registered
    x.use(x.T, (b, READ))
    assert x.ordered(late[0], x.T)
    x.runtime.unregister_stream(S, successor=x.V)
    del owner


@pytest.mark.simulator
def test_the_last_fence_is_kept_until_it_is_complete(four, driver):
    """A reap that only looks finds work that a destroyed stream has not done yet."""
    x = four()
    owner, S = foreign(x)
    b = x.alloc(x.U)
    driver.set_policy("min")
    write = x.use(S, (b, WRITE))
    x.runtime.unregister_stream(S, successor=x.V)
    owner.destroy()
    x.runtime.reap_pending(blocking=False)
    assert driver.pending_operations() > 0
    x.use(x.T, (b, READ))
    assert x.ordered(write, x.T)


@pytest.mark.simulator
@pytest.mark.promise(47)
def test_refused_unregistrations(four, driver):
    x = four()
    owner, S = foreign(x)
    block = x.alloc(S)
    with pytest.raises(StreamMisuseError, match="pool's own"):
        x.runtime.unregister_stream(x.T)
    with pytest.raises(StreamMisuseError, match="unregistered"):
        x.runtime.unregister_stream(S, successor=S)
    driver.fail("cuEventRecord", code=999)
    with pytest.raises(Exception, match="cuEventRecord"):
        x.runtime.unregister_stream(S)
    assert S.registered
    check(cuda.cuStreamBeginCapture(S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(StreamMisuseError, match="capturing"):
        x.runtime.unregister_stream(S)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(S.handle))))
    x.runtime.unregister_stream(owner)
    assert not S.registered
    for dead in (lambda: x.runtime.allocate(64, S), lambda: block.free(S), lambda: x.runtime.unregister_stream(S)):
        with pytest.raises(StreamMisuseError, match=r"unregistered|not registered"):
            dead()
    assert x.runtime.register_stream(owner) != S


@pytest.mark.simulator
def test_a_dropped_recorder_does_not_keep_its_stream_in_use():
    runtime = DeviceRuntime()
    block, owner = runtime.allocate(256), ForeignStream()
    recorder = use(owner, read=block)
    recorder.preflight()
    with pytest.warns(ResourceWarning):
        del recorder
    runtime.unregister_stream(owner)


@pytest.mark.simulator
def test_a_failed_query_is_reported_and_the_stream_stays(driver):
    runtime = DeviceRuntime()
    owner = ForeignStream()
    stream = runtime.register_stream(owner)
    driver.fail("cuStreamGetId", code=999)
    with pytest.raises(DriverError, match="cuStreamGetId"):
        runtime.unregister_stream(owner)
    assert stream.registered
    assert driver.calls("cuCtxSynchronize") == 0
    with pytest.raises(StreamMisuseError, match="not registered"):
        runtime.unregister_stream(ForeignStream())


@pytest.mark.simulator
@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamIsCapturing"])
def test_unregistering_waits_for_another_threads_reap(four, driver, call):
    """It records on the stream, or queries it, to learn whether its frees are complete."""
    x = four()
    owner, S = foreign(x)
    x.alloc(S).free()
    held_up = driver.hold(call)
    context = check(cuda.cuCtxGetCurrent())
    failures = []

    def run(function):
        try:
            check(cuda.cuCtxSetCurrent(context))
            function()
        except Exception as error:
            failures.append(error)

    reaper = threading.Thread(target=run, args=[lambda: x.runtime.reap_pending(blocking=False)])
    reaper.start()
    assert held_up.reached()
    before = driver.calls("cuStreamGetId")
    other = threading.Thread(target=run, args=[lambda: x.runtime.unregister_stream(S)])
    other.start()
    while driver.calls("cuStreamGetId") == before:      # it looks whether the stream was destroyed, and then waits
        time.sleep(.001)
    time.sleep(.01)
    assert S.registered
    assert held_up.release()
    reaper.join()
    other.join()
    assert failures == []
    assert not S.registered
    del owner
