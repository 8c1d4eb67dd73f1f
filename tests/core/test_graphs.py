"""Graphs that hold their memory: order inside a capture, launches as uses, frees that are put off."""
from __future__ import annotations

import copy
import gc
import threading
import weakref
from typing import Any

import numpy
import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import READ, READ_WRITE, RELAXED, WRITE, Capture, at
from graphs_by_hand import join_by_event, raw_launch, some_graph, take_races

from xlogmem import (
    BlockState,
    DeviceRuntime,
    DeviceState,
    DriverError,
    Graph,
    LaunchRecorder,
    PinnedMemoryResource,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    capture,
    capturing,
    host,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
NOT_SUPPORTED = 801


@pytest.fixture
def x(four):
    return four()


# ---------------------------------------------------------------------------------------------- order inside
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(("first", "then"), [(WRITE, READ), (READ, WRITE), (WRITE, WRITE)])
def test_uses_inside_come_after_one_another(x, blocks, first, then, recorded):
    a = blocks[0]
    with capture(x.S) as graph:
        graph.fork(x.T)
        x.use(x.S, (a, first))
        if recorded:
            x.use(x.T, (a, then))
        else:
            x.work(x.T, (a, then))
    with graph.launching(x.U):
        raw_launch(graph, x.U)
    found = take_races(x)
    assert bool(found) is not recorded, found
    graph.close()


def test_readers_overlap_and_what_is_covered_waits_for_nothing(x, blocks):
    a, b, c = blocks
    with capture(x.S) as graph:
        x.use(x.S, (a, WRITE))
        graph.fork(x.T)
        before = x.waits()
        x.use(x.T, (a, READ), (b, WRITE))           # the fork comes after the write
        x.use(x.S, (a, READ), (c, WRITE))
        assert x.waits() == before
        x.use(x.T, (c, READ))
        assert x.waits() == before + 1
    assert x.waits() == before + 2                  # the join
    assert [block.generation for block in graph.writes] == [a.generation, b.generation, c.generation]
    graph.launch(x.S)
    graph.close()


@pytest.mark.parametrize("fresh", [True, False])
def test_unrecorded_fills_of_new_memory_inside_come_first(x, fresh):
    """On its own stream, as outside, until a use on another stream."""
    block = x.alloc(x.S)
    if not fresh:
        x.use(x.T, (block, READ))
    with capture(x.S) as graph:
        graph.fork(x.T)
        x.use(x.S, (block, READ))
        x.work(x.S, (block, WRITE))
        x.use(x.T, (block, READ))
    graph.launch(x.U)
    found = take_races(x)
    assert bool(found) is not fresh, found
    graph.close()
    block.free()


@pytest.mark.parametrize("joins", ["before", "after"])
def test_unrecorded_work_on_an_opaque_stream_inside_is_ordered(four, joins):
    """Whether the stream takes part before the memory is named, or afterwards."""
    x = four(opaque="T")
    block = x.alloc(x.T)
    with capture(x.S) as graph:
        if joins == "before":
            graph.fork(x.T)
        x.use(x.S, (block, WRITE))
        if joins == "after":
            graph.fork(x.T)
        x.work(x.T, (block, READ_WRITE))
        x.use(x.S, (block, READ))
        x.work(x.T, (block, WRITE))
    graph.launch(x.U)
    assert x.driver.races() == []
    graph.close()
    block.free()


def test_a_consumer_of_exported_memory_works_inside(x):
    """What has the array works on its stream without a record."""
    state = DeviceState(x.runtime)
    buffer = state.empty(64, "uint8", x.S)
    capsule = buffer.__dlpack__(stream=x.T.handle)
    with capture(x.S) as graph:
        graph.fork(x.T)
        with use(x.S, write=buffer):
            x.kernels.fill(x.S.handle, buffer.ptr, 1, 1)
        x.kernels.add(x.T.handle, buffer.ptr, 1, 1)
        with use(x.S, read=buffer):
            x.kernels.count_unequal(x.S.handle, x.next_word(), buffer.ptr, 0, 1)
    graph.launch(x.U)
    assert x.driver.races() == []
    graph.close()
    del capsule
    buffer.release()


@pytest.mark.parametrize("exported", [True, False])
def test_a_consumer_inside_works_without_a_record(x, exported):
    """Memory that is exported inside the capture, on a stream that takes part."""
    state = DeviceState(x.runtime)
    buffer = state.empty(64, "uint8", x.S)
    with use(x.V, read=buffer):                     # no longer fresh
        pass
    with capture(x.S) as graph:
        graph.fork(x.T)
        if exported:
            capsule = buffer.__dlpack__(stream=x.S.handle)
        x.kernels.add(x.S.handle, buffer.ptr, 1, 1)
        with use(x.T, read_write=buffer):
            x.kernels.add(x.T.handle, buffer.ptr, 1, 1)
        x.kernels.add(x.S.handle, buffer.ptr, 1, 1)
    graph.launch(x.U)
    found = take_races(x)
    assert bool(found) is not exported, found
    graph.close()
    x.runtime.synchronize()
    if exported:
        del capsule
    buffer.release()


def test_fills_and_copies_inside(x):
    """Host memory that the graph does not hold is refused: a launch would read or write it."""
    state = DeviceState(x.runtime)
    a, b = (state.empty(16, "float32", x.S) for _ in range(2))
    wide = state.empty(16, "complex128", x.S)
    pinned = state.empty(16, "float32", host, resource=PoolMemoryResource(PinnedMemoryResource()))
    with capture(x.S) as graph:
        graph.fork(x.T)
        a.fill(2, x.S)
        b.copy_from(a, x.T)
        pinned.copy_from(b, x.S)
        for refused in (lambda: a.copy_from(numpy.ones(16, "float32"), x.S), lambda: a.to_numpy(x.S),
                        lambda: a.copy_to(numpy.ones(16, "float32"), x.S), lambda: a.tolist(x.S),
                        lambda: wide.fill(1 + 2j, x.S), lambda: state.from_numpy(numpy.ones(3), x.S)):
            with pytest.raises(StreamMisuseError, match="which the graph does not hold"):
                refused()
    for stream in (x.U, x.V):
        graph.launch(stream)
    with pinned.map() as array:
        assert list(array) == [2] * 16
    assert x.driver.races() == []
    graph.close()
    for buffer in (a, b, wide, pinned):
        buffer.release()


def test_a_consumer_on_the_home_stream_works_inside(x):
    """Also after a use on another stream, unlike the fill of new memory."""
    state = DeviceState(x.runtime)
    buffer = state.empty(64, "uint8", x.T)
    capsule = buffer.__dlpack__(stream=x.T.handle)
    with capture(x.S) as graph:
        graph.fork(x.T)
        with use(x.S, write=buffer):
            x.kernels.fill(x.S.handle, buffer.ptr, 1, 1)
        x.kernels.add(x.T.handle, buffer.ptr, 1, 1)
    graph.launch(x.U)
    assert x.driver.races() == []
    graph.close()
    del capsule
    buffer.release()


def test_the_default_stream_of_a_thread_is_opaque_inside(x, blocks):
    """Also if the runtime has not met it before."""
    a = blocks[0]
    with capture(x.S) as graph:
        graph.fork(2)
        with use(2, write=a):
            x.kernels.fill(2, a.ptr, 1, 1)
        x.kernels.add(2, a.ptr, 1, 1)
        x.use(x.S, (a, WRITE))
    graph.launch(x.U)
    assert x.driver.races() == []
    graph.close()


def test_streams_that_the_program_forks_take_part(x, blocks):
    a = blocks[0]
    event = check(cuda.cuEventCreate(0))
    with capture(x.S) as graph:
        x.use(x.S, (a, WRITE))
        check(cuda.cuEventRecord(event, x.S.handle))
        check(cuda.cuStreamWaitEvent(x.T.handle, event, 0))
        x.use(x.S, (a, WRITE))
        x.use(x.T, (a, READ))                       # and is joined at the end
    check(cuda.cuEventDestroy(event))
    graph.launch(x.U)
    assert x.driver.races() == []
    graph.close()


@pytest.mark.parametrize("opaque", ["", "T"])
@pytest.mark.parametrize("joins", ["fork", "event"])
def test_the_home_of_memory_is_found_among_the_streams_that_joined(four, joins, opaque):
    """Unrecorded work on it comes before uses elsewhere; the program need not have named the stream."""
    x = four(opaque=opaque)
    block = x.alloc(x.T)
    with capture(x.S) as graph:
        if joins == "fork":
            graph.fork(x.T)
        else:
            join_by_event(x.S, x.T)
        x.work(x.T, (block, WRITE))
        x.use(x.S, (block, READ))
        join_by_event(x.T, x.S)
    assert len(graph.writes) == 1
    graph.launch(x.U)
    assert x.driver.races() == []
    graph.close()
    block.free()


def test_an_opaque_stream_that_joins_late_comes_after_uses_on_all_streams(four):
    x = four(opaque="T")
    block = x.alloc(x.T)
    with capture(x.S) as graph:
        graph.fork(x.U)
        x.use(x.U, (block, READ_WRITE))
        graph.fork(x.T)
        x.work(x.T, (block, WRITE))
    graph.launch(x.V)
    assert x.driver.races() == []
    graph.close()
    block.free()


def test_a_stream_that_is_destroyed_inside_is_not_touched(x, blocks):
    """And another one that has its handle afterwards is ordered after nothing."""
    a, b, _ = blocks
    with capture(x.S) as graph:
        for _ in range(3):
            stream = check(cuda.cuStreamCreate(1))
            graph.fork(int(stream))
            with use(int(stream), read_write=[a, b]):
                x.work(at(int(stream)), (a, READ_WRITE), (b, READ_WRITE))
            x.use(x.S, (a, WRITE))                  # and so comes after the stream
            join_by_event(at(int(stream)), x.S)
            check(cuda.cuStreamDestroy(stream))
    graph.launch(x.U)
    assert x.driver.races() == []
    graph.close()


def test_a_handle_may_be_that_of_another_stream_by_now(x, blocks):
    """Which is ordered after nothing that the former one was ordered after."""
    a = blocks[0]
    former = check(cuda.cuStreamCreate(1))
    made = [former]
    with capture(x.S) as graph:
        graph.fork(x.T)
        join_by_event(x.S, at(int(former)))
        x.use(x.S, (a, WRITE))
        with use(int(former), read=a):              # waits for the write
            x.work(at(int(former)), (a, READ))
        join_by_event(at(int(former)), x.S)
        check(cuda.cuStreamDestroy(made.pop()))
        while not made or int(made[-1]) != int(former):
            made.append(check(cuda.cuStreamCreate(1)))
            assert len(made) < 100
        join_by_event(x.T, at(int(former)))
        with use(int(former), read=a):
            x.work(at(int(former)), (a, READ))
        join_by_event(at(int(former)), x.S)
    graph.launch(x.U)
    assert x.driver.races() == []
    graph.close()
    for stream in made:
        check(cuda.cuStreamDestroy(stream))


def test_streams_of_other_libraries_are_known_by_their_handles(x, blocks):
    a, b = blocks[:2]
    first, second = ForeignStream(), ForeignStream()
    with capture(first, runtime=x.runtime) as graph:
        graph.fork(second)                          # before anything is captured
        with use(first, write=a):
            x.work(first, (a, WRITE))
        with use(second.handle, read=a, write=b):
            x.work(second, (a, READ), (b, WRITE))
    graph.launch(first)
    graph.launch(x.T)
    assert x.driver.races() == []
    graph.close()
    x.runtime.synchronize()


# ---------------------------------------------------------------------------------------------- launches
@pytest.mark.parametrize("recorded", [True, False])
def test_a_launch_comes_after_former_uses_and_before_later_ones(x, blocks, recorded):
    a, b = blocks[:2]
    graph = some_graph(x, (a, READ), (b, WRITE))
    launch = graph.launch if recorded else lambda stream: raw_launch(graph, stream)
    x.use(x.T, (a, WRITE))
    launch(x.U)
    x.use(x.V, (b, READ))
    launch(x.T)
    x.use(x.V, (a, WRITE))
    check(cuda.cuCtxSynchronize())
    found = take_races(x)
    assert bool(found) is not recorded, found
    graph.close()


def test_a_launch_reads_what_is_only_read(x, blocks):
    a, b, c = blocks
    graph = some_graph(x, (a, READ), (b, READ), (c, READ_WRITE))
    assert {block.generation for block in graph.reads} == {a.generation, b.generation}
    assert {block.generation for block in graph.writes} == {c.generation}
    graph.launch(x.T)
    before = x.waits()
    x.use(x.T, (a, READ))
    x.use(x.U, (a, READ), (b, READ))                # readers do not wait for one another
    assert x.waits() == before + 1                  # but for the first writer
    graph.close()


def test_a_use_that_is_cancelled_is_no_part_of_the_graph(x, blocks):
    a, b = blocks[:2]
    with capture(x.S) as graph:
        x.use(x.S, (a, READ))
        use(x.S, write=b).__enter__().cancel()
    assert (len(graph.reads), graph.writes) == (1, ())
    b.free()
    assert b.state is BlockState.FREED or x.runtime.live_bytes == 1024
    graph.close()


@pytest.mark.parametrize("recorded", [True, False])
def test_the_host_changes_its_memory_after_the_launches(x, recorded):
    """The copy in the graph reads the memory at each launch."""
    x.driver.set_policy("min")
    staging = x.runtime.allocate(64, host, resource=PoolMemoryResource(PinnedMemoryResource()))
    target = x.alloc(x.S)
    with capture(x.S) as graph, use(x.S, read=staging, write=target):
        check(cuda.cuMemcpyHtoDAsync(target.ptr, staging.ptr, 64, x.S.handle))
    if recorded:
        graph.launch(x.T)
    else:
        x.runtime.synchronize()
        raw_launch(graph, x.T)
    before = x.driver.calls("cuEventSynchronize")
    with use(host, write=staging):
        assert x.driver.calls("cuEventSynchronize") == before + recorded
    graph.close()
    check(cuda.cuStreamSynchronize(x.T.handle))
    staging.free()
    target.free()


def test_no_graph_is_launched_inside_a_capture(x, blocks):
    """The driver would spoil the capture."""
    a = blocks[0]
    inner = some_graph(x, (a, WRITE))
    with capture(x.T) as outer:
        for launch in (inner.launch, inner.launching):
            with pytest.raises(StreamMisuseError, match="launches no graph inside a capture"):
                launch(x.T)
        x.use(x.T, (a, READ))
        inner.launch(x.U)                           # which takes no part
    outer.launch(x.T)
    assert x.driver.races() == []
    inner.close()
    outer.close()


def test_launches_of_two_threads_come_one_after_the_other(x, blocks):
    a = blocks[0]
    graph = some_graph(x, (a, READ_WRITE))

    def launch(stream: Any) -> None:
        for _ in range(50):
            graph.launch(stream)

    threads = [threading.Thread(target=launch, args=(stream,)) for stream in (x.T, x.U)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.runtime.counters()["uses"] >= 100
    assert x.driver.races() == []
    graph.close()


def test_a_launch_that_the_driver_refuses_is_not_filed(x, blocks):
    a = blocks[0]
    graph = some_graph(x, (a, WRITE))
    x.use(x.S, (a, WRITE))
    x.driver.fail("cuGraphLaunch")
    with pytest.raises(DriverError, match=r"cuGraphLaunch.*launching a graph"):
        graph.launch(x.T)
    before = x.waits()
    x.use(x.S, (a, WRITE))
    assert x.waits() == before
    graph.launch(x.T)
    graph.close()


def test_a_graph_can_be_closed_after_a_launch_that_was_refused(x, blocks):
    a = blocks[0]
    graph = some_graph(x, (a, WRITE))
    with use(x.S, write=a), pytest.raises(StreamMisuseError, match="another use"):
        graph.launch(x.T)
    graph.close()
    a.free()
    assert x.runtime.live_bytes == 2 * 512


# ---------------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("how", ["free", "drop"])
def test_memory_that_is_freed_stays_until_the_graph_is_closed(x, how):
    block = x.alloc(x.S)
    graph = some_graph(x, (block, READ_WRITE))
    if how == "free":
        block.free()
        assert block.state is BlockState.RETIRED
        with pytest.raises(UseAfterFreeError, match="freed"), use(x.S, read=block):
            pass
    else:
        del block
        gc.collect()
    for _ in range(3):
        x.runtime.reap_pending()
        other = x.alloc(x.S)
        x.use(x.S, (other, WRITE))
        graph.launch(x.T)
        other.free()
    assert x.driver.races() == []
    assert x.runtime.live_bytes == 512
    graph.close()
    assert x.runtime.live_bytes == 0
    with pytest.raises(StreamMisuseError, match="it was closed"):
        graph.launch(x.T)
    graph.close()


def test_a_free_comes_after_the_last_launch(x):
    """The twin launches without a record: the next owner of the memory races with the graph."""
    for recorded in (True, False):
        block = x.alloc(x.S)
        graph = some_graph(x, (block, READ_WRITE))
        if recorded:
            graph.launch(x.T)
        else:
            raw_launch(graph, x.T)
        block.free()
        graph.close()
        found = take_races(x)
        assert bool(found) is not recorded, found
        x.runtime.synchronize()


def test_a_graph_that_is_dropped_is_closed_by_the_next_call(x):
    block = x.alloc(x.S)
    graph = some_graph(x, (block, READ))
    graph.launch(x.T)
    block.free()
    created = x.driver.calls("cuGraphExecDestroy")
    del graph
    gc.collect()
    x.alloc(x.S).free()
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0
    assert x.driver.calls("cuGraphExecDestroy") == created + 1


@pytest.mark.parametrize("recorded", [True, False])
def test_memory_that_is_allocated_inside_is_the_graphs(x, blocks, recorded):
    a = blocks[0]
    with capture(x.S) as graph:
        graph.fork(x.T)
        block = x.runtime.allocate(512, x.S, tag="inside")
        assert block.stream != x.S
        x.work(x.S, (block, WRITE))                 # new memory, on the stream that was named
        if recorded:
            x.use(x.T, (block, READ), (a, WRITE))
        else:
            x.work(x.T, (block, READ), (a, WRITE))
        number = block.generation
        del block
        gc.collect()
        other = x.runtime.allocate(512, x.T)        # of other memory
        x.work(x.T, (other, WRITE))
    assert {block.generation for block in graph.writes} >= {number, other.generation}
    for stream in (x.U, x.V, x.S):
        graph.launch(stream)
        x.use(x.T, (other, READ))
    found = take_races(x)
    assert bool(found) is not recorded, found
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 5 * 512
    graph.close()
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 4 * 512
    other.free()


def test_memory_of_a_capture_that_failed_is_freed(x):
    with pytest.raises(KeyError), capture(x.S):
        x.runtime.allocate(512, x.S)
        raise KeyError
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0


def test_a_graph_in_a_cycle_of_garbage_is_closed_too(x):
    block = x.alloc(x.S)
    cycle: list[Any] = [some_graph(x, (block, READ))]
    cycle.append(cycle)
    block.free()
    del cycle
    gc.collect()
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0


def test_a_batch_inside_that_fails_leaves_nothing_to_the_graph(x):
    """What it had is free when the capture ends, and not when the graph is closed."""
    live = x.runtime.live_bytes
    with capture(x.S) as graph:
        kept = x.runtime.allocate(512, x.S)
        for nth in (2, 3):
            x.driver.fail("cuMemAllocFromPoolAsync", nth, code=NOT_SUPPORTED)
            with pytest.raises(DriverError, match="cuMemAllocFromPoolAsync"):
                x.runtime.allocate_many([64, 0, 64, 64], x.S)
        x.use(x.S, (kept, WRITE))
    assert [block.generation for block in graph.writes] == [kept.generation]
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == live + 512
    graph.launch(x.T)
    kept.free()
    graph.close()
    x.runtime.synchronize()
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == live
    assert not x.driver.races()


def test_an_allocation_inside_that_fails_is_reported(x):
    with capture(x.S) as graph:
        x.driver.fail("cuMemAllocFromPoolAsync", code=NOT_SUPPORTED)
        with pytest.raises(DriverError, match="cuMemAllocFromPoolAsync"):
            x.runtime.allocate(512, x.S)
        x.driver.fail("cuMemAllocFromPoolAsync", code=NOT_SUPPORTED)
        with pytest.raises(DriverError, match="cuMemAllocFromPoolAsync") as failed:
            x.runtime.allocate_many([0, 64, 64], x.S)
        assert failed.value.__notes__[-1] == "in allocate_many: it is block 1 of 3, and none was allocated"
        blocks = x.runtime.allocate_many([64, 0, 64], x.S)
        x.use(x.S, (blocks[0], WRITE), (blocks[2], WRITE))
        x.runtime.deallocate_many(blocks)
        with pytest.raises(StreamMisuseError, match="capturing"):
            DeviceRuntime().allocate_many([64], x.S.handle)
    assert len(graph.writes) == 2
    graph.launch(x.T)
    graph.close()
    x.runtime.synchronize()
    assert x.runtime.live_bytes == 0


def test_a_graph_keeps_its_runtime(x):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64, stream)
    with capture(stream) as graph, use(stream, write=block):
        pass
    del runtime, block
    gc.collect()
    graph.launch(stream)
    del stream
    gc.collect()
    graph.close()
    del graph
    gc.collect()


def test_a_block_that_is_freed_inside_cannot_be_named_again(x, blocks):
    a = blocks[0]
    with capture(x.S) as graph:
        x.use(x.S, (a, WRITE))
        a.free()
        with pytest.raises(UseAfterFreeError, match=f"block {a.generation} .*freed"):
            x.use(x.S, (a, READ))
    assert x.runtime.live_bytes == 3 * 512
    graph.launch(x.S)
    graph.close()
    assert x.runtime.live_bytes == 2 * 512


def test_many_captures_leave_nothing(x, blocks):
    a, b, c = blocks
    for _ in range(30):
        with capture(x.S) as graph:
            graph.fork(x.T)
            x.use(x.S, (a, WRITE))
            x.use(x.T, (a, READ), (b, WRITE))
            x.use(x.S, (b, READ), (c, WRITE))
        graph.launch(x.T)
        graph.close()
    x.runtime.synchronize()
    assert x.runtime.live_bytes == 3 * 512
    gc.collect()
    before = x.driver.calls("cuCtxSynchronize")
    DeviceRuntime()                                 # which waits for what ended runtimes have left
    assert x.driver.calls("cuCtxSynchronize") == before


# ---------------------------------------------------------------------------------------------- other libraries
@pytest.mark.parametrize("recorded", [True, False])
def test_a_capture_of_another_library_holds_and_orders_what_is_named(x, blocks, recorded):
    """Its own work is not recorded: on its stream it comes before uses on other streams, and after them."""
    a, b = blocks[:2]
    stream = ForeignStream()
    check(cuda.cuStreamBeginCapture(stream.handle, RELAXED))
    with capturing(stream, write=[a, b], runtime=x.runtime) as graph:
        graph.fork(x.T)
        x.work(stream, (a, WRITE))
        if recorded:
            x.use(x.T, (a, READ), (b, WRITE))
        else:
            x.work(x.T, (a, READ), (b, WRITE))
        x.work(stream, (b, READ))
    captured = check(cuda.cuStreamEndCapture(stream.handle))
    executable = check(cuda.cuGraphInstantiate(captured, 0))
    check(cuda.cuGraphDestroy(captured))
    a.free()
    for where in (x.U, x.V):
        with graph.launching(where):
            check(cuda.cuGraphLaunch(executable, where.handle))
    x.use(x.S, (b, READ))
    found = take_races(x)
    assert bool(found) is not recorded, found
    assert graph.handle == 0
    with pytest.raises(StreamMisuseError, match=r"graph.launching\(stream\)"):
        graph.launch(x.S)
    graph.close()
    x.runtime.synchronize()
    check(cuda.cuGraphExecDestroy(executable))


def test_memory_that_only_a_use_names_counts_as_written_in_a_capture_of_another_library(x, blocks):
    a, b = blocks[:2]
    with Capture(x.S), capturing(x.S, read=b) as graph:
        x.use(x.S, (a, READ))
    assert {block.generation for block in graph.writes} == {a.generation}
    assert {block.generation for block in graph.reads} == {b.generation}
    graph.close()


class Array:
    """Of another library, which has the last handle of a block."""

    def __init__(self, block: Any) -> None:
        self.block = block

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (512,), "typestr": "|u1", "data": (self.block.ptr, False), "version": 3}


