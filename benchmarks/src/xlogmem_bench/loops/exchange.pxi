# DLPack's exchange between functions in C, as a library uses it that is called with arrays.

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from xlogmem._foreign.dltensor cimport CUDA, EXCHANGE, VERSIONED, DLManagedTensorVersioned, DLPackExchange, DLTensor

cdef extern from "Python.h":
    int Py_MakePendingCalls() except -1

cdef enum:
    RELEASES = 16                           # before what the interpreter has to do for them is done


cdef int bare_tensor_of(void* array, DLTensor* tensor) except? -1:
    memset(tensor, 0, sizeof(DLTensor))
    tensor.device.device_type = CUDA
    return 0


cdef void free_bare(DLManagedTensorVersioned* tensor) noexcept nogil:
    free(tensor)


cdef int bare_managed_of(void* array, DLManagedTensorVersioned** tensor) except? -1:
    tensor[0] = <DLManagedTensorVersioned*>calloc(1, sizeof(DLManagedTensorVersioned) + 4 * sizeof(uint64_t))
    if tensor[0] == NULL:
        raise MemoryError("no host memory for a tensor")
    tensor[0].deleter = free_bare
    return bare_tensor_of(array, &tensor[0].dl_tensor)


cdef int bare_stream(int32_t device_type, int32_t device_id, void** stream) except? -1:
    stream[0] = NULL
    return 0


cdef DLPackExchange bare
bare.managed_of = bare_managed_of
bare.tensor_of = bare_tensor_of
bare.current_stream = bare_stream


cdef class Exchanges:
    """An array, whose type has ``__dlpack_c_exchange_api__``; without one, what any library has to do."""
    cdef DLPackExchange* table
    cdef object array

    def __init__(self, array=None):
        self.table = &bare
        if array is not None:
            self.table = <DLPackExchange*>PyCapsule_GetPointer(type(array).__dlpack_c_exchange_api__, EXCHANGE)
        self.array = array

    def exported(self, size_t count):
        """Export the array, and call the deleter."""
        cdef DLManagedTensorVersioned* tensor
        cdef uint64_t before = now()
        cdef size_t i
        for i in range(count):
            self.table.managed_of(<void*>self.array, &tensor)
            tensor.deleter(tensor)
            if i % RELEASES == 0:
                Py_MakePendingCalls()
        return now() - before

    def described(self, size_t count):
        """Describe the array for the time of a call."""
        cdef uint64_t before = now()
        cdef DLTensor tensor
        cdef size_t _
        for _ in range(count):
            self.table.tensor_of(<void*>self.array, &tensor)
        return now() - before

    def streams(self, size_t count):
        """Query the stream to work on."""
        cdef uint64_t before = now()
        cdef void* stream
        cdef size_t _
        for _ in range(count):
            self.table.current_stream(CUDA, 0, &stream)
        return now() - before


cdef void drop_bare(object capsule) noexcept:
    cdef DLManagedTensorVersioned* tensor
    if PyCapsule_IsValid(capsule, VERSIONED):
        tensor = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        tensor.deleter(tensor)


cdef class Exporter:
    """An array of floats in memory of another library, exported by ``__dlpack__``."""
    cdef size_t address
    cdef int64_t[2] shape

    def __init__(self, address, shape):
        self.address = address
        self.shape[0], self.shape[1] = shape

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream=None, max_version=None):
        cdef DLManagedTensorVersioned* tensor
        bare_managed_of(<void*>self, &tensor)
        tensor.version.major = 1
        tensor.dl_tensor.data = <void*>self.address
        tensor.dl_tensor.ndim = 2
        tensor.dl_tensor.shape = <int64_t*>(tensor + 1)
        tensor.dl_tensor.shape[0], tensor.dl_tensor.shape[1] = self.shape[0], self.shape[1]
        tensor.dl_tensor.dtype.code, tensor.dl_tensor.dtype.bits, tensor.dl_tensor.dtype.lanes = 2, 32, 1
        return PyCapsule_New(tensor, VERSIONED, drop_bare)
