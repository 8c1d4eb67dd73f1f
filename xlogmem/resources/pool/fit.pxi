# The choice of a free span for an allocation: waits against memory.
#
# As a rule a span that the stream is ordered after comes first, however large, because it costs no wait; then the
# tightest of the others.  Under pressure, while several streams have much of a maximum in use, memory counts more: an
# ordered span is taken only if it wastes little, and free neighbours are coalesced before a larger span is split.

from xlogmem._base.cpp cimport check, larger, unlikely
from xlogmem._order cimport StreamState, empty_caches_locked


cdef inline bint is_scarce_locked(PoolState* pool, size_t nbytes) noexcept nogil:
    """True if, with `nbytes` more in use, memory counts more than the time that caches save."""
    check(pool.order.lock.held(), "the lock is held")
    return pool.used + nbytes > pool.maximum // PRESSURE


cdef inline bint is_under_pressure_locked(PoolState* pool, size_t nbytes) noexcept nogil:
    """True if, with `nbytes` more in use, memory counts more than waits.  False while the pool serves a single stream:
    there are no waits then."""
    check(pool.order.lock.held(), "the lock is held")
    return is_scarce_locked(pool, nbytes) and (pool.streams_listed > 1 or pool.mixed.rows != 0)


cdef inline void set_cache_room_locked(PoolState* pool) noexcept nogil:
    """Set the number of bytes that each stream may have in its cache of this pool's memory, if there are caches."""
    check(pool.order.lock.held(), "the lock is held")
    if pool.order.cached_pool != pool:
        return
    cdef size_t streams = larger(pool.order.caches_open, 1)
    cdef size_t room = pool.cache_size
    if room == LARGEST_REQUEST:
        room = pool.size // CACHE_SHARE // streams if pool.used <= pool.maximum // CACHE_PRESSURE else 0
        room = MOST_CACHED if room > MOST_CACHED else room
    if room != pool.order.cache_room.load():
        pool.order.cache_room.store(room)


cdef inline bint empty_own_caches_locked(PoolState* pool, StreamState* stream) noexcept nogil:
    """Return to this pool what a stream (NULL: every stream, and the host) has cached of it.  True if there was
    anything."""
    check(pool.order.lock.held(), "the lock is held")
    return ((pool.order.cached_pool == pool or pool.upstream.host_accessible)
            and empty_caches_locked(pool.order, pool, stream))


cdef inline bint wastes_memory(Span* span, size_t nbytes) noexcept nogil:
    return span.nbytes - nbytes > nbytes // WASTE


cdef Span* find_ordered_fit_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """Find a span that the stream (NULL: the host) is ordered after; NULL if there is none among the visited spans.

    The span is the tightest of those that depend on this stream alone, that have no dependencies, or that depend on
    several streams; if none of these will do, of the spans that depend on one other stream.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = NULL
    cdef Span* span
    if unlikely(stream == NULL):
        return find_idle_fit_locked(pool, nbytes)
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


cdef Span* find_idle_fit_locked(PoolState* pool, size_t nbytes) noexcept nogil:
    """Find a span that the host has seen idle; NULL if there is none among the visited spans."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = find_fit_locked(pool, pool.ready, nbytes, NULL, ANY, SCAN_LIMIT)
    return best if best != NULL else find_fit_with_frontier_locked(pool, nbytes, NULL, ORDERED, SCAN_LIMIT)


cdef Span* find_by_full_scan_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """Find a span that fits, NULL if there is none; a span that needs the host to wait only if there is no other.

    The search visits all spans of a crowded size class, then coalesces pairs: all pairs that any stream can wait for,
    and then as many as this stream needs of the pairs that it can wait for itself.
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
    """Find any span that fits as spans are now, and that the stream can wait for.  A coalesced span may have no
    dependencies left, because the host has seen them complete meanwhile."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = find_fit_locked(pool, pool.ready, nbytes, stream, ANY, NO_LIMIT)
    return best if best != NULL else find_fit_with_frontier_locked(pool, nbytes, stream, REACHABLE, NO_LIMIT)


cdef Span* find_tightest_fit_locked(PoolState* pool, size_t nbytes, StreamState* stream,
                                    Span* ordered) noexcept nogil:
    """Find the tightest span, ordered or not; NULL if none fits.

    `ordered` is the best span that the stream is ordered after: NULL, or too large for a pool under pressure.  Under
    pressure an ordered span of another stream is taken if it wastes little, and free neighbours are coalesced as long
    as there are any.  A span that needs the host to wait is not preferred to an ordered span, nor to any span that does
    not need it.
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
    if expands_first_locked(pool, stream):
        best = find_oldest_fit_locked(pool, nbytes, stream)
    else:
        best = find_fit_with_frontier_locked(pool, nbytes, stream, ANY, SCAN_LIMIT)
    if best != NULL and needs_host_wait_locked(pool, best, stream):
        best = NULL
    if ordered != NULL and (best == NULL or best.nbytes >= ordered.nbytes):
        return ordered
    return best if best != NULL else find_by_full_scan_locked(pool, nbytes, stream)


cdef inline Span* choose_between_locked(PoolState* pool, size_t nbytes, StreamState* stream,
                                        Span* ordered) noexcept nogil:
    """Choose between the best span that the stream is ordered after, and the tightest."""
    check(pool.order.lock.held(), "the lock is held")
    if ordered != NULL and not (is_under_pressure_locked(pool, nbytes) and wastes_memory(ordered, nbytes)):
        return ordered
    return find_tightest_fit_locked(pool, nbytes, stream, ordered)


cdef Span* choose_span_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """Choose the free span to take; NULL if none fits.  The span stays on its free list.

    Before the stream has to wait, its cache is emptied into the pool; before the pool expands, all caches are.  If all
    caches were emptied before each wait, streams would take the same memory from each other in turn, and their caches
    would never have any.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef bint scarce = is_scarce_locked(pool, nbytes)
    cdef Span* ordered = find_ordered_fit_locked(pool, nbytes, stream)
    cdef Span* found
    if (ordered == NULL or scarce) and empty_own_caches_locked(pool, <StreamState*>NULL if scarce else stream):
        ordered = find_ordered_fit_locked(pool, nbytes, stream)
    found = choose_between_locked(pool, nbytes, stream, ordered)
    if (found == NULL or needs_host_wait_locked(pool, found, stream)) and empty_own_caches_locked(pool, NULL):
        ordered = find_ordered_fit_locked(pool, nbytes, stream)
        found = choose_between_locked(pool, nbytes, stream, ordered)
    return found
