# Baselines for uses: one event per use, and driver calls by hand.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from xlogmem.native cimport xlogmem_error


cdef extern from "loops/per_use_events.hpp" namespace "xlogmem_bench" nogil:
    int per_use_event_uses(per_use_events, use*, size_t, access*, uint64_t*, size_t, size_t, size_t, void**, size_t,
                           uint64_t*, xlogmem_error*)
    int c_frees "xlogmem_bench::per_use_event_frees"(per_use_events, size_t, void**, size_t, size_t, uint64_t*,
                                                     xlogmem_error*)

cdef extern from "loops/events.hpp" namespace "xlogmem_bench" nogil:
    cdef struct hand_step:
        uint64_t what
        uint64_t stream
        uint64_t event
    int by_hand(driver, driver_allocator, hand_step*, size_t, void**, cy.CUevent*, size_t, size_t, uint64_t*,
                xlogmem_error*)


cdef class PerUseEvents(Rounds):
    """The same rounds of uses under the per-use-event scheme."""
    cdef Allocator memory
    cdef Handles streams
    cdef vector[uint64_t] blocks
    cdef size_t nbytes

    def __init__(self, uses, streams, size_t blocks, size_t nbytes, size_t stride=0):
        cdef xlogmem_error error
        cdef uint64_t ptr
        super().__init__(uses, stride)
        self.memory = Allocator.per_use_events()
        self.streams = Handles(streams)
        self.nbytes = nbytes
        for _ in range(blocks):
            if self.memory.functions.allocate(self.memory.functions.self, nbytes, self.streams.streams[0], &ptr,
                                              &error):
                raise_error(&error)
            self.blocks.push_back(ptr)

    def settle(self):
        """Write all blocks on the first stream, so that it is ordered after every earlier use."""
        cdef cy.CUstream stream = <cy.CUstream>self.streams.streams[0]
        cdef xlogmem_error error
        cdef size_t i
        for i in range(self.blocks.size()):
            if (self.memory.scheme.prepare(stream, self.blocks[i], True, &error)
                    or self.memory.scheme.finish(stream, self.blocks[i], True, &error)):
                raise_error(&error)

    def close(self):
        """Free the blocks."""
        cdef xlogmem_error error
        while not self.blocks.empty():
            self.memory.functions.deallocate(self.memory.functions.self, self.blocks.back(), self.nbytes,
                                             self.streams.streams[0], &error)
            self.blocks.pop_back()

    def run(self, size_t rounds):
        cdef xlogmem_error error
        cdef uint64_t took = 0
        cdef int failed
        with nogil:
            failed = per_use_event_uses(self.memory.scheme[0], self.uses.data(), self.uses.size(),
                                        self.accesses.data(), self.blocks.data(), self.stride, self.span,
                                        self.blocks.size(), self.streams.streams.data(), rounds, &took, &error)
        if failed:
            raise_error(&error)
        return took


def per_use_event_frees(Allocator memory not None, streams, size_t nbytes, size_t readers, size_t rounds):
    """`frees_after_reads` under the per-use-event scheme."""
    cdef Handles on = Handles(streams)
    cdef xlogmem_error error
    cdef uint64_t took = 0
    cdef int failed
    with nogil:
        failed = c_frees(memory.scheme[0], nbytes, on.streams.data(), readers, rounds, &took, &error)
    if failed:
        raise_error(&error)
    return took


cdef class Hand:
    """Driver calls in a row, without any bookkeeping: steps (RECORD or WAIT, stream, event), or (TAKE or GIVE, stream,
    0) for a block of `nbytes`."""
    cdef driver_allocator memory
    cdef vector[hand_step] steps
    cdef vector[cy.CUevent] events
    cdef Handles streams
    cdef size_t nbytes

    def __init__(self, steps, streams, size_t nbytes=256):
        cdef hand_step one
        cdef cy.CUevent event
        cdef size_t events = 0
        self.memory.pool = new_pool()
        self.memory.calls = &calls
        self.streams = Handles(streams)
        self.nbytes = nbytes
        for what, stream, number in steps:
            one.what, one.stream, one.event = what, stream, number
            events = max(events, one.event + 1)
            self.steps.push_back(one)
        for _ in range(events):
            succeed(cy.cuEventCreate(&event, cy.CUevent_flags.CU_EVENT_DISABLE_TIMING), "cuEventCreate")
            self.events.push_back(event)

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.events.size()):
            cy.cuEventDestroy(self.events[i])
        if self.memory.pool != NULL:
            cy.cuMemPoolDestroy(self.memory.pool)

    def run(self, size_t rounds):
        cdef xlogmem_error error
        cdef uint64_t took = 0
        cdef int failed
        with nogil:
            failed = by_hand(calls, self.memory, self.steps.data(), self.steps.size(), self.streams.streams.data(),
                             self.events.data(), self.nbytes, rounds, &took, &error)
        if failed:
            raise_error(&error)
        return took
