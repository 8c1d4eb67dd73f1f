# The tables of a guard; guard.pyx has the idea.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport Failure
from xlogmem._base.index cimport AddressIndex
from xlogmem._base.labels cimport Label
from xlogmem._base.locks cimport bell, mutex
from xlogmem._driver cimport EventPool
from xlogmem._order cimport OrderState, StreamState
from xlogmem.resources.adaptor cimport ResourceAdaptor
from xlogmem.resources.base cimport GuardTable, ResourceTable
from xlogmem.streams cimport StreamPool

cdef enum GuardedState:
    GUARDED                     # alive, for all that the guard knows
    BEING_FREED                 # a free has begun
    IN_QUARANTINE
    LEAVING                     # on its way back upstream

cdef enum Part:
    # Of guarded memory: which bytes a kernel visits.
    CANARIES = 1
    INSIDE = 2
    EVERYTHING = 3

cdef enum ViolationKind:
    # The first three are the regions of a result, in their order.
    WRITTEN_BEFORE
    WRITTEN_INSIDE              # after the free
    WRITTEN_BEHIND
    FREED_TWICE


cdef cppclass Guarded:
    # One allocation, with its canaries: [base, base + total) from upstream, [ptr, ptr + nbytes) for the user.
    uint64_t base
    uint64_t ptr
    size_t nbytes
    size_t total
    uint64_t generation
    uint64_t seed               # of its canaries
    Label* tag                  # owned, as are the stacks
    Label* allocated_by
    Label* freed_by
    void* resource_block        # of an upstream that keeps frontiers
    cy.CUevent event            # behind the newest fill; NULL: that is complete, or on the guard's own stream
    bint check_is_left          # by a free that failed: the event is behind that check
    uint64_t freed_as           # the number of the free
    uint32_t slot
    uint32_t pins               # calls that enqueue work on it, or query its event, without the lock: it may not leave
    uint32_t checks             # results that are not there yet
    uint8_t state
    bint is_poisoned            # what is inside must not change
    bint is_unfilled            # it has no canaries: upstream did not take it back when that failed
    bint is_gone                # upstream has it back: deleted with the last check
    uint8_t reported            # a bit for each ViolationKind
    Guarded* previous           # in the list of those whose fill was not seen complete, or in the quarantine
    Guarded* next
    bint is_listed


cdef struct GuardedList:
    # The oldest first.
    Guarded* first
    Guarded* last


cdef struct Check:
    # A kernel that compares, and is not known to be complete.
    Guarded* memory
    uint64_t* result
    uint32_t blocks


cdef struct Pinned:
    # What a check on demand works on, as it was when it was pinned.
    Guarded* memory
    cy.CUevent event
    int part
    bint is_freed


cdef struct Finding:
    # A violation that Python code has not seen yet.  The labels are owned.
    ViolationKind kind
    uint64_t generation
    uint64_t ptr
    size_t nbytes
    int64_t offset
    uint32_t value
    uint64_t count
    Label* tag
    Label* allocated_by
    Label* freed_by
    Label* freed_again_by


cdef struct Keeper:
    # A thread that returns freed memory upstream, or has pinned what it checks.
    uint64_t thread
    uint64_t number


cdef cppclass GuardTools:
    # Of one context, kept until the process ends: work that uses them may be queued.
    cy.CUfunction fill
    cy.CUfunction check
    mutex lock                  # of the rest; a leaf
    vector[uint64_t*] results   # to use again
    vector[Check] abandoned     # of guards that ended before


cdef cppclass GuardState:
    ResourceTable* upstream
    OrderState* order           # of the runtime, if upstream keeps frontiers
    StreamState* stream_state   # of the guard's stream there
    cy.CUstream stream          # the guard's own, for what is done without a stream, and for what leaves
    cy.CUcontext context
    EventPool* events
    GuardTools* tools
    void* owner                 # the Python object
    size_t canary
    size_t most                 # bytes of the quarantine
    uint64_t age                # frees that memory stays for, 0: any number
    bint poisons
    bint on_host                # upstream takes no streams: the guard waits on the host
    mutex lock                  # of the rest; a leaf
    AddressIndex index          # of `ptr`, but for what is leaving
    vector[Guarded*] slots
    vector[uint32_t] empty
    GuardedList unseen          # alive, with an event
    GuardedList quarantine
    uint64_t quarantined        # bytes
    uint64_t quarantined_count
    vector[Check] checks
    size_t cursor               # where the next look at results begins
    vector[Finding] findings
    vector[Keeper] keepers      # threads that keep memory from others now, and make it available soon
    bell kept                   # rings when one of them has ended
    uint64_t keeps              # begun so far
    uint64_t returns            # of memory to upstream, so far
    uint64_t serial
    uint64_t frees


cdef class GuardResourceAdaptor(ResourceAdaptor):
    cdef GuardState guard
    cdef GuardTable guard_functions
    cdef StreamPool stream_pool
    cdef object report          # called for each violation; None: nothing is
    cdef bint raises
    cdef list found
    cdef list news              # found since the last time that something was raised
    cdef uint64_t left_out      # of the news
    cdef int fill_table(self, int depth) except -1
    cdef int open_stream(self) except -1
    cdef int keep(self, object violation) except -1
