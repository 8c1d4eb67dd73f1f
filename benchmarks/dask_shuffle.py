"""A shuffle of cuDF on a cluster of dask-cuda, with `xlogmem.dask.XlogmemPlugin` and without, side by side.

Each turn starts a cluster for each of the two, with one worker for each GPU: every worker makes its partitions, splits
them by the hash of their keys, sends the parts to the worker of that hash, and adds up what it gets.  The first shuffle
of a cluster is not timed.  The sums are compared with what they have to be.

    python benchmarks/dask_shuffle.py --json shuffle.json                       # 10 GB, all GPUs
    python benchmarks/dask_shuffle.py --workers 1 --gigabytes 2 --rmm pool
    python benchmarks/dask_shuffle.py --stand-in --gigabytes 0.01               # NumPy, no GPU: does the script work

It needs cudf, dask-cuda and distributed; with --stand-in, the last of them.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

BYTES_OF_A_ROW = 16                                     # two int64
MODES = ("off", "on")
RMM = {"async": {"rmm_async": True}, "pool": {"rmm_pool_size": 0.8}, "none": {}}


# ---------------------------------------------------------------------------------------------- in the workers
def make(source: int, rows: int, stand_in: bool) -> Any:
    """Rows with distinct keys, and values that are the keys."""
    if stand_in:
        import numpy as np

        return np.arange(source * rows, (source + 1) * rows)
    import cudf
    import cupy

    keys = cupy.arange(source * rows, (source + 1) * rows)
    return cudf.DataFrame({"key": keys, "value": keys.copy()})


def split(frame: Any, targets: int) -> list[Any]:
    """By target: the hash of the key, or with NumPy its remainder."""
    if hasattr(frame, "partition_by_hash"):
        return list(frame.partition_by_hash(["key"], targets))
    return [frame[frame % targets == target] for target in range(targets)]


def part(parts: list[Any], target: int) -> Any:
    return parts[target]


def merge(*parts: Any) -> tuple[int, int]:
    """Rows, and the sum of the values, of what came to one target."""
    if hasattr(parts[0], "groupby"):
        import cudf

        frame = cudf.concat(list(parts)).sort_values("key")
        return len(frame), int(frame["value"].sum())
    import numpy as np

    frame = np.sort(np.concatenate(parts))
    return len(frame), int(frame.sum())


# ---------------------------------------------------------------------------------------------- in the client
def shuffle(client: Any, partitions: int, rows: int, stand_in: bool) -> float:
    """Seconds of one shuffle, made of `partitions` for each worker."""
    from distributed import wait

    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    places = [workers[number % len(workers)] for number in range(partitions * len(workers))]
    frames = [client.submit(make, number, rows, stand_in, workers=[place], pure=False)
              for number, place in enumerate(places)]
    wait(frames)
    begin = time.perf_counter()
    pieces = [client.submit(split, frame, len(places), workers=[place], pure=False)
              for frame, place in zip(frames, places, strict=True)]
    del frames
    merged = [client.submit(merge, *[client.submit(part, piece, target, workers=[home], pure=False)
                                     for piece, home in zip(pieces, places, strict=True)],
                            workers=[place], pure=False)
              for target, place in enumerate(places)]
    del pieces
    found = client.gather(merged)
    seconds = time.perf_counter() - begin
    total = rows * len(places)
    seen = tuple(map(sum, zip(*found, strict=True)))
    if seen != (total, total * (total - 1) // 2):
        raise SystemExit(f"WRONG: {seen[0]} rows of {total}, their sum is {seen[1]}")
    return seconds


def cluster_of(options: argparse.Namespace) -> Any:
    if options.stand_in:
        from distributed import LocalCluster

        return LocalCluster(n_workers=options.workers or 2, threads_per_worker=1, dashboard_address="127.0.0.1:0")
    from dask_cuda import LocalCUDACluster

    return LocalCUDACluster(n_workers=options.workers, protocol=options.protocol, dashboard_address="127.0.0.1:0",
                            **RMM[options.rmm])


def run(mode: str, options: argparse.Namespace) -> dict[str, Any]:
    """One cluster: the seconds of each shuffle after the first, and what its workers say at the end."""
    from distributed import Client

    from xlogmem.dask import XlogmemPlugin, metrics

    with cluster_of(options) as cluster, Client(cluster) as client:
        workers = len(cluster.workers)
        client.wait_for_workers(workers)
        if mode == "on":
            libraries = () if options.stand_in else ("rmm",)
            client.register_plugin(XlogmemPlugin(libraries=libraries, **json.loads(options.plugin)))
        rows = max(1, int(options.gigabytes * 1e9 / BYTES_OF_A_ROW / workers / options.partitions))
        seconds = [shuffle(client, options.partitions, rows, options.stand_in) for _ in range(options.shuffles + 1)]
        figures = list(client.run(metrics).values())
        through_us = all(seen["tracked"] and seen["allocations"] for seen in figures)
        if mode == "on" and not options.stand_in and not through_us:
            raise SystemExit(f"WRONG: workers do not allocate through xlogmem: {figures}")
        return {"mode": mode, "workers": workers, "bytes": rows * BYTES_OF_A_ROW * workers * options.partitions,
                "seconds": seconds[1:], "metrics": figures}


def machine() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine(),
                             "cores": os.cpu_count()}
    for package in ("xlogmem", "dask-cuda", "distributed", "cudf-cu12", "cudf-cu13", "rmm-cu12", "rmm-cu13"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def table(runs: list[dict[str, Any]]) -> str:
    """A line for each of the two: the median of all shuffles, and what it and the mean are of the other."""
    lines = [f"{'plugin':<8}{'seconds':>10}{'GB/s':>8}{'of off':>9}{'mean':>8}"
             "   live now, peak of a worker, waits, host waits"]
    seconds = {mode: [second for one in runs if one["mode"] == mode for second in one["seconds"]] for mode in MODES}
    medians, means = ({mode: of(seconds[mode]) for mode in MODES} for of in (statistics.median, statistics.mean))
    for mode in MODES:
        last = [one for one in runs if one["mode"] == mode][-1]
        seen = last["metrics"]
        lines.append(f"{mode:<8}{medians[mode]:>10.3f}{last['bytes'] / medians[mode] / 1e9:>8.2f}"
                     f"{medians[mode] / medians['off']:>9.3f}{means[mode] / means['off']:>8.3f}   "
                     f"{sum(one['live_bytes'] for one in seen):,} B, "
                     f"{max(one['peak_bytes'] for one in seen):,} B, {sum(one['waits'] for one in seen)}, "
                     f"{sum(one['host_waits'] for one in seen)}")
    return "\n".join(lines)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=10.0, help="of all partitions together (10)")
    parser.add_argument("--workers", type=positive, help="one for each GPU (all)")
    parser.add_argument("--partitions", type=positive, default=8, help="of each worker (8)")
    parser.add_argument("--shuffles", type=positive, default=3, help="that are timed, of each cluster (3)")
    parser.add_argument("--turns", type=positive, default=2, help="clusters of each kind, which take turns (2)")
    parser.add_argument("--rmm", choices=RMM, default="async", help="what dask-cuda sets up (async)")
    parser.add_argument("--protocol", help="as of LocalCUDACluster: tcp, ucx, ...")
    parser.add_argument("--plugin", default="{}",
                        help='arguments of XlogmemPlugin, as JSON: \'{"pool_allocator": true}\'')
    parser.add_argument("--stand-in", action="store_true", help="NumPy on a LocalCluster: says nothing of speed")
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    runs = []
    for _ in range(options.turns):
        for mode in MODES:
            runs.append(run(mode, options))
            print(f"{mode:<4}{runs[-1]['workers']} workers, {runs[-1]['bytes'] / 1e9:.2f} GB: "
                  f"{', '.join(f'{second:.3f} s' for second in runs[-1]['seconds'])}", flush=True)
    print(table(runs))
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        document = {"command": sys.argv, "machine": machine(), "settings": settings, "runs": runs}
        options.json.write_text(json.dumps(document, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
