# Failures as plain data: filled in without the GIL, raised or written down where that is possible.

from cpython.ref cimport PyObject
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport atomic
from xlogmem._base.labels cimport Label

cdef enum FailureKind:
    NO_FAILURE
    DRIVER_FAILED               # code, call
    STREAM_IS_CAPTURING         # stream: the one that should do the work
    SOURCE_IS_CAPTURING         # stream: one that the work would have to wait for
    STREAM_IS_ELSEWHERE         # stream (its handle): it is on another device, or in another context
    STREAM_IS_DEAD              # stream: it was unregistered
    STREAM_IS_GONE              # stream (its handle), code, call: it was destroyed, and is still registered
    NEEDS_CONTEXT_SYNC          # the host would have to wait for the whole context where it must not
    STREAM_IS_IN_USE            # stream: windows are open on it, or calls are in flight
    BLOCK_IS_STALE              # generation, argument: it was freed
    BLOCK_IS_CONTESTED          # generation, argument, stream, thread: a conflicting window is open on another stream
    BLOCK_IS_AWAITED            # the same: a conflicting window waits longer
    WAIT_IS_CIRCULAR            # the same: to wait for that window would never end
    BLOCK_IS_ON_DEVICE          # generation, argument: the host cannot reach it
    DEVICE_IS_LOST
    PROCESS_WAS_FORKED
    PYTHON_RAISED               # exception (an owned reference), code: out of memory, a sticky one, or unknown
    RESOURCE_FAILED             # text, code: out of memory or unknown
    ARGUMENT_IS_WRONG           # text, code: of a call of the C table
    OUT_OF_BUDGET               # budget; code: out of memory, or unknown where freeing would not help


cdef struct Holding:
    Label* tag                  # a reference; NULL: of all memory without a tag
    uint64_t nbytes


cdef struct Budget:
    # A limit that does not admit a request, exact at the decision.  Bytes.
    uint64_t requested
    uint64_t current
    uint64_t limit
    uint64_t pending            # of `current`: freed, and perhaps still in use
    int holding_count
    Holding holdings[5]         # the largest


cdef struct Failure:
    FailureKind kind
    cy.CUresult code
    const char* call
    uint64_t stream
    uint64_t generation
    size_t argument             # from 1; 0: none
    uint64_t other_stream       # of two windows that conflict
    uint64_t thread             # ident; 0: it has ended
    uint64_t other_thread
    void* exception
    char text[256]
    Budget budget


# Each of these functions fills in a failure and returns 1.
cdef int fail_stream(Failure* failure, FailureKind kind, uint64_t stream) noexcept nogil
cdef int fail_gone(Failure* failure, uint64_t handle) noexcept nogil
cdef int fail_block(Failure* failure, FailureKind kind, uint64_t generation, size_t argument) noexcept nogil
cdef int fail_resource(Failure* failure, cy.CUresult code) noexcept nogil
cdef int fail_argument(Failure* failure, cy.CUresult code) noexcept nogil
cdef int keep_exception(Failure* failure, object exception) except -1

cdef bint is_sticky(Failure* failure) noexcept nogil
cdef bint is_out_of_memory(Failure* failure) noexcept nogil
cdef bint is_put_off(Failure* failure) noexcept nogil
cdef void format_failure(Failure* failure, char* text, size_t size) noexcept nogil
cdef tuple error_name(cy.CUresult code)
cdef object class_of(Failure* failure)
cdef enum:
    LOST = 1                    # among the marks of a runtime: see `CoreState`
    ON_HOST = 0xFFFFFFFF        # in place of a stream's number, as in a history

# A call may come from a finalizer, while an exception is under way: code that takes the GIL in the call sets the
# exception aside meanwhile.
cdef struct UnderWay:
    PyObject* kind
    PyObject* error
    PyObject* traceback

cdef void set_aside(UnderWay* exception) noexcept
cdef void put_back(UnderWay* exception) noexcept

cdef int raise_failure(Failure* failure, str what=*, atomic[uint32_t]* lost=*, str where=*, str words=*) except -1
cdef int drop_exception(Failure* failure) except -1 nogil
cdef void drop_holdings(Failure* failure) noexcept nogil

# For a host that waits: call these without any lock, because they take the GIL.
cdef int check_signals(bint anywhere, Failure* failure) except -1 nogil
cdef int warn_of_window(Failure* seen, uint64_t waited, Failure* failure) except -1 nogil
