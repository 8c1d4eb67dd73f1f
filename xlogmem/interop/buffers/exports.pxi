# Exports of the memory to other libraries.  Each export orders a stream after all uses so far; the exports differ in
# the knowledge of the consumer's later work.
#
# * A DLPack capsule pins the block until its deleter runs; until then the consumer may enqueue unrecorded work on the
#   stream that the consumer named.
# * The CUDA array interface names one of our streams; its reader holds the buffer, and may use that stream until the
#   block is freed.
# * An Arrow device array carries an event; the stream of its consumer is never known.

from cpython.long cimport PyLong_CheckExact
from cpython.number cimport PyIndex_Check, PyNumber_Index
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_ITEM, PyTuple_GET_SIZE

from xlogmem.errors import StreamMisuseError
from xlogmem.interop._dtypes import DTYPES
from xlogmem._base.sections cimport Section
from xlogmem._core cimport LAUNCHED, READ, READ_WRITE
from xlogmem._driver cimport LEGACY
from xlogmem._foreign.dltensor cimport COPIED, CPU, CUDA, READ_ONLY, DLDevice
from xlogmem._foreign.named cimport pair_of
from xlogmem._order cimport has_no_owner, is_other_threads_default
from xlogmem.blocks cimport Core, DeviceBlock, Export, release_export
from xlogmem.interop._arrow cimport array_capsule, schema_capsule
from xlogmem.interop._dlpack cimport DLPackExport, capsule_of, fill_tensor, make_host_copy, new_export
from xlogmem.interop._layout cimport ArrayLayout, new_layout
from xlogmem.launch cimport LaunchRecorder, export_inside, is_in_capture
from xlogmem.streams cimport Stream


cdef tuple ONE = (1, 0)                     # the first version of DLPack with versioned tensors


cdef int export_ordered(Buffer buffer, Stream consumer, Export* export) except -1:
    """Export the memory on a stream, which is ordered after all uses so far.  If `export` is NULL, the export lasts
    until the block is freed."""
    cdef DeviceBlock block = buffer.held()              # another thread may release the buffer meanwhile
    cdef LaunchRecorder recorder
    if block is None:
        buffer.refuse_stale()
    recorder = buffer.new_hand_over(consumer, READ if buffer.layout.readonly else READ_WRITE)
    recorder.open()
    try:
        buffer.core.export_block(block, consumer.state, not buffer.layout.readonly, export)
        export_inside(recorder, block, consumer)
    finally:
        recorder.finish(LAUNCHED)
        buffer.core.cover_export(consumer)
    return 0


cdef int export_unordered(Buffer buffer, Export* export) except -1:
    """Export the memory to a consumer that orders its own work, on a stream that it does not name."""
    cdef DeviceBlock block = buffer.held()
    if block is None:
        buffer.refuse_stale()
    return buffer.core.export_block(block, NULL, not buffer.layout.readonly, export)


# ---------------------------------------------------------------------------------------------- DLPack
cdef object parse_consumer(object stream):
    """The stream that a consumer names: a handle, -1, or a stream object."""
    if stream is None:
        return LEGACY
    if not PyIndex_Check(stream) and hasattr(stream, "__cuda_stream__"):
        return stream
    if not PyIndex_Check(stream) or isinstance(stream, bool):
        raise TypeError(f"stream is an integer: 1, 2, -1 or a handle; not {stream!r}")
    handle = PyNumber_Index(stream)
    if handle == 0:
        raise ValueError("stream 0 is ambiguous, and the standard does not allow it: use 1 for the legacy default "
                         "stream, 2 for the per-thread default stream")
    if not -1 <= handle < 1 << 64:
        raise ValueError(f"{handle} is not a CUDA stream handle")
    return handle


cdef bint takes_versioned(object max_version) except -1:
    """True if a consumer that supports DLPack up to this version takes versioned tensors."""
    if PyTuple_CheckExact(max_version) and PyTuple_GET_SIZE(max_version) == 2 and (
            PyLong_CheckExact(<object>PyTuple_GET_ITEM(max_version, 0))
            and PyLong_CheckExact(<object>PyTuple_GET_ITEM(max_version, 1))):
        return max_version >= ONE
    return pair_of(max_version, "max_version") >= ONE


cdef object export_dlpack(Buffer buffer, object stream, object dl_device, object copy, object max_version):
    cdef bint versioned = max_version is not None and takes_versioned(max_version)
    cdef int flags = 0
    buffer.refuse_stale()
    device = None if dl_device is None else pair_of(dl_device, "dl_device")
    handle = parse_consumer(stream)
    if device is not None:
        if device == (CPU, 0):
            if copy is not None and not copy:
                raise BufferError("the memory is on the device: host memory can only be a copy")
            return export_host_copy(buffer, versioned)
        here = buffer.__dlpack_device__()
        if device != here:
            raise BufferError(f"the memory is on device {here} and cannot be exported to {device}")
    if copy:
        buffer = copy_of(buffer, None)
        flags |= COPIED
    if buffer.layout.readonly:
        if not versioned:
            raise BufferError("the buffer is read-only, for which DLPack before 1.0 has no word: request "
                              "max_version=(1, 0), or a copy")
        flags |= READ_ONLY
    buffer.layout.for_dlpack()                          # refuses what DLPack cannot say
    return export_on_device(buffer, handle, versioned, flags)


