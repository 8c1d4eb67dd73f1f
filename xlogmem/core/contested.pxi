# Conflicting windows: two launches on different streams name one block, and one of the two writes it.
#
# A launch can be ordered after another launch only once the other is filed.  So a window that conflicts with an open
# window waits on the host until the open window closes (unless its recorder wants the conflict refused, or counted).
# Windows that wait are in one queue, in the order in which they came, and a window also waits for conflicting ones that
# wait longer: readers that keep overlapping do not starve a writer.  The next page (`core/circles.pxi`) refuses waits
# that would never end.
#
# Each block lists the windows that wait for it, in the order of the queue.  A function that closes a window, or takes
# it out of the queue, goes through the lists of that window's blocks and wakes the windows that nothing blocks any
# more.  No window behind the first writers of a list can go on, so the search is short, however many windows wait.
# Beyond that, a waiting thread looks up at times: for signals, for dropped recorders, for its own blocks and stream,
# which may be gone, for circles through other runtimes, and for a window that has been open for so long that a warning
# is due.
#
# A waiting window notes its blocks by generation: the slot of a block that is freed meanwhile may get another block.

from libc.stdint cimport UINT64_MAX

from xlogmem._base.cpp cimport check, larger, milliseconds
from xlogmem._base.failures cimport (
    BLOCK_IS_AWAITED,
    BLOCK_IS_CONTESTED,
    NO_FAILURE,
    STREAM_IS_CAPTURING,
    STREAM_IS_DEAD,
    WAIT_IS_CIRCULAR,
    FailureKind,
    check_signals,
    fail_block,
    fail_stream,
    warn_of_window,
)
from xlogmem._driver cimport process_is_closing
from xlogmem._order cimport advance, ident_of_thread, refuse_if_capturing_unlocks, thread_is_alive


cdef enum:
    LOOK_UP = 20                # ms, at first
    LOOK_UP_LATER = 100         # after a long wait
    REPORT_AFTER = 2000         # ms that a window has been waited for

cdef atomic[uint64_t] tickets               # of this process: number the waits


cdef struct Ahead:
    # How the windows that wait longer for a block use it: enough to say if a window conflicts with one of them.
    StreamState* stream         # of one of them, NULL: there is none
    StreamState* writer         # of one that writes
    bint several                # streams
    bint several_write


cdef inline bint is_gone(Wanted* wanted) noexcept nogil:
    """True if the block was freed meanwhile."""
    return cache_of(wanted.block) != NULL or wanted.block.generation != wanted.generation


cdef void note_wanted_locked(CoreState* core, Window* window) noexcept nogil:
    """Note the bytes and access that a window wants, whose requests are valid."""
    check(core.order.lock.held(), "the lock is held")
    cdef Wanted* wanted
    cdef size_t i, ranges = 0
    window.wanted.clear()
    for i in range(window.requests.size()):
        wanted = &window.wanted.emplace_back()
        wanted.block = core.blocks[window.requests[i].slot]
        wanted.generation = window.requests[i].generation
        wanted.access = window.requests[i].access
        wanted.first, wanted.end = 0, UINT64_MAX
        if ranges < window.ranges.size() and window.ranges[ranges].request == i:
            wanted.first, wanted.end = window.ranges[ranges].first, window.ranges[ranges].end
            ranges += 1


cdef bint conflicts_with_open(Wanted* wanted, Window* other) noexcept nogil:
    """True if an open window names some of these bytes, and one of the two writes."""
    cdef Request* request
    cdef ByteRange* part
    cdef size_t i, ranges = 0
    for i in range(other.requests.size()):
        request = &other.requests[i]
        part = NULL
        if ranges < other.ranges.size() and other.ranges[ranges].request == i:
            part = &other.ranges[ranges]
            ranges += 1
        if (request.slot == wanted.block.slot and request.generation == wanted.generation
                and (wanted.access | request.access) & WRITE
                and (part == NULL or (part.first < wanted.end and wanted.first < part.end))):
            return True
    return False


