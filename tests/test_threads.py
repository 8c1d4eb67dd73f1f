"""Several threads on one runtime: nothing is lost, nothing blocks for ever."""
from __future__ import annotations

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime, LaunchRecorder, StreamPool, use
from xlogmem._kernels import Kernels, check

THREADS = 8


@pytest.fixture
def _busy_interpreter():
    """Switch threads and collect garbage all the time."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-5)
    gc.set_threshold(1)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*thresholds)


def together(work, count=THREADS):
    start = threading.Barrier(count)

    def one(number):
        start.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.contract(16)
def test_allocate_use_and_free_from_many_threads(policy, _context):
    runtime = DeviceRuntime(policy=policy, stream_pool=StreamPool(max_streams=THREADS))
    streams = [runtime.acquire_stream() for _ in range(THREADS)]
    kernels = Kernels()
    shared = runtime.allocate(4 * THREADS, streams[0])
    with use(streams[0], write=shared):
        kernels.fill(streams[0].handle, shared.ptr, 0, THREADS)

    def work(number):
        check(cuda.cuCtxSetCurrent(_context))
        own, other = streams[number], streams[(number + 1) % THREADS]
        for turn in range(60):
            block = runtime.allocate(256, own)
            with use(own, write=block):
                kernels.fill(own.handle, block.ptr, turn, 64)
            with use(other, read=block, read_write=shared):
                kernels.add(other.handle, shared.ptr + 4 * number, 1, 1)
                kernels.count_unequal(other.handle, shared.ptr + 4 * number, block.ptr, turn, 64)
            if turn % 3 == 0:
                block.free()
            elif turn % 3 == 1:
                block.free(other)
            if turn % 10 == 0:
                runtime.reap_pending(blocking=turn % 20 == 0)
            del block

    together(work)
    seen = bytearray(4 * THREADS)
    with use(streams[0], read=shared):
        check(cuda.cuMemcpyDtoHAsync(seen, shared.ptr, len(seen), streams[0].handle))
    check(cuda.cuStreamSynchronize(streams[0].handle))
    assert [int.from_bytes(seen[4 * i:4 * i + 4], "little") for i in range(THREADS)] == [60] * THREADS
    shared.free()
    runtime.reap_pending()
    counters = runtime.counters()
    assert runtime.bytes_outstanding == 0
    assert counters["allocations"] == counters["frees"] == 60 * THREADS + 1
    assert counters["uses"] == 120 * THREADS + 2
    kernels.close()


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.contract(54)
def test_accounting_never_loses_a_byte_in_between():
    """A reader never sees bytes in neither live nor pending while they move (W27)."""
    runtime = DeviceRuntime()
    stop = threading.Event()
    kept = runtime.allocate(1000)
    least = []

    def watch():
        while not stop.is_set():
            least.append(runtime.bytes_outstanding)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(300):
        runtime.allocate(64).free()
    stop.set()
    watcher.join()
    assert min(least) >= 1000
    runtime.reap_pending()
    assert runtime.bytes_outstanding == kept.nbytes


@pytest.mark.usefixtures("_busy_interpreter")
def test_a_block_is_freed_once_whoever_frees_it():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    for _ in range(40):
        block = runtime.allocate(64, stream)
        recorder = LaunchRecorder(stream).read(block)
        recorder.preflight()

        def free(number, block=block, recorder=recorder):
            if number == 0:
                recorder.commit()
                return 0
            try:
                block.free()
            except Exception as error:
                assert "use-after-free" in str(error)
                return 0
            return 1

        assert sum(together(free, 4)) == 1
    counters = runtime.counters()
    assert counters["allocations"] == counters["frees"] == 40
