"""The simulated driver: green contexts, which share all but streams with the primary context."""
from __future__ import annotations

import pytest
from cuda.bindings import driver
from green import DEFAULT_STREAM, PROCESSORS, RELAXED, GreenContext, GreenStream, processors
from places import HELPERS
from sim_support import alloc, code, event, fill, free, ok, python, stream, sync

pytestmark = pytest.mark.simulator
INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901


def took_races(simulator):
    """True if there were races, which are forgotten."""
    found = simulator.races()
    simulator.clear_races()
    return bool(found)


@pytest.fixture
def green(simulator):
    made = GreenContext()
    yield made
    made.destroy()


@pytest.fixture
def other(simulator):
    made = GreenContext()
    yield made
    made.destroy()


def test_the_multiprocessors_are_divided(green):
    whole = processors()
    groups, count, rest = ok(driver.cuDevSmResourceSplitByCount(3, whole, 0, 30))
    assert (count, [group.sm.smCount for group in groups], rest.sm.smCount) == (3, [32, 32, 32], whole.sm.smCount - 96)
    assert ok(driver.cuGreenCtxGetDevResource(green.handle, PROCESSORS)).sm.smCount == 32
    assert ok(driver.cuCtxGetDevResource(green.context, PROCESSORS)).sm.smCount == 32
    assert ok(driver.cuCtxGetDevResource(ok(driver.cuCtxGetCurrent()), PROCESSORS)).sm.smCount == whole.sm.smCount
    both = ok(driver.cuDevResourceGenerateDesc([groups[0], groups[1]], 2))
    made = ok(driver.cuGreenCtxCreate(both, 0, DEFAULT_STREAM))
    assert ok(driver.cuGreenCtxGetDevResource(made, PROCESSORS)).sm.smCount == 64
    ok(driver.cuGreenCtxDestroy(made))
    assert code(driver.cuGreenCtxDestroy(made)) == INVALID_CONTEXT
    assert code(driver.cuCtxFromGreenCtx(made)) == INVALID_CONTEXT


def test_what_a_stream_says_of_its_context(green):
    primary, a = ok(driver.cuCtxGetCurrent()), GreenStream(green)
    assert int(green.context) != int(primary)
    assert int(ok(driver.cuStreamGetCtx(a.stream))) == int(green.context)
    context, of = ok(driver.cuStreamGetCtx_v2(a.stream))
    assert (int(context), int(of)) == (int(primary), int(green.handle))
    assert int(ok(driver.cuStreamGetGreenCtx(a.stream))) == int(green.handle)
    ordinary = stream()
    context, of = ok(driver.cuStreamGetCtx_v2(ordinary))
    assert (int(context), int(of)) == (int(primary), 0)
    assert int(ok(driver.cuStreamGetGreenCtx(ordinary))) == 0
    with green:
        b = stream()                                        # of the context that is current
        assert int(ok(driver.cuStreamGetGreenCtx(b))) == int(green.handle)
        assert code(driver.cuStreamQuery(2)) == INVALID_HANDLE                      # CU_STREAM_PER_THREAD
    for one in (ordinary, b):
        ok(driver.cuStreamDestroy(one))
    assert code(driver.cuGreenCtxStreamCreate(green.handle, 0, 0)) == INVALID_VALUE     # a blocking one
    assert code(driver.cuCtxDestroy(green.context)) == INVALID_CONTEXT


def test_memory_and_events_are_those_of_the_primary_context(scheduled, green):
    a, b, e = stream(), GreenStream(green), event()
    p = alloc(a)
    fill(p, 1, a)
    ok(driver.cuEventRecord(e, a))
    ok(driver.cuStreamWaitEvent(b.stream, e, 0))
    fill(p, 2, b.stream)
    with green:
        own = event()
        memory = ok(driver.cuMemAlloc(64))
    ok(driver.cuEventRecord(own, b.stream))                 # of either context, on streams of either
    ok(driver.cuEventRecord(e, b.stream))
    ok(driver.cuStreamWaitEvent(a, own, 0))
    fill(memory, 1, b.stream)
    free(p, a)
    sync(a)
    sync(b.stream)
    ok(driver.cuMemFree(memory))
    assert not scheduled.races()
    for one in (e, own):
        ok(driver.cuEventDestroy(one))
    ok(driver.cuStreamDestroy(a))


@pytest.mark.parametrize("whole", [True, False])
def test_a_synchronize_of_the_primary_context_is_one_of_its_green_contexts(scheduled, green, other, whole):
    a = GreenStream(green)
    p = ok(driver.cuMemAlloc(64))
    fill(p, 1, a.stream)
    if whole:
        ok(driver.cuCtxSynchronize())
    else:
        with other:
            ok(driver.cuCtxSynchronize())                   # of another part
    b = stream()
    fill(p, 2, b)
    assert took_races(scheduled) == (not whole)
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemFree(p))
    ok(driver.cuStreamDestroy(b))


