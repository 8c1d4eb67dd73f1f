# Arrow device arrays: the array carries an event, which our stream waits for.  The stream on which the producer goes on
# working is never known, so the host waits for our uses before the array is released.

from cuda.bindings cimport cydriver as cy

from xlogmem._foreign.advice import kind_of
from xlogmem._base.failures cimport Failure
from xlogmem._driver cimport NO_MEMORY, MemoryKind, Scope, enter_context, leave_context, stream_wait
from xlogmem.blocks cimport Core
from xlogmem.interop._arrow cimport (
    ARROW_DEVICE_CUDA,
    ArrowDeviceArray,
    ArrowSchema,
    array_layout,
    peek_array,
    peek_schema,
    schema_dtype,
    take_array,
)
from xlogmem.interop._layout cimport ArrayLayout
from xlogmem.interop.buffers cimport DeviceSnapshot
from xlogmem.streams cimport Stream


def from_arrow(array, /, *, stream=None, state=None):
    """Import an Arrow array on the device; it is tracked, shares the memory and is read-only.

    Parameters
    ----------
    array : object with ``__arrow_c_device_array__``, or its pair of capsules
        One dimension of a fixed-width type, without nulls.
    stream : stream, optional
        The stream on which the buffer may be used at once: it waits for the array's event.  The default is the
        runtime's default stream.
    state : DeviceState, optional
        The default is the process's own.

    Returns
    -------
    Buffer
        Every recorder accepts it.  The host waits for the uses made here before the array is released.

    Raises
    ------
    TypeError
        `array` is not an Arrow array, or has a type that buffers do not have.
    BufferError
        The array is not on the device, has nulls or children, lies outside the address space, or was consumed.
    StaleBufferError
        The device is not accepting operations.

    Examples
    --------
    >>> import cudf                                                         # doctest: +SKIP
    >>> x = xlogmem.from_arrow(cudf.Series([1, 2, 3])._column)              # doctest: +SKIP
    """
    cdef ArrowSchema* schema
    cdef ArrowDeviceArray* source
    cdef DeviceSnapshot device
    cdef ArrayLayout layout
    cdef MemoryKind kind
    cdef Stream ordered
    exporter = getattr(array, "__arrow_c_device_array__", None)
    answer = array if exporter is None else exporter()
    pair = tuple(answer) if isinstance(answer, tuple) else ()
    if len(pair) != 2:
        raise TypeError(f"{kind_of(array)} has no __arrow_c_device_array__")
    schema = peek_schema(pair[0])
    source = peek_array(pair[1])
    dtype = schema_dtype(schema)
    if source.device_type != <int>ARROW_DEVICE_CUDA:
        raise BufferError(f"the array is on Arrow device type {source.device_type}, which is not CUDA: copy it with "
                          "copy_from()")
    device = take_snapshot(state, source.device_id)
    refuse_device(device.core, source.device_id)
    layout = array_layout(&source.array, dtype)
    if layout.size == 0:
        return adopt(device, layout, NO_MEMORY, take_array(pair[1]), None, device.core.stream_of(stream))
    kind = kind_of_array(device.core, layout, "the array")
    ordered = stream_for_import(device.core, stream)
    if source.sync_event != NULL:
        wait_event(device.core, ordered, (<cy.CUevent*>source.sync_event)[0])
    return adopt(device, layout, kind, take_array(pair[1]), None, ordered)


cdef int wait_event(Core core, Stream stream, cy.CUevent event) except -1:
    """Order a stream after an event."""
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = enter_context(core.state.order.context, &scope, &failure)
        if not failed:
            failed = stream_wait(stream.state.handle, event, &failure)
            leave_context(&scope)
    if failed:
        core.fail(&failure, f"having {stream!r} wait for the array's event")
    return 0
