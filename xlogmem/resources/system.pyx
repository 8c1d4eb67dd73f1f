"""Ordinary memory of the host, which the devices of some machines reach as well."""
cimport cython

from xlogmem._base.failures cimport Failure
from xlogmem._driver cimport context_of, system_allocate, system_free
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, Allocation, DeviceMemoryResource

from xlogmem._base.signatures import Signed
from xlogmem._base.units import parse_device_id
from xlogmem._driver import reaches_system_memory
from xlogmem.errors import DriverError

__all__ = ["SystemMemoryResource"]


cdef int allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    return system_allocate(wanted.nbytes, &wanted.ptr, failure)


cdef int deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    system_free(freed.ptr)
    return 0


@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class SystemMemoryResource(DeviceMemoryResource):
    """Ordinary memory of the host (``malloc``, ``free``), where the device reaches it.

    Kernels access it at the host's address: over NVLink on Grace Hopper and its kin (address translation), and page by
    page with heterogeneous memory management (open kernel modules, Linux 6.1.24, CUDA 12.2).  It may be more than the
    device has, and needs no page-locked memory.  RMM has a resource of the same name [1]_.

    Parameters
    ----------
    device_id : int
        The device of the runtime that will use the resource.

    Raises
    ------
    ValueError
        There is no such device.
    DriverError
        The device does not reach such memory: ``CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS`` is 0.

    Notes
    -----
    The stream is ignored: memory is ready, and a free takes effect, when the call returns.  Under a runtime the host
    waits for every use, without the GIL, before a free.  Memory is aligned to 256 bytes, from 4 KiB on to a page of
    4 KiB.  The host accesses a block inside ``with xlogmem.use(xlogmem.host, ...)``, which waits for the work that uses
    it.  Thread-safe.

    The driver knows nothing of such memory.  A copy from it (``cuMemcpyAsync``) may read it in the call, before what
    the stream has queued: a program that calls the driver itself does so inside
    ``with xlogmem.use(xlogmem.host, read=...)``, or copies with a kernel.  Before copies and fills of a `Buffer` the
    host waits for the stream, and before `upload` for the work that writes the array.

    References
    ----------
    .. [1] RMM, ``rmm.mr.SystemMemoryResource``, https://docs.rapids.ai/api/rmm/stable/

    Examples
    --------
    >>> system = xlogmem.PoolMemoryResource(xlogmem.SystemMemoryResource())             # doctest: +SKIP
    >>> table = runtime.allocate("512GiB", stream, resource=system)                     # doctest: +SKIP
    """

    __signature__ = Signed("device_id=0")

    def __init__(self, device_id=0):
        device_id = parse_device_id(device_id)
        if not reaches_system_memory(device_id):
            raise DriverError(f"device_id: device {device_id} does not reach ordinary memory of the host "
                              "(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS is 0): use PinnedMemoryResource or "
                              "ManagedMemoryResource, or turn on heterogeneous memory management (NVIDIA's open kernel "
                              "modules, Linux 6.1.24 or later)")
        self.context = context_of(device_id)
        self.table.host_accessible = True
        self.table.order = HOST_SYNCHRONOUS
        self.table.allocate = allocate
        self.table.deallocate = deallocate
        self.table.trim = NULL
