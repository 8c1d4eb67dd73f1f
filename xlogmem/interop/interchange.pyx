"""Arrays of others, taken over as buffers: DLPack, the CUDA array interface, Arrow device arrays.

Each comes with a producer who goes on owning the memory, so two things have to be in order: our uses come after what he
queued, and what he does with the memory later comes after our uses.

Where his stream is known, because he says so or his library does, the memory is adopted there: the first use elsewhere
is ordered after it, and it is ordered after every use before his array is let go.  Where it is not, one of our streams
is ordered after him now, as the protocol says, and before his array is let go the host waits for our uses (those
alone).

Everything is checked before anything is taken or queued; what comes from outside is refused with BufferError (a DLPack
tensor), ValueError or TypeError (an interface, a schema), whatever is in it.
"""
from collections.abc import Mapping

from cpython.number cimport PyIndex_Check, PyNumber_Index
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport INT64_MAX, UINT64_MAX, uint64_t

from xlogmem._failures cimport Failure
from xlogmem.interop._arrow cimport (
    ARROW_DEVICE_CUDA,
    ArrowDeviceArray,
    ArrowSchema,
    look_into_array,
    look_into_schema,
    take_array,
)
from xlogmem.interop._dlpack cimport CUDA, MOST_DIMENSIONS, DLTensor, look_into, take
from xlogmem._driver cimport Scope, enter_context, leave_context, pointer_device, stream_wait
from xlogmem._order cimport advance, order_after_unlocks
from xlogmem.blocks cimport Core, DeviceBlock
from xlogmem.interop.buffers cimport Buffer, c_strides, view_of
from xlogmem.streams cimport Stream

from xlogmem.interop._dtypes import dtype_of, dtype_of_arrow, dtype_of_dlpack
from xlogmem._stream_owners import stream_of
from xlogmem.errors import StreamMisuseError
from xlogmem.launch import LaunchRecorder

__all__ = ["from_arrow", "from_cuda_array", "from_dlpack"]


cdef object state_of(object state, int ordinal):
    """The device state that a buffer is made for; the default is the process's own."""
    if state is not None:
        return state
    from xlogmem.interop.devices import get_device_state

    return get_device_state(ordinal)


# ---------------------------------------------------------------------------------------------- what is common
cdef int refuse_memory(Core core, tuple extent, str what) except -1:
    """The driver has to know the memory as this device's, from the first byte to the last."""
    cdef Failure failure
    cdef Scope scope
    cdef uint64_t ptr = extent[0], nbytes = extent[1]
    cdef uint64_t end = ptr + nbytes - 1
    cdef int ordinal = -1, last = -1, failed
    with nogil:
        failed = enter_context(core.state.order.context, &scope, &failure)
        if not failed:
            failed = pointer_device(ptr, &ordinal, &failure) or pointer_device(end, &last, &failure)
            leave_context(&scope)
    if failed:
        core.fail(&failure, f"looking at the memory of {what}")
    if ordinal != core.ordering.context.ordinal or last != ordinal:
        raise BufferError(f"{what}: [{ptr:#x}, {ptr + nbytes:#x}) is not memory of device "
                          f"{core.ordering.context.ordinal}")
    return 0


cdef tuple extent_of(object ptr, tuple shape, tuple strides, object itemsize, str what):
    """Where the elements begin and how many bytes they are in."""
    low = high = ptr
    size = itemsize
    for length, stride in zip(shape, strides, strict=True):
        size *= length
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    if low <= 0 or high + itemsize > UINT64_MAX or max(size, high - low + itemsize) > INT64_MAX:
        raise BufferError(f"{what}: no range of device memory ({high - low + itemsize} bytes, the first element at "
                          f"{ptr:#x})")
    return low, high - low + itemsize


cdef Buffer adopt(object state, object kind, object ptr, tuple shape, tuple strides, bint readonly, object owner,
                  Stream producer, Stream ordered, str what):
    """Track the memory and hold its owner.

    `producer` is where he goes on working on it; without, the host waits for our uses before it lets go of his array.
    `ordered` comes after what he queued so far: here the memory may be used at once.
    """
    cdef DeviceBlock block
    cdef Core core
    cdef Buffer buffer
    core, generation = state.snapshot()
    if 0 in shape:
        return view_of(state._status, core, generation, None, 0, shape, strides, kind, readonly, None)
    low, nbytes = extent_of(ptr, shape, strides, kind.itemsize, what)
    block = core.adopt(low, nbytes, producer, owner=owner)
    if ordered is not None and producer is None:
        core.record_block_use(block, ordered)
    buffer = view_of(state._status, core, generation, block, ptr, shape, strides, kind, readonly,
                     owner if block.released else None)
    if ordered is not None and producer is not None:
        recorder = LaunchRecorder(ordered)
        (recorder.read if readonly else recorder.read_write)(buffer)
        recorder.preflight()
        recorder.commit()
    buffer.refuse_stale()
    return buffer


