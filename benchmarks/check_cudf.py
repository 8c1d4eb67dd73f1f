"""What `xlogmem check --gpu` sees of cuDF: a right pipeline, and side streams that forget to wait.

    xlogmem check --gpu --possible -- python benchmarks/check_cudf.py VARIANT [--fixed]

`pipeline` is right.  In `sum`, `sort`, `groupby`, `merge` and `binary` a kernel writes a column on a side stream, and
cuDF reads it; with `--fixed` cuDF's stream waits.  `read` and `drop` are right: cuDF's arrays say which stream they
belong to, and CuPy waits for it; and memory of cudaMalloc is freed when all work is done.
"""
from __future__ import annotations

import os
import sys

import cudf
import cupy

ROWS = 1 << 18
VARIANT, FIXED = sys.argv[1], "--fixed" in sys.argv
ADD = """extern "C" __global__ void add(long long* values, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] += 1;
}"""

side, main = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null
frame = cudf.DataFrame({"k": cupy.arange(ROWS, dtype="int64") % 1000, "x": cupy.arange(ROWS, dtype="int64"),
                        "z": cupy.arange(ROWS, dtype="float64")})
add = cupy.RawKernel(ADD, "add")
cupy.cuda.Device().synchronize()


def wait(later: cupy.cuda.Stream, earlier: cupy.cuda.Stream) -> None:
    if FIXED:
        later.wait_event(earlier.record())


def pipeline() -> None:
    other = cudf.DataFrame({"k": cupy.arange(1000, dtype="int64"), "w": cupy.arange(1000, dtype="float64")})
    for _ in range(3):
        groups = frame.merge(other, on="k").groupby("k").agg({"x": "sum", "z": "mean", "w": "max"}).sort_values("x")
        print(groups[groups["x"] > 10]["x"].sum(), frame["x"].max())


def read() -> None:
    computed = frame["x"] * 3 + 1
    wait(side, main)
    with side:
        cupy.asarray(computed).sum()
    wait(main, side)


def drop() -> None:
    computed = frame["x"] * 3
    cupy.cuda.Device().synchronize()
    with side:
        kept = cupy.asarray(computed) + 1
    wait(main, side)
    del computed, kept
    frame["z"] * 2


def written() -> None:
    values = cupy.asarray(frame["x"])
    with side:
        add((ROWS // 256,), (256,), (values, ROWS))
    wait(main, side)
    {"sum": lambda: frame["x"].sum(), "sort": lambda: frame.sort_values("x"),
     "groupby": lambda: frame.groupby("k").agg({"x": "sum"}), "merge": lambda: frame.merge(frame[["x"]], on="x"),
     "binary": lambda: frame["x"] + frame["k"]}[VARIANT]()


{"pipeline": pipeline, "read": read, "drop": drop}.get(VARIANT, written)()
cupy.cuda.Device().synchronize()
if "XLOGMEM_CHECK" in os.environ:
    from xlogmem.check import gpu

    print(gpu.report(gpu.library())["launches"], "launches")
