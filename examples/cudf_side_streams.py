"""CuPy and Numba kernels read and update cuDF columns on streams of their own, while the main thread goes on.

    python examples/cudf_side_streams.py [--rounds N] [--without] [--json]

Both kernels are late.  Meanwhile the main thread computes the sum of the column that is being updated with cuDF, drops
the frame and makes another one, which gets the same memory.  Without xlogmem the sum lacks the update, and the reader
reads the next frame in the memory of the first.
"""
from __future__ import annotations

import warnings

import cudf
import cupy
from numba import cuda
from together import Kernels, begin, main

ROWS = 1 << 18
LATE = 1.0                                              # milliseconds


@cuda.jit
def add(values, amount):
    i = cuda.grid(1)
    if i < values.size:
        values[i] += amount


def run(rounds: int, protected: bool) -> int:
    use = begin(protected)
    kernels = Kernels()
    reader, writer = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    numba_stream = cuda.external_stream(writer.ptr)     # the same: Numba's own streams wait for the default stream
    with reader:
        mismatches = cupy.zeros(rounds, dtype="int32")
    zeros = cudf.Series(cupy.zeros(ROWS, dtype="int64"))
    wrong_sums = set()
    for number in range(rounds):
        frame = cudf.DataFrame({"x": zeros + number, "y": zeros + number})

        x = cupy.asarray(frame["x"])
        with use(reader, read=frame["x"], read_write=mismatches), reader:
            kernels.delay(2 * LATE)
            kernels.count_unequal(mismatches[number:], x, number)

        y = cuda.as_cuda_array(frame["y"], sync=False)
        with use(writer, read_write=frame["y"]):
            with writer:
                kernels.delay(LATE)
            add[ROWS // 256, 256, numba_stream](y, 1)

        if int(frame["y"].sum()) != ROWS * (number + 1):        # cuDF's stream waits for the writer, not for the reader
            wrong_sums.add(number)
        del frame, x, y
        frame = cudf.DataFrame({"x": zeros - 1, "y": zeros - 1})
        del frame
    reader.synchronize()
    with reader:
        return len(wrong_sums | set(cupy.nonzero(mismatches)[0].get().tolist()))


if __name__ == "__main__":
    warnings.simplefilter("ignore", cupy._util.PerformanceWarning)
    main(__doc__.splitlines()[0], run)
