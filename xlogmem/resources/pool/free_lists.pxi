# Free spans, by size and by the waits that their next owner needs.
#
# A free list has a ring of spans for each size class.  The classes are two levels of bits, as in TLSF: a row for each
# power of two, 32 columns in each row, so a class spans at most 1/32 of its size.  Inserting, removing and finding the
# next class that is not empty take constant time.  In a ring the newest span comes first.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport check, larger, make_new
from xlogmem._order cimport StreamState


cdef inline uint32_t size_class_of(size_t nbytes) noexcept nogil:
    """Return the size class, as row * COLUMNS + column."""
    cdef uint64_t grains = nbytes // ALIGNMENT
    cdef uint32_t top
    if grains < COLUMNS:
        return <uint32_t>grains
    top = highest(grains)
    return (top - COLUMN_BITS + 1) * COLUMNS + (<uint32_t>(grains >> (top - COLUMN_BITS)) & (COLUMNS - 1))


cdef FreeList* free_list_of_locked(PoolState* pool, Span* span) noexcept nogil:
    """Return the free list that a span with this frontier belongs on."""
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
        pool.free_lists[stream] = make_new[FreeList]()
        pool.streams_listed += 1
    return pool.free_lists[stream]


cdef void insert_locked(PoolState* pool, Span* span) noexcept nogil:
    """Put a span on its free list."""
    check(pool.order.lock.held(), "the lock is held")
    cdef FreeList* free_list = free_list_of_locked(pool, span)
    cdef uint32_t size_class = size_class_of(span.nbytes)
    cdef Span* newest = free_list.newest[size_class]
    span.free_list = free_list
    if newest == NULL:
        span.next = span.previous = span
        free_list.rows |= <uint64_t>1 << (size_class // COLUMNS)
        free_list.columns[size_class // COLUMNS] |= <uint32_t>1 << (size_class % COLUMNS)
    else:
        span.next = newest
        span.previous = newest.previous
        newest.previous.next = span
        newest.previous = span
    free_list.newest[size_class] = span


cdef void remove(Span* span) noexcept nogil:
    """Take a span off its free list."""
    cdef FreeList* free_list = span.free_list
    cdef uint32_t size_class = size_class_of(span.nbytes)
    span.free_list = NULL
    if span.next == span:
        free_list.newest[size_class] = NULL
        free_list.columns[size_class // COLUMNS] &= ~(<uint32_t>1 << (size_class % COLUMNS))
        if free_list.columns[size_class // COLUMNS] == 0:
            free_list.rows &= ~(<uint64_t>1 << (size_class // COLUMNS))
        return
    span.previous.next = span.next
    span.next.previous = span.previous
    if free_list.newest[size_class] == span:
        free_list.newest[size_class] = span.next


cdef inline bint fits_better(Span* span, Span* than) noexcept nogil:
    """True if `span` fits better than `than`: the tighter fit is better; of equal fits the lower, so that free memory
    gathers at the upper end."""
    return than == NULL or span.nbytes < than.nbytes or (span.nbytes == than.nbytes and span.ptr < than.ptr)


cdef inline bint will_do_locked(PoolState* pool, Span* span, StreamState* stream, Demand demand) noexcept nogil:
    check(pool.order.lock.held(), "the lock is held")
    if demand == ORDERED:
        return is_ordered_locked(pool, span, stream)
    return demand == ANY or not needs_host_wait_locked(pool, span, stream)


cdef Span* best_in_ring_locked(PoolState* pool, Span* newest, size_t nbytes, StreamState* stream, Demand demand,
                               size_t limit) noexcept nogil:
    """Find the best of up to `limit` spans of a ring: of the oldest spans where the stream has to be ordered after the
    span, because this is likeliest for the oldest, and of the newest otherwise."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = NULL
    cdef Span* span = newest
    cdef size_t i = 0
    while i < limit:
        if demand == ORDERED:
            span = span.previous
        if span.nbytes >= nbytes and fits_better(span, best) and will_do_locked(pool, span, stream, demand):
            best = span
        if demand != ORDERED:
            span = span.next
        i += 1
        if span == newest:
            break
    return best


cdef inline uint32_t next_size_class(FreeList* free_list, uint32_t size_class) noexcept nogil:
    """Return the first larger class that has spans; 0 if there is none, because no span is of class 0."""
    cdef uint32_t row = size_class // COLUMNS
    cdef uint32_t column = size_class % COLUMNS
    cdef uint64_t bits = free_list.columns[row] & ~((<uint64_t>2 << column) - 1)
    if bits == 0:
        bits = free_list.rows & ~((<uint64_t>2 << row) - 1)
        if bits == 0:
            return 0
        row = lowest(bits)
        bits = free_list.columns[row]
    return row * COLUMNS + lowest(bits)


cdef Span* find_fit_locked(PoolState* pool, FreeList* free_list, size_t nbytes, StreamState* stream, Demand demand,
                           size_t limit) noexcept nogil:
    """Find the best span of a free list that will do for the stream; NULL if none is large enough.

    The search visits up to `limit` spans of each size class, so it can miss a span that would fit unless `limit` is
    NO_LIMIT.
    """
    check(pool.order.lock.held(), "the lock is held")
    cdef uint32_t size_class = size_class_of(nbytes)
    cdef Span* best = NULL
    if free_list == NULL or free_list.rows == 0:
        return NULL
    if free_list.newest[size_class] != NULL:
        best = best_in_ring_locked(pool, free_list.newest[size_class], nbytes, stream, demand, limit)
    while best == NULL:
        size_class = next_size_class(free_list, size_class)
        if size_class == 0:
            return NULL
        best = best_in_ring_locked(pool, free_list.newest[size_class], nbytes, stream, demand, limit)
    return best


cdef Span* find_fit_with_frontier_locked(PoolState* pool, size_t nbytes, StreamState* stream, Demand demand,
                                         size_t limit) noexcept nogil:
    """Find the best span of all free lists except `ready`; see `find_fit_locked`."""
    check(pool.order.lock.held(), "the lock is held")
    cdef Span* best = find_fit_locked(pool, pool.mixed, nbytes, stream, demand, limit)
    cdef Span* span
    cdef size_t i
    for i in range(pool.free_lists.size()):
        span = find_fit_locked(pool, pool.free_lists[i], nbytes, stream, demand, limit)
        if span != NULL and fits_better(span, best):
            best = span
    return best


cdef size_t largest_on(FreeList* free_list) noexcept nogil:
    """Return the size of the largest span of a free list (NULL: 0)."""
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


cdef size_t largest_free_locked(PoolState* pool) noexcept nogil:
    """Return the size of the largest free span."""
    check(pool.order.lock.held(), "the lock is held")
    cdef size_t most = larger(largest_on(pool.ready), largest_on(pool.mixed))
    cdef size_t i
    for i in range(pool.free_lists.size()):
        most = larger(most, largest_on(pool.free_lists[i]))
    return most