cdef Wanted* find_conflict(Window* window, Window* other) noexcept nogil:
    """Find the first entry of `window.wanted` that conflicts with `other`, open or waiting; NULL if there is no
    conflict."""
    cdef size_t i, k
    cdef Wanted* wanted
    if window.stream == other.stream:                   # the stream orders them
        return NULL
    for i in range(window.wanted.size()):
        wanted = &window.wanted[i]
        if is_gone(wanted):
            continue
        if other.is_open and conflicts_with_open(wanted, other):
            return wanted
        for k in range(other.wanted.size() if not other.is_open else 0):
            if (other.wanted[k].block == wanted.block and other.wanted[k].generation == wanted.generation
                    and (wanted.access | other.wanted[k].access) & WRITE
                    and other.wanted[k].first < wanted.end and wanted.first < other.wanted[k].end):
                return wanted
    return NULL


cdef inline bint may_conflict_with_open(Window* window) noexcept nogil:
    """False if, by the counts of its blocks, the window conflicts with no open window."""
    cdef size_t i
    cdef Wanted* wanted
    for i in range(window.wanted.size()):
        wanted = &window.wanted[i]
        if (wanted.block.windows and wanted.block.window_stream != window.stream and not is_gone(wanted)
                and (wanted.access & WRITE or wanted.block.writers)):
            return True
    return False


cdef Window* find_open_locked(CoreState* core, Window* window) noexcept nogil:
    """Find an open window that conflicts with this one; the window that was found before, if it still conflicts."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* found = NULL
    cdef Window* other
    cdef size_t i, place
    if not may_conflict_with_open(window):
        return NULL
    core.windows_lock.lock()
    for i in range(core.windows.size()):
        place = (window.found_at + i) % core.windows.size()
        other = core.windows[place]
        if other.is_open and other.thread != NO_THREAD and find_conflict(window, other) != NULL:
            window.found_at = place
            found = other
            break
    core.windows_lock.unlock()
    return found


# ---------------------------------------------------------------------------------------------- the queue
cdef inline bint conflicts_with(Waiter* waiter, Window* window, Wanted* wanted) noexcept nogil:
    """True if a window that waits for the same block conflicts with this one."""
    return (waiter.generation == wanted.generation and waiter.window.stream != window.stream
            and (waiter.access | wanted.access) & WRITE
            and waiter.first < wanted.end and wanted.first < waiter.end)


cdef Window* find_ahead_locked(CoreState* core, Window* window, bint overtaking) noexcept nogil:
    """Find a conflicting window that waits longer than this one; with `overtaking`, one that is not stuck."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i, k
    cdef Wanted* wanted
    cdef Waiter* waiter
    for i in range(window.wanted.size()):
        wanted = &window.wanted[i]
        for k in range(wanted.block.waiting.size() if not is_gone(wanted) else 0):
            waiter = &wanted.block.waiting[k]
            if waiter.window == window:
                break
            if conflicts_with(waiter, window, wanted) and not (overtaking and is_stuck(core, waiter.window)):
                return waiter.window
    return NULL


