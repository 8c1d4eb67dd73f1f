"""What a pair of an allocation and its free, and a use, cost while a history is recorded, beside none; and an error.

    python benchmarks/history.py [--json FILE] [--folder FOLDER]

``file`` is a recording without stacks whose ring is a file, in a temporary folder or in FOLDER.  Turns with a recording
and without one alternate, because the clocks of hosts change; the figures are medians.  On the
simulated driver, whose calls take as long as they take, the difference alone means something.
"""
from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cuda
from xlogmem_bench._loops import Allocator

import xlogmem
from xlogmem import _driver
from xlogmem.commands.start import start_driver
from xlogmem.sim.kernels import check

CALLS, TURNS, NBYTES, EVENTS = 2_000, 41, 1 << 16, 1 << 20
# How a history is recorded; None: not at all.
SETTINGS: dict[str | None, dict[str, Any]] = {
    None: {}, "none": {"stacks": "none"}, "alloc": {"stacks": "alloc"}, "all": {"stacks": "all"},
    "file": {"path": "a.xlog"}}

Loop = Callable[[int], object]


def loops() -> dict[str, Loop]:
    """Each runs so many calls."""
    found: dict[str, Loop] = {}
    for name, resource in (("async", xlogmem.AsyncMemoryResource()),
                           ("pool", xlogmem.PoolMemoryResource(initial_pool_size=1 << 26))):
        runtime = xlogmem.DeviceRuntime(resource=resource)
        stream = runtime.acquire_stream()
        block = runtime.allocate(NBYTES, stream)
        table = Allocator.table(runtime)

        def pairs(count: int, runtime: xlogmem.DeviceRuntime = runtime, stream: xlogmem.Stream = stream) -> None:
            for _ in range(count):
                runtime.allocate(NBYTES, stream).free()

        def uses(count: int, stream: xlogmem.Stream = stream, block: xlogmem.DeviceBlock = block) -> None:
            for _ in range(count):
                with xlogmem.use(stream, read_write=block):
                    pass

        found[f"pair, {name}, Python"] = pairs
        def table_pairs(count: int, table: Allocator = table, stream: xlogmem.Stream = stream) -> None:
            table.pairs(NBYTES, [stream.handle], count)

        found[f"pair, {name}, C table"] = table_pairs
        if name == "async":
            found["use, Python"] = uses
    return found


def measured(loop: Loop) -> dict[str | None, float]:
    """Nanoseconds of a call, by setting."""
    times: dict[str | None, list[float]] = {setting: [] for setting in SETTINGS}
    for _ in range(TURNS):
        for setting, options in SETTINGS.items():
            recording = xlogmem.record_history(max_events=8 * CALLS, **options) if setting else None
            loop(CALLS // 10)
            began = time.perf_counter_ns()
            loop(CALLS)
            times[setting].append((time.perf_counter_ns() - began) / CALLS)
            check(cuda.cuCtxSynchronize())
            if recording:
                recording.stop()
    return {setting: statistics.median(found) for setting, found in times.items()}


def search_ms() -> float:
    """Milliseconds that an error about a block looks for its lines, in a full ring of a million events."""
    runtime = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(initial_pool_size=1 << 26))
    stream = runtime.acquire_stream()
    times = []
    with xlogmem.record_history(max_events=EVENTS) as recording:
        Allocator.table(runtime).pairs(NBYTES, [stream.handle], EVENTS // 2)
        with runtime.allocate(NBYTES, stream) as block:
            for _ in range(TURNS):
                began = time.perf_counter_ns()
                recording.lines_of_block(block.generation)
                times.append(time.perf_counter_ns() - began)
    return statistics.median(times) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write the figures to this file")
    parser.add_argument("--folder", help="where the history is, of those that are recorded into a file")
    options = parser.parse_args()
    start_driver()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        SETTINGS["file"]["path"] = f"{folder}/a.xlog"
        rows = {name: measured(loop) for name, loop in loops().items()}
    recorded = [setting for setting in SETTINGS if setting]
    print(f"{_driver.device_name(0)}; ns of a call, and what a recording adds\n{'':24}{'off':>8}"
          + "".join(f"{setting:>22}" for setting in recorded))
    for name, row in rows.items():
        off = row[None]
        print(f"{name:24}{off:8.1f}" + "".join(f"{row[setting]:9.1f} +{row[setting] - off:5.1f} "
                                              f"{100 * (row[setting] / off - 1):4.1f} %" for setting in recorded))
    searched = search_ms()
    print(f"an error about a block looks through {EVENTS:,} events for {searched:.1f} ms")
    if options.json:
        with open(options.json, "w") as file:
            ns = {name: {setting or "off": value for setting, value in row.items()} for name, row in rows.items()}
            json.dump({"device": _driver.device_name(0), "search_ms": searched, "ns": ns}, file, indent=1)


if __name__ == "__main__":
    main()
