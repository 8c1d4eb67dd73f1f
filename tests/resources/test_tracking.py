"""Tracking: what is outstanding, and the Python code that allocated it."""
from __future__ import annotations

import logging
import os
import random
import subprocess
import sys

import pytest
from c_table import ENVIRONMENT, Hold
from forking import outcomes
from other_threads import Beside
from pools import Counted
from rmm_if_installed import RmmMemoryResource, RuntimeMemoryResource, Source, needs_rmm

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    LimitingResourceAdaptor,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    TrackingResourceAdaptor,
    use,
)
from xlogmem._base.labels import label_count


def tracking(upstream=None, **options):
    adaptor = TrackingResourceAdaptor(upstream if upstream is not None else AsyncMemoryResource(), **options)
    return adaptor, DeviceRuntime(resource=adaptor)


def allocate_here(runtime, *args, **kwargs):
    return runtime.allocate(*args, **kwargs)


def names(record):
    return [code.co_name for code, _ in record.stack.frames()]


def test_what_is_outstanding_and_who_allocated_it():
    adaptor, runtime = tracking()
    stream = runtime.acquire_stream()
    a = allocate_here(runtime, 100, stream, tag="a")
    b, c = runtime.allocate(200), runtime.allocate(300, tag="c")
    b.free()
    first, second = adaptor.outstanding_allocations()
    assert (first.ptr, first.nbytes, first.tag, first.generation, first.stream) == (
        a.ptr, 100, "a", a.generation, stream.id)
    assert (second.ptr, second.tag, second.stream) == (c.ptr, "c", 0)
    assert names(first)[:2] == ["allocate_here", "test_what_is_outstanding_and_who_allocated_it"]
    assert names(second)[0] == "test_what_is_outstanding_and_who_allocated_it"
    assert __file__ in str(first.stack)
    assert adaptor.outstanding_bytes == 400
    a.free()
    c.free()
    assert adaptor.outstanding_allocations() == []
    assert adaptor.outstanding_bytes == 0


def test_the_oldest_is_first():
    adaptor, runtime = tracking(depth=0)
    draw = random.Random(1)
    held = [runtime.allocate(draw.randrange(1, 9999)) for _ in range(500)]
    for block in draw.sample(held, 300):
        held.remove(block)
        block.free()
    assert [record.generation for record in adaptor.outstanding_allocations()] == [block.generation for block in held]
    for block in held:
        block.free()


def test_the_text_names_address_size_and_stack():
    adaptor, runtime = tracking()
    assert adaptor.outstanding_text() == ""
    block = allocate_here(runtime, 100, tag="a")
    head, frame, *_ = adaptor.outstanding_text().splitlines()
    assert head == f"{block.ptr:#x}: 100 B (tag 'a', block {block.generation}, stream 0) : callstack:"
    assert frame.endswith("in allocate_here")
    block.free()


def test_the_log(caplog):
    adaptor, runtime = tracking(depth=0)
    with caplog.at_level(logging.DEBUG, "xlogmem"):
        adaptor.log_outstanding()
        assert not caplog.records
        block = runtime.allocate(100)
        adaptor.log_outstanding()
        adaptor.log_outstanding(logging.DEBUG)
    block.free()
    assert [record.levelname for record in caplog.records] == ["WARNING", "DEBUG"]
    assert f"{block.id.ptr:#x}: 100 B" in caplog.text


@pytest.mark.parametrize(("depth", "frames"), [(0, None), (1, 1), (2, 2)])
def test_depth(depth, frames):
    adaptor, runtime = tracking(depth=depth)
    block = allocate_here(runtime, 100)
    stack, = (record.stack for record in adaptor.outstanding_allocations())
    assert (None if stack is None else len(stack.frames())) == frames
    block.free()


def test_each_layer_gets_what_it_wants():
    below = TrackingResourceAdaptor(AsyncMemoryResource(), depth=2)
    middle = TrackingResourceAdaptor(StatisticsResourceAdaptor(below), depth=0)
    top = TrackingResourceAdaptor(middle, depth=1)
    runtime = DeviceRuntime(resource=top)
    block = allocate_here(runtime, 100, tag="a")
    records = [layer.outstanding_allocations()[0] for layer in (top, middle, below)]
    assert [len(record.stack.frames()) if record.stack is not None else 0 for record in records] == [2, 0, 2]
    assert {record.tag for record in records} == {"a"}
    block.free()


@pytest.mark.parametrize("wrong", [-1, 257, 1 << 40])
def test_a_depth_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="from 0 to 256"):
        TrackingResourceAdaptor(AsyncMemoryResource(), depth=wrong)


def test_what_is_not_a_resource_or_number_is_refused():
    with pytest.raises(TypeError, match="upstream must be a DeviceMemoryResource"):
        TrackingResourceAdaptor(object())
    with pytest.raises(TypeError):
        TrackingResourceAdaptor(AsyncMemoryResource(), depth="deep")


