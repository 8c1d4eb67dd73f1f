"""Streams as users hold them: handles, the pool that makes our own, and the registry of everybody else's.

The state behind a handle (positions, knowledge, events) is `_order`'s; nothing here decides what comes after what.

Own streams are never destroyed while their pool lives.  One whose last handle is dropped goes back to the pool and is
handed out again under a new id; its positions go on.

Foreign streams are registered at first sight.  The driver reuses the handle of a destroyed stream, so a registration is
known by the driver's own number of the stream, and a handle that nobody is known to keep alive is asked for its number
each time.  The object that a stream came in is held, so that the stream lives at least as long as its registration; the
registry lets go of streams that nobody else holds.
"""
import threading
import warnings

cimport cython

from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.ref cimport PyObject

from xlogmem._cpp cimport push
from xlogmem._driver cimport (
    Scope,
    context_of,
    enter_context,
    leave_context,
    process_is_closing,
    stream_context,
    stream_create,
    stream_destroy,
    stream_device,
    stream_flags,
    stream_id,
    stream_is_capturing,
)
from xlogmem._failures cimport DRIVER_FAILED, STREAM_IS_CAPTURING, Failure, raise_failure
from xlogmem._order cimport (
    OPAQUE,
    ORDINARY,
    SEALED,
    OrderState,
    change_discipline_unlocks,
    own_stream_locked,
    register_stream_locked,
    this_thread,
    thread_is_alive,
    unregister_lost_unlocks,
    unregister_stream_unlocks,
)

from xlogmem import _driver
from xlogmem._stream_owners import owns_stream
from xlogmem.errors import BlockingStreamWarning, DriverError, StreamMisuseError

__all__ = ["Stream", "StreamPool"]

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject*)

cdef enum:
    LEGACY = 1                  # CU_STREAM_LEGACY; 0 means the same stream
    PER_THREAD = 2              # CU_STREAM_PER_THREAD: another stream in every thread
    NON_BLOCKING = 1            # CU_STREAM_NON_BLOCKING
    SWEEP_AT = 32               # foreign streams registered before the registry looks for unused ones

DISCIPLINES = {"ordinary": ORDINARY, "opaque": OPAQUE, "sealed": SEALED}


cdef int discipline_of(object name) except -1:
    if name not in DISCIPLINES:
        raise ValueError(f"discipline {name!r} is unknown; choose one of {', '.join(DISCIPLINES)}")
    return DISCIPLINES[name]


cdef int discipline_now(OrderState* order, StreamState* state):
    """It may change in another thread."""
    cdef int now
    with nogil:
        order.lock.lock()
        now = <int>state.discipline
        order.lock.unlock()
    return now


# ---------------------------------------------------------------------------------------------- handles
@cython.final
@cython.no_gc_clear                         # __dealloc__ needs the ordering
cdef class Stream:
    """A CUDA stream that one runtime knows.

    Made by `DeviceRuntime.acquire_stream` (our own) and `DeviceRuntime.register_stream` (somebody else's).  Two handles
    are equal if they are the same registration; the driver's handle value is no identity, since the driver reuses it.

    Attributes
    ----------
    id : int
        Number of the registration within its runtime, never used again; 0 is the pool's default stream.

    Notes
    -----
    Keeps its runtime alive.  Follows the ``__cuda_stream__`` protocol, so CuPy, cuda.core, Numba and others accept
    it where they accept streams.
    """

    def __init__(self):
        raise TypeError("streams are made by DeviceRuntime.acquire_stream() and DeviceRuntime.register_stream()")

    def __dealloc__(self):
        cdef StreamState* state = self.state
        cdef bint own
        if state == NULL:
            return
        own = state.driver_id == 0 and state.index != 0
        if state.handles.fetch_sub(1) != 1 or not own:  # a dead foreign one may be deleted from here on
            return
        if state.idle:                                # `find_block` made a handle of a stream that nobody held
            return
        state.idle = True
        push(self.ordering.state.idle, state)           # an own stream without a handle goes back to its pool

    @property
    def handle(self):
        """The ``CUstream`` as an int, for driver calls of your own.

        Keep this object as long as you use it: the stream may be handed to somebody else afterwards.
        """
        if self.state == NULL:
            raise StreamMisuseError("the stream was never made")
        return <size_t>self.state.handle

    @property
    def discipline(self):
        """Who may queue work on blocks here without a recorder.

        ``"ordinary"``: people fill blocks that were allocated here and that nobody else has used yet.  ``"opaque"``:
        anybody at any time.  ``"sealed"``: nobody, a promise that saves waits.
        """
        if self.state == NULL:
            raise StreamMisuseError("the stream was never made")
        now = discipline_now(&self.ordering.state, self.state)
        return next(name for name, value in DISCIPLINES.items() if value == now)

    @property
    def registered(self):
        """Whether the runtime still knows the stream; False after `DeviceRuntime.unregister_stream`."""
        return self.state != NULL and <bint>self.state.alive

    @property
    def foreign(self):
        """Whether somebody else made the stream."""
        return self.state != NULL and self.state.driver_id != 0

    def __cuda_stream__(self):
        return 0, self.handle

    def __eq__(self, other):
        if not isinstance(other, Stream):
            return NotImplemented
        return self.state == (<Stream>other).state and self.id == (<Stream>other).id

    def __hash__(self):
        return hash((<size_t>self.state, self.id))

    def __reduce__(self):
        raise TypeError("a stream cannot be copied")

    def __repr__(self):
        if self.state == NULL:
            return "<Stream that was never made>"
        return f"<Stream {self.id} of device {self.ordering.context.ordinal}>"


