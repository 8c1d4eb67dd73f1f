# How blocks end, and where a free waits.
#
# A free comes after every use.  Where the frontier is a single entry of the home, the free waits for nothing
# (`has_one_entry_at_home_locked`); else the home waits on the device, or the host waits, for the uses that it is not
# ordered after yet (`wait_for_users_unlocks`).  A free that names no stream leaves a home that would have to wait, for
# a stream that need not (`leave_delayed_home_unlocks`).  A pool gets the frontier with the bytes, and the next owner
# waits (`free_into_pool_locked`).

from xlogmem._base.cpp cimport check, poke, prefetch, unlikely
from xlogmem._base.failures cimport (
    BLOCK_IS_STALE,
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    STREAM_IS_DEAD,
    fail_block,
    fail_stream,
)
from xlogmem._base.index cimport Tracked, erase, floor_of
from xlogmem._base.labels cimport Label, held, release
from xlogmem._driver cimport Scope, enter_context, leave_context
from xlogmem._order cimport (
    ALLOCATED,
    OPAQUE,
    SEALED,
    advance,
    is_of_former,
    is_ordered_after_locked,
    is_other_threads_default,
    is_unowned,
    needs_context_sync_locked,
    order_all_unlocks,
    refuse_capturing_sources_unlocks,
    refuse_if_capturing_unlocks,
    see_done_unlocks,
)
from xlogmem.observe._history cimport BLOCK_FREED, BLOCK_RELEASED, FREE_FAILED
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, STREAM_ORDERED, settle, start_call_on


cdef int free_block(CoreState* core, uint32_t slot, uint64_t generation, StreamState* stream, Label* stack,
                    Failure* failure) except -1 nogil:
    """Free on `stream` (NULL: on the block's home) after every use.  Inside a window: when the last window closes.
    `stack` is the caller's (NULL: not wanted)."""
    cdef Scope scope
    cdef int failed
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    core.order.lock.lock()
    failed = free_live_unlocks(core, slot, generation, stream, stack, failure)
    core.order.lock.unlock()
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int free_live_unlocks(CoreState* core, uint32_t slot, uint64_t generation, StreamState* stream, Label* stack,
                           Failure* failure) except -1 nogil:
    """Free a block of this identity, as `free_block` does; the context is current."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block = find_live_locked(core, slot, generation)
    cdef StreamState* home
    cdef int failed
    if block == NULL:
        return fail_block(failure, BLOCK_IS_STALE, generation, 0)
    if stream != NULL and not stream.alive:
        return fail_stream(failure, STREAM_IS_DEAD, stream.number)
    home = block.home
    if unlikely(stack != NULL):
        keep_stack_of_free(block, stack)
    if stream == NULL and home != NULL and unlikely(<bint>home.unowned):
        leave_unowned_home_locked(core, block)
    failed = free_found_unlocks(core, block, stream, CHECK_CAPTURE, failure)
    if unlikely(failed):                                 # the block is as it was
        block.named = False
        if block.home != home:
            move_home_locked(core.order, block, home)
    return failed


cdef void leave_unowned_home_locked(CoreState* core, Block* block) noexcept nogil:
    """Move a block from an unowned home, which no call named lately, to the default stream, if entries that fences
    cover stand for all work on the home.  They do not where unrecorded work is allowed, the first fill among it; then
    the home is needed.  Adopted blocks stay, because an owner relies on the stream that it named; so do those of a
    pool, which makes no driver call."""
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef StreamState* home = resolve_home(block)
    cdef size_t i
    if (home == NULL or not is_unowned(home) or block.windows or block.pins or block.adopted
            or block.resource.frontiers != NULL or may_have_unrecorded_work(block, home)):
        return
    if unlikely(order.discipline_changes != 0):
        raise_changed_disciplines_locked(order, block)
    for i in range(block.frontier.size()):
        if (block.frontier[i].stream == home.index
                and needs_context_sync_locked(order, order.streams[0], home, block.frontier[i].position)):
            return
    set_home(block, order.streams[0])


cdef int leave_delayed_home_unlocks(CoreState* core, Block* block, StreamState** left) except -1 nogil:
    """Move a block whose free names no stream from a home that would have to wait for other streams, to the stream of a
    user that is ordered after all these uses already.  That stream waits for everything on the home, recorded or not,
    as "freed on the home" means; so what the program queues on the home from now on is not delayed.  `left` gets the
    former home; nothing if the home stays, because there is no such stream, or because the uses are complete.  Adopted
    blocks stay, because an owner relies on the stream that it named, and for those of unowned streams see
    `leave_unowned_home_locked`."""
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef StreamState* home = resolve_home(block)
    cdef StreamState* user
    cdef size_t i
    if home == NULL or block.adopted or block.named or not block.resource.frees_anywhere:
        return 0
    if block.stream == NULL or is_unowned(block.stream):
        return 0
    if unlikely(order.discipline_changes != 0):
        raise_changed_disciplines_locked(order, block)
    if is_after_others_locked(order, block, home) or see_others_done_unlocks(order, block):
        return 0
    home = resolve_home(block)                          # the lock was dropped
    for i in range(block.frontier.size()):
        user = order.streams[block.frontier[i].stream]
        if user == home or is_of_former(user, block.frontier[i].position) or not can_take_free(user):
            continue
        if is_after_others_locked(order, block, user):
            if home.discipline != SEALED:
                set_entry(block, ALLOCATED, home.index, advance(home))
            set_home(block, user)
            left[0] = home
            break
    return 0


cdef bint see_others_done_unlocks(OrderState* order, Block* block) except -1 nogil:
    """Query fences that there are, until one is not complete.  True if the host has seen all uses of a block complete
    on streams other than its home: then nothing has to wait.  A query costs less than a record and a wait."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* source
    cdef size_t i
    for i in range(block.frontier.size()):
        source = order.streams[block.frontier[i].stream]
        if source == block.home or is_settled_locked(order, NULL, block, i):
            continue
        if (not see_done_unlocks(order, source, block.frontier[i].position) or i >= block.frontier.size()
                or not is_settled_locked(order, NULL, block, i)):
            return False
    return True


