# Operations of the C table on a stream that has a cache, where the cache misses.
#
# The cache has the stream that the handle means, and a pool often has memory that the stream is ordered after.  Then
# one acquisition of the lock is enough, and no context is needed: the only driver call is the caller's query of the
# stream's capture status.  If more is needed, these functions do nothing, and the ordinary way follows.

from xlogmem._base.cpp cimport check
from xlogmem.resources.base cimport FrontierTable, start_call_on


cdef inline StreamState* stream_of_cache_locked(CoreState* core, StreamCache* cache, size_t handle) noexcept nogil:
    """Return the stream that the handle means; NULL if the cache was closed, in which case it may belong to another
    stream by now."""
    check(core.order.lock.held(), "the lock is held")   # with which caches are opened and closed
    return cache.stream if cache.handle == handle and cache.stream.alive else NULL


cdef bint allocate_by_handle(CoreState* core, StreamCache* cache, size_t handle, size_t nbytes,
                             Block** result) noexcept nogil:
    """Allocate a block in memory that the pool has at hand, on the stream with this handle, which is not capturing."""
    cdef FrontierTable* frontiers = core.resource.frontiers
    cdef bint done = False
    cdef StreamState* stream
    cdef Allocation wanted
    if goes_slowly(core) or frontiers.allocate_at_once == NULL:
        return False
    core.order.lock.lock()
    stream = stream_of_cache_locked(core, cache, handle)
    if stream != NULL:
        start_call_on(&wanted, nbytes, stream)
        wanted.generation = new_generation()            # spent, if there is no memory
        if frontiers.allocate_at_once(core.resource.self, &wanted):
            result[0] = track_locked(core, core.resource, &wanted)
            done = True
    core.order.lock.unlock()
    return done


cdef bint free_by_handle(CoreState* core, StreamCache* cache, size_t handle, uint64_t ptr) noexcept nogil:
    """Free the block at an address into the pool, on the stream with this handle."""
    cdef StreamState* stream
    cdef bint freed
    if goes_slowly(core):
        return False
    core.order.lock.lock()
    stream = stream_of_cache_locked(core, cache, handle)
    freed = stream != NULL and free_plainly_locked(core, live_block_at_locked(core, ptr), stream)
    core.order.lock.unlock()
    return freed
