# DLPack: the import calls the producer with the stream that has to be ordered after the producer's work, and gets a
# capsule.  A capsule that comes without its producer is ordered already, on a stream that only the caller knows.

from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport INT32_MAX

from xlogmem.errors import StreamMisuseError
from xlogmem._driver cimport NO_MEMORY, MemoryKind
from xlogmem._foreign.dltensor cimport CPU, CUDA, CUDA_HOST, CUDA_MANAGED, READ_ONLY, DLTensor
from xlogmem._foreign.named cimport device_pair, find_producer_stream, pair_of, peek_tensor
from xlogmem.blocks cimport DeviceBlock
from xlogmem.interop._dlpack cimport DLPackImport, take_tensor, tensor_layout
from xlogmem.interop._layout cimport ArrayLayout
from xlogmem.interop.buffers cimport Buffer, DeviceSnapshot, copy_host, copy_of, new_buffer
from xlogmem.streams cimport Stream


def from_dlpack(array, /, *, device=None, copy=None, stream=None, producer=None, state=None):
    """Import an array of another library by DLPack; it is tracked, and shares the memory unless it is copied.

    Parameters
    ----------
    array : object with ``__dlpack__``, or capsule
        In memory of a CUDA device, managed memory included; or, if `device` is given, in host memory.
    device : int or (int, int), optional
        The device of the buffer: its number, or DLPack's ``(kDLCUDA, device_id)``.  The default is the device of the
        array.  Host memory is copied there; there is no copy from one device to another.
    copy : bool, optional
        True: the buffer is a copy, ordered on `stream`.  False: the buffer is never a copy.  By default it is a copy
        only if nothing else is possible.
    stream : stream, optional
        The stream on which the buffer may be used at once; elsewhere `use` orders it.  Required for a capsule: the
        stream that its producer has ordered already.
    producer : stream, optional
        The stream on which the producer goes on working with the memory.  The default is the current stream of the
        producer's library (CuPy, Numba, PyTorch); without a producer's stream the host waits for the uses made here
        before the producer's array is released.
    state : DeviceState, optional
        The default is the process's own.

    Returns
    -------
    Buffer
        Every recorder accepts it.  The producer's deleter runs once the buffer is released and its uses are ordered.

    Raises
    ------
    BufferError
        The import is not possible as requested: host memory without a `device` or with ``copy=False``, another device.
        The tensor cannot be used: an unknown dtype, lanes, a shape or strides outside the address space, a null or
        misaligned pointer, memory that is not the device's, a capsule that was consumed.
    TypeError
        `array` is neither an array nor a capsule.
    StreamMisuseError
        A capsule came without a stream, or its memory overlaps a tracked block in part.
    StaleBufferError
        The device is not accepting operations, or its context was lost meanwhile.

    Examples
    --------
    >>> import numpy
    >>> x = xlogmem.from_dlpack(numpy.arange(3), device=0)          # a copy of host memory
    >>> x.tolist()
    [0, 1, 2]
    """
    cdef DLPackImport taken
    cdef Buffer buffer
    wanted = wanted_device(device)
    if getattr(type(array), "__dlpack__", None) is None:
        buffer = from_capsule(take_snapshot(state, wanted or 0), array, producer, stream)
    else:
        taken = take_by_exchange(array)
        device_type, device_id = device_of_import(taken) if taken is not None else device_pair(array)
        if device_type in (CPU, CUDA_HOST):
            return import_host(array, wanted, copy, stream, state)
        if device_type not in (CUDA, CUDA_MANAGED) or not 0 <= device_id <= INT32_MAX:
            raise BufferError(f"the array is on DLPack device {(device_type, device_id)}, which is not a CUDA device")
        if wanted is not None and wanted != device_id:
            raise BufferError(f"the array is on CUDA device {device_id}, and xlogmem copies nothing from there to "
                              f"device {wanted}: have its own library copy it")
        buffer = import_array(take_snapshot(state, device_id), array, taken, device_id, producer, stream)
    return copy_of(buffer, stream) if copy else buffer


cdef object wanted_device(object device):
    """The number of a CUDA device; None if no device is named."""
    if device is None:
        return None
    kind, device_id = (CUDA, PyNumber_Index(device)) if PyIndex_Check(device) else pair_of(device, "device")
    if kind != <int>CUDA or not 0 <= device_id <= INT32_MAX:
        raise BufferError(f"device {device!r} is not a CUDA device: give its device_id, or (2, device_id)")
    return device_id


