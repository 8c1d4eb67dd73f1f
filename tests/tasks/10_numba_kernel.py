import xlogmem

xlogmem.enable("numba")
import numpy
from numba import cuda


@cuda.jit
def add(values, amount):
    i = cuda.grid(1)
    if i < values.size:
        values[i] += amount


stream = xlogmem.get_runtime().acquire_stream()
x = cuda.to_device(numpy.arange(1 << 20, dtype="float32"))
add[4096, 256](x, 1)                                    # on the default stream
with xlogmem.use(stream, read_write=x):
    add[4096, 256, cuda.external_stream(stream.handle)](x, 1)
