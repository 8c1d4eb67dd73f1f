"""A buffer's event is older than the copy into it.

Thread:  https://github.com/rapidsai/rapidsmpf/pull/270 (review comments)
Wrong:   A buffer has an event, of the last work on it, which its readers wait for.  The copy of another buffer into a
         part of it records none: readers wait for the event from before.
Repair:  Record the event again behind the copy.
"""
import sys

from driver import begin, cuda, ok, page_locked, stream

FIXED = "--fixed" in sys.argv
SIZE = 1 << 14


class HostBuffer:
    def __init__(self, size):
        self.bytes = page_locked(size)
        self.event = ok(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def copy(self, source, on):
        ok(cuda.cuMemcpyDtoHAsync(self.bytes.ctypes.data, source, self.bytes.nbytes, on))
        ok(cuda.cuEventRecord(self.event, on))

    def copy_slice(self, offset, source, size, on):
        ok(cuda.cuMemcpyDtoHAsync(self.bytes.ctypes.data + offset, source, size, on))       # first
        if FIXED:
            ok(cuda.cuEventRecord(self.event, on))

    def view(self):
        ok(cuda.cuEventSynchronize(self.event))
        return self.bytes


begin()
main = stream()
whole, part = ok(cuda.cuMemAlloc(SIZE)), ok(cuda.cuMemAlloc(SIZE // 2))
gathered = HostBuffer(SIZE)
gathered.copy(whole, main)
gathered.copy_slice(SIZE // 2, part, SIZE // 2, main)
print(gathered.view().sum())                            # then
ok(cuda.cuStreamSynchronize(main))