cdef object export_on_device(Buffer buffer, object handle, bint versioned, int flags):
    cdef ArrayLayout layout = buffer.layout
    cdef Stream consumer = None
    cdef DLPackExport* export
    if layout.size and handle != -1:
        consumer = buffer.core.owned_stream(handle) or buffer.core.stream_of(handle)
    export = new_export(layout)
    try:
        if consumer is not None:
            export_ordered(buffer, consumer, &export.base)
        elif layout.size:
            export_unordered(buffer, &export.base)
        fill_tensor(&export.plain.dl_tensor, layout, <void*>layout.ptr, device_of_buffer(buffer), export.extents)
    except BaseException:
        release_export(&export.base)
        raise
    export.versioned.flags = flags
    return capsule_of(export, versioned)


cdef inline DLDevice device_of_buffer(Buffer buffer) noexcept:
    cdef DLDevice device
    device.device_type, device.device_id = CUDA, buffer.device.status.device_id
    return device


cdef object export_host_copy(Buffer buffer, bint versioned):
    """Make a capsule with a copy in host memory; the host waits for the copy."""
    cdef ArrayLayout layout = buffer.layout
    cdef DLPackExport* export = new_export(layout)
    cdef DLDevice device
    cdef void* first = NULL
    device.device_type, device.device_id = CPU, 0
    try:
        buffer.refuse_stale()
        if layout.size:
            first = make_host_copy(export, layout.extent)
            download(buffer, first, buffer.resolve_stream(None))
            first = <char*>first + (layout.ptr - layout.start)
        fill_tensor(&export.plain.dl_tensor, layout, first, device, export.extents)
    except BaseException:
        release_export(&export.base)
        raise
    export.versioned.flags = COPIED
    return capsule_of(export, versioned)


# ---------------------------------------------------------------------------------------------- interfaces
cdef Stream choose_stream(Buffer buffer):
    """Choose a stream to name to other libraries.  The stream is on the memory's device.  It lives as long as the
    runtime, or its owner is known, or this buffer, which named it last, keeps it."""
    cdef Stream newest = buffer.last_write_stream
    if newest is None or newest.ordering is not buffer.core.ordering or (
            has_no_owner(newest.state) or is_other_threads_default(newest.state)):
        newest = buffer.resolve_stream(None)
    return newest


cdef int keep_named(Buffer buffer, Stream named) except -1:
    cdef Section section
    section.begin(buffer)
    buffer.last_interface_stream = named
    return 0


cdef dict export_interface(Buffer buffer):
    cdef ArrayLayout layout = buffer.layout
    cdef Stream named = None
    if layout.dtype.typestr is None:
        raise AttributeError(f"the CUDA array interface has no name for {layout.dtype.name}: export it with DLPack")
    buffer.refuse_stale()
    if layout.size:
        named = choose_stream(buffer)
        keep_named(buffer, named if named.foreign else None)    # own ones live as long as the runtime
        export_ordered(buffer, named, NULL)
    return {"version": 3, "shape": layout.shape, "typestr": layout.dtype.typestr,
            "data": (layout.ptr, bool(layout.readonly)),
            "strides": None if layout.is_contiguous() else layout.strides, "mask": None,
            "stream": (named.handle or LEGACY) if named is not None else LEGACY}


cdef dict interface_of_block(DeviceBlock block):
    """The CUDA array interface of a block, as bytes.  The block keeps the named stream, or the stream lives as long as
    the runtime."""
    cdef Core core = block.core
    cdef Buffer buffer
    if core is None:                                    # it has no bytes
        return {"version": 3, "shape": (0,), "typestr": "|u1", "data": (0, False), "strides": None, "mask": None,
                "stream": LEGACY}
    buffer = buffer_of_block(block, core)
    named = buffer.resolve_stream(None)
    export_ordered(buffer, named, NULL)
    return {"version": 3, "shape": (block.nbytes,), "typestr": "|u1", "data": (block.address, False), "strides": None,
            "mask": None, "stream": named.handle or LEGACY}


cdef tuple export_arrow(Buffer buffer, dict keywords):
    cdef LaunchRecorder recorder = None
    buffer.refuse_stale()
    schema = schema_capsule(buffer.layout)
    unknown = [name for name, value in keywords.items() if value is not None]
    if unknown:
        raise NotImplementedError(f"unknown keyword(s): {', '.join(unknown)}")
    if buffer.layout.size:
        recorder = buffer.new_hand_over(choose_stream(buffer), READ)
        if is_in_capture(recorder):
            raise StreamMisuseError("__arrow_c_device_array__: the buffer's stream takes part in a capture, and the "
                                    "event of an Arrow array would belong to the graph. Export it before the capture, "
                                    "or as DLPack")
    return schema, array_capsule(buffer.layout, buffer.device.status.device_id, buffer.held(), recorder)
