"""A prefetcher in PyTorch: what it takes that the memory of a batch outlives its tensor.

The program is that of https://github.com/pytorch/pytorch/issues/147168 without its network: a side stream copies the
next batch while the main stream works on this one, each batch is dropped as soon as the work on it is queued, and the
host runs far ahead of the device.  So a batch's memory must not be copied to before the main stream has read it:

    torch, nothing              PyTorch's allocator, which takes that for granted: wrong
    torch, record_stream        batch.record_stream(main), as PyTorch documents
    torch, host waits           main.synchronize() before the batch is dropped
    torch, waits by hand        side.wait_stream(main) before the batch is dropped: what can be reached
    xlogmem, nothing            xlogmem.enable("torch"), and no word of the main stream: wrong
    xlogmem, record_stream      the same program as above, on xlogmem's memory
    xlogmem, use                xlogmem.use(main, read=batch), in place of wait_stream too

Each in a process of its own, which makes two passes: one is timed, in the other CUPTI counts the calls of the driver.
Each batch has its number in every element, and the device counts the batches with another value in them.  Memory is
what the device has less at the end of the first pass, before anything is waited for, than before the first allocation
(cudaMemGetInfo; some MiB of it are kernels).  Neither allocator returns any until then, so that is the most of it.

    python benchmarks/prefetcher.py --json prefetcher.json
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

KEEPERS = {"torch": ("nothing", "record_stream", "host waits", "waits by hand"),
           "xlogmem": ("nothing", "record_stream", "use")}
WAYS = [f"{allocator}, {keeper}" for allocator, keepers in KEEPERS.items() for keeper in keepers]
ROOT = Path(__file__).parent.parent


class Program:
    """The prefetcher, and what keeps its batches."""

    def __init__(self, way: str, batches: int, words: int, cycles: int) -> None:
        self.allocator, self.keeper = way.split(", ")
        self.batches, self.words, self.cycles = batches, words, cycles
        if self.allocator == "xlogmem":
            import xlogmem

            xlogmem.enable("torch")
        import torch

        self.torch = torch
        torch.cuda.init()
        self.free = torch.cuda.mem_get_info()[0]
        self.main, self.side = torch.cuda.current_stream(), torch.cuda.Stream()
        self.host = torch.zeros(words, pin_memory=True)
        self.unequal = torch.empty(words, dtype=torch.bool, device="cuda")
        self.wrong = torch.zeros(batches, dtype=torch.bool, device="cuda")

    def load(self, number: int) -> Any:
        with self.torch.cuda.stream(self.side):
            return self.host.to("cuda", non_blocking=True).add_(number)

    def work_on(self, batch: Any, number: int) -> None:
        """It is slow, and then compares."""
        self.torch.cuda._sleep(self.cycles)
        self.torch.ne(batch, number, out=self.unequal)
        self.wrong[number] = self.unequal.any()

    def protected(self, batch: Any) -> contextlib.AbstractContextManager[Any]:
        if self.keeper == "use":
            import xlogmem

            return xlogmem.use(self.main, read=batch)
        self.main.wait_stream(self.side)
        return contextlib.nullcontext()

    def before_drop(self, batch: Any) -> None:
        if self.keeper == "record_stream":
            batch.record_stream(self.main)
        elif self.keeper == "host waits":
            self.main.synchronize()
        elif self.keeper == "waits by hand":
            self.side.wait_stream(self.main)

    def queue(self, batches: int) -> None:
        batch = self.load(0)
        for number in range(batches):
            with self.protected(batch):
                following = self.load(number + 1)       # meanwhile
                self.work_on(batch, number)
            self.before_drop(batch)
            batch = following

    def one_pass(self) -> dict[str, Any]:
        """The seconds that the host took to queue everything, and the device to do it; the memory; wrong batches."""
        self.wrong.zero_()
        self.torch.cuda.synchronize()
        began = time.perf_counter()
        self.queue(self.batches)
        queued = time.perf_counter() - began
        taken = self.free - self.torch.cuda.mem_get_info()[0]
        self.torch.cuda.synchronize()
        done = time.perf_counter() - began
        return {"microseconds_per_batch": round(1e6 * done / self.batches, 1),
                "host_microseconds_per_batch": round(1e6 * queued / self.batches, 1),
                "device_bytes": taken, "wrong": int(self.wrong.sum())}

    def own_figures(self) -> dict[str, int]:
        """Of the allocator itself."""
        if self.allocator == "torch":
            stats = self.torch.cuda.memory_stats()
            return {name: stats[name] for name in ("active_bytes.all.peak", "reserved_bytes.all.peak")}
        import xlogmem

        return xlogmem.get_runtime().counters()


def measure(way: str, batches: int, words: int, cycles: int) -> dict[str, Any]:
    program = Program(way, batches, words, cycles)
    program.queue(2)                                    # loads the kernels
    figures = program.one_pass()
    own = program.own_figures()
    with import_module("driver_calls").DriverCalls() as calls:     # not before: it imports xlogmem
        program.queue(batches)                          # what waits at its end is not counted
    program.torch.cuda.synchronize()
    return {"way": way, **figures, "event_polls": calls.matching("EventQuery", "StreamQuery"),
            "host_waits": calls.matching("Synchronize"), "own": own, "calls": dict(calls.counts),
            "torch": program.torch.__version__, "cuda": program.torch.version.cuda}


def in_a_process(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """One that fails is a row too."""
    done = subprocess.run([sys.executable, __file__, "--way", way, "--batches", str(options.batches), "--mib",
                           str(options.mib), "--cycles", str(options.cycles)], capture_output=True, text=True)
    if done.returncode:
        return {"way": way, "failed": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def line_of(row: dict[str, Any], batches: int) -> str:
    if "failed" in row:
        return f"{row['way']:24}{row['failed']}"
    return (f"{row['way']:24}{row['device_bytes'] / 2**20:9,.0f} MiB{row['event_polls']:10,} polls"
            f"{row['host_waits']:8,} host waits{row['wrong']:7,} of {batches:,} wrong"
            f"{row['microseconds_per_batch']:10,.0f} us, host {row['host_microseconds_per_batch']:,.0f}")


def facts() -> dict[str, Any]:
    import xlogmem
    from xlogmem import _driver

    commit = os.environ.get("XLOGMEM_COMMIT") or subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True, text=True).stdout.strip() or None
    return {"command": shlex.join(["python", *sys.argv]), "device": _driver.device_name(0),
            "driver": ".".join(map(str, _driver.driver_version())), "simulated": _driver.is_simulated(),
            "host": platform.processor() or platform.machine(), "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
            "xlogmem": xlogmem.__version__, "build": _driver.BUILD, "commit": commit,
            "resource": os.environ.get("XLOGMEM_RESOURCE", "async")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=64, help="of one batch")
    parser.add_argument("--cycles", type=int, default=4_000_000, help="of the work on one batch")
    parser.add_argument("--way", choices=WAYS, help="this one alone, in this process")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(measure(options.way, options.batches, options.mib << 18, options.cycles)))
        return
    rows = []
    for way in WAYS:
        rows.append(in_a_process(way, options))
        print(line_of(rows[-1], options.batches), flush=True)
    if options.json:
        options.json.write_text(json.dumps(
            facts() | {"batches": options.batches, "mib": options.mib, "cycles": options.cycles, "rows": rows},
            indent=1) + "\n")


if __name__ == "__main__":
    main()
