import ctypes

import numpy
from cuda.bindings import driver as cuda

import xlogmem

runtime = xlogmem.get_runtime()
cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(0)[1])
stream = runtime.acquire_stream()
pinned = xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource())
staging = runtime.allocate(4000, stream, resource=pinned)
array = numpy.frombuffer((ctypes.c_char * 4000).from_address(staging.ptr), "f4")
for number in range(3):
    x = runtime.allocate(4000, stream)
    with xlogmem.use(xlogmem.host, write=staging):
        array[:] = number
    with xlogmem.use(stream, read=staging, write=x):
        cuda.cuMemcpyHtoDAsync(x.ptr, staging.ptr, 4000, stream.handle)
    x.free()
