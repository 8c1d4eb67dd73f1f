# After a launch: its position is filed in every block, the windows close, retired blocks are claimed for their free.
#
# Filing never fails and makes no driver call (`file_window_locked`).  The work that may need the driver comes after it
# (`finish_rest`): a fence that is recorded at once, the hand-back, the frees that the last close carries out.

from xlogmem._base.cpp cimport check, unlikely
from xlogmem._base.failures cimport BLOCK_IS_STALE, STREAM_IS_CAPTURING, STREAM_IS_DEAD, fail_block, fail_stream
from xlogmem._driver cimport Scope, enter_context, leave_context
from xlogmem._order cimport (
    ADAPTIVE,
    HAS_READ,
    OPAQUE,
    ORDINARY,
    PRECISE,
    WRITTEN,
    Fence,
    Policy,
    advance,
    fence_now_unlocks,
    host_wait_unlocks,
    is_of_former,
    is_other_threads_default,
    is_unowned,
    may_become_unowned,
    needs_fence_now,
    note_order,
    order_after_unlocks,
    record_fence_unlocks,
    refuse_if_capturing_unlocks,
)
from xlogmem.observe._history cimport HANDED_BACK


cdef inline bint may_file_plainly(StreamState* stream) noexcept nogil:
    """True if filing a plain use needs no closer look at its stream."""
    return stream.alive and stream.discipline != OPAQUE and stream.unrecorded_until == 0


cdef inline bint file_plainly(StreamState* stream, uint64_t position, Use* use) noexcept nogil:
    """File a use as `file_use_locked` does, in short: for plain uses of blocks whose home needs no hand-back, where the
    new entry replaces an existing one.  False, with nothing done, if the use is not of this kind."""
    cdef Block* block = use.block
    cdef StreamState* home = block.home
    cdef Entry* entry
    cdef size_t i
    if home != stream and (home == NULL or home.discipline == OPAQUE or not home.alive):
        return False
    if unlikely(block.exported != 0) or (block.fresh and block.stream != stream):
        return False
    if use.access & WRITE:
        if block.frontier.size() != 1:
            return False
        entry = &block.frontier[0]
        if entry.stream != stream.index or entry.position > position:
            return False
        entry.kind = WRITTEN
        entry.position = position
        note_writer(block, stream)
        return True
    for i in range(block.frontier.size()):
        entry = &block.frontier[i]
        if entry.stream == stream.index and entry.kind == HAS_READ:
            entry.position = position
            return True
    return False


cdef void file_use_locked(CoreState* core, Window* window, Use* use) noexcept nogil:
    """File one use: a write removes its unchanged snapshot, then the new entry is set.  A plain write removes the
    entries of its own stream, which the new entry stands for; entries that other streams have filed meanwhile stay."""
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef StreamState* stream = window.stream
    cdef StreamState* source
    cdef Entry* seen
    cdef size_t i
    if unlikely(stream != use.block.stream and use.block.fresh) and not window.has_ended_freshness:
        end_freshness_locked(order, window)
    if use.plain:
        if use.access & WRITE and stream.discipline != OPAQUE and use.block.exports.empty():
            remove_own_entries(use.block, stream.index, window.position)
    elif use.access & WRITE:
        for i in range(use.first, use.end):
            seen = &window.snapshot[i]
            source = order.streams[seen.stream]
            if not use.block.exports.empty() and is_exported(use.block, source):
                if source.alive or seen.position < source.count:
                    continue                            # more may stand behind it
                end_exports_of_dead_stream(use.block, source)
            if source.discipline != OPAQUE or is_of_former(source, seen.position):
                remove_entry(use.block, seen)
    file_access(use.block, stream, use.access, window.position)
    if use.access & WRITE:
        note_writer(use.block, stream)
    add_handbacks(window, use)


cdef inline void note_writer(Block* block, StreamState* stream) noexcept nogil:
    """Note the stream of the newest use that wrote."""
    block.writer = stream.number + 1
    if unlikely(block.whole != NULL):
        block.whole.writer = block.writer


