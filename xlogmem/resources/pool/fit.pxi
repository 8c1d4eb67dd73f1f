# The choice of a free span for an allocation: waits against memory.
#
# As a rule a span that the stream is ordered after comes first, however large, because it costs no wait; then the
# tightest of the others.  Under pressure, while several streams have much of a maximum in use, memory counts more: an
# ordered span is taken only if it wastes little, and free neighbours are coalesced before a larger span is split.

from xlogmem._base.cpp cimport check, larger
from xlogmem._order cimport StreamState, empty_caches_locked


cdef inline bint is_scarce_locked(PoolState* pool, size_t nbytes) noexcept nogil:
    """Whether memory counts more than the time that caches save, with so many bytes more in use."""
    check(pool.order.lock.held(), "the lock is held")
    return pool.used + nbytes > pool.maximum // PRESSURE


cdef inline bint is_under_pressure_locked(PoolState* pool, size_t nbytes) noexcept nogil:
    """Whether memory counts more than waits, with so many bytes more in use.  Not while the pool serves a single
    stream: there are no waits."""
    check(pool.order.lock.held(), "the lock is held")
    return is_scarce_locked(pool, nbytes) and (pool.streams_listed > 1 or pool.mixed.rows != 0)


cdef inline void set_cache_room_locked(PoolState* pool) noexcept nogil:
    """How much each stream may have in its cache."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t streams = larger(pool.order.caches_open, 1)
    cdef size_t room = pool.cache_size
    if room == LARGEST_REQUEST:
        room = pool.size // CACHE_SHARE // streams if pool.used <= pool.maximum // CACHE_PRESSURE else 0
        room = MOST_CACHED if room > MOST_CACHED else room
    if room != pool.order.cache_room.load():
        pool.order.cache_room.store(room)


cdef inline bint wastes_memory(Span* span, size_t nbytes) noexcept nogil:
    return span.nbytes - nbytes > nbytes // WASTE


cdef Span* find_ordered_fit_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """A span that the stream is ordered after, NULL if there is none among those that are looked at.

    The tightest of what depends on this stream alone, of what has no dependencies and of what depends on several
    streams; if these have none, of what depends on one other stream.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = NULL
    cdef Span* span
    if stream.index < pool.free_lists.size():
        best = find_fit_locked(pool, pool.free_lists[stream.index], nbytes, stream, ANY, SCAN_LIMIT)
    span = find_fit_locked(pool, pool.ready, nbytes, stream, ANY, SCAN_LIMIT)
    if span != NULL and (best == NULL or span.nbytes < best.nbytes):
        best = span
    span = find_fit_locked(pool, pool.mixed, nbytes, stream, ORDERED, SCAN_LIMIT)
    if span != NULL and (best == NULL or span.nbytes < best.nbytes):
        best = span
    if best == NULL:
        best = find_fit_with_frontier_locked(pool, nbytes, stream, ORDERED, SCAN_LIMIT)
    return best


cdef Span* find_by_full_scan_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """A span that fits, NULL if there is none: one that needs the host to wait if there is no other.

    All spans of a crowded size class are looked at, then pairs are coalesced: all that any stream can wait for, and
    then what this one needs of those that it can wait for itself.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = find_reachable_fit_locked(pool, nbytes, stream)
    if best == NULL:
        retry_blocked_pairs_locked(pool)
        if coalesce_reachable_pairs_locked(pool):
            best = find_reachable_fit_locked(pool, nbytes, stream)
    if best == NULL:
        best = coalesce_blocked_for_locked(pool, nbytes, stream)
    return best if best != NULL else find_fit_with_frontier_locked(pool, nbytes, stream, ANY, NO_LIMIT)


cdef Span* find_reachable_fit_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """Any span that fits as spans are now, and that the stream can wait for.  One that was coalesced may have no
    dependencies left, because the host has seen them complete meanwhile."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = find_fit_locked(pool, pool.ready, nbytes, stream, ANY, NO_LIMIT)
    return best if best != NULL else find_fit_with_frontier_locked(pool, nbytes, stream, REACHABLE, NO_LIMIT)


cdef Span* find_tightest_fit_locked(PoolState* pool, size_t nbytes, StreamState* stream,
                                    Span* ordered) noexcept nogil:
    """The tightest span, ordered or not, NULL if none fits.

    `ordered` is the best span that the stream is ordered after: NULL, or too large for a pool under pressure.  Under
    pressure an ordered span of another stream is taken if it wastes little, and free neighbours are coalesced as long
    as there are any.  A span that needs the host to wait is not preferred to an ordered one, nor to any that does not.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best
    while is_under_pressure_locked(pool, nbytes):
        best = find_fit_with_frontier_locked(pool, nbytes, stream, ORDERED, SCAN_LIMIT)
        if best != NULL and (ordered == NULL or best.nbytes < ordered.nbytes):
            ordered = best
        if ordered != NULL and not wastes_memory(ordered, nbytes):
            return ordered
        pool.requests_since_retry += 1
        if pool.requests_since_retry >= pool.blocked_count:
            retry_blocked_pairs_locked(pool)
        if not coalesce_reachable_pairs_locked(pool):
            break
        ordered = find_ordered_fit_locked(pool, nbytes, stream)
    best = find_fit_with_frontier_locked(pool, nbytes, stream, ANY, SCAN_LIMIT)
    if best != NULL and needs_host_wait_locked(pool, best, stream):
        best = NULL
    if ordered != NULL and (best == NULL or best.nbytes >= ordered.nbytes):
        return ordered
    return best if best != NULL else find_by_full_scan_locked(pool, nbytes, stream)


cdef inline Span* choose_between_locked(PoolState* pool, size_t nbytes, StreamState* stream,
                                        Span* ordered) noexcept nogil:
    """The best span that the stream is ordered after, or the tightest."""
    check(pool.order.lock.held(), "the lock is held")
    if ordered != NULL and not (is_under_pressure_locked(pool, nbytes) and wastes_memory(ordered, nbytes)):
        return ordered
    return find_tightest_fit_locked(pool, nbytes, stream, ordered)


cdef Span* choose_span_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """The free span to be taken, NULL if none fits.  It stays on its free list.

    Before the stream has to wait it returns what it has cached, and before the pool expands all streams do.  If all
    did before each wait, streams would take the same memory from each other in turn, and never come to have any.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef bint scarce = is_scarce_locked(pool, nbytes)
    cdef Span* ordered = find_ordered_fit_locked(pool, nbytes, stream)
    cdef Span* found
    if (ordered == NULL or scarce) and empty_caches_locked(pool.order, <StreamState*>NULL if scarce else stream):
        ordered = find_ordered_fit_locked(pool, nbytes, stream)
    found = choose_between_locked(pool, nbytes, stream, ordered)
    if (found == NULL or needs_host_wait_locked(pool, found, stream)) and empty_caches_locked(pool.order, NULL):
        ordered = find_ordered_fit_locked(pool, nbytes, stream)
        found = choose_between_locked(pool, nbytes, stream, ordered)
    return found
