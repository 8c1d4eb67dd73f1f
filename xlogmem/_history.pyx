"""The history that runtimes record of themselves: the ring of the process, and what events refer to.

The core and the ordering write events (`core/recorded.pxi`, `_order.pyx`) where they hold a lock that `switch_history`
of the core takes too: when that has returned nothing is written any more.  `xlogmem.history` is what users call.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uintptr_t

from xlogmem._cpp cimport atomic, make_new, vector
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
from xlogmem._failures cimport Failure
from xlogmem._labels cimport held, object_of, release

from time import monotonic_ns, time_ns

__all__ = ["begin", "clock", "end", "ends_of", "events", "tag_names"]

ctypedef uint32_t (*FindSite)() noexcept nogil

cdef extern from *:
    """
    static thread_local uint32_t xlogmem_place = 0;     // of the call that this thread is in
    """
    uint32_t xlogmem_place

cdef Ring* ring = make_new[Ring]()              # never destroyed: threads may outlive the interpreter
cdef atomic[uintptr_t] site_finder              # of the check's sites; stays, for calls that outlast a recording
cdef bint is_begun = False

take_at_forks(&ring.tags_lock, LEAF_LOCK)

include "history/timed.pxi"             # how long waits held up their streams


cdef Ring* the_ring() noexcept nogil:
    return ring


cdef inline uint32_t find_site() noexcept nogil:
    return (<FindSite>site_finder.load())()


cdef void find_place() noexcept nogil:
    """Without a lock: the recording may end meanwhile, and another one begin that wants no stacks."""
    global xlogmem_place
    if ring.stacks != NO_STACKS:
        xlogmem_place = find_site()


cdef void find_other_place() noexcept nogil:
    global xlogmem_place
    if ring.stacks == OF_ALL_CALLS:
        xlogmem_place = find_site()


cdef uint32_t place_found() noexcept nogil:
    return xlogmem_place if ring.stacks != NO_STACKS else 0


cdef uint32_t tag_number(Label* tag) noexcept nogil:
    """0 for none.  The history holds the label until its end."""
    cdef bint is_new = False
    cdef uint32_t number
    if tag == NULL:
        return 0
    number = ring.number_of(tag, &is_new)
    if is_new:
        held(tag)
    return number


def begin(size_t max_events, int stacks, size_t site_function, bint timed):
    """Room for so many events; `stacks` is one of `Stacks`, `site_function` that of `xlogmem.check.sites`.  `timed`:
    waits are."""
    global is_begun
    if is_begun:
        raise RuntimeError("a history is recorded already; end that one first")
    if site_function:
        site_finder.store(site_function)                # before `stacks`
    if not ring.begin(max_events, stacks, timed):
        raise MemoryError(f"no host memory for {max_events} events of {sizeof(Event)} bytes; want fewer (max_events)")
    is_begun = True


def end():
    """When no runtime records any more: drop the events."""
    global is_begun
    cdef vector[void*] tags = copied_tags()
    cdef size_t i
    is_begun = False
    with nogil:
        destroy_all_timed()
    ring.end()
    for i in range(tags.size()):
        release(<Label*>tags[i])


cdef vector[void*] copied_tags() noexcept:
    cdef vector[void*] tags
    tags.resize(ring.tag_count())
    ring.copy_tags(tags.data(), tags.size())
    return tags


def tag_names():
    """The tags that events refer to, by number: the first is that of 1."""
    cdef vector[void*] tags = copied_tags()
    cdef size_t i
    return [object_of(<Label*>tags[i]) for i in range(tags.size())]


def events(uint64_t most):
    """The newest events as bytes, oldest first, and how many there were in all.  While runtimes record, those that are
    being written are left out.  The bytes of a wait are how long it held up its stream, in nanoseconds and 1 more."""
    cdef dict times = times_known() if ring.timed else {}
    cdef uint64_t count = ring.count() if is_begun else 0
    cdef uint64_t number = count - most if count > most else 0
    cdef vector[Event] kept
    cdef Event event
    while number < count:
        if ring.read(number, &event):
            if times and event.kind == STREAM_WAITS and number in times:
                event.bytes = times[number] + 1
            kept.push_back(event)
        number += 1
    return PyBytes_FromStringAndSize(<const char*>kept.data(), kept.size() * sizeof(Event)), count


def ends_of(generations):
    """The events with which blocks of these generations began and ended, or did not end after all, as bytes, oldest
    first."""
    cdef vector[uint64_t] wanted
    cdef vector[Event] kept
    cdef Event event
    cdef uint64_t count, number
    for generation in sorted(generations):              # this may run code that ends the history
        wanted.push_back(<uint64_t>generation)
    count = ring.count() if is_begun else 0
    number = count - min(count, ring.room())
    while number < count:
        if ring.read(number, &event) and is_an_end(&event) and contains(&wanted, event.generation):
            kept.push_back(event)
        number += 1
    return PyBytes_FromStringAndSize(<const char*>kept.data(), kept.size() * sizeof(Event))


cdef inline bint is_an_end(Event* event) noexcept nogil:
    return event.kind in (BLOCK_ALLOCATED, BLOCK_ADOPTED, BLOCK_FREED, BLOCK_RELEASED, BLOCK_EVICTED, FREE_FAILED)


cdef bint contains(vector[uint64_t]* ascending, uint64_t wanted) noexcept nogil:
    cdef size_t first = 0, end = ascending.size(), middle
    while first < end:
        middle = (first + end) // 2
        if ascending[0][middle] < wanted:
            first = middle + 1
        else:
            end = middle
    return first < ascending.size() and ascending[0][first] == wanted


def clock():
    """The clock of the events, and two others: ticks, monotonic nanoseconds, nanoseconds of the epoch."""
    return ticks(), monotonic_ns(), time_ns()
