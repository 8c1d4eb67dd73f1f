"""Conflicting windows: a launch waits on the host for one that is not filed, in order, and never for ever."""
from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from four_streams import READ, READ_WRITE, WRITE, FourStreams
from open_windows import opened, prepare
from other_threads import PATIENCE, Beside, beside_waiting, interrupted_after, until, waiting

from xlogmem import (
    DeviceBlock,
    DeviceState,
    Stream,
    StreamMisuseError,
    use,
)

pytestmark = pytest.mark.simulator


# ---------------------------------------------------------------------------------------------- the order
def write_beside(x: FourStreams, first: str, second: str, on_conflict: str = "wait", drop: bool = False) -> bool:
    """A thread launches on S inside its window while another one wants a conflicting window on T; whether the
    second launch is ordered after the first.  With `drop` the driver leaves its wait out."""
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    x.use(x.T, (block, READ))
    launched = []
    holder, go = opened(x.runtime, x.S, first, block, lambda: launched.append(x.work(x.S, (block, first))))

    def launch() -> None:
        with use(x.T, **{second: block}, on_conflict=on_conflict):
            if on_conflict == "count":                  # this window is open while the other one launches
                go.set()
                holder.result()
            x.work(x.T, (block, second))

    if on_conflict == "count":
        launch()
    else:
        beside = beside_waiting(x.runtime, launch)
        if drop:
            x.driver.drop("cuStreamWaitEvent", 1)
        go.set()
        holder.result()
        beside.result()
    races = x.driver.races()
    x.driver.clear_races()
    return not races and x.ordered(launched[0], x.T)


@pytest.mark.parametrize(("first", "second"), [(READ, WRITE), (WRITE, READ), (WRITE, WRITE), (READ_WRITE, READ)])
def test_a_conflicting_window_waits_and_is_ordered_after_the_other(four, driver, first, second):
    x = four()
    before = x.runtime.counters()
    assert write_beside(x, first, second)
    after = x.runtime.counters()
    assert (after["conflict_waits"] - before["conflict_waits"], after["conflicts"] - before["conflicts"]) == (1, 0)


def test_windows_that_do_not_wait_race(four, driver):
    """The twin: the same program with `on_conflict="count"`."""
    x = four()
    assert not write_beside(x, READ, WRITE, "count")
    assert x.runtime.counters()["conflicts"] == 1


def test_the_wait_on_the_device_is_needed_too(four, driver):
    assert not write_beside(four(), READ, WRITE, drop=True)
    driver.reset("eager")                               # the frees of the teardown raced, as they must


def test_readers_do_not_wait_for_readers(four, driver):
    x = four()
    block = x.alloc(x.S)
    holder, go = opened(x.runtime, x.S, READ, block)
    x.use(x.T, (block, READ))
    go.set()
    holder.result()
    assert x.runtime.counters()["conflict_waits"] == 0


@pytest.mark.parametrize("on_conflict", ["raise", "count"])
def test_a_window_that_was_closed_is_no_conflict(four, driver, on_conflict):
    """S and T had windows on the block at once; T's is closed when S wants another one."""
    x = four()
    block = x.alloc(x.S)
    first, second = prepare(x.S, READ, block), prepare(x.T, READ, block)
    second.commit()
    with use(x.S, write=block, on_conflict=on_conflict):
        pass
    first.commit()
    assert x.runtime.counters()["conflicts"] == 0


# ---------------------------------------------------------------------------------------------- circles
def test_a_thread_does_not_wait_for_its_own_window(four, driver):
    x = four()
    block = x.alloc(x.S)
    before = driver.calls("cuStreamWaitEvent")
    with use(x.S, write=block), interrupted_after(5), pytest.raises(
            StreamMisuseError, match=rf"^read=: block {block.generation} .*in another use that is still open, on "
                                     rf"stream {x.S.id}, and cannot be left while this one on stream {x.T.id} waits "
                                     r"for it \(this is thread 'MainThread', that is .*\).*one use\(\)"):
        prepare(x.T, READ, block)
    assert driver.calls("cuStreamWaitEvent") == before
    x.use(x.T, (block, READ))                           # nothing is left in the queue


def test_coroutines_of_one_thread_do_not_wait_for_each_other(four, driver):
    x = four()
    block = x.alloc(x.S)

    async def launch(stream: Stream) -> None:
        with use(stream, write=block):
            await asyncio.sleep(0)

    async def both() -> list[object]:
        return await asyncio.gather(launch(x.S), launch(x.T), return_exceptions=True)

    with interrupted_after(5):
        first, second = asyncio.run(both())
    assert first is None
    assert isinstance(second, StreamMisuseError)


