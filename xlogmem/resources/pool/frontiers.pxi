# The frontier of a span: the positions that its next owner is ordered after.
#
# A frontier has at most one position for each stream, and none that the host has seen complete.  Nearly every span has
# one position in all, which is stored inside the span; further positions are in a vector.  An owner starts without a
# frontier: its stream was ordered after the former frontier.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport check
from xlogmem._base.failures cimport Failure
from xlogmem._order cimport (
    StreamState,
    host_wait_or_sync_unlocks,
    is_ordered_after_locked,
    needs_context_sync_locked,
    order_or_sync_unlocks,
)


cdef inline Position* position_at(Span* span, size_t i) noexcept nogil:
    return &span.first if i == 0 else &span.more[i - 1]


cdef inline Position* position_on(Span* span, uint32_t stream) noexcept nogil:
    """Return the position of this stream; NULL if the frontier has none."""
    cdef size_t i
    for i in range(span.count):
        if position_at(span, i).stream == stream:
            return position_at(span, i)
    return NULL


cdef inline void clear_frontier(Span* span) noexcept nogil:
    span.count = 0
    span.more.clear()


cdef void add_position_locked(PoolState* pool, Span* span, uint32_t stream, uint64_t position) noexcept nogil:
    """Make a position a dependency of the next owner, unless the host has seen it complete.  Of two positions of one
    stream the newer remains."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Position* known
    cdef Position entry
    if is_ordered_after_locked(pool.order, NULL, pool.order.streams[stream], position):
        return
    known = position_on(span, stream)
    if known != NULL:
        if position > known.position:
            known.position = position
        return
    entry.stream = stream
    entry.position = position
    if span.count == 0:
        span.first = entry
    else:
        span.more.push_back(entry)
    span.count += 1


cdef inline void add_frontier_locked(PoolState* pool, Span* span, Span* source) noexcept nogil:
    """Add all positions of another span."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(source.count):
        add_position_locked(pool, span, position_at(source, i).stream, position_at(source, i).position)


cdef bint is_ordered_locked(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """True if the stream is ordered after the whole frontier."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Position* entry
    for i in range(span.count):
        entry = position_at(span, i)
        if not is_ordered_after_locked(pool.order, stream, pool.order.streams[entry.stream], entry.position):
            return False
    return True


cdef bint needs_host_wait_locked(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """True if the host would have to synchronize the context before the stream (NULL: any stream) may use the span."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Position* entry
    for i in range(span.count):
        entry = position_at(span, i)
        if needs_context_sync_locked(pool.order, stream, pool.order.streams[entry.stream], entry.position):
            return True
    return False


cdef bint are_alike_locked(PoolState* pool, Span* one, Span* other) noexcept nogil:
    """True if coalescing the two adds no dependency to either, and puts neither out of the reach of other streams.

    Memory that an unowned stream has freed since its last fence needs the host to wait, and so would all memory that is
    coalesced with it.
    """
    check(pool.order.lock.held(), "the lock is held")
    return (has_same_streams_locked(pool, one, other)
            and (not keeps_ages_locked(pool) or has_same_fences_locked(pool, one, other))
            and needs_host_wait_locked(pool, one, NULL) == needs_host_wait_locked(pool, other, NULL))


cdef bint has_same_streams_locked(PoolState* pool, Span* one, Span* other) noexcept nogil:
    """True if coalescing the two adds no dependency to either.

    That is so if both have positions of the same streams.  While the pool serves a single stream it is always so: no
    other stream would have to wait.  But the host would, in memory that it reaches.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    if not pool.upstream.host_accessible and pool.streams_listed <= 1 and one.count <= 1 and other.count <= 1:
        return True
    if one.count != other.count:
        return False
    for i in range(one.count):
        if position_on(other, position_at(one, i).stream) == NULL:
            return False
    return True


cdef int order_after_frontier_unlocks(PoolState* pool, Span* span, StreamState* stream,
                                      Failure* failure) except -1 nogil:
    """Order a stream (NULL: the host) after the frontier of a span that is held."""
    check(pool.order.lock.held(), "the lock is held")
    cdef StreamState* source
    cdef size_t i
    cdef int failed = 0
    pool.order.in_flight += 1                           # no stream's index is used again meanwhile
    for i in range(span.count):
        source = pool.order.streams[position_at(span, i).stream]
        if stream == NULL:
            failed = host_wait_or_sync_unlocks(pool.order, source, position_at(span, i).position, failure)
        else:
            failed = order_or_sync_unlocks(pool.order, stream, source, position_at(span, i).position, failure)
        if failed:
            break
    pool.order.in_flight -= 1
    return failed
