# The address index; see _index.pyx.

from libc.stdint cimport uint64_t

from xlogmem._cpp cimport vector


cdef cppclass Chunk:
    vector[uint64_t] keys                   # base addresses, ascending
    vector[void*] values


cdef cppclass AddressIndex:
    vector[uint64_t] firsts                 # of each chunk, a key that is not above its smallest
    vector[Chunk*] chunks                   # in the order of their addresses, none empty


cdef void insert(AddressIndex* index, uint64_t key, void* value) noexcept nogil
cdef void erase(AddressIndex* index, uint64_t key) noexcept nogil
cdef void* floor_of(AddressIndex* index, uint64_t address) noexcept nogil
cdef void* successor_of(AddressIndex* index, uint64_t address) noexcept nogil
cdef void destroy(AddressIndex* index) noexcept nogil
