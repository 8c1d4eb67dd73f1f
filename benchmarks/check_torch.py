"""What the check adds to an allocation and a free of PyTorch's own pool, with a build for CUDA.

    xlogmem check --pools real -- python benchmarks/check_torch.py              # on a GPU, or on the simulated driver
    xlogmem check --pools real -- python benchmarks/check_torch.py --without    # without the report of each piece
"""
from __future__ import annotations

import sys
import time

if "--without" in sys.argv:
    from xlogmem.check import neighbours

    for hooks in (neighbours.SIMULATED, neighbours.REAL_POOLS):
        hooks.pop("torch")

import torch

COUNT, RUNS = 100_000, 5


def nanoseconds() -> float:
    begun = time.perf_counter_ns()
    for _ in range(COUNT):
        torch.empty(1024, device="cuda")
    return (time.perf_counter_ns() - begun) / COUNT


torch.empty(1024, device="cuda")
print(f"an allocation and its free: {min(nanoseconds() for _ in range(RUNS)):,.0f} ns, the least of {RUNS} runs")
