# The shape of a memory resource: a table of C functions for the core, and a class with methods for Python.
#
# Most resources know nothing of uses: the core has ordered the stream of a call, or the host, before the call.  One
# that keeps frontiers (the pool) takes streams and dependencies in place of handles, and is part of the ordering.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport Failure
from xlogmem._base.labels cimport Label
from xlogmem._driver cimport Context
from xlogmem._order cimport Dependency, StreamState
from xlogmem.streams cimport StreamPool

cdef enum ResourceOrder:
    UNDECLARED                  # a runtime refuses the resource: when does a free take effect?
    STREAM_ORDERED              # memory and free are ordered on the stream given to the call
    HOST_SYNCHRONOUS            # the host waits for every use before it frees


cdef struct Allocation:
    # One call, down through every resource of a stack: what is wanted, or freed, and for which block.
    size_t nbytes
    cy.CUstream handle          # of the stream that the memory, or the free, is ordered on
    StreamState* stream         # the same; NULL: the caller has no runtime, or wants memory for the host
    uint64_t ptr                # `allocate` fills it in
    void* resource_block        # the name that a resource which keeps frontiers gives to the memory
    uint64_t generation         # of the block; 0: memory of a resource above, such as the chunk of a pool
    Label* tag                  # of the block; valid during the call, as is the stack
    Label* stack                # of the Python call; taken for resources that want it (`stack_depth`)


cdef struct FrontierTable:
    # The functions of a resource that keeps frontiers.  They are called in place of those of `ResourceTable`, with the
    # runtime's lock held on entry and on return.
    #
    # `allocate` orders the stream (NULL: the host) after former users of the memory, and may drop the lock meanwhile.
    # `deallocate` takes what the next owner has to be ordered after; it does not drop the lock, makes no driver call
    # and cannot fail.  `trim` makes room for an allocation of so many bytes, and may drop the lock.  `end` is called
    # without the lock when the runtime ends: it returns everything, or says that something is left.
    #
    # `allocate_at_once` does what `allocate` does, without dropping the lock, if there is memory at hand that the
    # stream is ordered after; else it does nothing.  NULL: never.
    int (*allocate)(void* self, Allocation* wanted, Failure* failure) except -1 nogil
    bint (*allocate_at_once)(void* self, Allocation* wanted) noexcept nogil
    void (*deallocate)(void* self, Allocation* freed, vector[Dependency]* frontier) noexcept nogil
    int (*trim)(void* self, size_t nbytes, StreamState* stream, Failure* failure) except -1 nogil
    int (*end)(void* self) except -1 nogil
    size_t grain                    # a stream, or the host, may use memory again without a call, for sizes that round
    #                                 up to the same multiple of this; 0: every call counts
    size_t host_room                # bytes of such memory that the host may have
    uint32_t frees_per_fence        # on an unowned stream: see `fence_after_frees_unlocks`


cdef struct GuardTable:
    # What a guard somewhere in a stack of resources does besides; resources above it pass the pointer on.
    #
    # `reap` and `end` are called without the lock and with the context current.  `reap` gathers what checks have found
    # so far (blocking: it checks everything and waits for that), and what has to be reported is its failure.  `end`
    # returns what is kept, when the runtime ends, or says that something is left.  The others are called with the lock
    # or without, and take only a leaf.
    void* self
    int (*reap)(void* self, bint blocking, Failure* failure) except -1 nogil
    int (*end)(void* self) except -1 nogil
    bint (*keeps)(void* self, uint64_t ptr, uint64_t generation) noexcept nogil     # freed memory of this block
    void (*refused)(void* self, uint64_t ptr, Label* stack) noexcept nogil  # a free where nothing is alive


cdef struct ResourceTable:
    # How the core calls a resource: without the GIL, without the runtime's lock, with the device's context current.
    void* self
    ResourceOrder order
    bint frees_anywhere         # a free is as good on another stream: one that names none goes where it delays nothing
    bint finds_device           # callers of the C table need not have the context current either
    bint host_accessible        # the host reaches the memory, too
    int (*allocate)(void* self, Allocation* wanted, Failure* failure) except -1 nogil
    int (*deallocate)(void* self, Allocation* freed, Failure* failure) except -1 nogil
    int (*trim)(void* self, Failure* failure) except -1 nogil       # may be NULL
    # So many bytes of these calls may be used by others now: the host has seen the free complete, or the resource has
    # taken them back with a frontier.  With the runtime's lock or without.  NULL: nothing counts pending bytes.
    void (*settled)(void* self, uint64_t nbytes) noexcept nogil
    # A live block whose memory the resource handed out again: there will be no free of it.  As `settled`; may be NULL.
    void (*evicted)(void* self, Allocation* lost) noexcept nogil
    FrontierTable* frontiers       # NULL: it keeps no frontiers
    GuardTable* guard           # NULL: there is none
    int stack_depth             # frames of the Python stack of each call that it wants to have; 0: none


cdef inline void start_call(Allocation* call, size_t nbytes, cy.CUstream handle) noexcept nogil:
    """A call of no runtime, about no block."""
    call.nbytes = nbytes
    call.handle = handle
    call.stream = NULL
    call.ptr = call.generation = 0
    call.resource_block = NULL
    call.tag = call.stack = NULL


cdef inline void start_call_on(Allocation* call, size_t nbytes, StreamState* stream) noexcept nogil:
    """A call on a stream of a runtime."""
    start_call(call, nbytes, stream.handle)
    call.stream = stream


cdef inline void settle(ResourceTable* resource, uint64_t nbytes) noexcept nogil:
    if resource.settled != NULL:
        resource.settled(resource.self, nbytes)


cdef class DeviceMemoryResource:
    cdef ResourceTable table
    cdef readonly Context context
    cdef int bind(self, StreamPool stream_pool) except -1
    cdef cy.CUstream handle_on_device(self, object stream, str method) except? <cy.CUstream>-1


cdef str NEVER_INITIALISED              # with the name of the class

# Raise unless frees of the resource are ordered in a way that it declares; `what` is what would rely on that.
cdef int refuse_undeclared(DeviceMemoryResource resource, str what) except -1
cdef int refuse_upstream(object upstream, str what) except -1
