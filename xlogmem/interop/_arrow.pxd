# Arrow's C device data interface: its structs, and capsules of them; see _arrow.pyx.

from libc.stdint cimport int32_t, int64_t

from xlogmem.blocks cimport DeviceBlock, Export
from xlogmem.interop._layout cimport ArrayLayout
from xlogmem.launch cimport LaunchRecorder

cdef enum:
    ARROW_DEVICE_CUDA = 2


cdef struct ArrowSchema:
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void (*release)(ArrowSchema* self) noexcept nogil
    void* private_data


cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray* self) noexcept nogil
    void* private_data


cdef struct ArrowDeviceArray:
    ArrowArray array
    int64_t device_id
    int32_t device_type
    void* sync_event            # a pointer to an event, or NULL: nothing to wait for
    int64_t reserved[3]


cdef class ArrowImport:
    # An array that was moved out of its capsule: released when this is deallocated.
    cdef ArrowDeviceArray array


cdef object schema_capsule(ArrayLayout layout)
cdef object array_capsule(ArrayLayout layout, int device_id, DeviceBlock block, LaunchRecorder recorder)
cdef ArrowSchema* peek_schema(object capsule) except NULL
cdef ArrowDeviceArray* peek_array(object capsule) except NULL
cdef object schema_dtype(ArrowSchema* schema)
cdef ArrayLayout array_layout(ArrowArray* array, object dtype)
cdef ArrowImport take_array(object capsule)
