"""A kernel is launched on a stream from a pool, and not on the current one.

Thread:  https://github.com/vllm-project/vllm/pull/13632
Wrong:   A quantization kernel took `getStreamFromPool()` where it meant `getCurrentCUDAStream()`.  Its input is still
         being written on the current stream, which it does not wait for; nor does what reads its output wait for it.
Repair:  Launch it on the current stream.
"""
import sys

import numpy
from numba import cuda

FIXED = "--fixed" in sys.argv


@cuda.jit
def quantize(values, scaled):
    i = cuda.grid(1)
    if i < values.size:
        scaled[i] = values[i] * 0.5


current, from_pool = cuda.stream(), cuda.stream()
values = cuda.device_array(1024, numpy.float32)
scaled = cuda.device_array(1024, numpy.float32)
host = numpy.ones(1024, numpy.float32)
values.copy_to_device(host, stream=current)             # first
quantize[4, 256, current if FIXED else from_pool](values, scaled)       # then
cuda.synchronize()