cdef Stream handle_of(Ordering ordering, StreamState* state):
    """A handle of a registration that cannot go away meanwhile: the caller holds the GIL and knows it to be alive."""
    cdef Stream stream
    state.handles.fetch_add(1)                  # first: the collector may run, and unregister it, in the next line
    try:
        stream = Stream.__new__(Stream)
    except BaseException:
        state.handles.fetch_sub(1)
        raise
    stream.state = state
    stream.ordering = ordering
    stream.id = state.number
    stream.core = ordering.core() if ordering.core is not None else None
    return stream


cdef object core_of(Stream stream):
    """The core of the runtime that the stream belongs to."""
    if stream.state == NULL:
        raise StreamMisuseError("the stream was never made")
    if stream.core is None:
        stream.core = stream.ordering.core() if stream.ordering.core is not None else None
        if stream.core is None:
            raise StreamMisuseError(f"{stream!r} belongs to no runtime: give its pool to a DeviceRuntime")
    return stream.core


# ---------------------------------------------------------------------------------------------- our own
cdef int destroy_own(OrderState* order) except -1 nogil:
    cdef Failure ignored
    cdef Scope scope
    cdef size_t i
    if enter_context(order.context, &scope, &ignored):
        return 0
    for i in range(order.streams.size()):
        if order.streams[i].driver_id == 0:
            stream_destroy(order.streams[i].handle, &ignored)
    leave_context(&scope)
    return 0