cdef inline bint is_settled_locked(OrderState* order, StreamState* stream, Block* block, size_t i) noexcept nogil:
    """True if a stream (NULL: the host) is ordered after an entry, behind which no unrecorded work may stand."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* source = order.streams[block.frontier[i].stream]
    cdef uint64_t position = block.frontier[i].position
    return (is_ordered_after_locked(order, stream, source, position)
            and (is_of_former(source, position) or not may_have_unrecorded_work(block, source)))


cdef void return_home_locked(Block* block, StreamState** left) noexcept nogil:
    """Return a block to the home that its free, which failed, has left; the call in flight goes along."""
    block.home.busy -= 1
    set_home(block, left[0])
    block.home.busy += 1
    left[0] = NULL


cdef inline bint is_of_capture(Failure* failure) noexcept nogil:
    return failure.kind == STREAM_IS_CAPTURING or failure.kind == SOURCE_IS_CAPTURING


cdef inline bint can_take_free(StreamState* stream) noexcept nogil:
    """True if a stream may be given a free that does not name it: it lives as long as the program needs it, any thread
    can name it, and its owner relies on nothing there."""
    return (stream.alive and stream.thread == 0 and not stream.remote and stream.discipline != OPAQUE
            and not is_unowned(stream))


cdef bint is_after_others_locked(OrderState* order, Block* block, StreamState* stream) noexcept nogil:
    """True if a stream is ordered after all uses of a block on other streams than its home, and no unrecorded work may
    stand behind them."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* source
    cdef size_t i
    for i in range(block.frontier.size()):
        source = order.streams[block.frontier[i].stream]
        if source != stream and source != block.home and not is_settled_locked(order, stream, block, i):
            return False
    return True


cdef int free_found_unlocks(CoreState* core, Block* block, StreamState* stream, CaptureCheck check_capture,
                            Failure* failure) except -1 nogil:
    """Free a live block, now or when its last window closes.  `check_capture` is about `stream`."""
    check(core.order.lock.held(), "the lock is held")
    cdef int failed
    block.named = stream != NULL
    if stream != NULL and stream != block.home:
        move_home_locked(core.order, block, stream)
    if unlikely(block.windows or block.pins):
        block.state = RETIRED
        note_put_off_locked(core, block)
        if stream != NULL and is_unowned(stream) and not block.adopted:   # an owner relies on the stream it named
            free_without_its_stream_unlocks(core, block, stream)
        return 0
    failed = free_now_unlocks(core, block, check_capture, failure)
    if unlikely(failed) and failure.kind == STREAM_IS_CAPTURING:
        requeue_free_locked(core, block, failure)       # carried out by the first operation after the capture
        note_put_off_locked(core, block)
        failed = 0
    return failed


