# What comes after what: streams, positions, fences, clocks.  _order.pyx explains it.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from xlogmem._base.cpp cimport atomic, counter, flag, peek, poke, unlikely, vector
from xlogmem._base.failures cimport Failure, FailureKind
from xlogmem._base.locks cimport counted_mutex
from xlogmem._driver cimport Context, EventPool, Scope, capture_of, stream_is_capturing
from xlogmem.observe._history cimport EventKind

cdef enum Discipline:
    ORDINARY                    # new blocks are filled here without a record
    OPAQUE                      # unrecorded work at any time
    SEALED                      # a promise: no unrecorded work on blocks at all

cdef enum EntryKind:
    # What a position in a frontier stands for, from early to late in a block's life.
    ALLOCATED
    WRITTEN
    HAS_READ                    # read, after it was written
    ENTRY_KINDS

cdef enum Policy:
    LAZY
    PRECISE
    ADAPTIVE


cdef cppclass Fence:
    # An event, the position it covers, and the clock of its stream: all three sampled before the record call.
    cy.CUevent event
    EventPool* events           # to which it returns
    uint64_t position
    vector[uint64_t] clock
    uint32_t pins               # calls in flight that use the event unlocked; a tombstone and a probe count as one each
    bint in_ring                # of its stream
    Fence* next                 # in the list of those whose event of Python is gone


cdef cppclass StreamState:
    # One registration of a CUDA stream; `index` is its place in every clock.  What every allocation and free looks at
    # comes first, in one line of the cache.
    cy.CUstream handle
    uint64_t count              # positions taken so far; of a dead stream: its last
    uint64_t thread             # of a per-thread default stream: the only thread in which its handle means it; else 0
    uint32_t index
    counter busy                # calls in flight that use the handle with the lock released
    uint32_t calls              # of these, driver calls for other streams' sake: unregistering waits for them
    uint32_t blocks             # references from blocks: as their stream, as their home, for each export
    Discipline discipline
    flag alive
    flag unowned                # no object is held that keeps the handle alive: adaptive commits record at once
    uint8_t remote              # it is on another device: nothing is allocated or freed there
    uint64_t number             # the id that users see, never used again in this runtime
    uint64_t driver_id          # the driver's id of the stream, never used again either; 0: a stream of the pool
    uint64_t unrecorded_until   # taken when its discipline changed last: see `change_discipline_unlocks`
    uint64_t begins_after       # positions up to this are those of streams that had the index before
    bint is_named               # the program named its discipline; else it is the default
    uint32_t holds              # callers of the C table that have promised to keep it
    bint lives_by_holds         # no object is held: by these promises alone it is not unowned
    vector[uint64_t] clock      # by stream index: the newest position this stream is ordered after
    vector[Fence*] ring         # fences, oldest first
    Fence* last                 # of a dead stream: its newest fence; NULL once the host has seen it complete
    StreamState* successor      # of a dead stream: where its blocks are freed
    uint32_t predecessors       # dead streams whose successor this is, and whose index is not used again yet
    counter windows             # open windows of launches on this stream
    atomic[uint32_t] handles    # Python handles
    Fence* probe                # pinned: what `poll_unlocks` queries, until it is complete
    StreamState* next           # in the list of own streams without a handle
    atomic[uint32_t] idle       # it is in that list
    uint32_t eager_commits      # adaptive: how many more commits record their fence at once
    atomic[void*] cache         # of memory that was freed here, see core/caches.pxi; NULL: it has none
    uint32_t unfenced_frees     # frees into a pool here since the last fence: see `fence_after_frees_unlocks`
    # Of a remote stream: see _foreign/objects/remote.pxi.
    cy.CUcontext context        # of that device; NULL: the stream is on the runtime's own
    EventPool* events           # of that context
    int device                  # its number
    # Scratch of one operation, valid where `operation` is that operation's number (see OrderState.operations).
    uint64_t operation
    uint64_t raised_to          # the position for unrecorded work, 0: none yet
    size_t dependency           # index + 1 in the operation's list of dependencies, 0: none yet


