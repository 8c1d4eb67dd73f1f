# Freed memory: kept for a while, then checked once more and returned upstream.
#
# Memory leaves the quarantine on the guard's own stream, which waits, on the device, for the fill at the free, so no
# user's stream is delayed.  The memory is freed upstream on the guard's stream.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport Failure, drop_exception
from xlogmem._driver cimport event_is_done, event_record, event_synchronize, give_event, stream_wait, take_event
from xlogmem._order cimport ALLOCATED, Dependency, advance
from xlogmem.resources.base cimport Allocation, settle, start_call


cdef int wait_for_own_stream(GuardState* guard, Failure* failure) except -1 nogil:
    """Wait on the host for all work that is queued on the guard's stream."""
    cdef cy.CUevent event
    cdef int failed
    if take_event(guard.events, &event, failure):
        return 1
    failed = event_record(event, guard.stream, failure)
    if not failed:
        failed = event_synchronize(event, failure)
    give_event(guard.events, event)
    return failed


cdef int allocate_upstream(GuardState* guard, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef int failed
    if guard.upstream.frontiers == NULL:
        return guard.upstream.allocate(guard.upstream.self, wanted, failure)
    guard.order.lock.lock()
    failed = guard.upstream.frontiers.allocate(guard.upstream.self, wanted, failure)
    guard.order.lock.unlock()
    return failed


cdef int deallocate_upstream(GuardState* guard, Allocation* freed, Failure* failure) except -1 nogil:
    """Free memory upstream, after all work that is queued on the stream of the call."""
    cdef vector[Dependency] frontier
    cdef Dependency entry
    if guard.upstream.frontiers != NULL:
        guard.order.lock.lock()
        entry.source = freed.stream
        entry.position = advance(freed.stream)
        entry.kind = ALLOCATED
        frontier.push_back(entry)
        guard.upstream.frontiers.deallocate(guard.upstream.self, freed, &frontier)
        guard.order.lock.unlock()
    elif guard.upstream.deallocate(guard.upstream.self, freed, failure):
        return 1
    settle(guard.upstream, freed.nbytes)
    return 0


cdef int return_upstream(GuardState* guard, Guarded* memory, Failure* failure) except -1 nogil:
    """Check memory that leaves the quarantine, and free it upstream."""
    cdef Allocation freed
    cdef int failed = 0
    if memory.event != NULL:                            # behind the poison
        failed = stream_wait(guard.stream, memory.event, failure)
    if not failed and not memory.is_unfilled:
        failed = check_part(guard, memory, EVERYTHING if memory.is_poisoned else CANARIES, guard.stream, failure)
    if not failed and guard.on_host:
        failed = wait_for_own_stream(guard, failure)
    if not failed:
        start_call(&freed, memory.total, guard.stream)
        freed.stream = guard.stream_state
        freed.ptr = memory.base
        freed.resource_block = memory.resource_block
        freed.generation = memory.generation
        freed.tag = memory.tag
        freed.stack = memory.freed_by
        failed = deallocate_upstream(guard, &freed, failure)
    if failed:
        return_to_quarantine(guard, memory)
        return 1
    if memory.event != NULL:
        give_event(guard.events, memory.event)
    guard.lock.lock()
    guard.returns += 1
    memory.event = NULL
    memory.is_gone = True
    delete_if_done_locked(memory)
    guard.lock.unlock()
    return 0


cdef int return_all(GuardState* guard, vector[Guarded*]* leaving, uint64_t number, Failure* failure) except -1 nogil:
    """Return all memory in `leaving` upstream.  Every return is tried; `failure` is the last failure."""
    cdef Failure newest
    cdef size_t i
    cdef int failed = 0
    for i in range(leaving.size()):
        if return_upstream(guard, leaving[0][i], &newest):
            if failed:
                drop_exception(failure)
            failure[0] = newest
            failed = 1
    if number:
        end_keeping(guard, number)
    return failed


cdef int empty_quarantine(GuardState* guard, Failure* failure) except -1 nogil:
    cdef vector[Guarded*] leaving
    cdef uint64_t number
    guard.lock.lock()
    number = choose_leaving_locked(guard, 0, 0, &leaving)
    guard.lock.unlock()
    return return_all(guard, &leaving, number, failure)


cdef int forget_seen_fill(GuardState* guard) except -1 nogil:
    """Take the event from the oldest memory that has an event, if the event is complete, so that few are in use."""
    cdef Failure ignored
    cdef Guarded* memory
    cdef cy.CUevent event = NULL
    cdef uint64_t number = 0
    cdef bint done = False
    guard.lock.lock()
    memory = guard.unseen.first
    if memory != NULL and memory.pins == 0:             # else another call is at it
        memory.pins += 1
        event = memory.event
        number = begin_keeping_locked(guard)            # what is pinned does not leave, if it is freed meanwhile
    guard.lock.unlock()
    if number == 0:
        return 0
    if event_is_done(event, &done, &ignored):
        done = False
    unpin(guard, memory, done)
    end_keeping(guard, number)
    return done


cdef void unpin(GuardState* guard, Guarded* memory, bint seen) noexcept nogil:
    """Unpin memory; `seen` is True if the fill at the allocation is complete."""
    cdef cy.CUevent event = NULL
    guard.lock.lock()
    memory.pins -= 1
    if seen and memory.pins == 0 and memory.state == GUARDED:
        event = memory.event
        memory.event = NULL
        remove_from(&guard.unseen, memory)
    guard.lock.unlock()
    if event != NULL:
        give_event(guard.events, event)


# ---------------------------------------------------------------------------------------------- checks on demand
cdef int check_all(GuardState* guard, bint wait, Failure* failure) except -1 nogil:
    """Compare all memory that is alive or in quarantine, except memory whose first fill is not complete."""
    cdef vector[Pinned] pinned
    cdef size_t i
    cdef bint seen
    cdef uint64_t number
    cdef int failed = 0
    guard.lock.lock()
    number = begin_keeping_locked(guard)                # what is pinned does not leave
    for i in range(guard.slots.size()):
        if guard.slots[i] != NULL and guard.slots[i].state in (GUARDED, IN_QUARANTINE) and (
                not guard.slots[i].is_unfilled):
            pin_locked(guard.slots[i], &pinned)
    guard.lock.unlock()
    for i in range(pinned.size()):
        seen = False
        if not failed:
            failed = check_one(guard, &pinned[i], &seen, failure)
        unpin(guard, pinned[i].memory, seen)
    end_keeping(guard, number)
    if not failed and wait:
        failed = wait_for_own_stream(guard, failure)
    return failed


cdef void pin_locked(Guarded* memory, vector[Pinned]* pinned) noexcept nogil:
    """Pin memory: while it is pinned its event is not used for anything else."""
    cdef Pinned one
    memory.pins += 1
    one.memory = memory
    one.event = memory.event
    one.is_freed = memory.state == IN_QUARANTINE
    one.part = EVERYTHING if one.is_freed and memory.is_poisoned else CANARIES
    pinned.push_back(one)


cdef int check_one(GuardState* guard, Pinned* one, bint* seen, Failure* failure) except -1 nogil:
    """Compare pinned memory.  Its event is at least behind the fill at the allocation, even if the memory was freed
    meanwhile."""
    if one.event != NULL and one.is_freed:
        if stream_wait(guard.stream, one.event, failure):
            return 1
    elif one.event != NULL:
        if event_is_done(one.event, seen, failure):
            return 1
        if not seen[0]:
            return 0
    return check_part(guard, one.memory, one.part, guard.stream, failure)
