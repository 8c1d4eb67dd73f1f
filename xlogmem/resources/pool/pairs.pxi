# Free neighbours that were not coalesced.
#
# Coalescing two spans makes the next owner of one wait for the users of both.  Where that adds a dependency, or where
# only one of the two needs the host to wait, coalescing is put off: the *pair* is noted, under its upper span, and
# coalesced when memory is short.  A pair is *blocked* if one of the two needs the host to wait; blocked pairs are set
# aside, so that not every request under pressure looks at them.

from xlogmem._base.cpp cimport check
from xlogmem._order cimport StreamState


cdef inline Span** pair_list_of_locked(PoolState* pool, Span* span) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    return &pool.blocked_pairs if span.pair == BLOCKED else &pool.pairs


cdef void link_pair_locked(PoolState* pool, Span* span, PairState state) noexcept nogil:
    """Put the pair of a span and the one below on the list of PAIRED or of BLOCKED pairs."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span** newest
    span.pair = state
    newest = pair_list_of_locked(pool, span)
    span.pair_before = NULL
    span.pair_after = newest[0]
    if newest[0] != NULL:
        newest[0].pair_before = span
    newest[0] = span
    pool.blocked_count += state == BLOCKED


cdef void unlink_pair_locked(PoolState* pool, Span* span) noexcept nogil:
    """Take the pair of a span (NULL: none) and the one below off its list, if they are a pair."""
    check(pool.order.lock.held(), "the lock is held")
    if span == NULL or span.pair == UNPAIRED:
        return
    if span.pair_before != NULL:
        span.pair_before.pair_after = span.pair_after
    else:
        pair_list_of_locked(pool, span)[0] = span.pair_after
    if span.pair_after != NULL:
        span.pair_after.pair_before = span.pair_before
    pool.blocked_count -= span.pair == BLOCKED
    span.pair = UNPAIRED


cdef void note_pair_locked(PoolState* pool, Span* span) noexcept nogil:
    """Link a span (NULL: none) and the one below if both are free."""
    check(pool.order.lock.held(), "the lock is held")
    if (span == NULL or span.below == NULL or span.free_list == NULL or span.below.free_list == NULL
            or span.pair != UNPAIRED):
        return
    link_pair_locked(pool, span, PAIRED)


cdef Span* coalesce_pair_locked(PoolState* pool, Span* span) noexcept nogil:
    """Coalesce a free span with the one below."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* lower = span.below
    remove(span)
    remove(lower)
    lower = coalesce_locked(pool, lower, span)
    insert_locked(pool, lower)
    return lower


cdef bint coalesce_reachable_pairs_locked(PoolState* pool) noexcept nogil:
    """Coalesce the pairs that a stream can wait for, and set the others aside.  True if a pair was coalesced."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span
    cdef Span* following = pool.pairs
    cdef bint coalesced = False
    while following != NULL:
        span = following
        following = span.pair_after
        if needs_host_wait_locked(pool, span, NULL) or needs_host_wait_locked(pool, span.below, NULL):
            unlink_pair_locked(pool, span)
            link_pair_locked(pool, span, BLOCKED)
        else:
            coalesce_pair_locked(pool, span)
            coalesced = True
    return coalesced


cdef Span* coalesce_blocked_for_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """Coalesce blocked pairs that this stream can wait for, in one place that has `nbytes` bytes, and return its span;
    NULL if there is no such place.  Other pairs are left alone: other streams can wait for one span of each."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* pair = pool.blocked_pairs
    cdef Span* lowest
    cdef Span* span
    cdef size_t together
    while pair != NULL:
        lowest = pair.below
        if not needs_host_wait_locked(pool, lowest, stream) and not is_within_reach_locked(pool, lowest.below, stream):
            together = lowest.nbytes
            span = pair
            while together < nbytes and is_within_reach_locked(pool, span, stream):
                together += span.nbytes
                span = span.above
            if together >= nbytes:
                while lowest.above != span:
                    lowest = coalesce_pair_locked(pool, lowest.above)
                return lowest
        pair = pair.pair_after
    return NULL


cdef inline bint is_within_reach_locked(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """True if a neighbour (NULL: none) is free, and the stream can wait for it."""
    check(pool.order.lock.held(), "the lock is held")
    return span != NULL and span.free_list != NULL and not needs_host_wait_locked(pool, span, stream)


cdef void retry_blocked_pairs_locked(PoolState* pool) noexcept nogil:
    """Count blocked pairs among the others again.

    Blocked pairs may not need the host any more: a fence covers them by now, their stream was unregistered, or the host
    has seen the work complete.  Under pressure the pool retries after as many requests as there are blocked pairs, so
    the cost for each request is constant.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span
    pool.requests_since_retry = 0
    while pool.blocked_pairs != NULL:
        span = pool.blocked_pairs
        unlink_pair_locked(pool, span)
        link_pair_locked(pool, span, PAIRED)
