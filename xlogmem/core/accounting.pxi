# Accounting, lookup by address, and the end of a runtime.
#
# Freed bytes are *pending* until the host has seen their free complete: a marker holds the position taken after the
# frees were queued, and a reap releases the bytes of markers that the host is ordered after.  Behind a number of frees,
# or of bytes, a fence is recorded at once.  Live and pending bytes together change in one step, so that their sum is
# right at every moment.

from xlogmem._base.cpp cimport check, unlikely
from xlogmem._base.failures cimport LOST, NEEDS_CONTEXT_SYNC, NO_FAILURE, SOURCE_IS_CAPTURING
from xlogmem._base.index cimport NO_STREAM, Tracked, floor_of, next_above
from xlogmem._driver cimport Scope, enter_context, leave_context
from xlogmem._order cimport (
    Fence,
    advance,
    fence_to_see,
    forbid_context_sync,
    host_wait_or_sync_unlocks,
    host_wait_unlocks,
    is_ordered_after_locked,
    leave_foreign_streams_locked,
    poll_unlocks,
    record_fence_unlocks,
    release_tombstone_unlocks,
)
from xlogmem.resources.base cimport GuardTable, settle


cdef enum:
    MARKERS = 8                 # per stream, before those that one fence covers are coalesced
    FREES_PER_MARKER = 1024     # frees on a stream that share a marker, and its fence, at most
    BYTES_PER_FREE = 64 << 10   # bytes that count as one more of them


cdef enum Reaping:
    LOOK                        # by the fences that there are
    POLL                        # with a fence recorded now, where there is none
    WAIT


cdef inline bint file_marker_locked(CoreState* core, StreamState* home, Block* block) noexcept nogil:
    """Move live bytes to pending.  Frees share a marker until a fence is due behind them.  True if the fence is due."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t nbytes = block.nbytes
    cdef uint64_t weight = 1 + nbytes // <size_t>BYTES_PER_FREE
    cdef vector[Marker]* markers
    cdef Marker* marker
    if unlikely(home.index >= core.pending.size()):
        core.pending.resize(home.index + 1)
    markers = &core.pending[home.index]
    if unlikely(markers.empty() or markers.back().room == 0):
        begin_marker_locked(core, home)
    marker = &markers.back()
    marker.position = advance(home)
    marker.nbytes += nbytes
    core.pending_bytes += nbytes
    if unlikely(block.resource != core.resource):
        add_share(marker, block.resource, nbytes)
    if unlikely(weight >= marker.room):
        marker.room = 0
        return True
    marker.room -= weight
    return False


cdef void add_share(Marker* marker, ResourceTable* resource, uint64_t nbytes) noexcept nogil:
    """Note that bytes of a marker go to another resource than the runtime's own."""
    cdef Share share
    cdef size_t i
    for i in range(marker.shares.size()):
        if marker.shares[i].resource == resource:
            marker.shares[i].nbytes += nbytes
            return
    share.resource = resource
    share.nbytes = nbytes
    marker.shares.push_back(share)


cdef void settle_marker(CoreState* core, Marker* marker) noexcept nogil:
    """Settle bytes that are not pending any more, each at its resource."""
    cdef uint64_t own = marker.nbytes
    cdef size_t i
    for i in range(marker.shares.size()):
        settle(marker.shares[i].resource, marker.shares[i].nbytes)
        own -= marker.shares[i].nbytes
    settle(core.resource, own)


cdef void settle_pending(CoreState* core) noexcept nogil:
    """Settle all pending bytes, when a runtime ends: nothing will look for the end of their frees."""
    cdef size_t i, k
    for i in range(core.pending.size()):
        for k in range(core.pending[i].size()):
            settle_marker(core, &core.pending[i][k])


