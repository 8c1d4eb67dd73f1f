"""From the end of work on the device to the coroutine that waits for it.

Work is one fill of a few bytes, which is recorded as a use of all blocks.  Its stream waits for a number that the host
writes last, so that nothing is complete when the coroutines are suspended.  The time is from that write until the next
line of the coroutine.  The ways:

    one host function        the driver's own, on the stream of the work, behind it: what can be reached for one
    host function            as many of them as coroutines, on at most 32 streams that wait for an event behind the work
    xlogmem                  `await block`, a block for each coroutine
    thread                   `asyncio.to_thread(block.synchronize)`: the threads of the loop's executor wait

The host functions are written in Python, too, so each of them takes the GIL.  All in one process and in turn, with one
and with a thousand pending at a time.  Times are medians of the coroutines and then of the rounds.

A driver call blocks while a stream has about a thousand entries that cannot begin, and then nothing would write the
number.  So no stream has more than a few dozen.  For that the blocks are allocated on another stream than that of the
work: where work without a record may stand behind a block, each await records an event.  A way that takes a minute ends
the process with a traceback.

    python benchmarks/awaiting.py --json awaiting.json
"""
from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import faulthandler
import json
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda
from prefetcher import facts

import xlogmem
from xlogmem.sim.kernels import check

PENDING = (1, 1000)
STREAMS = 32                                            # with host functions
NBYTES = 4096
PATIENCE = 60                                           # seconds for each way
READY = int(cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """The process ends with a traceback if the body takes too long."""
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Gate:
    """Work on a stream that waits until the host writes a number, and streams that wait for the work."""

    def __init__(self, pending: int, simulated: bool) -> None:
        self.runtime = xlogmem.get_runtime()
        self.simulated = simulated
        self.home, self.stream = self.runtime.acquire_stream(), self.runtime.acquire_stream()
        self.word = int(check(cuda.cuMemHostAlloc(8, 2)))               # mapped
        self.value = ctypes.c_uint32.from_address(self.word)
        self.blocks = [self.runtime.allocate(NBYTES, self.home) for _ in range(pending)]
        self.followers = [int(check(cuda.cuStreamCreate(1))) for _ in range(min(pending, STREAMS))]
        self.event = check(cuda.cuEventCreate(2))
        self.opened = 0
        self.work()                                     # and loads what the driver loads on first use
        check(cuda.cuCtxSynchronize())

    def work(self) -> None:
        with xlogmem.use(self.stream, write=self.blocks):
            check(cuda.cuMemsetD8Async(self.blocks[0].ptr, 1, NBYTES, self.stream.handle))

    def queue(self) -> None:
        check(cuda.cuStreamWaitValue32(self.stream.handle, self.word, self.value.value + 1, READY))
        self.work()

    def follow(self) -> None:
        """Have the other streams wait for the work."""
        check(cuda.cuEventRecord(self.event, self.stream.handle))
        for stream in self.followers:
            check(cuda.cuStreamWaitEvent(stream, self.event, 0))

    def open(self) -> None:
        self.opened = time.perf_counter_ns()
        self.value.value += 1
        if self.simulated:                              # that driver works in calls alone
            check(cuda.cuCtxSynchronize())

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        for block in self.blocks:
            block.free()
        self.runtime.reap_pending()
        for stream in self.followers:
            check(cuda.cuStreamDestroy(stream))
        check(cuda.cuEventDestroy(self.event))
        check(cuda.cuMemFreeHost(self.word))


async def until_open(gate: Gate, waits: list[Callable[[], Awaitable[Any]]]) -> list[float]:
    """Microseconds from the release to each coroutine."""
    times: list[float] = []

    async def one(wait: Callable[[], Awaitable[Any]]) -> None:
        await wait()
        times.append((time.perf_counter_ns() - gate.opened) / 1000)

    gate.queue()
    tasks = [asyncio.ensure_future(one(wait)) for wait in waits]
    await asyncio.sleep(0.05)                           # all are suspended
    gate.open()
    await asyncio.gather(*tasks)
    return times


def until_called(gate: Gate, streams: list[int], count: int) -> list[float]:
    """Microseconds from the release to each of so many host functions, on these streams in turn."""
    times: list[float] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda _: times.append((time.perf_counter_ns() - gate.opened) / 1000))
    called = cuda.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)
    gate.queue()
    if streams is gate.followers:
        gate.follow()
    for number in range(count):
        check(cuda.cuLaunchHostFunc(streams[number % len(streams)], called, 0))
    time.sleep(0.05)
    gate.open()
    while len(times) < count:                           # not inside a wait of the driver's: the functions take the GIL
        time.sleep(0.001)
    check(cuda.cuCtxSynchronize())                      # the last has returned
    return times


def ways_of(gate: Gate) -> dict[str, Callable[[], list[float]]]:
    return {
        "one host function": lambda: until_called(gate, [gate.stream.handle], 1),
        "host function": lambda: until_called(gate, gate.followers, len(gate.blocks)),
        "xlogmem": lambda: asyncio.run(until_open(gate, [partial(of, block) for block in gate.blocks])),
        "thread": lambda: asyncio.run(until_open(gate, [
            partial(asyncio.to_thread, block.synchronize) for block in gate.blocks]))}


def measure(pending: int, rounds: int, simulated: bool) -> list[dict[str, Any]]:
    with bounded():
        gate = Gate(pending, simulated)
    ways = ways_of(gate)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):                      # the first is not counted
        for name, way in ways.items():
            with bounded():
                times = way()
            if turn:
                found[name].append(statistics.median(times))
    with bounded():
        gate.close()
    return [{"pending": pending, "way": name, "us": statistics.median(times)} for name, times in found.items()]


async def of(what: Awaitable[Any]) -> Any:
    return await what


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="ten pending in place of a thousand, three rounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check(cuda.cuInit(0))
    xlogmem.get_runtime()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    about = facts()
    rows = []
    for pending in PENDING:
        some = measure(min(pending, 10) if options.quick else pending, 3 if options.quick else options.rounds,
                       about["simulated"])
        for row in some:
            print(f"{row['pending']:5} pending  {row['way']:18} {row['us']:9.1f} us", flush=True)
        rows += some
    if options.json:
        options.json.write_text(json.dumps({"facts": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
