"""What `xlogmem check --gpu` adds to calls of the driver: run it alone, and under the check.

    python benchmarks/check_calls.py                                        # the driver alone
    xlogmem check --gpu -- python benchmarks/check_calls.py                 # with the place of each call
    xlogmem check --gpu -- python benchmarks/check_calls.py --no-stacks     # without
    compute-sanitizer --tool memcheck --track-stream-ordered-races all python benchmarks/check_calls.py --bursts 2

    c++ -O2 -g -std=c++17 -I$CUDA_HOME/include benchmarks/check_calls.cpp -o calls -lcuda     # a program without Python
    ./calls; xlogmem check --gpu -- ./calls

Nanoseconds a call, the least of seven turns in turn, from C in twelve frames of Python; --threads N calls from N
threads, each on a stream of its own, and prints the mean.
"""
from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cuda.bindings import driver

KINDS = ["launch, 4 pointers", "copy", "allocate and free", "record and wait"]
SOURCE = Path(__file__).with_suffix(".cpp")


def compiled(folder: str) -> ctypes.CDLL:
    library = Path(folder, "check_calls.so")
    include = os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/include"
    subprocess.run(["c++", "-O2", "-std=c++17", "-shared", "-fPIC", f"-I{include}", str(SOURCE), "-o",
                    str(library)], check=True)
    ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)                    # which it needs
    loaded = ctypes.CDLL(str(library))
    loaded.time_calls.restype = ctypes.c_double
    return loaded


def begin(context: object) -> None:
    assert int(driver.cuCtxSetCurrent(context)[0]) == 0


def deep(frames: int, function, *arguments):
    return function(*arguments) if frames == 0 else deep(frames - 1, function, *arguments)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--no-stacks", action="store_true")
    options.add_argument("--bursts", type=int, default=200)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    assert int(driver.cuInit(0)[0]) == 0
    context = driver.cuDevicePrimaryCtxRetain(0)[1]
    if given.no_stacks:
        from xlogmem.check import gpu

        gpu.library().xcheck_find_sites(None)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.threads, initializer=begin,
                                                                      initargs=(context,)) as threads:
        calls = compiled(folder)
        best = dict.fromkeys(KINDS, float("inf"))
        for _ in range(7):
            for number, kind in enumerate(KINDS):
                times = list(threads.map(lambda _, n=number: deep(8, calls.time_calls, n, given.bursts),
                                         range(given.threads)))
                assert min(times) > 0, "the driver refused a call"
                best[kind] = min(best[kind], sum(times) / len(times))
    print(json.dumps({kind: round(nanoseconds) for kind, nanoseconds in best.items()}))


if __name__ == "__main__":
    main()
