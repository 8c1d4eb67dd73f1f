# Frontiers: the positions that the next user of a block has to be ordered after.
#
# An entry says "after (stream, position)", for one kind of access.  Entries behind which unrecorded work may stand are
# raised to a new position of their stream before anything is ordered after them.  `collect_dependencies_locked` turns a
# frontier into what a stream has to wait for; prepare and free both begin with it.

from xlogmem._base.cpp cimport check, larger, unlikely
from xlogmem._order cimport (
    ALLOCATED,
    HAS_READ,
    OPAQUE,
    SEALED,
    WRITTEN,
    EntryKind,
    advance,
    is_of_former,
    is_ordered_after_locked,
)


cdef struct Query:
    # What a stream has to be ordered after, collected for one operation block by block.
    StreamState* stream                     # NULL: the host
    uint64_t operation                      # its number: see `OrderState.operations`
    vector[Dependency]* dependencies        # gets what the stream is not ordered after yet
    vector[Entry]* snapshot                 # gets all that was looked at; NULL: not needed


cdef void set_entry(Block* block, EntryKind kind, uint32_t stream, uint64_t position) noexcept nogil:
    """Set the one entry of this kind and stream."""
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
    """File an entry for work of this access; unknown access counts as written.  So does a read on an opaque stream: its
    owner may write there later, unrecorded."""
    cdef EntryKind kind = HAS_READ
    if access != READ or stream.discipline == OPAQUE:
        kind = WRITTEN
    elif unlikely(stream.unrecorded_until != 0):
        raise_unrecorded(block, stream)
    set_entry(block, kind, stream.index, position)


cdef void raise_unrecorded(Block* block, StreamState* stream) noexcept nogil:
    """The stream has had another discipline (`change_discipline_unlocks`): its own older entries count as
    `unrecorded_until`.  A read may stand for unrecorded writes, because the stream may have been opaque: these get an
    entry of their own."""
    cdef size_t i
    cdef bint may_have_written = False
    cdef bint has_written = False
    for i in range(block.frontier.size()):
        if block.frontier[i].stream != stream.index or is_of_former(stream, block.frontier[i].position):
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


cdef void remove_own_entries(Block* block, uint32_t stream, uint64_t position) noexcept nogil:
    """A write at this position of the stream comes after all that is filed there before it."""
    cdef size_t i = 0
    cdef Entry* entry
    while i < block.frontier.size():
        entry = &block.frontier[i]
        if entry.stream == stream and entry.position <= position:
            entry[0] = block.frontier.back()
            block.frontier.pop_back()
        else:
            i += 1


# ---------------------------------------------------------------------------------------------- homes
cdef inline void set_home(Block* block, StreamState* home) noexcept nogil:
    """Change the home, and the counts of blocks of both streams."""
    if block.home != NULL:
        block.home.blocks -= 1
    if home != NULL:
        home.blocks += 1
    block.home = home


cdef inline StreamState* resolve_home(Block* block) noexcept nogil:
    """Where the block will be freed; it moves to the successor of a home that was unregistered."""
    if unlikely(block.home != NULL and not block.home.alive):
        move_to_successor(block)
    return block.home


cdef void move_to_successor(Block* block) noexcept nogil:
    """File the last position of the unregistered home.  Stream order protected the free from all work there, and the
    successor is not ordered after it."""
    cdef StreamState* dead
    while block.home != NULL and not block.home.alive:
        dead = block.home
        set_entry(block, ALLOCATED, dead.index, dead.count)
        set_home(block, dead.successor)
    if block.home != NULL and block.home.discipline == OPAQUE:
        set_entry(block, ALLOCATED, block.home.index, advance(block.home))    # as an allocation there would


cdef inline void move_home_locked(OrderState* order, Block* block, StreamState* home) noexcept nogil:
    """Free the block on another stream than before.  Stream order protected the free from unrecorded work on the old
    home; from now on only entries do, so what may hide there gets one first."""
    check(order.lock.held(), "the lock is held")
    resolve_home(block)
    if unlikely(order.discipline_changes != 0):
        raise_changed_disciplines_locked(order, block)
    set_home(block, home)


