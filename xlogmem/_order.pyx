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

from xlogmem._cpp cimport check, larger
from xlogmem._driver cimport (
    context_synchronize,
    event_is_done,
    event_record,
    event_synchronize,
    give_event,
    stream_is_capturing,
    stream_wait,
    take_event,
)
from xlogmem._failures cimport (
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    STREAM_IS_DEAD,
    STREAM_IS_IN_USE,
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
                discard_locked(&self.state, stream.probe)
            for k in range(stream.ring.size()):
                discard_locked(&self.state, stream.ring[k])
            if stream.last != NULL:
                discard_locked(&self.state, stream.last)
            del stream

include "order/fences.pxi"              # positions, clocks, events on streams
include "order/waits.pxi"               # a stream, or the host, is ordered after a position
include "order/registrations.pxi"       # streams come, change and go
