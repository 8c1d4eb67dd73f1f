# Records of guarded memory by address, and two lists.
#
# The lock of the guard is a leaf and is not held during driver calls.  Memory that a call works on without the lock is
# pinned, or in a state that other calls leave alone.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.index cimport NO_STREAM, Tracked, erase, floor_of, insert
from xlogmem._base.labels cimport release
from xlogmem._order cimport this_thread


cdef void append(GuardedList* known, Guarded* memory) noexcept nogil:
    memory.previous = known.last
    memory.next = NULL
    if known.last != NULL:
        known.last.next = memory
    else:
        known.first = memory
    known.last = memory
    memory.is_listed = True


cdef void remove_from(GuardedList* known, Guarded* memory) noexcept nogil:
    """Remove memory from its list; do nothing if it is in no list."""
    if not memory.is_listed:
        return
    if memory.previous != NULL:
        memory.previous.next = memory.next
    else:
        known.first = memory.next
    if memory.next != NULL:
        memory.next.previous = memory.previous
    else:
        known.last = memory.previous
    memory.is_listed = False


cdef void enter_locked(GuardState* guard, Guarded* memory) noexcept nogil:
    """Insert memory into the index."""
    cdef Tracked* entry
    if guard.empty.empty():
        memory.slot = guard.slots.size()
        guard.slots.push_back(memory)
    else:
        memory.slot = guard.empty.back()
        guard.empty.pop_back()
        guard.slots[memory.slot] = memory
    entry = insert(&guard.index, memory.ptr)
    entry.generation = memory.generation
    entry.nbytes = memory.nbytes
    entry.stream = <uint32_t>NO_STREAM
    entry.slot = memory.slot


cdef void leave_locked(GuardState* guard, Guarded* memory) noexcept nogil:
    """Remove memory from the index: upstream may hand the address out again."""
    erase(&guard.index, memory.ptr)
    guard.slots[memory.slot] = NULL
    guard.empty.push_back(memory.slot)


cdef Guarded* guarded_at_locked(GuardState* guard, uint64_t ptr) noexcept nogil:
    """The memory that begins at an address, alive or freed; NULL if there is none."""
    cdef uint64_t base
    cdef Tracked* known = floor_of(&guard.index, ptr, &base)
    return guard.slots[known.slot] if known != NULL and base == ptr else NULL


cdef void delete_if_done_locked(Guarded* memory) noexcept nogil:
    """Delete the record of memory that was returned upstream, unless a result is still to come."""
    if memory.is_gone and memory.checks == 0:
        release(memory.tag)
        release(memory.allocated_by)
        release(memory.freed_by)
        del memory


cdef uint64_t begin_keeping_locked(GuardState* guard) noexcept nogil:
    """Note that this thread keeps freed memory from others until `end_keeping`; upstream may have more memory then."""
    cdef Keeper keeper
    guard.keeps += 1
    keeper.thread = this_thread()
    keeper.number = guard.keeps
    guard.keepers.push_back(keeper)
    return keeper.number


cdef void end_keeping(GuardState* guard, uint64_t number) noexcept nogil:
    cdef size_t i = 0
    guard.lock.lock()
    while guard.keepers[i].number != number:
        i += 1
    guard.keepers[i] = guard.keepers.back()
    guard.keepers.pop_back()
    guard.kept.ring()
    guard.lock.unlock()


cdef void enter_quarantine_locked(GuardState* guard, Guarded* memory) noexcept nogil:
    memory.state = IN_QUARANTINE
    append(&guard.quarantine, memory)
    guard.quarantined += memory.total
    guard.quarantined_count += 1


cdef uint64_t choose_leaving_locked(GuardState* guard, size_t most, uint64_t age,
                                    vector[Guarded*]* leaving) noexcept nogil:
    """Take memory that is too much or too old from the quarantine, the oldest first, but no memory that a call works
    on.  Returns the number that `return_all` takes; 0 if no memory leaves."""
    cdef Guarded* memory = guard.quarantine.first
    cdef Guarded* following
    while memory != NULL and (guard.quarantined > most or (age and guard.frees - memory.freed_as >= age)):
        following = memory.next
        if memory.pins == 0:
            remove_from(&guard.quarantine, memory)
            guard.quarantined -= memory.total
            guard.quarantined_count -= 1
            leave_locked(guard, memory)
            memory.state = LEAVING
            leaving.push_back(memory)
        memory = following
    return begin_keeping_locked(guard) if leaving.size() else 0


cdef void return_to_quarantine(GuardState* guard, Guarded* memory) noexcept nogil:
    """Put memory back into quarantine that upstream did not take: another call tries again."""
    guard.lock.lock()
    enter_locked(guard, memory)
    enter_quarantine_locked(guard, memory)
    guard.lock.unlock()
