# Before a launch: one window opens over all its blocks, then the missing waits are queued.
#
# Deferred work of finalizers is done first, and the capture status of the stream is queried.  Then everything is
# validated and the windows are opened in one acquisition of the lock, before any wait is queued.  From then on no block
# of the launch can be freed, so the waits may be queued without the lock.

from xlogmem._base.cpp cimport check, make_new, unlikely
from xlogmem._base.failures cimport (
    BLOCK_IS_STALE,
    STREAM_IS_CAPTURING,
    STREAM_IS_DEAD,
    fail_block,
    fail_gone,
    fail_stream,
)
from xlogmem._driver cimport PER_THREAD, Scope, enter_context, leave_context
from xlogmem._order cimport (
    ALLOCATED,
    HAS_READ,
    captures_another,
    order_all_unlocks,
    refuse_capturing_sources_unlocks,
    stream_captures,
)


# ---------------------------------------------------------------------------------------------- windows in reserve
cdef Window* take_window(CoreState* core) noexcept nogil:
    """Take a window from the reserve, or make a new one; it is empty and closed."""
    cdef Window* window
    core.windows_lock.lock()
    if not core.spare_windows.empty():
        window = core.spare_windows.back()
        core.spare_windows.pop_back()
    else:
        window = make_new[Window]()                     # all zero
        window.is_open = window.is_waiting = False
        window.place = core.windows.size()
        core.windows.push_back(window)
    core.windows_lock.unlock()
    window.requests.clear()
    window.ranges.clear()
    return window


cdef void return_window(CoreState* core, Window* window) noexcept nogil:
    """Return a window to the reserve, or delete it."""
    check(not window.is_open and not window.is_waiting, "a window that is returned is closed")
    window.is_graphs = False
    core.windows_lock.lock()
    if core.spare_windows.size() < RESERVE:
        core.spare_windows.push_back(window)
        window = NULL
    else:
        core.windows[window.place] = core.windows.back()
        core.windows[window.place].place = window.place
        core.windows.pop_back()
    core.windows_lock.unlock()
    if window != NULL:
        del window


# ---------------------------------------------------------------------------------------------- refusals
cdef int refuse_stream(CoreState* core, StreamState* stream, Failure* failure) except -1 nogil:
    """Refuse to work on a stream that was unregistered or is capturing."""
    cdef bint capturing = False
    if not stream.alive:
        return fail_stream(failure, STREAM_IS_DEAD, stream.number)
    if stream_captures(core.order, stream, &capturing, failure):
        return fail_gone(failure, <uint64_t>stream.handle)
    if capturing:
        return fail_stream(failure, STREAM_IS_CAPTURING, stream.number)
    return 0


# ---------------------------------------------------------------------------------------------- validation
cdef inline Block* find_live_locked(CoreState* core, uint32_t slot, uint64_t generation) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block
    if slot >= core.blocks.size():
        return NULL
    block = core.blocks[slot]
    if not is_still_locked(core, block, generation):
        return NULL
    return block if block.state == LIVE else NULL


