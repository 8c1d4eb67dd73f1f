"""The consumer of an upload does not wait for it.

Thread:  https://github.com/ROCm/pytorch/issues/3194
Wrong:   Weights are copied with `non_blocking=True` on a transfer stream, and the next layer computes with them on the
         current one.  A stream waits for another one only where it is said; the layer reads what was there before.
Repair:  The current stream waits for the transfer stream.
"""
import sys

import numpy
from numba import cuda

FIXED = "--fixed" in sys.argv


@cuda.jit
def layer(weights, output):
    i = cuda.grid(1)
    if i < weights.size:
        output[i] = weights[i] + 1


current, transfer = cuda.stream(), cuda.stream()
weights = cuda.device_array(1024, numpy.float32)
output = cuda.device_array(1024, numpy.float32)
host = cuda.pinned_array(1024, numpy.float32)
weights.copy_to_device(host, stream=transfer)           # first
if FIXED:
    uploaded = cuda.event(timing=False)
    uploaded.record(transfer)
    uploaded.wait(current)
layer[4, 256, current](weights, output)                 # then
cuda.synchronize()
