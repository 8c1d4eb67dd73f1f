"""What a copy, a fill or a free has waited for when it returns: CUDA's "API synchronization behavior", and not more.

Each call works on the legacy default stream or on a blocking one, and the memory is then written on a non-blocking
stream, which only the host can have put in order.
"""
from __future__ import annotations

import ctypes

import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import NBYTES, event, fill, ok, order, stream, sync

pytestmark = pytest.mark.simulator

PAGEABLE = ctypes.create_string_buffer(NBYTES)


@pytest.fixture
def memory(scheduled):
    """Two pieces of device memory that are there for all streams, and a page-locked one."""
    p, q, pinned = cu.alloc_ordinary(), cu.alloc_ordinary(), cu.Pinned()
    yield p, q, pinned.address
    scheduled.set_policy("eager")
    ok(driver.cuCtxSynchronize())
    pinned.close()


def managed():
    return int(ok(driver.cuMemAllocManaged(NBYTES, 1)))


# The call, and whether the host waits for it.  p and q are the device's, h is page-locked, a is a stream.
CALLS = {
    "HtoD, pageable": (lambda p, q, h, a: driver.cuMemcpyHtoD(p, ctypes.addressof(PAGEABLE), NBYTES), False),
    "HtoD, page-locked": (lambda p, q, h, a: driver.cuMemcpyHtoD(p, h, NBYTES), True),
    "DtoH, pageable": (lambda p, q, h, a: driver.cuMemcpyDtoH(ctypes.addressof(PAGEABLE), p, NBYTES), True),
    "DtoH, page-locked": (lambda p, q, h, a: driver.cuMemcpyDtoH(h, p, NBYTES), True),
    "DtoD": (lambda p, q, h, a: driver.cuMemcpyDtoD(p, q, NBYTES), False),
    "unified, pageable to device": (lambda p, q, h, a: driver.cuMemcpy(p, ctypes.addressof(PAGEABLE), NBYTES), False),
    "unified, page-locked to device": (lambda p, q, h, a: driver.cuMemcpy(p, h, NBYTES), True),
    "unified, to pageable": (lambda p, q, h, a: driver.cuMemcpy(ctypes.addressof(PAGEABLE), p, NBYTES), True),
    "unified, device to device": (lambda p, q, h, a: driver.cuMemcpy(p, q, NBYTES), False),
    "HtoDAsync, pageable": (
        lambda p, q, h, a: driver.cuMemcpyHtoDAsync(p, ctypes.addressof(PAGEABLE), NBYTES, a), False),
    "HtoDAsync, page-locked": (lambda p, q, h, a: driver.cuMemcpyHtoDAsync(p, h, NBYTES, a), False),
    "DtoHAsync, pageable": (
        lambda p, q, h, a: driver.cuMemcpyDtoHAsync(ctypes.addressof(PAGEABLE), p, NBYTES, a), True),
    "DtoHAsync, page-locked": (lambda p, q, h, a: driver.cuMemcpyDtoHAsync(h, p, NBYTES, a), False),
    "unified, asynchronous, host to host": (
        lambda p, q, h, a: (driver.cuMemsetD8Async(p, 1, NBYTES, a),
                            driver.cuMemcpyAsync(h, ctypes.addressof(PAGEABLE), NBYTES, a))[1], True),
    "unified, asynchronous, page-locked to page-locked": (
        lambda p, q, h, a: (driver.cuMemsetD8Async(p, 1, NBYTES, a), driver.cuMemcpyAsync(h, h, NBYTES, a))[1], True),
    "DtoDAsync": (lambda p, q, h, a: driver.cuMemcpyDtoDAsync(p, q, NBYTES, a), False),
    "memset": (lambda p, q, h, a: driver.cuMemsetD8(p, 1, NBYTES), False),
    "memset, asynchronous": (lambda p, q, h, a: driver.cuMemsetD8Async(p, 1, NBYTES, a), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_waits_for(scheduled, memory, name):
    call, waits = CALLS[name]
    a, b = stream(0), stream()
    ok(call(*memory, a))
    fill(memory[0], 2, b)
    assert bool(scheduled.races()) is not waits


@pytest.mark.parametrize("name", CALLS)
def test_what_it_does_not_wait_for_can_be_waited_for(scheduled, memory, name):
    a, b = stream(0), stream()
    ok(CALLS[name][0](*memory, a))
    sync(a)
    sync(0)
    fill(memory[0], 2, b)
    assert scheduled.races() == []


@pytest.mark.parametrize("place", ["page-locked", "managed", "device"])
def test_a_fill_waits_where_the_host_can_look(simulator, memory, place):
    """The forms without a stream; those with one never wait."""
    simulator.set_policy("min")
    target = {"device": memory[0], "page-locked": memory[2]}.get(place) or managed()
    ok(driver.cuMemsetD8(target, 7, NBYTES))
    if place == "device":
        assert simulator.pending_operations() == 1
        return
    assert simulator.pending_operations() == 0
    assert ctypes.string_at(target, NBYTES) == b"\x07" * NBYTES
    ok(driver.cuMemsetD8Async(target, 8, NBYTES, stream()))
    assert simulator.pending_operations() == 1
    if place == "managed":
        ok(driver.cuMemFree(target))


@pytest.mark.parametrize("copy", [driver.cuMemcpyHtoD, driver.cuMemcpy])
@pytest.mark.parametrize("waits", [True, False])
def test_an_upload_from_pageable_memory_waits_for_what_was_queued_before(scheduled, memory, copy, waits):
    """By the form without a stream, for the legacy stream and blocking ones; the form with a stream does not wait."""
    p, q, _ = memory
    fill(p, 1, 0)
    fill(p, 2, stream(0))
    if waits:
        ok(copy(q, ctypes.addressof(PAGEABLE), NBYTES))
    else:
        ok(driver.cuMemcpyHtoDAsync(q, ctypes.addressof(PAGEABLE), NBYTES, 0))
    fill(p, 3, stream())
    assert bool(scheduled.races()) is not waits


def test_an_upload_is_staged(scheduled, memory):
    """What the host writes afterwards does no harm, although the transfer may not have begun."""
    source = ctypes.create_string_buffer(b"A" * NBYTES, NBYTES)
    ok(driver.cuMemcpyHtoD(memory[0], ctypes.addressof(source), NBYTES))
    source.raw = b"B" * NBYTES
    sync(0)
    assert scheduled.peek(memory[0], NBYTES) == b"A" * NBYTES


@pytest.mark.parametrize("waits", [True, False])
def test_a_free_may_wait_for_nothing(waits):
    """CUDA 13 says that cuMemFree may wait; what it frees has to be idle where it does not."""
    program = ("import sim_support as cu; from cuda.bindings import driver; simulator = cu.install(); cu.retain();"
               "p = cu.alloc_ordinary(); a = cu.stream(); cu.fill(p, 1, a);"
               "cu.ok(driver.cuMemFree(p)); print([r.split(':')[0] for r in simulator.races()]);"
               "q = cu.alloc_ordinary(); cu.fill(q, 1, a); cu.sync(a);"
               "simulator.clear_races(); cu.ok(driver.cuMemFree(q)); print(simulator.races())")
    path = f"{cu.Path(cu.__file__).parent}:{cu.Path(cu.sim.__file__).parents[2]}"
    done = cu.python("-c", program, PYTHONPATH=path, free_waits=waits)
    assert done.stderr == ""
    assert done.stdout == ("[]\n" if waits else "['RACE write/free']\n") + "[]\n"


@pytest.mark.parametrize("reached", [False, True])
@pytest.mark.parametrize("wrong", [False, True])
def test_the_default_stream_passes_on_what_a_stream_waited_for(simulator, memory, wrong, reached):
    """Also where the event was reached already, so that nothing was queued for the wait."""
    simulator.set_policy("eager" if reached else "min")
    (p, _, _), a, blocking = memory, stream(), stream(0)
    fill(p, 1, blocking)
    order(blocking, 0)
    sync(0)
    fill(p, 2, a)
    if not wrong:
        order(blocking, a)
    fill(p, 3, 0)                                       # the default stream comes after the blocking one
    assert bool(simulator.races()) is wrong


@pytest.mark.parametrize("reached", [False, True])
@pytest.mark.parametrize("wrong", [False, True])
def test_streams_come_after_what_the_default_stream_waited_for(simulator, memory, wrong, reached):
    simulator.set_policy("eager" if reached else "min")
    (p, _, _), a, blocking, e = memory, stream(), stream(0), event()
    fill(p, 1, 0)
    sync(0)
    fill(memory[1], 1, blocking)                        # ordered after all that is on the default stream
    fill(p, 2, a)
    ok(driver.cuEventRecord(e, a))
    if not wrong:
        ok(driver.cuStreamWaitEvent(0, e, 0))
    fill(p, 3, blocking)
    assert bool(simulator.races()) is wrong
