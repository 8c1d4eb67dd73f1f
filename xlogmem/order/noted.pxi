# Waits and fences in a recorded history.  core/recorded.pxi has the events of blocks.

from xlogmem.observe._history cimport (
    STREAM_WAITS,
    Draft,
    Ring,
    TimedWait,
    file_timed,
    mark_of,
    new_event,
    place_found,
    the_ring,
)


cdef Ring* history = the_ring()
cdef atomic[uint32_t] numbers                       # of orders so far


cdef uint32_t next_mark(int device_id) noexcept:
    """The mark by which events name an order: a number of 18 bits, which counts from 1 and starts again at 1 after
    262,143 orders, and below it four bits of the device."""
    cdef uint32_t number = numbers.fetch_add(1) % <uint32_t>0x3FFFF + 1
    return mark_of(number << 4 | <uint32_t>(device_id & 15))


cdef uint64_t note_order(OrderState* order, EventKind kind, StreamState* stream, StreamState* source,
                         uint64_t position) noexcept nogil:
    """Note that a stream (NULL: the host) waits for another stream (NULL: for everything), or has a fence.  Call it
    while `is_recorded`.  Returns the event's number."""
    cdef Draft event = new_event(kind, order.mark, current_thread())
    event.stack = place_found()
    event.position = <uint32_t>position
    if stream != NULL:
        event.stream = <uint32_t>stream.number
    if source != NULL:
        event.other = <uint32_t>source.number
    return history.note(event)


cdef void note_wait(OrderState* order, StreamState* stream, StreamState* source, uint64_t position,
                    TimedWait* timed) noexcept nogil:
    """Note that a stream waits for another stream; `timed` is NULL for a wait without a time."""
    cdef uint64_t number = note_order(order, STREAM_WAITS, stream, source, position)
    if timed != NULL:
        file_timed(timed, number)
