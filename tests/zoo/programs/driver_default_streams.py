"""cuda.bindings.driver: the legacy default stream and an ordinary stream, which wait for each other by themselves.

Right: the stream is one that the default stream waits for.
apart: it is a non-blocking one, which does not take part in that.
"""
import ctypes
import sys

from cuda.bindings import driver as cuda

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
SIZE, ROUNDS = 1 << 20, 5


def checked(answer):
    status, *values = answer
    assert not status, status
    return values[0] if values else None


checked(cuda.cuInit(0))
checked(cuda.cuCtxSetCurrent(checked(cuda.cuDevicePrimaryCtxRetain(0))))
flags = cuda.CUstream_flags
kind = flags.CU_STREAM_NON_BLOCKING if VARIANT == "apart" else flags.CU_STREAM_DEFAULT
stream, default = checked(cuda.cuStreamCreate(kind)), cuda.CUstream(0)
x, y = checked(cuda.cuMemAlloc(SIZE)), checked(cuda.cuMemAlloc(SIZE))
results = [checked(cuda.cuMemHostAlloc(SIZE, 0)) for _ in range(ROUNDS)]
for number, result in enumerate(results):
    checked(cuda.cuMemsetD8Async(x, number + 1, SIZE, stream))  # first: apart
    checked(cuda.cuMemcpyDtoDAsync(y, x, SIZE, default))  # then: apart
    checked(cuda.cuMemcpyDtoHAsync(result, y, SIZE, stream))
checked(cuda.cuCtxSynchronize())
print("right:", sum(ctypes.string_at(int(result), SIZE) == bytes([k + 1]) * SIZE for k, result in enumerate(results)),
      "of", ROUNDS)
