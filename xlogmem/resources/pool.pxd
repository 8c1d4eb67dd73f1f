# The tables of a pool whose free memory carries its frontier; pool.pyx has the idea.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.locks cimport bell
from xlogmem._order cimport OrderState
from xlogmem.resources.base cimport DeviceMemoryResource, FrontierTable, ResourceTable
from xlogmem.streams cimport StreamPool

cdef enum:
    ALIGNMENT = 256                 # bytes; sizes and addresses are multiples of it
    COLUMNS = 32                    # size classes between a power of two and the next
    ROWS = 40                       # the first for sizes below COLUMNS * ALIGNMENT, then one for each power of two


cdef enum PairState:
    # Of a span and the one below it.
    UNPAIRED                        # at least one of them is not free
    PAIRED                          # both are free, and were not coalesced
    BLOCKED                         # so, and only the host could wait for one of them when that was last tried


cdef enum Demand:
    # What a span has to be for the stream that requests it.
    ANY
    REACHABLE                       # no host has to wait for it
    ORDERED                         # nothing has to wait for it


cdef enum Attempt:
    # To find memory in one way of several.
    NOT_FOUND
    FOUND
    FAILED


cdef struct Position:
    # One entry of a frontier.
    uint64_t position
    uint32_t stream                 # its index


cdef cppclass Span:
    # Neighbouring bytes of a chunk: in use, or free with one frontier.
    uint64_t ptr
    size_t nbytes
    Chunk* chunk
    Span* below                     # the neighbours, free or not; NULL at the ends of the chunk
    Span* above
    FreeList* free_list             # the list that it is on; NULL while it is in use
    Span* previous                  # in the ring of its size class, the newest first
    Span* next
    uint32_t count                  # of the frontier's positions; nearly always one
    Position first
    vector[Position] more           # the second and on
    uint64_t freed                  # number of the newest free in it; 0: none yet
    PairState pair
    Span* pair_before               # in the list of pairs that it is on
    Span* pair_after


cdef cppclass Chunk:
    # What came from upstream in one piece.
    uint64_t ptr
    size_t nbytes
    Span* first
    size_t in_use                   # spans that are handed out, or held by a call
    size_t index                    # in the pool's vector
    void* resource_block            # of an upstream that keeps frontiers itself


cdef cppclass FreeList:
    # Free spans by size: a ring for each class, and bits that say which rings are not empty.
    uint64_t rows
    uint32_t columns[ROWS]
    Span* newest[ROWS * COLUMNS]


cdef struct PoolCounters:
    uint64_t allocations
    uint64_t waited                 # allocations whose stream had to wait for former users of the memory
    uint64_t grown                  # chunks taken from upstream
    uint64_t released               # chunks returned to upstream
    uint64_t splits
    uint64_t joins


cdef struct FreeMemory:
    # Free neighbours count as one place, coalesced or not.
    size_t places
    size_t largest                  # bytes of the largest place
    size_t idle                     # bytes of chunks that are free as a whole


cdef struct PoolFigures:
    # What a pool has and has done, at one moment.
    PoolCounters counters
    FreeMemory found
    size_t size
    size_t used
    size_t peak
    size_t chunks


cdef cppclass PoolState:
    # Guarded by the lock of the runtime that has the pool.
    OrderState* order               # NULL until a runtime takes the pool
    ResourceTable* upstream
    FreeList* ready                 # spans without dependencies
    FreeList* mixed                 # spans with dependencies on several streams
    vector[FreeList*] free_lists    # by stream index: spans with a dependency on that stream alone; NULL until needed
    size_t streams_listed           # of these, how many are there
    vector[Chunk*] chunks
    Span* pairs                     # pairs of free neighbours that were not coalesced, the newest first
    Span* blocked_pairs             # those that are set aside: only the host could wait for them
    size_t blocked_count            # how many
    size_t requests_since_retry     # requests under pressure since blocked pairs were last tried again
    vector[Span*] spare             # `Span` objects to use again
    size_t size                     # bytes from upstream, those that are being requested included
    size_t maximum
    size_t initial                  # bytes that it begins with
    size_t chunk_size               # bytes that it expands by, at least; 0: see `next_chunk_size_locked`
    size_t least_ahead              # bytes up to which it always expands rather than let a stream wait; 0: it does not
    size_t most_ahead               # bytes up to which it does at most
    uint64_t refused_ahead          # 1 + chunks moved when upstream refused a chunk for this; 0: it did not
    size_t cache_size               # bytes that each stream may cache; `LARGEST_REQUEST`: see `set_cache_room_locked`
    size_t used                     # bytes handed out; with what streams have in caches
    size_t peak
    uint64_t frees                  # numbers the frees
    size_t unmarked                 # bytes freed since fences were recorded behind the frees; see marks.pxi
    bint crossed                    # memory went from one stream to another since then
    vector[uint64_t] newest         # by stream index: the newest position that a free depends on
    PoolCounters counters
    vector[uint64_t] callers        # threads inside of calls upstream
    bell call_ended                 # for allocations that found no memory meanwhile


cdef class PoolMemoryResource(DeviceMemoryResource):
    cdef PoolState state
    cdef FrontierTable functions
    cdef readonly DeviceMemoryResource upstream
    cdef StreamPool stream_pool     # of the runtime that has the pool; it keeps the streams alive


cdef void read_figures_locked(PoolState* pool, PoolFigures* figures) noexcept nogil
cdef dict figures_as_dict(PoolFigures* figures)
