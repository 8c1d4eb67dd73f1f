# Batches of the table: `allocate_many` and `deallocate_many`.
#
# A group of blocks is allocated, or freed, by what the stream's cache and the pool have at hand, as in `allocate_on`
# and `free_on`.  At the first group for which that is not enough the stream is looked up, once for the whole batch.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem.native cimport xlogmem_error, xlogmem_runtime
from xlogmem._base.cpp cimport check, unlikely
from xlogmem._base.failures cimport DEVICE_IS_LOST, LOST, Failure
from xlogmem._base.labels cimport Label, release
from xlogmem._core cimport (
    CAPTURE_WAS_CHECKED,
    CHECK_CAPTURE,
    GROUP,
    Block,
    CaptureCheck,
    CoreState,
    Piece,
    StreamCache,
    allocate_group_by_handle,
    allocate_group_in_call,
    drain,
    free_group_by_handle,
    goes_slowly,
    refuse_lost,
)
from xlogmem._driver cimport Scope, enter_context, leave_context, process_is_closing
from xlogmem._order cimport OPAQUE, StreamState
from xlogmem.resources.base cimport Allocation, start_call_on


cdef struct FreeingCall:
    # What the frees of a batch have in common, once the first of them needs it.
    RuntimeHold* hold
    void* named                 # the stream, as the caller named it
    bint has_begun
    bint has_context
    int failed
    Failure failure             # why none of them is possible
    StreamState* stream         # busy; NULL: none
    CaptureCheck check_capture
    Label* stack
    Scope scope


# ---------------------------------------------------------------------------------------------- allocate
cdef inline size_t start_group(size_t count, const size_t* nbytes, void** ptrs, Piece* pieces) noexcept nogil:
    """Fill in the first group of what is left of a batch; what it has already, and no bytes, is not wanted.  Return its
    size."""
    cdef size_t n = count if count < <size_t>GROUP else <size_t>GROUP
    cdef size_t i
    for i in range(n):
        pieces[i].nbytes = nbytes[i] if ptrs[i] == NULL else 0
        pieces[i].ptr = <uint64_t>ptrs[i]
        pieces[i].block = NULL
    return n


cdef inline void end_group(size_t n, Piece* pieces, void** ptrs) noexcept nogil:
    cdef size_t i
    for i in range(n):
        ptrs[i] = <void*>pieces[i].ptr


cdef size_t allocate_many_by_handle(RuntimeHold* hold, size_t count, const size_t* nbytes, void* stream,
                                    void** ptrs) noexcept nogil:
    """Allocate the first groups of a batch, as far as the stream's cache and the pool have all of their memory at hand.
    Return the number of these blocks; the next group may have some of its memory."""
    cdef CoreState* core = hold.core
    cdef StreamState* state = default_stream(hold, stream)
    cdef StreamCache* cache = cache_of_handle(hold, state, stream)
    cdef size_t handle = 0
    cdef Piece[GROUP] pieces
    cdef size_t first = 0, n
    cdef bint complete
    if cache != NULL and not goes_slowly(core):
        handle = find_handle(state, cache, stream)
    complete = handle != 0
    while complete and first < count:
        n = start_group(count - first, &nbytes[first], &ptrs[first], pieces)
        complete = allocate_group_by_handle(core, cache, handle, hold.tag, pieces, n)
        end_group(n, pieces, &ptrs[first])
        first += n if complete else 0
    return first


cdef int allocate_many_on(RuntimeHold* hold, size_t count, const size_t* nbytes, void* stream, void** ptrs,
                          Failure* failure) except -1 nogil:
    """Allocate what is missing of a batch.  If one allocation fails, those before it stay."""
    cdef CoreState* core = hold.core
    cdef StreamState* state = NULL
    cdef Piece[GROUP] pieces
    cdef Allocation wanted
    cdef size_t first = 0, n
    cdef Scope scope
    cdef int failed
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1                                        # in a forked child too, before the lock
    drain(core)
    failed = lookup_usable_stream_locks(hold, <cy.CUstream>stream, OPAQUE, &state, failure)
    core.order.lock.unlock()
    if not failed:
        start_call_on(&wanted, 0, state)
        wanted.tag = hold.tag
        take_stack(core, &wanted.stack)
        while first < count and not failed:
            n = start_group(count - first, &nbytes[first], &ptrs[first], pieces)
            failed = allocate_group_in_call(core, &wanted, pieces, n, failure)
            end_group(n, pieces, &ptrs[first])
            first += n
        release(wanted.stack)
        core.order.lock.lock()
        state.busy -= 1
        core.order.lock.unlock()
    leave_context(&scope)
    return failed