@pytest.mark.parametrize("of", ["green", "primary", "other"])
def test_an_event_for_a_whole_context(scheduled, green, other, of):
    a, b, e = GreenStream(green), stream(), event()
    p = ok(driver.cuMemAlloc(64))
    fill(p, 1, a.stream)
    if of == "primary":
        ok(driver.cuCtxRecordEvent(ok(driver.cuCtxGetCurrent()), e))
    else:
        ok(driver.cuGreenCtxRecordEvent({"green": green, "other": other}[of].handle, e))
    ok(driver.cuStreamWaitEvent(b, e, 0))
    fill(p, 2, b)
    assert took_races(scheduled) == (of == "other")
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemFree(p))
    ok(driver.cuEventDestroy(e))
    ok(driver.cuStreamDestroy(b))


@pytest.mark.parametrize("made", ["before", "after"])
@pytest.mark.parametrize("of", ["green", "primary", "other"])
def test_a_whole_context_waits(scheduled, green, other, made, of):
    """Also the streams that are made later."""
    a, e = stream(), event()
    p = ok(driver.cuMemAlloc(64))
    b = GreenStream(green) if made == "before" else None
    fill(p, 1, a)
    ok(driver.cuEventRecord(e, a))
    if of == "primary":
        ok(driver.cuCtxWaitEvent(ok(driver.cuCtxGetCurrent()), e))
    else:
        ok(driver.cuGreenCtxWaitEvent({"green": green, "other": other}[of].handle, e))
    b = b or GreenStream(green)
    fill(p, 2, b.stream)
    assert took_races(scheduled) == (of == "other")
    ok(driver.cuCtxSynchronize())
    ok(driver.cuMemFree(p))
    ok(driver.cuEventDestroy(e))
    ok(driver.cuStreamDestroy(a))


def test_events_of_a_whole_context_end_a_capture(green):
    a, e = GreenStream(green), event()
    for call in (driver.cuGreenCtxRecordEvent, driver.cuGreenCtxWaitEvent):
        ok(driver.cuStreamBeginCapture(a.stream, RELAXED))
        assert code(call(green.handle, e)) == CAPTURE_UNSUPPORTED
        assert code(driver.cuStreamEndCapture(a.stream)) == CAPTURE_INVALIDATED
    ok(driver.cuEventDestroy(e))


LEFT_BEHIND = """
import ctypes
from green import GreenContext, GreenStream, RELAXED
from sim_support import install, ok, retain, driver

install()
retain()
library = ctypes.CDLL("libcuda.so.1")
green = GreenContext()
a, b = GreenStream(green), GreenStream(green)
ok(driver.cuStreamBeginCapture(b.stream, RELAXED))
green.destroy()
for one in (a, b):
    handle, one.stream = ctypes.c_void_p(one.handle), None
    print(library.cuStreamQuery(handle), library.cuMemAllocAsync(ctypes.byref(ctypes.c_void_p()), 64, handle),
          library.cuStreamDestroy_v2(handle), library.cuStreamQuery(handle))
"""


@pytest.mark.parametrize(("version", "codes"), [(13000, "709 709 709 709"), (13010, "917 917 0 400")])
def test_the_streams_of_a_destroyed_green_context_are_refused(version, codes):
    done = python("-c", LEFT_BEHIND, PYTHONPATH=str(HELPERS), version=version)
    assert (done.stdout, done.stderr) == (f"{codes}\n{codes}\n", "")


def test_a_green_context_ends_its_default_stream(simulator):
    """Its object serves later streams; what was queued there is waited for all the same."""
    simulator.set_policy("min")
    made, x = GreenContext(), alloc(0)
    sync(0)
    with made:
        number = simulator.stream_number(0)
        fill(x, 1, 0)
    assert simulator.stream_state(number) == "there"
    made.destroy()
    assert simulator.stream_state(number) == "ended"
    ok(driver.cuCtxSynchronize())
    fill(x, 2, 0)
    free(x, 0)
    sync(0)
    assert not took_races(simulator)


def test_a_green_context_keeps_nothing_of_its_device(simulator):
    """The primary context of which nothing else is retained ends with it, and begins anew."""
    for _ in range(2):
        made = GreenContext(1)
        with made:
            number = simulator.stream_number(0)
        made.destroy()
        assert simulator.stream_state(number) == "ended"
        assert ok(driver.cuDevicePrimaryCtxGetState(1))[1] == 0
