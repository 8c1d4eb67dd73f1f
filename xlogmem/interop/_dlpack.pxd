# DLPack's structs, and capsules of both kinds; see _dlpack.pyx.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from xlogmem.blocks cimport Export
from xlogmem.interop._layout cimport ArrayLayout

cdef enum:
    CPU = 1                     # DLDeviceType
    CUDA = 2
    CUDA_HOST = 3               # page-locked
    CUDA_MANAGED = 13
    READ_ONLY = 1               # flags of the versioned struct
    COPIED = 2
    MOST_DIMENSIONS = 64


cdef struct DLDevice:
    int32_t device_type
    int32_t device_id


cdef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes


cdef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides            # in elements; NULL: contiguous, the last dimension fastest
    uint64_t byte_offset


cdef struct DLManagedTensor:
    DLTensor dl_tensor
    void* manager_ctx
    void (*deleter)(DLManagedTensor* self) noexcept nogil


cdef struct DLVersion:
    uint32_t major
    uint32_t minor


cdef struct DLManagedTensorVersioned:
    DLVersion version
    void* manager_ctx
    void (*deleter)(DLManagedTensorVersioned* self) noexcept nogil
    uint64_t flags
    DLTensor dl_tensor


cdef cppclass DLPackExport:
    # What a consumer gets, in one piece: deleted when the release of the export is filed.
    DLManagedTensor plain
    DLManagedTensorVersioned versioned
    int64_t* extents            # the shape, then the strides: in the same piece of memory
    void* host                  # a copy in host memory; NULL: none
    Export base


cdef class DLPackImport:
    # A tensor that was taken out of a capsule: the producer's deleter runs when this is deallocated.
    cdef DLManagedTensor* plain
    cdef DLManagedTensorVersioned* versioned


cdef tuple pair_of(object what, str name)
cdef DLPackExport* new_export(ArrayLayout layout) except NULL
cdef void* make_host_copy(DLPackExport* export, size_t nbytes) except NULL
cdef int fill_tensor(DLPackExport* export, ArrayLayout layout, void* data, DLDevice device) except -1
cdef object capsule_of(DLPackExport* export, bint versioned)
cdef DLTensor* peek_tensor(object capsule, bint* read_only) except NULL
cdef ArrayLayout tensor_layout(DLTensor* tensor, bint read_only)
cdef DLPackImport take_tensor(object capsule)
