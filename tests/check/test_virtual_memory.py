"""Virtual memory without a GPU: wrong programs, and their right twins."""
from __future__ import annotations

import pytest
from checked_libraries import needs, torch_for_cuda
from checked_programs import DRIVER

pytestmark = pytest.mark.simulator

START = DRIVER + """
fixed = "fixed" in sys.argv
a, b = (ok(cuda.cuStreamCreate(1)) for _ in range(2))
properties = cuda.CUmemAllocationProp()
properties.type = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
properties.location.id = 0
PAGE = ok(cuda.cuMemGetAllocationGranularity(
    properties, cuda.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))

def access(flags="READWRITE", device=0):
    made = cuda.CUmemAccessDesc()
    made.location.type, made.location.id = properties.location.type, device
    made.flags = getattr(cuda.CUmemAccess_flags, "CU_MEM_ACCESS_FLAGS_PROT_" + flags)
    return made

def mapped(address, pages=1):
    handle = ok(cuda.cuMemCreate(pages * PAGE, properties, 0))
    ok(cuda.cuMemMap(address, pages * PAGE, 0, handle, 0))
    ok(cuda.cuMemSetAccess(address, pages * PAGE, [access()], 1))
    return handle

def fill(address, value, count, stream):
    ok(cuda.cuMemsetD8Async(address, value, count, stream))

def bytes_of(address, count):
    host = ctypes.create_string_buffer(count)
    ok(cuda.cuMemcpyDtoH(ctypes.addressof(host), address, count))
    return host.raw

def error(result):
    return result[0].name.removeprefix("CUDA_ERROR_")

space = int(ok(cuda.cuMemAddressReserve(8 * PAGE, 0, 0, 0)))
"""
UNORDERED = START + """
mapped(space, 2)
fill(space, 1, PAGE, a)
if fixed:
    ok(cuda.cuStreamSynchronize(a))
fill(space, 2, PAGE, b)
ok(cuda.cuCtxSynchronize())
assert bytes_of(space, 4) == b"\\2" * 4
"""
SEVERAL = START + """
mapped(space)
mapped(space + PAGE)
fill(space + PAGE, 1, 64, a)
if fixed:
    ok(cuda.cuStreamSynchronize(a))
fill(space, 2, 2 * PAGE, b)                             # both
ok(cuda.cuCtxSynchronize())
assert bytes_of(space, 2 * PAGE) == b"\\2" * (2 * PAGE)
"""
UNMAPPED = START + """
handle = mapped(space)
fill(space, 1, PAGE, a)
if fixed:
    ok(cuda.cuStreamSynchronize(a))
ok(cuda.cuMemUnmap(space, PAGE))
ok(cuda.cuMemRelease(handle))
ok(cuda.cuMemAddressFree(space, 8 * PAGE))
ok(cuda.cuCtxSynchronize())
"""
MAPPED_ANEW = START + """
handle = mapped(space)
fill(space, 1, PAGE, a)
ok(cuda.cuStreamSynchronize(a))
ok(cuda.cuMemUnmap(space, PAGE))
ok(cuda.cuMemMap(space + PAGE, PAGE, 0, handle, 0))     # the same memory, elsewhere
ok(cuda.cuMemSetAccess(space + PAGE, PAGE, [access()], 1))
assert bytes_of(space + PAGE, PAGE) == b"\\1" * PAGE
mapped(space)
fill(space, 2, PAGE, a)
if fixed:
    ok(cuda.cuStreamSynchronize(a))
fill(space, 3, PAGE, b)
ok(cuda.cuCtxSynchronize())
assert bytes_of(space + PAGE, PAGE) == b"\\1" * PAGE
"""
REFUSED = START + """
free_before = cuda.cuMemGetInfo()[1]
handle = mapped(space, 2)
assert free_before - cuda.cuMemGetInfo()[1] == 2 * PAGE
other = ok(cuda.cuMemCreate(PAGE, properties, 0))
wrong = cuda.CUmemAllocationProp()
outside = space + 8 * PAGE
for result in [
    cuda.cuMemAddressReserve(0, 0, 0, 0),
    cuda.cuMemAddressReserve(PAGE + 1, 0, 0, 0),
    cuda.cuMemAddressReserve(PAGE, 3, 0, 0),
    cuda.cuMemAddressReserve(PAGE, 0, 0, 1),
    cuda.cuMemAddressFree(space, PAGE),
    cuda.cuMemAddressFree(space, 8 * PAGE),             # it is mapped
    cuda.cuMemCreate(PAGE, wrong, 0),
    cuda.cuMemCreate(PAGE + 512, properties, 0),
    cuda.cuMemCreate(0, properties, 0),
    cuda.cuMemMap(space, PAGE, 0, other, 0),            # mapped already
    cuda.cuMemMap(outside, PAGE, 0, other, 0),
    cuda.cuMemMap(space + 4 * PAGE, 2 * PAGE, 0, other, 0),
    cuda.cuMemMap(space + 4 * PAGE, PAGE, PAGE, other, 0),
    cuda.cuMemMap(space + 4 * PAGE + 4096, PAGE, 0, other, 0),
    cuda.cuMemMap(space + 4 * PAGE, PAGE, 0, 12345, 0),
    cuda.cuMemUnmap(space, PAGE),                       # a part
    cuda.cuMemUnmap(space + 4 * PAGE, PAGE),
    cuda.cuMemSetAccess(space, PAGE, [access()], 1),
    cuda.cuMemSetAccess(space, 3 * PAGE, [access()], 1),
    cuda.cuMemGetAccess(access().location, space + 4 * PAGE),
    cuda.cuMemRelease(12345),
    cuda.cuMemRetainAllocationHandle(space + 4 * PAGE),
    cuda.cuMemsetD8Async(space + 4 * PAGE, 0, 64, a),   # nothing is there
    cuda.cuMemsetD8Async(space + PAGE, 0, PAGE + 64, a),
    cuda.cuMemFree(space),
    cuda.cuMemFreeAsync(space, a),
]:
    assert error(result) == "INVALID_VALUE", result
assert error(cuda.cuMemSetAccess(space, 2 * PAGE, [access(device=77)], 1)) == "INVALID_DEVICE"
ok(cuda.cuMemSetAccess(space, 2 * PAGE, [access("READ")], 1))
assert ok(cuda.cuMemGetAccess(access().location, space)) == 1
assert error(cuda.cuMemsetD8Async(space, 0, 64, a)) == "INVALID_VALUE"
bytes_of(space, 64)
ok(cuda.cuMemSetAccess(space, 2 * PAGE, [access("NONE")], 1))
assert error(cuda.cuMemcpyDtoDAsync(int(ok(cuda.cuMemAlloc(64))), space, 64, a)) == "INVALID_VALUE"
same = ok(cuda.cuMemRetainAllocationHandle(space + PAGE))
assert int(same) == int(handle)
assert ok(cuda.cuMemGetAllocationPropertiesFromHandle(same)).location.id == 0
for result in [cuda.cuMemExportToShareableHandle(
        handle, cuda.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)]:
    assert error(result) == "NOT_SUPPORTED", result
for one in (handle, same, other):
    ok(cuda.cuMemRelease(one))
assert error(cuda.cuMemRelease(handle)) == "INVALID_VALUE"
ok(cuda.cuMemUnmap(space, 2 * PAGE))
assert cuda.cuMemGetInfo()[1] >= free_before - PAGE
huge = cuda.cuMemGetInfo()[2] // PAGE * PAGE + PAGE
assert error(cuda.cuMemCreate(huge, properties, 0)) == "OUT_OF_MEMORY"
near = int(ok(cuda.cuMemAddressReserve(PAGE, 0, space + 8 * PAGE, 0)))
assert near == space + 8 * PAGE                         # as the program has wished
"""