cdef int merge_and_validate_locked(CoreState* core, Window* window, uint64_t operation,
                                   Failure* failure) noexcept nogil:
    """Merge requests into one use for each block, in the order in which the blocks were first named, and then for each
    part that a range reaches; nothing else changes."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i, ranges = 0
    cdef Request* request
    cdef Block* block
    window.uses.clear()
    for i in range(window.requests.size()):
        if ranges < window.ranges.size() and window.ranges[ranges].request == i:
            ranges += 1                                 # below, as a use of all of the block joins its parts
            continue
        request = &window.requests[i]
        block = find_live_locked(core, request.slot, request.generation)
        if block == NULL and window.is_graphs:
            block = find_pinned_locked(core, request.slot, request.generation)
        if block == NULL:
            return fail_block(failure, BLOCK_IS_STALE, request.generation, i + 1)
        use_block(window, block, request.access, operation)
    for i in range(ranges):
        if use_range_or_block_locked(core, window, &window.ranges[i], operation, failure):
            return 1
    return 0


cdef int use_range_or_block_locked(CoreState* core, Window* window, ByteRange* wanted, uint64_t operation,
                                   Failure* failure) noexcept nogil:
    """Note the use of a range, or of all of its block, where that has no parts."""
    check(core.order.lock.held(), "the lock is held")
    cdef Request* request = &window.requests[wanted.request]
    cdef Block* block = core.blocks[request.slot] if request.slot < core.blocks.size() else NULL
    if block == NULL or not (is_in_parts(block) or is_still_locked(core, block, request.generation)) or (
            block.generation != request.generation or block.state != LIVE):
        return fail_block(failure, BLOCK_IS_STALE, request.generation, wanted.request + 1)
    if not use_range_locked(core, window, block, wanted, request.access, operation):
        is_still_locked(core, block, request.generation)    # joins parts
        use_block(window, block, request.access, operation)
    return 0


cdef inline bint may_be_contested_locked(CoreState* core, Window* window) noexcept nogil:
    """A quick test: False if no conflicting window can be open on another stream, or wait to be opened."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Use* use
    for i in range(window.uses.size()):
        use = &window.uses[i]
        if (use.block.windows and use.block.window_stream != window.stream
                and (use.access & WRITE or use.block.writers)):
            return True
    return core.waiting != NULL


