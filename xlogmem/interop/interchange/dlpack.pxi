# DLPack: the producer is called with the stream that its work has to be ordered before, and gives a capsule.  A capsule
# that comes without its producer is ordered already, on a stream that only the caller knows.

def from_dlpack(array, /, *, stream=None, producer=None, state=None):
    """Import an array of another library by DLPack; it is tracked, and shares the memory.

    Parameters
    ----------
    array : object with ``__dlpack__``, or capsule
        On the device of `state`.
    stream : stream, optional
        Where the buffer may be used at once; elsewhere `use` orders it.  Required for a capsule: the stream that its
        producer has ordered already.
    producer : stream, optional
        Where the producer goes on working with the memory.  The default is the current stream of its library (CuPy,
        Numba, PyTorch); without one the host waits for the uses made here before the producer's array is released.
    state : DeviceState, optional
        The default is the process's own.

    Returns
    -------
    Buffer
        Strict recorders accept it.  The producer's deleter runs once the buffer is released and its uses are ordered.

    Raises
    ------
    BufferError
        The tensor cannot be used: another device, an unknown dtype, lanes, a shape or strides outside of the address
        space, a null or misaligned pointer, memory that is not the device's, a capsule that was consumed.
    TypeError
        This is neither an array nor a capsule.
    StreamMisuseError
        A capsule came without a stream, or its memory overlaps a tracked block in part.
    StaleBufferError
        The device is not accepting operations, or its context was lost meanwhile.
    """
    cdef DeviceSnapshot device
    cdef Stream ordered, owner
    if getattr(type(array), "__dlpack__", None) is None:
        return from_capsule(take_snapshot(state, 0), array, producer, stream)
    device_type, ordinal = device_pair(array)
    if device_type != <int>CUDA or not 0 <= ordinal <= INT32_MAX:
        raise BufferError(f"the array is on DLPack device {(device_type, ordinal)}, which is not a CUDA device: copy "
                          "it with copy_from()")
    device = take_snapshot(state, ordinal)
    refuse_device(device.core, ordinal)
    what = producer if producer is not None else find_producer_stream(array)
    owner = device.core.stream_of(what) if what is not None else None
    ordered = device.core.stream_of(stream) if stream is not None or owner is None else None
    handle = (owner if owner is not None else ordered).handle
    try:
        capsule = array.__dlpack__(stream=handle, max_version=(1, 0))
    except TypeError:                                   # written before max_version was
        capsule = array.__dlpack__(stream=handle)
    return import_capsule(device, capsule, owner, ordered)


cdef Buffer from_capsule(DeviceSnapshot device, object capsule, object producer, object stream):
    if type(capsule).__name__ == "PyCapsule" and stream is None:
        raise StreamMisuseError("a DLPack capsule is ordered already, on a stream that only the caller knows: say "
                                "stream=")
    return import_capsule(device, capsule, device.core.stream_of(producer) if producer is not None else None,
                          device.core.stream_of(stream))


cdef Buffer import_capsule(DeviceSnapshot device, object capsule, Stream producer, Stream ordered):
    cdef bint read_only = False
    cdef DLTensor* tensor = peek_tensor(capsule, &read_only)
    cdef ArrayLayout layout
    cdef Scope scope
    device.refuse_stale()                               # the context may have been lost while the producer was called
    if tensor.device.device_type != <int>CUDA or tensor.device.device_id != device.core.ordering.context.ordinal:
        raise BufferError(f"the tensor is on DLPack device ({tensor.device.device_type}, {tensor.device.device_id}), "
                          f"not on CUDA device {device.core.ordering.context.ordinal}")
    layout = tensor_layout(tensor, read_only)
    if layout.size == 0:
        return adopt(device, layout, take_tensor(capsule), producer, ordered)
    enter(device.core, &scope)
    try:
        refuse_memory(device.core, layout, "the tensor")
        taken = take_tensor(capsule)                    # if this fails, its deleter runs in the caller's context
        return adopt(device, layout, taken, producer, ordered)
    finally:
        leave(&scope)
