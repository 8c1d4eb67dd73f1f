# Deadlock detection between waiting launches.
#
# A thread that waits closes no window.  So a wait for an *open* window is refused if the window's thread is this thread
# or waits for it: no order of the launches is right then.  A place in the *queue* is no reason to refuse: a window
# overtakes another window that waits, in the end, for a window of the overtaking window's thread.
#
# A window's thread is known if one thread alone has touched its recorder until it was opened.  A recorder that was made
# in one thread and opened in another is being passed on: any thread may close it.  So it is no reason to refuse another
# window, which waits instead (if for ever, with a warning); and any window may overtake the windows that wait for it.
#
# Python code may run inside a wait (a handler of a signal, a hook of warnings, a resource), and use blocks itself.
# Then the thread has several windows in the queue, and the inner windows, with the higher tickets, come first.  A
# window that the thread opens there does not depend on the waits around it: `inside` is the ticket of the innermost of
# these waits.
#
# Within a runtime circles are found when a window enters the queue.  A circle may also lead through other runtimes,
# whose tables another lock guards.  While windows wait in more than one runtime, each of them notes at times, in a
# table of the process, the windows that it waits for.  A note was right at its time, and is still right if the thread
# that holds the noted window has been waiting since before the note: a circle of such notes has no end, and the thread
# that finds the circle is refused.

from xlogmem._base.cpp cimport check, make_new
from xlogmem._base.failures cimport WAIT_IS_CIRCULAR
from xlogmem._driver cimport LEAF_LOCK, take_at_forks
from xlogmem._order cimport current_thread


cdef extern from *:
    """
    #include <cstdint>
    static thread_local uint64_t xlogmem_innermost_wait = 0;    // the ticket
    """
    uint64_t innermost_wait "xlogmem_innermost_wait"

cdef cppclass Waits:
    mutex table_lock            # a leaf
    vector[Window*] windows     # that wait and have noted what for, of all runtimes
    uint64_t searches

cdef Waits* waits = make_new[Waits]()                   # never destroyed: threads may outlive the interpreter
cdef atomic[uint32_t] waiting_runtimes                  # those with windows in the queue

take_at_forks(&waits.table_lock, LEAF_LOCK)


cdef void note_thread(Window* window) noexcept nogil:
    """Note, before a window is opened, that this thread opens it."""
    cdef uint64_t thread = current_thread()
    if window.thread != thread:
        window.moved = True
        window.thread = thread
    window.inside = innermost_wait


cdef uint64_t begin_wait(Window* window) noexcept nogil:
    """Begin a wait.  Returns the ticket of the wait around it, for `end_wait`."""
    global innermost_wait
    cdef uint64_t outer = innermost_wait
    innermost_wait = window.ticket
    return outer


cdef void end_wait(uint64_t outer) noexcept nogil:
    global innermost_wait
    innermost_wait = outer


# ---------------------------------------------------------------------------------------------- within a runtime
cdef inline bint is_stuck(CoreState* core, Window* window) noexcept nogil:
    """True if the last `find_stuck_locked` marked the window."""
    return window.search == core.searches


cdef inline void mark_stuck(CoreState* core, Window* window) noexcept nogil:
    if window.search != core.searches:
        window.search = core.searches
        core.stuck.push_back(window)


cdef bint may_overtake_locked(CoreState* core, Window* window) noexcept nogil:
    """False if no other window can wait for this window's thread: the thread has no window open and no other window in
    the queue, and the threads of all open windows are known."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* other
    cdef bint may = False
    cdef size_t i
    core.windows_lock.lock()
    for i in range(core.windows.size()):
        other = core.windows[i]
        if other != window and ((other.is_open and (other.thread == window.thread or other.moved))
                                or (other.is_waiting and other.thread == window.thread)):
            may = True
            break
    core.windows_lock.unlock()
    return may


cdef void find_stuck_locked(CoreState* core, Window* window, bint through_queue) noexcept nogil:
    """Mark the windows that are not closed, or do not go on, before the thread of `window` does; with `through_queue`,
    also because of windows that wait longer, or that this thread may have to close."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* other
    cdef size_t i, done = 0
    core.searches += 1
    core.stuck.clear()
    core.windows_lock.lock()
    for i in range(core.windows.size()):
        other = core.windows[i]
        if other != window and ((other.is_open and is_of_thread(other, window.thread, through_queue))
                                or (other.is_waiting and other.thread == window.thread)):
            mark_stuck(core, other)
    while done < core.stuck.size():
        mark_behind_locked(core, core.stuck[done], through_queue)
        done += 1
    core.windows_lock.unlock()


cdef inline bint is_of_thread(Window* window, uint64_t thread, bint perhaps) noexcept nogil:
    """True if an open window belongs to this thread or, with `perhaps`, may belong to it."""
    if window.moved:
        return perhaps and window.thread != NO_THREAD
    return window.thread == thread


cdef void mark_behind_locked(CoreState* core, Window* stuck, bint through_queue) noexcept nogil:
    """Mark the windows that wait for `stuck`, and those that its thread has and cannot close while it waits."""
    check(core.order.lock.held() and core.windows_lock.held(), "the locks are held")
    cdef Window* other
    cdef size_t i
    for i in range(core.windows.size() if stuck.is_waiting else 0):
        other = core.windows[i]
        if ((other.is_open and other.inside < stuck.ticket and not other.moved and other.thread == stuck.thread)
                or (other.is_waiting and other.ticket < stuck.ticket and other.thread == stuck.thread)):
            mark_stuck(core, other)
    other = core.waiting
    if stuck.is_waiting:
        other = stuck.next_waiting if through_queue else NULL
    while other != NULL:
        if not is_stuck(core, other) and find_conflict(other, stuck) != NULL:
            mark_stuck(core, other)
        other = other.next_waiting


