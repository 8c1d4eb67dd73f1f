"""Ordering on foreign streams."""
from __future__ import annotations

import threading

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import READ, READ_WRITE, WRITE

from xlogmem import (
    StreamMisuseError,
    use,
)
from xlogmem.sim.kernels import check


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [None, 1])
def test_foreign_streams_are_ordered_like_our_own(four, driver, dropped):
    x = four()
    a, b = ForeignStream(), ForeignStream()
    S, T = x.runtime.register_stream(a), x.runtime.register_stream(b.handle)
    block = x.alloc(S)
    if dropped:
        driver.drop("cuStreamWaitEvent", dropped)
    write = x.use(S, (block, WRITE))
    x.use(T, (block, READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == bool(dropped)
    assert x.ordered(write, T) == (not dropped)
    block.free()
    del a


@pytest.mark.simulator
def test_a_handle_that_the_driver_used_again_is_another_stream(four, driver):
    """The stream is destroyed without being unregistered: the next one with its handle is detected by the driver's id,
    and what was queued on the destroyed one is waited for."""
    x = four()
    first = ForeignStream()
    handle = first.handle
    S = x.runtime.register_stream(handle)               # a bare handle: it cannot be kept alive
    block = x.alloc(x.T)
    write = x.use(S, (block, WRITE))
    first.destroy()
    second = ForeignStream()
    assert second.handle == handle
    again = x.runtime.register_stream(handle)
    assert again != S
    assert not S.registered
    x.use(again, (block, READ))
    assert x.ordered(write, again)
    with pytest.raises(StreamMisuseError, match="was unregistered"):
        x.prepare(S, (block, READ))


@pytest.mark.simulator
@pytest.mark.parametrize("handback", ["all", "none"])
def test_cudfs_pattern(four, driver, handback):
    """Unrecorded work on the legacy stream, uses on side streams, writes in place afterwards, frees on either.
    cuDF does not wait for other streams, so its stream is ordered after each use; without that hand-back the race is
    reported."""
    x = four()
    legacy = x.runtime.register_stream(0)
    for turn in range(20):
        column = x.alloc(legacy)
        x.work(legacy, (column, WRITE))
        if handback == "none":
            driver.drop("cuStreamWaitEvent", 2)
        x.use((x.T, x.U)[turn % 2], (column, READ))
        x.work(legacy, (column, READ_WRITE))
        x.use(x.U, (column, READ))
        if turn % 2:
            column.free()
        else:
            column.free(x.T)
        x.marked = 0
        check(cuda.cuCtxSynchronize())
    races = driver.races()
    driver.clear_races()
    assert bool(races) == (handback == "none")


@pytest.mark.simulator
def test_a_per_thread_stream_is_used_from_its_thread_and_waited_for_from_others(four, driver, _context):
    """Its handle names it in its own thread only; other threads cannot record on it, so the host waits."""
    x = four()
    block = x.alloc(x.S)
    done = []

    def work():
        check(cuda.cuCtxSetCurrent(_context))
        mine = x.runtime.register_stream(2)
        with use(mine, write=block):
            x.kernels.fill(2, block.ptr, 1, 1)
        x.kernels.fill(2, block.ptr, 2, 1)              # unrecorded: the stream is opaque
        done.append(mine)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    x.use(x.T, (block, READ_WRITE))
    assert not driver.races()
    other = x.runtime.allocate(64, x.S)
    own = x.runtime.register_stream(2)
    assert own != done[0]
    with use(own, read_write=other):
        x.kernels.fill(2, other.ptr, 1, 1)
    x.use(x.T, (other, READ_WRITE))
    block.free()
    other.free()


@pytest.mark.simulator
def test_a_block_of_another_threads_default_stream_is_freed_elsewhere(four, driver, _context):
    x = four()
    blocks = []

    def work():
        check(cuda.cuCtxSetCurrent(_context))
        blocks.append(x.runtime.allocate(512, 2))
        x.kernels.fill(2, blocks[0].ptr, 1, 1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    blocks.pop().free()
    assert not driver.races()
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0
