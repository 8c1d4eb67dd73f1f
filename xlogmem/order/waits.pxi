# Waits: a stream, or the host, is ordered after a position of another stream.
#
# No wait is queued for a position that the clock has already; an old fence that covers the position is used before a
# new fence is recorded.  The clock is raised after the driver accepted the wait.

from xlogmem._base.cpp cimport check, unlikely
from xlogmem._base.failures cimport SOURCE_IS_CAPTURING
from xlogmem._driver cimport Scope, event_is_done, event_synchronize, stream_wait
from xlogmem.observe._history cimport HOST_WAITS, TimedWait, begin_timed, end_timed, spare_timed, waits_are_timed


cdef int order_after_unlocks(OrderState* order, StreamState* stream, StreamState* source, uint64_t position,
                             Failure* failure) except -1 nogil:
    """Order all work that is queued on `stream` from now on after ``(source, position)``."""
    check(order.lock.held(), "the lock is held")
    cdef Fence* fence
    if is_ordered_after_locked(order, stream, source, position):
        order.counters.elided += 1
        return 0
    fence = covering(source, position)
    if fence != NULL:
        order.counters.covered += 1
    elif cannot_record(source):
        return sync_context_unlocks(order, source, failure)
    elif record_fence_unlocks(order, source, &fence, failure):
        return 1
    return queue_wait_unlocks(order, stream, source, fence, failure)


cdef inline int queue_wait_unlocks(OrderState* order, StreamState* stream, StreamState* source, Fence* fence,
                                   Failure* failure) except -1 nogil:
    """Have the stream wait for a fence."""
    check(order.lock.held(), "the lock is held")
    cdef bint is_timed = order.is_recorded and waits_are_timed()
    cdef TimedWait timed
    cdef Scope scope
    cdef bint source_lost = False
    cdef int failed
    fence.pins += 1
    order.lock.unlock()
    failed = enter_stream(stream, &scope, failure)
    is_timed = is_timed and not failed
    if unlikely(is_timed):
        begin_timed(stream.context if stream.context != NULL else order.context, stream.handle, &timed)
    if not failed:
        failed = stream_wait(stream.handle, fence.event, failure)
        if unlikely(is_timed):
            end_timed(&timed, stream.handle)
        failed = leave_stream(stream, &scope, failed, failure)
    if unlikely(failed) and source.remote:
        source_lost = is_lost_elsewhere(source, fence)  # else it is the stream's device that has failed
    order.lock.lock()
    if not failed and unlikely(order.is_recorded):
        note_wait(order, stream, source, fence.position, &timed if is_timed else NULL)
    elif unlikely(is_timed):
        spare_timed(&timed)
    if not failed:
        order.counters.waits += 1
        merge_clock(&stream.clock, source, fence)
    unpin_locked(order, fence)
    if source_lost:                                     # nothing has to be ordered after it from now on
        raise_clock(&order.host_clock, source.index, source.count)
        fail_remote(source, failure)
    return failed


cdef int order_after_itself_unlocks(OrderState* order, StreamState* stream, Failure* failure) except -1 nogil:
    """Order a stream of a capture after its newest fence, and take its clock back to that of the fence: the handle may
    be that of another stream by now, which is ordered after nothing."""
    check(order.lock.held(), "the lock is held")
    cdef Fence* fence = stream.ring.back() if not stream.ring.empty() else NULL
    stream.clock.clear()
    return queue_wait_unlocks(order, stream, stream, fence, failure) if fence != NULL else 0


cdef int order_or_sync_unlocks(OrderState* order, StreamState* stream, StreamState* source, uint64_t position,
                               Failure* failure) except -1 nogil:
    """`order_after_unlocks` for a source that may be unowned: if no fence covers the position of an unowned source, its
    handle is not touched and the host waits for the whole context."""
    check(order.lock.held(), "the lock is held")
    if needs_context_sync_locked(order, stream, source, position):
        return sync_context_unlocks(order, source, failure)
    return order_after_unlocks(order, stream, source, position, failure)


cdef int host_wait_unlocks(OrderState* order, StreamState* source, uint64_t position, Failure* failure) except -1 nogil:
    """Return when the position is complete."""
    check(order.lock.held(), "the lock is held")
    cdef Fence* fence
    if is_ordered_after_locked(order, NULL, source, position):
        return 0
    fence = covering(source, position)
    if fence == NULL:
        if cannot_record(source):
            return sync_context_unlocks(order, source, failure)
        if record_fence_unlocks(order, source, &fence, failure):
            return 1
    return host_wait_on_unlocks(order, source, fence, failure)