cdef void begin_marker_locked(CoreState* core, StreamState* home) noexcept nogil:
    """Add a marker without frees.  Older markers that one fence covers are coalesced, at the newer position: the host
    can only see them complete together.  So a stream has no more markers than fences."""
    check(core.order.lock.held(), "the lock is held")
    cdef vector[Marker]* markers = &core.pending[home.index]
    cdef Marker new
    cdef size_t i, k, kept = 0
    for i in range(1, markers.size() if markers.size() >= <size_t>MARKERS else 0):
        if fence_to_see(home, markers[0][kept].position) == fence_to_see(home, markers[0][i].position):
            markers[0][kept].position = markers[0][i].position
            markers[0][kept].nbytes += markers[0][i].nbytes
            for k in range(markers[0][i].shares.size()):
                add_share(&markers[0][kept], markers[0][i].shares[k].resource, markers[0][i].shares[k].nbytes)
        else:
            kept += 1
            markers[0][kept] = markers[0][i]
    if markers.size() >= <size_t>MARKERS:
        markers.resize(kept + 1)
    new.position = new.nbytes = 0
    new.room = FREES_PER_MARKER
    markers.push_back(new)


cdef int fence_for_marker_unlocks(CoreState* core, StreamState* home) except -1 nogil:
    """Record a fence right behind a number of frees, while the stream is known to be alive, so that a wait for them
    does not cover later work there.  A failure is ignored; a fence is recorded when it is needed."""
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef Failure ignored
    cdef Fence* fence
    cdef Scope scope
    cdef bint entered
    order.in_flight += 1
    home.busy += 1
    order.lock.unlock()
    entered = not enter_context(order.context, &scope, &ignored)    # a caller of the C table may have none
    order.lock.lock()
    if entered:
        mark_lost_if_sticky(core, record_fence_unlocks(order, home, &fence, &ignored), &ignored)
    home.busy -= 1
    order.in_flight -= 1
    if entered:
        order.lock.unlock()
        leave_context(&scope)
        order.lock.lock()
    return 0


cdef void release_seen_locked(CoreState* core, StreamState* home) noexcept nogil:
    """Subtract the pending bytes whose markers the host is ordered after."""
    check(core.order.lock.held(), "the lock is held")
    cdef vector[Marker]* markers = &core.pending[home.index]
    cdef uint64_t before = core.pending_bytes
    cdef size_t i, kept = 0
    for i in range(markers.size()):
        if is_ordered_after_locked(core.order, NULL, home, markers[0][i].position):
            check(core.pending_bytes >= markers[0][i].nbytes, "pending bytes are those of the markers")
            core.pending_bytes -= markers[0][i].nbytes
            settle_marker(core, &markers[0][i])
        else:
            markers[0][kept] = markers[0][i]
            kept += 1
    markers.resize(kept)
    if core.watched & BY_HISTORY and core.pending_bytes != before:
        note_reaped(core.order, home, before - core.pending_bytes)


cdef int reap(CoreState* core, bint blocking, bint with_guard, vector[Failure]* failures) except -1 nogil:
    """Release pending bytes.  Blocking: wait on the host for each stream's newest free first.  Otherwise: only those
    whose free is complete.  Every stream is visited; bytes whose wait failed stay pending, and the failure is reported.
    `with_guard`: report the findings of a guard too, before all else."""
    cdef OrderState* order = core.order
    cdef StreamState* home
    cdef Failure failure
    cdef Scope scope
    cdef size_t i
    cdef int failed
    if refuse_lost(core, &failure) or enter_context(order.context, &scope, &failure):
        failures.push_back(failure)
        return 0
    if blocking and mark_lost_if_sticky(core, release_exports_without_stream(core, &failure), &failure):
        failures.push_back(failure)
    if blocking:
        drain_lists(core)
    else:
        drain(core)
    order.lock.lock()
    order.in_flight += 1
    for i in range(order.streams.size()):
        home = order.streams[i]
        if i < core.pending.size() and not core.pending[i].empty():
            failed = reap_stream_unlocks(core, home, WAIT if blocking else POLL, &failure)
            if mark_lost_if_sticky(core, failed, &failure) and failure.kind != NEEDS_CONTEXT_SYNC:
                failures.push_back(failure)
            release_seen_locked(core, home)
        if mark_lost_if_sticky(core, release_tombstone_unlocks(order, home, blocking, &failure), &failure):
            failures.push_back(failure)
    order.in_flight -= 1
    if core.unreported or (core.requeued and core.dropped.load() != NULL):
        failures.push_back(core.unreported_failure)
        core.unreported_failure.kind = NO_FAILURE       # reported once: the caller owns the exception now
        core.unreported = False
        core.requeued = 0
    order.lock.unlock()
    if with_guard:
        reap_guard(core, blocking, failures)
    leave_context(&scope)
    return 0


