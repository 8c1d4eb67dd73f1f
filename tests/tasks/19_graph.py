from cuda.bindings import driver as cuda

import xlogmem

runtime = xlogmem.get_runtime()
load, work = runtime.acquire_stream(), runtime.acquire_stream()
x, y = runtime.allocate(1024, load), runtime.allocate(1024, work)
with xlogmem.use(load, write=x):
    cuda.cuMemsetD8Async(x.ptr, 0, 1024, load.handle)
with xlogmem.capture(load) as graph, xlogmem.use(load, write=x):
    cuda.cuMemsetD8Async(x.ptr, 1, 1024, load.handle)
graph.launch(load)
with xlogmem.use(work, read=x, write=y):
    cuda.cuMemcpyDtoDAsync(y.ptr, x.ptr, 1024, work.handle)
x.free()                                # the graph holds the memory, and may be launched again
graph.launch(load)
graph.close()
