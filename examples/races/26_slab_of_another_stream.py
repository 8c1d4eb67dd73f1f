"""A slab of page-locked memory goes to another stream, which downloads into it while an upload still reads it.

Thread:  https://github.com/NVIDIA/cuCascade/pull/158
Wrong:   The pool of slabs takes a slab back when its owner is done with the *call*, and hands it out at once.  The
         upload of the owner before is still queued; the new owner's stream does not wait for it.
Repair:  Record an event on the stream that returns the slab; a stream that takes the slab waits for that.
"""
import sys

from driver import begin, cuda, ok, page_locked, stream, wait

FIXED = "--fixed" in sys.argv
SIZE = 1 << 14


class Slabs:
    def __init__(self):
        self.free = [(page_locked(SIZE), None)]

    def take(self, on):
        slab, user = self.free.pop()
        if FIXED and user is not None:
            wait(on, user)
        return slab

    def put_back(self, slab, user):
        self.free.append((slab, user))


begin()
filters, scan = stream(), stream()
bounds, column = ok(cuda.cuMemAlloc(SIZE)), ok(cuda.cuMemAlloc(SIZE))
slabs = Slabs()

slab = slabs.take(filters)
slab[:] = 1
ok(cuda.cuMemcpyHtoDAsync(bounds, slab.ctypes.data, SIZE, filters))     # first
slabs.put_back(slab, filters)

slab = slabs.take(scan)
ok(cuda.cuMemcpyDtoHAsync(slab.ctypes.data, column, SIZE, scan))        # then
ok(cuda.cuCtxSynchronize())
