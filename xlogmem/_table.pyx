"""The core for callers that have no GIL, and resources that are not written in Python: both ends of the C table.

``include/xlogmem.h`` is the promise to outsiders, and says what each function does.  Nothing here knows RMM; its
binding (``xlogmem.rmm``) is one that keeps to the header.

Threads of C++ programs may hold locks of their own, so nothing here takes the GIL, finalizers least of all: what needs
it (dropping a runtime, writing to the log) is left as an *errand*, which the interpreter's main thread runs when it
comes to it, or the next `open`.

Streams come as bare handles.  One is registered at first entry, as opaque, because whoever allocates here queues work
that nobody records.  The driver uses handles again, so all but the default streams, our own and those whose owner we
hold are scheduled for their number each time; a registration whose handle turned out to mean another stream is buried, the
new one is its successor.
"""
import logging

from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf

from xlogmem._abi cimport (
    XLOGMEM_FAILED,
    XLOGMEM_OUT_OF_MEMORY,
    XLOGMEM_TABLE,
    XLOGMEM_TABLE_VERSION,
    XLOGMEM_TEXT,
    xlogmem_error,
    xlogmem_runtime,
    xlogmem_table,
)
from xlogmem._core cimport (
    CAPTURE_WAS_CHECKED,
    CHECK_CAPTURE,
    STREAM_IS_RELEASED,
    STREAM_STAYS_BUSY,
    Block,
    CaptureCheck,
    CoreState,
    allocate_in_call,
    defer_decref_locked,
    drain,
    free_block,
    free_found_unlocks,
    free_unless_used,
    keep_unreported_locked,
    live_block_at_locked,
    requeue_free_locked,
)
from xlogmem._cpp cimport atomic, check, mutex, push, unlikely, vector
from xlogmem._driver cimport (
    Scope,
    enter_context,
    leave_context,
    process_is_closing,
    process_was_forked,
    stream_context,
    stream_id,
    stream_is_capturing,
)
from xlogmem._failures cimport (
    DEVICE_IS_LOST,
    PYTHON_RAISED,
    RESOURCE_FAILED,
    STREAM_IS_CAPTURING,
    Failure,
    format_failure,
    is_out_of_memory,
)
from xlogmem._order cimport (
    OPAQUE,
    Fence,
    OrderState,
    StreamState,
    advance,
    host_wait_unlocks,
    may_be_destroyed,
    own_stream_locked,
    record_fence_unlocks,
    register_stream_locked,
    this_thread,
    thread_is_alive,
    unregister_lost_unlocks,
)
from xlogmem.blocks cimport Core

__all__ = ["table"]

ctypedef int (*DeferredCall)(void*) noexcept      # has the GIL

cdef extern from "Python.h":
    int Py_AddPendingCall(DeferredCall function, void* argument) nogil

cdef enum:
    LEGACY = 1                  # as in streams.pyx
    PER_THREAD = 2
    CROWDED = 64                # streams, before those of ended threads are looked for
    LOG_LINES = 32             # kept for the log, until somebody holds the GIL
    FREES_PER_FENCE = 16                  # frees into a pool, on a stream that nobody keeps, that have one fence
    LARGE = 4 << 20             # bytes that count as one more of them

logger = logging.getLogger("xlogmem")


# ---------------------------------------------------------------------------------------------- deferred
cdef struct LogLine:
    char text[256]


cdef cppclass DeferredCalls:
    atomic[uint32_t] scheduled                  # the interpreter was scheduled to run them
    atomic[RuntimeHold*] closed                  # runtimes to let go
    mutex lock                              # a leaf; of the log_lines
    vector[LogLine] log_lines
    uint64_t left_out

cdef DeferredCalls* deferred = new DeferredCalls()       # never destroyed: threads may outlive the interpreter's end


cdef void schedule_deferred() noexcept nogil:
    if deferred.scheduled.exchange(1) == 0 and Py_AddPendingCall(run_deferred, NULL):
        deferred.scheduled.store(0)              # its queue is full: the next errand asks again