cdef Window* find_in_the_way_locked(CoreState* core, Window* window) noexcept nogil:
    """Find a conflicting window that is open, or waits longer (and not, in the end, for this thread); NULL if there is
    none."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* other
    if window.passes == PASSES_ALL:
        return NULL
    other = find_open_locked(core, window)
    if other != NULL or window.passes == PASSES_QUEUE:
        return other
    other = find_ahead_locked(core, window, False)
    if other != NULL and (window.overtakes if window.is_waiting else may_overtake_locked(core, window)):
        find_stuck_locked(core, window, True)
        other = find_ahead_locked(core, window, True)
    return other


cdef void enter_queue_locked(CoreState* core, Window* window) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef Waiter* waiter
    cdef size_t i
    window.next_waiting = NULL
    window.previous_waiting = core.last_waiting
    if core.waiting == NULL:
        core.waiting = window
        waiting_runtimes.fetch_add(1)
    else:
        core.last_waiting.next_waiting = window
    core.last_waiting = window
    for i in range(window.wanted.size()):
        waiter = &window.wanted[i].block.waiting.emplace_back()
        waiter.window = window
        waiter.generation = window.wanted[i].generation
        waiter.access = window.wanted[i].access
        waiter.first, waiter.end = window.wanted[i].first, window.wanted[i].end
    window.is_waiting = True
    window.was_reported = window.is_known = False
    window.ticket = tickets.fetch_add(1) + 1
    window.overtakes = may_overtake_locked(core, window)
    core.overtakers += window.overtakes
    window.may_go_on.clear()
    note_window_wait_locked(core, window)


cdef void leave_queue_locked(CoreState* core, Window* window) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    if window.previous_waiting == NULL:
        core.waiting = window.next_waiting
    else:
        window.previous_waiting.next_waiting = window.next_waiting
    if window.next_waiting == NULL:
        core.last_waiting = window.previous_waiting
    else:
        window.next_waiting.previous_waiting = window.previous_waiting
    if core.waiting == NULL:
        waiting_runtimes.fetch_sub(1)
    for i in range(window.wanted.size()):
        remove_waiter(&window.wanted[i].block.waiting, window)
    window.is_waiting = False
    window.passes = IN_TURN
    core.overtakers -= window.overtakes
    forget_wait_locked(core, window)


cdef void remove_waiter(vector[Waiter]* waiting, Window* window) noexcept nogil:
    """Remove a window from the list of a block; the others stay in order."""
    cdef size_t i, kept = 0
    for i in range(waiting.size()):
        if waiting[0][i].window != window:
            waiting[0][kept] = waiting[0][i]
            kept += 1
    waiting.resize(kept)


# ---------------------------------------------------------------------------------------------- waking
cdef void wake_after_close_locked(CoreState* core, Window* window) noexcept nogil:
    """Wake the threads whose windows nothing blocks any more, now that this window was closed."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(window.uses.size()):
        wake_unblocked_locked(core, whole_of(window.uses[i].block))
    wake_overtakers_locked(core)


cdef void wake_after_wait_locked(CoreState* core, Window* window) noexcept nogil:
    """Wake the threads whose windows nothing blocks any more, now that this window left the queue without being
    opened."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(window.wanted.size()):
        wake_unblocked_locked(core, window.wanted[i].block)
    wake_overtakers_locked(core)


cdef void wake_unblocked_locked(CoreState* core, Block* block) noexcept nogil:
    """Wake the threads that wait for this block, where nothing blocks their windows any more."""
    check(core.order.lock.held(), "the lock is held")
    cdef Ahead ahead
    cdef Waiter* waiter
    cdef Window* window
    cdef bint has_ranges = False
    cdef size_t i
    ahead.stream = ahead.writer = NULL
    ahead.several = ahead.several_write = False
    for i in range(block.waiting.size()):
        has_ranges = has_ranges or block.waiting[i].end != UINT64_MAX
    for i in range(block.waiting.size()):
        waiter = &block.waiting[i]
        window = waiter.window
        if waiter.generation != block.generation:
            continue
        if (not window.may_go_on.is_set()
                and not (is_behind_one(block, i) if has_ranges else is_behind(&ahead, waiter))
                and is_free_elsewhere_locked(core, window)):
            window.may_go_on.set()
        add_ahead(&ahead, waiter)
        if ahead.several_write and not has_ranges:      # all others conflict with one of these
            break


cdef bint is_behind_one(Block* block, size_t place) noexcept nogil:
    """True if the window in this place of a block's list conflicts with one that waits longer for the block."""
    cdef Waiter* waiter = &block.waiting[place]
    cdef Waiter* longer
    cdef size_t i
    for i in range(place):
        longer = &block.waiting[i]
        if (longer.generation == waiter.generation and longer.window.stream != waiter.window.stream
                and (longer.access | waiter.access) & WRITE
                and longer.first < waiter.end and waiter.first < longer.end):
            return True
    return False


