# What all adaptors have in common: a resource around another one, which keeps books of the calls.

from libc.stdint cimport uint64_t

from xlogmem._base.failures cimport Failure
from xlogmem.resources.base cimport Allocation, DeviceMemoryResource, FrontierTable, ResourceTable

cdef struct Books:
    # What an adaptor does beside each call.  Any may be NULL.
    #
    # They are called with the runtime's lock or without, from any thread: no GIL, no driver call, only locks that are
    # leaves.  A free is booked before it is made, because another thread may get the address as soon as it was made.
    int (*admit)(void* self, Allocation* wanted, Failure* failure) noexcept nogil        # 1: refused
    void (*allocated)(void* self, Allocation* made) noexcept nogil
    void (*failed)(void* self, Allocation* wanted, Failure* failure) noexcept nogil      # after `admit`
    void (*freeing)(void* self, Allocation* freed) noexcept nogil
    void (*freed)(void* self, Allocation* freed) noexcept nogil                          # after `freeing`, or
    void (*not_freed)(void* self, Allocation* freed, Failure* failure) noexcept nogil
    void (*settled)(void* self, uint64_t nbytes) noexcept nogil
    void (*evicted)(void* self, Allocation* lost) noexcept nogil                         # `settled`, and no free comes


cdef struct AdaptorState:
    ResourceTable* upstream
    void* self                  # of the books
    Books books


cdef class ResourceAdaptor(DeviceMemoryResource):
    cdef AdaptorState state
    cdef FrontierTable functions
    cdef readonly DeviceMemoryResource upstream
    cdef int take_upstream(self, object upstream) except -1
    cdef int open_books(self, void* self_of_books) except -1
    cdef int refuse_unmade(self) except -1
