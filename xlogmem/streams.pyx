"""Streams for programs: handles, the pool of a runtime's own streams, and stream objects of other libraries.

The state behind a handle (positions, clocks, fences) belongs to `_order`; nothing here decides about the order of work.

A runtime's own streams are not destroyed while the pool or a handle of any of them exists.  A stream whose last handle
is dropped returns to the pool, and is handed out again under a new id; its positions go on.  Foreign streams belong to
`_foreign`.
"""

cimport cython

from xlogmem._base.signatures import Signed
from xlogmem.errors import StreamMisuseError
from xlogmem._base.cpp cimport push
from xlogmem._base.sections cimport Section
from xlogmem._order cimport OPAQUE, ORDINARY, SEALED, OrderState


__all__ = ["Event", "Host", "Stream", "StreamPool", "current_stream", "host"]

DISCIPLINES = {"ordinary": ORDINARY, "opaque": OPAQUE, "sealed": SEALED}


cdef int discipline_of(object name) except -1:
    if name not in DISCIPLINES:
        raise ValueError(f"discipline {name!r} is unknown; choose one of {', '.join(DISCIPLINES)}")
    return DISCIPLINES[name]


cdef int discipline_now(OrderState* order, StreamState* state):
    """The current discipline of a stream, read under the lock: another thread may change it."""
    cdef int now
    with nogil:
        order.lock.lock()
        now = <int>state.discipline
        order.lock.unlock()
    return now


