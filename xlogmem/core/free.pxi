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
    block = find_live(core, slot, generation)
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
        failed = free_found(core, block, stream, False, failure)
    core.order.lock.unlock()
    leave_context(&scope)
    return note(core, failed, failure)


cdef int free_found(CoreState* core, Block* block, StreamState* stream, bint asked, Failure* failure) except -1 nogil:
    """Free a live block, now or when its last window closes.  `asked`: `stream` was just seen not to capture.  Called
    with the lock held, releases it."""
    cdef int failed
    if stream != NULL and stream != home_of(block):
        set_home(block, stream)
    if unlikely(block.windows or block.pins):
        block.state = RETIRED
        core.counters.deferred_frees += 1
        return 0
    failed = free_now(core, block, asked, failure)
    if unlikely(failed) and failure.kind == STREAM_IS_CAPTURING:
        keep_for_later(core, block, failure)            # carried out by the first call after the capture
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
    fetch(core, stream)
    core.order.lock.lock()
    block = live_block_at(core, ptr)
    if block != NULL and not (block.windows or block.pins) and (
            core.resource.frontiers != NULL or (block.home == stream and used_at_home_alone(core, block))):
        if home_of(block) != stream:
            set_home(block, stream)
        result[0] = block
        failed = free_now(core, block, True, failure)
    core.order.lock.unlock()
    return failed


cdef Block* live_block_at(CoreState* core, uint64_t ptr) noexcept nogil:
    """The block that is allocated there, NULL if there is none, or only adopted memory.  With the lock held."""
    cdef uint64_t base
    cdef Tracked* known = floor_of(&core.index, ptr, &base)
    cdef Block* block
    if known == NULL or base != ptr:
        return NULL
    block = core.blocks[known.slot]
    return block if block.state == LIVE and not block.adopted else NULL


cdef inline bint used_at_home_alone(CoreState* core, Block* block) noexcept nogil:
    """Does a free of this block make nobody wait?"""
    cdef StreamState* home = block.home
    return (home != NULL and block.frontier.size() == 1 and block.frontier[0].stream == home.index and home.alive
            and home.thread == 0 and core.resource.order == STREAM_ORDERED)


cdef inline void fetch(CoreState* core, StreamState* stream) noexcept nogil:
    """Somebody else's code has run, a driver maybe, and taken the cache for itself.  Behind the lock everything would
    be waited for in turn."""
    prefetch(core.order)
    prefetch(&core.index)
    prefetch(&core.blocks)
    prefetch(&core.pending)
    prefetch(&core.counters)
    prefetch(stream)


cdef int free_now(CoreState* core, Block* block, bint asked, Failure* failure) except -1 nogil:
    """The order of these steps keeps addresses, entries and accounting consistent.  Called with the lock held.

    1. (lock) the state is FREEING and the block leaves the address index;
    2. (no lock) the home stream, or the host, is ordered after the frontier;
    3. (no lock) the resource gets the bytes: from this call on the address may come back, to anybody;
    4. (lock) live bytes become pending, with a marker position taken after step 3, and the slot is released.

    On a failure in 2 or 3 the resource has not taken the bytes: the block returns to the index and keeps its state.
    Adopted memory skips step 3: its owner is let go once its stream, or the host, is ordered after the frontier.
    """
    cdef OrderState* order = core.order
    cdef uint8_t before = block.state if block.state != FREEING else <uint8_t>RETIRED
    cdef StreamState* home
    cdef bint ordered
    cdef int failed = 0
    check(block.windows == 0, "a block is not freed inside a window")
    if core.resource.frontiers != NULL and not block.adopted:
        hand_over(core, block, home_of(block))
        return 0
    block.state = FREEING
    erase(&core.index, block.ptr)
    order.in_flight += 1
    if used_at_home_alone(core, block):                  # as most blocks are
        order.counters.known += 1
        block.home.busy += 1
        failed = refuse_capture(order, block.home, asked, failure)
    else:
        failed = wait_for_users(core, block, asked, failure)
    home = block.home
    ordered = not block.adopted and core.resource.order == STREAM_ORDERED
    if not failed and not block.adopted:
        order.lock.unlock()
        failed = core.resource.deallocate(core.resource.self, block.ptr, block.nbytes, home.handle, failure)
        fetch(core, home)
        order.lock.lock()
    order.in_flight -= 1
    if home != NULL:
        home.busy -= 1
    if unlikely(failed):
        block.state = before
        link(core, block)
        return note(core, 1, failure)
    if ordered:
        file_marker(core, home, block.nbytes)
    core.counters.frees += not block.adopted
    release_slot(core, block)
    return 0


