# Caches of freed blocks: a stream, or the host, often allocates again what it freed.
#
# In front of a pool each stream has a *cache* of memory of a few sizes, which the pool counts as handed out.  A block
# that only its own stream has used goes there when it is freed on that stream.  The next allocation of its size there
# takes it again, under the lock of the cache: no lock of the runtime, no search, no driver call.  No other stream can
# have touched the memory meanwhile, and a stream is ordered after itself.
#
# The host has such a cache, too: of blocks that were allocated for the host, and that it has seen idle when they are
# freed.
#
# An allocation takes a *local* block from a cache: it has a generation and an address, and only the cache knows it.  It
# has no frontier and is not in the address index.  Any operation that comes with the runtime's lock and needs the block
# (a use, a free elsewhere, an export, a lookup) brings it in first; from then on it is an ordinary block.
#
# `Block.cache` says which lock guards the identity of a block: the runtime's if it is NULL, else that cache's.  It
# changes with both locks held.  The lock of a cache is a leaf, taken with the runtime's lock or without.
#
# Positions.  A cache takes none.  A free reads how many positions its stream has taken.  The next position was, or will
# be, taken after that, so a fence that covers it is recorded after everything that was queued before the free.
#
# A stream that may be destroyed has a cache too.  It is found by the driver's id of the stream, because another stream
# may get the handle.  Of the frees through the C table each 16th goes the ordinary way, which leaves a fence.
#
# The caches of streams have memory of one pool, the runtime's own resource; the host has a cache for each of a few
# pools.  Caches are no reserve.  Before a pool expands or reports its figures, all caches are emptied into it; before
# it makes a stream wait, the cache of that stream is.  The cache of a stream is closed before the stream is
# unregistered or changes its discipline.

from cuda.bindings cimport cydriver as cy

from xlogmem._base.cpp cimport check, larger, poke, unlikely
from xlogmem._base.index cimport erase
from xlogmem._driver cimport stream_is_capturing
from xlogmem._order cimport ALLOCATED, SEALED, count_of, is_of_former


cdef enum:
    GENERATIONS_AT_ONCE = 1024
    WANTED_AGAIN = 2                        # allocations of a size, before memory of it is cached
    LARGEST_CACHED = 1 << 20                # bytes: what is larger is worth the search, and a better fit


cdef inline size_t in_grains(StreamCache* cache, size_t nbytes) noexcept nogil:
    """Return the size that the pool hands out for a request; blocks of one such size can take each other's place."""
    cdef size_t grain = cache.resource.frontiers.grain
    return (nbytes + grain - 1) & ~(grain - 1)


cdef inline CachedSize* cached_size_of(StreamCache* cache, size_t nbytes) noexcept nogil:
    return &cache.sizes[<uint32_t>((nbytes >> 8) * <uint32_t>2654435761) >> 28]


cdef inline CachedPlace* places_of(StreamCache* cache, uint64_t ptr) noexcept nogil:
    """Return the places where a block of this address may be listed."""
    return cache.places.data() + (<uint32_t>((ptr >> 8) * <uint32_t>2654435761) >> cache.shift) * CACHE_WAYS


# ---------------------------------------------------------------------------------------------- without that lock
cdef bint may_allocate_at(size_t handle) except -1 nogil:
    """True if the stream with this handle is not capturing, as far as can be known without a context.  Called before
    memory is taken, because memory that was taken is not returned."""
    cdef bint capturing = False
    cdef Failure ignored
    return not stream_is_capturing(<cy.CUstream>handle, &capturing, &ignored) and not capturing


cdef bint allocate_from_cache(CoreState* core, StreamCache* cache, size_t handle, Allocation* wanted,
                              Block** result) except -1 nogil:
    """Take a local block in memory that the stream with this handle, which is not capturing, has freed.  False, with
    nothing done, if the cache cannot provide it, for whatever reason."""
    cdef Block* block
    if wanted.tag != NULL or has_deferred_work(core):
        return allocate_recorded(core, cache, handle, wanted, result)
    cache.cache_lock.lock()
    block = take_local(cache, handle, wanted)
    cache.cache_lock.unlock()
    if block == NULL:
        return False
    result[0] = block
    return True


