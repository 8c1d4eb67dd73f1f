# Work that shares nothing with other threads but the core.

from libc.stdint cimport uint64_t


cdef extern from "loops/compute.hpp" namespace "xlogmem_bench" nogil:
    uint64_t compute(uint64_t)


def compute_alone(uint64_t rounds):
    """Compute in registers for so many rounds of some 50 ns: what the machine leaves of a thread beside others."""
    with nogil:
        compute(rounds)
