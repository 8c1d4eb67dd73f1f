"""What tracking costs cudf-polars: joins and group-bys like those of PDS-H, on RMM's async resource alone, under
xlogmem, and under xlogmem with its pool between, as `xlogmem.rmm.enable(pool_allocator=True)` puts it.

    python benchmarks/cudf_polars_queries.py [--executors streaming in-memory] [--gb 2] [--rounds N] [--json FILE]
    python benchmarks/cudf_polars_queries.py --dry-run      # the queries on a little data, with Polars alone; no GPU

``streaming`` works on a pool of streams (``--streams``; once ``cuda_stream_policy="pool"``), ``in-memory``
on one stream.  The data is read from Parquet files by each query.  The candidates take turns, each round in another
order, and what counts is the ratio within a round.  Each result is compared with the first one of the query.

cudf-polars makes a resource of its own unless it is given one, so `enable` alone tracks nothing of it.  Here as in a
program: ``memory_resource_config=MemoryResourceConfig(qualname="rmm.mr.get_current_device_resource")`` for the
streaming engine, ``memory_resource=rmm.mr.get_current_device_resource()`` for the other one.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ALONE = "alone"
EXECUTORS = ("streaming", "in-memory")
ROWS_PER_GB = 15_000_000                                # of the largest table, of 64 bytes
NEEDED = {"polars": "polars", "numpy": "numpy"}
NEEDED_ON_GPU = NEEDED | {"cudf_polars": "cudf-polars-cu13 (or cudf-polars-cu12)", "rapidsmpf": "rapidsmpf-cu13",
                          "rmm": "rmm-cu13"}


# ---------------------------------------------------------------------------------------------- the data, the queries
class Tables:
    """Parquet files, and queries of them.  Money is in cents, so that sums are exact in any order."""

    def __init__(self, folder: Path, rows: int) -> None:
        import numpy
        import polars as pl

        self.pl, self.folder, self.rows = pl, folder, rows
        chance = numpy.random.default_rng(1)
        orders, customers = max(rows // 4, 1), max(rows // 40, 1)
        days, first = 2400, numpy.datetime64("1992-01-01")

        def some(end: int, count: int, kind: str = "int32") -> Any:
            return chance.integers(0, end, count, dtype=kind)

        def dates(count: int) -> Any:
            return first + some(days, count)

        def names(of: list[str], count: int) -> Any:
            return pl.Series(of).gather(some(len(of), count, "uint32"))

        pl.DataFrame({
            "l_orderkey": some(orders, rows, "int64"), "l_suppkey": some(10_000, rows, "int64"),
            "l_quantity": some(50, rows, "int64") + 1, "l_extendedprice": some(10**7, rows, "int64"),
            "l_discount": some(11, rows, "int64"), "l_returnflag": names(["A", "N", "R"], rows),
            "l_linestatus": names(["F", "O"], rows), "l_shipdate": dates(rows)}).write_parquet(
                self.file("lineitem"), compression="snappy", row_group_size=2**20)
        pl.DataFrame({
            "o_orderkey": numpy.arange(orders, dtype="int64"), "o_custkey": some(customers, orders, "int64"),
            "o_totalprice": some(10**8, orders, "int64"), "o_shippriority": some(2, orders, "int64"),
            "o_orderdate": dates(orders)}).write_parquet(
                self.file("orders"), compression="snappy", row_group_size=2**20)
        pl.DataFrame({
            "c_custkey": numpy.arange(customers, dtype="int64"), "c_nationkey": some(25, customers, "int64"),
            "c_mktsegment": names(["AUTOMOBILE", "BUILDING", "FURNITURE", "HOUSEHOLD", "MACHINERY"], customers)
            }).write_parquet(self.file("customer"), compression="snappy", row_group_size=2**20)

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.parquet"

    def table(self, name: str) -> Any:
        return self.pl.scan_parquet(self.file(name))

    @property
    def revenue(self) -> Any:
        return (self.pl.col("l_extendedprice") * (100 - self.pl.col("l_discount"))).alias("revenue")

    def pricing(self) -> Any:
        """As query 1."""
        col = self.pl.col
        return self.table("lineitem").filter(col("l_shipdate") <= date(1998, 6, 1)).group_by(
            "l_returnflag", "l_linestatus").agg(
            col("l_quantity").sum(), col("l_extendedprice").sum(), self.revenue.sum(),
            col("l_discount").max(), self.pl.len().alias("count_order")).sort("l_returnflag", "l_linestatus")

    def priorities(self) -> Any:
        """As query 3."""
        col = self.pl.col
        chosen = self.table("customer").filter(col("c_mktsegment") == "BUILDING")
        return chosen.join(self.table("orders"), left_on="c_custkey", right_on="o_custkey").filter(
            col("o_orderdate") < date(1995, 3, 15)).join(
            self.table("lineitem").filter(col("l_shipdate") > date(1995, 3, 15)),
            left_on="o_orderkey", right_on="l_orderkey").group_by("o_orderkey", "o_orderdate", "o_shippriority").agg(
            self.revenue.sum()).sort("revenue", "o_orderdate", "o_orderkey", descending=[True, False, False]).head(1000)

    def nations(self) -> Any:
        """As query 5."""
        return self.table("customer").join(self.table("orders"), left_on="c_custkey", right_on="o_custkey").join(
            self.table("lineitem"), left_on="o_orderkey", right_on="l_orderkey").group_by("c_nationkey").agg(
            self.revenue.sum(), self.pl.len().alias("rows")).sort("c_nationkey")

    def forecast(self) -> Any:
        """As query 6."""
        col = self.pl.col
        return self.table("lineitem").filter(
            (col("l_shipdate") >= date(1994, 1, 1)) & (col("l_shipdate") < date(1995, 1, 1))
            & (col("l_discount") >= 5) & (col("l_discount") <= 7) & (col("l_quantity") < 24)).select(
            (col("l_extendedprice") * col("l_discount")).sum().alias("revenue"))

    def large_orders(self) -> Any:
        """As query 18."""
        col = self.pl.col
        large = self.table("lineitem").group_by("l_orderkey").agg(col("l_quantity").sum()).filter(
            col("l_quantity") > 250)
        return large.join(self.table("orders"), left_on="l_orderkey", right_on="o_orderkey").join(
            self.table("customer"), left_on="o_custkey", right_on="c_custkey").select(
            "l_orderkey", "o_custkey", "c_nationkey", "o_totalprice", "l_quantity").sort(
            "o_totalprice", "l_orderkey", descending=[True, False]).head(1000)

    def suppliers(self) -> Any:
        """As query 15's view, all of it."""
        return self.table("lineitem").group_by("l_suppkey").agg(self.revenue.sum(), self.pl.len().alias("rows")).sort(
            "revenue", "l_suppkey")


