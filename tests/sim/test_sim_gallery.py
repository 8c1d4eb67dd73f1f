"""Bugs of real programs, in the driver's calls, and what a list of accesses finds in them."""
from __future__ import annotations

import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, event, fill, free, ok, order, stream, sync

pytestmark = pytest.mark.simulator
both = pytest.mark.parametrize("wrong", [False, True])
NBYTES = 1 << 16


def kinds(simulator):
    return [report.split(":")[0] for report in simulator.races()]


def graph_of(s, work):
    """A captured graph, ready for launches."""
    ok(driver.cuStreamBeginCapture(s, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    work()
    return ok(driver.cuGraphInstantiate(ok(driver.cuStreamEndCapture(s)), 0))


@both
def test_an_upload_from_pageable_memory_has_only_been_staged(scheduled, wrong):
    """Rust-GPU/rust-cuda#15, openucx/ucx#3560, intel/llvm#1798."""
    s, p, q = stream(), cu.alloc_ordinary(NBYTES), cu.alloc_ordinary(NBYTES)
    ok(driver.cuMemcpyHtoD(p, bytes(NBYTES), NBYTES))
    if not wrong:
        sync(0)
    ok(driver.cuMemcpyDtoDAsync(q, p, NBYTES, s))
    assert kinds(scheduled) == (["RACE write/read"] if wrong else [])


@both
def test_a_synchronous_free_of_stream_ordered_memory_waits_for_nothing(scheduled, wrong):
    """kokkos/kokkos#9307, cupy/cupy#3777."""
    s = stream()
    p = alloc(s, NBYTES)
    fill(p, 1, s, NBYTES)
    if not wrong:
        sync(s)
    ok(driver.cuMemFree(p))
    assert kinds(scheduled) == (["RACE write/free"] if wrong else [])


@both
def test_a_library_frees_on_the_null_stream(scheduled, wrong):
    """NVIDIA/physicsnemo#1771."""
    s = stream()
    p = alloc(s, NBYTES)
    fill(p, 1, s, NBYTES)
    if not wrong:
        order(0, s)
    free(p, 0)
    assert kinds(scheduled) == (["RACE write/free"] if wrong else [])


@both
def test_a_graph_replays_freed_memory(scheduled, wrong):
    """pytorch/pytorch#139355."""
    s = stream()
    p = alloc(s, NBYTES)
    graph = graph_of(s, lambda: fill(p, 1, s, NBYTES))
    ok(driver.cuGraphLaunch(graph, s))
    assert kinds(scheduled) == []
    free(p, s)
    if wrong:
        ok(driver.cuGraphLaunch(graph, s))
    assert kinds(scheduled) == (["USE-AFTER-FREE"] if wrong else [])


@both
def test_a_graph_works_on_the_next_owners_memory(scheduled, wrong):
    s = stream()
    p = alloc(s)
    graph = graph_of(s, lambda: fill(p, 1, s))
    if wrong:
        free(p, s)
        assert alloc(s) == p
    ok(driver.cuGraphLaunch(graph, s))
    assert kinds(scheduled) == (["STALE GRAPH"] if wrong else [])


def test_a_graphs_own_memory_is_the_graphs(scheduled):
    s, made = stream(), []

    def work():
        made.append(alloc(s))
        fill(made[0], 1, s)
        free(made[0], s)

    graph = graph_of(s, work)
    for _ in range(3):
        ok(driver.cuGraphLaunch(graph, s))
    assert kinds(scheduled) == []


@both
def test_a_use_behind_the_free_inside_of_a_graph(scheduled, wrong):
    s = stream()

    def work():
        p = alloc(s)
        if not wrong:
            fill(p, 1, s)
        free(p, s)
        if wrong:
            fill(p, 1, s)

    graph_of(s, work)
    assert kinds(scheduled) == (["USE-AFTER-FREE"] if wrong else [])


@both
def test_a_reported_race_does_not_hide_the_next(scheduled, wrong):
    """The third stream waits for the second, and not for the first."""
    a, b, c = stream(), stream(), stream()
    p, out = cu.alloc_ordinary(), cu.Pinned()
    fill(p, 1, a)
    if not wrong:
        order(b, a)
    fill(p, 2, b)
    order(c, b)
    out.read_from(p, c)
    assert kinds(scheduled) == (["RACE write/write", "RACE write/read"] if wrong else [])
    sync(c)
    out.close()


def test_one_missing_wait_is_one_report(scheduled):
    """The allocation is unordered as well, and the first bytes were written."""
    a, b, out = stream(), stream(), cu.Pinned()
    p = alloc(a)
    fill(p, 1, a, 32)
    out.read_from(p, b)
    assert kinds(scheduled) == ["RACE write/read"]
    sync(b)
    out.close()


def test_what_an_event_stood_for_is_known_to_the_host_although_it_was_recorded_again(simulator):
    """... while a thread waited for it, on another stream."""
    simulator.reset("min")
    a, b, e = stream(), stream(), event()
    p = cu.alloc_ordinary()
    fill(p, 1, a)
    ok(driver.cuEventRecord(e, a))
    ok(driver.cuEventSynchronize(e))
    fill(p, 2, b)
    ok(driver.cuEventRecord(e, b))
    fill(p, 3, a)
    assert kinds(simulator) == ["RACE write/write"]


@both
@pytest.mark.parametrize("default_waits", [False, True])
def test_a_wait_on_its_own_is_passed_on_through_the_default_stream(scheduled, wrong, default_waits):
    """In what is reported, and in what the device does: the stream that passes it on has done nothing since."""
    a, blocking, out = stream(), stream(0), cu.Pinned()
    waits, reads = (0, blocking) if default_waits else (blocking, 0)
    p, q = cu.alloc_ordinary(), cu.alloc_ordinary()
    fill(q, 1, waits)
    fill(q, 2, reads)
    sync(0)
    fill(q, 3, waits)
    fill(q, 4, reads)
    fill(p, 0x11, a)
    if not wrong:
        order(waits, a)
    out.read_from(p, reads)
    sync(reads)
    assert kinds(scheduled) == (["RACE write/read"] if wrong else [])
    assert wrong or out.bytes() == b"\x11" * 64
    ok(driver.cuCtxSynchronize())
    out.close()
