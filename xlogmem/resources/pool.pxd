# A pool whose free memory carries its frontier; see pool.pyx.

from libc.stdint cimport uint32_t, uint64_t

from xlogmem._cpp cimport vector
from xlogmem._order cimport OrderState
from xlogmem.resources.base cimport DeviceMemoryResource, OrderedTable, ResourceTable
from xlogmem.streams cimport StreamPool

cdef enum:
    ALIGNMENT = 256                             # bytes: what sizes and addresses are multiples of
    COLUMNS = 32                            # size classes between a power of two and the next
    ROWS = 40                               # the first for less than COLUMNS grains, then one for each power of two


cdef struct Position:
    # One line of a frontier: a stream, by its place, and a position of it.
    uint64_t position
    uint32_t stream


cdef cppclass Span:
    # Neighbouring bytes of a chunk: handed out, or free with one frontier.
    uint64_t ptr
    size_t nbytes
    Chunk* chunk
    Span* below                             # the neighbours, whatever they are; NULL at the ends of the chunk
    Span* above
    FreeList* free_list                            # where it is on offer; NULL: somebody has it
    Span* previous                          # the ring of its size class, oldest last
    Span* next
    uint32_t count                          # of the frontier; nearly always one
    Position first
    vector[Position] more                       # the second and on
    bint paired                             # free, as is the span below: they were not joined, and are listed
    bint blocked                                # in the list of pairs that only the host could wait for when looked at last
    Span* pair_before
    Span* pair_after


cdef cppclass Chunk:
    # What came from upstream in one piece.
    uint64_t ptr
    size_t nbytes
    Span* first
    size_t taken                            # spans that are handed out, or held back by a call
    size_t place                            # in the pool's list
    void* resource_block                             # of an upstream that keeps frontiers itself


cdef cppclass FreeList:
    # Free spans by their size: a ring for each class, and bits that say which have some.
    uint64_t rows
    uint32_t columns[ROWS]
    Span* newest[ROWS * COLUMNS]


cdef struct PoolCounters:
    uint64_t allocations
    uint64_t waited                         # allocations whose stream had to wait for a former owner
    uint64_t grown                          # chunks taken from upstream
    uint64_t released                       # chunks given back
    uint64_t splits
    uint64_t joins


cdef cppclass PoolState:
    # Guarded by the lock of the runtime that has the pool.
    OrderState* order                       # NULL until a runtime takes the pool
    ResourceTable* upstream
    vector[FreeList*] free_lists                  # by stream: what that stream alone has to be waited for
    size_t streams_listed                          # streams that have a free_list
    FreeList* ready                          # what nobody has to wait for
    FreeList* mixed                            # what several streams have to be waited for
    vector[Chunk*] chunks
    Span* pairs                             # free neighbours that were not joined, the newest first
    Span* blocked_pairs                         # of these, what was found to be out of reach: set aside for a while
    size_t blocked                              # how many
    size_t requests_since_retry                            # requests since they were looked at
    vector[Span*] spare
    size_t size                             # bytes from upstream, those being asked for included
    size_t maximum
    size_t step                             # bytes of a chunk, at least; 0: what the pool has already
    size_t used                             # bytes handed out
    size_t peak
    PoolCounters counters


cdef class PoolMemoryResource(DeviceMemoryResource):
    cdef PoolState state
    cdef OrderedTable functions
    cdef readonly DeviceMemoryResource upstream
    cdef StreamPool stream_pool             # of the runtime that has the pool; it keeps the streams alive
    cdef size_t initial
    cdef dict figures(self)
