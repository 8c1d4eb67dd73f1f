# TODO

cdef void set_entry(Block* block, EntryKind kind, uint32_t stream, uint64_t position) noexcept nogil:
    cdef size_t i
    cdef Entry* entry
    for i in range(block.frontier.size()):
        if block.frontier[i].stream == stream and block.frontier[i].kind == kind:
            block.frontier[i].position = position
            return
    entry = &block.frontier.emplace_back()
    entry.kind = kind
    entry.stream = stream
    entry.position = position


cdef inline void file_access(Block* block, StreamState* stream, uint32_t access, uint64_t position) noexcept nogil:
    """An entry for work of this access; of unknown access it counts as written.  What somebody was told to read on an
    opaque stream he may also write there, later and without a recorder."""
    cdef EntryKind kind = HAS_READ
    if access != READ or stream.discipline == OPAQUE:
        kind = WRITTEN
    elif unlikely(stream.hidden != 0):
        raise_hidden(block, stream)
    set_entry(block, kind, stream.index, position)


cdef void raise_hidden(Block* block, StreamState* stream) noexcept nogil:
    """The stream has had another discipline (see `change_discipline`): entries of before count as `hidden`.  A reader's
    may hide writes, because the stream may have been opaque: they get an entry of their own."""
    cdef size_t i
    cdef bint may_have_written = False
    cdef bint has_written = False
    for i in range(block.frontier.size()):
        if block.frontier[i].stream != stream.index:
            continue
        if block.frontier[i].position <= stream.hidden:
            block.frontier[i].position = stream.hidden
            may_have_written |= block.frontier[i].kind == HAS_READ
        has_written |= block.frontier[i].kind == WRITTEN
    if may_have_written and not has_written:
        set_entry(block, WRITTEN, stream.index, stream.hidden)


cdef void remove_entry(Block* block, Entry* seen) noexcept nogil:
    """Remove an entry if it is still what the ticket says."""
    cdef size_t i
    for i in range(block.frontier.size()):
        if block.frontier[i].stream == seen.stream and block.frontier[i].kind == seen.kind:
            if block.frontier[i].position == seen.position:
                block.frontier[i] = block.frontier.back()
                block.frontier.pop_back()
            return


cdef inline StreamState* home_of(Block* block) noexcept nogil:
    """Where the block will be freed."""
    if unlikely(block.home != NULL and not block.home.alive):
        find_heir(block)
    return block.home


cdef void find_heir(Block* block) noexcept nogil:
    """The block's home has died: its heir takes over, and the dead stream's last position is filed.  Stream order
    protected the free from everything queued there, and the heir does not inherit that."""
    cdef StreamState* dead
    while block.home != NULL and not block.home.alive:
        dead = block.home
        set_entry(block, ALLOCATED, dead.index, dead.count)
        set_home(block, dead.heir)
    if block.home != NULL and block.home.discipline == OPAQUE:
        set_entry(block, ALLOCATED, block.home.index, touch(block.home))    # as what was allocated there has


cdef void raise_changed(OrderState* order, Block* block) noexcept nogil:
    """Some streams have had another discipline: those of this block count as what they were, too.  A home that is
    opaque has an entry for as long; one that became it may have lost its entry before."""
    cdef StreamState* home = block.home
    cdef StreamState* source
    cdef bint found = home == NULL or home.hidden == 0
    cdef size_t i
    for i in range(block.frontier.size()):              # what is added on the way is as it has to be
        source = order.streams[block.frontier[i].stream]
        found |= source == home
        if source.hidden != 0:
            raise_hidden(block, source)
    if not found:
        set_entry(block, ALLOCATED, home.index, home.hidden)


cdef inline void set_home(Block* block, StreamState* home) noexcept nogil:
    if block.home != NULL:
        block.home.blocks -= 1
    if home != NULL:
        home.blocks += 1
    block.home = home


cdef inline bint hides_work(Block* block, StreamState* source) noexcept nogil:
    """May work that nobody recorded stand behind an entry of `source`?"""
    return (source.discipline == OPAQUE
            or (block.fresh and source == block.stream and source.discipline != SEALED)
            or (not block.lent.empty() and is_lent(block, source)))


cdef bint is_lent(Block* block, StreamState* stream) noexcept nogil:
    cdef size_t i
    for i in range(block.lent.size()):
        if block.lent[i].stream == stream:
            return True
    return False


cdef void end_loans(Block* block, StreamState* dead) noexcept nogil:
    """Nothing is queued on a dead stream any more: what was lent there without a pin is over, and its entries answer
    for all of it."""
    cdef size_t i
    if unlikely(dead.hidden != 0):
        raise_hidden(block, dead)
    for i in range(block.frontier.size()):
        if block.frontier[i].stream == dead.index:
            block.frontier[i].position = dead.count
    i = 0
    while i < block.lent.size():
        if block.lent[i].pinned or block.lent[i].stream != dead:
            i += 1
            continue
        dead.blocks -= 1
        block.lent[i] = block.lent.back()
        block.lent.pop_back()


cdef void look(OrderState* order, Block* block, StreamState* stream, uint32_t access, uint64_t operation,
               vector[Entry]* ticket, vector[Need]* needs) noexcept nogil:
    """What a use on `stream` (NULL: the host) has to be ordered after.

    Entries that may hide work are raised first, once for each source and operation however many blocks share it;
    that is harmless if the operation fails later.  The entries go into the ticket (if there is one), what is not
    known yet into the needs: one for each source, with its newest position.
    """
    cdef size_t i
    cdef Entry* entry
    cdef StreamState* source
    home_of(block)
    if unlikely(order.changes != 0):
        raise_changed(order, block)
    for i in range(block.frontier.size()):
        entry = &block.frontier[i]
        if entry.kind == HAS_READ and access == READ:
            continue
        source = order.streams[entry.stream]
        if source != stream and hides_work(block, source):
            begin(source, operation)
            if source.touched == 0:
                source.touched = touch(source)
            entry.position = source.touched
        if ticket != NULL:
            ticket.push_back(entry[0])
        if source != stream:
            need(order, stream, source, entry.position, operation, needs, entry.kind)


cdef inline void begin(StreamState* source, uint64_t operation) noexcept nogil:
    if source.operation != operation:
        source.operation = operation
        source.touched = 0
        source.need = 0


cdef void need(OrderState* order, StreamState* stream, StreamState* source, uint64_t position, uint64_t operation,
               vector[Need]* needs, uint32_t stage) noexcept nogil:
    """Note that `stream` has to be ordered after (source, position), unless it is."""
    cdef Need new
    cdef Need* known
    if knows(order, stream, source, position):
        order.counters.known += 1
        return
    begin(source, operation)
    if source.need == 0:
        new.source = source
        new.position = position
        new.stage = stage
        needs.push_back(new)
        source.need = needs.size()
        return
    known = &needs[0][source.need - 1]
    known.position = larger(known.position, position)
    known.stage = larger(known.stage, stage)
