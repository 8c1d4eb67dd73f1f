# TODO

cdef inline Block* new_block_locked(CoreState* core, uint64_t ptr, size_t nbytes, StreamState* stream) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block
    cdef Entry* entry
    if unlikely(core.empty.empty()):
        block = new Block()
        block.slot = core.blocks.size()
        core.blocks.push_back(block)
    else:
        block = core.blocks[core.empty.back()]
        core.empty.pop_back()
    check(block.windows == 0 and block.generation == 0, "an empty slot is empty")
    block.generation = generations.fetch_add(1) + 1
    block.ptr = ptr
    block.nbytes = nbytes
    block.stream = stream
    block.home = NULL
    block.owner = block.resource_block = NULL
    block.adopted = False
    block.windows = block.writers = 0
    block.pins = 0
    block.writer = 0
    block.operation = 0
    block.state = LIVE
    block.frontier.clear()
    block.fresh = stream != NULL
    if stream != NULL:
        stream.blocks += 2                  # as its stream and as its home
        block.home = stream
        entry = &block.frontier.emplace_back()
        entry.kind = ALLOCATED
        entry.stream = stream.index
        entry.position = advance(stream)
    link_locked(core, block)
    return block


cdef inline void link_locked(CoreState* core, Block* block) noexcept nogil:
    """Into the address index."""
    check(core.order.lock.held(), "the lock is held")
    cdef Tracked* known = insert(&core.index, block.ptr)
    known.generation = block.generation
    known.nbytes = block.nbytes
    known.stream = block.stream.index if block.stream != NULL else <uint32_t>NO_STREAM
    known.slot = block.slot


cdef int allocate(CoreState* core, size_t nbytes, StreamState* stream, Block** result,
                  Failure* failure) except -1 nogil:
    cdef Scope scope
    cdef int failed
    if refuse_forked(failure) or begin_call(core.order, stream, failure):
        return 1
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        end_call(core.order, stream)
        return 1
    drain(core)
    failed = refuse_stream(core, stream, failure)
    if failed:
        end_call(core.order, stream)
    else:
        failed = allocate_in_call(core, nbytes, stream, True, result, failure)
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int allocate_in_call(CoreState* core, size_t nbytes, StreamState* stream, bint ends, Block** result,
                          Failure* failure) except -1 nogil:
    """Get memory from the resource and track it.  The allocation entry is a position taken after the resource's call,
    so whatever covers it covers the birth of the memory.  The stream is busy, which `ends` here or goes on, and not
    capturing; the context is current, but for a resource that finds its device."""
    cdef OrderState* order = core.order
    cdef uint64_t ptr = 0
    cdef void* resource_block = NULL
    cdef int failed = get_bytes_locks(core, nbytes, stream, &ptr, &resource_block, failure)
    if unlikely(failed) and is_out_of_memory(failure):
        order.lock.unlock()
        failed = allocate_again(core, nbytes, stream, &ptr, &resource_block, failure)
    if ends:
        stream.busy -= 1
    if not unlikely(failed):
        evict_overlapping_locked(core, ptr, nbytes)
        result[0] = new_block_locked(core, ptr, nbytes, stream)
        result[0].resource_block = resource_block
        core.live_bytes += nbytes
        core.live_blocks += 1
        core.counters.allocations += 1
    order.lock.unlock()
    return mark_lost_if_sticky(core, failed, failure)


cdef int begin_call(OrderState* order, StreamState* stream, Failure* failure) noexcept nogil:
    """Nobody may unregister the stream while a call uses its handle."""
    cdef int failed = 0
    order.lock.lock()
    if stream.alive:
        stream.busy += 1
    else:
        failure.kind = STREAM_IS_DEAD
        failure.stream = stream.number
        failed = 1
    order.lock.unlock()
    return failed


cdef void end_call(OrderState* order, StreamState* stream) noexcept nogil:
    order.lock.lock()
    stream.busy -= 1
    order.lock.unlock()


cdef inline int get_bytes_locks(CoreState* core, size_t nbytes, StreamState* stream, uint64_t* ptr, void** resource_block,
                          Failure* failure) except -1 nogil:
    """Memory that may be used on the stream from now on.  Returns with the lock held, failed or not."""
    cdef int failed
    if core.resource.ordered != NULL:
        core.order.lock.lock()
        return core.resource.ordered.allocate(core.resource.self, nbytes, stream, ptr, resource_block, failure)
    failed = core.resource.allocate(core.resource.self, nbytes, stream.handle, ptr, failure)
    prefetch_hot_lines(core, stream)
    core.order.lock.lock()
    return failed