cdef Window* find_circle_locked(CoreState* core, Window* window) noexcept nogil:
    """Find an open window that will not be closed while the host waits for it: this thread has it open, or a thread
    that waits for this thread has."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* found = NULL
    cdef size_t i
    if not may_overtake_locked(core, window):
        return NULL
    find_stuck_locked(core, window, False)
    for i in range(core.stuck.size()):
        if core.stuck[i].is_open and find_conflict(window, core.stuck[i]) != NULL:
            found = core.stuck[i]
            break
    return found


# ---------------------------------------------------------------------------------------------- through other runtimes
cdef bint refuse_circle_beyond_locked(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """Note which windows this window waits for, and look for a circle through other runtimes.  True if the window is
    refused.  Where the circle leads through the queue, the window passes those that wait longer."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* circle = NULL
    cdef vector[Hold] holds
    cdef bint passes
    cdef size_t i
    if waiting_runtimes.load() < 2 or window.passes == PASSES_ALL:
        return False
    find_holds_locked(core, window, &holds)
    waits.table_lock.lock()
    note_holds(window, &holds)
    passes = not holds.empty()
    for i in range(holds.size()):
        if not holds[i].queued and leads_back(&holds[i], window, False):
            circle = holds[i].window
            break
        passes = passes and holds[i].queued and leads_back(&holds[i], window, True)
    waits.table_lock.unlock()
    if circle != NULL:
        forget_wait_locked(core, window)                # the others of the circle need not be refused
        if window.on_conflict != WAIT_OR_COUNT:
            return fail_contested(failure, WAIT_IS_CIRCULAR, window, circle)
        core.counters.conflicts += 1
    if circle != NULL or passes:
        window.passes = PASSES_ALL if circle != NULL else PASSES_QUEUE
        core.overtakers += not window.overtakes
        window.overtakes = True
    return False


cdef void find_holds_locked(CoreState* core, Window* window, vector[Hold]* holds) noexcept nogil:
    """Collect the windows that this window waits for, as other runtimes may know them."""
    check(core.order.lock.held(), "the lock is held")
    cdef Window* other
    cdef Hold* hold
    cdef size_t i
    core.windows_lock.lock()
    for i in range(core.windows.size()):
        other = core.windows[i]
        if (other.is_open and not other.moved and other.thread != NO_THREAD
                and find_conflict(window, other) != NULL):
            hold = &holds.emplace_back()
            hold.window, hold.thread, hold.inside, hold.queued = other, other.thread, other.inside, False
    core.windows_lock.unlock()
    other = core.waiting
    while other != window:
        if find_conflict(window, other) != NULL:
            hold = &holds.emplace_back()
            hold.window, hold.thread, hold.inside, hold.queued = other, other.thread, other.ticket - 1, True
        other = other.next_waiting


cdef void note_holds(Window* window, vector[Hold]* holds) noexcept nogil:
    """Note the holds for the other runtimes."""
    check(waits.table_lock.held(), "the lock is held")
    window.holds = holds[0]
    window.noted = tickets.fetch_add(1) + 1
    if not window.is_known:
        window.is_known = True
        window.visited = 0
        waits.windows.push_back(window)


cdef void forget_wait_locked(CoreState* core, Window* window) noexcept nogil:
    """Remove the window from the table when its wait ends."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    if not window.is_known:
        return
    window.is_known = False
    waits.table_lock.lock()
    for i in range(waits.windows.size()):
        if waits.windows[i] == window:
            waits.windows[i] = waits.windows.back()
            waits.windows.pop_back()
            break
    waits.table_lock.unlock()


cdef bint leads_back(Hold* first, Window* window, bint through_queue) noexcept nogil:
    """True if the hold does not end before this window's thread goes on.  Through the queue an old note does no harm:
    the window then overtakes others that it did not have to overtake."""
    check(waits.table_lock.held(), "the lock is held")
    cdef vector[Window*] found
    cdef Window* other
    cdef Hold* hold
    cdef size_t i, done = 0
    waits.searches += 1
    find_waits_of(first, window.noted, through_queue, &found)
    while done < found.size():
        other = found[done]
        done += 1
        for i in range(other.holds.size()):
            hold = &other.holds[i]
            if hold.queued and not through_queue:
                continue
            if hold.thread == window.thread and hold.inside < window.ticket and (
                    through_queue or window.ticket < other.noted):
                return True
            find_waits_of(hold, other.noted, through_queue, &found)
    return False


cdef void find_waits_of(Hold* hold, uint64_t noted, bint through_queue, vector[Window*]* found) noexcept nogil:
    """Find the waits that keep the holder from ending its hold; only those that began before `noted`, unless old notes
    do not matter."""
    cdef Window* other
    cdef size_t i
    for i in range(waits.windows.size()):
        other = waits.windows[i]
        if (other.thread == hold.thread and other.ticket > hold.inside and other.visited != waits.searches
                and (through_queue or other.ticket < noted)):
            other.visited = waits.searches
            found.push_back(other)
