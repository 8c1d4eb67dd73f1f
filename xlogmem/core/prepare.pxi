# TODO

cdef cppclass Reserve:
    mutex lock                              # a leaf
    vector[Window*] windows

cdef Reserve* reserve = new Reserve()       # never destroyed: threads may outlive the interpreter's end


cdef Window* take_window() noexcept nogil:
    cdef Window* window = NULL
    if reserve.lock.try_lock():
        if not reserve.windows.empty():
            window = reserve.windows.back()
            reserve.windows.pop_back()
        reserve.lock.unlock()
    if window == NULL:
        window = new Window()
    window.is_open = False
    window.requests.clear()
    window.uses.clear()
    return window


cdef void give_window(Window* window) noexcept nogil:
    if reserve.lock.try_lock():
        if reserve.windows.size() < RESERVE:
            reserve.windows.push_back(window)
            window = NULL
        reserve.lock.unlock()
    if window != NULL:
        del window


# ---------------------------------------------------------------------------------------------- prepare
cdef inline Block* find_live_locked(CoreState* core, uint32_t slot, uint64_t generation) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block
    if slot >= core.blocks.size():
        return NULL
    block = core.blocks[slot]
    if block.generation != generation:
        return NULL
    return block if block.state == LIVE else NULL


cdef int merge_and_validate_locked(CoreState* core, Window* window, uint64_t operation, Failure* failure) noexcept nogil:
    """One use for each block, in the order of first sight (contract 103).  Makes no driver call, changes nothing."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Request* request
    cdef Block* block
    cdef Use use
    window.uses.clear()
    for i in range(window.requests.size()):
        request = &window.requests[i]
        block = find_live_locked(core, request.slot, request.generation)
        if block == NULL:
            failure.kind = BLOCK_IS_STALE
            failure.generation = request.generation
            failure.argument = i + 1
            return 1
        if block.operation == operation:
            window.uses[block.use].access |= request.access
            continue
        block.operation = operation
        block.use = window.uses.size()
        use.block = block
        use.access = request.access
        window.uses.push_back(use)
    return 0


cdef int prepare(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Open one window over all blocks of a launch.

    Everything is validated, and the windows are opened, in one acquisition and before any driver call; then the
    missing waits are queued.  If one cannot be queued the windows close as in a cancel.  What was queued stays
    known, so a retry is cheap.
    """
    cdef Scope scope
    cdef int failed
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    failed = refuse_stream(core, window.stream, failure)
    if not failed:
        failed = open_window(core, window, failure)
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int refuse_stream(CoreState* core, StreamState* stream, Failure* failure) except -1 nogil:
    """Refuse to work on a stream that is dead or capturing.  Without the lock."""
    cdef bint capturing = False
    failure.stream = stream.number
    if not stream.alive:
        failure.kind = STREAM_IS_DEAD
        return 1
    if stream_is_capturing(stream.handle, &capturing, failure):
        return 1
    if capturing:
        failure.kind = STREAM_IS_CAPTURING
        return 1
    return 0


cdef inline int refuse_lost(CoreState* core, Failure* failure) noexcept nogil:
    if core.lost.load() == 0:
        return 0
    failure.kind = DEVICE_IS_LOST
    return 1


cdef inline int refuse_forked(Failure* failure) noexcept nogil:
    """Before the lock: in a forked child it may be held by a thread that the child does not have."""
    if not process_was_forked():
        return 0
    failure.kind = PROCESS_WAS_FORKED
    return 1


cdef inline int mark_lost_if_sticky(CoreState* core, int failed, Failure* failure) noexcept nogil:
    """Remember that the device is lost (W36)."""
    if failed and is_sticky(failure):
        core.lost.store(1)
    return failed


cdef bint find_conflict_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """Is a window open on another stream that conflicts with one of the uses?  What that launch does cannot be
    waited for yet, because it was not filed (W11)."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Use* use
    for i in range(window.uses.size()):
        use = &window.uses[i]
        if (use.block.windows and use.block.window_stream != window.stream
                and (use.access & WRITE or use.block.writers)):
            core.counters.conflicts += 1
            failure.kind = BLOCK_IS_CONTESTED
            failure.generation = use.block.generation
            failure.argument = i + 1
            return True
    return False


cdef void open_on(Window* window, Use* use) noexcept nogil:
    cdef Block* block = use.block
    if block.windows == 0:
        block.window_stream = window.stream
    elif block.window_stream != window.stream:
        block.window_stream = NULL
    block.windows += 1
    if use.access & WRITE:
        block.writers += 1


cdef int open_window(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    cdef OrderState* order = core.order
    cdef uint64_t operation
    cdef Use* use
    cdef size_t i
    cdef Failure other
    cdef bint more
    cdef int failed = 0
    order.lock.lock()
    order.operations += 1
    operation = order.operations
    if not window.stream.alive:
        failure.kind = STREAM_IS_DEAD
        failure.stream = window.stream.number
        order.lock.unlock()
        return 1
    if merge_and_validate_locked(core, window, operation, failure) or (
            find_conflict_locked(core, window, failure) and window.exclusive):
        order.lock.unlock()
        return 1
    window.snapshot.clear()
    window.dependencies.clear()
    window.discipline_changes = order.discipline_changes
    for i in range(window.uses.size()):
        use = &window.uses[i]
        use.first = window.snapshot.size()
        collect_dependencies_locked(order, use.block, window.stream, use.access, operation, &window.snapshot, &window.dependencies)
        use.end = window.snapshot.size()
        open_on(window, use)
    window.is_open = True
    window.stream.windows += 1
    if not window.dependencies.empty():
        order.in_flight += 1
        if window.dependencies.size() > 1:
            failed = refuse_capturing_unlocks(order, window.stream, &window.dependencies, failure)
        if not failed:
            failed = order_all_unlocks(order, window.stream, &window.dependencies, failure)
        if not failed:
            for i in range(window.dependencies.size()):
                if window.dependencies[i].kind != ALLOCATED:
                    window.dependencies[i].source.eager_commits = EAGER_COMMITS
        order.in_flight -= 1
    more = failed and file_window_locked(core, window, NOT_PREPARED)
    order.lock.unlock()
    if more:
        finish_rest(core, window, &other)
    return failed
