# Foreign streams: from a handle of another library to its registration.  _foreign/objects.pyx explains it.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t

from xlogmem._base.failures cimport Failure
from xlogmem._order cimport Discipline, Ordering, OrderState, StreamState
from xlogmem.streams cimport Stream


cdef struct Identified:
    uint32_t likely             # given: the index of what the handle meant before; 0: nothing
    bint is_new                 # registered by this call
    StreamState* state


cdef int identify_unlocks(OrderState* order, cy.CUstream handle, Discipline unknown, Identified* found,
                          Failure* failure) except -1 nogil


cdef class Owner:
    # An object that keeps a registered stream alive.
    cdef Ordering ordering
    cdef StreamState* state     # not deleted meanwhile: this counts as one of its handles
    cdef object held
    cdef dict names             # of a remote stream, by their keys: ordering, Owner or None, handle or None; else None


cdef class StreamRegistry:
    cdef Ordering ordering
    cdef dict by_owner          # id of the object -> Owner
    cdef dict by_number         # number of the registration -> Owner
    cdef dict by_remote         # of remote streams: what names them -> Owner
    cdef object __weakref__
    cdef int sweep_at           # owners, before those that only the registry references are looked for
    cdef Stream find(self, object what)
    cdef Stream find_for_use(self, object what)
    cdef Stream find_at_home(self, object what)
    cdef bint is_elsewhere(self, object what) except -1
    cdef Stream remote(self, Stream stream)
    cdef Stream register_remote(self, Stream stream)
    cdef int add_name(self, Owner entry, dict names, tuple key, tuple name) except -1
    cdef Stream at_home(self, Stream stream)
    cdef int leave_ended(self) except -1
    cdef int refuse_used_elsewhere(self, Stream stream) except -1
    cdef int leave_elsewhere(self, Stream stream) except -1
    cdef bint has_left(self, Owner entry, Stream stream) except -1
    cdef int leave_name(self, Owner entry, Stream stream) except -1
    cdef int abandon(self, Owner entry, tuple key) except -1
    cdef list entries_of(self, Stream stream)
    cdef int update_others(self, Stream stream, int discipline, bint may_refuse) except -1
    cdef int disown_elsewhere(self) except -1
    cdef Stream default(self)
    cdef Owner keep(self, Stream stream, object what)
    cdef Stream register(self, object what, object discipline)
    cdef Stream own(self, cy.CUstream handle, bint held)
    cdef Stream foreign(self, cy.CUstream handle, Discipline unknown, object what)
    cdef Stream with_discipline(self, Stream stream, int discipline)
    cdef Stream known_as(self, object what)
    cdef bint owns(self, cy.CUstream handle)
    cdef int unregister(self, Stream stream, Stream successor) except -1
    cdef int keep_owner(self, Stream stream, object what) except -1
    cdef int drop_owner(self, Owner entry) except -1
    cdef int sweep(self) except -1
    cdef bint is_unused(self, Owner entry)


cdef void provide_runtimes(object get_runtime) noexcept