cdef int run_deferred(void* _) noexcept:
    """Called with the GIL."""
    cdef RuntimeHold* hold
    cdef RuntimeHold* following
    cdef vector[LogLine] log_lines
    cdef uint64_t left_out
    cdef size_t i
    deferred.scheduled.store(0)
    deferred.lock.lock()                     # a leaf, never held for long
    log_lines = deferred.log_lines
    deferred.log_lines.clear()
    left_out = deferred.left_out
    deferred.left_out = 0
    deferred.lock.unlock()
    hold = deferred.closed.exchange(NULL)
    while hold != NULL:
        following = hold.next
        with nogil:
            release_legacy(hold)
        Py_DECREF(<object>hold.owner)
        del hold
        hold = following
    for i in range(log_lines.size()):
        logger.error("%s", log_lines[i].text.decode(errors="replace"))
    if left_out:
        logger.error("and %d more", left_out)
    return 0


cdef void log_later(const char* text) noexcept nogil:
    cdef LogLine line
    snprintf(line.text, sizeof(line.text), "%s", text)
    deferred.lock.lock()
    if deferred.log_lines.size() < <size_t>LOG_LINES:
        deferred.log_lines.push_back(line)
    else:
        deferred.left_out += 1
    deferred.lock.unlock()
    schedule_deferred()


# ---------------------------------------------------------------------------------------------- streams
cdef struct CachedStream:
    # A stream that was seen through this hold.
    cy.CUstream handle
    uint64_t thread             # of a per-thread default stream
    uint64_t number
    uint32_t index


cdef cppclass RuntimeHold:
    # What the outside calls an xlogmem_runtime.
    CoreState* core
    void* owner                 # the Core, a strong reference
    vector[CachedStream] cached          # under the core's lock
    atomic[StreamState*] legacy  # the legacy default stream once it was seen: busy until the hold is closed
    RuntimeHold* next                # in the list of those to let go


cdef StreamState* cached_stream_locked(RuntimeHold* hold, cy.CUstream handle, uint64_t thread) noexcept nogil:
    """With the lock held."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef OrderState* order = hold.core.order
    cdef CachedStream* entry
    cdef size_t i
    for i in range(hold.cached.size()):
        entry = &hold.cached[i]
        if entry.handle == handle and entry.thread == thread:
            if order.streams[entry.index].number == entry.number and order.streams[entry.index].alive:
                return order.streams[entry.index]
            hold.cached[i] = hold.cached.back()
            hold.cached.pop_back()
            return NULL
    return NULL


cdef StreamState* default_stream(RuntimeHold* hold, void* stream) noexcept nogil:
    """The legacy default stream, if that is meant and needs no look: without the lock.  It is never one of those that
    capture, and asking about other people's captures is left to the driver, as without us."""
    if <size_t>stream > LEGACY:
        return NULL
    return hold.legacy.load()


cdef void release_legacy(RuntimeHold* hold) noexcept nogil:
    cdef StreamState* legacy = hold.legacy.load()
    if legacy != NULL and not process_was_forked():
        hold.core.order.lock.lock()
        legacy.busy -= 1
        hold.core.order.lock.unlock()


