"""Driver semantics beyond conform.py: handles, contexts, memory pools, host functions, capture."""

from __future__ import annotations

import ctypes
import threading
import time

import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, code, event, fill, free, ok, order, stream, sync

pytestmark = pytest.mark.simulator

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT, INVALID_HANDLE, NOT_READY = 1, 2, 201, 400, 600


def test_stream_handles_come_back_and_ids_do_not(simulator):
    a = stream()
    first = cu.stream_id(a)
    ok(driver.cuStreamDestroy(a))
    b = stream()
    assert int(a) == int(b)
    assert cu.stream_id(b) != first


def test_a_destroyed_handle_is_refused_everywhere(simulator):
    s, e, p = stream(), event(), alloc(0)
    ok(driver.cuStreamDestroy(s))
    for result in (driver.cuStreamSynchronize(s), driver.cuStreamQuery(s), driver.cuStreamGetId(s),
                   driver.cuEventRecord(e, s), driver.cuStreamWaitEvent(s, e, 0),
                   driver.cuMemAllocAsync(64, s), driver.cuMemFreeAsync(p, s),
                   driver.cuMemsetD8Async(p, 0, 64, s), driver.cuStreamDestroy(s)):
        assert code(result) == INVALID_HANDLE
    ok(driver.cuEventDestroy(e))
    for result in (driver.cuEventQuery(e), driver.cuEventSynchronize(e), driver.cuEventRecord(e, 0),
                   driver.cuStreamWaitEvent(0, e, 0), driver.cuEventDestroy(e)):
        assert code(result) == INVALID_HANDLE
    free(p, 0)


def test_a_destroyed_streams_work_still_runs(simulator):
    simulator.reset("min")
    a = stream()
    p = alloc(a)
    fill(p, 7, a)
    ok(driver.cuStreamDestroy(a))
    assert simulator.pending_operations() > 0
    ok(driver.cuCtxSynchronize())
    assert simulator.peek(p, 64) == b"\x07" * 64
    free(p, 0)


def test_events_of_a_dead_stream_keep_their_meaning(simulator):
    """Also when a new stream has taken its place inside the simulator."""
    simulator.reset("min")
    a, b, e = stream(), stream(), event()
    p = alloc(a)
    ok(driver.cuEventRecord(e, a))
    sync(a)
    ok(driver.cuStreamDestroy(a))
    c = stream()
    q = alloc(c)
    ok(driver.cuStreamWaitEvent(b, e, 0))
    fill(p, 1, b)
    assert simulator.races() == []
    fill(q, 1, b)
    assert len(simulator.races()) == 1


def test_a_new_stream_is_not_ordered_after_a_dead_one(simulator):
    """Finished is not enough: somebody has to have waited for it."""
    a = stream()
    p = alloc(a)
    ok(driver.cuStreamDestroy(a))
    assert simulator.pending_operations() == 0
    fill(p, 1, stream())
    assert [report.split(":")[0] for report in simulator.races()] == ["RACE alloc/use"]


def test_nothing_runs_before_it_is_asked_for(simulator):
    simulator.reset("max")
    a = stream()
    p = alloc(a)
    fill(p, 1, a)
    assert simulator.pending_operations() == 2
    assert simulator.step()
    assert simulator.peek(p, 64) == b"\xcd" * 64
    assert simulator.step()
    assert simulator.peek(p, 64) == b"\x01" * 64
    assert not simulator.step()


def test_a_query_makes_progress(simulator):
    for policy, seed in cu.SCHEDULES:
        simulator.reset(policy, seed)
        a = stream()
        p = alloc(a)
        fill(p, 1, a)
        for _ in range(1000):
            if code(driver.cuStreamQuery(a)) == 0:
                break
        else:
            raise AssertionError(policy)
        free(p, a)


def test_min_runs_only_what_is_needed(simulator):
    simulator.reset("min")
    a, b = stream(), stream()
    p, q = alloc(a), alloc(b)
    sync(a)
    assert simulator.pending_operations() == 1
    simulator.reset("max")
    p, q = alloc(a), alloc(b)
    sync(a)
    assert simulator.pending_operations() == 0
    assert p != q


def test_a_full_queue_blocks_until_there_is_room(simulator):
    simulator.reset("min")
    a = stream()
    p = alloc(a)
    for _ in range(3000):
        fill(p, 1, a)
    assert simulator.pending_operations() <= 1024
    free(p, a)


