"""What only a GPU can show: the waits hold against real concurrency, and a full queue stops no other thread."""
from __future__ import annotations

import threading
import time

import pytest
from arrays import Column
from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime, use
from xlogmem.commands.pipeline import Demo
from xlogmem.sim.kernels import Kernels, check

pytestmark = pytest.mark.gpu
MILLISECOND = 1_000_000


@pytest.mark.parametrize("policy", ["adaptive", "precise", "lazy"])
def test_a_thousand_rounds(policy):
    pipeline = Demo(1000, policy)
    assert pipeline.run(protected=True).corrupted == 0
    assert pipeline.run(protected=False).corrupted > 0          # the twin


@pytest.mark.parametrize("protected", [True, False])
def test_a_late_reader_on_a_third_stream_sees_what_was_written(protected):
    """A chain over three streams, each link late; the reader checks every word."""
    runtime = DeviceRuntime()
    kernels = Kernels()
    a, b, c = (runtime.acquire_stream() for _ in range(3))
    words = 1 << 16
    wrong = runtime.allocate(4, c)
    with use(c, write=wrong):
        kernels.fill(c.handle, wrong.ptr, 0, 1)
    for turn in range(50):
        block = runtime.allocate(4 * words, a)
        recorders = [use(a, write=block), use(b, read_write=block), use(c, read=block, read_write=wrong)]
        for recorder, stream in zip(recorders, (a, b, c), strict=True):
            if protected:
                recorder.preflight()
            kernels.delay(stream.handle, MILLISECOND // 5)
            if stream is a:
                kernels.fill(a.handle, block.ptr, turn, words)
            elif stream is b:
                kernels.add(b.handle, block.ptr, 7, words)
            else:
                kernels.count_unequal(c.handle, wrong.ptr, block.ptr, turn + 7, words)
            if protected:
                recorder.commit()
        block.free()
    seen = bytearray(4)
    check(cuda.cuMemcpyDtoHAsync(seen, wrong.ptr, 4, c.handle))
    check(cuda.cuStreamSynchronize(c.handle))
    assert (int.from_bytes(seen, "little") == 0) == protected
    check(cuda.cuCtxSynchronize())
    kernels.close()


def test_a_full_queue_stops_no_other_thread(_context):
    """One thread fills a stream's queue until its next launch blocks.  Meanwhile everything on other streams goes on:
    no lock is held while a driver call blocks (about 1,020 launches fill a queue)."""
    runtime = DeviceRuntime()
    kernels = Kernels()
    full, other, third = (runtime.acquire_stream() for _ in range(3))
    block = runtime.allocate(256, full)
    queued, finished = [], threading.Event()

    def fill_the_queue():
        check(cuda.cuCtxSetCurrent(_context))
        kernels.delay(full.handle, 1500 * MILLISECOND)
        for number in range(2000):
            with use(full, write=block):
                kernels.fill(full.handle, block.ptr, number, 1)
            queued.append(number)
        finished.set()

    thread = threading.Thread(target=fill_the_queue)
    thread.start()
    while len(queued) < 900:
        time.sleep(0.001)                                       # a busy loop would take the GIL from the other thread
    finished.wait(0.1)                                          # by now its next launch blocks
    done = 0
    while not finished.is_set() and done < 50:
        mine = runtime.allocate(256, other)
        with use(other, write=mine):
            kernels.fill(other.handle, mine.ptr, done, 1)
        with use(third, read=mine):
            pass
        mine.free()
        done += 1
    assert done == 50
    assert not finished.is_set(), "the queue was not full: nothing was tested"
    thread.join()
    block.free()
    check(cuda.cuCtxSynchronize())
    kernels.close()


def test_a_query_for_a_capture_does_not_wait_for_a_full_queue(_context):
    """docs/ordering.md, query-with-gil: this call may be made by a thread that has the GIL, because it returns while
    another thread is inside a launch on the same stream, which a full queue keeps."""
    runtime = DeviceRuntime()
    kernels = Kernels()
    full = runtime.acquire_stream()
    block = runtime.allocate(256, full)
    queued, finished = [], threading.Event()

    def fill_the_queue():
        check(cuda.cuCtxSetCurrent(_context))
        kernels.delay(full.handle, 1500 * MILLISECOND)
        for number in range(2000):
            kernels.fill(full.handle, block.ptr, number, 1)
            queued.append(number)
        finished.set()

    thread = threading.Thread(target=fill_the_queue)
    thread.start()
    while len(queued) < 900:
        time.sleep(0.001)
    finished.wait(0.1)                                          # by now its next launch blocks
    for _ in range(1000):
        check(cuda.cuStreamIsCapturing(full.handle))
    assert not finished.is_set(), "the query waited, or the queue was not full"
    thread.join()
    block.free()
    check(cuda.cuCtxSynchronize())
    kernels.close()


def test_freed_memory_comes_back_at_once():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    addresses = set()
    for _ in range(100):
        block = runtime.allocate(1 << 20, stream)
        addresses.add(block.ptr)
        block.free()
    assert len(addresses) == 1
    assert runtime.pending_bytes <= 100 << 20
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0


@pytest.mark.parametrize("named", [True, False])
def test_ranges_of_one_block(named):
    """One stream fills the quarters of a block, each late; others copy ranges across the borders of quarters.  The twin
    names another range than it reads."""
    runtime, kernels = DeviceRuntime(), Kernels()
    source, *others = (runtime.acquire_stream() for _ in range(4))
    words = 1 << 16
    block, wrong = runtime.allocate(16 * words, source), runtime.allocate(4 * len(others), source)
    with use(source, write=[block, wrong]):
        kernels.fill(source.handle, block.ptr, 0, 4 * words)
        kernels.fill(source.handle, wrong.ptr, 0, len(others))
    for turn in range(1, 30):
        for quarter in range(4):
            with use(source, write=Column(block, 4 * words * quarter, 4 * words)):
                kernels.delay(source.handle, MILLISECOND // 5)
                kernels.fill(source.handle, block.ptr + 4 * words * quarter, turn, words)
        for number, stream in enumerate(others):
            first = 4 * words * number + 2 * words
            name = Column(block, first if named else 0, 4 * words if named else 4)
            with use(stream, read=name, read_write=Column(wrong, 4 * number, 4)):
                kernels.count_unequal(stream.handle, wrong.ptr + 4 * number, block.ptr + first, turn, words)
    seen = bytearray(4 * len(others))
    with use(source, read=wrong):
        check(cuda.cuMemcpyDtoHAsync(seen, wrong.ptr, len(seen), source.handle))
    check(cuda.cuStreamSynchronize(source.handle))
    assert (not any(seen)) == named
    check(cuda.cuCtxSynchronize())
    kernels.close()
