# TODO

cdef Span* new_span(PoolState* pool, Chunk* chunk, uint64_t ptr, size_t nbytes) noexcept nogil:
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


cdef inline Span** pairs_of(PoolState* pool, Span* span) noexcept nogil:
    return &pool.blocked_pairs if span.blocked else &pool.pairs


cdef void add_pair(PoolState* pool, Span* span, bint blocked) noexcept nogil:
    """Between a span and the one below."""
    cdef Span** newest
    span.paired = True
    span.blocked = blocked
    newest = pairs_of(pool, span)
    span.pair_before = NULL
    span.pair_after = newest[0]
    if newest[0] != NULL:
        newest[0].pair_before = span
    newest[0] = span
    pool.blocked += blocked


cdef void note_pair(PoolState* pool, Span* span) noexcept nogil:
    """Between a span and the one below, if both are free."""
    if span == NULL or span.below == NULL or span.free_list == NULL or span.below.free_list == NULL or span.paired:
        return
    add_pair(pool, span, False)


cdef void drop_pair(PoolState* pool, Span* span) noexcept nogil:
    if span == NULL or not span.paired:
        return
    span.paired = False
    if span.pair_before != NULL:
        span.pair_before.pair_after = span.pair_after
    else:
        pairs_of(pool, span)[0] = span.pair_after
    if span.pair_after != NULL:
        span.pair_after.pair_before = span.pair_before
    pool.blocked -= span.blocked


cdef Span* coalesce(PoolState* pool, Span* lower, Span* upper) noexcept nogil:
    """One span of two neighbours that are on no free_list, with the newest position of each stream."""
    cdef size_t i
    invariant(lower.above == upper and upper.below == lower and lower.ptr + lower.nbytes == upper.ptr,
              "spans that are joined are neighbours")
    for i in range(upper.count):
        add_position(pool, lower, position_at(upper, i).stream, position_at(upper, i).position)
    drop_pair(pool, upper)
    lower.nbytes += upper.nbytes
    lower.above = upper.above
    if upper.above != NULL:
        upper.above.below = lower
    pool.spare.push_back(upper)
    pool.counters.joins += 1
    return lower


cdef Span* insert_coalesced(PoolState* pool, Span* span) noexcept nogil:
    """Offer a free span, joined with its neighbours where that makes nobody wait for more streams."""
    cdef Span* other = span.below
    if other != NULL and other.free_list != NULL and same_streams(pool, span, other):
        remove(other)
        span = coalesce(pool, other, span)
    other = span.above
    if other != NULL and other.free_list != NULL and same_streams(pool, span, other):
        remove(other)
        span = coalesce(pool, span, other)
    insert(pool, span)
    note_pair(pool, span)
    note_pair(pool, span.above)
    return span


cdef void retry_blocked(PoolState* pool) noexcept nogil:
    """What was out of reach may not be any more: a fence came to cover it, its stream was unregistered, the host knows.
    After as many requests as there are such pairs, so that this costs each request a constant; and before the host
    would have to wait for them, which leaves none."""
    cdef Span* span
    pool.requests_since_retry = 0
    while pool.blocked_pairs != NULL:
        span = pool.blocked_pairs
        drop_pair(pool, span)
        add_pair(pool, span, False)


cdef bint coalesce_pairs(PoolState* pool, bint everywhere) noexcept nogil:
    """Join free neighbours, or only those that can be waited for on the device, and put the others aside; was there
    anything to join?"""
    cdef Span* span
    cdef Span* following = pool.pairs
    cdef bint joined = False
    while following != NULL:
        span = following
        following = span.pair_after
        if not everywhere and (span_needs_context_sync(pool, span, NULL) or span_needs_context_sync(pool, span.below, NULL)):
            drop_pair(pool, span)
            add_pair(pool, span, True)
        else:
            coalesce_pair(pool, span)
            joined = True
    while everywhere and pool.blocked_pairs != NULL:
        coalesce_pair(pool, pool.blocked_pairs)
        joined = True
    return joined


cdef void coalesce_pair(PoolState* pool, Span* span) noexcept nogil:
    cdef Span* lower = span.below
    remove(span)
    remove(lower)
    insert(pool, coalesce(pool, lower, span))


cdef void take_over_rest(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """A stream has waited for several others to have a part of their memory: of the rest, that is not taken yet, it
    can answer for all of them."""
    cdef Span* rest = span.above
    if rest == NULL or rest.free_list == NULL or rest.count < 2 or not is_ordered(pool, rest, stream):
        return
    remove(rest)
    clear(rest)
    drop_pair(pool, rest)
    drop_pair(pool, rest.above)
    add_position(pool, rest, stream.index, advance(stream))
    insert_coalesced(pool, rest)


cdef void reserve(PoolState* pool, Span* span) noexcept nogil:
    """Nobody else gets the span."""
    remove(span)
    drop_pair(pool, span)
    drop_pair(pool, span.above)
    span.chunk.taken += 1


cdef void release_span(PoolState* pool, Span* span) noexcept nogil:
    """Free again, with the frontier that it has."""
    span.chunk.taken -= 1
    span = insert_coalesced(pool, span)
    if checked and span.chunk.taken < AUDIT:
        audit(pool, span.chunk)


cdef void audit(PoolState* pool, Chunk* chunk) noexcept nogil:
    """Of a debug build: the spans are the chunk, and free ones are where they are looked for."""
    cdef Span* span = chunk.first
    cdef uint64_t ptr = chunk.ptr
    cdef size_t taken = 0
    invariant(span.below == NULL and span.ptr == ptr, "the first span begins the chunk")
    while span != NULL:
        invariant(span.chunk == chunk and span.ptr == ptr and span.nbytes > 0 and span.nbytes % ALIGNMENT == 0,
                  "spans follow each other without a gap")
        invariant(span.above == NULL or span.above.below == span, "neighbours know each other")
        invariant(span.free_list == NULL or span.free_list == free_list_of(pool, span), "a free span is on its frontier's free_list")
        invariant(span.paired == (span.free_list != NULL and span.below != NULL and span.below.free_list != NULL),
                  "free neighbours that are not joined have a pair, and nothing else has")
        ptr += span.nbytes
        taken += span.free_list == NULL
        span = span.above
    invariant(ptr == chunk.ptr + chunk.nbytes, "the spans are the whole chunk")
    invariant(taken == chunk.taken, "what is not on offer was taken")


cdef void split(PoolState* pool, Span* span, size_t nbytes) noexcept nogil:
    """Keep so many bytes of a span that is held; the rest is free, with the same frontier."""
    cdef Span* rest
    cdef size_t i
    if span.nbytes == nbytes:
        return
    rest = new_span(pool, span.chunk, span.ptr + nbytes, span.nbytes - nbytes)
    for i in range(span.count):
        add_position(pool, rest, position_at(span, i).stream, position_at(span, i).position)
    rest.below = span
    rest.above = span.above
    if rest.above != NULL:
        rest.above.below = rest
    span.above = rest
    span.nbytes = nbytes
    pool.counters.splits += 1
    insert_coalesced(pool, rest)
