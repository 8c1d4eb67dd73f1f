"""The inputs of a concatenation are dropped when it is queued.

Thread:  https://github.com/facebookincubator/velox/pull/17533
Wrong:   The streams of the inputs are synchronized, then their tables are concatenated on another stream, and the list
         of inputs is cleared.  Their memory returns on their own streams, while the concatenation reads it.
Repair:  The streams of the inputs wait for the concatenation.
"""
import sys

from driver import begin, cuda, ok, stream, wait

FIXED = "--fixed" in sys.argv
SIZE, COUNT = 1 << 14, 2

begin()
output, streams = stream(), [stream() for _ in range(COUNT)]
pending = []
for own in streams:
    table = ok(cuda.cuMemAllocAsync(SIZE, own))
    ok(cuda.cuMemsetD8Async(table, 1, SIZE, own))
    pending.append((own, table))

for own, _ in pending:
    ok(cuda.cuStreamSynchronize(own))
whole = ok(cuda.cuMemAllocAsync(SIZE * COUNT, output))
for number, (_, table) in enumerate(pending):
    ok(cuda.cuMemcpyDtoDAsync(int(whole) + number * SIZE, table, SIZE, output))     # first
for own, table in pending:
    if FIXED:
        wait(own, output)
    ok(cuda.cuMemFreeAsync(table, own))                 # then
ok(cuda.cuStreamSynchronize(output))
