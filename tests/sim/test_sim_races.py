"""What the checker must find, in every schedule, and next to each case the same program written correctly."""

from __future__ import annotations

import pytest
import sim_support as cu
from cuda.bindings import driver
from sim_support import alloc, event, fill, free, ok, order, stream, sync

pytestmark = pytest.mark.simulator


@pytest.fixture
def two(scheduled):
    a, b = stream(), stream()
    out = cu.Pinned()
    yield scheduled, a, b, out
    ok(driver.cuCtxSynchronize())
    out.close()
    ok(driver.cuStreamDestroy(a))
    ok(driver.cuStreamDestroy(b))


def kinds(simulator):
    return sorted({report.split(":")[0] for report in simulator.races()})


def expect(simulator, wrong, *names):
    assert kinds(simulator) == (sorted(names) if wrong else [])


@pytest.mark.parametrize("wrong", [False, True])
def test_read_before_write_is_done(two, wrong):
    simulator, a, b, out = two
    p = alloc(a)
    order(b, a)
    fill(p, 0x11, a)
    if not wrong:
        order(b, a)
    out.read_from(p, b)
    sync(b)
    expect(simulator, wrong, "RACE write/read")
    if not wrong:
        assert out.bytes() == b"\x11" * 64


@pytest.mark.parametrize("wrong", [False, True])
def test_write_before_read_is_done(two, wrong):
    simulator, a, b, out = two
    p = alloc(a)
    fill(p, 0x11, a)
    order(b, a)
    out.read_from(p, b)
    if not wrong:
        order(a, b)
    fill(p, 0x22, a)
    sync(b)
    expect(simulator, wrong, "RACE read/write")
    if not wrong:
        assert out.bytes() == b"\x11" * 64


@pytest.mark.parametrize("wrong", [False, True])
def test_two_writes(two, wrong):
    simulator, a, b, _ = two
    p = alloc(a)
    order(b, a)
    fill(p, 0x11, a)
    if not wrong:
        order(b, a)
    fill(p, 0x22, b)
    expect(simulator, wrong, "RACE write/write")


@pytest.mark.parametrize("wrong", [False, True])
def test_use_before_the_allocation(two, wrong):
    simulator, a, b, _ = two
    p = alloc(a)
    if not wrong:
        order(b, a)
    fill(p, 1, b)
    expect(simulator, wrong, "RACE alloc/use")


@pytest.mark.parametrize("wrong", [False, True])
def test_free_before_the_allocation(two, wrong):
    simulator, a, b, _ = two
    p = alloc(a)
    if not wrong:
        order(b, a)
    free(p, b)
    expect(simulator, wrong, "RACE alloc/free")


@pytest.mark.parametrize("wrong", [False, True])
def test_free_while_a_reader_is_under_way(two, wrong):
    """The case xlogmem exists for: the address comes back, and the reader sees its next owner's data."""
    simulator, a, b, out = two
    p = alloc(a)
    fill(p, 0x11, a)
    order(b, a)
    out.read_from(p, b)
    if not wrong:
        order(a, b)
    free(p, a)
    assert alloc(a) == p
    fill(p, 0x22, a)
    sync(b)
    expect(simulator, wrong, "RACE read/free")
    if not wrong:
        assert out.bytes() == b"\x11" * 64


@pytest.mark.parametrize("wrong", [False, True])
def test_free_while_a_writer_is_under_way(two, wrong):
    simulator, a, b, _ = two
    p = alloc(a)
    order(b, a)
    fill(p, 1, b)
    if not wrong:
        order(a, b)
    free(p, a)
    expect(simulator, wrong, "RACE write/free")


@pytest.mark.parametrize("wrong", [False, True])
def test_use_not_ordered_with_the_free(two, wrong):
    simulator, a, b, _ = two
    p = alloc(a)
    order(b, a)
    if wrong:
        free(p, a)
        fill(p, 1, b)
    else:
        fill(p, 1, b)
        order(a, b)
        free(p, a)
    expect(simulator, wrong, "RACE free/use")


@pytest.mark.parametrize("wrong", [False, True])
def test_use_after_free_on_the_same_stream(two, wrong):
    simulator, a, _, out = two
    p = alloc(a)
    fill(p, 1, a)
    if not wrong:
        out.read_from(p, a)
    free(p, a)
    if wrong:
        out.read_from(p, a)
    sync(a)
    expect(simulator, wrong, "USE-AFTER-FREE")
    assert out.bytes() == (b"\xdd" if wrong else b"\x01") * 64


@pytest.mark.parametrize("wrong", [False, True])
def test_synchronous_free_of_stream_ordered_memory_does_not_wait(two, wrong):
    simulator, a, _, _ = two
    p = alloc(a)
    fill(p, 1, a)
    if not wrong:
        sync(a)
    ok(driver.cuMemFree(p))
    expect(simulator, wrong, "RACE write/free")


def test_synchronous_free_of_ordinary_memory_waits(two):
    simulator, a, b, _ = two
    p = int(ok(driver.cuMemAlloc(64)))
    fill(p, 1, a)
    order(b, a)
    fill(p, 2, b)
    ok(driver.cuMemFree(p))
    assert simulator.pending_operations() == 0
    assert simulator.races() == []


def test_synchronous_allocation_is_there_for_all_streams(two):
    simulator, a, _, _ = two
    p = int(ok(driver.cuMemAlloc(64)))
    fill(p, 1, a)
    assert simulator.races() == []
    ok(driver.cuMemFree(p))


