# Chunks back to upstream: the pool returns idle chunks.
#
# A chunk is idle when all of its spans are free.  Its frontier goes with it: an upstream that keeps frontiers takes the
# frontier over; otherwise the chunk is freed on a stream that is ordered after the frontier, and with a
# host-synchronous upstream the host waits.  A chunk whose return fails stays in the pool with its frontier.

from xlogmem._base.cpp cimport check, vector
from xlogmem._base.failures cimport STREAM_IS_CAPTURING, Failure, drop_exception
from xlogmem._driver cimport Scope, enter_context, leave_context, process_was_forked
from xlogmem._order cimport (
    ALLOCATED,
    Dependency,
    StreamState,
    forbid_context_sync,
    is_of_former,
    is_unowned,
    refuse_if_capturing_unlocks,
)
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, Allocation, ResourceTable, settle, start_call_on


cdef Span* reserve_chunk_locked(PoolState* pool, Chunk* chunk) noexcept nogil:
    """Coalesce an idle chunk into one span, which is held."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span = chunk.first
    while span.above != NULL:                           # neighbours that are left are pairs
        coalesce_pair_locked(pool, span.above)
    reserve_locked(pool, span)
    check(span.nbytes == chunk.nbytes and chunk.in_use == 1, "a chunk that is returned is idle")
    return span


cdef void pass_frontier_upstream_locked(PoolState* pool, Span* span) noexcept nogil:
    """Return the chunk of a span that is held to an upstream that keeps frontiers itself."""
    check(pool.order.lock.held(), "the lock is held")
    cdef vector[Dependency] frontier
    cdef Dependency entry
    cdef Allocation chunk
    cdef size_t i
    for i in range(span.count):
        entry.source = pool.order.streams[position_at(span, i).stream]
        entry.position = position_at(span, i).position
        entry.kind = ALLOCATED
        frontier.push_back(entry)
    start_call_on(&chunk, span.nbytes, pool.order.streams[0])
    chunk.ptr = span.ptr
    chunk.resource_block = span.chunk.resource_block
    pool.upstream.frontiers.deallocate(pool.upstream.self, &chunk, &frontier)
    settle(pool.upstream, span.nbytes)


cdef StreamState* stream_of_frontier_locked(PoolState* pool, Span* span) noexcept nogil:
    """Return the stream that waits least if the span is freed on it: the only stream of the frontier, unless its handle
    may not be used here, else the default stream of the runtime."""
    check(pool.order.lock.held(), "the lock is held")
    cdef StreamState* only
    if span.count == 1:
        only = pool.order.streams[span.first.stream]
        if (only.alive and not is_unowned(only) and only.thread == 0
                and not is_of_former(only, span.first.position)):
            return only
    return pool.order.streams[0]


cdef int deallocate_upstream_unlocks(PoolState* pool, Span* span, StreamState* stream,
                                     Failure* failure) except -1 nogil:
    """Free, on a stream, the chunk of a span that is held, after its frontier."""
    check(pool.order.lock.held(), "the lock is held")
    cdef ResourceTable* upstream = pool.upstream
    cdef StreamState* waiting = stream if upstream.order != HOST_SYNCHRONOUS else NULL      # NULL: the host
    cdef Allocation chunk
    cdef int failed = 0
    begin_call_upstream_locked(pool)
    stream.busy += 1
    if waiting != NULL:
        failed = refuse_if_capturing_unlocks(pool.order, stream, STREAM_IS_CAPTURING, failure)
    if not failed:
        failed = order_after_frontier_unlocks(pool, span, waiting, failure)
    if not failed:
        start_call_on(&chunk, span.nbytes, stream)
        chunk.ptr = span.ptr
        pool.order.lock.unlock()
        failed = upstream.deallocate(upstream.self, &chunk, failure)
        pool.order.lock.lock()
    if not failed:
        settle(upstream, span.nbytes)
    stream.busy -= 1
    end_call_upstream_locked(pool)
    return failed


cdef int release_chunk_unlocks(PoolState* pool, Chunk* chunk, StreamState* stream, Failure* failure) except -1 nogil:
    """Return an idle chunk to upstream, on a stream (NULL: the stream that waits least).  If the return fails, the
    chunk stays."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* span = reserve_chunk_locked(pool, chunk)
    if pool.upstream.frontiers != NULL:
        pass_frontier_upstream_locked(pool, span)
    else:
        if stream == NULL:
            stream = stream_of_frontier_locked(pool, span)
        if deallocate_upstream_unlocks(pool, span, stream, failure):
            release_span_locked(pool, span)
            return 1
    pool.size -= chunk.nbytes
    pool.counters.released += 1
    pool.chunks[chunk.index] = pool.chunks.back()
    pool.chunks[chunk.index].index = chunk.index
    pool.chunks.pop_back()
    pool.spare.push_back(span)
    del chunk
    return 0