QUERIES = ("pricing", "priorities", "nations", "forecast", "large_orders", "suppliers")


# ---------------------------------------------------------------------------------------------- the candidates
def candidates() -> tuple[dict[str, Any], dict[str, Any]]:
    """RMM's resources by the names of the candidates, and the runtimes of those that have one."""
    import rmm.mr

    import xlogmem
    import xlogmem.rmm

    kept = rmm.mr.available_device_memory()[1] // 4     # each; cudf-polars' default is 0.9 of the memory for one

    def below() -> Any:
        return rmm.mr.CudaAsyncMemoryResource(release_threshold=kept)

    def own() -> Any:
        return xlogmem.rmm.RmmMemoryResource(below())

    runtimes = {"under xlogmem": xlogmem.DeviceRuntime(resource=own()),
                "with its pool": xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(own()))}
    return ({ALONE: below()} | {name: xlogmem.rmm.RuntimeMemoryResource(runtime) for name, runtime in runtimes.items()},
            runtimes)


@contextlib.contextmanager
def engine(executor: str, mr: Any, streams: int) -> Iterator[Any]:
    """One that allocates from `mr`."""
    import polars as pl
    import rmm.mr

    before = rmm.mr.get_current_device_resource()
    rmm.mr.set_current_device_resource(mr)
    try:
        if executor == "in-memory":
            yield pl.GPUEngine(executor="in-memory", memory_resource=mr, raise_on_fail=True)
            return
        from cudf_polars.engine.options import StreamingOptions
        from cudf_polars.engine.spmd import SPMDEngine
        from cudf_polars.utils.config import MemoryResourceConfig

        options = StreamingOptions(
            num_streams=streams, raise_on_fail=True,
            memory_resource_config=MemoryResourceConfig(qualname="rmm.mr.get_current_device_resource"))
        with SPMDEngine.from_options(options) as made:
            yield made
    finally:
        rmm.mr.set_current_device_resource(before)


def measure(executor: str, tables: Tables, options: argparse.Namespace) -> tuple[dict[str, dict[str, Any]], Any]:
    """The seconds, and what memory the runtimes have had: the most in use, and what a pool has for that."""
    resources, runtimes = candidates()
    names = list(resources)
    seconds: dict[str, dict[str, list[float]]] = {query: {name: [] for name in names} for query in QUERIES}
    added: dict[str, dict[str, dict[str, int]]] = {query: {} for query in QUERIES}
    expected: dict[str, Any] = {}
    wrong = dict.fromkeys(QUERIES, 0)
    for turn in range(-1, options.rounds):                  # the first one compiles, and fills the pools
        order = names[turn % len(names):] + names[:turn % len(names)]
        for name in order:
            with engine(executor, resources[name], options.streams) as chosen:
                for query in QUERIES:
                    runtime = runtimes.get(name)
                    before = runtime.counters() if runtime else {}
                    began = time.perf_counter()
                    result = getattr(tables, query)().collect(engine=chosen)
                    took = time.perf_counter() - began
                    wrong[query] += not result.equals(expected.setdefault(query, result))
                    if turn < 0:
                        continue
                    seconds[query][name].append(took)
                    if runtime:
                        after = runtime.counters()
                        added[query][name] = {key: after[key] - before[key] for key in
                                              ("allocations", "records", "waits", "host_waits")}
    rows = {query: {"rows": expected[query].height, "wrong": wrong[query],
                    "alone_ms": [1e3 * it for it in seconds[query][ALONE]]}
            | {name: compared(seconds[query][ALONE], seconds[query][name]) | {"added": added[query][name]}
               for name in runtimes} for query in QUERIES}
    return rows, {name: {"peak_bytes": runtime.peak_bytes} | pool_of(runtime) for name, runtime in runtimes.items()}


