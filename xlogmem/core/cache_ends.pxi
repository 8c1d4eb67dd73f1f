# Opening, emptying, closing and counting of caches; all with the runtime's lock.
#
# The first allocations of a size on a stream come from the pool and are counted; from then on memory of that size is
# cached there (`caches.pxi`).  Cached memory goes back to the pool with the position behind its free.

from xlogmem._base.cpp cimport check, make_new
from xlogmem._base.failures cimport ON_HOST
from xlogmem._base.index cimport NO_STREAM
from xlogmem._driver cimport LEAF_LOCK, take_at_forks
from xlogmem._order cimport ALLOCATED, SEALED, advance


cdef void want_size_locked(CoreState* core, ResourceTable* resource, StreamState* stream,
                           size_t nbytes) noexcept nogil:
    """Count an allocation from a pool on this stream (NULL: for the host), to learn which sizes are allocated there
    often."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamCache* cache = NULL
    cdef Block* replaced = NULL
    cdef CachedSize* size
    if nbytes <= LARGEST_CACHED:
        cache = open_cache_locked(core, stream) if stream != NULL else open_host_cache_locked(core, resource)
    if cache == NULL:
        return
    nbytes = in_grains(cache, nbytes)
    size = cached_size_of(cache, nbytes)
    cache.cache_lock.lock()
    if size.nbytes == nbytes:
        size.wanted += size.wanted < WANTED_AGAIN
    elif size.wanted > 1:                               # another size has the place, and loses it if this goes on
        size.wanted -= 1
    else:
        replaced = take_cached(core, cache, size, NULL)
        size.nbytes = nbytes
        size.wanted = 1
    cache.cache_lock.unlock()
    return_to_pool_locked(core, replaced)


cdef StreamCache* open_cache_locked(CoreState* core, StreamState* stream) noexcept nogil:
    """Return the cache of a stream; NULL if it can have none: the handle of another thread's default stream means
    another stream, and where each free on a stream that may be destroyed has a fence there is nothing to gain."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamCache* cache = <StreamCache*>stream.cache.load()
    if cache != NULL:
        return cache
    if stream.thread or not <bint>stream.alive or (<bint>stream.unowned and not can_cache_by_id(core, stream)):
        return NULL
    cache = closed_cache_locked(core)
    if cache != NULL:
        open_locked(core, cache, core.resource, stream, handle_in_cache(stream))
    return cache


cdef inline bint can_cache_by_id(CoreState* core, StreamState* stream) noexcept nogil:
    """True if a stream that may be destroyed may have a cache: its id leaves room for the mark of one, and the
    handles of others."""
    return core.resource.frontiers.frees_per_fence > 1 and stream.driver_id < <uint64_t>HANDLE_OF_ID >> 1


cdef bint is_fence_due_locked(StreamState* stream, uint32_t frees, uint32_t at) noexcept nogil:
    """True if a stream that may be destroyed has so many frees into a pool behind its last fence; those into its cache
    count.  These then have a position that the next fence covers."""
    cdef StreamCache* cache = <StreamCache*>stream.cache.load()
    cdef bint due
    if cache == NULL:
        return frees >= at
    cache.cache_lock.lock()
    due = frees + cache.frees - cache.fenced_frees >= at
    if due:
        cache.fenced_frees = cache.frees
        advance(stream)
    cache.cache_lock.unlock()
    return due


cdef StreamCache* open_host_cache_locked(CoreState* core, ResourceTable* resource) noexcept nogil:
    """Return the cache of the host in front of a resource; NULL if other resources have all of them."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamCache* cache
    cdef size_t i
    for i in range(HOST_CACHES):
        cache = core.host_caches[i].load()
        if cache != NULL and cache.resource == resource:
            return cache
        if cache == NULL:
            cache = closed_cache_locked(core)
            if cache != NULL:
                cache.host_room.store(resource.frontiers.host_room)
                open_locked(core, cache, resource, &cache.as_stream, HOST_HANDLE)
                core.host_caches[i].store(cache)
            return cache
    return NULL


cdef StreamCache* closed_cache_locked(CoreState* core) noexcept nogil:
    """Return a cache that is closed; NULL if there is none, and the next allocation that ends adds one."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(core.caches.size()):
        if core.caches[i].stream == NULL:               # the lock of the runtime guards this
            return core.caches[i]
    core.wants_cache.store(True)
    return NULL


