# TODO

cdef inline Mark* mark_of(Span* span, size_t i) noexcept nogil:
    return &span.mark if i == 0 else &span.more[i - 1]


cdef inline void clear(Span* span) noexcept nogil:
    span.count = 0
    span.more.clear()


cdef inline Mark* mark_on(Span* span, uint32_t stream) noexcept nogil:
    cdef size_t i
    for i in range(span.count):
        if mark_of(span, i).stream == stream:
            return mark_of(span, i)
    return NULL


cdef void add_mark(PoolState* pool, Span* span, uint32_t stream, uint64_t position) noexcept nogil:
    """Whoever takes the span has to be ordered after this too; what the host has seen nobody has to."""
    cdef Mark* known
    cdef Mark mark
    if knows(pool.order, NULL, pool.order.streams[stream], position):
        return
    known = mark_on(span, stream)
    if known != NULL:
        if position > known.position:
            known.position = position
        return
    mark.stream = stream
    mark.position = position
    if span.count == 0:
        span.mark = mark
    else:
        span.more.push_back(mark)
    span.count += 1


cdef bint known_to(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """Is the stream ordered after the whole frontier?"""
    cdef size_t i
    cdef Mark* mark
    for i in range(span.count):
        mark = mark_of(span, i)
        if not knows(pool.order, stream, pool.order.streams[mark.stream], mark.position):
            return False
    return True


cdef bint alike(PoolState* pool, Span* one, Span* other) noexcept nogil:
    """Do the same streams have to be waited for?  While the pool serves one stream only, nobody else can be kept
    waiting."""
    cdef size_t i
    if pool.stocked <= 1 and one.count <= 1 and other.count <= 1:
        return True
    if one.count != other.count:
        return False
    for i in range(one.count):
        if mark_on(other, mark_of(one, i).stream) == NULL:
            return False
    return True


# ---------------------------------------------------------------------------------------------- shelves
cdef inline uint32_t class_of(size_t nbytes) noexcept nogil:
    """The size class, as row * COLUMNS + column."""
    cdef uint64_t grains = nbytes // GRAIN
    cdef uint32_t top
    if grains < COLUMNS:
        return <uint32_t>grains
    top = highest(grains)
    return (top - COLUMN_BITS + 1) * COLUMNS + (<uint32_t>(grains >> (top - COLUMN_BITS)) & (COLUMNS - 1))


cdef Shelf* shelf_for(PoolState* pool, Span* span) noexcept nogil:
    cdef uint32_t stream
    if span.count == 0:
        return pool.settled
    if span.count > 1:
        return pool.mixed
    stream = span.mark.stream
    if stream >= pool.shelves.size():
        pool.shelves.resize(stream + 1)
    if pool.shelves[stream] == NULL:
        pool.shelves[stream] = new Shelf()
        pool.stocked += 1
    return pool.shelves[stream]


cdef void offer(PoolState* pool, Span* span) noexcept nogil:
    """Put a span on its shelf."""
    cdef Shelf* shelf = shelf_for(pool, span)
    cdef uint32_t place = class_of(span.nbytes)
    cdef Span* newest = shelf.newest[place]
    span.shelf = shelf
    if newest == NULL:
        span.next = span.previous = span
        shelf.rows |= <uint64_t>1 << (place // COLUMNS)
        shelf.columns[place // COLUMNS] |= <uint32_t>1 << (place % COLUMNS)
    else:
        span.next = newest
        span.previous = newest.previous
        newest.previous.next = span
        newest.previous = span
    shelf.newest[place] = span


cdef void withdraw(Span* span) noexcept nogil:
    """Take a span off its shelf."""
    cdef Shelf* shelf = span.shelf
    cdef uint32_t place = class_of(span.nbytes)
    span.shelf = NULL
    if span.next == span:
        shelf.newest[place] = NULL
        shelf.columns[place // COLUMNS] &= ~(<uint32_t>1 << (place % COLUMNS))
        if shelf.columns[place // COLUMNS] == 0:
            shelf.rows &= ~(<uint64_t>1 << (place // COLUMNS))
        return
    span.previous.next = span.next
    span.next.previous = span.previous
    if shelf.newest[place] == span:
        shelf.newest[place] = span.next


cdef inline bint is_better(Span* span, Span* than) noexcept nogil:
    """The tighter fit, of equal ones the lower: what is free gathers at the upper end."""
    return than == NULL or span.nbytes < than.nbytes or (span.nbytes == than.nbytes and span.ptr < than.ptr)


cdef Span* best_of(PoolState* pool, Span* newest, size_t nbytes, StreamState* knower, size_t most) noexcept nogil:
    """The best of the newest or, if `knower` has to know it, of the oldest spans of a ring."""
    cdef Span* best = NULL
    cdef Span* span = newest
    cdef size_t i = 0
    while i < most:
        if knower != NULL:
            span = span.previous
        if span.nbytes >= nbytes and is_better(span, best) and (knower == NULL or known_to(pool, span, knower)):
            best = span
        if knower == NULL:
            span = span.next
        i += 1
        if span == newest:
            break
    return best


cdef inline uint32_t next_place(Shelf* shelf, uint32_t place) noexcept nogil:
    """The first size class above one that has spans, 0 if there is none: no span has that class."""
    cdef uint32_t row = place // COLUMNS
    cdef uint32_t column = place % COLUMNS
    cdef uint64_t bits = shelf.columns[row] & ~((<uint64_t>2 << column) - 1)
    if bits == 0:
        bits = shelf.rows & ~((<uint64_t>2 << row) - 1)
        if bits == 0:
            return 0
        row = lowest(bits)
        bits = shelf.columns[row]
    return row * COLUMNS + lowest(bits)


cdef Span* fitting(PoolState* pool, Shelf* shelf, size_t nbytes, StreamState* knower, size_t most) noexcept nogil:
    """The best span of a shelf that is large enough and, unless `knower` is NULL, known to that stream."""
    cdef uint32_t place = class_of(nbytes)
    cdef Span* best = NULL
    if shelf == NULL or shelf.rows == 0:
        return NULL
    if shelf.newest[place] != NULL:
        best = best_of(pool, shelf.newest[place], nbytes, knower, most)
    while best == NULL:
        place = next_place(shelf, place)
        if place == 0:
            return NULL
        best = best_of(pool, shelf.newest[place], nbytes, knower, most)
    return best


cdef Span* fitting_anywhere(PoolState* pool, size_t nbytes, StreamState* knower, size_t most) noexcept nogil:
    cdef Span* best = fitting(pool, pool.mixed, nbytes, knower, most)
    cdef Span* span
    cdef size_t i
    for i in range(pool.shelves.size()):
        span = fitting(pool, pool.shelves[i], nbytes, knower, most)
        if span != NULL and is_better(span, best):
            best = span
    return best


cdef inline bint is_tight(PoolState* pool, size_t nbytes) noexcept nogil:
    """Does memory count more than a wait, with so many bytes more in use, and is there anybody to wait for?"""
    return pool.used + nbytes > pool.maximum // SCARCE and (pool.stocked > 1 or pool.mixed.rows != 0)


cdef inline bint is_loose(Span* span, size_t nbytes) noexcept nogil:
    return span.nbytes - nbytes > nbytes // LOOSE


cdef Span* choose_known(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    """Its own, what nobody waits for and what several had; then what one other stream had."""
    cdef Span* best = NULL
    cdef Span* span
    if stream.index < pool.shelves.size():
        best = fitting(pool, pool.shelves[stream.index], nbytes, NULL, LOOK_AT)
    span = fitting(pool, pool.settled, nbytes, NULL, LOOK_AT)
    if span != NULL and (best == NULL or span.nbytes < best.nbytes):
        best = span
    span = fitting(pool, pool.mixed, nbytes, stream, LOOK_AT)
    if span != NULL and (best == NULL or span.nbytes < best.nbytes):
        best = span
    if best == NULL:
        best = fitting_anywhere(pool, nbytes, stream, LOOK_AT)
    return best


cdef Span* choose_tightest(PoolState* pool, size_t nbytes, StreamState* stream, Span* known) noexcept nogil:
    """Nothing is known (NULL), or what is known is too loose for a tight pool.  There, what another stream had and this
    one knows comes first, then the tightest when free neighbours are joined; else what the stream has to wait for."""
    cdef Span* best
    if is_tight(pool, nbytes):
        best = fitting_anywhere(pool, nbytes, stream, LOOK_AT)
        if best != NULL and (known == NULL or best.nbytes < known.nbytes):
            known = best
        if known != NULL and not is_loose(known, nbytes):
            return known
        pool.looks += 1
        if pool.looks >= pool.far:
            look_again(pool)
        if join_seams(pool, False):                     # the next time there is nothing to join
            return choose_tightest(pool, nbytes, stream, choose_known(pool, nbytes, stream))
    best = fitting_anywhere(pool, nbytes, NULL, LOOK_AT)
    if known != NULL and (best == NULL or best.nbytes >= known.nbytes or is_out_of_reach(pool, best, stream)):
        return known
    if best == NULL:                                    # in a crowded column, not among those that were looked at
        best = fitting(pool, pool.settled, nbytes, NULL, UINT64_MAX)
    if best == NULL:
        best = fitting_anywhere(pool, nbytes, NULL, UINT64_MAX)
    if best == NULL:                                    # what the stream can wait for, rather than what the host has to
        look_again(pool)
        if join_seams(pool, False):
            best = fitting_anywhere(pool, nbytes, NULL, UINT64_MAX)
    if best == NULL and join_seams(pool, True):
        best = fitting_anywhere(pool, nbytes, NULL, UINT64_MAX)
    return best


cdef Span* choose(PoolState* pool, size_t nbytes, StreamState* stream) noexcept nogil:
    cdef Span* known = choose_known(pool, nbytes, stream)
    if known != NULL and not (is_tight(pool, nbytes) and is_loose(known, nbytes)):
        return known
    return choose_tightest(pool, nbytes, stream, known)
