# Positions, clocks and fences: the order of streams, and the events that establish the order.
#
# `record_fence_unlocks` alone records fences.  Its callers are: a stream or the host that has to wait, or polls, while
# no fence covers the position yet; a commit that expects such a wait soon; a number of frees (core/accounting.pxi); and
# calls that name an unowned stream (unowned.pxi).
# Position and clock are sampled before the record call.

from libc.stdio cimport snprintf

from xlogmem._base.cpp cimport check, larger, make_new, unlikely
from xlogmem._base.failures cimport (
    RESOURCE_FAILED,
    SOURCE_IS_CAPTURING,
    fail_gone,
    fail_stream,
    format_failure,
    is_sticky,
)
from xlogmem._driver cimport (
    Scope,
    enter_context,
    event_is_done,
    event_record,
    give_event,
    leave_context,
    take_event,
)
from xlogmem.observe._history cimport FENCE_RECORDED


cdef inline uint64_t clock_at(vector[uint64_t]* clock, uint32_t index) noexcept nogil:
    return clock[0][index] if index < clock.size() else 0


cdef inline void raise_clock(vector[uint64_t]* clock, uint32_t index, uint64_t position) noexcept nogil:
    if index >= clock.size():
        clock.resize(index + 1)
    clock[0][index] = larger(clock[0][index], position)


cdef bint is_ordered_after_locked(OrderState* order, StreamState* stream, StreamState* source,
                                  uint64_t position) noexcept nogil:
    """True if `stream` (NULL: the host) is ordered after the position already."""
    check(order.lock.held(), "the lock is held")
    if stream == source or clock_at(&order.host_clock, source.index) >= position:
        return True
    return stream != NULL and clock_at(&stream.clock, source.index) >= position


cdef void merge_clock(vector[uint64_t]* clock, StreamState* source, Fence* fence) noexcept nogil:
    """Raise a clock to the position of a fence and to the clock that its stream had."""
    cdef uint32_t i
    check(fence.position <= source.count, "no clock has a position that was not taken")
    raise_clock(clock, source.index, fence.position)
    for i in range(<uint32_t>fence.clock.size()):
        if fence.clock[i]:
            raise_clock(clock, i, fence.clock[i])


# ---------------------------------------------------------------------------------------------- remote streams
cdef int enter_remote(StreamState* stream, Scope* scope, Failure* failure) except -1 nogil:
    return enter_context(stream.context, scope, failure) and fail_remote(stream, failure)


cdef int leave_remote(StreamState* stream, Scope* scope, int failed, Failure* failure) except -1 nogil:
    leave_context(scope)
    return failed and fail_remote(stream, failure)


cdef int fail_remote(StreamState* stream, Failure* failure) except -1 nogil:
    """Complete the failure of a call that concerns this stream.  Returns 1."""
    return fail_elsewhere(stream.device, failure) if stream.remote else 1


cdef int fail_elsewhere(int device, Failure* failure) except -1 nogil:
    """Complete the failure of a call in the context of another device: if that device is lost, the runtime's own device
    is not.  Returns 1."""
    cdef char[256] text
    if is_sticky(failure):
        format_failure(failure, text, sizeof(text))
        snprintf(failure.text, sizeof(failure.text), "device %d was lost: %.200s", device, text)
        failure.kind = RESOURCE_FAILED
        failure.code = cy.CUDA_ERROR_CONTEXT_IS_DESTROYED
    return 1


cdef int is_lost_elsewhere(StreamState* source, Fence* fence) except -1 nogil:
    """True if the device of a remote stream is lost.  Call without the lock, with the fence pinned."""
    cdef Failure seen
    cdef Scope scope
    cdef bint done = False
    if enter_stream(source, &scope, &seen):
        return is_loss_elsewhere(&seen)
    return leave_stream(source, &scope, event_is_done(fence.event, &done, &seen), &seen) and is_loss_elsewhere(&seen)


cdef bint is_loss_elsewhere(Failure* failure) noexcept nogil:
    return failure.kind == RESOURCE_FAILED and failure.code == cy.CUDA_ERROR_CONTEXT_IS_DESTROYED


cdef int fail_from_locked(OrderState* order, StreamState* source, Failure* failure) except -1 nogil:
    """Complete the failure of a call in the context of a stream, or for the stream's fence alone.  If the stream is
    remote and its device is lost, its work has ended, and nothing has to be ordered after the stream from now on.
    Returns 1."""
    check(order.lock.held(), "the lock is held")
    fail_remote(source, failure)
    if source.remote and is_loss_elsewhere(failure):
        raise_clock(&order.host_clock, source.index, source.count)
    return 1


# ---------------------------------------------------------------------------------------------- fences
cdef Fence* covering(StreamState* source, uint64_t position) noexcept nogil:
    """The oldest fence that covers the position, NULL if there is none; of a dead stream only the last fence counts."""
    cdef size_t i = source.ring.size()
    if not source.alive:
        return source.last if source.last != NULL and source.last.position >= position else NULL
    while i > 0 and source.ring[i - 1].position >= position:    # most are among the newest
        i -= 1
    return source.ring[i] if i < source.ring.size() else NULL


cdef Fence* fence_to_see(StreamState* source, uint64_t position) noexcept nogil:
    """The fence by which a poll would see the position complete, NULL if none was recorded yet."""
    if source.probe != NULL and source.probe.position >= position:
        return source.probe
    return covering(source, position)


cdef void discard(Fence* fence) noexcept nogil:
    """Delete a fence; its event becomes spare."""
    if fence.event != NULL:
        give_event(fence.events, fence.event)
    del fence


