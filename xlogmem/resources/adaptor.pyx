"""Adaptors: resources around a resource, which keep books of its calls.

An adaptor has the functions of its upstream and adds bookkeeping before and after each (`Books`).  It queues no work,
so it behaves as its upstream does: over a pool it passes frontiers on, over a resource in Python it needs the GIL where
the resource does.  Each call carries an `Allocation` (the memory and its block) down the stack, so an adaptor knows
tags and generations wherever it stands; below a pool it sees the pool's chunks.
"""
cimport cython

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._order cimport Dependency, StreamState
from xlogmem.resources.base cimport NEVER_INITIALISED, refuse_upstream, settle
from xlogmem.streams cimport StreamPool

from xlogmem.errors import StreamMisuseError

__all__ = ["ResourceAdaptor"]


# ---------------------------------------------------------------------------------------------- without frontiers
cdef int allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef AdaptorState* state = <AdaptorState*>self
    if state.books.admit != NULL and state.books.admit(state.self, wanted, failure):
        return 1
    if state.upstream.allocate(state.upstream.self, wanted, failure):
        return book_failure(state, wanted, failure)
    if state.books.allocated != NULL:
        state.books.allocated(state.self, wanted)
    return 0


cdef int book_failure(AdaptorState* state, Allocation* wanted, Failure* failure) noexcept nogil:
    if state.books.failed != NULL:
        state.books.failed(state.self, wanted, failure)
    return 1


cdef int deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    cdef AdaptorState* state = <AdaptorState*>self
    if state.books.freeing != NULL:
        state.books.freeing(state.self, freed)
    if not state.upstream.deallocate(state.upstream.self, freed, failure):
        if state.books.freed != NULL:
            state.books.freed(state.self, freed)
        return 0
    if state.books.not_freed != NULL:
        state.books.not_freed(state.self, freed, failure)
    return 1


cdef int trim(void* self, Failure* failure) except -1 nogil:
    cdef ResourceTable* upstream = (<AdaptorState*>self).upstream
    return upstream.trim(upstream.self, failure)


cdef void pass_settled(void* self, uint64_t nbytes) noexcept nogil:
    cdef AdaptorState* state = <AdaptorState*>self
    if state.books.settled != NULL:
        state.books.settled(state.self, nbytes)
    settle(state.upstream, nbytes)


cdef void pass_evicted(void* self, Allocation* lost) noexcept nogil:
    cdef AdaptorState* state = <AdaptorState*>self
    if state.books.evicted != NULL:
        state.books.evicted(state.self, lost)
    if state.upstream.evicted != NULL:
        state.upstream.evicted(state.upstream.self, lost)


# ---------------------------------------------------------------------------------------------- with frontiers
# The runtime's lock is held on entry and on return.
cdef int allocate_unlocks(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef AdaptorState* state = <AdaptorState*>self
    if state.books.admit != NULL and state.books.admit(state.self, wanted, failure):
        return 1
    if state.upstream.frontiers.allocate(state.upstream.self, wanted, failure):
        return book_failure(state, wanted, failure)
    if state.books.allocated != NULL:
        state.books.allocated(state.self, wanted)
    return 0


cdef void deallocate_locked(void* self, Allocation* freed, vector[Dependency]* frontier) noexcept nogil:
    cdef AdaptorState* state = <AdaptorState*>self
    if state.books.freeing != NULL:
        state.books.freeing(state.self, freed)
    state.upstream.frontiers.deallocate(state.upstream.self, freed, frontier)
    if state.books.freed != NULL:
        state.books.freed(state.self, freed)


cdef int trim_unlocks(void* self, size_t nbytes, StreamState* stream, Failure* failure) except -1 nogil:
    cdef ResourceTable* upstream = (<AdaptorState*>self).upstream
    return upstream.frontiers.trim(upstream.self, nbytes, stream, failure)


cdef int end(void* self) except -1 nogil:
    cdef ResourceTable* upstream = (<AdaptorState*>self).upstream
    return upstream.frontiers.end(upstream.self)


@cython.no_gc_clear                         # a runtime calls down the stack until its __dealloc__
@cython.auto_pickle(False)                  # none is copied: see the base class
cdef class ResourceAdaptor(DeviceMemoryResource):
    """The base class of the adaptors: a resource around another resource.

    Use one of the subclasses.  They go around any resource and each other, in any order; around a pool they watch the
    pool's blocks, and below a pool its chunks.

    Attributes
    ----------
    upstream : DeviceMemoryResource
        As given.

    Examples
    --------
    >>> counted = xlogmem.StatisticsResourceAdaptor(xlogmem.PoolMemoryResource())
    >>> budget = xlogmem.LimitingResourceAdaptor(counted, "8GiB")           # around it
    >>> budget.upstream is counted
    True
    """

    cdef int take_upstream(self, object upstream) except -1:
        """Take the resource below, as the first step of ``__init__``: check that it is a resource, and keep its
        context."""
        if self.upstream is not None:
            raise RuntimeError("a resource is initialised once")
        refuse_upstream(upstream, "an adaptor on it")
        self.upstream = upstream
        self.context = self.upstream.context
        self.state.upstream = &self.upstream.table
        return 0

    cdef int open_books(self, void* self_of_books) except -1:
        """Take the place of the resource below, as the last step of ``__init__``, which cannot fail.  The subclass has
        filled in `state.books`.  An adaptor whose ``__init__`` fails before has no functions, and nothing accepts it as
        a resource."""
        self.state.self = self_of_books
        self.table = self.upstream.table                # its order, and whether it finds its device
        self.table.self = &self.state
        self.table.allocate = allocate
        self.table.deallocate = deallocate
        if self.table.trim != NULL:
            self.table.trim = trim
        if self.state.books.settled != NULL or self.table.settled != NULL:
            self.table.settled = pass_settled
        if self.state.books.evicted != NULL or self.table.evicted != NULL:
            self.table.evicted = pass_evicted
        if self.upstream.table.frontiers != NULL:
            self.functions = self.upstream.table.frontiers[0]
            self.functions.grain = 0                    # every call counts
            self.functions.allocate = allocate_unlocks
            self.functions.allocate_at_once = NULL      # what is admitted would be booked twice
            self.functions.deallocate = deallocate_locked
            self.functions.trim = trim_unlocks
            self.functions.end = end
            self.table.frontiers = &self.functions
        return 0

    cdef int refuse_unmade(self) except -1:
        """Raise if ``__init__`` was not called, or failed: then methods have no figures."""
        if self.table.allocate == NULL:
            raise StreamMisuseError(NEVER_INITIALISED.format(type(self).__name__))
        return 0

    cdef int bind(self, StreamPool stream_pool) except -1:
        self.refuse_unmade()
        return self.upstream.bind(stream_pool)

    cdef cy.CUstream handle_on_device(self, object stream, str method) except? <cy.CUstream>-1:
        if self.upstream is not None and self.state.upstream.frontiers != NULL:
            return self.upstream.handle_on_device(stream, method)           # which refuses, and says why
        return DeviceMemoryResource.handle_on_device(self, stream, method)

    @property
    def is_device_accessible(self):
        """As of the resource below."""
        self.refuse_unmade()
        return self.upstream.is_device_accessible

    @property
    def is_managed(self):
        """As of the resource below."""
        self.refuse_unmade()
        return self.upstream.is_managed

    @property
    def upstream_mr(self):
        """The RMM resource below; raises AttributeError if there is none."""
        self.refuse_unmade()
        return self.upstream.upstream_mr

    def __repr__(self):
        from xlogmem.resources.layers import described

        return described(self)
