# The times that waits held up their streams, for a recording that wants them: an event with timing is recorded before
# each wait and another one behind it.  The time between the events is read when both are complete, at the latest when
# the history is read.
#
# Timing never makes a call fail: if the driver refuses, a wait has no time.

from cuda.bindings cimport cydriver as cy

from xlogmem._base.cpp cimport make_new, vector
from xlogmem._base.failures cimport Failure
from xlogmem._base.locks cimport mutex
from xlogmem._driver cimport (
    LEAF_LOCK,
    Scope,
    enter_context,
    event_destroy,
    event_elapsed,
    event_record,
    leave_context,
    take_at_forks,
    timed_event_create,
)


cdef enum:
    MOST_TIMED = 4096               # waits that are not complete yet; further ones have no time

cdef struct Waited:
    uint64_t number                 # of the event in the history
    uint64_t nanoseconds

cdef cppclass Timings:
    mutex lock                      # a leaf
    vector[TimedWait] open
    vector[TimedWait] spare         # events that are recorded again
    vector[Waited] known

cdef Timings* timings = make_new[Timings]()             # never destroyed, as the ring
take_at_forks(&timings.lock, LEAF_LOCK)


cdef bint waits_are_timed() noexcept nogil:
    return ring.timed


cdef int begin_timed(cy.CUcontext context, cy.CUstream stream, TimedWait* timed) except -1 nogil:
    """Record the event before a wait of the stream.  Call without a lock, with the stream's context current."""
    cdef Failure ignored
    cdef bint is_full
    timed.context = NULL
    timings.lock.lock()
    is_full = timings.open.size() >= <size_t>MOST_TIMED
    timings.lock.unlock()
    if is_full and not look_at_timed():
        return 0
    timings.lock.lock()
    if not timings.spare.empty():
        timed[0] = timings.spare.back()
        timings.spare.pop_back()
    timings.lock.unlock()
    if timed.context != context and make_timed(context, timed):
        return 0
    if event_record(timed.before, stream, &ignored):
        spare_timed(timed)
    return 0


cdef int make_timed(cy.CUcontext context, TimedWait* timed) except -1 nogil:
    """Create new events, in place of events of another context."""
    cdef Failure ignored
    destroy_timed(timed)
    if timed_event_create(&timed.before, &ignored):
        return 1
    if timed_event_create(&timed.after, &ignored):
        event_destroy(timed.before, &ignored)
        return 1
    timed.context = context
    return 0


cdef int end_timed(TimedWait* timed, cy.CUstream stream) except -1 nogil:
    """Record the event behind the wait."""
    cdef Failure ignored
    if timed.context != NULL and event_record(timed.after, stream, &ignored):
        spare_timed(timed)
    return 0


cdef void file_timed(TimedWait* timed, uint64_t number) noexcept nogil:
    """File a timed wait under the number of its event in the history."""
    if timed.context != NULL:
        timed.number = number
        timings.lock.lock()
        timings.open.push_back(timed[0])
        timings.lock.unlock()


cdef void spare_timed(TimedWait* timed) noexcept nogil:
    """Make the events of a wait spare, without waiting for them.  Events of a call that outlasts the recording are used
    by the next recording."""
    if timed.context != NULL:
        timings.lock.lock()
        timings.spare.push_back(timed[0])
        timings.lock.unlock()
        timed.context = NULL


cdef bint read_timed(TimedWait* timed) except -1 nogil:
    """Read the time of a wait.  True if both events are complete and the time is known."""
    cdef Failure ignored
    cdef Waited* waited
    cdef uint64_t nanoseconds
    if event_elapsed(timed.before, timed.after, &nanoseconds, &ignored):
        return False
    timings.lock.lock()
    if timings.known.size() >= 2 * ring.room():
        forget_overwritten()
    waited = &timings.known.emplace_back()
    waited.number = timed.number
    waited.nanoseconds = nanoseconds
    timings.lock.unlock()
    return True


cdef void forget_overwritten() noexcept nogil:
    """Forget the times of events that the ring has overwritten.  Call with the lock."""
    cdef uint64_t first = ring.count() - min(ring.count(), ring.room())
    cdef size_t i, kept = 0
    for i in range(timings.known.size()):
        if timings.known[i].number >= first:
            timings.known[kept] = timings.known[i]
            kept += 1
    timings.known.resize(kept)


cdef int destroy_timed(TimedWait* timed) except -1 nogil:
    cdef Failure ignored
    if timed.context != NULL:
        event_destroy(timed.before, &ignored)
        event_destroy(timed.after, &ignored)
        timed.context = NULL
    return 0


cdef bint look_at_timed() except -1 nogil:
    """Read the times of all complete waits.  True if there were any."""
    cdef vector[TimedWait] found
    cdef Failure ignored
    cdef Scope scope
    cdef bint entered, is_read, any_read = False
    cdef size_t i
    timings.lock.lock()
    found = timings.open
    timings.open.clear()
    timings.lock.unlock()
    for i in range(found.size()):
        entered = not enter_context(found[i].context, &scope, &ignored)
        is_read = entered and read_timed(&found[i])
        any_read |= is_read
        if is_read:
            spare_timed(&found[i])
        else:
            file_timed(&found[i], found[i].number)
        if entered:
            leave_context(&scope)
    return any_read


cdef int destroy_all_timed() except -1 nogil:
    """Destroy all events with timing, at the end of a recording."""
    cdef vector[TimedWait] found
    cdef size_t i
    timings.lock.lock()
    found = timings.spare
    for i in range(timings.open.size()):
        found.push_back(timings.open[i])
    timings.open.clear()
    timings.spare.clear()
    timings.known.clear()
    timings.lock.unlock()
    for i in range(found.size()):
        destroy_in_context(&found[i])
    return 0


cdef int destroy_in_context(TimedWait* timed) except -1 nogil:
    cdef Failure ignored
    cdef Scope scope
    if not enter_context(timed.context, &scope, &ignored):
        destroy_timed(timed)
        leave_context(&scope)
    return 0


cdef dict times_known():
    """The nanoseconds that each wait held up its stream, by the number of the wait's event."""
    cdef vector[Waited] known
    cdef size_t i
    with nogil:
        look_at_timed()
        timings.lock.lock()
        known = timings.known
        timings.lock.unlock()
    return {known[i].number: known[i].nanoseconds for i in range(known.size())}