cdef inline int refuse_capture(OrderState* order, StreamState* home, bint asked, Failure* failure) except -1 nogil:
    if asked:
        return 0
    return refuse_if_capturing(order, home, STREAM_IS_CAPTURING, failure)


cdef int wait_for_users(CoreState* core, Block* block, bint asked, Failure* failure) except -1 nogil:
    """Order the home of a block that is being freed, or the host, after everybody who used it; the home is busy from
    now on, failed or not.  With the lock held, releases it."""
    cdef OrderState* order = core.order
    cdef StreamState* home = home_of(block)
    cdef bint on_host = home == NULL or (not block.adopted and core.resource.order == HOST_SYNCHRONOUS)
    cdef StreamState* waiting                            # who has to come after the uses; NULL: the host
    cdef vector[Need] needs
    cdef int failed = 0
    if home != NULL and bound_elsewhere(home):           # its handle means another stream in this thread
        set_entry(block, ALLOCATED, home.index, touch(home))
        home = order.streams[0]
        set_home(block, home)
        asked = False
    waiting = home
    if on_host:
        waiting = NULL
    order.operations += 1
    look(order, block, waiting, READ_WRITE, order.operations, NULL, &needs)
    if on_host and home != NULL:
        # "freed on S" means after everything on S, recorded or not
        need(order, NULL, home, touch(home), order.operations, &needs, BIRTH)
    if home != NULL:
        home.busy += 1
        failed = refuse_capture(order, home, asked, failure)
    if not failed and needs.size() > 1:
        failed = refuse_capturing(order, waiting, &needs, failure)
    if not failed:
        failed = order_all(order, waiting, &needs, failure)
    return failed


cdef void hand_over(CoreState* core, Block* block, StreamState* home) noexcept nogil:
    """A free into a resource that keeps frontiers: all of the above in one acquisition, without a driver call, and it
    cannot fail.

    "Freed on S" means after everything on S, recorded or not, so the free is a position of the home; what that stream
    knows already is left out.  A sealed home promises that all is recorded: its entries are enough, and whoever knows
    those goes on knowing.  Whoever was lent the block there promised nothing.
    """
    cdef OrderState* order = core.order
    cdef vector[Need]* frontier = &core.frontier
    cdef Need entry
    cdef size_t i
    frontier.clear()
    order.operations += 1
    look(order, block, home, READ_WRITE, order.operations, NULL, frontier)      # raises what may hide work
    if home.discipline == SEALED and not is_lent(block, home):
        frontier.clear()
        for i in range(block.frontier.size()):
            entry.source = order.streams[block.frontier[i].stream]
            entry.position = block.frontier[i].position
            entry.stage = block.frontier[i].kind
            frontier.push_back(entry)
    else:
        entry.source = home
        entry.position = touch(home)
        entry.stage = BIRTH
        frontier.push_back(entry)
    erase(&core.index, block.ptr)
    core.resource.frontiers.deallocate(core.resource.self, block.piece, frontier)
    core.counters.frees += 1
    release_slot(core, block)


cdef int free_for_somebody_else(CoreState* core, Block* block) except -1 nogil:
    """A free inside another operation: its failure is not that operation's."""
    cdef Failure failure
    if block.state == FREED:                            # disowned meanwhile: the bytes are somebody else's
        return 0
    if free_now(core, block, False, &failure):
        keep_for_later(core, block, &failure)
    return 0


cdef void keep_for_later(CoreState* core, Block* block, Failure* failure) noexcept nogil:
    """Back on the list of dropped blocks: the next operation tries again, and the next reap tells.  What a capture
    puts off is no failure."""
    block.state = RETIRED
    drop(core, block)
    if failure.kind == STREAM_IS_CAPTURING:
        core.put_off = block
        return
    core.counters.failed_frees += 1
    core.stuck += 1
    keep_failure(core, failure)


cdef void keep_failure(CoreState* core, Failure* failure) noexcept nogil:
    """The next reap tells.  What a Python resource raised is owned by whoever has the failure: one that is never told
    is dropped by whoever holds the GIL next."""
    drop_failure(core)
    core.stuck_failure = failure[0]


cdef void drop_failure(CoreState* core) noexcept nogil:
    if core.stuck_failure.kind == PYTHON_RAISED:        # its traceback may hold blocks, and so this runtime
        let_go_later(core, core.stuck_failure.exception)
    core.stuck_failure.kind = NO_FAILURE
