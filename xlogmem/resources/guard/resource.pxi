# The resource interface of the guard, called by the core.
#
# Fills and checks of a call are queued on the call's stream, which the core has ordered after every use.  If upstream
# takes no streams, the host is ordered after every use, and fills and checks are queued on the guard's own stream.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t
from libc.stdio cimport snprintf

from xlogmem._base.cpp cimport make_new, vector
from xlogmem._base.failures cimport (
    STREAM_IS_CAPTURING,
    Failure,
    UnderWay,
    drop_exception,
    fail_resource,
    fail_stream,
    is_sticky,
    put_back,
    set_aside,
)
from xlogmem._base.labels cimport Label, held, release
from xlogmem._driver cimport (
    event_record,
    give_event,
    relax_capture,
    restore_capture,
    stream_is_capturing,
    stream_wait,
    take_event,
)
from xlogmem.resources.base cimport Allocation


cdef size_t total_of(GuardState* guard, size_t nbytes) noexcept nogil:
    """The bytes to allocate upstream: the canary behind begins with the byte after the user's last."""
    return 2 * guard.canary + ((nbytes + ALIGNMENT - 1) & ~(<size_t>ALIGNMENT - 1))


cdef int refuse_capturing(GuardState* guard, Allocation* call, Failure* failure) except -1 nogil:
    """Fail if the stream of a caller without a runtime is capturing: no work of the guard may get into a graph.  For a
    call with a runtime, the core has checked the stream."""
    cdef bint capturing = False
    if call.stream != NULL or guard.on_host:
        return 0
    if stream_is_capturing(call.handle, &capturing, failure):
        return 1
    return fail_stream(failure, STREAM_IS_CAPTURING, <uint64_t>call.handle) if capturing else 0


cdef int allocate(void* self, Allocation* wanted, Failure* failure) except -1 nogil:
    cdef GuardState* guard = <GuardState*>self
    cdef Allocation given = wanted[0]
    cdef Guarded* memory
    if wanted.nbytes > LARGEST:
        snprintf(failure.text, sizeof(failure.text), "out of memory: %zu bytes were requested", wanted.nbytes)
        return fail_resource(failure, cy.CUDA_ERROR_OUT_OF_MEMORY)
    if refuse_capturing(guard, wanted, failure):
        return 1
    given.nbytes = total_of(guard, wanted.nbytes)
    if allocate_or_empty(guard, &given, failure):
        return 1
    memory = new_memory(guard, wanted, &given)
    if begin_guarding(guard, memory, given.handle, failure):
        given_up(guard, memory, &given)
        return 1
    wanted.ptr = memory.ptr
    wanted.resource_block = NULL
    guard.lock.lock()
    enter_locked(guard, memory)
    if memory.event != NULL:
        append(&guard.unseen, memory)
    guard.lock.unlock()
    return tidy(guard)


cdef Guarded* new_memory(GuardState* guard, Allocation* wanted, Allocation* given) noexcept nogil:
    cdef Guarded* memory = make_new[Guarded]()
    memory.base = given.ptr
    memory.ptr = given.ptr + guard.canary
    memory.nbytes = wanted.nbytes
    memory.total = given.nbytes
    memory.generation = wanted.generation
    memory.tag = held(wanted.tag)
    memory.allocated_by = held(wanted.stack)
    memory.resource_block = given.resource_block
    guard.lock.lock()
    guard.serial += 1
    memory.seed = guard.serial * <uint64_t>0xD1342543DE82EF95
    guard.lock.unlock()
    return memory


cdef int begin_guarding(GuardState* guard, Guarded* memory, cy.CUstream stream, Failure* failure) except -1 nogil:
    """Fill the canaries, and the rest with poison."""
    cdef int part = EVERYTHING if guard.poisons else CANARIES
    cdef int failed
    if memory.base % ALIGNMENT:
        snprintf(failure.text, sizeof(failure.text), "upstream of the guard returned memory at %#llx, which is not "
                 "aligned to %d bytes", <unsigned long long>memory.base, <int>ALIGNMENT)
        return fail_resource(failure, cy.CUDA_ERROR_UNKNOWN)
    if guard.on_host:                                   # the memory is ready for every stream when the call returns
        failed = fill_part(guard, memory, part, FILL_NEW, guard.stream, failure)
        return 1 if failed else wait_for_own_stream(guard, failure)
    if take_event(guard.events, &memory.event, failure):
        memory.event = NULL
        return 1
    failed = fill_part(guard, memory, part, FILL_NEW, stream, failure)
    return 1 if failed else event_record(memory.event, stream, failure)


