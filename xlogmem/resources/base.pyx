"""The base class of every memory resource, and the only way from a resource to the core: a table of C functions."""
cimport cython

from xlogmem._driver cimport enter_context, leave_context, raise_failure
from xlogmem.streams cimport Stream

from xlogmem.errors import StreamMisuseError

__all__ = ["DeviceMemoryResource"]


@cython.no_gc_clear                         # __dealloc__ of the subclasses needs the context
cdef class DeviceMemoryResource:
    """Hands out device memory of one device and takes it back.

    Use one of the subclasses.  A resource may be used by itself, in which case nothing is tracked and the caller orders
    everything; `DeviceRuntime` puts the tracking on top.

    Notes
    -----
    Thread-safe.  Resources whose frees are neither ordered on a stream nor waited for on the host are refused by the
    runtime, loudly (contract 25): false safety is worse than none.
    """

    def allocate(self, size_t nbytes, Stream stream not None):
        """Allocate `nbytes` bytes, ordered on `stream`; returns the device address as an int.

        Raises
        ------
        OutOfDeviceMemoryError
            The device has no memory left.
        DriverError
            The driver refused.
        """
        cdef Failure failure
        cdef uint64_t ptr = 0
        cdef bint pushed
        cdef int failed
        self._check(stream)
        with nogil:
            failed = enter_context(self.context.handle, &pushed, &failure)
            if not failed:
                failed = self.table.allocate(self.table.self, nbytes, stream.state.handle, &ptr, &failure)
                leave_context(pushed)
        if failed:
            raise_failure(&failure, f"allocating {nbytes} bytes on {stream!r}")
        return ptr

    def deallocate(self, uint64_t ptr, size_t nbytes, Stream stream not None):
        """Take back memory that `allocate` gave out, ordered on `stream`.

        Every use must be ordered before the call on that stream (or be complete, for a host-synchronous resource): the
        resource knows of none.

        Raises
        ------
        DriverError
            The driver refused; the memory is still allocated.
        """
        cdef Failure failure
        cdef bint pushed
        cdef int failed
        self._check(stream)
        with nogil:
            failed = enter_context(self.context.handle, &pushed, &failure)
            if not failed:
                failed = self.table.deallocate(self.table.self, ptr, nbytes, stream.state.handle, &failure)
                leave_context(pushed)
        if failed:
            raise_failure(&failure, f"freeing {nbytes} bytes on {stream!r}")

    cdef int _check(self, Stream stream) except -1:
        if self.context is None or self.table.allocate == NULL:
            raise StreamMisuseError(f"{type(self).__name__} cannot allocate (unsupported): it is no complete resource")
        if stream.ordering.context is not self.context:
            raise StreamMisuseError(f"{stream!r} is on another device than the resource ({self.context.ordinal})")
        return 0

    @property
    def device_ordinal(self):
        """The device that the memory is on (contract 21)."""
        return self.context.ordinal if self.context is not None else None

    def __repr__(self):
        return f"<{type(self).__name__} device={self.device_ordinal}>"
