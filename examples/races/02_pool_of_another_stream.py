"""A kernel works on memory of another stream, whose pool hands it out again.

Thread:  https://github.com/cupy/cupy/issues/8068
Wrong:   CuPy's pool has an arena for each stream.  An array of one stream is passed to a kernel on another one and
         dies: its memory returns to the arena of the stream that allocated it, and the next array there has it, while
         the kernel may still read.  There is nothing like PyTorch's `record_stream` to say otherwise.
Repair:  The stream that allocated the array waits for the kernel before the array dies.
"""
import sys

import cupy

FIXED = "--fixed" in sys.argv

double = cupy.RawKernel(r"""
extern "C" __global__ void twice(const float* in, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2 * in[i];
}""", "twice")

owner, worker = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with worker:
    output = cupy.empty(1000, "float32")
with owner:
    source = cupy.zeros(1000, "float32")
worker.wait_event(owner.record())
with worker:
    double((4,), (256,), (source, output, 1000))        # first
if FIXED:
    owner.wait_event(worker.record())
del source                                              # then
with owner:
    cupy.ones(1000, "float32")                          # the same memory
cupy.cuda.Device().synchronize()
