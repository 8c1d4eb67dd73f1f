"""Numba's kernels: shared memory, atomics, a reduction, random numbers, a ufunc.

Right: the default stream.
"""
import numpy
from numba import cuda, float32, vectorize
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

TILE = 16


@cuda.jit
def matmul(a, b, c):
    left, right = cuda.shared.array((TILE, TILE), float32), cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.grid(2)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for tile in range(a.shape[1] // TILE):
        left[i, j], right[i, j] = a[x, tile * TILE + j], b[tile * TILE + i, y]
        cuda.syncthreads()
        for k in range(TILE):
            total += left[i, k] * right[k, j]
        cuda.syncthreads()
    c[x, y] = total


@cuda.jit
def count(values, counts):
    i = cuda.grid(1)
    if i < values.size:
        cuda.atomic.add(counts, values[i], 1)


@cuda.jit
def draw(states, numbers):
    i = cuda.grid(1)
    numbers[i] = xoroshiro128p_uniform_float32(states, i)


@cuda.reduce
def total(a, b):
    return a + b


@vectorize(["float32(float32, float32)"], target="cuda")
def add(a, b):
    return a + b


a = numpy.random.default_rng(0).random((64, 64), numpy.float32)
product = cuda.device_array((64, 64), numpy.float32)
matmul[(4, 4), (TILE, TILE)](cuda.to_device(a), cuda.to_device(a), product)
right = [numpy.allclose(product.copy_to_host(), a @ a, rtol=1e-3)]
counts = cuda.to_device(numpy.zeros(10, numpy.int32))
count[40, 256](cuda.to_device((numpy.arange(10_000) % 10).astype(numpy.int32)), counts)
right.append(counts.copy_to_host().tolist() == [1000] * 10)
numbers = cuda.device_array(4096, numpy.float32)
draw[16, 256](create_xoroshiro128p_states(4096, seed=1), numbers)
right.append(0.45 < numbers.copy_to_host().mean() < 0.55)
right.append(total(numpy.ones(10_000)) == 10_000)
right.append(add(numpy.ones(1000, numpy.float32), numpy.ones(1000, numpy.float32)).sum() == 2000)
print("right:", sum(bool(one) for one in right), "of 5")
