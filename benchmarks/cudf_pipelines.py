"""What tracking costs cuDF pipelines, in paired runs: the same pipeline on an RMM resource alone and under xlogmem.

    python benchmarks/cudf_pipelines.py [--json FILE] [--pairs N]

The two take turns, and so does who begins.  What counts is the difference within a pair: pipelines are bound by Python
and by kernels, and from one run to the next they differ by more than tracking costs.  Beside them a loop of pylibcudf
calls that do little but allocate, and a loop in C++ that does nothing else.
"""
from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import cudf
import cupy
import pylibcudf as plc
import rmm
import rmm.mr

import xlogmem
import xlogmem.cudf
import xlogmem.rmm
from xlogmem.bench._loops import Allocator
from xlogmem.rmm._binding import upstream_of

ROWS = 2_000_000


class Pipelines:
    """The data, and what is done with it; each gives something that depends on all of the work."""

    def __init__(self) -> None:
        chance = cupy.random.RandomState(1)
        self.frame = cudf.DataFrame({"key": chance.randint(0, 10_000, ROWS), "value": chance.randint(0, 10**6, ROWS)})
        self.right = cudf.DataFrame({"key": cupy.arange(10_000), "name": cupy.arange(10_000) % 97})
        self.right["name"] = "name " + self.right["name"].astype("str")
        self.small = cudf.Series(cupy.arange(1000))
        self.column = self.small._column.to_pylibcudf()

    def groupby(self) -> Any:
        return self.frame.groupby("key").agg({"value": ["sum", "min", "max"]})

    def join(self) -> Any:
        return self.frame.merge(self.right, on="key")

    def sort(self) -> Any:
        return self.frame.sort_values(["key", "value"])

    def strings(self) -> Any:
        return self.right["name"].str.upper().str.replace("NAME", "nr").str.len().sum()

    def together(self) -> Any:
        joined = self.frame.merge(self.right, on="key").sort_values("value")
        return joined.groupby("name").agg({"value": "sum"})

    def small_sums(self) -> Any:
        return [(self.small + i).sum() for i in range(300)]

    def allocation_bound(self) -> Any:
        """Each call allocates, copies 8 kB and drops."""
        for _ in range(2000):
            self.column.copy()

    def empty_tables(self) -> Any:
        """Each call allocates and launches nothing."""
        for _ in range(2000):
            plc.column_factories.make_numeric_column(plc.DataType(plc.TypeId.INT64), 1000,
                                                     plc.types.MaskState.UNALLOCATED)


def timed(pipeline: Callable[[], Any], mr: rmm.mr.DeviceMemoryResource) -> float:
    rmm.mr.set_current_device_resource(mr)
    cupy.cuda.Device().synchronize()
    started = time.perf_counter()
    result = pipeline()
    cupy.cuda.Device().synchronize()
    del result                                          # frees belong to it
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--pairs", type=int, default=25)
    options = parser.parse_args()
    alone = rmm.mr.CudaAsyncMemoryResource()
    rmm.mr.set_current_device_resource(alone)
    runtime = xlogmem.DeviceRuntime(resource=xlogmem.rmm.RmmMemoryResource(rmm.mr.CudaAsyncMemoryResource()))
    under = xlogmem.rmm.RuntimeMemoryResource(runtime)
    work = Pipelines()
    figures: dict[str, dict[str, Any]] = {}
    print(f"cuDF {cudf.__version__}, RMM {rmm.__version__}, Python {platform.python_version()}; "
          f"{options.pairs} pairs, medians with the middle half in brackets")
    for name in ("groupby", "join", "sort", "strings", "together", "small_sums", "allocation_bound", "empty_tables"):
        pipeline = getattr(work, name)
        for mr in (alone, under):
            timed(pipeline, mr)                         # compiles kernels, fills the pools
        before = runtime.counters()
        gc.disable()
        times: list[tuple[float, float]] = []
        for turn in range(options.pairs):
            if turn % 2:
                tracked = timed(pipeline, under)
                times.append((timed(pipeline, alone), tracked))
            else:
                untracked = timed(pipeline, alone)
                times.append((untracked, timed(pipeline, under)))
        gc.enable()
        after = runtime.counters()
        allocations = (after["allocations"] - before["allocations"]) / options.pairs
        ratios = sorted(tracked / untracked for untracked, tracked in times)
        extra = sorted((tracked - untracked) / allocations * 1e9 for untracked, tracked in times)
        low, high = options.pairs // 4, -1 - options.pairs // 4
        figures[name] = {
            "allocations": allocations, "alone_ms": [1e3 * untracked for untracked, _ in times],
            "under_xlogmem_ms": [1e3 * tracked for _, tracked in times], "ratio_median": statistics.median(ratios),
            "ratio_middle_half": [ratios[low], ratios[high]], "extra_ns_per_pair_median": statistics.median(extra),
            "extra_ns_per_pair_middle_half": [extra[low], extra[high]],
            "added": {key: after[key] - before[key] for key in ("records", "waits", "host_waits")}}
        print(f"{name:17} {statistics.median(figures[name]['alone_ms']):8.2f} ms, x {statistics.median(ratios):.3f} "
              f"[{ratios[low]:.3f}, {ratios[high]:.3f}], {allocations:6.0f} allocations, "
              f"{statistics.median(extra):7.0f} ns each [{extra[low]:.0f}, {extra[high]:.0f}], "
              f"added {figures[name]['added']}")
    rmm.mr.set_current_device_resource(alone)
    loops: dict[str, list[float]] = {"alone": [], "under xlogmem": []}
    for _ in range(9):
        loops["alone"].append(Allocator.of(upstream_of(alone)).pairs(1 << 20, [0], 20_000) / 20_000)
        loops["under xlogmem"].append(Allocator.of(upstream_of(under)).pairs(1 << 20, [0], 20_000) / 20_000)
    print("a pair from C++, ns: " + ", ".join(f"{name} {min(it):.0f} (median {statistics.median(it):.0f})"
                                             for name, it in loops.items()))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cudf": cudf.__version__, "rmm": rmm.__version__, "python": sys.version, "rows": ROWS,
                       "pipelines": figures, "cpp_pairs_ns": loops}, file, indent=1)


if __name__ == "__main__":
    main()
