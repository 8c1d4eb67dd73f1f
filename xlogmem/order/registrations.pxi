# Registrations: streams are registered, change their discipline and are unregistered.
#
# A registration is a `StreamState` with an index in every clock.  An unregistered stream leaves a last fence, and its
# index is reused only when nothing can refer to the stream any more.

from xlogmem._base.cpp cimport check, make_new
from xlogmem._base.failures cimport (
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    STREAM_IS_DEAD,
    STREAM_IS_IN_USE,
    fail_stream,
)
from xlogmem._driver cimport LEGACY, Scope, enter_context, leave_context, stream_destroy


cdef StreamState* own_stream_locked(OrderState* order, cy.CUstream handle) noexcept nogil:
    """The pool's own stream with this handle, which lives as long as the runtime; NULL if there is none."""
    check(order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(order.streams.size()):
        if order.streams[i].handle == handle and order.streams[i].driver_id == 0:
            return order.streams[i]
    return NULL


cdef StreamState* register_stream_locked(OrderState* order, cy.CUstream handle, Discipline discipline) noexcept nogil:
    """Make a new registration, at the index of a dead stream that is not needed any more, if there is one."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* stream = make_new[StreamState]()
    cdef StreamState* dead
    cdef size_t i
    stream.handle = handle
    stream.discipline = discipline
    stream.alive.store(True)
    stream.number = order.registrations
    order.registrations += 1
    for i in range(order.streams.size() if order.in_flight == 0 else 0):
        dead = order.streams[i]
        if (not dead.alive and dead.last == NULL and dead.probe == NULL and dead.blocks == 0 and dead.busy == 0
                and dead.handles.load() == 0 and dead.predecessors == 0
                and is_ordered_after_locked(order, NULL, dead, dead.count)):
            stream.index = dead.index
            stream.count = dead.count           # old positions keep their meaning: the host is ordered after them
            stream.begins_after = dead.count
            order.streams[i] = stream
            if dead.successor != NULL:          # else it could not join a capture, and had no block
                dead.successor.predecessors -= 1
            del dead
            return stream
    stream.index = order.streams.size()
    if stream.index == 0:
        order.first = handle
    order.streams.push_back(stream)
    return stream


cdef int change_discipline_unlocks(OrderState* order, StreamState* stream, Discipline discipline,
                                   Failure* failure) except -1 nogil:
    """Change the discipline of the stream from now on; do nothing if the discipline is the same.

    Older entries of the stream may have unrecorded work behind them that the old discipline allowed.  All of that work
    was queued before the position that is taken here, and such entries are raised to this position.  A launch whose
    window is open is filed under the new discipline, so the discipline may only become stricter meanwhile.  The context
    is current.
    """
    check(order.lock.held(), "the lock is held")
    if stream.alive and stream.discipline == discipline:
        return 0
    if not stream.alive or (stream.windows and discipline != OPAQUE):
        return fail_stream(failure, STREAM_IS_IN_USE if stream.alive else STREAM_IS_DEAD, stream.number)
    close_cache_locked(order, stream)
    stream.unrecorded_until = advance(stream)
    order.discipline_changes += 1
    stream.discipline = discipline
    if needs_fence_now(stream):                         # older fences do not cover the raised entries
        fence_now_unlocks(order, stream)
    return 0


cdef int unregister_stream_unlocks(OrderState* order, StreamState* stream, StreamState* successor,
                                   Failure* failure) except -1 nogil:
    """Unregister a stream: record a last fence, which stands for every position of the stream from now on.

    Refused while a window or a call is open on the stream: its launch would be queued after the last fence.  All checks
    are repeated after the fence was recorded; on a failure the stream stays registered.
    """
    check(order.lock.held(), "the lock is held")
    cdef Fence* fence = NULL
    wait_for_calls_unlocks(order, stream)
    if check_unregister(stream, successor, failure):
        return 1
    close_cache_locked(order, stream)
    advance(stream)                             # unrecorded work so far: fills of fresh blocks, opaque streams
    if is_other_threads_default(stream):
        return unregister_by_sync_unlocks(order, stream, successor, failure)
    if record_fence_unlocks(order, stream, &fence, failure):
        if failure.kind == SOURCE_IS_CAPTURING:
            failure.kind = STREAM_IS_CAPTURING
        return 1
    fence.pins += 1
    wait_for_calls_unlocks(order, stream)
    unpin_locked(order, fence)
    if check_unregister(stream, successor, failure):
        return 1
    if stream.cache.load() != NULL:             # opened meanwhile
        return fail_stream(failure, STREAM_IS_IN_USE, stream.number)
    if fence.position < stream.count:
        return fail_stream(failure, STREAM_IS_IN_USE, stream.number)
    fence.pins += 1                             # the tombstone's, until the host has seen the fence complete
    stream.last = fence
    mark_unregistered_locked(order, stream, successor)
    return 0


cdef int unregister_by_sync_unlocks(OrderState* order, StreamState* stream, StreamState* successor,
                                    Failure* failure) except -1 nogil:
    """Unregister a stream that cannot be recorded on: its owner destroyed it, or it is another thread's default stream.
    The host waits for the whole context."""
    check(order.lock.held(), "the lock is held")
    cdef uint64_t position
    wait_for_calls_unlocks(order, stream)
    if check_unregister(stream, successor, failure):
        return 1
    close_cache_locked(order, stream)
    position = advance(stream)
    if sync_context_unlocks(order, stream, failure) or check_unregister(stream, successor, failure):
        return 1
    if stream.cache.load() != NULL:
        return fail_stream(failure, STREAM_IS_IN_USE, stream.number)
    if position < stream.count:
        return fail_stream(failure, STREAM_IS_IN_USE, stream.number)
    mark_unregistered_locked(order, stream, successor)
    return 0


cdef int unregister_destroyed_unlocks(OrderState* order, StreamState* stream, StreamState* successor,
                                      Failure* failure) except -1 nogil:
    """Unregister a stream that was found destroyed.  Its newest fence stays.  Nothing waits for work that came after
    this fence, unless something has to be ordered after that work.  To keep the number of such streams small, the host
    waits for all of them together now and then, unless a graph is being captured."""
    check(order.lock.held(), "the lock is held")
    cdef Failure ignored                                # the next stream that comes tries again
    if check_unregister(stream, successor, failure):
        return 1
    close_cache_locked(order, stream)
    advance(stream)                                     # unrecorded work so far
    if not stream.ring.empty():
        stream.last = stream.ring.back()
        stream.last.pins += 1
    mark_unregistered_locked(order, stream, successor)
    if count_unfenced_locked(order) >= <size_t>UNFENCED:
        order.in_flight += 1
        sync_context_unlocks(order, stream, &ignored)
        order.in_flight -= 1
    return 0


cdef size_t count_unfenced_locked(OrderState* order) noexcept nogil:
    """The number of dead streams with positions that no fence covers and that the host has not seen complete."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* stream
    cdef size_t i, count = 0
    for i in range(order.streams.size()):
        stream = order.streams[i]
        count += (not stream.alive and covering(stream, stream.count) == NULL
                  and not is_ordered_after_locked(order, NULL, stream, stream.count))
    return count


cdef void leave_foreign_streams_locked(OrderState* order, bint owners_live) noexcept nogil:
    """Leave the unowned streams at the end of a runtime: they are not touched again.

    A stream whose owner is held is used as before, unless a collector ended the runtime: the collector may have ended
    the owner first.  For each other stream, the newest fence stands for the stream if the fence covers all work; else
    only a wait for the whole context does.  No driver call is made.
    """
    check(order.lock.held(), "the lock is held")
    cdef StreamState* stream
    cdef size_t i
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if not stream.driver_id or not stream.alive or <size_t>stream.handle == LEGACY:
            continue
        if not is_other_threads_default(stream) and (stream.thread or (owners_live and not <bint>stream.unowned)):
            continue
        leave_stream_locked(order, stream)


cdef void leave_stream_locked(OrderState* order, StreamState* stream) noexcept nogil:
    """Unregister a stream that is not touched again.  No driver call is made."""
    check(order.lock.held(), "the lock is held")
    close_cache_locked(order, stream)
    if is_covered_whole(stream):
        stream.last = stream.ring.back()
        stream.last.pins += 1                           # the tombstone's
    else:
        advance(stream)
    mark_unregistered_locked(order, stream, order.streams[0])


cdef bint is_covered_whole(StreamState* stream) noexcept nogil:
    """True if the newest fence covers all relevant work of the stream: nothing was filed since, and no unrecorded work
    can have been queued."""
    return (not stream.ring.empty() and stream.ring.back().position >= stream.count and stream.windows == 0
            and (stream.discipline == SEALED or (stream.discipline == ORDINARY and stream.blocks == 0)))


cdef int wait_for_calls_unlocks(OrderState* order, StreamState* stream) except -1 nogil:
    """Wait while other threads, which order other streams after this stream, query it or record on it.  A thread that
    is inside such a call itself (a callback) does not wait."""
    check(order.lock.held(), "the lock is held")
    while stream.calls and stream.busy == stream.calls and stream.windows == 0 and xlogmem_driver_calls == 0:
        order.lock.unlock()
        usleep(PAUSE)
        order.lock.lock()
    return 0


cdef int check_unregister(StreamState* stream, StreamState* successor, Failure* failure) noexcept nogil:
    """Fail if the stream is in use or dead, or the successor cannot take over."""
    if not stream.alive or not successor.alive or stream == successor:
        return fail_stream(failure, STREAM_IS_DEAD, successor.number if stream.alive else stream.number)
    if stream.windows or stream.busy:
        return fail_stream(failure, STREAM_IS_IN_USE, stream.number)
    return 0


cdef void mark_unregistered_locked(OrderState* order, StreamState* stream, StreamState* successor) noexcept nogil:
    """Mark a stream as dead: drop its ring, keep its last fence."""
    check(order.lock.held(), "the lock is held")
    cdef Fence* fence
    check(stream.cache.load() == NULL, "a stream with a cache is not unregistered")
    stream.alive.store(False)
    stream.successor = successor
    successor.predecessors += 1
    while not stream.ring.empty():
        fence = stream.ring.back()
        stream.ring.pop_back()
        fence.in_ring = False
        if fence.pins == 0:
            discard(fence)


cdef int release_tombstone_unlocks(OrderState* order, StreamState* stream, bint blocking,
                                   Failure* failure) except -1 nogil:
    """Drop a tombstone once the host has seen its fence complete: nothing has to wait for the fence any more."""
    check(order.lock.held(), "the lock is held")
    cdef Fence* fence
    cdef uint64_t position
    cdef int failed
    if stream.alive or stream.last == NULL:
        return 0
    position = stream.last.position
    order.in_flight += 1
    if blocking:
        failed = host_wait_unlocks(order, stream, position, failure)
    else:
        failed = poll_unlocks(order, stream, position, failure)
    if not failed and stream.last != NULL and is_ordered_after_locked(order, NULL, stream, position):
        fence = stream.last
        stream.last = NULL
        unpin_locked(order, fence)
        fence = stream.probe                    # if the host has seen it complete by another stream's fence
        stream.probe = NULL
        if fence != NULL:
            unpin_locked(order, fence)
    order.in_flight -= 1
    return failed


cdef int settle_tombstones_unlocks(OrderState* order) except -1 nogil:
    """Drop complete tombstones, without waiting.  Called where a stream is registered or unregistered, so that a
    program that never reaps does not collect them.  Each call queries a bounded number of tombstones, in turn."""
    check(order.lock.held(), "the lock is held")
    cdef Failure ignored                                # it stays, and is queried again
    cdef size_t _
    cdef int queried = 0
    for _ in range(order.streams.size()):
        if queried == SETTLED:
            break
        order.settled = (order.settled + 1) % order.streams.size()
        if not order.streams[order.settled].alive and order.streams[order.settled].last != NULL:
            release_tombstone_unlocks(order, order.streams[order.settled], False, &ignored)
            queried += 1
    return 0


cdef int destroy_own(OrderState* order) except -1 nogil:
    """Destroy the streams that xlogmem has made, when nothing refers to any of them."""
    cdef Failure ignored
    cdef Scope scope
    cdef size_t i
    if enter_context(order.context, &scope, &ignored):
        return 0
    for i in range(order.streams.size()):
        if order.streams[i].driver_id == 0:
            stream_destroy(order.streams[i].handle, &ignored)
    leave_context(&scope)
    return 0