cdef int reap_guard(CoreState* core, bint blocking, vector[Failure]* failures) except -1 nogil:
    """Report the findings of the guards of the memory.  Called without the lock."""
    cdef vector[ResourceTable*] resources
    cdef GuardTable* guard
    cdef Failure failure
    cdef size_t i
    copy_resources(core, &resources)
    for i in range(resources.size()):
        guard = resources[i].guard
        if guard != NULL and mark_lost_if_sticky(core, guard.reap(guard.self, blocking, &failure), &failure):
            raise_first(failures, &failure)
    return 0


cdef void raise_first(vector[Failure]* failures, Failure* failure) noexcept nogil:
    """Put the failure of a guard before all others: the first is raised, and the guard gives it away only once."""
    failures.push_back(failure[0])
    failures[0][failures.size() - 1] = failures[0][0]
    failures[0][0] = failure[0]


cdef int reap_stream_unlocks(CoreState* core, StreamState* home, Reaping how, Failure* failure) except -1 nogil:
    """Order the host after the frees of the stream: wait for the newest, or poll from the oldest on.  LOOK polls only
    positions that a fence covers: recording a fence would wait for a full queue.  On a stream that captures no fence
    can be recorded: a poll sees nothing complete there, and a wait fails."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t oldest
    if how != LOOK:
        core.pending[home.index].back().room = 0        # what is freed from now on is seen later
    if how == WAIT:
        return host_wait_or_sync_unlocks(core.order, home, core.pending[home.index].back().position, failure)
    while not core.pending[home.index].empty():
        oldest = core.pending[home.index][0].position
        if how == LOOK and fence_to_see(home, oldest) == NULL:
            break
        if poll_unlocks(core.order, home, oldest, failure):
            return failure.kind != SOURCE_IS_CAPTURING
        if not is_ordered_after_locked(core.order, NULL, home, oldest):
            break
        release_seen_locked(core, home)
    return 0


cdef bint look(CoreState* core) except -1 nogil:
    """Release what the device has completed, before figures are given.  Does not wait; bytes that cannot be queried
    stay pending.  True if bytes were released."""
    cdef OrderState* order = core.order
    cdef uint64_t before
    cdef Failure failure
    cdef Scope scope
    cdef size_t i
    if refuse_lost(core, &failure) or enter_context(order.context, &scope, &failure):
        return 0
    order.lock.lock()
    order.in_flight += 1
    before = core.pending_bytes
    for i in range(core.pending.size() if core.pending_bytes else 0):
        if not core.pending[i].empty():
            mark_lost_if_sticky(core, reap_stream_unlocks(core, order.streams[i], LOOK, &failure), &failure)
            release_seen_locked(core, order.streams[i])
    order.in_flight -= 1
    before -= core.pending_bytes
    order.lock.unlock()
    leave_context(&scope)
    return before != 0


cdef bint reap_fenced(CoreState* core) except -1 nogil:
    """Wait on the host for the frees that have a fence right behind them, and for no later work.  True if bytes were
    released.  The context is current."""
    cdef OrderState* order = core.order
    cdef uint64_t before, position
    cdef Failure ignored
    cdef size_t i, k
    order.lock.lock()
    order.in_flight += 1
    before = core.pending_bytes
    for i in range(core.pending.size()):
        position = 0
        for k in range(core.pending[i].size()):
            if fence_to_see(order.streams[i], core.pending[i][k].position) != NULL:
                position = core.pending[i][k].position
        if position:
            mark_lost_if_sticky(core, host_wait_unlocks(order, order.streams[i], position, &ignored), &ignored)
            release_seen_locked(core, order.streams[i])
    order.in_flight -= 1
    before -= core.pending_bytes
    order.lock.unlock()
    return before != 0


cdef int wait_for_pending(CoreState* core) except -1 nogil:
    """Wait on the host for the frees of this runtime, on behalf of another runtime that has exhausted a shared budget.
    Frees whose wait fails stay pending, and this runtime's own reap reports them."""
    cdef OrderState* order = core.order
    cdef bint before
    cdef Failure ignored
    cdef Scope scope
    cdef size_t i
    if refuse_lost(core, &ignored) or enter_context(order.context, &scope, &ignored):
        return 0
    before = forbid_context_sync(True)
    drain(core)
    order.lock.lock()
    order.in_flight += 1
    for i in range(core.pending.size()):
        if not core.pending[i].empty():
            mark_lost_if_sticky(core, reap_stream_unlocks(core, order.streams[i], WAIT, &ignored), &ignored)
            release_seen_locked(core, order.streams[i])
    order.in_flight -= 1
    order.lock.unlock()
    forbid_context_sync(before)
    leave_context(&scope)
    return 0


