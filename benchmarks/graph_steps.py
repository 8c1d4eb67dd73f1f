"""Replays of captured steps of CuPy and PyTorch: alone, and as uses of the memory that xlogmem holds for them.

    python benchmarks/graph_steps.py [--steps 2000] [--turns 15]

A step of PyTorch is a small network, forward and backward; a step of CuPy is a chain of elementwise kernels.  Both ways
take turns in one process, and each turn ends with a wait for the device.  A line of JSON for each library.
"""
from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import xlogmem

# The graph of xlogmem, the stream of the replays, the replay, and what has to live meanwhile.
Step = tuple[Any, Any, Callable[[], object], list[Any]]


def torch_step() -> Step:
    import torch

    layers = [layer for _ in range(8) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    network = torch.nn.Sequential(*layers).cuda()
    batch = torch.randn(256, 1024, device="cuda")
    runtime = xlogmem.get_runtime()
    handle = runtime.adopt(batch, stream=torch.cuda.current_stream())
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            network(batch).square().mean().backward()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured), xlogmem.capturing(torch.cuda.current_stream(), read=batch) as graph:
        network(batch).square().mean().backward()
    return graph, torch.cuda.current_stream(), captured.replay, [handle, batch, network, captured]


def cupy_step() -> Step:
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x, y = cupy.ones(1 << 20, cupy.float32), cupy.zeros(1 << 20, cupy.float32)
        cupy.multiply(x, 2, out=y)
        cupy.add(x, y, out=y)
    runtime = xlogmem.get_runtime()
    handles = [runtime.adopt(array, stream=stream) for array in (x, y)]
    with stream:
        stream.begin_capture()
        with xlogmem.capturing(stream, read=x, write=y) as graph:
            for _ in range(20):
                cupy.multiply(x, 2, out=y)
                cupy.add(x, y, out=y)
        captured = stream.end_capture()
    return graph, stream, lambda: captured.launch(stream), [handles, x, y, captured]


def timed(steps: int, step: Callable[[], object], wait: Callable[[], object]) -> float:
    """Microseconds of a step."""
    wait()
    before = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - before) / steps * 1e6


def measure(name: str, made: Step, steps: int, turns: int) -> dict[str, Any]:
    graph, stream, replay, _ = made

    def protected() -> None:
        with graph.launching(stream):
            replay()

    alone, beside = [], []
    for _ in range(turns + 1):                              # the first turn does not count
        alone.append(timed(steps, replay, stream.synchronize))
        beside.append(timed(steps, protected, stream.synchronize))
    ratios = [b / a for a, b in zip(alone[1:], beside[1:], strict=True)]
    graph.close()
    return {"library": name, "steps": steps, "turns": turns, "alone_us": statistics.median(alone[1:]),
            "protected_us": statistics.median(beside[1:]), "ratio": statistics.median(ratios),
            "least": min(ratios), "most": max(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--library", choices=["torch", "cupy"], action="append")
    options = parser.parse_args()
    for name, make in (("torch", torch_step), ("cupy", cupy_step)):
        if not options.library or name in options.library:
            print(json.dumps(measure(name, make(), options.steps, options.turns)), flush=True)


if __name__ == "__main__":
    main()
