"""The simulated driver: graph captures of one stream."""
from __future__ import annotations

import ctypes
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
    ("launch a graph", 900, True),
    ("query", 900, True),
])
@pytest.mark.parametrize("mode", [GLOBAL, RELAXED])
def test_calls_on_a_capturing_stream(simulator, what, expected, spoiled, mode):
    a, b, ordinary, captured = stream(), stream(), event(), event()
    p = alloc(b)
    ok(driver.cuEventRecord(ordinary, b))
    execution = ok(driver.cuGraphInstantiate(ok(driver.cuGraphCreate(0)), 0))
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
        "launch a graph": lambda: driver.cuGraphLaunch(execution, a),
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


# Answers of an H200 to calls in the default stream while a stream of the same thread captures: the answer where a bare
# stream captures in a mode that is not relaxed, in the relaxed mode, and where a blocking stream does.
IN_THE_DEFAULT_STREAM = {
    "upload": (0, 0, 906), "download": (0, 0, 906), "copy": (0, 0, 906), "copy between devices": (0, 0, 906),
    "fill": (0, 0, 906), "copy, async": (0, 0, 906), "allocate, async": (900, 0, 906), "query": (900, 0, 906),
    "allocate": (900, 0, 900), "free": (900, 0, 900), "query an event": (900, 0, 900),
}


@pytest.mark.parametrize("what", IN_THE_DEFAULT_STREAM)
@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
@pytest.mark.parametrize("blocking", [False, True])
def test_calls_in_the_default_stream_during_a_capture(simulator, what, mode, blocking):
    s, recorded = stream(0 if blocking else 1), event()
    p, q = cu.alloc_ordinary(), cu.alloc_ordinary()
    context = ok(driver.cuCtxGetCurrent())
    ok(driver.cuEventRecord(recorded, 0))
    ok(driver.cuStreamBeginCapture(s, mode))
    calls = {
        "upload": lambda: driver.cuMemcpyHtoD(p, bytes(64), 64),
        "download": lambda: driver.cuMemcpyDtoH(bytearray(64), p, 64),
        "copy": lambda: driver.cuMemcpy(q, p, 64),
        "copy between devices": lambda: driver.cuMemcpyPeer(q, context, p, context, 64),
        "fill": lambda: driver.cuMemsetD8(p, 1, 64),
        "copy, async": lambda: driver.cuMemcpyDtoDAsync(q, p, 64, 0),
        "allocate, async": lambda: [cu.try_alloc(driver.CUstream(0))],
        "query": lambda: driver.cuStreamQuery(0),
        "allocate": lambda: driver.cuMemAlloc(64),
        "free": lambda: driver.cuMemFree(q),
        "query an event": lambda: driver.cuEventQuery(recorded),
    }
    strict, relaxed, beside_blocking = IN_THE_DEFAULT_STREAM[what]
    expected = relaxed if mode == RELAXED else strict
    if blocking and (beside_blocking == 906 or mode != RELAXED):
        expected = beside_blocking
    result = calls[what]()
    assert code(result) == expected
    assert end(s)[0] == (901 if expected else 0)
    ok(driver.cuCtxSynchronize())
    if what == "allocate" and not expected:
        ok(driver.cuMemFree(result[1]))
    cu.clean_up()


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_a_copy_of_pageable_memory_is_a_node(simulator, mode):
    """It waits for nothing in the capture, and reads and writes the host's memory at each launch."""
    s, p = stream(), cu.alloc_ordinary()
    source, target = (ctypes.c_uint8 * 64)(*[3] * 64), (ctypes.c_uint8 * 64)()
    ok(driver.cuStreamBeginCapture(s, mode))
    ok(driver.cuMemcpyHtoDAsync(p, ctypes.addressof(source), 64, s))
    ok(driver.cuMemcpyDtoHAsync(ctypes.addressof(target), p, 64, s))
    error, graph = end(s)
    assert error == 0
    assert bytes(target) == bytes(64)
    execution = ok(driver.cuGraphInstantiate(graph, 0))
    for value in (3, 4):
        source[:] = [value] * 64
        ok(driver.cuGraphLaunch(execution, s))
        sync(s)
        assert bytes(target) == bytes([value] * 64)
    ok(driver.cuMemFree(p))
