"""Numba: uploads, kernels and downloads on two streams, with events between them.

Right: the kernel waits for its upload, and the download for the kernel.
nowait: the kernel does not wait.  early: the download does not wait.
"""
import sys

import numpy
from numba import cuda

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
COUNT, ROUNDS = 1 << 18, 4


@cuda.jit
def work(x, y):
    i = cuda.grid(1)
    if i < x.size:
        y[i] = x[i] * 3 + 1


copies, kernels = cuda.stream(), cuda.stream()
hosts, results = ([cuda.pinned_array(COUNT, numpy.float32) for _ in range(ROUNDS)] for _ in range(2))
inputs, outputs = ([cuda.device_array(COUNT, numpy.float32) for _ in range(ROUNDS)] for _ in range(2))
for number, host in enumerate(hosts):
    host[:] = number
for host, x, y, result in zip(hosts, inputs, outputs, results, strict=True):
    x.copy_to_device(host, stream=copies)  # first: nowait
    uploaded, done = cuda.event(), cuda.event()
    uploaded.record(copies)
    if VARIANT != "nowait":
        uploaded.wait(kernels)
    work[COUNT // 256, 256, kernels](x, y)  # then: nowait  # first: early
    done.record(kernels)
    if VARIANT != "early":
        done.wait(copies)
    y.copy_to_host(result, stream=copies)  # then: early
cuda.synchronize()
print("right:", sum(bool((result == 3 * k + 1).all()) for k, result in enumerate(results)), "of", ROUNDS)