@cython.no_gc_clear                         # __dealloc__ needs the ordering
cdef class StreamPool:
    """Makes the streams of one runtime.

    All are non-blocking: they neither wait for the legacy default stream nor make it wait (W14).

    Parameters
    ----------
    ordinal : int
        The device.
    max_streams : int
        How many streams `acquire` has out at most; at least 1 (contract 155).  The default stream does not count, and a
        stream whose last handle is dropped is given back (W38).

    Notes
    -----
    Thread-safe.  The CUDA streams are destroyed with the pool, which lives as long as any of its streams or blocks.
    """

    def __init__(self, ordinal=0, *, max_streams=16):
        if self.ordering is not None:
            raise RuntimeError("a stream pool is initialised once")
        self.max_streams = max(1, PyNumber_Index(max_streams))
        self.states = []
        self.spare = {}
        self.priorities = {}
        self.lock = threading.RLock()           # the collector may run inside, and finalizers may acquire
        self.ordering = Ordering.__new__(Ordering, context_of(PyNumber_Index(ordinal)))
        self.make(ORDINARY, 0)

    def __reduce__(self):
        raise TypeError("a stream pool cannot be copied: it owns its streams")

    def __dealloc__(self):
        cdef Ordering ordering = self.ordering
        if ordering is not None and not process_is_closing():
            with nogil:
                destroy_own(&ordering.state)

    cdef Stream make(self, int discipline, int priority):
        cdef cy.CUstream handle = NULL
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        cdef StreamState* state
        with nogil:
            failed = enter_context(self.ordering.context.handle, &scope, &failure)
            if not failed:
                failed = stream_create(priority, &handle, &failure)
                leave_context(&scope)
        if failed:
            raise_failure(&failure, "creating a stream")
        with nogil:
            self.ordering.state.lock.lock()
            state = register_stream_locked(&self.ordering.state, handle, <Discipline>discipline)
            self.ordering.state.lock.unlock()
        self.states.append(<size_t>state)
        self.priorities[<size_t>state] = priority
        return handle_of(self.ordering, state)

    cdef int end_export(self) except -1:
        """Sort the streams whose last handle is gone."""
        cdef StreamState* state = self.ordering.state.idle.exchange(NULL)
        cdef StreamState* following
        while state != NULL:
            following = state.next
            state.idle = False
            key = (<int>state.discipline, self.priorities[<size_t>state])
            if state.handles.load() == 0:
                self.spare.setdefault(key, []).append(<size_t>state)
            state = following
        return 0

    def acquire(self, *, str discipline="ordinary", priority=0):
        """A stream that nobody else holds.

        Parameters
        ----------
        discipline : {"ordinary", "opaque", "sealed"}
            Who may queue work on blocks there without a recorder; see `Stream.discipline`.
        priority : int
            CUDA's stream priority; lower is more urgent.  The driver clamps it to the device's range.

        Raises
        ------
        StreamMisuseError
            The pool is at its capacity (contract 157).
        DriverError
            The driver could not make a stream.
        """
        cdef StreamState* state
        cdef int wanted = discipline_of(discipline)
        priority = PyNumber_Index(priority)
        if self.ordering is None:
            raise StreamMisuseError("the stream pool was never initialised")
        with self.lock:
            self.end_export()
            spare = self.spare.get((wanted, priority))
            while spare:
                state = <StreamState*><size_t>spare.pop()
                if state.handles.load():                            # somebody found it again; it will come back
                    continue
                with nogil:
                    self.ordering.state.lock.lock()
                    state.number = self.ordering.state.registrations
                    self.ordering.state.registrations += 1
                    self.ordering.state.lock.unlock()
                return handle_of(self.ordering, state)
            if self.acquired >= self.max_streams:
                raise StreamMisuseError(f"stream pool at capacity (max={self.max_streams}): drop a stream, pass a "
                                        "larger max_streams to StreamPool, or share streams")
            return self.make(wanted, priority)

    @property
    def acquired(self):
        """How many streams are out, the default stream not counted."""
        return sum(1 for state in self.states[1:] if (<StreamState*><size_t>state).handles.load())

    @property
    def default(self):
        """The pool's own stream, which allocations use when no other is named."""
        if self.ordering is None:
            raise StreamMisuseError("the stream pool was never initialised")
        return handle_of(self.ordering, <StreamState*><size_t>self.states[0])

    def stream(self, id):
        """Another handle of the stream that is out under this id (contract 159).

        Raises
        ------
        StreamMisuseError
            The id is unknown to this pool, or its stream was given back.
        """
        cdef StreamState* state
        for address in self.states:
            state = <StreamState*><size_t>address
            if (state.handles.load() or state.index == 0) and state.number == id:       # a spare one is renumbered
                return handle_of(self.ordering, state)
        raise StreamMisuseError(f"stream {id} is unknown to this pool")

    def __len__(self):
        return self.acquired

    def __repr__(self):
        if self.ordering is None:
            return "<StreamPool that was never initialised>"
        return f"<StreamPool device={self.ordering.context.ordinal} acquired={self.acquired} max={self.max_streams}>"


# ---------------------------------------------------------------------------------------------- everybody else's
cdef object value_of(object what):
    """The ``CUstream`` inside whatever people call a stream, as an int; None if it is no stream.

    The driver crashes on a handle that never was one, so nothing is taken for a stream because it happens to have a
    pointer: arrays and blocks have one too.
    """
    if PyIndex_Check(what):
        return PyNumber_Index(what)
    protocol = getattr(what, "__cuda_stream__", None)               # cuda.core, CuPy, Numba, RMM
    if protocol is not None:
        return handle_in(protocol() if callable(protocol) else protocol, what)
    if type(what).__module__.startswith("cuda.bindings"):           # CUstream, cudaStream_t
        return int(what)
    if not callable(getattr(what, "synchronize", None)):
        return None
    for name in ("cuda_stream", "ptr", "handle"):                   # PyTorch, older CuPy, older Numba
        value = getattr(what, name, None)
        if value is not None:
            value = getattr(value, "value", value)                  # a ctypes pointer; its null is None
            return 0 if value is None else PyNumber_Index(value)
    value = getattr(what, "value", None)                            # RMM before it spoke the protocol
    return PyNumber_Index(value()) if callable(value) else None


