"""The host waits for the null stream, and the download is on another one.

Thread:  https://github.com/ExtremeFLOW/neko/pull/976
Wrong:   A copy to the host takes a stream and is to be done when it returns.  It is queued on that stream, but the
         host waits for the null stream, which has nothing to do with a non-blocking one.
Repair:  Wait for the stream of the copy.
"""
import sys

import cupy
import cupyx

FIXED = "--fixed" in sys.argv


def copy_to_host(host, array, stream):
    array.get(stream, out=host, blocking=False)         # first
    (stream if FIXED else cupy.cuda.Stream.null).synchronize()


main = cupy.cuda.Stream(non_blocking=True)
with main:
    residual = cupy.ones(1000)
host = cupyx.zeros_pinned(1000)
copy_to_host(host, residual, main)
print(host.max())                                       # then
main.synchronize()