def test_what_capturing_names_is_held_and_not_the_object(x):
    """Arrays that are dropped inside are the graph's, of which `enable` does not warn then."""
    array = Array(x.alloc(x.S))
    there = weakref.ref(array)
    with Capture(x.S), capturing(x.S, write=array) as graph:
        del array
        gc.collect()
        assert there() is None
        assert x.runtime.live_bytes == 512
    assert len(graph.writes) == 1
    graph.close()
    assert x.runtime.live_bytes == 0


# ---------------------------------------------------------------------------------------------- refusals
def test_what_cannot_be_captured_is_refused(x, blocks):
    for stream in (0, 1):
        with pytest.raises(StreamMisuseError, match="legacy default stream"):
            capture(stream).__enter__()
    with pytest.raises(ValueError, match="mode 'strict' is unknown"):
        capture(x.S, mode="strict")
    with pytest.raises(TypeError, match="not a stream"):
        capture(host)
    with pytest.raises(TypeError, match="not a CUDA stream"):
        capture("S").__enter__()
    with Capture(x.S), pytest.raises(StreamMisuseError, match=r"already.*xlogmem.capturing\(stream\)"):
        capture(x.S).__enter__()
    with capture(x.S) as graph, pytest.raises(StreamMisuseError, match="already"):
        capture(x.S).__enter__()
    graph.close()
    with pytest.raises(StreamMisuseError, match=r"captures nothing.*xlogmem.capture\(stream\)"):
        capturing(x.S).__enter__()
    twice = capture(x.S)
    with twice as graph, pytest.raises(StreamMisuseError, match="entered before"):
        twice.__enter__()
    graph.close()
    with pytest.raises(TypeError, match="made by"):
        Graph()
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(graph)


