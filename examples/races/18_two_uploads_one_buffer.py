"""Two uploads go through one staging buffer, one after the other.

Thread:  https://github.com/1bit-MONSTER/1bit-MONSTER/pull/2436
Wrong:   The keys are copied to the staging buffer and uploaded, then the values likewise.  The stream puts the two
         uploads in order.  It does not keep the host from filling the buffer while the first one reads it.
Repair:  A staging buffer for each of them.
"""
import sys

from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 14

begin()
main = stream()
keys, values = ok(cuda.cuMemAlloc(SIZE)), ok(cuda.cuMemAlloc(SIZE))
staging = page_locked(SIZE)
of_values = page_locked(SIZE) if FIXED else staging

staging[:] = 1
ok(cuda.cuMemcpyHtoDAsync(keys, staging.ctypes.data, SIZE, main))       # first
of_values[:] = 2                                        # then
ok(cuda.cuMemcpyHtoDAsync(values, of_values.ctypes.data, SIZE, main))
ok(cuda.cuStreamSynchronize(main))
