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

A stream may get another discipline.  What the old one allowed was queued before a position that is taken then
(``hidden``), and older entries of the stream count as that position.

A stream that is unregistered leaves a tombstone: a last fence that covers everything filed on it.  Whoever has to
be ordered after the dead stream waits for that; once the host has seen it complete nobody has to any more, and the
stream's place is given to the next registration, which goes on counting where the dead one stopped, so that old
positions mean what they meant.

Under the lock nobody makes a driver call, takes the GIL or touches a Python object.  The functions that need the
driver release the lock around the call, and take it back before they touch pins, counts or rings; what they say
about the state is true again only when they return.  `StreamState` objects are never moved or freed while their
`Ordering` lives.

The rules are those of the project's ordering model, one function here for each operation there.
"""
cimport cython

from xlogmem cimport _defects as defect
from xlogmem._cpp cimport check, larger
from xlogmem._defects cimport planted
from xlogmem._driver cimport (
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    STREAM_IS_DEAD,
    STREAM_IS_IN_USE,
    context_synchronize,
    event_is_done,
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

cdef extern from *:
    """
    #include <cstdint>
    #include <mutex>
    #include <set>
    // A number for each thread, never used again: the system's thread ids are.
    struct xlogmem_threads { std::mutex lock; uint64_t last = 0; std::set<uint64_t> alive; };
    static xlogmem_threads* xlogmem_all = new xlogmem_threads;      // threads may outlive the process's statics
    struct xlogmem_thread {
        uint64_t number;
        xlogmem_thread() {
            std::lock_guard<std::mutex> guard(xlogmem_all->lock);
            xlogmem_all->alive.insert(number = ++xlogmem_all->last);
        }
        ~xlogmem_thread() {
            std::lock_guard<std::mutex> guard(xlogmem_all->lock);
            xlogmem_all->alive.erase(number);
        }
    };
    static uint64_t xlogmem_this_thread() {
        thread_local xlogmem_thread thread;
        return thread.number;
    }
    static bool xlogmem_thread_is_alive(uint64_t number) {
        std::lock_guard<std::mutex> guard(xlogmem_all->lock);
        return xlogmem_all->alive.count(number);
    }
    """
    uint64_t xlogmem_this_thread() noexcept nogil
    bint xlogmem_thread_is_alive(uint64_t number) noexcept nogil


cdef uint64_t this_thread() noexcept nogil:
    return xlogmem_this_thread()


cdef bint thread_is_alive(uint64_t number) noexcept nogil:
    return xlogmem_thread_is_alive(number)


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

    def __dealloc__(self):
        cdef StreamState* stream
        cdef size_t i, k
        for i in range(self.state.streams.size()):
            stream = self.state.streams[i]
            if stream.probe != NULL and stream.probe != stream.last and not stream.probe.filed:
                discard(&self.state, stream.probe)
            for k in range(stream.ring.size()):
                discard(&self.state, stream.ring[k])
            if stream.last != NULL:
                discard(&self.state, stream.last)
            del stream


# ---------------------------------------------------------------------------------------------- positions, knowledge
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


# ---------------------------------------------------------------------------------------------- fences
cdef Fence* covering(StreamState* source, uint64_t position) noexcept nogil:
    """The oldest fence that covers the position, NULL if there is none; a dead stream answers with its last."""
    cdef size_t i
    if not source.alive:
        return source.last
    for i in range(source.ring.size()):
        if source.ring[i].position >= position:
            return source.ring[i]
        if source.ring[i].position + 1 == position and planted(defect.FENCE_COVERS_NEXT):
            return source.ring[i]
    return NULL


cdef void discard(OrderState* order, Fence* fence) noexcept nogil:
    if fence.event != NULL:
        give_event(order.events, fence.event)
    del fence


cdef void unpin(OrderState* order, Fence* fence) noexcept nogil:
    """A call, or a tombstone, does not use the fence any more."""
    check(fence.pins > 0, "a fence that is let go was in use")
    fence.pins -= 1
    if fence.pins == 0 and not fence.filed:
        discard(order, fence)


cdef void unfile(StreamState* source, size_t place) noexcept nogil:
    """Out of the ring."""
    cdef size_t k
    source.ring[place].filed = False
    for k in range(place + 1, source.ring.size()):
        source.ring[k - 1] = source.ring[k]
    source.ring.pop_back()


cdef Fence* _fence_to_record(OrderState* order, StreamState* source) noexcept nogil:
    """A fence in no ring: the oldest of a full ring that nobody is using, else a new one without an event."""
    cdef size_t i
    cdef Fence* fence
    if source.ring.size() >= order.ring:
        for i in range(source.ring.size()):
            fence = source.ring[i]
            if fence.pins == 0 or planted(defect.PINNED_FENCE_REUSED):
                unfile(source, i)
                return fence
    fence = new Fence()
    fence.event = NULL
    fence.pins = 0
    fence.filed = False
    return fence


cdef void _file(StreamState* source, Fence* fence) noexcept nogil:
    """Into the ring, oldest first: two records may have overlapped."""
    cdef size_t place = source.ring.size()
    source.ring.push_back(fence)
    while place > 0 and source.ring[place - 1].position > fence.position:
        source.ring[place] = source.ring[place - 1]
        place -= 1
    source.ring[place] = fence
    fence.filed = True


cdef int record_fence(OrderState* order, StreamState* source, Fence** result, Failure* failure) except -1 nogil:
    """Record a fence on the stream, which is alive and not bound to another thread.  Releases the lock.

    Position and knowledge are sampled before the call and the fence is filed after it: what somebody commits meanwhile
    is not claimed, and a failed record leaves no fence.  A stream that is capturing is refused; the capture state is
    asked again after recording, because a capture may have begun under our feet and the event may then belong to it.
    """
    cdef Fence* fence = _fence_to_record(order, source)
    cdef bint capturing = False
    cdef int failed = 0
    fence.position = source.count
    fence.known = source.known
    source.uncovered = 0
    source.busy += 1
    order.lock.unlock()
    if fence.event == NULL:
        failed = take_event(order.events, &fence.event, failure)
    if not failed:
        failed = stream_is_capturing(source.handle, &capturing, failure)
    if capturing and planted(defect.CAPTURING_SOURCE_RECORDED):
        capturing = False
    if not failed and not capturing:
        failed = event_record(fence.event, source.handle, failure)
        if not failed:
            failed = stream_is_capturing(source.handle, &capturing, failure)
        if capturing and (planted(defect.CAPTURING_SOURCE_RECORDED) or planted(defect.CAPTURE_NOT_ASKED_AGAIN)):
            capturing = False
    if not failed and capturing:
        failure.kind = SOURCE_IS_CAPTURING
        failure.stream = source.number
        failed = 1
    order.lock.lock()
    source.busy -= 1
    check(fence.pins == 0 or planted(defect.PINNED_FENCE_REUSED), "a fence in use is not recorded again")
    check(fence.position <= source.count, "a fence covers no position that was not taken")
    if failed and not (fence.event != NULL and planted(defect.FAILED_RECORD_FILED)):
        discard(order, fence)
        return 1
    if planted(defect.POSITION_SAMPLED_LATE):
        fence.position = source.count
    if planted(defect.KNOWLEDGE_SAMPLED_LATE):
        fence.known = source.known
    order.counters.records += 1
    _file(source, fence)
    result[0] = fence
    return 0


cdef bint bound_elsewhere(StreamState* stream) noexcept nogil:
    """A per-thread default stream can be named in its own thread only."""
    return (stream.thread != 0 and stream.thread != xlogmem_this_thread()
            and not planted(defect.THREAD_STREAM_TRUSTED))


cdef int refuse_if_capturing(OrderState* order, StreamState* stream, FailureKind kind,
                             Failure* failure) except -1 nogil:
    """Fail with `kind` while a graph is being captured on the stream.  Releases the lock."""
    cdef bint capturing = False
    cdef int failed
    stream.busy += 1
    order.lock.unlock()
    failed = stream_is_capturing(stream.handle, &capturing, failure)
    order.lock.lock()
    stream.busy -= 1
    if failed or not capturing:
        return failed
    failure.kind = kind
    failure.stream = stream.number
    return 1


cdef int refuse_captures(OrderState* order, bint own, Failure* failure) except -1 nogil:
    """cuCtxSynchronize fails during any capture in the context and spoils it (seen on an H200, in relaxed mode too).
    Look at the streams that exist (`own`: at our own only); captures on others cannot be seen.  Releases the lock."""
    cdef StreamState* stream
    cdef int refused = 0
    cdef size_t i
    order.in_flight += 1                        # nobody is deleted meanwhile
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if not stream.alive or <bint>stream.raw or (own and stream.driver_id) or bound_elsewhere(stream):
            continue
        if refuse_if_capturing(order, stream, SOURCE_IS_CAPTURING, failure) and failure.kind == SOURCE_IS_CAPTURING:
            refused = 1                         # a stream that cannot be asked is not known to capture
            break
    order.in_flight -= 1
    return refused


cdef int synchronize_all(OrderState* order, Failure* failure, bint own=False) except -1 nogil:
    """The last resort: the host waits for the whole context, and knows every position taken before.  Releases the
    lock."""
    cdef vector[uint64_t] positions
    cdef uint32_t i
    cdef int failed
    if refuse_captures(order, own, failure):
        return 1
    positions.resize(order.streams.size())
    for i in range(<uint32_t>order.streams.size()):
        positions[i] = order.streams[i].count
    order.lock.unlock()
    failed = context_synchronize(failure)
    order.lock.lock()
    if failed:
        return 1
    order.counters.host_waits += 1
    for i in range(<uint32_t>positions.size()):
        _raise_to(&order.host_known, i, positions[i])
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
    if fence != NULL:
        order.counters.covered += 1
    elif bound_elsewhere(source):
        return synchronize_all(order, failure)
    elif record_fence(order, source, &fence, failure):
        return 1
    fence.pins += 1
    if planted(defect.KNOWN_BEFORE_WAIT):
        _learn(&stream.known, source, fence)
    order.lock.unlock()
    failed = stream_wait(stream.handle, fence.event, failure)
    order.lock.lock()
    if not failed:
        order.counters.waits += 1
        _learn(&stream.known, source, fence)
    unpin(order, fence)
    return failed


cdef int order_from_afar(OrderState* order, StreamState* stream, StreamState* source, uint64_t position,
                         Failure* failure) except -1 nogil:
    """`order_after`, where nobody promised that the source still exists: as `host_waits_from_afar`."""
    if out_of_reach(order, stream, source, position):
        return synchronize_all(order, failure)
    return order_after(order, stream, source, position, failure)


cdef int host_waits_for(OrderState* order, StreamState* source, uint64_t position,
                        Failure* failure) except -1 nogil:
    """Return when the position is complete.  Releases the lock."""
    cdef Fence* fence
    cdef int failed
    if knows(order, NULL, source, position):
        return 0
    fence = covering(source, position)
    if fence == NULL:
        if bound_elsewhere(source):
            return synchronize_all(order, failure)
        if record_fence(order, source, &fence, failure):
            return 1
    fence.pins += 1
    order.lock.unlock()
    failed = event_synchronize(fence.event, failure)
    order.lock.lock()
    if not failed:
        order.counters.host_waits += 1
        _learn(&order.host_known, source, fence)
        if planted(defect.HOST_KNOWS_TOO_MUCH):
            _raise_to(&order.host_known, source.index, source.count)
    unpin(order, fence)
    return failed


cdef bint may_be_gone(StreamState* stream) noexcept nogil:
    """Nobody keeps the handle alive, and its owner may have destroyed the stream."""
    return stream.alive and stream.raw and stream.thread == 0


cdef bint out_of_reach(OrderState* order, StreamState* stream, StreamState* source, uint64_t position) noexcept nogil:
    """Would the host have to wait for the whole context, because the source may be gone and has no fence for this?"""
    return (may_be_gone(source) and not knows(order, stream, source, position)
            and covering(source, position) == NULL)


cdef int host_waits_from_afar(OrderState* order, StreamState* source, uint64_t position,
                              Failure* failure) except -1 nogil:
    """`host_waits_for` on somebody's stream that may be gone: without a fence that covers the position, the host waits
    for the whole context.  Releases the lock."""
    if out_of_reach(order, NULL, source, position):
        return synchronize_all(order, failure)
    return host_waits_for(order, source, position, failure)


cdef int ask_host(OrderState* order, StreamState* source, uint64_t position, Failure* failure) except -1 nogil:
    """Look, without waiting, whether the stream has come closer to the position; teach the host what is complete.

    The fence that is asked about is kept until it is complete: on a busy stream the fences of the ring are recorded
    again before they are.  One that is complete and too old for the position makes room for the next.  Releases the
    lock.
    """
    cdef Fence* fence
    cdef bint done = True
    cdef int failed = 0
    while done and not failed and not knows(order, NULL, source, position):
        done = False
        fence = source.probe
        if fence == NULL:
            fence = covering(source, position)
            if fence == NULL:
                if bound_elsewhere(source) or may_be_gone(source):
                    return 0
                if record_fence(order, source, &fence, failure):
                    return 1
            if source.probe == NULL:
                source.probe = fence
                fence.pins += 1
        fence.pins += 1
        order.lock.unlock()
        failed = event_is_done(fence.event, &done, failure)
        order.lock.lock()
        if done or (not failed and planted(defect.ASKED_IS_COMPLETE)):
            _learn(&order.host_known, source, fence)
            if source.probe == fence:
                source.probe = NULL
                fence.pins -= 1
        unpin(order, fence)
    return failed


cdef int refuse_capturing(OrderState* order, StreamState* stream, vector[Need]* needs,
                          Failure* failure) except -1 nogil:
    """Refuse while a stream that a fence would have to be recorded on is capturing: the event would belong to the
    graph.  Found out for all needs before anything is recorded or waited for.  Releases the lock."""
    cdef StreamState* source
    cdef size_t i
    for i in range(needs.size()):
        source = needs[0][i].source
        if (bound_elsewhere(source) or knows(order, stream, source, needs[0][i].position)
                or covering(source, needs[0][i].position) != NULL):
            continue
        if refuse_if_capturing(order, source, SOURCE_IS_CAPTURING, failure):
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
            if i > 0 and i + 1 == needs.size() and planted(defect.LAST_WAIT_SKIPPED):
                continue
            source = needs[0][i].source
            position = needs[0][i].position
            if stream == NULL:
                if host_waits_for(order, source, position, failure):
                    return 1
            elif order_after(order, stream, source, position, failure):
                return 1
    return 0


# ---------------------------------------------------------------------------------------------- registrations
cdef StreamState* own_stream(OrderState* order, cy.CUstream handle) noexcept nogil:
    """The stream of the pool that has this handle, which lives as long as the runtime; NULL if none has."""
    cdef size_t i
    for i in range(order.streams.size()):
        if order.streams[i].handle == handle and order.streams[i].driver_id == 0:
            return order.streams[i]
    return NULL


cdef StreamState* register_stream(OrderState* order, cy.CUstream handle, Discipline discipline) noexcept nogil:
    """A new registration, in the place of a dead stream that nobody needs any more if there is one."""
    cdef StreamState* stream = new StreamState()
    cdef StreamState* dead
    cdef size_t i
    stream.handle = handle
    stream.discipline = discipline
    stream.alive.store(True)
    stream.number = order.registrations
    order.registrations += 1
    for i in range(order.streams.size() if order.in_flight == 0 else 0):
        dead = order.streams[i]
        if (not dead.alive and dead.last == NULL and dead.probe == NULL and dead.blocks == 0 and dead.busy == 0
                and dead.handles.load() == 0 and not dead.listed and not is_heir(order, dead)):
            stream.index = dead.index
            stream.count = dead.count           # positions of the dead one stay what they were: known to the host
            if planted(defect.PLACE_COUNTS_ANEW):
                stream.count = 0
            order.streams[i] = stream
            del dead
            return stream
    stream.index = order.streams.size()
    order.streams.push_back(stream)
    return stream


cdef int change_discipline(OrderState* order, StreamState* stream, Discipline discipline,
                           Failure* failure) except -1 nogil:
    """Other rules for what is queued there from now on; nothing, if they are the same.

    Behind the older entries of the stream work may be hidden that the old discipline allowed: all of it was queued
    before this position, to which whoever looks at such an entry raises it.  The context is current.  Releases the
    lock.
    """
    cdef Failure ignored
    cdef Fence* fence
    if stream.alive and stream.discipline == discipline:
        return 0
    if not stream.alive or stream.windows:
        failure.kind = STREAM_IS_IN_USE if stream.alive else STREAM_IS_DEAD
        failure.stream = stream.number
        return 1
    if not planted(defect.CHANGE_FORGETS_HIDDEN):
        stream.hidden = touch(stream)
        order.changes += 1
    stream.discipline = discipline
    if stream.raw and not bound_elsewhere(stream):      # the fences that there are do not cover the raised entries
        order.in_flight += 1
        record_fence(order, stream, &fence, &ignored)   # one that cannot be recorded now is when it is needed
        order.in_flight -= 1
    return 0


cdef bint is_heir(OrderState* order, StreamState* stream) noexcept nogil:
    cdef size_t i
    for i in range(order.streams.size()):
        if order.streams[i].heir == stream:
            return True
    return False


cdef int unregister_stream(OrderState* order, StreamState* stream, StreamState* heir,
                           Failure* failure) except -1 nogil:
    """Record a last fence, which answers for every position of the stream from now on.  Releases the lock.

    Refused while a window or a call is open on the stream: its launch would be queued after the last fence.  Everything
    is looked at again after the fence was recorded; on a failure the stream simply stays registered.
    """
    cdef Fence* fence = NULL
    if may_die(stream, heir, failure):
        return 1
    if not planted(defect.LAST_TAKES_NO_POSITION):
        touch(stream)                           # hidden work so far: fills of fresh blocks, opaque work
    if bound_elsewhere(stream):
        return bury_stream(order, stream, heir, failure)
    if record_fence(order, stream, &fence, failure):
        if failure.kind == SOURCE_IS_CAPTURING:
            failure.kind = STREAM_IS_CAPTURING
        return 1
    if may_die(stream, heir, failure) and not planted(defect.UNREGISTER_LOOKS_ONCE):
        return 1
    if fence.position < stream.count and not planted(defect.LATE_POSITION_LOST):
        failure.kind = STREAM_IS_IN_USE
        failure.stream = stream.number
        return 1
    fence.pins += 1                             # the tombstone's, until the host has seen the fence complete
    stream.last = fence
    die(order, stream, heir)
    return 0


cdef int bury_stream(OrderState* order, StreamState* stream, StreamState* heir, Failure* failure) except -1 nogil:
    """Unregister a stream that cannot be recorded on: its owner destroyed it, or it is another thread's default stream.
    The host waits for the whole context.  Releases the lock."""
    cdef uint64_t position
    if may_die(stream, heir, failure):
        return 1
    position = touch(stream)
    if synchronize_all(order, failure) or may_die(stream, heir, failure):
        return 1
    if position < stream.count:
        failure.kind = STREAM_IS_IN_USE
        failure.stream = stream.number
        return 1
    die(order, stream, heir)
    return 0


cdef int bury_foreign(OrderState* order, Failure* failure) except -1 nogil:
    """At the end of a runtime: the foreign streams may be destroyed already, so none of them is touched again; the host
    waits for the whole context once.  Releases the lock."""
    cdef StreamState* stream
    cdef bint any = False
    cdef size_t i
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if stream.driver_id and stream.alive:
            touch(stream)
            any = True
    if not any:
        return 0
    if synchronize_all(order, failure, True):
        return 1
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if stream.driver_id and stream.alive:
            die(order, stream, order.streams[0])
    return 0


cdef int may_die(StreamState* stream, StreamState* heir, Failure* failure) noexcept nogil:
    if not stream.alive or not heir.alive or stream == heir:
        failure.kind = STREAM_IS_DEAD
        failure.stream = heir.number if stream.alive else stream.number
        return 1
    if (stream.windows or stream.busy) and not planted(defect.UNREGISTERED_IN_USE):
        failure.kind = STREAM_IS_IN_USE
        failure.stream = stream.number
        return 1
    return 0


cdef void die(OrderState* order, StreamState* stream, StreamState* heir) noexcept nogil:
    cdef Fence* fence
    stream.alive.store(False)
    stream.heir = heir
    while not stream.ring.empty():
        fence = stream.ring.back()
        stream.ring.pop_back()
        fence.filed = False
        if fence.pins == 0:
            discard(order, fence)


cdef int settle(OrderState* order, StreamState* stream, bint blocking, Failure* failure) except -1 nogil:
    """Let go of a tombstone once the host has seen it complete: nobody has to wait for it any more.  Releases the
    lock."""
    cdef Fence* fence
    cdef int failed
    if stream.alive or stream.last == NULL:
        return 0
    order.in_flight += 1
    if blocking:
        failed = host_waits_for(order, stream, stream.count, failure)
    else:
        failed = ask_host(order, stream, stream.count, failure)
    if not failed and stream.last != NULL and (
            knows(order, NULL, stream, stream.count) or planted(defect.TOMBSTONE_DROPPED_EARLY)):
        fence = stream.last
        stream.last = NULL
        unpin(order, fence)
    order.in_flight -= 1
    return failed
