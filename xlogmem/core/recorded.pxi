# Events of a recorded history: see observe/_history.pyx, and docs/history.md for their meaning.
#
# Nothing here is on a path that runs without a history.  A runtime has two flags for it.  A call reads `marks` anyway
# before its own work: if the history's mark is set, the call finds its place in the program, without a lock, and fast
# paths without the runtime's lock go through a twin that writes events.  `watched` (in the ordering, `is_recorded`) is
# for code that holds the lock, or that of a cache: it changes under all of these locks, so once it is off nothing is
# written.

from xlogmem._base.cpp cimport check
from xlogmem._base.failures cimport LOST, is_out_of_memory
from xlogmem._base.labels cimport Label
from xlogmem._base.sections cimport Section
from xlogmem._driver cimport process_was_forked
from xlogmem._order cimport current_thread, is_ordered_after_locked, note_order
from xlogmem.observe._history cimport (
    BLOCK_ALLOCATED,
    BLOCK_FREED,
    BLOCK_USED,
    BYTES_REAPED,
    FREE_NEEDS,
    FREE_PUT_OFF,
    OUT_OF_MEMORY,
    TICKS_OF_A_STEP,
    USE_NEEDS,
    WINDOW_WAITS,
    WORK_RECORDED,
    Draft,
    EventKind,
    Ring,
    find_other_place,
    find_place,
    new_event,
    place_found,
    the_ring,
    ticks,
)


cdef Ring* history = the_ring()
cdef object listing = object()                      # whose section, or the GIL, guards these
cdef bint history_is_on = False
cdef vector[CoreState*] all_cores


# ---------------------------------------------------------------------------------------------- on and off
cdef void start_calls(CoreState* core) noexcept:
    """Register a core: when a runtime begins, and for the core that a runtime has left behind."""
    cdef Section section
    cdef size_t i
    section.begin(listing)
    for i in range(all_cores.size()):
        if all_cores[i] == core:
            watch(core, history_is_on)
            return
    all_cores.push_back(core)
    if core.resource.stack_depth:
        core.marks.fetch_or(WANTS_STACKS)
    watch(core, history_is_on)


cdef void end_calls(CoreState* core) noexcept:
    """Remove a core from the list when it ends."""
    cdef Section section
    cdef size_t i
    section.begin(listing)
    for i in range(all_cores.size()):
        if all_cores[i] == core:
            watch(core, False)
            all_cores[i] = all_cores.back()
            all_cores.pop_back()
            break


cdef void switch_history(bint is_on) noexcept:
    """Switch the history on or off, for all runtimes and those that are made later."""
    global history_is_on
    cdef Section section
    cdef size_t i
    section.begin(listing)
    history_is_on = is_on
    for i in range(all_cores.size()):
        watch(all_cores[i], is_on)


cdef void watch(CoreState* core, bint recorded) noexcept:
    """Set the flags of a runtime.  The caller has the GIL, which guards the list of cores; this function waits for the
    lock all the same, because a thread that holds the lock never needs the GIL.  `try_lock` is not enough, because no
    other thread's `try_lock` takes a lock from its favourite (cpp/mutex.hpp)."""
    core.order.lock.lock()
    hold_caches_locked(core)
    core.watched = (BY_CHECK if hooks != NULL else 0) | (BY_HISTORY if recorded else 0)
    core.order.is_recorded = recorded
    release_caches_locked(core)
    core.order.lock.unlock()
    core.most_at_once = 0 if core.watched else MOST_AT_ONCE
    if recorded:
        core.marks.fetch_or(IS_RECORDED)
    else:
        core.marks.fetch_and(~<uint32_t>IS_RECORDED)


# ---------------------------------------------------------------------------------------------- where calls begin
cdef bint heed_marks(CoreState* core) noexcept nogil:
    """Find the place in the program of a call that begins.  True if the device is lost."""
    if core.marks.load() & IS_RECORDED:
        find_place()
    return core.marks.load() & LOST


cdef bint has_more_than_a_history(CoreState* core) noexcept nogil:
    """Find the place of a call that begins with deferred work.  True if there is more to do than to record."""
    find_place()
    return not is_only_recorded(core)


cdef inline bint is_only_recorded(CoreState* core) noexcept nogil:
    return (core.marks.load() == IS_RECORDED and core.dropped.load() == NULL and core.abandoned.load() == NULL
            and not process_was_forked())


