from libc.stdint cimport uint32_t, uint64_t

from xlogmem._core cimport Block, CoreState, Found
from xlogmem._order cimport Ordering, StreamState
from xlogmem.resources.base cimport DeviceMemoryResource
from xlogmem.streams cimport Stream, StreamPool


cdef class Core:
    cdef CoreState state
    cdef readonly Ordering ordering
    cdef readonly StreamPool stream_pool
    cdef readonly DeviceMemoryResource resource
    cdef object __weakref__
    cdef tuple _bytes(self)
    cdef StreamState* stream_of(self, Stream stream) except NULL
    cdef bint find(self, uint64_t ptr, Found* found) noexcept


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
    cdef readonly uint64_t ptr
    cdef readonly uint64_t generation
    cdef readonly Stream alloc_stream
    cdef readonly int device_ordinal
    cdef uint32_t slot
