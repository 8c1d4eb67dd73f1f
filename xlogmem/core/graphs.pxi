# Blocks that a graph holds, and their stand-ins while the graph is captured.
#
# A capture is an order of its own: its positions, clocks and fences mean nothing outside, and those of outside mean
# nothing in it.  So each capture has a core of its own (launch/captures.pxi), in which adopted memory stands in for the
# blocks of the runtime, and everything above holds there as it is: its fences are captured events.  Nothing has been
# queued on a stand-in before the capture, but unrecorded work may follow on some streams, as on the block itself.
#
# The graph holds the blocks themselves by pins, as an export does: a free is put off until the graph is closed.  A
# launch of the graph is a use, which may name blocks that are freed and held.

from xlogmem._base.cpp cimport check
from xlogmem._order cimport fence_now_unlocks, order_after_itself_unlocks


cdef Block* find_pinned_locked(CoreState* core, uint32_t slot, uint64_t generation) noexcept nogil:
    """Find a block whose free a pin puts off; NULL if there is none."""
    check(core.order.lock.held(), "the lock is held")
    cdef Block* block = core.blocks[slot] if slot < core.blocks.size() else NULL
    if block == NULL or not is_still_locked(core, block, generation):
        return NULL
    return block if block.state == RETIRED and block.pins != 0 else NULL


cdef bint hold_block(CoreState* core, uint32_t slot, uint64_t generation, HeldBlock* held,
                     vector[StreamOutside]* streams) noexcept nogil:
    """Hold a block: its memory stays until `release_block`.  Fill in `held`, and the streams on which unrecorded work
    on the block may be queued: that of its owner, if there is one, and those of consumers.  False if the block was
    freed before."""
    cdef Block* block
    cdef size_t i
    streams.clear()
    core.order.lock.lock()
    block = find_live_locked(core, slot, generation)
    if block != NULL:
        block.pins += 1
        held.block = block
        held.slot = slot
        held.generation = generation
        held.ptr = block.ptr
        held.nbytes = block.nbytes
        held.host_accessible = is_host_accessible(block)
        held.home = 0
        if block.home != NULL and block.home.discipline == OPAQUE:
            held.home = add_outside(streams, block.home, True)
        elif block.stream != NULL and may_have_unrecorded_work(block, block.stream):
            held.home = add_outside(streams, block.stream, True)
        for i in range(block.exports.size()):
            add_outside(streams, block.exports[i].stream, False)
    core.order.lock.unlock()
    return block != NULL


cdef size_t add_outside(vector[StreamOutside]* streams, StreamState* stream, bint is_home) noexcept nogil:
    cdef StreamOutside* outside = &streams.emplace_back()
    outside.handle = <size_t>stream.handle
    outside.is_home = is_home
    outside.lives = <bint>stream.alive and not stream.unowned and stream.thread == 0 and not stream.remote
    return outside.handle


cdef int release_block(CoreState* core, HeldBlock* held) except -1 nogil:
    """End what `hold_block` began; the next operation carries out a free that was requested meanwhile."""
    core.order.lock.lock()
    if is_still_locked(core, held.block, held.generation):      # else evicted meanwhile
        unpin_export_locked(core, held.block)
    core.order.lock.unlock()
    return 0


# ---------------------------------------------------------------------------------------------- before a capture
cdef int fence_before_capture(CoreState* core, cy.CUstream handle) except -1 nogil:
    """Record a fence behind what is filed on a stream that begins to capture, or joins a capture: nothing can be
    recorded there later, and others wait for its work.  An unowned stream has a fence behind each of its uses."""
    cdef OrderState* order = core.order
    cdef StreamState* stream
    cdef Failure ignored                                # without a fence others are refused while it captures
    cdef Scope scope
    cdef size_t i
    if enter_context(order.context, &scope, &ignored):
        return 0
    order.lock.lock()
    for i in range(order.streams.size()):
        stream = order.streams[i]
        if (stream.handle == handle and <bint>stream.alive and not stream.unowned and not stream.remote
                and stream.count):
            fence_now_unlocks(order, stream)
            break
    order.lock.unlock()
    leave_context(&scope)
    return 0