cdef int free_without_wait(CoreState* core, uint64_t ptr, StreamState* stream, Block** result,
                           Failure* failure) except -1 nogil:
    """Free, for callers without a handle, the block that is allocated at `ptr`, if that makes no stream wait; else do
    nothing, and the result is NULL.  The stream is busy and not capturing; the context need not be current."""
    cdef Block* block
    cdef int failed = 0
    result[0] = NULL
    prefetch_hot_lines(core, stream)
    core.order.lock.lock()
    block = live_block_at_locked(core, ptr)
    if block != NULL and not (block.windows or block.pins) and (
            block.resource.frontiers != NULL or (block.resource.finds_device and block.home == stream
                                                 and has_one_entry_at_home_locked(core, block))):
        if block.home != stream:
            move_home_locked(core.order, block, stream)
        result[0] = block
        failed = free_now_unlocks(core, block, CAPTURE_WAS_CHECKED, failure)
    core.order.lock.unlock()
    return failed


cdef void keep_stack_of_free(Block* block, Label* stack) noexcept nogil:
    """Keep the stack of the newest request for a free; there are several if a free failed before."""
    release(block.freed_by)
    block.freed_by = held(stack)


cdef Block* live_block_at_locked(CoreState* core, uint64_t ptr) noexcept nogil:
    """Return the block that is allocated at `ptr`; NULL if there is none, or only adopted memory."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t base
    cdef Tracked* known = floor_of(&core.index, ptr, &base)
    cdef Block* block
    if unlikely(known == NULL or base != ptr):
        known = floor_of(&core.index, ptr, &base) if bring_in_all_locked(core) else NULL
        if known == NULL or base != ptr:
            return NULL
    block = core.blocks[known.slot]
    if unlikely(is_in_parts(block)):
        join_parts_locked(core, block, 0)
    return block if block.state == LIVE and not block.adopted else NULL


cdef inline bint has_one_entry_at_home_locked(CoreState* core, Block* block) noexcept nogil:
    """A quick test: True if the whole frontier is one entry of the home, so stream order protects the free.  False does
    not mean that a wait is needed: a block that was also read at home has two entries."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamState* home = block.home
    return (home != NULL and block.frontier.size() == 1 and block.frontier[0].stream == home.index and home.alive
            and home.thread == 0 and block.resource.order == STREAM_ORDERED)


cdef inline void prefetch_hot_lines(CoreState* core, StreamState* stream) noexcept nogil:
    """Prefetch, after foreign code (perhaps the driver) has evicted these lines from the processor's cache.  Under the
    lock the thread would wait for the misses one by one."""
    prefetch(core.order)
    prefetch(&core.index)
    prefetch(&core.blocks)
    prefetch(&core.pending)
    prefetch(&core.counters)
    prefetch(stream)


