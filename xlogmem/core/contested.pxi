# Conflicting windows: two launches on different streams that name one block, one of which writes it.
#
# A launch can be ordered after another one only when that is filed.  So a window that conflicts with an open one waits
# on the host until that closes (unless its recorder wants it refused, or counted).  Windows that wait are in one
# queue, in the order in which they came, and a window also waits for conflicting ones that wait longer: readers that
# keep overlapping do not starve a writer.
#
# A thread that waits closes no window, so two rules keep the host from waiting for ever.  A wait for an *open* window
# whose thread waits for this one, or is this one, is refused: no order of the launches is right then.  A place in the
# *queue* is no such reason: a window overtakes one that waits, in the end, for a window of its own thread.
#
# Whatever takes a window or a place in the queue away wakes those that nothing is in the way of any more.  Beyond that
# a thread that waits looks up at times: for signals, for windows whose recorder was dropped or whose thread ended, for
# its own blocks and stream, which may be gone, and for a window that has been open for so long that a warning is due.

cdef enum:
    LOOK_UP = 20                # ms
    REPORT_AFTER = 2000         # ms that a window has been waited for


cdef Use* find_conflict(Window* window, Window* other) noexcept nogil:
    """The first use of `window` that conflicts with one of `other`; NULL: they do not conflict."""
    cdef size_t i, k
    cdef Use* use
    if window.stream == other.stream:                   # the stream orders them
        return NULL
    for i in range(window.uses.size()):
        use = &window.uses[i]
        for k in range(other.uses.size()):
            if other.uses[k].block == use.block and (use.access | other.uses[k].access) & WRITE:
                return use
    return NULL


cdef Window* next_in_the_way_locked(CoreState* core, Window* window, size_t* place) noexcept nogil:
    """The open windows that conflict with this one, one after the other; `place` begins with 0.  NULL: no more."""
    check(core.order.lock.held() and core.windows_lock.held(), "the locks are held")
    cdef Window* other
    while place[0] < core.windows.size():
        other = core.windows[place[0]]
        place[0] += 1
        if other.is_open and other.thread != NO_THREAD and find_conflict(window, other) != NULL:
            return other
    return NULL


# ---------------------------------------------------------------------------------------------- circles
cdef bint waits_for_thread_locked(CoreState* core, Window* window, uint64_t thread, bint through_queue) noexcept nogil:
    """Whether a window that waits can only go on after one that `thread` has open; through other threads that wait,
    and with `through_queue` through windows that wait longer."""
    check(core.order.lock.held() and core.windows_lock.held(), "the locks are held")
    cdef Window* other
    cdef size_t place = 0
    if window.search == core.searches:
        return False
    window.search = core.searches
    while True:
        other = next_in_the_way_locked(core, window, &place)
        if other == NULL:
            break
        if other.thread == thread or thread_waits_for_locked(core, other.thread, thread, through_queue):
            return True
    other = core.waiting if through_queue else NULL
    while other != NULL and other != window:
        if find_conflict(window, other) != NULL and waits_for_thread_locked(core, other, thread, True):
            return True
        other = other.next_waiting
    return False


cdef bint thread_waits_for_locked(CoreState* core, uint64_t waiting, uint64_t thread,
                                  bint through_queue) noexcept nogil:
    """Whether a thread waits, with what it has in the queue, for a window that `thread` has open."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* queued = core.waiting
    while queued != NULL:
        if queued.thread == waiting and waits_for_thread_locked(core, queued, thread, through_queue):
            return True
        queued = queued.next_waiting
    return False


cdef Window* find_circle_locked(CoreState* core, Window* window) noexcept nogil:
    """An open window that will not be closed while the host waits for it: this thread has it open, or a thread that
    waits for this one."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* other
    cdef size_t place = 0
    while True:
        other = next_in_the_way_locked(core, window, &place)
        if other == NULL or other.thread == window.thread:
            return other
        core.searches += 1
        if thread_waits_for_locked(core, other.thread, window.thread, False):
            return other