cdef struct Dependency:
    # A stream has to be ordered after (source, position).
    StreamState* source
    uint64_t position
    uint32_t kind               # the latest EntryKind among the entries behind it: see `order_all_unlocks`


cdef struct OrderCounters:
    uint64_t elided             # waits left out because the stream or the host was ordered already
    uint64_t covered            # waits answered by a fence that was there
    uint64_t records            # fences recorded
    uint64_t waits              # stream waits queued
    uint64_t host_waits         # the host waited for a fence, or for the whole context


cdef cppclass OrderState:
    counted_mutex lock          # THE lock of a runtime: everything below, and all of CoreState
    bint is_recorded            # a history is
    uint32_t mark               # in events, of the order and its device: see next_mark
    uint32_t in_flight          # operations that hold on to streams while the lock is released: none may be deleted
    uint32_t discipline_changes
    cy.CUcontext context
    OrderCounters counters
    vector[StreamState*] streams
    cy.CUstream first           # the handle of streams[0], which stays: for those without the lock
    size_t settled              # index of the dead stream that was queried last: see `settle_tombstones_unlocks`
    vector[uint64_t] host_clock
    Policy policy
    uint32_t ring               # fences that a stream keeps
    uint64_t operations         # numbers the operations that use the streams' scratch
    EventPool* events
    uint64_t registrations      # numbers the streams
    atomic[StreamState*] idle   # own streams whose last Python handle is gone
    atomic[Fence*] released     # fences whose event of Python is gone
    atomic[uint32_t]* lost      # the marks of the runtime core that uses this, NULL without one; the GIL guards it
    bint wants_context_sync     # something was put off that only a wait for the whole context can be ordered after
    # What streams, and the host, cache in front of pools, if the core does that: see core/caches.pxi.
    void* core                  # NULL: it does not
    void (*close_cache)(void* core, StreamState* stream) noexcept nogil
    bint (*empty_caches)(void* core, void* pool, StreamState* stream) noexcept nogil
    uint64_t (*count_cached)(void* core, void* pool) noexcept nogil
    void* cached_pool           # whose memory streams have, and which says how much
    size_t caches_open
    atomic[size_t] cache_room   # bytes that each may have
    uint64_t capture            # of a graph that the order is of: its id; 0: it is of work that runs
    void* listed                # for the waits of other runtimes, see order/context.pxi; NULL: not in the list


cdef class Ordering:
    cdef OrderState state
    cdef readonly Context context
    cdef list remote_contexts   # which remote streams have events of
    cdef object registry        # weak reference to that of its foreign streams, or None
    cdef object core            # weak reference to the runtime core that uses this ordering, or None
    cdef int begin_core(self, object core) except -1


cdef inline uint64_t advance(StreamState* stream) noexcept nogil:
    """A new position; of a dead stream its last, which nothing can follow.  With the lock held."""
    if stream.alive:
        poke(stream.count, stream.count + 1)
    return stream.count


cdef inline uint64_t count_of(StreamState* stream) noexcept nogil:
    """How many positions were taken, without the lock.  Whatever the caller has queued on the stream comes before the
    next one: another thread that has taken it records on the stream afterwards, or this one would have seen it."""
    return peek(stream.count)


cdef inline void close_cache_locked(OrderState* order, StreamState* stream) noexcept nogil:
    """The stream keeps no memory that it freed any more."""
    if stream.cache.load() != NULL:
        order.close_cache(order.core, stream)


cdef inline bint empty_caches_locked(OrderState* order, void* pool, StreamState* stream) noexcept nogil:
    """What a stream (NULL: every stream, and the host) has cached of a pool (NULL: of each) goes to the pool.  Whether
    there was anything."""
    return order.core != NULL and order.empty_caches(order.core, pool, stream)


cdef inline uint64_t count_cached_locked(OrderState* order, void* pool) noexcept nogil:
    """Allocations from the caches in front of a pool (NULL: whichever), which does not see them."""
    return order.count_cached(order.core, pool) if order.core != NULL else 0