# ---------------------------------------------------------------------------------------------- the free itself
cdef int free_now_unlocks(CoreState* core, Block* block, CaptureCheck check_capture, Failure* failure) except -1 nogil:
    """Free a block now.  The order of the steps keeps addresses, entries and accounting consistent.

    1. (lock) the state is FREEING and the block leaves the address index;
    2. (no lock) the home stream, or the host, is ordered after the frontier;
    3. (no lock) the resource gets the bytes: from this call on it may hand the address out again;
    4. (lock) live bytes become pending, with a marker position taken after step 3, and the slot is released.

    On a failure in 2 or 3 the resource has not taken the bytes: the block returns to the index in its former state
    (RETIRED if it was claimed).  Into a pool there are no steps: see `free_into_pool_locked`.  Adopted memory skips
    step 3: its owner is dropped once its stream, or the host, is ordered after the frontier.
    """
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef uint8_t before = block.state if block.state != FREEING else <uint8_t>RETIRED
    cdef ResourceTable* resource = block.resource
    cdef StreamState* home
    cdef StreamState* left = NULL
    cdef Allocation freed
    cdef bint ordered, fence_is_due
    cdef int failed = 0
    check(block.windows == 0, "a block is not freed inside a window")
    if resource.frontiers != NULL and not block.adopted:
        free_into_pool_locked(core, block, resolve_home(block))
        return 0
    if unlikely(block.home == NULL) and not block.adopted and resource.order == STREAM_ORDERED:
        set_home(block, order.streams[0])               # memory for the host: no host waits for its free
    block.state = FREEING
    erase(&core.index, block.ptr)
    order.in_flight += 1
    if has_one_entry_at_home_locked(core, block):          # as most blocks are
        order.counters.elided += 1
        block.home.busy += 1
        failed = check_home_capture_unlocks(order, block.home, check_capture, failure)
    else:
        leave_delayed_home_unlocks(core, block, &left)
        failed = wait_for_users_unlocks(core, block, check_capture, failure)
        if unlikely(failed) and left != NULL and is_of_capture(failure):
            return_home_locked(block, &left)            # the ordinary way
            block.home.busy -= 1
            failed = wait_for_users_unlocks(core, block, CHECK_CAPTURE, failure)
    home = block.home
    ordered = not block.adopted and resource.order == STREAM_ORDERED
    if unlikely(core.watched & BY_HISTORY) and not failed:
        note_block(core, BLOCK_RELEASED if block.adopted else BLOCK_FREED, block, home)
    if not failed and not block.adopted:
        fill_freed(core, block, home, &freed)
        order.lock.unlock()
        failed = resource.deallocate(resource.self, &freed, failure)
        prefetch_hot_lines(core, home)
        order.lock.lock()
    if unlikely(failed) and left != NULL:
        return_home_locked(block, &left)
        home = block.home
    order.in_flight -= 1
    if home != NULL:
        home.busy -= 1
    if unlikely(failed):
        restore_locked(core, block, before)
        return mark_lost_if_sticky(core, 1, failure)
    fence_is_due = ordered and file_marker_locked(core, home, block)
    if not ordered:
        settle_block(block)
    core.counters.frees += not block.adopted
    release_slot_locked(core, block)
    return fence_for_marker_unlocks(core, home) if unlikely(fence_is_due) else 0


cdef void restore_locked(CoreState* core, Block* block, uint8_t state) noexcept nogil:
    """Restore a block whose free failed."""
    check(core.order.lock.held(), "the lock is held")
    block.state = state
    link_locked(core, block)
    if core.watched & BY_HISTORY:
        note_block(core, FREE_FAILED, block, block.home)


cdef inline void fill_freed(CoreState* core, Block* block, StreamState* home, Allocation* freed) noexcept nogil:
    """Fill in the call that returns a block to its resource.  Memory for the host has no home: then the resource gets
    the default stream."""
    start_call_on(freed, block.nbytes, home if home != NULL else core.order.streams[0])
    freed.ptr = block.ptr
    freed.resource_block = block.resource_block
    freed.generation = block.generation
    freed.tag = block.tag
    freed.stack = block.freed_by


cdef inline void settle_block(Block* block) noexcept nogil:
    """Settle the bytes of a block that are not pending after its free."""
    if not block.adopted:
        settle(block.resource, block.nbytes)


cdef inline int check_home_capture_unlocks(OrderState* order, StreamState* home, CaptureCheck check_capture,
                                           Failure* failure) except -1 nogil:
    """Refuse a home that is capturing, unless the caller has checked."""
    check(order.lock.held(), "the lock is held")
    if check_capture == CAPTURE_WAS_CHECKED:
        return 0
    return refuse_if_capturing_unlocks(order, home, STREAM_IS_CAPTURING, failure)


cdef int wait_for_users_unlocks(CoreState* core, Block* block, CaptureCheck check_capture,
                                Failure* failure) except -1 nogil:
    """Order the home of a block that is being freed, or the host, after every use.  The home is busy from now on, on
    failure too."""
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef StreamState* home = resolve_home(block)
    cdef bint on_host = home == NULL or (not block.adopted and block.resource.order == HOST_SYNCHRONOUS)
    cdef vector[Dependency] dependencies
    cdef Query query
    cdef int failed = 0
    if home != NULL and is_other_threads_default(home):     # its handle means another stream in this thread
        set_entry(block, ALLOCATED, home.index, advance(home))
        home = order.streams[0]
        move_home_locked(order, block, home)
        check_capture = CHECK_CAPTURE
    order.operations += 1
    query.stream = home
    if on_host:
        query.stream = NULL
    query.operation = order.operations
    query.dependencies = &dependencies
    query.snapshot = NULL
    collect_dependencies_locked(order, block, READ_WRITE, &query)
    if on_host and home != NULL:
        # "freed on S" means after everything on S, recorded or not
        add_dependency_locked(order, &query, home, advance(home), ALLOCATED)
    if unlikely(order.is_recorded):
        note_needs_of_free_locked(order, block, query.stream)
    if home != NULL:
        home.busy += 1
        failed = check_home_capture_unlocks(order, home, check_capture, failure)
    if not failed and dependencies.size() > 1:
        failed = refuse_capturing_sources_unlocks(order, query.stream, &dependencies, failure)
    if not failed:
        failed = order_all_unlocks(order, query.stream, &dependencies, failure)
    return failed