cdef void drop_stale_locked(RuntimeHold* hold) noexcept nogil:
    """Threads end, and their default streams are never scheduled for again.  With the lock held."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef OrderState* order = hold.core.order
    cdef StreamState* state
    cdef size_t i, kept = 0
    for i in range(hold.cached.size()):
        state = order.streams[hold.cached[i].index]
        if state.number == hold.cached[i].number and state.alive:
            hold.cached[kept] = hold.cached[i]
            kept += 1
    hold.cached.resize(kept)


cdef int lookup_stream_locks(RuntimeHold* hold, cy.CUstream given, bint* capturing, StreamState** result,
             Failure* failure) except -1 nogil:
    """The registration of a stream, and whether a graph is being captured on it.  The context is current.  The caller
    gets the lock held, failed or not; the stream is busy, and so stays."""
    cdef cy.CUstream handle = given if given != NULL else <cy.CUstream><size_t>LEGACY
    cdef uint64_t thread = this_thread() if <size_t>handle == PER_THREAD else 0
    cdef OrderState* order = hold.core.order
    cdef StreamState* state
    cdef uint64_t number = 0
    cdef int failed = 0
    if <size_t>handle != LEGACY:
        failed = stream_is_capturing(handle, capturing, failure)
    order.lock.lock()
    if failed:
        return 1
    state = cached_stream_locked(hold, handle, thread)
    if state == NULL or (<bint>state.unowned and <size_t>handle > PER_THREAD and not capturing[0]):
        if capturing[0]:                                # asking for the number would spoil the capture
            failure.kind = STREAM_IS_CAPTURING
            failure.stream = <size_t>handle
            return 1
        order.lock.unlock()
        failed = stream_id(handle, &number, failure)
        order.lock.lock()
        if failed:
            return 1
        state = cached_stream_locked(hold, handle, thread)
        if state == NULL or state.driver_id != number:
            return register_first_use_unlocks(hold, handle, number, thread, result, failure)
    state.busy += 1
    result[0] = state
    return 0


cdef int register_first_use_unlocks(RuntimeHold* hold, cy.CUstream handle, uint64_t number, uint64_t thread, StreamState** result,
                     Failure* failure) except -1 nogil:
    """Find the stream among those that others registered, or register it.  Called with the lock held, releases it."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef OrderState* order = hold.core.order
    cdef StreamState* state = own_stream_locked(order, handle)
    cdef StreamState* former = NULL
    cdef cy.CUcontext context = NULL
    cdef CachedStream entry
    cdef size_t i
    cdef int failed
    if state == NULL:
        order.lock.unlock()
        failed = stream_context(handle, &context, failure)
        order.lock.lock()
        if not failed and context != order.context:
            failure.kind = RESOURCE_FAILED
            failure.code = cy.CUDA_ERROR_INVALID_CONTEXT
            snprintf(failure.text, sizeof(failure.text), "stream %p is of another context or device", <void*>handle)
            failed = 1
        if failed:
            return 1
        for i in range(order.streams.size()):
            if not order.streams[i].alive or order.streams[i].handle != handle or not order.streams[i].driver_id:
                continue
            if order.streams[i].driver_id == number:
                state = order.streams[i]
            elif <size_t>handle > PER_THREAD:
                former = order.streams[i]               # destroyed by its owner, and its handle came back
            elif order.streams.size() > CROWDED and not thread_is_alive(order.streams[i].thread):
                former = order.streams[i]               # the default stream of a thread that ended
    if state == NULL:
        state = register_stream_locked(order, handle, OPAQUE)
        state.driver_id = number
        state.thread = thread
        state.unowned.store(<size_t>handle > LEGACY)
    result[0] = state
    state.busy += 1
    if former != NULL:
        former.unowned.store(True)                          # its handle is not to be raised_to any more
        order.in_flight += 1
        failed = unregister_lost_unlocks(order, former, state, failure)
        order.in_flight -= 1
        if failed and former.alive and <size_t>handle > PER_THREAD:     # else that was tidying up, or others did it
            state.busy -= 1
            return 1                                    # not seen: the next call tries again
    drop_stale_locked(hold)
    entry.handle = handle
    entry.thread = thread
    entry.number = state.number
    entry.index = state.index
    hold.cached.push_back(entry)
    if <size_t>handle == LEGACY and hold.legacy.load() == NULL:
        state.busy += 1
        hold.legacy.store(state)
    return 0


# ---------------------------------------------------------------------------------------------- failures
cdef void fill_error(CoreState* core, Failure* failure, xlogmem_error* error) noexcept nogil:
    error.kind = XLOGMEM_OUT_OF_MEMORY if is_out_of_memory(failure) else XLOGMEM_FAILED
    format_failure(failure, error.text, XLOGMEM_TEXT)
    if failure.kind == PYTHON_RAISED:
        core.order.lock.lock()
        defer_decref_locked(core, failure.exception)
        core.order.lock.unlock()


# ---------------------------------------------------------------------------------------------- the table
cdef xlogmem_runtime* table_open(void* runtime) noexcept:
    cdef RuntimeHold* hold
    run_deferred(NULL)
    if not isinstance(<object>runtime, Core):
        return NULL
    hold = new RuntimeHold()
    hold.core = &(<Core><object>runtime).state
    hold.owner = runtime
    Py_INCREF(<object>runtime)
    return <xlogmem_runtime*>hold