cdef inline bint is_of_former(StreamState* source, uint64_t position) noexcept nogil:
    """Whether a position on the index of `source` is that of a stream which had the index before.  The host has seen it
    complete, and what is true of `source` says nothing about it.  With the lock held."""
    return position <= source.begins_after


# Calls on the handle of a remote stream are made in its own context.
cdef int enter_remote(StreamState* stream, Scope* scope, Failure* failure) except -1 nogil
cdef int leave_remote(StreamState* stream, Scope* scope, int failed, Failure* failure) except -1 nogil
cdef int fail_elsewhere(int device, Failure* failure) except -1 nogil


cdef inline int enter_stream(StreamState* stream, Scope* scope, Failure* failure) except -1 nogil:
    """The context of the stream's device is current until `leave_stream`."""
    return enter_remote(stream, scope, failure) if unlikely(stream.remote) else 0


cdef inline int leave_stream(StreamState* stream, Scope* scope, int failed, Failure* failure) except -1 nogil:
    """After `enter_stream` did not fail.  Returns whether what was done meanwhile has failed."""
    return leave_remote(stream, scope, failed, failure) if unlikely(stream.remote) else failed


cdef inline int captures_another(OrderState* order, cy.CUstream handle, bint* capturing,
                                 Failure* failure) except -1 nogil:
    """Query whether a graph is captured on the stream with this handle, unless the order is the one of that capture.
    In such an order a stream that takes no part counts as capturing, too."""
    cdef uint64_t capture = 0
    if not unlikely(order.capture != 0):
        return stream_is_capturing(handle, capturing, failure)
    cdef int failed = capture_of(handle, &capture, failure)
    capturing[0] = capture != order.capture
    return failed


cdef inline int stream_captures(OrderState* order, StreamState* stream, bint* capturing,
                                Failure* failure) except -1 nogil:
    """Whether a graph is captured on a stream, on whichever device: see `captures_another`."""
    cdef Scope scope
    if enter_stream(stream, &scope, failure):
        return 1
    return leave_stream(stream, &scope, captures_another(order, stream.handle, capturing, failure), failure)


# Names that end in _locked and _unlocks: see _core.pxd.  The context is current where the lock is dropped.
cdef StreamState* own_stream_locked(OrderState* order, cy.CUstream handle) noexcept nogil
cdef StreamState* register_stream_locked(OrderState* order, cy.CUstream handle, Discipline discipline) noexcept nogil
cdef int change_discipline_unlocks(OrderState* order, StreamState* stream, Discipline discipline,
                                   Failure* failure) except -1 nogil
cdef int unregister_stream_unlocks(OrderState* order, StreamState* stream, StreamState* successor,
                                   Failure* failure) except -1 nogil
cdef int unregister_by_sync_unlocks(OrderState* order, StreamState* stream, StreamState* successor,
                                    Failure* failure) except -1 nogil
cdef int unregister_destroyed_unlocks(OrderState* order, StreamState* stream, StreamState* successor,
                                      Failure* failure) except -1 nogil
cdef int settle_tombstones_unlocks(OrderState* order) except -1 nogil
cdef void leave_foreign_streams_locked(OrderState* order, bint owners_live) noexcept nogil
cdef void leave_stream_locked(OrderState* order, StreamState* stream) noexcept nogil
cdef int release_tombstone_unlocks(OrderState* order, StreamState* stream, bint blocking,
                                   Failure* failure) except -1 nogil
cdef bint is_other_threads_default(StreamState* stream) noexcept nogil
cdef uint64_t this_thread() noexcept nogil
cdef uint64_t ident_of_thread(uint64_t number) noexcept nogil
cdef bint thread_is_alive(uint64_t number) noexcept nogil


cdef extern from *:
    """
    #include <cstdint>
    // In the thread's own block from the start: a read is two instructions.
    static thread_local uint64_t xlogmem_current __attribute__((tls_model("initial-exec"))) = 0;
    """
    uint64_t current "xlogmem_current"


cdef inline uint64_t current_thread() noexcept nogil:
    """`this_thread`, quickly."""
    global current
    if current == 0:
        current = this_thread()
    return current
