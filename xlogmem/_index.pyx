"""Which block contains this address: a sorted map from base addresses, made for few cache misses.

A sorted array cut into chunks of at most CHUNK keys, with the first key of each chunk in an array of its own.  A lookup
is two binary searches, the first in memory that stays in the cache: with a million blocks some 11,000 keys.  An insert
or erase moves half a chunk on average.  A tree with a node for each block costs a cache miss for every level.

Nothing here takes a lock; the core holds its own.
"""
from libc.string cimport memmove

cdef enum:
    CHUNK = 128


cdef inline size_t position_of(vector[uint64_t]* keys, uint64_t key) noexcept nogil:
    """How many keys are not above `key`."""
    cdef const uint64_t* data = keys.data()
    cdef size_t low = 0, length = keys.size(), half
    while length > 0:
        half = length // 2
        if data[low + half] <= key:
            low += half + 1
            length -= half + 1
        else:
            length = half
    return low


cdef inline void put(Chunk* chunk, size_t place, uint64_t key, void* value) noexcept nogil:
    cdef size_t tail = chunk.keys.size() - place
    chunk.keys.push_back(key)
    chunk.values.push_back(value)
    memmove(&chunk.keys[0] + place + 1, &chunk.keys[0] + place, tail * sizeof(uint64_t))
    memmove(&chunk.values[0] + place + 1, &chunk.values[0] + place, tail * sizeof(void*))
    chunk.keys[place] = key
    chunk.values[place] = value


cdef void add_chunk(AddressIndex* index, size_t place, uint64_t first, Chunk* chunk) noexcept nogil:
    cdef size_t tail = index.chunks.size() - place
    index.firsts.push_back(first)
    index.chunks.push_back(chunk)
    memmove(&index.firsts[0] + place + 1, &index.firsts[0] + place, tail * sizeof(uint64_t))
    memmove(&index.chunks[0] + place + 1, &index.chunks[0] + place, tail * sizeof(Chunk*))
    index.firsts[place] = first
    index.chunks[place] = chunk


cdef void split(AddressIndex* index, size_t place) noexcept nogil:
    """The upper half of a chunk becomes a chunk of its own."""
    cdef Chunk* lower = index.chunks[place]
    cdef Chunk* upper = new Chunk()
    cdef size_t i
    for i in range(<size_t>CHUNK // 2, lower.keys.size()):
        upper.keys.push_back(lower.keys[i])
        upper.values.push_back(lower.values[i])
    lower.keys.resize(<size_t>CHUNK // 2)
    lower.values.resize(<size_t>CHUNK // 2)
    add_chunk(index, place + 1, upper.keys[0], upper)


cdef void insert(AddressIndex* index, uint64_t key, void* value) noexcept nogil:
    """Add a key that is not there."""
    cdef size_t place = position_of(&index.firsts, key)
    if place == 0:
        if index.chunks.empty():
            add_chunk(index, 0, key, new Chunk())
        index.firsts[0] = key
        place = 1
    if index.chunks[place - 1].keys.size() >= CHUNK:
        split(index, place - 1)
        place = position_of(&index.firsts, key)
    put(index.chunks[place - 1], position_of(&index.chunks[place - 1].keys, key), key, value)


cdef void erase(AddressIndex* index, uint64_t key) noexcept nogil:
    """Remove a key, if it is there."""
    cdef size_t chunk_place = position_of(&index.firsts, key), place, tail
    cdef Chunk* chunk
    if chunk_place == 0:
        return
    chunk_place -= 1
    chunk = index.chunks[chunk_place]
    place = position_of(&chunk.keys, key)
    if place == 0 or chunk.keys[place - 1] != key:
        return
    tail = chunk.keys.size() - place
    memmove(&chunk.keys[0] + place - 1, &chunk.keys[0] + place, tail * sizeof(uint64_t))
    memmove(&chunk.values[0] + place - 1, &chunk.values[0] + place, tail * sizeof(void*))
    chunk.keys.pop_back()
    chunk.values.pop_back()
    if chunk.keys.empty() and index.chunks.size() > 1:
        del chunk
        tail = index.chunks.size() - chunk_place - 1
        memmove(&index.firsts[0] + chunk_place, &index.firsts[0] + chunk_place + 1, tail * sizeof(uint64_t))
        memmove(&index.chunks[0] + chunk_place, &index.chunks[0] + chunk_place + 1, tail * sizeof(Chunk*))
        index.firsts.pop_back()
        index.chunks.pop_back()


cdef void* floor_of(AddressIndex* index, uint64_t address) noexcept nogil:
    """The value of the greatest key that is not above the address, NULL if there is none."""
    cdef size_t chunk_place = position_of(&index.firsts, address), place
    while chunk_place > 0:
        place = position_of(&index.chunks[chunk_place - 1].keys, address)
        if place > 0:
            return index.chunks[chunk_place - 1].values[place - 1]
        chunk_place -= 1                    # a chunk's smallest key may have been erased: its first is a lower bound
    return NULL


cdef void* successor_of(AddressIndex* index, uint64_t address) noexcept nogil:
    """The value of the smallest key above the address, NULL if there is none."""
    cdef size_t chunk_place = position_of(&index.firsts, address), place
    if chunk_place > 0:
        chunk_place -= 1
    while chunk_place < index.chunks.size():
        place = position_of(&index.chunks[chunk_place].keys, address)
        if place < index.chunks[chunk_place].keys.size():
            return index.chunks[chunk_place].values[place]
        chunk_place += 1
    return NULL


cdef void destroy(AddressIndex* index) noexcept nogil:
    cdef size_t i
    for i in range(index.chunks.size()):
        del index.chunks[i]
    index.chunks.clear()
    index.firsts.clear()
