"""The ordering of streams, below everything that owns memory.

This room answers one question: how to order stream T after position n of stream S, as cheaply as possible.

position
    ``(S, n)`` stands for all work filed on S up to its n-th position.  It is taken *after* the work was queued, so any
    event recorded on S from then on covers it.  Taking one makes no driver call: a counter goes up (`advance`).
unrecorded work
    Where work may have been queued on S without a record, the caller takes a new position of S for the work.  No older
    fence covers a new position and no clock has it: that is the whole rule.
fence
    An event with the position that it covers and the clock of its stream.  A stream keeps a small ring of fences and
    records their events again and again: a queued wait holds the state that the event had when the wait was queued.  A
    fence that a call uses while the lock is released is pinned, and is not recorded again until the call is done.
clock
    A vector clock: for each stream the newest position that T is ordered after already, raised only after the driver
    accepted the wait, and transitive: waiting for S's fence also merges the clock that S had.  The host has a clock
    too.

A stream may change its discipline.  All unrecorded work that the old discipline allowed was queued before the position
that the change takes (``unrecorded_until``), and older entries of the stream count as that position.

An unregistered stream leaves a tombstone: a last fence that covers everything filed on the stream.  Whatever has to be
ordered after the dead stream waits for that fence; once the host has seen the fence complete, no such wait is needed,
and the next registration gets the stream's index.  It goes on counting where the dead stream stopped, so old positions
keep their meaning.  A stream that was found destroyed has no last fence: only its newest fence is left, and where
something has to be ordered after a position that this fence does not cover, the host waits for the context.

A stream may be *remote*: on another device, where it uses memory of this device.  Its events belong to the context of
the other device, and calls on its handle are made in that context.  Any stream may wait for any event, so all other
rules are the same.

Under the lock no driver call is made, the GIL is not acquired and no Python object is touched.  Functions that need the
driver drop the lock around the call (their names end in ``_unlocks``) and hold it again before they touch pins, counts
or rings; their statements about the state are true again only when they return.  `StreamState` objects are never moved,
and are freed only while no operation is in flight that may hold one.

The rules are in docs/ordering.md; `order_after_unlocks` is its section "order T after (S, n)".
"""

import weakref

cimport cython

from xlogmem._base.locks cimport mutex
from xlogmem._driver cimport LEAF_LOCK, OUTER_LOCK, forget_at_forks, process_is_closing, take_at_forks
from xlogmem.observe._history cimport marked


__all__ = ["Ordering", "thread_number"]

cdef enum:
    RING = 4                    # fences that a stream keeps; more only while all are in use
    SETTLED = 4                 # tombstones that are queried where a stream is registered or unregistered
    PAUSE = 50                  # microseconds between two looks at a call of another thread
    UNFENCED = 64               # dead streams with positions that no fence covers, before the host waits for them

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int)

cdef extern from *:
    """
    #include <cstdint>
    #include <map>
    #include <mutex>
    #include <pthread.h>
    // A number for each thread, never used again; the system reuses its thread ids.
    using xlogmem_alive = std::map<uint64_t, pthread_t, std::less<uint64_t>,
                                   xlogmem_allocator<std::pair<const uint64_t, pthread_t>>>;
    struct xlogmem_threads { xlogmem_mutex lock; uint64_t last = 0; xlogmem_alive alive; };
    static xlogmem_threads* xlogmem_all = xlogmem_make_new<xlogmem_threads>();  // threads may outlive the statics
    struct xlogmem_thread {
        uint64_t number;
        xlogmem_thread() {
            std::lock_guard<xlogmem_mutex> guard(xlogmem_all->lock);
            xlogmem_all->alive[number = ++xlogmem_all->last] = pthread_self();
        }
        ~xlogmem_thread() {
            std::lock_guard<xlogmem_mutex> guard(xlogmem_all->lock);
            xlogmem_all->alive.erase(number);
        }
    };
    static uint64_t xlogmem_this_thread() {
        thread_local xlogmem_thread thread;
        return thread.number;
    }
    static uint64_t xlogmem_ident_of_thread(uint64_t number) {
        std::lock_guard<xlogmem_mutex> guard(xlogmem_all->lock);
        const auto found = xlogmem_all->alive.find(number);
        return found == xlogmem_all->alive.end() ? 0 : static_cast<uint64_t>(found->second);
    }
    static thread_local bool xlogmem_may_not_sync = false;
    static bool xlogmem_forbid_sync(bool forbidden) {
        bool before = xlogmem_may_not_sync;
        xlogmem_may_not_sync = forbidden;
        return before;
    }
    static thread_local int xlogmem_driver_calls = 0;   // in which this thread is, for a callback that is run there
    static thread_local void* xlogmem_watch = nullptr;  // what it is looking at: see order/context.pxi
    """
    cdef cppclass xlogmem_threads:
        mutex lock
    xlogmem_threads* xlogmem_all
    int xlogmem_driver_calls
    void* xlogmem_watch
    uint64_t xlogmem_this_thread() noexcept nogil
    uint64_t xlogmem_ident_of_thread(uint64_t number) noexcept nogil
    bint xlogmem_forbid_sync(bint forbidden) noexcept nogil
    bint xlogmem_may_not_sync


