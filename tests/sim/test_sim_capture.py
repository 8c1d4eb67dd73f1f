"""The simulated driver: graph captures of one stream."""
from __future__ import annotations

import threading

import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, code, event, fill, free, ok, stream, sync

pytestmark = pytest.mark.simulator
GLOBAL, THREAD_LOCAL, RELAXED = (driver.CUstreamCaptureMode(i) for i in range(3))


def capturing(s):
    return int(ok(driver.cuStreamIsCapturing(s)))


def end(s):
    result = driver.cuStreamEndCapture(s)
    return code(result), result[1]


def test_capture_and_launch(simulator):
    a, b = stream(), stream()
    p = alloc(a)
    ok(driver.cuStreamBeginCapture(a, GLOBAL))
    assert capturing(a) == 1
    assert capturing(b) == 0
    fill(p, 5, a)
    ok(driver.cuEventRecord(event(), a))
    error, graph = end(a)
    assert error == 0
    assert capturing(a) == 0
    sync(a)
    assert simulator.peek(p, 64) == b"\xcd" * 64  # captured, not run
    execution = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(execution, a))
    sync(a)
    assert simulator.peek(p, 64) == b"\x05" * 64
    ok(driver.cuGraphLaunch(execution, b))  # comes after the last launch of the same executable
    ok(driver.cuGraphLaunch(execution, a))
    assert simulator.races() == []
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), b))  # another one, on an unordered stream
    assert [report.split(":")[0] for report in simulator.races()] == ["RACE write/write"]


@pytest.mark.parametrize(("what", "expected", "spoiled"), [
    ("wait for an ordinary event", 905, True),
    ("wait for an ordinary event, external", 0, False),
    ("query the captured event", 907, True),
    ("free ordinary memory", 1, False),
    ("allocate", 0, False),
    ("stream id", 900, True),
    ("synchronize", 900, True),
    ("query", 900, True),
])
@pytest.mark.parametrize("mode", [GLOBAL, RELAXED])
def test_calls_on_a_capturing_stream(simulator, what, expected, spoiled, mode):
    a, b, ordinary, captured = stream(), stream(), event(), event()
    p = alloc(b)
    ok(driver.cuEventRecord(ordinary, b))
    ok(driver.cuStreamBeginCapture(a, mode))
    ok(driver.cuEventRecord(captured, a))
    calls = {
        "wait for an ordinary event": lambda: driver.cuStreamWaitEvent(a, ordinary, 0),
        "wait for an ordinary event, external": lambda: driver.cuStreamWaitEvent(a, ordinary, 1),
        "query the captured event": lambda: driver.cuEventQuery(captured),
        "free ordinary memory": lambda: driver.cuMemFreeAsync(p, a),
        "allocate": lambda: [cu.try_alloc(a)],
        "stream id": lambda: driver.cuStreamGetId(a),
        "synchronize": lambda: driver.cuStreamSynchronize(a),
        "query": lambda: driver.cuStreamQuery(a),
    }
    assert code(calls[what]()) == expected
    assert capturing(a) == (2 if spoiled else 1)
    assert end(a)[0] == (901 if spoiled else 0)
    free(p, b)


@pytest.mark.parametrize(("mode", "forbidden"), [(GLOBAL, True), (THREAD_LOCAL, False), (RELAXED, False)])
@pytest.mark.parametrize("exchanged", [False, True])
def test_another_threads_calls_during_a_capture(simulator, mode, forbidden, exchanged):
    a, b = stream(), stream()
    p = alloc(b)
    context = ok(driver.cuCtxGetCurrent())
    seen = {}

    def other():
        ok(driver.cuCtxSetCurrent(context))
        if exchanged:
            ok(driver.cuThreadExchangeStreamCaptureMode(RELAXED))
        seen["record"] = code(driver.cuEventRecord(event(), b))
        seen["alloc"] = cu.try_alloc(b)
        seen["query"] = code(driver.cuStreamQuery(b))
        seen["synchronize"] = code(driver.cuStreamSynchronize(b))
        seen["free"] = code(driver.cuMemFreeAsync(p, b))

    ok(driver.cuStreamBeginCapture(a, mode))
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    refused = forbidden and not exchanged
    expected = 900 if refused else 0
    assert seen == {"record": 0, "alloc": expected, "query": expected, "synchronize": expected,
                    "free": expected}
    assert end(a)[0] == (901 if refused else 0)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("relaxed", [False, True])
def test_a_context_with_a_capture_cannot_be_synchronized(simulator, mode, relaxed):
    """Whatever the modes, and every capture of the context is spoiled. When they have ended, it can again."""
    a, b = stream(), stream()
    ok(driver.cuStreamBeginCapture(a, mode))
    ok(driver.cuStreamBeginCapture(b, RELAXED))
    before = ok(driver.cuThreadExchangeStreamCaptureMode(RELAXED if relaxed else GLOBAL))
    try:
        assert code(driver.cuCtxSynchronize()) == 900
    finally:
        ok(driver.cuThreadExchangeStreamCaptureMode(before))
    assert capturing(a) == capturing(b) == 2
    assert end(a)[0] == end(b)[0] == 901
    ok(driver.cuCtxSynchronize())


def test_another_contexts_capture_hinders_no_call(simulator):
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    a = stream()
    ok(driver.cuStreamBeginCapture(a, RELAXED))
    ok(driver.cuCtxPushCurrent(second))
    assert code(driver.cuCtxSynchronize()) == 0
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuDevicePrimaryCtxRelease(1))
    assert capturing(a) == 1
    assert end(a)[0] == 0