def test_a_full_queue_blocks_everybody_on_that_stream(simulator):
    """As seen on an H200: behind a queue that cannot drain, launch, record, wait, query and free all block."""
    a, b, gate = stream(), stream(), threading.Event()
    p, e, context = alloc(a), event(), ok(driver.cuCtxGetCurrent())
    keep = launch_host(a, gate.wait)
    finished = []

    def flood():
        ok(driver.cuCtxSetCurrent(context))
        for _ in range(1100):
            fill(p, 1, a)
        finished.append("launch")

    def other(what, call):
        ok(driver.cuCtxSetCurrent(context))
        call()
        finished.append(what)

    def start(target, *arguments):
        thread = threading.Thread(target=target, args=arguments)
        thread.start()
        return thread

    threads = [start(flood)]
    while simulator.pending_operations() < 1024:
        time.sleep(0.001)
    time.sleep(0.02)
    threads += [start(other, "record", lambda: ok(driver.cuEventRecord(e, a))),
                start(other, "wait", lambda: ok(driver.cuStreamWaitEvent(a, e, 0))),
                start(other, "query", lambda: driver.cuStreamQuery(a)),
                start(other, "free", lambda: free(p, a))]
    fill(alloc(b), 1, b)  # other streams are not concerned
    sync(b)
    time.sleep(0.05)
    blocked = list(finished)
    gate.set()
    for thread in threads:
        thread.join()
    del keep
    assert blocked in ([], ["wait"])  # a wait for an event never recorded queues nothing
    assert sorted(finished) == ["free", "launch", "query", "record", "wait"]
    sync(a)
    simulator.clear_races()


# Memory ------------------------------------------------------------------------------------------------


def test_reuse_on_another_stream_needs_the_order(simulator):
    simulator.reset("min")
    a, b = stream(), stream()
    p = alloc(a)
    free(p, a)
    q = alloc(b)
    assert q != p  # the free has neither happened nor is it ordered before
    order(b, a)
    assert alloc(b) == p
    assert simulator.races() == []


def test_reuse_can_be_forbidden(simulator):
    simulator.reset("min")
    pool = ok(driver.cuDeviceGetDefaultMemPool(0))
    follow = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES
    ok(driver.cuMemPoolSetAttribute(pool, follow, driver.cuuint64_t(0)))
    a, b = stream(), stream()
    p = alloc(a)
    free(p, a)
    order(b, a)
    assert alloc(b) != p
    ok(driver.cuMemPoolSetAttribute(pool, follow, driver.cuuint64_t(1)))
    assert alloc(b) == p


def test_opportunistic_reuse(simulator):
    """A free that has happened frees the address for everybody, dependencies or not."""
    simulator.reset("eager")
    a, b = stream(), stream()
    p = alloc(a)
    free(p, a)
    assert alloc(b) == p
    assert simulator.races() == []


def test_last_freed_is_first_given(simulator):
    a = stream()
    blocks = [alloc(a) for _ in range(5)]
    for p in blocks:
        free(p, a)
    assert [alloc(a) for _ in range(5)] == blocks[::-1]


def test_poison(scheduled):
    a = stream()
    p = alloc(a)
    sync(a)
    assert scheduled.peek(p, 64) == b"\xcd" * 64
    free(p, a)
    sync(a)
    assert scheduled.peek(p, 64) == b"\xdd" * 64


def test_live_bytes(simulator):
    before = simulator.live_bytes()
    p = alloc(0, 1000)
    assert simulator.live_bytes() == before + 1000
    free(p, 0)
    assert simulator.live_bytes() == before
    assert alloc(0, 0) == 0
    assert simulator.live_bytes() == before


def test_bad_addresses(simulator):
    a = stream()
    p = alloc(a)
    assert code(driver.cuMemsetD8Async(p + 32, 0, 64, a)) == INVALID_VALUE
    assert code(driver.cuMemsetD8Async(p + (1 << 35), 0, 64, a)) == INVALID_VALUE
    assert code(driver.cuMemFreeAsync(p + 8, a)) == INVALID_VALUE
    assert code(driver.cuMemcpyDtoDAsync(p, 0x7000, 64, a)) == INVALID_VALUE
    assert code(driver.cuMemcpyAsync(p, 0x7000, 64, a)) == INVALID_VALUE
    free(p, a)
    assert code(driver.cuMemFreeAsync(p, a)) == INVALID_VALUE


def test_pools(simulator):
    properties = driver.CUmemPoolProps()
    properties.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    properties.location.id = 0
    pool = ok(driver.cuMemPoolCreate(properties))
    names = driver.CUmemPool_attribute

    def read(what):
        return int(ok(driver.cuMemPoolGetAttribute(pool, getattr(names, "CU_MEMPOOL_ATTR_" + what))))

    threshold = names.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    ok(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(2**64 - 1)))
    assert read("RELEASE_THRESHOLD") == 2**64 - 1
    a = stream()
    p = int(ok(driver.cuMemAllocFromPoolAsync(1000, pool, a)))
    assert read("USED_MEM_CURRENT") == read("RESERVED_MEM_CURRENT") == 1024
    free(p, a)
    sync(a)
    assert read("USED_MEM_CURRENT") == 0
    assert read("RESERVED_MEM_CURRENT") == 1024
    ok(driver.cuMemPoolTrimTo(pool, 0))
    assert read("RESERVED_MEM_CURRENT") == 0
    ok(driver.cuMemPoolSetAttribute(pool, threshold, driver.cuuint64_t(0)))
    p = int(ok(driver.cuMemAllocFromPoolAsync(1000, pool, a)))
    free(p, a)
    sync(a)  # gives back what is above the threshold
    assert read("RESERVED_MEM_CURRENT") == 0
    p = int(ok(driver.cuMemAllocFromPoolAsync(1000, pool, a)))
    ok(driver.cuMemPoolDestroy(pool))
    assert code(driver.cuMemAllocFromPoolAsync(1000, pool, a)) == INVALID_VALUE
    free(p, a)