cdef int order_now(Core core, Stream stream, Stream producer) except -1:
    """Order a stream after what is queued on another one so far."""
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    if stream == producer:
        return 0
    with nogil:
        failed = enter_context(core.state.order.context, &scope, &failure)
        if not failed:
            core.state.order.lock.lock()
            failed = order_after_unlocks(core.state.order, stream.state, producer.state, advance(producer.state), &failure)
            core.state.order.lock.unlock()
            leave_context(&scope)
    if failed:
        core.fail(&failure, f"ordering {stream!r} after {producer!r}")
    return 0


# ---------------------------------------------------------------------------------------------- DLPack
def from_dlpack(array, /, *, stream=None, producer=None, state=None):
    """Take over an array of somebody else by DLPack; it is tracked, and shares the memory.

    Parameters
    ----------
    array : object with ``__dlpack__``, or capsule
        On the device of `state`.
    stream : stream, optional
        Where the buffer may be used at once; elsewhere `use` orders it.  Of a capsule it is the stream that its
        producer has ordered already, and has to be said.
    producer : stream, optional
        Where the producer goes on working on the memory.  The default is what his library says (CuPy, Numba, PyTorch);
        if nobody says, the host waits for the uses made here before it lets go of his array.
    state : DeviceState, optional
        The default is the process's own.

    Returns
    -------
    Buffer
        Strict recorders accept it.  The producer's deleter runs once it is let go and its uses are ordered.

    Raises
    ------
    BufferError
        This is no tensor that can be used: another device, a dtype that nobody knows here, lanes, a shape or strides
        that make no sense, a null or misaligned pointer, memory that is not the device's, a capsule that was used.
    TypeError
        This is neither an array nor a capsule.
    StreamMisuseError
        A capsule came without a stream, or its memory overlaps a tracked block in part.
    StaleBufferError
        The device is not accepting operations.
    """
    cdef Core core
    cdef Stream ordered, owner
    exporter = getattr(type(array), "__dlpack__", None)
    if exporter is None:
        state = state_of(state, 0)
        core, _ = state.snapshot()
        if type(array).__name__ == "PyCapsule" and stream is None:
            raise StreamMisuseError("a DLPack capsule has to be ordered already, on a stream that only you know: say "
                                    "stream=")
        return from_capsule(state, array, core.stream_of(producer) if producer is not None else None,
                            core.stream_of(stream))
    device = array.__dlpack_device__()
    if device[0] != <int>CUDA:
        raise BufferError(f"the array is on DLPack device {tuple(device)}, which is no CUDA device: copy it with "
                          "copy_from()")
    state = state_of(state, device[1])
    core, _ = state.snapshot()
    if device[1] != core.ordering.context.ordinal:
        raise BufferError(f"the array is on device {device[1]}, the buffer is to be on {core.ordering.context.ordinal}")
    what = producer if producer is not None else stream_of(array)
    owner = core.stream_of(what) if what is not None else None
    ordered = core.stream_of(stream) if stream is not None or owner is None else None
    handle = (owner if owner is not None else ordered).handle
    try:
        capsule = array.__dlpack__(stream=handle, max_version=(1, 0))
    except TypeError:                                   # written before max_version was
        capsule = array.__dlpack__(stream=handle)
    return from_capsule(state, capsule, owner, ordered)


cdef Buffer from_capsule(object state, object capsule, Stream producer, Stream ordered):
    cdef Core core
    cdef bint readonly = False
    cdef DLTensor* tensor = look_into(capsule, &readonly)
    cdef tuple shape, strides
    cdef int i
    core, _ = state.snapshot()
    if tensor.device.device_type != <int>CUDA or tensor.device.device_id != core.ordering.context.ordinal:
        raise BufferError(f"the tensor is on DLPack device ({tensor.device.device_type}, {tensor.device.device_id}), "
                          f"not on CUDA device {core.ordering.context.ordinal}")
    kind = dtype_of_dlpack(tensor.dtype.code, tensor.dtype.bits)
    if kind is None or tensor.dtype.lanes != 1:
        raise BufferError(f"no dtype here has DLPack code {tensor.dtype.code}, {tensor.dtype.bits} bits and "
                          f"{tensor.dtype.lanes} lane(s)")
    if not 0 <= tensor.ndim <= <int>MOST_DIMENSIONS or (tensor.ndim and tensor.shape == NULL):
        raise BufferError(f"a tensor of {tensor.ndim} dimension(s){' without a shape' if tensor.shape == NULL else ''}")
    shape = tuple([tensor.shape[i] for i in range(tensor.ndim)])
    if any(extent < 0 for extent in shape):
        raise BufferError(f"a shape has no negative extents: {shape}")
    itemsize = kind.itemsize
    if tensor.strides == NULL:
        strides = c_strides(shape, itemsize)
    else:
        strides = tuple([tensor.strides[i] * kind.itemsize for i in range(tensor.ndim)])
    ptr = int(<uint64_t>tensor.data) + int(tensor.byte_offset)
    if 0 not in shape:
        if tensor.data == NULL:
            raise BufferError("the tensor has elements, and no memory")
        if ptr % itemsize or <uint64_t>tensor.data % itemsize:
            raise BufferError(f"the tensor's memory ({ptr:#x}) is not aligned to its elements of {itemsize} bytes")
        refuse_memory(core, extent_of(ptr, shape, strides, itemsize, "the tensor"), "the tensor")
    return adopt(state, kind, ptr, shape, strides, readonly, take(capsule), producer, ordered, "the tensor")