# ---------------------------------------------------------------------------------------------- several resources
cdef void set_resource(CoreState* core, ResourceTable* resource) noexcept nogil:
    """Set the resource of a runtime that begins."""
    core.resource = resource
    core.keeps_frontiers = resource.frontiers != NULL
    core.stack_depth = resource.stack_depth


cdef void add_resource(CoreState* core, ResourceTable* resource) noexcept nogil:
    """Add a resource to the runtime's own.  The caller has the GIL, and waits for the lock all the same, as `watch`
    does."""
    core.order.lock.lock()
    core.others.push_back(resource)
    core.keeps_frontiers |= resource.frontiers != NULL
    if core.stack_depth < resource.stack_depth:
        core.stack_depth = resource.stack_depth
    core.order.lock.unlock()


cdef void copy_resources(CoreState* core, vector[ResourceTable*]* resources) noexcept nogil:
    """Copy the list of all resources, the runtime's own first, for work without the lock."""
    cdef size_t i
    resources.push_back(core.resource)
    core.order.lock.lock()
    for i in range(core.others.size()):
        resources.push_back(core.others[i])
    core.order.lock.unlock()


cdef bint is_kept_by_guard(CoreState* core, uint64_t ptr, uint64_t generation) noexcept nogil:
    """True if a guard keeps the freed memory of this block.  Called in a section of the `Core`."""
    cdef GuardTable* guard = core.resource.guard
    cdef size_t i
    if guard != NULL and guard.keeps(guard.self, ptr, generation):
        return True
    for i in range(core.others.size()):
        guard = core.others[i].guard
        if guard != NULL and guard.keeps(guard.self, ptr, generation):
            return True
    return False


cdef void report_refused_free_locked(CoreState* core, uint64_t ptr, Label* stack) noexcept nogil:
    """Report a free where nothing is alive to the guards: one that keeps memory there notes it."""
    check(core.order.lock.held(), "the lock is held")
    cdef GuardTable* guard = core.resource.guard
    cdef size_t i
    if guard != NULL:
        guard.refused(guard.self, ptr, stack)
    for i in range(core.others.size()):
        guard = core.others[i].guard
        if guard != NULL:
            guard.refused(guard.self, ptr, stack)


# ---------------------------------------------------------------------------------------------- lookup and end
cdef inline void fill_found_locked(OrderState* order, uint64_t base, Tracked* known, Found* found) noexcept nogil:
    """Fill in the result of a lookup, as plain data."""
    check(order.lock.held(), "the lock is held")
    found.ptr = base
    found.generation = known.generation
    found.nbytes = known.nbytes
    found.slot = known.slot
    found.stream = NULL
    if known.stream != <uint32_t>NO_STREAM:             # its index is not reused while it has blocks
        found.stream = order.streams[known.stream]


cdef bint find_by_address_locked(CoreState* core, uint64_t ptr, Found* found) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t base
    cdef Tracked* known = floor_of(&core.index, ptr, &base)
    if unlikely(known == NULL or ptr - base >= known.nbytes):
        known = floor_of(&core.index, ptr, &base) if bring_in_all_locked(core) else NULL
        if known == NULL or ptr - base >= known.nbytes:
            return False
    fill_found_locked(core.order, base, known, found)
    return True


