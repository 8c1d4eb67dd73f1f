"""Conflicting windows in many threads: nothing is torn, nothing starves, nothing hangs."""
from __future__ import annotations

import contextlib
import random
import threading

import pytest
from other_threads import PATIENCE, Beside, beside_waiting

from xlogmem import DeviceBlock, DeviceRuntime, StreamMisuseError, StreamPool, use
from xlogmem.sim.kernels import Kernels

WORDS = 64


class Shared:
    """One block that threads read and write, each on a stream of its own, and what they saw."""

    def __init__(self, readers: int, on_conflict: str = "wait") -> None:
        self.runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=32))
        self.kernels = Kernels()
        self.on_conflict = on_conflict
        home = self.runtime.acquire_stream()
        self.block = self.runtime.allocate(4 * WORDS, home)
        self.has_read = [threading.Event() for _ in range(readers)]
        self.seen = [self.runtime.allocate(4 * WORDS, home) for _ in range(readers)]
        with use(home, write=[self.block, *self.seen]):
            for block in (self.block, *self.seen):
                self.kernels.fill(home.handle, block.ptr, 0, WORDS)

    def write(self, rounds: int) -> None:
        stream = self.runtime.acquire_stream()
        for _ in range(rounds):
            with use(stream, read_write=self.block, on_conflict=self.on_conflict):
                self.kernels.add(stream.handle, self.block.ptr, 1, WORDS)

    def read(self, number: int, done: threading.Event) -> int:
        """Read until the writer is done; how often."""
        stream, rounds = self.runtime.acquire_stream(), 0
        while not done.is_set():
            with use(stream, read=self.block, read_write=self.seen[number], on_conflict=self.on_conflict):
                self.kernels.count_unequal(stream.handle, self.seen[number].ptr, self.block.ptr, 0, WORDS)
            rounds += 1
            self.has_read[number].set()
        return rounds


@pytest.mark.simulator
@pytest.mark.parametrize("readers", [1, 7, 15])
def test_readers_and_a_writer(driver, readers):
    """The writer gets its turns, however many readers overlap: the queue is in the order of coming."""
    shared, done = Shared(readers), threading.Event()
    threads = [Beside(lambda number=number: shared.read(number, done)) for number in range(readers)]
    try:
        assert all(has_read.wait(PATIENCE) for has_read in shared.has_read)     # they are there before it writes
        Beside(lambda: shared.write(20)).result()
    finally:
        done.set()
    assert all(thread.result() for thread in threads)
    counted = shared.runtime.counters()
    assert counted["conflicts"] == 0
    assert not driver.races()


@pytest.mark.simulator
def test_the_same_without_waiting_races(driver):
    """The twin.  A window that another thread opens inside another one's is not ordered after it."""
    shared, done = Shared(3, on_conflict="count"), threading.Event()
    threads = [Beside(lambda number=number: shared.read(number, done)) for number in range(3)]
    try:
        writer = shared.runtime.acquire_stream()
        while not driver.races():
            with use(writer, read_write=shared.block, on_conflict="count"):
                shared.kernels.add(writer.handle, shared.block.ptr, 1, WORDS)
    finally:
        done.set()
    for thread in threads:
        thread.result()
    assert shared.runtime.counters()["conflicts"] > 0
    driver.reset("eager")


@pytest.mark.simulator
@pytest.mark.parametrize("seed", range(4))
def test_random_nestings_end(driver, seed):
    """Each thread opens windows inside windows, on streams and blocks at random: each is opened or refused."""
    runtime, kernels = DeviceRuntime(), Kernels()
    streams = [runtime.acquire_stream() for _ in range(4)]
    blocks = [runtime.allocate(64, streams[0]) for _ in range(3)]
    refused = [0] * 8
    opened = [0] * 8

    def nest(number: int, draw: random.Random, depth: int) -> None:
        stream, access = draw.choice(streams), draw.choice(["read", "write", "read_write"])
        chosen = draw.sample(blocks, draw.randint(1, 2))
        with contextlib.suppress(StreamMisuseError), use(stream, **{access: chosen}):
            opened[number] += 1
            for block in chosen if access != "read" else ():
                kernels.add(stream.handle, block.ptr, 1, 1)
            if depth and draw.random() < .6:
                nest(number, draw, depth - 1)
            return
        refused[number] += 1

    def run(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        for _ in range(60):
            nest(number, draw, 3)

    threads = [Beside(lambda number=number: run(number)) for number in range(8)]
    for thread in threads:
        thread.result()
    assert all(opened)
    assert sum(refused)
    assert runtime.counters()["conflicts"] == 0
    check_all_free(runtime, blocks)


@pytest.mark.simulator
@pytest.mark.filterwarnings("ignore::xlogmem.BlockingWindowWarning")        # of a slow machine
def test_hundreds_of_waiting_threads_drain_in_the_order_of_coming(driver):
    """A window that closes wakes the one whose turn it is.  `benchmarks/waiting.py` says how long that takes."""
    runtime, count = DeviceRuntime(stream_pool=StreamPool(max_streams=402)), 400
    first, *streams = [runtime.acquire_stream() for _ in range(count + 1)]
    block = runtime.allocate(64, first)
    opened: list[int] = []

    def write(number: int) -> None:
        with use(streams[number], write=block):
            opened.append(number)

    with use(first, write=block):
        threads = [beside_waiting(runtime, lambda number=number: write(number)) for number in range(count)]
        assert not opened
    for thread in threads:
        thread.result()
    assert opened == list(range(count))
    assert runtime.counters()["conflict_waits"] == count


def check_all_free(runtime: DeviceRuntime, blocks: list[DeviceBlock]) -> None:
    """No window was left open, and none is in the queue."""
    stream = runtime.acquire_stream()
    with use(stream, write=blocks, on_conflict="raise"):
        pass