cdef int given_up(GuardState* guard, Guarded* memory, Allocation* given) except -1 nogil:
    """Return memory that could not be filled; if upstream fails too, the memory is kept and returned later."""
    cdef cy.CUevent event = NULL
    cdef Failure ignored
    cdef bint returned = not deallocate_upstream(guard, given, &ignored)
    cdef bint ordered = guard.on_host
    memory.is_unfilled = True
    if not returned:
        drop_exception(&ignored)
        if not guard.on_host and not have_event(guard, memory, &ignored):
            ordered = not event_record(memory.event, given.handle, &ignored)
    guard.lock.lock()
    if returned:
        event = memory.event
        memory.is_gone = True
        delete_if_done_locked(memory)
    else:
        memory.pins = 0 if ordered else 1               # without an event it never leaves
        enter_locked(guard, memory)
        enter_quarantine_locked(guard, memory)
    guard.lock.unlock()
    if event != NULL:
        give_event(guard.events, event)
    return 0


cdef int deallocate(void* self, Allocation* freed, Failure* failure) except -1 nogil:
    """Check, poison and quarantine memory.  If a step fails, the memory stays alive."""
    cdef GuardState* guard = <GuardState*>self
    cdef vector[Guarded*] leaving
    cdef Guarded* memory
    cdef uint64_t number = 0
    cdef int failed
    if refuse_capturing(guard, freed, failure):
        return 1
    memory = claim(guard, freed, failure)
    if memory == NULL:
        tidy(guard)
        return 1
    failed = end_guarding(guard, memory, freed, failure)
    guard.lock.lock()
    if failed:
        memory.state = GUARDED
        if memory.event != NULL:
            append(&guard.unseen, memory)
    else:
        guard.frees += 1
        memory.freed_as = guard.frees
        enter_quarantine_locked(guard, memory)
        number = choose_leaving_locked(guard, guard.most, guard.age, &leaving)
    guard.lock.unlock()
    if failed:
        return 1
    if return_all(guard, &leaving, number, failure):    # of others: this free is done, and they stay
        drop_exception(failure)
    return tidy(guard)


cdef Guarded* claim(GuardState* guard, Allocation* freed, Failure* failure) noexcept nogil:
    """Claim the memory of a free, so that no other free gets it; NULL if there is none to free."""
    cdef Guarded* memory
    cdef Label* before
    guard.lock.lock()
    memory = guarded_at_locked(guard, freed.ptr)
    if memory == NULL or memory.state != GUARDED:
        if memory != NULL:
            note_second_free_locked(guard, memory, freed.stack)
        guard.lock.unlock()
        snprintf(failure.text, sizeof(failure.text), "no memory of the guard is alive at %#llx, which was freed%s",
                 <unsigned long long>freed.ptr, <const char*>" before" if memory != NULL else <const char*>"")
        fail_resource(failure, cy.CUDA_ERROR_INVALID_VALUE)
        return NULL
    memory.state = BEING_FREED
    remove_from(&guard.unseen, memory)
    before = memory.freed_by
    memory.freed_by = held(freed.stack)
    guard.lock.unlock()
    release(before)
    return memory


cdef int end_guarding(GuardState* guard, Guarded* memory, Allocation* freed, Failure* failure) except -1 nogil:
    """Queue a check of the canaries and then the poison, and record an event behind both.  Once the poison is queued
    the contents are lost, so from this point on the free does not fail.  If the poison cannot be queued, the free
    fails, and the next free of the memory waits for the event behind the check."""
    cdef cy.CUstream stream = guard.stream if guard.on_host else freed.handle
    cdef int failed = 0
    if not guard.on_host and (wait_for_left_check(memory, stream, failure) or have_event(guard, memory, failure)):
        return 1
    if check_part(guard, memory, CANARIES, stream, failure):
        return 1
    if guard.poisons:
        failed = fill_part(guard, memory, INSIDE, FILL_FREED, stream, failure)
    memory.is_poisoned = guard.poisons and not failed
    memory.check_is_left = failed
    if guard.on_host or record_or_keep(guard, memory, stream):
        return failed
    return failed and is_sticky(failure)                # else it is freed: nothing can be ordered after the check


cdef int wait_for_left_check(Guarded* memory, cy.CUstream stream, Failure* failure) except -1 nogil:
    """Have the stream wait for the check that a free left which failed, unless the host has seen it complete."""
    if not memory.check_is_left or memory.event == NULL:
        return 0
    return stream_wait(stream, memory.event, failure)


