"""The default stream reads what a kernel on the caller's stream writes.

Thread:  https://github.com/fastfields/fastfields-lib/issues/88
Wrong:   A library launches its kernel on the caller's stream and copies the result with a synchronous copy, on the
         default stream.  That is in order if the caller's stream is a blocking one; PyTorch's and CuPy's need not be.
Repair:  Synchronize with the caller's stream first (or copy on it).
"""
import sys

import cupy

FIXED = "--fixed" in sys.argv

caller = cupy.cuda.Stream(non_blocking=True)
with caller:
    field = cupy.empty(1000, "float32")
    caller.synchronize()
    cupy.multiply(2, 3, out=field, dtype="float32")     # first
if FIXED:
    caller.synchronize()
print(field.get()[:3])                                  # then
