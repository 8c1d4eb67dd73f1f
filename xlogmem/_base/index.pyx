"""From an address to its block: a sorted map of base addresses, made for few cache misses.

The map is a sorted array, cut into chunks of at most CHUNK keys; an array of guides holds the first key of each chunk.
Both searches start where the address would be if the blocks were spread evenly (in a pool they nearly are), and the
value of a key is prefetched while the key is searched for.  With a million blocks a lookup waits about once for memory;
in a tree with a node for each block it would wait twenty times.  An insert or erase moves half a chunk.

The place of the last search is kept, and corrected by the insert or erase that follows: the lookups before an insert or
erase are for the same address, and memory that was freed last is often handed out next.

Nothing here takes a lock: the runtime's is held.
"""
from libc.stdlib cimport free
from libc.string cimport memcpy, memmove

from xlogmem._base.cpp cimport prefetch

cdef extern from *:
    """
    #include <cstdlib>
    #include <sys/mman.h>
    // Aligned to its size, so that the system can back a large one with a huge page: a lookup among a million blocks
    // then waits for the chunk alone, and not for the page table too.
    static void* xlogmem_slab(std::size_t bytes) {
        void* slab = std::aligned_alloc(bytes, bytes);
        if (slab == nullptr) xlogmem_out_of_memory();
        madvise(slab, bytes, MADV_HUGEPAGE);
        return slab;
    }
    """
    void* xlogmem_slab(size_t nbytes) noexcept nogil

cdef enum:
    SMALL_SLAB = 1 << 16                    # the first few
    LARGE_SLAB = 1 << 21                    # a huge page
    SMALL_SLABS = 8
    NEAR = 8                                # keys compared one by one before a binary search


cdef inline uint32_t lower_bound_of(AddressIndex* index, size_t place, uint64_t key) noexcept nogil:
    """The number of keys of a guide's chunk that are not above `key`, which is not below the first key of the guide."""
    cdef Guide* guide = &index.guides[place]
    cdef const uint64_t* keys = guide.chunk.keys
    cdef uint32_t size = <uint32_t>guide.size, low = 0, high = size, guess, half
    if size == 0:
        return 0
    if place + 1 < index.guides.size():     # one of many: keys near the guess are on fewer cache lines
        guess = <uint32_t>(<double>(key - guide.first) / <double>(guide[1].first - guide.first) * size)
        if guess >= size:
            guess = size - 1
        prefetch(&guide.chunk.values[guess])
        if keys[guess] <= key:
            low = guess + 1
            high = low + NEAR if low + NEAR < size else size
            while low < high and keys[low] <= key:
                low += 1
            if low < high or high == size:
                return low
            high = size
        else:
            high = guess
            low = high - NEAR if high > NEAR else 0
            while high > low and keys[high - 1] > key:
                high -= 1
            if high > low or low == 0:
                return high
            low = 0
    high -= low                             # keys that are left; this loop has no branch that is hard to predict
    while high > 1:
        half = high // 2
        low += half if keys[low + half - 1] <= key else 0
        high -= half
    return low + (high == 1 and keys[low] <= key)


cdef inline size_t guide_of(AddressIndex* index, uint64_t key) noexcept nogil:
    """The number of guides that are not above `key`."""
    cdef const Guide* guides = index.guides.data()
    cdef size_t count = index.guides.size(), low, high, step = 1
    if count == 0 or key < guides[0].first:
        return 0
    if key >= guides[count - 1].first:
        return count
    # Here guides[0] <= key < guides[count - 1].  Guess, then widen around the guess until it is enclosed.
    low = <size_t>(<double>(key - guides[0].first) / <double>(guides[count - 1].first - guides[0].first) * (count - 1))
    if low >= count - 1:
        low = count - 2
    if guides[low].first <= key:
        high = low + 1
        while guides[high].first <= key:
            low = high
            high = high + step if high + step < count - 1 else count - 1
            step *= 2
    else:
        high = low
        while guides[low].first > key:
            high = low
            low = low - step if low > step else 0
            step *= 2
    while high - low > 1:                   # guides[low] <= key < guides[high]
        step = (low + high) // 2
        if guides[step].first <= key:
            low = step
        else:
            high = step
    return low + 1


