# Accounting, lookup by address, and the end of a runtime.
#
# Freed bytes are *pending* until the host has seen their free complete: a marker holds the position taken after the
# free was queued, and a reap releases the bytes of markers that the host is ordered after.  Live and pending bytes
# together change in one step, so that their sum is right at every moment.

cdef void file_marker_locked(CoreState* core, StreamState* home, size_t nbytes) noexcept nogil:
    """Live bytes become pending.  A stream keeps a bounded number of markers: adjacent ones are merged, on the newer
    position."""
    check(core.order.lock.held(), "the lock is held")
    cdef vector[Marker]* markers
    cdef Marker* marker
    cdef size_t i
    if unlikely(home.index >= core.pending.size()):
        core.pending.resize(home.index + 1)
    markers = &core.pending[home.index]
    if unlikely(markers.size() >= MARKERS):
        for i in range(<size_t>MARKERS // 2):
            marker = &markers[0][2 * i]
            markers[0][i].position = marker[1].position
            markers[0][i].nbytes = marker[0].nbytes + marker[1].nbytes
        markers.resize(MARKERS // 2)
    marker = &markers.emplace_back()
    marker.position = advance(home)
    marker.nbytes = nbytes
    core.pending_bytes += nbytes


cdef void release_seen_locked(CoreState* core, StreamState* home) noexcept nogil:
    """Subtract the pending bytes whose markers the host is ordered after."""
    check(core.order.lock.held(), "the lock is held")
    cdef vector[Marker]* markers = &core.pending[home.index]
    cdef size_t i, kept = 0
    for i in range(markers.size()):
        if is_ordered_after_locked(core.order, NULL, home, markers[0][i].position):
            check(core.pending_bytes >= markers[0][i].nbytes, "pending bytes are those of the markers")
            core.pending_bytes -= markers[0][i].nbytes
        else:
            markers[0][kept] = markers[0][i]
            kept += 1
    markers.resize(kept)


cdef int reap(CoreState* core, bint blocking, vector[Failure]* failures) except -1 nogil:
    """Release pending bytes.  Blocking: wait on the host for each stream's newest free first.  Otherwise: only those
    whose free is complete.  Every stream is visited; what failed stays pending and is reported."""
    cdef OrderState* order = core.order
    cdef StreamState* home
    cdef Failure failure
    cdef Scope scope
    cdef size_t i
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
            if (mark_lost_if_sticky(core, reap_stream_unlocks(core, home, blocking, &failure), &failure)
                    and failure.kind != NEEDS_CONTEXT_SYNC):
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
    leave_context(&scope)
    return 0


cdef int reap_stream_unlocks(CoreState* core, StreamState* home, bint blocking, Failure* failure) except -1 nogil:
    """Order the host after the frees of the stream: wait for the newest, or poll from the oldest on."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t oldest
    if blocking:
        return host_wait_or_sync_unlocks(core.order, home, core.pending[home.index].back().position, failure)
    while not core.pending[home.index].empty():
        oldest = core.pending[home.index][0].position
        if poll_unlocks(core.order, home, oldest, failure):
            return 1
        if not is_ordered_after_locked(core.order, NULL, home, oldest):
            break
        release_seen_locked(core, home)
    return 0


# ---------------------------------------------------------------------------------------------- lookup and end
cdef inline void fill_found_locked(OrderState* order, uint64_t base, Tracked* known, Found* found) noexcept nogil:
    """What a lookup found, as plain data."""
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
    if known == NULL or ptr - base >= known.nbytes:
        return False
    fill_found_locked(core.order, base, known, found)
    return True


cdef Block* block_at(CoreState* core, uint32_t slot) noexcept nogil:
    """The structure in a slot, which is never moved."""
    cdef Block* block
    core.order.lock.lock()
    block = core.blocks[slot]
    core.order.lock.unlock()
    return block


cdef bint tear_down(CoreState* core, bint handles_are_gone, bint owners_live, bint may_sync) except -1 nogil:
    """Free what is left.  First for finalizers of an object that handles in the same cycle may still refer to: what was
    dropped.  Then, when no handle of a block, a stream or a recorder exists any more, everything.  Returns whether
    something has to be put off: what waits for the end of a capture, or, unless the caller `may_sync`, for the whole
    context."""
    cdef bint before
    cdef bint more = False
    cdef Failure ignored
    cdef Scope scope
    if core.lost.load() or enter_context(core.order.context, &scope, &ignored):
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
    if core.resource.frontiers != NULL:
        more = core.resource.frontiers.end(core.resource.self)
    forbid_context_sync(before)
    leave_context(&scope)
    return more or core.dropped.load() != NULL or not core.returned_without_stream.empty()


cdef int drop_live_blocks(CoreState* core) except -1 nogil:
    """What callers of the C table did not free, or on a stream that could not be identified: nothing names it now."""
    cdef size_t i
    core.order.lock.lock()
    for i in range(core.blocks.size()):
        if core.blocks[i].state == LIVE and core.blocks[i].generation:
            defer_free(core, core.blocks[i])
    core.order.lock.unlock()
    return 0


cdef void hand_over(CoreState* core, CoreState* target) noexcept nogil:
    """What is left after `tear_down` gets another place: nothing else refers to it."""
    target.order = core.order
    target.resource = core.resource
    target.live_bytes = core.live_bytes
    target.live_blocks = core.live_blocks
    target.pending_bytes = core.pending_bytes
    target.pending = core.pending
    target.empty = core.empty
    target.blocks = core.blocks
    target.index = core.index
    target.returned_without_stream = core.returned_without_stream
    target.dropped.store(core.dropped.exchange(NULL))
    core.blocks.clear()
    core.index.guides.clear()
    core.index.spare.clear()
    core.index.slabs.clear()
