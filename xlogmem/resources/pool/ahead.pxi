# Memory that needs no wait, before any that does: what a pool without a maximum gives several streams, and what each
# pool gives the host.
#
# The host runs ahead of the device.  If it took whatever was freed last, each stream would wait for the work that the
# others had queued just before, and the program would run as if on one stream.  So the order is: memory that the stream
# is ordered after; the oldest free memory, if a query says that its uses are complete; new memory, until the pool has
# AHEAD times what was in use at most, between two parts of the device; and only then a wait, for the oldest.
#
# The host itself, whose memory is requested without a stream, cannot wait on the device: each wait stops the program.
# So it gets memory in the same order, with a maximum too, and a pool of at least HOST_AHEAD bytes to run ahead in.

from libc.stdint cimport uint32_t

from xlogmem._base.cpp cimport check, larger
from xlogmem._base.failures cimport Failure
from xlogmem._order cimport StreamState


cdef inline bint expands_for_streams_locked(PoolState* pool) noexcept nogil:
    """True if the pool expands rather than let a stream wait: it has no maximum, and several streams."""
    check(pool.order.lock.held(), "the lock is held")
    return pool.least_ahead != 0 and (pool.streams_listed > 1 or pool.mixed.rows != 0)


cdef inline bint keeps_ages_locked(PoolState* pool) noexcept nogil:
    """True if old free memory stays apart from younger: a stream, or the host, may take the oldest."""
    check(pool.order.lock.held(), "the lock is held")
    return pool.upstream.host_accessible or expands_for_streams_locked(pool)


cdef inline bint expands_first_locked(PoolState* pool, StreamState* stream) noexcept nogil:
    """True if the pool expands rather than let a stream (NULL: the host) wait."""
    check(pool.order.lock.held(), "the lock is held")
    return stream == NULL or expands_for_streams_locked(pool)


cdef size_t room_ahead_locked(PoolState* pool, StreamState* stream) noexcept nogil:
    """Return the number of bytes by which the pool may expand rather than let a stream, or the host, wait."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t most = AHEAD * pool.peak
    if stream == NULL:
        most = larger(most, HOST_AHEAD)
    else:
        most = larger(most if most < pool.most_ahead else pool.most_ahead, pool.least_ahead)
    if pool.size >= most or pool.refused_ahead == 1 + chunks_moved_locked(pool):
        return 0
    return most - pool.size & ~(<size_t>ALIGNMENT - 1)


cdef bint take_ordered_locked(PoolState* pool, size_t nbytes, StreamState* stream, size_t pairs,
                              Span** span) noexcept nogil:
    """Hold a span that the stream is ordered after, coalesced of up to so many pairs if need be.  False if there is
    none."""
    check(pool.order.lock.held(), "the lock is held")
    span[0] = find_ordered_fit_locked(pool, nbytes, stream)
    if span[0] == NULL and empty_own_caches_locked(pool, stream):
        span[0] = find_ordered_fit_locked(pool, nbytes, stream)
    if span[0] == NULL:
        span[0] = coalesce_ordered_for_locked(pool, nbytes, stream, pairs)
    if span[0] != NULL:
        take_locked(pool, span[0], nbytes)
    return span[0] != NULL


cdef int take_without_wait_unlocks(PoolState* pool, size_t nbytes, StreamState* stream, Span** span,
                                   Failure* failure) except -1 nogil:
    """Hold a span that the stream (NULL: the host) need not wait for, of a new chunk if need be; an `Attempt`."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t room
    if take_ordered_locked(pool, nbytes, stream, SOME_PAIRS, span):
        return FOUND
    pool.crossed = True
    if is_mark_due_locked(pool, stream):
        mark_frees_unlocks(pool)
    if take_done_unlocks(pool, nbytes, stream, span):
        return FOUND
    if room_ahead_locked(pool, stream) < nbytes:
        return NOT_FOUND
    if pool.unmarked:                                   # marks cost less than a chunk
        mark_frees_unlocks(pool)
        if take_done_unlocks(pool, nbytes, stream, span):
            return FOUND
    empty_own_caches_locked(pool, NULL)
    if take_ordered_locked(pool, nbytes, stream, NO_LIMIT, span):
        return FOUND
    room = room_ahead_locked(pool, stream)              # the lock was dropped
    return expand_ahead_unlocks(pool, nbytes, room, stream, span, failure) if room >= nbytes else NOT_FOUND


