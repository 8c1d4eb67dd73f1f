"""A pool whose free memory knows who still uses it.

Memory comes from any other resource in *chunks*, which are cut into *spans*.  A free span keeps the frontier that it
was freed with: the positions that its next owner has to be ordered after.  So a free makes no driver call and delays
no stream, and memory is never kept back for a stream that has gone quiet: an allocation takes, by preference, memory
that its stream knows already, and otherwise its stream waits, on the device, for what it takes.

Spans know their neighbours, so splitting and joining take constant time.  Free spans are found by size through two
levels of bits, as in TLSF: a row for each power of two, 32 columns in each, and a ring of spans in each column.  From
a column the best of a few is taken, the lowest of equals, so the fit is as tight as a best fit in all but crowded
columns, at a cost that does not grow with the number of spans (RMM's pool walks a list), and no memory of the device
is touched for bookkeeping.  There is such a *shelf* for each stream, with the spans that only that stream has to be
waited for, which it can take without a look at anybody's knowledge; one for spans that nobody has to wait for; and one
for those that several streams have to be waited for.

A split copies the frontier, a join takes the newest position of each stream.  Free neighbours are joined at once if the
same streams have to be waited for; other joins would make one stream's memory wait for another's, so they are put off:
the *seam* between the two is noted, and joined when nothing else fits.  Then the pool grows; the rest of a new chunk
carries a position of the stream that it was asked for on.  A stream that waited for several others to have a part of
what they freed answers for them in the rest.  A chunk that is free as a whole can be given back, on a stream that is
ordered after its frontier.

Known memory first, and neighbours left apart: that saves waits and costs memory.  So it is not so while several streams
have more than half of a maximum in use.  Then the pool is *tight*: known memory is taken up to half more than is asked
for, and before a larger span is cut, free neighbours are joined and the tightest of all is taken, known or not.

Everything here is guarded by the lock of the one runtime that has the pool, because its positions mean nothing to
another.  The lock is released around driver calls and calls to the resource upstream; what such a call works on belongs
to nobody else meanwhile.  A frontier names streams by their place: what is given a dead stream's place goes on counting
where that stopped, so old positions stay true.
"""
cimport cython

from cpython.number cimport PyNumber_Index
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport UINT64_MAX, uint32_t, uint64_t
from libc.stdio cimport snprintf

from xlogmem cimport _defects as defect
from xlogmem._cpp cimport check as invariant
from xlogmem._cpp cimport larger, vector
from xlogmem._defects cimport COMPILED_IN, planted
from xlogmem._driver cimport (
    DRIVER_FAILED,
    PYTHON_RAISED,
    RESOURCE_FAILED,
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    Failure,
    Scope,
    enter_context,
    leave_context,
    process_is_closing,
    raise_failure,
)
from xlogmem._order cimport (
    BIRTH,
    STAGES,
    Need,
    StreamState,
    host_waits_from_afar,
    knows,
    may_be_gone,
    order_after,
    order_from_afar,
    out_of_reach,
    refuse_if_capturing,
    touch,
)
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, STREAM_ORDERED, UNDECLARED, drop_exception

from xlogmem import _driver
from xlogmem.errors import StreamMisuseError
from xlogmem.resources.async_ import AsyncMemoryResource
from xlogmem.resources.direct import DirectMemoryResource

__all__ = ["PoolMemoryResource", "in_words"]

cdef extern from *:
    """
    static inline uint32_t xlogmem_highest(uint64_t bits) { return 63 - __builtin_clzll(bits); }
    static inline uint32_t xlogmem_lowest(uint64_t bits) { return __builtin_ctzll(bits); }
    """
    uint32_t highest "xlogmem_highest"(uint64_t bits) noexcept nogil
    uint32_t lowest "xlogmem_lowest"(uint64_t bits) noexcept nogil

cdef enum:
    LOOK_AT = 16                            # spans of a column, of which the best is taken
    COLUMN_BITS = 5
    SCARCE = 2                              # a pool is tight while more than its maximum divided by this is in use
    LOOSE = 2                               # there a span may be larger than is asked for by that divided by this
    AUDIT = 64                              # spans in use of a chunk, up to which a debug build looks at all of them

cdef size_t LARGEST = <size_t>1 << 50       # bytes that anybody may ask for
cdef size_t LEAST_STEP = <size_t>32 << 20   # bytes of a chunk, if nobody says how many
cdef size_t MOST_STEP = <size_t>1 << 30


