# Foreign streams named by Python objects, and the objects that keep the streams alive.
#
# The GIL guards the owners, or a section of the registry, without another lock: a thread that unregisters a stream may
# wait for a full queue, and other threads go on.  They may call the registry whenever the GIL is released, and so may
# finalizers, which the garbage collector runs at any allocation.  So each change of a dictionary is one step, and is
# right whatever came before it.  Loops iterate over a list of keys: neither `list(d.items())` nor `d.copy()` is safe
# from a collection inside it.

import weakref

cimport cython

from cpython.ref cimport PyObject

from xlogmem._base.log import warn
from xlogmem.errors import BlockingStreamWarning, DriverError, StreamMisuseError
from xlogmem._base.cpp cimport check
from xlogmem._base.failures cimport DEVICE_IS_LOST, LOST, STREAM_IS_ELSEWHERE, raise_failure
from xlogmem._base.sections cimport Section
from xlogmem._driver cimport (
    LEGACY,
    PER_THREAD,
    Context,
    Scope,
    current_context,
    enter_context,
    leave_context,
    stream_context,
)
from xlogmem._order cimport (
    OPAQUE,
    ORDINARY,
    change_discipline_unlocks,
    disown_locked,
    is_other_threads_default,
    leave_owner_locked,
    leave_stream_locked,
    own_locked,
    own_stream_locked,
    wait_for_calls_unlocks,
)
from xlogmem.streams cimport can_own, counted_handle, device_of, discipline_now, discipline_of, handle_of, parse


@cython.final
@cython.no_gc_clear                         # __dealloc__ needs the ordering
cdef class Owner:
    """An object that keeps a registered stream alive, and is held as long as the stream is registered."""

    def __dealloc__(self):
        if self.state != NULL:
            self.state.handles.fetch_sub(1)


cdef bint name_discipline(OrderState* order, StreamState* stream, Discipline discipline):
    """Name the discipline of a stream for the program.  True if the stream has this discipline already; then the stream
    keeps it from now on."""
    cdef bint same
    with nogil:
        order.lock.lock()
        same = stream.discipline == discipline
        stream.is_named |= same
        order.lock.unlock()
    return same


cdef bint is_in_use(OrderState* order, StreamState* stream) except -1 nogil:
    """True if a use, or a call other than those that soon end, is open on a stream."""
    cdef bint used
    order.lock.lock()
    wait_for_calls_unlocks(order, stream)
    used = stream.windows != 0 or stream.busy != 0
    order.lock.unlock()
    return used


