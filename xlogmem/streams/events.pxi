# Waits for streams and events as a whole, without a block.  Each wait is one operation of `_order` and raises clocks,
# so `use` does not wait again for the same work.

cimport cython

from cpython.number cimport PyIndex_Check
from libc.stdint cimport uint32_t

from xlogmem._base.signatures import Signed
from xlogmem._foreign.advice import in_words, kind_of
from xlogmem.errors import StreamMisuseError
from xlogmem._base.cpp cimport check, push
from xlogmem._base.failures cimport (
    DEVICE_IS_LOST,
    LOST,
    STREAM_IS_CAPTURING,
    STREAM_IS_DEAD,
    Failure,
    fail_stream,
    raise_failure,
)
from xlogmem._driver cimport Scope, enter_context, leave_context, stream_wait
from xlogmem._order cimport (
    OrderState,
    advance,
    enter_stream,
    hold_fence_unlocks,
    host_wait_for_fence_unlocks,
    host_wait_unlocks,
    is_other_threads_default,
    leave_stream,
    order_after_fence_unlocks,
    order_after_unlocks,
    poll_fence_unlocks,
    refuse_if_capturing_unlocks,
)
from xlogmem.observe._history cimport find_other_place


cdef object awaiter = None                  # set by `launch`, which stands above


def set_awaiter(function):
    """Let `Event.__await__` return ``function(event)``."""
    global awaiter
    awaiter = function


@cython.final
@cython.no_gc_clear                         # __dealloc__ needs the stream
cdef class Event:
    """The work that was enqueued on a stream when `Stream.record` was called.

    Attributes
    ----------
    stream : Stream
        The stream that it was recorded on.

    Notes
    -----
    An event keeps its stream alive, and so its runtime.  It is recorded once and never again.  Thread-safe.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> load, work = runtime.acquire_stream(), runtime.acquire_stream()
    >>> done = load.record()
    >>> work.wait_event(done)                       # on the device
    >>> done.synchronize()                          # the host
    """

    __signature__ = Signed("")

    def __init__(self):
        raise TypeError("events are made by Stream.record()")

    def __dealloc__(self):
        if self.fence != NULL:                          # discarded by the next record, or at the end of the streams
            push(self.stream.ordering.state.released, self.fence)

    def __reduce__(self):
        raise TypeError("an event cannot be copied")

    @property
    def handle(self):
        """The ``CUevent`` as an int, for driver calls of the program.  Valid while this object is held."""
        self.refuse_unmade()
        return <size_t>self.fence.event

    @property
    def ready(self):
        """True if the work before the event is complete; a query, without a wait.

        Raises
        ------
        DriverError
            The driver refused, or work on the device has failed.
        """
        self.refuse_unmade()
        return event_is_ready(self)

    @property
    def is_done(self):
        """`ready`, as cuda.core calls it."""
        return self.ready

    def synchronize(self):
        """Wait on the host until the work before the event is complete, and for no later work.

        Raises
        ------
        DriverError
            The driver refused, or work on the device has failed.

        Notes
        -----
        Thread-safe; the GIL is released.
        """
        self.refuse_unmade()
        host_wait_for_event(self)

    def sync(self):
        """`synchronize`, as cuda.core calls it."""
        self.synchronize()

    def __await__(self):
        """Suspend the coroutine until the work before the event is complete; the event loop goes on.  See
        `DeviceBlock.__await__`."""
        self.refuse_unmade()
        return awaiter(self)

    cdef int refuse_unmade(self) except -1:
        if self.fence == NULL:
            raise StreamMisuseError("the event was never recorded")
        return 0

    def __repr__(self):
        return f"<Event of {self.stream!r}>" if self.fence != NULL else "<Event that was never recorded>"


# ---------------------------------------------------------------------------------------------- calls
cdef OrderState* order_of(Stream stream) except NULL:
    """The order that the stream belongs to; raises if the stream's handle does not mean it in this thread."""
    if stream.state == NULL:
        raise StreamMisuseError("the stream was never made")
    if is_other_threads_default(stream.state):
        raise StreamMisuseError(f"{stream!r} is the per-thread default stream of another thread")
    return &stream.ordering.state


cdef int start_call(OrderState* order, Scope* scope, Failure* failure) except -1 nogil:
    cdef uint32_t marks = order.lost.load() if order.lost != NULL else <uint32_t>0
    if marks & LOST:
        failure.kind = DEVICE_IS_LOST
        return 1
    if marks:
        find_other_place()                              # a history may be recorded
    return enter_context(order.context, scope, failure)


cdef inline int refuse_dead(StreamState* state, Failure* failure) noexcept nogil:
    return 0 if state.alive else fail_stream(failure, STREAM_IS_DEAD, state.number)


cdef int wait_for_stream(Stream stream) except -1:
    cdef OrderState* order = order_of(stream)
    cdef StreamState* state = stream.state
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = start_call(order, &scope, &failure)
        if not failed:
            order.lock.lock()
            failed = refuse_dead(state, &failure) or host_wait_unlocks(order, state, advance(state), &failure)
            order.lock.unlock()
            leave_context(&scope)
    if failed:
        raise_failure(&failure, f"waiting for {stream!r}", order.lost)
    return 0


cdef Event record_event(Stream stream):
    cdef OrderState* order = order_of(stream)
    cdef StreamState* state = stream.state
    cdef Event event = Event.__new__(Event)             # first: nothing that may fail follows the record
    cdef Fence* fence = NULL
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = start_call(order, &scope, &failure)
        if not failed:
            order.lock.lock()
            failed = refuse_dead(state, &failure) or hold_fence_unlocks(order, state, &fence, &failure)
            order.lock.unlock()
            leave_context(&scope)
    if failed:
        raise_failure(&failure, f"recording an event on {stream!r}", order.lost)
    event.stream = stream
    event.fence = fence
    return event


