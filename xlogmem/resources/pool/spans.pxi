# TODO

cdef Span* new_span_locked(PoolState* pool, Chunk* chunk, uint64_t ptr, size_t nbytes) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span
    if pool.spare.empty():
        span = new Span()
    else:
        span = pool.spare.back()
        pool.spare.pop_back()
    span.ptr = ptr
    span.nbytes = nbytes
    span.chunk = chunk
    span.below = span.above = NULL
    span.free_list = NULL
    span.paired = False
    clear(span)
    return span


cdef inline Span** pairs_of_locked(PoolState* pool, Span* span) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    return &pool.blocked_pairs if span.blocked else &pool.pairs


cdef void add_pair_locked(PoolState* pool, Span* span, bint blocked) noexcept nogil:
    """Between a span and the one below."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span** newest
    span.paired = True
    span.blocked = blocked
    newest = pairs_of_locked(pool, span)
    span.pair_before = NULL
    span.pair_after = newest[0]
    if newest[0] != NULL:
        newest[0].pair_before = span
    newest[0] = span
    pool.blocked += blocked


cdef void note_pair_locked(PoolState* pool, Span* span) noexcept nogil:
    """Between a span and the one below, if both are free."""
    check(pool.order.lock.held(), "the lock is held")
    if span == NULL or span.below == NULL or span.free_list == NULL or span.below.free_list == NULL or span.paired:
        return
    add_pair_locked(pool, span, False)


cdef void drop_pair_locked(PoolState* pool, Span* span) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    if span == NULL or not span.paired:
        return
    span.paired = False
    if span.pair_before != NULL:
        span.pair_before.pair_after = span.pair_after
    else:
        pairs_of_locked(pool, span)[0] = span.pair_after
    if span.pair_after != NULL:
        span.pair_after.pair_before = span.pair_before
    pool.blocked -= span.blocked


cdef Span* coalesce_locked(PoolState* pool, Span* lower, Span* upper) noexcept nogil:
    """One span of two neighbours that are on no free_list, with the newest position of each stream."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    check(lower.above == upper and upper.below == lower and lower.ptr + lower.nbytes == upper.ptr,
              "spans that are joined are neighbours")
    for i in range(upper.count):
        add_position_locked(pool, lower, position_at(upper, i).stream, position_at(upper, i).position)
    drop_pair_locked(pool, upper)
    lower.nbytes += upper.nbytes
    lower.above = upper.above
    if upper.above != NULL:
        upper.above.below = lower
    pool.spare.push_back(upper)
    pool.counters.joins += 1
    return lower


cdef Span* insert_coalesced_locked(PoolState* pool, Span* span) noexcept nogil:
    """Offer a free span, joined with its neighbours where that makes nobody wait for more streams."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* other = span.below
    if other != NULL and other.free_list != NULL and same_streams_locked(pool, span, other):
        remove(other)
        span = coalesce_locked(pool, other, span)
    other = span.above
    if other != NULL and other.free_list != NULL and same_streams_locked(pool, span, other):
        remove(other)
        span = coalesce_locked(pool, span, other)
    insert_locked(pool, span)
    note_pair_locked(pool, span)
    note_pair_locked(pool, span.above)
    return span


cdef void retry_blocked_locked(PoolState* pool) noexcept nogil:
    """What was out of reach may not be any more: a fence came to cover it, its stream was unregistered, the host knows.
    After as many requests as there are such pairs, so that this costs each request a constant; and before the host
    would have to wait for them, which leaves none."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span
    pool.requests_since_retry = 0
    while pool.blocked_pairs != NULL:
        span = pool.blocked_pairs
        drop_pair_locked(pool, span)
        add_pair_locked(pool, span, False)


