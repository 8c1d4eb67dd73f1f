# Batches: several blocks that one call allocates, or frees.
#
# A batch is what calls one by one would be; what stands around them is done once.  A lock is taken for a group of
# blocks, which bounds the time for which other threads wait for it.  The blocks of a group come from the cache of the
# stream first, then from memory that the pool has at hand, and the others one by one as `allocate` gets them; likewise
# a group is freed into caches, then plainly into the pool, and the others one by one.  So a batch has no rules of its
# own, and resources other than pools need nothing for it.

from xlogmem._base.cpp cimport check, unlikely, vector
from xlogmem._base.failures cimport BLOCK_IS_STALE, LOST, Failure
from xlogmem._base.labels cimport Label
from xlogmem._driver cimport Scope, enter_context, leave_context
from xlogmem.observe._history cimport BLOCK_ALLOCATED
from xlogmem.resources.base cimport Allocation, start_call_on


cdef inline size_t end_of_group(size_t first, size_t count) noexcept nogil:
    return first + GROUP if count - first > <size_t>GROUP else count


cdef inline bint is_missing(Piece* piece) noexcept nogil:
    return piece.block == NULL and piece.nbytes != 0


cdef inline void fill_piece(Piece* piece, Block* block) noexcept nogil:
    """Copy the identity of a new block; under the lock that guards it, for another thread may free it afterwards."""
    piece.block = block
    piece.ptr = block.ptr
    piece.generation = block.generation


# ---------------------------------------------------------------------------------------------- allocate
cdef bint take_local_group(CoreState* core, StreamCache* cache, size_t handle, Allocation* wanted, Piece* pieces,
                           size_t count) noexcept nogil:
    """Allocate, of the pieces that are missing, those that the cache (NULL: none) has memory for.  True if none is
    missing any more."""
    cdef bint complete = True
    cdef Block* block
    cdef size_t i
    if cache == NULL or wanted.tag != NULL:             # a local block has no tag
        return False
    cache.cache_lock.lock()
    for i in range(count):
        if not is_missing(&pieces[i]):
            continue
        wanted.nbytes = pieces[i].nbytes
        block = take_local(cache, handle, wanted)
        if block == NULL:
            complete = False
            continue
        if unlikely(core.watched & BY_HISTORY):
            note_block(core, BLOCK_ALLOCATED, block, cache.stream)
        fill_piece(&pieces[i], block)
    cache.cache_lock.unlock()
    return complete


cdef size_t take_group_locked(CoreState* core, Allocation* wanted, Piece* pieces, size_t first,
                              size_t count) noexcept nogil:
    """Allocate the pieces that are missing from `first` on, in their order, as long as the pool has memory at hand.
    Return the place of the first that is missing then; `count`: none is."""
    check(core.order.lock.held(), "the lock is held")
    cdef FrontierTable* frontiers = core.resource.frontiers
    cdef size_t i
    for i in range(first, count):
        if not is_missing(&pieces[i]):
            continue
        wanted.nbytes = pieces[i].nbytes
        wanted.generation = new_generation()            # spent, if there is no memory
        if not frontiers.allocate_at_once(core.resource.self, wanted):
            return i
        fill_piece(&pieces[i], track_locked(core, core.resource, wanted))
    return count


cdef bint allocate_group_by_handle(CoreState* core, StreamCache* cache, size_t handle, Label* tag, Piece* pieces,
                                   size_t count) noexcept nogil:
    """Allocate the missing pieces of a group, as `allocate_from_cache` and `allocate_by_handle` do.  True if none is
    missing any more."""
    cdef bint complete = False
    cdef StreamState* stream
    cdef Allocation wanted
    wanted.tag = tag
    if take_local_group(core, cache, handle, &wanted, pieces, count):
        return True
    if core.resource.frontiers.allocate_at_once == NULL:
        return False
    core.order.lock.lock()
    stream = stream_of_cache_locked(core, cache, handle)
    if stream != NULL:
        start_call_on(&wanted, 0, stream)
        wanted.tag = tag
        complete = take_group_locked(core, &wanted, pieces, 0, count) == count
    core.order.lock.unlock()
    return complete


