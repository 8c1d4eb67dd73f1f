"""CuPy: a RawKernel on one stream reads what a slow one on another stream writes.

    python examples/kernels/cupy_raw_kernel.py             # right
    python examples/kernels/cupy_raw_kernel.py --wrong     # without the `use`

Each round has an array of its own, which is dropped while the kernel that reads it is still queued.
"""
import contextlib
import sys

import xlogmem

xlogmem.enable("cupy")                                  # before CuPy allocates anything
import cupy

WRONG = "--wrong" in sys.argv
ROUNDS, COUNT, WIDTH = 1000, 1 << 16, 256

fill = cupy.RawKernel(r"""
extern "C" __global__ void fill(int* x, int value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < 100; ++k) __nanosleep(1000);    // it is slow
    if (i < count) x[i] = value;
}""", "fill")
compare = cupy.RawKernel(r"""
extern "C" __global__ void compare(const int* x, int value, int count, int* unequal) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && x[i] != value) atomicAdd(unequal, 1);
}""", "compare")

producer, consumer = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with consumer:
    unequal = cupy.zeros(ROUNDS, cupy.int32)
for number in range(ROUNDS):
    with producer:
        x = cupy.empty(COUNT, cupy.int32)
        fill((COUNT // WIDTH,), (WIDTH,), (x, number, COUNT))
    protected = contextlib.nullcontext() if WRONG else xlogmem.use(consumer, read=x, read_write=unequal)
    with consumer, protected:                           # after `fill`; and `x` is freed after `compare`
        compare((COUNT // WIDTH,), (WIDTH,), (x, number, COUNT, unequal[number:]))
consumer.synchronize()
producer.synchronize()

wrong = int((unequal.get() > 0).sum())
print(f"{ROUNDS - wrong} of {ROUNDS} rounds right, {wrong} wrong")
sys.exit((wrong > 0) != WRONG)
