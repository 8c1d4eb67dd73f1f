"""The simulated driver's switches: counting, failing, dropping, holding and watching calls."""
from __future__ import annotations

import ctypes
import sysconfig
import threading

import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, code, event, fill, free, ok, order, stream, sync

from xlogmem import sim

pytestmark = pytest.mark.simulator


def test_calls_are_counted_by_their_documented_names(simulator):
    a = stream()
    simulator.reset()
    p = alloc(a)
    free(p, a)
    ok(driver.cuMemFree(ok(driver.cuMemAlloc(64))))
    assert code(driver.cuMemFreeAsync(12345, a)) == 1  # failed calls count
    expected = {"cuMemAllocAsync": 1, "cuMemFreeAsync": 2, "cuMemAlloc": 1, "cuMemFree": 1}
    assert simulator.all_calls() == expected
    assert simulator.calls("cuMemFreeAsync") == 2
    assert simulator.calls("cuEventRecord") == simulator.calls("no such function") == 0


def test_fail(simulator):
    a = stream()
    before = simulator.live_bytes()
    simulator.fail("cuMemAllocAsync", nth=2)
    simulator.fail("cuMemAllocAsync", nth=4, code=999)
    assert [cu.try_alloc(a) for _ in range(5)] == [0, 2, 0, 999, 0]
    assert simulator.live_bytes() == before + 3 * 64
    simulator.fail("cuEventCreate")
    simulator.reset()
    ok(driver.cuEventDestroy(event()))  # the reset took the failure back


def test_a_dropped_wait_is_found(scheduled):
    a, b = stream(), stream()
    p = alloc(a)
    order(b, a)
    fill(p, 1, b)
    assert scheduled.races() == []
    scheduled.drop("cuStreamWaitEvent")
    order(a, b)
    free(p, a)
    assert [report.split(":")[0] for report in scheduled.races()] == ["RACE write/free"]
    scheduled.clear_races()
    assert scheduled.races() == []


def test_a_dropped_record_leaves_the_event_as_it_was(simulator):
    simulator.reset("min")
    a, b, e = stream(), stream(), event()
    p = alloc(a)
    ok(driver.cuEventRecord(e, a))
    fill(p, 1, a)
    simulator.drop("cuEventRecord")
    ok(driver.cuEventRecord(e, a))
    ok(driver.cuStreamWaitEvent(b, e, 0))
    fill(p, 2, b)  # ordered after the allocation only
    assert [report.split(":")[0] for report in simulator.races()] == ["RACE write/write"]


@pytest.mark.parametrize("name", ["cuStreamSynchronize", "cuEventSynchronize"])
def test_a_dropped_synchronize_teaches_the_host_nothing(simulator, name):
    simulator.reset("min")
    a, b, e = stream(), stream(), event()
    p = alloc(a)
    ok(driver.cuEventRecord(e, a))
    simulator.drop(name)
    ok(driver.cuStreamSynchronize(a) if name == "cuStreamSynchronize" else driver.cuEventSynchronize(e))
    assert simulator.pending_operations() == 2
    fill(p, 1, b)
    assert len(simulator.races()) == 1


def test_only_harmless_calls_can_be_dropped(simulator):
    with pytest.raises(ValueError, match="cuMemAllocAsync cannot be dropped"):
        simulator.drop("cuMemAllocAsync")
    with pytest.raises(ValueError, match="nth counts from 1"):
        simulator.fail("cuMemAllocAsync", nth=0)
    with pytest.raises(ValueError, match="unknown policy 'fast'"):
        simulator.reset("fast")


def test_hooks_run_on_the_thread_without_a_lock(simulator):
    a, b = stream(), stream()
    seen = []

    def hook():
        seen.append((threading.get_ident(), simulator.calls("cuEventRecord")))
        p = alloc(b)  # any CUDA call is allowed, also from another thread
        thread = threading.Thread(target=lambda: seen.append(simulator.peek(p, 1)))
        thread.start()
        thread.join()
        free(p, b)

    e = event()
    simulator.on_call("cuEventRecord", hook, nth=2)
    ok(driver.cuEventRecord(e, a))
    assert seen == []
    ok(driver.cuEventRecord(e, a))
    assert seen == [(threading.get_ident(), 2), b"\xcd"]
    ok(driver.cuEventRecord(e, a))
    assert len(seen) == 2  # once


