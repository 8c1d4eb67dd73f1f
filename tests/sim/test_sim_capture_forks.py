"""The simulated driver: captures of several streams. The rules are those of CUDA's documentation of stream capture."""
from __future__ import annotations

import threading

import pytest
from cuda.bindings import driver
from sim_support import alloc, code, event, fill, free, ok, order, stream, sync

pytestmark = pytest.mark.simulator
GLOBAL, THREAD_LOCAL, RELAXED = (driver.CUstreamCaptureMode(i) for i in range(3))
INVALID_VALUE, ILLEGAL_STATE = 1, 401
UNSUPPORTED, INVALIDATED, MERGE, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT = range(900, 907)
WRONG_THREAD = 908
NONE, ACTIVE, SPOILED = range(3)


def status(s):
    return int(ok(driver.cuStreamIsCapturing(s)))


def info(s):
    """Status, number and graph of the capture."""
    return [int(value) for value in ok(driver.cuStreamGetCaptureInfo(s))[:3]]


def begin(s, mode=RELAXED):
    ok(driver.cuStreamBeginCapture(s, mode))


def end(s):
    result = driver.cuStreamEndCapture(s)
    return code(result), result[1]


def launch(graph, s):
    ok(driver.cuGraphLaunch(ok(driver.cuGraphInstantiate(graph, 0)), s))


def recorded(s):
    e = event()
    ok(driver.cuEventRecord(e, s))
    return e


def waits(s, e):
    return code(driver.cuStreamWaitEvent(s, e, 0))


@pytest.fixture
def forked(simulator):
    """A capture of two streams, and a third stream beside it."""
    a, b, c = (stream() for _ in range(3))
    begin(a)
    order(b, a)
    yield a, b, c
    end(a)


def reports(simulator):
    return [report.split(":")[0] for report in simulator.races()]


def test_the_work_of_both_branches_is_done_at_a_launch(scheduled):
    a, b = stream(), stream()
    p, q = alloc(a), alloc(a)
    sync(a)
    begin(a)
    fill(p, 1, a)
    order(b, a)
    assert info(a)[1:] == info(b)[1:]
    assert status(b) == ACTIVE
    fill(p, 2, a)
    fill(q, 3, b)
    order(a, b)
    error, graph = end(a)
    assert (error, status(a), status(b)) == (0, NONE, NONE)
    assert scheduled.peek(q, 64) == b"\xcd" * 64  # captured, not run
    launch(graph, a)
    sync(a)
    assert (scheduled.peek(p, 64), scheduled.peek(q, 64)) == (b"\x02" * 64, b"\x03" * 64)
    assert scheduled.races() == []
    free(p, a)
    free(q, a)


def newest(s):
    """The nodes on which the next one of the stream will depend."""
    values = ok(driver.cuStreamGetCaptureInfo(s))
    assert len(values[3]) == values[-1]
    return {int(node) for node in values[3]}


def test_what_the_next_node_depends_on(forked):
    a, b, c = forked
    assert newest(a) == newest(b) == newest(c) == set()
    fill(alloc(a), 1, a)
    fill(alloc(b), 2, b)
    one, two = newest(a), newest(b)
    assert len(one) == len(two) == 1
    assert one != two
    order(c, b)
    assert newest(c) == two
    order(a, c)
    order(a, b)
    assert newest(a) == one | two
    fill(alloc(a), 1, a)
    assert len(newest(a)) == 1
    assert not newest(a) & (one | two)
    driver.cuStreamQuery(a)
    assert newest(a) == set()


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("place", ["fork", "join"])
def test_branches_are_judged_in_the_capture(simulator, place, ordered):
    """What is captured behind the fork is beside the branch, and what is captured behind the join comes after it."""
    a, b = stream(), stream()
    p = alloc(a)
    sync(a)
    begin(a)
    fill(p, 1, a) if place == "fork" and ordered else None
    order(b, a)
    fill(p, 1, a) if place == "fork" and not ordered else None
    fill(p, 2, b)
    fill(p, 3, a) if place == "join" and not ordered else None
    order(a, b)
    fill(p, 3, a) if place == "join" and ordered else None
    assert end(a)[0] == 0
    assert reports(simulator) == ([] if ordered else ["RACE write/write"])
    free(p, a)


@pytest.mark.parametrize("ordered", [True, False])
def test_what_a_branch_had_queued_before_is_no_part_of_the_graph(simulator, ordered):
    a, b = stream(), stream()
    p = alloc(a)
    sync(a)
    fill(p, 1, b)
    begin(a)
    order(b, a)
    fill(p, 2, b)
    order(a, b)
    graph = end(a)[1]
    if ordered:
        order(a, b)
    launch(graph, a)
    assert reports(simulator) == ([] if ordered else ["RACE write/write"])
    sync(a)
    sync(b)
    free(p, a)


