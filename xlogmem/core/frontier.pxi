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
    elif unlikely(stream.unrecorded_until != 0):
        raise_unrecorded(block, stream)
    set_entry(block, kind, stream.index, position)


cdef void raise_unrecorded(Block* block, StreamState* stream) noexcept nogil:
    """The stream has had another discipline (see `change_discipline_unlocks`): entries of before count as `hidden`.  A reader's
    may hide writes, because the stream may have been opaque: they get an entry of their own."""
    cdef size_t i
    cdef bint may_have_written = False
    cdef bint has_written = False
    for i in range(block.frontier.size()):
        if block.frontier[i].stream != stream.index:
            continue
        if block.frontier[i].position <= stream.unrecorded_until:
            block.frontier[i].position = stream.unrecorded_until
            may_have_written |= block.frontier[i].kind == HAS_READ
        has_written |= block.frontier[i].kind == WRITTEN
    if may_have_written and not has_written:
        set_entry(block, WRITTEN, stream.index, stream.unrecorded_until)


cdef void remove_entry(Block* block, Entry* seen) noexcept nogil:
    """Remove an entry if it is still what the snapshot says."""
    cdef size_t i
    for i in range(block.frontier.size()):
        if block.frontier[i].stream == seen.stream and block.frontier[i].kind == seen.kind:
            if block.frontier[i].position == seen.position:
                block.frontier[i] = block.frontier.back()
                block.frontier.pop_back()
            return


cdef inline StreamState* resolve_home(Block* block) noexcept nogil:
    """Where the block will be freed."""
    if unlikely(block.home != NULL and not block.home.alive):
        move_to_successor(block)
    return block.home


cdef void move_to_successor(Block* block) noexcept nogil:
    """The block's home has died: its successor takes over, and the dead stream's last position is filed.  Stream order
    protected the free from everything queued there, and the successor does not inherit that."""
    cdef StreamState* dead
    while block.home != NULL and not block.home.alive:
        dead = block.home
        set_entry(block, ALLOCATED, dead.index, dead.count)
        set_home(block, dead.successor)
    if block.home != NULL and block.home.discipline == OPAQUE:
        set_entry(block, ALLOCATED, block.home.index, advance(block.home))    # as what was allocated there has


cdef void raise_changed_disciplines_locked(OrderState* order, Block* block) noexcept nogil:
    """Some streams have had another discipline: those of this block count as what they were, too.  A home that is
    opaque has an entry for as long; one that became it may have lost its entry before."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* home = block.home
    cdef StreamState* source
    cdef bint found = home == NULL or home.unrecorded_until == 0
    cdef size_t i
    for i in range(block.frontier.size()):              # what is added on the way is as it has to be
        source = order.streams[block.frontier[i].stream]
        found |= source == home
        if source.unrecorded_until != 0:
            raise_unrecorded(block, source)
    if not found:
        set_entry(block, ALLOCATED, home.index, home.unrecorded_until)


cdef inline void set_home(Block* block, StreamState* home) noexcept nogil:
    if block.home != NULL:
        block.home.blocks -= 1
    if home != NULL:
        home.blocks += 1
    block.home = home


cdef inline bint may_have_unrecorded_work(Block* block, StreamState* source) noexcept nogil:
    """May work that nobody recorded stand behind an entry of `source`?"""
    return (source.discipline == OPAQUE
            or (block.fresh and source == block.stream and source.discipline != SEALED)
            or (not block.exports.empty() and is_exported(block, source)))


cdef bint is_exported(Block* block, StreamState* stream) noexcept nogil:
    cdef size_t i
    for i in range(block.exports.size()):
        if block.exports[i].stream == stream:
            return True
    return False


cdef void end_exports(Block* block, StreamState* dead) noexcept nogil:
    """Nothing is queued on a dead stream any more: what was lent there without a pin is over, and its entries answer
    for all of it."""
    cdef size_t i
    if unlikely(dead.unrecorded_until != 0):
        raise_unrecorded(block, dead)
    for i in range(block.frontier.size()):
        if block.frontier[i].stream == dead.index:
            block.frontier[i].position = dead.count
    i = 0
    while i < block.exports.size():
        if block.exports[i].pinned or block.exports[i].stream != dead:
            i += 1
            continue
        dead.blocks -= 1
        block.exports[i] = block.exports.back()
        block.exports.pop_back()


cdef void collect_dependencies_locked(OrderState* order, Block* block, StreamState* stream, uint32_t access, uint64_t operation,
               vector[Entry]* snapshot, vector[Dependency]* dependencies) noexcept nogil:
    """What a use on `stream` (NULL: the host) has to be ordered after.

    Entries that may hide work are raised first, once for each source and operation however many blocks share it;
    that is harmless if the operation fails later.  The entries go into the snapshot (if there is one), what is not
    known yet into the dependencies: one for each source, with its newest position.
    """
    check(order.lock.held(), "the lock is held")
    cdef size_t i
    cdef Entry* entry
    cdef StreamState* source
    resolve_home(block)
    if unlikely(order.discipline_changes != 0):
        raise_changed_disciplines_locked(order, block)
    for i in range(block.frontier.size()):
        entry = &block.frontier[i]
        if entry.kind == HAS_READ and access == READ:
            continue
        source = order.streams[entry.stream]
        if source != stream and may_have_unrecorded_work(block, source):
            begin(source, operation)
            if source.raised_to == 0:
                source.raised_to = advance(source)
            entry.position = source.raised_to
        if snapshot != NULL:
            snapshot.push_back(entry[0])
        if source != stream:
            add_dependency_locked(order, stream, source, entry.position, operation, dependencies, entry.kind)


cdef inline void begin(StreamState* source, uint64_t operation) noexcept nogil:
    if source.operation != operation:
        source.operation = operation
        source.raised_to = 0
        source.dependency = 0


cdef void add_dependency_locked(OrderState* order, StreamState* stream, StreamState* source, uint64_t position, uint64_t operation,
               vector[Dependency]* dependencies, uint32_t kind) noexcept nogil:
    """Note that `stream` has to be ordered after (source, position), unless it is."""
    check(order.lock.held(), "the lock is held")
    cdef Dependency new
    cdef Dependency* known
    if is_ordered_after_locked(order, stream, source, position):
        order.counters.elided += 1
        return
    begin(source, operation)
    if source.dependency == 0:
        new.source = source
        new.position = position
        new.kind = kind
        dependencies.push_back(new)
        source.dependency = dependencies.size()
        return
    known = &dependencies[0][source.dependency - 1]
    known.position = larger(known.position, position)
    known.kind = larger(known.kind, kind)
