# Parts: a block of which launches name ranges has a frontier for each of its parts.
#
# The first launch that names a range cuts the block into parts, at the ends of the range.  Each part is a block of its
# own, with windows and a frontier, but in no table: a range uses the parts that it reaches, and all rules for blocks
# hold for them as they are.  Every other operation means all of the block: a use of it, a free, an export, a record, a
# wait.  It joins the parts first, as it brings a local block in (core/caches.pxi), and the block gets the entries of
# all.  So nothing but the pages of launches knows of parts.
#
# A window on a part counts on the block, too: the block is not freed meanwhile, and conflicts are found.  A part with
# an open window outlives a join, and hands its entries over when that window closes.  More entries than needed order
# too much, and never too little; so ranges that are many, or small, may share a part.

from xlogmem._base.cpp cimport check, larger, make_new, unlikely
from xlogmem._order cimport may_become_unowned


cdef inline Block* whole_of(Block* block) noexcept nogil:
    """Return the block that a part is of; of a block, itself."""
    return block if block.whole == NULL else block.whole


# ---------------------------------------------------------------------------------------------- parts begin and end
cdef Block* new_part_locked(CoreState* core, Block* block, Block* like, uint64_t ptr, uint64_t end) noexcept nogil:
    """Make a part of a block, with the frontier of `like`: of the block, or of the part that is cut."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* part
    cdef Entry* entry
    cdef size_t i
    if core.spare_parts.empty():
        part = make_new[Block]()                        # all zero
        core.parts.push_back(part)
    else:
        part = core.spare_parts.back()
        core.spare_parts.pop_back()
    check(part.windows == 0 and part.home == NULL, "a spare part is of no block")
    part.generation = block.generation
    part.slot = block.slot
    part.whole = block
    part.ptr = ptr
    part.nbytes = end - ptr
    part.resource = block.resource
    part.adopted = block.adopted
    part.host_accessible = block.host_accessible
    part.state = LIVE
    part.raised = like.raised
    part.fresh = like.fresh
    part.writer = like.writer
    part.operation = 0
    part.stream = block.stream
    if part.stream != NULL:
        part.stream.blocks += 1
    set_home(part, like.home)
    part.frontier.clear()
    for i in range(like.frontier.size()):
        entry = &part.frontier.emplace_back()
        entry[0] = like.frontier[i]
    return part


cdef void end_part_locked(CoreState* core, Block* part) noexcept nogil:
    check(core.order.lock.held(), "the lock is held")
    set_home(part, NULL)
    if part.stream != NULL:
        part.stream.blocks -= 1
        part.stream = NULL
    part.whole = NULL
    part.exported = 0
    core.spare_parts.push_back(part)


cdef void add_entries_locked(CoreState* core, Block* block, Block* part) noexcept nogil:
    """Add the entries of a part to those of the block, or of another part: of each kind and stream the newest stays.  A
    newer one says nothing about unrecorded work behind the older, so that gets its own entry first."""
    check(core.order.lock.held(), "the lock is held")
    cdef Entry* entry
    cdef Entry* own
    cdef size_t i, k
    if unlikely(core.order.discipline_changes != 0):
        raise_changed_disciplines_locked(core.order, block)
        raise_changed_disciplines_locked(core.order, part)
    for i in range(part.frontier.size()):
        entry = &part.frontier[i]
        for k in range(block.frontier.size()):
            own = &block.frontier[k]
            if own.stream == entry.stream and own.kind == entry.kind:
                own.position = larger(own.position, entry.position)
                break
        else:
            own = &block.frontier.emplace_back()
            own[0] = entry[0]
    if part.fresh:
        block.fresh = True


# ---------------------------------------------------------------------------------------------- the whole block
cdef bint join_parts_locked(CoreState* core, Block* block, uint64_t generation) noexcept nogil:
    """Join the parts of a block of this generation (0: of any).  False if the block has another generation."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* part
    cdef size_t i
    if generation != 0 and block.generation != generation:
        return False
    block.cache.store(NULL)
    block.frontier.clear()
    block.fresh = False
    for i in range(block.parts.size()):
        part = block.parts[i]
        add_entries_locked(core, block, part)
        if part.windows == 0:
            end_part_locked(core, part)
        else:
            part.exported = 1                           # as far as known: the block may be from now on
    block.parts.clear()
    return True


cdef Block* leave_part_locked(CoreState* core, Block* part) noexcept nogil:
    """Note that a window on a part was closed, and return the block.  A part that was joined meanwhile ends with its
    last window."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block = part.whole
    if not is_in_parts(block):
        add_entries_locked(core, block, part)
        if part.windows == 0:
            end_part_locked(core, part)
    return block


# ---------------------------------------------------------------------------------------------- ranges
cdef inline size_t place_of_part(Block* block, uint64_t address) noexcept nogil:
    """Return the place of the part that has this address; that behind the last if the address is the block's end."""
    cdef size_t first = 0, end = block.parts.size(), middle
    while first < end:
        middle = (first + end) // 2
        if block.parts[middle].ptr + block.parts[middle].nbytes <= address:
            first = middle + 1
        else:
            end = middle
    return first


