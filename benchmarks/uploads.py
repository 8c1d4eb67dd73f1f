"""Uploads through page-locked buffers that the program fills again and again, and what an access by the host costs.

The loop fills a buffer and queues its copy to the device; the buffers are used in turn.  The ways differ in what keeps
a buffer until its copy has read it:

    nothing                  the loop does not wait: what arrives is compared, and has to be wrong
    synchronize              the stream is synchronized before each fill
    events by hand           an event for each buffer: what can be reached
    xlogmem                  `with xlogmem.use(xlogmem.host, write=...)` around the fill, `use` around the copy

All in one process and in turn.  Times are medians of the rounds, ratios medians of each round's ratio to events by
hand.  The fill is a memset of part of the buffer, so that the copy engine is what the loop waits for.

A second table has uploads of ordinary arrays: the time of the call, and until the copy is complete, on an idle stream
and behind 20 ms of other work.  `xlogmem.upload` goes through page-locked memory of its own; the driver's call takes
the bytes itself.

    python benchmarks/uploads.py --json uploads.json
"""
from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
from cuda.bindings import driver as cuda
from prefetcher import facts

import xlogmem
from xlogmem.sim.kernels import check

SIZES = {64 << 10: 2000, 1 << 20: 1000, 16 << 20: 120}  # bytes of a buffer, and how many copies
FILLED = 4096                                           # bytes of each buffer that change
ARRAYS = tuple(size << 10 for size in (256, 1024, 2048, 4096, 16384, 262144))      # bytes
BUSY = 1 << 30                                          # bytes that the device sets while it is busy


class Loop:
    """A stream, buffers in turn, and room on the device for each copy."""

    def __init__(self, nbytes: int, copies: int, buffers: int) -> None:
        self.nbytes, self.copies, self.buffers = nbytes, copies, buffers
        self.runtime = xlogmem.get_runtime()
        self.stream = self.runtime.acquire_stream()
        self.hosts = [int(check(cuda.cuMemAllocHost(nbytes))) for _ in range(buffers)]
        self.tracked = [self.runtime.adopt(address, nbytes) for address in self.hosts]
        self.events = [check(cuda.cuEventCreate(2)) for _ in range(buffers)]
        self.target = self.runtime.allocate(nbytes, self.stream)
        self.heads = int(check(cuda.cuMemAlloc(FILLED * copies)))       # the filled part of each copy

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        for block in self.tracked:
            block.free()
        self.target.free()
        self.runtime.reap_pending()
        for address in self.hosts:
            check(cuda.cuMemFreeHost(address))
        for event in self.events:
            check(cuda.cuEventDestroy(event))
        check(cuda.cuMemFree(self.heads))

    def fill(self, buffer: int, number: int) -> None:
        ctypes.memset(self.hosts[buffer], number % 251 + 1, FILLED)

    def copy(self, buffer: int, number: int) -> None:
        check(cuda.cuMemcpyHtoDAsync(self.target.ptr, self.hosts[buffer], self.nbytes, self.stream.handle))
        check(cuda.cuMemcpyDtoDAsync(self.heads + number * FILLED, self.target.ptr, FILLED, self.stream.handle))

    def wrong(self) -> int:
        """How many copies brought what was filled in for another."""
        check(cuda.cuCtxSynchronize())
        arrived = (ctypes.c_uint8 * (FILLED * self.copies))()
        check(cuda.cuMemcpyDtoH(ctypes.addressof(arrived), self.heads, FILLED * self.copies))
        return sum(arrived[number * FILLED] != number % 251 + 1 for number in range(self.copies))

    # ------------------------------------------------------------------------------------------ ways
    def nothing(self) -> None:
        for number in range(self.copies):
            self.fill(number % self.buffers, number)
            self.copy(number % self.buffers, number)

    def synchronize(self) -> None:
        for number in range(self.copies):
            check(cuda.cuStreamSynchronize(self.stream.handle))
            self.fill(number % self.buffers, number)
            self.copy(number % self.buffers, number)

    def by_hand(self) -> None:
        for number in range(self.copies):
            buffer = number % self.buffers
            if number >= self.buffers:
                check(cuda.cuEventSynchronize(self.events[buffer]))
            self.fill(buffer, number)
            self.copy(buffer, number)
            check(cuda.cuEventRecord(self.events[buffer], self.stream.handle))

    def with_xlogmem(self) -> None:
        use, host, stream, target = xlogmem.use, xlogmem.host, self.stream, self.target
        for number in range(self.copies):
            buffer = number % self.buffers
            with use(host, write=self.tracked[buffer]):
                self.fill(buffer, number)
            with use(stream, read=self.tracked[buffer], write=target):
                self.copy(buffer, number)


