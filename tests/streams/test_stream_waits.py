"""Streams and events as a whole: waits, records, the current stream."""
from __future__ import annotations

import asyncio
import contextvars
import gc
import sysconfig
import threading
from types import SimpleNamespace

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream, foreign
from four_streams import READ, WRITE

import xlogmem
from xlogmem import (
    DeviceLostError,
    DeviceRuntime,
    DriverError,
    Event,
    Stream,
    StreamMisuseError,
    StreamPool,
    _driver,
    current_stream,
)
from xlogmem.sim.kernels import check

UNKNOWN, LOST = 999, 700
RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

# How T is ordered after what is on S.
WAYS = {
    "a stream": lambda x: x.T.wait(x.S),
    "a handle": lambda x: x.T.wait(x.S.handle),
    "an event": lambda x: x.T.wait(x.S.record()),
    "wait_event": lambda x: x.T.wait_event(x.S.record()),
    "the handle of an event": lambda x: wait_by_handle(x.T, x.S.record()),
    "the host": lambda x: x.S.synchronize(),
    "the host, for an event": lambda x: x.S.record().sync(),
}


def wait_by_handle(stream: Stream, event: Event) -> None:
    stream.wait_event(event.handle)


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_enqueued_so_far_is_waited_for(four, driver, way, dropped):
    """Recorded or not; the twin drops the wait."""
    x = four()
    driver.set_policy("min")
    work = x.work(x.S)
    if dropped:
        driver.drop("cuEventSynchronize" if "host" in way else "cuStreamWaitEvent")
    WAYS[way](x)
    assert x.ordered(work, x.T) != dropped


@pytest.mark.simulator
@pytest.mark.parametrize("way", WAYS)
def test_what_comes_later_is_not_waited_for(four, way):
    x = four()
    x.work(x.S)
    WAYS[way](x)
    later = x.work(x.S)
    assert not x.ordered(later, x.T)


@pytest.mark.simulator
def test_an_event_covers_what_no_position_does(four):
    """T is ordered after every position of S, and not after the work that S got since."""
    x = four()
    x.T.wait(x.S)
    work = x.work(x.S)
    event = x.S.record()
    x.T.wait(event)
    assert x.ordered(work, x.T)


@pytest.mark.simulator
def test_an_event_is_what_it_was_when_it_was_recorded(four):
    """However many records follow, and also when its stream has ended up in another one's way."""
    x = four()
    work = x.work(x.S)
    event = x.S.record()
    later = [(x.work(x.S), x.S.record()) for _ in range(20)]
    x.T.wait(event)
    assert x.ordered(work, x.T)
    assert not x.ordered(later[0][0], x.T)
    x.U.wait(later[10][1])
    assert x.ordered(later[10][0], x.U)
    assert not x.ordered(later[11][0], x.U)


@pytest.mark.simulator
def test_a_wait_is_not_made_twice(four, driver):
    """`use` knows what was waited for here, and the other way round."""
    x = four(sealed="S")                                # where no unrecorded work is looked for
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    x.T.wait(x.S)
    waits = x.waits()
    x.use(x.T, (block, READ))
    assert x.waits() == waits
    event = x.S.record()
    x.V.wait(event)
    before = driver.all_calls()
    x.V.wait(event)
    x.S.wait(event)
    x.S.wait(x.S)
    assert driver.calls("cuStreamWaitEvent") == before["cuStreamWaitEvent"]
    x.S.synchronize()
    assert event.ready
    assert driver.calls("cuEventQuery") == 0


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_streams_and_events_of_another_runtime_are_waited_for(four, driver, dropped):
    x = four()
    other = DeviceRuntime().acquire_stream()
    for wait in (lambda: x.T.wait(other), lambda: x.T.wait(other.record())):
        work = x.work(other)
        if dropped:
            driver.drop("cuStreamWaitEvent")
        wait()
        assert x.ordered(work, x.T) != dropped


@pytest.mark.simulator
def test_foreign_streams_and_events_are_waited_for(four):
    x = four()
    owner, registered = foreign(x)
    work = x.work(registered)
    x.T.wait(owner)
    assert x.ordered(work, x.T)
    own = check(cuda.cuEventCreate(2))
    kinds = {"cuda.bindings": own, "PyTorch": SimpleNamespace(cuda_event=int(own)),
             "CuPy": type("Event", (), {"ptr": int(own), "synchronize": lambda self: None})(),
             "cuda.core": type("Event", (), {"handle": own, "sync": lambda self: None})()}
    for name, event in kinds.items():
        work = x.work(x.S)
        check(cuda.cuEventRecord(own, x.S.handle))
        x.T.wait_event(event)
        assert x.ordered(work, x.T), name
        if name != "PyTorch":                           # whose class is torch.cuda.Event
            work = x.work(x.S)
            check(cuda.cuEventRecord(own, x.S.handle))
            x.U.wait(event)
            assert x.ordered(work, x.U), name
    check(cuda.cuEventDestroy(own))
    for wrong in ("x", None, x.S, owner, 1.5, object(), x.alloc(x.S)):
        with pytest.raises(TypeError, match="not a CUDA event"):
            x.T.wait_event(wrong)
    for wrong in (0, -1, 1 << 64):
        with pytest.raises(ValueError, match="not a CUDA event handle"):
            x.T.wait_event(wrong)
    for wrong in ("x", None, x.alloc(x.S), [x.S]):
        with pytest.raises(TypeError, match="not a CUDA stream"):
            x.T.wait(wrong)


