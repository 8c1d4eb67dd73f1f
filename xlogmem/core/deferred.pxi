# Deferred work: frees queued by finalizers, and failed frees to retry.
#
# A finalizer may run at any allocation, in any thread, inside any capture: it pushes on a lock-free list and does
# nothing else.  Prepare, record, allocate, adopt, free and reap begin by carrying out the work on the lists (`drain`).
# If such a free fails, the operation does not fail: the free goes back on the list, and the next reap reports it.

from xlogmem._base.cpp cimport check, push
from xlogmem._base.failures cimport (
    LOST,
    NO_FAILURE,
    OUT_OF_BUDGET,
    PYTHON_RAISED,
    STREAM_IS_CAPTURING,
    drop_holdings,
    is_put_off,
)
from xlogmem._driver cimport Scope, enter_context, leave_context
from xlogmem._order cimport ALLOCATED, advance, fence_now_unlocks, forbid_context_sync


cdef void defer_free(CoreState* core, Block* block) noexcept nogil:
    """Leave a block to the next operation, which frees it.  For finalizers."""
    if block.listed.exchange(1):
        check(False, "a block is listed once")          # else the list would be a ring
        return
    push(core.dropped, block)


cdef void abandon(CoreState* core, Window* window) noexcept nogil:
    """Leave a window whose recorder was dropped between prepare and finish to the next operation; its launch may be
    queued, so the next operation files it."""
    push(core.abandoned, window)


cdef int drain(CoreState* core) except -1 nogil:
    """File abandoned windows, free dropped blocks, try failed frees again.  The context is current.  Frees that need a
    wait for the whole context are put off: `drain` runs at the start of calls that do not announce such a wait."""
    cdef bint before
    if core.marks.load() & LOST:
        return 0
    if core.abandoned.load() != NULL or core.dropped.load() != NULL:
        before = forbid_context_sync(True)
        drain_lists(core)
        forbid_context_sync(before)
    return 0


cdef int drain_lists(CoreState* core) except -1 nogil:
    """Drain as `drain` does, where the host may wait for the context, unless the caller has forbidden it."""
    if core.abandoned.load() != NULL:
        drain_windows(core)
    if core.dropped.load() != NULL:
        drain_blocks(core)
    return 0


cdef int drain_if_abandoned(CoreState* core) except -1 nogil:
    """Drain if a recorder was dropped: its window keeps the stream in use until the window is filed."""
    if core.abandoned.load() != NULL:
        drain_by_itself(core)
    return 0


cdef int drain_by_itself(CoreState* core) except -1 nogil:
    """Call `drain` outside of an operation."""
    cdef Failure ignored
    cdef Scope scope
    if enter_context(core.order.context, &scope, &ignored):
        return 0
    drain(core)
    leave_context(&scope)
    return 0


cdef int drain_windows(CoreState* core) except -1 nogil:
    """File abandoned windows.  They are taken from the list and filed in one acquisition of the lock: no thread finds
    the list empty and the uses not filed."""
    cdef OrderState* order = core.order
    cdef Window* window
    cdef Window* following
    cdef vector[Window*] rest
    cdef Failure failure
    cdef size_t i
    order.lock.lock()
    window = core.abandoned.exchange(NULL)
    while window != NULL:
        following = window.next
        core.counters.abandoned += 1
        if file_window_locked(core, window, ACCESSED if is_host(window.stream) else LAUNCHED):
            rest.push_back(window)
        else:
            return_window(core, window)
        window = following
    order.lock.unlock()
    for i in range(rest.size()):
        if finish_rest(core, rest[i], &failure):
            order.lock.lock()
            keep_unreported_locked(core, &failure)
            core.unreported = True
            order.lock.unlock()
        return_window(core, rest[i])
    return 0


cdef int drain_blocks(CoreState* core) except -1 nogil:
    """Free the dropped blocks; those whose home is capturing stay on the list."""
    cdef StreamState* capturing = NULL                  # just found capturing: queried once for all its blocks
    cdef StreamState* home
    cdef Block* block
    cdef Block* following
    core.order.lock.lock()
    core.requeued = 0
    if not core.unreported:
        drop_unreported_locked(core)
    block = core.dropped.exchange(NULL)
    while block != NULL:
        following = block.next
        block.listed.store(0)
        bring_in_locked(core, block, 0)                 # nothing else names it, so it is the one that was dropped
        home = block.home
        if block.state == LIVE and (block.windows or block.pins):
            block.state = RETIRED
            note_put_off_locked(core, block)
        elif block.state == RETIRED and (block.windows or block.pins):
            check(False, "a retired block is listed by the last that ends on it")
        elif block.state == RETIRED and home == capturing and home != NULL:
            defer_free(core, block)
        else:
            core.deferred_by_capture = NULL
            free_deferred_unlocks(core, block)
            if core.deferred_by_capture == block:
                capturing = home
        block = following
    core.order.lock.unlock()
    return 0