def test_a_graph_is_not_launched_while_it_is_captured(x, blocks):
    with capture(x.S) as graph:
        with pytest.raises(StreamMisuseError, match="being captured"):
            graph.launch(x.T)
        with pytest.raises(StreamMisuseError, match="being captured"):
            graph.close()
    with pytest.raises(StreamMisuseError, match="the capture has ended, and this graph is ready"):
        graph.fork(x.T)
    graph.close()


def test_an_exception_ends_the_capture_and_holds_nothing(x, blocks):
    a = blocks[0]
    with pytest.raises(KeyError), capture(x.S) as graph:
        graph.fork(x.T)
        x.use(x.T, (a, WRITE))
        raise KeyError
    with pytest.raises(StreamMisuseError, match="its capture failed"):
        graph.launch(x.S)
    a.free()
    assert x.runtime.live_bytes == 2 * 512
    graph.close()
    x.use(x.S, (blocks[1], WRITE))                  # nothing captures any more


def test_a_use_that_is_open_at_the_end_is_refused(x, blocks):
    a = blocks[0]
    with pytest.raises(StreamMisuseError, match="a use is still open"), capture(x.S):
        left = use(x.S, write=a).__enter__()
    left.__exit__(None, None, None)
    a.free()
    assert x.runtime.live_bytes == 2 * 512