cdef void unpin_locked(OrderState* order, Fence* fence) noexcept nogil:
    """Unpin a fence that a call or a tombstone does not use any more."""
    check(order.lock.held(), "the lock is held")
    check(fence.pins > 0, "a fence that is unpinned was in use")
    fence.pins -= 1
    if fence.pins == 0 and not fence.in_ring:
        discard(fence)


cdef void remove_from_ring(StreamState* source, size_t place) noexcept nogil:
    """Remove the fence at this place from the ring."""
    cdef size_t k
    source.ring[place].in_ring = False
    for k in range(place + 1, source.ring.size()):
        source.ring[k - 1] = source.ring[k]
    source.ring.pop_back()


cdef Fence* fence_to_record_locked(OrderState* order, StreamState* source) noexcept nogil:
    """A fence in no ring: the oldest unpinned fence of a full ring, else a new fence without an event."""
    check(order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Fence* fence
    if source.ring.size() >= order.ring:
        for i in range(source.ring.size()):
            fence = source.ring[i]
            if fence.pins == 0:
                remove_from_ring(source, i)
                return fence
    fence = make_new[Fence]()
    fence.event = NULL
    fence.events = source.events if source.context != NULL else order.events
    fence.pins = 0
    fence.in_ring = False
    return fence


cdef void add_to_ring(StreamState* source, Fence* fence) noexcept nogil:
    """Insert a fence into the ring, oldest first: two records may have overlapped."""
    cdef size_t place = source.ring.size()
    source.ring.push_back(fence)
    while place > 0 and source.ring[place - 1].position > fence.position:
        source.ring[place] = source.ring[place - 1]
        place -= 1
    source.ring[place] = fence
    fence.in_ring = True


cdef inline void begin_driver_call(StreamState* stream) noexcept nogil:
    """Begin a call that queries the stream or records on it while the lock is released.  The stream cannot be
    unregistered meanwhile: unregistering waits for the call, unless the unregistering thread is inside such a call."""
    global xlogmem_driver_calls
    stream.busy += 1
    stream.calls += 1
    xlogmem_driver_calls += 1


cdef inline void end_driver_call(StreamState* stream) noexcept nogil:
    global xlogmem_driver_calls
    stream.busy -= 1
    stream.calls -= 1
    xlogmem_driver_calls -= 1


cdef int record_fence_unlocks(OrderState* order, StreamState* source, Fence** result, Failure* failure) except -1 nogil:
    """Record a fence on the stream, which is alive and not another thread's default stream.

    Position and clock are sampled before the call and the fence is filed after it: the fence does not claim to cover a
    commit that came in between, and a failed record leaves no fence.  A capturing stream is refused; the capture state
    is queried again after recording, because a capture may have begun meanwhile and the event may belong to it.
    """
    check(order.lock.held(), "the lock is held")
    cdef Fence* fence = fence_to_record_locked(order, source)
    cdef bint capturing = False
    cdef Scope scope
    cdef int failed
    fence.position = source.count
    fence.clock = source.clock
    source.unfenced_frees = 0
    begin_driver_call(source)
    order.lock.unlock()
    failed = enter_stream(source, &scope, failure)
    if not failed:
        failed = leave_stream(source, &scope, record_now(order, fence, source, &capturing, failure),
                              failure)
    if not failed and capturing:
        failed = fail_stream(failure, SOURCE_IS_CAPTURING, source.number)
    order.lock.lock()
    end_driver_call(source)
    check(fence.pins == 0, "a fence in use is not recorded again")
    check(fence.position <= source.count, "a fence covers no position that was not taken")
    if failed:
        discard(fence)
        return fail_from_locked(order, source, failure)
    order.counters.records += 1
    if unlikely(order.is_recorded):
        note_order(order, FENCE_RECORDED, source, NULL, fence.position)
    add_to_ring(source, fence)
    result[0] = fence
    return 0


cdef inline int record_now(OrderState* order, Fence* fence, StreamState* source, bint* capturing,
                           Failure* failure) except -1 nogil:
    """Record for `record_fence_unlocks`, without the lock, on a stream that captures no graph but the order's own."""
    if fence.event == NULL and take_event(fence.events, &fence.event, failure):
        return 1
    if captures_another(order, source.handle, capturing, failure):
        return fail_gone(failure, <uint64_t>source.handle)
    if capturing[0]:
        return 0
    if not event_record(fence.event, source.handle, failure):
        return captures_another(order, source.handle, capturing, failure)
    return not began_to_capture(order, source, capturing)


cdef bint began_to_capture(OrderState* order, StreamState* source, bint* capturing) except -1 nogil:
    """True if a capture that began meanwhile is the reason of a refused record: the driver refuses the legacy stream
    while a blocking stream captures."""
    cdef Failure ignored
    return not captures_another(order, source.handle, capturing, &ignored) and capturing[0]


cdef bint is_other_threads_default(StreamState* stream) noexcept nogil:
    """True if the handle means another stream in this thread: the stream is another thread's per-thread default stream.
    """
    return stream.thread != 0 and stream.thread != xlogmem_this_thread()


cdef inline bint cannot_record(StreamState* stream) noexcept nogil:
    """True if no fence can be recorded on the stream: it is dead, or another thread's default stream."""
    return not stream.alive or is_other_threads_default(stream)


cdef int refuse_if_capturing_unlocks(OrderState* order, StreamState* stream, FailureKind kind,
                                     Failure* failure) except -1 nogil:
    """Fail with `kind` while a graph is being captured on the stream."""
    check(order.lock.held(), "the lock is held")
    cdef bint capturing = False
    cdef int failed
    begin_driver_call(stream)
    order.lock.unlock()
    failed = stream_captures(order, stream, &capturing, failure)
    order.lock.lock()
    end_driver_call(stream)
    if failed:
        return fail_gone(failure, <uint64_t>stream.handle)
    return fail_stream(failure, kind, stream.number) if capturing else 0
