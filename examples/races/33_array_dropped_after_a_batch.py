"""A batch of copies reads an ordinary array in the order of its stream; the array has other contents by then.

Thread:  https://github.com/facebookincubator/velox/issues/17163
Wrong:   Columns go to the device from Arrow's buffers, which are released when the function has returned.  With CUDA 12
         it had read them by then.  With CUDA 13 it copies by a batch, which reads them when the stream gets there.
Repair:  Synchronize the stream before the buffers are released.
"""
import sys

import numpy
from driver import begin, cuda, ok, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 14

begin()
main = stream()
order = cuda.CUmemcpyAttributes()
order.srcAccessOrder = cuda.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
column, buffer = ok(cuda.cuMemAlloc(SIZE)), numpy.ones(SIZE, numpy.uint8)
source = cuda.CUdeviceptr(buffer.ctypes.data)
ok(cuda.cuMemcpyBatchAsync([column], [source], [SIZE], 1, [order], [0], 1, main))       # first
if FIXED:
    ok(cuda.cuStreamSynchronize(main))
buffer[:] = 2                                           # of its next owner
ok(cuda.cuStreamSynchronize(main))                      # then: by now the buffer has changed