cdef void raise_changed_disciplines_locked(OrderState* order, Block* block) noexcept nogil:
    """Some streams have had another discipline: raise the entries of those that this block has.  An opaque home always
    has an entry; a home that became opaque may have lost its entry before, and gets one here."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* home = block.home
    cdef StreamState* source
    cdef bint found = home == NULL or home.unrecorded_until == 0
    cdef size_t i
    for i in range(block.frontier.size()):              # entries that are added on the way need no raising
        source = order.streams[block.frontier[i].stream]
        found |= source == home and not is_of_former(source, block.frontier[i].position)
        if source.unrecorded_until != 0:
            raise_unrecorded(block, source)
    if not found:
        set_entry(block, ALLOCATED, home.index, home.unrecorded_until)


# ---------------------------------------------------------------------------------------------- dependencies
cdef inline bint may_have_unrecorded_work(Block* block, StreamState* source) noexcept nogil:
    """Whether unrecorded work may stand behind an entry of `source`."""
    return (source.discipline == OPAQUE
            or (block.fresh and source == block.stream and source.discipline != SEALED)
            or (not block.exports.empty() and is_exported(block, source)))


cdef inline bint is_plain(Block* block, StreamState* stream) noexcept nogil:
    """Whether a use on this stream has nothing to wait for, because all entries are the stream's own: what
    `collect_dependencies_locked` would find, and nothing that it would change.  False where a home has moved, a
    discipline has changed or the block is exported, without a closer look."""
    cdef StreamState* home = block.home
    cdef size_t i
    if unlikely(stream.unrecorded_until != 0 or not block.exports.empty()):
        return False
    if home != stream and home != NULL and (home.unrecorded_until != 0 or not home.alive):
        return False
    for i in range(block.frontier.size()):
        if block.frontier[i].stream != stream.index:
            return False
    return True


cdef void collect_dependencies_locked(OrderState* order, Block* block, uint32_t access, Query* query) noexcept nogil:
    """What a use of the block has to be ordered after.

    Entries that may have unrecorded work behind them are raised first, once for each source and operation however many
    blocks share it; that is harmless if the operation fails later.  Entries go into the snapshot, and those that the
    stream is not ordered after yet into the dependencies: one for each source, with its newest position.
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
        if source != query.stream and may_have_unrecorded_work(block, source):
            raise_entry(block, entry, source, query.operation)
        if query.snapshot != NULL:
            query.snapshot.push_back(entry[0])
        if source != query.stream:
            add_dependency_locked(order, query, source, entry.position, <EntryKind>entry.kind)


cdef inline void raise_entry(Block* block, Entry* entry, StreamState* source, uint64_t operation) noexcept nogil:
    """Raise an entry to the operation's new position of its stream; not one of a stream that had the index before, and
    not if all were raised for the last time."""
    if unlikely(is_of_former(source, entry.position) or block.raised):
        return
    claim_scratch(source, operation)
    if source.raised_to == 0:
        source.raised_to = advance(source)
    entry.position = source.raised_to


cdef inline void claim_scratch(StreamState* source, uint64_t operation) noexcept nogil:
    """The scratch fields of a stream belong to one operation at a time."""
    if source.operation != operation:
        source.operation = operation
        source.raised_to = 0
        source.dependency = 0


cdef void add_dependency_locked(OrderState* order, Query* query, StreamState* source, uint64_t position,
                                EntryKind kind) noexcept nogil:
    """The stream has to be ordered after (source, position), unless it is."""
    check(order.lock.held(), "the lock is held")
    cdef Dependency new
    cdef Dependency* found
    if is_ordered_after_locked(order, query.stream, source, position):
        order.counters.elided += 1
        return
    claim_scratch(source, query.operation)
    if source.dependency == 0:
        new.source = source
        new.position = position
        new.kind = kind
        query.dependencies.push_back(new)
        source.dependency = query.dependencies.size()
        return
    found = &query.dependencies[0][source.dependency - 1]
    found.position = larger(found.position, position)
    found.kind = larger(found.kind, kind)
