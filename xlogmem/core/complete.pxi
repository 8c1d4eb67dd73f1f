# Completion of the work on a block, or on all streams: host waits, and queries.
#
# Work that may be queued without a record counts as well, as it does for the next user: the first fill, work on an
# opaque stream, work of a consumer.  A wait then covers all work that is queued on that stream by now, and a query
# needs the stream to be idle.  A launch inside a window that is still open was not filed, and does not count.

from xlogmem._base.cpp cimport check
from xlogmem._base.failures cimport BLOCK_IS_STALE, fail_block
from xlogmem._driver cimport Scope, enter_context, leave_context
from xlogmem._order cimport (
    ENTRY_KINDS,
    WRITTEN,
    advance,
    host_wait_or_sync_unlocks,
    is_ordered_after_locked,
    is_other_threads_default,
    is_unowned,
    order_after_unlocks,
    poll_stream_unlocks,
    poll_unlocks,
    refuse_capturing_sources_unlocks,
)


cdef enum:
    UNRECORDED = ENTRY_KINDS                # the kind of a dependency behind which unrecorded work may stand

cdef int collect_work_locked(CoreState* core, Block* block, uint64_t generation, int access, StreamState* stream,
                             vector[Dependency]* work, Failure* failure) except -1 nogil:
    """Collect the uses of a block that `stream` (NULL: the host) is not ordered after yet: those that an access like
    this would be ordered after.  The block's memory must not be freed."""
    check(core.order.lock.held(), "the lock is held")
    cdef Query query
    cdef size_t i
    if not is_still_locked(core, block, generation) or block.state in (FREEING, FREED):
        return fail_block(failure, BLOCK_IS_STALE, generation, 0)
    core.order.operations += 1
    query.stream = stream
    query.operation = core.order.operations
    query.dependencies = work
    query.snapshot = NULL
    collect_dependencies_locked(core.order, block, access, &query)
    for i in range(work.size()):
        if work[0][i].source.raised_to:                 # by this operation: it has claimed the scratch of each
            work[0][i].kind = UNRECORDED
    return 0


cdef int wait_for_block(CoreState* core, Block* block, uint64_t generation, int access, StreamState* stream,
                        Failure* failure) except -1 nogil:
    """Have `stream` (NULL: the host) wait until the uses of a block are complete, for a read those that write.  The
    block may be freed meanwhile."""
    cdef OrderState* order = core.order
    cdef vector[Dependency] work
    cdef Scope scope
    cdef size_t i
    cdef int failed
    if refuse_lost(core, failure) or enter_context(order.context, &scope, failure):
        return 1
    drain(core)
    order.lock.lock()
    order.in_flight += 1
    failed = collect_work_locked(core, block, generation, access, stream, &work, failure)
    if not failed:
        failed = refuse_capturing_sources_unlocks(order, stream, &work, failure)
    for i in range(work.size()):
        if not failed and stream == NULL:
            failed = host_wait_or_sync_unlocks(order, work[i].source, work[i].position, failure)
        elif not failed:
            failed = order_after_unlocks(order, stream, work[i].source, work[i].position, failure)
    order.in_flight -= 1
    order.lock.unlock()
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int look_at_block(CoreState* core, Block* block, uint64_t generation, int access, bint* ready,
                       Failure* failure) except -1 nogil:
    """Find out without a wait if the uses of a block are complete, for a read those that write.  Work that cannot be
    queried counts as not complete."""
    cdef OrderState* order = core.order
    cdef vector[Dependency] work
    cdef Scope scope
    cdef size_t i
    cdef int failed
    ready[0] = False
    if refuse_lost(core, failure) or enter_context(order.context, &scope, failure):
        return 1
    drain(core)
    order.lock.lock()
    order.in_flight += 1
    failed = collect_work_locked(core, block, generation, access, NULL, &work, failure)
    ready[0] = not failed
    for i in range(work.size()):
        if not failed and ready[0]:
            failed = look_at_work_unlocks(core, &work[i], ready, failure)
    order.in_flight -= 1
    order.lock.unlock()
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int look_at_work_unlocks(CoreState* core, Dependency* work, bint* ready, Failure* failure) except -1 nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef int failed
    if work.kind == UNRECORDED:
        failed = poll_stream_unlocks(core.order, work.source, work.position, failure)
    else:
        failed = poll_unlocks(core.order, work.source, work.position, failure)
    ready[0] = not failed and is_ordered_after_locked(core.order, NULL, work.source, work.position)
    return failed


cdef Block* block_in_slot(CoreState* core, uint32_t slot) noexcept nogil:
    """Return the block in a slot, which may be another one by now; NULL if the slot is none of this core's."""
    cdef Block* block
    core.order.lock.lock()
    block = core.blocks[slot] if slot < core.blocks.size() else NULL
    core.order.lock.unlock()
    return block


# ---------------------------------------------------------------------------------------------- all streams
cdef inline void fill_all_work(StreamState* stream, Dependency* work) noexcept nogil:
    """Fill in all work on a stream so far; for a stream that cannot be recorded on, or may be destroyed, the filed
    work."""
    work.source = stream
    work.kind = WRITTEN
    work.position = stream.count
    if stream.alive and not is_unowned(stream) and not is_other_threads_default(stream):
        work.kind = UNRECORDED
        work.position = advance(stream)


cdef int wait_for_streams(CoreState* core, Failure* failure) except -1 nogil:
    """Return when all work so far is complete, on every known stream."""
    cdef OrderState* order = core.order
    cdef Dependency work
    cdef Scope scope
    cdef size_t i = 0
    cdef int failed = 0
    if refuse_lost(core, failure) or enter_context(order.context, &scope, failure):
        return 1
    drain(core)
    order.lock.lock()
    order.in_flight += 1
    while i < order.streams.size() and not failed:      # more may come meanwhile
        fill_all_work(order.streams[i], &work)
        failed = host_wait_or_sync_unlocks(order, work.source, work.position, failure)
        i += 1
    order.in_flight -= 1
    order.lock.unlock()
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int look_at_streams(CoreState* core, bint* ready, Failure* failure) except -1 nogil:
    """Find out without a wait if all work so far is complete."""
    cdef OrderState* order = core.order
    cdef Dependency work
    cdef Scope scope
    cdef size_t i = 0
    cdef int failed = 0
    ready[0] = False
    if refuse_lost(core, failure) or enter_context(order.context, &scope, failure):
        return 1
    drain(core)
    order.lock.lock()
    order.in_flight += 1
    ready[0] = True
    while i < order.streams.size() and not failed and ready[0]:
        fill_all_work(order.streams[i], &work)
        failed = look_at_work_unlocks(core, &work, ready, failure)
        i += 1
    order.in_flight -= 1
    order.lock.unlock()
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)