cdef bint take_done_unlocks(PoolState* pool, size_t nbytes, StreamState* stream, Span** span) except -1 nogil:
    """Hold a span if a query says that the uses of the oldest that fits are complete."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* oldest = find_oldest_fit_locked(pool, nbytes, stream)
    return (oldest != NULL and see_span_done_unlocks(pool, oldest)
            and take_ordered_locked(pool, nbytes, stream, SOME_PAIRS, span))


cdef int expand_ahead_unlocks(PoolState* pool, size_t nbytes, size_t room, StreamState* stream, Span** span,
                              Failure* failure) except -1 nogil:
    """Expand within `room` bytes; an `Attempt`.  If upstream has no more, the pool does not try again before it has got
    or returned a chunk."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t share = larger(rounded(pool.size // AHEAD_SHARE), larger(LEAST_CHUNK, nbytes))
    cdef int attempt = try_expand_unlocks(pool, nbytes, share if share < room else room, stream, span, failure)
    if attempt == NOT_FOUND:
        pool.refused_ahead = 1 + chunks_moved_locked(pool)
    return attempt


cdef inline bint is_older(Span* span, Span* than, size_t nbytes) noexcept nogil:
    """True if a stream should wait for `span` rather than for `than` (NULL: none): it wastes less or, where neither
    wastes much, it was freed earlier."""
    if than == NULL or wastes_memory(span, nbytes) != wastes_memory(than, nbytes):
        return than == NULL or wastes_memory(than, nbytes)
    return span.freed < than.freed


cdef Span* oldest_on_locked(PoolState* pool, FreeList* free_list, size_t nbytes, StreamState* stream) noexcept nogil:
    """Find the oldest span of a free list (NULL: none) that fits, in the first size class that has one, and that no
    host has to wait for."""
    check(pool.order.lock.held(), "the lock is held")
    cdef uint32_t size_class = size_class_of(nbytes)
    cdef Span* best = NULL
    cdef Span* span
    cdef Span* newest
    cdef size_t i
    if free_list == NULL or free_list.rows == 0:
        return NULL
    newest = free_list.newest[size_class]
    while True:
        span = newest
        for i in range(SCAN_LIMIT if newest != NULL else 0):
            span = span.previous
            if (span.nbytes >= nbytes and is_older(span, best, nbytes)
                    and not needs_host_wait_locked(pool, span, stream)):
                best = span
            if span == newest:
                break
        size_class = 0 if best != NULL else next_size_class(free_list, size_class)
        if size_class == 0:
            return best
        newest = free_list.newest[size_class]


cdef Span* find_oldest_fit_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """Find the free span that a stream should wait for: the oldest that wastes little, else the oldest."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = oldest_on_locked(pool, pool.mixed, nbytes, stream)
    cdef Span* span
    cdef size_t i
    for i in range(pool.free_lists.size()):
        span = oldest_on_locked(pool, pool.free_lists[i], nbytes, stream)
        if span != NULL and is_older(span, best, nbytes):
            best = span
    return best


cdef Span* coalesce_ordered_for_locked(PoolState* pool, size_t nbytes, StreamState* stream,
                                       size_t limit) noexcept nogil:
    """Coalesce pairs that the stream is ordered after, of the newest `limit`, until a span has `nbytes` bytes; NULL if
    none has."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* following = pool.pairs
    cdef Span* span
    cdef size_t i
    for i in range(limit):
        if following == NULL:
            break
        span = following
        following = span.pair_after
        if (is_ordered_locked(pool, span, stream) and is_ordered_locked(pool, span.below, stream)
                and needs_host_wait_locked(pool, span, NULL) == needs_host_wait_locked(pool, span.below, NULL)):
            span = coalesce_pair_locked(pool, span)
            if span.nbytes >= nbytes:
                return span
    return NULL
