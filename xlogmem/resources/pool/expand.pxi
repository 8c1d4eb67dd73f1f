# Memory from upstream: the pool expands by a chunk.
#
# A chunk is requested without the lock, so its bytes count as the pool's beforehand: calls that expand at the same time
# do not pass the maximum together.  The part of a chunk that the expanding call does not need is free, with a position
# of the stream on which the chunk was requested.  If upstream has no more, smaller chunks are tried, down to what the
# call needs.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf

from xlogmem._base.cpp cimport check, larger, make_new
from xlogmem._base.failures cimport (
    OUT_OF_BUDGET,
    PYTHON_RAISED,
    Failure,
    drop_exception,
    fail_resource,
    is_out_of_memory,
)
from xlogmem._driver cimport is_host_memory
from xlogmem._order cimport StreamState, advance, fence_now_unlocks, is_unowned
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, Allocation, ResourceTable, settle, start_call_on


cdef size_t next_chunk_size_locked(PoolState* pool, size_t nbytes) noexcept nogil:
    """Return the size of the next chunk: at least `nbytes`, and not more than the maximum leaves.

    Without a `chunk_size` the chunk is as large as the pool, within limits.  With a maximum it is half of the maximum,
    and then the rest: few large chunks, because no span can reach from one chunk into another.  Beside an initial chunk
    it is half of the room, as a multiple of the request, so that requests of one size leave no remainder in it.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t room = pool.maximum - pool.size
    cdef size_t half = room // 2 & ~(<size_t>ALIGNMENT - 1)
    cdef size_t wanted = pool.chunk_size
    if wanted == 0 and pool.maximum < LARGEST_REQUEST:
        if pool.initial == 0:
            wanted = half if room > pool.maximum // 2 else room
        elif room > pool.maximum // 2 + nbytes:
            wanted = half - half % nbytes
        else:
            wanted = room - remainder_to_leave_locked(pool, room % nbytes, nbytes)
    elif wanted == 0:
        wanted = size_to_double_locked(pool)
        wanted = LEAST_CHUNK if wanted < LEAST_CHUNK else MOST_CHUNK if wanted > MOST_CHUNK else wanted
    wanted = rounded(wanted)
    return nbytes if nbytes > wanted else wanted if wanted < room else room


cdef inline size_t size_to_double_locked(PoolState* pool) noexcept nogil:
    """The size of the pool, less what it has only so that no stream waits."""
    check(pool.order.lock.held(), "the lock is held")
    if pool.least_ahead != 0 and pool.size > AHEAD * pool.peak:
        return AHEAD * pool.peak
    return pool.size


cdef size_t remainder_to_leave_locked(PoolState* pool, size_t remainder, size_t nbytes) noexcept nogil:
    """The remainder that the last chunk leaves of the room: all, if that makes room for one more request together with
    idle chunks that are too small for it, which are returned when the pool is out of memory."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t idle = 0, i
    for i in range(pool.chunks.size()):
        if pool.chunks[i].in_use == 0 and pool.chunks[i].nbytes < nbytes:
            idle += pool.chunks[i].nbytes
    return remainder if idle + remainder >= nbytes else 0