cdef inline size_t rounded(size_t nbytes) noexcept nogil:
    return (nbytes + GRAIN - 1) & ~(<size_t>GRAIN - 1)


# ---------------------------------------------------------------------------------------------- frontiers
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
        if position > known.position and not planted(defect.JOIN_KEEPS_OLDER):
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


# ---------------------------------------------------------------------------------------------- spans
cdef Span* new_span(PoolState* pool, Chunk* chunk, uint64_t ptr, size_t nbytes) noexcept nogil:
    cdef Span* span
    if pool.spare.empty():
        span = new Span()
    else:
        span = pool.spare.back()
        pool.spare.pop_back()
    span.ptr = ptr
    span.nbytes = nbytes
    span.chunk = chunk
    span.below = span.above = NULL
    span.shelf = NULL
    span.seamed = False
    clear(span)
    return span


cdef inline Span** seams_of(PoolState* pool, Span* span) noexcept nogil:
    return &pool.far_seams if span.far else &pool.seams


cdef void list_seam(PoolState* pool, Span* span, bint far) noexcept nogil:
    """Between a span and the one below."""
    cdef Span** newest
    span.seamed = True
    span.far = far
    newest = seams_of(pool, span)
    span.seam_before = NULL
    span.seam_after = newest[0]
    if newest[0] != NULL:
        newest[0].seam_before = span
    newest[0] = span
    pool.far += far


cdef void note_seam(PoolState* pool, Span* span) noexcept nogil:
    """Between a span and the one below, if both are free."""
    if span == NULL or span.below == NULL or span.shelf == NULL or span.below.shelf == NULL or span.seamed:
        return
    list_seam(pool, span, False)


cdef void forget_seam(PoolState* pool, Span* span) noexcept nogil:
    if span == NULL or not span.seamed:
        return
    span.seamed = False
    if span.seam_before != NULL:
        span.seam_before.seam_after = span.seam_after
    else:
        seams_of(pool, span)[0] = span.seam_after
    if span.seam_after != NULL:
        span.seam_after.seam_before = span.seam_before
    pool.far -= span.far


cdef Span* join(PoolState* pool, Span* lower, Span* upper) noexcept nogil:
    """One span of two neighbours that are on no shelf, with the newest position of each stream."""
    cdef size_t i
    invariant(lower.above == upper and upper.below == lower and lower.ptr + lower.nbytes == upper.ptr,
              "spans that are joined are neighbours")
    for i in range(upper.count):
        if i == 0 and lower.count and planted(defect.JOIN_KEEPS_ONE_FRONTIER):
            break
        add_mark(pool, lower, mark_of(upper, i).stream, mark_of(upper, i).position)
    forget_seam(pool, upper)
    lower.nbytes += upper.nbytes
    lower.above = upper.above
    if upper.above != NULL:
        upper.above.below = lower
    pool.spare.push_back(upper)
    pool.counters.joins += 1
    return lower


cdef Span* put(PoolState* pool, Span* span) noexcept nogil:
    """Offer a free span, joined with its neighbours where that makes nobody wait for more streams."""
    cdef Span* other = span.below
    if other != NULL and other.shelf != NULL and alike(pool, span, other):
        withdraw(other)
        span = join(pool, other, span)
    other = span.above
    if other != NULL and other.shelf != NULL and alike(pool, span, other):
        withdraw(other)
        span = join(pool, span, other)
    offer(pool, span)
    note_seam(pool, span)
    note_seam(pool, span.above)
    return span


cdef void look_again(PoolState* pool) noexcept nogil:
    """What was out of reach may not be any more: a fence came to cover it, its stream was unregistered, the host knows.
    After as many requests as there are such seams, so that this costs each request a constant; and before the host
    would have to wait for them, which leaves none."""
    cdef Span* span
    pool.looks = 0
    while pool.far_seams != NULL:
        span = pool.far_seams
        forget_seam(pool, span)
        list_seam(pool, span, False)


cdef bint join_seams(PoolState* pool, bint everywhere) noexcept nogil:
    """Join free neighbours, or only those that can be waited for on the device, and put the others aside; was there
    anything to join?"""
    cdef Span* span
    cdef Span* following = pool.seams
    cdef bint joined = False
    while following != NULL:
        span = following
        following = span.seam_after
        if not everywhere and (is_out_of_reach(pool, span, NULL) or is_out_of_reach(pool, span.below, NULL)):
            forget_seam(pool, span)
            list_seam(pool, span, True)
        else:
            join_seam(pool, span)
            joined = True
    while everywhere and pool.far_seams != NULL:
        join_seam(pool, pool.far_seams)
        joined = True
    return joined


