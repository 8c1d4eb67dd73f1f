"""A graph is launched after memory that it works on was freed.

Thread:  https://github.com/beehive-lab/TornadoVM/issues/1006
Wrong:   A captured graph has the addresses of its buffers in it.  When a buffer is exchanged for another one
         afterwards, the graph goes on with the old address: an illegal access, or silently another owner's memory.
Repair:  Keep the buffers as long as the graph (or capture it again).
"""
import sys

from driver import begin, cuda, ok, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 12

begin()
main = stream()
depth_map = ok(cuda.cuMemAllocAsync(SIZE, main))
ok(cuda.cuStreamSynchronize(main))
ok(cuda.cuStreamBeginCapture(main, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
ok(cuda.cuMemsetD8Async(depth_map, 0, SIZE, main))      # then: at each launch
graph = ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(main)), 0))
ok(cuda.cuGraphLaunch(graph, main))
if FIXED:
    ok(cuda.cuGraphLaunch(graph, main))
ok(cuda.cuMemFreeAsync(depth_map, main))                # first
if not FIXED:
    ok(cuda.cuGraphLaunch(graph, main))
ok(cuda.cuStreamSynchronize(main))
