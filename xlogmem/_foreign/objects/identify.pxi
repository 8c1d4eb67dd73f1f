# From a handle to its registration, without the GIL.
#
# The order of the steps is the rule: query the capture state, query the id, look up the id, check the context,
# register, and only then unregister the former registration of the handle.  Each driver call drops the lock, so each
# look-up that came before a driver call is made again after it.

from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport check
from xlogmem._base.failures cimport DRIVER_FAILED, STREAM_IS_CAPTURING, STREAM_IS_ELSEWHERE, fail_stream
from xlogmem._driver cimport (
    LEGACY,
    PER_THREAD,
    Scope,
    enter_context,
    leave_context,
    stream_context,
    stream_flags,
    stream_id,
    stream_is_capturing,
)
from xlogmem._order cimport (
    OPAQUE,
    change_discipline_unlocks,
    disown_locked,
    enter_stream,
    leave_stream,
    register_stream_locked,
    settle_tombstones_unlocks,
    this_thread,
    thread_is_alive,
    unregister_by_sync_unlocks,
    unregister_destroyed_unlocks,
    unregister_stream_unlocks,
)


cdef enum:
    STREAM_DETACHED = 917       # CUDA 12's bindings do not have the name


cdef int identify_unlocks(OrderState* order, cy.CUstream handle, Discipline unknown, Identified* found,
                          Failure* failure) except -1 nogil:
    """Find the registration of a foreign stream that is not capturing.  If there is none yet, make one, of the
    discipline `unknown`.  If `unknown` is opaque, an existing registration becomes opaque too, unless the program named
    its discipline.

    The context is current.  The registration is busy, and cannot be unregistered, until the caller decrements `busy`.
    On failure a new registration stays, and the next call tries the rest again.
    """
    check(order.lock.held(), "the lock is held")
    cdef StreamState* likely
    cdef uint64_t number = 0
    cdef int failed
    order.lock.unlock()
    failed = stream_id(handle, &number, failure)
    order.lock.lock()
    if failed:
        return 1
    likely = order.streams[found.likely]
    if likely.handle == handle and likely.driver_id == number and <bint>likely.alive and not likely.remote:
        likely.busy += 1
        found.state = likely
        found.is_new = False
        return 0
    return find_or_register_unlocks(order, handle, number, unknown, found, failure)


cdef int find_or_register_unlocks(OrderState* order, cy.CUstream handle, uint64_t number, Discipline unknown,
                                  Identified* found, Failure* failure) except -1 nogil:
    """Do the rest of `identify_unlocks`; `number` is the driver's id of the stream."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* former = NULL
    cdef int failed
    found.state = match_locked(order, handle, number, &former)
    if found.state == NULL:
        order.lock.unlock()
        failed = refuse_elsewhere(order, handle, failure)
        order.lock.lock()
        if failed:
            return 1
        settle_tombstones_unlocks(order)
        found.state = match_locked(order, handle, number, &former)      # another thread may have registered it
    found.is_new = found.state == NULL
    if found.is_new:
        found.state = register_foreign_locked(order, handle, number, unknown)
    found.state.busy += 1
    failed = 0
    if former != NULL:
        failed = unregister_former_unlocks(order, former, found.state, failure)
    elif found.is_new and <size_t>handle == PER_THREAD:
        unregister_ended_thread_unlocks(order)
    if not failed and unknown == OPAQUE and not found.state.is_named:
        failed = change_discipline_unlocks(order, found.state, OPAQUE, failure)     # nothing, if it is that already
    if failed:
        found.state.busy -= 1
    return failed


cdef StreamState* match_locked(OrderState* order, cy.CUstream handle, uint64_t number,
                               StreamState** former) noexcept nogil:
    """The registration of the stream that has this handle and this id, NULL if there is none.  `former` is the
    registration of another stream, which had the handle before and so was destroyed; NULL if there is none."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* known = NULL
    cdef StreamState* stream
    cdef size_t i
    former[0] = NULL
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if stream.handle != handle or not stream.alive or stream.driver_id == 0 or stream.remote:
            continue
        if stream.driver_id == number:
            known = stream
        elif <size_t>handle > PER_THREAD:               # default streams share a handle and live on
            former[0] = stream
    return known


cdef int refuse_elsewhere(OrderState* order, cy.CUstream handle, Failure* failure) except -1 nogil:
    """Fail if the stream belongs to another context."""
    cdef cy.CUcontext context = NULL
    if stream_context(handle, &context, failure):
        return 1
    if context != order.context:
        return fail_stream(failure, STREAM_IS_ELSEWHERE, <size_t>handle)
    return 0


cdef StreamState* register_foreign_locked(OrderState* order, cy.CUstream handle, uint64_t number,
                                          Discipline discipline) noexcept nogil:
    check(order.lock.held(), "the lock is held")
    cdef StreamState* stream = register_stream_locked(order, handle, discipline)
    stream.driver_id = number
    stream.thread = this_thread() if <size_t>handle == PER_THREAD else 0
    stream.unowned.store(<size_t>handle > LEGACY)       # until an owner is known
    return stream