@pytest.mark.parametrize(("program", "pair"), [
    pytest.param(UNORDERED, "write/write", id="unordered"), pytest.param(SEVERAL, "write/write", id="several-mappings"),
    pytest.param(UNMAPPED, "write/free", id="unmapped"), pytest.param(MAPPED_ANEW, "write/write", id="mapped-anew")])
def test_mapped_memory_is_memory_of_streams(checked, program, pair):
    run = checked(program)
    assert run.pairs == [(pair, True)], run.stderr
    run = checked(program, "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


def test_what_is_refused(checked):
    run = checked(REFUSED)
    assert (run.pairs, run.returncode) == ([], 0), run.stderr
    assert "cuMemExportToShareableHandle is not simulated" in run.stderr


RESOURCE = """
import sys
from cuda.core import Device, VirtualMemoryResource, VirtualMemoryResourceOptions
fixed = "fixed" in sys.argv
device = Device()
device.set_current()
a, b = device.create_stream(), device.create_stream()
memory = VirtualMemoryResource(device, config=VirtualMemoryResourceOptions(handle_type=None))
buffer = memory.allocate(4 << 20, stream=a)
buffer.fill(1, stream=a)
a.sync()
buffer = memory.modify_allocation(buffer, 8 << 20)
buffer.fill(2, stream=a)
if fixed:
    a.sync()
buffer.fill(3, stream=b)
device.sync()
"""
SEGMENTS = """
import sys, torch
fixed = "fixed" in sys.argv
side = torch.cuda.Stream()
made = [torch.empty(30 << 20, device="cuda", dtype=torch.uint8) for _ in range(2)]
assert all(one["is_expandable"] for one in torch.cuda.memory_snapshot())
torch.cuda.synchronize()
host = torch.ones(30 << 20, dtype=torch.uint8).pin_memory()
made[0].copy_(host, non_blocking=True)
if fixed:
    side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    made[1].copy_(made[0])
torch.cuda.synchronize()
assert bool((made[1].cpu() == 1).all())
del made
torch.cuda.empty_cache()                                # unmaps
"""


@needs("cuda.core.graph")
def test_cuda_cores_resource(checked):
    assert checked(RESOURCE).pairs == [("write/write", True)]
    run = checked(RESOURCE, "fixed")
    assert (run.pairs, run.returncode) == ([], 0), run.stderr


@pytest.mark.skipif(not torch_for_cuda(), reason="needs a checked library: torch, for CUDA")
def test_pytorchs_expandable_segments(checked):
    given = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert checked(SEGMENTS, **given).pairs == [("write/read", True)]
    run = checked(SEGMENTS, "fixed", **given)
    assert (run.pairs, run.returncode) == ([], 0), run.stderr
