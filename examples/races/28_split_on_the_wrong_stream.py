"""A result is cut into batches on another stream than its own.

Thread:  https://github.com/facebookincubator/velox/pull/16866
Wrong:   The operator makes its table on one stream of a pool, and cuts batches from it on the stream of its caller,
         which does not wait for the table.
Repair:  Cut the batches on the table's own stream.
"""
import sys

from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv
BATCH, BATCHES = 1 << 12, 4

begin()
own, caller = stream(), stream()
table = ok(cuda.cuMemAllocAsync(BATCH * BATCHES, own))
ok(cuda.cuStreamSynchronize(own))
ok(cuda.cuMemsetD8Async(table, 7, BATCH * BATCHES, own))                # first
on = own if FIXED else caller
for number in range(BATCHES):
    batch = page_locked(BATCH)
    ok(cuda.cuMemcpyDtoHAsync(batch.ctypes.data, int(table) + number * BATCH, BATCH, on))   # then
    ok(cuda.cuStreamSynchronize(on))
ok(cuda.cuCtxSynchronize())