def test_two_threads_do_not_wait_for_each_other(four, driver):
    x = four()
    one, two = x.alloc(x.S), x.alloc(x.S)
    mine = prepare(x.S, WRITE, one)
    holds = threading.Event()

    def other() -> None:
        with use(x.T, write=two):
            holds.set()
            with use(x.U, write=one):
                pass

    with waiting(x.runtime) as is_waiting:
        beside = Beside(other, "other")
        assert holds.wait(PATIENCE)
        is_waiting()
    with interrupted_after(5), pytest.raises(StreamMisuseError, match="'MainThread', that is thread 'other'"):
        prepare(x.S, READ, two)
    mine.commit()
    beside.result()


def test_a_circle_of_three_threads_is_refused(four, driver):
    x = four()
    blocks = [x.alloc(x.S) for _ in range(3)]
    mine = prepare(x.S, WRITE, blocks[0])

    def chain(stream: Stream, holds: DeviceBlock, wants: DeviceBlock) -> Callable[[], None]:
        def run() -> None:
            with use(stream, write=holds), use(x.V, write=wants):
                pass
        return run

    with waiting(x.runtime, 2) as are_waiting:
        first = Beside(chain(x.T, blocks[1], blocks[0]))
        until(lambda: x.runtime.counters()["conflict_waits"] == 1)
        second = Beside(chain(x.U, blocks[2], blocks[1]))
        are_waiting()
    with interrupted_after(5), pytest.raises(StreamMisuseError):
        prepare(x.S, READ, blocks[2])
    mine.commit()
    first.result()
    second.result()


def test_an_export_inside_a_window_of_the_same_thread(four, driver):
    """As in ``with use(stream, read=buffer): cupy.asarray(buffer)``: the interface names another stream."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(64, "uint8", x.S)
    with use(x.T, read=buffer), interrupted_after(5):
        assert buffer.__cuda_array_interface__["stream"] == x.S.handle
        capsule = buffer.__dlpack__(stream=x.U.handle)
    del capsule


def test_an_export_waits_for_a_window_of_another_thread(four, driver):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(64, "uint8", x.S)
    launched = []
    block = buffer.access()
    holder, go = opened(x.runtime, x.T, WRITE, block, lambda: launched.append(x.work(x.T, (block, WRITE))))
    consumer = beside_waiting(x.runtime, lambda: buffer.__dlpack__(stream=x.U.handle))
    go.set()
    holder.result()
    assert consumer.result()
    assert x.ordered(launched[0], x.U)


# ---------------------------------------------------------------------------------------------- the queue
def test_a_reader_that_comes_later_waits_behind_a_writer(four, driver):
    x = four()
    block = x.alloc(x.S)
    order = []

    def launch(stream: Stream, access: str) -> Beside:
        def run() -> None:
            with use(stream, **{access: block}):
                order.append(access)
        beside = beside_waiting(x.runtime, run)
        return beside

    reader = prepare(x.S, READ, block)
    writer = launch(x.T, WRITE)
    late = launch(x.U, READ)                            # conflicts with no open window, but with one that waits longer
    reader.commit()
    writer.result()
    late.result()
    assert order == [WRITE, READ]


def test_a_thread_that_a_writer_waits_for_reads_once_more(four, driver):
    """The writer waits for this thread's window, so it need not wait behind the writer."""
    x = four()
    block = x.alloc(x.S)
    first = prepare(x.S, READ, block)
    writer = beside_waiting(x.runtime, lambda: prepare(x.T, WRITE, block).commit())
    with interrupted_after(5):
        prepare(x.U, READ, block).commit()
    first.commit()
    writer.result()


def test_a_window_that_does_not_wait_is_refused_for_one_that_does(four, driver):
    """`on_conflict="raise"`: else readers that overlap would starve a writer.  A thread that the writer waits for reads
    once more."""
    x = four()
    block = x.alloc(x.S)
    holder, go = opened(x.runtime, x.S, READ, block)
    writer = beside_waiting(x.runtime, lambda: prepare(x.T, WRITE, block).commit(), "writer")
    with pytest.raises(StreamMisuseError, match=rf"^read=: block {block.generation} .*which waits longer, on stream "
                                                rf"{x.T.id} \(this is thread 'MainThread', that is thread 'writer'\)"):
        prepare(x.U, READ, block, on_conflict="raise")
    assert x.runtime.counters()["conflicts"] == 1
    go.set()
    holder.result()
    writer.result()
    first = prepare(x.S, READ, block)
    writer = beside_waiting(x.runtime, lambda: prepare(x.T, WRITE, block).commit())
    prepare(x.U, READ, block, on_conflict="raise").commit()
    first.commit()
    writer.result()
