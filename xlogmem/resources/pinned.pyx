"""Page-locked host memory, which both the host and every device reach at one address."""
cimport cython

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem._base.failures cimport Failure, raise_failure
from xlogmem._driver cimport (
    Scope,
    context_of,
    destroy_ended_pools,
    enter_context,
    host_free,
    host_memory_allocate,
    host_pool_create,
    leave_context,
    pool_end,
    process_is_closing,
)
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, STREAM_ORDERED, Allocation, DeviceMemoryResource
from xlogmem.resources.driver_pool cimport allocate_from_pool, deallocate_into_pool, trim_pool

from xlogmem._base.signatures import Signed
from xlogmem._base.units import parse_device_id, parse_number
from xlogmem._driver import device_count
from xlogmem.errors import DriverError

__all__ = ["PinnedMemoryResource"]


cdef int allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef void* address = NULL
    cdef int failed = host_memory_allocate(wanted.nbytes, self != NULL, &address, failure)
    wanted.ptr = <uint64_t>address
    return failed


cdef int deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    return host_free(<void*>freed.ptr, failure)


@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class PinnedMemoryResource(DeviceMemoryResource):
    """Page-locked host memory: from ``cuMemHostAlloc``, freed by ``cuMemFreeHost``.

    The host and every device reach it at one address.  A copy between it and a device runs beside the program, and
    kernels may access it.  Use it beside the memory of the device, as ``runtime.allocate(nbytes, stream,
    resource=...)``, and with a pool on it where blocks come and go: an allocation takes the driver long, and a free
    waits for the whole device.

    Parameters
    ----------
    numa_id : int, optional
        The NUMA node of the host that the memory is on.  By default the driver chooses.  Such memory comes from a pool
        of the driver (``cuMemPoolCreate`` for a host NUMA node, CUDA 12.6).
    portable : bool
        Whether the memory is page-locked for every context, and on a NUMA node open to every device, or only for that
        of `device_id`.
    device_id : int
        The device of the runtime that will use the resource.

    Raises
    ------
    ValueError
        `numa_id` is not the number of a node, or there is no such device.
    TypeError
        `portable` is not a bool.
    DriverError
        The driver has no pools of host memory, or the host no such node.

    Notes
    -----
    Without `numa_id` the stream is ignored: memory is ready, and a free takes effect, when the call returns.  Under a
    runtime the host waits for every use, without the GIL, before a free.  With `numa_id` memory and frees are ordered
    on the stream given to the call.  The host writes to a block, and reads what a copy has written, inside
    ``with xlogmem.use(xlogmem.host, ...)``, which waits for the work that uses the block.  Thread-safe.

    Examples
    --------
    >>> pinned = xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource())             # doctest: +SKIP
    >>> staging = runtime.allocate("16MiB", stream, resource=pinned)                    # doctest: +SKIP
    """

    cdef uint64_t number                    # of the driver's pool; 0: there is none

    __signature__ = Signed("numa_id=None, *, portable=True, device_id=0")

    def __init__(self, numa_id=None, *, portable=True, device_id=0):
        if self.table.allocate != NULL:
            raise RuntimeError("a resource is initialised once")
        if not isinstance(portable, bool):
            raise TypeError(f"portable must be True or False, not {portable!r}")
        if numa_id is not None:
            numa_id = parse_number("numa_id", numa_id, 0, (1 << 31) - 1, "the number of a NUMA node of the host")
        self.context = context_of(parse_device_id(device_id))
        self.table.host_accessible = True
        if numa_id is not None:
            self.open_pool(numa_id, portable)
            self.table.order = STREAM_ORDERED
            self.table.frees_anywhere = True
            self.table.trim = trim_pool
            self.table.deallocate = deallocate_into_pool
            self.table.allocate = allocate_from_pool
        else:
            self.table.self = <void*>self if portable else NULL
            self.table.order = HOST_SYNCHRONOUS
            self.table.trim = NULL
            self.table.deallocate = deallocate
            self.table.allocate = allocate

    cdef int open_pool(self, int numa_id, bint portable) except -1:
        """Create the driver's pool, open to the devices."""
        cdef cy.CUmemoryPool pool = NULL
        cdef int first = 0 if portable else self.context.device_id
        cdef int count = device_count() if portable else 1
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        with nogil:
            failed = enter_context(self.context.handle, &scope, &failure)
            if not failed:
                destroy_ended_pools(&failure)       # what fails here is of no concern to this one
                failed = host_pool_create(self.context.handle, numa_id, first, count, &pool, &self.number, &failure)
                leave_context(&scope)
        if failed:
            try:
                raise_failure(&failure, f"numa_id: creating a memory pool on NUMA node {numa_id} of the host")
            except DriverError as error:
                error.add_note("Pools of host memory need CUDA 12.6 and a device with "
                               "CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED. Leave numa_id out, and start the "
                               "process on that node instead (numactl --cpunodebind)")
                raise
        self.table.self = pool                          # from here on its end is taken care of
        return 0

    def __dealloc__(self):
        """End the driver's pool, which is destroyed once all frees are complete, without a wait."""
        cdef Failure ignored
        if self.number and not process_is_closing():
            with nogil:
                pool_end(self.number, &ignored)
