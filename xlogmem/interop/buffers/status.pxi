# Whether the memory of a device may be accessed.  `DeviceState` owns a `DeviceStatus` and changes it; buffers hold a
# `DeviceSnapshot`, which says when they were made, and compare the two without a lock.  Whatever makes a buffer takes
# one snapshot and uses nothing else, so memory of one context never carries the epoch of another.

cimport cython

from libc.stdint cimport uint64_t

from xlogmem.errors import StaleBufferError
from xlogmem._base.failures cimport LOST
from xlogmem.blocks cimport Core, Runtime


@cython.final
@cython.no_gc
cdef class DeviceStatus:
    """Whether a device accepts operations, and the epoch of its context."""

    def __cinit__(self, int ordinal):
        self.ordinal = ordinal

    @property
    def epoch(self):
        """How often the context was lost or replaced."""
        return self.current.load()

    @property
    def lost(self):
        """Whether the context is lost and there is no new one yet."""
        return <bint>self.gone

    @property
    def shutting_down(self):
        """Whether operations are not accepted any more."""
        return <bint>self.closed

    @property
    def in_use(self):
        """Pointers that are in use."""
        return self.accesses.load()

    @property
    def calls_under_way(self):
        """Fills and copies that began and have not returned."""
        return self.calls.load()

    def advance(self, bint lost):
        """The context is lost, or there is a new one: what was made before is stale."""
        self.gone.store(lost)
        self.current.fetch_add(1)

    def close(self):
        """Accept no more operations, for good."""
        self.closed.store(True)

    def drop(self):
        """The state that owns this status is gone."""
        self.dropped.store(True)


@cython.final
@cython.no_gc_clear                         # stale() needs both
cdef class DeviceSnapshot:
    """The runtime of a device and its epoch, taken in one step."""

    def __cinit__(self, DeviceStatus status not None, Runtime core not None, uint64_t epoch):
        self.status = status
        self.core = core
        self.epoch = epoch

    cdef const char* stale(self) noexcept:
        """Why memory of this snapshot must not be accessed, NULL if it may be."""
        cdef DeviceStatus status = self.status
        if status.dropped:
            return "device state dropped"
        if status.closed:
            return "device shutting down"
        if self.epoch != status.current.load():
            return "context lost" if status.gone else "context rebuilt"
        if self.core.state.marks.load() & LOST:
            return "context lost"
        return NULL

    cdef int refuse_stale(self) except -1:
        cdef const char* reason = self.stale()
        if reason != NULL:
            raise StaleBufferError((<bytes>reason).decode())
        return 0


def mark_lost(Core core not None):
    """Every later call of the runtime fails: its context is gone."""
    core.state.marks.fetch_or(LOST)