# ---------------------------------------------------------------------------------------------- opening
cdef int prepare(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Open one window over all blocks of a launch.

    If a wait cannot be queued, the windows close as in a cancel.  The waits that were queued stay known, so a second
    try does not repeat them.
    """
    cdef Scope scope
    cdef int failed
    if not has_deferred_work(core) and prepare_plainly(core, window):
        return 0
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    failed = refuse_stream(core, window.stream, failure)
    if not failed:
        failed = open_window(core, window, failure)
        if unlikely(failed) and window.is_waiting:
            failed = wait_and_open(core, window, failure)
    if core.marks.load() and not failed:
        report_opening(core, window)
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef bint prepare_plainly(CoreState* core, Window* window) except -1 nogil:
    """Open the window of a launch that has nothing to wait for, on a stream whose handle means the same in every
    context.  Returns False, with nothing done, otherwise."""
    cdef bint capturing = False, plain
    cdef Failure ignored
    if (not <bint>window.stream.alive or <size_t>window.stream.handle <= PER_THREAD
            or captures_another(core.order, window.stream.handle, &capturing, &ignored) or capturing):
        return False
    core.order.lock.lock()
    plain = <bint>window.stream.alive and open_plain_uses_locked(core, window)
    if plain:
        window.is_open = True
        window.stream.windows += 1
    core.order.lock.unlock()
    return plain


cdef int open_window(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Open the windows, then queue the waits; close them again if a wait fails."""
    cdef OrderState* order = core.order
    cdef Failure other
    cdef bint more
    cdef int failed
    order.lock.lock()
    failed = open_uses_locked(core, window, failure)
    if failed:
        order.lock.unlock()
        return 1
    window.is_open = True
    window.stream.windows += 1
    if not window.dependencies.empty():
        failed = queue_waits_unlocks(order, window, failure)
    more = failed and file_window_locked(core, window, NOT_PREPARED)
    order.lock.unlock()
    if more:
        finish_rest(core, window, &other)
    return failed


cdef inline bint open_plain_uses_locked(CoreState* core, Window* window) noexcept nogil:
    """Open the windows of a launch that has nothing to wait for, in one pass over its blocks.  Returns False, with no
    window opened, if any block is stale, not plain, repeated, or in a window that conflicts, or if a window waits to be
    opened: `open_uses_locked` then looks closer.  Where each use will replace one entry, as nearly all do, the pass
    finds these entries, and `file_at_once_locked` need not look again."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i = 0, count = window.requests.size(), slots = core.blocks.size()
    cdef StreamState* stream = window.stream
    cdef uint32_t index = stream.index
    cdef Request* request = window.requests.data()
    cdef Block** blocks = core.blocks.data()
    cdef Block* block
    cdef Use* use
    window.discipline_changes = core.order.discipline_changes
    window.snapshot.clear()
    window.dependencies.clear()
    window.turn = 0
    if core.waiting != NULL or not window.ranges.empty():
        return core.waiting == NULL and open_plain_ranges_locked(core, window)
    window.uses.resize(count)                           # as many as the launch before: nothing moves
    use = window.uses.data()
    if may_file_plainly(stream):
        while i < count:
            block = blocks[request[i].slot] if request[i].slot < slots else NULL
            if block == NULL or not is_closed_locked(core, block, request[i].generation) or (
                    not find_replaced(block, stream, index, request[i].access, &use[i])):
                break
            open_plainly(block, stream, request[i].access, &use[i])
            i += 1
        window.turn = core.order.lock.turn if i == count else 0
    while i < count:
        block = blocks[request[i].slot] if request[i].slot < slots else NULL
        if unlikely(block == NULL or not is_closed_locked(core, block, request[i].generation)
                    or not is_plain(block, stream)):
            return open_reads_locked(core, window, i)
        open_plainly(block, stream, request[i].access, &use[i])
        i += 1
    return True


cdef inline bint is_closed_locked(CoreState* core, Block* block, uint64_t generation) noexcept nogil:
    """True if a block is live, and no window is open on it."""
    check(core.order.lock.held(), "the lock is held")
    return is_still_locked(core, block, generation) and block.state == LIVE and block.windows == 0


cdef inline void open_plainly(Block* block, StreamState* stream, uint32_t access, Use* use) noexcept nogil:
    """Open the first window on a block, for a use that is plain."""
    use.block = block
    use.access = access
    use.plain = True
    block.window_stream = stream
    block.windows = 1
    block.writers = access & WRITE != 0


cdef inline bint find_replaced(Block* block, StreamState* stream, uint32_t index, uint32_t access,
                               Use* use) noexcept nogil:
    """Find the entry that a use on a block's home replaces, if `is_plain` and `file_plainly` would find that all
    entries are the home's own, and if `may_file_plainly` is true of it."""
    cdef size_t i
    check(block.exported == block.exports.size(), "exports are counted")
    if block.home != stream or unlikely(block.exported != 0) or (block.fresh and block.stream != stream):
        return False
    if access & WRITE:
        use.first = 0
        return block.frontier.size() == 1 and block.frontier[0].stream == index
    use.first = block.frontier.size()
    for i in range(block.frontier.size()):
        if block.frontier[i].stream != index:
            return False
        if block.frontier[i].kind == HAS_READ:
            use.first = i
    return use.first != block.frontier.size()


cdef bint open_plain_ranges_locked(CoreState* core, Window* window) noexcept nogil:
    """Do so for a launch that names ranges alone, each of which is a part already."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i, k
    cdef Request* request
    cdef Block* part
    if window.ranges.size() != window.requests.size():
        return False
    window.uses.resize(window.requests.size())
    for i in range(window.requests.size()):
        request = &window.requests[i]
        part = find_part_locked(core, request, &window.ranges[i])
        if part == NULL or part.windows != 0 or not is_plain(part, window.stream):
            for k in range(i):
                close_on(&window.uses[k])
            return False
        open_plainly(part, window.stream, request.access, &window.uses[i])
        count_window(window, part.whole, request.access)
    return True


cdef bint open_reads_locked(CoreState* core, Window* window, size_t first) noexcept nogil:
    """Go on at the first block that is not plain, if only reads follow that have nothing to wait for, although other
    streams have used the blocks, or other launches read them at the moment.  Returns False, with no window opened, if
    anything else follows."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i, k
    cdef Request* request
    cdef Block* block
    cdef Use* use
    for i in range(first, window.requests.size()):
        request = &window.requests[i]
        block = find_live_locked(core, request.slot, request.generation)
        if (block == NULL or request.access != READ or not is_covered_locked(core.order, block, window.stream)
                or (block.windows != 0 and (block.writers != 0 or is_named(window, block, i)))):
            for k in range(i):
                close_on(&window.uses[k])
                count_known_locked(core.order, window.uses[k].block, window.stream, -1)
            return False
        use = &window.uses[i]
        use.block = block
        use.access = READ
        use.plain = True
        open_on(window, use)
        count_known_locked(core.order, block, window.stream, 1)
    return True


cdef bint is_named(Window* window, Block* block, size_t count) noexcept nogil:
    """True if a block may be among the first `count` of a launch."""
    cdef size_t i
    for i in range(count if count <= SOME_BLOCKS else 0):
        if window.uses[i].block == block:
            return True
    return count > SOME_BLOCKS


cdef inline int open_uses_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """Validate all requests, then open the windows of their blocks and collect the dependencies of the launch."""
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef StreamState* stream = window.stream
    cdef Query query
    cdef Use* use
    cdef size_t i
    order.operations += 1
    if not stream.alive:
        return fail_stream(failure, STREAM_IS_DEAD, stream.number)
    if open_plain_uses_locked(core, window):
        return 0
    if merge_and_validate_locked(core, window, order.operations, failure):
        return 1
    if unlikely(may_be_contested_locked(core, window)) and refuse_contested_locked(core, window, failure):
        return 1
    query.stream = waiting_stream(stream)
    query.operation = order.operations
    query.dependencies = &window.dependencies
    query.snapshot = &window.snapshot
    for i in range(window.uses.size()):
        use = &window.uses[i]
        use.plain = is_plain(use.block, stream)
        if not use.plain:
            use.first = window.snapshot.size()
            collect_dependencies_locked(order, use.block, use.access, &query)
            use.end = window.snapshot.size()
        open_on(window, use)
    return 0


cdef inline StreamState* waiting_stream(StreamState* stream) noexcept nogil:
    """What has to wait before a window's work: its stream, or the host (NULL)."""
    if unlikely(is_host(stream)):
        return NULL
    return stream


cdef inline void open_on(Window* window, Use* use) noexcept nogil:
    """Count the window on the block, and on the block that it is a part of."""
    count_window(window, use.block, use.access)
    if unlikely(use.block.whole != NULL):
        count_window(window, use.block.whole, use.access)


cdef inline void count_window(Window* window, Block* block, uint32_t access) noexcept nogil:
    if block.windows == 0:
        block.window_stream = window.stream
    elif block.window_stream != window.stream:
        block.window_stream = NULL
    block.windows += 1
    if access & WRITE:
        block.writers += 1


cdef inline void close_on(Use* use) noexcept nogil:
    """Undo `open_on`."""
    uncount_window(use.block, use.access)
    if unlikely(use.block.whole != NULL):
        uncount_window(use.block.whole, use.access)


cdef inline void uncount_window(Block* block, uint32_t access) noexcept nogil:
    block.windows -= 1
    if access & WRITE:
        block.writers -= 1


cdef int queue_waits_unlocks(OrderState* order, Window* window, Failure* failure) except -1 nogil:
    """Order the launch stream, or the host, after all dependencies.  A source that a launch had to wait for records its
    next commits at once, so that the next waits cover less work."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* stream = waiting_stream(window.stream)
    cdef size_t i
    cdef int failed = 0
    order.in_flight += 1
    if unlikely(order.is_recorded):
        note_needs_locked(order, window)
    if window.dependencies.size() > 1:
        failed = refuse_capturing_sources_unlocks(order, stream, &window.dependencies, failure)
    if not failed:
        failed = order_all_unlocks(order, stream, &window.dependencies, failure)
    if not failed:
        for i in range(window.dependencies.size()):
            if window.dependencies[i].kind != ALLOCATED:
                window.dependencies[i].source.eager_commits = EAGER_COMMITS
    order.in_flight -= 1
    return failed