def measure(nbytes: int, copies: int, buffers: int, rounds: int) -> list[dict[str, Any]]:
    loop = Loop(nbytes, copies, buffers)
    ways: dict[str, Callable[[], None]] = {
        "events by hand": loop.by_hand, "xlogmem": loop.with_xlogmem, "synchronize": loop.synchronize,
        "nothing": loop.nothing}
    times: dict[str, list[float]] = {name: [] for name in ways}
    wrong = dict.fromkeys(ways, 0)
    for turn in range(rounds + 1):                      # the first is not counted
        for name, way in ways.items():
            began = time.perf_counter()
            way()
            check(cuda.cuStreamSynchronize(loop.stream.handle))
            if turn:
                times[name].append(time.perf_counter() - began)
            wrong[name] += loop.wrong()
    loop.close()
    hand = times["events by hand"]
    return [{"bytes": nbytes, "copies": copies, "buffers": buffers, "way": name, "wrong": wrong[name],
             "us_per_copy": statistics.median(seconds) / copies * 1e6,
             "ratio": statistics.median(one / by for one, by in zip(seconds, hand, strict=True))}
            for name, seconds in times.items()]


def cost_of_accesses(turns: int) -> dict[str, float]:
    """Nanoseconds of an access that waits for nothing, and of a use on a stream, from Python."""
    runtime = xlogmem.get_runtime()
    stream, address = runtime.acquire_stream(), int(check(cuda.cuMemAllocHost(4096)))
    block, use, host = runtime.adopt(address, 4096), xlogmem.use, xlogmem.host
    found: dict[str, list[float]] = {"access by the host": [], "use on a stream": []}
    for _ in range(9):
        for name, where in (("access by the host", host), ("use on a stream", stream)):
            began = time.perf_counter_ns()
            for _ in range(turns):
                with use(where, write=block):
                    pass
            found[name].append((time.perf_counter_ns() - began) / turns)
            with use(host, write=block):                # what follows begins with nothing to wait for
                pass
    block.free()
    check(cuda.cuMemFreeHost(address))
    return {name: statistics.median(times) for name, times in found.items()}


class Arrays:
    """Ordinary arrays, which are uploaded in turn, and a buffer for them."""

    def __init__(self, nbytes: int) -> None:
        self.state = xlogmem.get_device_state()
        self.stream = xlogmem.get_runtime().acquire_stream()
        self.arrays = [numpy.full(nbytes, number, "uint8") for number in range(4)]
        self.target = self.state.empty(nbytes, "uint8", self.stream)
        self.busy = int(check(cuda.cuMemAlloc(BUSY)))

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.target.release()
        check(cuda.cuMemFree(self.busy))

    def occupy(self) -> None:
        """Have the stream work for about 20 ms."""
        for _ in range(80):
            check(cuda.cuMemsetD8Async(self.busy, 1, BUSY, self.stream.handle))

    def upload(self, number: int) -> xlogmem.Buffer:
        return self.state.upload(self.arrays[number], self.stream)

    def from_numpy(self, number: int) -> xlogmem.Buffer:
        return self.state.from_numpy(self.arrays[number], self.stream)

    def driver(self, number: int) -> None:
        source = self.arrays[number]
        with xlogmem.use(self.stream, write=self.target):
            check(cuda.cuMemcpyHtoDAsync(self.target.ptr, source.ctypes.data, source.nbytes, self.stream.handle))


def time_arrays(nbytes: int, rounds: int) -> list[dict[str, Any]]:
    """Microseconds of each way, of the call and in all."""
    loop, rows = Arrays(nbytes), []
    for busy in (False, True):
        times: dict[str, list[tuple[float, float]]] = {}
        for turn in range(rounds + 1):                  # the first is not counted
            for way in ("upload", "from_numpy", "driver"):
                check(cuda.cuCtxSynchronize())
                if busy:
                    loop.occupy()
                began = time.perf_counter()
                kept = getattr(loop, way)(turn % 4)
                called = time.perf_counter()
                check(cuda.cuStreamSynchronize(loop.stream.handle))
                if turn:
                    times.setdefault(way, []).append((called - began, time.perf_counter() - began))
                del kept
        for way, all_times in times.items():
            call, whole = (statistics.median(part) * 1e6 for part in zip(*all_times, strict=True))
            rows.append({"bytes": nbytes, "busy": busy, "way": way, "us_of_call": call, "us": whole})
    loop.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the copies, three rounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check(cuda.cuInit(0))
    xlogmem.get_runtime()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    rows = [row for buffers in (2, 4) for nbytes, copies in SIZES.items()
            for row in measure(nbytes, copies // 100 + 8 if options.quick else copies, buffers,
                               3 if options.quick else options.rounds)]
    costs = cost_of_accesses(100 if options.quick else 20_000)
    for row in rows:
        print(f"{row['bytes'] >> 10:6} KiB x {row['buffers']}  {row['way']:16} {row['us_per_copy']:9.2f} us a copy  "
              f"{row['ratio']:5.2f}  {row['wrong']} wrong")
    for name, nanoseconds in costs.items():
        print(f"{name}: {nanoseconds:.0f} ns")
    arrays = [row for nbytes in ARRAYS
              for row in time_arrays(nbytes // 64 if options.quick else nbytes, 3 if options.quick else options.rounds)]
    for row in arrays:
        print(f"array of {row['bytes'] >> 10:6} KiB, {'busy' if row['busy'] else 'idle'} stream  {row['way']:10} "
              f"{row['us_of_call']:9.1f} us in the call, {row['us']:9.1f} us in all")
    if options.json:
        options.json.write_text(json.dumps({"facts": facts(), "rows": rows, "costs": costs, "arrays": arrays},
                                           indent=1) + "\n")


if __name__ == "__main__":
    main()
