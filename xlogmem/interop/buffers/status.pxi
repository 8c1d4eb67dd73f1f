# Validity of the memory of a device.  `DeviceState` owns a `DeviceStatus` and changes it; buffers hold a
# `DeviceSnapshot` of the time when they were made, and compare the two without a lock.  Code that makes a buffer takes
# one snapshot and uses nothing else, so memory of one context never carries the epoch of another.

cimport cython

from libc.stdint cimport uint64_t

from xlogmem.errors import StaleBufferError
from xlogmem._base.failures cimport LOST
from xlogmem.blocks cimport Core, Runtime


@cython.final
@cython.no_gc
cdef class DeviceStatus:
    """The status of a device: the epoch of its context, and flags that say if it accepts operations."""

    def __cinit__(self, int device_id):
        self.device_id = device_id

    @property
    def epoch(self):
        """The number of times that the context was lost or replaced."""
        return self.current.load()

    @property
    def lost(self):
        """True if the context is lost and there is no new context yet."""
        return <bint>self.gone

    @property
    def shutting_down(self):
        """True if operations are not accepted any more."""
        return <bint>self.closed

    @property
    def in_use(self):
        """The number of pointers and mappings in use."""
        return self.accesses.load()

    @property
    def calls_under_way(self):
        """The number of fills and copies that began and have not returned."""
        return self.calls.load()

    def advance(self, bint lost):
        """Advance the epoch, because the context is lost, or there is a new context: earlier buffers are stale."""
        self.gone.store(lost)
        self.current.fetch_add(1)

    def close(self):
        """Accept no more operations, for good."""
        self.closed.store(True)

    def drop(self):
        """Note that the state that owns this status is gone."""
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
        """The reason why memory of this snapshot must not be accessed; NULL if it may be accessed."""
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
    """Mark the runtime's context as lost: every later call of the runtime fails."""
    core.state.marks.fetch_or(LOST)
