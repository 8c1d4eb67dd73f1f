"""cuda.bindings.driver: a capture that forks to a second stream and joins it; the graph is launched several times.

Right: the second stream is joined before the copy that reads what it has filled.
unjoined: it is joined after that copy.
"""
import ctypes
import sys

from cuda.bindings import driver as cuda

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
SIZE = 1 << 20


def checked(answer):
    status, *values = answer
    assert not status, status
    return values[0] if values else None


checked(cuda.cuInit(0))
checked(cuda.cuCtxSetCurrent(checked(cuda.cuDevicePrimaryCtxRetain(0))))
main, branch = (checked(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(2))
fork, join = (checked(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)) for _ in range(2))
x, y = checked(cuda.cuMemAlloc(SIZE)), checked(cuda.cuMemAlloc(SIZE))
result = checked(cuda.cuMemHostAlloc(SIZE, 0))
checked(cuda.cuStreamBeginCapture(main, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
checked(cuda.cuMemsetD8Async(y, 1, SIZE, main))
checked(cuda.cuEventRecord(fork, main))
checked(cuda.cuStreamWaitEvent(branch, fork, 0))
checked(cuda.cuMemsetD8Async(x, 7, SIZE, branch))  # first: unjoined
checked(cuda.cuEventRecord(join, branch))
if VARIANT == "right":
    checked(cuda.cuStreamWaitEvent(main, join, 0))
checked(cuda.cuMemcpyDtoDAsync(y, x, SIZE, main))  # then: unjoined
if VARIANT == "unjoined":
    checked(cuda.cuStreamWaitEvent(main, join, 0))
graph = checked(cuda.cuGraphInstantiate(checked(cuda.cuStreamEndCapture(main)), 0))
for _ in range(3):
    checked(cuda.cuGraphLaunch(graph, main))
checked(cuda.cuMemcpyDtoHAsync(result, y, SIZE, main))
checked(cuda.cuStreamSynchronize(main))
print("right:", ctypes.string_at(int(result), SIZE) == bytes([7]) * SIZE)
