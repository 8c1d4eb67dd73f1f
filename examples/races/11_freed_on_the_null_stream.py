"""A library frees its temporary memory on the default stream, and works on the caller's.

Threads: https://github.com/Genesis-Embodied-AI/quadrants/pull/407 (review comments),
         https://github.com/NVIDIA/physicsnemo/pull/1771
Wrong:   A parameter block is allocated, filled and freed on stream 0, while the kernel that reads it runs on the
         caller's stream.  With blocking streams the default stream keeps that in order; a stream of PyTorch is a
         non-blocking one, and the memory is gone while the kernel reads.
Repair:  Free on the stream of the last use.
"""
import sys

from driver import begin, cuda, ok, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 12

begin()
caller = stream()
results = ok(cuda.cuMemAlloc(SIZE))
parameters = ok(cuda.cuMemAllocAsync(SIZE, 0))
ok(cuda.cuMemcpyHtoDAsync(parameters, bytes(SIZE), SIZE, 0))
ok(cuda.cuStreamSynchronize(0))
ok(cuda.cuMemcpyDtoDAsync(results, parameters, SIZE, caller))   # first
ok(cuda.cuMemFreeAsync(parameters, caller if FIXED else 0))     # then
ok(cuda.cuCtxSynchronize())
