"""Streams as users hold them: handles that carry their identity, and the pool that makes them.

The state behind a handle (positions, knowledge, events) is `_order`'s; nothing here decides what comes after what.
"""
import threading

cimport cython

from cuda.bindings cimport cydriver as cy

from xlogmem._driver cimport (
    Failure,
    context_of,
    enter_context,
    leave_context,
    process_is_closing,
    raise_failure,
    stream_create,
    stream_destroy,
)
from xlogmem._order cimport OPAQUE, ORDINARY, SEALED, Discipline

from xlogmem.errors import StreamMisuseError

__all__ = ["Stream", "StreamPool"]

DISCIPLINES = {"ordinary": ORDINARY, "opaque": OPAQUE, "sealed": SEALED}


@cython.final
cdef class Stream:
    """A CUDA stream that one runtime knows.

    Made by `StreamPool.acquire` or `DeviceRuntime.acquire_stream`.  Two handles are equal if they are the same
    registration; the driver's handle value is no identity, since the driver reuses it.

    Attributes
    ----------
    id : int
        Number of the registration within its pool, never reused; 0 is the pool's default stream.
    pool : StreamPool
        The pool that made it.

    Notes
    -----
    Keeps its runtime alive.  Follows the ``__cuda_stream__`` protocol, so CuPy, cuda.core, Numba and others accept
    it where they accept streams.
    """

    def __init__(self):
        raise TypeError("streams are made by StreamPool.acquire() or DeviceRuntime.acquire_stream()")

    @property
    def handle(self):
        """The ``CUstream`` as an int, for driver calls of your own."""
        if self.state == NULL:
            raise StreamMisuseError("the stream was never made")
        return <size_t>self.state.handle

    @property
    def discipline(self):
        """Who may queue work on blocks here without a recorder.

        ``"ordinary"``: people fill blocks that were allocated here and that nobody else has used yet.  ``"opaque"``:
        anybody at any time.  ``"sealed"``: nobody, a promise that saves waits.
        """
        return {value: name for name, value in DISCIPLINES.items()}[self.state.discipline]

    def __cuda_stream__(self):
        return 0, self.handle

    def __eq__(self, other):
        if not isinstance(other, Stream):
            return NotImplemented
        return self.state == (<Stream>other).state

    def __hash__(self):
        return hash(<size_t>self.state)

    def __reduce__(self):
        raise TypeError("a stream cannot be copied")

    def __repr__(self):
        if self.state == NULL:
            return "<Stream that was never made>"
        return f"<Stream {self.id} of device {self.ordering.context.ordinal}>"


cdef object core_of(Stream stream):
    """The core of the runtime that the stream belongs to."""
    if stream.state == NULL:
        raise StreamMisuseError("the stream was never made")
    if stream.core is None:
        stream.core = stream.ordering.core() if stream.ordering.core is not None else None
        if stream.core is None:
            raise StreamMisuseError(f"{stream!r} belongs to no runtime: give its pool to a DeviceRuntime")
    return stream.core


@cython.no_gc_clear                         # __dealloc__ needs the ordering
cdef class StreamPool:
    """Makes the streams of one runtime.

    All are non-blocking: they neither wait for the legacy default stream nor make it wait (W14).

    Parameters
    ----------
    ordinal : int
        The device.
    max_streams : int
        How many streams `acquire` hands out at most; at least 1 (contract 155).  The default stream does not count.

    Notes
    -----
    Thread-safe.  The CUDA streams are destroyed with the pool, which lives as long as any of its streams or blocks.
    """

    def __init__(self, int ordinal=0, *, int max_streams=16):
        if self.ordering is not None:
            raise RuntimeError("a stream pool is initialised once")
        self.max_streams = max(1, max_streams)
        self.states = []
        self.lock = threading.Lock()
        self.ordering = Ordering.__new__(Ordering, context_of(ordinal))
        self._make(ORDINARY, 0)

    def __reduce__(self):
        raise TypeError("a stream pool cannot be copied: it owns its streams")

    def __dealloc__(self):
        cdef Failure ignored
        cdef bint pushed
        if self.ordering is None or process_is_closing():
            return
        if enter_context(self.ordering.context.handle, &pushed, &ignored):
            return
        for state in self.states:
            stream_destroy((<StreamState*><size_t>state).handle, &ignored)
        leave_context(pushed)

    cdef Stream _make(self, int discipline, int priority):
        cdef cy.CUstream handle = NULL
        cdef Failure failure
        cdef bint pushed
        cdef int failed
        cdef StreamState* state
        with nogil:
            failed = enter_context(self.ordering.context.handle, &pushed, &failure)
            if not failed:
                failed = stream_create(priority, &handle, &failure)
                leave_context(pushed)
        if failed:
            raise_failure(&failure, "creating a stream")
        with nogil:
            state = self.ordering.register(handle, <Discipline>discipline)
        self.states.append(<size_t>state)
        return self.stream(state.index)

    def acquire(self, *, str discipline="ordinary", int priority=0):
        """A new stream.

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
        if discipline not in DISCIPLINES:
            raise ValueError(f"discipline {discipline!r} is unknown; choose one of {', '.join(DISCIPLINES)}")
        if self.ordering is None:
            raise StreamMisuseError("the stream pool was never initialised")
        with self.lock:
            if self.acquired >= self.max_streams:
                raise StreamMisuseError(f"stream pool at capacity (max={self.max_streams}): pass a larger max_streams "
                                        "to StreamPool, or share streams")
            stream = self._make(DISCIPLINES[discipline], priority)
            self.acquired += 1
        return stream

    @property
    def default(self):
        """The pool's own stream, which allocations use when no other is named."""
        return self.stream(0)

    def stream(self, index):
        """A handle of the stream with this id (contract 159).

        Raises
        ------
        StreamMisuseError
            No stream of this pool has the id.
        """
        cdef Stream stream = Stream.__new__(Stream)
        if not 0 <= index < len(self.states):
            raise StreamMisuseError(f"stream {index} is unknown to this pool")
        stream.state = <StreamState*><size_t>self.states[index]
        stream.pool = self
        stream.ordering = self.ordering
        stream.id = index
        stream.core = self.ordering.core() if self.ordering.core is not None else None
        return stream

    def __len__(self):
        return self.acquired

    def __repr__(self):
        if self.ordering is None:
            return "<StreamPool that was never initialised>"
        return f"<StreamPool device={self.ordering.context.ordinal} acquired={self.acquired} max={self.max_streams}>"
