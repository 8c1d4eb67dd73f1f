"""The driver's stream-ordered allocator, with a memory pool for each resource."""
cimport cython

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport UINT64_MAX, uint64_t

from xlogmem._base.failures cimport Failure, raise_failure
from xlogmem._driver cimport (
    Scope,
    context_of,
    destroy_ended_pools,
    enter_context,
    leave_context,
    pool_create,
    pool_end,
    pool_open_to_peers,
    process_is_closing,
)
from xlogmem.resources.base cimport STREAM_ORDERED, DeviceMemoryResource
from xlogmem.resources.driver_pool cimport allocate_from_pool, deallocate_into_pool, trim_pool

from xlogmem._base.signatures import Signed
from xlogmem._base.units import parse_device_id

__all__ = ["AsyncMemoryResource"]


@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class AsyncMemoryResource(DeviceMemoryResource):
    """Memory from ``cuMemAllocFromPoolAsync``, freed by ``cuMemFreeAsync``, in a driver pool of the resource's own.

    The pool keeps its memory when the device is synchronized, where the driver's default pool returns it to the device.
    The default pool of the process is neither used nor changed.

    Parameters
    ----------
    device_id : int
        The device.
    release_threshold : int, optional
        Bytes that the pool keeps when the device is synchronized; by default all.

    Raises
    ------
    ValueError
        The threshold is negative or has more than 64 bits.
    DriverError
        The device has no memory pools, or the driver refused to make one.

    Notes
    -----
    Memory and frees are ordered on the stream given to the call.  Thread-safe.  A resource may be dropped at any time:
    its pool is destroyed when the frees that are pending in it are complete, as soon as another resource of this kind
    is made, dropped or trimmed.

    Examples
    --------
    >>> runtime = xlogmem.DeviceRuntime(resource=xlogmem.AsyncMemoryResource())
    >>> with runtime.allocate("1MiB") as block:
    ...     runtime.live_bytes
    1048576
    """

    cdef uint64_t number                    # of its pool

    __signature__ = Signed("device_id=0, *, release_threshold=None")

    def __init__(self, device_id=0, *, release_threshold=None):
        cdef cy.CUmemoryPool pool = NULL
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        cdef uint64_t threshold = UINT64_MAX
        if release_threshold is not None:
            if not 0 <= release_threshold <= UINT64_MAX:
                raise ValueError(f"release_threshold must be a number of bytes, got {release_threshold}")
            threshold = release_threshold
        if self.table.self != NULL:
            raise RuntimeError("a resource is initialised once")
        self.context = context_of(parse_device_id(device_id))
        with nogil:
            failed = enter_context(self.context.handle, &scope, &failure)
            if not failed:
                destroy_ended_pools(&failure)       # what fails here is of no concern to this one
                failed = pool_create(self.context.handle, self.context.device, threshold, &pool, &self.number,
                                     &failure)
                leave_context(&scope)
        if failed:
            raise_failure(&failure, f"creating a memory pool on device {self.context.device_id}")
        self.table.self = pool                          # from here on its end is taken care of
        pool_open_to_peers(pool, self.context.device_id)
        self.table.order = STREAM_ORDERED
        self.table.frees_anywhere = True
        self.table.allocate = allocate_from_pool
        self.table.deallocate = deallocate_into_pool
        self.table.trim = trim_pool

    def __dealloc__(self):
        """End the pool, which is destroyed once all frees are complete, without a wait."""
        cdef Failure ignored
        if self.table.self != NULL and not process_is_closing():
            with nogil:
                pool_end(self.number, &ignored)
