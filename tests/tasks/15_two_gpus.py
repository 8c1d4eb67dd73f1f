from cuda.bindings import driver as cuda

import xlogmem

first, second = xlogmem.get_runtime(0), xlogmem.get_runtime(1)
xlogmem.enable_peer_access(1, 0)
load, work = first.acquire_stream(), second.acquire_stream()
x, y = first.allocate(1000, load), second.allocate(1000, work)
with xlogmem.use(load, write=x):
    cuda.cuMemsetD8Async(x.ptr, 7, 1000, load.handle)
with xlogmem.use(work, read=x, write=y):
    cuda.cuMemcpyAsync(y.ptr, x.ptr, 1000, work.handle)
