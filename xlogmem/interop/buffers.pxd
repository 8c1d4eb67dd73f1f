from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.cpp cimport atomic, flag
from xlogmem._core cimport ByteRange
from xlogmem._foreign.dltensor cimport DLManagedTensorVersioned, DLPackExchange
from xlogmem.blocks cimport BlockView, Core, DeviceBlock, Runtime
from xlogmem.interop._layout cimport ArrayLayout
from xlogmem.launch cimport LaunchRecorder
from xlogmem.streams cimport Stream


cdef class DeviceStatus:
    # Whether the memory of a device may be used: read at every access, without the state that owns it.
    cdef atomic[uint64_t] current       # the epoch
    cdef flag dropped
    cdef flag closed
    cdef flag gone                      # the context is lost and there is no new one yet
    cdef atomic[uint32_t] accesses      # pointers and mappings that are in use
    cdef atomic[uint32_t] calls         # fills and copies that are under way
    cdef readonly int device_id


cdef class DeviceSnapshot:
    # A device's runtime and epoch, taken in one step.
    cdef readonly Runtime core
    cdef readonly uint64_t epoch
    cdef DeviceStatus status
    cdef const char* stale(self) noexcept
    cdef int refuse_stale(self) except -1


cdef class ArrayView(BlockView):
    cdef DeviceSnapshot device          # when it was made
    cdef ArrayLayout layout
    cdef ArrayLayout former             # the layout before the release, which another thread may be reading; else None
    cdef bint consumed
    cdef object owner                   # of memory that lies in a block with another owner
    cdef const char* stale(self) noexcept
    cdef bint find_range(self, DeviceBlock block, ByteRange* found) noexcept
    cdef object owner_now(self)
    cdef int refuse_consumed(self) except -1
    cdef int refuse_writing(self, str what) except -1


cdef class Buffer(ArrayView):
    cdef Stream last_interface_stream   # its readers may not keep it alive
    cdef uint64_t _number               # 0: no token was made yet
    cdef object __weakref__
    cdef Stream resolve_stream(self, object stream)
    cdef LaunchRecorder new_recorder(self, Stream stream, int access)
    cdef LaunchRecorder new_hand_over(self, Stream stream, int access)


cdef class Pointer:
    cdef Buffer buffer
    cdef DeviceStatus status
    cdef LaunchRecorder recorder
    cdef bint entered
    cdef int leave(self) except -1


cdef class MappedMemory:
    cdef DeviceBlock block
    cdef object owner                   # of the buffer, as there
    cdef uint64_t start
    cdef size_t nbytes
    cdef bint writable


cdef class Mapping:
    cdef Pointer pointer                # the access, and the buffer
    cdef ArrayLayout layout             # of the buffer, when map() was called
    cdef object dtype
    cdef MappedMemory memory            # None afterwards
    cdef object array                   # which is given out; None before and afterwards
    cdef object inner                   # a weak reference to the array that all views refer to
    cdef int refuse_entered(self) except -1
    cdef object attach(self, ArrayLayout layout)
    cdef bint detach(self) except -1


cdef DLPackExchange exchange


cdef Stream stream_of_consumer(Core core)
cdef int managed_of_buffer(void* what, DLManagedTensorVersioned** tensor) except? -1
cdef Buffer copy_of(Buffer source, object stream)
cdef int copy_host(Buffer target, const void* host, object stream) except -1
cdef Buffer new_buffer(DeviceSnapshot device, DeviceBlock block, ArrayLayout layout, object owner)