@pytest.mark.simulator
def test_ready_does_not_wait(four, driver):
    x = four()
    driver.set_policy("min")
    x.work(x.S)
    event = x.S.record()
    assert not event.ready
    assert not event.is_done
    assert driver.calls("cuEventQuery") == 2
    assert driver.calls("cuEventSynchronize") == 0
    event.synchronize()
    assert event.ready
    assert driver.calls("cuEventQuery") == 2            # the host knows


@pytest.mark.simulator
def test_the_gil_is_released_while_the_host_waits(four, driver):
    x = four()
    event = x.S.record()
    for call in (x.S.synchronize, x.S.sync, event.synchronize, x.T.synchronize):
        hold = driver.hold("cuEventSynchronize")
        x.work(x.S)
        thread = threading.Thread(target=call)
        thread.start()
        if call != event.synchronize or not event.ready:
            assert hold.reached()
        hold.release()
        thread.join()


@pytest.mark.simulator
def test_events_are_used_again_and_none_is_left(four, driver):
    """Their finalizer makes no driver call and takes no lock; the next record, or the end, has them spare again."""
    x = four()
    before = _driver.live_events()[0]
    for _ in range(100):
        event = x.S.record()
        kept = [x.S.record(), x.T.record()]
        calls = driver.all_calls()
        del event, kept
        assert driver.all_calls() == calls
    assert _driver.live_events()[0] <= before + 4
    assert driver.calls("cuEventCreate") < 16
    event = x.S.record()
    assert event.stream == x.S
    assert str(x.S.id) in repr(event)
    for make in (Event, lambda: Event.__new__(Event).ready, lambda: Event.__new__(Event).synchronize(),
                 lambda: x.S.wait(Event.__new__(Event)), lambda: Event.__new__(Event).handle):
        with pytest.raises((TypeError, StreamMisuseError)):
            make()


@pytest.mark.simulator
def test_an_event_keeps_its_runtime_and_outlives_a_stream(driver):
    runtime = DeviceRuntime()
    owner = ForeignStream()
    events = [runtime.acquire_stream().record(), runtime.register_stream(owner).record()]
    stream = runtime.acquire_stream()
    runtime.unregister_stream(owner)
    owner.destroy()
    del runtime
    gc.collect()
    for event in events:
        stream.wait(event)
        event.synchronize()
        assert event.ready


@pytest.mark.simulator
def test_what_cannot_be_waited_for_is_refused(four, driver, _context):
    """Nothing is enqueued or recorded."""
    x = four()
    owner, gone = foreign(x)
    event = gone.record()
    x.runtime.unregister_stream(owner)
    unmade, poolless = Stream.__new__(Stream), StreamPool().acquire()
    before = driver.calls("cuEventRecord"), driver.calls("cuStreamWaitEvent")
    for call in (gone.synchronize, gone.record, lambda: gone.wait(x.S), lambda: gone.wait(event),
                 lambda: x.S.wait(gone), unmade.synchronize, unmade.record, lambda: unmade.wait(x.S),
                 lambda: x.S.wait(unmade),
                 lambda: poolless.wait(x.S.handle), unmade.__enter__):
        with pytest.raises(StreamMisuseError, match=r"unregistered|never made|belongs to no runtime"):
            call()
    seen = []
    thread = threading.Thread(target=lambda: seen.append(x.runtime.register_stream(2)))
    thread.start()
    thread.join()
    for call in (seen[0].synchronize, seen[0].record, lambda: seen[0].wait(x.S), lambda: x.S.wait(seen[0])):
        with pytest.raises(StreamMisuseError, match="per-thread default stream of another thread"):
            call()
    assert (driver.calls("cuEventRecord"), driver.calls("cuStreamWaitEvent")) == before


