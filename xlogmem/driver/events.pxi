# Events: without timing, taken from the spare events of a context and returned to them.
#
# Recording an event again does not disturb waits that are already enqueued for it: each wait holds the state that the
# event had at the call (CUDA driver API, cuStreamWaitEvent).  So an event is spare as soon as no further wait for it
# will be enqueued.

from xlogmem._base.failures cimport raise_failure


cdef int take_event(EventPool* pool, cy.CUevent* event, Failure* failure) except -1 nogil:
    """Take a spare event, or create an event.  The pool's context has to be current."""
    pool.lock.lock()
    if not pool.spare.empty():
        event[0] = pool.spare.back()
        pool.spare.pop_back()
        pool.lock.unlock()
        return 0
    pool.lock.unlock()
    if _check(failure, "cuEventCreate", cy.cuEventCreate(event, cy.CU_EVENT_DISABLE_TIMING)):
        return 1
    pool.lock.lock()
    pool.created += 1
    pool.lock.unlock()
    return 0


cdef void give_event(EventPool* pool, cy.CUevent event) noexcept nogil:
    """Make an event spare."""
    pool.lock.lock()
    pool.spare.push_back(event)
    pool.lock.unlock()


def live_events(int device_id=0):
    """Numbers of events of a device's context that are in use now and that exist, as ``(in_use, created)``.

    Spare events are kept until `trim_events`, so in a steady state `created` does not grow.  Thread-safe.
    """
    cdef Context context = contexts.get(device_id)
    cdef uint64_t created, spare
    if context is None:
        return 0, 0
    with nogil:
        context.events.lock.lock()
        created = context.events.created
        spare = context.events.spare.size()
        context.events.lock.unlock()
    return created - spare, created


def trim_events(int device_id=0):
    """Destroy the spare events of a device's context; new ones are created when they are needed.  Thread-safe.

    Raises
    ------
    DriverError
        The driver refused to destroy some of them.
    """
    cdef Context context = contexts.get(device_id)
    cdef vector[cy.CUevent] spare
    cdef Scope scope
    cdef Failure failure
    cdef size_t i
    cdef int failed
    if context is None:
        return
    with nogil:
        failed = enter_context(context.handle, &scope, &failure)
        if not failed:
            context.events.lock.lock()
            spare = context.events.spare
            context.events.spare.clear()
            context.events.created -= spare.size()
            context.events.lock.unlock()
            for i in range(spare.size()):
                failed |= _check(&failure, "cuEventDestroy", cy.cuEventDestroy(spare[i]))
            leave_context(&scope)
    if failed:
        raise_failure(&failure, "destroying spare events")


cdef int event_record(cy.CUevent event, cy.CUstream stream, Failure* failure) except -1 nogil:
    return _check(failure, "cuEventRecord", record_event(event, stream))


cdef int timed_event_create(cy.CUevent* event, Failure* failure) except -1 nogil:
    """Create an event with timing, which belongs to no pool."""
    return _check(failure, "cuEventCreate", cy.cuEventCreate(event, cy.CU_EVENT_DEFAULT))


cdef int event_elapsed(cy.CUevent before, cy.CUevent after, uint64_t* nanoseconds, Failure* failure) except -1 nogil:
    """Get the time between two events with timing.  Fails while they are not complete."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef float milliseconds = 0
    cdef cy.CUresult result = cy.cuEventElapsedTime(&milliseconds, before, after)
    restore_capture(mode)
    nanoseconds[0] = <uint64_t>(max(milliseconds, <float>0) * 1e6)
    return _check(failure, "cuEventElapsedTime", result)


cdef int event_destroy(cy.CUevent event, Failure* failure) except -1 nogil:
    """Destroy an event that belongs to no pool."""
    return _check(failure, "cuEventDestroy", cy.cuEventDestroy(event))


cdef int event_synchronize(cy.CUevent event, Failure* failure) except -1 nogil:
    """Have the host wait until the event is complete."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = cy.cuEventSynchronize(event)
    restore_capture(mode)
    return _check(failure, "cuEventSynchronize", result)


cdef int event_is_done(cy.CUevent event, bint* done, Failure* failure) except -1 nogil:
    """Query, without waiting, whether the event is complete."""
    cdef cy.CUstreamCaptureMode mode = relax_capture()
    cdef cy.CUresult result = query_event(event)
    restore_capture(mode)
    done[0] = result == cy.CUDA_SUCCESS
    if result == cy.CUDA_ERROR_NOT_READY:
        return 0
    return _check(failure, "cuEventQuery", result)
