# Lookups by address, in xlogmem's index and in its rivals.

from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

from xlogmem._core cimport CoreState, Found, find_by_address_locked
from xlogmem.blocks cimport Core


cdef extern from "loops/lookup.hpp" namespace "xlogmem_bench" nogil:
    cdef cppclass tree:
        void add(uint64_t)
    uint64_t search_sorted(vector[uint64_t], uint64_t*, size_t)
    uint64_t search_tree(tree, uint64_t*, size_t)


cdef class Bases:
    """The first addresses of blocks, in a sorted array and in a tree."""
    cdef vector[uint64_t] bases
    cdef tree* balanced

    def __cinit__(self, bases):
        self.balanced = new tree()
        for base in sorted(bases):
            self.bases.push_back(base)
            self.balanced.add(base)

    def __dealloc__(self):
        del self.balanced

    def sorted(self, Addresses wanted not None, size_t count):
        cdef uint64_t* addresses = wanted.first(count)
        cdef uint64_t took
        with nogil:
            took = search_sorted(self.bases, addresses, count)
        return took

    def tree(self, Addresses wanted not None, size_t count):
        cdef uint64_t* addresses = wanted.first(count)
        cdef uint64_t took
        with nogil:
            took = search_tree(self.balanced[0], addresses, count)
        return took


cdef class Addresses:
    """The addresses to look up."""
    cdef vector[uint64_t] addresses

    def __cinit__(self, addresses):
        for address in addresses:
            self.addresses.push_back(address)

    cdef uint64_t* first(self, size_t count) except NULL:
        if count > self.addresses.size():
            raise ValueError(f"{count} addresses are needed, there are {self.addresses.size()}")
        return self.addresses.data()


def lookups(Core runtime not None, Addresses wanted not None, size_t count):
    """Find the block of each address in an xlogmem runtime."""
    cdef uint64_t* addresses = wanted.first(count)
    cdef CoreState* core = &runtime.state
    cdef size_t missed = 0, i
    cdef uint64_t before, took
    cdef Found found
    with nogil:
        before = now()
        for i in range(count):
            core.order.lock.lock()
            if not find_by_address_locked(core, addresses[i], &found):
                missed += 1
            core.order.lock.unlock()
        took = now() - before
    if missed:
        raise LookupError(f"{missed} of {count} addresses are in no block")
    return took
