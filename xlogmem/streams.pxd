from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem._order cimport Fence, Ordering, OrderState, StreamState


cdef class Stream:
    cdef StreamState* state
    cdef readonly Ordering ordering
    cdef object core            # the runtime core; None until the pool is given to one
    cdef readonly uint64_t id


cdef class Event:
    cdef Fence* fence           # its own
    cdef readonly Stream stream
    cdef int refuse_unmade(self) except -1


cdef class Host:
    pass


cdef class StreamPool:
    cdef readonly Ordering ordering
    cdef readonly int max_streams
    cdef list states            # addresses of StreamState, the default stream first
    cdef dict spare             # (discipline, priority) -> addresses of streams without a handle
    cdef dict priorities        # address -> priority; of a lane None
    cdef int being_made         # streams that are being created
    cdef size_t turn            # rises with each stream that is shared
    cdef Stream make(self, int discipline, priority)
    cdef bint take_spare(self, StreamState* state) noexcept
    cdef int collect_idle(self) except -1
    cdef Stream take(self, int discipline, priority)
    cdef Stream lane(self)
    cdef Stream share(self, int discipline, int priority)


cdef Stream handle_of(Ordering ordering, StreamState* state)
cdef Stream counted_handle(Ordering ordering, StreamState* state)
cdef object core_of(Stream stream)
cdef int discipline_of(object name) except -1
cdef int discipline_now(OrderState* order, StreamState* state)
cdef cy.CUstream parse(object what) except? <cy.CUstream>-1
cdef int device_of(object what) except -1
cdef bint can_own(object what) except -1