EXTERNAL = 1


@pytest.mark.parametrize("what", ["POSSIBLE RACE write/write", "RACE write/write", None])
def test_a_graph_may_wait_for_an_external_event(simulator, what):
    """The wait is in the graph, and not modelled; without it, and where the launch waits, there is no doubt."""
    a, b = stream(), stream()
    p = alloc(a)
    sync(a)
    fill(p, 1, b)
    e = recorded(b)
    begin(a)
    if what != "RACE write/write":
        ok(driver.cuStreamWaitEvent(a, e, EXTERNAL))
        assert len(newest(a)) == 1
    fill(p, 2, a)
    graph = end(a)[1]
    if not what:
        ok(driver.cuStreamWaitEvent(a, e, 0))
    launch(graph, a)
    assert reports(simulator) == ([what] if what else [])
    sync(a)
    sync(b)
    free(p, a)


@pytest.mark.parametrize("what", ["POSSIBLE RACE write/write", "RACE write/write", None])
def test_a_graph_may_record_an_external_event(simulator, what):
    a, b, e = stream(), stream(), event()
    p = alloc(a)
    sync(a)
    begin(a)
    fill(p, 1, a)
    ok(driver.cuEventRecordWithFlags(e, a, EXTERNAL))
    graph = end(a)[1]
    launch(graph, a)
    if not what:
        ok(driver.cuEventRecord(e, a))  # an ordinary one again
    if what != "RACE write/write":
        assert waits(b, e) == 0
        assert status(b) == NONE
    fill(p, 2, b)
    assert reports(simulator) == ([what] if what else [])
    sync(a)
    sync(b)
    free(p, a)


class TestTheEnd:
    def test_work_that_was_not_joined(self, forked):
        a, b, _ = forked
        p = alloc(a)
        graph = info(a)[2]
        fill(p, 1, b)
        assert end(a) == (UNJOINED, None)
        assert status(a) == status(b) == NONE
        assert code(driver.cuGraphDestroy(driver.CUgraph(graph))) == INVALID_VALUE

    def test_work_behind_the_join(self, forked):
        a, b, _ = forked
        p = alloc(a)
        fill(p, 1, b)
        order(a, b)
        fill(p, 2, b)
        assert end(a)[0] == UNJOINED

    def test_a_branch_that_did_nothing_needs_no_join(self, forked):
        """It has no node that the first stream could depend on."""
        a, b, _ = forked
        recorded(b)
        assert end(a)[0] == 0
        assert status(b) == NONE

    def test_a_branch_is_joined_through_another_one(self, forked):
        a, b, c = forked
        p = alloc(b)
        fill(p, 1, b)
        order(c, b)
        order(a, c)
        assert end(a)[0] == 0
        assert status(c) == NONE

    def test_only_the_first_stream_ends_a_capture(self, forked):
        a, b, _ = forked
        assert end(b)[0] == UNMATCHED
        assert status(a) == status(b) == SPOILED        # as seen on an H200, like what is below
        assert end(a)[0] == INVALIDATED

    @pytest.mark.parametrize(("mode", "expected"),
                             [(GLOBAL, WRONG_THREAD), (THREAD_LOCAL, WRONG_THREAD), (RELAXED, INVALIDATED)])
    def test_another_thread(self, simulator, mode, expected):
        a, b = stream(), stream()
        context = ok(driver.cuCtxGetCurrent())
        begin(a, mode)
        order(b, a)
        seen = []

        def other():
            ok(driver.cuCtxSetCurrent(context))
            seen.extend((end(b)[0], end(a)[0]))

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert seen == [UNMATCHED, expected]
        assert end(a)[0] == (ILLEGAL_STATE if expected == INVALIDATED else INVALIDATED)


