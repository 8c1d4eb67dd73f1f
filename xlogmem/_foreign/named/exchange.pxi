# DLPack between functions in C: a type that has `__dlpack_c_exchange_api__` (PyTorch's tensors) describes its objects
# in one call, where Python's methods take a dozen.
#
# Nothing but the description is taken.  Where there is none, or it contradicts itself, the object's methods are called
# as those of any other: they say what is wrong.

from cpython.object cimport PyTypeObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport int64_t, uint64_t

from xlogmem._foreign.dltensor cimport CUDA, CUDA_MANAGED, EXCHANGE, MOST_DIMENSIONS, DLPackExchange, DLTensor
from xlogmem._foreign.strided cimport Reach, find_reach

cdef extern from *:
    """
    // Before Python 3.13 an attribute that a type lacks costs an exception with its text.  A metaclass may make up
    // attributes, which a look at the type and its bases does not find.
    static bool xlogmem_lacks(PyTypeObject* type, PyObject* name) {
    #if PY_VERSION_HEX < 0x030D0000
        return Py_IS_TYPE(type, &PyType_Type) && !_PyType_Lookup(type, name);
    #else
        return false;
    #endif
    }
    """
    bint lacks "xlogmem_lacks"(PyTypeObject* kind, object name) noexcept


cdef dict exchanges = {}                    # by type, which is held: those that have one; None: no usable one
cdef str EXCHANGE_NAME = "__dlpack_c_exchange_api__"


cdef DLPackExchange* exchange_of(object what) except? NULL:
    """The exchange of an object's type; NULL if it has none that is known here."""
    kind = type(what)
    capsule = exchanges.get(kind)
    if capsule is None and not lacks(<PyTypeObject*>kind, EXCHANGE_NAME) and kind not in exchanges:
        capsule = getattr(kind, EXCHANGE_NAME, None)
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
    cdef Reach reach
    cdef uint64_t first
    if tensor.device.device_type not in (CUDA, CUDA_MANAGED) or tensor.device.device_id < 0 or tensor.data == NULL:
        return False
    if not 0 <= tensor.ndim <= <int>MOST_DIMENSIONS or itemsize == 0 or (tensor.ndim and tensor.shape == NULL):
        return False
    if not find_reach(tensor.ndim, tensor.shape, tensor.strides, itemsize, itemsize, &reach):
        return False
    first = <uint64_t>tensor.data + tensor.byte_offset
    if first < tensor.byte_offset or not fill_reach(extent, first, &reach):
        return False
    extent.device_id = tensor.device.device_id
    return True


cdef bint fill_reach(Extent* extent, uint64_t first, Reach* reach) noexcept:
    """Fill in the bytes of an array with elements; False if it does not lie in the address space."""
    if first < <uint64_t>reach.below or first + <uint64_t>reach.above < first:
        return False
    extent.ptr = first
    extent.first = first - <uint64_t>reach.below
    extent.last = first + <uint64_t>reach.above - 1
    extent.sized = True
    return True
