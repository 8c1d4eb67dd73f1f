# Exported memory: memory that other libraries use.
#
# A consumer that receives the memory (DLPack, Arrow, the CUDA array interface) may queue unrecorded work on it, on the
# stream that it named, until it releases the export: the stream counts as opaque for this block, and a pin puts a free
# off.  A CUDA array interface has no release: its stream counts as opaque until the block is freed, without a pin.

from libc.stdint cimport UINT64_MAX

from xlogmem._base.cpp cimport check, unlikely
from xlogmem._base.failures cimport is_put_off
from xlogmem._driver cimport Scope, enter_context, leave_context, process_was_forked
from xlogmem._order cimport (
    advance,
    current_thread,
    fence_now_unlocks,
    has_no_owner,
    is_of_former,
    needs_context_sync_locked,
    sync_contexts_unlocks,
)


cdef bint add_export_locked(CoreState* core, Block* block, uint64_t generation, StreamState* stream,
                            bint pin) noexcept nogil:
    """A consumer may work on the block on `stream` from now on (NULL: on a stream without a known owner); with a pin
    until `end_export`, else until the block is freed.  False if the block was freed before."""
    check(core.order.lock.held(), "the lock is held")
    cdef ExportedStream exported
    cdef size_t i = 0
    if not is_still_locked(core, block, generation):
        return False
    if not (block.state == LIVE or (block.state == RETIRED and block.windows)):
        return False
    if pin:
        block.pins += 1
    if stream == NULL:
        return True
    while not pin and i < block.exports.size():
        if block.exports[i].pinned or block.exports[i].stream.alive:
            i += 1
        else:
            end_exports_of_dead_stream(block, block.exports[i].stream)     # takes it off the list
    for i in range(block.exports.size() if not pin else 0):
        if block.exports[i].stream == stream and not block.exports[i].pinned:
            return True                                 # once is enough
    exported.stream = stream
    exported.pinned = pin
    block.exports.push_back(exported)
    block.exported += 1
    stream.blocks += 1
    return True


cdef int end_export(CoreState* core, Block* block, uint64_t generation, StreamState* stream,
                    uint32_t access) except -1 nogil:
    """End an export with a pin, which its consumer released.  All work that the consumer queued on its stream so far is
    filed, so that later users are ordered after it; the next operation carries out a free that was requested meanwhile.
    Without a known stream (NULL) the pin stays until a blocking reap has waited for the context."""
    if process_was_forked():
        return 0
    core.order.lock.lock()
    end_export_locked(core, block, generation, stream, access)
    core.order.lock.unlock()
    return 0


cdef bint end_export_at_once(CoreState* core, Block* block, uint64_t generation, StreamState* stream,
                             uint32_t access) noexcept:
    """Do as `end_export`, with the GIL.  False, with nothing done, if that had to wait for the lock."""
    if process_was_forked():
        return True
    if not core.order.lock.try_lock():
        return False
    end_export_locked(core, block, generation, stream, access)
    core.order.lock.unlock()
    return True


cdef void end_export_locked(CoreState* core, Block* block, uint64_t generation, StreamState* stream,
                            uint32_t access) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    if not is_still_locked(core, block, generation):    # evicted meanwhile: the bytes have another owner
        return
    check(block.pins > 0, "an export that ends was begun")
    for i in range(block.exports.size() if stream != NULL else 0):
        if block.exports[i].stream == stream and block.exports[i].pinned:
            block.exports[i] = block.exports.back()
            block.exports.pop_back()
            block.exported -= 1
            stream.blocks -= 1
            file_access(block, stream, access, advance(stream))
            break
    if stream == NULL:
        core.returned_without_stream.push_back(block)
    else:
        unpin_export_locked(core, block)


cdef inline ByteRange named_bytes(Window* window, size_t request, size_t* ranges) noexcept nogil:
    """Return the bytes that a request of a window names; called for requests in their order."""
    cdef ByteRange named
    named.request, named.first, named.end = request, 0, UINT64_MAX
    if ranges[0] < window.ranges.size() and window.ranges[ranges[0]].request == request:
        named = window.ranges[ranges[0]]
        ranges[0] += 1
    return named


cdef uint32_t access_to_any(Window* window, Block* block, ByteRange* part) noexcept nogil:
    """How an open window accesses any of these bytes of a block; 0 if it names none."""
    cdef ByteRange named
    cdef uint32_t access = 0
    cdef size_t i, ranges = 0
    for i in range(window.requests.size()):
        named = named_bytes(window, i, &ranges)
        if (window.requests[i].slot == block.slot and window.requests[i].generation == block.generation
                and named.first < part.end and part.first < named.end):
            access |= window.requests[i].access
    return access


cdef bint names_all_of(Window* window, Block* block, ByteRange* part, uint32_t access) noexcept nogil:
    """True if an open window names all of these bytes of a block, each with some of this access.  What it has besides,
    in a part that others share or in all of the block, others may be working on."""
    cdef ByteRange named
    cdef uint64_t until = part.first, before = 0
    cdef size_t i, ranges
    while until < part.end and until != before:
        before = until
        ranges = 0
        for i in range(window.requests.size()):
            named = named_bytes(window, i, &ranges)
            if (window.requests[i].slot == block.slot and window.requests[i].generation == block.generation
                    and window.requests[i].access & access and named.first <= until < named.end):
                until = named.end
    return until >= part.end