cdef void join_seam(PoolState* pool, Span* span) noexcept nogil:
    cdef Span* lower = span.below
    withdraw(span)
    withdraw(lower)
    offer(pool, join(pool, lower, span))


cdef void adopt_rest(PoolState* pool, Span* span, StreamState* stream) noexcept nogil:
    """A stream has waited for several others to have a part of their memory: of the rest, that is not taken yet, it
    can answer for all of them."""
    cdef Span* rest = span.above
    if rest == NULL or rest.shelf == NULL or rest.count < 2 or not known_to(pool, rest, stream):
        return
    withdraw(rest)
    clear(rest)
    forget_seam(pool, rest)
    forget_seam(pool, rest.above)
    add_mark(pool, rest, stream.index, touch(stream))
    put(pool, rest)


cdef void hold(PoolState* pool, Span* span) noexcept nogil:
    """Nobody else gets the span."""
    withdraw(span)
    forget_seam(pool, span)
    forget_seam(pool, span.above)
    span.chunk.taken += 1


cdef void let_go(PoolState* pool, Span* span) noexcept nogil:
    """Free again, with the frontier that it has."""
    span.chunk.taken -= 1
    span = put(pool, span)
    if COMPILED_IN and span.chunk.taken < AUDIT:
        audit(pool, span.chunk)


cdef void audit(PoolState* pool, Chunk* chunk) noexcept nogil:
    """Of a debug build: the spans are the chunk, and free ones are where they are looked for."""
    cdef Span* span = chunk.first
    cdef uint64_t ptr = chunk.ptr
    cdef size_t taken = 0
    invariant(span.below == NULL and span.ptr == ptr, "the first span begins the chunk")
    while span != NULL:
        invariant(span.chunk == chunk and span.ptr == ptr and span.nbytes > 0 and span.nbytes % GRAIN == 0,
                  "spans follow each other without a gap")
        invariant(span.above == NULL or span.above.below == span, "neighbours know each other")
        invariant(span.shelf == NULL or span.shelf == shelf_for(pool, span), "a free span is on its frontier's shelf")
        invariant(span.seamed == (span.shelf != NULL and span.below != NULL and span.below.shelf != NULL),
                  "free neighbours that are not joined have a seam, and nothing else has")
        ptr += span.nbytes
        taken += span.shelf == NULL
        span = span.above
    invariant(ptr == chunk.ptr + chunk.nbytes, "the spans are the whole chunk")
    invariant(taken == chunk.taken, "what is not on offer was taken")


cdef void cut(PoolState* pool, Span* span, size_t nbytes) noexcept nogil:
    """Keep so many bytes of a span that is held; the rest is free, with the same frontier."""
    cdef Span* rest
    cdef size_t i
    if span.nbytes == nbytes:
        return
    rest = new_span(pool, span.chunk, span.ptr + nbytes, span.nbytes - nbytes)
    for i in range(span.count):
        if planted(defect.SPLIT_FORGETS_FRONTIER):
            break
        add_mark(pool, rest, mark_of(span, i).stream, mark_of(span, i).position)
    rest.below = span
    rest.above = span.above
    if rest.above != NULL:
        rest.above.below = rest
    span.above = rest
    span.nbytes = nbytes
    pool.counters.splits += 1
    put(pool, rest)


# ---------------------------------------------------------------------------------------------- order
cdef int wait_for(PoolState* pool, Span* span, StreamState* stream, Failure* failure) except -1 nogil:
    """Order a stream (NULL: the host) after the frontier of a span that is held.  Releases the lock."""
    cdef StreamState* source
    cdef size_t i
    cdef int failed = 0
    pool.order.in_flight += 1                           # a place is not given away meanwhile
    for i in range(span.count):
        source = pool.order.streams[mark_of(span, i).stream]
        if stream == NULL:
            failed = host_waits_from_afar(pool.order, source, mark_of(span, i).position, failure)
        elif planted(defect.GONE_STREAM_RECORDED):
            failed = order_after(pool.order, stream, source, mark_of(span, i).position, failure)
        else:
            failed = order_from_afar(pool.order, stream, source, mark_of(span, i).position, failure)
        if failed:
            break
    pool.order.in_flight -= 1
    return failed


