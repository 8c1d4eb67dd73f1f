# The address of a buffer, for one launch.  Code that reads the address may use it until the launch is filed, so the
# device's context is not replaced meanwhile: `DeviceState.recover` refuses while `DeviceStatus.accesses` is not zero.

cimport cython

from xlogmem.errors import StreamMisuseError
from xlogmem._base.sections cimport Section
from xlogmem.launch cimport LaunchRecorder


@cython.final
@cython.auto_pickle(False)                  # a use is not copied
@cython.no_gc_clear                         # __dealloc__ needs the status
cdef class Pointer:
    """The address of a buffer, for one launch; see `Buffer.pointer`."""

    def __dealloc__(self):
        if self.entered:
            self.status.accesses.fetch_sub(1)

    def __enter__(self):
        cdef Section section
        section.begin(self)
        if self.buffer is None or self.entered:
            raise StreamMisuseError("a pointer is entered once; take another for each launch")
        self.status.accesses.fetch_add(1)
        self.entered = True
        try:
            self.buffer.refuse_stale()
            self.recorder.open()
        except BaseException:
            self.leave()
            raise
        return self.buffer.layout.ptr

    def __exit__(self, kind, exception, traceback):
        try:
            self.recorder.__exit__(kind, exception, traceback)
        finally:
            self.leave()

    def cancel(self):
        """Cancel the use: nothing was launched."""
        self.recorder.cancel()

    cdef int leave(self) except -1:
        cdef Section section
        section.begin(self)
        if self.entered:
            self.entered = False
            self.status.accesses.fetch_sub(1)
        return 0


cdef Pointer new_pointer(Buffer buffer, LaunchRecorder recorder):
    cdef Pointer pointer = Pointer.__new__(Pointer)
    pointer.buffer = buffer
    pointer.status = buffer.device.status
    pointer.recorder = recorder
    return pointer