# ---------------------------------------------------------------------------------------------- a stream waits
cdef int wait_for_other_stream(Stream stream, object other) except -1:
    cdef Stream source
    order_of(stream)
    if isinstance(other, Stream):
        source = <Stream>other
        order_of(source)
    else:
        source = core_of(stream).register_stream(other)
    if source.ordering is not stream.ordering:
        return order_after_event(stream, record_event(source))
    return order_after_stream(stream, source)


cdef int order_after_stream(Stream stream, Stream source) except -1:
    """Order a stream after all work on another stream of the same runtime."""
    cdef OrderState* order = order_of(stream)
    cdef StreamState* waiting = stream.state
    cdef StreamState* state = source.state
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = start_call(order, &scope, &failure)
        if not failed:
            order.lock.lock()
            failed = refuse_dead(state, &failure) or begin_wait_unlocks(order, waiting, &failure)
            if not failed:
                failed = order_after_unlocks(order, waiting, state, advance(state), &failure)
                waiting.busy -= 1
            order.lock.unlock()
            leave_context(&scope)
    if failed:
        raise_failure(&failure, f"ordering {stream!r} after {source!r}", order.lost)
    return 0


cdef int begin_wait_unlocks(OrderState* order, StreamState* waiting, Failure* failure) except -1 nogil:
    """Prepare a wait of the stream: mark the stream as busy, so that it stays registered until it is not busy any more.
    """
    check(order.lock.held(), "the lock is held")
    if refuse_dead(waiting, failure):
        return 1
    waiting.busy += 1
    if refuse_if_capturing_unlocks(order, waiting, STREAM_IS_CAPTURING, failure):
        waiting.busy -= 1
        return 1
    return 0


cdef int order_after_event(Stream stream, Event event) except -1:
    cdef OrderState* order = order_of(stream)
    cdef StreamState* waiting = stream.state
    cdef StreamState* source = event.stream.state
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    if event.stream.ordering is not stream.ordering:    # positions of another runtime mean nothing here
        return order_after_handle(stream, event.fence.event)
    with nogil:
        failed = start_call(order, &scope, &failure)
        if not failed:
            order.lock.lock()
            failed = begin_wait_unlocks(order, waiting, &failure)
            if not failed:
                failed = order_after_fence_unlocks(order, waiting, source, event.fence, &failure)
                waiting.busy -= 1
            order.lock.unlock()
            leave_context(&scope)
    if failed:
        raise_failure(&failure, f"ordering {stream!r} after {event!r}", order.lost)
    return 0


# ---------------------------------------------------------------------------------------------- events
cdef bint is_event(object what) except -1:
    """True if the object is an event.  The class decides: CuPy's events look like streams that follow no protocol."""
    return isinstance(what, Event) or type(what).__name__ in ("Event", "CUevent", "cudaEvent_t")


cdef int wait_for_event(Stream stream, object event) except -1:
    if isinstance(event, Event):
        (<Event>event).refuse_unmade()
        return order_after_event(stream, <Event>event)
    return order_after_handle(stream, event_handle(event))


cdef cy.CUevent event_handle(object event) except NULL:
    """The handle of a foreign event: an event of CuPy, PyTorch, cuda.core or cuda.bindings, or an int."""
    names = ["cuda_event", "ptr", "handle"] if is_event(event) else ["cuda_event"]
    value = next((getattr(event, name) for name in names if getattr(event, name, None) is not None), event)
    if not PyIndex_Check(value) and not (is_event(value) and hasattr(value, "__int__")):
        raise TypeError(f"{in_words(event)} is not a CUDA event: give an Event, an int, or an event of CuPy, "
                        "PyTorch, cuda.core or cuda.bindings")
    number = int(value)
    if not 0 < number < 1 << 64:
        raise ValueError(f"{number} is not a CUDA event handle")
    return <cy.CUevent><size_t>number


cdef int order_after_handle(Stream stream, cy.CUevent event) except -1:
    cdef OrderState* order = order_of(stream)
    cdef StreamState* waiting = stream.state
    cdef Failure failure
    cdef Scope scope, inner
    cdef int failed
    with nogil:
        failed = start_call(order, &scope, &failure)
        if not failed:
            order.lock.lock()
            failed = begin_wait_unlocks(order, waiting, &failure)
            if not failed:
                order.lock.unlock()
                failed = enter_stream(waiting, &inner, &failure)
                if not failed:
                    failed = leave_stream(waiting, &inner, stream_wait(waiting.handle, event, &failure), &failure)
                order.lock.lock()
                waiting.busy -= 1
            order.lock.unlock()
            leave_context(&scope)
    if failed:
        raise_failure(&failure, f"ordering {stream!r} after an event", order.lost)
    return 0


cdef int host_wait_for_event(Event event) except -1:
    cdef OrderState* order = &event.stream.ordering.state
    cdef StreamState* source = event.stream.state
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = start_call(order, &scope, &failure)
        if not failed:
            order.lock.lock()
            failed = host_wait_for_fence_unlocks(order, source, event.fence, &failure)
            order.lock.unlock()
            leave_context(&scope)
    if failed:
        raise_failure(&failure, f"waiting for {event!r}", order.lost)
    return 0


cdef bint event_is_ready(Event event) except -1:
    cdef OrderState* order = &event.stream.ordering.state
    cdef StreamState* source = event.stream.state
    cdef bint done = False
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = start_call(order, &scope, &failure)
        if not failed:
            order.lock.lock()
            failed = poll_fence_unlocks(order, source, event.fence, &done, &failure)
            order.lock.unlock()
            leave_context(&scope)
    if failed:
        raise_failure(&failure, f"querying {event!r}", order.lost)
    return done