cdef bint is_blocked_locked(CoreState* core, Window* window) noexcept nogil:
    """Whether a conflicting window is open, or waits longer (and not, in the end, for this thread)."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* ahead = core.waiting
    cdef size_t place = 0
    if next_in_the_way_locked(core, window, &place) != NULL:
        return True
    while ahead != NULL and ahead != window:
        if find_conflict(window, ahead) != NULL:
            core.searches += 1
            if not waits_for_thread_locked(core, ahead, window.thread, True):
                return True
        ahead = ahead.next_waiting
    return False


# ---------------------------------------------------------------------------------------------- the queue
cdef void enter_queue_locked(CoreState* core, Window* window) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef Window** end = &core.waiting
    while end[0] != NULL:
        end = &end[0].next_waiting
    end[0] = window
    window.next_waiting = NULL
    window.is_waiting = True
    window.was_reported = False
    window.may_go_on.clear()
    core.counters.conflict_waits += 1


cdef void leave_queue_locked(CoreState* core, Window* window) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef Window** place = &core.waiting
    while place[0] != window:
        place = &place[0].next_waiting
    place[0] = window.next_waiting
    window.is_waiting = False


cdef void wake_unblocked_locked(CoreState* core) noexcept nogil:
    """Wake the threads whose windows nothing is in the way of any more."""
    check(core.order.lock.held(), "the lock is held")
    core.windows_lock.lock()
    wake_unblocked_of_queue_locked(core)
    core.windows_lock.unlock()


cdef void wake_unblocked_of_queue_locked(CoreState* core) noexcept nogil:
    check(core.order.lock.held() and core.windows_lock.held(), "the locks are held")
    cdef Window* window = core.waiting
    while window != NULL:
        if not window.may_go_on.is_set() and not is_blocked_locked(core, window):
            window.may_go_on.set()
        window = window.next_waiting


# ---------------------------------------------------------------------------------------------- before a window opens
cdef bint refuse_contested_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """True if the window must not open now; then it is in the queue, or the failure is final."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* other
    cdef size_t place = 0
    cdef bint refused
    core.windows_lock.lock()
    other = next_in_the_way_locked(core, window, &place)
    if window.on_conflict in (WAIT_FOR_CONFLICTS, WAIT_OR_COUNT):
        refused = queue_if_blocked_locked(core, window, failure)
    else:
        core.counters.conflicts += other != NULL
        refused = other != NULL and window.on_conflict == REFUSE_CONFLICTS
        if refused:
            fail_contested(failure, BLOCK_IS_CONTESTED, window, other)
    core.windows_lock.unlock()
    return refused


cdef bint queue_if_blocked_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """Put the window in the queue, unless it is there or need not wait; refuse it if it would wait for ever."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* other
    if not is_blocked_locked(core, window):
        if window.is_waiting:
            check(window.may_go_on.is_set(), "whatever was in the way has woken this window")
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
        wake_unblocked_of_queue_locked(core)            # they may overtake one that now waits for their thread
    fail_block(failure, BLOCK_IS_CONTESTED, 0, 0)
    return True


cdef int fail_contested(Failure* failure, FailureKind kind, Window* window, Window* other) noexcept nogil:
    """Name both windows, their streams and threads."""
    cdef Use* use = find_conflict(window, other)
    fail_block(failure, kind, use.block.generation, use - window.uses.data() + 1)
    failure.stream = window.stream.number
    failure.other_stream = other.stream.number
    failure.thread = ident_of_thread(window.thread)
    failure.other_thread = ident_of_thread(other.thread)
    return 1


# ---------------------------------------------------------------------------------------------- the wait
cdef int wait_and_open(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Open a window that is in the queue as soon as nothing is in its way.  The context is current."""
    cdef uint64_t began = milliseconds()
    cdef int failed = 1
    while window.is_waiting:
        window.may_go_on.wait(LOOK_UP)
        failed = not window.may_go_on.is_set() and look_up(core, window, milliseconds() - began, failure)
        failed = failed or refuse_lost(core, failure) or refuse_stream(core, window.stream, failure)
        if not failed:
            drain(core)
            failed = open_window(core, window, failure)
            if failed and failure.kind == BLOCK_IS_CONTESTED:
                continue
        if window.is_waiting:
            core.order.lock.lock()
            leave_queue_locked(core, window)
            wake_unblocked_locked(core)
            core.order.lock.unlock()
    return failed


cdef int look_up(CoreState* core, Window* window, uint64_t waited, Failure* failure) except -1 nogil:
    """What nothing wakes a thread for: windows of ended threads, signals, and a warning that is due."""
    cdef Failure seen
    cdef Window* other
    cdef size_t place = 0
    seen.kind = NO_FAILURE
    core.order.lock.lock()
    file_ownerless_locked(core, window)
    core.windows_lock.lock()
    other = next_in_the_way_locked(core, window, &place)
    if other != NULL and waited >= <uint64_t>REPORT_AFTER and not window.was_reported:
        window.was_reported = True
        fail_contested(&seen, BLOCK_IS_CONTESTED, window, other)
    core.windows_lock.unlock()
    core.order.lock.unlock()
    if seen.kind != NO_FAILURE and warn_of_window(&seen, waited, failure):
        return 1
    return check_signals(failure)


cdef void file_ownerless_locked(CoreState* core, Window* window) noexcept nogil:
    """A thread has ended with a window open, which another thread may close some day, or none.  What was launched is
    on its stream by now, so it is filed here as work without a window is, and no longer waited for."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* other
    cdef uint64_t position
    cdef size_t i, place = 0
    cdef bint any = False
    core.windows_lock.lock()
    while True:
        other = next_in_the_way_locked(core, window, &place)
        if other == NULL:
            break
        if not thread_is_alive(other.thread):
            position = advance(other.stream)
            for i in range(other.uses.size()):
                file_access(other.uses[i].block, other.stream, other.uses[i].access, position)
            other.thread = NO_THREAD
            any = True
    core.windows_lock.unlock()
    if any:
        wake_unblocked_locked(core)