cdef inline bint free_plainly_locked(CoreState* core, Block* block, StreamState* stream) noexcept nogil:
    """Free a block into a resource that keeps frontiers, on `stream` (NULL: at home).  Returns False, with nothing
    done, if the block is NULL or adopted, or of another resource, or has an open window or a pin."""
    check(core.order.lock.held(), "the lock is held")
    if block == NULL or block.windows or block.pins or block.adopted or block.resource.frontiers == NULL:
        return False
    if stream != NULL and stream != block.home:
        move_home_locked(core.order, block, stream)
    free_into_pool_locked(core, block, resolve_home(block))
    return True


cdef bint free_plainly_at(CoreState* core, uint64_t ptr) noexcept nogil:
    """Do so with the block that is allocated at `ptr`, at home."""
    cdef bint freed
    core.order.lock.lock()
    freed = free_plainly_locked(core, live_block_at_locked(core, ptr), NULL)
    core.order.lock.unlock()
    return freed


cdef void free_into_pool_locked(CoreState* core, Block* block, StreamState* home) noexcept nogil:
    """Free into a resource that keeps frontiers: all of the above in one acquisition of the lock, without a driver
    call.  It cannot fail.

    "Freed on S" means after everything on S, recorded or not, so the free is a position of the home; entries that this
    stream is ordered after already are left out.  A sealed home promises that all its work is recorded: the entries are
    enough, and streams that are ordered after the entries stay so.  A consumer to which the block was exported there
    has promised nothing.  Memory for the host has no home, and takes no position.
    """
    check(core.order.lock.held(), "the lock is held")
    cdef OrderState* order = core.order
    cdef vector[Dependency]* frontier = &core.freed_frontier
    cdef Dependency entry
    cdef Allocation freed
    cdef Query query
    cdef size_t i
    if unlikely(core.watched & BY_HISTORY):
        note_block(core, BLOCK_FREED, block, home)
    if cache_freed_locked(core, block, home):
        return
    frontier.clear()
    order.operations += 1
    query.stream = home
    query.operation = order.operations
    query.dependencies = frontier
    query.snapshot = NULL
    collect_dependencies_locked(order, block, READ_WRITE, &query)       # raises what may have unrecorded work behind it
    if home == NULL:
        pass                                            # the host's own accesses are over
    elif home.discipline == SEALED and not is_exported(block, home):
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
    fill_freed(core, block, home, &freed)
    block.resource.frontiers.deallocate(block.resource.self, &freed, frontier)
    core.counters.frees += 1
    settle_block(block)
    release_slot_locked(core, block)


# ---------------------------------------------------------------------------------------------- out of the tables
cdef inline void release_slot_locked(CoreState* core, Block* block) noexcept nogil:
    """Release the slot of a freed block: it may be used again."""
    check(core.order.lock.held(), "the lock is held")
    unaccount_locked(core, block)
    block.state = FREED
    poke(block.generation, 0)
    core.empty.push_back(block.slot)


cdef void drop_labels(Block* block) noexcept nogil:
    release(block.tag)
    release(block.freed_by)
    block.tag = block.freed_by = NULL


cdef inline void unaccount_locked(CoreState* core, Block* block) noexcept nogil:
    """Remove a block from the accounting of bytes and streams."""
    check(core.order.lock.held(), "the lock is held")
    if unlikely(block.adopted):
        if block.owner != NULL:
            defer_decref_locked(core, block.owner)
            block.owner = NULL
    else:
        check(core.live_bytes >= block.nbytes and core.live_blocks > 0, "live bytes are those of the live blocks")
        core.live_bytes -= block.nbytes
        core.live_blocks -= 1
    if unlikely(block.tag != NULL or block.freed_by != NULL):
        drop_labels(block)
    set_home(block, NULL)
    if block.stream != NULL:
        block.stream.blocks -= 1
        block.stream = NULL
    while unlikely(not block.exports.empty()):
        block.exports.back().stream.blocks -= 1
        block.exports.pop_back()
        block.exported -= 1
