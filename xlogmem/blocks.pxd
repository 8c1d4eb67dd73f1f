from libc.stdint cimport uint32_t, uint64_t

from xlogmem._core cimport Block, CoreState, Found
from xlogmem._driver cimport Failure
from xlogmem._order cimport Ordering, StreamState
from xlogmem.resources.base cimport DeviceMemoryResource
from xlogmem.streams cimport Stream, StreamPool, StreamRegistry


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
    cdef int let_go(self) except -1
    cdef bint find(self, uint64_t ptr, Found* found, bint hold=?) noexcept


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
