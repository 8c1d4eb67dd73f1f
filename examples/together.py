"""What the examples share: their options, the slow kernels, and the result.

Each example is one program, with `use` around its launches or, under ``--without``, the same without xlogmem, which
fails because a kernel on a side stream is late.  It prints its result; the exit status is 0 if every round was right,
and 3 if one was wrong.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import cupy
import numpy
import rmm
import rmm.mr

SOURCE = r"""
extern "C" {
__global__ void delay(unsigned long long nanoseconds) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < nanoseconds);
}
__global__ void count_unequal(int* wrong, long long const* values, long long expected, int rows) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows && values[i] != expected) atomicAdd(wrong, 1);
}
__global__ void add(long long* values, long long amount, int rows) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows) values[i] += amount;
}
}
"""
THREADS = 256


class Kernels:
    """CuPy kernels on columns of 64-bit integers, launched on CuPy's current stream."""

    def __init__(self) -> None:
        module = cupy.RawModule(code=SOURCE)
        self._delay, self._count, self._add = (module.get_function(name) for name in ("delay", "count_unequal", "add"))

    def delay(self, milliseconds: float) -> None:
        """Make later work on the stream late."""
        self._delay((1,), (1,), (numpy.uint64(milliseconds * 1e6),))

    def count_unequal(self, wrong: cupy.ndarray, values: cupy.ndarray, expected: int) -> None:
        """Add to ``wrong[0]`` how many of the values differ from `expected`."""
        rows = values.size
        self._count(((rows + THREADS - 1) // THREADS,), (THREADS,),
                    (wrong, values, numpy.int64(expected), numpy.int32(rows)))

    def add(self, values: cupy.ndarray, amount: int) -> None:
        """Add to each value, in place."""
        rows = values.size
        self._add(((rows + THREADS - 1) // THREADS,), (THREADS,), (values, numpy.int64(amount), numpy.int32(rows)))


def unprotected(*_: Any, **__: Any) -> contextlib.AbstractContextManager[None]:
    """In place of `xlogmem.use`, without xlogmem."""
    return contextlib.nullcontext()


def begin(protected: bool, mr: rmm.mr.DeviceMemoryResource | None = None) -> Callable[..., Any]:
    """Choose RMM's resource, and track it or not; returns the context manager for launches.

    Both have a stream-ordered resource: ``cudaFree`` of RMM's initial resource waits for the device and hides the bug.
    """
    rmm.mr.set_current_device_resource(mr or rmm.mr.CudaAsyncMemoryResource())
    if not protected:
        return unprotected
    import xlogmem
    import xlogmem.cudf

    xlogmem.cudf.enable()
    return xlogmem.use


def main(description: str, run: Callable[[int, bool], int], rounds: int = 1000) -> None:
    """Parse, run, report.  ``run(rounds, protected)`` returns the number of wrong rounds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--without", action="store_true", help="leave xlogmem out, which goes wrong")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = parser.parse_args()
    started = time.perf_counter()
    wrong = run(options.rounds, not options.without)
    seen = {"example": sys.argv[0].rpartition("/")[2], "xlogmem": not options.without, "rounds": options.rounds,
            "wrong": wrong, "seconds": round(time.perf_counter() - started, 2)}
    if not options.without:
        import xlogmem

        seen["counters"] = xlogmem.get_runtime().counters()
    print(json.dumps(seen) if options.json else
          f"{wrong} of {options.rounds} rounds were wrong {'without' if options.without else 'with'} xlogmem")
    sys.exit(3 if wrong else 0)