cdef void end_freshness_locked(OrderState* order, Window* window) noexcept nogil:
    """End the freshness of blocks at their first use elsewhere.  Until now unrecorded work could be queued on their own
    streams, also inside the window, where the launch is not ordered after it.  So entries there are raised to a new
    position, one for each stream, and no write removes them.  Sealed streams have no such work; entries of opaque
    streams are always raised; those of a stream that may be destroyed stay as they were when the window opened.  A
    block, or a part, of which the launch names some bytes alone stays fresh: the others may still be filled."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* source
    cdef Block* block
    cdef size_t i, k
    order.operations += 1
    window.has_ended_freshness = True
    for i in range(window.uses.size()):
        block = window.uses[i].block
        source = block.stream
        if not block.fresh or source == window.stream:
            continue
        if source == NULL or may_become_unowned(source) or names_all_of_block(window, block):
            block.fresh = False
        if source == NULL or source.discipline != ORDINARY or is_unowned(source):     # NULL: evicted meanwhile
            continue
        claim_scratch(source, order.operations)
        if source.raised_to == 0:
            source.raised_to = advance(source)
        for k in range(block.frontier.size()):
            if block.frontier[k].stream == source.index:
                block.frontier[k].position = source.raised_to


cdef void keep_changed_entries_locked(OrderState* order, Window* window) noexcept nogil:
    """Keep the entries of a stream whose discipline changed while the window was open: they may have more unrecorded
    work behind them than the launch was ordered after."""
    check(order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(window.snapshot.size()):
        if window.snapshot[i].position < order.streams[window.snapshot[i].stream].unrecorded_until:
            window.snapshot[i].position = 0             # no entry has this one


cdef inline void add_handbacks(Window* window, Use* use) noexcept nogil:
    """Note for the hand-back the streams whose next work on the block may be unrecorded: an opaque home, and the
    streams that the block is exported to, unless they may be destroyed.  Noted now, because the block may be freed once
    the window is closed."""
    cdef StreamState* home = resolve_home(use.block)
    cdef Block* block = whole_of(use.block)
    cdef size_t i
    if home != NULL and home.discipline == OPAQUE:
        add_handback(window, use, home)
    if unlikely(not block.exports.empty()):
        for i in range(block.exports.size()):
            if not is_unowned(block.exports[i].stream):
                add_handback(window, use, block.exports[i].stream)


cdef void add_handback(Window* window, Use* use, StreamState* stream) noexcept nogil:
    """Note a stream for the hand-back, once for each launch."""
    cdef Dependency entry
    cdef size_t i
    if stream == window.stream or (window.hand_back == HAND_BACK_WRITES and not use.access & WRITE):
        return
    for i in range(window.homes.size()):
        if window.homes[i].source == stream:
            return
    entry.source = stream
    entry.position = window.position
    entry.kind = WRITTEN
    window.homes.push_back(entry)


cdef inline void take_position_locked(CoreState* core, Window* window) noexcept nogil:
    """Take one position for the launch, and decide if its fence is recorded at once."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamState* stream = window.stream
    cdef Policy policy = core.order.policy
    core.counters.uses += 1
    window.position = advance(stream)
    if unlikely(window.discipline_changes != core.order.discipline_changes):
        keep_changed_entries_locked(core.order, window)
    window.record = policy == PRECISE or stream.unowned         # order/unowned.pxi
    if policy == ADAPTIVE and unlikely(stream.eager_commits != 0):
        stream.eager_commits -= 1
        window.record |= window.uses.empty() or not window.uses[0].block.fresh or serves_waits(window)


cdef bint serves_waits(Window* window) noexcept nogil:
    """True if a fence right behind a launch can serve a later wait.  It cannot where unrecorded work may stand behind
    every use, as behind those of new blocks: the next stream raises these entries, and needs a newer fence."""
    cdef size_t i
    for i in range(window.uses.size()):
        if not may_have_unrecorded_work(window.uses[i].block, window.stream):
            return True
    return False


