# How blocks begin: memory from the resource, or adopted foreign memory.
#
# The allocation entry is a position taken after the resource's call and after the waits for the memory, so anything
# that covers it covers the allocation.  Memory for the host has no entry: it is idle, and belongs to no stream.

from libc.stdio cimport snprintf

from xlogmem._base.cpp cimport check, make_new, poke, unlikely
from xlogmem._base.failures cimport (
    BLOCK_IS_CONTESTED,
    DRIVER_FAILED,
    OUT_OF_BUDGET,
    RESOURCE_FAILED,
    STREAM_IS_DEAD,
    drop_exception,
    fail_block,
    fail_resource,
    fail_stream,
    format_failure,
    is_out_of_memory,
    is_put_off,
)
from xlogmem._base.index cimport NO_STREAM, Tracked, erase, floor_of, insert, next_above
from xlogmem._base.labels cimport held
from xlogmem._driver cimport PER_THREAD, Scope, enter_context, leave_context
from xlogmem._order cimport ALLOCATED, advance, forbid_context_sync, host_wait_or_sync_unlocks
from xlogmem.observe._history cimport BLOCK_ADOPTED, BLOCK_ALLOCATED, BLOCK_EVICTED
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, settle, start_call


cdef inline Block* new_block_locked(CoreState* core, ResourceTable* resource, Allocation* given) noexcept nogil:
    """Make a live block in an empty slot; its allocation entry is a new position of the stream (no entry if the stream
    is NULL)."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamState* stream = given.stream
    cdef Block* block
    cdef Entry* entry
    if unlikely(core.empty.empty()):
        block = make_new[Block]()
        block.slot = core.blocks.size()
        core.blocks.push_back(block)
    else:
        block = core.blocks[core.empty.back()]
        core.empty.pop_back()
    check(block.windows == 0 and block.generation == 0, "an empty slot is empty")
    poke(block.generation, given.generation)            # read without the lock where a handle is dropped
    block.ptr = given.ptr
    block.nbytes = given.nbytes
    block.stream = stream
    block.home = NULL
    block.owner = NULL
    block.resource = resource
    block.resource_block = given.resource_block
    block.tag = held(given.tag)
    block.freed_by = NULL
    block.adopted = False
    block.windows = block.writers = 0
    block.pins = 0
    block.writer = 0
    block.operation = 0
    block.state = LIVE
    block.raised = False
    block.frontier.clear()
    block.fresh = stream != NULL
    block.named = False
    if stream != NULL:
        stream.blocks += 2                              # as its stream and as its home
        block.home = stream
        entry = &block.frontier.emplace_back()
        entry.kind = ALLOCATED
        entry.stream = stream.index
        entry.position = advance(stream)
    link_locked(core, block)
    return block


cdef inline void link_locked(CoreState* core, Block* block) noexcept nogil:
    """Insert the block into the address index."""
    check(core.order.lock.held(), "the lock is held")
    cdef Tracked* entry = insert(&core.index, block.ptr)
    entry.generation = block.generation
    entry.nbytes = block.nbytes
    entry.stream = block.stream.index if block.stream != NULL else <uint32_t>NO_STREAM
    entry.slot = block.slot


# ---------------------------------------------------------------------------------------------- allocate
cdef uint64_t new_identity() noexcept nogil:
    """Return `new_generation()` for a block of no bytes, which is in no table."""
    return new_generation()


cdef inline uint64_t new_generation() noexcept nogil:
    return generations.fetch_add(1) + 1


cdef int allocate(CoreState* core, ResourceTable* resource, Allocation* wanted, Block** result,
                  Failure* failure) except -1 nogil:
    """Get memory from a resource, ordered on the stream, or idle for the host where the call names none, and track it.
    Caches have memory of the runtime's own."""
    cdef StreamState* stream = wanted.stream
    cdef StreamCache* cache
    cdef Scope scope
    cdef int failed
    if unlikely(stream == NULL):
        return allocate_for_host(core, resource, wanted, result, failure)
    cache = <StreamCache*>stream.cache.load() if resource == core.resource else NULL
    if (cache != NULL and <size_t>stream.handle > PER_THREAD and not goes_slowly(core)
            and may_allocate_at(<size_t>stream.handle)
            and allocate_from_cache(core, cache, handle_in_cache(stream), wanted, result)):
        return 0
    if refuse_forked(failure) or begin_call(core.order, stream, failure):
        return 1
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        end_call(core.order, stream)
        return 1
    drain(core)
    failed = refuse_stream(core, stream, failure)
    if failed or (cache != NULL and allocate_from_cache(core, cache, handle_in_cache(stream), wanted, result)):
        end_call(core.order, stream)
    else:
        failed = allocate_in_call(core, resource, wanted, RELEASE_STREAM, result, failure)
    leave_context(&scope)
    return mark_lost_if_sticky(core, failed, failure)


