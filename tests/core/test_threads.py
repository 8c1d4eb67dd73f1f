"""Several threads on one runtime: nothing is lost."""
from __future__ import annotations

import contextlib
import gc
import queue
import random
import threading
import warnings
import weakref

import pytest
from cuda.bindings import driver as cuda
from stress import PATIENCE, nothing_lost, together, words_at
from which_driver import SIMULATED

from xlogmem import (
    AsyncMemoryResource,
    DeviceBlock,
    DeviceRuntime,
    DirectMemoryResource,
    LaunchRecorder,
    Stream,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
    sim,
    use,
)
from xlogmem.sim.kernels import Kernels, check

THREADS = 8
MANY = 16


@pytest.fixture
def _quiet():
    """Recorders are dropped on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.promise(16)
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

    together(work, THREADS)
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
@pytest.mark.promise(54)
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
    done = 0
    while done < 300 or len(least) < 300:           # whenever it is that the watcher is scheduled
        runtime.allocate(64).free()
        done += 1
    stop.set()
    watcher.join()
    assert min(least) >= 1000
    runtime.reap_pending()
    assert runtime.bytes_outstanding == kept.nbytes


@pytest.mark.usefixtures("_busy_interpreter")
def test_a_block_is_freed_once_whichever_thread_frees_it():
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
                assert "was freed" in str(error)
                return 0
            return 1

        assert sum(together(free, 4)) == 1
    counters = runtime.counters()
    assert counters["allocations"] == counters["frees"] == 40


class Board:
    """Blocks that all threads reach, each filled with a known value, and one hot word to which all add."""

    def __init__(self, runtime: DeviceRuntime, kernels: Kernels) -> None:
        self.runtime, self.kernels = runtime, kernels
        self.streams = [runtime.acquire_stream() for _ in range(MANY)]
        self.places: list[tuple[DeviceBlock, int] | None] = [None] * 24
        self.hot = runtime.allocate(4, self.streams[0])
        self.wrong = [runtime.allocate(4, stream) for stream in self.streams]       # words that were not as expected
        for block in (self.hot, *self.wrong):
            kernels.fill(block.stream.handle, block.ptr, 0, 1)

    def put(self, draw: random.Random, place: int, stream: Stream) -> None:
        block, value = self.runtime.allocate(4 * draw.randint(1, 200), stream), draw.randrange(1000)
        if draw.random() < 0.5:
            self.kernels.fill(stream.handle, block.ptr, value, block.nbytes // 4)   # new memory, unrecorded
        else:
            other = draw.choice(self.streams)
            with use(other, write=block):
                self.kernels.fill(other.handle, block.ptr, value, block.nbytes // 4)
        self.places[place] = block, value

    def read(self, number: int, stream: Stream, block: DeviceBlock, value: int) -> None:
        wrong = self.wrong[number]
        with use(stream, read=block, read_write=wrong):
            self.kernels.count_unequal(stream.handle, wrong.ptr, block.ptr, value, block.nbytes // 4)

    def add_to_hot_word(self, stream: Stream) -> int:
        """Whether it was added: not while another thread does so."""
        with contextlib.suppress(StreamMisuseError), use(stream, read_write=self.hot, on_conflict="raise"):
            self.kernels.add(stream.handle, self.hot.ptr, 1, 1)
            return 1
        return 0

    def act(self, number: int, draw: random.Random) -> int:
        """One thread's turn at one place: read, free, drop, use or replace.  How many blocks it allocated."""
        stream, place = draw.choice(self.streams), draw.randrange(len(self.places))
        found = self.places[place]
        action = draw.randrange(12)
        if action < 4 or found is None:
            self.put(draw, place, self.runtime.acquire_stream() if action == 0 else stream)
            return 1
        block, value = found
        with contextlib.suppress(UseAfterFreeError):                # another thread was quicker
            if action < 7:
                self.read(number, stream, block, value)
            elif action == 7:
                block.free(draw.choice((None, stream)))
            elif action == 8:
                self.places[place] = None
            elif action == 9:
                leave_a_window_open(draw, stream, block)
            elif action == 10:
                self.runtime.record_block_use(block, stream)
            else:
                with use(stream, read=block.id) as recorder:
                    recorder.cancel()
        return 0


