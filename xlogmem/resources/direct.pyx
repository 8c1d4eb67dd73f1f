"""``cuMemAlloc`` and ``cuMemFree``: synchronous and slow; Compute Sanitizer understands this resource best."""
cimport cython

from cuda.bindings cimport cydriver as cy

from xlogmem._base.failures cimport Failure
from xlogmem._driver cimport context_of, memory_allocate, memory_free
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, Allocation, DeviceMemoryResource

from xlogmem._base.signatures import Signed
from xlogmem._base.units import parse_device_id

__all__ = ["DirectMemoryResource"]


cdef int allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef cy.CUdeviceptr address = 0
    cdef int failed = memory_allocate(wanted.nbytes, &address, failure)
    wanted.ptr = address
    return failed


cdef int deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    return memory_free(freed.ptr, failure)


@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class DirectMemoryResource(DeviceMemoryResource):
    """Memory from ``cuMemAlloc``, freed by ``cuMemFree``.

    Under a runtime the host waits for every use before a free.  Meant for debugging: every call is a synchronization,
    and memory checkers see each allocation by itself.

    Parameters
    ----------
    device_id : int
        The device.

    Raises
    ------
    ValueError
        There is no such device.
    DriverError
        The driver refused.

    Notes
    -----
    The stream is ignored: memory is ready, and a free takes effect, when the call returns.  Thread-safe.

    Examples
    --------
    >>> runtime = xlogmem.DeviceRuntime(resource=xlogmem.DirectMemoryResource())    # for memory checkers
    >>> runtime.allocate(1000).free()               # the host waits for every use
    """

    __signature__ = Signed("device_id=0")

    def __init__(self, device_id=0):
        self.context = context_of(parse_device_id(device_id))
        self.table.order = HOST_SYNCHRONOUS
        self.table.allocate = allocate
        self.table.deallocate = deallocate
        self.table.trim = NULL