cdef Span* new_chunk_locked(PoolState* pool, uint64_t ptr, size_t nbytes, void* resource_block) noexcept nogil:
    """Make a chunk with one span, which is held and has no frontier yet."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Chunk* chunk = make_new[Chunk]()
    chunk.ptr = ptr
    chunk.nbytes = nbytes
    chunk.resource_block = resource_block
    chunk.in_use = 1
    chunk.index = pool.chunks.size()
    chunk.first = new_span_locked(pool, chunk, ptr, nbytes)
    chunk.first.freed = pool.frees
    pool.chunks.push_back(chunk)
    pool.counters.grown += 1
    return chunk.first


cdef int refuse_useless(PoolState* pool, Allocation* chunk, Failure* failure) except -1 nogil:
    """Return memory to upstream that the pool cannot use: it is not aligned, or it is host memory that upstream has not
    declared, which the next owner's host would use before the former owner's stream is done.  Called without the lock.
    """
    cdef bint on_host = False
    cdef int unknown = not pool.upstream.host_accessible and is_host_memory(chunk.ptr, &on_host, failure)
    cdef Failure ignored
    if chunk.ptr % ALIGNMENT == 0 and not on_host and not unknown:
        return 0
    if pool.upstream.deallocate(pool.upstream.self, chunk, &ignored):
        drop_exception(&ignored)
    else:
        settle(pool.upstream, chunk.nbytes)
    if unknown:
        return 1
    if on_host:
        snprintf(failure.text, sizeof(failure.text),
                 "upstream of the pool returned host memory at %#llx, which its class does not declare, and no free "
                 "into a pool waits for the host: use PinnedMemoryResource, or leave the pool out, or declare "
                 "is_host_accessible = True", <unsigned long long>chunk.ptr)
    else:
        snprintf(failure.text, sizeof(failure.text),
                 "upstream of the pool returned memory at %#llx, which is not aligned to %d bytes",
                 <unsigned long long>chunk.ptr, <int>ALIGNMENT)
    return fail_resource(failure, cy.CUDA_ERROR_UNKNOWN)


cdef int allocate_upstream_unlocks(PoolState* pool, size_t nbytes, StreamState* stream, Span** result,
                                   Failure* failure) except -1 nogil:
    """Get a new chunk of exactly this size, whose bytes count as the pool's already.  Its only span is held and has no
    frontier yet."""
    check(pool.order.lock.held(), "the lock is held")
    cdef ResourceTable* upstream = pool.upstream
    cdef Allocation chunk
    cdef int failed
    start_call_on(&chunk, nbytes, stream)
    begin_call_upstream_locked(pool)
    if upstream.frontiers != NULL:
        failed = upstream.frontiers.allocate(upstream.self, &chunk, failure)
    else:
        pool.order.lock.unlock()
        failed = upstream.allocate(upstream.self, &chunk, failure)
        if not failed:
            failed = refuse_useless(pool, &chunk, failure)
        pool.order.lock.lock()
    end_call_upstream_locked(pool)
    if not failed:
        result[0] = new_chunk_locked(pool, chunk.ptr, nbytes, chunk.resource_block)
    return failed


cdef int expand_unlocks(PoolState* pool, size_t nbytes, size_t most, StreamState* stream, Span** result,
                        Failure* failure) except -1 nogil:
    """Take a chunk of at most `most` bytes from upstream, and hold the first `nbytes` of it.  For the host (the stream
    is NULL) it is taken on the default stream, and the host waits for it."""
    check(pool.order.lock.held(), "the lock is held")
    cdef StreamState* on = stream if stream != NULL else pool.order.streams[0]
    cdef size_t wanted
    cdef int failed
    while True:
        if nbytes > pool.maximum - pool.size:           # in each turn: between two the lock was dropped
            return fail_out_of_memory_locked(pool, nbytes, failure, "the pool may not grow so far (maximum_pool_size)")
        wanted = next_chunk_size_locked(pool, nbytes)
        wanted = wanted if wanted < most else most
        pool.size += wanted                             # no other call may grow into the same room
        failed = allocate_upstream_unlocks(pool, wanted, on, result, failure)
        if not failed:
            break
        pool.size -= wanted
        if wanted == nbytes or not is_out_of_memory(failure):
            break
        discard_failure_unlocks(pool, failure)
        most = larger(rounded(wanted // 2), nbytes)
    if failed:
        if is_out_of_memory(failure) and failure.kind not in (PYTHON_RAISED, OUT_OF_BUDGET):    # they say more
            fail_out_of_memory_locked(pool, nbytes, failure, "there is no more upstream")
        return 1
    if pool.upstream.order != HOST_SYNCHRONOUS:         # there memory is ready for every stream at once
        add_position_locked(pool, result[0], on.index, advance(on))
        if is_unowned(on) or pool.least_ahead:          # with a fence the rest can be waited for, alone, and queried
            fence_now_unlocks(pool.order, on)
    split_locked(pool, result[0], nbytes)
    if stream == NULL and order_after_frontier_unlocks(pool, result[0], NULL, failure):
        release_span_locked(pool, result[0])
        return 1
    return 0


cdef int try_expand_unlocks(PoolState* pool, size_t nbytes, size_t most, StreamState* stream, Span** result,
                            Failure* failure) except -1 nogil:
    """Call `expand_unlocks` where it does not matter if there is no memory: the result is NOT_FOUND.  Any other
    failure, such as an error of a resource in Python, is reported: FAILED."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Failure missed
    if not expand_unlocks(pool, nbytes, most, stream, result, &missed):
        return FOUND
    if is_out_of_memory(&missed):
        discard_failure_unlocks(pool, &missed)
        return NOT_FOUND
    failure[0] = missed
    return FAILED


cdef int preload(PoolState* pool, size_t nbytes, Failure* failure) except -1 nogil:
    """Take the first chunk, of `initial_pool_size` bytes, on the default stream of the runtime.

    The host waits for the chunk now, while the wait delays nothing else, so that no stream will have to wait.
    """
    cdef StreamState* stream = pool.order.streams[0]
    cdef Failure ignored
    cdef Span* span = NULL
    cdef int failed
    pool.order.lock.lock()
    stream.busy += 1
    pool.size += nbytes
    failed = allocate_upstream_unlocks(pool, nbytes, stream, &span, failure)
    if failed:
        pool.size -= nbytes
    else:
        if pool.upstream.order != HOST_SYNCHRONOUS:
            add_position_locked(pool, span, stream.index, advance(stream))
            if not order_after_frontier_unlocks(pool, span, NULL, &ignored):        # else its owners wait
                clear_frontier(span)
        release_span_locked(pool, span)
    stream.busy -= 1
    pool.order.lock.unlock()
    return failed


# ---------------------------------------------------------------------------------------------- failures
cdef int fail_out_of_memory_locked(PoolState* pool, size_t nbytes, Failure* failure, const char* why) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    snprintf(failure.text, sizeof(failure.text),
             "out of memory: no %zu bytes, %.60s; the pool has %zu, of which %zu are in use, and its largest free span "
             "has %zu", nbytes, why, pool.size, pool.used, largest_free_locked(pool))
    return fail_resource(failure, cy.CUDA_ERROR_OUT_OF_MEMORY)


cdef int discard_failure_unlocks(PoolState* pool, Failure* failure) except -1 nogil:
    """Drop a failure that is not reported.  Its exception needs the GIL, which is not taken under the lock."""
    check(pool.order.lock.held(), "the lock is held")
    pool.order.lock.unlock()
    drop_exception(failure)
    pool.order.lock.lock()
    return 0
