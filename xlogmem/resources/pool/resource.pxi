# The pool as the core calls it: a resource that keeps frontiers (see `FrontierTable` in base.pxd).
#
# A free hands over the frontier of its block and makes no driver call.  An allocation that finds a span that its stream
# is ordered after makes none either.  Everything else is `find_and_wait_unlocks`: the stream waits for a span, or the
# pool expands.

from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf

from xlogmem._base.cpp cimport check, larger, vector
from xlogmem._base.failures cimport NEEDS_CONTEXT_SYNC, OUT_OF_BUDGET, SOURCE_IS_CAPTURING, Failure, is_out_of_memory
from xlogmem._order cimport ENTRY_KINDS, Dependency, StreamState, forbid_context_sync
from xlogmem.resources.base cimport Allocation


cdef int wait_for_span_unlocks(PoolState* pool, size_t nbytes, StreamState* stream, Span** span,
                               Failure* failure) except -1 nogil:
    """Take a part of a free span that the stream has to wait for.

    If a stream that it would have to wait for is capturing a graph, the pool takes another span that needs no wait,
    even a larger one, or a span of a stream that does not capture, or expands.
    """
    check(pool.order.lock.held(), "the lock is held")
    take_locked(pool, span[0], nbytes)
    pool.counters.waited += 1
    if not order_after_frontier_unlocks(pool, span[0], stream, failure):
        reduce_rest_locked(pool, span[0], stream)
        return 0
    release_span_locked(pool, span[0])
    if failure.kind != SOURCE_IS_CAPTURING and failure.kind != NEEDS_CONTEXT_SYNC:
        return 1
    span[0] = find_ordered_fit_locked(pool, nbytes, stream)
    if span[0] != NULL:
        take_locked(pool, span[0], nbytes)
        return 0
    if wait_for_others_unlocks(pool, nbytes, stream, span):
        return 0
    return 0 if try_expand_unlocks(pool, nbytes, pool.maximum, stream, span, failure) == FOUND else 1


cdef bint wait_for_others_unlocks(PoolState* pool, size_t nbytes, StreamState* stream, Span** span) except -1 nogil:
    """Take a part of a span that the stream can wait for, after the best one's stream captured: the best of the spans
    of each stream, and of several streams.  False if there is none."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Failure failure
    cdef size_t i = 0
    while i <= pool.free_lists.size():                  # the lock is dropped in each turn: there may be more by then
        span[0] = find_fit_locked(pool, pool.mixed if i == pool.free_lists.size() else pool.free_lists[i], nbytes,
                                  stream, REACHABLE, NO_LIMIT)
        if span[0] != NULL:
            take_locked(pool, span[0], nbytes)
            if not order_after_frontier_unlocks(pool, span[0], stream, &failure):
                reduce_rest_locked(pool, span[0], stream)
                return True
            release_span_locked(pool, span[0])
            discard_failure_unlocks(pool, &failure)
        i += 1
    span[0] = NULL
    return False


cdef int find_and_wait_unlocks(PoolState* pool, size_t nbytes, StreamState* stream, Span** span,
                               Failure* failure) except -1 nogil:
    """Hold a span of this size that the stream is ordered after.

    `span` is the free span that was chosen, or NULL if none fits.  If the span needs a wait for the whole context, the
    pool expands instead; if it cannot expand, the pool is out of memory until a reap has waited.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef bint before = forbid_context_sync(True)
    cdef int failed = find_or_expand_unlocks(pool, nbytes, stream, span, failure)
    forbid_context_sync(before)
    if failed and failure.kind == NEEDS_CONTEXT_SYNC:
        fail_out_of_memory_locked(pool, nbytes, failure, REAP_HELPS)
    return failed


cdef int find_or_expand_unlocks(PoolState* pool, size_t nbytes, StreamState* stream, Span** span,
                                Failure* failure) except -1 nogil:
    """Do as `find_and_wait_unlocks`, where the host must not wait for the context."""
    check(pool.order.lock.held(), "the lock is held")
    cdef int attempt
    if span[0] != NULL and needs_host_wait_locked(pool, span[0], stream):
        attempt = try_expand_unlocks(pool, nbytes, pool.maximum, stream, span, failure)
        if attempt != NOT_FOUND:
            return attempt == FAILED
        span[0] = choose_span_locked(pool, nbytes, stream)      # the lock was dropped: it may be another one
    if span[0] == NULL:
        return expand_unlocks(pool, nbytes, pool.maximum, stream, span, failure)
    if is_ordered_locked(pool, span[0], stream):
        take_locked(pool, span[0], nbytes)
        return 0
    return wait_for_span_unlocks(pool, nbytes, stream, span, failure)