cdef int table_allocate_many(xlogmem_runtime* runtime, size_t count, const size_t* nbytes, void* stream, void** ptrs,
                             xlogmem_error* error) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef Failure failure
    cdef size_t first, i
    for i in range(count):
        ptrs[i] = NULL
    first = allocate_many_by_handle(hold, count, nbytes, stream, ptrs)
    while first < count and nbytes[first] == 0:         # a stream that gets nothing is not looked up
        first += 1
    if first < count and unlikely(allocate_many_on(hold, count - first, &nbytes[first], stream, &ptrs[first],
                                                   &failure)):
        if allocate_many_inside(hold, count, nbytes, stream, ptrs, &failure):
            return 0
        fill_error(hold.core, &failure, error)
        table_deallocate_many(runtime, count, ptrs, stream)
        for i in range(count):
            ptrs[i] = NULL
        return 1
    return 0


cdef bint allocate_many_inside(RuntimeHold* hold, size_t count, const size_t* nbytes, void* stream, void** ptrs,
                               Failure* failure) noexcept nogil:
    """Allocate a batch of memory of the graph that a stream captures.  False if one fails, and those before it are
    freed."""
    cdef Block* block
    cdef size_t i, k
    for i in range(count):
        if ptrs[i] == NULL and nbytes[i] != 0:
            if allocate_inside(hold, nbytes[i], stream, &block, failure):
                for k in range(i):
                    if ptrs[k] != NULL and free_inside(hold, <uint64_t>ptrs[k], stream, True):
                        ptrs[k] = NULL
                return False
            ptrs[i] = <void*>block.ptr
    return True


# ---------------------------------------------------------------------------------------------- free
cdef size_t list_addresses(size_t count, void** ptrs, uint64_t* addresses, size_t* listed) noexcept nogil:
    """List the next group of addresses that are not NULL.  Return how many places of the batch that took."""
    cdef size_t i = 0
    listed[0] = 0
    while i < count and listed[0] < <size_t>GROUP:
        addresses[listed[0]] = <uint64_t>ptrs[i]
        listed[0] += ptrs[i] != NULL
        i += 1
    return i


cdef void table_deallocate_many(xlogmem_runtime* runtime, size_t count, void* const* ptrs,
                                void* stream) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef StreamState* state = default_stream(hold, stream)
    cdef StreamCache* cache = cache_of_handle(hold, state, stream)
    cdef uint64_t[GROUP] addresses
    cdef size_t first = 0, left
    cdef FreeingCall call
    if process_is_closing():                            # at the end the memory goes with the process
        return
    call.hold, call.named = hold, stream
    call.has_begun = False
    while first < count:
        first += list_addresses(count - first, <void**>&ptrs[first], addresses, &left)
        if cache != NULL:
            left = free_group_by_handle(hold.core, cache, named_handle(stream), addresses, left)
        if left and not call.has_begun:
            begin_freeing(hold, stream, &call)
        if left:
            free_group_in_call(hold.core, &call, addresses, left)
    if call.has_begun:
        end_freeing(hold.core, &call)


cdef int begin_freeing(RuntimeHold* hold, void* stream, FreeingCall* call) except -1 nogil:
    """Begin as `free_on` does."""
    cdef CoreState* core = hold.core
    cdef bint capturing = False
    call.has_begun = True
    call.stream = NULL
    call.stack = NULL
    call.has_context = not (refuse_lost(core, &call.failure)
                            or enter_context(core.order.context, &call.scope, &call.failure))
    call.failed = not call.has_context
    if call.failed:
        return 0
    drain(core)
    take_stack(core, &call.stack)
    call.failed = lookup_stream_locks(hold, <cy.CUstream>stream, OPAQUE, &capturing, &call.stream, &call.failure)
    core.order.lock.unlock()
    call.check_capture = CHECK_CAPTURE if capturing else CAPTURE_WAS_CHECKED
    return 0


cdef int free_group_in_call(CoreState* core, FreeingCall* call, uint64_t* ptrs, size_t count) except -1 nogil:
    """Free a group one by one; each failure is reported, as that of a single free is."""
    cdef Failure failure
    cdef Block* block
    cdef size_t i
    cdef int failed
    if call.failed:
        for i in range(count):
            failure = call.failure
            if not free_inside(call.hold, ptrs[i], call.named, False):
                report_failed_free(core, ptrs[i], NULL, &failure)
        return 0
    core.order.lock.lock()
    for i in range(count):
        block = NULL
        failed = core.marks.load() & LOST
        if failed:
            failure.kind = DEVICE_IS_LOST
        else:
            failed = free_at_unlocks(core, ptrs[i], call.stream, call.check_capture, call.stack, &block, &failure)
        if unlikely(failed):
            core.order.lock.unlock()
            report_failed_free(core, ptrs[i], block, &failure)
            core.order.lock.lock()
    core.order.lock.unlock()
    return 0


cdef int end_freeing(CoreState* core, FreeingCall* call) except -1 nogil:
    if call.stream != NULL:
        core.order.lock.lock()
        call.stream.busy -= 1
        core.order.lock.unlock()
    if call.has_context:
        leave_context(&call.scope)
    release(call.stack)
    return 0