cdef bint is_ordered_after_locked(OrderState* order, StreamState* stream, StreamState* source,
                                  uint64_t position) noexcept nogil
cdef Fence* covering(StreamState* source, uint64_t position) noexcept nogil
cdef Fence* fence_to_see(StreamState* source, uint64_t position) noexcept nogil
cdef int poll_unlocks(OrderState* order, StreamState* source, uint64_t position, Failure* failure) except -1 nogil
cdef bint see_done_unlocks(OrderState* order, StreamState* source, uint64_t position) except -1 nogil
cdef int record_fence_unlocks(OrderState* order, StreamState* source, Fence** fence, Failure* failure) except -1 nogil
cdef int order_after_unlocks(OrderState* order, StreamState* stream, StreamState* source, uint64_t position,
                             Failure* failure) except -1 nogil
cdef int order_after_itself_unlocks(OrderState* order, StreamState* stream, Failure* failure) except -1 nogil
cdef int order_or_sync_unlocks(OrderState* order, StreamState* stream, StreamState* source, uint64_t position,
                               Failure* failure) except -1 nogil
cdef bint has_no_owner(StreamState* stream) noexcept nogil
cdef bint is_unowned(StreamState* stream) noexcept nogil
cdef bint may_become_unowned(StreamState* stream) noexcept nogil
cdef bint needs_fence_now(StreamState* stream) noexcept nogil
cdef int fence_now_unlocks(OrderState* order, StreamState* stream) except -1 nogil
cdef bint needs_context_sync_locked(OrderState* order, StreamState* stream, StreamState* source,
                                    uint64_t position) noexcept nogil
cdef void hold_stream_locked(OrderState* order, StreamState* stream) noexcept nogil
cdef void release_stream_locked(OrderState* order, StreamState* stream) noexcept nogil
cdef bint has_several_devices() noexcept nogil
cdef int wait_for_calls_unlocks(OrderState* order, StreamState* stream) except -1 nogil
cdef void own_locked(OrderState* order, StreamState* stream) noexcept nogil
cdef void leave_owner_locked(OrderState* order, StreamState* stream) noexcept nogil
cdef bint forbid_context_sync(bint forbidden) noexcept nogil
cdef void disown_locked(OrderState* order, StreamState* stream) noexcept nogil
cdef int unlist_order(OrderState* order) except -1 nogil
cdef int sync_contexts_unlocks(OrderState* order, Failure* failure) except -1 nogil
cdef int host_wait_or_sync_unlocks(OrderState* order, StreamState* source, uint64_t position,
                                   Failure* failure) except -1 nogil
cdef int host_wait_unlocks(OrderState* order, StreamState* source, uint64_t position, Failure* failure) except -1 nogil
cdef int hold_fence_unlocks(OrderState* order, StreamState* source, Fence** fence, Failure* failure) except -1 nogil
cdef int order_after_fence_unlocks(OrderState* order, StreamState* stream, StreamState* source, Fence* fence,
                                   Failure* failure) except -1 nogil
cdef int host_wait_for_fence_unlocks(OrderState* order, StreamState* source, Fence* fence,
                                     Failure* failure) except -1 nogil
cdef int poll_fence_unlocks(OrderState* order, StreamState* source, Fence* fence, bint* done,
                            Failure* failure) except -1 nogil
cdef int poll_stream_unlocks(OrderState* order, StreamState* source, uint64_t position,
                             Failure* failure) except -1 nogil
cdef uint64_t note_order(OrderState* order, EventKind kind, StreamState* stream, StreamState* source,
                         uint64_t position) noexcept nogil
cdef int refuse_if_capturing_unlocks(OrderState* order, StreamState* stream, FailureKind kind,
                                     Failure* failure) except -1 nogil
cdef int refuse_capturing_sources_unlocks(OrderState* order, StreamState* stream, vector[Dependency]* dependencies,
                                          Failure* failure) except -1 nogil
cdef int order_all_unlocks(OrderState* order, StreamState* stream, vector[Dependency]* dependencies,
                           Failure* failure) except -1 nogil
