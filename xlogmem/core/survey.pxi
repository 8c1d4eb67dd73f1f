# Snapshots of a runtime, for users and for error messages.
#
# No figure is kept for this: everything is read from the tables, with the lock.  The contents of the caches are read
# while all caches are stopped.  A block joins or leaves a cache with the runtime's lock held, so everything read
# afterwards is of the same moment, and the caches need not be stopped for it.

from xlogmem._base.cpp cimport check
from xlogmem._base.labels cimport held
from xlogmem._base.survey cimport Seen, SeenStream, SeenUser, Survey
from xlogmem._order cimport ALLOCATED, WRITTEN, is_of_former
from xlogmem.resources.tally cimport Row, Tally, add_to, row_of


cdef void survey_locked(CoreState* core, Survey* survey) noexcept nogil:
    """Copy all blocks, frontiers and streams.  The caller releases the tags."""
    check(core.order.lock.held(), "the lock is held")
    cdef SeenStream* stream
    cdef size_t i, k
    survey_caches_locked(core, survey)
    survey.pending_bytes = core.pending_bytes
    for i in range(core.blocks.size()):
        if has_memory_locked(core, core.blocks[i]):
            see_locked(core, core.blocks[i], &survey.blocks.emplace_back())
            see_frontier_locked(core, core.blocks[i], survey)
    for i in range(core.order.streams.size()):
        stream = &survey.streams.emplace_back()
        stream.number = core.order.streams[i].number
        stream.handle = <size_t>core.order.streams[i].handle
        stream.discipline = core.order.streams[i].discipline
        stream.alive = <bint>core.order.streams[i].alive
        stream.pending_bytes = 0
        for k in range(core.pending[i].size() if i < core.pending.size() else 0):
            stream.pending_bytes += core.pending[i][k].nbytes


cdef void survey_caches_locked(CoreState* core, Survey* survey) noexcept nogil:
    """Copy the totals, and the blocks that only caches know."""
    check(core.order.lock.held(), "the lock is held")
    cdef StreamCache* cache
    cdef Figures figures
    cdef Seen* seen
    cdef size_t i, k
    survey.cached_bytes = 0
    hold_caches_locked(core)
    add_up_locked(core, &figures)
    survey.live_bytes = figures.live_bytes
    survey.live_blocks = figures.live_blocks
    for i in range(core.caches.size()):
        cache = core.caches[i]
        survey.cached_bytes += cache.cached_bytes if cache.resource == core.resource else 0
        for k in range(cache.places.size() if cache.live_blocks else 0):
            if cache.places[k].block != NULL and cache.places[k].block.state == LOCAL:
                seen = &survey.blocks.emplace_back()
                see_locked(core, cache.places[k].block, seen)
                seen.first = seen.end = survey.users.size()     # its own stream alone has used it
    release_caches_locked(core)


cdef inline bint has_memory_locked(CoreState* core, Block* block) noexcept nogil:
    """True if a slot has a block that is not freed and is in no cache."""
    check(core.order.lock.held(), "the lock is held")
    return cache_of(block) == NULL and block.generation != 0 and block.state in (LIVE, RETIRED, FREEING)


cdef void see_locked(CoreState* core, Block* block, Seen* seen) noexcept nogil:
    """Copy a block, except its frontier.  Takes a reference to the tag."""
    check(core.order.lock.held(), "the lock is held")
    cdef uint32_t i
    seen.resource = 0
    for i in range(core.others.size() if block.resource != core.resource else 0):
        if core.others[i] == block.resource:
            seen.resource = 1 + i
    seen.generation = block.generation
    seen.ptr = block.ptr
    seen.nbytes = block.nbytes
    seen.tag = held(block.tag)
    seen.stream = block.stream.number + 1 if block.stream != NULL else 0
    seen.home = block.home.number + 1 if block.home != NULL else 0
    seen.windows = block.windows
    seen.pins = block.pins
    seen.freed = block.state not in (LIVE, LOCAL)
    seen.adopted = block.adopted
    seen.first = seen.end = 0


cdef void see_frontier_locked(CoreState* core, Block* block, Survey* survey) noexcept nogil:
    """Copy the users of the block that was copied last, with the numbers of their streams."""
    check(core.order.lock.held(), "the lock is held")
    cdef Seen* seen = &survey.blocks.back()
    cdef StreamState* source
    cdef SeenUser* user
    cdef size_t i
    if is_in_parts(block):
        join_parts_locked(core, block, 0)
    seen.first = survey.users.size()
    for i in range(block.frontier.size()):
        source = core.order.streams[block.frontier[i].stream]
        if block.frontier[i].kind != ALLOCATED and not is_of_former(source, block.frontier[i].position):
            user = &survey.users.emplace_back()
            user.stream = source.number
            user.position = block.frontier[i].position
            user.writes = block.frontier[i].kind == WRITTEN
    seen.end = survey.users.size()


cdef bint see_generation_locked(CoreState* core, uint64_t generation, Seen* seen) noexcept nogil:
    """Find the block of a generation, for the message of an error.  Searches all blocks; False if the block was freed,
    or is local."""
    check(core.order.lock.held(), "the lock is held")
    cdef size_t i
    for i in range(core.blocks.size()):
        if has_memory_locked(core, core.blocks[i]) and core.blocks[i].generation == generation:
            see_locked(core, core.blocks[i], seen)
            return True
    return False


cdef void tally_tags_locked(CoreState* core, Tally* tally, Figures* figures) noexcept nogil:
    """Sum up live bytes by tag, and the totals.  Blocks of caches carry no tag."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block
    cdef size_t i
    cdef Row* row
    count_all_locked(core, figures)
    for i in range(core.blocks.size()):
        block = core.blocks[i]
        if has_memory_locked(core, block) and not block.adopted:
            add_to(row_of(tally, <uint64_t><size_t>block.tag, block.tag), block.nbytes)
    if figures.live_blocks > core.live_blocks:
        row = row_of(tally, 0, NULL)
        row.nbytes += figures.live_bytes - core.live_bytes
        row.count += figures.live_blocks - core.live_blocks