cdef int allocate_group_in_call(CoreState* core, Allocation* wanted, Piece* pieces, size_t count,
                                Failure* failure) except -1 nogil:
    """Allocate the missing pieces of a group on a stream that is busy, alive and not capturing; the context is current.
    If one fails, those behind it stay missing.  `wanted` is what they have in common."""
    cdef bint has_pool = core.resource.frontiers != NULL and core.resource.frontiers.allocate_at_once != NULL
    cdef Block* block
    cdef size_t i = 0
    if take_local_group(core, <StreamCache*>wanted.stream.cache.load(), handle_in_cache(wanted.stream), wanted, pieces,
                        count):
        return 0
    while True:
        if has_pool:
            core.order.lock.lock()
            i = take_group_locked(core, wanted, pieces, i, count)
            core.order.lock.unlock()
        while i < count and not is_missing(&pieces[i]):
            i += 1
        if i == count:
            break
        wanted.nbytes = pieces[i].nbytes
        wanted.resource_block = NULL                    # the pool's, of another piece
        if allocate_in_call(core, core.resource, wanted, KEEP_STREAM_BUSY, &block, failure):
            return 1
        pieces[i].block = block
        pieces[i].ptr = wanted.ptr
        pieces[i].generation = wanted.generation
    if unlikely(<bint>core.wants_cache):
        add_cache(core)
    return 0


cdef int allocate_many(CoreState* core, Allocation* wanted, Piece* pieces, size_t count,
                       Failure* failure) except -1 nogil:
    """Do as `allocate` for all pieces that are missing.  If one fails, those behind it stay missing, and the caller
    frees the others."""
    cdef StreamState* stream = wanted.stream
    cdef size_t first = 0, end
    cdef Scope scope
    cdef int failed
    if refuse_forked(failure) or begin_call(core.order, stream, failure):
        return 1
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        end_call(core.order, stream)
        return 1
    drain(core)
    failed = refuse_stream(core, stream, failure)
    while first < count and not failed:
        end = end_of_group(first, count)
        failed = allocate_group_in_call(core, wanted, &pieces[first], end - first, failure)
        first = end
    end_call(core.order, stream)
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int allocate_many_at_once(CoreState* core, Allocation* wanted, Piece* pieces, size_t count,
                               Failure* failure) except -1:
    """Do as `allocate_at_once` for the missing pieces; see core/at_once.pxi.  DONE: none is missing any more.
    NOT_AT_ONCE: some are, and `allocate_many` follows."""
    cdef bint has_pool = core.resource.frontiers != NULL and core.resource.frontiers.allocate_at_once != NULL
    cdef StreamState* stream = wanted.stream
    cdef size_t first = 0, end
    cdef int done = NOT_AT_ONCE
    if has_pool and count <= <size_t>MOST_AT_ONCE:
        done = query_at_once(core, stream, failure)
    while first < count and done == DONE:
        end = end_of_group(first, count)
        if not take_local_group(core, <StreamCache*>stream.cache.load(), handle_in_cache(stream), wanted,
                                &pieces[first], end - first):
            if not core.order.lock.try_lock():
                return NOT_AT_ONCE
            if not <bint>stream.alive or take_group_locked(core, wanted, pieces, first, end) != end:
                done = NOT_AT_ONCE
            core.order.lock.unlock()
        first = end
    if unlikely(<bint>core.wants_cache):
        add_cache(core)
    return done


# ---------------------------------------------------------------------------------------------- free
cdef bint cache_group(CoreState* core, Piece* pieces, size_t count, StreamState* stream) noexcept nogil:
    """Free the pieces that are local blocks into their caches, as `free_into_cache` does.  True if none is left."""
    cdef StreamCache* held = NULL
    cdef StreamCache* cache
    cdef bint complete = True
    cdef Block* block
    cdef size_t i
    for i in range(count):
        block = pieces[i].block
        if block == NULL:
            continue
        cache = cache_of(block)
        if cache != held:
            if held != NULL:
                held.cache_lock.unlock()
            if cache != NULL:
                cache.cache_lock.lock()
            held = cache
        if cache != NULL and may_cache(cache, block, pieces[i].generation, stream):
            note_and_cache(core, cache, block)
            pieces[i].block = NULL
        else:
            complete = False
    if held != NULL:
        held.cache_lock.unlock()
    return complete


