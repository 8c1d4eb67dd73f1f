# TODO

cdef bint is_out_of_reach(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """Would the host have to wait for the whole context before the stream (NULL: any) may have the span?"""
    cdef size_t i
    cdef Mark* mark
    for i in range(span.count):
        mark = mark_of(span, i)
        if out_of_reach(pool.order, stream, pool.order.streams[mark.stream], mark.position):
            return True
    return False


cdef int allocate(void* self, size_t nbytes, StreamState* stream, uint64_t* ptr, void** piece,
                  Failure* failure) except -1 nogil:
    cdef PoolState* pool = <PoolState*>self
    cdef Failure other
    cdef Span* span
    cdef Span* grown = NULL
    cdef bint known
    cdef int failed = 0
    if nbytes > LARGEST or rounded(nbytes) > pool.maximum:
        return exhausted(pool, nbytes, failure, "it may not grow so far (maximum_pool_size)")
    nbytes = rounded(nbytes)
    span = choose(pool, nbytes, stream)
    if span != NULL and is_out_of_reach(pool, span, stream):
        if grow(pool, nbytes, stream, &grown, &other):
            forget_failure(pool, &other)
            span = choose(pool, nbytes, stream)         # there is nothing else: the host waits
        else:
            span = NULL
    if span != NULL:
        known = known_to(pool, span, stream)
        hold(pool, span)
        cut(pool, span, nbytes)
        if not known:
            pool.counters.waited += 1
            failed = wait_for(pool, span, stream, failure)
            if failed:
                let_go(pool, span)
                if failure.kind != SOURCE_IS_CAPTURING:             # else that memory cannot be waited for now
                    return 1
                span = choose_known(pool, nbytes, stream)           # a larger one, in a tight pool
                if span != NULL:
                    hold(pool, span)
                    cut(pool, span, nbytes)
                elif grow(pool, nbytes, stream, &grown, &other):
                    forget_failure(pool, &other)
                    return 1
            else:
                adopt_rest(pool, span, stream)
    elif grown == NULL and grow(pool, nbytes, stream, &grown, failure):
        return 1
    if grown != NULL:
        span = grown
        cut(pool, span, nbytes)
    clear(span)                                         # the new owner inherits nothing: its stream is ordered
    pool.counters.allocations += 1
    pool.used += nbytes
    pool.peak = larger(pool.peak, pool.used)
    ptr[0] = span.ptr
    piece[0] = span
    return 0


cdef void deallocate(void* self, void* piece, vector[Need]* frontier) noexcept nogil:
    cdef PoolState* pool = <PoolState*>self
    cdef Span* span = <Span*>piece
    cdef size_t i
    cdef int stage
    invariant(span.shelf == NULL and span.chunk.taken > 0 and pool.used >= span.nbytes, "what is freed was handed out")
    for stage in range(STAGES - 1, -1, -1):             # readers first: whoever waits for one often knows the rest
        for i in range(frontier.size()):
            if <int>frontier[0][i].stage == stage:
                add_mark(pool, span, frontier[0][i].source.index, frontier[0][i].position)
    pool.used -= span.nbytes
    let_go(pool, span)


cdef int trim(void* self, size_t nbytes, StreamState* stream, Failure* failure) except -1 nogil:
    """Out of memory: everything that is idle goes upstream, and from there further down, if that can help."""
    cdef PoolState* pool = <PoolState*>self
    cdef vector[Failure] failures
    cdef size_t i
    cdef int failed = 0
    if nbytes > pool.maximum:
        return 0
    release_idle(pool, 0, stream, &failures)
    if pool.upstream.frontiers != NULL:
        failed = pool.upstream.frontiers.trim(pool.upstream.self, nbytes, stream, failure)
    pool.order.lock.unlock()
    for i in range(failures.size()):
        drop_exception(&failures[i])
    if pool.upstream.frontiers == NULL and pool.upstream.trim != NULL:
        failed = pool.upstream.trim(pool.upstream.self, failure)
    pool.order.lock.lock()
    return failed
