# A hold on a runtime, and the streams that were named through it.
#
# The legacy default stream is the usual one, and is found without a lock: once it was named, the hold keeps it busy, so
# that it cannot be unregistered.  Other handles are cached with the number of the registration that they meant.  A
# cached handle is trusted where no other stream can have the same handle: own streams, default streams, streams whose
# owner is held.  For all other handles the driver is queried each time; see `_foreign`, and for streams that have a
# cache `find_handle`.
#
# Uses find a stream that is known to live by its handle alone, in the acquisition of the lock in which they find their
# blocks.  A caller that promises to keep a stream (`hold_stream`) makes it one of these.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf

from xlogmem._base.cpp cimport atomic, check, vector
from xlogmem._base.failures cimport DRIVER_FAILED, STREAM_IS_CAPTURING, Failure, fail_argument, fail_stream
from xlogmem._base.labels cimport Label
from xlogmem._core cimport CoreState, StreamCache, Window, handle_of_id, may_allocate_at, return_window
from xlogmem._driver cimport LEGACY, PER_THREAD, process_was_forked, stream_id, stream_is_capturing
from xlogmem._foreign.objects cimport Identified, identify_unlocks
from xlogmem._order cimport (
    OPAQUE,
    Discipline,
    OrderState,
    StreamState,
    covering,
    fence_now_unlocks,
    hold_stream_locked,
    is_unowned,
    own_stream_locked,
    release_stream_locked,
    this_thread,
    wait_for_calls_unlocks,
)


cdef enum:
    NAMED = 256                 # places of handles whose caches are found without a lock
    WAYS = 4                    # places that a handle may have
    KNOWN = 64                  # places of handles of streams that are known to live, a power of two


cdef struct CachedStream:
    # The meaning of a handle, the last time that it came through this hold.
    cy.CUstream handle
    uint64_t thread             # of a per-thread default stream
    uint64_t number             # of the registration
    uint32_t index


cdef struct KnownStream:
    # The meaning of a handle whose stream was known to live.
    cy.CUstream handle
    uint64_t number             # of the registration
    uint32_t index


