from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport vector
from xlogmem._base.failures cimport Failure
from xlogmem._base.owned cimport Owned
from xlogmem._core cimport Block, ByteRange, CoreState, Found, OpenUse, Window
from xlogmem._driver cimport EventPool
from xlogmem._foreign.named cimport Extent
from xlogmem._foreign.objects cimport StreamRegistry
from xlogmem._order cimport Ordering, StreamState
from xlogmem.resources.base cimport Allocation, DeviceMemoryResource, ResourceTable
from xlogmem.streams cimport Stream, StreamPool


cdef cppclass Export:
    # What a consumer has of a block until it releases it, from any thread, with or without the GIL.
    void* block                 # the DeviceBlock, held; NULL: nothing is exported (zero bytes)
    StreamState* stream         # where the consumer works; NULL: a stream without a known owner
    uint32_t access
    EventPool* events           # of `event`
    cy.CUevent event            # for the consumer to wait for; NULL: none
    void* shell                 # the structure that has the export, and how to delete it
    void (*destroy)(void* shell) noexcept nogil
    Export* next                # in the list of released exports


cdef enum Resolved:
    UNTRACKED                   # memory that is not tracked here
    TRACKED
    NOTHING                     # an array without elements: nothing to touch
    BEYOND                      # an array that begins in a tracked block, and is not inside of it
    READ_ONLY_HERE              # tracked, named by what says that it must not be written
    SEVERAL                     # a list, tuple or dict


cdef enum:
    RESERVE_WITH_GIL = 16       # windows


cdef class Core:
    cdef CoreState state
    cdef Window* windows[RESERVE_WITH_GIL]      # for the next recorders; a section guards these, the core has them too
    cdef int n_windows
    cdef readonly Ordering ordering
    cdef readonly StreamPool stream_pool
    cdef readonly DeviceMemoryResource resource
    cdef tuple others               # resources that allocations have named, as `state.others`; no collector empties it
    cdef StreamRegistry streams
    cdef object __weakref__
    cdef dict adoptions             # by generation: memory that is tracked until its owner ends
    cdef uint64_t accessible        # to other devices, by their numbers: all that the resource hands out
    cdef bint owners_live           # at its end: the owners of foreign streams are held, and no collector ends them
    cdef int fail(self, Failure* failure, str what, str where=*) except -1
    cdef int fail_all(self, vector[Failure]* failures, str what) except -1
    cdef int drop_owners(self) except -1
    cdef int warn_of_eviction(self) except -1
    cdef Stream stream_of(self, object stream)
    cdef Stream stream_for_use(self, object stream)
    cdef Stream owned_stream(self, object handle)
    cdef Stream writer_of(self, DeviceBlock block)
    cdef bint find(self, uint64_t ptr, Found* found) noexcept
    cdef bint find_held(self, uint64_t ptr, Found* found) noexcept
    cdef int label(self, Allocation* wanted, str tag, int depth) except -1
    cdef ResourceTable* known_table(self, object resource) noexcept
    cdef ResourceTable* table_of(self, object resource) except NULL
    cdef DeviceMemoryResource checked_resource(self, object given)
    cdef ResourceTable* bind_other(self, object given) except NULL
    cdef int add(self, DeviceMemoryResource resource, tuple others) except -1
    cdef int begin(self, StreamPool stream_pool, DeviceMemoryResource resource, str policy) except -1
    cdef DeviceMemoryResource resource_with(self, ResourceTable* table)
    cdef int free_dropped(self) except -1
    cdef bint find_from(self, uint64_t ptr, uint64_t last, Found* found) except -1
    cdef Resolved resolve(self, object what, Found* found, Extent* extent, str where) except? UNTRACKED
    cdef Resolved resolve_named(self, object what, Found* found, Extent* extent, str where) except? UNTRACKED
    cdef Resolved find_extent(self, Extent* extent, Found* found) except? UNTRACKED
    cdef bint has_ended(self, uint64_t generation) except -1
    cdef BlockId identity(self, uint64_t ptr, uint64_t generation, uint32_t slot, Stream stream)
    cdef int cover_export(self, Stream consumer) except -1
    cdef int export_block(self, DeviceBlock block, StreamState* stream, bint write, Export* export) except -1
    cdef bint is_named_in_use(self, DeviceBlock block, ByteRange* part, OpenUse* use)
    cdef void find_open_use(self, DeviceBlock block, ByteRange* part, OpenUse* use) noexcept
    cdef bint export_in_use(self, DeviceBlock block, ByteRange* part, OpenUse* use, Export* export) except -1
    cdef tuple _bytes(self, bint query)


cdef class Runtime(Core):
    cdef BlockId find_one(self, object what, str where)
    cdef BlockId identity_at(self, uint64_t address, uint64_t generation)
    cdef Resolved _identify(self, object what, Found* found) except? UNTRACKED


cdef object resolver_of(object what)
cdef object contents_of(object what)
cdef object for_each(object what, object function, const char* where)
# Declared here so that the compiler does not put it, and its stack frame, into its only caller, which is a hot path.
cdef int fail_allocation(Core core, Failure* failure, object nbytes, Stream stream, object resource) except -1
cdef DeviceBlock adopt_device_range(Core core, uint64_t ptr, size_t nbytes, object stream, object owner, str tag,
                                    bint host_accessible=*, bint only_tracked=*)
cdef int adopt_while_owned(Core core, object owner, Extent* extent, Stream home, Found* found) except -1
cdef int refuse_freed(DeviceBlock block) except -1
cdef int flags_of(object access) except 0
cdef str described(Core core, uint64_t generation, str name)
cdef str describe_beyond(Found* found, Extent* extent)


cdef class DeviceBlock:
    cdef readonly Core core
    cdef Block* block
    cdef Owned[Block] owned     # the same, until it is freed; of another handle's block nothing
    cdef readonly Stream stream
    cdef readonly str tag
    cdef readonly uint64_t generation
    cdef uint64_t address       # 0: it has no bytes; `ptr` is this, as long as there is memory
    cdef readonly size_t nbytes


cdef class BlockId:
    cdef Ordering ordering
    cdef readonly uint64_t ptr
    cdef readonly uint64_t generation
    cdef readonly Stream alloc_stream
    cdef readonly int device_id
    cdef uint32_t slot


cdef class BlockView:
    # A part of a block; `Buffer` is one.
    cdef readonly Core core
    cdef DeviceBlock block      # None: zero bytes, or released
    cdef DeviceBlock held(self)
    cdef int refuse_stale(self) except -1
    cdef bint find_range(self, DeviceBlock block, ByteRange* found) noexcept


cdef void release_export(Export* export) noexcept nogil
