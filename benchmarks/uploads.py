"""Uploads of ordinary arrays: the time of the call, and until the copy is complete.

On an idle stream and behind 20 ms of other work.  `xlogmem.upload` goes through page-locked memory of its own; the
driver's call takes the bytes itself.  All in one process and in turn.  Times are medians of the rounds.

`xlogmem bench --family host` has the uploads from page-locked memory.  A turn there begins with an idle device and has
one figure, so these are not among its cases.

    python benchmarks/uploads.py --json uploads.json
"""
from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy
from cuda.bindings import driver as cuda
from prefetcher import facts

import xlogmem
from xlogmem.sim.kernels import check

ARRAYS = tuple(size << 10 for size in (256, 1024, 2048, 4096, 16384, 262144))      # bytes
BUSY = 1 << 30                                          # bytes that the device sets while it is busy


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
    parser.add_argument("--quick", action="store_true", help="a 64th of the bytes, three rounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check(cuda.cuInit(0))
    xlogmem.get_runtime()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    arrays = [row for nbytes in ARRAYS
              for row in time_arrays(nbytes // 64 if options.quick else nbytes, 3 if options.quick else options.rounds)]
    for row in arrays:
        print(f"array of {row['bytes'] >> 10:6} KiB, {'busy' if row['busy'] else 'idle'} stream  {row['way']:10} "
              f"{row['us_of_call']:9.1f} us in the call, {row['us']:9.1f} us in all")
    if options.json:
        options.json.write_text(json.dumps({"facts": facts(), "arrays": arrays}, indent=1) + "\n")


if __name__ == "__main__":
    main()
