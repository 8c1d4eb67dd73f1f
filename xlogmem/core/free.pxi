# TODO

cdef int free_block(CoreState* core, uint32_t slot, uint64_t generation, StreamState* stream,
                    Failure* failure) except -1 nogil:
    """Free on `stream` (NULL: on the block's home) after every use.  Inside a window: when the last one closes."""
    cdef Scope scope
    cdef Block* block
    cdef int failed = 0
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    core.order.lock.lock()
    block = find_live_locked(core, slot, generation)
    if block == NULL:
        failure.kind = BLOCK_IS_STALE
        failure.generation = generation
        failure.argument = 0
        failed = 1
    elif stream != NULL and not stream.alive:
        failure.kind = STREAM_IS_DEAD
        failure.stream = stream.number
        failed = 1
    else:
        failed = free_found_unlocks(core, block, stream, False, failure)
    core.order.lock.unlock()
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int free_found_unlocks(CoreState* core, Block* block, StreamState* stream, bint capture_checked, Failure* failure) except -1 nogil:
    """Free a live block, now or when its last window closes.  `capture_checked`: `stream` was just seen not to capture.  Called
    with the lock held, releases it."""
    check(core.order.lock.held(), "the lock is held")
    cdef int failed
    if stream != NULL and stream != resolve_home(block):
        set_home(block, stream)
    if unlikely(block.windows or block.pins):
        block.state = RETIRED
        core.counters.deferred_frees += 1
        return 0
    failed = free_now_unlocks(core, block, capture_checked, failure)
    if unlikely(failed) and failure.kind == STREAM_IS_CAPTURING:
        requeue_free_locked(core, block, failure)            # carried out by the first call after the capture
        core.counters.deferred_frees += 1
        failed = 0
    return failed


cdef int free_unless_used(CoreState* core, uint64_t ptr, StreamState* stream, Block** result,
                          Failure* failure) except -1 nogil:
    """The short way, for callers without a handle: free the block that is allocated there, if that makes nobody wait;
    else nothing is done, and the result is NULL.  The stream is busy and not capturing.  Without the lock."""
    cdef Block* block
    cdef int failed = 0
    result[0] = NULL
    prefetch_hot_lines(core, stream)
    core.order.lock.lock()
    block = live_block_at_locked(core, ptr)
    if block != NULL and not (block.windows or block.pins) and (
            core.resource.ordered != NULL or (block.home == stream and used_at_home_alone_locked(core, block))):
        if resolve_home(block) != stream:
            set_home(block, stream)
        result[0] = block
        failed = free_now_unlocks(core, block, True, failure)
    core.order.lock.unlock()
    return failed