cdef int unregister_former_unlocks(OrderState* order, StreamState* former, StreamState* successor,
                                   Failure* failure) except -1 nogil:
    """Unregister a stream that was destroyed.  Its handle now means another stream: `successor`, which is busy."""
    check(order.lock.held(), "the lock is held")
    disown_locked(order, former)                        # its handle is not touched any more
    return unregister_destroyed_unlocks(order, former, successor, failure)


cdef int unregister_ended_thread_unlocks(OrderState* order) except -1 nogil:
    """Unregister the default stream of a thread that has ended: it is never named again.  If there are many streams,
    each new default stream makes one of these go.  A stream that cannot be unregistered now is tried again then."""
    check(order.lock.held(), "the lock is held")
    cdef Failure ignored
    cdef StreamState* stream
    cdef size_t i
    for i in range(order.streams.size() if order.streams.size() > CROWDED else 0):
        stream = order.streams[i]
        if <bint>stream.alive and stream.thread and stream.handles.load() == 0 and not thread_is_alive(stream.thread):
            order.in_flight += 1
            unregister_by_sync_unlocks(order, stream, order.streams[0], &ignored)
            order.in_flight -= 1
            break
    return 0


cdef StreamState* counted_newest(OrderState* order, cy.CUstream handle) noexcept nogil:
    """The newest registration of this handle, in this thread, whatever the handle means by now: no driver call is made.
    The registration gets one more handle; NULL if there is none.  Takes the lock itself, as all functions below do."""
    cdef uint64_t thread = this_thread() if <size_t>handle == PER_THREAD else 0
    cdef StreamState* newest = NULL
    cdef StreamState* stream
    cdef size_t i
    order.lock.lock()
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if (stream.handle == handle and <bint>stream.alive and stream.driver_id and not stream.remote
                and stream.thread == thread and (newest == NULL or newest.number < stream.number)):
            newest = stream
    if newest != NULL:
        newest.handles.fetch_add(1)
    order.lock.unlock()
    return newest


cdef int identify_handle(OrderState* order, cy.CUstream handle, Discipline unknown, Identified* found,
                         bint* warn, Failure* failure) except -1 nogil:
    """`identify_unlocks` for a caller without lock and context.  The registration is not busy; it gets one more handle.
    `warn` becomes True if the registration is new and the stream is a blocking stream."""
    cdef bint capturing = False
    cdef Scope scope
    cdef int failed
    found.likely = 0
    if enter_context(order.context, &scope, failure):
        return 1
    failed = stream_is_capturing(handle, &capturing, failure)
    if not failed and capturing:                        # a query of the id would invalidate the capture
        failed = fail_stream(failure, STREAM_IS_CAPTURING, <size_t>handle)
    if not failed:
        order.lock.lock()
        failed = identify_unlocks(order, handle, unknown, found, failure)
        if not failed:
            found.state.handles.fetch_add(1)
            found.state.busy -= 1
        order.lock.unlock()
    if not failed and found.is_new:
        warn[0] = is_blocking(handle)
    leave_context(&scope)
    return failed


cdef int is_blocking(cy.CUstream handle) except -1 nogil:
    """True if the stream and the legacy default stream wait for each other; False if that cannot be queried."""
    cdef unsigned int flags = 0
    cdef Failure ignored
    return <size_t>handle > PER_THREAD and not stream_flags(handle, &flags, &ignored) and not flags & NON_BLOCKING


cdef int unregister_foreign(OrderState* order, StreamState* stream, StreamState* successor,
                            Failure* failure) except -1 nogil:
    """Unregister a stream, or the registration of a stream that was destroyed."""
    cdef bint gone = False
    cdef Scope scope
    cdef int failed
    if enter_context(order.context, &scope, failure):
        return 1
    failed = was_destroyed(stream, &gone, failure)
    if not failed:
        order.lock.lock()
        settle_tombstones_unlocks(order)
        if gone:
            disown_locked(order, stream)                # its handle is not touched any more
            failed = unregister_by_sync_unlocks(order, stream, successor, failure)
        else:
            failed = unregister_stream_unlocks(order, stream, successor, failure)
        order.lock.unlock()
    leave_context(&scope)
    return failed


cdef int was_destroyed(StreamState* stream, bint* gone, Failure* failure) except -1 nogil:
    """Query whether the stream's handle now means another stream, or none.  If a stream with this handle is capturing,
    it is taken for the same stream."""
    cdef bint capturing = False
    cdef uint64_t number = 0
    cdef Scope scope
    if <size_t>stream.handle <= PER_THREAD:
        return 0
    if enter_stream(stream, &scope, failure):
        return 1
    if leave_stream(stream, &scope, stream_is_capturing(stream.handle, &capturing, failure) or (
            not capturing and stream_id(stream.handle, &number, failure)), failure):
        gone[0] = failure.kind == DRIVER_FAILED and (           # the second and third: its green context was destroyed
            failure.code == cy.CUDA_ERROR_INVALID_HANDLE or failure.code == cy.CUDA_ERROR_CONTEXT_IS_DESTROYED
            or <int>failure.code == STREAM_DETACHED)
        return not gone[0]
    gone[0] = not capturing and number != stream.driver_id
    return 0