cdef StreamState* counted_own_locked(OrderState* order, cy.CUstream handle, bint held) noexcept nogil:
    """The pool's own stream that has this handle, NULL if there is none; it gets one more handle.  With `held` it must
    have one already."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* found = own_stream_locked(order, handle)
    if found == NULL or (held and found.index != 0 and found.handles.load() == 0):
        return NULL
    found.handles.fetch_add(1)
    return found


cdef inline size_t key_of(object what) noexcept:
    """The id of an object, without the audit event of a call of ``id``."""
    return <size_t><PyObject*>what


cdef bint has_ended(Ordering ordering):
    """True if the runtime of these streams is gone."""
    return ordering.core is None or ordering.core() is None


cdef Stream uncored(Stream stream):
    """Make a handle that keeps the registration, and not the runtime."""
    cdef Stream handle = handle_of(stream.ordering, stream.state)
    handle.core = None
    return handle


@cython.final
@cython.no_gc_clear
cdef class StreamRegistry:
    """The foreign streams of one runtime, looked up by Python objects."""

    def __cinit__(self, Ordering ordering not None):
        self.ordering = ordering
        self.by_owner = {}
        self.by_number = {}
        self.by_remote = {}
        self.sweep_at = SWEEP_AT
        ordering.registry = weakref.ref(self)
        registries[id(ordering)] = self

    cdef Stream find(self, object what):
        """The handle of a stream, which is registered on first use."""
        cdef Owner entry
        if isinstance(what, Stream):
            if (<Stream>what).state == NULL or (<Stream>what).ordering is not self.ordering:
                raise StreamMisuseError(f"{what!r} belongs to another runtime than this one of device "
                                        f"{self.ordering.context.device_id}: take a stream of this one, or let use() "
                                        "order the two")
            if (<Stream>what).state.remote:
                raise StreamMisuseError(f"{what!r} is on another device than the memory, which is used there, and "
                                        "neither allocated nor freed: name a stream of the memory's own device")
            return <Stream>what
        entry = self.by_owner.get(key_of(what))
        if entry is not None and entry.held is what and entry.state.alive:
            return handle_of(self.ordering, entry.state)            # its owner is held: it is still that stream
        return self.register(what, None)

    cdef Stream find_for_use(self, object what):
        """The handle of a stream on which blocks are used; the stream may be on another device."""
        cdef Stream stream = self.find_at_home(what)
        if stream.state == NULL or stream.ordering is self.ordering:
            return stream if stream.state != NULL and stream.state.remote else self.find(stream)
        if stream.ordering.context.device_id == self.ordering.context.device_id:
            return self.find(stream)                    # which refuses it
        return self.remote(stream)

    cdef Stream find_at_home(self, object what):
        """The handle of a stream in a runtime of the stream's own device: in this runtime, or in the process's own
        runtime of the other device."""
        if isinstance(what, Stream):
            return <Stream>what
        cdef Stream found
        if not self.is_elsewhere(what):
            return self.find(what)
        found = runtime_of_device(device_of(what)).register_stream(what)
        if <size_t>found.state.handle <= PER_THREAD:
            (<StreamRegistry>found.ordering.registry()).is_elsewhere(what)      # raises for a green context there
        return found

    cdef bint is_elsewhere(self, object what) except -1:
        """True if a stream of another library is on another device.  A default stream belongs to the current context,
        if there is one.  Raises if that is another context of this device, whose default stream is another one."""
        cdef cy.CUcontext context = NULL
        cdef cy.CUstream handle
        cdef Owner entry = self.by_owner.get(key_of(what))
        cdef Failure failure
        cdef int failed
        if entry is not None and entry.held is what and entry.state.alive and <size_t>entry.state.handle > PER_THREAD:
            return False
        handle = parse(what)
        if <size_t>handle > PER_THREAD and self.own(handle, False) is not None:
            return False
        with nogil:
            if <size_t>handle <= PER_THREAD:
                failed = current_context(&context, &failure)
            else:
                failed = stream_context(handle, &context, &failure)
        if failed or context == NULL or context == self.ordering.state.context:
            return False
        if device_of(what) != self.ordering.context.device_id:
            return True
        if <size_t>handle <= PER_THREAD:
            raise StreamMisuseError(f"{what!r} is a default stream, and the current context is not the primary one of "
                                    f"device {self.ordering.context.device_id}: make that one current, or in a green "
                                    "context name a stream that was made in it")
        return False

    cdef Stream remote(self, Stream stream):
        """The registration in this runtime of a stream of another device, named by a handle of a runtime there."""
        cdef Owner entry = self.by_remote.get(remote_key(stream))
        cdef Failure failure
        cdef Stream found
        if not stream.registered:
            raise StreamMisuseError(f"{stream!r} was unregistered")
        if stream.state.remote:
            raise StreamMisuseError(f"{stream!r} is how a runtime of another device knows a stream: name the stream "
                                    "itself")
        if is_other_threads_default(stream.state):
            raise StreamMisuseError(f"{stream!r} is the per-thread default stream of another thread")
        if stream.ordering.state.lost != NULL and stream.ordering.state.lost.load() & LOST:
            failure.kind = DEVICE_IS_LOST
            raise_failure(&failure, f"using memory of device {self.ordering.context.device_id} on {stream!r}")
        if entry is not None and entry.state.alive:
            found = handle_of(self.ordering, entry.state)
        else:
            found = self.register_remote(stream)
        wanted = strictest(self.by_remote.get(remote_key(stream)), stream.ordering,
                           discipline_now(&stream.ordering.state, stream.state))
        try:
            return self.with_discipline(found, wanted)
        except StreamMisuseError:
            if discipline_now(&self.ordering.state, found.state) != OPAQUE:
                raise
            return found                                # in use: it keeps the stricter one until then

    cdef Stream register_remote(self, Stream stream):
        cdef StreamRegistry other = stream.ordering.registry() if stream.ordering.registry is not None else None
        cdef Context context = stream.ordering.context
        cdef Owner entry = other.by_number.get(stream.id) if other is not None else None
        cdef StreamState* state = NULL
        cdef Remote remote
        cdef Failure failure
        cdef int failed
        cdef dict names = {}
        key = remote_key(stream)
        name = (stream.ordering, entry, uncored(stream) if stream.foreign and entry is None else None)
        remote.context, remote.events, remote.device = context.handle, &context.events, context.device_id
        remote.handle, remote.thread, remote.number = stream.state.handle, stream.state.thread, stream.id
        remote.discipline = <Discipline>discipline_now(&stream.ordering.state, stream.state)
        remote.unowned = <bint>stream.state.unowned or stream.state.lives_by_holds
        self.leave_ended()
        if context not in self.ordering.remote_contexts:
            self.ordering.remote_contexts.append(context)       # for good: fences outlive the stream
        with nogil:
            failed = identify_remote(&self.ordering.state, &remote, &state, &failure)
        if failed:
            raise_failure(&failure, f"registering {stream!r}", self.ordering.state.lost)
        found = counted_handle(self.ordering, state)
        entry = self.keep(found, names)
        self.add_name(entry, names, key, name)
        self.by_remote[key] = entry
        if not stream.registered:                       # meanwhile, by another thread, which may not have seen this
            self.unregister(found, self.default())
            raise StreamMisuseError(f"{stream!r} was unregistered")
        return found

    cdef int add_name(self, Owner entry, dict names, tuple key, tuple name) except -1:
        cdef Section section
        section.begin(entry)
        if entry.names is None:                         # else another runtime there has named it before
            entry.names = names
        entry.names[key] = name
        return 0

    cdef Stream at_home(self, Stream stream):
        """The handle by which programs know a stream: for a remote stream, a handle of a runtime of its own device."""
        cdef Owner entry = self.by_number.get(stream.id) if stream is not None and stream.state.remote else None
        cdef Stream found = stream
        for key in list(entry.names) if entry is not None and entry.names is not None else ():
            name = entry.names.get(key)
            if name is not None:
                found = handle_of(<Ordering>name[0], <StreamState*><size_t>key[1])
                if not has_ended(<Ordering>name[0]):
                    break
        return found

    cdef int refuse_used_elsewhere(self, Stream stream) except -1:
        """Raise if a runtime of another device has a use, or a call, open on a stream of this runtime."""
        cdef StreamRegistry other
        cdef Owner entry
        cdef bint used
        for other in other_registries(self) if not stream.state.remote else ():
            for entry in other.entries_of(stream):
                with nogil:
                    used = is_in_use(&other.ordering.state, entry.state)
                if used:
                    raise StreamMisuseError(f"unregistering it: {stream!r} is in use, with memory of device "
                                            f"{other.ordering.context.device_id}: finish that use first")
        return 0

    cdef int leave_name(self, Owner entry, Stream stream) except -1:
        """Unregister a stream that a runtime of another device unregisters.  If a second runtime of that device has
        named the stream too, the stream stays registered here."""
        gone = [key for key in list(entry.names) if key[0] == id(stream.ordering)]
        if [key for key in list(entry.names) if key not in gone and not name_has_ended(entry.names.get(key))]:
            for key in gone:
                self.abandon(entry, key)
        elif <bint>entry.state.alive:
            self.unregister(handle_of(self.ordering, entry.state), self.default())
        return 0

    cdef int leave_elsewhere(self, Stream stream) except -1:
        """Have the runtimes of other devices unregister a stream that was unregistered here, where nothing can be
        refused any more.  If another thread has used the stream there meanwhile, its registration is not touched again
        once that use is finished."""
        cdef StreamRegistry other
        cdef Owner entry
        for other in other_registries(self) if not stream.state.remote else ():
            for entry in other.entries_of(stream):
                if other.has_left(entry, stream):
                    continue
                for key in [key for key in list(entry.names) if key[0] == id(stream.ordering)]:
                    other.abandon(entry, key)
        return 0

    cdef bint has_left(self, Owner entry, Stream stream) except -1:
        """Try `leave_name`, again where calls of other threads keep the stream back.  False if a use does, or the
        driver fails."""
        cdef int failures = 0
        for _ in range(PATIENCE):
            try:
                self.leave_name(entry, stream)
                return True
            except DriverError:
                failures += 1
            except StreamMisuseError:
                if entry.state.windows:
                    return False
            if failures == ATTEMPTS:
                return False
            with nogil:
                usleep(PAUSE)
        return False

    cdef int abandon(self, Owner entry, tuple key) except -1:
        """End a name of a stream of another device.  If nothing else names the stream, it is not touched again; if
        nothing else keeps the stream alive, it may be destroyed.  Makes no driver call: finalizers call this."""
        cdef OrderState* order = &self.ordering.state
        cdef bint others, owned, needed = False
        name = entry.names.pop(key, None)               # first: another thread may end another name meanwhile
        self.by_remote.pop(key, None)
        if name is None:
            return 0
        left = list(entry.names.values())
        others, owned = bool(left), bool([other for other in left if other[1] is not None])
        with nogil:
            order.lock.lock()
            if not owned and <size_t>entry.state.handle > PER_THREAD:
                disown_locked(order, entry.state)
            if entry.state.alive and not others:
                needed = entry.state.windows != 0 or entry.state.busy != 0
                if not needed:
                    leave_stream_locked(order, entry.state)
            order.lock.unlock()
        if needed:                                      # what keeps it alive, until it is not used
            entry.names[key] = name
            self.by_remote[key] = entry
        return 0

    cdef list entries_of(self, Stream stream):
        """The entries for a stream of another device in this registry, by whichever runtime of that device it was
        named."""
        cdef Owner entry
        return [entry for entry in list(self.by_remote.values())
                if <bint>entry.state.alive and entry.state.handle == stream.state.handle
                and entry.state.context == stream.ordering.state.context
                and entry.state.driver_id == stream.state.driver_id]

    cdef int leave_ended(self) except -1:
        """Unregister the streams of ended runtimes that nothing uses any more."""
        cdef Owner entry
        for entry in list(self.by_remote.values()):
            if <bint>entry.state.alive and entry.state.handles.load() == 1 and all(
                    [name_has_ended(name) for name in list(entry.names.values())]):
                try:
                    self.unregister(handle_of(self.ordering, entry.state), self.default())
                except (StreamMisuseError, DriverError):
                    continue                            # in use: the next one that comes looks again
        return 0

    cdef int disown_elsewhere(self) except -1:
        """End the names that this runtime's foreign streams have in other runtimes, at the end of this runtime.  After
        the end a program may destroy these streams, so other runtimes do not touch them again.  Makes no driver call:
        finalizers call this."""
        cdef StreamRegistry other
        cdef Owner entry
        for other in other_registries(self):
            for key in list(other.by_remote):
                entry = other.by_remote.get(key)
                if entry is not None and key[0] == id(self.ordering) and key[2] is not None and (
                        <size_t>entry.state.handle > PER_THREAD):
                    other.abandon(entry, key)
        return 0

    cdef Stream default(self):
        cdef StreamState* default
        with nogil:
            self.ordering.state.lock.lock()
            default = self.ordering.state.streams[0]
            self.ordering.state.lock.unlock()
        return handle_of(self.ordering, default)

    cdef Stream register(self, object what, object discipline):
        """The handle of a stream, which gets this discipline (None: it keeps its discipline; on first use it gets the
        default)."""
        cdef int wanted = -1 if discipline is None else discipline_of(discipline)
        cdef int unknown = wanted
        cdef cy.CUstream handle
        cdef Stream stream
        if isinstance(what, Stream):
            return self.with_discipline(self.find(what), wanted)
        handle = parse(what)
        stream = self.own(handle, True)
        if stream is None:
            if unknown < 0:                                         # unrecorded work is usual on the default streams
                unknown = OPAQUE if <size_t>handle <= PER_THREAD else ORDINARY
            stream = self.foreign(handle, <Discipline>unknown, what)
        return self.with_discipline(stream, wanted)

    cdef Stream own(self, cy.CUstream handle, bint held):
        """The pool's own stream that has this handle, None if there is none.  With `held` the stream must have Python
        handles already: a spare stream may be acquired at any time."""
        cdef StreamState* found
        if self.ordering.state.lock.try_lock():
            found = counted_own_locked(&self.ordering.state, handle, held)
            self.ordering.state.lock.unlock()
        else:
            with nogil:
                self.ordering.state.lock.lock()
                found = counted_own_locked(&self.ordering.state, handle, held)
                self.ordering.state.lock.unlock()
        return counted_handle(self.ordering, found) if found != NULL else None

    cdef Stream foreign(self, cy.CUstream handle, Discipline unknown, object what):
        """The stream of another library that has this handle.  `what` is the object that named the stream."""
        cdef OrderState* order = &self.ordering.state
        cdef Identified found
        cdef Failure failure
        cdef Stream stream
        cdef bint blocks = False
        cdef int failed = 0
        found.state = NULL
        with nogil:
            if <size_t>handle <= PER_THREAD:                        # known by the handle and the thread
                found.state = counted_newest(order, handle)
            if found.state == NULL:
                failed = identify_handle(order, handle, unknown, &found, &blocks, &failure)
        if failed:
            raise_failure(&failure, "" if failure.kind == STREAM_IS_ELSEWHERE else
                          f"registering stream {<size_t>handle:#x}", order.lost)
        stream = counted_handle(self.ordering, found.state)
        self.keep_owner(stream, what)
        if blocks:
            warn(f"stream {<size_t>handle:#x} is a blocking stream: it and the legacy default stream wait for each "
                 "other. Create it as non-blocking", BlockingStreamWarning)
        return stream

    cdef Stream with_discipline(self, Stream stream, int discipline):
        """The same stream, with this discipline from now on (-1: with the discipline that it has)."""
        cdef OrderState* order = &self.ordering.state
        cdef int former = stream.state.discipline
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        if discipline == -1:
            return stream
        if name_discipline(order, stream.state, <Discipline>discipline):
            self.update_others(stream, discipline, False)       # it may have got it without them
            return stream
        if not stream.foreign:
            raise StreamMisuseError(f"{stream!r} is one of the pool's own, which keep their discipline: acquire "
                                    "another")
        self.update_others(stream, discipline, True)    # first: if they refuse it, nothing has changed
        with nogil:
            failed = enter_context(order.context, &scope, &failure)
            if not failed:
                order.lock.lock()
                failed = change_discipline_unlocks(order, stream.state, <Discipline>discipline, &failure)
                if not failed:
                    stream.state.is_named = True
                order.lock.unlock()
                leave_context(&scope)
        if failed:
            self.update_others(stream, former, False)
            raise_failure(&failure, "changing its discipline", order.lost)
        self.update_others(stream, discipline, False)   # another thread may have used it there meanwhile
        return stream

    cdef int update_others(self, Stream stream, int discipline, bint may_refuse) except -1:
        """Give the stream this discipline in the runtimes of other devices that know it.  If they may refuse, all of
        them change it or none does.  Else a runtime that refuses changes it at the stream's next use, which looks up
        the discipline in the stream's own runtime."""
        cdef StreamRegistry other
        cdef Owner entry
        cdef int former = stream.state.discipline
        for other in other_registries(self) if not stream.state.remote else ():
            entry = other.by_remote.get(remote_key(stream))
            if entry is None or not <bint>entry.state.alive:
                continue
            try:
                other.with_discipline(handle_of(other.ordering, entry.state),
                                      strictest(entry, self.ordering, discipline))
            except (StreamMisuseError, DriverError):
                if may_refuse:
                    self.update_others(stream, former, False)
                    raise
        return 0

    cdef Stream known_as(self, object what):
        """The handle of a registered stream.  The stream may be destroyed already, so the driver is not called."""
        cdef cy.CUstream handle
        cdef StreamState* found
        cdef Owner entry
        key = remote_key(<Stream>what) if isinstance(what, Stream) else None
        for known in list(self.by_remote):              # its own runtime may have ended
            entry = self.by_remote.get(known)
            if entry is not None and <bint>entry.state.alive and (known == key if key is not None else (
                    is_named_by(entry.names.get(known), what))):
                return handle_of(self.ordering, entry.state)
        if isinstance(what, Stream):
            return <Stream>what if (<Stream>what).state != NULL and (
                (<Stream>what).ordering is self.ordering) else self.find(what)
        handle = parse(what)
        if <size_t>handle == PER_THREAD:
            return self.find(what)
        with nogil:
            found = counted_newest(&self.ordering.state, handle)
        if found == NULL:
            raise StreamMisuseError(f"stream {<size_t>handle:#x} is not registered with this runtime")
        return counted_handle(self.ordering, found)

    cdef bint owns(self, cy.CUstream handle):
        """True if the owner of the stream that has this handle is held."""
        cdef StreamState* found
        with nogil:
            found = counted_newest(&self.ordering.state, handle)
        return found != NULL and not counted_handle(self.ordering, found).state.unowned

    cdef int unregister(self, Stream stream, Stream successor) except -1:
        """Unregister a stream.  From now on `successor` frees the blocks that would have been freed there."""
        cdef Failure failure
        cdef Owner entry
        cdef int failed
        if not stream.foreign:
            raise StreamMisuseError(f"{stream!r} is one of the pool's own: drop it instead")
        if not stream.registered:
            raise StreamMisuseError(f"{stream!r} is not registered")
        self.refuse_used_elsewhere(stream)
        with nogil:
            failed = unregister_foreign(&self.ordering.state, stream.state, successor.state, &failure)
        if failed:
            raise_failure(&failure, "unregistering it", self.ordering.state.lost)
        entry = self.by_number.get(stream.id)
        if entry is not None:
            self.drop_owner(entry)
        self.leave_elsewhere(stream)                    # last: what is refused here changes nothing there
        return 0

    cdef int keep_owner(self, Stream stream, object what) except -1:
        """Keep the first object that named the stream, if this object can keep the stream alive.

        The default stream of a thread gets no owner: one object may stand for the streams of all threads.
        """
        if <size_t>stream.state.handle == PER_THREAD or stream.id in self.by_number or not can_own(what):
            return 0
        if self.keep(stream, what).state == stream.state:           # else a finalizer was faster
            with nogil:
                self.ordering.state.lock.lock()
                own_locked(&self.ordering.state, stream.state)
                self.ordering.state.lock.unlock()
        return 0

    cdef Owner keep(self, Stream stream, object what):
        """Hold an object as long as the stream is registered.  Returns the entry of the object that is held for it."""
        cdef Owner entry, kept
        cdef Section section
        section.begin(self)
        if len(self.by_owner) >= self.sweep_at:
            self.sweep()
        entry = self.by_owner.get(key_of(what))
        if entry is not None:                                       # it named another stream before
            self.drop_owner(entry)
        entry = Owner.__new__(Owner)
        entry.ordering = self.ordering
        entry.state = stream.state
        entry.state.handles.fetch_add(1)
        entry.held = what
        kept = self.by_number.setdefault(stream.id, entry)
        if kept is entry:                                           # else a finalizer, or another thread, was faster
            self.by_owner[key_of(what)] = entry
        return kept

    cdef int drop_owner(self, Owner entry) except -1:
        """Drop the owner of a registration that ended, or an object that names another stream by now."""
        cdef Section section
        section.begin(self)
        if self.by_owner.get(key_of(entry.held)) is entry:
            del self.by_owner[key_of(entry.held)]
        self.by_number.pop(entry.state.number, None)
        for key in list(entry.names) if entry.names is not None else ():
            if self.by_remote.get(key) is entry:
                del self.by_remote[key]
        if <size_t>entry.state.handle > LEGACY:
            with nogil:
                self.ordering.state.lock.lock()
                leave_owner_locked(&self.ordering.state, entry.state)
                self.ordering.state.lock.unlock()
        return 0

    cdef int sweep(self) except -1:
        """Unregister the streams whose owner only the registry references."""
        cdef Owner entry
        cdef Stream successor = self.default()
        self.sweep_at = 2 * len(self.by_owner)                      # no second sweep starts inside this one
        for entry in list(self.by_owner.values()):
            if not entry.state.alive:                               # the C table saw its handle reused
                self.drop_owner(entry)
            elif self.is_unused(entry):
                try:
                    self.unregister(handle_of(self.ordering, entry.state), successor)
                except (StreamMisuseError, DriverError):
                    continue                                        # in use: the next sweep looks again
        self.sweep_at = max(SWEEP_AT, 2 * len(self.by_owner))
        return 0

    cdef bint is_unused(self, Owner entry):
        """True if nothing uses the stream of the entry.  Opaque streams count as used: unrecorded work may be enqueued
        there through a bare handle.  So do unowned ones: whether a program uses such a stream is not known, and it may
        have been destroyed."""
        return (entry.state.handles.load() == 1 and <size_t>entry.state.handle != LEGACY
                and not <bint>entry.state.unowned and discipline_now(&self.ordering.state, entry.state) != OPAQUE
                and (Py_REFCNT(<PyObject*>entry.held) == 1 if entry.names is None else not is_used_at_home(entry)))