cdef object handle_in(object answer, object what):
    """The handle that ``__cuda_stream__`` gives: ``(0, handle)``."""
    if not isinstance(answer, (tuple, list)) or len(answer) < 2 or not PyIndex_Check(answer[0]) or not PyIndex_Check(
            answer[1]):
        raise TypeError(f"__cuda_stream__ of {type(what).__name__} gave {answer!r}, not (0, handle)")
    if answer[0] != 0:
        raise ValueError(f"__cuda_stream__ of {type(what).__name__} is version {answer[0]}; 0 is known here")
    return PyNumber_Index(answer[1])


cdef cy.CUstream parse(object what) except? <cy.CUstream>-1:
    value = value_of(what)
    if value is None:
        raise TypeError(f"{type(what).__name__} is no CUDA stream: give a Stream, an int, or an object with "
                        "__cuda_stream__ (CuPy, Numba, PyTorch, RMM, cuda.core, cuda.bindings)")
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} is no CUDA stream handle")
    return <cy.CUstream><size_t>(value or LEGACY)


cdef int device_of(object what) except -1:
    """The ordinal of the device that a foreign stream is on; of the default streams, of the current context."""
    cdef cy.CUstream handle = parse(what)
    cdef Failure failure
    cdef int ordinal = 0, failed
    _driver.initialize()
    with nogil:
        failed = stream_device(handle, &ordinal, &failure)
    if failed:
        raise_failure(&failure, f"looking for the device of stream {<size_t>handle:#x}")
    return ordinal


cdef bint can_own(object what) except -1:
    """May the object keep the stream alive that it stands for?"""
    return not (PyIndex_Check(what) or type(what).__module__.startswith("cuda.bindings")) and owns_stream(what)


@cython.final
cdef class Registration:
    """One foreign stream."""