# ---------------------------------------------------------------------------------------------- upstream
cdef bint is_out_of_memory(Failure* failure) noexcept nogil:
    return (failure.kind in (DRIVER_FAILED, PYTHON_RAISED, RESOURCE_FAILED)         # others have no code
            and failure.code == cy.CUDA_ERROR_OUT_OF_MEMORY)


cdef int exhausted(PoolState* pool, size_t nbytes, Failure* failure, const char* why) noexcept nogil:
    failure.kind = RESOURCE_FAILED
    failure.code = cy.CUDA_ERROR_OUT_OF_MEMORY
    snprintf(failure.text, sizeof(failure.text),
             "out of memory: the pool has %zu bytes, %zu of them in use, and its largest free span has %zu, which is "
             "not enough for %zu; %.60s", pool.size, pool.used, largest(pool), nbytes, why)
    return 1


cdef size_t largest(PoolState* pool) noexcept nogil:
    """Bytes of the largest free span."""
    cdef size_t most = larger(largest_on(pool.settled), largest_on(pool.mixed))
    cdef size_t i
    for i in range(pool.shelves.size()):
        most = larger(most, largest_on(pool.shelves[i]))
    return most


cdef size_t largest_on(Shelf* shelf) noexcept nogil:
    cdef size_t most = 0
    cdef uint32_t row
    cdef Span* newest
    cdef Span* span
    if shelf == NULL or shelf.rows == 0:
        return 0
    row = highest(shelf.rows)
    newest = span = shelf.newest[row * COLUMNS + highest(shelf.columns[row])]
    while True:
        most = larger(most, span.nbytes)
        span = span.next
        if span == newest:
            return most


cdef int forget_failure(PoolState* pool, Failure* failure) except -1 nogil:
    """Releases the lock."""
    pool.order.lock.unlock()
    drop_exception(failure)
    pool.order.lock.lock()
    return 0