# ---------------------------------------------------------------------------------------------- launches
cdef bint begin_launch(GraphState* graph) noexcept nogil:
    """Begin a launch, so that no thread closes the graph before `end_launch`.  False if the graph is not ready."""
    if graph.launching.fetch_add(1) >= 0:
        return True
    end_launch(graph)
    return False


cdef void end_launch(GraphState* graph) noexcept nogil:
    graph.launching.fetch_sub(1)


cdef bint begin_close(GraphState* graph) noexcept nogil:
    """Let no launch begin any more.  False if one is under way: then the graph stays as it is."""
    cdef int launching = 0
    while not graph.launching.compare_exchange_weak(launching, NOT_READY):
        if launching != 0:
            return launching < 0                        # it was not ready
    return True


# ---------------------------------------------------------------------------------------------- stand-ins
cdef void allow_unrecorded_work(CoreState* core, uint32_t slot, StreamState* stream) noexcept nogil:
    """Let unrecorded work on a stand-in be queued on a captured stream, from what is captured there so far on."""
    core.order.lock.lock()
    cdef Block* block = core.blocks[slot]
    if add_export_locked(core, block, block.generation, stream, False):
        set_entry(block, ALLOCATED, stream.index, advance(stream))
    core.order.lock.unlock()


cdef uint32_t access_of(CoreState* core, uint32_t slot) noexcept nogil:
    """How the uses that were filed access a block; 0: not at all."""
    cdef uint32_t access = 0
    cdef Block* block
    cdef size_t i
    core.order.lock.lock()
    block = core.blocks[slot]
    if is_in_parts(block):
        join_parts_locked(core, block, 0)
    if block.writer:
        access = READ_WRITE
    for i in range(block.frontier.size()):
        if block.frontier[i].kind != ALLOCATED:         # on an opaque stream a read is filed as a write
            access |= READ
    core.order.lock.unlock()
    return access


cdef int order_after_all(CoreState* core, StreamState* stream, StreamState* source, bint lives,
                         Failure* failure) except -1 nogil:
    """Order a stream after everything that is captured on another one so far; unless this one certainly `lives`, after
    its last use that was filed: other work is for the program to join."""
    cdef OrderState* order = core.order
    cdef Scope scope
    cdef int failed
    if enter_context(order.context, &scope, failure):
        return 1
    order.lock.lock()
    order.in_flight += 1
    failed = order_after_unlocks(order, stream, source, advance(source) if lives else source.count, failure)
    order.in_flight -= 1
    order.lock.unlock()
    leave_context(&scope)
    return failed


cdef int order_after_itself(CoreState* core, StreamState* stream, Failure* failure) except -1 nogil:
    """Order what is captured under a handle after the last use that was filed under it."""
    cdef OrderState* order = core.order
    cdef Scope scope
    cdef int failed
    if enter_context(order.context, &scope, failure):
        return 1
    order.lock.lock()
    order.in_flight += 1
    failed = order_after_itself_unlocks(order, stream, failure)
    order.in_flight -= 1
    order.lock.unlock()
    leave_context(&scope)
    return failed


cdef void end_order(CoreState* core) noexcept nogil:
    """End the order of a capture: nothing is ordered after its positions any more, and its streams are not touched
    again."""
    cdef OrderState* order = core.order
    cdef Block* block
    cdef size_t i
    order.lock.lock()
    for i in range(core.blocks.size()):
        block = core.blocks[i]
        if is_in_parts(block):
            join_parts_locked(core, block, 0)
        block.frontier.clear()
        block.exports.clear()
        block.exported = 0
        block.home = block.stream = NULL                # of no stream any more, and freed without a wait
    for i in range(order.streams.size()):
        order.streams[i].alive.store(False)
    order.lock.unlock()
