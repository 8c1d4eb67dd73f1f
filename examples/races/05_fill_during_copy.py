"""An array is filled on one stream while another one copies it to the host.

Thread:  https://github.com/cupy/cupy/pull/5155 (a review comment)
Wrong:   `asnumpy()` on one stream, `array[:] = 0` on a second one: the fill can run during the copy.
Repair:  The second stream waits for the copy.
"""
import sys

import cupy
import cupyx

FIXED = "--fixed" in sys.argv

reader, writer = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
with reader:
    array = cupy.ones(1000)
writer.wait_event(reader.record())
host = cupyx.empty_pinned(1000)
with reader:
    array.get(out=host, blocking=False)                 # first
if FIXED:
    writer.wait_event(reader.record())
with writer:
    array[:] = 0                                        # then
cupy.cuda.Device().synchronize()
