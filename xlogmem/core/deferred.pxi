# TODO

cdef void drop(CoreState* core, Block* block) noexcept nogil:
    """What a finalizer may do: push, nothing else.  The collector runs anywhere, in any thread."""
    push(core.dropped, block)


cdef void abandon(CoreState* core, Window* window) noexcept nogil:
    """A recorder went away between prepare and finish; its launch may be queued, so it will be filed."""
    push(core.abandoned, window)


cdef int drain(CoreState* core) except -1 nogil:
    """Do what finalizers left behind and try failed frees again.  The context is current, the lock is not held."""
    if core.lost.load():
        return 0
    if core.abandoned.load() != NULL:
        drain_windows(core)
    if core.dropped.load() != NULL:
        drain_blocks(core)
    return 0


cdef int drain_if_needed(CoreState* core) except -1 nogil:
    """`drain` by itself: a window whose recorder was dropped keeps its stream in use until it is filed."""
    cdef Failure ignored
    cdef Scope scope
    if core.abandoned.load() == NULL or enter_context(core.order.context, &scope, &ignored):
        return 0
    drain(core)
    leave_context(&scope)
    return 0


cdef int drain_windows(CoreState* core) except -1 nogil:
    """Taken from the list and filed in one acquisition: nobody finds the list empty and the uses not filed."""
    cdef OrderState* order = core.order
    cdef Window* window
    cdef Window* following
    cdef vector[Window*] rest
    cdef Failure failure
    cdef size_t i
    order.lock.lock()
    window = core.abandoned.exchange(NULL)
    while window != NULL:
        following = window.next
        core.counters.abandoned += 1
        if file_window_locked(core, window, LAUNCHED):
            rest.push_back(window)
        else:
            give_window(window)
        window = following
    order.lock.unlock()
    for i in range(rest.size()):
        if finish_rest(core, rest[i], &failure):
            order.lock.lock()
            keep_unreported_locked(core, &failure)
            core.unreported = True
            order.lock.unlock()
        give_window(rest[i])
    return 0


cdef int drain_blocks(CoreState* core) except -1 nogil:
    cdef StreamState* capturing = NULL                  # just found capturing: capture_checked once for all its blocks
    cdef StreamState* home
    cdef Block* block
    cdef Block* following
    core.order.lock.lock()
    core.requeued = 0
    if not core.unreported:
        drop_unreported_locked(core)
    block = core.dropped.exchange(NULL)
    while block != NULL:
        following = block.next
        home = block.home
        if block.state == LIVE and (block.windows or block.pins):
            block.state = RETIRED
            core.counters.deferred_frees += 1
        elif block.state == RETIRED and home == capturing and home != NULL:
            drop(core, block)
        else:
            core.deferred_by_capture = NULL
            free_deferred_unlocks(core, block)
            if core.deferred_by_capture == block:
                capturing = home
        block = following
    core.order.lock.unlock()
    return 0
