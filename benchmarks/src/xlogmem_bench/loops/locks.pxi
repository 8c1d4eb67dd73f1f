# The lock of the runtime under contention, and beside it the system's mutex.

from libc.stdint cimport uint64_t

from xlogmem._base.locks cimport mutex


cdef extern from "loops/locks.hpp" namespace "xlogmem_bench" nogil:
    cdef struct contention:
        uint64_t took
        uint64_t sections
        uint64_t counted
        uint64_t fewest
        uint64_t median
        uint64_t p99
        uint64_t longest
    cdef cppclass system_mutex:
        system_mutex(bint)
    contention contend[Lock](Lock&, size_t, uint64_t, int, int) except +

LOCKS = ("xlogmem", "pthread", "pthread, adaptive")


def contended(str lock, size_t threads, uint64_t milliseconds, int inside=20, int outside=60):
    """Have threads take one of LOCKS over and over; the result has the fields of `contention` in loops/locks.hpp."""
    cdef uint64_t nanoseconds = milliseconds * 1000000
    cdef system_mutex* plain
    cdef contention found
    cdef mutex own
    if lock not in LOCKS:
        raise ValueError(f"the lock {lock!r} is none of {LOCKS}")
    if lock == "xlogmem":
        with nogil:
            found = contend(own, threads, nanoseconds, inside, outside)
        return found
    plain = new system_mutex(lock != "pthread")
    try:
        with nogil:
            found = contend(plain[0], threads, nanoseconds, inside, outside)
    finally:
        del plain
    return found
