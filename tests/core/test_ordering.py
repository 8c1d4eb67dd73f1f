"""The counterexamples of the ordering model, on the compiled core and the simulated driver.

Each scenario is the smallest program that goes wrong when one rule is missing, and has a twin: see `scenarios`.
"""
from __future__ import annotations

import contextlib

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, READ_WRITE, WRITE, FourStreams
from scenarios import Scenarios

from xlogmem import DriverError
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

scenario = Scenarios()


# ---------------------------------------------------------------------------------------- fresh blocks
@scenario()
def a_reader_waits_for_the_writer(x: FourStreams) -> bool:
    b = x.alloc(x.S)
    write = x.use(x.S, (b, WRITE))
    x.use(x.T, (b, READ))
    return x.ordered(write, x.T)


@scenario()
def w6_fill_after_an_earlier_hand_over(x: FourStreams) -> bool:
    """b1, b2 on S; T uses b1 (and so knows S); b2 is filled on S; T uses b2."""
    b1, b2 = x.alloc(x.S), x.alloc(x.S)
    x.use(x.T, (b1, READ))
    fill = x.work(x.S, (b2, WRITE))
    x.use(x.T, (b2, READ))
    return x.ordered(fill, x.T)


@scenario()
def second_reader_takes_an_older_fence(x: FourStreams) -> bool:
    """Nothing is committed between two hand-overs: the fence of the first must not serve the fill after it."""
    b1, b2 = x.alloc(x.S), x.alloc(x.S)
    x.use(x.T, (b1, READ))
    fill = x.work(x.S, (b2, WRITE))
    x.use(x.T, (b2, READ))
    x.use(x.U, (b2, READ))
    return x.ordered(fill, x.U)


@scenario()
def own_write_removed_the_allocation_entry(x: FourStreams) -> bool:
    """A recorded write on the allocation stream removes the allocation entry; the block is still fresh."""
    b, other = x.alloc(x.S), x.alloc(x.S)
    x.use(x.S, (b, WRITE))
    x.use(x.T, (other, READ))
    fill = x.work(x.S, (b, WRITE))
    x.use(x.T, (b, READ))
    return x.ordered(fill, x.T)


@scenario(spare=1)
def cancelled_first_foreign_use(x: FourStreams) -> bool:
    """A window that is cancelled is not a use: the block is still fresh."""
    b = x.alloc(x.S)
    x.prepare(x.T, (b, READ)).cancel()
    fill = x.work(x.S, (b, WRITE))
    x.use(x.T, (b, READ))
    return x.ordered(fill, x.T)


@scenario(spare=1)
def work_without_a_window_keeps_freshness(x: FourStreams) -> bool:
    """U's work on b waited for nothing, so it says nothing of what is filled on S."""
    b, other = x.alloc(x.S), x.alloc(x.S)
    x.runtime.record_block_use(b, x.U)
    x.use(x.T, (other, READ))
    fill = x.work(x.S, (b, WRITE))
    x.use(x.T, (b, READ))
    return x.ordered(fill, x.T)


@scenario(spare=1)
def work_without_a_window_is_recorded_beside_a_read(x: FourStreams) -> bool:
    """U read b in a window, then wrote it without one: the next reader waits for the write."""
    b = x.alloc(x.S)
    x.use(x.U, (b, READ))
    write = x.work(x.U, (b, WRITE))
    x.runtime.record_block_use(b, x.U)
    x.use(x.T, (b, READ))
    return x.ordered(write, x.T)


# ---------------------------------------------------------------------------------------- windows (W1 to W4)
@scenario()
def w1_free_inside_a_window(x: FourStreams) -> bool:
    b = x.alloc(x.S)
    window = x.prepare(x.T, (b, WRITE))
    launch = x.work(x.T, (b, WRITE))
    b.free(x.S)
    retired = b.state.value
    window.commit()
    return retired == "retired" and b.state.value == "freed" and x.ordered(launch, x.S)


