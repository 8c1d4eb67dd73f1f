# Blocks of no bytes: there is nothing to track, order, or free, and neither the resource nor the driver is called.  The
# handle of such a block has no core, which keeps it out of all paths that look at a tracked block.

from libc.stdint cimport uint64_t

from xlogmem.errors import StreamMisuseError
from xlogmem._base.cpp cimport make_new
from xlogmem._core cimport new_identity


cdef Block* nothing = make_new[Block]()                 # in no table; its generation is no block's


cdef DeviceBlock new_empty(Core core, object where, str tag):
    cdef Stream stream = core.stream_of(where)
    cdef DeviceBlock handle
    if not stream.registered:
        raise StreamMisuseError(f"{stream!r} was unregistered")
    handle = new_handle(None, stream, tag_or_scope(tag))
    handle.block = handle.owned.item = nothing
    handle.owned.end = end_nothing
    handle.generation = new_identity()
    return handle


cdef void end_nothing(Block* _, void* __, uint64_t ___) noexcept:
    pass


cdef bint is_empty(DeviceBlock block) except -1:
    """True if the block has no bytes; raises if it was never allocated."""
    if block.block == NULL:
        raise StreamMisuseError("the block was never allocated")
    return block.core is None


cdef bint is_empty_of(DeviceBlock block, Core core) except -1:
    """True if the block is a live block of no bytes of this runtime."""
    if block.block != nothing or block.stream.ordering is not core.ordering:
        return False
    if block.owned.item == NULL:
        raise stale_handle(block)
    return True


cdef int free_empty(DeviceBlock block) except -1:
    if block.owned.item == NULL:
        raise stale_handle(block)
    block.owned.item = NULL
    return 0