cdef int allocate_unlocks(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    """Hand out memory that may be used on the stream, or by the host where the call names none, from now on."""
    cdef PoolState* pool = <PoolState*>self
    cdef StreamState* stream = wanted.stream
    cdef size_t nbytes = wanted.nbytes
    cdef Span* span
    cdef uint64_t moved
    cdef int attempt
    cdef bint captured
    check(pool.order.lock.held(), "the lock is held")
    if nbytes > LARGEST_REQUEST or rounded(nbytes) > pool.maximum:
        return fail_out_of_memory_locked(pool, nbytes, failure, "the pool may not grow so far (maximum_pool_size)")
    nbytes = rounded(nbytes)
    if is_mark_due_locked(pool, stream):
        mark_frees_unlocks(pool)
    while True:
        if expands_first_locked(pool, stream):
            attempt = take_without_wait_unlocks(pool, nbytes, stream, &span, failure)
            if attempt == FAILED:
                return 1
            if attempt == FOUND:
                break
        span = choose_span_locked(pool, nbytes, stream)
        if span != NULL and is_ordered_locked(pool, span, stream):
            take_locked(pool, span, nbytes)
            break
        moved = chunks_moved_locked(pool)
        if not find_and_wait_unlocks(pool, nbytes, stream, &span, failure):
            break
        captured = failure.kind == SOURCE_IS_CAPTURING
        if captured:
            fail_captured_locked(pool, nbytes, failure)
        if not (is_out_of_memory(failure) and wait_for_calls_upstream_unlocks(pool, nbytes, moved)):
            return 1 if captured else advise_reap_unlocks(pool, nbytes, failure)
        discard_failure_unlocks(pool, failure)
    hand_out_locked(pool, span, nbytes, wanted)
    return 0


cdef int fail_captured_locked(PoolState* pool, size_t nbytes, Failure* failure) noexcept nogil:
    """The pool is out of memory until the capture of a stream ends that the freed memory depends on."""
    check(pool.order.lock.held(), "the lock is held")
    cdef char[64] why
    snprintf(why, sizeof(why), "stream %llu, which used them, is capturing a graph", <unsigned long long>failure.stream)
    return fail_out_of_memory_locked(pool, nbytes, failure, why)


cdef int advise_reap_unlocks(PoolState* pool, size_t nbytes, Failure* failure) except -1 nogil:
    """Advise a reap, if the pool is out of memory while free neighbours together have enough, for which the host would
    have to wait: a reap that waits helps.  The neighbours are not coalesced for this, which would put all of them out
    of the reach of other streams."""
    check(pool.order.lock.held(), "the lock is held")
    if (is_out_of_memory(failure) and failure.kind != OUT_OF_BUDGET
            and measure_free_memory_locked(pool).largest >= nbytes):
        discard_failure_unlocks(pool, failure)
        pool.order.wants_context_sync = True
        return fail_out_of_memory_locked(pool, nbytes, failure, REAP_HELPS)
    return 1


cdef bint allocate_at_once_locked(void* self, Allocation* wanted) noexcept nogil:
    """Hand out memory that the stream is ordered after, where `allocate_unlocks` would take the same memory first."""
    cdef PoolState* pool = <PoolState*>self
    cdef size_t nbytes = wanted.nbytes
    cdef Span* span
    check(pool.order.lock.held(), "the lock is held")
    if nbytes > LARGEST_REQUEST:
        return False
    nbytes = rounded(nbytes)
    if is_scarce_locked(pool, nbytes):
        empty_own_caches_locked(pool, NULL)
    span = find_ordered_fit_locked(pool, nbytes, wanted.stream)
    if span == NULL or is_under_pressure_locked(pool, nbytes) or is_mark_due_locked(pool, wanted.stream):
        return False
    take_locked(pool, span, nbytes)
    hand_out_locked(pool, span, nbytes, wanted)
    return True


cdef inline void hand_out_locked(PoolState* pool, Span* span, size_t nbytes, Allocation* wanted) noexcept nogil:
    """Hand out a span that was taken, and that the stream is ordered after."""
    check(pool.order.lock.held(), "the lock is held")
    pool.crossed |= span.count > 1 or (span.count == 1 and wanted.stream != NULL
                                       and span.first.stream != wanted.stream.index)
    clear_frontier(span)
    pool.counters.allocations += 1
    pool.used += nbytes
    pool.peak = larger(pool.peak, pool.used)
    set_cache_room_locked(pool)
    wanted.ptr = span.ptr
    wanted.resource_block = span


cdef void deallocate_locked(void* self, Allocation* freed, vector[Dependency]* frontier) noexcept nogil:
    """Free memory with the frontier that its next owner has to be ordered after."""
    cdef PoolState* pool = <PoolState*>self
    cdef Span* span = <Span*>freed.resource_block
    cdef size_t i
    cdef int kind
    check(pool.order.lock.held(), "the lock is held")
    check(span.free_list == NULL and span.chunk.in_use > 0 and pool.used >= span.nbytes, "what is freed was handed out")
    for kind in range(ENTRY_KINDS - 1, -1, -1):         # readers first: a wait for one often covers the rest
        for i in range(frontier.size()):
            if <int>frontier[0][i].kind == kind:
                add_position_locked(pool, span, frontier[0][i].source.index, frontier[0][i].position)
    pool.used -= span.nbytes
    if pool.least_ahead != 0 or pool.upstream.host_accessible:
        note_free_locked(pool, span)
    release_span_locked(pool, span)


cdef int trim_unlocks(void* self, size_t nbytes, StreamState* stream, Failure* failure) except -1 nogil:
    """Return all idle chunks and trim the resource upstream, after an allocation of `nbytes` bytes found no memory; do
    nothing if the maximum is below `nbytes`, where that cannot help."""
    cdef PoolState* pool = <PoolState*>self
    cdef vector[Failure] failures
    cdef int failed = 0
    check(pool.order.lock.held(), "the lock is held")
    if nbytes > pool.maximum:
        return 0
    empty_own_caches_locked(pool, NULL)
    release_idle_unlocks(pool, 0, stream, &failures)
    pool.order.lock.unlock()
    drop_failures(&failures)
    pool.order.lock.lock()
    begin_call_upstream_locked(pool)
    if pool.upstream.frontiers != NULL:
        failed = pool.upstream.frontiers.trim(pool.upstream.self, nbytes, stream, failure)
    pool.order.lock.unlock()
    if pool.upstream.frontiers == NULL and pool.upstream.trim != NULL:
        failed = pool.upstream.trim(pool.upstream.self, failure)
    pool.order.lock.lock()
    end_call_upstream_locked(pool)
    return failed
