# Spans of a chunk: reserved, split, coalesced, released.
#
# The spans of a chunk follow each other without a gap, and each knows its neighbours, so splitting and coalescing take
# constant time.  A split copies the frontier; coalescing takes the newest position of each stream.  A call that drops
# the lock holds its span, off the free lists, so no other call can take it meanwhile.

from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport check, checked, larger, make_new
from xlogmem._order cimport StreamState, advance, is_unowned


cdef Span* new_span_locked(PoolState* pool, Chunk* chunk, uint64_t ptr, size_t nbytes) noexcept nogil:
    """Make a span without neighbours and without a frontier, on no free list."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span
    if pool.spare.empty():
        span = make_new[Span]()
    else:
        span = pool.spare.back()
        pool.spare.pop_back()
    span.ptr = ptr
    span.nbytes = nbytes
    span.chunk = chunk
    span.below = span.above = NULL
    span.free_list = NULL
    span.pair = UNPAIRED
    span.freed = 0
    clear_frontier(span)
    return span


cdef Span* coalesce_locked(PoolState* pool, Span* lower, Span* upper) noexcept nogil:
    """Coalesce two neighbours that are on no free list into one span, with the newest position of each stream."""
    check(pool.order.lock.held(), "the lock is held")
    check(lower.above == upper and upper.below == lower and lower.ptr + lower.nbytes == upper.ptr,
          "spans that are coalesced are neighbours")
    add_frontier_locked(pool, lower, upper)
    lower.freed = larger(lower.freed, upper.freed)
    unlink_pair_locked(pool, upper)
    lower.nbytes += upper.nbytes
    lower.above = upper.above
    if upper.above != NULL:
        upper.above.below = lower
    pool.spare.push_back(upper)
    pool.counters.joins += 1
    return lower


cdef Span* coalesce_and_insert_locked(PoolState* pool, Span* span) noexcept nogil:
    """Put a span on its free list, coalesced with its neighbours if no stream loses by it; otherwise the neighbours are
    pairs from now on."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* other = span.below
    if other != NULL and other.free_list != NULL and are_alike_locked(pool, span, other):
        remove(other)
        span = coalesce_locked(pool, other, span)
    other = span.above
    if other != NULL and other.free_list != NULL and are_alike_locked(pool, span, other):
        remove(other)
        span = coalesce_locked(pool, span, other)
    insert_locked(pool, span)
    note_pair_locked(pool, span)
    note_pair_locked(pool, span.above)
    return span


cdef void split_locked(PoolState* pool, Span* span, size_t nbytes) noexcept nogil:
    """Keep the first `nbytes` bytes of a span that is held.  The rest becomes free, with the same frontier."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* rest
    if span.nbytes == nbytes:
        return
    rest = new_span_locked(pool, span.chunk, span.ptr + nbytes, span.nbytes - nbytes)
    add_frontier_locked(pool, rest, span)
    rest.freed = span.freed
    rest.below = span
    rest.above = span.above
    if rest.above != NULL:
        rest.above.below = rest
    span.above = rest
    span.nbytes = nbytes
    pool.counters.splits += 1
    coalesce_and_insert_locked(pool, rest)


cdef void reserve_locked(PoolState* pool, Span* span) noexcept nogil:
    """Take a free span off its lists: it is held, and no other call finds it."""
    check(pool.order.lock.held(), "the lock is held")
    remove(span)
    unlink_pair_locked(pool, span)
    unlink_pair_locked(pool, span.above)
    span.chunk.in_use += 1


cdef inline void take_locked(PoolState* pool, Span* span, size_t nbytes) noexcept nogil:
    """Hold the first `nbytes` bytes of a free span."""
    check(pool.order.lock.held(), "the lock is held")
    reserve_locked(pool, span)
    split_locked(pool, span, nbytes)


cdef void release_span_locked(PoolState* pool, Span* span) noexcept nogil:
    """Free a span that was held, with the frontier that it has."""
    check(pool.order.lock.held(), "the lock is held")
    span.chunk.in_use -= 1
    span = coalesce_and_insert_locked(pool, span)
    if checked and span.chunk.in_use < AUDIT:
        audit_locked(pool, span.chunk)


cdef void reduce_rest_locked(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """Reduce the frontier of the rest, which a split left above the span, to one position of the stream.

    To have the span, the stream has waited for several others; a position that the stream takes now stands for all of
    them.  So the rest can be found on the stream's own free list.  Where the stream is unowned, the frontier is not
    reduced: there is no fence behind the position, and other streams could wait for the positions that it would stand
    for.  Nor is it for the host (NULL), which has seen all of them complete.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* rest = span.above
    if stream == NULL:
        return
    if (rest == NULL or rest.free_list == NULL or rest.count < 2 or is_unowned(stream)
            or not is_ordered_locked(pool, rest, stream)):
        return
    remove(rest)
    clear_frontier(rest)
    unlink_pair_locked(pool, rest)
    unlink_pair_locked(pool, rest.above)
    add_position_locked(pool, rest, stream.index, advance(stream))
    coalesce_and_insert_locked(pool, rest)


cdef void audit_locked(PoolState* pool, Chunk* chunk) noexcept nogil:
    """Check every span of a chunk, in builds with checks."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span = chunk.first
    cdef uint64_t ptr = chunk.ptr
    cdef size_t in_use = 0
    check(span.below == NULL and span.ptr == ptr, "the first span begins the chunk")
    while span != NULL:
        check(span.chunk == chunk and span.ptr == ptr and span.nbytes > 0 and span.nbytes % ALIGNMENT == 0,
              "spans follow each other without a gap")
        check(span.above == NULL or span.above.below == span, "neighbours know each other")
        check(span.free_list == NULL or span.free_list == free_list_of_locked(pool, span),
              "a free span is on the free list of its frontier")
        check((span.pair != UNPAIRED) == (span.free_list != NULL and span.below != NULL
                                          and span.below.free_list != NULL),
              "free neighbours that are not coalesced are a pair, and no others")
        ptr += span.nbytes
        in_use += span.free_list == NULL
        span = span.above
    check(ptr == chunk.ptr + chunk.nbytes, "the spans are the whole chunk")
    check(in_use == chunk.in_use, "spans that are on no free list are in use")