cdef inline Block* take_local(StreamCache* cache, size_t handle, Allocation* wanted) noexcept nogil:
    """Take the newest cached block of the size, as a local block.  Called with the lock of the cache."""
    check(cache.cache_lock.held(), "the lock of the cache is held")
    cdef size_t nbytes = in_grains(cache, wanted.nbytes)
    cdef CachedSize* size = cached_size_of(cache, nbytes)
    cdef Block* block = size.newest
    if block == NULL or size.nbytes != nbytes or cache.handle != handle:
        return NULL
    size.newest = block.next_cached
    size.count -= 1
    cache.cached_bytes -= nbytes
    if unlikely(cache.generation == cache.last_generation):
        cache.generation = generations.fetch_add(GENERATIONS_AT_ONCE)
        cache.last_generation = cache.generation + GENERATIONS_AT_ONCE
    cache.generation += 1
    wanted.generation = cache.generation
    poke(block.generation, wanted.generation)
    block.nbytes = wanted.nbytes
    block.state = LOCAL
    wanted.ptr = block.ptr
    cache.live_bytes += block.nbytes
    cache.live_blocks += 1
    cache.allocations += 1
    return block


cdef bint free_into_cache(CoreState* core, Block* block, uint64_t generation, StreamState* stream) noexcept nogil:
    """Free a local block of this generation (0: of any) on its own stream (NULL means this stream too).  False, with
    nothing done, if the block is not such a block, the cache has enough, or another thread holds its lock: finalizers,
    which call this too, do not wait."""
    cdef StreamCache* cache = cache_of(block)
    cdef bint done
    if has_deferred_work(core):
        return free_recorded(core, block, generation, stream)
    if cache == NULL or not cache.cache_lock.try_lock():
        return False
    done = may_cache(cache, block, generation, stream)
    if done:
        cache_local(cache, block)
    cache.cache_lock.unlock()
    return done


cdef inline bint may_cache(StreamCache* cache, Block* block, uint64_t generation,
                           StreamState* stream) noexcept nogil:
    """True if `free_into_cache` may cache the block.  Called with the lock of the cache."""
    return (block.cache.load() == cache and block.state == LOCAL
            and (generation == 0 or block.generation == generation)
            and (stream == NULL or stream == cache.stream) and has_room(cache, block))


cdef bint free_at_into_cache(CoreState* core, StreamCache* cache, size_t handle, uint64_t ptr) noexcept nogil:
    """Free a local block, given its address, on the stream with this handle."""
    cdef Block* block
    if has_deferred_work(core):
        return free_at_recorded(core, cache, handle, ptr)
    cache.cache_lock.lock()
    block = cached_at(cache, handle, ptr)
    if block != NULL:
        cache_local(cache, block)
    cache.cache_lock.unlock()
    return block != NULL


cdef bint free_by_id_into_cache(StreamCache* cache, size_t handle, uint64_t ptr) noexcept nogil:
    """Do as `free_at_into_cache` on a stream that may be destroyed.  False too where the free has to leave a fence; see
    `is_fence_due_locked`."""
    cdef Block* block = NULL
    cache.cache_lock.lock()
    if cache.frees - cache.fenced_frees + 1 < cache.resource.frontiers.frees_per_fence:
        block = cached_at(cache, handle, ptr)
    if block != NULL:
        cache_local(cache, block)
    cache.cache_lock.unlock()
    return block != NULL


cdef inline Block* cached_at(StreamCache* cache, size_t handle, uint64_t ptr) noexcept nogil:
    """Return the local block at an address, if the cache takes it; else NULL.  Called with the lock of the cache."""
    cdef CachedPlace* places = places_of(cache, ptr)
    cdef size_t i
    if cache.handle == handle:
        for i in range(CACHE_WAYS):
            if places[i].ptr == ptr:
                return places[i].block if (places[i].block.state == LOCAL
                                           and has_room(cache, places[i].block)) else NULL
    return NULL


cdef inline bint has_room(StreamCache* cache, Block* block) noexcept nogil:
    """True if the cache takes one more block of this size."""
    cdef size_t nbytes = in_grains(cache, block.nbytes)
    cdef CachedSize* size = cached_size_of(cache, nbytes)
    return (size.nbytes == nbytes and size.count < CACHED_OF_A_SIZE
            and cache.cached_bytes + nbytes <= cache.room.load())


