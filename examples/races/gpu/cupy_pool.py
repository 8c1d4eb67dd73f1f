"""CuPy's own pool: an array is dropped while another stream reads it.

    xlogmem check --gpu --pools real -- python examples/races/gpu/cupy_pool.py [--fixed]
"""
import sys

import cupy

FIXED = "--fixed" in sys.argv

owner, reader = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with owner:
    values = cupy.ones(100_000)
reader.wait_event(owner.record())
with reader:
    doubled = values * 2
if FIXED:
    owner.wait_event(reader.record())
del values
with owner:
    cupy.zeros(100_000)                                 # has the same memory
cupy.cuda.Device().synchronize()