class TestWaits:
    def test_a_branch_begins_no_capture(self, forked):
        _, b, _ = forked
        assert code(driver.cuStreamBeginCapture(b, RELAXED)) == ILLEGAL_STATE
        assert status(b) == ACTIVE

    def test_two_captures_are_not_merged(self, forked):
        a, b, c = forked
        begin(c)
        assert waits(b, recorded(c)) == MERGE
        assert status(a) == status(b) == status(c) == SPOILED
        assert end(c)[0] == end(a)[0] == INVALIDATED

    def test_an_event_from_outside(self, forked):
        a, b, c = forked
        assert waits(b, event()) == 0   # that was never recorded
        assert waits(b, recorded(c)) == ISOLATION
        assert status(a) == status(b) == SPOILED
        assert waits(a, recorded(c)) == INVALIDATED

    def test_the_event_of_a_capture_that_was_spoiled(self, forked):
        """As seen on an H200."""
        a, _, c = forked
        e = recorded(a)
        assert code(driver.cuStreamQuery(a)) == UNSUPPORTED
        assert waits(c, e) == INVALID_VALUE
        assert status(c) == NONE

    def test_the_event_of_a_capture_that_has_ended(self, forked):
        a, b, c = forked
        e = recorded(b)
        assert end(a)[0] == 0
        assert waits(c, e) == INVALID_VALUE
        begin(c)
        assert waits(c, e) == INVALID_VALUE
        assert end(c)[0] == INVALIDATED
        ok(driver.cuEventRecord(e, b))  # an ordinary one again
        assert waits(c, e) == 0
        assert status(c) == NONE

    @pytest.mark.parametrize("flags", [0, 1])
    def test_the_legacy_stream_joins_no_capture(self, simulator, flags):
        """As seen on an H200."""
        a = stream(flags)
        begin(a)
        assert waits(driver.CUstream(1), recorded(a)) == IMPLICIT
        assert end(a)[0] == INVALIDATED


class TestForbiddenCalls:
    @pytest.mark.parametrize("call", [driver.cuStreamQuery, driver.cuStreamSynchronize, driver.cuStreamGetId])
    @pytest.mark.parametrize("branch", [0, 1])
    def test_on_either_stream_spoil_both(self, forked, call, branch):
        a, b, c = forked
        assert code(call(forked[branch])) == UNSUPPORTED
        assert status(a) == status(b) == SPOILED
        assert info(b)[2] == 0
        assert code(driver.cuEventRecord(event(), b)) == INVALIDATED
        assert code(driver.cuMemsetD8Async(alloc(c), 1, 64, b)) == INVALIDATED
        assert end(b)[0] == UNMATCHED
        assert end(a)[0] == INVALIDATED
        assert status(a) == status(b) == NONE
        sync(b)

    def test_use_of_the_legacy_stream_beside_a_blocking_branch(self, simulator):
        a, b = stream(), stream(0)
        p = alloc(a)
        sync(a)
        begin(a)
        assert code(driver.cuMemsetD8Async(p, 1, 64, driver.CUstream(1))) == 0
        order(b, a)
        assert code(driver.cuStreamIsCapturing(driver.CUstream(1))) == IMPLICIT
        assert code(driver.cuMemsetD8Async(p, 1, 64, driver.CUstream(1))) == IMPLICIT
        assert end(a)[0] == INVALIDATED
        free(p, driver.CUstream(1))

    def test_a_context_with_a_branch_cannot_be_synchronized(self, simulator):
        a = stream()
        second = ok(driver.cuDevicePrimaryCtxRetain(1))
        begin(a)
        e = recorded(a)
        ok(driver.cuCtxPushCurrent(second))
        b = ok(driver.cuStreamCreate(1))
        assert code(driver.cuCtxSynchronize()) == 0
        ok(driver.cuStreamWaitEvent(b, e, 0))
        assert code(driver.cuCtxSynchronize()) == UNSUPPORTED
        ok(driver.cuStreamDestroy(b))
        ok(driver.cuCtxPopCurrent())
        assert end(a)[0] == INVALIDATED
        ok(driver.cuDevicePrimaryCtxRelease(1))


class TestDestruction:
    def test_of_the_first_stream(self, simulator):
        """It ends the capture, of which nothing is left."""
        a, b = ok(driver.cuStreamCreate(1)), stream()
        begin(a)
        order(b, a)
        graph = info(b)[2]
        assert code(driver.cuGraphDestroy(graph)) == ILLEGAL_STATE
        ok(driver.cuStreamDestroy(a))
        assert status(b) == NONE
        assert code(driver.cuGraphDestroy(graph)) == INVALID_VALUE
        sync(b)

    @pytest.mark.parametrize("joined", [True, False])
    def test_of_a_branch(self, simulator, joined):
        """cuda.core destroys the streams of joined branches while the capture goes on."""
        a, b = stream(), ok(driver.cuStreamCreate(1))
        p = alloc(a)
        sync(a)
        begin(a)
        order(b, a)
        fill(p, 1, b)
        if joined:
            order(a, b)
        ok(driver.cuStreamDestroy(b))
        assert status(a) == ACTIVE
        error, graph = end(a)
        assert error == (0 if joined else UNJOINED)
        other = stream()  # which may have the place of the destroyed one
        assert status(other) == NONE
        if joined:
            launch(graph, other)
            sync(other)
            assert simulator.peek(p, 64) == b"\x01" * 64
        free(p, other)
