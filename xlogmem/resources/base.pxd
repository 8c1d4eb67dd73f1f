# The shape of a memory resource, for the core (C table) and for Python (methods).

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem._driver cimport Context, Failure

cdef enum ResourceOrder:
    UNDECLARED                  # the core refuses it: it cannot say when a free takes effect
    STREAM_ORDERED              # memory and free are ordered on the stream given to the call
    HOST_SYNCHRONOUS            # the host waits for every use before it frees


cdef struct ResourceTable:
    # How the core calls a resource: without the GIL, without the runtime's lock, with the device's context current.
    void* self
    ResourceOrder order
    bint finds_device           # callers of the C table need not have the context current either
    int (*allocate)(void* self, size_t nbytes, cy.CUstream stream, uint64_t* ptr, Failure* failure) except -1 nogil
    int (*deallocate)(void* self, uint64_t ptr, size_t nbytes, cy.CUstream stream, Failure* failure) except -1 nogil
    int (*trim)(void* self, Failure* failure) except -1 nogil       # may be NULL


cdef class DeviceMemoryResource:
    cdef ResourceTable table
    cdef readonly Context context
    cdef cy.CUstream check(self, object stream, str method) except? <cy.CUstream>-1
