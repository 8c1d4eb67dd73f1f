"""Calls with handles of destroyed streams and events: refused, and reported: a GPU's driver crashes."""

from __future__ import annotations

import pytest
import sim_support as cu
from cuda.bindings import driver
from places import HELPERS
from sim_support import alloc, code, event, fill, free, ok, stream

pytestmark = pytest.mark.simulator

INVALID_HANDLE = 400

ON_STREAMS = {
    "cuStreamIsCapturing": lambda s, e: driver.cuStreamIsCapturing(s),
    "cuStreamGetId": lambda s, e: driver.cuStreamGetId(s),
    "cuStreamGetFlags": lambda s, e: driver.cuStreamGetFlags(s),
    "cuStreamQuery": lambda s, e: driver.cuStreamQuery(s),
    "cuStreamSynchronize": lambda s, e: driver.cuStreamSynchronize(s),
    "cuEventRecord": lambda s, e: driver.cuEventRecord(e, s),
    "cuStreamWaitEvent": lambda s, e: driver.cuStreamWaitEvent(s, e, 0),
    "cuMemAllocAsync": lambda s, e: driver.cuMemAllocAsync(0, s),
    "cuMemFreeAsync": lambda s, e: driver.cuMemFreeAsync(0, s),
    "cuStreamDestroy": lambda s, e: driver.cuStreamDestroy(s),
}
ON_EVENTS = {
    "cuEventQuery": lambda s, e: driver.cuEventQuery(e),
    "cuEventSynchronize": lambda s, e: driver.cuEventSynchronize(e),
    "cuEventRecord": lambda s, e: driver.cuEventRecord(e, s),
    "cuStreamWaitEvent": lambda s, e: driver.cuStreamWaitEvent(s, e, 0),
    "cuEventElapsedTime": lambda s, e: driver.cuEventElapsedTime(e, e),
    "cuEventDestroy": lambda s, e: driver.cuEventDestroy(e),
}


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("name", ON_STREAMS)
def test_dead_streams(simulator, name, wrong):
    s, e = stream(), event()
    if wrong:
        ok(driver.cuStreamDestroy(s))
    assert code(ON_STREAMS[name](s, e)) == (INVALID_HANDLE if wrong else 0)
    report = f"DEAD STREAM: {name} was called with the handle of a destroyed stream"
    assert simulator.races() == ([report] if wrong else [])


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("name", ON_EVENTS)
def test_dead_events(simulator, name, wrong):
    s, e = stream(), event(0)
    ok(driver.cuEventRecord(e, s))
    if wrong:
        ok(driver.cuEventDestroy(e))
    assert code(ON_EVENTS[name](s, e)) == (INVALID_HANDLE if wrong else 0)
    report = f"DEAD EVENT: {name} was called with the handle of a destroyed event"
    assert simulator.races() == ([report] if wrong else [])


def test_garbage_is_refused_and_not_reported(simulator):
    s, e = stream(), event()
    for garbage in (12345, int(s) + 1, int(s) + (1 << 30), (1 << 64) - 64):
        assert code(driver.cuStreamQuery(driver.CUstream(garbage))) == INVALID_HANDLE
    for garbage in (0, 12345, int(e) + 1, int(e) + (1 << 30), int(s)):
        assert code(driver.cuEventQuery(driver.CUevent(garbage))) == INVALID_HANDLE
    assert simulator.races() == []


def test_a_handle_that_was_given_out_again_is_alive(simulator):
    dead = stream()
    ok(driver.cuStreamDestroy(dead))
    assert int(stream()) == int(dead)
    ok(driver.cuStreamQuery(dead))
    assert simulator.races() == []


def test_a_reset_revives_nothing(simulator):
    """It clears the report; the next call with the handle is reported again."""
    s = stream()
    ok(driver.cuStreamDestroy(s))
    for _ in range(2):
        assert code(driver.cuStreamIsCapturing(s)) == INVALID_HANDLE
        assert len(simulator.races()) == 1
        simulator.reset()


@pytest.mark.parametrize("wrong", [False, True])
def test_handles_die_with_their_context(simulator, wrong):
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    ok(driver.cuCtxPushCurrent(second))
    s, e = stream(), event()
    ok(driver.cuCtxPopCurrent())
    if wrong:
        ok(driver.cuDevicePrimaryCtxRelease(1))
    assert code(driver.cuStreamQuery(s)) == code(driver.cuEventQuery(e)) == (INVALID_HANDLE if wrong else 0)
    kinds = [report.split(":")[0] for report in simulator.races()]
    assert kinds == (["DEAD STREAM", "DEAD EVENT"] if wrong else [])
    if not wrong:
        ok(driver.cuDevicePrimaryCtxRelease(1))


def test_what_is_done_before_the_end_is_not_a_use_after_it(simulator):
    """Work that is still queued, and the memory of a destroyed stream, are fine."""
    simulator.reset("min")
    s, e, b = stream(), event(), stream()
    p = alloc(s)
    fill(p, 1, s)
    ok(driver.cuEventRecord(e, s))
    ok(driver.cuStreamWaitEvent(b, e, 0))
    ok(driver.cuStreamDestroy(s))
    ok(driver.cuEventDestroy(e))
    free(p, b)
    cu.sync(b)
    assert simulator.races() == []


def test_reports_are_made_without_the_race_checks_too():
    program = ("import sim_support as cu; s = cu.install(); from cuda.bindings import driver; cu.retain();"
               "a = cu.stream(); driver.cuStreamDestroy(a); driver.cuStreamGetId(a); print(len(s.races()))")
    done = cu.python("-c", program, races=0, PYTHONPATH=str(HELPERS))
    assert done.stdout == "1\n", done.stderr