cdef struct KeptStream:
    # A stream that the caller has promised to keep.
    KnownStream stream
    uint64_t thread             # of a per-thread default stream
    uint32_t holds


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
    KnownStream known[KNOWN]            # by a hash of the handle; under the core's lock, as all below
    vector[KeptStream] kept
    vector[Window*] windows     # for the next uses
    size_t open_uses
    bint is_closed
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
    Caches live as long as the runtime.  The stream may have been destroyed: see `find_handle`."""
    cdef NamedCache* places
    cdef size_t i
    if state != NULL:
        return <StreamCache*>state.cache.load()
    places = places_of_handle(hold, <size_t>stream)
    for i in range(WAYS):
        if places[i].handle.load() == <size_t>stream:
            return places[i].cache.load()
    return NULL


cdef inline size_t find_handle(StreamState* state, StreamCache* cache, void* stream) noexcept nogil:
    """Return what the cache has as the handle, if it is still the cache of the stream that is meant; `state` is the
    default stream, if that is meant.  0 if the stream is capturing, or if that cannot be known without a context."""
    cdef size_t handle = <size_t>stream
    if state != NULL:
        return <size_t>LEGACY
    if not may_allocate_at(handle):
        return 0
    return find_handle_of_id(handle) if unlikely(<bint>cache.by_id) else handle


cdef size_t find_handle_of_id(size_t handle) noexcept nogil:
    cdef uint64_t driver_id = 0
    cdef Failure ignored
    if stream_id(<cy.CUstream>handle, &driver_id, &ignored):
        return 0
    return handle_of_id(driver_id)


cdef void leave_streams(RuntimeHold* hold) noexcept nogil:
    """End what a hold that was closed has kept in its runtime."""
    cdef StreamState* legacy = hold.legacy.load()
    cdef size_t i
    if process_was_forked():
        return
    hold.core.order.lock.lock()
    if legacy != NULL:
        legacy.busy -= 1
    for i in range(hold.windows.size()):
        hold.windows[i].table_hold = NULL
        return_window(hold.core, hold.windows[i])
    hold.core.order.lock.unlock()


cdef int lookup_stream_locks(RuntimeHold* hold, cy.CUstream given, Discipline unknown, bint* capturing,
                             StreamState** result, Failure* failure) except -1 nogil:
    """Find the registration of a stream, and if a graph is being captured on it.

    The context is current.  `unknown` is the discipline of a stream that is named here first: opaque for a caller that
    records no work, which makes a known stream opaque too, unless the program named its discipline.  Default streams
    are opaque in any case.  Returns with the lock held, on failure too.  The registration is busy, and cannot be
    removed, until the caller decrements its count.
    """
    cdef cy.CUstream handle = given if given != NULL else <cy.CUstream><size_t>LEGACY
    cdef StreamState* known
    cdef Identified found
    cdef bint stays                                     # the discipline of the stream that is known
    cdef int failed = 0
    if unlikely(names_host(handle)):
        hold.core.order.lock.lock()
        return fail_no_stream(failure)
    if <size_t>handle <= PER_THREAD:
        unknown = OPAQUE                                # as default streams are, whatever names them first
    if <size_t>handle != LEGACY or hold.legacy.load() == NULL:
        failed = stream_is_capturing(handle, capturing, failure)    # first: a query of the id would end a capture
    hold.core.order.lock.lock()
    if failed:
        return fail_no_handle(failure, handle)
    known = cached_stream_locked(hold, handle)
    stays = known != NULL and (unknown != OPAQUE or is_settled(known))
    if known != NULL and known.cache.load() != NULL and is_settled(known):
        name_cache_locked(hold, <size_t>handle, <StreamCache*>known.cache.load())
    if known != NULL and (capturing[0] or (stays and (<size_t>handle <= PER_THREAD or not known.unowned))):
        known.busy += 1
        if <size_t>handle == LEGACY:
            keep_legacy_locked(hold, known)
        result[0] = known
        return 0
    if capturing[0]:                                    # a query of the id would invalidate the capture
        return fail_stream(failure, STREAM_IS_CAPTURING, <size_t>handle)
    found.likely = known.index if stays else 0
    if identify_unlocks(hold.core.order, handle, unknown, &found, failure):
        return fail_no_handle(failure, handle)
    if found.state != known:
        cache_stream_locked(hold, handle, found.state)
    if <size_t>handle == LEGACY:
        keep_legacy_locked(hold, found.state)
    result[0] = found.state
    return 0


cdef int fail_no_handle(Failure* failure, cy.CUstream handle) noexcept nogil:
    """Complete the failure of a query of a stream that the caller named, if the driver does not know the handle."""
    if failure.kind == DRIVER_FAILED and failure.code == cy.CUDA_ERROR_INVALID_HANDLE:
        snprintf(failure.text, sizeof(failure.text), "stream %#llx does not exist: %s gave CUDA_ERROR_INVALID_HANDLE",
                 <unsigned long long>handle, failure.call)
        fail_argument(failure, failure.code)
    return 1


cdef int lookup_usable_stream_locks(RuntimeHold* hold, cy.CUstream given, Discipline unknown, StreamState** result,
                                    Failure* failure) except -1 nogil:
    """Do as `lookup_stream_locks`, and refuse a stream that is capturing.  On failure there is no stream, and none is
    busy."""
    cdef bint capturing = False
    result[0] = NULL
    if lookup_stream_locks(hold, given, unknown, &capturing, result, failure):
        return 1
    if not capturing:
        return 0
    result[0].busy -= 1
    fail_stream(failure, STREAM_IS_CAPTURING, result[0].number)
    result[0] = NULL
    return 1


cdef inline bint is_settled(StreamState* stream) noexcept nogil:
    """True if an allocation leaves the discipline of a stream as it is."""
    return stream.discipline == OPAQUE or stream.is_named or stream.driver_id == 0


cdef void keep_legacy_locked(RuntimeHold* hold, StreamState* stream) noexcept nogil:
    """Keep the legacy default stream busy, once its discipline is what allocations make it: they do not look it up
    again."""
    check(hold.core.order.lock.held(), "the lock is held")
    if hold.legacy.load() == NULL and is_settled(stream):
        stream.busy += 1
        hold.legacy.store(stream)


# ---------------------------------------------------------------------------------------------- streams that live
cdef inline KnownStream* place_of_known(RuntimeHold* hold, cy.CUstream handle) noexcept nogil:
    return &hold.known[<uint32_t>(<size_t>handle >> 4) * <uint32_t>2654435761 >> 26]


cdef inline StreamState* known_stream_locked(RuntimeHold* hold, cy.CUstream handle) noexcept nogil:
    """Return the registration that a handle means, if its stream is known to live; else NULL."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef KnownStream* place = place_of_known(hold, handle)
    cdef StreamState* stream
    if place.handle != handle:
        return NULL
    stream = hold.core.order.streams[place.index]
    return stream if stream.number == place.number and stream.alive and not stream.unowned else NULL


