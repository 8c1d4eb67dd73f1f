"""The simulated driver: contexts and host functions."""
from __future__ import annotations

import threading

import pytest
from cuda.bindings import driver
from places import HELPERS
from sim_support import alloc, code, event, fill, free, launch_host, ok, python, stream, sync

pytestmark = pytest.mark.simulator
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY = 1, 2, 201, 400, 600


def test_calls_need_a_context(simulator):
    context = ok(driver.cuCtxPopCurrent())
    try:
        assert code(driver.cuStreamCreate(1)) == INVALID_CONTEXT
        assert code(driver.cuEventCreate(2)) == INVALID_CONTEXT
        assert code(driver.cuMemAllocAsync(64, 0)) == INVALID_CONTEXT
        assert code(driver.cuCtxSynchronize()) == INVALID_CONTEXT
        assert code(driver.cuCtxPopCurrent()) == INVALID_CONTEXT
        assert int(ok(driver.cuCtxGetCurrent())) == 0
    finally:
        ok(driver.cuCtxPushCurrent(context))


def test_events_belong_to_a_context(simulator):
    first = ok(driver.cuCtxGetCurrent())
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    a, e = stream(), event()
    ok(driver.cuCtxPushCurrent(second))
    b = stream()
    assert code(driver.cuEventRecord(e, b)) == INVALID_HANDLE
    ok(driver.cuEventRecord(e, a))
    ok(driver.cuStreamWaitEvent(b, e, 0))  # waiting across devices is what events are for
    p = alloc(b)
    names = driver.CUpointer_attribute
    assert int(ok(driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p))) == 1
    free(p, b)
    ok(driver.cuStreamDestroy(b))
    ok(driver.cuCtxPopCurrent())
    assert int(ok(driver.cuCtxGetCurrent())) == int(first)
    ok(driver.cuDevicePrimaryCtxRelease(1))


def test_a_second_context_of_the_same_device(simulator):
    e, first = event(), ok(driver.cuCtxGetCurrent())
    try:
        second = ok(driver.cuCtxCreate(0, 0))  # CUDA 12's form
    except TypeError:
        second = ok(driver.cuCtxCreate(None, 0, 0))
    assert int(ok(driver.cuCtxGetCurrent())) == int(second) != int(first)
    a, own = stream(), event()
    assert code(driver.cuEventRecord(e, a)) == INVALID_HANDLE
    ok(driver.cuEventRecord(own, a))
    ok(driver.cuCtxDestroy(second))
    assert int(ok(driver.cuCtxGetCurrent())) == int(first)
    assert code(driver.cuStreamQuery(a)) == INVALID_HANDLE
    assert code(driver.cuEventQuery(own)) == INVALID_HANDLE


LAST_RELEASE = """
from cuda.bindings import driver
from sim_support import alloc, code, event, install, ok, retain, stream

install()
retain()
context = ok(driver.cuDevicePrimaryCtxRetain(1))
number = int(ok(driver.cuCtxGetId(context)))
ok(driver.cuCtxPushCurrent(context))
b, e = stream(), event()
alloc(b)
ok(driver.cuDevicePrimaryCtxRelease(1))
print(code(driver.cuStreamCreate(1)), code(driver.cuStreamQuery(b)), code(driver.cuEventQuery(e)))
ok(driver.cuCtxPopCurrent())
context = ok(driver.cuDevicePrimaryCtxRetain(1))
print(int(ok(driver.cuCtxGetId(context))) != number)
"""


def test_the_last_release_of_a_primary_context_destroys_what_is_in_it():
    """In a process of its own: other tests keep that of the second device."""
    done = python("-c", LAST_RELEASE, PYTHONPATH=str(HELPERS))
    assert (done.stdout, done.stderr) == (f"709 {INVALID_HANDLE} {INVALID_HANDLE}\nTrue\n", "")


def test_host_functions_may_not_call_cuda(scheduled):
    a, seen = stream(), []
    keep = launch_host(a, lambda: seen.append((code(driver.cuStreamQuery(0)), threading.get_ident())))
    sync(a)
    assert seen[0][0] == 800
    assert seen[0][1] != threading.get_ident()
    del keep


def test_a_host_function_holds_its_stream_up(simulator):
    """Under the eager policy too: the launch returns, the rest of the stream waits, other streams do not."""
    a, b, gate = stream(), stream(), threading.Event()
    p, q = alloc(a), alloc(b)
    keep = launch_host(a, gate.wait)
    fill(p, 1, a)
    fill(q, 1, b)
    assert simulator.peek(p, 64) == b"\xcd" * 64
    assert simulator.peek(q, 64) == b"\x01" * 64
    assert code(driver.cuStreamQuery(a)) == NOT_READY
    e = event()
    ok(driver.cuEventRecord(e, a))
    ok(driver.cuStreamWaitEvent(b, e, 0))
    fill(q, 2, b)
    gate.set()
    sync(b)
    assert simulator.peek(p, 64) == b"\x01" * 64
    assert simulator.peek(q, 64) == b"\x02" * 64
    del keep
