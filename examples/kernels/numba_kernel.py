"""Numba: a kernel on a side stream reads what a slow one on the default stream writes.

    python examples/kernels/numba_kernel.py                # right
    python examples/kernels/numba_kernel.py --wrong        # without the `use`

Numba's arrays belong to the default stream.  Each round has one of its own, which is dropped while the kernel that
reads it is still queued.
"""
import contextlib
import sys

import numpy

import xlogmem

xlogmem.enable("numba")                                 # before Numba allocates anything
from numba import cuda

WRONG = "--wrong" in sys.argv
ROUNDS, COUNT, WIDTH = 1000, 1 << 16, 256


@cuda.jit("void(int32[::1], int32)")
def fill(x, value):
    i = cuda.grid(1)
    for _ in range(100):
        cuda.nanosleep(1000)                            # it is slow
    if i < x.size:
        x[i] = value


@cuda.jit("void(int32[::1], int32, int32[::1])")
def compare(x, value, unequal):
    i = cuda.grid(1)
    if i < x.size and x[i] != value:
        cuda.atomic.add(unequal, value, 1)


side = xlogmem.get_runtime().acquire_stream()           # Numba's own streams wait for the default stream, this does not
consumer = cuda.external_stream(side.handle)
unequal = cuda.to_device(numpy.zeros(ROUNDS, numpy.int32))
cuda.synchronize()
for number in range(ROUNDS):
    x = cuda.device_array(COUNT, numpy.int32)
    fill[COUNT // WIDTH, WIDTH](x, number)
    protected = contextlib.nullcontext() if WRONG else xlogmem.use(side, read=x, read_write=unequal)
    with protected:                                     # after `fill`; and `x` is freed after `compare`
        compare[COUNT // WIDTH, WIDTH, consumer](x, number, unequal)
side.synchronize()
cuda.synchronize()

wrong = int((unequal.copy_to_host() > 0).sum())
print(f"{ROUNDS - wrong} of {ROUNDS} rounds right, {wrong} wrong")
sys.exit((wrong > 0) != WRONG)