cdef int have_event(GuardState* guard, Guarded* memory, Failure* failure) except -1 nogil:
    cdef cy.CUevent event
    if memory.event != NULL:
        return 0
    if take_event(guard.events, &event, failure):
        return 1
    guard.lock.lock()
    memory.event = event
    guard.lock.unlock()
    return 0


cdef bint record_or_keep(GuardState* guard, Guarded* memory, cy.CUstream stream) except -1 nogil:
    """Record the event behind what is queued.  If that fails twice, nothing can be ordered after it, and the memory
    never leaves the quarantine: the result is False."""
    cdef Failure ignored
    if not event_record(memory.event, stream, &ignored) or not event_record(memory.event, stream, &ignored):
        return True
    guard.lock.lock()
    memory.pins += 1
    memory.is_poisoned = False                          # nor compared after it
    guard.lock.unlock()
    return False


cdef int tidy(GuardState* guard) except -1 nogil:
    """Tidy up after a call: look for complete fills, gather the findings of checks and report them.  Does not fail."""
    if forget_seen_fill(guard):
        forget_seen_fill(guard)
    gather(guard, LOOKS)
    return report(guard)


cdef int report(GuardState* guard) except -1 nogil:
    """Report findings as Python objects.  Raises nothing."""
    cdef cy.CUstreamCaptureMode mode
    cdef UnderWay exception
    cdef bint found
    guard.lock.lock()
    found = not guard.findings.empty()
    guard.lock.unlock()
    if found:
        mode = relax_capture()
        with gil:
            set_aside(&exception)
            try:
                publish(<GuardResourceAdaptor>guard.owner)
            finally:
                put_back(&exception)
        restore_capture(mode)
    return 0


cdef int trim(void* self, Failure* failure) except -1 nogil:
    """Make room when out of memory: return all memory in quarantine, and wait on the host until that is complete."""
    cdef GuardState* guard = <GuardState*>self
    cdef int failed = empty_quarantine(guard, failure)
    if not failed:
        failed = wait_for_own_stream(guard, failure)
    if failed:
        return 1
    if guard.upstream.frontiers != NULL:
        guard.order.lock.lock()
        failed = guard.upstream.frontiers.trim(guard.upstream.self, 0, guard.stream_state, failure)
        guard.order.lock.unlock()
    elif guard.upstream.trim != NULL:
        failed = guard.upstream.trim(guard.upstream.self, failure)
    return failed


# ---------------------------------------------------------------------------------------------- for the core
cdef int reap(void* self, bint blocking, Failure* failure) except -1 nogil:
    cdef GuardState* guard = <GuardState*>self
    if blocking and check_all(guard, True, failure):
        return 1
    gather(guard, <size_t>-1 if blocking else LOOKS)
    report(guard)
    return raise_found(guard, failure)


cdef int raise_found(GuardState* guard, Failure* failure) except -1 nogil:
    cdef UnderWay exception
    with gil:
        set_aside(&exception)
        try:
            return fail_with_found(<GuardResourceAdaptor>guard.owner, failure)
        finally:
            put_back(&exception)


cdef int end(void* self) except -1 nogil:
    """Return all memory at the end of the runtime, without a wait unless upstream takes no streams."""
    cdef GuardState* guard = <GuardState*>self
    cdef Failure ignored
    cdef bint more = False
    if empty_quarantine(guard, &ignored):
        drop_exception(&ignored)
        more = True
    gather(guard, <size_t>-1)
    if guard.upstream.frontiers != NULL and guard.upstream.frontiers.end(guard.upstream.self):
        more = True
    return more


cdef bint keeps(void* self, uint64_t ptr, uint64_t generation) noexcept nogil:
    cdef GuardState* guard = <GuardState*>self
    cdef Guarded* memory
    cdef bint kept
    guard.lock.lock()
    memory = guarded_at_locked(guard, ptr)
    kept = memory != NULL and memory.generation == generation and memory.state == IN_QUARANTINE
    guard.lock.unlock()
    return kept


cdef void refused(void* self, uint64_t ptr, Label* stack) noexcept nogil:
    """Note a free that the core refused as a second free; the next call reports it."""
    cdef GuardState* guard = <GuardState*>self
    cdef Guarded* memory
    guard.lock.lock()
    memory = guarded_at_locked(guard, ptr)
    if memory != NULL and memory.state == IN_QUARANTINE:
        note_second_free_locked(guard, memory, stack)
    guard.lock.unlock()
