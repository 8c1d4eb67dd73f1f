"""Statistics: RMM's counters, by tag and stream, exact whatever fails and in all threads."""
from __future__ import annotations

import random

import pytest
from c_table import Hold
from forking import outcomes
from other_threads import Beside
from pools import Counted, simulated
from rmm_if_installed import needs_rmm, rmm

from xlogmem import (
    AsyncMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    LimitingResourceAdaptor,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    StreamMisuseError,
    TrackingResourceAdaptor,
)
from xlogmem.resources import Statistics


def counting(upstream=None, **parts):
    adaptor = StatisticsResourceAdaptor(upstream if upstream is not None else AsyncMemoryResource())
    return adaptor, DeviceRuntime(resource=adaptor, **parts)


def current(adaptor):
    now = adaptor.allocation_counts
    return now.current_bytes, now.current_count


def test_the_counters_are_those_of_rmm():
    adaptor, runtime = counting()
    assert adaptor.allocation_counts == Statistics(0, 0, 0, 0, 0, 0)
    first, second = runtime.allocate(1000), runtime.allocate(500)
    assert adaptor.allocation_counts == Statistics(1500, 2, 1500, 2, 1500, 2)
    first.free()
    third = runtime.allocate(100)
    assert adaptor.allocation_counts == Statistics(600, 2, 1500, 2, 1600, 3)
    second.free()
    third.free()
    assert adaptor.allocation_counts == Statistics(0, 0, 1500, 2, 1600, 3)


def test_pushed_counters_begin_at_zero_and_are_added_when_they_are_popped():
    adaptor, runtime = counting()
    outer = runtime.allocate(1000)
    assert adaptor.push_counters() == Statistics(1000, 1, 1000, 1, 1000, 1)
    assert adaptor.allocation_counts == Statistics(0, 0, 0, 0, 0, 0)
    inner = runtime.allocate(300)
    outer.free()
    assert adaptor.allocation_counts == Statistics(-700, 0, 300, 1, 300, 1)
    assert adaptor.pop_counters() == Statistics(-700, 0, 300, 1, 300, 1)
    assert adaptor.allocation_counts == Statistics(300, 1, 1300, 2, 1300, 2)    # the peak: 1000 and 300 above
    inner.free()
    with pytest.raises(IndexError, match="the first counters stay"):
        adaptor.pop_counters()
    assert adaptor.allocation_counts == Statistics(0, 0, 1300, 2, 1300, 2)


@needs_rmm
def test_rmm_agrees():
    """The same random program on RMM's adaptor, above a resource in Python that needs no GPU."""
    addresses = iter(range(1 << 40, 1 << 41, 1 << 12))
    theirs = rmm.mr.StatisticsResourceAdaptor(rmm.mr.CallbackMemoryResource(
        lambda nbytes, stream: next(addresses), lambda ptr, nbytes, stream: None))
    theirs.deallocate(theirs.allocate(64), 64)
    ours = StatisticsResourceAdaptor(AsyncMemoryResource())
    ours.deallocate(ours.allocate(64, 0), 64, 0)
    draw, held, depth = random.Random(19), [], 1
    for _ in range(2000):
        what = draw.random()
        if what < 0.05:
            assert vars(ours.push_counters()) == vars(theirs.push_counters())
            depth += 1
        elif what < 0.1 and depth > 1:
            assert vars(ours.pop_counters()) == vars(theirs.pop_counters())
            depth -= 1
        elif what < 0.55 or not held:
            nbytes = draw.randrange(1, 5000)
            held.append((ours.allocate(nbytes, 0), theirs.allocate(nbytes), nbytes))
        else:
            mine, other, nbytes = held.pop(draw.randrange(len(held)))
            ours.deallocate(mine, nbytes, 0)
            theirs.deallocate(other, nbytes)
        assert vars(ours.allocation_counts) == vars(theirs.allocation_counts)
    for mine, other, nbytes in held:
        ours.deallocate(mine, nbytes, 0)
        theirs.deallocate(other, nbytes)


def test_by_tag_and_by_stream():
    adaptor, runtime = counting()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    a, b, c = runtime.allocate(100, S, tag="a"), runtime.allocate(200, T, tag="b"), runtime.allocate(400, T)
    a.free(T)                                           # freed elsewhere: it counted on S
    assert adaptor.counters(by="tag") == {
        None: Statistics(400, 1, 400, 1, 400, 1), "b": Statistics(200, 1, 200, 1, 200, 1),
        "a": Statistics(0, 0, 100, 1, 100, 1)}
    assert adaptor.counters(by="stream") == {
        T.id: Statistics(600, 2, 600, 2, 600, 2), S.id: Statistics(0, 0, 100, 1, 100, 1)}
    assert list(adaptor.counters(by="tag")) == [None, "b", "a"]
    with pytest.raises(ValueError, match="choose 'tag' or 'stream'"):
        adaptor.counters(by="size")
    b.free()
    c.free()