def test_out_of_memory(simulator):
    total = int(ok(driver.cuDeviceTotalMem(0)))
    a = stream()
    assert cu.try_alloc(a, total + 1) == OUT_OF_MEMORY
    p = alloc(a, total // 2 + 1)
    assert cu.try_alloc(a, total // 2 + 1) == OUT_OF_MEMORY
    free(p, a)
    p = alloc(a, total // 4)  # what the pool holds unused is no obstacle
    free(p, a)


def test_pageable_copies(scheduled):
    a = stream()
    p = alloc(a)
    source = ctypes.create_string_buffer(b"A" * 64, 64)
    ok(driver.cuMemcpyHtoDAsync(p, ctypes.addressof(source), 64, a))
    source.raw = b"B" * 64  # staged: no harm
    target = ctypes.create_string_buffer(64)
    ok(driver.cuMemcpyDtoHAsync(ctypes.addressof(target), p, 64, a))
    assert target.raw == b"A" * 64  # synchronous
    free(p, a)


def test_page_locked_copies_are_asynchronous(simulator):
    simulator.reset("min")
    a, out = stream(), cu.Pinned()
    p = alloc(a)
    fill(p, 1, a)
    out.read_from(p, a)
    assert out.bytes() == bytes(64)
    sync(a)
    assert out.bytes() == b"\x01" * 64
    out.close()


def test_pointer_attributes(simulator):
    p = alloc(0, 1000)
    names = driver.CUpointer_attribute
    start = driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 10)
    assert int(ok(start)) == p
    ordinal = driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p)
    assert int(ok(ordinal)) == 0
    free(p, 0)
    assert code(driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p)) == INVALID_VALUE


# Contexts ----------------------------------------------------------------------------------------------


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


def test_releasing_a_primary_context_destroys_what_is_in_it(simulator):
    context = ok(driver.cuDevicePrimaryCtxRetain(1))
    number = int(ok(driver.cuCtxGetId(context)))
    ok(driver.cuCtxPushCurrent(context))
    b, e = stream(), event()
    alloc(b)
    ok(driver.cuDevicePrimaryCtxRelease(1))
    assert code(driver.cuStreamCreate(1)) == 709
    assert code(driver.cuStreamQuery(b)) == INVALID_HANDLE
    assert code(driver.cuEventQuery(e)) == INVALID_HANDLE
    ok(driver.cuCtxPopCurrent())
    context = ok(driver.cuDevicePrimaryCtxRetain(1))
    assert int(ok(driver.cuCtxGetId(context))) != number
    ok(driver.cuDevicePrimaryCtxRelease(1))


# Host functions ----------------------------------------------------------------------------------------


HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def launch_host(s, function):
    callback = HOST_FUNCTION(lambda _: function())
    pointer = driver.CUhostFn(_ptr=ctypes.addressof(ctypes.c_void_p.from_buffer(callback)))
    ok(driver.cuLaunchHostFunc(s, pointer, 0))
    return callback


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


# Capture -----------------------------------------------------------------------------------------------


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
    ok(driver.cuGraphLaunch(execution, b))
    ok(driver.cuGraphLaunch(execution, a))  # two launches on unordered streams: their writes race
    assert [report.split(":")[0] for report in simulator.races()] == ["RACE write/write"]


@pytest.mark.parametrize(("what", "expected", "spoiled"), [
    ("wait for an ordinary event", 905, True),
    ("wait for an ordinary event, external", 0, False),
    ("query the captured event", 907, True),
    ("ordinary stream waits for the captured event", 1, False),
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
        "ordinary stream waits for the captured event": lambda: driver.cuStreamWaitEvent(b, captured, 0),
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


def test_another_contexts_capture_is_in_nobodys_way(simulator):
    second = ok(driver.cuDevicePrimaryCtxRetain(1))
    a = stream()
    ok(driver.cuStreamBeginCapture(a, RELAXED))
    ok(driver.cuCtxPushCurrent(second))
    assert code(driver.cuCtxSynchronize()) == 0
    ok(driver.cuCtxPopCurrent())
    ok(driver.cuDevicePrimaryCtxRelease(1))
    assert capturing(a) == 1
    assert end(a)[0] == 0
