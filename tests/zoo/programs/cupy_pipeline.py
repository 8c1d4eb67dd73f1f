"""Uploads on one stream, a kernel on another one, with events between them, and arrays from CuPy's pool.

Right: the kernel waits for the upload, and the upload's stream for the kernel before its array is dropped.
nowait: the kernel does not wait.  drop: an array is dropped, and its memory used again, while the kernel reads it.
"""
import sys

import cupy
import numpy

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT, ROUNDS = 1 << 18, 8
scale = cupy.RawKernel(r"""
extern "C" __global__ void scale(const float* x, float* y, float factor, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) y[i] = factor * x[i];
}""", "scale")

load, work = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
pinned = cupy.cuda.alloc_pinned_memory(4 * COUNT * ROUNDS)
host = numpy.frombuffer(pinned, numpy.float32, COUNT * ROUNDS).reshape(ROUNDS, COUNT)
host[:] = numpy.arange(ROUNDS)[:, None]
results = []
for number in range(ROUNDS):
    with load:
        x = cupy.empty(COUNT, cupy.float32)
        x.set(host[number], stream=load)  # first: nowait
        uploaded = load.record()
    with work:
        if VARIANT != "nowait":
            work.wait_event(uploaded)
        y = cupy.empty(COUNT, cupy.float32)
        scale((COUNT // 256,), (256,), (x, y, numpy.float32(2), numpy.int32(COUNT)))  # then: nowait  # first: drop
        results.append(y)
        done = work.record()
    if VARIANT != "drop":
        load.wait_event(done)
    del x  # then: drop
with load:
    cupy.zeros(COUNT, cupy.float32)  # then: drop
work.synchronize()
print("right:", sum(bool((y.get() == 2 * k).all()) for k, y in enumerate(results)), "of", ROUNDS)