def test_a_use_that_was_dropped_inside_is_filed(x, blocks):
    a = blocks[0]
    with capture(x.S) as graph, pytest.warns(ResourceWarning, match="dropped without being left"):
        use(x.S, write=a).__enter__()
    assert {block.generation for block in graph.writes} == {a.generation}
    graph.close()


def test_a_capture_is_left_once(x):
    left = capture(x.S)
    with left as graph:
        pass
    with pytest.raises(StreamMisuseError, match="has ended"):
        left.__exit__(None, None, None)
    graph.close()


def test_a_fork_that_fails_leaves_the_capture_as_it_was(x, blocks, devices):
    a = blocks[0]
    other = devices(2)
    with capture(x.S) as graph:
        x.driver.fail("cuStreamWaitEvent")
        with pytest.raises(DriverError, match=r"cuStreamWaitEvent.*forking"):
            graph.fork(x.T)
        with pytest.raises(StreamMisuseError, match=r"on device 1, and the capture on\s+device 0"):
            graph.fork(other.streams[1][0])
        with Capture(x.U), pytest.raises(StreamMisuseError, match="takes part in another capture"):
            graph.fork(x.U)
        with pytest.raises(StreamMisuseError, match="legacy default stream"):
            graph.fork(0)
        x.use(x.S, (a, WRITE))
    graph.launch(x.T)
    graph.close()


