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
    span.shelf = NULL
    span.seamed = False
    clear(span)
    return span


cdef inline Span** seams_of(PoolState* pool, Span* span) noexcept nogil:
    return &pool.far_seams if span.far else &pool.seams


cdef void list_seam(PoolState* pool, Span* span, bint far) noexcept nogil:
    """Between a span and the one below."""
    cdef Span** newest
    span.seamed = True
    span.far = far
    newest = seams_of(pool, span)
    span.seam_before = NULL
    span.seam_after = newest[0]
    if newest[0] != NULL:
        newest[0].seam_before = span
    newest[0] = span
    pool.far += far


cdef void note_seam(PoolState* pool, Span* span) noexcept nogil:
    """Between a span and the one below, if both are free."""
    if span == NULL or span.below == NULL or span.shelf == NULL or span.below.shelf == NULL or span.seamed:
        return
    list_seam(pool, span, False)


cdef void forget_seam(PoolState* pool, Span* span) noexcept nogil:
    if span == NULL or not span.seamed:
        return
    span.seamed = False
    if span.seam_before != NULL:
        span.seam_before.seam_after = span.seam_after
    else:
        seams_of(pool, span)[0] = span.seam_after
    if span.seam_after != NULL:
        span.seam_after.seam_before = span.seam_before
    pool.far -= span.far


cdef Span* join(PoolState* pool, Span* lower, Span* upper) noexcept nogil:
    """One span of two neighbours that are on no shelf, with the newest position of each stream."""
    cdef size_t i
    invariant(lower.above == upper and upper.below == lower and lower.ptr + lower.nbytes == upper.ptr,
              "spans that are joined are neighbours")
    for i in range(upper.count):
        add_mark(pool, lower, mark_of(upper, i).stream, mark_of(upper, i).position)
    forget_seam(pool, upper)
    lower.nbytes += upper.nbytes
    lower.above = upper.above
    if upper.above != NULL:
        upper.above.below = lower
    pool.spare.push_back(upper)
    pool.counters.joins += 1
    return lower


cdef Span* put(PoolState* pool, Span* span) noexcept nogil:
    """Offer a free span, joined with its neighbours where that makes nobody wait for more streams."""
    cdef Span* other = span.below
    if other != NULL and other.shelf != NULL and alike(pool, span, other):
        withdraw(other)
        span = join(pool, other, span)
    other = span.above
    if other != NULL and other.shelf != NULL and alike(pool, span, other):
        withdraw(other)
        span = join(pool, span, other)
    offer(pool, span)
    note_seam(pool, span)
    note_seam(pool, span.above)
    return span


cdef void look_again(PoolState* pool) noexcept nogil:
    """What was out of reach may not be any more: a fence came to cover it, its stream was unregistered, the host knows.
    After as many requests as there are such seams, so that this costs each request a constant; and before the host
    would have to wait for them, which leaves none."""
    cdef Span* span
    pool.looks = 0
    while pool.far_seams != NULL:
        span = pool.far_seams
        forget_seam(pool, span)
        list_seam(pool, span, False)


cdef bint join_seams(PoolState* pool, bint everywhere) noexcept nogil:
    """Join free neighbours, or only those that can be waited for on the device, and put the others aside; was there
    anything to join?"""
    cdef Span* span
    cdef Span* following = pool.seams
    cdef bint joined = False
    while following != NULL:
        span = following
        following = span.seam_after
        if not everywhere and (is_out_of_reach(pool, span, NULL) or is_out_of_reach(pool, span.below, NULL)):
            forget_seam(pool, span)
            list_seam(pool, span, True)
        else:
            join_seam(pool, span)
            joined = True
    while everywhere and pool.far_seams != NULL:
        join_seam(pool, pool.far_seams)
        joined = True
    return joined


cdef void join_seam(PoolState* pool, Span* span) noexcept nogil:
    cdef Span* lower = span.below
    withdraw(span)
    withdraw(lower)
    offer(pool, join(pool, lower, span))


cdef void adopt_rest(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """A stream has waited for several others to have a part of their memory: of the rest, that is not taken yet, it
    can answer for all of them."""
    cdef Span* rest = span.above
    if rest == NULL or rest.shelf == NULL or rest.count < 2 or not known_to(pool, rest, stream):
        return
    withdraw(rest)
    clear(rest)
    forget_seam(pool, rest)
    forget_seam(pool, rest.above)
    add_mark(pool, rest, stream.index, touch(stream))
    put(pool, rest)


cdef void hold(PoolState* pool, Span* span) noexcept nogil:
    """Nobody else gets the span."""
    withdraw(span)
    forget_seam(pool, span)
    forget_seam(pool, span.above)
    span.chunk.taken += 1


cdef void let_go(PoolState* pool, Span* span) noexcept nogil:
    """Free again, with the frontier that it has."""
    span.chunk.taken -= 1
    span = put(pool, span)
    if COMPILED_IN and span.chunk.taken < AUDIT:
        audit(pool, span.chunk)


cdef void audit(PoolState* pool, Chunk* chunk) noexcept nogil:
    """Of a debug build: the spans are the chunk, and free ones are where they are looked for."""
    cdef Span* span = chunk.first
    cdef uint64_t ptr = chunk.ptr
    cdef size_t taken = 0
    invariant(span.below == NULL and span.ptr == ptr, "the first span begins the chunk")
    while span != NULL:
        invariant(span.chunk == chunk and span.ptr == ptr and span.nbytes > 0 and span.nbytes % GRAIN == 0,
                  "spans follow each other without a gap")
        invariant(span.above == NULL or span.above.below == span, "neighbours know each other")
        invariant(span.shelf == NULL or span.shelf == shelf_for(pool, span), "a free span is on its frontier's shelf")
        invariant(span.seamed == (span.shelf != NULL and span.below != NULL and span.below.shelf != NULL),
                  "free neighbours that are not joined have a seam, and nothing else has")
        ptr += span.nbytes
        taken += span.shelf == NULL
        span = span.above
    invariant(ptr == chunk.ptr + chunk.nbytes, "the spans are the whole chunk")
    invariant(taken == chunk.taken, "what is not on offer was taken")


cdef void cut(PoolState* pool, Span* span, size_t nbytes) noexcept nogil:
    """Keep so many bytes of a span that is held; the rest is free, with the same frontier."""
    cdef Span* rest
    cdef size_t i
    if span.nbytes == nbytes:
        return
    rest = new_span(pool, span.chunk, span.ptr + nbytes, span.nbytes - nbytes)
    for i in range(span.count):
        add_mark(pool, rest, mark_of(span, i).stream, mark_of(span, i).position)
    rest.below = span
    rest.above = span.above
    if rest.above != NULL:
        rest.above.below = rest
    span.above = rest
    span.nbytes = nbytes
    pool.counters.splits += 1
    put(pool, rest)
