# TODO

cdef inline Position* position_at(Span* span, size_t i) noexcept nogil:
    return &span.first if i == 0 else &span.more[i - 1]


cdef inline void clear(Span* span) noexcept nogil:
    span.count = 0
    span.more.clear()


cdef inline Position* position_on(Span* span, uint32_t stream) noexcept nogil:
    cdef size_t i
    for i in range(span.count):
        if position_at(span, i).stream == stream:
            return position_at(span, i)
    return NULL


cdef void add_position_locked(PoolState* pool, Span* span, uint32_t stream, uint64_t position) noexcept nogil:
    """Whoever takes the span has to be ordered after this too; what the host has seen nobody has to."""
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


cdef bint is_ordered_locked(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """Is the stream ordered after the whole frontier?"""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Position* entry
    for i in range(span.count):
        entry = position_at(span, i)
        if not is_ordered_after_locked(pool.order, stream, pool.order.streams[entry.stream], entry.position):
            return False
    return True


cdef bint same_streams_locked(PoolState* pool, Span* one, Span* other) noexcept nogil:
    """Do the same streams have to be waited for?  While the pool serves one stream only, nobody else can be kept
    waiting."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t i
    if pool.streams_listed <= 1 and one.count <= 1 and other.count <= 1:
        return True
    if one.count != other.count:
        return False
    for i in range(one.count):
        if position_on(other, position_at(one, i).stream) == NULL:
            return False
    return True


# ---------------------------------------------------------------------------------------------- free_lists
cdef inline uint32_t class_of(size_t nbytes) noexcept nogil:
    """The size class, as row * COLUMNS + column."""
    cdef uint64_t grains = nbytes // ALIGNMENT
    cdef uint32_t top
    if grains < COLUMNS:
        return <uint32_t>grains
    top = highest(grains)
    return (top - COLUMN_BITS + 1) * COLUMNS + (<uint32_t>(grains >> (top - COLUMN_BITS)) & (COLUMNS - 1))


cdef FreeList* free_list_of_locked(PoolState* pool, Span* span) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    cdef uint32_t stream
    if span.count == 0:
        return pool.ready
    if span.count > 1:
        return pool.mixed
    stream = span.first.stream
    if stream >= pool.free_lists.size():
        pool.free_lists.resize(stream + 1)
    if pool.free_lists[stream] == NULL:
        pool.free_lists[stream] = new FreeList()
        pool.streams_listed += 1
    return pool.free_lists[stream]


cdef void insert_locked(PoolState* pool, Span* span) noexcept nogil:
    """Put a span on its free_list."""
    check(pool.order.lock.held(), "the lock is held")
    cdef FreeList* free_list = free_list_of_locked(pool, span)
    cdef uint32_t place = class_of(span.nbytes)
    cdef Span* newest = free_list.newest[place]
    span.free_list = free_list
    if newest == NULL:
        span.next = span.previous = span
        free_list.rows |= <uint64_t>1 << (place // COLUMNS)
        free_list.columns[place // COLUMNS] |= <uint32_t>1 << (place % COLUMNS)
    else:
        span.next = newest
        span.previous = newest.previous
        newest.previous.next = span
        newest.previous = span
    free_list.newest[place] = span


cdef void remove(Span* span) noexcept nogil:
    """Take a span off its free_list."""
    cdef FreeList* free_list = span.free_list
    cdef uint32_t place = class_of(span.nbytes)
    span.free_list = NULL
    if span.next == span:
        free_list.newest[place] = NULL
        free_list.columns[place // COLUMNS] &= ~(<uint32_t>1 << (place % COLUMNS))
        if free_list.columns[place // COLUMNS] == 0:
            free_list.rows &= ~(<uint64_t>1 << (place // COLUMNS))
        return
    span.previous.next = span.next
    span.next.previous = span.previous
    if free_list.newest[place] == span:
        free_list.newest[place] = span.next


cdef inline bint is_better(Span* span, Span* than) noexcept nogil:
    """The tighter fit, of equal ones the lower: what is free gathers at the upper end."""
    return than == NULL or span.nbytes < than.nbytes or (span.nbytes == than.nbytes and span.ptr < than.ptr)


cdef Span* best_of_locked(PoolState* pool, Span* newest, size_t nbytes, StreamState* ordered_stream, size_t most) noexcept nogil:
    """The best of the newest or, if `ordered_stream` has to know it, of the oldest spans of a ring."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = NULL
    cdef Span* span = newest
    cdef size_t i = 0
    while i < most:
        if ordered_stream != NULL:
            span = span.previous
        if span.nbytes >= nbytes and is_better(span, best) and (ordered_stream == NULL or is_ordered_locked(pool, span, ordered_stream)):
            best = span
        if ordered_stream == NULL:
            span = span.next
        i += 1
        if span == newest:
            break
    return best


cdef inline uint32_t next_place(FreeList* free_list, uint32_t place) noexcept nogil:
    """The first size class above one that has spans, 0 if there is none: no span has that class."""
    cdef uint32_t row = place // COLUMNS
    cdef uint32_t column = place % COLUMNS
    cdef uint64_t bits = free_list.columns[row] & ~((<uint64_t>2 << column) - 1)
    if bits == 0:
        bits = free_list.rows & ~((<uint64_t>2 << row) - 1)
        if bits == 0:
            return 0
        row = lowest(bits)
        bits = free_list.columns[row]
    return row * COLUMNS + lowest(bits)


cdef Span* find_fit_locked(PoolState* pool, FreeList* free_list, size_t nbytes, StreamState* ordered_stream, size_t most) noexcept nogil:
    """The best span of a free_list that is large enough and, unless `ordered_stream` is NULL, known to that stream."""
    check(pool.order.lock.held(), "the lock is held")
    cdef uint32_t place = class_of(nbytes)
    cdef Span* best = NULL
    if free_list == NULL or free_list.rows == 0:
        return NULL
    if free_list.newest[place] != NULL:
        best = best_of_locked(pool, free_list.newest[place], nbytes, ordered_stream, most)
    while best == NULL:
        place = next_place(free_list, place)
        if place == 0:
            return NULL
        best = best_of_locked(pool, free_list.newest[place], nbytes, ordered_stream, most)
    return best


cdef Span* find_fit_anywhere_locked(PoolState* pool, size_t nbytes, StreamState* ordered_stream, size_t most) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = find_fit_locked(pool, pool.mixed, nbytes, ordered_stream, most)
    cdef Span* span
    cdef size_t i
    for i in range(pool.free_lists.size()):
        span = find_fit_locked(pool, pool.free_lists[i], nbytes, ordered_stream, most)
        if span != NULL and is_better(span, best):
            best = span
    return best


cdef inline bint under_pressure_locked(PoolState* pool, size_t nbytes) noexcept nogil:
    """Does memory count more than a wait, with so many bytes more in use, and is there anybody to wait for?"""
    check(pool.order.lock.held(), "the lock is held")
    return pool.used + nbytes > pool.maximum // PRESSURE and (pool.streams_listed > 1 or pool.mixed.rows != 0)


cdef inline bint wastes_memory(Span* span, size_t nbytes) noexcept nogil:
    return span.nbytes - nbytes > nbytes // WASTE


cdef Span* choose_ordered_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """Its own, what nobody waits for and what several had; then what one other stream had."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = NULL
    cdef Span* span
    if stream.index < pool.free_lists.size():
        best = find_fit_locked(pool, pool.free_lists[stream.index], nbytes, NULL, SCAN_LIMIT)
    span = find_fit_locked(pool, pool.ready, nbytes, NULL, SCAN_LIMIT)
    if span != NULL and (best == NULL or span.nbytes < best.nbytes):
        best = span
    span = find_fit_locked(pool, pool.mixed, nbytes, stream, SCAN_LIMIT)
    if span != NULL and (best == NULL or span.nbytes < best.nbytes):
        best = span
    if best == NULL:
        best = find_fit_anywhere_locked(pool, nbytes, stream, SCAN_LIMIT)
    return best


cdef Span* choose_tightest_locked(PoolState* pool, size_t nbytes, StreamState* stream, Span* known) noexcept nogil:
    """Nothing is known (NULL), or what is known is too loose for a tight pool.  There, what another stream had and this
    one knows comes first, then the tightest when free neighbours are joined; else what the stream has to wait for."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best
    if under_pressure_locked(pool, nbytes):
        best = find_fit_anywhere_locked(pool, nbytes, stream, SCAN_LIMIT)
        if best != NULL and (known == NULL or best.nbytes < known.nbytes):
            known = best
        if known != NULL and not wastes_memory(known, nbytes):
            return known
        pool.requests_since_retry += 1
        if pool.requests_since_retry >= pool.blocked:
            retry_blocked_locked(pool)
        if coalesce_pairs_locked(pool, False):                     # the next time there is nothing to join
            return choose_tightest_locked(pool, nbytes, stream, choose_ordered_locked(pool, nbytes, stream))
    best = find_fit_anywhere_locked(pool, nbytes, NULL, SCAN_LIMIT)
    if known != NULL and (best == NULL or best.nbytes >= known.nbytes or span_needs_context_sync_locked(pool, best, stream)):
        return known
    if best == NULL:                                    # in a crowded column, not among those that were looked at
        best = find_fit_locked(pool, pool.ready, nbytes, NULL, UINT64_MAX)
    if best == NULL:
        best = find_fit_anywhere_locked(pool, nbytes, NULL, UINT64_MAX)
    if best == NULL:                                    # what the stream can wait for, rather than what the host has to
        retry_blocked_locked(pool)
        if coalesce_pairs_locked(pool, False):
            best = find_fit_anywhere_locked(pool, nbytes, NULL, UINT64_MAX)
    if best == NULL and coalesce_pairs_locked(pool, True):
        best = find_fit_anywhere_locked(pool, nbytes, NULL, UINT64_MAX)
    return best


cdef Span* choose_locked(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* known = choose_ordered_locked(pool, nbytes, stream)
    if known != NULL and not (under_pressure_locked(pool, nbytes) and wastes_memory(known, nbytes)):
        return known
    return choose_tightest_locked(pool, nbytes, stream, known)