# ---------------------------------------------------------------------------------------------- CUDA array interface
def from_cuda_array(array, /, *, stream=None, producer=None, state=None):
    """Take over an array by the CUDA array interface; it is tracked, and shares the memory.

    Parameters
    ----------
    array : object with ``__cuda_array_interface__``
        It is held as long as the buffer.
    stream : stream, optional
        Where the buffer may be used at once; elsewhere `use` orders it.
    producer : stream, optional
        Where the producer's work on the memory was and will be queued.  The default is what his library says (CuPy,
        Numba, PyTorch), else what the interface says.
    state : DeviceState, optional
        The default is the process's own.

    Returns
    -------
    Buffer
        Strict recorders accept it.

    Raises
    ------
    ValueError, TypeError, BufferError
        The interface is none, or not of memory that can be used here: a dtype that nobody knows here, a mask, stream 0,
        which is ambiguous, ...
    StreamMisuseError
        An interface before version 3 names no stream, and nobody says it; or the memory overlaps a tracked block in
        part.
    StaleBufferError
        The device is not accepting operations.
    """
    cdef Core core
    cdef Stream owner = None, ordered = None
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        raise TypeError(f"{type(array).__name__} has no __cuda_array_interface__")
    kind, ptr, shape, strides, readonly, version, handle = parse_interface(interface)
    state = state_of(state, 0)
    core, _ = state.snapshot()
    if 0 not in shape:
        refuse_memory(core, extent_of(ptr, shape, strides, kind.itemsize, "the array"), "the array")
    if stream is not None:
        ordered = core.stream_of(stream)
    what = producer if producer is not None else stream_of(array)
    if what is not None:
        owner = core.stream_of(what)
    elif handle is not None:
        owner = core.owned_stream(handle)
        if owner is None:                               # nobody keeps his stream: order one of ours now
            if ordered is None:
                ordered = core.stream_pool.default
            order_now(core, ordered, core.stream_of(handle))
    elif version < 3:
        raise StreamMisuseError(f"an interface of version {version} does not say on which stream the array is ready: "
                                "say producer=, or take it over with from_dlpack()")
    return adopt(state, kind, ptr, shape, strides, readonly, array, owner, ordered, "the array")


cdef tuple parse_interface(object interface):
    """What a CUDA array interface says: dtype, address, shape, strides, read-only, version, stream."""
    if not isinstance(interface, Mapping):
        raise TypeError(f"a CUDA array interface is a dictionary, not {type(interface).__name__}")
    missing = [name for name in ("shape", "typestr", "data", "version") if name not in interface]
    if missing:
        raise ValueError(f"the CUDA array interface lacks {', '.join(missing)}")
    version = integer(interface["version"], "version")
    if version < 0:
        raise ValueError(f"version {version} of the CUDA array interface")
    if not isinstance(interface["typestr"], str):
        raise TypeError(f"typestr is a string, not {type(interface['typestr']).__name__}")
    kind = dtype_of(interface["typestr"])
    if kind.typestr is None or interface["typestr"][:1] not in ("<", "|", "="):
        raise TypeError(f"typestr {interface['typestr']!r} is unknown here")
    if interface.get("mask") is not None:
        raise ValueError("masked arrays are not taken over")
    shape = integers(interface["shape"], "shape")
    if any(extent < 0 for extent in shape) or len(shape) > <int>MOST_DIMENSIONS:
        raise ValueError(f"no shape: {shape}")
    strides = interface.get("strides")
    strides = c_strides(shape, kind.itemsize) if strides is None else integers(strides, "strides")
    if len(strides) != len(shape):
        raise ValueError(f"{len(strides)} strides for {len(shape)} dimension(s)")
    data = interface["data"]
    if not isinstance(data, tuple) or len(data) != 2:
        raise TypeError(f"data is a pair of an address and whether it is read-only, not {data!r}")
    ptr = integer(data[0], "the address") if data[0] is not None else 0
    if not 0 <= ptr <= UINT64_MAX or (0 not in shape and ptr == 0):
        raise ValueError(f"no device address: {ptr}")
    if 0 not in shape and (ptr % kind.itemsize or any(stride % kind.itemsize for stride in strides)):
        raise ValueError("the memory is not aligned to its elements")
    handle = interface.get("stream")
    if handle is not None:
        handle = integer(handle, "stream")
        if handle == 0:
            raise ValueError("stream 0 is ambiguous, and the interface does not allow it: 1 is the legacy default "
                             "stream, 2 the per-thread default stream")
        if not 0 < handle <= UINT64_MAX:
            raise ValueError(f"{handle} is no CUDA stream handle")
    return kind, ptr, shape, strides, bool(data[1]), version, handle


