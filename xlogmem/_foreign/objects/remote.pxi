# Remote streams: streams of another device, on which blocks of this device are used.
#
# A launch on another device may read and write memory of this device.  In the runtime that owns the memory, the stream
# of the launch is one more registration, with positions, a clock and fences of its own, so all rules are as for other
# streams.  Its clock keeps the positions of this runtime's streams, and a wait that was queued is not queued again.
# Three things differ: calls on the handle are made in the context of the stream's device, to which the stream's events
# belong too; nothing is allocated or freed on the stream; and the program names the stream by a handle of a runtime of
# the stream's own device.  That runtime knows the discipline and the owner of the stream, and has the other runtimes
# unregister the stream once it has done so itself.
#
# For a copy that touches memory of two runtimes of one device, the stream of the one is remote to the other too.

import weakref

from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t

from xlogmem._base.cpp cimport check
from xlogmem._base.failures cimport STREAM_IS_CAPTURING, fail_stream
from xlogmem._driver cimport PER_THREAD, EventPool, Scope, enter_context, leave_context, stream_id, stream_is_capturing
from xlogmem._order cimport OPAQUE, fail_elsewhere, register_stream_locked, settle_tombstones_unlocks
from xlogmem.streams cimport discipline_now


cdef object registries = weakref.WeakValueDictionary()      # of this process, by the address of the ordering


cdef struct Remote:
    cy.CUcontext context
    EventPool* events
    int device
    cy.CUstream handle
    uint64_t thread             # of a per-thread default stream
    uint64_t number             # by which its own runtime's users know it
    Discipline discipline
    bint unowned


cdef list other_registries(StreamRegistry registry):
    """The registries of other runtimes, which may know a stream of this one.  A copy: other threads make runtimes."""
    found = [reference() for reference in registries.valuerefs()]
    return [other for other in found if other is not None and other is not registry]


cdef object remote_key(Stream stream):
    """The key of a remote stream.  It includes the number of foreign streams only: a pool's own streams get new numbers
    and keep their states, while states of foreign streams are deleted."""
    return id(stream.ordering), <size_t>stream.state, stream.id if stream.foreign else None


cdef bint name_has_ended(tuple name):
    """True if the runtime of a name, as in Owner.names, has ended, or the name itself has ended."""
    return name is None or has_ended(<Ordering>name[0])


cdef bint is_used_at_home(Owner entry):
    """True if a program holds the object of a stream of another device; the registry of that device holds it too."""
    cdef Owner owner
    for name in list(entry.names.values()):
        owner = name[1]
        if owner is not None and Py_REFCNT(<PyObject*>owner.held) > 1:
            return True
    return False


cdef bint is_named_by(tuple name, object what):
    """True if this is the object that a name of a remote stream keeps alive."""
    cdef Owner owner = name[1] if name is not None else None
    return owner is not None and owner.held is what


cdef int strictest(Owner entry, Ordering given, int discipline) except -1:
    """The strictest discipline of a stream in the runtimes of its device; in the runtime `given` it is `discipline`."""
    cdef Ordering ordering
    for key in list(entry.names) if entry is not None else ():
        name = entry.names.get(key)
        ordering = name[0] if name is not None else given
        if ordering is not given and not has_ended(ordering) and (
                discipline_now(&ordering.state, <StreamState*><size_t>key[1]) == OPAQUE):
            return OPAQUE
    return discipline


cdef int identify_remote(OrderState* order, const Remote* remote, StreamState** found,
                         Failure* failure) except -1 nogil:
    """Find or make the registration of a remote stream, which gets one more handle.  Call without lock and context."""
    cdef StreamState* former = NULL
    cdef uint64_t number = 0
    cdef Scope scope
    cdef int failed
    if enter_context(remote.context, &scope, failure):
        return fail_elsewhere(remote.device, failure)
    failed = id_of_remote(remote, &number, failure)
    leave_context(&scope)
    if failed:
        return fail_elsewhere(remote.device, failure)
    if enter_context(order.context, &scope, failure):
        return 1
    order.lock.lock()
    settle_tombstones_unlocks(order)
    found[0] = match_remote_locked(order, remote, number, &former)
    if found[0] == NULL:
        found[0] = register_remote_locked(order, remote, number)
    found[0].handles.fetch_add(1)
    if former != NULL:
        found[0].busy += 1
        failed = unregister_former_unlocks(order, former, found[0], failure)
        found[0].busy -= 1
    if failed:
        found[0].handles.fetch_sub(1)
    order.lock.unlock()
    leave_context(&scope)
    return failed


cdef int id_of_remote(const Remote* remote, uint64_t* number, Failure* failure) except -1 nogil:
    """Query the driver's id of the stream, whose context is current.  Fails during a capture, which the query would
    invalidate."""
    cdef bint capturing = False
    if stream_is_capturing(remote.handle, &capturing, failure):
        return 1
    if capturing:
        return fail_stream(failure, STREAM_IS_CAPTURING, remote.number)
    return stream_id(remote.handle, number, failure)


cdef StreamState* match_remote_locked(OrderState* order, const Remote* remote, uint64_t number,
                                      StreamState** former) noexcept nogil:
    """`match_locked` for the streams of one other device."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* known = NULL
    cdef StreamState* stream
    cdef size_t i
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if stream.handle != remote.handle or stream.context != remote.context or not stream.alive:
            continue
        if stream.driver_id == number:
            known = stream
        elif <size_t>remote.handle > PER_THREAD:
            former[0] = stream
    return known


cdef StreamState* register_remote_locked(OrderState* order, const Remote* remote, uint64_t number) noexcept nogil:
    check(order.lock.held(), "the lock is held")
    cdef StreamState* stream = register_stream_locked(order, remote.handle, remote.discipline)
    stream.driver_id = number
    stream.thread = remote.thread
    stream.unowned.store(remote.unowned)
    stream.context = remote.context
    stream.events = remote.events
    stream.device = remote.device
    stream.remote = True
    return stream
