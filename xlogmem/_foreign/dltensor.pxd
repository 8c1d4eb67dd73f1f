# DLPack's structs and names, as the standard has them.

from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #define XLOGMEM_PLAIN "dltensor"
    #define XLOGMEM_VERSIONED "dltensor_versioned"
    #define XLOGMEM_USED_PLAIN "used_dltensor"
    #define XLOGMEM_USED_VERSIONED "used_dltensor_versioned"
    #define XLOGMEM_EXCHANGE "dlpack_exchange_api"
    """
    const char* PLAIN "XLOGMEM_PLAIN"                       # names of capsules: not consumed yet, and consumed
    const char* VERSIONED "XLOGMEM_VERSIONED"
    const char* USED_PLAIN "XLOGMEM_USED_PLAIN"
    const char* USED_VERSIONED "XLOGMEM_USED_VERSIONED"
    const char* EXCHANGE "XLOGMEM_EXCHANGE"                 # of the capsule of a DLPackExchange


cdef enum:
    CPU = 1                     # DLDeviceType
    CUDA = 2
    CUDA_HOST = 3
    ROCM_HOST = 11
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


cdef struct DLPackExchangeHeader:
    DLVersion version
    DLPackExchangeHeader* older


cdef struct DLPackExchange:
    # What a type of arrays has as `__dlpack_c_exchange_api__`, since DLPack 1.3.  All but `allocate` are called with
    # the GIL.  Nothing here orders streams: the consumer works on the stream that `current_stream` gives.
    DLPackExchangeHeader header
    int (*allocate)(DLTensor* prototype, DLManagedTensorVersioned** made, void* context,
                    void (*fail)(void* context, const char* kind, const char* text) noexcept) noexcept nogil
    int (*managed_of)(void* array, DLManagedTensorVersioned** tensor) except? -1
    int (*array_of)(DLManagedTensorVersioned* tensor, void** array) except? -1
    int (*tensor_of)(void* array, DLTensor* tensor) except? -1      # for the time of the call; NULL: not offered
    int (*current_stream)(int32_t device_type, int32_t device_id, void** stream) except? -1
