"""What comes after what: the ordering of streams, below everything that owns memory.

The question this room answers is "order stream T after position n of stream S, as cheaply as can be".

position
    ``(S, n)`` stands for everything filed on S up to its n-th position.  It is taken *after* the work was queued,
    so any event recorded on S from then on covers it.  Taking one makes no driver call: a counter goes up.
touch
    A new position of S for work that nobody recorded.  No older fence and no older knowledge can cover a new position;
    that is the whole rule for work we were not told of.
fence
    An event with the position it covers and what its stream knew.  A stream keeps a small ring of them and records them
    again and again: waits already queued hold the state that the event had when they were queued.  A fence that a call
    is using with the lock released is pinned, and is not recorded again until it is done.
knowledge
    For each stream the newest position that T is ordered after already, raised only after the driver accepted the
    wait, and transitive: waiting for S's fence also teaches T what S knew.  The host has knowledge too.

Under the lock nobody makes a driver call, takes the GIL or touches a Python object.  The functions that need the
driver release the lock around the call, and take it back before they touch pins, counts or rings; what they say
about the state is true again only when they return.  `StreamState` objects are never moved or freed while their
`Ordering` lives.

The rules are those of the project's ordering model, one function here for each operation there.
"""
cimport cython

from xlogmem._cpp cimport check, larger
from xlogmem._driver cimport (
    SOURCE_IS_CAPTURING,
    event_record,
    event_synchronize,
    give_event,
    stream_is_capturing,
    stream_wait,
    take_event,
)

__all__ = ["Ordering"]

cdef enum:
    RING = 4                                # fences that a stream keeps; more only while all are in use


@cython.final
@cython.no_gc
cdef class Ordering:
    """The streams that one runtime knows, and the events between them.  Not for users: `StreamPool` makes it."""

    def __cinit__(self, Context context not None):
        self.context = context
        self.state.context = context.handle
        self.state.events = &context.events
        self.state.ring = RING
        self.state.policy = ADAPTIVE
        self.state.operations = 0

    def __dealloc__(self):
        cdef StreamState* stream
        cdef Fence* fence
        cdef size_t i, k
        for i in range(self.state.streams.size()):
            stream = self.state.streams[i]
            for k in range(stream.ring.size()):
                fence = stream.ring[k]
                give_event(self.state.events, fence.event)
                del fence
            del stream

    cdef StreamState* register(self, cy.CUstream handle, Discipline discipline) noexcept nogil:
        """A new registration.  Takes the lock itself."""
        cdef StreamState* stream = new StreamState()
        stream.handle = handle
        stream.discipline = discipline
        stream.count = 0
        stream.credit = 0
        stream.operation = stream.touched = stream.need = 0
        self.state.lock.lock()
        stream.index = self.state.streams.size()
        self.state.streams.push_back(stream)
        self.state.lock.unlock()
        return stream


# ---------------------------------------------------------------------------------------------- positions, knowledge
cdef uint64_t touch(StreamState* stream) noexcept nogil:
    stream.count += 1
    return stream.count


cdef inline uint64_t _at(vector[uint64_t]* known, uint32_t index) noexcept nogil:
    return known[0][index] if index < known.size() else 0


cdef inline void _raise_to(vector[uint64_t]* known, uint32_t index, uint64_t position) noexcept nogil:
    if index >= known.size():
        known.resize(index + 1)
    known[0][index] = larger(known[0][index], position)


cdef bint knows(OrderState* order, StreamState* stream, StreamState* source, uint64_t position) noexcept nogil:
    """Is `stream` (NULL: the host) ordered after the position already?"""
    if stream == source or _at(&order.host_known, source.index) >= position:
        return True
    return stream != NULL and _at(&stream.known, source.index) >= position


cdef void _learn(vector[uint64_t]* known, StreamState* source, Fence* fence) noexcept nogil:
    cdef uint32_t i
    check(fence.position <= source.count, "nobody knows a position that was not taken")
    _raise_to(known, source.index, fence.position)
    for i in range(<uint32_t>fence.known.size()):
        if fence.known[i]:
            _raise_to(known, i, fence.known[i])


cdef void teach_host(OrderState* order, StreamState* source, Fence* fence) noexcept nogil:
    """The host has seen the fence complete; whatever is queued from now on is ordered after it."""
    _learn(&order.host_known, source, fence)


# ---------------------------------------------------------------------------------------------- fences
cdef Fence* covering(StreamState* source, uint64_t position) noexcept nogil:
    """The oldest fence that covers the position, NULL if there is none."""
    cdef size_t i
    for i in range(source.ring.size()):
        if source.ring[i].position >= position:
            return source.ring[i]
    return NULL


cdef Fence* _fence_to_record(OrderState* order, StreamState* source) noexcept nogil:
    """A fence in no ring: the oldest of a full ring that nobody is using, else a new one without an event."""
    cdef size_t i, k
    cdef Fence* fence
    if source.ring.size() >= order.ring:
        for i in range(source.ring.size()):
            fence = source.ring[i]
            if fence.pins == 0:
                for k in range(i + 1, source.ring.size()):
                    source.ring[k - 1] = source.ring[k]
                source.ring.pop_back()
                return fence
    fence = new Fence()
    fence.event = NULL
    fence.pins = 0
    return fence