cdef void table_close(xlogmem_runtime* runtime) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    if process_is_closing():                            # it goes with the process
        return
    push(deferred.closed, hold)
    schedule_deferred()


cdef bint has_deferred_work(CoreState* core) noexcept nogil:
    """Whether a call has to look up from its own work."""
    return core.dropped.load() != NULL or core.abandoned.load() != NULL or core.lost.load() or process_was_forked()


cdef int allocate_on(RuntimeHold* hold, size_t nbytes, void* stream, Block** block, Failure* failure) except -1 nogil:
    cdef CoreState* core = hold.core
    cdef StreamState* state = default_stream(hold, stream)
    cdef bint capturing = False
    cdef Scope scope
    cdef int failed
    if state != NULL and not has_deferred_work(core):
        if core.resource.finds_device:                  # no driver call of ours
            return allocate_in_call(core, nbytes, state, STREAM_STAYS_BUSY, block, failure)
        if enter_context(core.order.context, &scope, failure):
            return 1
        failed = allocate_in_call(core, nbytes, state, STREAM_STAYS_BUSY, block, failure)
        leave_context(&scope)
        return failed
    if core.lost.load():
        failure.kind = DEVICE_IS_LOST
        return 1
    if enter_context(core.order.context, &scope, failure):      # fails in a forked child, before the lock
        return 1
    drain(core)
    failed = lookup_stream_locks(hold, <cy.CUstream>stream, &capturing, &state, failure)
    if not failed and capturing:
        state.busy -= 1
        failure.kind = STREAM_IS_CAPTURING
        failure.stream = state.number
        failed = 1
    core.order.lock.unlock()
    if not failed:
        failed = allocate_in_call(core, nbytes, state, STREAM_IS_RELEASED, block, failure)
    leave_context(&scope)
    return failed


cdef int table_allocate(xlogmem_runtime* runtime, size_t nbytes, void* stream, void** ptr,
                        xlogmem_error* error) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef Block* block = NULL
    cdef Failure failure
    ptr[0] = NULL
    if nbytes == 0:
        return 0
    if unlikely(allocate_on(hold, nbytes, stream, &block, &failure)):
        fill_error(hold.core, &failure, error)
        return 1
    ptr[0] = <void*>block.ptr
    return 0


cdef int table_allocate_sync(xlogmem_runtime* runtime, size_t nbytes, void** ptr, xlogmem_error* error) noexcept nogil:
    """Somebody will use the memory on streams that nobody names here, so its home is the one stream that others wait
    for by themselves."""
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef CoreState* core = hold.core
    cdef Block* block = NULL
    cdef Failure failure
    cdef Failure ignored
    cdef Scope scope
    cdef int failed
    ptr[0] = NULL
    if nbytes == 0:
        return 0
    failed = allocate_on(hold, nbytes, NULL, &block, &failure)
    if not failed:
        failed = enter_context(core.order.context, &scope, &failure)
        if not failed:
            core.order.lock.lock()
            core.order.in_flight += 1
            failed = host_wait_unlocks(core.order, block.stream, advance(block.stream), &failure)
            core.order.in_flight -= 1
            core.order.lock.unlock()
            leave_context(&scope)
        if failed:
            free_block(core, block.slot, block.generation, NULL, &ignored)
    if failed:
        fill_error(core, &failure, error)
        return 1
    ptr[0] = <void*>block.ptr
    return 0