cdef int allocate_for_host(CoreState* core, ResourceTable* resource, Allocation* wanted, Block** result,
                           Failure* failure) except -1 nogil:
    """Do as `allocate`, for the host."""
    cdef StreamCache* cache
    cdef Scope scope
    cdef int failed = 0
    if refuse_forked(failure) or refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    cache = host_cache_of(core, resource)
    if cache == NULL or not allocate_from_cache(core, cache, HOST_HANDLE, wanted, result):
        failed = allocate_in_call(core, resource, wanted, KEEP_STREAM_BUSY, result, failure)
    leave_context(&scope)
    return failed


cdef int allocate_in_call(CoreState* core, ResourceTable* resource, Allocation* wanted, AfterCall after, Block** result,
                          Failure* failure) except -1 nogil:
    """Allocate on a stream that is busy, alive and not capturing, or for the host.  The context is current, unless the
    resource finds its device itself."""
    cdef OrderState* order = core.order
    cdef int failed
    wanted.generation = new_generation()                # spent, if this fails
    failed = get_bytes_locks(core, resource, wanted, failure)
    if unlikely(failed) and is_out_of_memory(failure) and not never_fits(failure):
        order.lock.unlock()
        failed = allocate_again_locks(core, resource, wanted, failure)
    if after == RELEASE_STREAM:
        wanted.stream.busy -= 1
    if not unlikely(failed):
        result[0] = track_locked(core, resource, wanted)
    else:
        note_out_of_memory_locked(core, wanted, failure)
    order.lock.unlock()
    if unlikely(<bint>core.wants_cache):
        add_cache(core)
    return mark_lost_if_sticky(core, failed, failure)


