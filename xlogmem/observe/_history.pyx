"""The history of runtimes: the ring of the process, and the definitions that its events refer to.

The core and the ordering write events (`core/recorded.pxi`, `_order.pyx`) while they hold a lock that `switch_history`
of the core takes too: after `switch_history` has returned, nothing is written any more.  Users call `xlogmem.history`.
"""

from time import monotonic_ns, time_ns
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uintptr_t
from libc.string cimport strerror

from xlogmem._base.cpp cimport atomic, make_new, unlikely, vector
from xlogmem._base.labels cimport largest_tag, tags_by_number
from xlogmem._base.sections cimport Section


__all__ = ["begin", "clock", "count", "end", "ends_of", "events", "is_spoiled", "loaded"]

ctypedef uint32_t (*FindSite)() noexcept nogil

cdef extern from *:
    """
    static thread_local uint32_t xlogmem_place = 0;     // of the call that this thread is in
    """
    uint32_t xlogmem_place

cdef Ring* ring = make_new[Ring]()              # never destroyed: threads may outlive the interpreter
cdef atomic[uintptr_t] site_finder              # of the check's sites; stays, for calls that outlast a recording
cdef object recording = object()                # whose section, or the GIL, guards the ring's beginning and end
cdef bint is_begun = False

include "history/timed.pxi"    # durations of waits on streams
include "history/records.pxi"  # definitions of tags, streams and stacks in the file of a recording


cdef Ring* the_ring() noexcept nogil:
    return ring


cdef inline uint32_t find_site() noexcept nogil:
    return (<FindSite>site_finder.load())()


cdef void find_place() noexcept nogil:
    """Find the place of this call.  Call without a lock: the recording may end meanwhile, and another recording begin
    that wants no stacks."""
    global xlogmem_place
    if ring.stacks != NO_STACKS:
        xlogmem_place = find_site()
        if unlikely(xlogmem_place > stacks_written.load()):
            write_stacks()


cdef void find_other_place() noexcept nogil:
    if ring.stacks == OF_ALL_CALLS:
        find_place()


cdef uint32_t place_found() noexcept nogil:
    return xlogmem_place if ring.stacks != NO_STACKS else 0


def begin(size_t max_events, int stacks, size_t site_function, bint timed, int file=-1, stack_text=None):
    """Begin a recording, with room for `max_events` events.  `stacks` is one of `Stacks`, `site_function` the function
    of `xlogmem.check.sites`.  With `timed` waits are timed.  `file` is a descriptor, which stays open until the end, of
    a file as `Ring.begin` requires it; definitions that events refer to are appended to this file.  `stack_text`
    returns the text of a stack by its number."""
    global is_begun
    cdef Section section
    cdef int error
    section.begin(recording)
    if is_begun:
        raise RuntimeError("a history is recorded already; end that one first")
    if site_function:
        site_finder.store(site_function)                # before `stacks`
    error = ring.begin(max_events, stacks, timed, file)
    if error and file >= 0:
        raise OSError(error, strerror(error))
    if error:
        raise MemoryError(f"no host memory for {max_events} events of {sizeof(Event)} bytes; want fewer (max_events)")
    is_begun = True
    begin_records(stack_text)


def end():
    """End the recording, after no runtime records any more: drop the events."""
    global is_begun
    cdef Section section
    section.begin(recording)
    is_begun = False
    end_records()
    with nogil:
        destroy_all_timed()
    ring.end()


def count():
    """The number of events so far."""
    return ring.count()


def is_spoiled():
    """True if the file was truncated or overwritten since the recording began."""
    return ring.is_spoiled()


def events(uint64_t most):
    """The newest events as bytes, oldest first; the tags that the events refer to, by number from 1; and the number of
    all events so far.  While runtimes record, events that are being written are left out.  The field `bytes` of a timed
    wait is the time that the wait held up its stream, in nanoseconds, plus 1."""
    cdef dict times
    cdef uint64_t count, number
    cdef Section section
    cdef vector[Event] kept
    cdef Event event
    section.begin(recording)
    times = times_known() if ring.timed else {}
    count = ring.count()
    number = count - most if count > most else 0
    while number < count:
        if ring.read(number, &event):
            if times and event.kind == STREAM_WAITS and number in times:
                event.bytes = times[number] + 1
            kept.push_back(event)
        number += 1
    return *packed_events(&kept), count


def ends_of(generations):
    """The events with which blocks of these generations began and ended, or failed to end, as bytes, oldest first, and
    their tags."""
    cdef vector[uint64_t] wanted
    cdef vector[Event] kept
    cdef Event event
    cdef uint64_t count, number
    cdef Section section
    for generation in sorted(generations):              # this may run code that ends the history
        wanted.push_back(<uint64_t>generation)
    section.begin(recording)
    count = ring.count() if is_begun else 0
    number = count - min(count, ring.room())
    while number < count:
        if ring.read(number, &event) and is_an_end(&event) and contains(&wanted, event.generation):
            kept.push_back(event)
        number += 1
    return packed_events(&kept)


cdef tuple packed_events(vector[Event]* kept):
    """The events as bytes, with tags numbered from 1, and the list of these tags.  What cannot be an event is left out:
    other programs may have written to the file."""
    cdef dict known = tags_by_number()
    cdef list tags = []
    cdef vector[uint32_t] numbers
    cdef Event event
    cdef size_t i, end = 0
    numbers.resize(largest_tag() + 1)
    for i in range(kept.size()):
        event = kept[0][i]
        if not may_be(&event) or event.tag >= numbers.size():
            continue
        if event.tag:
            if numbers[event.tag] == 0:
                if event.tag not in known:
                    continue
                tags.append(known[event.tag])
                numbers[event.tag] = <uint32_t>len(tags)
            event.tag = numbers[event.tag]
        kept[0][end] = event
        end += 1
    return PyBytes_FromStringAndSize(<const char*>kept.data(), end * sizeof(Event)), tags


cdef inline bint may_be(Event* event) noexcept nogil:
    cdef bint of_need = event.kind in (USE_NEEDS, FREE_NEEDS)
    return NO_EVENT < event.kind <= WINDOW_WAITS and not (of_need and event.access & ACCESS_MASK == ACCESS_MASK)


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


loaded = clock()                    # for how long a tick is, where a recording has no end