cdef inline bint is_behind(Ahead* ahead, Waiter* waiter) noexcept nogil:
    """True if the window conflicts with one that waits longer for the block."""
    cdef StreamState* stream = waiter.window.stream
    if waiter.access & WRITE:
        return ahead.several or (ahead.stream != NULL and ahead.stream != stream)
    return ahead.several_write or (ahead.writer != NULL and ahead.writer != stream)


cdef inline void add_ahead(Ahead* ahead, Waiter* waiter) noexcept nogil:
    cdef StreamState* stream = waiter.window.stream
    ahead.several = ahead.several or (ahead.stream != NULL and ahead.stream != stream)
    ahead.stream = stream
    if waiter.access & WRITE:
        ahead.several_write = ahead.several_write or (ahead.writer != NULL and ahead.writer != stream)
        ahead.writer = stream


cdef inline bint is_free_elsewhere_locked(CoreState* core, Window* window) noexcept nogil:
    """True if a window that is behind no other window on one block is behind none on its other blocks either, and
    conflicts with no open window."""
    check(core.order.lock.held(), "the lock is held")
    return find_open_locked(core, window) == NULL and (
        window.wanted.size() == 1 or find_ahead_locked(core, window, False) == NULL)


cdef void wake_overtakers_locked(CoreState* core) noexcept nogil:
    """Wake windows that may be allowed to pass others in the queue: these exist only where threads hold windows and
    want more."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* window = core.waiting if core.overtakers else NULL
    while window != NULL:
        if window.overtakes and not window.may_go_on.is_set() and find_in_the_way_locked(core, window) == NULL:
            window.may_go_on.set()
        window = window.next_waiting


# ---------------------------------------------------------------------------------------------- before a window opens
cdef bint refuse_contested_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """True if the window must not open now: either it is in the queue, or the failure is final."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* other
    if not window.is_waiting:
        note_wanted_locked(core, window)
    if window.on_conflict == COUNT_CONFLICTS:
        core.counters.conflicts += find_open_locked(core, window) != NULL
        return False
    other = find_in_the_way_locked(core, window)
    if window.on_conflict == REFUSE_CONFLICTS:
        core.counters.conflicts += other != NULL
        return other != NULL and fail_contested(failure, BLOCK_IS_CONTESTED, window, other)
    return queue_if_blocked_locked(core, window, other, failure)


cdef bint queue_if_blocked_locked(CoreState* core, Window* window, Window* other, Failure* failure) noexcept nogil:
    """Put the window in the queue, unless it is there or nothing is in its way; refuse a wait that would never end.
    True if the window must not open now."""
    check(core.order.lock.held(), "the lock is held")
    if other == NULL:
        if window.is_waiting:
            check(window.may_go_on.is_set() or window.overtakes, "whatever was in the way has woken this window")
            leave_queue_locked(core, window)
        return False
    if window.is_waiting:                               # another window has overtaken it
        window.may_go_on.clear()
    else:
        other = find_circle_locked(core, window)
        if other != NULL and window.on_conflict == WAIT_OR_COUNT:
            core.counters.conflicts += 1
            return False
        if other != NULL:
            fail_contested(failure, WAIT_IS_CIRCULAR, window, other)
            return True
        enter_queue_locked(core, window)
        wake_overtakers_locked(core)                    # they may overtake one that now waits for their thread
    fail_block(failure, BLOCK_IS_CONTESTED, 0, 0)
    return True


cdef int fail_contested(Failure* failure, FailureKind kind, Window* window, Window* other) noexcept nogil:
    """Fill in a failure that names both windows, their streams and threads."""
    cdef Wanted* wanted = find_conflict(window, other)
    fail_block(failure, kind if other.is_open else BLOCK_IS_AWAITED, wanted.generation,
               wanted - window.wanted.data() + 1)
    failure.stream = window.stream.number
    failure.other_stream = other.stream.number
    failure.thread = ident_of_thread(window.thread)
    failure.other_thread = ident_of_thread(other.thread)
    return 1