cdef inline Block* track_locked(CoreState* core, ResourceTable* resource, Allocation* made) noexcept nogil:
    """Make the block for memory that the resource has just handed out."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block
    evict_overlapping_locked(core, made.ptr, made.nbytes)
    block = new_block_locked(core, resource, made)
    core.live_bytes += made.nbytes
    core.live_blocks += 1
    raise_peak_locked(core)
    core.counters.allocations += 1
    if unlikely(core.watched & BY_HISTORY):
        note_block(core, BLOCK_ALLOCATED, block, block.stream)
    if (resource.frontiers != NULL and resource.frontiers.grain
            and (resource == core.resource or made.stream == NULL)):
        want_size_locked(core, resource, made.stream, made.nbytes)
    return block


cdef int begin_call(OrderState* order, StreamState* stream, Failure* failure) noexcept nogil:
    """Mark the stream busy: it cannot be unregistered while a call uses its handle."""
    cdef int failed = 0
    order.lock.lock()
    if stream.alive:
        stream.busy += 1
    else:
        failed = fail_stream(failure, STREAM_IS_DEAD, stream.number)
    order.lock.unlock()
    return failed


cdef void end_call(OrderState* order, StreamState* stream) noexcept nogil:
    """End what `begin_call` began."""
    order.lock.lock()
    stream.busy -= 1
    order.lock.unlock()


cdef inline int get_bytes_locks(CoreState* core, ResourceTable* resource, Allocation* wanted,
                                Failure* failure) except -1 nogil:
    """Get memory that may be used on the stream, or by the host, from now on.  Returns with the lock held, on failure
    too."""
    cdef int failed
    if resource.frontiers != NULL:
        core.order.lock.lock()
        return resource.frontiers.allocate(resource.self, wanted, failure)
    if unlikely(wanted.stream == NULL):
        return get_bytes_for_host_locks(core, resource, wanted, failure)
    failed = resource.allocate(resource.self, wanted, failure)
    prefetch_hot_lines(core, wanted.stream)
    core.order.lock.lock()
    return failed


cdef int get_bytes_for_host_locks(CoreState* core, ResourceTable* resource, Allocation* wanted,
                                  Failure* failure) except -1 nogil:
    """Get memory of a resource that keeps no frontiers.  Where it is ordered on a stream, that is the default stream,
    and the host waits.  Returns with the lock held, on failure too."""
    cdef OrderState* order = core.order
    cdef StreamState* lead = order.streams[0]
    cdef bint ordered = resource.order != HOST_SYNCHRONOUS
    cdef Failure ignored
    cdef int failed
    if ordered:
        wanted.stream = lead
    failed = resource.allocate(resource.self, wanted, failure)
    order.lock.lock()
    if not failed and ordered:
        order.in_flight += 1
        failed = host_wait_or_sync_unlocks(order, lead, advance(lead), failure)
        order.in_flight -= 1
        if failed:                                      # the stream is capturing, or the device is lost
            order.lock.unlock()
            if resource.deallocate(resource.self, wanted, &ignored):
                drop_exception(&ignored)
            else:
                settle(resource, wanted.nbytes)
            order.lock.lock()
    wanted.stream = NULL
    return failed


cdef int allocate_again_locks(CoreState* core, ResourceTable* resource, Allocation* wanted,
                              Failure* failure) except -1 nogil:
    """Out of memory: wait on the host for the queued frees, have the resource release the memory that it keeps, and try
    once more.  Memory that only a wait for the whole context would release stays: such a wait would end captures
    elsewhere."""
    cdef vector[Failure] failures
    cdef Failure ignored
    cdef size_t i
    cdef int failed = 0
    cdef bint before = forbid_context_sync(True)
    # Frees that are complete already help a budget, but not an allocator that knows of them.  Where streams have fences
    # behind their frees, the wait need not cover their later work.
    if (failure.kind == OUT_OF_BUDGET and look(core)) or reap_fenced(core):
        core.order.lock.lock()
        drop_exception_locked(core, failure)
        core.order.lock.unlock()
        failed = get_bytes_locks(core, resource, wanted, failure)
        if not failed:
            forbid_context_sync(before)
            return 0
        core.order.lock.unlock()
    reap(core, True, False, &failures)                  # what a guard has found is for the program's own call
    core.order.lock.lock()
    drop_exception_locked(core, failure)
    for i in range(failures.size()):                    # raised by the next reap
        if not is_put_off(&failures[i]):
            keep_unreported_locked(core, &failures[i])
            core.unreported = True
    core.order.lock.unlock()
    failed = 0
    if resource.frontiers != NULL:
        core.order.lock.lock()
        failed = resource.frontiers.trim(resource.self, wanted.nbytes, wanted.stream, &ignored)
        core.order.lock.unlock()
    elif resource.trim != NULL:
        failed = resource.trim(resource.self, &ignored)
    if failed:
        drop_exception(&ignored)
    failed = get_bytes_locks(core, resource, wanted, failure)
    forbid_context_sync(before)
    if failed and core.order.wants_context_sync and resource.frontiers == NULL:
        advise_reap_unlocks(core, failure)
    return failed


cdef inline bint never_fits(Failure* failure) noexcept nogil:
    """True if a budget would refuse the request however much is freed."""
    return failure.kind == OUT_OF_BUDGET and failure.budget.requested > failure.budget.limit


cdef int advise_reap_unlocks(CoreState* core, Failure* failure) except -1 nogil:
    """Add to an out-of-memory error that a reap, which waits for the whole context, may help."""
    check(core.order.lock.held(), "the lock is held")
    cdef char[256] text
    if failure.kind not in (DRIVER_FAILED, RESOURCE_FAILED) or not is_out_of_memory(failure):
        return 0
    core.order.lock.unlock()
    format_failure(failure, text, sizeof(text))
    core.order.lock.lock()
    snprintf(failure.text, sizeof(failure.text),
             "%.170s. reap_pending() may release more: it waits for the whole context", text)
    return fail_resource(failure, failure.code)


# ---------------------------------------------------------------------------------------------- collisions
cdef void evict_overlapping_locked(CoreState* core, uint64_t ptr, size_t nbytes) noexcept nogil:
    """Evict live blocks at addresses that the resource has handed out again: the old blocks are the corrupt ones.  They
    leave the accounting without a free, so that their handles are stale and the new owner is safe."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t base
    cdef Tracked* known = floor_of(&core.index, ptr, &base)
    if unlikely(known != NULL and ptr - base < known.nbytes):
        evict_locked(core, core.blocks[known.slot])
    known = next_above(&core.index, ptr, &base)
    while unlikely(known != NULL and base - ptr < nbytes):
        evict_locked(core, core.blocks[known.slot])
        known = next_above(&core.index, ptr, &base)


