"""cuda.bindings.driver: upload, copy and download by hand on three streams, with events between them.

Right: each step waits for the one before, and the next upload for the copy that reads its buffer.
nowait: the copy does not wait for the upload.  overwrite: the buffer is filled again while it is copied.
"""
import ctypes
import sys

from cuda.bindings import driver as cuda

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
SIZE, ROUNDS = 1 << 20, 6


def checked(answer):
    status, *values = answer
    assert not status, status
    return values[0] if values else None


checked(cuda.cuInit(0))
checked(cuda.cuCtxSetCurrent(checked(cuda.cuDevicePrimaryCtxRetain(0))))
up, across, down = (checked(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)) for _ in range(3))
uploaded, copied = (checked(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)) for _ in range(2))
hosts, results = ([checked(cuda.cuMemHostAlloc(SIZE, 0)) for _ in range(ROUNDS)] for _ in range(2))
x, y = checked(cuda.cuMemAlloc(SIZE)), checked(cuda.cuMemAlloc(SIZE * ROUNDS))
for number in range(ROUNDS):
    part = int(y) + number * SIZE
    ctypes.memset(int(hosts[number]), number + 1, SIZE)
    if VARIANT != "overwrite" and number:
        checked(cuda.cuStreamWaitEvent(up, copied, 0))
    checked(cuda.cuMemcpyHtoDAsync(x, hosts[number], SIZE, up))  # first: nowait  # then: overwrite
    checked(cuda.cuEventRecord(uploaded, up))
    if VARIANT != "nowait":
        checked(cuda.cuStreamWaitEvent(across, uploaded, 0))
    checked(cuda.cuMemcpyDtoDAsync(part, x, SIZE, across))  # then: nowait  # first: overwrite
    checked(cuda.cuEventRecord(copied, across))
    checked(cuda.cuStreamWaitEvent(down, copied, 0))
    checked(cuda.cuMemcpyDtoHAsync(results[number], part, SIZE, down))
checked(cuda.cuCtxSynchronize())
print("right:", sum(ctypes.string_at(int(result), SIZE) == bytes([k + 1]) * SIZE for k, result in enumerate(results)),
      "of", ROUNDS)
