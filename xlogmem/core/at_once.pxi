# Fast paths that keep the GIL: operations that wait for nothing.
#
# Releasing and taking the GIL costs more than preparing a use, and many threads that do so queue up for the GIL.  So an
# operation that certainly waits for nothing keeps the GIL: the lock is free (it is tried, never waited for), finalizers
# have left nothing, no stream has to wait, and the resource finds the memory by itself.
#
# One driver call is made with the GIL: the query of a stream's capture status, which reads the driver's state and
# queues nothing.  The query might have to wait for another call on the same stream that a full queue blocks.  So it is
# made with the GIL only while the stream has no open window, in which a thread may be launching, and no call of ours is
# in flight there.  It is not made with the GIL on the default streams: their state depends on other streams.
#
# Every function here that returns NOT_AT_ONCE has changed nothing; the ordinary operation then follows, without the
# GIL, and reports any error.  The callers have the GIL: these functions are not `nogil`.

from cuda.bindings cimport cydriver as cy

from xlogmem._base.cpp cimport check, unlikely
from xlogmem._base.failures cimport fail_gone
from xlogmem._driver cimport PER_THREAD, Scope, enter_context, leave_context, process_was_forked, stream_is_capturing
from xlogmem.resources.base cimport FrontierTable


cdef enum:
    MOST_AT_ONCE = 256          # with more requests of a launch other threads should not wait for the GIL meanwhile


cdef inline bint is_work_left(CoreState* core) noexcept nogil:
    """True if the ordinary operation would do other work first, or fail."""
    return core.abandoned.load() != NULL or is_lost(core) or process_was_forked() or (
        core.dropped.load() != NULL and not drain_at_once(core))


cdef inline bint is_quiet(StreamState* stream) noexcept nogil:
    """True if no other thread is known to be inside a call on the stream.  Read without the lock: another thread may
    enter a call afterwards."""
    return <bint>stream.alive and stream.windows == 0 and stream.busy == 0 and <size_t>stream.handle > PER_THREAD


cdef int query_at_once(CoreState* core, StreamState* stream, Failure* failure) except -1 nogil:
    """Return DONE if nothing prevents a use of the stream now, and the stream is not capturing."""
    cdef bint capturing = False
    if is_work_left(core) or not is_quiet(stream):
        return NOT_AT_ONCE
    if stream_is_capturing(stream.handle, &capturing, failure):
        if wants_context(failure) or stream.context != NULL:
            return NOT_AT_ONCE
        fail_gone(failure, <uint64_t>stream.handle)
        mark_lost_if_sticky(core, 1, failure)
        return REFUSED
    return NOT_AT_ONCE if capturing else DONE


cdef inline bint wants_context(Failure* failure) noexcept nogil:
    """True if the driver may answer once the device's context is current in this thread."""
    return failure.code in (cy.CUDA_ERROR_INVALID_CONTEXT, cy.CUDA_ERROR_CONTEXT_IS_DESTROYED)


# ---------------------------------------------------------------------------------------------- uses
cdef int prepare_at_once(CoreState* core, Window* window, Failure* failure) except -1:
    """Do as `prepare`.  UNFINISHED: the stream, or the host, has to wait, and `prepare_rest` follows without the
    GIL."""
    cdef OrderState* order = core.order
    cdef int done = NOT_AT_ONCE
    if window.requests.size() <= core.most_at_once or open_recorded(core, window):
        done = query_at_once(core, window.stream, failure)
    if done != DONE:
        return done
    note_thread(window)
    if not order.lock.try_lock():
        return NOT_AT_ONCE
    done = end_opening_locked(core, window, open_uses_locked(core, window, failure))
    order.lock.unlock()
    return done


cdef inline AtOnce end_opening_locked(CoreState* core, Window* window, int failed) noexcept nogil:
    """Note that `open_uses_locked` has opened a window, if it did.  UNFINISHED: `prepare_rest` follows."""
    check(core.order.lock.held(), "the lock is held")
    if failed:
        return UNFINISHED if window.is_waiting else REFUSED
    window.is_open = True
    window.stream.windows += 1
    if window.dependencies.empty():
        return DONE
    core.order.in_flight += 1                           # none of these streams is deleted meanwhile
    return UNFINISHED


cdef AtOnce open_known_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """Open a window whose stream is not capturing, for a caller that has found both under the lock."""
    check(core.order.lock.held(), "the lock is held")
    return end_opening_locked(core, window, open_uses_locked(core, window, failure))


