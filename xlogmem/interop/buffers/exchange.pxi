# DLPack between functions in C: the table that `Buffer.__dlpack_c_exchange_api__` names.
#
# A library that is called with a buffer exports it here, queries the stream to work on, launches, and drops the tensor.
# The stream is that of the `use` which the calling thread is inside of.  If the use names the buffer, its stream is
# ordered already, and the export holds the memory; the tensor is read-only where the use only reads.  A buffer that the
# use does not name is ordered on its stream first.  Outside of a use the stream is the legacy default stream, as for
# `__dlpack__` without a stream.
#
# `interchange/exchange.pxi` has the other direction.

from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport int32_t

from xlogmem._core cimport READ, READ_WRITE, WRITE, ByteRange, OpenUse
from xlogmem._driver cimport LEGACY
from xlogmem._foreign.dltensor cimport CPU, EXCHANGE, READ_ONLY, DLManagedTensorVersioned, DLPackExchange, DLTensor
from xlogmem._order cimport StreamState, has_no_owner
from xlogmem.blocks cimport Core, DeviceBlock, release_export
from xlogmem.interop._dlpack cimport DLPackExport, fill_tensor, new_export, versioned_of
from xlogmem.interop._layout cimport ArrayLayout
from xlogmem.launch cimport core_of_use, is_capture
from xlogmem.streams cimport Stream, handle_of


cdef DLPackExchange exchange                            # `interchange`, which stands above, adds its functions


cdef object exchange_capsule():
    exchange.header.version.major = 1
    exchange.header.version.minor = 3
    exchange.managed_of = managed_of_buffer
    exchange.tensor_of = tensor_of_buffer
    exchange.current_stream = stream_for_call
    return PyCapsule_New(&exchange, EXCHANGE, NULL)


cdef Buffer buffer_for_call(void* what):
    cdef Buffer buffer
    if not isinstance(<object>what, Buffer):
        raise TypeError(f"the exchange of Buffer was called with a {type(<object>what).__name__}")
    buffer = <Buffer><object>what
    buffer.refuse_stale()
    buffer.layout.for_dlpack()                          # refuses what DLPack cannot say
    return buffer


cdef Stream stream_of_consumer(Core core):
    """Return the stream on which a library works that this thread calls, as a runtime of its device knows it.  It has
    to live as long as its work is not waited for: a bare handle is refused, unless its owner is found."""
    cdef StreamState* state
    cdef Core inside = core_of_use(core.ordering.context.device_id, &state)
    cdef Stream stream
    if inside is None:
        return core.stream_of(LEGACY)
    stream = handle_of(inside.ordering, state)
    if inside is not core:
        return stream_of_another(core, inside, stream)
    if has_no_owner(state):
        stream = core.owned_stream(stream.handle) or stream
        if has_no_owner(stream.state):
            raise BufferError(f"the library would work on {stream!r}, and nothing is known to keep that stream alive "
                              "until the work is complete: give use() the stream's object in place of its handle")
    return stream


cdef int refuse_accessed(Buffer buffer, OpenUse* use) except -1:
    """Raise if the thread itself accesses the memory meanwhile, and one of the two may write."""
    cdef StreamState* state
    cdef Core inside
    if use.on_host == 0 or (use.on_host == READ and buffer.layout.readonly):
        return 0
    inside = core_of_use(buffer.core.ordering.context.device_id, &state)
    if inside is None or not is_capture(inside):        # what is captured runs later
        raise BufferError(f"this thread accesses {buffer!r} itself, and a library that it calls would work on the "
                          "memory at the same time: leave map(), or use(xlogmem.host, ...), first. Where both only "
                          "read, name the buffer in use(stream, read=...)")
    return 0


cdef Stream stream_of_another(Core core, Core inside, Stream stream):
    """Return the stream of a use in a capture, or in another runtime, as this one knows it."""
    cdef Stream own
    if is_capture(inside):
        own = core.streams.own(stream.state.handle, False)
        if own is None:
            raise BufferError(f"the library would work on {stream!r}, which captures a graph and is not a stream of "
                              "the runtime: capture a stream from acquire_stream() to call it inside")
        return own
    own = core.owned_stream(stream.handle)
    if own is None:
        raise BufferError(f"the library would work on {stream!r} of another runtime than {core!r}, of which the memory "
                          "is: call it in a use of that one")
    return own


cdef inline ByteRange bytes_of(ArrayLayout layout) noexcept:
    """The bytes of a block that the elements are in."""
    cdef ByteRange part
    part.request = 0
    part.first = layout.start
    part.end = layout.start + layout.extent
    return part


cdef int managed_of_buffer(void* what, DLManagedTensorVersioned** tensor) except? -1:
    """Export a buffer until the tensor's deleter runs."""
    cdef Buffer buffer = buffer_for_call(what)
    cdef DeviceBlock block = buffer.held()              # another thread may release the buffer meanwhile
    cdef ArrayLayout layout = buffer.layout
    cdef DLPackExport* export = new_export(layout)
    cdef ByteRange part = bytes_of(layout)
    cdef OpenUse use
    use.on_host = 0
    try:
        if layout.size == 0 or block is None or not buffer.core.export_in_use(
                block, &part, &use, &export.base):
            use.access = READ_WRITE
            if layout.size:
                refuse_accessed(buffer, &use)
                export_ordered(buffer, stream_of_consumer(buffer.core), &export.base)
        fill_tensor(&export.plain.dl_tensor, layout, <void*>layout.ptr, device_of_buffer(buffer), export.extents)
    except BaseException:
        release_export(&export.base)
        raise
    export.versioned.flags = READ_ONLY if layout.readonly or not use.access & WRITE else 0
    tensor[0] = versioned_of(export)
    return 0


cdef int tensor_of_buffer(void* what, DLTensor* tensor) except? -1:
    """Describe a buffer to a function that drops the description before it returns.  Where no use names the buffer, the
    consumer's stream counts as opaque for the block from then on, as that of a CUDA array interface does."""
    cdef Buffer buffer = buffer_for_call(what)
    cdef DeviceBlock block = buffer.held()
    cdef ArrayLayout layout = buffer.layout
    cdef ByteRange part = bytes_of(layout)
    cdef OpenUse use
    use.on_host = 0
    if layout.size and (block is None or not buffer.core.is_named_in_use(block, &part, &use)):
        refuse_accessed(buffer, &use)
        export_ordered(buffer, stream_of_consumer(buffer.core), NULL)
    return fill_tensor(tensor, layout, <void*>layout.ptr, device_of_buffer(buffer), NULL)


cdef int stream_for_call(int32_t device_type, int32_t device_id, void** stream) except? -1:
    """Give the stream on which a library works that this thread calls; NULL: the legacy default stream."""
    cdef StreamState* state = NULL
    if device_type != <int>CPU:
        core_of_use(device_id, &state)
    stream[0] = <void*>state.handle if state != NULL else NULL
    return 0