cdef int free_without_its_stream_unlocks(CoreState* core, Block* block, StreamState* stream) except -1 nogil:
    """Move a free that was put off away from its unowned stream: the stream is alive in this call, and may have ended
    before the free is carried out.  So a fence is recorded now, and the default stream frees the block after the fence.

    Unrecorded work on every stream comes before the free: entries are raised for the last time.  If no fence can be
    recorded, because a graph is being captured there, the block is freed on the stream after all.
    """
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef uint64_t position = advance(stream)
    cdef Query query
    block.pins += 1                                     # its last window may close meanwhile
    order.in_flight += 1
    if not fence_now_unlocks(order, stream) and block.home == stream:
        core.freed_frontier.clear()
        order.operations += 1
        query.stream = stream
        query.operation = order.operations
        query.dependencies = &core.freed_frontier       # not needed here
        query.snapshot = NULL
        collect_dependencies_locked(order, block, READ_WRITE, &query)
        set_entry(block, ALLOCATED, stream.index, position)
        block.raised = True
        set_home(block, order.streams[0])
    order.in_flight -= 1
    unpin_export_locked(core, block)
    return 0


# ---------------------------------------------------------------------------------------------- frees that fail
cdef int free_deferred_unlocks(CoreState* core, Block* block) except -1 nogil:
    """Free a block inside another operation, which does not fail if the free does."""
    check(core.order.lock.held(), "the lock is held")
    cdef Failure failure
    if block.state == FREED:                            # evicted meanwhile: the bytes have another owner
        return 0
    leave_unowned_home_locked(core, block)
    if free_now_unlocks(core, block, CHECK_CAPTURE, &failure):
        requeue_free_locked(core, block, &failure)
    return 0


cdef void requeue_free_locked(CoreState* core, Block* block, Failure* failure) noexcept nogil:
    """Put the block back on the list of dropped blocks: the next operation tries again, and the next reap reports the
    failure.  A free that is put off is not a failure: the home or a user's stream captures, or the host would have to
    wait for the context."""
    check(core.order.lock.held(), "the lock is held")
    block.state = RETIRED
    defer_free(core, block)
    if failure.kind == STREAM_IS_CAPTURING:
        core.deferred_by_capture = block
    if is_put_off(failure):
        return
    core.counters.failed_frees += 1
    core.requeued += 1
    keep_unreported_locked(core, failure)


# ---------------------------------------------------------------------------------------------- failures to report
cdef void keep_unreported_locked(CoreState* core, Failure* failure) noexcept nogil:
    """Keep a failure that the next reap raises.  A Python exception in it is an owned reference: when a newer failure
    replaces it, the next holder of the GIL DECREFs it."""
    check(core.order.lock.held(), "the lock is held")
    drop_unreported_locked(core)
    core.unreported_failure = failure[0]


cdef void drop_unreported_locked(CoreState* core) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    drop_exception_locked(core, &core.unreported_failure)       # its traceback may hold blocks, and so this runtime
    core.unreported_failure.kind = NO_FAILURE


cdef void drop_exception_locked(CoreState* core, Failure* failure) noexcept nogil:
    """Drop an exception, as `drop_exception` does, but under the lock, where the GIL is not taken."""
    check(core.order.lock.held(), "the lock is held")
    if failure.kind == OUT_OF_BUDGET:
        drop_holdings(failure)
    if failure.kind == PYTHON_RAISED:
        defer_decref_locked(core, failure.exception)
        failure.kind = NO_FAILURE


cdef void defer_decref_locked(CoreState* core, void* owner) noexcept nogil:
    """Leave a DECREF to the next holder of the GIL: under the lock no Python object may be dropped."""
    check(core.order.lock.held(), "the lock is held")
    core.pending_decrefs.push_back(owner)
    core.has_pending_decrefs.store(True)
