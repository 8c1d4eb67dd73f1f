"""Short names for the driver calls that the tests of the simulator use; errors raise."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from children import variables
from cuda.bindings import driver

from xlogmem import sim

SCHEDULES = [("eager", 0), ("min", 0), ("max", 0), ("seeded", 1), ("seeded", 2), ("seeded", 3)]
NBYTES = 64
NONE, READ, READWRITE = (driver.CUmemAccess_flags(flags) for flags in (0, 1, 3))
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry xlogmem_delay(.param .u64 nanoseconds) { ret; }
.visible .entry xlogmem_fill_u32(.param .u64 dst, .param .u32 value, .param .u32 count) { ret; }
.visible .entry xlogmem_copy_u32(.param .u64 dst, .param .u64 src, .param .u32 count) { ret; }
.visible .entry xlogmem_add_u32(.param .u64 dst, .param .u32 value, .param .u32 count) { ret; }
.visible .entry xlogmem_count_unequal_u32(
    .param .u64 result, .param .u64 src, .param .u32 value, .param .u32 count
) { ret; }
.visible .entry unknown_to_the_simulator(.param .u64 p) { ret; }
\0"""


class CudaError(Exception):
    def __init__(self, code):
        super().__init__(code.name)
        self.code = int(code)


def ok(result):
    """The values of a call that has to succeed."""
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise CudaError(code)
    return values[0] if len(values) == 1 else values or None


def code(result):
    """The CUresult of a call, as a number."""
    return int(result[0])


def python(*arguments, **environment):
    """Another Python process that finds the same xlogmem; a PYTHONPATH comes first.  See `children.variables`."""
    path = [environment.pop("PYTHONPATH", None), str(Path(sim.__file__).parents[2]), os.environ.get("PYTHONPATH")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    return subprocess.run([sys.executable, *arguments], env=variables(**environment), capture_output=True, text=True,
                          timeout=60, check=False)


def install():
    return sim.install()


def retain(device=0):
    ok(driver.cuInit(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(context))
    return context


def release(device=0):
    ok(driver.cuDevicePrimaryCtxRelease(device))


# Handles and addresses that the tests were given; clean_up() ends those that are still alive.
_streams, _events, _memory = set(), set(), set()


def stream(flags=1):
    s = ok(driver.cuStreamCreate(flags))
    _streams.add(int(s))
    return s


def event(flags=2):
    e = ok(driver.cuEventCreate(flags))
    _events.add(int(e))
    return e


def stream_id(s):
    return int(ok(driver.cuStreamGetId(s)))


def try_alloc(s, nbytes=NBYTES):
    """The CUresult of an allocation that may fail."""
    result = driver.cuMemAllocAsync(nbytes, s)
    _memory.add(int(result[1] or 0))
    return code(result)


def alloc(s, nbytes=NBYTES):
    p = int(ok(driver.cuMemAllocAsync(nbytes, s)))
    _memory.add(p)
    return p


def alloc_ordinary(nbytes=NBYTES):
    """cuMemAlloc, in the current context."""
    p = int(ok(driver.cuMemAlloc(nbytes)))
    _memory.add(p)
    return p


def clean_up():
    """What a failing or a deliberately wrong test left alive."""
    for handle in _streams:
        driver.cuStreamDestroy(driver.CUstream(handle))
    for handle in _events:
        driver.cuEventDestroy(driver.CUevent(handle))
    for address in _memory:
        driver.cuMemFree(address)
    for s in (_streams, _events, _memory):
        s.clear()


def free(p, s):
    ok(driver.cuMemFreeAsync(p, s))


def fill(p, value, s, nbytes=NBYTES):
    ok(driver.cuMemsetD8Async(p, value, nbytes, s))


def order(later, earlier):
    """`later` waits for everything queued on `earlier`."""
    e = event()
    ok(driver.cuEventRecord(e, earlier))
    ok(driver.cuStreamWaitEvent(later, e, 0))
    ok(driver.cuEventDestroy(e))


def sync(s):
    ok(driver.cuStreamSynchronize(s))


class Pinned:
    """Page-locked host memory: a copy to it is asynchronous."""

    def __init__(self, nbytes=NBYTES):
        self.address, self.nbytes = int(ok(driver.cuMemHostAlloc(nbytes, 0))), nbytes
        ctypes.memset(self.address, 0, nbytes)

    def read_from(self, p, s, nbytes=None):
        ok(driver.cuMemcpyDtoHAsync(self.address, p, nbytes or self.nbytes, s))

    def bytes(self):
        return ctypes.string_at(self.address, self.nbytes)

    def close(self):
        ok(driver.cuMemFreeHost(self.address))


def kernel(name):
    return ok(driver.cuModuleGetFunction(ok(driver.cuModuleLoadData(PTX)), name.encode()))


def launch(function, s, values, types, grid=(1, 1, 1), block=(32, 1, 1)):
    return driver.cuLaunchKernel(function, *grid, *block, 0, s, (tuple(values), tuple(types)), 0)


def launch_host(s, function):
    callback = HOST_FUNCTION(lambda _: function())
    pointer = driver.CUhostFn(_ptr=ctypes.addressof(ctypes.c_void_p.from_buffer(callback)))
    ok(driver.cuLaunchHostFunc(s, pointer, 0))
    return callback


def default_pool(device):
    return ok(driver.cuDeviceGetDefaultMemPool(device))


def location(device):
    where = driver.CUmemLocation()
    where.type, where.id = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, device
    return where


def set_access(pool, device, flags):
    wanted = driver.CUmemAccessDesc()
    wanted.location, wanted.flags = location(device), flags
    return code(driver.cuMemPoolSetAccess(pool, [wanted], 1))