cdef int prepare_rest(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Do the rest of `prepare_at_once`: queue the waits of an open window, or wait until the window may open."""
    cdef Scope scope
    cdef int failed = enter_context(core.order.context, &scope, failure)
    cdef bint entered = not failed
    if not window.is_waiting:
        failed = queue_waits_or_close(core, window, failed, failure)
    elif failed:
        core.order.lock.lock()
        leave_queue_locked(core, window)
        wake_after_wait_locked(core, window)
        core.order.lock.unlock()
    else:
        failed = wait_and_open(core, window, failure)
    if entered:
        leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int queue_waits_or_close(CoreState* core, Window* window, int failed, Failure* failure) except -1 nogil:
    """Queue the waits of an open window.  If that fails, or cannot be done (`failed`), the window closes."""
    cdef OrderState* order = core.order
    cdef Failure other
    cdef bint more
    order.lock.lock()
    order.in_flight -= 1
    if not failed:
        failed = queue_waits_unlocks(order, window, failure)
    more = failed and file_window_locked(core, window, NOT_PREPARED)
    order.lock.unlock()
    if more:
        finish_rest(core, window, &other)
    return failed


# ---------------------------------------------------------------------------------------------- dropped blocks
cdef bint drain_at_once(CoreState* core) noexcept nogil:
    """Free dropped blocks into resources that keep frontiers, which makes no driver call.  False if there are others,
    or many; these stay on the list."""
    cdef Block* block
    cdef Block* following
    cdef size_t freed = 0
    cdef bint drained = True
    if not core.keeps_frontiers or not core.order.lock.try_lock():
        return False
    block = core.dropped.exchange(NULL)
    while block != NULL:
        following = block.next
        block.listed.store(0)
        bring_in_locked(core, block, 0)
        drained = drained and freed < MOST_AT_ONCE and is_just_dropped(block)
        if drained:
            free_into_pool_locked(core, block, resolve_home(block))
            freed += 1
        else:
            defer_free(core, block)
        block = following
    core.order.lock.unlock()
    return drained


cdef inline bint is_just_dropped(Block* block) noexcept nogil:
    """True if nothing but the drop has happened to a block of a resource that keeps frontiers: no free of it failed, or
    waits for a window."""
    return (block.state == LIVE and not (block.windows or block.pins or block.adopted)
            and block.resource.frontiers != NULL)


# ---------------------------------------------------------------------------------------------- memory
cdef int allocate_at_once(CoreState* core, ResourceTable* resource, Allocation* wanted, Block** result,
                          Failure* failure) except -1 nogil:
    """Allocate where the resource has memory at hand that the stream is ordered after, or that is idle for the host.
    The caller need not have the GIL."""
    cdef FrontierTable* frontiers = resource.frontiers
    cdef StreamState* stream = wanted.stream
    cdef StreamCache* cache = NULL
    cdef size_t handle
    cdef int done = NOT_AT_ONCE
    if frontiers == NULL or frontiers.allocate_at_once == NULL:
        return done
    if unlikely(stream == NULL):
        done = NOT_AT_ONCE if is_work_left(core) else DONE
        cache = host_cache_of(core, resource)
        handle = HOST_HANDLE
    else:
        done = query_at_once(core, stream, failure)
        cache = <StreamCache*>stream.cache.load() if resource == core.resource else NULL
        handle = handle_in_cache(stream)
    if done != DONE:
        return done
    if cache != NULL and allocate_from_cache(core, cache, handle, wanted, result):
        return DONE
    if not core.order.lock.try_lock():
        return NOT_AT_ONCE
    wanted.generation = new_generation()
    if (stream == NULL or <bint>stream.alive) and frontiers.allocate_at_once(resource.self, wanted):
        result[0] = track_locked(core, resource, wanted)
    else:
        done = NOT_AT_ONCE
    core.order.lock.unlock()
    if unlikely(<bint>core.wants_cache):
        add_cache(core)
    return done


cdef int free_at_once(CoreState* core, uint32_t slot, uint64_t generation, StreamState* stream) except -1:
    """Free into a resource that keeps frontiers, which makes no driver call at all."""
    cdef bint freed
    if not core.keeps_frontiers or is_work_left(core) or not core.order.lock.try_lock():
        return NOT_AT_ONCE
    freed = ((stream == NULL or <bint>stream.alive)
             and free_plainly_locked(core, find_live_locked(core, slot, generation), stream))
    core.order.lock.unlock()
    return DONE if freed else NOT_AT_ONCE
