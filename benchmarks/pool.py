"""What an allocation and its free cost on xlogmem's pool, beside RMM's arena and pool, CuPy's pool and PyTorch.

    python benchmarks/pool.py [--json FILE]

From Python, and, with the RMM binding, in a loop in C++ without the GIL (as libcudf's calls are: through RMM's
interface, on the legacy default stream).  Then a side stream is used once and goes idle: how much more does each
allocator take from the device when another stream needs as much?  Libraries that are not installed are left out.
"""
from __future__ import annotations

import argparse
import importlib
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cuda
from xlogmem_bench._loops import Allocator

import xlogmem
from xlogmem import _driver
from xlogmem.sim.kernels import check

NBYTES, HELD = 1 << 20, 512                 # of a pair; blocks that are held at once
LARGE, PIECES = 64 << 20, 8                 # what the side stream uses
REPEATS, CALLS = 9, 20_000


def optional(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


rmm, cupy, torch = optional("rmm"), optional("cupy"), optional("torch")
binding = optional("xlogmem.rmm._binding") if rmm else None


def measure(function: Callable[[], object], *, calls: int = CALLS) -> tuple[float, float]:
    """(best, median) ns per call."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter_ns()
        for _ in range(calls):
            function()
        times.append((time.perf_counter_ns() - started) / calls)
    return min(times), statistics.median(times)
if rmm:
    importlib.import_module("rmm.mr")


def our_runtimes() -> dict[str, xlogmem.DeviceRuntime]:
    return {"xlogmem pool": xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(None, 1 << 30)),
            "xlogmem async": xlogmem.DeviceRuntime()}


def rmm_resources() -> dict[str, Any]:
    if rmm is None:
        return {}
    return {"RMM arena": rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 30),
            "RMM pool": rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 30, 2 << 30),
            "RMM cuda async": rmm.mr.CudaAsyncMemoryResource()}


# ---------------------------------------------------------------------------------------------- from Python
def python_rows() -> dict[str, tuple[Callable[[], None], Callable[[], None]]]:
    """A pair, and HELD blocks that are allocated and then freed, for each allocator."""
    rows: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {}

    def add(name: str, allocate: Callable[[], Any], free: Callable[[Any], Any]) -> None:
        def pair() -> None:
            free(allocate())

        def held() -> None:
            blocks = [allocate() for _ in range(HELD)]
            while blocks:
                free(blocks.pop())

        rows[name] = pair, held

    for name, runtime in our_runtimes().items():
        stream = runtime.acquire_stream()
        add(name, lambda runtime=runtime, stream=stream: runtime.allocate(NBYTES, stream), lambda block: block.free())
    for name, mr in rmm_resources().items():
        stream = rmm.pylibrmm.stream.DEFAULT_STREAM
        add(name, lambda mr=mr, stream=stream: mr.allocate(NBYTES, stream),
            lambda ptr, mr=mr, stream=stream: mr.deallocate(ptr, NBYTES, stream))
    if cupy:
        pool = cupy.cuda.MemoryPool()
        add("CuPy MemoryPool", lambda: pool.malloc(NBYTES), lambda memory: None)
    if torch:
        add("PyTorch empty", lambda: torch.empty(NBYTES, dtype=torch.uint8, device="cuda"), lambda tensor: None)
    return rows


def from_python() -> dict[str, dict[str, int]]:
    figures = {}
    print(f"{'from Python, ns, best (median)':36}{'a pair':>16}{f'of {HELD} held':>20}")
    for name, (pair, held) in python_rows().items():
        pair()
        one = measure(pair)
        held()
        many = tuple(time / HELD for time in measure(held, calls=20))
        figures[name] = {"pair_best_ns": round(one[0]), "pair_median_ns": round(one[1]),
                         "held_best_ns": round(many[0]), "held_median_ns": round(many[1])}
        print(f"{name:36}{one[0]:8.0f} ({one[1]:.0f}){many[0]:12.0f} ({many[1]:.0f})")
        check(cuda.cuCtxSynchronize())
    return figures


# ---------------------------------------------------------------------------------------------- without the GIL
def without_the_gil() -> dict[str, dict[str, float]]:
    """Turn by turn in one process."""
    if binding is None:
        return {}
    from rmm_pairs import under

    from xlogmem.rmm import RuntimeMemoryResource

    resources = {name: RuntimeMemoryResource(runtime) for name, runtime in our_runtimes().items()} | rmm_resources()
    resources["xlogmem over RMM arena"] = under(resources["RMM arena"])
    pool = xlogmem.PoolMemoryResource(xlogmem.rmm.RmmMemoryResource(resources["RMM arena"]))
    resources["xlogmem pool over RMM arena"] = RuntimeMemoryResource(xlogmem.DeviceRuntime(resource=pool))
    times: dict[str, list[float]] = {name: [] for name in resources}
    for _ in range(REPEATS):
        for name, mr in resources.items():
            times[name].append(Allocator.of(binding.upstream_of(mr)).pairs(NBYTES, [0], CALLS) / CALLS)
    print("\nin a loop in C++ without the GIL, ns a pair, best (median)")
    for name, seen in times.items():
        print(f"{name:36}{min(seen):8.0f} ({statistics.median(seen):.0f})")
    return {name: {"best_ns": min(seen), "median_ns": statistics.median(seen)} for name, seen in times.items()}


# ---------------------------------------------------------------------------------------------- an idle stream
def ours_stranded() -> tuple[int, int, str]:
    pool = xlogmem.PoolMemoryResource(chunk_size=PIECES * LARGE)
    runtime = xlogmem.DeviceRuntime(resource=pool)
    side, main = runtime.acquire_stream(), runtime.acquire_stream()
    blocks = [runtime.allocate(LARGE, side) for _ in range(PIECES)]
    for block in blocks:
        block.free()
    before = pool.pool_size()
    waits = runtime.counters()["waits"]
    blocks = [runtime.allocate(LARGE, main) for _ in range(PIECES)]
    return before, pool.pool_size() - before, f"{runtime.counters()['waits'] - waits} waits on the device"


def torch_stranded() -> tuple[int, int, str]:
    torch.cuda.empty_cache()
    start = torch.cuda.memory_reserved()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        tensors = [torch.empty(LARGE, dtype=torch.uint8, device="cuda") for _ in range(PIECES)]
    tensors.clear()
    torch.cuda.synchronize()                            # the side stream is idle
    before = torch.cuda.memory_reserved()
    tensors = [torch.empty(LARGE, dtype=torch.uint8, device="cuda") for _ in range(PIECES)]
    return before - start, torch.cuda.memory_reserved() - before, "synchronized before"


def cupy_stranded() -> tuple[int, int, str]:
    pool = cupy.cuda.MemoryPool()
    side = cupy.cuda.Stream(non_blocking=True)
    with side:
        blocks = [pool.malloc(LARGE) for _ in range(PIECES)]
    blocks.clear()
    side.synchronize()
    before = pool.total_bytes()
    blocks = [pool.malloc(LARGE) for _ in range(PIECES)]
    return before, pool.total_bytes() - before, "synchronized before"


def stranding() -> dict[str, dict[str, Any]]:
    candidates = {"xlogmem pool": ours_stranded} | ({"PyTorch": torch_stranded} if torch else {}) | (
        {"CuPy MemoryPool": cupy_stranded} if cupy else {})
    figures = {}
    print(f"\na side stream had {PIECES * LARGE >> 20} MiB and is idle; another stream takes as much")
    for name, function in candidates.items():
        had, grown, note = function()
        figures[name] = {"had": had, "grown": grown, "note": note}
        print(f"{name:36}had {had >> 20} MiB, took {grown >> 20} MiB more ({note})")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    _driver.initialize()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    figures = {"python": from_python(), "nogil": without_the_gil(), "stranding": stranding()}
    facts = {"device": _driver.device_name(0), "simulated": _driver.is_simulated(), "host": platform.processor(),
             "driver": ".".join(map(str, _driver.driver_version())), "python": sys.version.split()[0],
             "xlogmem": xlogmem.__version__, "nbytes": NBYTES, "held": HELD,
             **{module.__name__: module.__version__ for module in (rmm, cupy, torch) if module}}
    if options.json:
        with open(options.json, "w") as file:
            json.dump(facts | {"figures": figures}, file, indent=1)


if __name__ == "__main__":
    main()
