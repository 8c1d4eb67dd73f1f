# Foreign streams as Python objects name them, and the objects that keep them alive.
#
# The GIL guards the owners, without another lock: a thread that unregisters a stream may wait for a full queue, and the
# others go on.  They may call the registry whenever the GIL is released, and so may finalizers, which the garbage
# collector runs at any allocation.  So each change of a dictionary is one step, and is right whatever came before it.

@cython.final
@cython.no_gc_clear                         # __dealloc__ needs the ordering
cdef class Owner:
    """An object that keeps a registered stream alive, and is held as long as that is registered."""

    def __dealloc__(self):
        if self.state != NULL:
            self.state.handles.fetch_sub(1)


cdef bint name_discipline(OrderState* order, StreamState* stream, Discipline discipline):
    """The program names the discipline of a stream: True if that is what it has, and keeps from now on."""
    cdef bint same
    with nogil:
        order.lock.lock()
        same = stream.discipline == discipline
        stream.is_named |= same
        order.lock.unlock()
    return same


@cython.final
@cython.no_gc_clear
cdef class StreamRegistry:
    """The foreign streams of one runtime, as Python objects name them."""

    def __cinit__(self, Ordering ordering not None):
        self.ordering = ordering
        self.by_owner = {}
        self.by_number = {}
        self.sweep_at = SWEEP_AT

    cdef Stream find(self, object what):
        """The handle of a stream, which is registered on first use."""
        cdef Owner entry
        if isinstance(what, Stream):
            if (<Stream>what).state == NULL or (<Stream>what).ordering is not self.ordering:
                raise StreamMisuseError(f"{what!r} belongs to another runtime")
            return <Stream>what
        entry = self.by_owner.get(id(what))
        if entry is not None and entry.held is what and entry.state.alive:
            return handle_of(self.ordering, entry.state)            # its owner is held: it is still that stream
        return self.register(what, None)

    cdef Stream register(self, object what, object discipline):
        """The handle of a stream with this discipline (None: as it is, and the default on first use)."""
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
        """The stream of the pool that has this handle, None if none has.  With `held` it must have handles already: a
        spare one may be acquired at any time."""
        cdef StreamState* found
        with nogil:
            self.ordering.state.lock.lock()
            found = own_stream_locked(&self.ordering.state, handle)
            if found != NULL and held and found.index != 0 and found.handles.load() == 0:
                found = NULL
            if found != NULL:
                found.handles.fetch_add(1)
            self.ordering.state.lock.unlock()
        return counted_handle(self.ordering, found) if found != NULL else None

    cdef Stream foreign(self, cy.CUstream handle, Discipline unknown, object what):
        """The stream of another library that has this handle.  `what` is the object that it came in."""
        cdef OrderState* order = &self.ordering.state
        cdef Identified found
        cdef Failure failure
        cdef Stream stream
        cdef bint warn = False
        cdef int failed = 0
        found.state = NULL
        with nogil:
            if <size_t>handle <= PER_THREAD:                        # known by the handle and the thread
                found.state = counted_newest(order, handle)
            if found.state == NULL:
                failed = identify_handle(order, handle, unknown, &found, &warn, &failure)
        if failed:
            raise_failure(&failure, "" if failure.kind == STREAM_IS_ELSEWHERE else
                          f"registering stream {<size_t>handle:#x}", order.lost)
        stream = counted_handle(self.ordering, found.state)
        self.keep_owner(stream, what)
        if warn:
            warnings.warn(f"stream {<size_t>handle:#x} is a blocking stream: it and the legacy default stream wait for "
                          "each other. Create it as non-blocking", BlockingStreamWarning, stacklevel=2)
        return stream

    cdef Stream with_discipline(self, Stream stream, int discipline):
        """The same stream, with this discipline from now on (-1: as it is)."""
        cdef OrderState* order = &self.ordering.state
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        if discipline == -1 or name_discipline(order, stream.state, <Discipline>discipline):
            return stream
        if not stream.foreign:
            raise StreamMisuseError(f"{stream!r} is one of the pool's own, which keep their discipline: acquire "
                                    "another")
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
            raise_failure(&failure, "changing its discipline", order.lost)
        return stream

    cdef Stream known_as(self, object what):
        """The handle of a stream that is registered.  It may be destroyed already, so the driver is not called."""
        cdef cy.CUstream handle
        cdef StreamState* found
        if isinstance(what, Stream):
            return self.find(what)
        handle = parse(what)
        if <size_t>handle == PER_THREAD:
            return self.find(what)
        with nogil:
            found = counted_newest(&self.ordering.state, handle)
        if found == NULL:
            raise StreamMisuseError(f"stream {<size_t>handle:#x} is not registered with this runtime")
        return counted_handle(self.ordering, found)

    cdef bint owns(self, cy.CUstream handle):
        """Whether the owner of the stream that has this handle is held."""
        cdef StreamState* found
        with nogil:
            found = counted_newest(&self.ordering.state, handle)
        return found != NULL and not counted_handle(self.ordering, found).state.unowned

    cdef int unregister(self, Stream stream, Stream successor) except -1:
        """From now on `successor` frees the blocks that would have been freed there."""
        cdef Failure failure
        cdef Owner entry
        cdef int failed
        if not stream.foreign:
            raise StreamMisuseError(f"{stream!r} is one of the pool's own: drop it instead")
        if not stream.registered:
            raise StreamMisuseError(f"{stream!r} is not registered")
        with nogil:
            failed = unregister_foreign(&self.ordering.state, stream.state, successor.state, &failure)
        if failed:
            raise_failure(&failure, "unregistering it", self.ordering.state.lost)
        entry = self.by_number.get(stream.id)
        if entry is not None:
            self.drop_owner(entry)
        return 0

    cdef int keep_owner(self, Stream stream, object what) except -1:
        """Keep the first object that the stream came in, if that can keep it alive.

        The default stream of a thread gets no owner: one object may stand for the streams of all threads.
        """
        cdef Owner entry
        if <size_t>stream.state.handle == PER_THREAD or stream.id in self.by_number or not can_own(what):
            return 0
        if len(self.by_owner) >= self.sweep_at:
            self.sweep()
        entry = self.by_owner.get(id(what))
        if entry is not None:                                       # it named another stream before
            self.drop_owner(entry)
        entry = Owner.__new__(Owner)
        entry.ordering = self.ordering
        entry.state = stream.state
        entry.state.handles.fetch_add(1)
        entry.held = what
        if self.by_number.setdefault(stream.id, entry) is entry:    # else a finalizer was faster
            self.by_owner[id(what)] = entry
            entry.state.unowned.store(False)
        return 0

    cdef int drop_owner(self, Owner entry) except -1:
        """Of a registration that ended, or of an object that names another stream by now."""
        if self.by_owner.get(id(entry.held)) is entry:
            del self.by_owner[id(entry.held)]
        self.by_number.pop(entry.state.number, None)
        if <size_t>entry.state.handle > LEGACY:
            with nogil:
                self.ordering.state.lock.lock()
                disown_locked(&self.ordering.state, entry.state)
                self.ordering.state.lock.unlock()
        return 0

    cdef int sweep(self) except -1:
        """Unregister the streams whose owner only the registry references."""
        cdef Owner entry
        cdef StreamState* default
        with nogil:
            self.ordering.state.lock.lock()
            default = self.ordering.state.streams[0]
            self.ordering.state.lock.unlock()
        successor = handle_of(self.ordering, default)
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
        """Opaque streams stay: unrecorded work may be enqueued there through a bare handle."""
        return (entry.state.handles.load() == 1 and <size_t>entry.state.handle != LEGACY
                and discipline_now(&self.ordering.state, entry.state) != OPAQUE
                and Py_REFCNT(<PyObject*>entry.held) == 1)