cdef void table_deallocate(xlogmem_runtime* runtime, void* ptr, void* stream) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef CoreState* core = hold.core
    cdef StreamState* state = default_stream(hold, stream)
    cdef Block* block = NULL
    cdef bint capturing = False
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    if unlikely(ptr == NULL or process_is_closing()):   # at the end the memory goes with the process
        return
    if state != NULL and (core.resource.finds_device or core.resource.ordered != NULL) and not has_deferred_work(core):
        failed = free_unless_used(core, <uint64_t>ptr, state, &block, &failure)     # no driver call of ours
        if block != NULL:
            if unlikely(failed):
                report_failed_free(core, <uint64_t>ptr, block, &failure)
            return
    if core.lost.load():
        failure.kind = DEVICE_IS_LOST
        report_failed_free(core, <uint64_t>ptr, NULL, &failure)
        return
    if enter_context(core.order.context, &scope, &failure):
        report_failed_free(core, <uint64_t>ptr, NULL, &failure)
        return
    drain(core)
    if lookup_stream_locks(hold, <cy.CUstream>stream, &capturing, &state, &failure):
        core.order.lock.unlock()
        report_failed_free(core, <uint64_t>ptr, NULL, &failure)
    else:
        free_on(core, <uint64_t>ptr, state, CHECK_CAPTURE if capturing else CAPTURE_WAS_CHECKED)
    leave_context(&scope)


cdef int free_on(CoreState* core, uint64_t ptr, StreamState* stream, CaptureCheck check_capture) except -1 nogil:
    """Free the block that is alive there, if there is one, on a stream that is busy, which ends here.  Called with the
    lock held, gives it back."""
    cdef Block* block = live_block_at_locked(core, ptr)
    cdef Failure failure
    cdef size_t nbytes
    cdef int failed
    if block == NULL:
        failure.kind = RESOURCE_FAILED
        failure.code = cy.CUDA_ERROR_INVALID_VALUE
        snprintf(failure.text, sizeof(failure.text), "no block of the runtime is alive at %p, which was freed",
                 <void*>ptr)
        failed = 1
    else:
        nbytes = block.nbytes
        failed = free_found_unlocks(core, block, stream, check_capture, &failure)
        if not failed and check_capture == CAPTURE_WAS_CHECKED and core.resource.ordered != NULL and may_be_destroyed(stream):
            fence_after_frees_unlocks(core, stream, nbytes)
    stream.busy -= 1
    core.order.lock.unlock()
    if failed:
        report_failed_free(core, ptr, block, &failure)
    return 0


cdef int fence_after_frees_unlocks(CoreState* core, StreamState* stream, size_t nbytes) except -1 nogil:
    """The stream was alive for this free, and may be gone at any time from now on.  What a pool has from it can be
    waited for without it up to its last fence: so there is one for a number of frees, or for fewer large ones.  With
    the lock held, releases it."""
    check(core.order.lock.held(), "the lock is held")
    cdef Failure ignored
    cdef Fence* fence
    stream.unfenced_frees += 1 + <uint32_t>(nbytes // <size_t>LARGE)
    if stream.unfenced_frees >= <uint32_t>FREES_PER_FENCE:
        core.order.in_flight += 1
        record_fence_unlocks(core.order, stream, &fence, &ignored)      # a failure changes nothing: the next free tries again
        core.order.in_flight -= 1
    return 0


cdef void report_failed_free(CoreState* core, uint64_t ptr, Block* block, Failure* failure) noexcept nogil:
    """Nobody is there to be told now.  A block (or NULL) that the free had found is tried again by the next call."""
    cdef char[XLOGMEM_TEXT] text
    cdef char[XLOGMEM_TEXT] line
    format_failure(failure, text, XLOGMEM_TEXT)
    core.order.lock.lock()
    if block != NULL:
        requeue_free_locked(core, block, failure)
    else:
        keep_unreported_locked(core, failure)
    core.unreported = True
    core.order.lock.unlock()
    snprintf(line, XLOGMEM_TEXT, "freeing %p, allocated through the C table, failed: %.150s. "
             "DeviceRuntime.reap_pending() raises it", <void*>ptr, text)
    log_later(line)


cdef void table_deallocate_sync(xlogmem_runtime* runtime, void* ptr) noexcept nogil:
    table_deallocate(runtime, ptr, NULL)


cdef xlogmem_table functions
functions.version = XLOGMEM_TABLE_VERSION
functions.size = sizeof(xlogmem_table)
functions.open = table_open
functions.close = table_close
functions.allocate = table_allocate
functions.allocate_sync = table_allocate_sync
functions.deallocate = table_deallocate
functions.deallocate_sync = table_deallocate_sync

table = PyCapsule_New(&functions, XLOGMEM_TABLE, NULL)