def test_streams_of_calls_without_a_runtime_are_named_as_in_logs():
    adaptor = StatisticsResourceAdaptor(AsyncMemoryResource())
    ptr = adaptor.allocate(100, 2)
    assert list(adaptor.counters(by="stream")) == ["0x2"]
    adaptor.deallocate(ptr, 100, 2)
    assert current(adaptor) == (0, 0)
    assert adaptor.pending_bytes == 0                   # nothing could look later


def test_tags_beyond_the_last_row_count_together():
    adaptor, runtime = counting()
    blocks = [runtime.allocate(1, tag=f"tag {i}") for i in range(4200)]
    by_tag = adaptor.counters(by="tag")
    assert len(by_tag) == 4097
    assert by_tag["(others)"] == Statistics(104, 104, 104, 104, 104, 104)
    assert by_tag["tag 4095"] == Statistics(1, 1, 1, 1, 1, 1)
    for block in blocks:
        block.free()
    by_tag = adaptor.counters(by="tag")
    assert sum(counted.total_bytes for counted in by_tag.values()) == 4200
    assert all(counted.current_bytes == 0 for counted in by_tag.values())
    again = runtime.allocate(1, tag="tag 4199")
    assert adaptor.counters(by="tag")["(others)"] == Statistics(1, 1, 104, 104, 105, 105)
    again.free()


@simulated
def test_freed_memory_is_pending_until_the_host_has_seen_it(driver):
    adaptor, runtime = counting()
    stream = runtime.acquire_stream()
    block = runtime.allocate(512, stream)
    driver.set_policy("min")                            # nothing completes before it has to
    block.free()
    assert current(adaptor) == (0, 0)
    assert adaptor.pending_bytes == runtime.pending_bytes == 512
    runtime.reap_pending()
    assert adaptor.pending_bytes == runtime.pending_bytes == 0


@simulated
def test_runtimes_that_share_it_settle_what_they_freed_when_they_end(driver):
    adaptor = StatisticsResourceAdaptor(AsyncMemoryResource())
    first, second = DeviceRuntime(resource=adaptor), DeviceRuntime(resource=adaptor)
    kept = second.allocate(100)
    driver.set_policy("min")
    freed = first.allocate(1000)
    assert adaptor.allocation_counts.current_bytes == 1100
    freed.free()
    dropped = first.allocate(10)
    assert (current(adaptor), adaptor.pending_bytes) == ((110, 2), 1000)
    del freed, dropped, first
    assert (current(adaptor), adaptor.pending_bytes) == ((100, 1), 0)
    kept.free()
    second.reap_pending()
    assert (current(adaptor), adaptor.pending_bytes) == ((0, 0), 0)


@pytest.mark.parametrize("upstream", [DirectMemoryResource, PoolMemoryResource])
def test_over_direct_and_pool_nothing_is_pending(upstream):
    adaptor, runtime = counting(upstream())
    block = runtime.allocate(1000)
    assert current(adaptor) == (1000, 1)
    block.free()
    assert (current(adaptor), adaptor.pending_bytes) == ((0, 0), 0)


def test_below_a_pool_its_chunks_count():
    adaptor = StatisticsResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=PoolMemoryResource(adaptor, chunk_size=1 << 20))
    block = runtime.allocate(1000, tag="a")
    assert adaptor.allocation_counts == Statistics(1 << 20, 1, 1 << 20, 1, 1 << 20, 1)
    assert adaptor.counters(by="tag") == {None: adaptor.allocation_counts}
    assert list(adaptor.counters(by="stream")) == [0]
    block.free()
    del block, runtime
    assert (current(adaptor), adaptor.pending_bytes) == ((0, 0), 0)


def test_an_allocation_that_fails_is_counted_as_that_alone():
    adaptor, runtime = counting(Counted(1000))
    block = runtime.allocate(800)
    with pytest.raises(OutOfDeviceMemoryError):
        runtime.allocate(300)
    assert adaptor.failed_allocations >= 1
    assert adaptor.allocation_counts == Statistics(800, 1, 800, 1, 800, 1)
    block.free()


def test_an_allocation_that_a_budget_above_refuses_does_not_arrive():
    adaptor = StatisticsResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=LimitingResourceAdaptor(adaptor, 1000))
    with pytest.raises(OutOfBudgetError):
        runtime.allocate(1001)
    assert adaptor.failed_allocations == 0
    above, runtime = counting(LimitingResourceAdaptor(AsyncMemoryResource(), 1000))
    with pytest.raises(OutOfBudgetError):
        runtime.allocate(1001)
    assert (above.failed_allocations, above.allocation_counts.total_count) == (1, 0)


def test_a_free_that_fails_was_none():
    below = Counted()
    adaptor, runtime = counting(below)
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(700, S, tag="a")
    below.fail_frees = 1
    with pytest.raises(ZeroDivisionError):
        block.free(T)
    whole = Statistics(700, 1, 700, 1, 700, 1)
    assert adaptor.allocation_counts == adaptor.counters(by="tag")["a"] == adaptor.counters(by="stream")[S.id] == whole
    assert adaptor.pending_bytes == 0
    block.free(T)
    assert current(adaptor) == (0, 0)
    assert adaptor.counters(by="stream")[S.id] == Statistics(0, 0, 700, 1, 700, 1)