cdef bint names_all_of_block(Window* window, Block* block) noexcept nogil:
    """True if an open window names all bytes of a block that it uses, or of a part."""
    cdef ByteRange all
    all.first, all.end = block.ptr, block.ptr + block.nbytes
    return window.ranges.empty() or names_all_of(window, block, &all, READ_WRITE)


cdef uint32_t access_to_all(Window* window, Block* block, ByteRange* part) noexcept nogil:
    """How an open window accesses all of these bytes of a block; 0 if it does not name all."""
    if window.ranges.empty():                           # as nearly all are
        return access_to_any(window, block, part)
    if names_all_of(window, block, part, WRITE):
        return READ_WRITE if names_all_of(window, block, part, READ) else WRITE
    return READ if names_all_of(window, block, part, READ_WRITE) else 0


cdef void find_open_use_locked(CoreState* core, Block* block, uint64_t generation, ByteRange* part,
                               OpenUse* use) noexcept nogil:
    """Find the use that this thread is inside of, and its access to bytes of a block (NULL: to none).  Accesses by the
    host have no stream.  A use that any thread may finish is not relied on: it may end before the consumer is done."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint64_t thread = current_thread()
    cdef bint named = block != NULL and block.generation == generation
    cdef Window* window
    cdef size_t i
    use.stream = NULL
    use.several = use.is_far = False
    use.access = use.on_host = 0
    core.windows_lock.lock()
    for i in range(core.windows.size()):
        window = core.windows[i]
        if not window.is_open or window.thread != thread or window.is_anyones:
            continue
        if is_host(window.stream):
            use.on_host |= access_to_any(window, block, part) if named else 0
            continue
        use.several = use.several or (use.stream != NULL and use.stream != window.stream)
        use.stream = window.stream
        use.is_far = use.is_far or <bint>window.stream.remote
        use.access |= access_to_all(window, block, part) if named else 0
    core.windows_lock.unlock()


cdef bint export_in_use_locked(CoreState* core, Block* block, uint64_t generation, ByteRange* part,
                               OpenUse* use) noexcept nogil:
    """Find the use that this thread is inside of, and export the block there, with a pin, if the use names all of the
    bytes: then the stream is ordered already.  False if it does not, or if nothing is known to keep the stream
    alive."""
    check(core.order.lock.held(), "the lock is held")
    find_open_use_locked(core, block, generation, part, use)
    return use.access != 0 and not use.several and not has_no_owner(use.stream) and (
        add_export_locked(core, block, generation, use.stream, True))


cdef int fence_export(CoreState* core, StreamState* stream) except -1 nogil:
    """Fence an export on a stream that is alive and ordered after all uses.  An unowned stream is not touched again, so
    a fence covers its work now, whatever the policy."""
    cdef OrderState* order = core.order
    cdef Failure ignored                                # it is recorded when it is needed
    cdef Scope scope
    if not stream.unowned or enter_context(order.context, &scope, &ignored):
        return 0
    order.lock.lock()
    if needs_context_sync_locked(order, NULL, stream, stream.count):
        fence_now_unlocks(order, stream)
    order.lock.unlock()
    leave_context(&scope)
    return 0


cdef bint is_exported(Block* block, StreamState* stream) noexcept nogil:
    cdef size_t i
    for i in range(block.exports.size()):
        if block.exports[i].stream == stream:
            return True
    return False


cdef void end_exports_of_dead_stream(Block* block, StreamState* dead) noexcept nogil:
    """End the exports without a pin on an unregistered stream.  No work is queued there any more, and its entries stand
    for all work of these exports."""
    cdef size_t i
    if unlikely(dead.unrecorded_until != 0):
        raise_unrecorded(block, dead)
    for i in range(block.frontier.size()):
        if block.frontier[i].stream == dead.index and not is_of_former(dead, block.frontier[i].position):
            block.frontier[i].position = dead.count
    i = 0
    while i < block.exports.size():
        if block.exports[i].pinned or block.exports[i].stream != dead:
            i += 1
            continue
        dead.blocks -= 1
        block.exports[i] = block.exports.back()
        block.exports.pop_back()
        block.exported -= 1


cdef void unpin_export_locked(CoreState* core, Block* block) noexcept nogil:
    """Drop one pin.  A block that was freed meanwhile is left to the next operation, as by finalizers."""
    check(core.order.lock.held(), "the lock is held")
    block.pins -= 1
    if block.state == RETIRED and block.windows == 0 and block.pins == 0:
        defer_free(core, block)


cdef int release_exports_without_stream(CoreState* core, Failure* failure) except -1 nogil:
    """Release exports that were returned without a known stream: the host waits for the context, then their blocks may
    be freed.  The host also waits where a pool could not hand out memory without such a wait.  The wait is put off
    while a graph is being captured, and where the host must not wait for the context.  The context is current."""
    cdef OrderState* order = core.order
    cdef vector[Block*] blocks
    cdef bint wanted
    cdef size_t i
    cdef int failed = 0
    order.lock.lock()
    wanted = order.wants_context_sync and core.keeps_frontiers
    order.wants_context_sync = False                    # what still needs one says so again
    blocks = core.returned_without_stream
    core.returned_without_stream.clear()
    if wanted or not blocks.empty():
        failed = sync_contexts_unlocks(order, failure)
    for i in range(blocks.size()):
        if failed:
            core.returned_without_stream.push_back(blocks[i])
        elif blocks[i].generation:
            unpin_export_locked(core, blocks[i])
    order.lock.unlock()
    return failed and not is_put_off(failure)
