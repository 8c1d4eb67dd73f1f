from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem._order cimport Discipline, Ordering, StreamState


cdef class Stream:
    cdef StreamState* state
    cdef readonly Ordering ordering
    cdef object core            # the runtime core; None until the pool is given to one
    cdef readonly uint64_t id


cdef class StreamPool:
    cdef readonly Ordering ordering
    cdef readonly int max_streams
    cdef list states            # addresses of StreamState, the default stream first
    cdef dict spare             # (discipline, priority) -> addresses of streams that nobody holds
    cdef dict priorities        # address -> priority
    cdef object lock
    cdef Stream make(self, int discipline, int priority)
    cdef int end_export(self) except -1


cdef class Registration:
    # One foreign stream: its state, and the object that keeps it alive.
    cdef StreamState* state
    cdef object owner


cdef class StreamRegistry:
    cdef Ordering ordering
    cdef dict known             # the driver's number -> Registration
    cdef dict by_handle         # the driver's handle -> Registration, the newest
    cdef dict by_owner          # id of an owner that we hold -> Registration
    cdef object lock
    cdef int sweep_at
    cdef Stream find(self, object what)
    cdef Stream own(self, cy.CUstream handle, bint held)
    cdef Stream register(self, object what, object discipline)
    cdef int forget(self, Registration entry, Stream successor) except -1
    cdef Stream with_discipline(self, Stream stream, int discipline)
    cdef Registration add(self, StreamState* state)
    cdef Registration adopt_from_table(self, uint64_t number, cy.CUstream handle)
    cdef int remove(self, Registration entry) except -1
    cdef int keep_owner(self, Registration entry, object what) except -1
    cdef int sweep(self) except -1
    cdef Stream known_as(self, object what)
    cdef int unregister(self, Stream stream, Stream successor) except -1


cdef Stream handle_of(Ordering ordering, StreamState* state)
cdef object core_of(Stream stream)
cdef int device_of(object what) except -1
cdef cy.CUstream parse(object what) except? <cy.CUstream>-1
