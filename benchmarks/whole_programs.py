"""Whole programs of CuPy and PyTorch on xlogmem's memory, beside the library's own allocators.

    python benchmarks/whole_programs.py --json whole_programs.json [--program cupy-tiny] [--rounds 5]

CuPy: temporaries of 16 MiB on one stream, arrays of 16 KiB (host bound), and four streams that hand arrays to each
other (with `xlogmem.use`, or events by hand).  PyTorch: a convolutional network in bfloat16, a transformer whose
sequences change their length, a small network (host bound), and a side stream that uploads the next batch and calls
`record_stream`.  `own` is the library's default, `driver` its allocator on the driver's pool (CuPy's MemoryAsyncPool,
PyTorch's cudaMallocAsync), `async` and `pool` are xlogmem's resources.  Each run is a process of its own; the
allocators take turns, in the reverse order each second round.  A ratio is that of two runs of one round.  `device_mb`
is what the device has less than before the first allocation.
"""
from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from xlogmem import _driver

ALLOCATORS = {"own": {}, "driver": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
              "async": {"XLOGMEM_RESOURCE": "async"}, "pool": {"XLOGMEM_RESOURCE": "pool"}}
OURS = ("async", "pool")
Step = Callable[[int], object]


# ---------------------------------------------------------------------------------------------- CuPy
def cupy_arrays() -> tuple[Any, Any, Any]:
    import cupy

    return cupy, cupy.random.rand(1 << 22, dtype=cupy.float32), cupy.random.rand(1 << 12, dtype=cupy.float32)


def cupy_temporaries(_with_xlogmem: bool) -> tuple[Step, int]:
    cupy, x, _small = cupy_arrays()

    def step(_: int) -> float:
        y = cupy.sqrt(x * x + 1) - cupy.abs(x)
        return float(y[y > .3].sum())

    return step, 300


def cupy_tiny(_with_xlogmem: bool) -> tuple[Step, int]:
    _cupy, _x, small = cupy_arrays()

    def step(_: int) -> Any:
        y = small
        for _ in range(20):
            y = y * 1.01 + small
        return y

    return step, 1500


def cupy_streams(with_xlogmem: bool) -> tuple[Step, int]:
    cupy, x, _small = cupy_arrays()
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    cupy.cuda.Device().synchronize()

    def step(number: int) -> list[Any]:
        sums = []
        for i, stream in enumerate(streams):
            with stream:
                z = cupy.sqrt(x * (i + number) + 1)
            after = streams[(i + 1) % 4]
            if with_xlogmem:
                import xlogmem

                with xlogmem.use(after, read=z), after:
                    sums.append(z.sum())
            else:
                after.wait_event(stream.record())
                with after:
                    sums.append(z.sum())
                stream.wait_event(after.record())
        return sums

    return step, 400


# ---------------------------------------------------------------------------------------------- PyTorch
def trained(network: Any, loss: Callable[[int], Any], optimizer: Any) -> Step:
    def step(number: int) -> None:
        value = loss(number)
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        optimizer.step()

    return step


