"""Arrays that are worked on in parts: streams are handed the same pointers, and a number to add to them."""
from __future__ import annotations

import pytest
from checked_programs import DRIVER

pytestmark = pytest.mark.simulator

PTX = r'''
.version 7.0
.target sm_50
.address_size 64
.visible .entry twice(.param .u64 data, .param .u32 first)
{
    .reg .b32 %value, %first;
    .reg .b64 %data, %offset;
    ld.param.u64 %data, [data];
    ld.param.u32 %first, [first];
    mul.wide.u32 %offset, %first, 4;
    add.u64 %data, %data, %offset;
    ld.global.u32 %value, [%data];
    shl.b32 %value, %value, 1;
    st.global.u32 [%data], %value;
    ret;
}
'''
PROGRAM = DRIVER + f"PTX = {PTX!r}" + '''
streams = [ok(cuda.cuStreamCreate(1)) for _ in range(4)]
twice = ok(cuda.cuModuleGetFunction(ok(cuda.cuModuleLoadData(PTX.encode() + bytes(1))), b"twice"))
COUNT = 1024
data, other, host = (*(ok(cuda.cuMemAlloc(4 * 4 * COUNT)) for _ in range(2)), ok(cuda.cuMemAllocHost(4 * 4 * COUNT)))
parts = [0, 0, 0, 0] if "same" in sys.argv else [3, 0, 1, 2] if "backwards" in sys.argv else [0, 1, 2, 3]
for stream, part in zip(streams, parts):
    first = part * COUNT
    ok(cuda.cuMemcpyHtoDAsync(int(data) + 4 * first, int(host) + 4 * first, 4 * COUNT, stream))
    ok(cuda.cuLaunchKernel(twice, 1, 1, 1, 32, 1, 1, 0, stream, ((data, first), (ctypes.c_void_p, ctypes.c_uint)), 0))
    ok(cuda.cuLaunchKernel(twice, 1, 1, 1, 32, 1, 1, 0, stream, ((other, first), (ctypes.c_void_p, ctypes.c_uint)), 0))
    ok(cuda.cuMemcpyDtoHAsync(int(host) + 4 * first, int(data) + 4 * first, 4 * COUNT, stream))
ok(cuda.cuCtxSynchronize())
'''


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_parts_of_an_array_on_several_streams_are_no_certain_finding(checked, order):
    run = checked(PROGRAM, order)
    assert run.returncode == 0, run.stderr
    assert all(not certain for _, certain in run.pairs)


def test_the_same_part_on_several_streams_is_one(checked):
    run = checked(PROGRAM, "same")
    assert run.returncode == 1, run.stderr
    assert ("write/write", True) in run.pairs
