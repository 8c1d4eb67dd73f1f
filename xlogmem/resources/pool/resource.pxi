# TODO

cdef bint span_needs_context_sync_locked(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """Would the host have to wait for the whole context before the stream (NULL: any) may have the span?"""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Position* entry
    for i in range(span.count):
        entry = position_at(span, i)
        if needs_context_sync_locked(pool.order, stream, pool.order.streams[entry.stream], entry.position):
            return True
    return False


cdef int allocate(void* self, size_t nbytes, StreamState* stream, uint64_t* ptr, void** resource_block,
                  Failure* failure) except -1 nogil:
    cdef PoolState* pool = <PoolState*>self
    cdef Failure other
    cdef Span* span
    cdef Span* grown = NULL
    cdef bint known
    cdef int failed = 0
    if nbytes > LARGEST or rounded(nbytes) > pool.maximum:
        return fail_out_of_memory_locked(pool, nbytes, failure, "it may not grow so far (maximum_pool_size)")
    nbytes = rounded(nbytes)
    span = choose_locked(pool, nbytes, stream)
    if span != NULL and span_needs_context_sync_locked(pool, span, stream):
        if expand_unlocks(pool, nbytes, stream, &grown, &other):
            discard_failure_unlocks(pool, &other)
            span = choose_locked(pool, nbytes, stream)         # there is nothing else: the host waits
        else:
            span = NULL
    if span != NULL:
        known = is_ordered_locked(pool, span, stream)
        reserve_locked(pool, span)
        split_locked(pool, span, nbytes)
        if not known:
            pool.counters.waited += 1
            failed = wait_for_unlocks(pool, span, stream, failure)
            if failed:
                release_span_locked(pool, span)
                if failure.kind != SOURCE_IS_CAPTURING:             # else that memory cannot be waited for now
                    return 1
                span = choose_ordered_locked(pool, nbytes, stream)           # a larger one, in a tight pool
                if span != NULL:
                    reserve_locked(pool, span)
                    split_locked(pool, span, nbytes)
                elif expand_unlocks(pool, nbytes, stream, &grown, &other):
                    discard_failure_unlocks(pool, &other)
                    return 1
            else:
                take_over_rest_locked(pool, span, stream)
    elif grown == NULL and expand_unlocks(pool, nbytes, stream, &grown, failure):
        return 1
    if grown != NULL:
        span = grown
        split_locked(pool, span, nbytes)
    clear(span)                                         # the new owner inherits nothing: its stream is ordered
    pool.counters.allocations += 1
    pool.used += nbytes
    pool.peak = larger(pool.peak, pool.used)
    ptr[0] = span.ptr
    resource_block[0] = span
    return 0


cdef void deallocate(void* self, void* resource_block, vector[Dependency]* frontier) noexcept nogil:
    cdef PoolState* pool = <PoolState*>self
    cdef Span* span = <Span*>resource_block
    cdef size_t i
    cdef int kind
    check(span.free_list == NULL and span.chunk.taken > 0 and pool.used >= span.nbytes, "what is freed was handed out")
    for kind in range(ENTRY_KINDS - 1, -1, -1):             # readers first: whoever waits for one often knows the rest
        for i in range(frontier.size()):
            if <int>frontier[0][i].kind == kind:
                add_position_locked(pool, span, frontier[0][i].source.index, frontier[0][i].position)
    pool.used -= span.nbytes
    release_span_locked(pool, span)


cdef int trim(void* self, size_t nbytes, StreamState* stream, Failure* failure) except -1 nogil:
    """Out of memory: everything that is idle goes upstream, and from there further down, if that can help."""
    cdef PoolState* pool = <PoolState*>self
    cdef vector[Failure] failures
    cdef size_t i
    cdef int failed = 0
    if nbytes > pool.maximum:
        return 0
    release_idle_unlocks(pool, 0, stream, &failures)
    if pool.upstream.ordered != NULL:
        failed = pool.upstream.ordered.trim(pool.upstream.self, nbytes, stream, failure)
    pool.order.lock.unlock()
    for i in range(failures.size()):
        drop_exception(&failures[i])
    if pool.upstream.ordered == NULL and pool.upstream.trim != NULL:
        failed = pool.upstream.trim(pool.upstream.self, failure)
    pool.order.lock.lock()
    return failed