cdef bint allocate_recorded(CoreState* core, StreamCache* cache, size_t handle, Allocation* wanted,
                            Block** result) noexcept nogil:
    """Do as `allocate_from_cache`, and write the event.  Callers have found the place."""
    cdef Block* block
    if wanted.tag != NULL or not is_only_recorded(core):
        return False
    cache.cache_lock.lock()
    block = take_local(cache, handle, wanted)
    if block != NULL and core.watched & BY_HISTORY:
        note_block(core, BLOCK_ALLOCATED, block, block.stream)
    cache.cache_lock.unlock()
    if block == NULL:
        return False
    result[0] = block
    return True


cdef bint free_recorded(CoreState* core, Block* block, uint64_t generation, StreamState* stream) noexcept nogil:
    """Do as `free_into_cache`, and write the event."""
    cdef StreamCache* cache = cache_of(block)
    cdef bint done
    if cache == NULL or not is_only_recorded(core):
        return False
    find_other_place()
    if not cache.cache_lock.try_lock():
        return False
    done = may_cache(cache, block, generation, stream)
    if done:
        note_and_cache(core, cache, block)
    cache.cache_lock.unlock()
    return done


cdef bint free_at_recorded(CoreState* core, StreamCache* cache, size_t handle, uint64_t ptr) noexcept nogil:
    """Do as `free_at_into_cache`, and write the event."""
    cdef Block* block
    if not is_only_recorded(core):
        return False
    find_other_place()
    cache.cache_lock.lock()
    block = cached_at(cache, handle, ptr)
    if block != NULL:
        note_and_cache(core, cache, block)
    cache.cache_lock.unlock()
    return block != NULL


cdef inline void note_and_cache(CoreState* core, StreamCache* cache, Block* block) noexcept nogil:
    """Write the event of a free, then cache the block.  Called with the lock of the cache."""
    check(cache.cache_lock.held(), "the lock of the cache is held")
    if core.watched & BY_HISTORY:
        note_block(core, BLOCK_FREED, block, block.stream)
    cache_local(cache, block)


# ---------------------------------------------------------------------------------------------- memory
cdef inline Draft event_of(OrderState* order, EventKind kind, StreamState* stream, StreamState* other) noexcept nogil:
    cdef Draft event = new_event(kind, order.mark, current_thread())
    event.stack = place_found()
    if stream != NULL:
        event.stream = <uint32_t>stream.number
    if other != NULL:
        event.other = <uint32_t>other.number
    return event


cdef inline uint32_t tag_of(Label* tag) noexcept nogil:
    return tag.number if tag != NULL else 0


cdef inline void fill_block(Draft* event, Block* block) noexcept nogil:
    event.generation = block.generation
    event.address = block.ptr
    event.bytes = block.nbytes
    event.tag = tag_of(block.tag)


cdef void note_block(CoreState* core, EventKind kind, Block* block, StreamState* stream) noexcept nogil:
    """Write an event of a block, on this stream (NULL: none).  Called with the lock, or that of the block's cache."""
    cdef Draft event = event_of(core.order, kind, stream, NULL)
    fill_block(&event, block)
    history.note(event)


cdef void note_put_off_locked(CoreState* core, Block* block) noexcept nogil:
    """Count a free that is put off, and write its event."""
    check(core.order.lock.held(), "the lock is held")
    core.counters.deferred_frees += 1
    if core.watched & BY_HISTORY:
        note_block(core, FREE_PUT_OFF, block, block.home)


cdef void note_out_of_memory_locked(CoreState* core, Allocation* wanted, Failure* failure) noexcept nogil:
    """Write the event of an allocation that failed, if it failed for want of memory."""
    check(core.order.lock.held(), "the lock is held")
    cdef Draft event
    if core.watched & BY_HISTORY and is_out_of_memory(failure):
        event = event_of(core.order, OUT_OF_MEMORY, wanted.stream, NULL)
        event.bytes = wanted.nbytes
        event.tag = tag_of(wanted.tag)
        history.note(event)


cdef void note_reaped(OrderState* order, StreamState* home, uint64_t nbytes) noexcept nogil:
    """Write the event of frees that the host has seen complete."""
    cdef Draft event = event_of(order, BYTES_REAPED, home, NULL)
    event.bytes = nbytes
    history.note(event)


