# DLPack between functions in C: a type that has `__dlpack_c_exchange_api__` (PyTorch's tensors) describes its objects
# in one call, where Python's methods take a dozen.
#
# Nothing but the description is taken.  Where there is none, or it contradicts itself, the object's methods are called
# as those of any other: they say what is wrong.

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int64_t, uint64_t

from xlogmem._foreign.dltensor cimport CUDA, CUDA_MANAGED, EXCHANGE, MOST_DIMENSIONS, DLPackExchange, DLTensor

cdef extern from *:
    bint multiply_overflows "__builtin_mul_overflow"(int64_t, int64_t, int64_t*) nogil
    bint add_overflows "__builtin_add_overflow"(int64_t, int64_t, int64_t*) nogil


cdef dict exchanges = {}                    # by type, which is held: those that have one; None: no usable one


cdef DLPackExchange* exchange_of(object what) except? NULL:
    """The exchange of an object's type; NULL if it has none that is known here."""
    kind = type(what)
    capsule = exchanges.get(kind)
    if capsule is None and kind not in exchanges:
        capsule = getattr(kind, "__dlpack_c_exchange_api__", None)
        if capsule is None:
            return NULL                                 # types without one are not held
        exchanges[kind] = capsule = usable_exchange(capsule)
    return <DLPackExchange*>PyCapsule_GetPointer(capsule, EXCHANGE) if capsule is not None else NULL


cdef object usable_exchange(object capsule):
    cdef DLPackExchange* exchange
    if not PyCapsule_IsValid(capsule, EXCHANGE):
        return None
    exchange = <DLPackExchange*>PyCapsule_GetPointer(capsule, EXCHANGE)
    return capsule if exchange.header.version.major == 1 else None


cdef bint name_by_exchange(object what, Extent* extent) except -1:
    """Fill in the bytes of an object on a CUDA device; False if its methods have to say what it is."""
    cdef DLPackExchange* exchange = exchange_of(what)
    cdef DLTensor tensor
    if exchange == NULL or exchange.tensor_of == NULL:
        return False
    try:
        if exchange.tensor_of(<void*>what, &tensor):
            return False                                # without an exception
    except Exception:
        return False
    return fill_from_description(&tensor, extent)


cdef bint fill_from_description(DLTensor* tensor, Extent* extent) noexcept:
    """Fill in the bytes of a tensor with elements on a CUDA device.  False for any other, and for one that does not lie
    in the address space."""
    cdef int64_t itemsize = (<int64_t>tensor.dtype.bits * tensor.dtype.lanes + 7) // 8
    cdef int64_t below = 0, above = itemsize, stride = itemsize, reach
    cdef uint64_t first
    cdef int i
    if tensor.device.device_type not in (CUDA, CUDA_MANAGED) or tensor.device.device_id < 0 or tensor.data == NULL:
        return False
    if not 0 <= tensor.ndim <= <int>MOST_DIMENSIONS or itemsize == 0 or (tensor.ndim and tensor.shape == NULL):
        return False
    for i in range(tensor.ndim - 1, -1, -1):
        if tensor.shape[i] <= 0:
            return False
        if tensor.strides != NULL and multiply_overflows(tensor.strides[i], itemsize, &stride):
            return False
        if multiply_overflows(tensor.shape[i] - 1, stride, &reach):
            return False
        if add_overflows(above, reach, &above) if reach > 0 else add_overflows(below, reach, &below):
            return False
        if tensor.strides == NULL and multiply_overflows(stride, tensor.shape[i], &stride):
            return False
    first = <uint64_t>tensor.data + tensor.byte_offset
    if first < tensor.byte_offset or first < <uint64_t>-below or first + <uint64_t>above < first:
        return False
    extent.ptr = first
    extent.first = first + <uint64_t>below
    extent.last = first + <uint64_t>above - 1
    extent.sized = True
    extent.device_id = tensor.device.device_id
    return True