cdef void open_locked(CoreState* core, StreamCache* cache, ResourceTable* resource, StreamState* stream,
                      size_t handle) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cache.cache_lock.lock()
    cache.resource = resource
    cache.room = &cache.host_room if is_host(stream) else &core.order.cache_room
    cache.stream = stream
    cache.handle = handle
    cache.by_id.store(<bint>stream.unowned)
    cache.fenced_frees = 0
    cache.cache_lock.unlock()
    stream.cache.store(cache)
    core.order.caches_open += not is_host(stream)


cdef void add_cache(CoreState* core) noexcept nogil:
    """Add a cache for the next stream, or the host, that wants one.  Called without the lock.  Forks take the lock of
    the cache from now on."""
    cdef StreamCache* cache = make_new[StreamCache]()
    cache.as_stream.index = NO_STREAM
    cache.as_stream.number = <uint64_t>ON_HOST
    cache.as_stream.discipline = SEALED
    cache.as_stream.alive.store(True)
    cache.places.resize(LEAST_SETS * CACHE_WAYS)
    cache.shift = 24                                    # of 32 bits: 8 are left, for LEAST_SETS
    take_at_forks(&cache.cache_lock, LEAF_LOCK)
    core.order.lock.lock()
    core.wants_cache.store(False)
    core.caches.push_back(cache)
    core.order.lock.unlock()


cdef Block* take_cached(CoreState* core, StreamCache* cache, CachedSize* size, Block* others) noexcept nogil:
    """Move all cached memory of a size to the front of a list.  Called with both locks."""
    cdef Block* block = size.newest
    while block != NULL:
        size.newest = block.next_cached
        block.next_cached = others
        others = block
        unlist(core, cache, block)
        cache.cached_bytes -= size.nbytes
        block = size.newest
    size.count = 0
    return others


cdef void return_to_pool_locked(CoreState* core, Block* block) noexcept nogil:
    """Return a list of cached blocks to their pool, each with the position that its next owner has to be ordered
    after; memory of the host is idle."""
    check(core.order.lock.held(), "the lock is held")
    cdef vector[Dependency]* frontier = &core.freed_frontier
    cdef Allocation freed
    cdef Block* following
    while block != NULL:
        following = block.next_cached
        frontier.clear()
        if block.stream != NULL:
            frontier.emplace_back()
            frontier.back().source = block.stream
            frontier.back().position = next_position(block.stream, block.position)
            frontier.back().kind = ALLOCATED
            block.stream.blocks -= 1
        fill_freed(core, block, block.stream, &freed)
        block.resource.frontiers.deallocate(block.resource.self, &freed, frontier)
        set_home(block, NULL)
        block.state = FREED
        core.empty.push_back(block.slot)
        block = following


cdef inline uint64_t next_position(StreamState* stream, uint64_t position) noexcept nogil:
    """Return the first position that was taken after the free; for a stream without unrecorded work, that of its newest
    use."""
    if stream.discipline == SEALED:
        return position
    return position + 1 if stream.count > position else advance(stream)


cdef Block* take_all_cached(CoreState* core, StreamCache* cache) noexcept nogil:
    """Take everything out of a cache.  Called with the runtime's lock, like the functions below."""
    cdef Block* cached = NULL
    cdef size_t i
    cache.cache_lock.lock()
    if cache.cached_bytes:
        for i in range(CACHED_SIZES):
            cached = take_cached(core, cache, &cache.sizes[i], cached)
    cache.cache_lock.unlock()
    return cached


cdef bint empty_caches_of_locked(void* of, void* pool, StreamState* stream) noexcept nogil:
    """Return to a pool (NULL: to each) everything that a stream (NULL: every stream, and the host) has cached of it.
    True if there was anything."""
    cdef CoreState* core = <CoreState*>of
    cdef bint found = False
    cdef Block* cached
    cdef size_t i
    check(core.order.lock.held(), "the lock is held")
    for i in range(core.caches.size()):
        if core.caches[i].stream == NULL or (stream != NULL and core.caches[i].stream != stream):
            continue
        if pool != NULL and core.caches[i].resource.self != pool:
            continue
        cached = take_all_cached(core, core.caches[i])
        found |= cached != NULL
        return_to_pool_locked(core, cached)
    return found