def torch_convolutions(_with_xlogmem: bool) -> tuple[Step, int]:
    import torch
    from torch import nn

    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for width in (128, 256, 512):
        layers += [nn.Conv2d(width // 2, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).cuda()
    x = torch.rand(64, 3, 224, 224, device="cuda")
    y = torch.randint(0, 1000, (64,), device="cuda")

    def loss(_: int) -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return nn.functional.cross_entropy(network(x), y)

    return trained(network, loss, torch.optim.SGD(network.parameters(), .01, momentum=.9)), 60


def torch_transformer(_with_xlogmem: bool) -> tuple[Step, int]:
    import torch
    from torch import nn

    steps = 60
    shapes = [(random.choice([4, 8, 16]), random.randrange(64, 1024)) for _ in range(steps)]
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    network = nn.Sequential(nn.Embedding(8192, 512), nn.TransformerEncoder(layer, 8), nn.Linear(512, 8192)).cuda()

    def loss(number: int) -> Any:
        ids = torch.randint(0, 8192, shapes[number % steps], device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            return nn.functional.cross_entropy(network(ids).flatten(0, 1), ids.flatten())

    return trained(network, loss, torch.optim.AdamW(network.parameters(), 1e-4, fused=True)), steps


def torch_small(_with_xlogmem: bool) -> tuple[Step, int]:
    import torch
    from torch import nn

    network = nn.Sequential(*[layer for _ in range(10) for layer in (nn.Linear(128, 128), nn.ReLU())]).cuda()
    data = torch.rand(64, 128, device="cuda")
    return trained(network, lambda _: network(data).square().mean(), torch.optim.SGD(network.parameters(), .01)), 800


def torch_prefetcher(_with_xlogmem: bool) -> tuple[Step, int]:
    import torch
    from torch import nn

    network = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
                            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(1024, 10)).cuda()
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    pinned = [torch.rand(64, 3, 224, 224).pin_memory() for _ in range(4)]
    ready: list[Any] = []

    def load(number: int) -> Any:
        with torch.cuda.stream(side):
            return pinned[number % 4].to("cuda", non_blocking=True)

    def loss(number: int) -> Any:
        batch = ready.pop() if ready else load(number)
        main.wait_stream(side)
        batch.record_stream(main)
        ready.append(load(number + 1))
        return network(batch).square().mean()

    return trained(network, loss, torch.optim.SGD(network.parameters(), .01)), 200


PROGRAMS: dict[str, Callable[[bool], tuple[Step, int]]] = {
    "cupy-temporaries": cupy_temporaries, "cupy-tiny": cupy_tiny, "cupy-streams": cupy_streams,
    "torch-convolutions": torch_convolutions, "torch-transformer": torch_transformer, "torch-small": torch_small,
    "torch-prefetcher": torch_prefetcher}


# ---------------------------------------------------------------------------------------------- one run
def run(program: str, allocator: str) -> dict[str, Any]:
    """One program on one allocator, in this process."""
    library: Any = program.partition("-")[0]
    wait: Any
    free: Any
    if allocator in OURS:
        import xlogmem

        xlogmem.enable(library)
    random.seed(0)
    if library == "torch":
        import torch

        torch.manual_seed(0)
        torch.cuda.init()
        torch.empty(1, device="cuda")
        wait, free = torch.cuda.synchronize, lambda: torch.cuda.mem_get_info()[0]
    else:
        import cupy

        if allocator == "driver":
            cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
        wait, free = cupy.cuda.Device().synchronize, lambda: cupy.cuda.runtime.memGetInfo()[0]
    before = least = free()
    step, steps = PROGRAMS[program](allocator in OURS)
    for number in range(steps // 3):
        step(number)
    times = []
    for _ in range(5):
        wait()
        started = time.perf_counter()
        for number in range(steps // 5):
            step(number)
        least = min(least, free())
        wait()
        times.append((time.perf_counter() - started) / (steps // 5) * 1e6)
    return {"us": statistics.median(times), "device_mb": round((before - least) / 2**20)}


def in_a_process(program: str, allocator: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, "--run", program, allocator], capture_output=True, text=True,
                          timeout=300, env=os.environ | ALLOCATORS[allocator], check=False)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:200]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def summary(rows: list[dict[str, Any]], program: str) -> list[dict[str, Any]]:
    """For each allocator the median of its runs, and of the ratios to `own` within a round."""
    found = []
    for allocator in ALLOCATORS:
        mine = {row["round"]: row for row in rows if (row["program"], row["allocator"]) == (program, allocator)}
        good = {key: row for key, row in mine.items() if "us" in row}
        own = {row["round"]: row["us"] for row in rows if row["program"] == program and row["allocator"] == "own"
               and "us" in row}
        ratios = [row["us"] / own[key] for key, row in good.items() if key in own]
        if ratios:
            found.append({"program": program, "allocator": allocator, "ratio": round(statistics.median(ratios), 3),
                          "least": round(min(ratios), 3), "most": round(max(ratios), 3),
                          "us": round(statistics.median([row["us"] for row in good.values()]), 1),
                          "device_mb": max(row["device_mb"] for row in good.values())})
        else:
            found.append({"program": program, "allocator": allocator,
                          "failed": next((row["failed"] for row in mine.values()), "not run")})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--program", choices=PROGRAMS, action="append")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1e9, help="no round begins after so many")
    parser.add_argument("--run", nargs=2, metavar=("PROGRAM", "ALLOCATOR"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(*options.run)))
        return
    rows, programs, end = [], options.program or list(PROGRAMS), time.monotonic() + options.seconds
    for number in range(options.rounds):
        for program in programs:
            for allocator in sorted(ALLOCATORS, key=list(ALLOCATORS).index, reverse=number % 2 == 1):
                if time.monotonic() < end:
                    rows.append({"program": program, "allocator": allocator, "round": number}
                                | in_a_process(program, allocator))
    found = [line for program in programs for line in summary(rows, program)]
    for line in found:
        print(json.dumps(line))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"command": shlex.join(["python", *sys.argv]), "device": _driver.device_name(0),
                       "driver": ".".join(map(str, _driver.driver_version())), "python": platform.python_version(),
                       "rows": rows, "summary": found}, file, indent=1)


if __name__ == "__main__":
    main()
