from cuda.bindings import driver as cuda

import xlogmem

runtime = xlogmem.get_runtime()
load, work = runtime.acquire_stream(), runtime.acquire_stream()
x = runtime.allocate(1024, load)
with xlogmem.use(load, write=x):
    cuda.cuMemsetD8Async(x.ptr, 0, 1024, load.handle)
captured = runtime.acquire_stream()
cuda.cuStreamBeginCapture(captured.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL)
cuda.cuMemsetD8Async(x.ptr, 1, 1024, captured.handle)
graph = cuda.cuGraphInstantiate(cuda.cuStreamEndCapture(captured.handle)[1], 0)[1]
with xlogmem.use(work, write=x):
    cuda.cuGraphLaunch(graph, work.handle)
x.free()