cdef Block* find_part_locked(CoreState* core, Request* request, ByteRange* wanted) noexcept nogil:
    """Find the part that a range has of a live block; NULL if it has none, or shares one."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block = core.blocks[request.slot] if request.slot < core.blocks.size() else NULL
    cdef Block* part
    if (block == NULL or not is_in_parts(block) or block.generation != request.generation or block.state != LIVE
            or core.watched & BY_HISTORY):
        return NULL
    part = block.parts[place_of_part(block, wanted.first)]
    return part if part.ptr == wanted.first and part.nbytes == wanted.end - wanted.first else NULL


cdef void cut_locked(CoreState* core, Window* window, Block* block, uint64_t at, uint64_t operation) noexcept nogil:
    """Begin a part at this address, except where a part has an open window, or there are enough: then ranges share it.
    Where the launch has named the part that is cut, it names both."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t place = place_of_part(block, at), i
    cdef Block* part
    cdef Block* upper
    if place == block.parts.size():
        return
    part = block.parts[place]
    if part.ptr == at or part.windows or block.parts.size() == <size_t>MOST_PARTS:
        return
    upper = new_part_locked(core, block, part, at, part.ptr + part.nbytes)
    part.nbytes = at - part.ptr
    block.parts.push_back(NULL)
    for i in range(block.parts.size() - 1, place + 1, -1):
        block.parts[i] = block.parts[i - 1]
    block.parts[place + 1] = upper
    if part.operation == operation:
        use_block(window, upper, window.uses[part.use].access, operation)


cdef inline void use_block(Window* window, Block* block, uint32_t access, uint64_t operation) noexcept nogil:
    """Note one use of a block, or of a part, for each launch, whose number is that of the operation."""
    cdef Use* use
    if block.operation == operation:
        window.uses[block.use].access |= access
        return
    block.operation = operation
    block.use = window.uses.size()
    use = &window.uses.emplace_back()
    use.block = block
    use.access = access


cdef inline bint is_end_of_part(Block* block, uint64_t address) noexcept nogil:
    """True if no part has to be cut at this address."""
    cdef size_t place = place_of_part(block, address)
    return place == block.parts.size() or block.parts[place].ptr == address


cdef bint may_be_cut(CoreState* core, Block* block) noexcept nogil:
    """True if the block may have parts.  False while a history is recorded, while libraries that have the memory may
    queue unrecorded work, while a launch that names all of it is under way, and before the first use elsewhere of
    memory whose stream may be destroyed after that: the other parts would need the stream for a fence."""
    if core.watched & BY_HISTORY or not block.exports.empty():
        return False
    if is_in_parts(block):
        return True
    if block.windows != 0:
        return False
    return not (block.fresh and block.stream != NULL and may_become_unowned(block.stream))


cdef bint is_named_by(Block* block, uint64_t operation) noexcept nogil:
    """True if this launch has named a part of the block."""
    cdef size_t i
    for i in range(block.parts.size()):
        if block.parts[i].operation == operation:
            return True
    return False


cdef bint use_range_locked(CoreState* core, Window* window, Block* block, ByteRange* wanted, uint32_t access,
                           uint64_t operation) noexcept nogil:
    """Use the parts of a live block that a range reaches.  False, with nothing done, if all of the block is to be
    used."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    if block.operation == operation or not may_be_cut(core, block):     # the launch names all of it, too
        return False
    if (block.parts.size() + 2 > <size_t>MOST_PARTS and block.windows == 0
            and not (is_end_of_part(block, wanted.first) and is_end_of_part(block, wanted.end))
            and not is_named_by(block, operation)):
        join_parts_locked(core, block, 0)               # other ranges than before
    if block.parts.empty():
        block.parts.push_back(new_part_locked(core, block, block, block.ptr, block.ptr + block.nbytes))
        block.cache.store(<StreamCache*><size_t>IN_PARTS)
    cut_locked(core, window, block, wanted.first, operation)
    cut_locked(core, window, block, wanted.end, operation)
    i = place_of_part(block, wanted.first)
    merge_locked(core, block, i, wanted.end, operation)
    while i < block.parts.size() and block.parts[i].ptr < wanted.end:
        use_block(window, block.parts[i], access, operation)
        i += 1
    return True


cdef void merge_locked(CoreState* core, Block* block, size_t first, uint64_t end, uint64_t operation) noexcept nogil:
    """Merge the parts from place `first` on up to an address, if they are many, and no launch is under way on one."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* part
    cdef size_t behind = first, i
    while behind < block.parts.size() and block.parts[behind].ptr < end:
        if block.parts[behind].windows or block.parts[behind].operation == operation:
            return
        behind += 1
    if behind - first <= <size_t>PARTS_OF_A_RANGE:
        return
    part = block.parts[first]
    part.nbytes = block.parts[behind - 1].ptr + block.parts[behind - 1].nbytes - part.ptr
    for i in range(first + 1, behind):
        resolve_home(block.parts[i])
        add_entries_locked(core, part, block.parts[i])
        end_part_locked(core, block.parts[i])
    for i in range(behind, block.parts.size()):
        block.parts[first + 1 + (i - behind)] = block.parts[i]
    block.parts.resize(block.parts.size() - (behind - first - 1))
