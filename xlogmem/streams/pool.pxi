# A runtime's own streams: made when they are needed, handed out again when their last handle is gone, destroyed when
# the pool, its runtime and all handles are gone.  `Stream.__dealloc__` pushes a stream without handles on a list, and
# the next `acquire` sorts the list.
#
# The GIL guards the lists, or a section of the ordering, without another lock: a thread that creates a stream may wait
# in the driver, and other threads go on.  Other threads may run whenever the GIL is released, and finalizers at any
# allocation, so each change of a list is one step.

import time

from libc.stdint cimport INT32_MAX, INT32_MIN

from xlogmem._base.signatures import Signed
from xlogmem._base.units import parse_device_id, parse_number
from xlogmem.errors import StreamMisuseError
from xlogmem._base.failures cimport PROCESS_WAS_FORKED, Failure, raise_failure
from xlogmem._base.sections cimport Section
from xlogmem._driver cimport Scope, context_of, enter_context, leave_context, process_was_forked, stream_create
from xlogmem._order cimport ORDINARY, Discipline, OrderState, register_stream_locked


cdef class StreamPool:
    """Makes the streams of one runtime.

    All are non-blocking: they neither wait for the legacy default stream nor make it wait.

    Parameters
    ----------
    device_id : int
        The device.
    max_streams : int
        The largest number of CUDA streams in use at the same time; values below 1 count as 1.  The default stream does
        not count, nor do the streams that wait for coroutines, and a stream whose last handle is dropped returns to the
        pool.  Beyond this number streams are shared, in turn: see `acquire`.

    Attributes
    ----------
    ordering : object
        Internal: the streams of the runtime.
    max_streams : int
        The largest number of CUDA streams in use at the same time.

    Raises
    ------
    DriverNotFoundError, DriverError
        The driver or the device was not found, or the default stream could not be created.

    Notes
    -----
    Thread-safe.  The CUDA streams are destroyed when the pool, its streams and their blocks are gone.

    Examples
    --------
    >>> pool = xlogmem.StreamPool(max_streams=4)
    >>> runtime = xlogmem.DeviceRuntime(stream_pool=pool)
    >>> stream = pool.acquire()
    >>> stream == runtime.register_stream(stream)
    True
    """

    __signature__ = Signed("device_id=0, *, max_streams=16")

    def __init__(self, device_id=0, *, max_streams=16):
        if self.ordering is not None:
            raise RuntimeError("a stream pool is initialised once")
        self.max_streams = max(1, parse_number("max_streams", max_streams, INT32_MIN, INT32_MAX, "a number of streams"))
        self.states = []
        self.spare = {}
        self.priorities = {}
        self.ordering = Ordering.__new__(Ordering, context_of(parse_device_id(device_id)))
        self.make(ORDINARY, 0)

    def __reduce__(self):
        raise TypeError("a stream pool cannot be copied: it owns its streams")

    cdef Stream make(self, int discipline, priority):
        """Make a stream.  One that has the priority None, see `lane`, does not count as acquired."""
        cdef cy.CUstream handle = NULL
        cdef int urgency = 0 if priority is None else priority
        cdef bint is_counted = priority is not None
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        cdef StreamState* state = NULL
        cdef Section section
        section.begin(self.ordering)
        self.being_made += is_counted           # counts as acquired: the pool does not grow beyond its capacity
        with nogil:
            failed = enter_context(self.ordering.context.handle, &scope, &failure)
            if not failed:
                failed = stream_create(urgency, &handle, &failure)
                leave_context(&scope)
            if not failed:
                self.ordering.state.lock.lock()
                state = register_stream_locked(&self.ordering.state, handle, <Discipline>discipline)
                self.ordering.state.lock.unlock()
        self.being_made -= is_counted
        if failed:
            raise_failure(&failure, "creating a stream", self.ordering.state.lost)
        self.priorities[<size_t>state] = priority
        self.states.append(<size_t>state)
        return handle_of(self.ordering, state)

    cdef bint take_spare(self, StreamState* state) noexcept:
        """Give a stream without handles its next number and a first handle.  False if the stream has a handle.  Lookups
        find streams by number and count a handle under the same lock, so a stream that was found keeps its number."""
        cdef OrderState* order = &self.ordering.state
        cdef bint taken
        with nogil:
            order.lock.lock()
            taken = state.handles.load() == 0
            if taken:
                state.number = order.registrations
                order.registrations += 1
                state.handles.fetch_add(1)
            order.lock.unlock()
        return taken

    cdef int collect_idle(self) except -1:
        """Sort the streams whose last handle is gone.  Called in the section."""
        cdef StreamState* state = self.ordering.state.idle.exchange(NULL)
        cdef StreamState* following
        while state != NULL:
            following = state.next
            state.idle.store(0)
            key = (<int>state.discipline, self.priorities[<size_t>state])
            if state.handles.load() == 0:
                self.spare.setdefault(key, []).append(<size_t>state)
            state = following
        return 0

    def acquire(self, *, str discipline="ordinary", priority=0):
        """Acquire a stream that has no other handle, until `max_streams` streams are in use.

        From then on the streams in use are handed out again, in turn, as in the pools of RMM and PyTorch.  Work that
        two holders enqueue on one stream runs in the order of enqueueing, which is right, and may be slower.

        Parameters
        ----------
        discipline : {"ordinary", "opaque", "sealed"}
            The kind of work that may be enqueued there without a recorder; see `Stream.discipline`.
        priority : int
            CUDA's stream priority; lower is more urgent.  The driver clamps it to the device's range.

        Returns
        -------
        Stream
            The stream returns to the pool when its last handle is dropped.  Work that was enqueued there before is not
            waited for: it comes first in stream order.  A shared stream equals the stream of its other holders.

        Raises
        ------
        StreamMisuseError
            The pool is at its capacity, and no stream in use has this discipline and priority.
        DriverError
            The driver could not create a stream.
        ValueError
            The discipline is unknown.
        """
        cdef Stream idle
        cdef Failure failure
        cdef Section section
        cdef int wanted = discipline_of(discipline)
        priority = parse_number("priority", priority, INT32_MIN, INT32_MAX)
        if self.ordering is None:
            raise StreamMisuseError("the stream pool was never initialised")
        if process_was_forked():
            failure.kind = PROCESS_WAS_FORKED
            raise_failure(&failure)
        section.begin(self.ordering)
        while True:
            idle = self.take(wanted, priority)
            if idle is not None:
                return idle
            if self.acquired + self.being_made < self.max_streams:
                return self.make(wanted, priority)
            shared = self.share(wanted, priority)
            if shared is not None:
                return shared
            if not self.being_made:
                raise StreamMisuseError(f"stream pool at capacity (max={self.max_streams}), and no stream in use is "
                                        f"{discipline} with priority {priority}: drop a stream, or pass a larger "
                                        "max_streams to StreamPool")
            time.sleep(0.0005)                          # another thread makes one, which may be what is wanted

    cdef Stream take(self, int discipline, priority):
        """A stream without handles that has this discipline and priority, or None."""
        cdef bint is_counted = priority is not None
        cdef StreamState* state
        cdef Section section
        cdef bint taken
        section.begin(self.ordering)
        self.collect_idle()
        spare = self.spare.get((discipline, priority))
        while spare:
            state = <StreamState*><size_t>spare.pop()
            self.being_made += is_counted               # it counts meanwhile: other threads run in `take_spare`
            taken = self.take_spare(state)
            self.being_made -= is_counted
            if taken:                                   # else `find_block` made a handle; it will return
                return counted_handle(self.ordering, state)
        return None

    cdef Stream lane(self):
        """A stream of the runtime's own, which the program is never given: it might capture a graph there."""
        idle = self.take(SEALED, None)
        return idle if idle is not None else self.make(SEALED, None)

    cdef Stream share(self, int discipline, int priority):
        """Another handle of a stream in use, in turn; None if no stream in use has this discipline and priority."""
        cdef StreamState* state
        cdef list suited = []
        cdef Section section
        section.begin(self.ordering)
        for address in self.states[1:]:
            state = <StreamState*><size_t>address
            if state.handles.load() and <int>state.discipline == discipline and self.priorities[address] == priority:
                suited.append(address)
        if not suited:
            return None
        state = <StreamState*><size_t>suited[self.turn % <size_t>len(suited)]
        self.turn += 1
        return handle_of(self.ordering, state)

    @property
    def device_id(self):
        """The number of the device."""
        return self.ordering.context.device_id if self.ordering is not None else None

    @property
    def acquired(self):
        """The number of streams in use, without the default stream and those that wait for coroutines."""
        return sum(1 for state in self.states[1:]
                   if (<StreamState*><size_t>state).handles.load() and self.priorities[state] is not None)

    @property
    def default(self):
        """The stream that allocations use when no other stream is named.  It has id 0 and is never handed out again."""
        if self.ordering is None:
            raise StreamMisuseError("the stream pool was never initialised")
        return handle_of(self.ordering, <StreamState*><size_t>self.states[0])

    def stream(self, id):
        """Another handle of the stream that is in use under this id.

        Raises
        ------
        StreamMisuseError
            The id is unknown to this pool, or its stream returned to the pool.
        """
        cdef StreamState* state
        cdef Section section
        section.begin(self.ordering)
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
        return f"<StreamPool device={self.ordering.context.device_id} acquired={self.acquired} max={self.max_streams}>"