cdef inline void cache_local(StreamCache* cache, Block* block) noexcept nogil:
    """Free a local block: its memory is cached."""
    check(cache.cache_lock.held(), "the lock of the cache is held")
    cache.live_bytes -= block.nbytes
    cache.live_blocks -= 1
    cache.frees += 1
    if cache.stream.discipline != SEALED:               # no unrecorded work there: the former position is enough
        block.position = count_of(cache.stream)
    put_in(cache, block)


cdef inline void put_in(StreamCache* cache, Block* block) noexcept nogil:
    cdef size_t nbytes = in_grains(cache, block.nbytes)
    cdef CachedSize* size = cached_size_of(cache, nbytes)
    poke(block.generation, 0)
    block.state = CACHED
    block.next_cached = size.newest
    size.newest = block
    size.count += 1
    cache.cached_bytes += nbytes


# ---------------------------------------------------------------------------------------------- in and out
cdef bint bring_in_locked(CoreState* core, Block* block, uint64_t generation) noexcept nogil:
    """Make a local block of this generation (0: of any), or one that is in parts, an ordinary one.  False if the block
    is neither, or has another generation."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamCache* cache = cache_of(block)
    cdef bint found = False
    if is_in_parts(block):
        return join_parts_locked(core, block, generation)
    if cache != NULL:
        cache.cache_lock.lock()
        if block.state == LOCAL and (generation == 0 or block.generation == generation):
            settle_local_locked(core, cache, block)
            found = True
        cache.cache_lock.unlock()
    return found


cdef void bring_in_at_locked(CoreState* core, StreamState* stream, uint64_t ptr) noexcept nogil:
    """Make the block at an address an ordinary one, if it is local on this stream.  A lookup that does not know the
    stream brings in all local blocks."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamCache* cache = <StreamCache*>stream.cache.load()
    cdef CachedPlace* places
    cdef size_t i
    if cache == NULL:
        return
    cache.cache_lock.lock()
    places = places_of(cache, ptr)
    for i in range(CACHE_WAYS):
        if places[i].ptr == ptr and places[i].block.state == LOCAL:
            settle_local_locked(core, cache, places[i].block)
    cache.cache_lock.unlock()


cdef void settle_local_locked(CoreState* core, StreamCache* cache, Block* block) noexcept nogil:
    """Make a local block an ordinary one.  Called with both locks.  Its allocation entry is the position of the
    previous free: any work that the owner has queued since is unrecorded, and the entry is raised as for every fresh
    block.  A block for the host has no entry."""
    check(core.order.lock.held() and cache.cache_lock.held(), "both locks are held")
    cdef Entry* entry
    unlist(core, cache, block)
    cache.live_bytes -= block.nbytes
    cache.live_blocks -= 1
    core.live_bytes += block.nbytes
    core.live_blocks += 1
    block.frontier.clear()
    block.fresh = block.stream != NULL
    if block.fresh:
        entry = &block.frontier.emplace_back()
        entry.kind = ALLOCATED
        entry.stream = block.stream.index
        entry.position = block.position
    block.named = False
    block.raised = False
    block.writer = 0
    block.operation = 0
    block.state = LIVE
    evict_overlapping_locked(core, block.ptr, block.nbytes)     # freed memory that was adopted
    link_locked(core, block)


cdef void unlist(CoreState* core, StreamCache* cache, Block* block) noexcept nogil:
    """Remove the block from the cache.  Called with both locks."""
    cdef CachedPlace* places = places_of(cache, block.ptr)
    cdef size_t i
    for i in range(CACHE_WAYS):
        if places[i].block == block:
            places[i].block = NULL
            places[i].ptr = 0
    block.cache.store(NULL)
    core.in_caches -= in_grains(cache, block.nbytes)


cdef bint bring_in_all_locked(CoreState* core) noexcept nogil:
    """Make all local blocks ordinary ones, before a lookup by address reports that it found nothing.  True if there
    were any."""
    check(core.order.lock.held(), "the lock is held")
    cdef bint found = False
    cdef size_t i
    for i in range(core.caches.size()):
        found |= settle_all_of_locked(core, core.caches[i])
    return found