@pytest.mark.simulator
def test_a_stream_that_captures_is_left_alone(four, driver):
    x = four()
    event = x.T.record()
    check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
    for call in (x.S.synchronize, x.S.record, lambda: x.S.wait(x.T), lambda: x.S.wait(event), lambda: x.T.wait(x.S),
                 lambda: x.S.wait_event(event.handle)):
        with pytest.raises(StreamMisuseError, match="captur"):
            call()
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))      # it is whole
    x.S.synchronize()


@pytest.mark.simulator
@pytest.mark.parametrize(("name", "call"), [
    ("cuEventRecord", lambda x, event: x.S.record()), ("cuEventRecord", lambda x, event: x.S.synchronize()),
    ("cuEventSynchronize", lambda x, event: x.S.synchronize()), ("cuStreamWaitEvent", lambda x, event: x.T.wait(event)),
    ("cuStreamWaitEvent", lambda x, event: x.T.wait(x.S)), ("cuEventQuery", lambda x, event: event.ready),
    ("cuEventSynchronize", lambda x, event: event.synchronize())])
def test_calls_that_fail_may_be_made_again(four, driver, name, call):
    x = four()
    driver.set_policy("min")
    x.work(x.S)
    event = x.S.record()
    driver.fail(name, code=UNKNOWN)
    with pytest.raises(DriverError, match=name):
        call(x, event)
    call(x, event)
    work = x.work(x.S)
    x.T.wait(x.S)
    assert x.ordered(work, x.T)


@pytest.mark.simulator
def test_a_lost_device_is_noticed_here_too(four, driver):
    x = four()
    event = x.S.record()
    driver.fail("cuEventRecord", code=LOST)
    with pytest.raises(DeviceLostError):
        x.S.synchronize()
    assert x.runtime.lost
    calls = driver.all_calls()
    for call in (x.S.synchronize, x.S.record, lambda: x.T.wait(event), event.synchronize, lambda: event.ready):
        with pytest.raises(DeviceLostError):
            call()
    assert driver.all_calls() == calls


# ---------------------------------------------------------------------------------------------- with stream:
def test_the_innermost_stream_is_current():
    runtime = DeviceRuntime()
    one, two = runtime.acquire_stream(), runtime.acquire_stream()
    assert current_stream() is xlogmem.current_stream() is None
    with one as entered:
        assert entered is one is current_stream()
        with two, one:
            assert current_stream() is one
        with pytest.raises(ValueError, match="inside"), two:
            raise ValueError("inside")
        assert current_stream() is one
    assert current_stream() is None


def test_each_thread_and_each_task_has_its_own():
    runtime = DeviceRuntime()
    one, two = runtime.acquire_stream(), runtime.acquire_stream()
    seen: list[object] = []

    async def enter(stream: Stream) -> None:
        with stream:
            await asyncio.sleep(0)
            seen.append(current_stream() is stream)

    async def both() -> None:
        await asyncio.gather(enter(one), enter(two))

    with one:
        thread = threading.Thread(target=lambda: seen.append(current_stream()))
        thread.start()
        thread.join()
        asyncio.run(both())
        assert current_stream() is one
    free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")         # there a thread begins with its maker's context
    assert seen == [one if free_threaded else None, True, True]


def test_async_with_is_with():
    """The stream is current in the task, and nothing waits; it is left where it was entered."""
    runtime = DeviceRuntime()
    one, two, third = (runtime.acquire_stream() for _ in range(3))

    async def enter(stream: Stream) -> None:
        seen: list[object] = []
        async with stream as entered, third:
            assert entered is stream
            await asyncio.sleep(0)
            seen.append(current_stream() is third)
        seen.append(current_stream())
        async with stream:
            await asyncio.sleep(0)
            seen.append(current_stream() is stream)
            with pytest.raises(StreamMisuseError, match="is not the current stream of this thread or task"):
                await third.__aexit__(None, None, None)
        with pytest.raises(ValueError, match="inside"):
            async with stream:
                raise ValueError("inside")
        assert seen == [True, None, True]

    async def both() -> None:
        await asyncio.gather(enter(one), enter(two))

    before = runtime.counters()
    asyncio.run(both())
    assert current_stream() is None
    assert runtime.counters() == before
    with pytest.raises(StreamMisuseError, match="never made"):
        asyncio.run(Stream.__new__(Stream).__aenter__())


def test_a_stream_is_left_where_it_was_entered():
    runtime = DeviceRuntime()
    one, two = runtime.acquire_stream(), runtime.acquire_stream()
    with one:
        with pytest.raises(StreamMisuseError, match="not the current stream"):
            two.__exit__(None, None, None)
        with pytest.raises(StreamMisuseError, match="not the current stream"):
            contextvars.Context().run(one.__exit__, None, None, None)
    with pytest.raises(StreamMisuseError, match="not the current stream"):
        one.__exit__(None, None, None)
