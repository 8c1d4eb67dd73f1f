# TODO

cdef bint add_export(Block* block, uint64_t generation, StreamState* stream, bint pin) noexcept nogil:
    """Somebody else is given the memory, and may work on it on `stream` at any time (NULL: he named none that is known
    to live as long as he does).  With a pin until `end_export`, else until the block is freed.  False: it was."""
    cdef ExportedStream exported
    cdef size_t i = 0
    if block.generation != generation or not (block.state == LIVE or (block.state == RETIRED and block.windows)):
        return False
    if pin:
        block.pins += 1
    if stream == NULL:
        return True
    while i < block.exports.size():
        if block.exports[i].pinned or block.exports[i].stream.alive:
            i += 1
        else:
            end_exports(block, block.exports[i].stream)      # takes it off the list
    for i in range(block.exports.size() if not pin else 0):
        if block.exports[i].stream == stream and not block.exports[i].pinned:
            return True                                 # once is enough
    exported.stream = stream
    exported.pinned = pin
    block.exports.push_back(exported)
    stream.blocks += 1
    return True


cdef int end_export(CoreState* core, Block* block, uint64_t generation, StreamState* stream,
                   uint32_t access) except -1 nogil:
    """Somebody gives back what he was lent with a pin.  Whatever he queued on his stream so far is filed, so that those
    who come next are ordered after it; a free that was capture_checked for meanwhile is the next operation's.  Where nobody knows
    his stream, the pin stays until a blocking reap has waited for the context."""
    cdef OrderState* order = core.order
    cdef size_t i
    if process_was_forked():
        return 0
    order.lock.lock()
    if block.generation == generation:                  # else disowned meanwhile: the bytes are somebody else's
        check(block.pins > 0, "what is given back was lent")
        for i in range(block.exports.size() if stream != NULL else 0):
            if block.exports[i].stream == stream and block.exports[i].pinned:
                block.exports[i] = block.exports.back()
                block.exports.pop_back()
                stream.blocks -= 1
                file_access(block, stream, access, advance(stream))
                break
        if stream == NULL:
            core.returned_without_stream.push_back(block)
        else:
            unpin_export_locked(core, block)
    order.lock.unlock()
    return 0


cdef void unpin_export_locked(CoreState* core, Block* block) noexcept nogil:
    """A block that was freed meanwhile is left to the next operation, as finalizers leave theirs."""
    check(core.order.lock.held(), "the lock is held")
    block.pins -= 1
    if block.state == RETIRED and block.windows == 0 and block.pins == 0:
        drop(core, block)


cdef int release_unknown_users(CoreState* core, Failure* failure) except -1 nogil:
    """Blocks that somebody used nobody knows where: the host waits for the context, then they may be freed.  Put off
    while a graph is being captured.  The context is current."""
    cdef OrderState* order = core.order
    cdef vector[Block*] blocks
    cdef size_t i
    cdef int failed = 0
    order.lock.lock()
    blocks = core.returned_without_stream
    core.returned_without_stream.clear()
    if not blocks.empty():
        failed = sync_context_unlocks(order, failure)
    for i in range(blocks.size()):
        if failed:
            core.returned_without_stream.push_back(blocks[i])
        elif blocks[i].generation:
            unpin_export_locked(core, blocks[i])
    order.lock.unlock()
    return failed and failure.kind != SOURCE_IS_CAPTURING