cdef void close_cache_of_locked(void* of, StreamState* stream) noexcept nogil:
    """Close the cache of a stream: its allocations and frees take positions again."""
    cdef CoreState* core = <CoreState*>of
    cdef StreamCache* cache = <StreamCache*>stream.cache.load()
    cdef Block* cached
    cdef size_t i
    check(core.order.lock.held(), "the lock is held")
    cache.cache_lock.lock()
    cache.handle = NO_HANDLE                            # no new local block, and none is freed, from here on
    cache.cache_lock.unlock()
    settle_all_of_locked(core, cache)
    cached = take_all_cached(core, cache)
    cache.cache_lock.lock()
    for i in range(CACHED_SIZES):
        cache.sizes[i].nbytes = 0
        cache.sizes[i].wanted = 0
    core.counters.allocations += cache.allocations
    core.cached_allocations += cache.allocations
    core.counters.frees += cache.frees
    cache.allocations = cache.frees = 0
    cache.stream = NULL
    cache.cache_lock.unlock()
    stream.cache.store(NULL)
    core.order.caches_open -= not is_host(stream)
    return_to_pool_locked(core, cached)


cdef void use_caches(CoreState* core) noexcept nogil:
    """Enable caches when a runtime begins: those of streams, if blocks of the resource can take each other's place (it
    has a grain), and those of the host, of whichever resource."""
    cdef OrderState* order = core.order
    order.lock.lock()
    order.core = core
    if has_grain(core.resource):
        order.cached_pool = core.resource.self
    order.close_cache = close_cache_of_locked
    order.empty_caches = empty_caches_of_locked
    order.count_cached = count_cached_of_locked
    order.lock.unlock()


cdef inline bint has_grain(ResourceTable* resource) noexcept nogil:
    return resource.frontiers != NULL and resource.frontiers.grain != 0


cdef void stop_caches_locked(CoreState* core) noexcept nogil:
    """Close all caches when a runtime ends."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(HOST_CACHES):
        core.host_caches[i].store(NULL)
    for i in range(core.caches.size()):
        if core.caches[i].stream != NULL:
            close_cache_of_locked(core, core.caches[i].stream)
    core.order.core = core.order.cached_pool = NULL


# ---------------------------------------------------------------------------------------------- figures
cdef void count_all_locked(CoreState* core, Figures* figures) noexcept nogil:
    """Collect the figures of the tables and of all caches at one moment: all caches are stopped for that."""
    check(core.order.lock.held(), "the lock is held")
    hold_caches_locked(core)
    add_up_locked(core, figures)
    release_caches_locked(core)


cdef void hold_caches_locked(CoreState* core) noexcept nogil:
    """Stop all caches: none changes until `release_caches_locked`."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(core.caches.size()):
        core.caches[i].cache_lock.lock()


cdef void release_caches_locked(CoreState* core) noexcept nogil:
    """Let all caches go on after `hold_caches_locked`."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(core.caches.size()):
        core.caches[i].cache_lock.unlock()


cdef void add_up_locked(CoreState* core, Figures* figures) noexcept nogil:
    """Add up the figures of the tables and of all caches.  Called while the caches are stopped."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamCache* cache
    cdef size_t i
    figures.live_bytes = core.live_bytes
    figures.live_blocks = core.live_blocks
    figures.counters = core.counters
    for i in range(core.caches.size()):
        cache = core.caches[i]
        figures.live_bytes += cache.live_bytes
        figures.live_blocks += cache.live_blocks
        figures.counters.allocations += cache.allocations
        figures.counters.frees += cache.frees


cdef uint64_t count_cached_of_locked(void* of, void* pool) noexcept nogil:
    """Count the allocations that this pool (NULL: any) knows nothing of."""
    cdef CoreState* core = <CoreState*>of
    cdef uint64_t count = core.cached_allocations if pool == NULL or pool == core.resource.self else 0
    cdef StreamCache* cache
    cdef size_t i
    check(core.order.lock.held(), "the lock is held")
    for i in range(core.caches.size()):
        cache = core.caches[i]
        cache.cache_lock.lock()
        if cache.stream != NULL and (pool == NULL or cache.resource.self == pool):
            count += cache.allocations
        cache.cache_lock.unlock()
    return count