# ---------------------------------------------------------------------------------------------- launches
cdef bint open_recorded(CoreState* core, Window* window) noexcept nogil:
    """True if a recorded window may be opened with the GIL; then the window begins now."""
    if not core.marks.load() & IS_RECORDED or hooks != NULL or window.requests.size() > <size_t>MOST_AT_ONCE:
        return False
    find_other_place()
    note_opening(window)
    return True


cdef inline void note_opening(Window* window) noexcept nogil:
    window.opened_at = ticks()
    window.site = place_found()


cdef void report_opening(CoreState* core, Window* window) noexcept nogil:
    """Report a window that was opened on a runtime with marks."""
    if hooks != NULL and not is_host(window.stream):    # a check sees by itself that the host waits
        report_window(core, window)
    if core.marks.load() & IS_RECORDED:
        note_opening(window)


cdef void report_close_locked(CoreState* core, Window* window, Outcome outcome) noexcept nogil:
    """Report a window that closes; its position is the next one of its stream."""
    check(core.order.lock.held(), "the lock is held")
    if hooks != NULL and not is_host(window.stream):
        hooks.window_closed(<uint64_t>window, outcome == LAUNCHED)
    if core.watched & BY_HISTORY and (outcome == LAUNCHED or outcome == ACCESSED):
        note_uses(core.order, window)


cdef void note_uses(OrderState* order, Window* window) noexcept nogil:
    """Write one event for each block of a launch."""
    cdef Draft event = event_of(order, BLOCK_USED, window.stream, NULL)
    cdef uint64_t now = ticks()
    cdef uint64_t steps = (now - window.opened_at) // <uint64_t>TICKS_OF_A_STEP if window.opened_at else 0
    cdef size_t i
    event.other = <uint32_t>min(steps, <uint64_t>0xFFFFFFFE)
    if not is_host(window.stream):
        event.position = <uint32_t>(window.stream.count + <bint>window.stream.alive)
    event.stack = window.site if window.opened_at else <uint32_t>0
    window.opened_at = 0
    for i in range(window.uses.size()):
        event.access = window.uses[i].access
        fill_block(&event, window.uses[i].block)
        history.note_at(event, now)


cdef void note_window_wait_locked(CoreState* core, Window* window) noexcept nogil:
    """Count a wait of the host until a conflicting window closes, and write its event."""
    check(core.order.lock.held(), "the lock is held")
    core.counters.conflict_waits += 1
    if core.watched & BY_HISTORY:
        note_order(core.order, WINDOW_WAITS, window.stream, NULL, 0)


cdef void note_work(OrderState* order, Block* block, StreamState* stream, uint32_t access) noexcept nogil:
    """Write the event of filed work that was queued without a prepare."""
    cdef Draft event = event_of(order, WORK_RECORDED, stream, NULL)
    event.access = access
    event.position = <uint32_t>stream.count
    fill_block(&event, block)
    history.note(event)


# ---------------------------------------------------------------------------------------------- reasons for waits
cdef void note_needs_locked(OrderState* order, Window* window) noexcept nogil:
    """Write, for each block, events of the positions that a launch has to be ordered after and is not yet."""
    check(order.lock.held(), "the lock is held")
    cdef Use* use
    cdef size_t i, k
    for i in range(window.uses.size()):
        use = &window.uses[i]
        for k in range(use.first if not use.plain else use.end, use.end):
            note_need_locked(order, USE_NEEDS, use.block, window.stream, &window.snapshot[k])


cdef void note_needs_of_free_locked(OrderState* order, Block* block, StreamState* stream) noexcept nogil:
    """Write events of the positions that the stream (NULL: the host) has to be ordered after before the block is freed
    there."""
    check(order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(block.frontier.size()):
        note_need_locked(order, FREE_NEEDS, block, stream, &block.frontier[i])


cdef void note_need_locked(OrderState* order, EventKind kind, Block* block, StreamState* stream,
                           Entry* entry) noexcept nogil:
    check(order.lock.held(), "the lock is held")
    cdef StreamState* source = order.streams[entry.stream]
    cdef Draft event
    if source == stream or is_ordered_after_locked(order, stream, source, entry.position):
        return
    event = event_of(order, kind, stream, source)
    event.access = entry.kind
    event.position = <uint32_t>entry.position
    fill_block(&event, block)
    history.note(event)
