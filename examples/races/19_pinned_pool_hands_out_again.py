"""A pool of page-locked memory hands a buffer out again while an upload reads it.

Threads: https://github.com/cupy/cupy/issues/8789, https://github.com/LMCache/LMCache/pull/4830,
         https://github.com/NVIDIA/TensorRT-LLM/issues/19172
Wrong:   The last reference to the source goes when the upload is queued.  The pool takes the buffer back at once, knows
         nothing of the copy, and gives it to the next caller, who fills it.
Repair:  Keep the source until the copy is done.
"""
import sys

import cupy
import numpy

FIXED = "--fixed" in sys.argv
COUNT = 4096


def page_locked(value):
    array = numpy.frombuffer(cupy.cuda.alloc_pinned_memory(8 * COUNT), "float64", COUNT)
    array[:] = value                                    # then
    return array


stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    x = cupy.empty(COUNT)
source = page_locked(1)
x.data.copy_from_host_async(source.ctypes.data, x.nbytes, stream)       # first
if FIXED:
    stream.synchronize()
del source
another = page_locked(2)                                # the same memory
stream.synchronize()
