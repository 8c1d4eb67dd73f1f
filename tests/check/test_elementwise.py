"""Launches of CuPy's element-wise kernels, in programs under a check: judged by the bytes of their arrays."""
from __future__ import annotations

import pytest
from checked_programs import DRIVER

# A kernel that is built as CuPy's are: an array of one dimension, a number, and the shape.
FILL = DRIVER + r'''
PTX = b""".version 8.0
.target sm_90
.address_size 64
.visible .entry NAME(.param .f32 x, .param .align 8 .b8 y[32], .param .align 8 .b8 ind[24])
{
    .reg .pred %p<2>;
    .reg .b32 %r<8>;
    .reg .b64 %d<8>;
    .reg .f32 %f<2>;
    ld.param.f32 %f1, [x];
    ld.param.u64 %d1, [y];
    ld.param.u64 %d2, [y+24];
    ld.param.u32 %r1, [ind];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p1, %r5, %r1;
    @%p1 bra $done;
    cvt.s64.s32 %d3, %r5;
    mad.lo.s64 %d4, %d3, %d2, %d1;
    st.global.f32 [%d4], %f1;
$done:
    ret;
}
""".replace(b"NAME", sys.argv[1].encode())
a, b, c = (ok(cuda.cuStreamCreate(1)) for _ in range(3))
event = ok(cuda.cuEventCreate(0))
p = int(ok(cuda.cuMemAlloc(4096)))
fill = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX)), sys.argv[1].encode()))

def launch(stream, address, count, stride=4):
    y, ind = (ctypes.c_int64 * 4)(address, count, count, stride), (ctypes.c_int64 * 3)(count, count, 0)
    x = ctypes.c_float(1)
    values = (ctypes.c_void_p * 3)(*map(ctypes.addressof, (x, y, ind)))
    ok(cuda.cuLaunchKernel(fill, 8, 1, 1, 128, 1, 1, 0, stream, ctypes.addressof(values), 0))

launch(a, p, 1024)                                      # all of it
ok(cuda.cuEventRecord(event, a))
ok(cuda.cuStreamWaitEvent(b, event, 0))
launch(b, p, 100)                                       # the begin
if sys.argv[2] == "right":
    ok(cuda.cuStreamWaitEvent(c, event, 0))
launch(c, p + 2048, 256, 8)                             # every second element of the other half
'''


@pytest.mark.simulator
def test_launches_on_views_are_judged_by_their_bytes(checked):
    assert checked(FILL, "cupy_fill", "wrong").pairs == [("write/write", True)]
    assert checked(FILL, "cupy_fill", "right").pairs == []


@pytest.mark.simulator
@pytest.mark.parametrize("which", ["wrong", "right"])
def test_of_other_kernels_the_first_thread_alone_is_known(checked, which):
    assert checked(FILL, "my_fill", which).pairs == [("write/write", False)]