cdef bint can_be_released_locked(PoolState* pool, Chunk* chunk) noexcept nogil:
    """True if an idle chunk can be returned upstream: the host may wait for the context, or need not."""
    check(pool.order.lock.held(), "the lock is held")
    cdef bint forbidden = forbid_context_sync(True)
    cdef Span* span = chunk.first
    forbid_context_sync(forbidden)
    if not forbidden or pool.upstream.frontiers != NULL:
        return True
    while span != NULL:
        if needs_host_wait_locked(pool, span, NULL):
            pool.order.wants_context_sync = True
            return False
        span = span.above
    return True


cdef int release_idle_unlocks(PoolState* pool, size_t keep, StreamState* stream,
                              vector[Failure]* failures) except -1 nogil:
    """Return idle chunks, the newest first, as long as `keep` bytes are left.  Failures are collected: the other chunks
    are tried.  A chunk that needs the host to wait stays as it is where the host must not wait: coalesced, all of the
    chunk would need it."""
    check(pool.order.lock.held(), "the lock is held")
    cdef vector[Chunk*] idle
    cdef Failure failure
    cdef size_t i, k
    for i in range(pool.chunks.size()):
        if pool.chunks[i].in_use == 0:
            idle.push_back(pool.chunks[i])
    for i in range(idle.size()):
        for k in range(pool.chunks.size()):             # another call may have returned it meanwhile, or used it
            if pool.chunks[k] == idle[idle.size() - 1 - i]:
                if (pool.chunks[k].in_use == 0 and pool.size - pool.chunks[k].nbytes >= keep
                        and can_be_released_locked(pool, pool.chunks[k])):
                    if release_chunk_unlocks(pool, pool.chunks[k], stream, &failure):
                        failures.push_back(failure)
                break
    return 0


cdef int drop_failures(vector[Failure]* failures) except -1 nogil:
    """Drop failures that are not reported.  Called without the lock."""
    cdef size_t i
    for i in range(failures.size()):
        drop_exception(&failures[0][i])
    return 0


# ---------------------------------------------------------------------------------------------- at the end
cdef bint has_live_foreign_streams_locked(PoolState* pool) noexcept nogil:
    """True if there are foreign streams that may be used while the runtime lives, and that the runtime's end did not
    give up."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(pool.order.streams.size()):
        if pool.order.streams[i].driver_id and pool.order.streams[i].alive:
            return True
    return False


cdef int release_all(void* self) except -1 nogil:
    """Return all chunks when the runtime ends: its blocks were freed, so all chunks are idle.  True if idle chunks are
    left, here or in a pool upstream."""
    cdef PoolState* pool = <PoolState*>self
    cdef vector[Failure] failures
    cdef Failure ignored
    cdef Scope scope
    cdef bint more = False
    cdef size_t i
    if pool.order == NULL or enter_context(pool.order.context, &scope, &ignored):
        return 0
    pool.order.lock.lock()
    release_idle_unlocks(pool, 0, NULL, &failures)
    for i in range(pool.chunks.size()):
        more |= pool.chunks[i].in_use == 0
    pool.order.lock.unlock()
    drop_failures(&failures)
    leave_context(&scope)
    if pool.upstream.frontiers != NULL and pool.upstream.frontiers.end(pool.upstream.self):
        more = True
    return more


cdef int release_unless_foreign(PoolState* pool) except -1 nogil:
    """Return all chunks when the pool itself ends, unless foreign streams may still be used.  If its runtime ended
    first, nothing is left in the pool.  If a collector ends both, the runtime may end later, and knows which foreign
    streams may be used.  A return that needs a wait for the context is put off: a finalizer may run inside any capture,
    and the remains of the runtime have the pool."""
    cdef bint foreign, before
    if pool.order == NULL or pool.chunks.empty() or process_was_forked():
        return 0
    pool.order.lock.lock()
    foreign = has_live_foreign_streams_locked(pool)
    pool.order.lock.unlock()
    if not foreign:
        before = forbid_context_sync(True)
        release_all(pool)
        forbid_context_sync(before)
    return 0


cdef void delete_tables(PoolState* pool) noexcept nogil:
    """Delete all spans, chunks and free lists.  Chunks that could not be returned to upstream are lost."""
    cdef Span* span
    cdef Span* above
    cdef size_t i
    for i in range(pool.chunks.size()):
        span = pool.chunks[i].first
        while span != NULL:
            above = span.above
            del span
            span = above
        del pool.chunks[i]
    for i in range(pool.spare.size()):
        del pool.spare[i]
    for i in range(pool.free_lists.size()):
        del pool.free_lists[i]
    del pool.ready
    del pool.mixed
