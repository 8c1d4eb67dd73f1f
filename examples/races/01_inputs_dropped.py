"""The inputs of an operation are dropped while another stream still reads them.

Thread:  https://github.com/NVIDIA/cudf/pull/20467 (and https://github.com/NVIDIA/cudf/pull/20981, once more)
Wrong:   Two frames are read on streams of their own and joined on a third one, which waits for both.  Then the last
         references to the frames go, and their memory returns on *their* streams, which wait for nothing.
Repair:  The streams of the inputs wait for the result before the inputs are dropped.

cuDF's columns are CuPy arrays here.
"""
import sys

import cupy

FIXED = "--fixed" in sys.argv

left, right, joined = (cupy.cuda.Stream(non_blocking=True) for _ in range(3))
frames = []
for stream in (left, right):
    with stream:
        frames.append(cupy.ones(1000))
    joined.wait_event(stream.record())
with joined:
    result = frames[0] + frames[1]                      # first
if FIXED:
    done = joined.record()
    left.wait_event(done)
    right.wait_event(done)
del frames                                              # then
with left:
    cupy.zeros(1000)                                    # the same memory
cupy.cuda.Device().synchronize()