@cython.final
@cython.no_gc_clear
cdef class StreamRegistry:
    """The foreign streams of one runtime."""

    def __cinit__(self, Ordering ordering not None):
        self.ordering = ordering
        self.known = {}
        self.by_handle = {}
        self.by_owner = {}
        self.lock = threading.RLock()
        self.sweep_at = SWEEP_AT

    cdef Stream find(self, object what):
        """The handle of a stream, which is registered at first sight."""
        cdef Registration found
        if isinstance(what, Stream):
            if (<Stream>what).state == NULL or (<Stream>what).ordering is not self.ordering:
                raise StreamMisuseError(f"{what!r} belongs to another runtime")
            return <Stream>what
        found = self.by_owner.get(id(what))
        if found is not None and found.owner is what and found.state.alive:
            return handle_of(self.ordering, found.state)            # we hold the owner: it is still that stream
        return self.register(what, None)

    cdef Stream own(self, cy.CUstream handle, bint held):
        """The stream of the pool that has this handle, None if none has; with `held`, only if somebody has it: a spare
        one may be given to anybody next."""
        cdef StreamState* found
        with nogil:
            self.ordering.state.lock.lock()
            found = own_stream_locked(&self.ordering.state, handle)
            if found != NULL and held and found.index != 0 and found.handles.load() == 0:
                found = NULL
            self.ordering.state.lock.unlock()
        return handle_of(self.ordering, found) if found != NULL else None

    cdef Stream register(self, object what, object discipline):
        """The handle of a stream with this discipline (None: as it is, ordinary at first sight)."""
        cdef Registration entry
        cdef Stream own
        cdef StreamState* state
        cdef Failure failure
        cdef cy.CUstream handle = parse(what)
        cdef cy.CUcontext context = NULL
        cdef uint64_t number = 0
        cdef unsigned int flags = 0
        cdef Scope scope
        cdef bint capturing = False
        cdef int failed, wanted
        wanted = -1 if discipline is None else discipline_of(discipline)
        if isinstance(what, Stream):
            return self.with_discipline(self.find(what), wanted)
        own = self.own(handle, True)
        if own is not None:
            return self.with_discipline(own, wanted)
        with nogil:
            failed = enter_context(self.ordering.context.handle, &scope, &failure)
            if not failed:
                failed = stream_is_capturing(handle, &capturing, &failure)
                if not failed and not capturing:                    # asking for the number would spoil a capture
                    failed = (stream_context(handle, &context, &failure) or stream_id(handle, &number, &failure)
                              or stream_flags(handle, &flags, &failure))
                leave_context(&scope)
        if failed:
            raise_failure(&failure, f"looking at stream {<size_t>handle:#x}")
        if capturing:
            failure.kind = STREAM_IS_CAPTURING
            failure.stream = <size_t>handle
            raise_failure(&failure, "registering it")
        if context != self.ordering.context.handle:
            raise StreamMisuseError(f"stream {<size_t>handle:#x} belongs to another context or device than this "
                                    f"runtime (device {self.ordering.context.ordinal})")
        # Without the lock, which somebody may keep who waits for a full queue; without letting go of the GIL either,
        # which whoever forgets the registration needs.
        entry = self.known.get(number)
        if (entry is not None and entry.state.alive and (entry.owner is not None or not can_own(what))
                and (wanted == -1 or wanted == discipline_now(&self.ordering.state, entry.state))):
            return handle_of(self.ordering, entry.state)
        with self.lock:
            if len(self.known) >= self.sweep_at:
                self.sweep()
            entry = self.known.get(number)
            if entry is None or not entry.state.alive:
                entry = self.adopt_from_table(number, handle)
            if entry is not None and entry.state.alive:
                self.keep_owner(entry, what)
                return self.with_discipline(handle_of(self.ordering, entry.state), wanted)
            if wanted < 0:                                          # the default streams: somebody queues work there
                wanted = OPAQUE if <size_t>handle <= PER_THREAD else ORDINARY
            with nogil:
                self.ordering.state.lock.lock()
                state = register_stream_locked(&self.ordering.state, handle, <Discipline>wanted)
                state.driver_id = number
                state.thread = this_thread() if <size_t>handle == PER_THREAD else 0
                state.unowned.store(False)
                state.in_registry = True
                self.ordering.state.lock.unlock()
            stream = handle_of(self.ordering, state)
            try:
                if <size_t>handle > PER_THREAD:
                    entry = self.by_handle.get(<size_t>handle)
                    if entry is None or not entry.state.alive:
                        entry = self.adopt_from_table(0, handle)
                    if entry is not None:
                        self.forget(entry, stream)                  # destroyed by its owner, and its handle came back
            except BaseException:
                with nogil:
                    self.ordering.state.lock.lock()
                    state.alive.store(False)
                    state.in_registry = False
                    self.ordering.state.lock.unlock()
                raise
            entry = self.add(state)
            self.keep_owner(entry, what)
            state.unowned.store(<size_t>handle == PER_THREAD or (entry.owner is None and <size_t>handle > PER_THREAD))
        if not flags & NON_BLOCKING and <size_t>handle > PER_THREAD:
            warnings.warn(f"stream {<size_t>handle:#x} is a blocking stream: it and the legacy default stream wait for "
                          "each other. Create it as non-blocking", BlockingStreamWarning, stacklevel=2)
        return stream

    cdef Stream with_discipline(self, Stream stream, int discipline):
        """The same stream, with this discipline from now on (-1: as it is)."""
        cdef OrderState* order = &self.ordering.state
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        if discipline == -1 or discipline == discipline_now(order, stream.state):
            return stream
        if not stream.foreign:
            raise StreamMisuseError(f"{stream!r} is one of the pool's own, which keep their discipline: acquire "
                                    "another")
        with nogil:
            failed = enter_context(order.context, &scope, &failure)
            if not failed:
                order.lock.lock()
                failed = change_discipline_unlocks(order, stream.state, <Discipline>discipline, &failure)
                order.lock.unlock()
                leave_context(&scope)
        if failed:
            raise_failure(&failure, "changing its discipline")
        return stream

    cdef Registration add(self, StreamState* state):
        cdef Registration entry = Registration.__new__(Registration)
        entry.state = state
        self.known[state.driver_id] = self.by_handle[<size_t>state.handle] = entry
        return entry

    cdef Registration adopt_from_table(self, uint64_t number, cy.CUstream handle):
        """A stream that the C table registered without the GIL: by the driver's number of it, or (0) by its handle."""
        cdef OrderState* order = &self.ordering.state
        cdef StreamState* found = NULL
        cdef StreamState* state
        cdef size_t i
        with nogil:
            order.lock.lock()
            for i in range(order.streams.size()):
                state = order.streams[i]
                if (<bint>state.alive and not state.in_registry and state.driver_id and state.handle == handle
                        and (number == 0 or number == state.driver_id)):
                    state.in_registry = True
                    found = state
                    break
            order.lock.unlock()
        return self.add(found) if found != NULL else None

    cdef int remove(self, Registration entry) except -1:
        """Off the lists: the registration is dead, and may be deleted when nothing else needs it."""
        cdef StreamState* state = entry.state
        if self.known.get(state.driver_id) is entry:
            del self.known[state.driver_id]
        if self.by_handle.get(<size_t>state.handle) is entry:
            del self.by_handle[<size_t>state.handle]
        if entry.owner is not None:
            self.by_owner.pop(id(entry.owner), None)
            entry.owner = None
        with nogil:
            self.ordering.state.lock.lock()
            state.in_registry = False
            self.ordering.state.lock.unlock()
        return 0

    cdef int keep_owner(self, Registration entry, object what) except -1:
        """Keep the first object that the stream came in, if that can keep it alive."""
        if entry.owner is None and can_own(what):
            entry.owner = what
            entry.state.unowned.store(False)
            self.by_owner[id(what)] = entry
        return 0

    cdef int forget(self, Registration entry, Stream successor) except -1:
        """Unregister: `successor` frees the blocks that would have been freed there."""
        cdef OrderState* order = &self.ordering.state
        cdef StreamState* state = entry.state
        cdef StreamState* successor_state = successor.state
        cdef uint64_t number = 0
        cdef Failure failure
        cdef Scope scope
        cdef bint capturing = False, gone = False
        cdef int failed
        state.handles.fetch_add(1)                                  # dead is not deleted while we look at it
        with nogil:
            failed = enter_context(order.context, &scope, &failure)
            if not failed:
                if <size_t>state.handle > PER_THREAD:               # is it still the stream that we know?
                    failed = stream_is_capturing(state.handle, &capturing, &failure)
                    if not failed and not capturing:
                        failed = stream_id(state.handle, &number, &failure)
                    gone = (not capturing and number != state.driver_id) if not failed else (
                        failure.kind == DRIVER_FAILED and failure.code == cy.CUDA_ERROR_INVALID_HANDLE)
                order.lock.lock()
                if gone:
                    state.unowned.store(True)                         # its handle is not to be raised_to any more
                    failed = unregister_lost_unlocks(order, state, successor_state, &failure)
                elif not failed:
                    failed = unregister_stream_unlocks(order, state, successor_state, &failure)
                order.lock.unlock()
                leave_context(&scope)
        if failed:
            state.handles.fetch_sub(1)
            raise_failure(&failure, "unregistering it")
        self.remove(entry)
        state.handles.fetch_sub(1)
        return 0

    cdef Stream known_as(self, object what):
        """The handle of a stream that is registered; the driver is not asked, the stream may be gone."""
        cdef Registration entry
        if isinstance(what, Stream) or <size_t>parse(what) == PER_THREAD:
            return self.find(what)
        entry = self.by_handle.get(<size_t>parse(what))
        if entry is None or not entry.state.alive:
            entry = self.adopt_from_table(0, parse(what))
        if entry is None:
            raise StreamMisuseError(f"stream {<size_t>parse(what):#x} is not registered with this runtime")
        return handle_of(self.ordering, entry.state)

    cdef int unregister(self, Stream stream, Stream successor) except -1:
        cdef Registration entry
        with self.lock:
            entry = self.known.get(stream.state.driver_id)
            if entry is None or entry.state != stream.state:
                raise StreamMisuseError(f"{stream!r} is not registered" if stream.foreign else
                                        f"{stream!r} is one of the pool's own: drop it instead")
            self.forget(entry, successor)
        return 0

    cdef int sweep(self) except -1:
        """Unregister streams whose owner only we hold, and raw ones that nobody has a handle of."""
        cdef Registration entry
        cdef StreamState* default
        with nogil:
            self.ordering.state.lock.lock()
            default = self.ordering.state.streams[0]
            self.ordering.state.lock.unlock()
        successor = handle_of(self.ordering, default)
        for number, entry in list(self.known.items()):
            if self.known.get(number) is not entry:                 # a finalizer unregistered it
                continue
            if not entry.state.alive:                               # its handle came back, seen by the C table
                self.remove(entry)
                continue
            if entry.state.handles.load():
                continue
            if <size_t>entry.state.handle == PER_THREAD:
                if thread_is_alive(entry.state.thread):
                    continue
            elif entry.owner is None:
                continue                                            # destroyed maybe: the driver crashes if asked
            elif (<size_t>entry.state.handle == LEGACY
                  or discipline_now(&self.ordering.state, entry.state) == OPAQUE):
                continue                                            # somebody queues work there, registered or not
            if entry.owner is not None and Py_REFCNT(<PyObject*>entry.owner) > 1:
                continue
            try:
                self.forget(entry, successor)
            except (StreamMisuseError, DriverError):
                continue                                            # in use: the next sweep looks again
        self.sweep_at = max(SWEEP_AT, 2 * len(self.known))
        return 0
