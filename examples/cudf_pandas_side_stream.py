"""pandas under cudf.pandas, with CuPy kernels on a side stream that read and update its frames.

    python examples/cudf_pandas_side_stream.py [--rounds N] [--without] [--json]

The program imports pandas; its frames and series are on the GPU.  The kernels are late; meanwhile pandas sums the
column that is being updated, the frame is dropped, and another one is made.
"""
from __future__ import annotations

import os

os.environ.setdefault("CUDF_PANDAS_RMM_MODE", "async")  # xlogmem works with any; this one shows the failure without it
import cudf.pandas

cudf.pandas.install()                                   # or: python -m cudf.pandas SCRIPT

import cupy
import numpy
import pandas
import rmm.mr
from together import Kernels, begin, main

ROWS = 1 << 18
LATE = 1.0                                              # milliseconds


def run(rounds: int, protected: bool) -> int:
    use = begin(protected, rmm.mr.get_current_device_resource())        # the one of cudf.pandas
    kernels = Kernels()
    reader, writer = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with reader:
        mismatches = cupy.zeros(rounds, dtype="int32")
    zeros = pandas.Series(numpy.zeros(ROWS, dtype="int64"))
    wrong_sums = set()
    for number in range(rounds):
        frame = pandas.DataFrame({"x": zeros + number, "y": zeros + number})

        x = cupy.asarray(frame["x"])
        with use(reader, read=frame["x"], read_write=mismatches), reader:
            kernels.delay(2 * LATE)
            kernels.count_unequal(mismatches[number:], x, number)

        y = cupy.asarray(frame["y"])
        with use(writer, read_write=frame["y"]), writer:
            kernels.delay(LATE)
            kernels.add(y, 1)

        if int(frame["y"].sum()) != ROWS * (number + 1):
            wrong_sums.add(number)
        del frame, x, y
        frame = pandas.DataFrame({"x": zeros - 1, "y": zeros - 1})
        del frame
    reader.synchronize()
    with reader:
        return len(wrong_sums | set(cupy.nonzero(mismatches)[0].get().tolist()))


if __name__ == "__main__":
    main(__doc__.splitlines()[0], run)
