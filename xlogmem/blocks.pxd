from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._core cimport Block, CoreState, Found
from xlogmem._driver cimport EventPool
from xlogmem._failures cimport Failure
from xlogmem._foreign cimport StreamRegistry
from xlogmem._order cimport Ordering, StreamState
from xlogmem.resources.base cimport DeviceMemoryResource
from xlogmem.streams cimport Stream, StreamPool


cdef cppclass Export:
    # What somebody else has of a block until he gives it back, from any thread, with or without the GIL.
    void* block                 # the DeviceBlock, held; NULL: nothing is lent (zero bytes)
    StreamState* stream         # where he works; NULL: nobody knows
    uint32_t access
    EventPool* events           # of `event`
    cy.CUevent event            # his to wait for; NULL: none
    void* shell                 # what holds the export, and how to delete it
    void (*destroy)(void* shell) noexcept nogil
    Export* next                  # in the list of exports that were given back


cdef class Core:
    cdef CoreState state
    cdef readonly Ordering ordering
    cdef readonly StreamPool stream_pool
    cdef readonly DeviceMemoryResource resource
    cdef StreamRegistry streams
    cdef object __weakref__
    cdef tuple _bytes(self)
    cdef BlockId identity(self, Found* found)
    cdef DeviceBlock handle(self, Block* block, Found* found, Stream stream, str tag)
    cdef dict opened            # (generation, stream id) -> recorders of prepare_block_use
    cdef Stream stream_of(self, object stream)
    cdef int resolve(self, object what, Found* found, str where) except -1
    cdef int fail(self, Failure* failure, str what) except -1
    cdef int drop_owners(self) except -1
    cdef bint find(self, uint64_t ptr, Found* found, bint hold=?) noexcept
    cdef int export_block(self, DeviceBlock block, StreamState* stream, bint write, Export* export) except -1
    cdef Stream owned_stream(self, object handle)
    cdef Stream writer_of(self, DeviceBlock block)


cdef object resolver_of(object what)


cdef class DeviceBlock:
    cdef readonly Core core
    cdef Block* block
    cdef bint released
    cdef readonly Stream stream
    cdef readonly str tag
    cdef readonly uint64_t generation
    cdef readonly uint64_t ptr
    cdef readonly size_t nbytes


cdef class BlockId:
    cdef Ordering ordering
    cdef readonly uint64_t ptr
    cdef readonly uint64_t generation
    cdef readonly Stream alloc_stream
    cdef readonly int device_ordinal
    cdef uint32_t slot


cdef class BlockView:
    # A part of a block that others hold; see buffers.pyx.
    cdef readonly Core core
    cdef DeviceBlock block      # None: zero bytes, or given up
    cdef int refuse_stale(self) except -1


cdef void release_export(Export* export) noexcept nogil
cdef int collect_exports() except -1
