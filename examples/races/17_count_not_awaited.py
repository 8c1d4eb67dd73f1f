"""A result is read before its download is done.

Thread:  https://github.com/vllm-project/vllm/pull/36013
Wrong:   The number of accepted tokens is copied to page-locked memory with `non_blocking=True`, and the next step takes
         it from there.  The scheduler avoids every wait, and so nothing says that the copy is done.
Repair:  Record an event after the copy, and let the host wait for it before it reads.
"""
import sys

import numpy
from numba import cuda

FIXED = "--fixed" in sys.argv

current = cuda.stream()
on_device = cuda.to_device(numpy.arange(1024, dtype=numpy.int32))
accepted = cuda.pinned_array(1024, numpy.int32)
accepted[:] = 0
copied = cuda.event(timing=False)

on_device.copy_to_host(accepted, stream=current)        # first
copied.record(current)
if FIXED:
    copied.synchronize()
print(accepted.sum())                                   # then
current.synchronize()