cdef int allocate_again(CoreState* core, size_t nbytes, StreamState* stream, uint64_t* ptr, void** resource_block,
                        Failure* failure) except -1 nogil:
    """Out of memory: let the host wait for the frees that are queued, have the resource give back what it keeps, and
    try once more (W34)."""
    cdef vector[Failure] failures
    cdef Failure ignored
    cdef size_t i
    cdef int failed = 0
    reap(core, True, &failures)
    core.order.lock.lock()
    if failure.kind == PYTHON_RAISED:
        defer_decref_locked(core, failure.exception)
    for i in range(failures.size()):                    # told by the next reap
        keep_unreported_locked(core, &failures[i])
        core.unreported = True
    core.order.lock.unlock()
    if core.resource.ordered != NULL:
        core.order.lock.lock()
        failed = core.resource.ordered.trim(core.resource.self, nbytes, stream, &ignored)
        core.order.lock.unlock()
    elif core.resource.trim != NULL:
        failed = core.resource.trim(core.resource.self, &ignored)
    if failed:
        drop_exception(&ignored)
    return get_bytes_locks(core, nbytes, stream, ptr, resource_block, failure)


cdef void evict_overlapping_locked(CoreState* core, uint64_t ptr, size_t nbytes) noexcept nogil:
    """The resource handed out addresses that we think are live: their old blocks are the corrupt ones (W19).  They are
    taken out of the books without a free, so that their handles are stale and the new owner is safe."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t base
    cdef Tracked* known = floor_of(&core.index, ptr, &base)
    if unlikely(known != NULL and ptr - base < known.nbytes):
        evict_locked(core, core.blocks[known.slot])
    known = successor_of(&core.index, ptr, &base)
    while unlikely(known != NULL and base - ptr < nbytes):
        evict_locked(core, core.blocks[known.slot])
        known = successor_of(&core.index, ptr, &base)


cdef void evict_locked(CoreState* core, Block* block) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    erase(&core.index, block.ptr)
    unaccount_locked(core, block)
    block.state = FREED                                 # the slot is not used again: a window may still point to it
    block.generation = 0


cdef inline void unaccount_locked(CoreState* core, Block* block) noexcept nogil:
    """Out of the books of bytes and streams."""
    check(core.order.lock.held(), "the lock is held")
    if unlikely(block.adopted):
        if block.owner != NULL:
            defer_decref_locked(core, block.owner)
            block.owner = NULL
    else:
        check(core.live_bytes >= block.nbytes and core.live_blocks > 0, "live bytes are those of the live blocks")
        core.live_bytes -= block.nbytes
        core.live_blocks -= 1
    set_home(block, NULL)
    if block.stream != NULL:
        block.stream.blocks -= 1
        block.stream = NULL
    while unlikely(not block.exports.empty()):
        block.exports.back().stream.blocks -= 1
        block.exports.pop_back()


cdef void defer_decref_locked(CoreState* core, void* owner) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    core.pending_decrefs.push_back(owner)
    core.has_pending_decrefs.store(True)


cdef inline void release_slot_locked(CoreState* core, Block* block) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    unaccount_locked(core, block)
    block.state = FREED
    block.generation = 0
    core.empty.push_back(block.slot)


cdef int adopt(CoreState* core, uint64_t ptr, size_t nbytes, StreamState* stream, void* owner, Found* result,
               Failure* failure) except -1 nogil:
    """Track memory of somebody else, without taking it: what is inside a tracked block is that block, what overlaps
    one in part is refused (failure BLOCK_IS_CONTESTED).  `stream` says where the owner's work on it was queued;
    NULL says that it is ready for everybody.  Makes no driver call but for drained frees."""
    cdef OrderState* order = core.order
    cdef Tracked* below
    cdef Tracked* above
    cdef Block* block
    cdef Scope scope
    cdef uint64_t base = 0, following = 0
    cdef bint inside
    cdef int failed = 0
    if refuse_lost(core, failure) or enter_context(order.context, &scope, failure):
        return 1
    drain(core)
    leave_context(&scope)
    order.lock.lock()
    below = floor_of(&core.index, ptr, &base)
    above = successor_of(&core.index, ptr, &following)
    inside = below != NULL and ptr - base < below.nbytes
    result.adopted = False
    if inside and nbytes <= below.nbytes - (ptr - base):
        fill_found_locked(order, base, below, result)
    elif (inside or (above != NULL and following - ptr < nbytes)):
        failure.kind = BLOCK_IS_CONTESTED
        failure.generation = below.generation if inside else above.generation
        failed = 1
    elif stream != NULL and not stream.alive:
        failure.kind = STREAM_IS_DEAD
        failure.stream = stream.number
        failed = 1
    else:
        block = new_block_locked(core, ptr, nbytes, stream)
        block.adopted = True
        block.owner = owner
        result.ptr = ptr
        result.nbytes = nbytes
        result.generation = block.generation
        result.slot = block.slot
        result.stream = stream
        result.adopted = True
    order.lock.unlock()
    return failed