cdef Buffer import_host(object array, object wanted, object copy, object stream, object state):
    """Make a buffer with a copy of an array in host memory.  The host waits for the copy if the memory is page-locked.
    """
    cdef DeviceSnapshot device
    cdef bint read_only = False
    cdef ArrayLayout layout
    cdef DeviceBlock block
    cdef Buffer made
    if wanted is None:
        raise BufferError("the array is in host memory, on DLPack device 1 or 3, which is not a CUDA device: say where "
                          "it is to be copied to, as in from_dlpack(array, device=0), or copy it with copy_from()")
    if copy is not None and not copy:
        raise BufferError("the array is in host memory: a buffer can only be a copy")
    device = take_snapshot(state, wanted)
    refuse_device(device.core, wanted)
    capsule = capsule_from(array, None)
    tensor = peek_tensor(capsule, &read_only)
    if tensor.device.device_type not in (CPU, CUDA_HOST):
        raise BufferError(f"the tensor is on DLPack device ({tensor.device.device_type}, {tensor.device.device_id}), "
                          "and its array is in host memory")
    layout = tensor_layout(tensor, False)
    layout.refuse_strided("the array in host memory is not contiguous: copy it there first")
    taken = take_tensor(capsule)                        # until the copy is made
    block = device.core.allocate(layout.nbytes(), stream) if layout.size else None
    made = new_buffer(device, block, layout.at(block.address if block is not None else 0), None)
    copy_host(made, <const void*>layout.ptr, stream)
    del taken
    return made


cdef object capsule_from(object array, object stream):
    """The capsule of an array, which is ordered on a stream (None: the array is in host memory)."""
    try:
        if stream is None:
            return array.__dlpack__(max_version=(1, 0))
        return array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:                                   # written before max_version was
        return array.__dlpack__() if stream is None else array.__dlpack__(stream=stream)


cdef Buffer import_array(DeviceSnapshot device, object array, DLPackImport taken, object device_id, object producer,
                         object stream):
    """Import an array on a CUDA device; `taken` is its tensor, which is not ordered, or None."""
    cdef Stream ordered, owner
    refuse_device(device.core, device_id)
    what = producer if producer is not None else find_producer_stream(array)
    owner = device.core.stream_of(what) if what is not None else None
    ordered = stream_for_import(device.core, stream) if stream is not None or owner is None else None
    if taken is not None and owner is not None:         # its work is on that stream: nothing else orders it
        return import_tensor(device, &taken.versioned.dl_tensor, taken.versioned.flags & READ_ONLY, taken, owner,
                             ordered)
    handle = (owner if owner is not None else ordered).handle
    return import_capsule(device, capsule_from(array, handle), owner, ordered)


cdef Buffer from_capsule(DeviceSnapshot device, object capsule, object producer, object stream):
    if type(capsule).__name__ == "PyCapsule" and stream is None:
        raise StreamMisuseError("a DLPack capsule is ordered already, on a stream that only the caller knows: say "
                                "stream=")
    return import_capsule(device, capsule, device.core.stream_of(producer) if producer is not None else None,
                          stream_for_import(device.core, stream))


cdef Buffer import_capsule(DeviceSnapshot device, object capsule, Stream producer, Stream ordered):
    cdef bint read_only = False
    cdef DLTensor* tensor = peek_tensor(capsule, &read_only)
    return import_tensor(device, tensor, read_only, capsule, producer, ordered)


cdef Buffer import_tensor(DeviceSnapshot device, DLTensor* tensor, bint read_only, object holder, Stream producer,
                          Stream ordered):
    """Import a tensor on a CUDA device; `holder` is its capsule, or a `DLPackImport`."""
    cdef ArrayLayout layout
    cdef MemoryKind kind
    device.refuse_stale()                               # the context may have been lost while the producer was called
    if (tensor.device.device_type not in (CUDA, CUDA_MANAGED)
            or tensor.device.device_id != device.core.ordering.context.device_id):
        raise BufferError(f"the tensor is on DLPack device ({tensor.device.device_type}, {tensor.device.device_id}), "
                          f"not on CUDA device {device.core.ordering.context.device_id}")
    layout = tensor_layout(tensor, read_only)
    if layout.size == 0:
        return adopt(device, layout, NO_MEMORY, take_tensor(holder), producer, ordered)
    kind = kind_of_array(device.core, layout, "the tensor")
    return adopt(device, layout, kind, take_tensor(holder), producer, ordered)
