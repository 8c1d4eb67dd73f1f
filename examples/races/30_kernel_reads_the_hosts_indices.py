"""A kernel reads indices in page-locked memory, and the host has the next ones there before it does.

Thread:  https://github.com/NVIDIA/TensorRT-LLM/pull/16088
Wrong:   A kernel gathers pages by indices that the host keeps in one page-locked buffer.  The kernel reads the buffer
         when it runs, not when it is launched; the host, a step ahead, has written the next step's indices by then.
Repair:  A buffer for each step in flight.
"""
import ctypes
import sys

import numpy
from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv
COUNT = 256
GATHER = b"""
.version 7.0
.target sm_50
.address_size 64
.visible .entry gather(.param .u64 pages, .param .u64 indices)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<7>;
    ld.param.u64 %rd1, [pages];
    ld.param.u64 %rd2, [indices];
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd5, %r1, 4;
    add.s64 %rd4, %rd4, %rd5;
    add.s64 %rd3, %rd3, %rd5;
    ld.global.u32 %r2, [%rd4];
    st.global.u32 [%rd3], %r2;
    ret;
}
"""

begin()
main = stream()
gather = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(GATHER)), b"gather"))
pages = ok(cuda.cuMemAlloc(4 * COUNT))
buffers = [page_locked(4 * COUNT).view(numpy.int32) for _ in range(2)]

for step in range(2):
    indices = buffers[step if FIXED else 0]
    indices[:] = numpy.arange(COUNT) + step             # then: the second step
    arguments = (int(pages), indices.ctypes.data), (ctypes.c_void_p, ctypes.c_void_p)
    ok(cuda.cuLaunchKernel(gather, 1, 1, 1, COUNT, 1, 1, 0, main, arguments, 0))        # first
ok(cuda.cuStreamSynchronize(main))