cdef Block* live_block_at_locked(CoreState* core, uint64_t ptr) noexcept nogil:
    """The block that is allocated there, NULL if there is none, or only adopted memory.  With the lock held."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t base
    cdef Tracked* known = floor_of(&core.index, ptr, &base)
    cdef Block* block
    if known == NULL or base != ptr:
        return NULL
    block = core.blocks[known.slot]
    return block if block.state == LIVE and not block.adopted else NULL


cdef inline bint used_at_home_alone_locked(CoreState* core, Block* block) noexcept nogil:
    """Does a free of this block make nobody wait?"""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamState* home = block.home
    return (home != NULL and block.frontier.size() == 1 and block.frontier[0].stream == home.index and home.alive
            and home.thread == 0 and core.resource.order == STREAM_ORDERED)


cdef inline void prefetch_hot_lines(CoreState* core, StreamState* stream) noexcept nogil:
    """Somebody else's code has run, a driver maybe, and taken the cache for itself.  Behind the lock everything would
    be waited for in turn."""
    prefetch(core.order)
    prefetch(&core.index)
    prefetch(&core.blocks)
    prefetch(&core.pending)
    prefetch(&core.counters)
    prefetch(stream)


cdef int free_now_unlocks(CoreState* core, Block* block, bint capture_checked, Failure* failure) except -1 nogil:
    """The order of these steps keeps addresses, entries and accounting consistent.  Called with the lock held.

    1. (lock) the state is FREEING and the block leaves the address index;
    2. (no lock) the home stream, or the host, is ordered after the frontier;
    3. (no lock) the resource gets the bytes: from this call on the address may come back, to anybody;
    4. (lock) live bytes become pending, with a marker position taken after step 3, and the slot is released.

    On a failure in 2 or 3 the resource has not taken the bytes: the block returns to the index and keeps its state.
    Adopted memory skips step 3: its owner is let go once its stream, or the host, is ordered after the frontier.
    """
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef uint8_t before = block.state if block.state != FREEING else <uint8_t>RETIRED
    cdef StreamState* home
    cdef bint ordered
    cdef int failed = 0
    check(block.windows == 0, "a block is not freed inside a window")
    if core.resource.ordered != NULL and not block.adopted:
        free_into_pool_locked(core, block, resolve_home(block))
        return 0
    block.state = FREEING
    erase(&core.index, block.ptr)
    order.in_flight += 1
    if used_at_home_alone_locked(core, block):                  # as most blocks are
        order.counters.elided += 1
        block.home.busy += 1
        failed = refuse_capture_unlocks(order, block.home, capture_checked, failure)
    else:
        failed = wait_for_users_unlocks(core, block, capture_checked, failure)
    home = block.home
    ordered = not block.adopted and core.resource.order == STREAM_ORDERED
    if not failed and not block.adopted:
        order.lock.unlock()
        failed = core.resource.deallocate(core.resource.self, block.ptr, block.nbytes, home.handle, failure)
        prefetch_hot_lines(core, home)
        order.lock.lock()
    order.in_flight -= 1
    if home != NULL:
        home.busy -= 1
    if unlikely(failed):
        block.state = before
        link_locked(core, block)
        return mark_lost_if_sticky(core, 1, failure)
    if ordered:
        file_marker_locked(core, home, block.nbytes)
    core.counters.frees += not block.adopted
    release_slot_locked(core, block)
    return 0


cdef inline int refuse_capture_unlocks(OrderState* order, StreamState* home, bint capture_checked, Failure* failure) except -1 nogil:
    check(order.lock.held(), "the lock is held")
    if capture_checked:
        return 0
    return refuse_if_capturing_unlocks(order, home, STREAM_IS_CAPTURING, failure)


cdef int wait_for_users_unlocks(CoreState* core, Block* block, bint capture_checked, Failure* failure) except -1 nogil:
    """Order the home of a block that is being freed, or the host, after everybody who used it; the home is busy from
    now on, failed or not.  With the lock held, releases it."""
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef StreamState* home = resolve_home(block)
    cdef bint on_host = home == NULL or (not block.adopted and core.resource.order == HOST_SYNCHRONOUS)
    cdef StreamState* waiting                            # who has to come after the uses; NULL: the host
    cdef vector[Dependency] dependencies
    cdef int failed = 0
    if home != NULL and is_other_threads_default(home):           # its handle means another stream in this thread
        set_entry(block, ALLOCATED, home.index, advance(home))
        home = order.streams[0]
        set_home(block, home)
        capture_checked = False
    waiting = home
    if on_host:
        waiting = NULL
    order.operations += 1
    collect_dependencies_locked(order, block, waiting, READ_WRITE, order.operations, NULL, &dependencies)
    if on_host and home != NULL:
        # "freed on S" means after everything on S, recorded or not
        add_dependency_locked(order, NULL, home, advance(home), order.operations, &dependencies, ALLOCATED)
    if home != NULL:
        home.busy += 1
        failed = refuse_capture_unlocks(order, home, capture_checked, failure)
    if not failed and dependencies.size() > 1:
        failed = refuse_capturing_unlocks(order, waiting, &dependencies, failure)
    if not failed:
        failed = order_all_unlocks(order, waiting, &dependencies, failure)
    return failed


cdef void free_into_pool_locked(CoreState* core, Block* block, StreamState* home) noexcept nogil:
    """A free into a resource that keeps frontiers: all of the above in one acquisition, without a driver call, and it
    cannot fail.

    "Freed on S" means after everything on S, recorded or not, so the free is a position of the home; what that stream
    knows already is left out.  A sealed home promises that all is recorded: its entries are enough, and whoever knows
    those goes on knowing.  Whoever was lent the block there promised nothing.
    """
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef vector[Dependency]* frontier = &core.frontier
    cdef Dependency entry
    cdef size_t i
    frontier.clear()
    order.operations += 1
    collect_dependencies_locked(order, block, home, READ_WRITE, order.operations, NULL, frontier)      # raises what may hide work
    if home.discipline == SEALED and not is_exported(block, home):
        frontier.clear()
        for i in range(block.frontier.size()):
            entry.source = order.streams[block.frontier[i].stream]
            entry.position = block.frontier[i].position
            entry.kind = block.frontier[i].kind
            frontier.push_back(entry)
    else:
        entry.source = home
        entry.position = advance(home)
        entry.kind = ALLOCATED
        frontier.push_back(entry)
    erase(&core.index, block.ptr)
    core.resource.ordered.deallocate(core.resource.self, block.resource_block, frontier)
    core.counters.frees += 1
    release_slot_locked(core, block)


cdef int free_deferred_unlocks(CoreState* core, Block* block) except -1 nogil:
    """A free inside another operation: its failure is not that operation's."""
    check(core.order.lock.held(), "the lock is held")
    cdef Failure failure
    if block.state == FREED:                            # disowned meanwhile: the bytes are somebody else's
        return 0
    if free_now_unlocks(core, block, False, &failure):
        requeue_free_locked(core, block, &failure)
    return 0


cdef void requeue_free_locked(CoreState* core, Block* block, Failure* failure) noexcept nogil:
    """Back on the list of dropped blocks: the next operation tries again, and the next reap tells.  What a capture
    puts off is no failure."""
    check(core.order.lock.held(), "the lock is held")
    block.state = RETIRED
    drop(core, block)
    if failure.kind == STREAM_IS_CAPTURING:
        core.deferred_by_capture = block
        return
    core.counters.failed_frees += 1
    core.requeued += 1
    keep_unreported_locked(core, failure)


cdef void keep_unreported_locked(CoreState* core, Failure* failure) noexcept nogil:
    """The next reap tells.  What a Python resource raised is owned by whoever has the failure: one that is never told
    is dropped by whoever holds the GIL next."""
    check(core.order.lock.held(), "the lock is held")
    drop_unreported_locked(core)
    core.unreported_failure = failure[0]


cdef void drop_unreported_locked(CoreState* core) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    if core.unreported_failure.kind == PYTHON_RAISED:        # its traceback may hold blocks, and so this runtime
        defer_decref_locked(core, core.unreported_failure.exception)
    core.unreported_failure.kind = NO_FAILURE
