"""What a pair of allocate and free costs C++ code that goes through RMM, without and with an xlogmem runtime on top.

    python benchmarks/rmm_pairs.py [--json FILE]

A loop in C++ without the GIL, as libcudf's calls are, on the legacy default stream, which is cuDF's, and for some
resources on two streams of RMM's: one whose handle is looked up each time, and one that is registered with xlogmem and
held.  Each resource is measured alone, under RMM's statistics (the least that an adaptor costs), under RMM's tracking
(which tracks allocations, but not streams) and under `RuntimeMemoryResource`, without and with xlogmem's pool between,
turn by turn in one process.  What is added is the difference to the resource alone in the same turn, because a host's
clock may change by a factor of two between turns.  Then each pair is timed while a Python thread is busy, beside RMM's
callback resource.
"""
from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys

import rmm
import rmm.mr
from rmm.pylibrmm.stream import Stream
from xlogmem_bench.cases.through_rmm import loops_of, pairs_beside_python

import xlogmem
import xlogmem.rmm

REPEATS, CALLS, NBYTES = 90, 2_000, 1 << 20


def pair_ns(mr: rmm.mr.DeviceMemoryResource, handle: int = 0) -> float:
    """Nanoseconds for each pair of one turn."""
    return loops_of(mr).pairs(NBYTES, [handle], CALLS) / CALLS


def under(below: rmm.mr.DeviceMemoryResource, pool: bool = False) -> rmm.mr.DeviceMemoryResource:
    resource = xlogmem.rmm.RmmMemoryResource(below)
    return xlogmem.rmm.RuntimeMemoryResource(
        xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(resource) if pool else resource))


def busy_percentiles(mr: rmm.mr.DeviceMemoryResource, calls: int) -> dict[str, int]:
    took = pairs_beside_python(loops_of(mr), NBYTES, calls)
    return {"median": took[calls // 2], "p99": took[calls * 99 // 100], "max": took[-1]}


def added(kinds: dict[str, list[float]], kind: str) -> str:
    """The difference to the resource alone, turn by turn: the median, and the middle half."""
    if kind == "alone":
        return ""
    extra = sorted(more - alone for more, alone in zip(kinds[kind], kinds["alone"], strict=True))
    return f"{statistics.median(extra):+7.0f} [{extra[len(extra) // 4]:+.0f}, {extra[-1 - len(extra) // 4]:+.0f}]"


Candidates = dict[str, dict[str, rmm.mr.DeviceMemoryResource]]         # by resource, then by what is on top


def candidates_with(asynchronous: rmm.mr.DeviceMemoryResource, callback: rmm.mr.DeviceMemoryResource, held: Stream
                    ) -> Candidates:
    """Every resource; xlogmem's runtimes hold the stream `held`."""
    below = {"cuda async": asynchronous, "arena": rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 30),
             "pool": rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 30, 1 << 30)}
    candidates: Candidates = {name: {
        "alone": mr, "under statistics": rmm.mr.StatisticsResourceAdaptor(mr),
        "under tracking": rmm.mr.TrackingResourceAdaptor(mr), "under xlogmem": under(mr),
        "under its pool": under(mr, pool=True)} for name, mr in below.items()}
    candidates["cuda async"]["as callbacks"] = callback
    candidates["xlogmem's own"] = {"alone": xlogmem.rmm.RuntimeMemoryResource(xlogmem.DeviceRuntime())}
    for kinds in candidates.values():
        for mr in kinds.values():
            if isinstance(mr, xlogmem.rmm.RuntimeMemoryResource):
                mr.runtime.register_stream(held)
    return candidates


def measured(candidates: Candidates, handles: dict[str, int]) -> dict[str, dict[str, list[float]]]:
    figures: dict[str, dict[str, list[float]]] = {
        name: {kind: [] for kind in kinds} for name, kinds in candidates.items()}
    for _ in range(REPEATS):
        for name, kinds in candidates.items():
            for kind, mr in kinds.items():
                figures[name][kind].append(pair_ns(mr, handles.get(name, 0)))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    asynchronous = rmm.mr.CudaAsyncMemoryResource()
    callback = rmm.mr.CallbackMemoryResource(asynchronous.allocate, asynchronous.deallocate)
    streams = {"own stream": Stream(), "held stream": Stream()}
    candidates = candidates_with(asynchronous, callback, streams["held stream"])
    handles = {f"{name}, {kind}": stream.__cuda_stream__()[1]
               for name in ("cuda async", "arena") for kind, stream in streams.items()}
    candidates |= {name: candidates[name.split(",")[0]] for name in handles}
    figures = measured(candidates, handles)
    print(f"{'ns per pair: best (median), added':42} RMM {rmm.__version__}, Python {platform.python_version()}")
    for name, kinds in figures.items():
        for kind, times in kinds.items():
            print(f"{name + ', ' + kind:42}{min(times):7.0f} ({statistics.median(times):5.0f}) {added(kinds, kind)}")
    busy = {"under xlogmem": busy_percentiles(candidates["cuda async"]["under xlogmem"], 20_000),
            "as callbacks": busy_percentiles(callback, 500)}
    for name, row in busy.items():
        print(f"beside a busy Python thread, cuda async {name}: " + ", ".join(f"{k} {v} ns" for k, v in row.items()))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"rmm": rmm.__version__, "python": sys.version, "pairs": figures, "busy": busy}, file, indent=1)


if __name__ == "__main__":
    main()
