"""A buffer is spilled to the host by a stream that knows nothing of the work on it.

Thread:  https://github.com/NVIDIA/cudf-spark/pull/5485
Wrong:   A task adds a buffer to the store of what may be spilled, while its own stream still writes the buffer.
         Another task runs out of memory, and copies the buffer to the host on *its* stream.
Repair:  Synchronize before the buffer is added.
"""
import sys

from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 14
store = []


def add(buffer, on):
    if FIXED:
        ok(cuda.cuStreamSynchronize(on))
    store.append(buffer)


def spill(on):
    target = page_locked(SIZE)
    ok(cuda.cuMemcpyDtoHAsync(target.ctypes.data, store.pop(), SIZE, on))       # then
    ok(cuda.cuStreamSynchronize(on))
    return target


begin()
join, other_task = stream(), stream()
build_side = ok(cuda.cuMemAllocAsync(SIZE, join))
ok(cuda.cuStreamSynchronize(join))
ok(cuda.cuMemsetD8Async(build_side, 1, SIZE, join))     # first
add(build_side, join)
print(spill(other_task).sum())
ok(cuda.cuCtxSynchronize())
