"""CuPy's arrays: ufuncs, reductions, sorting, indexing, fusion and kernels of the program's own.

Right: one stream, the default one or, with `side`, one that does not wait for it.
"""
import contextlib
import sys

import cupy
import cupyx

SIDE = "side" in sys.argv
double = cupy.ElementwiseKernel("T x, T y", "T z", "z = x * 2 + y", "double_and_add")
length = cupy.fuse(kernel_name="length")(lambda x, y: cupy.sqrt(x * x + y * y))
norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "two_norm")
right = 0
with cupy.cuda.Stream(non_blocking=True) if SIDE else contextlib.nullcontext():
    for size in (16, 999, 100_000):
        values = cupy.arange(size, dtype=cupy.float64)
        shuffled = cupy.random.RandomState(0).permutation(size)
        right += bool((cupy.sort(shuffled) == values).all()) + bool((shuffled[cupy.argsort(shuffled)] == values).all())
        right += float(values.sum()) == size * (size - 1) / 2 == float(values.cumsum()[-1])
        right += bool((double(values, values) == 3 * values).all())
        right += bool(cupy.allclose(norm(values) ** 2, (values ** 2).sum()))
        right += int(cupy.unique(shuffled % 7).size) == 7 and int(cupy.bincount(shuffled % 7).sum()) == size
        right += int(values[values > 5].size) == size - 6 == int(cupy.nonzero(values > 5)[0].size)
        right += int(cupyx.scatter_add(table := cupy.zeros(8), shuffled % 8, 1) or table.sum()) == size
        right += float(length(values * 3, values * 4)[5]) == 25
        right += int(cupy.median(values)) == (size - 1) // 2 and int(cupy.searchsorted(values, values[7:8])[0]) == 7
        joined = cupy.concatenate([values, cupy.pad(values, 2), cupy.repeat(values, 3)])
        right += joined.shape == (5 * size + 4,) and cupy.asnumpy(joined[:9]).tolist() == list(range(9))
print("right:", right, "of 33")
