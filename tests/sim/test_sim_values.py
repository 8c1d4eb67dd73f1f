"""The simulated driver: values that a stream writes, and for which it waits."""
from __future__ import annotations

import ctypes
import signal
import threading

import pytest
from cuda.bindings import driver
from places import HELPERS
from sim_support import alloc, fill, ok, python, stream, sync

pytestmark = pytest.mark.simulator
INVALID_VALUE, INVALID_HANDLE, NOT_READY = 1, 400, 600
VALUE = 0x0123456789ABCDEF


def write(simulator, bits, on, p, value=VALUE):
    kind = {32: ctypes.c_uint32, 64: ctypes.c_uint64}[bits]
    return getattr(simulator._library, f"cuStreamWriteValue{bits}_v2")(
        ctypes.c_void_p(int(on)), ctypes.c_uint64(p), kind(value), 0)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_value_is_written_in_the_order_of_the_stream(scheduled, bits):
    a, width = stream(), bits // 8
    p = alloc(a)
    fill(p, 1, a)
    assert write(scheduled, bits, a, p + 8) == 0
    sync(a)
    written = VALUE.to_bytes(8, "little")[:width]
    assert scheduled.peek(p, 24) == b"\1" * 8 + written + b"\1" * (16 - width)


@pytest.mark.parametrize("bits", [32, 64])
def test_it_is_an_access_to_these_bytes(simulator, bits):
    a, b = stream(), stream()
    p = alloc(a)
    sync(a)
    assert write(simulator, bits, a, p) == 0
    fill(p + bits // 8, 1, b, 8)
    assert simulator.races() == []
    fill(p + bits // 8 - 1, 1, b, 8)
    assert [one.split(":")[0] for one in simulator.races()] == ["RACE write/write"]
    simulator.clear_races()
    sync(a)
    sync(b)


@pytest.mark.parametrize("bits", [32, 64])
def test_which_places(simulator, bits):
    a = stream()
    p = alloc(a)
    assert [write(simulator, bits, on, at) for on, at in (
        (a, p + bits // 16), (a, 0), (a, p + 64), (64, p), (2, p))] == [
            INVALID_VALUE, INVALID_VALUE, INVALID_VALUE, INVALID_HANDLE, 0]
    sync(a)
    sync(2)


def wait_for(simulator, bits, on, p, value=7, flags=0):
    kind = {32: ctypes.c_uint32, 64: ctypes.c_uint64}[bits]
    return getattr(simulator._library, f"cuStreamWaitValue{bits}_v2")(
        ctypes.c_void_p(int(on)), ctypes.c_uint64(int(p)), kind(value), flags)


def batch(simulator, on, *operations, flags=0, count=None):
    """Operations: type, address, value, flags; a barrier has its flags where others have the address."""
    words = [word for kind, at, *rest in operations
             for word in ((kind, int(at), *rest, *[0] * (4 - len(rest))) if kind not in {3, 6}
                          else (kind | at << 32, *[0] * 5))]
    return simulator._library.cuStreamBatchMemOp_v2(
        ctypes.c_void_p(int(on)), len(operations) if count is None else count, (ctypes.c_uint64 * len(words))(*words),
        flags)


@pytest.mark.parametrize("bits", [32, 64])
def test_a_stream_goes_on_when_the_value_is_there(scheduled, bits):
    a, b = stream(), stream()
    flag, p = alloc(a), alloc(a)
    fill(flag, 0, a)
    fill(p, 1, a)
    sync(a)
    assert wait_for(scheduled, bits, b, flag) == 0
    fill(p, 3, b)
    assert int(driver.cuStreamQuery(b)[0]) == NOT_READY
    fill(p, 2, a)
    assert write(scheduled, bits, a, flag, 7) == 0
    sync(b)
    assert scheduled.peek(p, 2) == b"\3\3"
    sync(a)
    scheduled.clear_races()


@pytest.mark.parametrize("policy", ["eager", "max"])
def test_the_host_writes_what_a_stream_waits_for(simulator, policy):
    simulator.reset(policy)
    a, flag = stream(), ok(driver.cuMemHostAlloc(64, 0))
    word = ctypes.c_uint32.from_address(int(flag))
    word.value = 0
    assert wait_for(simulator, 32, a, flag, 7) == 0
    timer = threading.Timer(0.05, lambda: setattr(word, "value", 7))
    timer.start()
    sync(a)
    timer.join()
    assert word.value == 7
    ok(driver.cuMemFreeHost(flag))


def test_another_thread_queues_what_a_stream_waits_for(scheduled):
    a, b = stream(), stream()
    flag = alloc(a)
    fill(flag, 0, a)
    sync(a)
    assert wait_for(scheduled, 32, b, flag) == 0
    timer = threading.Timer(0.05, write, (scheduled, 32, a, flag, 7))
    timer.start()
    sync(b)
    timer.join()
    sync(a)


@pytest.mark.parametrize(("bits", "flags", "value", "there", "missing"), [
    (32, 0, 5, (5, 6, 0x80000004), (4, 0x80000005, 0)), (64, 0, 5, (5, 1 << 62), (4, 1 << 63 | 5)),
    (32, 1, 5, (5,), (4, 6)), (64, 1, 1 << 40, (1 << 40,), (0, 1 << 41)),
    (32, 2, 6, (2, 4, 255), (0, 1, 8)), (64, 2, 1 << 40, (3 << 40,), (0, 1 << 39)),
    (32, 3, 0xFFFFFFFE, (0, 0xFFFFFFFE), (1, 3)), (64, 3, (1 << 64) - 2, (0, 2), (1,))])
def test_what_a_wait_compares(simulator, bits, flags, value, there, missing):
    """32 bits are compared alone."""
    a, b = stream(), stream()
    flag = alloc(a)
    for now, expected in [*[(now, 0) for now in there], *[(now, NOT_READY) for now in missing]]:
        fill(flag, 0xFF, a)
        assert write(simulator, bits, a, flag, now) == 0
        sync(a)
        assert wait_for(simulator, bits, b, flag, value, flags) == 0
        assert int(driver.cuStreamQuery(b)[0]) == expected, hex(now)
        assert write(simulator, bits, a, flag, there[0]) == 0
        sync(b)


@pytest.mark.parametrize("bits", [32, 64])
def test_races_behind_a_wait_are_possible(simulator, bits):
    a, b = stream(), stream()
    p, flag = alloc(a), alloc(a)
    fill(flag, 0, a)
    sync(a)
    fill(p, 1, a)
    assert write(simulator, bits, a, flag, 7) == 0
    assert wait_for(simulator, bits, b, flag) == 0
    assert simulator.races() == []
    fill(p, 2, b)
    assert [one.split(":")[0] for one in simulator.races()] == ["POSSIBLE RACE write/write"]
    simulator.clear_races()
    sync(a)
    sync(b)


@pytest.mark.parametrize("many", [False, True])
def test_the_host_may_learn_from_a_value(simulator, many):
    """As a program does that looks at its own memory until the value is there."""
    a, b = stream(), stream()
    p, flag = alloc(a), ok(driver.cuMemHostAlloc(64, 0))
    sync(a)
    for at, expected in ((p + 8, "RACE write/write"), (flag, "POSSIBLE RACE write/write")):
        fill(p, 1, a, 4)
        assert (batch(simulator, a, (6, 0), (2, at, 7)) if many else write(simulator, 32, a, int(at))) == 0
        fill(p, 2, b, 4)
        assert [one.split(":")[0] for one in simulator.races()] == [expected]
        simulator.clear_races()
        sync(a)
        sync(b)
    ok(driver.cuMemFreeHost(flag))


def test_a_batch(scheduled):
    """Its operations run in their order; it writes as single calls do, unless it waits."""
    a, b = stream(), stream()
    p = alloc(a)
    fill(p, 0, a)
    sync(a)
    assert batch(scheduled, b, (1, p, 7), (6, 1), (5, p + 8, 1 << 40), (2, p + 16, 9)) == 0
    assert int(driver.cuStreamQuery(b)[0]) == NOT_READY
    fill(p + 8, 1, a, 16)
    assert scheduled.races() == []
    assert batch(scheduled, a, (2, p, 5), (2, p + 4, 3), (2, p, 7)) == 0
    sync(b)
    assert scheduled.peek(p, 8) == b"\7\0\0\0\3\0\0\0"
    assert scheduled.peek(p + 8, 12)[5] == 1
    fill(p + 3, 1, b, 1)
    assert {one.split(":")[0] for one in scheduled.races()} == {"POSSIBLE RACE write/write"}
    scheduled.clear_races()
    sync(a)
    sync(b)


def test_a_wait_in_a_graph(scheduled):
    a, b = stream(), stream()
    p = alloc(a)
    fill(p, 0, a)
    sync(a)
    ok(driver.cuStreamBeginCapture(b, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    assert wait_for(scheduled, 32, b, p, 7) == 0
    fill(p + 8, 2, b, 8)
    graph = ok(driver.cuStreamEndCapture(b))
    made = ok(driver.cuGraphInstantiate(graph, 0))
    ok(driver.cuGraphLaunch(made, b))
    assert int(driver.cuStreamQuery(b)[0]) == NOT_READY
    assert write(scheduled, 32, a, p, 7) == 0
    sync(b)
    assert scheduled.peek(p + 8, 1) == b"\2"
    sync(a)
    ok(driver.cuGraphExecDestroy(made))
    ok(driver.cuGraphDestroy(graph))
    scheduled.clear_races()


def test_which_waits_and_batches(simulator):
    a = stream()
    p = alloc(a)
    fill(p, 1, a)
    sync(a)
    room = ctypes.create_string_buffer(64)
    for bits in (32, 64):
        assert [wait_for(simulator, bits, on, at, 0, flags) for on, at, flags in (
            (a, p, 0), (a, p + bits // 16, 0), (a, 0, 0), (a, p + 64, 0), (a, p, 4), (64, p, 0),
            (a, ctypes.addressof(room) // 8 * 8 + 8, 0), (a, p, 1 << 30))] == [0, *[1] * 4, INVALID_HANDLE, 1, 801]
    value = (2, p, 7)
    assert batch(simulator, a, value, flags=1) == batch(simulator, a, value, count=0) == INVALID_VALUE
    assert [batch(simulator, a, *[value] * count) for count in (256, 257)] == [0, INVALID_VALUE]
    assert [batch(simulator, a, (kind, p)) for kind in (0, 7, 1, 4)] == [INVALID_VALUE, INVALID_VALUE, 0, 0]
    assert [batch(simulator, a, (6, flags)) for flags in (0, 1, 2)] == [0, 0, INVALID_VALUE]
    assert batch(simulator, a, (3, 0)) == 801
    assert batch(simulator, a, (2, p + 8, 9), (2, 0, 9)) == INVALID_VALUE      # and nothing of it is done
    sync(a)
    assert simulator.peek(p + 8, 1) == b"\1"


def test_a_value_that_is_never_written():
    program = ("import ctypes, sim_support as cu; simulator = cu.install(); cu.retain(); a = cu.stream();"
               "p = cu.alloc(a); cu.fill(p, 0, a); wait = simulator._library.cuStreamWaitValue32_v2;"
               "assert wait(ctypes.c_void_p(int(a)), ctypes.c_uint64(p), 7, 0) == 0; cu.sync(a)")
    done = python("-c", program, deadlock_s=0.3, PYTHONPATH=str(HELPERS))
    assert done.returncode == -signal.SIGABRT, done.stderr
    assert "waits for a value in memory" in done.stderr


def test_after_a_reset_nothing_is_waited_for(simulator):
    a = stream()
    p = alloc(a)
    assert wait_for(simulator, 32, 0, p, 0, 3) == 0
    simulator.reset("eager")
    fill(p, 1, a)
    fill(p, 2, 0)
    assert [one.split(":")[0] for one in simulator.races()] == ["RACE write/write"]
    simulator.clear_races()
    sync(a)
