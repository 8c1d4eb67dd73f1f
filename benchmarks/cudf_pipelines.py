"""What tracking costs cuDF pipelines: the same pipeline on RMM's async resource alone, under xlogmem, and under xlogmem
with its pool between, as `xlogmem.cudf.enable(pool_allocator=True)` puts it.

    python benchmarks/cudf_pipelines.py [--json FILE] [--rounds N]

The candidates take turns, each round in another order.  What counts is the difference within a round: pipelines are
bound by Python and by kernels, and vary more from run to run than tracking costs.  Beside them run a loop of pylibcudf
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
import rmm_pairs

import xlogmem
import xlogmem.cudf
import xlogmem.rmm

ROWS = 2_000_000
ALONE = "alone"


class Pipelines:
    """The data, and the pipelines; each returns something that depends on all of its work."""

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
        """Each call allocates, copies 8 kB and frees."""
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
    del result                                          # its frees are part of the time
    return time.perf_counter() - started


def own_resource() -> xlogmem.rmm.RmmMemoryResource:
    """An async resource for one runtime, so that its pool does not keep what other candidates allocated."""
    return xlogmem.rmm.RmmMemoryResource(rmm.mr.CudaAsyncMemoryResource())


def compared(alone: list[float], tracked: list[float], allocations: float) -> dict[str, Any]:
    """Round by round: the ratio, and the difference for each allocation in ns."""
    ratios = sorted(b / a for a, b in zip(alone, tracked, strict=True))
    extra = sorted((b - a) / allocations * 1e9 for a, b in zip(alone, tracked, strict=True))
    low, high = len(ratios) // 4, -1 - len(ratios) // 4
    return {"allocations": allocations, "ms": [1e3 * seconds for seconds in tracked],
            "ratio_median": statistics.median(ratios), "ratio_middle_half": [ratios[low], ratios[high]],
            "extra_ns_per_pair_median": statistics.median(extra),
            "extra_ns_per_pair_middle_half": [extra[low], extra[high]]}


def in_words(row: dict[str, Any]) -> str:
    return ("x {:.3f} [{:.3f}, {:.3f}], {:.0f} allocations, {:.0f} ns each [{:.0f}, {:.0f}], added {}".format(
        row["ratio_median"], *row["ratio_middle_half"], row["allocations"], row["extra_ns_per_pair_median"],
        *row["extra_ns_per_pair_middle_half"], row["added"]))


def measured(pipeline: Callable[[], Any], candidates: dict[str, rmm.mr.DeviceMemoryResource], rounds: int
             ) -> dict[str, list[float]]:
    """Seconds of each candidate, round by round."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    gc.disable()
    for turn in range(rounds):
        names = list(candidates)
        for candidate in names[turn % len(names):] + names[:turn % len(names)]:
            times[candidate].append(timed(pipeline, candidates[candidate]))
    gc.enable()
    return times


def pipelines(alone: rmm.mr.DeviceMemoryResource, rounds: int) -> dict[str, dict[str, Any]]:
    runtimes = {"under xlogmem": xlogmem.DeviceRuntime(resource=own_resource()),
                "with its pool": xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(own_resource()))}
    candidates = {ALONE: alone} | {
        name: xlogmem.rmm.RuntimeMemoryResource(runtime) for name, runtime in runtimes.items()}
    work = Pipelines()
    figures: dict[str, dict[str, Any]] = {}
    for name in ("groupby", "join", "sort", "strings", "together", "small_sums", "allocation_bound", "empty_tables"):
        pipeline = getattr(work, name)
        for mr in candidates.values():
            timed(pipeline, mr)                         # compiles kernels, fills the pools
        before = {candidate: runtime.counters() for candidate, runtime in runtimes.items()}
        times = measured(pipeline, candidates, rounds)
        figures[name] = {"alone_ms": [1e3 * seconds for seconds in times[ALONE]]}
        print(f"{name:17} {statistics.median(figures[name]['alone_ms']):8.2f} ms")
        for candidate, runtime in runtimes.items():
            after = runtime.counters()
            added = {key: after[key] - before[candidate][key] for key in ("records", "waits", "host_waits")}
            allocations = (after["allocations"] - before[candidate]["allocations"]) / rounds
            row = compared(times[ALONE], times[candidate], allocations) | {"added": added}
            figures[name][candidate] = row
            print(f"    {candidate:13} {in_words(row)}")
    return figures


def cpp_pairs(alone: rmm.mr.DeviceMemoryResource) -> dict[str, list[float]]:
    """On one CUDA pool for all: the time of a pair depends on the pool's history, by a factor of two."""
    candidates = {ALONE: alone, "under xlogmem": rmm_pairs.under(alone),
                  "with its pool": rmm_pairs.under(alone, pool=True)}
    loops: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rmm_pairs.REPEATS):
        for name, mr in candidates.items():
            loops[name].append(rmm_pairs.pair_ns(mr))
    print("a pair from C++, ns: " + ", ".join(
        f"{name} {min(it):.0f} (median {statistics.median(it):.0f}) {rmm_pairs.added(loops, name)}".rstrip()
        for name, it in loops.items()))
    return loops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    alone = rmm.mr.CudaAsyncMemoryResource()
    rmm.mr.set_current_device_resource(alone)
    print(f"cuDF {cudf.__version__}, RMM {rmm.__version__}, Python {platform.python_version()}; "
          f"{options.rounds} rounds, medians with the middle half in brackets")
    figures = pipelines(alone, options.rounds)
    rmm.mr.set_current_device_resource(alone)
    loops = cpp_pairs(alone)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cudf": cudf.__version__, "rmm": rmm.__version__, "python": sys.version, "rows": ROWS,
                       "pipelines": figures, "cpp_pairs_ns": loops}, file, indent=1)


if __name__ == "__main__":
    main()