cdef object integer(object what, str name):
    if not PyIndex_Check(what) or isinstance(what, bool):
        raise TypeError(f"{name} is an integer, not {what!r}")
    return PyNumber_Index(what)


cdef tuple integers(object what, str name):
    if not isinstance(what, (tuple, list)):
        raise TypeError(f"{name} is a tuple of integers, not {what!r}")
    return tuple([integer(item, name) for item in what])


# ---------------------------------------------------------------------------------------------- Arrow
def from_arrow(array, /, *, stream=None, state=None):
    """Take over an Arrow array on the device; it is tracked, shares the memory and is read-only.

    Parameters
    ----------
    array : object with ``__arrow_c_device_array__``, or its pair of capsules
        One dimension of a fixed-width type, without nulls.
    stream : stream, optional
        Where the buffer may be used at once: it waits for the array's event.  The default is the runtime's.
    state : DeviceState, optional
        The default is the process's own.

    Returns
    -------
    Buffer
        Strict recorders accept it.  The host waits for the uses made here before the array is released.

    Raises
    ------
    TypeError
        This is no array, or of a type that is no dtype here.
    BufferError
        It is not on the device, has nulls or children, makes no sense, or was used.
    StaleBufferError
        The device is not accepting operations.
    """
    cdef ArrowSchema* schema
    cdef ArrowDeviceArray* device
    cdef cy.CUevent event
    cdef Core core
    cdef Stream ordered
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    exporter = getattr(array, "__arrow_c_device_array__", None)
    pair = array if exporter is None else exporter()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(f"{type(array).__name__} has no __arrow_c_device_array__")
    schema = look_into_schema(pair[0])
    device = look_into_array(pair[1])
    kind = dtype_of_arrow((<bytes>schema.format).decode(errors="replace")) if schema.format != NULL else None
    if kind is None or schema.n_children or schema.dictionary != NULL:
        raise TypeError(f"no dtype here is Arrow's format {schema.format if schema.format != NULL else None!r}")
    if device.device_type != <int>ARROW_DEVICE_CUDA:
        raise BufferError(f"the array is on Arrow device type {device.device_type}, which is not CUDA: copy it with "
                          "copy_from()")
    state = state_of(state, device.device_id)
    core, _ = state.snapshot()
    if device.device_id != core.ordering.context.ordinal:
        raise BufferError(f"the array is on device {device.device_id}, the buffer is to be on "
                          f"{core.ordering.context.ordinal}")
    if (device.array.n_buffers != 2 or device.array.buffers == NULL or device.array.n_children
            or device.array.dictionary != NULL or device.array.length < 0 or device.array.offset < 0):
        raise BufferError("the array is none of a fixed-width type")
    if device.array.null_count > 0 or (device.array.null_count < 0 and device.array.buffers[0] != NULL):
        raise BufferError("the array has nulls")
    shape = (device.array.length,)
    ptr = int(<uint64_t>device.array.buffers[1]) + device.array.offset * kind.itemsize
    if device.array.length:
        if device.array.buffers[1] == NULL or ptr % kind.itemsize:
            raise BufferError(f"the array's memory ({ptr:#x}) is not that of {device.array.length} {kind.name}")
        refuse_memory(core, extent_of(ptr, shape, (kind.itemsize,), kind.itemsize, "the array"), "the array")
    ordered = core.stream_of(stream)
    if device.sync_event != NULL and device.array.length:
        event = (<cy.CUevent*>device.sync_event)[0]
        with nogil:
            failed = enter_context(core.state.order.context, &scope, &failure)
            if not failed:
                failed = stream_wait(ordered.state.handle, event, &failure)
                leave_context(&scope)
        if failed:
            core.fail(&failure, f"having {ordered!r} wait for the array's event")
    return adopt(state, kind, ptr, shape, (kind.itemsize,), True, take_array(pair[1]), None, ordered, "the array")
