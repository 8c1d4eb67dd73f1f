"""The host waits for the event of a copy, and reads what a graph copies there again.

Thread:  https://github.com/NVIDIA/warp/issues/1792
Wrong:   A matrix's count of entries comes to the host by a copy, with an event.  A graph captures the work that counts,
         and the copy.  After a launch of the graph the host waits for the event from before.
Repair:  Copy the count again behind the launch, and wait for that.
"""
import sys

import numpy
from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv

begin()
main = stream()
done = ok(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
entries = ok(cuda.cuMemAlloc(4))
count = page_locked(4).view(numpy.int32)


def read_back():
    ok(cuda.cuMemcpyDtoHAsync(count.ctypes.data, entries, 4, main))
    ok(cuda.cuEventRecord(done, main))


ok(cuda.cuMemsetD32Async(entries, 0, 1, main))
read_back()
ok(cuda.cuStreamBeginCapture(main, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
ok(cuda.cuMemsetD32Async(entries, 4, 1, main))
ok(cuda.cuMemcpyDtoHAsync(count.ctypes.data, entries, 4, main))         # first: at the launch
counting = ok(cuda.cuGraphInstantiate(ok(cuda.cuStreamEndCapture(main)), 0))

ok(cuda.cuGraphLaunch(counting, main))
if FIXED:
    read_back()
ok(cuda.cuEventSynchronize(done))
print(count[0])                                         # then
ok(cuda.cuStreamSynchronize(main))
