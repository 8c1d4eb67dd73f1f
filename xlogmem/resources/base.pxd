# The shape of a memory resource: a table of C functions for the core, and a class with methods for Python.
#
# Most resources know nothing of uses: the core has ordered the stream of a call, or the host, before the call.  One
# that keeps frontiers (the pool) takes streams and dependencies in place of handles, and is part of the ordering.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._cpp cimport vector
from xlogmem._driver cimport Context
from xlogmem._failures cimport Failure
from xlogmem._order cimport Dependency, StreamState
from xlogmem.streams cimport StreamPool

cdef enum ResourceOrder:
    UNDECLARED                  # a runtime refuses the resource: when does a free take effect?
    STREAM_ORDERED              # memory and free are ordered on the stream given to the call
    HOST_SYNCHRONOUS            # the host waits for every use before it frees


cdef struct FrontierTable:
    # The functions of a resource that keeps frontiers.  They are called in place of those of `ResourceTable`, with the
    # runtime's lock held on entry and on return.
    #
    # `allocate` orders the stream after former users of the memory, and may drop the lock meanwhile.  `deallocate`
    # takes what the next owner has to be ordered after; it does not drop the lock, makes no driver call and cannot
    # fail.  `trim` makes room for an allocation of so many bytes, and may drop the lock.  `end` is called without the
    # lock when the runtime ends: it returns everything, or says that something is left.
    int (*allocate)(void* self, size_t nbytes, StreamState* stream, uint64_t* ptr, void** resource_block,
                    Failure* failure) except -1 nogil
    void (*deallocate)(void* self, void* resource_block, vector[Dependency]* frontier) noexcept nogil
    int (*trim)(void* self, size_t nbytes, StreamState* stream, Failure* failure) except -1 nogil
    int (*end)(void* self) except -1 nogil
    uint32_t frees_per_fence        # on a stream that may be destroyed: see `fence_after_frees_unlocks`


cdef struct ResourceTable:
    # How the core calls a resource: without the GIL, without the runtime's lock, with the device's context current.
    void* self
    ResourceOrder order
    bint finds_device           # callers of the C table need not have the context current either
    int (*allocate)(void* self, size_t nbytes, cy.CUstream stream, uint64_t* ptr, Failure* failure) except -1 nogil
    int (*deallocate)(void* self, uint64_t ptr, size_t nbytes, cy.CUstream stream, Failure* failure) except -1 nogil
    int (*trim)(void* self, Failure* failure) except -1 nogil       # may be NULL
    FrontierTable* frontiers       # NULL: it keeps no frontiers


cdef class DeviceMemoryResource:
    cdef ResourceTable table
    cdef readonly Context context
    cdef int bind(self, StreamPool stream_pool) except -1
    cdef cy.CUstream handle_on_device(self, object stream, str method) except? <cy.CUstream>-1
