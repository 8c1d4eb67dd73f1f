"""What the hot paths cost the host, in ns per call from Python, beside the raw driver calls in the same process.

    python benchmarks/hot_paths.py [--json FILE]

A first look, not the benchmark suite: best and median of several repeats on one machine, in one process.  The raw calls
are cuda.bindings' Python functions, so they carry Python's own call cost too, and none of xlogmem's bookkeeping.
"""
from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import _driver
from xlogmem._kernels import check

REPEATS, CALLS = 15, 2000


def measure(function: Callable[[], object], after: Callable[[], object] = lambda: None, *,
            calls: int = CALLS) -> tuple[float, float]:
    """(best, median) ns per call; `after` runs between repeats, unmeasured."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter_ns()
        for _ in range(calls):
            function()
        times.append((time.perf_counter_ns() - started) / calls)
        after()
    return min(times), statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    runtime = xlogmem.DeviceRuntime()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    here, there = runtime.acquire_stream(), runtime.acquire_stream()
    own, foreign = runtime.allocate(256, here), runtime.allocate(256, here)
    many = [runtime.allocate(256, here) for _ in range(16)]
    event = check(cuda.cuEventCreate(2))
    use = xlogmem.use

    def synchronize() -> None:
        check(cuda.cuCtxSynchronize())
        runtime.reap_pending()

    def used(stream: xlogmem.Stream, **accesses: object) -> Callable[[], None]:
        def call() -> None:
            with use(stream, **accesses):
                pass
        return call

    def ping_pong() -> None:
        with use(here, read_write=foreign):
            pass
        with use(there, read_write=foreign):
            pass

    def raw_pair() -> None:
        cuda.cuMemFreeAsync(cuda.cuMemAllocAsync(1 << 20, here.handle)[1], here.handle)

    def raw_hand_over() -> None:
        cuda.cuEventRecord(event, here.handle)
        cuda.cuStreamWaitEvent(there.handle, event, 0)

    def allocate_and_free() -> None:
        runtime.allocate(1 << 20, here).free()

    rows: dict[str, Callable[[], object]] = {
        "empty call": lambda: None,
        "raw: cuMemAllocAsync + cuMemFreeAsync": raw_pair,
        "allocate + free": allocate_and_free,
        "raw: cuEventRecord + cuStreamWaitEvent": raw_hand_over,
        "use, 1 block, same stream": used(here, write=own),
        "use, 1 block, other stream, nothing new": used(there, read=foreign),
        "use, 16 blocks, other stream, nothing new": used(there, read=many),
        "two uses, ping-pong (a wait each)": ping_pong,
    }
    seen = {}
    for name, function in rows.items():
        function()
        best, median = measure(function, synchronize)
        seen[name] = {"best_ns": round(best), "median_ns": round(median)}
        print(f"{name:45s} best {best:7.0f} ns   median {median:7.0f} ns")
    facts = {"device": _driver.device_name(0), "simulated": _driver.is_simulated(), "host": platform.processor(),
             "driver": ".".join(map(str, _driver.driver_version())), "python": sys.version.split()[0],
             "cuda_bindings": version("cuda-bindings"), "xlogmem": xlogmem.__version__, "rows": seen}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(facts, file, indent=1)


if __name__ == "__main__":
    main()