cdef inline int host_wait_on_unlocks(OrderState* order, StreamState* source, Fence* fence,
                                     Failure* failure) except -1 nogil:
    """Have the host wait for a fence."""
    check(order.lock.held(), "the lock is held")
    cdef int failed
    fence.pins += 1
    order.lock.unlock()
    failed = event_synchronize(fence.event, failure)
    order.lock.lock()
    if not failed:
        order.counters.host_waits += 1
        if unlikely(order.is_recorded):
            note_order(order, HOST_WAITS, NULL, source, fence.position)
        merge_clock(&order.host_clock, source, fence)
    unpin_locked(order, fence)
    return failed and fail_from_locked(order, source, failure)


cdef bint needs_context_sync_locked(OrderState* order, StreamState* stream, StreamState* source,
                                    uint64_t position) noexcept nogil:
    """True if the host has to wait for the whole context: the source is unowned or destroyed, and no fence covers
    the position."""
    check(order.lock.held(), "the lock is held")
    return ((is_unowned(source) or not source.alive) and covering(source, position) == NULL
            and not is_ordered_after_locked(order, stream, source, position))


cdef int host_wait_or_sync_unlocks(OrderState* order, StreamState* source, uint64_t position,
                                   Failure* failure) except -1 nogil:
    """`host_wait_unlocks` for a stream that may be unowned: if no fence covers the position of an unowned stream, the
    host waits for the whole context."""
    check(order.lock.held(), "the lock is held")
    if needs_context_sync_locked(order, NULL, source, position):
        return sync_context_unlocks(order, source, failure)
    return host_wait_unlocks(order, source, position, failure)


cdef int poll_unlocks(OrderState* order, StreamState* source, uint64_t position, Failure* failure) except -1 nogil:
    """Query, without waiting, whether the stream has come closer to the position; raise the host's clock by the fences
    that are complete.

    The queried fence is kept until it is complete: on a busy stream the fences of the ring are recorded again before
    they are complete.  A fence that is complete and too old for the position is replaced by the next.
    """
    check(order.lock.held(), "the lock is held")
    cdef Fence* fence
    cdef bint done = True
    cdef int failed = 0
    while done and not failed and not is_ordered_after_locked(order, NULL, source, position):
        done = False
        fence = source.probe
        if fence == NULL:
            fence = covering(source, position)
            if fence == NULL:
                if cannot_record(source) or is_unowned(source):
                    return 0
                if record_fence_unlocks(order, source, &fence, failure):
                    return 1
            if source.probe == NULL:
                source.probe = fence
                fence.pins += 1
        fence.pins += 1
        order.lock.unlock()
        failed = event_is_done(fence.event, &done, failure)
        order.lock.lock()
        if done:
            merge_clock(&order.host_clock, source, fence)
            if source.probe == fence:
                source.probe = NULL
                fence.pins -= 1
        unpin_locked(order, fence)
    return failed and fail_from_locked(order, source, failure)


cdef bint see_done_unlocks(OrderState* order, StreamState* source, uint64_t position) except -1 nogil:
    """Query the fence behind a position, if there is one.  True if the host has seen the position complete.  A failure
    counts as not complete: whatever waits for the position meets it again."""
    check(order.lock.held(), "the lock is held")
    cdef Failure ignored
    return is_ordered_after_locked(order, NULL, source, position) or (
        fence_to_see(source, position) != NULL and not poll_unlocks(order, source, position, &ignored)
        and is_ordered_after_locked(order, NULL, source, position))


cdef int refuse_capturing_sources_unlocks(OrderState* order, StreamState* stream, vector[Dependency]* dependencies,
                                          Failure* failure) except -1 nogil:
    """Fail if a source on which a fence would have to be recorded is capturing: the event would belong to the graph.
    All dependencies are checked before anything is recorded or waited for."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* source
    cdef uint64_t position
    cdef size_t i
    for i in range(dependencies.size()):
        source = dependencies[0][i].source
        position = dependencies[0][i].position
        if (cannot_record(source) or is_ordered_after_locked(order, stream, source, position)
                or covering(source, position) != NULL):
            continue
        if refuse_if_capturing_unlocks(order, source, SOURCE_IS_CAPTURING, failure):
            return 1
    return 0


cdef int order_all_unlocks(OrderState* order, StreamState* stream, vector[Dependency]* dependencies,
                           Failure* failure) except -1 nogil:
    """Order `stream` (NULL: the host) after every dependency; at most one wait for each source.

    Readers come first: the readers were ordered after the writers, and the writers after the allocation, so waiting for
    a reader usually implies the rest.
    """
    check(order.lock.held(), "the lock is held")
    cdef StreamState* source
    cdef uint64_t position
    cdef size_t i
    cdef int kind
    for kind in range(ENTRY_KINDS - 1, -1, -1):
        for i in range(dependencies.size()):
            if <int>dependencies[0][i].kind != kind:
                continue
            source = dependencies[0][i].source
            position = dependencies[0][i].position
            if stream == NULL:
                if host_wait_unlocks(order, source, position, failure):
                    return 1
            elif order_after_unlocks(order, stream, source, position, failure):
                return 1
    return 0
