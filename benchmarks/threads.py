"""How threads keep each other waiting: pairs and uses in one thread and in several, each on a stream of its own.

    python benchmarks/threads.py [--processes 10] [--threads 1 8 16] [--work "pool pair, C++"] [--json FILE]

A figure is worth something here only if every process has it: memory lies elsewhere in each, and locks have luck.  So
the table shows the worst process beside the median.  `throughput` is that of all threads over that of one thread in the
same process; `p99/median` is the largest of any thread (from C++, the clock's 20 to 40 ns included).  From Python all
threads share the GIL, and one thread's throughput is the most that there can be.

Two rows are for comparison.  `arithmetic` is what the machine leaves of a thread's speed beside others: two threads on
one core, of this process or of another tenant, halve each other's.  `driver's pair and work` has 200 ns of arithmetic
after each of the driver's calls: what threads that do anything between them get from the driver's lock.
"""
from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from cuda.bindings import driver as cuda
from xlogmem_bench import _loops

import xlogmem
from xlogmem import _driver
from xlogmem.sim.kernels import check

MIB = 1 << 20
Work = Callable[[int], Callable[[int], Any]]           # of a thread's number: a function that runs it a number of times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--scale", type=float, default=1, help="of the number of repetitions")
    parser.add_argument("--work", action="append", help="only this; can be repeated")
    parser.add_argument("--json", help="all figures, to this file")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads = sorted({1, *options.threads})
    if options.one:
        json.dump(one_process(threads, options.scale, options.work), sys.stdout)
        return 0
    command = [sys.executable, __file__, "--one", "--scale", str(options.scale), "--threads", *map(str, threads),
               *(argument for name in options.work or () for argument in ("--work", name))]
    processes = [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
                 for _ in range(options.processes)]
    show(processes)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": _driver.device_name(0), "driver": _driver.driver_version(), "cores": os.cpu_count(),
                       "commit": os.environ.get("XLOGMEM_COMMIT"), "processes": processes}, file, indent=1)
    return 0


def one_process(threads: list[int], scale: float, chosen: list[str] | None) -> list[dict[str, Any]]:
    gc.disable()
    return [{"work": name, "threads": n, **figures}
            for name, work, count, clocked in all_work(max(threads))
            for n in (threads if chosen is None or name in chosen else ())
            for figures in [in_threads(work, clocked, n, max(1, int(count * scale / n)))]]


def all_work(most: int) -> Iterator[tuple[str, Work, int, Work | None]]:
    """Names, what a thread repeats, how often all threads together do, and the same with each repetition clocked."""
    room = xlogmem.PoolMemoryResource(initial_pool_size=1 << 30, maximum_pool_size=1 << 30)
    pool = xlogmem.DeviceRuntime(resource=room, stream_pool=xlogmem.StreamPool(max_streams=most))
    driver = xlogmem.DeviceRuntime(resource=xlogmem.AsyncMemoryResource(),
                                   stream_pool=xlogmem.StreamPool(max_streams=most))
    streams = [pool.acquire_stream() for _ in range(most)]
    others = [driver.acquire_stream() for _ in range(most)]
    blocks = [pool.allocate(256, stream) for stream in streams]
    raw = _loops.Allocator.driver()
    yield "arithmetic, C++", lambda i: _loops.compute_alone, 4_000_000, None
    for name, of, on, count in (("pool pair, C++", _loops.Allocator.table(pool), streams, 4_000_000),
                                ("driver's pair, C++", raw, streams, 200_000),
                                ("async pair, C++", _loops.Allocator.table(driver), others, 200_000)):
        yield (name, lambda i, of=of, on=on: lambda n: of.pairs(MIB, [on[i].handle], n), count,
               lambda i, of=of, on=on: lambda n: of.each_pair(MIB, [on[i].handle], n))
    yield "driver's pair and work, C++", lambda i: lambda n: raw.pairs(MIB, [streams[i].handle], n, 4), 200_000, None
    yield "use, C++", lambda i: _loops.Uses([(0, [(0, 3)])], [streams[i]], [blocks[i]]).run, 2_000_000, None
    for name, in_use in (("launch, C++", False), ("launch in a use, C++", True)):
        yield (name, lambda i, in_use=in_use: _loops.Launches(streams[i], blocks[i], in_use).run, 200_000, None)
    yield "nothing, Python", lambda i: python_nothing, 4_000_000, None
    yield "pool pair, Python", lambda i: python_pairs(pool, streams[i]), 400_000, None
    yield "use, Python", lambda i: python_uses(streams[i], blocks[i]), 400_000, None


def python_nothing(n: int) -> None:
    """What the interpreter's own lock leaves of the throughput."""
    for _ in range(n):
        abs(n)


def python_pairs(runtime: xlogmem.DeviceRuntime, stream: xlogmem.Stream) -> Callable[[int], None]:
    allocate = runtime.allocate

    def run(n: int) -> None:
        for _ in range(n):
            allocate(MIB, stream).free()

    return run


def python_uses(stream: xlogmem.Stream, block: xlogmem.DeviceBlock) -> Callable[[int], None]:
    use = xlogmem.use

    def run(n: int) -> None:
        for _ in range(n):
            with use(stream, write=block):
                pass

    return run


def in_threads(work: Work, clocked: Work | None, n: int, count: int) -> dict[str, Any]:
    """Nanoseconds that one repetition takes of all threads' time together, the best of three; and the largest ratio of
    a thread's 99th percentile to its median."""
    took = min(time_in_threads(work, n, count)[0] for _ in range(3)) / (n * count)
    figures = {"ns": took}
    if clocked is not None:
        each = time_in_threads(clocked, n, min(count, 200_000))[1]
        figures["tail"] = max(one[len(one) * 99 // 100] / max(1, one[len(one) // 2]) for one in each)
        figures["p99"] = max(one[len(one) * 99 // 100] for one in each)
        figures["median"] = statistics.median(one[len(one) // 2] for one in each)
    return figures


def time_in_threads(work: Work, n: int, count: int) -> tuple[int, list[Any]]:
    start = threading.Barrier(n)
    context = check(cuda.cuCtxGetCurrent())
    began, ended, results = [0] * n, [0] * n, [None] * n

    def one(i: int) -> None:
        check(cuda.cuCtxSetCurrent(context))
        repeat = work(i)
        repeat(min(count, 500))
        start.wait()
        began[i] = time.perf_counter_ns()
        results[i] = repeat(count)
        ended[i] = time.perf_counter_ns()

    workers = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(ended) - min(began), results


def show(processes: list[list[dict[str, Any]]]) -> None:
    print(f"{len(os.sched_getaffinity(0))} cores, {len(processes)} processes: their median, and the worst of them")
    print(f"{'':28}{'threads':>8}{'ns':>10}{'throughput':>12}{'worst':>8}{'p99/median':>12}{'worst':>8}")
    for rows in zip(*processes, strict=True):
        alone = [next(row for row in process if row["work"] == rows[0]["work"] and row["threads"] == 1)
                 for process in processes]
        gain = [first["ns"] / row["ns"] for first, row in zip(alone, rows, strict=True)]
        tail = [row["tail"] for row in rows if "tail" in row]
        print(f"{rows[0]['work']:28}{rows[0]['threads']:8}{statistics.median(row['ns'] for row in rows):10,.0f}"
              f"{statistics.median(gain):12.2f}{min(gain):8.2f}"
              + (f"{statistics.median(tail):12.1f}{max(tail):8.1f}" if tail else ""))


if __name__ == "__main__":
    _driver.initialize()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    sys.exit(main())
