"""From the end of work on the device to the coroutine that waits for it.

Work is a fill of a few bytes behind an event that the host holds back, so that nothing is complete when the coroutine
is suspended.  The time is from the release until the next line of the coroutine.  The ways:

    host function            the driver's own, behind the work of all: what can be reached
    xlogmem                  `await block`
    thread                   `asyncio.to_thread(block.synchronize)`: the threads of the loop's executor wait

All in one process and in turn, with one and with a thousand pending at a time, all on the work of one stream.  Times
are medians of the coroutines and then of the rounds.

    python benchmarks/awaiting.py --json awaiting.json
"""
from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda
from prefetcher import facts

import xlogmem
from xlogmem.sim.kernels import check

PENDING = (1, 1000)
NBYTES = 4096
READY = int(cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)


class Gate:
    """Work on a stream that waits until the host writes a number."""

    def __init__(self, pending: int) -> None:
        self.runtime = xlogmem.get_runtime()
        self.stream = self.runtime.acquire_stream()
        self.word = int(check(cuda.cuMemHostAlloc(8, 2)))               # mapped
        self.value = ctypes.c_uint32.from_address(self.word)
        self.blocks = [self.runtime.allocate(NBYTES, self.stream) for _ in range(pending)]
        self.opened = 0

    def queue(self) -> None:
        check(cuda.cuStreamWaitValue32(self.stream.handle, self.word, self.value.value + 1, READY))
        for block in self.blocks:
            with xlogmem.use(self.stream, write=block):
                check(cuda.cuMemsetD8Async(block.ptr, 1, NBYTES, self.stream.handle))

    def open(self) -> None:
        self.opened = time.perf_counter_ns()
        self.value.value += 1

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        for block in self.blocks:
            block.free()
        self.runtime.reap_pending()
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


def until_called(gate: Gate) -> list[float]:
    """Microseconds from the release to a host function behind all work."""
    times: list[float] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
        lambda _: times.append((time.perf_counter_ns() - gate.opened) / 1000))
    gate.queue()
    check(cuda.cuLaunchHostFunc(gate.stream.handle, cuda.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value), 0))
    time.sleep(0.05)
    gate.open()
    while not times:                                    # not inside a wait of the driver's: the function takes the GIL
        time.sleep(0.001)
        cuda.cuStreamQuery(gate.stream.handle)          # the simulated driver looks at memory in calls alone
    check(cuda.cuStreamSynchronize(gate.stream.handle))
    return times


def measure(pending: int, rounds: int) -> list[dict[str, Any]]:
    gate = Gate(pending)
    ways: dict[str, Callable[[], list[float]]] = {
        "host function": lambda: until_called(gate),
        "xlogmem": lambda: asyncio.run(until_open(gate, [lambda block=block: of(block) for block in gate.blocks])),
        "thread": lambda: asyncio.run(until_open(gate, [
            lambda block=block: asyncio.to_thread(block.synchronize) for block in gate.blocks]))}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):                      # the first is not counted
        for name, way in ways.items():
            times = way()
            if turn:
                found[name].append(statistics.median(times))
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
    rows = [row for pending in PENDING for row in measure(min(pending, 10) if options.quick else pending,
                                                          3 if options.quick else options.rounds)]
    for row in rows:
        print(f"{row['pending']:5} pending  {row['way']:14} {row['us']:9.1f} us")
    if options.json:
        options.json.write_text(json.dumps({"facts": facts(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