cdef bint find_from_locked(CoreState* core, uint64_t ptr, uint64_t last, Found* found) noexcept nogil:
    """Find the block that contains an address, or else the first that begins above it, up to `last`."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t base
    cdef Tracked* above
    if find_by_address_locked(core, ptr, found):
        return True
    above = next_above(&core.index, ptr, &base)
    if above == NULL or base > last:
        return False
    fill_found_locked(core.order, base, above, found)
    return True


cdef Block* block_at(CoreState* core, uint32_t slot) noexcept nogil:
    """Return the structure in a slot; it is never moved."""
    cdef Block* block
    core.order.lock.lock()
    block = core.blocks[slot]
    core.order.lock.unlock()
    return block


cdef bint tear_down(CoreState* core, bint handles_are_gone, bint owners_live, bint may_sync) except -1 nogil:
    """Free the remaining blocks.  The first call, from the finalizer of an object to which handles in the same cycle
    may still refer, frees the dropped blocks.  The second, when no handle of a block, a stream or a recorder exists any
    more, frees everything.  True if a free has to be put off: it waits for the end of a capture or, unless the caller
    `may_sync`, for the whole context."""
    cdef bint before
    cdef bint more = False
    cdef Failure ignored
    cdef Scope scope
    if handles_are_gone:
        core.order.lock.lock()
        stop_caches_locked(core)                        # on a lost device, too: the streams and the pool may go on
        core.order.lock.unlock()
    if core.marks.load() & LOST or enter_context(core.order.context, &scope, &ignored):
        return 0
    before = forbid_context_sync(not may_sync)
    core.order.lock.lock()
    leave_foreign_streams_locked(core.order, owners_live)
    core.order.lock.unlock()
    release_exports_without_stream(core, &ignored)
    drain_lists(core)
    if handles_are_gone:
        drop_live_blocks(core)
        drain_lists(core)
    more = end_resources(core)
    forbid_context_sync(before)
    leave_context(&scope)
    return more or core.dropped.load() != NULL or not core.returned_without_stream.empty()


cdef bint end_resources(CoreState* core) except -1 nogil:
    """Have all resources of a runtime that ends return the memory that they keep.  True if something is left."""
    cdef vector[ResourceTable*] resources
    cdef GuardTable* guard
    cdef bint more = False
    cdef size_t i
    copy_resources(core, &resources)
    for i in range(resources.size()):
        if resources[i].frontiers != NULL and resources[i].frontiers.end(resources[i].self):
            more = True
        guard = resources[i].guard
        if guard != NULL and guard.end(guard.self):
            more = True
    return more


cdef int drop_live_blocks(CoreState* core) except -1 nogil:
    """Defer the free of each live block: callers of the C table did not free it, or freed it on a stream that could not
    be identified.  Nothing refers to these blocks now."""
    cdef size_t i
    core.order.lock.lock()
    for i in range(core.blocks.size()):
        if core.blocks[i].state == LIVE and core.blocks[i].generation:
            defer_free(core, core.blocks[i])
    core.order.lock.unlock()
    return 0


cdef void hand_over(CoreState* core, CoreState* target) noexcept nogil:
    """Move the state that remains after `tear_down` to `target`: nothing else refers to it."""
    target.order = core.order
    target.resource = core.resource
    target.others = core.others
    target.keeps_frontiers = core.keeps_frontiers
    target.live_bytes = core.live_bytes
    target.live_blocks = core.live_blocks
    target.pending_bytes = core.pending_bytes
    target.pending = core.pending
    target.empty = core.empty
    target.blocks = core.blocks
    target.parts = core.parts
    target.spare_parts = core.spare_parts
    target.index = core.index
    target.returned_without_stream = core.returned_without_stream
    target.dropped.store(core.dropped.exchange(NULL))
    core.blocks.clear()
    core.parts.clear()
    core.spare_parts.clear()
    core.index.guides.clear()
    core.index.spare.clear()
    core.index.slabs.clear()
