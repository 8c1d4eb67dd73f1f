# The address index: a sorted map from base addresses to blocks; _base/index.pyx explains it.

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memmove

from xlogmem._base.cpp cimport check, checked, unlikely, vector

cdef enum:
    CHUNK = 32                              # a chunk is 1 KiB
    NO_STREAM = 0xFFFFFFFF


cdef struct Tracked:
    # The data of a block that a lookup needs, so that the lookup does not touch the block itself.
    uint64_t generation
    size_t nbytes
    uint32_t slot
    uint32_t stream                         # index of its stream; NO_STREAM: adopted without one


cdef struct Chunk:
    uint64_t keys[CHUNK]                    # base addresses, ascending
    Tracked values[CHUNK]


cdef struct Guide:
    uint64_t first                          # not above the smallest key of the chunk
    Chunk* chunk
    size_t size                             # keys in the chunk


cdef struct Place:
    # The place of an address, or the place where it would be inserted.
    uint64_t address
    size_t guides                           # how many are not above the address: the last of them has the chunk
    size_t keys                             # how many of that chunk are not above the address
    bint good                               # no guide was removed since


cdef cppclass AddressIndex:
    vector[Guide] guides                    # in the order of their addresses; a chunk is empty only if it is alone
    Place last                              # of the last search
    vector[Chunk*] spare                    # to use again
    vector[void*] slabs                     # host memory that chunks are cut from


cdef void search(AddressIndex* index, uint64_t address) noexcept nogil
cdef bint is_right(AddressIndex* index) noexcept nogil
cdef void make_room(AddressIndex* index, uint64_t key) noexcept nogil
cdef void drop_chunk(AddressIndex* index, size_t place) noexcept nogil
cdef void destroy(AddressIndex* index) noexcept nogil


# The operations of every allocation and free are inline.
cdef inline Place* place_of(AddressIndex* index, uint64_t address) noexcept nogil:
    """The place where the address is, or would be.  Valid until another address is inserted or erased."""
    if not index.last.good or index.last.address != address:
        search(index, address)
    else:
        check(not checked or is_right(index), "the kept place is where a search finds it")
    return &index.last


cdef inline Tracked* insert(AddressIndex* index, uint64_t key) noexcept nogil:
    """Add a key that is not there.  The caller fills in the value."""
    cdef Place* place = place_of(index, key)
    cdef Guide* guide
    cdef Chunk* chunk
    cdef size_t tail
    if unlikely(place.guides == 0 or index.guides[place.guides - 1].size == CHUNK):
        make_room(index, key)
    guide = &index.guides[place.guides - 1]
    chunk = guide.chunk
    tail = guide.size - place.keys
    if tail:
        memmove(chunk.keys + place.keys + 1, chunk.keys + place.keys, tail * sizeof(uint64_t))
        memmove(chunk.values + place.keys + 1, chunk.values + place.keys, tail * sizeof(Tracked))
    chunk.keys[place.keys] = key
    guide.size += 1
    place.keys += 1                         # still where the address is
    return &chunk.values[place.keys - 1]


cdef inline void erase(AddressIndex* index, uint64_t key) noexcept nogil:
    """Remove a key, if it is there."""
    cdef Place* place = place_of(index, key)
    cdef Guide* guide
    cdef Chunk* chunk
    cdef size_t tail
    if unlikely(place.keys == 0):           # the key itself would count
        return
    guide = &index.guides[place.guides - 1]
    chunk = guide.chunk
    if unlikely(chunk.keys[place.keys - 1] != key):
        return
    tail = guide.size - place.keys
    if tail:
        memmove(chunk.keys + place.keys - 1, chunk.keys + place.keys, tail * sizeof(uint64_t))
        memmove(chunk.values + place.keys - 1, chunk.values + place.keys, tail * sizeof(Tracked))
    guide.size -= 1
    place.keys -= 1                         # still where the address would be
    if unlikely(guide.size == 0) and index.guides.size() > 1:
        drop_chunk(index, place.guides - 1)


cdef inline Tracked* floor_of(AddressIndex* index, uint64_t address, uint64_t* key) noexcept nogil:
    """The greatest key that is not above the address, and its value; NULL if there is none."""
    cdef Place* place = place_of(index, address)
    cdef size_t guides = place.guides
    cdef size_t keys = place.keys
    cdef Chunk* chunk
    if guides and keys == 0:                # a chunk's smallest key may have been erased: its guide is a lower bound
        guides -= 1
        keys = index.guides[guides - 1].size if guides else 0
    if keys == 0:
        return NULL
    chunk = index.guides[guides - 1].chunk
    key[0] = chunk.keys[keys - 1]
    return &chunk.values[keys - 1]


cdef inline Tracked* next_above(AddressIndex* index, uint64_t address, uint64_t* key) noexcept nogil:
    """The smallest key above the address, and its value; NULL if there is none."""
    cdef Place* place = place_of(index, address)
    cdef size_t guide = place.guides - 1 if place.guides else 0
    cdef size_t keys = place.keys
    cdef Chunk* chunk
    if guide < index.guides.size() and keys == index.guides[guide].size:
        guide += 1
        keys = 0
    if guide >= index.guides.size() or index.guides[guide].size == 0:
        return NULL
    chunk = index.guides[guide].chunk
    key[0] = chunk.keys[keys]
    return &chunk.values[keys]