cdef void _file(StreamState* source, Fence* fence) noexcept nogil:
    """Into the ring, oldest first: two records may have overlapped."""
    cdef size_t place = source.ring.size()
    source.ring.push_back(fence)
    while place > 0 and source.ring[place - 1].position > fence.position:
        source.ring[place] = source.ring[place - 1]
        place -= 1
    source.ring[place] = fence


cdef int record_fence(OrderState* order, StreamState* source, Fence** result, Failure* failure) except -1 nogil:
    """Record a fence on the stream.  Releases the lock.

    Position and knowledge are sampled before the call and the fence is filed after it: what somebody commits meanwhile
    is not claimed, and a failed record leaves no fence.  A stream that is capturing is refused; the capture state is
    asked again after recording, because a capture may have begun under our feet and the event may then belong to it.
    """
    cdef Fence* fence = _fence_to_record(order, source)
    cdef bint capturing = False
    cdef int failed = 0
    fence.position = source.count
    fence.known = source.known
    order.lock.unlock()
    if fence.event == NULL:
        failed = take_event(order.events, &fence.event, failure)
    if not failed:
        failed = stream_is_capturing(source.handle, &capturing, failure)
    if not failed and not capturing:
        failed = event_record(fence.event, source.handle, failure)
        if not failed:
            failed = stream_is_capturing(source.handle, &capturing, failure)
    if not failed and capturing:
        failure.kind = SOURCE_IS_CAPTURING
        failure.stream = source.index
        failed = 1
    order.lock.lock()
    check(fence.pins == 0, "a fence in use is not recorded again")
    check(fence.position <= source.count, "a fence covers no position that was not taken")
    if failed:
        if fence.event != NULL:
            give_event(order.events, fence.event)
        del fence
        return 1
    order.counters.records += 1
    _file(source, fence)
    result[0] = fence
    return 0


# ---------------------------------------------------------------------------------------------- ordering
cdef int order_after(OrderState* order, StreamState* stream, StreamState* source, uint64_t position,
                     Failure* failure) except -1 nogil:
    """Order everything queued on `stream` from now on after ``(source, position)``.  Releases the lock."""
    cdef Fence* fence
    cdef int failed
    if knows(order, stream, source, position):
        order.counters.known += 1
        return 0
    fence = covering(source, position)
    if fence == NULL:
        if record_fence(order, source, &fence, failure):
            return 1
    else:
        order.counters.covered += 1
    fence.pins += 1
    order.lock.unlock()
    failed = stream_wait(stream.handle, fence.event, failure)
    order.lock.lock()
    fence.pins -= 1
    if failed:
        return 1
    order.counters.waits += 1
    _learn(&stream.known, source, fence)
    return 0


cdef int host_waits_for(OrderState* order, StreamState* source, uint64_t position,
                        Failure* failure) except -1 nogil:
    """Return when the position is complete.  Releases the lock."""
    cdef Fence* fence
    cdef int failed
    if knows(order, NULL, source, position):
        return 0
    fence = covering(source, position)
    if fence == NULL and record_fence(order, source, &fence, failure):
        return 1
    fence.pins += 1
    order.lock.unlock()
    failed = event_synchronize(fence.event, failure)
    order.lock.lock()
    fence.pins -= 1
    if failed:
        return 1
    order.counters.host_waits += 1
    teach_host(order, source, fence)
    return 0


cdef int refuse_capturing(OrderState* order, StreamState* stream, vector[Need]* needs,
                          Failure* failure) except -1 nogil:
    """Refuse while a stream that a fence would have to be recorded on is capturing: the event would belong to the
    graph.  Found out for all needs before anything is recorded or waited for.  Releases the lock."""
    cdef StreamState* source
    cdef bint capturing
    cdef int failed
    cdef size_t i
    for i in range(needs.size()):
        source = needs[0][i].source
        if knows(order, stream, source, needs[0][i].position) or covering(source, needs[0][i].position) != NULL:
            continue
        order.lock.unlock()
        capturing = False
        failed = stream_is_capturing(source.handle, &capturing, failure)
        order.lock.lock()
        if failed:
            return 1
        if capturing:
            failure.kind = SOURCE_IS_CAPTURING
            failure.stream = source.index
            return 1
    return 0


cdef int order_all(OrderState* order, StreamState* stream, vector[Need]* needs, Failure* failure) except -1 nogil:
    """Order `stream` (NULL: the host) after every need; at most one wait for each source.  Releases the lock.

    Readers come first: they were ordered after the writers, and those after the allocation, so whoever waits for a
    reader often knows the rest already.
    """
    cdef StreamState* source
    cdef uint64_t position
    cdef size_t i
    cdef int stage
    for stage in range(STAGES - 1, -1, -1):
        for i in range(needs.size()):
            if <int>needs[0][i].stage != stage:
                continue
            source = needs[0][i].source
            position = needs[0][i].position
            if stream == NULL:
                if host_waits_for(order, source, position, failure):
                    return 1
            elif order_after(order, stream, source, position, failure):
                return 1
    return 0
