"""Six threads read a block and one writes it, each on a stream of its own: what protects them, and what it costs.

The writer adds 1 and takes it off again, in one launch group; a reader that sees a word that is not 0 has seen a torn
block.  Four ways: nothing around the launches; `use` with ``on_conflict="count"``, which orders streams and lets
threads race; `use` as it is, where a conflicting window waits; and that with a lock of the program's own around each
window, so that no window ever waits.

    python benchmarks/conflicts.py --seconds 30 --out conflicts.jsonl
"""
from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime, Stream, StreamPool, use
from xlogmem.sim.kernels import Kernels, check

READERS = 6
WAYS = ("nothing", "count", "wait", "lock")


def use_device() -> None:
    """Kernels are launched in the context that is current in the thread."""
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))


class Program:
    """The block, its readers' counts of wrong words, and how launches are protected."""

    def __init__(self, way: str, words: int) -> None:
        self.way, self.words = way, words
        self.runtime = DeviceRuntime(stream_pool=StreamPool(max_streams=READERS + 2))
        use_device()
        self.kernels = Kernels()
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.home = self.runtime.acquire_stream()
        self.block = self.runtime.allocate(4 * words, self.home)
        self.torn = [self.runtime.allocate(4, self.home) for _ in range(READERS)]
        with use(self.home, write=[self.block, *self.torn]):
            self.kernels.fill(self.home.handle, self.block.ptr, 0, words)
            for block in self.torn:
                self.kernels.fill(self.home.handle, block.ptr, 0, 1)
        check(cuda.cuCtxSynchronize())

    @contextlib.contextmanager
    def protected(self, stream: Stream, **what: Any) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if self.way == "lock":
                stack.enter_context(self.lock)
            if self.way != "nothing":
                stack.enter_context(use(stream, **what, on_conflict="count" if self.way == "count" else "wait"))
            yield

    def write(self) -> int:
        def launch(stream: Stream) -> None:
            with self.protected(stream, read_write=self.block):
                self.kernels.add(stream.handle, self.block.ptr, 1, self.words)
                self.kernels.add(stream.handle, self.block.ptr, 0xFFFFFFFF, self.words)
        return self.repeat(launch)

    def read(self, number: int) -> int:
        def launch(stream: Stream) -> None:
            with self.protected(stream, read=self.block, read_write=self.torn[number]):
                self.kernels.count_unequal(stream.handle, self.torn[number].ptr, self.block.ptr, 0, self.words)
        return self.repeat(launch)

    def repeat(self, launch: Callable[[Stream], None]) -> int:
        """Until the time is up; how often.  The queue of the device is kept short, as a program that looks at its
        results does."""
        stream, rounds = self.runtime.acquire_stream(), 0
        use_device()
        while not self.done.is_set():
            launch(stream)
            rounds += 1
            if rounds % 16 == 0:
                check(cuda.cuStreamSynchronize(stream.handle))
        check(cuda.cuStreamSynchronize(stream.handle))
        return rounds

    def torn_words(self) -> int:
        check(cuda.cuCtxSynchronize())
        seen = ctypes.c_uint32()
        total = 0
        for block in self.torn:
            check(cuda.cuMemcpyDtoH(ctypes.addressof(seen), block.ptr, 4))
            total += seen.value
        return total


def measure(way: str, words: int, seconds: float) -> dict[str, object]:
    program = Program(way, words)
    counts = [0] * (READERS + 1)

    def run(number: int) -> None:
        counts[number] = program.write() if number == READERS else program.read(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(READERS + 1)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    program.done.set()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    counted = program.runtime.counters()
    return {"way": way, "words": words, "seconds": round(took, 2), "reads_per_s": round(sum(counts[:-1]) / took, 1),
            "writes_per_s": round(counts[-1] / took, 1), "torn_words": program.torn_words(),
            "conflicts": counted["conflicts"], "conflict_waits": counted["conflict_waits"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each way")
    parser.add_argument("--words", type=int, default=1 << 20, help="in the block")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--out", type=Path, help="a file to which the rows are added, as JSON")
    options = parser.parse_args()
    for way in options.ways:
        row = measure(way, options.words, options.seconds)
        print(json.dumps(row), flush=True)
        if options.out:
            with options.out.open("a") as file:
                print(json.dumps(row), file=file)


if __name__ == "__main__":
    main()
