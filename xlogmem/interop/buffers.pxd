from libc.stdint cimport uint32_t, uint64_t

from xlogmem._cpp cimport atomic, flag
from xlogmem._failures cimport Failure
from xlogmem.blocks cimport BlockView, Core, DeviceBlock, Export
from xlogmem.launch cimport LaunchRecorder
from xlogmem.streams cimport Stream


cdef class DeviceStatus:
    # How things stand with a device: what every access looks at, without the state that owns it.
    cdef atomic[uint64_t] current
    cdef flag dropped
    cdef flag closed
    cdef flag gone              # the context is lost and there is no new one yet
    cdef atomic[uint32_t] accesses
    cdef readonly int ordinal


cdef class Buffer(BlockView):
    cdef readonly uint64_t generation
    cdef readonly tuple shape
    cdef readonly tuple strides
    cdef readonly bint readonly
    cdef readonly size_t itemsize
    cdef readonly size_t size
    cdef DeviceStatus status
    cdef object kind            # DType
    cdef uint64_t ptr           # of the first element
    cdef object owner           # of memory that is part of a block somebody else owns
    cdef bint consumed
    cdef Stream last_interface_stream            # that an interface named last: whoever read it may not keep it
    cdef uint64_t _number       # 0: nobody asked yet
    cdef object __weakref__
    cdef const char* stale(self) noexcept
    cdef bint contiguous(self)
    cdef Buffer part(self, uint64_t ptr, tuple shape, tuple strides, object kind)
    cdef Stream resolve_stream(self, object stream)
    cdef tuple extent(self)
    cdef LaunchRecorder window(self, Stream stream, int access)
    cdef int wait(self, Stream stream, uint64_t position) except -1
    cdef int upload(self, const void* source, size_t nbytes, Stream stream, bint wait) except -1
    cdef int download(self, void* target, uint64_t source, size_t nbytes, Stream stream) except -1
    cdef uint64_t copy_host(self, void* host, uint64_t device, size_t nbytes, Stream stream, int access) except? 0
    cdef int refuse_writing(self, str what) except -1
    cdef int export_to(self, Stream stream, bint waits, Export* export) except -1
    cdef Stream interface_stream(self)
    cdef int fail(self, Failure* failure, str what) except -1
    cdef object host_capsule(self, bint versioned)


cdef class Pointer:
    cdef Buffer buffer
    cdef LaunchRecorder recorder
    cdef bint entered
    cdef int leave(self) except -1


cdef tuple c_strides(tuple shape, object itemsize)
cdef Buffer view_of(DeviceStatus status, Core core, uint64_t generation, DeviceBlock block, uint64_t ptr, tuple shape,
                    tuple strides, object kind, bint readonly, object owner)
