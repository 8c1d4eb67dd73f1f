"""Managed memory, which the driver moves between the host and the devices."""
cimport cython

from cuda.bindings cimport cydriver as cy

from xlogmem._base.failures cimport Failure
from xlogmem._driver cimport context_of, managed_allocate, memory_free
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, Allocation, DeviceMemoryResource

from xlogmem._base.signatures import Signed
from xlogmem._base.units import parse_device_id

__all__ = ["ManagedMemoryResource"]


cdef int allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef cy.CUdeviceptr address = 0
    cdef int failed = managed_allocate(wanted.nbytes, &address, failure)
    wanted.ptr = address
    return failed


cdef int deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    return memory_free(freed.ptr, failure)


@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class ManagedMemoryResource(DeviceMemoryResource):
    """Managed memory: from ``cuMemAllocManaged``, open to every stream, freed by ``cuMemFree``.

    The host and every device reach it at one address; the driver moves its pages to where they are accessed.  It may be
    more than a device has.

    Parameters
    ----------
    device_id : int
        The device of the runtime that will use the resource.

    Raises
    ------
    ValueError
        There is no such device.
    DriverError
        The driver refused.

    Notes
    -----
    The stream is ignored: memory is ready, and a free takes effect, when the call returns.  Under a runtime the host
    waits for every use, without the GIL, before a free.  The host accesses a block
    inside ``with xlogmem.use(xlogmem.host, ...)``, which waits for the work that uses it.  Thread-safe.

    Examples
    --------
    >>> table = runtime.allocate("64GiB", stream, resource=xlogmem.ManagedMemoryResource())     # doctest: +SKIP
    """

    __signature__ = Signed("device_id=0")

    def __init__(self, device_id=0):
        self.context = context_of(parse_device_id(device_id))
        self.table.host_accessible = True
        self.table.order = HOST_SYNCHRONOUS
        self.table.allocate = allocate
        self.table.deallocate = deallocate
        self.table.trim = NULL

    @property
    def is_managed(self):
        return True
