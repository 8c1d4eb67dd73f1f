# Peaks of live bytes, over several spans of time at once.
#
# The core raises one figure, `CoreState.peak_bytes`.  Whenever a span begins, ends or is read, that figure goes into
# all open spans and starts anew, so spans of different threads may overlap freely.

from xlogmem._base.cpp cimport check, larger


cdef inline void raise_peak_locked(CoreState* core) noexcept nogil:
    """Raise the peak after bytes became live, or were put into a cache, which may hand them out without the lock."""
    check(core.order.lock.held(), "the lock is held")
    core.peak_bytes = larger(core.peak_bytes, core.live_bytes + core.in_caches)


cdef void take_peak_locked(CoreState* core) noexcept nogil:
    """Put the peak since the last call into all spans."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    core.whole_peak = larger(core.whole_peak, core.peak_bytes)
    for i in range(core.peaks.size()):
        core.peaks[i][0] = larger(core.peaks[i][0], core.peak_bytes)
    core.peak_bytes = core.live_bytes + core.in_caches


cdef uint64_t peak_of(CoreState* core, uint64_t* peak) noexcept nogil:
    """Return the figure of a span (NULL: of the whole runtime) up to now."""
    cdef uint64_t found
    core.order.lock.lock()
    take_peak_locked(core)
    found = core.whole_peak if peak == NULL else peak[0]
    core.order.lock.unlock()
    return found


cdef void begin_peak(CoreState* core, uint64_t* peak) noexcept nogil:
    """Begin a span; NULL: the span of the whole runtime starts anew."""
    core.order.lock.lock()
    take_peak_locked(core)
    if peak == NULL:
        core.whole_peak = core.peak_bytes
    else:
        peak[0] = core.peak_bytes
        core.peaks.push_back(peak)
    core.order.lock.unlock()


cdef void end_peak(CoreState* core, uint64_t* peak) noexcept nogil:
    """End a span: its figure does not change any more."""
    cdef size_t i
    core.order.lock.lock()
    take_peak_locked(core)
    for i in range(core.peaks.size()):
        if core.peaks[i] == peak:
            core.peaks[i] = core.peaks.back()
            core.peaks.pop_back()
            break
    core.order.lock.unlock()