@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent"])
def test_another_stream_is_forked_after_one_that_could_not_be(x, blocks, call):
    """It gets the index of the stream that could not join."""
    a, b = blocks[:2]
    with capture(x.S) as graph:
        x.use(x.S, (a, WRITE))
        x.driver.fail(call)
        with pytest.raises(DriverError, match="forking"):
            graph.fork(x.T)
        graph.fork(x.U)
        x.use(x.U, (a, READ), (b, WRITE))
        graph.fork(x.T)
        x.use(x.T, (b, READ))
    graph.launch(x.V)
    graph.close()


def test_a_use_that_is_named_after_the_end_holds_nothing(x, blocks):
    a = blocks[0]
    with capture(x.S) as graph:
        recorder = LaunchRecorder(x.S)
    with pytest.raises(StreamMisuseError, match="has ended"):
        recorder.write(a)
    a.free()
    assert x.runtime.live_bytes == 2 * 512
    graph.close()
    del recorder


def test_a_capture_that_the_program_spoils_or_ends_is_reported(x, blocks):
    a = blocks[0]
    with pytest.raises(StreamMisuseError, match="was ended, or spoilt by a call"), capture(x.S):
        cuda.cuStreamSynchronize(x.S.handle)
        x.use(x.S, (a, WRITE))
    with pytest.raises(StreamMisuseError, match="ended, or was spoilt, before this"), capture(x.S):
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
        check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    x.driver.fail("cuStreamGetCaptureInfo", 2)      # once the capture has begun
    with pytest.raises(DriverError, match="cuStreamGetCaptureInfo"):
        capture(x.S).__enter__()
    x.use(x.S, (a, WRITE))                          # nothing captures any more


