# Programs: steps that allocate, free, launch and synchronize.  `Allocator.program` runs them.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint64_t, uintptr_t
from libcpp.vector cimport vector

from xlogmem.native cimport xlogmem_error, xlogmem_upstream


cdef extern from "loops/programs.hpp" namespace "xlogmem_bench" nogil:
    cdef struct step:
        uint64_t operation
        uint64_t slot
        uint64_t bytes
        uint64_t stream
    cdef struct launch:
        cy.CUfunction function
        uint64_t argument
    int c_program "xlogmem_bench::program"(xlogmem_upstream, driver, launch, step*, size_t, void**, vector[uint64_t],
                                           uint64_t, size_t*, size_t*, uint64_t*, xlogmem_error*)


cdef class Slots:
    """The live allocations of a program, by number; programs that continue each other share them."""
    cdef vector[uint64_t] places

    def __init__(self, size_t count):
        self.places.resize(count)


cdef class Program:
    """Steps (operation, slot, bytes, stream); `function` and `argument`: the kernel that LAUNCH launches."""
    cdef vector[step] steps
    cdef Slots slots
    cdef launch kernel
    cdef readonly size_t refused

    def __init__(self, steps, Slots slots not None, uintptr_t function=0, uint64_t argument=0):
        cdef step one
        self.slots = slots
        for operation, slot, nbytes, stream in steps:
            one.operation, one.slot, one.bytes, one.stream = operation, slot, nbytes, stream
            if one.slot >= slots.places.size():
                raise ValueError(f"slot {slot} of {slots.places.size()}")
            self.steps.push_back(one)
        self.kernel.function = <cy.CUfunction>function
        self.kernel.argument = argument
