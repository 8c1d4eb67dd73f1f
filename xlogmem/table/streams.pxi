# A hold on a runtime, and the streams that were named through it.
#
# The legacy default stream is the usual one, and is found without a lock: once it was named, the hold keeps it busy, so
# that it cannot be unregistered.  Other handles are cached with the number of the registration that they meant.  A
# cached handle is trusted where no other stream can have the same handle: own streams, default streams, streams whose
# owner is held.  For all other handles the driver is queried each time; see `_foreign`.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport atomic, check, vector
from xlogmem._base.failures cimport STREAM_IS_CAPTURING, Failure, fail_stream
from xlogmem._base.labels cimport Label
from xlogmem._core cimport CoreState, StreamCache
from xlogmem._driver cimport LEGACY, PER_THREAD, process_was_forked, stream_is_capturing
from xlogmem._foreign.objects cimport Identified, identify_unlocks
from xlogmem._order cimport OPAQUE, OrderState, StreamState, own_stream_locked, this_thread


cdef enum:
    NAMED = 256                 # places of handles whose caches are found without a lock
    WAYS = 4                    # places that a handle may have


cdef struct CachedStream:
    # The meaning of a handle, the last time that it came through this hold.
    cy.CUstream handle
    uint64_t thread             # of a per-thread default stream
    uint64_t number             # of the registration
    uint32_t index


cdef cppclass NamedCache:
    # Written under the core's lock and read without it: a reader may see the cache of another handle, so it compares
    # the handle.
    atomic[size_t] handle       # 0: empty
    atomic[StreamCache*] cache


cdef cppclass RuntimeHold:
    # A hold on a runtime; callers of the table know it as an xlogmem_runtime.
    CoreState* core
    void* owner                 # the Core, a strong reference
    Label* tag                  # of memory that is allocated through it; NULL: none
    vector[CachedStream] cached         # under the core's lock
    NamedCache named[NAMED]             # by a hash of the handle
    atomic[StreamState*] legacy         # the legacy default stream once it was named: busy until the hold is closed
    RuntimeHold* next           # in the list of those that were closed


cdef StreamState* default_stream(RuntimeHold* hold, void* stream) noexcept nogil:
    """Return the legacy default stream, if `stream` means it and it was named before; without the lock.

    The legacy default stream never captures itself.  A blocking stream that captures makes it unusable; the driver
    reports this where the stream is used, as it would without xlogmem.
    """
    if <size_t>stream > LEGACY:
        return NULL
    return hold.legacy.load()


cdef inline size_t named_handle(void* stream) noexcept nogil:
    """Return the handle as a cache has it: zero names the legacy default stream too."""
    return <size_t>stream if stream != NULL else <size_t>LEGACY


cdef inline NamedCache* places_of_handle(RuntimeHold* hold, size_t handle) noexcept nogil:
    """Return the first of the places that a handle may have."""
    return &hold.named[(<uint32_t>((handle >> 4) * <uint32_t>2654435761) >> 26) * WAYS]


cdef void name_cache_locked(RuntimeHold* hold, size_t handle, StreamCache* cache) noexcept nogil:
    """Make the cache of a handle known to lookups without the lock.  Where more streams than places meet, one loses its
    place."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef NamedCache* places = places_of_handle(hold, handle)
    cdef NamedCache* place = places
    cdef size_t i
    for i in range(WAYS):
        if places[i].handle.load() in (0, handle):
            place = &places[i]
            break
    place.cache.store(cache)
    place.handle.store(handle)


cdef inline StreamCache* cache_of_handle(RuntimeHold* hold, StreamState* state, void* stream) noexcept nogil:
    """Return the cache of a stream, as far as this hold knows it; `state` is the default stream, if that is meant.
    Caches live as long as the runtime, and a stream that has a cache is known by its handle."""
    cdef NamedCache* places
    cdef size_t i
    if state != NULL:
        return <StreamCache*>state.cache.load()
    places = places_of_handle(hold, <size_t>stream)
    for i in range(WAYS):
        if places[i].handle.load() == <size_t>stream:
            return places[i].cache.load()
    return NULL


cdef void release_legacy(RuntimeHold* hold) noexcept nogil:
    cdef StreamState* legacy = hold.legacy.load()
    if legacy != NULL and not process_was_forked():
        hold.core.order.lock.lock()
        legacy.busy -= 1
        hold.core.order.lock.unlock()


cdef int lookup_stream_locks(RuntimeHold* hold, cy.CUstream given, bint* capturing, StreamState** result,
                             Failure* failure) except -1 nogil:
    """Find the registration of a stream, and if a graph is being captured on it.

    The context is current.  Returns with the lock held, on failure too.  The registration is busy, and cannot be
    removed, until the caller decrements its count.
    """
    cdef cy.CUstream handle = given if given != NULL else <cy.CUstream><size_t>LEGACY
    cdef StreamState* known
    cdef Identified found
    cdef int failed = 0
    if <size_t>handle != LEGACY:
        failed = stream_is_capturing(handle, capturing, failure)
    hold.core.order.lock.lock()
    if failed:
        return 1
    known = cached_stream_locked(hold, handle)
    if known != NULL and known.cache.load() != NULL:
        name_cache_locked(hold, <size_t>handle, <StreamCache*>known.cache.load())
    if known != NULL and (capturing[0] or <size_t>handle <= PER_THREAD or not known.unowned):
        known.busy += 1
        result[0] = known
        return 0
    if capturing[0]:                                    # a query of the id would invalidate the capture
        return fail_stream(failure, STREAM_IS_CAPTURING, <size_t>handle)
    found.likely = known.index if known != NULL else 0
    if identify_unlocks(hold.core.order, handle, OPAQUE, &found, failure):
        return 1
    if found.state != known:
        cache_stream_locked(hold, handle, found.state)
    result[0] = found.state
    return 0


cdef StreamState* cached_stream_locked(RuntimeHold* hold, cy.CUstream handle) noexcept nogil:
    """Return the registration that the handle meant before, or that of an own stream; NULL if there is none any
    more."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef uint64_t thread = this_thread() if <size_t>handle == PER_THREAD else 0
    cdef OrderState* order = hold.core.order
    cdef StreamState* own
    cdef CachedStream* entry
    cdef size_t i
    for i in range(hold.cached.size()):
        entry = &hold.cached[i]
        if entry.handle == handle and entry.thread == thread:
            if order.streams[entry.index].number == entry.number and order.streams[entry.index].alive:
                return order.streams[entry.index]
            hold.cached[i] = hold.cached.back()
            hold.cached.pop_back()
            break
    own = own_stream_locked(order, handle)
    if own != NULL:
        cache_stream_locked(hold, handle, own)
    return own


cdef void cache_stream_locked(RuntimeHold* hold, cy.CUstream handle, StreamState* state) noexcept nogil:
    """Cache a registration: one entry for each handle (and thread).  Entries of registrations that ended are dropped:
    threads end, and their default streams are never named again."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef OrderState* order = hold.core.order
    cdef CachedStream entry
    cdef StreamState* other
    cdef size_t i, kept = 0
    for i in range(hold.cached.size()):
        entry = hold.cached[i]
        other = order.streams[entry.index]
        if other.number == entry.number and other.alive and other != state:
            hold.cached[kept] = entry
            kept += 1
    hold.cached.resize(kept)
    entry.handle = handle
    entry.thread = state.thread
    entry.number = state.number
    entry.index = state.index
    hold.cached.push_back(entry)
    if <size_t>handle == LEGACY and hold.legacy.load() == NULL:
        state.busy += 1
        hold.legacy.store(state)