def test_a_capture_that_is_dropped_is_forgotten(x, blocks):
    a = blocks[0]
    dropped = capture(x.S)
    dropped.__enter__()
    x.use(x.S, (a, WRITE))
    with pytest.warns(ResourceWarning, match="entered and dropped"):
        del dropped
        gc.collect()
        x.runtime.allocate(64, x.T).free()
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    a.free()
    assert x.runtime.live_bytes == 2 * 512
    never = Graph.__new__(Graph)
    assert repr(never) == "<Graph that was never captured>"
    with pytest.raises(StreamMisuseError, match="never captured"):
        never.close()
    with pytest.raises(StreamMisuseError, match="not entered"):
        capture(x.S).__exit__(None, None, None)


@pytest.mark.parametrize("entered", ["after", "before"])
def test_a_use_belongs_to_where_it_was_made(x, blocks, entered):
    a = blocks[0]
    if entered == "after":
        with capture(x.S) as graph:
            late = use(x.S, write=a)
        with pytest.raises(StreamMisuseError, match="the capture that this use began in has ended"):
            late.__enter__()
    else:
        early = use(x.S, write=a)
        with capture(x.S) as graph, pytest.raises(StreamMisuseError, match="is capturing a graph"):
            early.__enter__()
    graph.close()
    del graph
    gc.collect()


