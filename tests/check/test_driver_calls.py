"""Calls of the driver that fewer programs make, without a GPU: wrong programs, and their right twins."""
from __future__ import annotations

import pytest
from checked_programs import DRIVER
from cuda.bindings import driver

import xlogmem.check.cudart

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
# With attributes: one copy (of CUDA 13.2), a batch of planes, or one of planes.
ATTRIBUTES = START + """
order_of, way = cuda.CUmemcpySrcAccessOrder(int(sys.argv[1])), sys.argv[2]
attributes = cuda.CUmemcpyAttributes()
attributes.srcAccessOrder = order_of

def planes(width=16):
    made = cuda.CUDA_MEMCPY3D_BATCH_OP()
    for side, address in ((made.src, p), (made.dst, q)):
        side.type = cuda.CUmemcpy3DOperandType.CU_MEMCPY_OPERAND_TYPE_POINTER
        side.op.ptr.ptr, side.op.ptr.rowLength = address, 32
    made.extent.width, made.extent.height, made.extent.depth = width, 4, 1
    made.srcAccessOrder = order_of
    return made

if way == "one":
    copy = lambda size=16: cuda.cuMemcpyWithAttributesAsync(q, p, size, attributes, a)
elif way == "batch":
    copy = lambda size=16: cuda.cuMemcpy3DBatchAsync(1, [planes(size)], 0, a)
else:
    copy = lambda size=16: cuda.cuMemcpy3DWithAttributesAsync(planes(size), 0, a)
assert int(copy(1 << 30)[0]) == 1
assert int(cuda.cuMemcpy3DBatchAsync(1, [planes(0)], 0, a)[0]) == 1
assert int(cuda.cuMemcpy3DBatchAsync(1, [planes()], 0, 0)[0]) == 1             # the default stream
ok(cuda.cuMemsetD8(p, 5, 4096))
ok(cuda.cuCtxSynchronize())
result = copy()
assert int(result[0]) == 0, result
order()
ok(cuda.cuMemsetD8Async(q if "target" in sys.argv else p, 1, 8, b))
ok(cuda.cuMemsetD8Async(int(q) + 16, 1, 16, b))                                # a gap, or behind the copy
ok(cuda.cuCtxSynchronize())
host = ctypes.create_string_buffer(16)
ok(cuda.cuMemcpyDtoH(ctypes.addressof(host), q, 16))
assert host.raw[8:] == b"\\5" * 8
"""
MANAGED = START + """
m = ok(cuda.cuMemAllocManaged(4096, 1))
ok(cuda.cuMemsetD8Async(m, 1, 4096, a))
order()
runtime = ctypes.CDLL("libcudart.so." + sys.argv[1])
place = (0,) if sys.argv[1] == "12" else (ctypes.c_uint64(1), 0)        # a device, or a location's type and number
given, value = (ctypes.c_uint64(int(m)), ctypes.c_size_t(4096)), ctypes.c_int(7)
assert runtime.cudaMemAdvise(*given, 3, place[0]) == 0
assert runtime.cudaMemPrefetchAsync(*given, *place, ctypes.c_void_p(int(b))) == 0
assert runtime.cudaStreamAttachMemAsync(ctypes.c_void_p(int(b)), *given, 1) == 0
for attribute in (2, 4):
    assert runtime.cudaMemRangeGetAttribute(ctypes.byref(value), ctypes.c_size_t(4), attribute, *given) == 0
    assert value.value == 0
assert runtime.cudaMemRangeGetAttributes((ctypes.c_void_p * 1)(ctypes.addressof(value)), (ctypes.c_size_t * 1)(4),
                                         (ctypes.c_int * 1)(1), ctypes.c_size_t(1), *given) == 0
if "reads" in sys.argv:
    ok(cuda.cuMemcpyDtoDAsync(p, m, 4096, b))
ok(cuda.cuCtxSynchronize())
"""
RACES = {"source": [("read/write", True)], "target": [("write/write", True)]}


@pytest.mark.parametrize("which", RACES)
@pytest.mark.parametrize("order", ["1", "3"])
def test_a_batch_of_copies(checked, order, which):
    run = checked(BATCH, order, which)
    assert run.pairs == RACES[which], run.stderr
    assert checked(BATCH, order, which, "fixed").pairs == []


def ways() -> list[str]:
    newer = hasattr(driver, "cuMemcpyWithAttributesAsync")
    return ["one", "batch", "planes"] if newer else ["batch"]


@pytest.mark.parametrize("which", RACES)
@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("order", ["1", "3"])
def test_copies_with_attributes(checked, order, way, which):
    newest = {"XLOGMEM_SIM": "version=13050"} if way != "batch" else {}
    run = checked(ATTRIBUTES, order, way, which, **newest)
    assert run.pairs == RACES[which], run.stderr
    run = checked(ATTRIBUTES, order, way, which, "fixed", **newest)
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


@pytest.mark.parametrize("which", RACES)
def test_copies_of_planes(checked, which):
    run = checked(PLANES, which)
    assert run.pairs == RACES[which], run.stderr
    assert checked(PLANES, which, "fixed").pairs == []


@pytest.mark.parametrize("major", xlogmem.check.cudart.MAJORS)
def test_a_prefetch_is_no_access(checked, major):
    """What the stream does to the memory afterwards is one."""
    run = checked(MANAGED, str(major))
    assert (run.pairs, run.returncode) == ([], 0), run.stderr
    assert checked(MANAGED, str(major), "reads").pairs == [("write/read", True)]
    assert checked(MANAGED, str(major), "reads", "fixed").pairs == []
