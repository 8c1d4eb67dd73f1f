"""Arrays of other libraries, imported as buffers: DLPack, the CUDA array interface, Arrow device arrays.

The producer goes on owning the memory, so two orders have to hold: our uses come after the producer's work so far, and
the producer's later work with the memory comes after our uses.

If the producer's stream is known, because the caller or the producer's library names it, the memory is adopted on this
stream: the first use elsewhere is ordered after the stream, and the stream is ordered after every use before the
producer's array is released.  If it is not known, one of our streams is ordered after the producer's work at the
import, as the standard says, and before the producer's array is released the host waits for our uses (for those alone).

All imports take the same steps.  The array's description is parsed into an `ArrayLayout`; one `DeviceSnapshot` is taken
and used until the buffer is made; everything is checked before anything is taken or enqueued; then `adopt` tracks the
memory.  A malformed description is refused with BufferError (a DLPack tensor), ValueError or TypeError (an interface, a
schema), whatever it contains.

The pages: `interchange/dlpack.pxi`, `interchange/exchange.pxi`, `interchange/cuda_array.pxi`, `interchange/arrow.pxi`.
"""

from libc.stdint cimport uint64_t

from xlogmem.errors import DeviceLostError, StreamMisuseError
from xlogmem.interop.devices import DeviceState, get_device_state
from xlogmem._base.failures cimport Failure
from xlogmem._core cimport LAUNCHED, READ, READ_WRITE
from xlogmem._driver cimport (
    BEYOND_MEMORY,
    DEVICE_MEMORY,
    HOST_MEMORY,
    NO_MEMORY,
    Context,
    Memory,
    MemoryKind,
    Scope,
    enter_context,
    kind_of_memory,
    leave_context,
    process_was_forked,
    stream_is_capturing,
)
from xlogmem._order cimport OrderState, advance, order_after_unlocks
from xlogmem.blocks cimport Core, DeviceBlock, adopt_device_range
from xlogmem.interop._layout cimport ArrayLayout
from xlogmem.interop.buffers cimport Buffer, DeviceSnapshot, new_buffer
from xlogmem.launch cimport LaunchRecorder, has_captures
from xlogmem.streams cimport Stream


__all__ = ["from_arrow", "from_cuda_array", "from_dlpack"]


cdef DeviceSnapshot take_snapshot(object state, int device_id):
    """A snapshot of the device state that the buffer is made for; the default is the process's own."""
    cdef DeviceSnapshot taken
    if state is None:
        state = get_device_state(device_id)
    elif not isinstance(state, DeviceState):
        raise TypeError(f"state is a DeviceState, not {state!r}")
    taken = state._taken
    if taken is None or taken.stale() != NULL or process_was_forked():
        taken = state._take_snapshot()
    return taken


# ---------------------------------------------------------------------------------------------- driver calls
cdef MemoryKind kind_of_array(Core core, ArrayLayout layout, str what) except? NO_MEMORY:
    """Find the kind of memory of an array with elements; raises unless all of it is memory of this device, or
    page-locked.  Needs no context."""
    cdef Context context = core.ordering.context
    cdef Failure failure
    cdef uint64_t first = layout.start, last = first + layout.extent - 1
    cdef Memory memory, end
    cdef int failed
    with nogil:
        failed = kind_of_memory(context.device, first, layout.extent, &memory, &failure)
        if memory.is_whole:
            end = memory
        elif not failed:
            failed = kind_of_memory(context.device, last, 1, &end, &failure)
    if failed:
        core.fail(&failure, f"querying the memory of {what}")
    if memory.kind in (NO_MEMORY, BEYOND_MEMORY) or end.kind != memory.kind or (
            memory.kind != HOST_MEMORY and not memory.device_id == end.device_id == context.device_id):
        raise BufferError(f"{what}: [{first:#x}, {last + 1:#x}) is neither memory of device {context.device_id} nor "
                          "page-locked")
    return memory.kind


cdef int refuse_device(Core core, object device_id) except -1:
    if device_id != core.ordering.context.device_id:
        raise BufferError(f"the array is on device {device_id}, the buffer is to be on "
                          f"{core.ordering.context.device_id}")
    return 0


cdef Stream stream_for_import(Core core, object given):
    """Return the stream on which an imported array may be used at once, before its library is called: it would order
    the stream after work that is not captured."""
    cdef Stream stream = core.stream_of(given)
    cdef bint capturing = False
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    if not has_captures():
        return stream
    with nogil:
        failed = enter_context(core.state.order.context, &scope, &failure)
        if not failed:
            failed = stream_is_capturing(stream.state.handle, &capturing, &failure)
            leave_context(&scope)
    if failed:
        core.fail(&failure, f"querying {stream!r}")
    if capturing:
        raise StreamMisuseError(f"stream={stream!r} is capturing a graph, and the array's library would order it after "
                                "work that is not captured. Import the array before the capture, or inside it without "
                                "stream=")
    return stream


cdef int order_now(Core core, Stream stream, Stream producer) except -1:
    """Order a stream after all work enqueued on another stream so far."""
    cdef OrderState* order = core.state.order
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    if stream == producer:
        return 0
    with nogil:
        failed = enter_context(order.context, &scope, &failure)
        if not failed:
            order.lock.lock()
            failed = order_after_unlocks(order, stream.state, producer.state, advance(producer.state), &failure)
            order.lock.unlock()
            leave_context(&scope)
    if failed:
        core.fail(&failure, f"ordering {stream!r} after {producer!r}")
    return 0


# ---------------------------------------------------------------------------------------------- adoption
cdef Buffer adopt(DeviceSnapshot device, ArrayLayout layout, MemoryKind kind, object owner, Stream producer,
                  Stream ordered):
    """Track the memory of an array, and hold its owner.

    `producer` is the stream on which the owner goes on working with the memory; without a `producer` the host waits for
    our uses before the owner is released.  `ordered` comes after the owner's work so far: there the memory may be used
    at once.
    """
    cdef Core core = device.core
    cdef DeviceBlock block
    cdef Buffer buffer
    cdef LaunchRecorder recorder
    if layout.size == 0:
        return new_buffer(device, None, layout, None)
    try:
        block = adopt_device_range(core, layout.start, layout.extent, producer, owner, None,
                                   kind != DEVICE_MEMORY)
    except DeviceLostError:
        device.refuse_stale()                           # its state may recover: say what became of the snapshot
        raise
    if ordered is not None and producer is None:
        core.record_block_use(block, ordered)
    buffer = new_buffer(device, block, layout, owner if block.owned.item == NULL else None)
    if ordered is not None and producer is not None:
        recorder = buffer.new_hand_over(ordered, READ if layout.readonly else READ_WRITE)
        recorder.open()
        recorder.finish(LAUNCHED)
    buffer.refuse_stale()
    return buffer


include "interchange/dlpack.pxi"      # from_dlpack
include "interchange/exchange.pxi"    # DLPack between functions in C
include "interchange/cuda_array.pxi"  # from_cuda_array
include "interchange/arrow.pxi"       # from_arrow
