# TODO

cdef int wait_for_unlocks(PoolState* pool, Span* span, StreamState* stream, Failure* failure) except -1 nogil:
    """Order a stream (NULL: the host) after the frontier of a span that is held.  Releases the lock."""
    check(pool.order.lock.held(), "the lock is held")
    cdef StreamState* source
    cdef size_t i
    cdef int failed = 0
    pool.order.in_flight += 1                           # a place is not given away meanwhile
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


# ---------------------------------------------------------------------------------------------- upstream
cdef int fail_out_of_memory_locked(PoolState* pool, size_t nbytes, Failure* failure, const char* why) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    failure.kind = RESOURCE_FAILED
    failure.code = cy.CUDA_ERROR_OUT_OF_MEMORY
    snprintf(failure.text, sizeof(failure.text),
             "out of memory: the pool has %zu bytes, %zu of them in use, and its largest free span has %zu, which is "
             "not enough for %zu; %.60s", pool.size, pool.used, largest_locked(pool), nbytes, why)
    return 1


cdef size_t largest_locked(PoolState* pool) noexcept nogil:
    """Bytes of the largest free span."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t most = larger(largest_on(pool.ready), largest_on(pool.mixed))
    cdef size_t i
    for i in range(pool.free_lists.size()):
        most = larger(most, largest_on(pool.free_lists[i]))
    return most


cdef size_t largest_on(FreeList* free_list) noexcept nogil:
    cdef size_t most = 0
    cdef uint32_t row
    cdef Span* newest
    cdef Span* span
    if free_list == NULL or free_list.rows == 0:
        return 0
    row = highest(free_list.rows)
    newest = span = free_list.newest[row * COLUMNS + highest(free_list.columns[row])]
    while True:
        most = larger(most, span.nbytes)
        span = span.next
        if span == newest:
            return most


cdef int discard_failure_unlocks(PoolState* pool, Failure* failure) except -1 nogil:
    """Releases the lock."""
    check(pool.order.lock.held(), "the lock is held")
    pool.order.lock.unlock()
    drop_exception(failure)
    pool.order.lock.lock()
    return 0


cdef int expand_unlocks(PoolState* pool, size_t nbytes, StreamState* stream, Span** result, Failure* failure) except -1 nogil:
    """A chunk from upstream: half of the maximum and then the rest or, without one, as much as the pool has; what is
    asked for if that is more; less, if upstream has less.  Its span is held.  Releases the lock."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t room = pool.maximum - pool.size
    cdef size_t wanted = pool.step
    cdef uint64_t ptr = 0
    cdef void* resource_block = NULL
    cdef int failed
    if nbytes > room:
        return fail_out_of_memory_locked(pool, nbytes, failure, "it may not grow so far (maximum_pool_size)")
    if wanted == 0 and pool.maximum < LARGEST:          # few large chunks: what straddles two is in neither
        wanted = room // 2 & ~(<size_t>ALIGNMENT - 1) if room > pool.maximum // 2 else room
    elif wanted == 0:
        wanted = LEAST_STEP if pool.size < LEAST_STEP else MOST_STEP if pool.size > MOST_STEP else pool.size
    wanted = rounded(wanted)
    wanted = nbytes if nbytes > wanted else wanted if wanted < room else room
    while True:
        pool.size += wanted                         # no other call may grow into the same room
        failed = allocate_upstream_unlocks(pool, wanted, stream, &ptr, &resource_block, failure)
        if not failed:
            break
        pool.size -= wanted
        if wanted == nbytes or not is_out_of_memory(failure):
            break
        discard_failure_unlocks(pool, failure)
        wanted = rounded(wanted // 2)
        if wanted < nbytes:
            wanted = nbytes
    if failed:
        if is_out_of_memory(failure) and failure.kind != PYTHON_RAISED:     # what that says is kept
            fail_out_of_memory_locked(pool, nbytes, failure, "there is no more upstream")
        return 1
    pool.counters.grown += 1
    result[0] = new_chunk_locked(pool, ptr, wanted, resource_block)
    if pool.upstream.order != HOST_SYNCHRONOUS:         # there what is handed out is ready for everybody
        add_position_locked(pool, result[0], stream.index, advance(stream))
    return 0


cdef Span* new_chunk_locked(PoolState* pool, uint64_t ptr, size_t nbytes, void* resource_block) noexcept nogil:
    """A chunk with one span, which is held and has no frontier yet."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Chunk* chunk = new Chunk()
    chunk.ptr = ptr
    chunk.nbytes = nbytes
    chunk.resource_block = resource_block
    chunk.taken = 1
    chunk.place = pool.chunks.size()
    chunk.first = new_span_locked(pool, chunk, ptr, nbytes)
    pool.chunks.push_back(chunk)
    return chunk.first


cdef int allocate_upstream_unlocks(PoolState* pool, size_t nbytes, StreamState* stream, uint64_t* ptr, void** resource_block,
                       Failure* failure) except -1 nogil:
    """Releases the lock."""
    check(pool.order.lock.held(), "the lock is held")
    cdef ResourceTable* upstream = pool.upstream
    cdef Failure ignored
    cdef int failed
    if upstream.ordered != NULL:
        failed = upstream.ordered.allocate(upstream.self, nbytes, stream, ptr, resource_block, failure)
    else:
        pool.order.lock.unlock()
        failed = upstream.allocate(upstream.self, nbytes, stream.handle, ptr, failure)
        if not failed and ptr[0] % ALIGNMENT:
            snprintf(failure.text, sizeof(failure.text),
                     "upstream of the pool gave memory at %#llx, which is not aligned to %d bytes",
                     <unsigned long long>ptr[0], <int>ALIGNMENT)
            if upstream.deallocate(upstream.self, ptr[0], nbytes, stream.handle, &ignored):
                drop_exception(&ignored)
            failure.kind = RESOURCE_FAILED
            failure.code = cy.CUDA_ERROR_UNKNOWN
            failed = 1
        pool.order.lock.lock()
    return failed


cdef int release_chunk_unlocks(PoolState* pool, Chunk* chunk, StreamState* stream, Failure* failure) except -1 nogil:
    """Give a chunk back that nobody has anything of, on a stream (NULL: on whichever waits least), ordered after its
    frontier.  On a failure it stays.  Releases the lock."""
    check(pool.order.lock.held(), "the lock is held")
    cdef ResourceTable* upstream = pool.upstream
    cdef Span* span = chunk.first
    cdef vector[Dependency] frontier
    cdef StreamState* only
    cdef StreamState* waiting                           # NULL: the host
    cdef Dependency entry
    cdef size_t i
    cdef int failed = 0
    while span.above != NULL:                           # what is left are pairs
        remove(span)
        remove(span.above)
        insert_locked(pool, coalesce_locked(pool, span, span.above))
    reserve_locked(pool, span)
    check(span.nbytes == chunk.nbytes and chunk.taken == 1, "a chunk that is given back is free as a whole")
    if upstream.ordered != NULL:
        for i in range(span.count):
            entry.source = pool.order.streams[position_at(span, i).stream]
            entry.position = position_at(span, i).position
            entry.kind = ALLOCATED
            frontier.push_back(entry)
        upstream.ordered.deallocate(upstream.self, chunk.resource_block, &frontier)
    else:
        if stream == NULL:
            stream = pool.order.streams[0]
            only = pool.order.streams[span.first.stream]
            if span.count == 1 and only.alive and not may_be_destroyed(only) and only.thread == 0:
                stream = only
        stream.busy += 1
        if upstream.order != HOST_SYNCHRONOUS:
            failed = refuse_if_capturing_unlocks(pool.order, stream, STREAM_IS_CAPTURING, failure)
        if not failed:
            waiting = stream if upstream.order != HOST_SYNCHRONOUS else NULL
            failed = wait_for_unlocks(pool, span, waiting, failure)
        if not failed:
            pool.order.lock.unlock()
            failed = upstream.deallocate(upstream.self, chunk.ptr, chunk.nbytes, stream.handle, failure)
            pool.order.lock.lock()
        stream.busy -= 1
    if failed:
        release_span_locked(pool, span)
        return 1
    pool.size -= chunk.nbytes
    pool.counters.released += 1
    pool.chunks[chunk.place] = pool.chunks.back()
    pool.chunks[chunk.place].place = chunk.place
    pool.chunks.pop_back()
    pool.spare.push_back(span)
    del chunk
    return 0


cdef int release_idle_unlocks(PoolState* pool, size_t keep, StreamState* stream, vector[Failure]* failures) except -1 nogil:
    """Give back chunks that are free as a whole, the newest first, as long as so many bytes are left.  Releases the
    lock."""
    check(pool.order.lock.held(), "the lock is held")
    cdef vector[Chunk*] idle
    cdef Failure failure
    cdef size_t i, k
    for i in range(pool.chunks.size()):
        if pool.chunks[i].taken == 0:
            idle.push_back(pool.chunks[i])
    for i in range(idle.size()):
        for k in range(pool.chunks.size()):             # it may have been given away meanwhile, or used
            if pool.chunks[k] == idle[idle.size() - 1 - i]:
                if pool.chunks[k].taken == 0 and pool.size - pool.chunks[k].nbytes >= keep:
                    if release_chunk_unlocks(pool, pool.chunks[k], stream, &failure):
                        failures.push_back(failure)
                break
    return 0
