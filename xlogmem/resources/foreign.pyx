"""Resources that are written in C or C++ outside xlogmem, for example RMM's.

``include/xlogmem.h`` defines the contract of such a resource (``xlogmem_upstream``).  A resource that only passes on
memory of a CUDA pool (RMM's asynchronous resource) declares this by a flag; then xlogmem calls the driver directly
instead of the resource.
"""
cimport cython

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.ref cimport Py_INCREF
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf

from xlogmem.native cimport (
    XLOGMEM_CUDA_POOL,
    XLOGMEM_FINDS_DEVICE,
    XLOGMEM_OUT_OF_MEMORY,
    XLOGMEM_TABLE_VERSION,
    XLOGMEM_UPSTREAM,
    xlogmem_error,
    xlogmem_upstream,
)
from xlogmem._base.cpp cimport atomic
from xlogmem._base.failures cimport Failure, fail_resource
from xlogmem._driver cimport (
    context_of,
    pool_allocate_plainly,
    pool_free_plainly,
    pool_of_pointer,
    process_is_closing,
)
from xlogmem.resources.base cimport Allocation, DeviceMemoryResource

from xlogmem._base.signatures import Signed
from xlogmem._base.units import parse_device_id
from xlogmem.resources.base import ORDERS

__all__ = ["ForeignMemoryResource"]


cdef int fail_foreign(xlogmem_error* error, Failure* failure) noexcept nogil:
    """Fill in a failure with the error that the resource reported, and return 1."""
    snprintf(failure.text, sizeof(failure.text), "%s", error.text)
    return fail_resource(failure, cy.CUDA_ERROR_OUT_OF_MEMORY if error.kind == XLOGMEM_OUT_OF_MEMORY
                         else cy.CUDA_ERROR_UNKNOWN)


cdef int foreign_allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef xlogmem_upstream* upstream = <xlogmem_upstream*>self
    cdef xlogmem_error error
    cdef int failed = upstream.allocate(upstream.self, wanted.nbytes, <void*>wanted.handle, &wanted.ptr,
                                        &error)
    return fail_foreign(&error, failure) if failed else 0


cdef int foreign_deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    cdef xlogmem_upstream* upstream = <xlogmem_upstream*>self
    cdef xlogmem_error error
    cdef int failed = upstream.deallocate(upstream.self, freed.ptr, freed.nbytes, <void*>freed.handle, &error)
    return fail_foreign(&error, failure) if failed else 0


# A resource that only passes on memory of a CUDA pool.  The layers between here and the driver (RMM's, the CUDA
# runtime's) cost as much as all of xlogmem's bookkeeping, because the driver's own work has evicted their code from the
# cache.
cdef struct Pooled:
    xlogmem_upstream* upstream
    atomic[size_t] pool                     # of the first allocation; 0 before


cdef int pooled_allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    """Allocate from the resource's CUDA pool; the first time, and when the pool fails, allocate through the resource.
    """
    cdef Pooled* pooled = <Pooled*>self
    cdef cy.CUmemoryPool pool = <cy.CUmemoryPool>pooled.pool.load()
    cdef cy.CUdeviceptr address = 0
    if pool != NULL and not pool_allocate_plainly(pool, wanted.nbytes, wanted.handle, &address, failure):
        wanted.ptr = address
        return 0
    if foreign_allocate(pooled.upstream, wanted, failure):     # its error says more than the driver's
        return 1
    if pool == NULL:
        pool_of_pointer(wanted.ptr, &pool)
        if pool != NULL:
            pooled.pool.store(<size_t>pool)
    return 0


cdef int pooled_deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    cdef Pooled* pooled = <Pooled*>self
    if pooled.pool.load() and not pool_free_plainly(freed.ptr, freed.handle, failure):
        return 0
    return foreign_deallocate(pooled.upstream, freed, failure)


@cython.no_gc_clear                         # __dealloc__ needs the capsule
@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class ForeignMemoryResource(DeviceMemoryResource):
    """A resource that is written in C or C++ outside xlogmem.

    Parameters
    ----------
    capsule : capsule
        Holds an ``xlogmem_upstream`` (see ``xlogmem.h``) and keeps its resources alive.
    device_id : int
        The device.
    order : {"stream", "host"}
        The order that the resource promises: see `DeviceMemoryResource`.

    Attributes
    ----------
    capsule : capsule
        As given.

    Raises
    ------
    TypeError
        The capsule does not hold an ``xlogmem_upstream``.
    ImportError
        The resource was built for another version of the C table.
    ValueError
        `order` is neither of the two.

    Notes
    -----
    As thread-safe as the resource, which is called from any thread.

    Examples
    --------
    >>> import mine                                                         # doctest: +SKIP
    >>> resource = xlogmem.ForeignMemoryResource(mine.upstream())           # doctest: +SKIP
    >>> runtime = xlogmem.DeviceRuntime(resource=resource)                  # doctest: +SKIP
    """

    cdef readonly object capsule
    cdef Pooled pooled

    __signature__ = Signed("capsule, device_id=0, *, order='stream'")

    def __init__(self, capsule, device_id=0, *, order="stream"):
        cdef xlogmem_upstream* upstream
        cdef uint64_t flags
        if not PyCapsule_IsValid(capsule, XLOGMEM_UPSTREAM):
            raise TypeError(f"{type(self).__name__} needs a capsule that holds an xlogmem_upstream, not "
                            f"{type(capsule).__name__}")
        upstream = <xlogmem_upstream*>PyCapsule_GetPointer(capsule, XLOGMEM_UPSTREAM)
        if upstream.version != <uint32_t>XLOGMEM_TABLE_VERSION:
            raise ImportError(f"the resource was built for version {upstream.version} of xlogmem's C table, this is "
                              f"version {XLOGMEM_TABLE_VERSION}: build it again")
        if order not in ORDERS:
            raise ValueError(f"order {order!r} is unknown; choose one of {', '.join(ORDERS)}")
        if self.capsule is not None:
            raise RuntimeError("a resource is initialised once")
        self.context = context_of(parse_device_id(device_id))
        self.capsule = capsule
        self.table.self = upstream
        self.table.order = ORDERS[order]
        flags = upstream.flags if upstream.size >= sizeof(xlogmem_upstream) else 0      # built before there were flags
        self.table.finds_device = flags & XLOGMEM_FINDS_DEVICE != 0
        self.table.allocate = foreign_allocate
        self.table.deallocate = foreign_deallocate
        self.table.trim = NULL
        if flags & XLOGMEM_CUDA_POOL:
            self.pooled.upstream = upstream
            self.table.self = &self.pooled
            self.table.allocate = pooled_allocate
            self.table.deallocate = pooled_deallocate

    def __dealloc__(self):
        if self.capsule is not None and process_is_closing():
            Py_INCREF(self.capsule)                     # never released: its destructor may call the driver