cdef inline void close_use_locked(CoreState* core, Window* window, Use* use) noexcept nogil:
    """Close the window on a block, and claim it if it is retired and this was its last one.  A use of a part becomes
    one of its block: the part may end."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block = use.block
    check(block.windows > 0, "a window that closes was open")
    check(block.state == LIVE or block.state == RETIRED or block.generation == 0,
          "a block is not freed inside a window")
    close_on(use)
    if unlikely(block.whole != NULL):
        use.block = block = leave_part_locked(core, block)
    if unlikely(block.state == RETIRED) and block.windows == 0 and block.pins == 0:
        block.state = FREEING                           # claimed in this acquisition: no other thread frees it
        window.claimed.push_back(block)


cdef void file_exports_in_use_locked(Window* window) noexcept nogil:
    """File, for a use in which nothing was launched, the work of libraries that still hold what the use exported to
    them: later users find an export's stream by its entry."""
    cdef Block* block
    cdef size_t i
    for i in range(window.uses.size()):
        block = whole_of(window.uses[i].block)
        if unlikely(not block.exports.empty()) and is_exported(block, window.stream):
            file_access(block, window.stream, window.uses[i].access, advance(window.stream))


cdef inline void file_at_once_locked(CoreState* core, Window* window) noexcept nogil:
    """File a launch, and close its uses, where nothing has changed since `open_plain_uses_locked` has looked: each use
    replaces one entry, and is the only one of its block."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t position = window.position, writer = window.stream.number + 1
    cdef Use* use = window.uses.data()
    cdef Use* end = use + window.uses.size()
    cdef Block* block
    cdef Entry* entry
    while use != end:
        block = use.block
        check(block.windows == 1 and (block.state == LIVE or block.generation == 0),       # evicted by one that follows
              "nothing has changed since the window was opened")
        entry = &block.frontier[use.first]
        entry.position = position
        block.windows = 0
        if use.access & WRITE:
            entry.kind = WRITTEN
            block.writer = writer
            block.writers = 0
        use += 1


cdef bint file_window_locked(CoreState* core, Window* window, Outcome outcome) noexcept nogil:
    """Close the windows and file the launch, or forget it if nothing was launched.  True if `finish_rest` has to
    follow."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamState* stream = window.stream
    cdef bint launched = outcome == LAUNCHED
    cdef bint plainly = launched and may_file_plainly(stream)
    cdef uint64_t position
    cdef Use* use
    if unlikely(core.watched):
        report_close_locked(core, window, outcome)
    window.is_open = False
    window.record = False
    window.has_ended_freshness = False
    window.homes.clear()
    window.claimed.clear()
    if launched:
        take_position_locked(core, window)
    elif outcome == CANCELLED:
        core.counters.cancelled += 1
        file_exports_in_use_locked(window)
    position = window.position
    use = window.uses.data()
    if launched and window.turn + 1 == core.order.lock.turn:
        file_at_once_locked(core, window)
        use += window.uses.size()
    while use != window.uses.data() + window.uses.size():
        if launched and not (plainly and use.plain and file_plainly(stream, position, use)):
            file_use_locked(core, window, use)
        close_use_locked(core, window, use)
        use += 1
    stream.windows -= 1
    if unlikely(core.waiting != NULL):
        wake_after_close_locked(core, window)
    if not (window.record or not window.homes.empty() or not window.claimed.empty()):
        return False
    stream.busy += 1                                    # instead of the window, until `finish_rest` is done
    core.order.in_flight += 1
    return True