cdef bint coalesce_pairs_locked(PoolState* pool, bint everywhere) noexcept nogil:
    """Join free neighbours, or only those that can be waited for on the device, and put the others aside; was there
    anything to join?"""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span
    cdef Span* following = pool.pairs
    cdef bint joined = False
    while following != NULL:
        span = following
        following = span.pair_after
        if not everywhere and (span_needs_context_sync_locked(pool, span, NULL) or span_needs_context_sync_locked(pool, span.below, NULL)):
            drop_pair_locked(pool, span)
            add_pair_locked(pool, span, True)
        else:
            coalesce_pair_locked(pool, span)
            joined = True
    while everywhere and pool.blocked_pairs != NULL:
        coalesce_pair_locked(pool, pool.blocked_pairs)
        joined = True
    return joined


cdef void coalesce_pair_locked(PoolState* pool, Span* span) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* lower = span.below
    remove(span)
    remove(lower)
    insert_locked(pool, coalesce_locked(pool, lower, span))


cdef void take_over_rest_locked(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """A stream has waited for several others to have a part of their memory: of the rest, that is not taken yet, it
    can answer for all of them."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* rest = span.above
    if rest == NULL or rest.free_list == NULL or rest.count < 2 or not is_ordered_locked(pool, rest, stream):
        return
    remove(rest)
    clear(rest)
    drop_pair_locked(pool, rest)
    drop_pair_locked(pool, rest.above)
    add_position_locked(pool, rest, stream.index, advance(stream))
    insert_coalesced_locked(pool, rest)


cdef void reserve_locked(PoolState* pool, Span* span) noexcept nogil:
    """Nobody else gets the span."""
    check(pool.order.lock.held(), "the lock is held")
    remove(span)
    drop_pair_locked(pool, span)
    drop_pair_locked(pool, span.above)
    span.chunk.taken += 1


cdef void release_span_locked(PoolState* pool, Span* span) noexcept nogil:
    """Free again, with the frontier that it has."""
    check(pool.order.lock.held(), "the lock is held")
    span.chunk.taken -= 1
    span = insert_coalesced_locked(pool, span)
    if checked and span.chunk.taken < AUDIT:
        audit_locked(pool, span.chunk)


cdef void audit_locked(PoolState* pool, Chunk* chunk) noexcept nogil:
    """Of a debug build: the spans are the chunk, and free ones are where they are looked for."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span = chunk.first
    cdef uint64_t ptr = chunk.ptr
    cdef size_t taken = 0
    check(span.below == NULL and span.ptr == ptr, "the first span begins the chunk")
    while span != NULL:
        check(span.chunk == chunk and span.ptr == ptr and span.nbytes > 0 and span.nbytes % ALIGNMENT == 0,
                  "spans follow each other without a gap")
        check(span.above == NULL or span.above.below == span, "neighbours know each other")
        check(span.free_list == NULL or span.free_list == free_list_of_locked(pool, span), "a free span is on its frontier's free_list")
        check(span.paired == (span.free_list != NULL and span.below != NULL and span.below.free_list != NULL),
                  "free neighbours that are not joined have a pair, and nothing else has")
        ptr += span.nbytes
        taken += span.free_list == NULL
        span = span.above
    check(ptr == chunk.ptr + chunk.nbytes, "the spans are the whole chunk")
    check(taken == chunk.taken, "what is not on offer was taken")


cdef void split_locked(PoolState* pool, Span* span, size_t nbytes) noexcept nogil:
    """Keep so many bytes of a span that is held; the rest is free, with the same frontier."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* rest
    cdef size_t i
    if span.nbytes == nbytes:
        return
    rest = new_span_locked(pool, span.chunk, span.ptr + nbytes, span.nbytes - nbytes)
    for i in range(span.count):
        add_position_locked(pool, rest, position_at(span, i).stream, position_at(span, i).position)
    rest.below = span
    rest.above = span.above
    if rest.above != NULL:
        rest.above.below = rest
    span.above = rest
    span.nbytes = nbytes
    pool.counters.splits += 1
    insert_coalesced_locked(pool, rest)