def test_hooks_run_before_and_after(simulator):
    p = alloc(0)
    before, after = [], []
    simulator.on_call("cuMemFreeAsync", lambda: after.append(simulator.live_bytes()), when="after")
    simulator.on_call("cuMemFreeAsync", lambda: before.append(simulator.live_bytes()))
    free(p, 0)
    assert before[0] == after[0] + 64
    with pytest.raises(ValueError, match="before"):
        simulator.on_call("cuMemFreeAsync", lambda: None, when="never")


def test_what_a_hook_raises_is_raised_later(simulator):
    def hook():
        raise KeyError("from the hook")

    simulator.on_call("cuStreamQuery", hook)
    assert code(driver.cuStreamQuery(0)) == 0
    with pytest.raises(KeyError, match="from the hook"):
        simulator.races()
    assert simulator.races() == []


def test_hook_makes_an_interleaving(simulator):
    """Between a record and the wait other code uses the block: only the hook can show it on one thread."""
    a, b, c = stream(), stream(), stream()
    p = alloc(a)
    order(b, a)
    order(c, a)
    simulator.on_call("cuStreamWaitEvent", lambda: fill(p, 3, c))
    order(b, a)
    free(p, b)
    assert [report.split(":")[0] for report in simulator.races()] == ["RACE write/free"]


def test_a_call_is_held_up_without_the_gil(simulator):
    """Once, the nth, and with nothing that others need; it goes on when it is released."""
    a, e = stream(), event()
    hold = simulator.hold("cuEventRecord", nth=2)
    ok(driver.cuEventRecord(e, a))
    assert not hold.reached(0)
    thread = threading.Thread(target=lambda: ok(driver.cuEventRecord(e, a)))
    thread.start()
    assert hold.reached()
    ok(driver.cuEventRecord(event(), a))
    assert thread.is_alive()
    assert hold.release()
    thread.join()


@pytest.mark.parametrize("gil", [False, pytest.param(True, marks=pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="needs a GIL"))])
def test_a_held_call_loses_patience(simulator, gil):
    """A caller that keeps the GIL in the driver stops the thread that would release it: the hold says so."""
    library = (ctypes.PyDLL if gil else ctypes.CDLL)(sim.library_path())
    hold = simulator.hold("cuCtxSynchronize", patience=0.3 if gil else 30)
    thread = threading.Thread(target=library.cuCtxSynchronize)
    thread.start()
    assert hold.reached()
    assert hold.release() == (not gil)
    thread.join()


def test_sticky_error(simulator):
    simulator.sticky_error(700)
    assert code(driver.cuStreamQuery(0)) == code(driver.cuMemAllocAsync(64, 0)) == 700
    simulator.sticky_error(0)
    assert code(driver.cuStreamQuery(0)) == 0


def test_reset_keeps_what_is_alive(simulator):
    simulator.reset("min")
    a, e = stream(), event()
    p = alloc(a)
    ok(driver.cuEventRecord(e, a))
    fill(p, 1, a)
    streams, events, live = simulator.live_streams(), simulator.live_events(), simulator.live_bytes()
    simulator.reset("max")
    assert simulator.pending_operations() == 0
    assert simulator.peek(p, 64) == b"\x01" * 64
    assert (streams, events, live) == (simulator.live_streams(), simulator.live_events(),
                                       simulator.live_bytes())
    b = stream()
    fill(p, 2, b)  # ordered after everything before the reset
    ok(driver.cuStreamWaitEvent(b, e, 0))
    free(p, b)
    assert simulator.races() == []


def test_peek_refuses_what_is_not_device_memory(simulator):
    with pytest.raises(ValueError, match="not device memory"):
        simulator.peek(0x1234, 4)


def test_many_threads(scheduled):
    context = ok(driver.cuCtxGetCurrent())
    wrong = []

    def work(number):
        ok(driver.cuCtxSetCurrent(context))
        a, b, out = stream(), stream(), cu.Pinned()
        for i in range(50):
            value = (number * 50 + i) % 251
            p = alloc(a)
            fill(p, value, a)
            order(b, a)
            out.read_from(p, b)
            order(a, b)
            free(p, a)
            sync(b)
            if out.bytes() != bytes([value]) * 64:
                wrong.append((number, i))
        ok(driver.cuStreamDestroy(a))
        ok(driver.cuStreamDestroy(b))
        out.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert scheduled.races() == []
