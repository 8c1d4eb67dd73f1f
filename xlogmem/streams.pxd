from libc.stdint cimport uint64_t

from xlogmem._order cimport Ordering, StreamState


cdef class Stream:
    cdef StreamState* state
    cdef readonly StreamPool pool
    cdef readonly Ordering ordering
    cdef object core            # the runtime core; None until the pool is given to one
    cdef readonly uint64_t id


cdef class StreamPool:
    cdef readonly Ordering ordering
    cdef readonly int max_streams
    cdef readonly int acquired
    cdef Stream first
    cdef list states                        # addresses of StreamState, by id
    cdef object lock
    cdef Stream _make(self, int discipline, int priority)


cdef object core_of(Stream stream)