def test_without_a_runtime():
    adaptor = TrackingResourceAdaptor(AsyncMemoryResource())
    ptr = adaptor.allocate(100, 2)
    record, = adaptor.outstanding_allocations()
    assert (record.ptr, record.generation, record.tag, record.stream) == (ptr, None, None, "0x2")
    assert names(record)[0] == "test_without_a_runtime"
    adaptor.deallocate(ptr, 100, 2)
    assert adaptor.outstanding_bytes == 0


def test_an_address_that_comes_back_during_its_free_leaves_no_label():
    """The new record replaces the one that is being freed, with its tag and stack."""
    class Quick(DeviceMemoryResource):
        order = "stream"

        def __init__(self) -> None:
            super().__init__(0)
            self.hook = lambda: None

        def allocate(self, nbytes, stream):
            return 1 << 40

        def deallocate(self, ptr, nbytes, stream):
            self.hook()

    quick = Quick()
    adaptor = TrackingResourceAdaptor(quick, depth=0)
    ptr = adaptor.allocate(64, 0)
    runtime = DeviceRuntime(resource=adaptor)
    adaptor.deallocate(ptr, 64, 0)
    before = label_count()
    for i in range(6000):                               # a sweep deletes what nothing refers to
        block = runtime.allocate(100, tag=f"first {i}")
        others = []

        def again(i=i, others=others):
            others.append(runtime.allocate(100, tag=f"second {i}"))

        quick.hook = again
        block.free()
        quick.hook = lambda: None
        others.pop().free()
    assert label_count() < before + 6000
    assert (adaptor.outstanding_bytes, adaptor.outstanding_allocations()) == (0, [])


@pytest.mark.parametrize("upstream", [AsyncMemoryResource, DirectMemoryResource, PoolMemoryResource])
def test_through_the_c_table(upstream):
    adaptor, runtime = tracking(upstream())
    hold = Hold(runtime)
    ptr = hold.allocate(1000)
    record, = adaptor.outstanding_allocations()
    assert (record.ptr, record.nbytes) == (ptr, 1000)
    assert names(record)[:2] == ["allocate", "test_through_the_c_table"]
    hold.free(ptr)
    assert adaptor.outstanding_allocations() == []
    hold.close()


@pytest.mark.with_gil
def test_through_the_c_table_in_a_thread_without_python():
    from xlogmem_bench import _loops

    adaptor, runtime = tracking()
    _loops.Allocator.table(runtime).pairs_in_threads(256, [0, 0], 50)
    assert adaptor.outstanding_allocations() == []


@needs_rmm
def test_through_rmm():
    """Above a runtime, where RMM's C++ calls the C table, and below it."""
    source = Source()
    adaptor, runtime = tracking(RmmMemoryResource(source.mr))
    mr = RuntimeMemoryResource(runtime)
    ptr = mr.allocate(100)
    record, = adaptor.outstanding_allocations()
    assert (record.nbytes, names(record)[0]) == (100, "test_through_rmm")
    mr.deallocate(ptr, 100)
    assert adaptor.outstanding_allocations() == []
    assert not source.live


@pytest.mark.parametrize("how", ["dropped", "in a window", "on another stream"])
def test_a_free_is_one_however_it_is_made(how):
    adaptor, runtime = tracking()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(100, S)
    if how == "dropped":
        del block
        assert adaptor.outstanding_bytes == 100         # until the next call frees it
        runtime.reap_pending()
    elif how == "in a window":
        with use(T, read=block):
            block.free()
            assert adaptor.outstanding_bytes == 100
    else:
        block.free(T)
    assert adaptor.outstanding_allocations() == []


def test_a_free_that_fails_leaves_the_record_as_it_was():
    below = Counted()
    adaptor, runtime = tracking(below)
    older, newer = allocate_here(runtime, 100, tag="a"), runtime.allocate(50)
    before = adaptor.outstanding_allocations()
    below.fail_frees = 1
    with pytest.raises(ZeroDivisionError):
        older.free()
    assert adaptor.outstanding_allocations() == before
    assert adaptor.outstanding_bytes == 150
    older.free()
    newer.free()
    assert adaptor.outstanding_bytes == 0


def test_an_allocation_that_fails_is_not_outstanding():
    adaptor, runtime = tracking(Counted(100))
    with pytest.raises(OutOfDeviceMemoryError):
        runtime.allocate(200)
    assert adaptor.outstanding_allocations() == []


