"""A kernel updates cuDF columns in place while cuDF spills them, on a budget that does not hold them all.

    python examples/cudf_spilling.py [--rounds N] [--without] [--json]

More columns than fit live under a limit; cuDF spills unused columns to the host.  In each round a late kernel on its
own stream adds one to the next column, and the main thread then allocates so much memory that all columns are spilled.
Without xlogmem the column is copied to the host before the kernel runs, its memory is reused, and the kernel updates
the new contents.
"""
from __future__ import annotations

import cudf
import cupy
import rmm.mr
from cudf.core.buffer.spill_manager import get_global_manager
from together import Kernels, begin, main

ROWS, COLUMNS = 1 << 18, 8                              # 2 MiB each
BUDGET = 11 << 20
LATE = 1.0                                              # milliseconds


def run(rounds: int, protected: bool) -> int:
    limit = rmm.mr.LimitingResourceAdaptor(rmm.mr.CudaAsyncMemoryResource(), BUDGET)
    use = begin(protected, limit)
    cudf.set_option("spill", True)                      # before the first column
    cudf.set_option("spill_on_demand", True)
    cudf.set_option("spill_stats", 1)
    kernels = Kernels()
    side = cupy.cuda.Stream(non_blocking=True)
    columns = [cudf.Series(range(ROWS), dtype="int64") * 0 for _ in range(COLUMNS)]
    values, wrong = [0] * COLUMNS, 0
    for number in range(rounds):
        which = number % COLUMNS
        seen = cupy.asarray(view(columns[which]))       # back on the device, and kept there while `seen` lives
        with use(side, read_write=columns[which]), side:
            kernels.delay(LATE)
            kernels.add(seen, 1)
        values[which] += 1
        del seen
        wanted = cudf.Series(cupy.full(5 * ROWS, -1, dtype="int64"))       # 10 of 11 MiB: all columns are spilled
        del wanted
        before = (which + COLUMNS // 2) % COLUMNS
        wrong += not (columns[before] == values[before]).all() or not (columns[which] == values[which]).all()
    side.synchronize()
    spilled = get_global_manager().statistics.spill_totals["gpu", "cpu"][0]
    if spilled < 8 * ROWS * rounds:
        raise SystemExit(f"{spilled} bytes were spilled: nothing was shown")
    return wrong


def view(series: cudf.Series):
    """The column as an array that keeps it from being spilled; part of `xlogmem.cudf`, and useful on its own."""
    import xlogmem.cudf

    return xlogmem.cudf.view(series)


if __name__ == "__main__":
    main(__doc__.splitlines()[0], run)