# ---------------------------------------------------------------------------------------------- driver calls
cdef int finish_rest(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Make the driver calls that follow a filing: the fence, the hand-back, the claimed frees.

    A fence that cannot be recorded now is recorded when it is needed.  A free that fails is tried again by the next
    operation.  Only a hand-back that failed on the stream and on the host is a failure, which is reported after
    everything else is done.
    """
    cdef OrderState* order = core.order
    cdef Failure ignored
    cdef Fence* fence
    cdef Scope scope
    cdef size_t i
    cdef int failed = enter_context(order.context, &scope, failure)
    cdef bint entered = not failed
    order.lock.lock()
    if failed:                                          # the claimed frees are kept for a later operation
        for i in range(window.claimed.size()):
            requeue_free_locked(core, window.claimed[i], failure)
        failed = not window.homes.empty()
    else:
        if window.record and <bint>window.stream.alive and not is_other_threads_default(window.stream):
            mark_lost_if_sticky(core, record_fence_unlocks(order, window.stream, &fence, &ignored), &ignored)
        for i in range(window.homes.size()):
            if order_home_after_unlocks(order, &window.homes[i], window.stream, &ignored if failed else failure):
                failed = 1
        for i in range(window.claimed.size()):
            free_deferred_unlocks(core, window.claimed[i])
    window.stream.busy -= 1
    order.in_flight -= 1
    order.lock.unlock()
    if entered:
        leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int order_home_after_unlocks(OrderState* order, Dependency* home, StreamState* stream,
                                  Failure* failure) except -1 nogil:
    """The hand-back: order a stream (`home.source`) after a use on `stream` at `home.position`.  If that wait cannot be
    queued the host waits, so that all later work on `home.source` is ordered; it cannot wait for captured work."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* source = home.source
    cdef uint64_t position = home.position
    cdef int failed = 1
    if not source.alive:
        return 0                                        # unregistered meanwhile: no unrecorded work there any more
    if order.is_recorded:
        note_order(order, HANDED_BACK, source, stream, position)
    if not is_other_threads_default(source):
        source.busy += 1
        failed = (refuse_if_capturing_unlocks(order, source, STREAM_IS_CAPTURING, failure)
                  or order_after_unlocks(order, source, stream, position, failure))
        source.busy -= 1
    if failed and not order.capture:
        failed = host_wait_unlocks(order, stream, position, failure)
    return failed


# ---------------------------------------------------------------------------------------------- work without a window
cdef int record_use(CoreState* core, Request* request, StreamState* stream, Failure* failure) except -1 nogil:
    """File work that is queued already and was not prepared: it removes nothing and keeps the block fresh.  Unknown
    access counts as written, so that later readers are ordered after it too.  On a retired block the work is filed,
    then the call fails.  Work on a capturing stream is not queued before its graph is launched, and is refused, as in
    `prepare`."""
    cdef OrderState* order = core.order
    cdef Block* block
    cdef Scope scope
    cdef bint known
    cdef int failed = 0
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    if not is_other_threads_default(stream) and refuse_stream(core, stream, failure):
        leave_context(&scope)
        return mark_lost_if_sticky(core, 1, failure)
    order.lock.lock()
    block = core.blocks[request.slot] if request.slot < core.blocks.size() else NULL
    known = (block != NULL and is_still_locked(core, block, request.generation)
             and block.state in (LIVE, RETIRED))
    if not stream.alive:
        failed = fail_stream(failure, STREAM_IS_DEAD, stream.number)
    elif known:
        file_unprepared_unlocks(order, block, stream, request.access)
    if not failed and (not known or block.state == RETIRED):
        failed = fail_block(failure, BLOCK_IS_STALE, request.generation, 0)
    order.lock.unlock()
    leave_context(&scope)
    return failed


cdef int file_unprepared_unlocks(OrderState* order, Block* block, StreamState* stream, uint32_t access) except -1 nogil:
    """File the entry of `record_use`; on an unowned stream its fence is recorded at once."""
    check(order.lock.held(), "the lock is held")
    file_access(block, stream, access, advance(stream))
    if order.is_recorded:
        note_work(order, block, stream, access)
    if access != READ:
        block.writer = stream.number + 1
    if needs_fence_now(stream):
        fence_now_unlocks(order, stream)
    return 0