@scenario(spare=2)
def the_last_of_two_windows_frees(x: FourStreams) -> bool:
    b = x.alloc(x.S)
    first, second = x.prepare(x.T, (b, READ)), x.prepare(x.U, (b, READ))
    one, two = x.work(x.T), x.work(x.U)
    b.free()
    first.commit()
    retired = b.state.value
    second.commit()
    return retired == "retired" and b.state.value == "freed" and x.ordered(one, x.S) and x.ordered(two, x.S)


@scenario(spare=1)
def w2_reader_inside_a_writers_window(x: FourStreams) -> bool:
    """The reader's window opens and closes inside the writer's, which must not forget it.  (The overlap is the caller's
    affair: the two touch different words.)"""
    b = x.alloc(x.S)
    window = x.prepare(x.T, (b, WRITE))
    read = x.use(x.U, (b, READ))
    write = x.work(x.T)
    window.commit()
    b.free()
    return x.ordered(read, x.S) and x.ordered(write, x.S)


@scenario(spare=2)
def w3_two_overlapping_writers(x: FourStreams) -> bool:
    b = x.alloc(x.S)
    first, second = x.prepare(x.T, (b, WRITE)), x.prepare(x.U, (b, WRITE))
    one, two = x.work(x.T), x.work(x.U)
    first.commit()
    second.commit()
    b.free()
    return x.ordered(one, x.S) and x.ordered(two, x.S)


@scenario(spare=3)
def a_writer_removes_only_what_has_not_changed_since(x: FourStreams) -> bool:
    """A stream reads before a writer's prepare and again, ordered by hand, inside the writer's window: the
    entry that the writer's ticket names is newer now and stays."""
    b = x.alloc(x.S)
    x.use(x.U, (b, READ))
    window = x.prepare(x.T, (b, WRITE))
    x.work(x.T, (b, WRITE))
    event = check(cuda.cuEventCreate(2))
    check(cuda.cuEventRecord(event, x.T.handle))
    check(cuda.cuStreamWaitEvent(x.U.handle, event, 0))
    check(cuda.cuEventDestroy(event))
    read = x.use(x.U, (b, READ))
    window.commit()
    x.use(x.V, (b, WRITE))
    return x.ordered(read, x.V)


@scenario()
def of_two_positions_on_one_stream_the_newer_is_waited_for(x: FourStreams) -> bool:
    """A fence of S covers the write to b, and is older than the write to c; one launch needs both."""
    b, c = x.alloc(x.S), x.alloc(x.S)
    x.use(x.T, (b, READ), (c, READ))
    x.use(x.S, (b, WRITE))
    x.use(x.U, (b, READ))
    write = x.use(x.S, (c, WRITE))
    x.use(x.V, (b, READ), (c, READ))
    return x.ordered(write, x.V)


@scenario(spare=3)
def a_launch_is_recorded_in_every_block(x: FourStreams) -> bool:
    """(T waits for S a second time, for what may have been filled into d: nothing was.)"""
    b, c, d = [x.alloc(x.S) for _ in range(3)]
    first = x.use(x.T, (b, WRITE), (c, WRITE))
    x.use(x.U, (c, READ))
    second = x.use(x.T, (b, WRITE), (c, WRITE), (d, WRITE))
    d.free(x.V)
    return x.ordered(first, x.U) and x.ordered(second, x.V)


@scenario(spare=1)
def an_exception_records_conservatively(x: FourStreams) -> bool:
    b = x.alloc(x.S)
    reader = x.use(x.U, (b, READ))
    with pytest.raises(KeyError), x.recorder(x.T, (b, WRITE)):
        launch = x.work(x.T, (b, WRITE))
        raise KeyError("after the launch")
    b.free(x.S)
    return x.ordered(reader, x.S) and x.ordered(launch, x.S)


# ---------------------------------------------------------------------------------------- frees
@scenario()
def a_free_waits_for_every_reader(x: FourStreams) -> bool:
    b = x.alloc(x.S)
    x.use(x.S, (b, WRITE))
    readers = [x.use(stream, (b, READ)) for stream in (x.T, x.U, x.V)]
    b.free()
    return all(x.ordered(reader, x.S) for reader in readers)