cdef bint free_group_plainly_locked(CoreState* core, Piece* pieces, size_t count, StreamState* stream) noexcept nogil:
    """Free pieces into a resource that keeps frontiers, on `stream` (NULL: at home).  True if none is left."""
    check(core.order.lock.held(), "the lock is held")
    cdef bint complete = True
    cdef size_t i
    for i in range(count):
        if pieces[i].block == NULL:
            continue
        if free_plainly_locked(core, find_live_locked(core, pieces[i].block.slot, pieces[i].generation), stream):
            pieces[i].block = NULL
        else:
            complete = False
    return complete


cdef bint free_many_at_once(CoreState* core, Piece* pieces, size_t count, StreamState* stream) except -1:
    """Do as `free_at_once` for several; see core/at_once.pxi.  True if none is left."""
    cdef bint complete = True
    cdef size_t first = 0, end
    if not core.keeps_frontiers or count > <size_t>MOST_AT_ONCE or is_work_left(core):
        return False
    while first < count:
        end = end_of_group(first, count)
        if not cache_group(core, &pieces[first], end - first, stream):
            if not core.order.lock.try_lock():
                return False
            complete &= ((stream == NULL or <bint>stream.alive)
                         and free_group_plainly_locked(core, &pieces[first], end - first, stream))
            core.order.lock.unlock()
        first = end
    return complete


cdef int free_many(CoreState* core, Piece* pieces, size_t count, StreamState* stream, Label* stack,
                   vector[Failure]* failures) except -1 nogil:
    """Do as `free_block` for several.  A piece that was freed has no block any more; a block that could not be freed
    adds a failure."""
    cdef size_t first = 0, end, i
    cdef Failure failure
    cdef Scope scope
    if refuse_lost(core, &failure) or enter_context(core.order.context, &scope, &failure):
        failures.push_back(failure)
        return 0
    drain(core)
    while first < count and not core.marks.load() & LOST:
        end = end_of_group(first, count)
        cache_group(core, &pieces[first], end - first, stream)
        core.order.lock.lock()
        for i in range(first, end):
            if pieces[i].block == NULL:
                continue
            if not free_live_unlocks(core, pieces[i].block.slot, pieces[i].generation, stream, stack, &failure):
                pieces[i].block = NULL
                continue
            mark_lost_if_sticky(core, 1, &failure)
            failures.push_back(failure)
            if failure.kind == BLOCK_IS_STALE:          # another thread is freeing it: its handle must not own it again
                pieces[i].block = NULL
            if core.marks.load() & LOST:                # the rest would fail as well
                break
        core.order.lock.unlock()
        first = end
    leave_context(&scope)
    return 0


cdef size_t free_group_by_handle(CoreState* core, StreamCache* cache, size_t handle, uint64_t* ptrs,
                                 size_t count) noexcept nogil:
    """Free the blocks at these addresses on the stream with this handle, as `free_at_into_cache` and `free_by_handle`
    do.  Return how many are left; their addresses come first."""
    cdef StreamState* stream
    cdef size_t left = 0, before
    cdef Block* block
    cdef size_t i
    if goes_slowly(core):
        return count
    cache.cache_lock.lock()
    for i in range(count):
        block = cached_at(cache, handle, ptrs[i])
        if block != NULL:
            note_and_cache(core, cache, block)
        else:
            ptrs[left] = ptrs[i]
            left += 1
    cache.cache_lock.unlock()
    if left == 0:
        return 0
    before = left
    left = 0
    core.order.lock.lock()
    stream = stream_of_cache_locked(core, cache, handle)
    for i in range(before):
        if stream == NULL or not free_plainly_locked(core, live_block_at_locked(core, ptrs[i]), stream):
            ptrs[left] = ptrs[i]
            left += 1
    core.order.lock.unlock()
    return left