@cython.final
@cython.no_gc_clear                         # __dealloc__ needs the ordering
cdef class Stream:
    """A CUDA stream that is registered with one runtime.

    Made by `DeviceRuntime.acquire_stream` (the runtime's own) and `DeviceRuntime.register_stream` (foreign ones).  Two
    handles are equal if they are the same registration.  The ``CUstream`` is not an identity, because the driver reuses
    it.

    Attributes
    ----------
    id : int
        Number of the registration within its runtime, never used again; 0 is the pool's default stream.
    ordering : object
        Internal: the streams of the runtime.

    Notes
    -----
    ``with stream:`` makes it the stream that `current_stream` returns.  A stream keeps its runtime alive.  It follows
    the ``__cuda_stream__`` protocol, so CuPy, cuda.core, Numba and others accept it where they accept streams.
    Thread-safe.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> load, work = runtime.acquire_stream(), runtime.acquire_stream()
    >>> work.wait(load)                             # for all that is queued there, on the device
    >>> with work:
    ...     xlogmem.current_stream() == work
    True
    >>> work.synchronize()
    """

    __signature__ = Signed("")

    def __init__(self):
        raise TypeError("streams are made by DeviceRuntime.acquire_stream() and DeviceRuntime.register_stream()")

    def __dealloc__(self):
        cdef StreamState* state = self.state
        cdef Section section
        cdef bint own
        if state == NULL:
            return
        section.begin(self.ordering)                    # a stream is in use, or in the list, and never in between
        own = state.driver_id == 0 and state.index != 0
        if state.handles.fetch_sub(1) != 1 or not own:  # an unregistered foreign one may be deleted from here on
            return
        if state.idle.exchange(1):                      # `find_block` made a handle of a stream that had none
            return
        push(self.ordering.state.idle, state)         # an own stream without a handle returns to its pool

    @property
    def handle(self):
        """The ``CUstream`` as an int, for driver calls of the program.

        Valid while this object is held: without it, the pool may hand out the stream again.

        Raises
        ------
        StreamMisuseError
            The object was never initialised.
        """
        if self.state == NULL:
            raise StreamMisuseError("the stream was never made")
        return <size_t>self.state.handle

    @property
    def discipline(self):
        """The kind of work that may be enqueued on the stream without a recorder.

        ``"ordinary"``: work on blocks that were allocated here and that no other stream has used yet, such as the
        initial fill.  ``"opaque"``: any work at any time.  ``"sealed"``: none, a promise that saves waits.

        Raises
        ------
        StreamMisuseError
            The object was never initialised.
        """
        if self.state == NULL:
            raise StreamMisuseError("the stream was never made")
        now = discipline_now(&self.ordering.state, self.state)
        return next(name for name, value in DISCIPLINES.items() if value == now)

    @property
    def registered(self):
        """True if the stream is registered; False after `DeviceRuntime.unregister_stream`."""
        return self.state != NULL and <bint>self.state.alive

    @property
    def foreign(self):
        """True if the stream was created outside xlogmem."""
        return self.state != NULL and self.state.driver_id != 0

    @property
    def _is_named(self):
        """True if the program named the discipline; else it is the default."""
        return self.state != NULL and self.state.is_named

    @property
    def device_id(self):
        """The number of the device."""
        if self.ordering is None:
            return None
        return self.state.device if self.state.remote else self.ordering.context.device_id

    # ------------------------------------------------------------------------------------------ work as a whole
    def synchronize(self):
        """Wait on the host until all work that is enqueued on the stream so far is complete, recorded or not.

        Raises
        ------
        StreamMisuseError
            The stream was unregistered, is capturing a graph, or is another thread's default stream.
        DriverError
            The driver refused, or work on the device has failed.

        Notes
        -----
        Thread-safe; the GIL is released.  Frees and reaps do not wait again for work that the host has waited for.
        """
        wait_for_stream(self)

    def sync(self):
        """`synchronize`, as cuda.core calls it."""
        wait_for_stream(self)

    def record(self):
        """Record an `Event` behind all work that is enqueued on the stream so far, recorded or not.

        Raises
        ------
        StreamMisuseError, DriverError
            See `synchronize`.  No event is made.

        Examples
        --------
        >>> stream = xlogmem.get_runtime().acquire_stream()
        >>> done = stream.record()
        >>> done.synchronize()
        """
        return record_event(self)

    def wait(self, other):
        """Order the stream's work from now on after an event, or after all work enqueued on another stream so far.

        Parameters
        ----------
        other : Event, stream, or event of another library
            A stream of another library is registered, as in `use`.  A stream or an event may belong to another runtime
            or device.

        Raises
        ------
        TypeError
            `other` is neither a stream nor an event.
        StreamMisuseError, DriverError
            See `synchronize`, for either stream.  Nothing was enqueued.

        Notes
        -----
        The stream waits on the device; the host does not wait.  Uses of blocks need no such wait: `use` orders them.
        `use` does not repeat a wait that was made here.  Thread-safe.

        Examples
        --------
        >>> runtime = xlogmem.get_runtime()
        >>> load, work = runtime.acquire_stream(), runtime.acquire_stream()
        >>> work.wait(load)
        """
        if is_event(other):
            wait_for_event(self, other)
        elif not isinstance(other, Stream) and value_of(other) is None:
            raise TypeError(f"{in_words(other)} is not a CUDA stream, nor an event: give a Stream, an Event, or a "
                            "stream or an event of another library")
        else:
            wait_for_other_stream(self, other)

    def wait_event(self, event):
        """`wait` for an event, as RMM and CuPy call it; an int is the handle of one (``CUevent``)."""
        wait_for_event(self, event)

    def __enter__(self):
        enter_current(self)
        return self

    def __exit__(self, kind, exception, traceback):
        leave_current(self)

    async def __aenter__(self):
        enter_current(self)
        return self

    async def __aexit__(self, kind, exception, traceback):
        leave_current(self)

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
        elsewhere = f", used by the runtime of device {self.ordering.context.device_id}" if self.state.remote else ""
        return f"<Stream {self.id} of device {self.device_id}{elsewhere}>"


cdef Stream handle_of(Ordering ordering, StreamState* state):
    """Make a handle of a registration that cannot be deleted meanwhile: the caller has the GIL, and the registration is
    alive."""
    state.handles.fetch_add(1)          # first: the collector may run in the next line, and unregister the stream
    return counted_handle(ordering, state)


cdef Stream counted_handle(Ordering ordering, StreamState* state):
    """Make a handle that was counted already; the count has kept the registration from being deleted."""
    cdef Stream stream
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
    cdef Section section
    section.begin(stream)
    if stream.state == NULL:
        raise StreamMisuseError("the stream was never made")
    if stream.core is None:
        stream.core = stream.ordering.core() if stream.ordering.core is not None else None
        if stream.core is None:
            raise StreamMisuseError(f"{stream!r} belongs to no runtime: give its pool to a DeviceRuntime")
    return stream.core


include "streams/pool.pxi"      # a runtime's own streams
include "streams/events.pxi"    # waits for streams and events
include "streams/current.pxi"   # `with stream:`, the current stream
include "streams/host.pxi"      # what stands for the host in place of a stream
include "streams/accepted.pxi"  # stream objects of other libraries, and their handles
