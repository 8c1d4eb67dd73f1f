# Peaks of live bytes during spans of time: see core/peaks.pxi.

cimport cython

from libc.stdint cimport uint64_t

from xlogmem._core cimport begin_peak, end_peak, peak_of


@cython.final
@cython.no_gc_clear                      # the core has its address until `end`
cdef class PeakSpan:
    """A span of time that begins now and lasts until `end`, or until the span is dropped; `peak_bytes` is the peak of
    live bytes in it."""

    cdef Core core                          # None: it has ended
    cdef uint64_t peak

    def __cinit__(self, Core core not None):
        with nogil:
            begin_peak(&core.state, &self.peak)
        self.core = core

    def __dealloc__(self):
        self.end()

    def end(self):
        """End the span.  A second call does nothing."""
        cdef Core core = self.core
        if core is not None:
            with nogil:
                end_peak(&core.state, &self.peak)
            self.core = None                # not before: until then the figure changes under the lock

    @property
    def peak_bytes(self):
        """The peak of live bytes in the span."""
        cdef Core core = self.core
        cdef uint64_t peak
        if core is None:
            return self.peak
        with nogil:
            peak = peak_of(&core.state, &self.peak)
        return peak
