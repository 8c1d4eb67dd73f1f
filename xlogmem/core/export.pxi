# TODO

cdef bint lend(Block* block, uint64_t generation, StreamState* stream, bint pin) noexcept nogil:
    """Somebody else is given the memory, and may work on it on `stream` at any time (NULL: he named none that is known
    to live as long as he does).  With a pin until `take_back`, else until the block is freed.  False: it was."""
    cdef Lent loan
    cdef size_t i = 0
    if block.generation != generation or not (block.state == LIVE or (block.state == RETIRED and block.windows)):
        return False
    if pin:
        block.pins += 1
    if stream == NULL:
        return True
    while i < block.lent.size():
        if block.lent[i].pinned or block.lent[i].stream.alive:
            i += 1
        else:
            end_loans(block, block.lent[i].stream)      # takes it off the list
    for i in range(block.lent.size() if not pin else 0):
        if block.lent[i].stream == stream and not block.lent[i].pinned:
            return True                                 # once is enough
    loan.stream = stream
    loan.pinned = pin
    block.lent.push_back(loan)
    stream.blocks += 1
    return True


cdef int take_back(CoreState* core, Block* block, uint64_t generation, StreamState* stream,
                   uint32_t access) except -1 nogil:
    """Somebody gives back what he was lent with a pin.  Whatever he queued on his stream so far is filed, so that those
    who come next are ordered after it; a free that was asked for meanwhile is the next operation's.  Where nobody knows
    his stream, the pin stays until a blocking reap has waited for the context."""
    cdef OrderState* order = core.order
    cdef size_t i
    if process_was_forked():
        return 0
    order.lock.lock()
    if block.generation == generation:                  # else disowned meanwhile: the bytes are somebody else's
        check(block.pins > 0, "what is given back was lent")
        for i in range(block.lent.size() if stream != NULL else 0):
            if block.lent[i].stream == stream and block.lent[i].pinned:
                block.lent[i] = block.lent.back()
                block.lent.pop_back()
                stream.blocks -= 1
                file_access(block, stream, access, touch(stream))
                break
        if stream == NULL:
            core.escaped.push_back(block)
        else:
            unpin_block(core, block)
    order.lock.unlock()
    return 0


cdef void unpin_block(CoreState* core, Block* block) noexcept nogil:
    """A block that was freed meanwhile is left to the next operation, as finalizers leave theirs."""
    block.pins -= 1
    if block.state == RETIRED and block.windows == 0 and block.pins == 0:
        drop(core, block)


cdef int settle_escaped(CoreState* core, Failure* failure) except -1 nogil:
    """Blocks that somebody used nobody knows where: the host waits for the context, then they may be freed.  Put off
    while a graph is being captured.  The context is current."""
    cdef OrderState* order = core.order
    cdef vector[Block*] blocks
    cdef size_t i
    cdef int failed = 0
    order.lock.lock()
    blocks = core.escaped
    core.escaped.clear()
    if not blocks.empty():
        failed = synchronize_all(order, failure)
    for i in range(blocks.size()):
        if failed:
            core.escaped.push_back(blocks[i])
        elif blocks[i].generation:
            unpin_block(core, blocks[i])
    order.lock.unlock()
    return failed and failure.kind != SOURCE_IS_CAPTURING