cdef void evict_locked(CoreState* core, Block* block) noexcept nogil:
    """Remove a live block from the index and the accounting, without a free.  The next allocation that ends with the
    GIL, usually this one, warns of the first eviction."""
    check(core.order.lock.held(), "the lock is held")
    cdef Allocation lost
    if is_in_parts(block):
        join_parts_locked(core, block, 0)
    core.counters.evictions += 1
    if core.counters.evictions == 1:
        core.evicted_ptr = block.ptr
        core.evicted_nbytes = block.nbytes
        core.has_evicted.store(True)
    if core.watched & BY_HISTORY:
        note_block(core, BLOCK_EVICTED, block, block.stream)
    erase(&core.index, block.ptr)
    settle_block(block)
    if block.resource.evicted != NULL and not block.adopted:
        fill_freed(core, block, block.stream, &lost)
        block.resource.evicted(block.resource.self, &lost)
    unaccount_locked(core, block)
    block.state = FREED                                 # the slot is not used again: a window may still point to it
    poke(block.generation, 0)


# ---------------------------------------------------------------------------------------------- adopt
cdef int adopt(CoreState* core, Range* memory, Found* result, Failure* failure) except -1 nogil:
    """Track foreign memory without owning it: a range inside a tracked block resolves to that block; a range that
    overlaps a block in part is refused (failure BLOCK_IS_CONTESTED).  Makes no driver call but for drained frees."""
    cdef OrderState* order = core.order
    cdef Scope scope
    cdef int failed
    if refuse_lost(core, failure) or enter_context(order.context, &scope, failure):
        return 1
    drain(core)
    leave_context(&scope)
    order.lock.lock()
    failed = adopt_locked(core, memory, result, failure)
    order.lock.unlock()
    return failed


cdef int adopt_locked(CoreState* core, Range* memory, Found* result, Failure* failure) noexcept nogil:
    """Do the bookkeeping of `adopt`; change nothing if it fails."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t base = 0, following = 0
    cdef Tracked* below
    cdef Tracked* above
    cdef Allocation foreign
    cdef Block* block
    cdef bint inside
    bring_in_all_locked(core)
    below = floor_of(&core.index, memory.ptr, &base)
    above = next_above(&core.index, memory.ptr, &following)
    inside = below != NULL and memory.ptr - base < below.nbytes
    result.adopted = False
    if inside and memory.nbytes <= below.nbytes - (memory.ptr - base):
        fill_found_locked(core.order, base, below, result)
        return 0
    if inside or (above != NULL and following - memory.ptr < memory.nbytes):
        return fail_block(failure, BLOCK_IS_CONTESTED, below.generation if inside else above.generation, 0)
    if memory.stream != NULL and not memory.stream.alive:
        return fail_stream(failure, STREAM_IS_DEAD, memory.stream.number)
    if memory.only_tracked:
        result.generation = 0
        return 0
    start_call(&foreign, memory.nbytes, NULL)
    foreign.ptr = memory.ptr
    foreign.stream = memory.stream
    foreign.generation = new_generation()
    foreign.tag = memory.tag
    block = new_block_locked(core, core.resource, &foreign)
    block.adopted = True
    block.host_accessible = memory.host_accessible
    block.owner = memory.owner
    if core.watched & BY_HISTORY:
        note_block(core, BLOCK_ADOPTED, block, block.stream)
    result.ptr = memory.ptr
    result.nbytes = memory.nbytes
    result.generation = block.generation
    result.slot = block.slot
    result.stream = memory.stream
    result.adopted = True
    return 0
