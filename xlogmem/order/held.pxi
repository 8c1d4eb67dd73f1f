# Fences held by Python events, and waits for streams as a whole.
#
# An event (`streams/events.pxi`) has a fence of its own, in no ring, with one permanent pin.  The finalizer of the
# event puts the fence on a list; the next event that is recorded, or the end of the ordering, discards the fences on
# the list.

from xlogmem._base.cpp cimport check
from xlogmem._base.failures cimport SOURCE_IS_CAPTURING
from xlogmem._driver cimport Scope, event_is_done, stream_is_idle


cdef int hold_fence_unlocks(OrderState* order, StreamState* source, Fence** fence, Failure* failure) except -1 nogil:
    """Record a fence behind all work on the stream so far, recorded or not, for one event alone."""
    check(order.lock.held(), "the lock is held")
    cdef size_t i
    discard_released(order)
    advance(source)                                     # streams may be ordered after older positions already
    if record_fence_unlocks(order, source, fence, failure):
        return 1
    fence[0].pins += 1
    for i in range(source.ring.size()):
        if source.ring[i] == fence[0]:
            remove_from_ring(source, i)
            break
    return 0


cdef void discard_released(OrderState* order) noexcept nogil:
    """Discard the fences whose Python events are gone; nothing else refers to them."""
    cdef Fence* fence = order.released.exchange(NULL)
    cdef Fence* following
    while fence != NULL:
        following = fence.next
        discard(fence)
        fence = following


cdef int order_after_fence_unlocks(OrderState* order, StreamState* stream, StreamState* source, Fence* fence,
                                   Failure* failure) except -1 nogil:
    """Order all work that is queued on `stream` from now on after a held fence of `source`."""
    check(order.lock.held(), "the lock is held")
    if is_ordered_after_locked(order, stream, source, fence.position):
        order.counters.elided += 1
        return 0
    return queue_wait_unlocks(order, stream, source, fence, failure)


cdef int host_wait_for_fence_unlocks(OrderState* order, StreamState* source, Fence* fence,
                                     Failure* failure) except -1 nogil:
    """Return when the work before a held fence is complete."""
    check(order.lock.held(), "the lock is held")
    if is_ordered_after_locked(order, NULL, source, fence.position):
        return 0
    return host_wait_on_unlocks(order, source, fence, failure)


cdef int poll_fence_unlocks(OrderState* order, StreamState* source, Fence* fence, bint* done,
                            Failure* failure) except -1 nogil:
    """Query, without waiting, whether the work before a held fence is complete."""
    check(order.lock.held(), "the lock is held")
    cdef int failed
    done[0] = is_ordered_after_locked(order, NULL, source, fence.position)
    if done[0]:
        return 0
    order.lock.unlock()
    failed = event_is_done(fence.event, done, failure)
    order.lock.lock()
    if not failed and done[0]:
        merge_clock(&order.host_clock, source, fence)
    return failed and fail_from_locked(order, source, failure)


cdef int poll_stream_unlocks(OrderState* order, StreamState* source, uint64_t position,
                             Failure* failure) except -1 nogil:
    """Query, without waiting, whether the stream has reached the position and all unrecorded work queued on it is
    complete; if so, raise the host's clock.  A fence would have to be recorded anew for each query."""
    check(order.lock.held(), "the lock is held")
    cdef bint idle = False
    cdef Scope scope
    cdef int failed
    if cannot_record(source) or is_unowned(source):
        return 0
    if refuse_if_capturing_unlocks(order, source, SOURCE_IS_CAPTURING, failure):
        return 1
    begin_driver_call(source)
    order.lock.unlock()
    failed = enter_stream(source, &scope, failure)
    if not failed:
        failed = leave_stream(source, &scope, stream_is_idle(source.handle, &idle, failure), failure)
    order.lock.lock()
    end_driver_call(source)
    if not failed and idle:
        raise_clock(&order.host_clock, source.index, position)
    return failed