take_at_forks(&xlogmem_all.lock, LEAF_LOCK)


cdef uint64_t this_thread() noexcept nogil:
    return xlogmem_this_thread()


def thread_number():
    """The number by which a history names this thread."""
    return <uint32_t>current_thread()


cdef uint64_t ident_of_thread(uint64_t number) noexcept nogil:
    """The `threading.get_ident` of that thread; 0 if the thread has ended."""
    return xlogmem_ident_of_thread(number)


cdef bint thread_is_alive(uint64_t number) noexcept nogil:
    return xlogmem_ident_of_thread(number) != 0


cdef bint forbid_context_sync(bint forbidden) noexcept nogil:
    """Forbid (or allow) waits for the whole context in this thread, from now on.  Returns the former setting."""
    return xlogmem_forbid_sync(forbidden)


cdef atomic[uint64_t] devices_used          # by runtimes of this process, ever: by their numbers


cdef bint has_several_devices() noexcept nogil:
    """True if the process has made runtimes for more than one device."""
    cdef uint64_t used = devices_used.load()
    return used & (used - 1) != 0


@cython.final
@cython.no_gc
cdef class Ordering:
    """The streams that one runtime knows, and the events between them.  `StreamPool` makes it, not users."""

    def __cinit__(self, Context context not None):
        self.context = context
        self.remote_contexts = []
        self.state.context = context.handle
        self.state.events = &context.events
        self.state.ring = RING
        self.state.policy = ADAPTIVE
        self.state.lost = NULL
        self.state.mark = next_mark(context.device_id)
        take_at_forks(&self.state.lock, OUTER_LOCK)
        list_order(&self.state)

    def __dealloc__(self):
        cdef StreamState* stream
        cdef size_t i, k
        with nogil:
            unlist_order(&self.state)                   # other runtimes look at these streams before they wait
            if not process_is_closing():
                destroy_own(&self.state)
        forget_at_forks(&self.state.lock)
        discard_released(&self.state)
        for i in range(self.state.streams.size()):
            stream = self.state.streams[i]
            if stream.probe != NULL and stream.probe != stream.last and not stream.probe.in_ring:
                discard(stream.probe)
            for k in range(stream.ring.size()):
                discard(stream.ring[k])
            if stream.last != NULL:
                discard(stream.last)
            del stream

    cdef int begin_core(self, object core) except -1:
        """Attach the runtime core that uses the ordering.  A collector that ends the core runs the callback of this
        weak reference first, before it ends the owners of foreign streams."""
        self.core = weakref.ref(core, self.end_core)
        devices_used.fetch_or(<uint64_t>1 << (self.context.device_id & 63))
        hold_owners(&self.state)
        return 0

    @property
    def number(self):
        """The number by which a history names this ordering; a later ordering may get the same number."""
        return marked(self.state.mark)

    def end_core(self, reference=None):
        """Handle the end of the runtime core, which may drop the owners of foreign streams."""
        if reference is not None and self.core is reference:
            self.core = None                            # it has this method, and a collector leaves it that
        with nogil:
            release_owners(&self.state)


include "order/noted.pxi"          # waits in a recorded history
include "order/fences.pxi"         # positions, clocks, events on streams
include "order/unowned.pxi"        # streams that may be destroyed at any time
include "order/context.pxi"        # synchronization of the context, where no stream-level wait is possible
include "order/waits.pxi"          # waits of streams and of the host for a position
include "order/held.pxi"           # fences held by Python events
include "order/registrations.pxi"  # registration, change and end of streams
