"""A captured upload reads its buffer at each launch of the graph; the buffer has another owner by then.

Thread:  https://github.com/microsoft/onnxruntime/pull/32121
Wrong:   A staging buffer returns to its allocator when the upload is queued.  Under capture nothing is copied: the
         graph has the buffer's address.  Another inference takes the buffer and fills it while a launch reads it.
Repair:  Keep the buffer as long as the graph.
"""
import sys

from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 14

begin()
main = stream()
pointers = ok(cuda.cuMemAlloc(SIZE))
free = [page_locked(SIZE) for _ in range(2)]

inputs = free.pop()
inputs[:] = 1
ok(cuda.cuStreamBeginCapture(main, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
ok(cuda.cuMemcpyHtoDAsync(pointers, inputs.ctypes.data, SIZE, main))    # first: at each launch
decode = ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(main)), 0))
if not FIXED:
    free.append(inputs)

ok(cuda.cuGraphLaunch(decode, main))
prefill = free.pop()
prefill[:] = 2                                          # then
ok(cuda.cuStreamSynchronize(main))