def test_below_a_pool_are_its_chunks_and_above_it_blocks():
    below = TrackingResourceAdaptor(AsyncMemoryResource())
    above = TrackingResourceAdaptor(PoolMemoryResource(below, chunk_size=1 << 20))
    runtime = DeviceRuntime(resource=above)
    block = runtime.allocate(1000, tag="a")
    chunk, = below.outstanding_allocations()
    assert (chunk.nbytes, chunk.tag, chunk.generation, chunk.stream, chunk.stack) == (1 << 20, None, None, 0, None)
    record, = above.outstanding_allocations()
    assert (record.nbytes, record.tag) == (1000, "a")
    block.free()
    assert above.outstanding_allocations() == []
    assert below.outstanding_allocations() == [chunk]
    del block, runtime, above
    assert below.outstanding_allocations() == []


def test_labels_live_as_long_as_records():
    """What records hold is there after a sweep of the labels, and what they held is not."""
    adaptor, runtime = tracking(LimitingResourceAdaptor(AsyncMemoryResource(), "1GiB"))
    kept = runtime.allocate(64, tag="kept")
    before = label_count()
    for i in range(20_000):
        runtime.allocate(64, tag=f"short {i}").free()
    assert label_count() < before + 10_000
    assert adaptor.outstanding_allocations()[0].tag == "kept"
    assert names(adaptor.outstanding_allocations()[0])
    kept.free()


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.parametrize("upstream", [AsyncMemoryResource, PoolMemoryResource])
def test_threads(upstream):
    adaptor, runtime = tracking(StatisticsResourceAdaptor(upstream()), depth=4)
    hold = Hold(runtime)

    def work(number):
        stream, held = runtime.acquire_stream(), []
        for i in range(80):
            block, ptr = runtime.allocate(100, stream, tag=f"{number} {i}"), hold.allocate(10)
            held.append(block)
            mine = [record for record in adaptor.outstanding_allocations() if record.generation == block.generation]
            assert [(record.tag, names(record)[0]) for record in mine] == [(f"{number} {i}", "work")]
            hold.free(ptr)
            if len(held) > 2:
                held.pop(0).free()
        return held

    left = [block for thread in [Beside(lambda number=number: work(number)) for number in range(8)]
            for block in thread.result()]
    hold.close()
    assert {record.generation for record in adaptor.outstanding_allocations()} == {block.generation for block in left}
    assert adaptor.outstanding_bytes == adaptor.upstream.allocation_counts.current_bytes == 100 * len(left)
    for block in left:
        block.free()
    assert adaptor.outstanding_allocations() == []
    runtime.reap_pending()


def test_a_forked_child_may_look(_context):
    adaptor, runtime = tracking()
    block = runtime.allocate(100, tag="a")
    found = outcomes({"records": adaptor.outstanding_allocations, "text": adaptor.outstanding_text,
                      "bytes": lambda: adaptor.outstanding_bytes, "summary": adaptor.memory_summary})
    assert set(found.values()) == {"answered"}
    block.free()


def test_the_summary_is_by_stack():
    adaptor, runtime = tracking()
    blocks = [allocate_here(runtime, 1 << 20) for _ in range(3)] + [runtime.allocate(1 << 19)]
    lines = adaptor.memory_summary().splitlines()
    assert "3.5 MiB in 4 allocations" in lines[1]
    assert lines[2].startswith("    3.0 MiB in 3 allocations, the oldest 0x")
    assert lines[3].endswith("in allocate_here")
    for block in blocks:
        block.free()


PROGRAM = """
import os, sys, warnings, xlogmem
report = sys.argv[1] == "report"
tracker = xlogmem.TrackingResourceAdaptor(xlogmem.AsyncMemoryResource(), report_at_exit=report)
runtime = xlogmem.DeviceRuntime(resource=tracker)
def small():
    return runtime.allocate(512, tag="small")
def large():
    return runtime.allocate(1 << 20)
kept = [small(), small(), large()]
large().free()
if sys.argv[2] == "forks":
    warnings.simplefilter("ignore")         # Python 3.12's, of threads
    if os.fork():
        os.wait()
        kept.clear()
        runtime.reap_pending()
elif sys.argv[2] == "frees":
    kept.clear()
    runtime.reap_pending()
"""


@pytest.mark.parametrize(("report", "what", "reported"), [
    ("report", "leaks", True), ("report", "frees", False), ("report", "forks", False), ("silent", "leaks", False)])
def test_leaks_are_reported_at_exit(report, what, reported):
    done = subprocess.run([sys.executable, "-c", PROGRAM, report, what], env={**os.environ, **ENVIRONMENT},
                          capture_output=True, text=True, check=True)
    if not reported:
        assert done.stderr == ""
        return
    lines = done.stderr.splitlines()
    assert lines[0] == "3 allocations of 1.0 MiB were not freed before the process ended:"
    assert lines[1].startswith("1.0 MiB in 1 allocation, the oldest 0x")
    assert lines[2].endswith(":9 in large")
    assert any(line.startswith("512 B in 1 allocation") or line.startswith("1.0 KiB in 2 allocations")
               for line in lines)
    assert any("tag 'small'" in line for line in lines)