@pytest.mark.parametrize("how", ["stream", "event", "context", "query", "event query"])
def test_what_the_host_has_seen_is_ordered(two, how):
    simulator, a, b, _ = two
    p = alloc(a)
    fill(p, 1, a)
    e = event()
    ok(driver.cuEventRecord(e, a))
    if how == "stream":
        sync(a)
    elif how == "event":
        ok(driver.cuEventSynchronize(e))
    elif how == "context":
        ok(driver.cuCtxSynchronize())
    elif how == "query":
        while cu.code(driver.cuStreamQuery(a)):
            pass
    else:
        while cu.code(driver.cuEventQuery(e)):
            pass
    fill(p, 2, b)
    free(p, b)
    assert simulator.races() == []
    ok(driver.cuEventDestroy(e))


def test_dependencies_are_transitive(two):
    simulator, a, b, _ = two
    c = stream()
    p = alloc(a)
    fill(p, 1, a)
    order(b, a)
    order(c, b)
    fill(p, 2, c)
    assert simulator.races() == []
    ok(driver.cuStreamDestroy(c))


def test_a_wait_takes_the_event_as_it_is_at_the_call(two):
    """Recording again neither delays a queued wait nor gives it more order."""
    simulator, a, b, _ = two
    p, q, e = alloc(a), alloc(a), event()
    fill(p, 1, a)
    ok(driver.cuEventRecord(e, a))
    ok(driver.cuStreamWaitEvent(b, e, 0))
    fill(q, 1, a)
    ok(driver.cuEventRecord(e, a))
    fill(p, 2, b)
    assert simulator.races() == []
    fill(q, 2, b)  # behind the second record, which was not waited for
    assert kinds(simulator) == ["RACE write/write"]
    ok(driver.cuEventDestroy(e))


def test_only_overlapping_bytes_race(two):
    simulator, a, b, _ = two
    p = alloc(a, 128)
    order(b, a)
    fill(p, 1, a, 64)
    fill(p + 64, 2, b, 64)
    assert simulator.races() == []
    fill(p + 60, 3, b, 8)
    (report,) = simulator.races()
    assert f"bytes [{p + 60:#x},{p + 64:#x}) 4 B" in report


def test_a_report_names_both_operations_and_streams(two):
    simulator, a, b, out = two
    p = alloc(a)
    order(b, a)
    fill(p, 1, a)
    out.read_from(p, b)
    (report,) = simulator.races()
    assert report.startswith(f"RACE write/read: cuMemsetD8Async on stream {cu.stream_id(a)} (op ")
    assert f"and cuMemcpyDtoHAsync on stream {cu.stream_id(b)} (op " in report
    assert report.endswith(f"; bytes [{p:#x},{p + 64:#x}) 64 B")


def test_reads_do_not_race_with_each_other(two):
    simulator, a, b, out = two
    p, other = alloc(a), cu.Pinned()
    fill(p, 1, a)
    order(b, a)
    out.read_from(p, a)
    other.read_from(p, b)
    assert simulator.races() == []
    fill(p, 2, a)  # ordered after a's read only
    assert kinds(simulator) == ["RACE read/write"]
    other.close()


@pytest.mark.parametrize(("flags", "ordered"), [(0, True), (1, False)])
def test_legacy_default_stream_orders_blocking_streams(scheduled, flags, ordered):
    a, b = stream(flags), stream(flags)
    p = alloc(a)
    fill(p, 1, a)
    fill(p, 2, 0)  # the legacy stream comes after a …
    fill(p, 3, b)  # … and b after it
    assert bool(scheduled.races()) is not ordered
    ok(driver.cuCtxSynchronize())
    if ordered:
        assert scheduled.peek(p, 64) == b"\x03" * 64
    free(p, 0)


def test_per_thread_default_stream_is_another_stream(scheduled):
    ids = {cu.stream_id(0), cu.stream_id(1), cu.stream_id(2)}
    assert len(ids) == 2
    assert cu.stream_id(0) == cu.stream_id(1)


def test_bugs_show_in_the_data(simulator):
    """No single policy shows every bug in the data; the policies are made to show each in one."""
    def consume(policy):
        simulator.reset(policy)
        a, b, out = stream(), stream(), cu.Pinned()
        p = alloc(a)
        order(b, a)
        fill(p, 0x11, a)
        out.read_from(p, b)
        sync(b)
        return out.bytes()[0]

    def reuse(policy):
        simulator.reset(policy)
        a, b, out = stream(), stream(), cu.Pinned()
        p = alloc(a)
        fill(p, 0x11, a)
        order(b, a)
        out.read_from(p, b)
        free(p, a)
        fill(alloc(a), 0x22, a)
        sync(b)
        return out.bytes()[0]

    assert consume("min") == 0xCD
    assert consume("max") == 0x11
    assert reuse("min") == 0x11
    assert reuse("max") == 0x22


def test_a_seed_decides_the_run(simulator):
    def values():
        found = []
        for seed in range(40):
            simulator.reset("seeded", seed)
            a, b, out = stream(), stream(), cu.Pinned()
            p = alloc(a)
            fill(p, 0x11, a)
            order(b, a)
            out.read_from(p, b)
            free(p, a)
            fill(alloc(a), 0x22, a)
            sync(b)
            found.append(out.bytes()[0])
            assert kinds(simulator) == ["RACE read/free"]
            ok(driver.cuStreamDestroy(a))
            ok(driver.cuStreamDestroy(b))
            out.close()
        return found

    first = values()
    assert first == values()
    assert {0x11, 0x22} <= set(first)