cdef bint settle_all_of_locked(CoreState* core, StreamCache* cache) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef bint found = False
    cdef size_t i
    cache.cache_lock.lock()
    if cache.live_blocks:
        found = True
        for i in range(cache.places.size()):
            if cache.places[i].block != NULL and cache.places[i].block.state == LOCAL:
                settle_local_locked(core, cache, cache.places[i].block)
    check(cache.live_blocks == 0 and cache.live_bytes == 0, "every local block is listed")
    cache.cache_lock.unlock()
    return found


cdef bint cache_freed_locked(CoreState* core, Block* block, StreamState* home) noexcept nogil:
    """Cache the memory of a free into the pool, if no other stream than its own has used it and the size is allocated
    often.  Entries of that stream stand for work that the stream itself is ordered after.  A block for the host (it has
    no home) is cached if the host has seen all of its uses complete."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamCache* cache
    cdef uint64_t position = 0
    cdef CachedSize* size
    cdef size_t nbytes
    cdef bint done
    cache = <StreamCache*>home.cache.load() if home != NULL else host_cache_of(core, block.resource)
    if (cache == NULL or block.stream != home or block.resource != cache.resource or not block.exports.empty()
            or not block.waiting.empty()):
        return False
    if not (is_idle_locked(core.order, block) if home == NULL else is_used_at_home_only(block, &position)):
        return False
    nbytes = in_grains(cache, block.nbytes)
    size = cached_size_of(cache, nbytes)
    cache.cache_lock.lock()
    done = size.wanted >= WANTED_AGAIN and has_room(cache, block) and list_in(cache, block)
    if done:
        erase(&core.index, block.ptr)
        core.live_bytes -= block.nbytes
        core.live_blocks -= 1
        core.counters.frees += 1
        core.in_caches += nbytes
        raise_peak_locked(core)
        if home != NULL:
            block.position = larger(position, home.unrecorded_until) if home.discipline == SEALED else home.count
        put_in(cache, block)
    cache.cache_lock.unlock()
    if done and unlikely(block.tag != NULL or block.freed_by != NULL):
        drop_labels(block)
    return done


cdef bint is_idle_locked(OrderState* order, Block* block) noexcept nogil:
    """True if the host has seen all work on a block complete."""
    check(order.lock.held(), "the lock is held")
    cdef size_t i
    if unlikely(order.discipline_changes != 0):
        raise_changed_disciplines_locked(order, block)
    for i in range(block.frontier.size()):
        if not is_settled_locked(order, NULL, block, i):
            return False
    return True


cdef inline bint is_used_at_home_only(Block* block, uint64_t* newest) noexcept nogil:
    """True if all entries of the frontier are the home's own; `newest` gets the newest position."""
    cdef size_t i
    newest[0] = 0
    for i in range(block.frontier.size()):
        if block.frontier[i].stream != block.home.index or is_of_former(block.home, block.frontier[i].position):
            return False
        newest[0] = larger(newest[0], block.frontier[i].position)
    return True


cdef bint list_in(StreamCache* cache, Block* block) noexcept nogil:
    """Add the block to the cache.  False if other blocks have all of its places, and there are not to be more.  Called
    with both locks."""
    cdef CachedPlace* places = find_place_for(cache, block.ptr)
    while places == NULL and cache.places.size() < <size_t>(MOST_SETS * CACHE_WAYS):
        add_places(cache)
        places = find_place_for(cache, block.ptr)
    if places == NULL:
        return False
    places.block = block
    places.ptr = block.ptr
    block.cache.store(cache)
    return True


cdef inline CachedPlace* find_place_for(StreamCache* cache, uint64_t ptr) noexcept nogil:
    """Return an empty place for an address; NULL if there is none."""
    cdef CachedPlace* places = places_of(cache, ptr)
    cdef size_t i
    for i in range(CACHE_WAYS):
        if places[i].block == NULL:
            return &places[i]
    return NULL


cdef void add_places(StreamCache* cache) noexcept nogil:
    """Double the places of a cache, of which none may be left for an address: a stream may have a table of a thousand
    columns.  Called with both locks."""
    cdef vector[CachedPlace] before = cache.places
    cdef size_t i
    cache.shift -= 1
    cache.places.clear()
    cache.places.resize(2 * before.size())              # all empty; what was in one set is in two, so it fits
    for i in range(before.size()):
        if before[i].block != NULL:
            find_place_for(cache, before[i].ptr)[0] = before[i]
