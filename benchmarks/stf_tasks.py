"""A use from C++ beside a task of CUDASTF: what the bookkeeping of a launch costs the host.

    python benchmarks/stf_tasks.py --cccl CHECKOUT [--json FILE]

Each writes one block (a token of CUDASTF: data that it does not manage) and reads the others, over and over, with
nothing launched inside; a use on one stream of the runtime, through the C table, a task on the streams that CUDASTF
chooses.  Nothing has to be waited for across streams by a use; a task orders itself after the one before it.  CHECKOUT
is one of github.com/NVIDIA/cccl: CUDASTF is headers there, which nvcc takes a minute for.  The two take turns; the
figures are nanoseconds, the least and the median of the turns.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from cuda.bindings import driver as cuda
from xlogmem_bench import _loops

import xlogmem
from xlogmem import _driver
from xlogmem.sim.kernels import check

READ, READ_WRITE = 1, 3
SOURCE = Path(__file__).with_suffix(".cu")
BLOCKS = (1, 4, 16)                                     # those that the source has


def compiled(cccl: Path, folder: str) -> Path:
    library = Path(folder, "stf_tasks.so")
    includes = [f"-I{cccl / part}" for part in ("cudax/include", "libcudacxx/include", "cub", "thrust")]
    subprocess.run(["nvcc", "-std=c++17", "-O2", "-DNDEBUG", "--expt-relaxed-constexpr", "--extended-lambda", "-shared",
                    "-Xcompiler", "-fPIC", *includes, str(SOURCE), "-o", str(library)], check=True)
    return library


def use_ns(blocks: list[xlogmem.DeviceBlock], stream: xlogmem.Stream, count: int) -> float:
    accesses = [(0, READ_WRITE), *((number, READ) for number in range(1, len(blocks)))]
    uses = _loops.Uses([(0, accesses)], [stream], blocks)
    uses.run(100)
    return uses.run(count) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--cccl", type=Path, metavar="CHECKOUT")
    which.add_argument("--library", type=Path, metavar="FILE", help="of an earlier run: the compiled source")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--count", type=int, default=2000, help="of uses and of tasks in a turn")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    _driver.initialize()
    runtime = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource())
    stream = runtime.acquire_stream()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        task_ns = ctypes.CDLL(str(options.library or compiled(options.cccl, folder))).stf_task_ns
        task_ns.restype, task_ns.argtypes = ctypes.c_double, [ctypes.c_int, ctypes.c_long]
        for count in BLOCKS:
            blocks = [runtime.allocate(256, stream) for _ in range(count)]
            turns = [(use_ns(blocks, stream, options.count), task_ns(count, options.count))
                     for _ in range(options.turns)]
            for block in blocks:
                block.free()
            for name, times in zip(("xlogmem", "CUDASTF"), zip(*turns, strict=True), strict=True):
                rows.append({"what": name, "blocks": count, "least_ns": round(min(times), 1),
                             "median_ns": round(statistics.median(times), 1)})
                print(json.dumps(rows[-1]))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"command": shlex.join(["python", *sys.argv]), "device": _driver.device_name(0),
                       "driver": ".".join(map(str, _driver.driver_version())), "python": platform.python_version(),
                       "rows": rows}, file, indent=1)


if __name__ == "__main__":
    main()