def pool_of(runtime: Any) -> dict[str, int]:
    if not hasattr(runtime.resource, "statistics"):
        return {}
    figures = runtime.resource.statistics()
    return {name: figures[name] for name in ("pool_size", "chunks", "waited")}


def compared(alone: list[float], tracked: list[float]) -> dict[str, Any]:
    """Round by round."""
    ratios = sorted(b / a for a, b in zip(alone, tracked, strict=True))
    quarter = len(ratios) // 4
    return {"ms": [1e3 * it for it in tracked], "ratio_median": statistics.median(ratios),
            "ratio_middle_half": [ratios[quarter], ratios[-1 - quarter]]}


def show(executor: str, figures: dict[str, dict[str, Any]], rounds: int) -> dict[str, float]:
    """Print; the ratio of all queries together, from the medians."""
    together = {}
    for query, row in figures.items():
        print(f"{executor:10}{query:14}{statistics.median(row['alone_ms']):9.2f} ms, {row['rows']} rows, "
              f"{row['wrong']} wrong")
        for name in row:
            if isinstance(row[name], dict):
                print("    {:14} x {:.4f} [{:.4f}, {:.4f}], {}".format(
                    name, row[name]["ratio_median"], *row[name]["ratio_middle_half"], row[name]["added"]))
    for name in [key for key, row in next(iter(figures.values())).items() if isinstance(row, dict)]:
        ratios = sorted(sum(row[name]["ms"][turn] for row in figures.values())
                        / sum(row["alone_ms"][turn] for row in figures.values()) for turn in range(rounds))
        quickest = (sum(min(row[name]["ms"]) for row in figures.values())
                    / sum(min(row["alone_ms"]) for row in figures.values()))
        together[name] = statistics.median(ratios)
        print(f"{executor:10}{name:14} all queries x {together[name]:.4f} [{ratios[rounds // 4]:.4f}, "
              f"{ratios[-1 - rounds // 4]:.4f}], the quickest of each x {quickest:.4f}")
    return together


# ---------------------------------------------------------------------------------------------- the program
def require(packages: dict[str, str]) -> None:
    missing = [wheel for module, wheel in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        sys.exit(f"not installed, but needed: {', '.join(missing)}")


def facts() -> dict[str, Any]:
    import xlogmem
    from xlogmem import _driver

    commit = os.environ.get("XLOGMEM_COMMIT") or subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True, text=True).stdout.strip() or None
    versions = {name: importlib.import_module(name).__version__ for name in NEEDED_ON_GPU}
    return {"command": shlex.join(["python", *sys.argv]), "device": _driver.device_name(0),
            "driver": ".".join(map(str, _driver.driver_version())), "host": platform.processor() or platform.machine(),
            "cores": os.cpu_count(), "python": platform.python_version(), "xlogmem": xlogmem.__version__,
            "build": _driver.BUILD, "commit": commit, **versions}


def tried(tables: Tables) -> None:
    for query in QUERIES:
        result = getattr(tables, query)().collect()
        print(f"{query:14}{result.height} rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executors", nargs="+", choices=EXECUTORS, default=EXECUTORS)
    parser.add_argument("--gb", type=float, default=2.0, help="of data, as it is in memory")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--streams", type=int, default=16, help="of the streaming executor")
    parser.add_argument("--folder", type=Path, help="for the files (default: a temporary one)")
    parser.add_argument("--dry-run", action="store_true", help="a little data, Polars alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    require(NEEDED if options.dry_run else NEEDED_ON_GPU)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        tables = Tables(Path(folder), 20_000 if options.dry_run else int(options.gb * ROWS_PER_GB))
        if options.dry_run:
            tried(tables)
            return
        known = facts()
        print(f"cudf-polars {known['cudf_polars']}, Polars {known['polars']}, {known['device']}; {tables.rows:,} rows, "
              f"{options.rounds} rounds, medians with the middle half in brackets", flush=True)
        rows, together, memory = {}, {}, {}
        for executor in options.executors:
            rows[executor], memory[executor] = measure(executor, tables, options)
            print(f"{executor:10}{memory[executor]}")
            together[executor] = show(executor, rows[executor], options.rounds)
    if options.json:
        options.json.write_text(json.dumps(
            known | {"rows": tables.rows, "rounds": options.rounds, "streams": options.streams, "queries": rows,
                     "all_queries": together, "memory": memory}, indent=1) + "\n")
    sys.exit(any(row["wrong"] for figures in rows.values() for row in figures.values()))


if __name__ == "__main__":
    main()
