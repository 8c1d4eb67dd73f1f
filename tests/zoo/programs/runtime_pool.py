"""cuda.bindings.runtime: allocations from the driver's pool on one stream, read on another one, and freed.

Right: the freeing stream waits for the reader.
early: it does not.  nowait: the reader does not wait for what it reads.
"""
import sys

from cuda.bindings import runtime as cuda

VARIANT = sys.argv[1] if len(sys.argv) > 1 else "right"
SIZE, ROUNDS = 1 << 20, 8


def checked(answer):
    status, *values = answer
    assert not status, status
    return values[0] if values else None


owner, reader = (checked(cuda.cudaStreamCreateWithFlags(cuda.cudaStreamNonBlocking)) for _ in range(2))
filled, read = (checked(cuda.cudaEventCreateWithFlags(cuda.cudaEventDisableTiming)) for _ in range(2))
table = checked(cuda.cudaMalloc(SIZE * ROUNDS))
for number in range(ROUNDS):
    block = checked(cuda.cudaMallocAsync(SIZE, owner))
    checked(cuda.cudaMemsetAsync(block, number + 1, SIZE, owner))  # first: nowait
    checked(cuda.cudaEventRecord(filled, owner))
    if VARIANT != "nowait":
        checked(cuda.cudaStreamWaitEvent(reader, filled, 0))
    checked(cuda.cudaMemcpyAsync(table + number * SIZE, block, SIZE,  # then: nowait  # first: early
                                 cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice, reader))
    checked(cuda.cudaEventRecord(read, reader))
    if VARIANT != "early":
        checked(cuda.cudaStreamWaitEvent(owner, read, 0))
    checked(cuda.cudaFreeAsync(block, owner))  # then: early
checked(cuda.cudaDeviceSynchronize())
host = bytearray(SIZE * ROUNDS)
checked(cuda.cudaMemcpy(host, table, len(host), cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost))
print("right:", sum(host[k * SIZE:(k + 1) * SIZE] == bytes([k + 1]) * SIZE for k in range(ROUNDS)), "of", ROUNDS)
