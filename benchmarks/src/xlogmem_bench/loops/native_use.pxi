# A use through the C table, with the methods of a recorder: for random programs.

cimport cython
from libc.stdint cimport uint32_t
from libcpp.vector cimport vector

from xlogmem.errors import DeviceLostError, DriverError, StreamMisuseError, UseAfterFreeError
from xlogmem.native cimport (
    XLOGMEM_CAPTURING,
    XLOGMEM_CONFLICT,
    XLOGMEM_INVALID,
    XLOGMEM_LOST,
    XLOGMEM_NOT_FOUND,
    XLOGMEM_READ,
    XLOGMEM_READ_WRITE,
    XLOGMEM_STALE,
    XLOGMEM_WRITE,
    xlogmem_access,
    xlogmem_error,
    xlogmem_use,
)


cdef dict CODES = {b"CUDA_ERROR_OUT_OF_MEMORY": 2, b"CUDA_ERROR_NOT_FOUND": 500}


cdef int raise_as_python(xlogmem_error* error) except -1:
    """Raise what the same use raises in Python."""
    text = error.text.decode(errors="replace")
    if error.kind == XLOGMEM_STALE:
        raise UseAfterFreeError(0, text)
    if error.kind == XLOGMEM_LOST:
        raise DeviceLostError(text, code=700)
    if (error.kind in (XLOGMEM_CAPTURING, XLOGMEM_CONFLICT, XLOGMEM_INVALID, XLOGMEM_NOT_FOUND)
            or "ended before it was finished" in text):
        raise StreamMisuseError(text)
    raise DriverError(text, code=next((code for name, code in CODES.items() if name in <bytes>error.text), 999))


@cython.no_gc                               # the collector would drop the holds before `__dealloc__`
cdef class NativeUse:
    """`read`, `write` and `read_write` name memory, `preflight` prepares, and the use ends as a recorder does.  `holds`
    are on the runtimes of all devices whose blocks are named, in the order of their numbers."""
    cdef Held held
    cdef list holds
    cdef void* stream
    cdef uint32_t flags
    cdef vector[xlogmem_access] accesses
    cdef xlogmem_use* opened

    def __init__(self, Held held not None, size_t stream, list holds not None, uint32_t flags=0):
        self.held = held
        self.holds = holds
        self.stream = <void*>stream
        self.flags = flags

    cdef int add(self, object what, uint32_t kind) except -1:
        cdef xlogmem_access access
        if isinstance(what, int):
            access.address, access.generation, access.slot = what, 0, 0
        else:
            c_table.identify((<Held?>self.holds[what.device_id]).runtime, <void*>what, &access)
        access.access = kind
        self.accesses.push_back(access)
        return 0

    def read(self, what):
        if self.opened != NULL:
            raise StreamMisuseError("read: this use is prepared, and takes no more memory")
        self.add(what, XLOGMEM_READ)

    def write(self, what):
        self.add(what, XLOGMEM_WRITE)

    def read_write(self, what):
        self.add(what, XLOGMEM_READ_WRITE)

    def preflight(self):
        cdef xlogmem_error error
        cdef int failed
        with nogil:
            failed = c_table.prepare(self.held.runtime, self.stream, self.accesses.data(), self.accesses.size(),
                                     self.flags, &self.opened, &error)
        if failed:
            raise_as_python(&error)

    def commit(self):
        cdef xlogmem_use* opened = self.opened
        cdef xlogmem_error error
        cdef int failed
        self.opened = NULL
        with nogil:
            failed = c_table.finish(self.held.runtime, opened, &error)
        self.held = None                                # which may promise to keep the stream
        if failed:
            raise_as_python(&error)

    def cancel(self):
        cdef xlogmem_use* opened = self.opened
        self.opened = NULL
        with nogil:
            c_table.cancel(self.held.runtime, opened)
        self.held = None

    def __exit__(self, *_):
        self.commit()

    def __dealloc__(self):
        """As the destructor of a program in C++."""
        cdef xlogmem_error ignored
        if self.opened != NULL:
            with nogil:
                c_table.finish(self.held.runtime, self.opened, &ignored)
