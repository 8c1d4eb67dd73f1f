"""Calls of the driver that fewer programs make, without a GPU: wrong programs, and their right twins."""
from __future__ import annotations

import pytest
from checked_programs import DRIVER

pytestmark = pytest.mark.simulator

START = DRIVER + """
fixed = "fixed" in sys.argv
a, b = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
p, q = ok(cuda.cuMemAlloc(4096)), ok(cuda.cuMemAlloc(4096))
event = ok(cuda.cuEventCreate(0))

def order():
    if fixed:
        ok(cuda.cuEventRecord(event, a))
        ok(cuda.cuStreamWaitEvent(b, event, 0))
"""
BATCH = START + """
order_of = cuda.CUmemcpySrcAccessOrder(int(sys.argv[1]))
attributes = cuda.CUmemcpyAttributes()
attributes.srcAccessOrder = order_of
targets = [cuda.CUdeviceptr(int(q)), cuda.CUdeviceptr(int(q) + 64)]
sources = [cuda.CUdeviceptr(int(p)), cuda.CUdeviceptr(int(p) + 64)]
result = cuda.cuMemcpyBatchAsync(targets, sources, [64, 64], 2, [attributes], [0], 1, a)
assert int(result[0]) == 0, result
order()
ok(cuda.cuMemsetD8Async(q if "target" in sys.argv else p, 1, 128, b))
ok(cuda.cuCtxSynchronize())
"""
PLANES = START + """
device = cuda.CUmemorytype.CU_MEMORYTYPE_DEVICE
planes = cuda.CUDA_MEMCPY3D()
planes.srcMemoryType = planes.dstMemoryType = device
planes.srcDevice, planes.dstDevice = p, q
planes.srcPitch = planes.dstPitch = planes.WidthInBytes = 16
planes.srcHeight = planes.dstHeight = planes.Height = planes.Depth = 4
ok(cuda.cuMemcpy3DAsync(planes, a))
order()
ok(cuda.cuMemsetD8Async(q if "target" in sys.argv else p, 1, 256, b))
ok(cuda.cuMemsetD8Async(int(q) + 256, 1, 64, b))                # beside the cube
ok(cuda.cuCtxSynchronize())
"""
RACES = {"source": [("read/write", True)], "target": [("write/write", True)]}


@pytest.mark.parametrize("which", RACES)
@pytest.mark.parametrize("order", ["1", "3"])
def test_a_batch_of_copies(checked, order, which):
    run = checked(BATCH, order, which)
    assert run.pairs == RACES[which], run.stderr
    assert checked(BATCH, order, which, "fixed").pairs == []


@pytest.mark.parametrize("which", RACES)
def test_copies_of_planes(checked, which):
    run = checked(PLANES, which)
    assert run.pairs == RACES[which], run.stderr
    assert checked(PLANES, which, "fixed").pairs == []