def test_a_peak_that_a_failed_free_hid_is_found():
    """Memory that another thread allocated while the free was being tried was there beside it."""
    class Refusing(Counted):
        def deallocate(self, ptr, nbytes, stream):
            if self.fail_frees:
                beside.append(adaptor.allocate(300, 0))
            super().deallocate(ptr, nbytes, stream)

    below, beside = Refusing(), []
    adaptor = StatisticsResourceAdaptor(below)
    ptr = adaptor.allocate(1000, 0)
    below.fail_frees = 1
    with pytest.raises(ZeroDivisionError):
        adaptor.deallocate(ptr, 1000, 0)
    assert adaptor.allocation_counts == Statistics(1300, 2, 1300, 2, 1300, 2)
    adaptor.deallocate(ptr, 1000, 0)
    adaptor.deallocate(beside[0], 300, 0)


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.parametrize("upstream", [AsyncMemoryResource, PoolMemoryResource])
def test_sums_are_exact_under_threads(upstream):
    adaptor, runtime = counting(upstream())
    hold = Hold(runtime)
    rounds = 150

    def work(number):
        draw, held = random.Random(number), []
        stream = runtime.acquire_stream()
        for _ in range(rounds):
            if number % 2:
                held.append(hold.allocate(100 + number))
                if len(held) > 3:
                    hold.free(held.pop(draw.randrange(len(held))))
            else:
                held.append(runtime.allocate(100 + number, stream, tag=f"thread {number}"))
                if len(held) > 3:
                    held.pop(draw.randrange(len(held))).free()
            now = adaptor.allocation_counts
            assert 0 <= now.current_bytes <= now.peak_bytes <= now.total_bytes
        for one in held:
            hold.free(one) if number % 2 else one.free()

    for thread in [Beside(lambda number=number: work(number)) for number in range(8)]:
        thread.result()
    hold.close()
    runtime.reap_pending()
    now = adaptor.allocation_counts
    assert (now.current_bytes, now.current_count, now.total_count) == (0, 0, 8 * rounds)
    assert now.total_bytes == rounds * sum(100 + number for number in range(8))
    assert now.peak_count <= 8 * 4
    assert adaptor.pending_bytes == 0
    for by in ("tag", "stream"):
        rows = adaptor.counters(by=by).values()
        assert sum(row.current_bytes for row in rows) == sum(row.current_count for row in rows) == 0
        assert sum(row.total_bytes for row in rows) == now.total_bytes
        assert sum(row.total_count for row in rows) == now.total_count
    assert adaptor.counters(by="tag")["thread 4"].total_bytes == rounds * 104


def test_a_forked_child_may_look(_context):
    adaptor, runtime = counting()
    block = runtime.allocate(100, tag="a")
    found = outcomes({"counts": lambda: adaptor.allocation_counts, "by": lambda: adaptor.counters(by="tag"),
                      "summary": adaptor.memory_summary, "push": adaptor.push_counters})
    assert set(found.values()) == {"answered"}
    block.free()


def test_what_is_not_a_resource_is_refused():
    with pytest.raises(TypeError, match=r"upstream must be a DeviceMemoryResource.*RmmMemoryResource"):
        StatisticsResourceAdaptor(object())
    never = StatisticsResourceAdaptor.__new__(StatisticsResourceAdaptor)
    with pytest.raises(StreamMisuseError):
        never.allocate(100, 0)
    with pytest.raises(StreamMisuseError, match="never initialised"):
        DeviceRuntime(resource=never)
    adaptor = StatisticsResourceAdaptor(AsyncMemoryResource())
    with pytest.raises(RuntimeError, match="once"):
        adaptor.__init__(AsyncMemoryResource())


def test_a_tag_that_is_called_like_the_rest_has_its_own_row():
    adaptor, runtime = counting()
    kept = runtime.allocate(7, tag="(others)")
    for i in range(4100):
        runtime.allocate(10, tag=str(i)).free()
    counted = adaptor.counters(by="tag")
    assert counted["(others)"] == Statistics(7, 1, 7, 1, 7, 1)
    assert counted["((others))"].total_bytes == 50
    assert sum(row.total_bytes for row in counted.values()) == adaptor.allocation_counts.total_bytes
    kept.free()


def test_the_summary_of_a_runtime_shows_every_layer():
    stack = StatisticsResourceAdaptor(LimitingResourceAdaptor(PoolMemoryResource(TrackingResourceAdaptor(
        AsyncMemoryResource())), "1GiB"))
    runtime = DeviceRuntime(resource=stack)
    block = runtime.allocate(1536, tag="columns")
    text = runtime.memory_summary()
    places = [text.index(f"\n<{name}") for name in ("StatisticsR", "LimitingR", "PoolM", "TrackingR")]
    assert places == sorted(places)
    assert "1.5 KiB in 1 allocation" in text
    assert "columns" in text
    block.free()