cdef void know_stream_locked(RuntimeHold* hold, cy.CUstream handle, StreamState* stream) noexcept nogil:
    """Have `known_stream_locked` find a stream for as long as its handle means it.  Default streams of threads are not
    among these: a handle means as many as there are threads."""
    check(hold.core.order.lock.held(), "the lock is held")
    if <size_t>handle != PER_THREAD and not stream.unowned:
        fill_known(place_of_known(hold, handle), handle, stream)


cdef void fill_known(KnownStream* known, cy.CUstream handle, StreamState* stream) noexcept nogil:
    known.handle = handle
    known.number = stream.number
    known.index = stream.index


cdef KeptStream* find_kept_locked(RuntimeHold* hold, cy.CUstream handle) noexcept nogil:
    check(hold.core.order.lock.held(), "the lock is held")
    cdef uint64_t thread = this_thread() if <size_t>handle == PER_THREAD else 0
    cdef size_t i
    for i in range(hold.kept.size()):
        if hold.kept[i].stream.handle == handle and hold.kept[i].thread in (0, thread):
            return &hold.kept[i]
    return NULL


cdef void keep_stream_locked(RuntimeHold* hold, cy.CUstream handle, StreamState* stream) noexcept nogil:
    """Note a promise to keep a stream."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef KeptStream* kept = find_kept_locked(hold, handle)
    if kept != NULL and kept.stream.number == stream.number:
        kept.holds += 1
        return
    if kept == NULL:
        kept = &hold.kept.emplace_back()                # else the stream behind the older promise was destroyed
    fill_known(&kept.stream, handle, stream)
    kept.thread = stream.thread
    kept.holds = 1
    hold_stream_locked(hold.core.order, stream)


cdef bint leave_stream_of_hold_unlocks(RuntimeHold* hold, cy.CUstream handle, bint entered) noexcept nogil:
    """End a promise to keep a stream.  False if there was none."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef KeptStream* kept = find_kept_locked(hold, handle)
    if kept == NULL:
        return False
    kept.holds -= 1
    if kept.holds == 0:
        leave_kept_unlocks(hold, kept - hold.kept.data(), entered)
    return True


cdef void leave_kept_unlocks(RuntimeHold* hold, size_t number, bint entered) noexcept nogil:
    """End a promise.  The stream lives for the last time: a fence covers what was filed on it without one, and calls
    of other threads on its handle end first.  Without the context (`entered`) no fence can be recorded."""
    check(hold.core.order.lock.held(), "the lock is held")
    cdef OrderState* order = hold.core.order
    cdef KeptStream kept = hold.kept[number]
    cdef StreamState* stream = order.streams[kept.stream.index]
    cdef bint was_destroyed = is_unowned(stream)        # in spite of the promise: the handle means another stream
    hold.kept[number] = hold.kept.back()
    hold.kept.pop_back()
    if stream.number != kept.stream.number or not stream.alive:
        return
    release_stream_locked(order, stream)
    if was_destroyed or not is_unowned(stream):
        return
    order.in_flight += 1                                # nothing is deleted meanwhile
    if entered and covering(stream, stream.count) == NULL:
        fence_now_unlocks(order, stream)
    wait_for_calls_unlocks(order, stream)
    order.in_flight -= 1


# ---------------------------------------------------------------------------------------------- the cache


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
