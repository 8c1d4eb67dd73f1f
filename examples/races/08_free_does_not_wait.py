"""cuMemFree of stream-ordered memory waits for nothing.

Threads: https://github.com/kokkos/kokkos/issues/9307, https://github.com/cupy/cupy/issues/3777 (comments)
Wrong:   cudaFree used to wait for the device, and programs came to depend on that.  For memory of cudaMallocAsync it
         never does: callers have to make sure that all accesses are done.
Repair:  Synchronize with the stream before, or free with cudaFreeAsync on the stream of the last use.
"""
import sys

from driver import begin, cuda, ok, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 16

begin()
worker = stream()
view = ok(cuda.cuMemAllocAsync(SIZE, worker))
ok(cuda.cuMemsetD8Async(view, 1, SIZE, worker))         # first
if FIXED:
    ok(cuda.cuStreamSynchronize(worker))
ok(cuda.cuMemFree(view))                                # then