@scenario()
def memory_that_comes_back_is_not_overwritten_early(x: FourStreams) -> bool:
    """The driver itself reports the race here, on the block's own bytes."""
    b = x.alloc(x.S)
    x.use(x.S, (b, WRITE))
    read = x.use(x.T, (b, READ))
    b.free(x.S)
    c = x.alloc(x.S)
    reused = c.ptr == b.id.ptr
    x.use(x.S, (c, WRITE))
    return reused and x.ordered(read, x.S)


@scenario()
def a_dropped_handle_is_freed_after_its_uses(x: FourStreams) -> bool:
    x.driver.set_policy("min")                          # no use is complete before the free
    b = x.alloc(x.S)
    x.use(x.T, (b, READ))
    fill = x.work(x.S)                                  # T frees, behind everything at home
    del b
    x.alloc(x.S)                                        # drains what finalizers left
    return x.ordered(fill, x.T) and x.runtime.counters()["frees"] == 1


@scenario(spare=1)
def a_free_on_a_given_stream_orders_that_stream(x: FourStreams) -> bool:
    b = x.alloc(x.S)
    read = x.use(x.T, (b, READ))
    b.free(x.U)
    return x.ordered(read, x.U) and not x.ordered(read, x.S)


# ---------------------------------------------------------------------------------------- positions and knowledge
@scenario()
def second_thread_skips_a_wait_that_failed(x: FourStreams) -> bool:
    """Knowledge is raised after the wait call returned success, not before."""
    b = x.alloc(x.S)
    write = x.use(x.S, (b, WRITE))
    x.driver.fail("cuStreamWaitEvent")
    with contextlib.suppress(DriverError):
        x.use(x.T, (b, READ))
    x.use(x.T, (b, READ))
    return x.ordered(write, x.T)


@scenario(spare=1)
def commit_between_record_and_bookkeeping(x: FourStreams) -> bool:
    """Another thread commits on S while a fence of S is being recorded: the fence does not cover that commit."""
    b, c = x.alloc(x.S), x.alloc(x.S)
    x.use(x.V, (b, READ))                               # b is not fresh any more
    late = []
    x.driver.on_call("cuEventRecord", lambda: late.append(x.use(x.S, (b, READ_WRITE))), when="after")
    x.use(x.T, (c, READ))
    x.use(x.T, (b, READ))
    return len(late) == 1 and x.ordered(late[0], x.T)


@scenario(spare=1)
def position_taken_before_the_launch(x: FourStreams) -> bool:
    """A fence is recorded on T between the prepare and the launch of another thread: it does not cover the launch."""
    b, c = x.alloc(x.S), x.alloc(x.T)
    window = x.prepare(x.T, (b, WRITE))
    x.use(x.U, (c, READ))
    write = x.work(x.T, (b, WRITE))
    window.commit()
    x.use(x.U, (b, READ))
    return x.ordered(write, x.U)


@scenario(sealed="S", spare=1)
def position_taken_before_the_allocation(x: FourStreams) -> bool:
    """A fence is recorded on S while an allocation on S is under way: it does not cover that allocation.  S is
    sealed, so that freshness does not hide the mistake."""
    other = x.alloc(x.S)
    x.driver.on_call("cuMemAllocFromPoolAsync", lambda: x.use(x.T, (other, READ)), when="before")
    b = x.alloc(x.S)
    x.use(x.T, (b, WRITE))                              # the driver would report a race with the allocation
    return True


@scenario(policy="lazy", spare=2)
def fence_between_launch_and_finish(x: FourStreams) -> bool:
    """It covers the launch but not its position: one wait more, never one too few."""
    b, c = x.alloc(x.S), x.alloc(x.T)
    window = x.prepare(x.T, (b, WRITE))
    write = x.work(x.T, (b, WRITE))
    x.use(x.U, (c, READ))
    window.commit()
    x.use(x.U, (b, READ))
    return x.ordered(write, x.U)