@pytest.mark.parametrize("call", ["cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphInstantiate"])
def test_a_capture_that_the_driver_refuses_holds_nothing(x, blocks, call):
    a = blocks[0]
    with pytest.raises(DriverError, match=call), capture(x.S):
        x.driver.fail(call)
        if call == "cuStreamBeginCapture":
            capture(x.T).__enter__()
        x.use(x.S, (a, WRITE))
    if call == "cuStreamEndCapture":
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    a.free()
    assert x.runtime.live_bytes == 2 * 512


def test_an_end_that_comes_too_early_is_reported(x, blocks):
    a = blocks[0]
    check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
    with pytest.raises(StreamMisuseError, match="ended, or was spoilt, before"), capturing(x.S, write=a):
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    a.free()
    assert x.runtime.live_bytes == 2 * 512


def test_memory_that_is_not_tracked_is_refused_inside(x, blocks):
    ptr = int(check(cuda.cuMemAlloc(64)))
    with capture(x.S) as graph:
        with pytest.raises(StreamMisuseError, match="not tracked"), use(x.S, write=ptr):
            pass
        with use(x.S, write=ptr, untracked="ignore"):
            pass
        with use(x.S, read=blocks[0].ptr + 8):
            pass
    assert len(graph.reads) == 1
    graph.close()
    check(cuda.cuMemFree(ptr))


def test_memory_of_another_device_is_refused_inside(devices):
    d = devices()
    block = d.allocate(1)
    stream = d.streams[0][0]
    for what in (block, block.ptr):
        with capture(stream) as graph, pytest.raises(StreamMisuseError, match=r"device 1.*capture on device 0"):
            use(stream, read=what)
        graph.close()
    del graph
    block.free()


def test_a_launch_is_on_the_device_of_the_capture(devices):
    d = devices()
    stream = d.streams[0][0]
    with capture(stream) as graph:
        pass
    with pytest.raises(StreamMisuseError, match="is not a stream of device 0"):
        graph.launch(d.streams[1][0])
    with pytest.raises(StreamMisuseError, match="is not a stream of device 0"):
        graph.launch(host)
    graph.close()


def test_shown(x, blocks):
    with capture(x.S) as graph:
        assert repr(graph) == "<Graph of device 0: 0 blocks, captured>"
        x.use(x.S, (blocks[0], READ))
    assert repr(graph) == "<Graph of device 0: 1 block, ready>"
    with graph:
        assert not graph.closed
    assert graph.closed
    assert repr(graph) == "<Graph of device 0: 0 blocks, closed>"