cdef void add_guide(AddressIndex* index, size_t place, uint64_t first, Chunk* chunk, size_t size) noexcept nogil:
    cdef size_t tail = index.guides.size() - place
    cdef Guide guide
    guide.first = first
    guide.chunk = chunk
    guide.size = size
    index.guides.push_back(guide)
    memmove(index.guides.data() + place + 1, index.guides.data() + place, tail * sizeof(Guide))
    index.guides[place] = guide


cdef Chunk* new_chunk(AddressIndex* index) noexcept nogil:
    cdef size_t nbytes, offset
    cdef char* slab
    cdef Chunk* chunk
    if index.spare.empty():
        nbytes = SMALL_SLAB if index.slabs.size() < SMALL_SLABS else LARGE_SLAB
        slab = <char*>xlogmem_slab(nbytes)
        index.slabs.push_back(slab)
        offset = nbytes
        while offset >= sizeof(Chunk):
            offset -= sizeof(Chunk)
            index.spare.push_back(<Chunk*>(slab + offset))
    chunk = index.spare.back()
    index.spare.pop_back()
    return chunk


cdef void split(AddressIndex* index, size_t place, uint64_t key) noexcept nogil:
    """Make room in a full chunk: its upper half moves to a chunk of its own.  If the key is above all others of the
    chunk nothing moves, so that chunks stay full where keys come in ascending order."""
    cdef Chunk* lower = index.guides[place].chunk
    cdef Chunk* upper = new_chunk(index)
    cdef size_t kept = CHUNK if key > lower.keys[CHUNK - 1] else CHUNK // 2
    cdef size_t moved = CHUNK - kept
    memcpy(upper.keys, lower.keys + kept, moved * sizeof(uint64_t))
    memcpy(upper.values, lower.values + kept, moved * sizeof(Tracked))
    index.guides[place].size = kept
    add_guide(index, place + 1, key if moved == 0 else upper.keys[0], upper, moved)


cdef void search(AddressIndex* index, uint64_t address) noexcept nogil:
    """Find the place of an address, and keep it."""
    cdef Place* place = &index.last
    place.address = address
    place.guides = guide_of(index, address)
    place.keys = lower_bound_of(index, place.guides - 1, address) if place.guides else 0
    place.good = True


cdef bint is_right(AddressIndex* index) noexcept nogil:
    """True if the kept place is the place that a search finds; for checks."""
    cdef Place kept = index.last
    search(index, kept.address)
    return kept.guides == index.last.guides and kept.keys == index.last.keys


cdef void make_room(AddressIndex* index, uint64_t key) noexcept nogil:
    """Make room for a key that is below all others, or whose chunk is full.  `last` is the key's place before and
    after."""
    cdef Place* place = &index.last
    if place.guides == 0:
        if index.guides.empty():
            add_guide(index, 0, key, new_chunk(index), 0)
        index.guides[0].first = key
        place.guides = 1
    if index.guides[place.guides - 1].size == CHUNK:
        split(index, place.guides - 1, key)
        search(index, key)


cdef void drop_chunk(AddressIndex* index, size_t place) noexcept nogil:
    """Remove a guide whose chunk has lost its last key."""
    cdef Guide* guide = &index.guides[place]
    index.spare.push_back(guide.chunk)
    memmove(guide, guide + 1, (index.guides.size() - place - 1) * sizeof(Guide))
    index.guides.pop_back()
    index.last.good = False


cdef void destroy(AddressIndex* index) noexcept nogil:
    """Free the host memory of all chunks."""
    cdef size_t i
    for i in range(index.slabs.size()):
        free(index.slabs[i])
    index.slabs.clear()
    index.spare.clear()
    index.guides.clear()
