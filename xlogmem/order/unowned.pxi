# Unowned streams: no object that keeps the stream alive is known, so the owner may destroy the stream at any time.
#
# Such a stream certainly exists only during a call that names it.  Later its handle is not touched: waits for its work
# use fences that were recorded before, and where no fence covers a position, the host waits for the whole context
# (`needs_context_sync_locked`).  So a call that leaves work on the stream records a fence at once, under every policy:
#
#     a commit              `take_position_locked` sets `Window.record`, `finish_rest` records (core/finish.pxi)
#     `record_use`          `file_unprepared_unlocks` (core/finish.pxi)
#     a free, carried out   none: its home is needed, or the default stream frees the block
#                           (`leave_unowned_home_locked`, core/free.pxi)
#     a free, put off       `free_without_its_stream_unlocks` (core/deferred.pxi)
#     frees into a pool     through the C table one for every 16, those into the cache of the stream included:
#                           `fence_after_frees_unlocks` (table/functions.pxi)
#     a new chunk           `expand_unlocks` (resources/pool/expand.pxi)
#     an export             `fence_export` (core/export.pxi)
#     another discipline    `change_discipline_unlocks` (order/registrations.pxi)
#     the end of a promise  `leave_kept_unlocks` (table/streams.pxi)
#
# Where callers of the C table have promised to keep a stream (`hold_stream_locked`), it is not unowned meanwhile.
#
# Four questions: `needs_fence_now`, in a call that names the stream; `is_unowned`, before the handle is touched later;
# `may_become_unowned`, before something is kept that will need the handle; `has_no_owner`, also of a stream that is
# gone.  A change of that rule begins here.  docs/ordering.md has it by name: unowned-source, unowned-home,
# range-unowned.

from xlogmem._base.cpp cimport check


cdef void disown_locked(OrderState* order, StreamState* stream) noexcept nogil:
    """Mark the stream as unowned: it may have been destroyed, whatever callers have promised."""
    check(order.lock.held(), "the lock is held")
    stream.unowned.store(True)
    stream.lives_by_holds = False
    close_cache_locked(order, stream)                   # its handle may mean another stream


cdef void own_locked(OrderState* order, StreamState* stream) noexcept nogil:
    """Mark the stream as owned: an object that keeps it alive is held."""
    check(order.lock.held(), "the lock is held")
    if <bint>stream.unowned:
        close_cache_locked(order, stream)               # the next one is found by the handle
    stream.unowned.store(False)
    stream.lives_by_holds = False


cdef void leave_owner_locked(OrderState* order, StreamState* stream) noexcept nogil:
    """Undo `own_locked`: the object is not held any more."""
    check(order.lock.held(), "the lock is held")
    if stream.holds == 0:
        disown_locked(order, stream)
    stream.lives_by_holds = stream.holds != 0


cdef void hold_stream_locked(OrderState* order, StreamState* stream) noexcept nogil:
    """Count a promise that the stream is kept.  A thread ends its default stream, whatever was promised."""
    check(order.lock.held(), "the lock is held")
    stream.holds += 1
    if stream.unowned and stream.thread == 0:
        close_cache_locked(order, stream)               # the next one is found by the handle
        stream.unowned.store(False)
        stream.lives_by_holds = True


cdef void release_stream_locked(OrderState* order, StreamState* stream) noexcept nogil:
    """Undo `hold_stream_locked`."""
    check(order.lock.held() and stream.holds > 0, "the lock is held, and so is the stream")
    stream.holds -= 1
    if stream.holds == 0 and stream.lives_by_holds:
        disown_locked(order, stream)


cdef bint has_no_owner(StreamState* stream) noexcept nogil:
    """True if no object is known to keep the stream's handle alive.  A thread keeps its default stream."""
    return stream.unowned and stream.thread == 0


cdef bint is_unowned(StreamState* stream) noexcept nogil:
    """True if the stream's owner may have destroyed the stream unnoticed."""
    return stream.alive and has_no_owner(stream)


cdef bint may_become_unowned(StreamState* stream) noexcept nogil:
    """True if the stream's owner may destroy the stream unnoticed, now or once no promise to keep it is left."""
    return stream.lives_by_holds or is_unowned(stream)


cdef bint needs_fence_now(StreamState* stream) noexcept nogil:
    """True if a call that leaves work on the stream records a fence before it returns.  A thread's default stream ends
    with the thread, and can be named in that thread alone."""
    return stream.unowned and not is_other_threads_default(stream)


cdef int fence_now_unlocks(OrderState* order, StreamState* stream) except -1 nogil:
    """Record a fence that covers all work filed on a stream.  Returns 1 if no fence could be recorded: on an unowned
    stream the next call that names it tries again, and until then the host waits for the context."""
    check(order.lock.held(), "the lock is held")
    cdef Failure ignored
    cdef Fence* fence
    cdef int failed
    order.in_flight += 1
    failed = record_fence_unlocks(order, stream, &fence, &ignored)
    order.in_flight -= 1
    return failed
