"""The simulated driver: streams, events, and when queued work runs."""
from __future__ import annotations

import ctypes
import threading
import time

import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, code, event, fill, free, launch_host, ok, stream, sync

from xlogmem import _driver

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


def test_events_of_a_destroyed_stream_keep_their_meaning(simulator):
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


def test_a_new_stream_is_not_ordered_after_a_destroyed_one(simulator):
    """Finished is not enough: it has to have been waited for."""
    a = stream()
    p = alloc(a)
    ok(driver.cuStreamDestroy(a))
    assert simulator.pending_operations() == 0
    fill(p, 1, stream())
    assert [report.split(":")[0] for report in simulator.races()] == ["RACE alloc/use"]


def test_nothing_runs_before_it_has_to(simulator):
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


def test_a_full_queue_blocks_all_calls_on_that_stream(simulator):
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


@pytest.mark.skipif(_driver.BUILD in ("asan", "tsan"), reason="a sanitizer keeps memory that was freed")
def test_memory_grows_with_the_streams_and_not_with_their_square():
    """Streams that come and go, with a wait between two of them, while the host waits for nothing."""
    program = """if True:
        import ctypes
        import sim_support as cu
        from cuda.bindings import driver
        cu.install(); cu.retain()
        event = cu.event()
        def requests(count):
            for _ in range(count):
                a, b = cu.stream(), cu.stream()
                p = cu.alloc(a)
                cu.ok(driver.cuEventRecord(event, a)); cu.ok(driver.cuStreamWaitEvent(b, event, 0))
                cu.free(p, b)
                cu.ok(driver.cuStreamDestroy(a)); cu.ok(driver.cuStreamDestroy(b))
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        requests(200)
        before = resident()
        requests(2000)
        print(resident() - before)
    """
    done = cu.python("-c", program, PYTHONPATH=str(cu.Path(cu.__file__).parent))
    assert int(done.stdout) < 32 << 20, done.stderr          # a clock for each stream: twice that and more


def test_arguments_of_streams_and_events(simulator):
    """Flags that do not exist are refused, and a priority that does not exist is the nearest one."""
    assert [int(driver.cuEventCreate(flags)[0]) for flags in (0, 2, 8)] == [0, 0, INVALID_VALUE]
    for wanted, given in ((3, 0), (-2, -2), (-9, -5)):
        made = driver.cuStreamCreateWithPriority(1, wanted)[1]
        assert int(driver.cuStreamGetPriority(made)[1]) == given
    start, end = (driver.cuEventCreate(0)[1] for _ in range(2))
    assert int(driver.cuEventElapsedTime(start, end)[0]) == INVALID_HANDLE      # not recorded


def test_attributes_are_kept(simulator):
    """They change no order: a priority alone is seen elsewhere."""
    a, b = stream(), stream()
    policy, priority = (driver.CUstreamAttrID(number) for number in (3, 8))
    value = driver.CUstreamAttrValue()
    value.syncPolicy = driver.CUsynchronizationPolicy.CU_SYNC_POLICY_YIELD
    ok(driver.cuStreamSetAttribute(a, policy, value))
    value.priority = -3
    ok(driver.cuStreamSetAttribute(a, priority, value))
    assert ok(driver.cuStreamGetPriority(a)) == ok(driver.cuStreamGetAttribute(a, priority)).priority == -3
    assert ok(driver.cuStreamGetAttribute(b, policy)).syncPolicy == driver.CUsynchronizationPolicy.CU_SYNC_POLICY_AUTO
    ok(driver.cuStreamCopyAttributes(b, a))
    assert ok(driver.cuStreamGetAttribute(b, policy)).syncPolicy == driver.CUsynchronizationPolicy.CU_SYNC_POLICY_YIELD
    assert ok(driver.cuStreamGetPriority(b)) == -3
    for call in (simulator._library.cuStreamSetAttribute, simulator._library.cuStreamGetAttribute):
        assert call(ctypes.c_void_p(int(a)), 2, ctypes.create_string_buffer(64)) == INVALID_VALUE      # of a launch