cdef int grow(PoolState* pool, size_t nbytes, StreamState* stream, Span** result, Failure* failure) except -1 nogil:
    """A chunk from upstream: half of the maximum and then the rest or, without one, as much as the pool has; what is
    asked for if that is more; less, if upstream has less.  Its span is held.  Releases the lock."""
    cdef size_t room = pool.maximum - pool.size
    cdef size_t wanted = pool.step
    cdef uint64_t ptr = 0
    cdef void* piece = NULL
    cdef int failed
    if nbytes > room:
        return exhausted(pool, nbytes, failure, "it may not grow so far (maximum_pool_size)")
    if wanted == 0 and pool.maximum < LARGEST:          # few large chunks: what straddles two is in neither
        wanted = room // 2 & ~(<size_t>GRAIN - 1) if room > pool.maximum // 2 else room
    elif wanted == 0:
        wanted = LEAST_STEP if pool.size < LEAST_STEP else MOST_STEP if pool.size > MOST_STEP else pool.size
    wanted = rounded(wanted)
    wanted = nbytes if nbytes > wanted else wanted if wanted < room else room
    while True:
        if not planted(defect.ROOM_GIVEN_TWICE):
            pool.size += wanted                         # no other call may grow into the same room
        failed = take_upstream(pool, wanted, stream, &ptr, &piece, failure)
        if planted(defect.ROOM_GIVEN_TWICE):
            pool.size += wanted
        if not failed:
            break
        pool.size -= wanted
        if wanted == nbytes or not is_out_of_memory(failure):
            break
        forget_failure(pool, failure)
        wanted = rounded(wanted // 2)
        if wanted < nbytes:
            wanted = nbytes
    if failed:
        if is_out_of_memory(failure) and failure.kind != PYTHON_RAISED:     # what that says is kept
            exhausted(pool, nbytes, failure, "there is no more upstream")
        return 1
    pool.counters.grown += 1
    result[0] = new_chunk(pool, ptr, wanted, piece)
    if pool.upstream.order != HOST_SYNCHRONOUS:         # there what is handed out is ready for everybody
        if not planted(defect.CHUNK_TAKES_NO_POSITION):
            add_mark(pool, result[0], stream.index, touch(stream))
    return 0


cdef Span* new_chunk(PoolState* pool, uint64_t ptr, size_t nbytes, void* piece) noexcept nogil:
    """A chunk with one span, which is held and has no frontier yet."""
    cdef Chunk* chunk = new Chunk()
    chunk.ptr = ptr
    chunk.nbytes = nbytes
    chunk.piece = piece
    chunk.taken = 1
    chunk.place = pool.chunks.size()
    chunk.first = new_span(pool, chunk, ptr, nbytes)
    pool.chunks.push_back(chunk)
    return chunk.first


cdef int take_upstream(PoolState* pool, size_t nbytes, StreamState* stream, uint64_t* ptr, void** piece,
                       Failure* failure) except -1 nogil:
    """Releases the lock."""
    cdef ResourceTable* upstream = pool.upstream
    cdef Failure ignored
    cdef int failed
    if upstream.frontiers != NULL:
        failed = upstream.frontiers.allocate(upstream.self, nbytes, stream, ptr, piece, failure)
    else:
        pool.order.lock.unlock()
        failed = upstream.allocate(upstream.self, nbytes, stream.handle, ptr, failure)
        if not failed and ptr[0] % GRAIN:
            snprintf(failure.text, sizeof(failure.text),
                     "upstream of the pool gave memory at %#llx, which is not aligned to %d bytes",
                     <unsigned long long>ptr[0], <int>GRAIN)
            if upstream.deallocate(upstream.self, ptr[0], nbytes, stream.handle, &ignored):
                drop_exception(&ignored)
            failure.kind = RESOURCE_FAILED
            failure.code = cy.CUDA_ERROR_UNKNOWN
            failed = 1
        pool.order.lock.lock()
    return failed


cdef int release(PoolState* pool, Chunk* chunk, StreamState* stream, Failure* failure) except -1 nogil:
    """Give a chunk back that nobody has anything of, on a stream (NULL: on whichever waits least), ordered after its
    frontier.  On a failure it stays.  Releases the lock."""
    cdef ResourceTable* upstream = pool.upstream
    cdef Span* span = chunk.first
    cdef vector[Need] frontier
    cdef StreamState* only
    cdef StreamState* waiting                           # NULL: the host
    cdef Need entry
    cdef size_t i
    cdef int failed = 0
    while span.above != NULL:                           # what is left are seams
        withdraw(span)
        withdraw(span.above)
        offer(pool, join(pool, span, span.above))
    hold(pool, span)
    invariant(span.nbytes == chunk.nbytes and chunk.taken == 1, "a chunk that is given back is free as a whole")
    if upstream.frontiers != NULL:
        for i in range(span.count):
            entry.source = pool.order.streams[mark_of(span, i).stream]
            entry.position = mark_of(span, i).position
            entry.stage = BIRTH
            frontier.push_back(entry)
        upstream.frontiers.deallocate(upstream.self, chunk.piece, &frontier)
    else:
        if stream == NULL:
            stream = pool.order.streams[0]
            only = pool.order.streams[span.mark.stream]
            if span.count == 1 and only.alive and not may_be_gone(only) and only.thread == 0:
                stream = only
        stream.busy += 1
        if upstream.order != HOST_SYNCHRONOUS:
            failed = refuse_if_capturing(pool.order, stream, STREAM_IS_CAPTURING, failure)
        if not failed and not planted(defect.TRIM_WAITS_FOR_NOBODY):
            waiting = stream if upstream.order != HOST_SYNCHRONOUS else NULL
            failed = wait_for(pool, span, waiting, failure)
        if not failed:
            pool.order.lock.unlock()
            failed = upstream.deallocate(upstream.self, chunk.ptr, chunk.nbytes, stream.handle, failure)
            pool.order.lock.lock()
        stream.busy -= 1
    if failed:
        let_go(pool, span)
        return 1
    pool.size -= chunk.nbytes
    pool.counters.released += 1
    pool.chunks[chunk.place] = pool.chunks.back()
    pool.chunks[chunk.place].place = chunk.place
    pool.chunks.pop_back()
    pool.spare.push_back(span)
    del chunk
    return 0


cdef int release_idle(PoolState* pool, size_t keep, StreamState* stream, vector[Failure]* failures) except -1 nogil:
    """Give back chunks that are free as a whole, the newest first, as long as so many bytes are left.  Releases the
    lock."""
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
                    if release(pool, pool.chunks[k], stream, &failure):
                        failures.push_back(failure)
                break
    return 0


# ---------------------------------------------------------------------------------------------- as the core calls it
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
        if not known and not planted(defect.POOL_ORDERS_NOBODY):
            pool.counters.waited += 1
            failed = wait_for(pool, span, stream, failure)
            if failed:
                if planted(defect.FAILED_WAIT_FORGETS_FRONTIER):
                    clear(span)
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


# ---------------------------------------------------------------------------------------------- as Python sees it
cdef int preload(PoolState* pool, size_t nbytes, Failure* failure) except -1 nogil:
    """The first chunk, before there is anybody whom a wait on the host could keep waiting."""
    cdef StreamState* stream = pool.order.streams[0]
    cdef Failure ignored
    cdef uint64_t ptr = 0
    cdef void* piece = NULL
    cdef Span* span
    cdef int failed
    pool.order.lock.lock()
    stream.busy += 1
    pool.size += nbytes
    failed = take_upstream(pool, nbytes, stream, &ptr, &piece, failure)
    if failed:
        pool.size -= nbytes
    else:
        pool.counters.grown += 1
        span = new_chunk(pool, ptr, nbytes, piece)
        if pool.upstream.order != HOST_SYNCHRONOUS:
            add_mark(pool, span, stream.index, touch(stream))
            if not wait_for(pool, span, NULL, &ignored):        # else whoever takes it waits
                clear(span)
        let_go(pool, span)
    stream.busy -= 1
    pool.order.lock.unlock()
    return failed


cdef bint foreign_streams_are_left(PoolState* pool) noexcept nogil:
    """Somebody's streams that the runtime could not bury when it ended: they may be destroyed by now."""
    cdef size_t i
    for i in range(pool.order.streams.size()):
        if pool.order.streams[i].driver_id and pool.order.streams[i].alive:
            return True
    return False


cdef int give_all_back(PoolMemoryResource self) except -1 nogil:
    """At the end: the blocks were freed, so all chunks are idle."""
    cdef PoolState* pool = &self.state
    cdef vector[Failure] failures
    cdef Failure ignored
    cdef Scope scope
    cdef size_t i
    if pool.order == NULL or pool.chunks.empty() or enter_context(pool.order.context, &scope, &ignored):
        return 0
    pool.order.lock.lock()
    if not foreign_streams_are_left(pool):
        release_idle(pool, 0, NULL, &failures)
    pool.order.lock.unlock()
    for i in range(failures.size()):
        drop_exception(&failures[i])
    leave_context(&scope)
    return 0


cdef object number_of_bytes(str name, object value):
    value = PyNumber_Index(value)
    if not 0 <= value <= LARGEST:
        raise ValueError(f"{name} must be a number of bytes, got {value}")
    return value


@cython.no_gc_clear                         # __dealloc__ needs the resource upstream and the streams
cdef class PoolMemoryResource(DeviceMemoryResource):
    """A pool over another resource: allocating and freeing make no driver call once it has grown.

    Memory that is freed keeps what its next owner has to be ordered after, so a free delays no stream, and memory that
    was used on a stream which has gone quiet is not kept back.  An allocation takes memory that its stream knows if
    there is some, and otherwise has its stream wait, on the device, for former owners.  While several streams have more
    than half of `maximum_pool_size` in use, it waits also rather than cut a span of more than one and a half times its
    size.

    Parameters
    ----------
    upstream : DeviceMemoryResource, optional
        Where chunks come from.  The default is an `AsyncMemoryResource` where the device has memory pools and a
        `DirectMemoryResource` where it has none.
    initial_pool_size : int, optional
        Bytes taken from upstream when a runtime takes the pool; by default none (RMM's takes half of the device).
    maximum_pool_size : int, optional
        Bytes that it may have from upstream at any time; by default no limit.  With twice what is in use at a time,
        waits are as few as without; with less, memory counts more than waits.
    chunk_size : int, optional
        Bytes that it grows by, at least; what is larger gets a chunk of its own size.  By default half of the
        maximum and then the rest, and without a maximum as much as it has already, between 32 MiB and 1 GiB.
    ordinal : int
        The device, where no upstream is given.

    Attributes
    ----------
    upstream : DeviceMemoryResource
        As given.

    Raises
    ------
    ValueError
        The sizes contradict each other.
    StreamMisuseError
        Upstream does not say how its frees are ordered.

    Notes
    -----
    Give it to a runtime, ``DeviceRuntime(resource=PoolMemoryResource())``; it belongs to that one, because what it
    remembers are positions of its streams, and memory is handed out through it only.  Sizes and addresses are
    multiples of 256 bytes.  Thread-safe.
    """

    def __init__(self, upstream=None, initial_pool_size=None, maximum_pool_size=None, *, chunk_size=None, ordinal=0):
        if self.upstream is not None:
            raise RuntimeError("a resource is initialised once")
        initial = number_of_bytes("initial_pool_size", 0 if initial_pool_size is None else initial_pool_size)
        most = number_of_bytes("maximum_pool_size", LARGEST if maximum_pool_size is None else maximum_pool_size)
        step = number_of_bytes("chunk_size", 0 if chunk_size is None else chunk_size)
        if most < GRAIN:
            raise ValueError(f"maximum_pool_size must be at least {GRAIN} bytes, got {most}")
        if initial > most:
            raise ValueError(f"initial_pool_size ({initial}) is more than maximum_pool_size ({most})")
        if upstream is None:
            upstream = (AsyncMemoryResource(ordinal) if _driver.supports_memory_pools(ordinal)
                        else DirectMemoryResource(ordinal))
        if not isinstance(upstream, DeviceMemoryResource):
            raise TypeError(f"upstream must be a DeviceMemoryResource of xlogmem, not {type(upstream).__name__} (for "
                            "one of RMM's: xlogmem.rmm.RmmMemoryResource)")
        if (<DeviceMemoryResource>upstream).table.order == UNDECLARED:
            raise StreamMisuseError(
                f"{type(upstream).__name__} does not support a pool on it (unsupported): it declares neither that its "
                "frees are ordered on a stream nor that they take effect at once. Set order = 'stream' or order = "
                "'host' in the class")
        self.upstream = upstream
        self.context = self.upstream.context
        self.state.upstream = &self.upstream.table
        self.state.maximum = most & ~(<size_t>GRAIN - 1)
        self.initial = min(rounded(initial), self.state.maximum)
        self.state.step = rounded(step)
        self.state.settled = new Shelf()
        self.state.mixed = new Shelf()
        self.functions.allocate = allocate
        self.functions.deallocate = deallocate
        self.functions.trim = trim
        self.table.self = &self.state
        self.table.order = STREAM_ORDERED
        self.table.frontiers = &self.functions

    def __del__(self):
        """While an upstream that is written in Python is whole."""
        if not process_is_closing():
            with nogil:
                give_all_back(self)

    def __dealloc__(self):
        cdef PoolState* pool = &self.state
        cdef Span* span
        cdef Span* above
        cdef size_t i
        if not process_is_closing():
            with nogil:
                give_all_back(self)
        for i in range(pool.chunks.size()):             # what could not be given back is lost
            span = pool.chunks[i].first
            while span != NULL:
                above = span.above
                del span
                span = above
            del pool.chunks[i]
        for i in range(pool.spare.size()):
            del pool.spare[i]
        for i in range(pool.shelves.size()):
            del pool.shelves[i]
        del pool.settled
        del pool.mixed

    cdef int bind(self, StreamPool stream_pool) except -1:
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        if self.stream_pool is stream_pool:
            return 0
        if self.upstream is None:
            raise StreamMisuseError("the pool was never initialised")
        if self.stream_pool is not None:
            raise StreamMisuseError("the memory pool belongs to another runtime; give each runtime a pool of its own")
        self.upstream.bind(stream_pool)
        self.stream_pool = stream_pool
        self.state.order = &stream_pool.ordering.state
        if self.initial == 0:
            return 0
        with nogil:
            failed = enter_context(self.state.order.context, &scope, &failure)
            if not failed:
                failed = preload(&self.state, self.initial, &failure)
                leave_context(&scope)
        if failed:
            self.stream_pool = None
            self.state.order = NULL
            raise_failure(&failure, f"taking the first {self.initial} bytes of a pool from {self.upstream!r}")

    cdef cy.CUstream check(self, object stream, str method) except? <cy.CUstream>-1:
        raise StreamMisuseError(f"{type(self).__name__} does not support {method} (unsupported) by itself: its free "
                                "memory remembers positions of a runtime's streams. Give it to a DeviceRuntime and "
                                "allocate there")

    def trim(self, bytes_to_keep=0):
        """Give chunks that are free as a whole back to the resource upstream.

        Parameters
        ----------
        bytes_to_keep : int
            The pool does not get smaller than this.

        Returns
        -------
        int
            Bytes given back.

        Raises
        ------
        DriverError
            A chunk could not be given back and stays in the pool; the others were tried.
        StreamMisuseError
            So it was because of a stream that is capturing a graph.

        Notes
        -----
        The free of a chunk is ordered after everybody who used its memory, on the device; only an upstream that looks
        at no stream (`DirectMemoryResource`) makes the host wait.
        """
        cdef PoolState* pool = &self.state
        cdef vector[Failure] failures
        cdef Failure failure
        cdef Scope scope
        cdef size_t keep = number_of_bytes("bytes_to_keep", bytes_to_keep)
        cdef size_t released = 0, i
        if pool.order == NULL:
            return 0
        with nogil:
            if enter_context(pool.order.context, &scope, &failure):
                failures.push_back(failure)
            else:
                pool.order.lock.lock()
                released = pool.size
                release_idle(pool, keep, NULL, &failures)
                released -= pool.size
                pool.order.lock.unlock()
                if pool.upstream.trim != NULL and pool.upstream.trim(pool.upstream.self, &failure):
                    failures.push_back(failure)
                leave_context(&scope)
        if failures.empty():
            return released
        for i in range(1, failures.size()):
            with nogil:
                drop_exception(&failures[i])
        raise_failure(&failures[0], "giving chunks of the pool back")

    def pool_size(self):
        """Bytes that the pool has from upstream."""
        return self.figures()["pool_size"]

    @property
    def upstream_mr(self):
        """The RMM resource below; where there is none, there is no such attribute."""
        return self.upstream.upstream_mr

    def statistics(self):
        """What the pool has and what it has done, as a dictionary.

        ``pool_size`` is the bytes from upstream: ``used_bytes`` are handed out (at most ``peak_bytes`` so far),
        ``free_bytes`` are not, in ``free_spans`` places, the largest of ``largest_free_bytes``; ``idle_bytes`` are in
        chunks that are free as a whole.  ``fragmentation`` is the share of the free bytes outside of the largest place.
        ``waited`` counts the allocations whose stream had to wait for a former owner of the memory.
        """
        return self.figures()

    def memory_summary(self):
        """The state of the pool as a text for a person."""
        cdef dict figures = self.figures()

        def size(name):
            return in_words(figures[name])

        return (f"{self!r}\n"
                f"  from upstream   {size('pool_size'):>12} in {figures['chunks']} chunks, limit "
                f"{'none' if self.state.maximum >= LARGEST else in_words(self.state.maximum)}\n"
                f"  in use          {size('used_bytes'):>12}, at most {size('peak_bytes')} so far\n"
                f"  free            {size('free_bytes'):>12} in {figures['free_spans']} places, the largest "
                f"{size('largest_free_bytes')} (fragmentation {figures['fragmentation']:.0%})\n"
                f"  idle chunks     {size('idle_bytes'):>12}, which trim() would give back\n"
                f"  allocations     {figures['allocations']:>12}, {figures['waited']} had to wait for another stream's "
                "use of the memory\n"
                f"  chunks          {figures['grown']:>12} taken, {figures['released']} given back")

    cdef dict figures(self):
        cdef PoolState* pool = &self.state
        cdef PoolCounters counters
        cdef size_t size = 0, used = 0, peak = 0, most = 0, idle = 0, chunks = 0, spans = 0, i
        cdef size_t together                            # neighbours that are free, joined or not
        cdef Span* span
        if pool.order != NULL:
            with nogil:
                pool.order.lock.lock()
                counters = pool.counters
                size, used, peak, chunks = pool.size, pool.used, pool.peak, pool.chunks.size()
                for i in range(chunks):
                    idle += pool.chunks[i].nbytes if pool.chunks[i].taken == 0 else 0
                    span = pool.chunks[i].first
                    together = 0
                    while span != NULL:
                        together = together + span.nbytes if span.shelf != NULL else 0
                        spans += together != 0 and together == span.nbytes
                        most = larger(most, together)
                        span = span.above
                pool.order.lock.unlock()
        else:
            counters = pool.counters
        return {"pool_size": size, "used_bytes": used, "peak_bytes": peak, "free_bytes": size - used,
                "largest_free_bytes": most,
                "fragmentation": 1 - <double>most / <double>(size - used) if size > used else 0.0,
                "idle_bytes": idle, "chunks": chunks, "free_spans": spans,
                "allocations": counters.allocations, "waited": counters.waited, "grown": counters.grown,
                "released": counters.released, "splits": counters.splits, "joins": counters.joins}

    def __repr__(self):
        return f"<{type(self).__name__} device={self.device_ordinal} over {type(self.upstream).__name__}>"


def in_words(size_t nbytes):
    """A number of bytes, as a person says it."""
    cdef double number = nbytes
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            break
        number /= 1024
    else:
        unit = "TiB"
    return f"{nbytes} B" if unit == "B" else f"{number:.1f} {unit}"
