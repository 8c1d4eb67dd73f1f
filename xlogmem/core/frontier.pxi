# Frontiers: the positions that the next user of a block has to be ordered after.
#
# An entry says "after (stream, position)", for one kind of access.  Entries behind which unrecorded work may stand are
# raised to a new position of their stream before anything is ordered after them.  `collect_dependencies_locked` turns a
# frontier into the dependencies of a stream; prepare and free both begin with it.

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
    # The positions that a stream has to be ordered after, collected for one operation block by block.
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
    """File an entry for work of this access; unknown access counts as written.  So does a read on an opaque stream: the
    stream's owner may write there later, unrecorded."""
    cdef EntryKind kind = HAS_READ
    if access != READ or stream.discipline == OPAQUE:
        kind = WRITTEN
    elif unlikely(stream.unrecorded_until != 0):
        raise_unrecorded(block, stream)
    set_entry(block, kind, stream.index, position)


cdef void raise_unrecorded(Block* block, StreamState* stream) noexcept nogil:
    """Raise the entries of a stream that has had another discipline (`change_discipline_unlocks`): its older entries
    count as `unrecorded_until`.  A read may stand for unrecorded writes, because the stream may have been opaque: these
    writes get an entry of their own."""
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
    """Remove an entry if its position is still that of the snapshot."""
    cdef size_t i
    for i in range(block.frontier.size()):
        if block.frontier[i].stream == seen.stream and block.frontier[i].kind == seen.kind:
            if block.frontier[i].position == seen.position:
                block.frontier[i] = block.frontier.back()
                block.frontier.pop_back()
            return


cdef void remove_own_entries(Block* block, uint32_t stream, uint64_t position) noexcept nogil:
    """Remove the stream's entries up to this position: a write there comes after all of them."""
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
    """Return the stream where the block will be freed; if the home was unregistered, the block moves to its successor
    first."""
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
    """Change the stream on which the block is freed.  Stream order protected the free from unrecorded work on the old
    home; from now on only entries do, so work that may be unrecorded there gets an entry first."""
    check(order.lock.held(), "the lock is held")
    resolve_home(block)
    if unlikely(order.discipline_changes != 0):
        raise_changed_disciplines_locked(order, block)
    set_home(block, home)


cdef void raise_changed_disciplines_locked(OrderState* order, Block* block) noexcept nogil:
    """Raise the block's entries of streams that have had another discipline.  An opaque home always has an entry; a
    home that became opaque may have lost its entry before, and gets one here."""
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
    """True if unrecorded work may stand behind an entry of `source`."""
    return (source.discipline == OPAQUE
            or (block.fresh and source == block.stream and source.discipline != SEALED)
            or (not block.exports.empty() and is_exported(block, source)))


cdef inline bint is_plain(Block* block, StreamState* stream) noexcept nogil:
    """True if a use on this stream has nothing to wait for, because all entries are the stream's own: then
    `collect_dependencies_locked` would find no dependency and change nothing.  False, without a closer look, where a
    home has moved, a discipline has changed or the block is exported."""
    cdef StreamState* home = block.home
    cdef size_t i
    if unlikely(stream.unrecorded_until != 0 or block.exported != 0):
        return False
    if home != stream and home != NULL and (home.unrecorded_until != 0 or not home.alive):
        return False
    for i in range(block.frontier.size()):
        if block.frontier[i].stream != stream.index:
            return False
    return True


cdef inline bint reaches(vector[uint64_t]* clock, Entry* entry) noexcept nogil:
    return entry.stream < clock.size() and clock[0][entry.stream] >= entry.position


cdef inline bint is_covered_locked(OrderState* order, Block* block, StreamState* stream) noexcept nogil:
    """True if a read on this stream has nothing to wait for, although other streams have entries: the stream is ordered
    after the writers, and no unrecorded work may stand behind them.  Such a read changes no entry of theirs, so it is
    plain.  False, without a closer look, where `is_plain` gives up."""
    check(order.lock.held(), "the lock is held")
    cdef StreamState* home = block.home
    cdef Entry* entry
    cdef size_t i
    if unlikely(order.discipline_changes != 0 or not block.exports.empty() or home == NULL or not home.alive):
        return False
    for i in range(block.frontier.size()):
        entry = &block.frontier[i]
        if entry.stream == stream.index or entry.kind == HAS_READ:
            continue
        if may_have_unrecorded_work(block, order.streams[entry.stream]):
            return False
        if not reaches(&stream.clock, entry) and not reaches(&order.host_clock, entry):
            return False
    return True


cdef void count_known_locked(OrderState* order, Block* block, StreamState* stream, int by) noexcept nogil:
    """Count the waits that a read which is plain leaves out, or take that back: one for each entry of others."""
    check(order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(block.frontier.size()):
        if block.frontier[i].stream != stream.index and block.frontier[i].kind != HAS_READ:
            order.counters.elided += by


cdef void collect_dependencies_locked(OrderState* order, Block* block, uint32_t access, Query* query) noexcept nogil:
    """Collect the positions that a use of the block has to be ordered after.

    Entries that may have unrecorded work behind them are raised first, once for each source and operation, however many
    blocks share the source; raising is harmless if the operation fails later.  Entries go into the snapshot.  Those
    that the stream is not ordered after yet also go into the dependencies: one for each source, with its newest
    position.
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
    """Raise an entry to the operation's new position of its stream, except an entry of a stream that had the index
    before, and except where all entries were raised for the last time."""
    if unlikely(is_of_former(source, entry.position) or block.raised):
        return
    claim_scratch(source, operation)
    if source.raised_to == 0:
        source.raised_to = advance(source)
    entry.position = source.raised_to


cdef inline void claim_scratch(StreamState* source, uint64_t operation) noexcept nogil:
    """Claim the scratch fields of a stream, which belong to one operation at a time."""
    if source.operation != operation:
        source.operation = operation
        source.raised_to = 0
        source.dependency = 0


cdef void add_dependency_locked(OrderState* order, Query* query, StreamState* source, uint64_t position,
                                EntryKind kind) noexcept nogil:
    """Add a dependency on (source, position), unless the stream is ordered after it."""
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
