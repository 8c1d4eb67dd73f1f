"""Programs for the check: those of xlogmem are wrong as they are, and repaired with the argument `fixed`."""

# What programs of cuda.bindings begin with.
DRIVER = """
import ctypes, os, sys, threading
from cuda.bindings import driver as cuda

def ok(result):
    assert int(result[0]) == 0, result[0]
    return result[1] if len(result) > 1 else None

ok(cuda.cuInit(0))
ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))
"""

# `a` and `b` are ordered by the program itself, of which xlogmem knows nothing.
WAIT = """
event = cuda.cuEventCreate(0)[1]
cuda.cuEventRecord(event, a.handle)
cuda.cuStreamWaitEvent(b.handle, event, 0)
"""
START = """
import sys
from contextlib import nullcontext
import xlogmem
from cuda.bindings import driver as cuda

fixed = "fixed" in sys.argv
resources = {"pool": lambda: xlogmem.PoolMemoryResource(initial_pool_size=2048, maximum_pool_size=2048),
             "async": xlogmem.AsyncMemoryResource, "direct": xlogmem.DirectMemoryResource}
runtime = xlogmem.DeviceRuntime(resource=resources[sys.argv[1]]())
a, b = runtime.acquire_stream(), runtime.acquire_stream()

def fill(block, stream):
    assert not int(cuda.cuMemsetD8Async(block.ptr, 7, 1024, stream.handle)[0])

def copy(target, source, stream):
    assert not int(cuda.cuMemcpyDtoDAsync(target.ptr, source.ptr, 1024, stream.handle)[0])

def synchronize(stream):
    assert not int(cuda.cuStreamSynchronize(stream.handle)[0])

block, other = runtime.allocate(1024, a, tag="join \\"keys\\" ü"), runtime.allocate(1024, b)
"""
UNORDERED = START + """
with xlogmem.use(a, write=block):
    fill(block, a)
with xlogmem.use(b, read=block, write=other) if fixed else nullcontext():
    copy(other, block, b)
"""
ELSEWHERE = START + """
with xlogmem.use(a, write=block):
    fill(block, a)
for _ in range(2):
    with xlogmem.use(b, read=block, write=other):       # declared
        copy(other, block, b if fixed else a)
"""
REUSED = START + """
fill(block, a)
""" + WAIT + """
with xlogmem.use(b, read=block, write=other) if fixed else nullcontext():
    copy(other, block, b)
address = block.ptr
block.free()
following = runtime.allocate(1024, a)
assert following.ptr == address
fill(following, a)
"""
GONE = START + """
fill(block, a)
address = block.ptr
if not fixed:
    block.free()
assert not int(cuda.cuMemsetD8Async(address, 7, 1024, a.handle)[0])
if fixed:
    block.free()
"""
UNDECLARED = START + """
with xlogmem.use(b, write=other):
    fill(other, b)
for _ in range(2):
    synchronize(b)
    with xlogmem.use(a, write=other) if fixed else nullcontext():
        fill(other, a)
    synchronize(a)
"""
WRITTEN = START + """
with xlogmem.use(a, **{"write" if fixed else "read": block}):      # declared
    fill(block, a)
"""