# ---------------------------------------------------------------------------------------------- the wait
cdef int wait_and_open(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Open a window that is in the queue as soon as nothing is in its way.  The context is current."""
    cdef uint64_t began = milliseconds()
    cdef uint64_t outer = begin_wait(window)
    cdef uint64_t waited = 0
    cdef int failed = 1
    while window.is_waiting:
        window.may_go_on.wait(min(larger(LOOK_UP, waited >> 3), <uint64_t>LOOK_UP_LATER))
        waited = milliseconds() - began
        failed = not window.may_go_on.is_set() and look_up(core, window, waited, failure)
        failed = failed or refuse_forked(failure) or refuse_lost(core, failure) or query_stream(core, window, failure)
        if not failed:
            drain(core)
            failed = open_window(core, window, failure)
            if failed and failure.kind == BLOCK_IS_CONTESTED:
                continue
        if window.is_waiting:
            core.order.lock.lock()
            leave_queue_locked(core, window)
            wake_after_wait_locked(core, window)
            core.order.lock.unlock()
    end_wait(outer)
    return failed


cdef int query_stream(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Do as `refuse_stream`, for a stream that has no window yet: the stream is not unregistered before the query
    returns."""
    cdef int failed = 1
    if is_host(window.stream):
        return 0
    core.order.lock.lock()
    if not window.stream.alive:
        fail_stream(failure, STREAM_IS_DEAD, window.stream.number)
    else:
        failed = refuse_if_capturing_unlocks(core.order, window.stream, STREAM_IS_CAPTURING, failure)
    core.order.lock.unlock()
    return failed


cdef int look_up(CoreState* core, Window* window, uint64_t waited, Failure* failure) except -1 nogil:
    """Look for events that wake no thread: kept windows of ended threads, circles through other runtimes, signals, and
    a warning that is due."""
    cdef Failure seen
    cdef Window* other
    cdef bint refused, late = waited >= <uint64_t>REPORT_AFTER and not process_is_closing()
    seen.kind = NO_FAILURE
    core.order.lock.lock()
    other = find_open_locked(core, window)
    while other != NULL and <bint>other.is_kept and not thread_is_alive(other.thread):
        file_ended_locked(core, other)
        other = find_open_locked(core, window)
    refused = refuse_circle_beyond_locked(core, window, failure)
    if other == NULL:                                   # one that may go on, and whose thread does something else
        other = find_ahead_locked(core, window, False)
        other = other if other != NULL and other.may_go_on.is_set() else NULL
    if other != NULL and late and not window.was_reported:
        window.was_reported = True
        fail_contested(&seen, BLOCK_IS_CONTESTED, window, other)
    core.order.lock.unlock()
    if refused or (seen.kind != NO_FAILURE and warn_of_window(&seen, waited, failure)):
        return 1
    return check_signals(late, failure)             # at the end of the process there is soon no GIL to take


cdef void file_ended_locked(CoreState* core, Window* window) noexcept nogil:
    """File the window of a `prepare_block_use` whose thread has ended; it has no recorder that could be dropped.  Its
    launch is on the stream by now, so it is filed here like work without a window, and no thread waits for it any
    longer; a `finish_block_use` that comes later reports this.  An access of the host has ended with its thread."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t position
    cdef Block* block
    cdef size_t i
    if not is_host(window.stream):
        position = advance(window.stream)
        for i in range(window.uses.size()):
            block = window.uses[i].block
            file_access(block, window.stream, window.uses[i].access, position)
            if block.whole != NULL and not is_in_parts(block.whole):    # joined: it gets the rest with the close
                file_access(block.whole, window.stream, window.uses[i].access, position)
    window.thread = NO_THREAD
    wake_after_close_locked(core, window)
