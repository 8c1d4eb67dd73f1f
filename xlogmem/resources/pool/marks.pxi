# Fences behind frees: how old free memory is, and whether its uses are complete.
#
# A free makes no driver call, so nothing on the device separates it from later work on the same stream: a stream that
# waits for the memory, by a fence recorded then, waits for the later work too.  In a pool that expands rather than let
# streams wait, an allocation therefore records *marks* from time to time, if memory goes from stream to stream: a fence
# on each stream that free memory depends on.  With a mark, the oldest memory can be queried, and waited for alone.
# Allocations for the host, whose waits stop the program, record more of them.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport check, larger, vector
from xlogmem._order cimport (
    Dependency,
    StreamState,
    covering,
    fence_now_unlocks,
    is_ordered_after_locked,
    is_other_threads_default,
    is_unowned,
    see_done_unlocks,
)


cdef inline bint is_mark_due_locked(PoolState* pool, StreamState* stream) noexcept nogil:
    """True if enough was freed since the last marks that later owners should not wait for all of it together; `stream`
    is that of the allocation, NULL for the host."""
    check(pool.order.lock.held(), "the lock is held")
    if stream == NULL:
        return pool.unmarked > pool.size // RING_AHEAD
    return pool.crossed and pool.unmarked >= larger(pool.size // MARKS, LEAST_MARKED)


cdef void note_free_locked(PoolState* pool, Span* span) noexcept nogil:
    """Number a free, and note the positions that it depends on."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Position* entry
    cdef size_t i
    pool.frees += 1
    span.freed = pool.frees
    pool.unmarked += span.nbytes
    for i in range(span.count):
        entry = position_at(span, i)
        if entry.stream >= pool.newest.size():
            pool.newest.resize(entry.stream + 1)
        if entry.position > pool.newest[entry.stream]:
            pool.newest[entry.stream] = entry.position


cdef int mark_frees_unlocks(PoolState* pool) except -1 nogil:
    """Record a fence behind the newest free on each stream, where none is yet and one can be recorded.  A failure
    leaves the stream without a mark: a later wait meets the error again."""
    check(pool.order.lock.held(), "the lock is held")
    cdef StreamState* source
    cdef size_t i = 0
    pool.unmarked = 0
    pool.crossed = False
    pool.order.in_flight += 1                           # no stream's index is used again meanwhile
    while i < pool.newest.size():                       # the lock is dropped in each turn: there may be more by then
        source = pool.order.streams[i]
        if (source.alive and not is_unowned(source) and not is_other_threads_default(source)
                and not is_ordered_after_locked(pool.order, NULL, source, pool.newest[i])
                and covering(source, pool.newest[i]) == NULL):
            fence_now_unlocks(pool.order, source)
        i += 1
    pool.order.in_flight -= 1
    return 0


cdef bint see_span_done_unlocks(PoolState* pool, Span* span) except -1 nogil:
    """Query the fences behind a free span, until one is not complete.  True if the host has seen all of its former uses
    complete.  A query costs less than a wait, and delays nothing.  Other calls may take the span meanwhile."""
    check(pool.order.lock.held(), "the lock is held")
    cdef vector[Dependency] former
    cdef Dependency entry
    cdef size_t i
    cdef bint done = True
    for i in range(span.count):
        entry.source = pool.order.streams[position_at(span, i).stream]
        entry.position = position_at(span, i).position
        former.push_back(entry)
    pool.order.in_flight += 1
    for i in range(former.size()):
        done = see_done_unlocks(pool.order, former[i].source, former[i].position)
        if not done:
            break
    pool.order.in_flight -= 1
    return done


cdef bint has_same_fences_locked(PoolState* pool, Span* one, Span* other) noexcept nogil:
    """True if a stream that waits for one of two spans, which depend on the same streams, waits for the other as well:
    no fence lies between their positions.  Coalesced, neither is younger than it was."""
    check(pool.order.lock.held(), "the lock is held")
    cdef StreamState* source
    cdef Position* entry
    cdef Position* same
    cdef size_t i
    for i in range(one.count):
        entry = position_at(one, i)
        same = position_on(other, entry.stream)
        source = pool.order.streams[entry.stream]
        if same != NULL and covering(source, entry.position) != covering(source, same.position):
            return False
    return True