@scenario(policy="precise", spare=3)
def transitive_knowledge_with_re_recorded_events(x: FourStreams) -> bool:
    """T to U to V, while U's ring of events is recorded over and over: V knows T through U, at no cost."""
    b, c = x.alloc(x.S), x.alloc(x.S)
    x.use(x.S, (b, WRITE), (c, WRITE))
    write = x.use(x.T, (b, READ_WRITE))
    x.use(x.U, (b, READ_WRITE))
    for _ in range(10):
        x.use(x.U, (c, READ_WRITE))
    x.use(x.V, (c, READ))
    waits = x.waits()
    x.use(x.V, (b, READ))
    return x.ordered(write, x.V) and x.waits() == waits


@scenario()
def a_fence_teaches_only_what_its_stream_knew_before_the_record(x: FourStreams) -> bool:
    """Between the record on S, made for T, and its bookkeeping S is ordered after U; T is not ordered after that."""
    b, c = x.alloc(x.S), x.alloc(x.U)
    write = x.use(x.U, (c, WRITE))
    x.driver.on_call("cuEventRecord", lambda: x.use(x.S, (c, READ)), when="after")
    x.use(x.T, (b, READ))
    x.use(x.T, (c, READ))
    return x.ordered(write, x.T)


@scenario(spare=3)
def a_fence_in_use_is_not_recorded_again(x: FourStreams) -> bool:
    """T waits for a fence of S; before that is noted, others have S record more fences than its ring holds.  Were T's
    among them, T would count as ordered after what it covers now."""
    b, later = x.alloc(x.S), [x.alloc(x.S) for _ in range(8)]
    writes = []

    def others() -> None:
        for c in later:
            writes.append(x.use(x.S, (c, WRITE)))
            x.use(x.U, (c, READ))

    x.driver.on_call("cuStreamWaitEvent", others, when="after")
    x.use(x.T, (b, READ))
    for c in later:
        x.use(x.T, (c, READ))
    return all(x.ordered(write, x.T) for write in writes)


@scenario()
def the_host_knows_no_more_than_the_fence_that_it_waited_for(x: FourStreams) -> bool:
    """The fence that covers the free is older than the write; a reap that waits for it says nothing of the write."""
    b, c = x.alloc(x.S), x.alloc(x.S)
    c.free()
    x.use(x.T, (b, READ))
    write = x.use(x.S, (b, WRITE))
    x.runtime.reap_pending()
    x.use(x.T, (b, READ))
    return x.ordered(write, x.T)


# ---------------------------------------------------------------------------------------- opaque streams
@scenario(opaque="S")
def hand_back_orders_the_opaque_home_after_a_use_elsewhere(x: FourStreams) -> bool:
    """cuDF's pattern: b lives on the opaque S, T writes it, the next unrecorded work on S must see that."""
    b = x.alloc(x.S)
    x.work(x.S, (b, WRITE))
    written = x.use(x.T, (b, READ_WRITE))
    x.work(x.S, (b, READ))
    return x.ordered(written, x.S)


@scenario(opaque="S", spare=1)
def write_removes_an_opaque_entry(x: FourStreams) -> bool:
    """T's write must not remove the entry of S, where hidden work may follow at any time.  (U waits for T and for
    S, which knows T: one wait would do.)"""
    b = x.alloc(x.S)
    write = x.use(x.T, (b, WRITE))
    hidden = x.work(x.S, (b, READ_WRITE))
    read = x.use(x.U, (b, READ))
    return x.ordered(write, x.U) and x.ordered(hidden, x.U) and x.ordered(read, x.S)


@scenario(opaque="T", spare=1)
def recorded_read_on_an_opaque_stream(x: FourStreams) -> bool:
    """b is handed to the opaque T for reading; T's owner then writes it without a recorder; U reads."""
    b = x.alloc(x.S)
    x.use(x.T, (b, READ))
    hidden = x.work(x.T, (b, WRITE))
    x.use(x.U, (b, READ))
    return x.ordered(hidden, x.U)


# ---------------------------------------------------------------------------------------- the runs
test_scenario, test_twin_without_a_wait_is_noticed = scenario.tests()
