# The most bytes that were live at a time, over several spans at once.
#
# The core raises one figure, `CoreState.peak_bytes`.  Whenever a span begins, ends or is looked at, that figure goes
# into all spans that are open, and begins anew: so spans of different threads may overlap as they like.

from xlogmem._base.cpp cimport check, larger


cdef inline void raise_peak_locked(CoreState* core) noexcept nogil:
    """Bytes became live, or were put into a cache, which may hand them out without the lock."""
    check(core.order.lock.held(), "the lock is held")
    core.peak_bytes = larger(core.peak_bytes, core.live_bytes + core.in_caches)


cdef void take_peak_locked(CoreState* core) noexcept nogil:
    """What was reached since the last call goes into all spans."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    core.whole_peak = larger(core.whole_peak, core.peak_bytes)
    for i in range(core.peaks.size()):
        core.peaks[i][0] = larger(core.peaks[i][0], core.peak_bytes)
    core.peak_bytes = core.live_bytes + core.in_caches


cdef uint64_t peak_of(CoreState* core, uint64_t* peak) noexcept nogil:
    """The figure of a span (NULL: of the whole runtime) up to now."""
    cdef uint64_t found
    core.order.lock.lock()
    take_peak_locked(core)
    found = core.whole_peak if peak == NULL else peak[0]
    core.order.lock.unlock()
    return found


cdef void begin_peak(CoreState* core, uint64_t* peak) noexcept nogil:
    """A new span; NULL: that of the whole runtime begins anew."""
    core.order.lock.lock()
    take_peak_locked(core)
    if peak == NULL:
        core.whole_peak = core.peak_bytes
    else:
        peak[0] = core.peak_bytes
        core.peaks.push_back(peak)
    core.order.lock.unlock()


cdef void end_peak(CoreState* core, uint64_t* peak) noexcept nogil:
    """The figure of the span stays what it is."""
    cdef size_t i
    core.order.lock.lock()
    take_peak_locked(core)
    for i in range(core.peaks.size()):
        if core.peaks[i] == peak:
            core.peaks[i] = core.peaks.back()
            core.peaks.pop_back()
            break
    core.order.lock.unlock()
