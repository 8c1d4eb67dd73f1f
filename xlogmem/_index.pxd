# The address index; see _index.pyx.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._cpp cimport vector

cdef enum:
    CHUNK = 32                              # a chunk is 1 KiB
    NO_STREAM = 0xFFFFFFFF


cdef struct Tracked:
    # What a lookup wants to know of a block, so that it need not touch the block itself.
    uint64_t generation
    size_t nbytes
    uint32_t slot
    uint32_t stream                         # its index; NO_STREAM: adopted without one


cdef struct Chunk:
    uint64_t keys[CHUNK]                    # base addresses, ascending
    Tracked values[CHUNK]


cdef struct Guide:
    uint64_t first                          # not above the smallest key of the chunk
    Chunk* chunk
    size_t size                             # keys in the chunk


cdef struct Place:
    uint64_t address
    size_t guides                           # not above the address: the last of them has the chunk
    size_t keys                             # of that chunk, not above the address
    bint good                               # nothing was moved since


cdef cppclass AddressIndex:
    Place last
    vector[Guide] guides                    # in the order of their addresses; no chunk is empty but the only one
    vector[Chunk*] spare
    vector[void*] slabs                     # what chunks are cut from


cdef Tracked* insert(AddressIndex* index, uint64_t key) noexcept nogil
cdef void erase(AddressIndex* index, uint64_t key) noexcept nogil
cdef Tracked* floor_of(AddressIndex* index, uint64_t address, uint64_t* key) noexcept nogil
cdef Tracked* successor_of(AddressIndex* index, uint64_t address, uint64_t* key) noexcept nogil
cdef void destroy(AddressIndex* index) noexcept nogil
