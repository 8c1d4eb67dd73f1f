# The shape of a memory resource, for the core (C table) and for Python (methods).

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem._cpp cimport vector
from xlogmem._driver cimport Context
from xlogmem._failures cimport Failure
from xlogmem._order cimport Dependency, StreamState
from xlogmem.streams cimport StreamPool

cdef enum ResourceOrder:
    UNDECLARED                  # the core refuses it: it cannot say when a free takes effect
    STREAM_ORDERED              # memory and free are ordered on the stream given to the call
    HOST_SYNCHRONOUS            # the host waits for every use before it frees


cdef struct OrderedTable:
    # What a resource has besides that keeps frontiers: it takes memory back together with what its next owner has to be
    # ordered after, so that a free waits for nobody, and orders that owner's stream.  Called instead of the functions
    # below, with the runtime's lock held, which `allocate` and `trim` release meanwhile.
    int (*allocate)(void* self, size_t nbytes, StreamState* stream, uint64_t* ptr, void** resource_block,
                    Failure* failure) except -1 nogil
    void (*deallocate)(void* self, void* resource_block, vector[Dependency]* frontier) noexcept nogil      # no driver call
    int (*trim)(void* self, size_t nbytes, StreamState* stream, Failure* failure) except -1 nogil   # to make room


cdef struct ResourceTable:
    # How the core calls a resource: without the GIL, without the runtime's lock, with the device's context current.
    void* self
    ResourceOrder order
    bint finds_device           # callers of the C table need not have the context current either
    int (*allocate)(void* self, size_t nbytes, cy.CUstream stream, uint64_t* ptr, Failure* failure) except -1 nogil
    int (*deallocate)(void* self, uint64_t ptr, size_t nbytes, cy.CUstream stream, Failure* failure) except -1 nogil
    int (*trim)(void* self, Failure* failure) except -1 nogil       # may be NULL
    OrderedTable* ordered                                        # NULL: it keeps none


cdef class DeviceMemoryResource:
    cdef ResourceTable table
    cdef readonly Context context
    cdef int bind(self, StreamPool stream_pool) except -1
    cdef cy.CUstream check(self, object stream, str method) except? <cy.CUstream>-1
