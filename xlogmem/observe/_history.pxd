# What runtimes record of themselves, while a program wants it: see observe/_history.pyx.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t


cdef enum EventKind:
    # Their names are in xlogmem/observe/history/events.py.
    NO_EVENT
    BLOCK_ALLOCATED
    BLOCK_ADOPTED
    BLOCK_FREED
    BLOCK_RELEASED              # adopted memory that is not tracked any more
    BLOCK_EVICTED
    FREE_PUT_OFF
    FREE_FAILED                 # the block lives on
    BLOCK_USED
    WORK_RECORDED               # without a prepare
    USE_NEEDS                   # what a stream has to be ordered after, and because of which block
    FREE_NEEDS
    STREAM_WAITS
    HOST_WAITS
    FENCE_RECORDED
    HANDED_BACK
    BYTES_REAPED
    OUT_OF_MEMORY
    WINDOW_WAITS                # on the host, for a conflicting one

cdef enum Stacks:
    NO_STACKS
    OF_ALLOCATIONS
    OF_ALL_CALLS

cdef enum:
    NO_STREAM_NUMBER = 0xFFFFFFFF
    TICKS_OF_A_STEP = 64        # of `other` in BLOCK_USED, which is how long the window was open
    ACCESS_MASK = 3             # of `access`; the bits above are the runtime's

cdef extern from "observe/history/ring.hpp" nogil:
    ctypedef struct Event "xlogmem_event":
        uint32_t number
        uint32_t thread
        uint64_t ticks
        uint8_t kind
        uint8_t access
        uint16_t runtime
        uint32_t tag
        uint32_t stream
        uint32_t other
        uint64_t generation
        uint64_t address
        uint64_t bytes
        uint32_t position
        uint32_t stack

    # Before it is written.
    ctypedef struct Draft "xlogmem_draft":
        uint64_t kind
        uint64_t access
        uint64_t thread
        uint64_t tag
        uint64_t runtime
        uint64_t stream
        uint64_t other
        uint64_t generation
        uint64_t address
        uint64_t bytes
        uint64_t position
        uint64_t stack

    cdef cppclass Ring "xlogmem_ring":
        int stacks
        int timed
        int begin(size_t events, int wanted, int with_times, int file)
        void end()
        uint64_t count()
        uint64_t room()
        uint64_t note(const Draft& event) noexcept
        uint64_t note_at(const Draft& event, uint64_t ticks) noexcept
        bint read(uint64_t number, Event* event)
        void append(const char* record, size_t size) noexcept
        bint is_spoiled()
        bint has_file()
        void in_child() noexcept

    Draft new_event "xlogmem_new_event"(uint64_t kind, uint32_t runtime, uint64_t thread) noexcept
    uint32_t mark_of "xlogmem_mark_of"(uint32_t runtime) noexcept
    uint32_t marked "xlogmem_marked"(uint32_t mark) noexcept
    uint64_t ticks "xlogmem_ticks"() noexcept

# Of the process.  Modules keep the address.
cdef Ring* the_ring() noexcept nogil

# How long a wait holds up its stream: see observe/history/timed.pxi.
cdef struct TimedWait:
    cy.CUcontext context        # NULL: it is not timed
    cy.CUevent before
    cy.CUevent after
    uint64_t number             # of the event in the history

cdef bint waits_are_timed() noexcept nogil
cdef int begin_timed(cy.CUcontext context, cy.CUstream stream, TimedWait* timed) except -1 nogil
cdef int end_timed(TimedWait* timed, cy.CUstream stream) except -1 nogil
cdef void file_timed(TimedWait* timed, uint64_t number) noexcept nogil
cdef void spare_timed(TimedWait* timed) noexcept nogil

# The place of this thread's call in the program, as a number; 0 where none was wanted, or found.  It is found without a
# lock, because that may take the GIL, and by the first function of a call that may write events.
cdef void find_place() noexcept nogil
cdef void find_other_place() noexcept nogil         # of a call that certainly allocates nothing
cdef uint32_t place_found() noexcept nogil
