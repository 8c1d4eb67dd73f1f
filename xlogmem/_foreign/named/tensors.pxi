# DLPack: the device and the bytes of a tensor, from a capsule that is not consumed: the capsule is dropped, and its
# producer's deleter runs.

from cpython.buffer cimport PyObject_CheckBuffer
from cpython.number cimport PyNumber_Index
from cpython.pycapsule cimport PyCapsule_GetName, PyCapsule_GetPointer, PyCapsule_IsValid
from libc.stdint cimport INT32_MAX, uint64_t

from xlogmem._foreign.advice import kind_of
from xlogmem._foreign.dltensor cimport (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    MOST_DIMENSIONS,
    PLAIN,
    READ_ONLY,
    ROCM_HOST,
    USED_PLAIN,
    USED_VERSIONED,
    VERSIONED,
    DLManagedTensor,
    DLManagedTensorVersioned,
    DLTensor,
)


cdef enum:
    NO_SYNCHRONISATION = -1     # a stream argument of __dlpack__: the producer orders nothing


cdef tuple pair_of(object what, str name, object giver=None):
    """The integers of a pair that another library gave: a device, a version.  ``{}`` in the name stands for the
    giver."""
    try:
        first, second = what
        return PyNumber_Index(first), PyNumber_Index(second)
    except (TypeError, ValueError):
        raise TypeError(f"{name.format(kind_of(giver))} is a pair of integers, not {what!r}") from None


cdef tuple device_pair(object array):
    """The device type and number that an array gives."""
    query = getattr(array, "__dlpack_device__", None)
    if not callable(query):
        raise TypeError(f"{kind_of(array)} has __dlpack__, and no method __dlpack_device__")
    return pair_of(query(), "what __dlpack_device__ of {} gives", array)


cdef int device_of(object what, str where, Extent* extent) except -1:
    """Note the number of the device on which an object is, according to its producer, or that it is on the host."""
    device_type, device_id = device_pair(what)
    if device_type == ROCM_HOST:
        refuse_host_memory(what, where)
    if device_type in (CPU, CUDA_HOST):
        extent.on_host = True
        return 0
    if device_type not in (CUDA, CUDA_MANAGED) or not 0 <= device_id <= INT32_MAX:
        raise TypeError(f"{where}: {kind_of(what)} is on DLPack device {(device_type, device_id)}, which is not "
                        "a CUDA device")
    extent.device_id = device_id
    return 0


cdef bint name_tensor(object what, str where, Extent* extent) except -1:
    """Fill in the bytes of an object that has ``__dlpack__``.  False if the object has no elements."""
    cdef bint read_only = False
    cdef DLTensor* tensor
    device_of(what, where, extent)
    if getattr(what, "is_closed", False) is True:
        raise ValueError(f"{where}: {kind_of(what)} is closed: it has no memory any more")
    if extent.on_host and PyObject_CheckBuffer(what):
        return name_host_memory(what, where, extent)
    try:
        capsule = what.__dlpack__(stream=<int>NO_SYNCHRONISATION, max_version=(1, 0))
    except TypeError:                                   # written before max_version was
        capsule = what.__dlpack__(stream=<int>NO_SYNCHRONISATION)
    tensor = peek_tensor(capsule, &read_only)
    if extent.on_host and tensor.device.device_type in (CPU, CUDA_HOST):
        extent.read_only = read_only
        return fill_from_tensor(tensor, what, where, extent) and refuse_pageable(extent, what, where) == 0
    if tensor.device.device_type not in (CUDA, CUDA_MANAGED) or tensor.device.device_id != extent.device_id:
        raise TypeError(f"{where}: __dlpack__ of {kind_of(what)} gave a tensor on DLPack device "
                        f"({tensor.device.device_type}, {tensor.device.device_id}), and __dlpack_device__ "
                        + ("the host" if extent.on_host else f"CUDA device {extent.device_id}"))
    extent.read_only = read_only
    return fill_from_tensor(tensor, what, where, extent)


cdef bint fill_from_tensor(DLTensor* tensor, object what, str where, Extent* extent) except -1:
    itemsize = max(1, (<int>tensor.dtype.bits * <int>tensor.dtype.lanes + 7) // 8)
    try:
        address, shape, strides = parts_of_tensor(tensor, itemsize)
    except BufferError as error:
        raise BufferError(f"{where}: __dlpack__ of {kind_of(what)} gave {error}") from None
    if 0 in shape:
        return False
    fill_array(extent, (address, shape, strides, itemsize), "__dlpack__", what, where)
    return True


cdef tuple parts_of_tensor(DLTensor* tensor, object itemsize):
    """The address of the first element, the shape, and the strides in bytes (None: C order).

    Raises BufferError if this is not a valid tensor, whatever its elements are.
    """
    cdef int i
    shape = shape_of_tensor(tensor)
    if 0 not in shape and tensor.data == NULL:
        raise BufferError("a tensor with elements, and no memory")
    strides = None
    if tensor.strides != NULL:
        strides = tuple([tensor.strides[i] * itemsize for i in range(tensor.ndim)])
    return int(<uint64_t>tensor.data) + int(tensor.byte_offset), shape, strides


cdef tuple shape_of_tensor(DLTensor* tensor):
    cdef int i
    if not 0 <= tensor.ndim <= <int>MOST_DIMENSIONS or (tensor.ndim and tensor.shape == NULL):
        raise BufferError(f"a tensor of {tensor.ndim} dimension(s){' without a shape' if tensor.shape == NULL else ''}")
    shape = tuple([tensor.shape[i] for i in range(tensor.ndim)])
    if any([extent < 0 for extent in shape]):
        raise BufferError(f"a tensor of the shape {shape}, which has a negative extent")
    return shape


cdef DLTensor* peek_tensor(object capsule, bint* read_only) except NULL:
    """The tensor in a capsule that was not consumed yet; the capsule still owns the tensor.

    Raises BufferError for other capsules and for unknown versions, TypeError for other objects.
    """
    cdef DLManagedTensorVersioned* versioned
    cdef const char* name
    read_only[0] = False
    if PyCapsule_IsValid(capsule, PLAIN):
        return &(<DLManagedTensor*>PyCapsule_GetPointer(capsule, PLAIN)).dl_tensor
    if PyCapsule_IsValid(capsule, VERSIONED):
        versioned = <DLManagedTensorVersioned*>PyCapsule_GetPointer(capsule, VERSIONED)
        if versioned.version.major != 1:
            raise BufferError(f"the capsule is of DLPack {versioned.version.major}.{versioned.version.minor}, but 1.0 "
                              "was requested, and 1 is the only version that is supported")
        read_only[0] = versioned.flags & READ_ONLY
        return &versioned.dl_tensor
    if PyCapsule_IsValid(capsule, USED_PLAIN) or PyCapsule_IsValid(capsule, USED_VERSIONED):
        raise BufferError("the DLPack capsule was used before: each is consumed once")
    if type(capsule).__name__ != "PyCapsule":
        raise TypeError(f"{kind_of(capsule)} is not a DLPack capsule, and has no __dlpack__")
    name = PyCapsule_GetName(capsule)
    raise BufferError(f"a capsule named {name.decode(errors='replace') if name != NULL else None!r} is not a DLPack "
                      "capsule")