def leave_a_window_open(draw: random.Random, stream: Stream, block: DeviceBlock) -> None:
    recorder = LaunchRecorder(stream).read(block)
    recorder.preflight()
    if draw.random() < 0.5:
        cycle = [recorder, block]
        cycle.append(cycle)


@pytest.mark.usefixtures("_busy_interpreter", "_quiet")
@pytest.mark.promise(16, 54)
@pytest.mark.parametrize(("policy", "resource", "turns"), [
    ("adaptive", AsyncMemoryResource, 300), ("precise", AsyncMemoryResource, 300), ("lazy", AsyncMemoryResource, 300),
    ("adaptive", DirectMemoryResource, 60)])                # whose frees wait for the device
def test_sixteen_threads_mix_everything(policy, resource, turns, kernels, _context):
    """On a board that all of them reach; every word that was read is as it was written, and the accounting agrees."""
    if SIMULATED:
        sim.simulator().reset("seeded", seed=16)
    runtime = DeviceRuntime(policy=policy, resource=resource(), stream_pool=StreamPool(max_streams=128))
    board = Board(runtime, kernels)

    def work(number: int) -> tuple[int, int]:
        check(cuda.cuCtxSetCurrent(_context))
        draw = random.Random(f"mix {number}")
        allocated = added = 0
        for turn in range(turns):
            new = board.act(number, draw)
            allocated += new
            if new:
                continue
            if turn % 8 == 0:
                runtime.reap_pending(blocking=turn % 16 == 0)
            added += board.add_to_hot_word(draw.choice(board.streams))
        return allocated, added

    done = together(work, MANY)
    hot, wrong, first = board.hot, board.wrong, board.streams[0]
    with use(first, read=[hot, *wrong]):
        assert words_at(hot.ptr, 1, first) == [sum(added for _, added in done)]
        assert [words_at(block.ptr, 1, first) for block in wrong] == [[0]] * MANY
    board.places.clear()
    for block in (hot, *wrong):
        block.free()
    nothing_lost(runtime, 1 + MANY + sum(allocated for allocated, _ in done))
    assert runtime.counters()["abandoned"] > 0


@pytest.mark.usefixtures("_busy_interpreter", "_quiet")
def test_what_one_thread_made_is_dropped_in_another(kernels, _context):
    """Blocks, recorders with open windows, streams, alone and in cycles: finalizers run in threads that never used the
    runtime, and wherever the collector happens to run."""
    runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=200))
    streams = [runtime.acquire_stream() for _ in range(4)]
    handed: queue.SimpleQueue[object] = queue.SimpleQueue()
    made = 40

    def make(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        for turn in range(made):
            stream = runtime.acquire_stream() if turn % 4 == 0 else streams[number]
            block = runtime.allocate(256, stream)
            other = streams[(number + 1) % 4]
            recorder = LaunchRecorder(other).write(block)
            recorder.preflight()
            kernels.fill(other.handle, block.ptr, turn, 64)
            thing = [block, recorder, stream]
            if turn % 2:
                thing.append(thing)
            handed.put(thing)
            del thing, block, recorder, stream
        handed.put(None)

    def defer_free() -> None:
        while handed.get(timeout=PATIENCE) is not None:
            pass

    together(lambda number: make(number) if number < 4 else defer_free(), 8)
    nothing_lost(runtime, 4 * made)
    assert runtime.counters()["abandoned"] == runtime.counters()["uses"] == 4 * made
    assert len(runtime.stream_pool) == 4


@pytest.mark.usefixtures("_busy_interpreter")
def test_runtimes_come_and_go_in_threads(kernels, _context):
    """Made, used and dropped at once by many; what is left of one is dropped in another thread, after the runtime."""
    handed: queue.SimpleQueue[object] = queue.SimpleQueue()
    seen = []

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        for turn in range(12):
            runtime = DeviceRuntime(policy=("lazy", "precise", "adaptive")[turn % 3])
            seen.append(weakref.ref(runtime))
            S, T = runtime.acquire_stream(), runtime.acquire_stream()
            blocks = [runtime.allocate(256, S) for _ in range(3)]
            with use(T, write=blocks):
                kernels.fill(T.handle, blocks[turn % 3].ptr, turn, 64)
            handed.put([blocks.pop(), S])
            blocks.pop().free()
            del runtime, S, T, blocks
            handed.get(timeout=PATIENCE)

    together(work, THREADS)
    gc.collect()
    assert len(seen) == 12 * THREADS
    assert not any(runtime() for runtime in seen)
