"""Who may touch which memory: blocks, windows and frees.  The heart of xlogmem; read this page first.

A *block* is one allocation.  Its *generation* is a number that no other block of the process ever has: addresses come
back, generations do not, so a handle that outlived its block is told apart from the block that lives at the same
address now.

A *use* is a launch that reads or writes blocks on some stream.  It has a *window*: ``prepare`` opens it before the
launch and queues the waits that make the launch right; ``finish`` closes it after the launch and files what
happened.  While a window is open on a block the block cannot be freed: a free asked for meanwhile is carried out by
the last close.

What is filed is the *frontier* of a block: for each kind of access (allocated, written, has-read) and each stream,
the newest position that the next user has to be ordered after.  A reader is ordered after the allocation and the
writers, a writer or a free after all.  A writer's finish removes the entries that its own prepare was ordered after
(its *ticket*), if they have not changed since, and no others: a reader that slipped in between is not forgotten.
So a frontier holds at most one entry per kind and stream, however often the block is used, and a use costs no
event: a position is a number, and `_order` records events only where a stream has to wait for another one.

People fill new memory without telling anybody.  So until a use on another stream has been filed, a block is
*fresh*: its entries on its own stream are raised to a new position of that stream before anybody else is ordered
after them, which covers whatever was queued there so far.  Streams whose owner queues work on blocks at any time
(cuDF's) are *opaque*: the same holds for all entries of such a stream as long as it is that, and the stream itself is
ordered after each use elsewhere of a block that will be freed there (the *hand-back*), because its owner cannot be told
to wait.

A resource may keep frontiers itself (the pool does): then a free hands the block's over with the bytes and makes no
driver call, and whoever gets the bytes next is ordered after it.  Without such a resource most frees make nobody wait
either: a block that was only used where it is freed goes the short way (``used_at_home_alone``).

Memory that somebody else allocated can be *adopted*: it is tracked like a block, and where a block would be freed its
owner is let go.  Streams may be somebody else's too and may die: a block whose home died is freed on the *heir*.
Memory can be *lent* to others, who work on it on a stream that they named, at any time and without telling: for this
block the stream counts as opaque, and a *pin* puts the free off until they give it back.

Locks.  One lock guards a runtime: this room's tables and `_order`'s.  Under it there is no driver call, no GIL and
no Python object.  Every operation here is a C function that runs without the GIL, does its bookkeeping in one
acquisition and makes its driver calls outside.  What must not change meanwhile is protected by an open window, a
pin or the state FREEING.  Finalizers never take the lock: they push what they held on a lock-free list, which the
next operation drains.

Handles.  Block structures are never moved or freed while their core lives; a handle is a slot and a generation, and is
valid if the slot still has that generation.
"""
from cuda.bindings cimport cydriver as cy

from xlogmem cimport _defects as defect
from xlogmem._cpp cimport check, larger, mutex, prefetch, unlikely
from xlogmem._defects cimport planted
from xlogmem._driver cimport (
    BLOCK_IS_CONTESTED,
    BLOCK_IS_STALE,
    DEVICE_IS_LOST,
    DRIVER_FAILED,
    NO_FAILURE,
    PROCESS_WAS_FORKED,
    PYTHON_RAISED,
    RESOURCE_FAILED,
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    STREAM_IS_DEAD,
    Scope,
    enter_context,
    is_sticky,
    leave_context,
    process_was_forked,
    stream_is_capturing,
)
from xlogmem._index cimport NO_STREAM, Tracked, erase, floor_of, insert, successor_of
from xlogmem._order cimport (
    ADAPTIVE,
    BIRTH,
    CONTENTS,
    LAZY,
    OPAQUE,
    PRECISE,
    SEALED,
    Fence,
    Policy,
    ask_host,
    bound_elsewhere,
    bury_foreign,
    host_waits_for,
    host_waits_from_afar,
    knows,
    order_after,
    order_all,
    record_fence,
    refuse_capturing,
    refuse_if_capturing,
    settle,
    synchronize_all,
    touch,
)
from xlogmem.resources.base cimport HOST_SYNCHRONOUS, STREAM_ORDERED, drop_exception

cdef enum:
    PRECISE_FOR = 64            # commits that record at once after a launch elsewhere had to wait (adaptive)
    MARKERS = 64                # per stream, before neighbours are merged
    RESERVE = 64                # windows kept for the next recorders

cdef atomic[uint64_t] generations           # of this process, shared by all devices and resources (contract 5)


# ---------------------------------------------------------------------------------------------- frontiers
cdef void set_entry(Block* block, EntryKind kind, uint32_t stream, uint64_t position) noexcept nogil:
    cdef size_t i
    cdef Entry* entry
    for i in range(block.frontier.size()):
        if block.frontier[i].stream == stream and (
                block.frontier[i].kind == kind or planted(defect.ONE_ENTRY_PER_STREAM)):
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
    if access != READ or (stream.discipline == OPAQUE and not planted(defect.OPAQUE_READ_IS_READ)):
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
            if block.frontier[i].position == seen.position or planted(defect.CHANGED_ENTRY_REMOVED):
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
        if not planted(defect.HEIR_FILES_NOTHING):
            set_entry(block, ALLOCATED, dead.index, dead.count)
        set_home(block, dead.heir)
    if block.home != NULL and block.home.discipline == OPAQUE:
        set_entry(block, ALLOCATED, block.home.index, touch(block.home))    # as what was allocated there has


cdef void raise_changed(OrderState* order, Block* block) noexcept nogil:
    """Some streams have had another discipline: those of this block count as what they were, too.  A home that is
    opaque has an entry for as long; one that became it may have lost its entry before."""
    cdef StreamState* home = block.home
    cdef StreamState* source
    cdef bint found = home == NULL or home.hidden == 0 or planted(defect.CHANGE_FORGETS_HOME)
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
    return (source.discipline == OPAQUE and not planted(defect.OPAQUE_WORK_IGNORED)) or (
        block.fresh and source == block.stream and source.discipline != SEALED
        and not planted(defect.FRESH_WORK_IGNORED)) or (
        not block.lent.empty() and is_lent(block, source) and not planted(defect.LENT_WORK_IGNORED))


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
        if forgotten(entry.kind, access, ticket == NULL):
            continue
        source = order.streams[entry.stream]
        if source != stream and hides_work(block, source) and not (
                entry.kind != ALLOCATED and planted(defect.HIDDEN_RAISES_ONE_KIND)):
            begin(source, operation)
            if source.touched == 0:
                source.touched = source.count if planted(defect.HIDDEN_TAKES_NO_POSITION) else touch(source)
            entry.position = source.touched
        if ticket != NULL:
            ticket.push_back(entry[0])
        if source != stream:
            need(order, stream, source, entry.position, operation, needs, entry.kind)


cdef inline bint forgotten(uint32_t kind, uint32_t access, bint free) noexcept nogil:
    """Never, but for a planted defect."""
    if free:
        return (kind == HAS_READ and planted(defect.FREE_FORGETS_READERS)
                or kind == WRITTEN and planted(defect.FREE_FORGETS_WRITERS))
    return (kind == HAS_READ and planted(defect.WRITE_FORGETS_READERS)
            or kind == ALLOCATED and access == READ and planted(defect.READ_FORGETS_BIRTH))


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
    if position > known.position and planted(defect.OLDER_NEED_KEPT):
        return
    known.position = larger(known.position, position)
    known.stage = larger(known.stage, stage)


# ---------------------------------------------------------------------------------------------- windows in reserve
cdef cppclass Reserve:
    mutex lock                              # a leaf
    vector[Window*] windows

cdef Reserve* reserve = new Reserve()       # never destroyed: threads may outlive the interpreter's end


cdef Window* take_window() noexcept nogil:
    cdef Window* window = NULL
    if reserve.lock.try_lock():
        if not reserve.windows.empty():
            window = reserve.windows.back()
            reserve.windows.pop_back()
        reserve.lock.unlock()
    if window == NULL:
        window = new Window()
    window.is_open = False
    window.requests.clear()
    window.uses.clear()
    return window


cdef void give_window(Window* window) noexcept nogil:
    if reserve.lock.try_lock():
        if reserve.windows.size() < RESERVE:
            reserve.windows.push_back(window)
            window = NULL
        reserve.lock.unlock()
    if window != NULL:
        del window


# ---------------------------------------------------------------------------------------------- prepare
cdef inline Block* find_live(CoreState* core, uint32_t slot, uint64_t generation) noexcept nogil:
    cdef Block* block
    if slot >= core.blocks.size():
        return NULL
    block = core.blocks[slot]
    if block.generation != generation and not planted(defect.GENERATION_IGNORED):
        return NULL
    return block if block.state == LIVE else NULL


cdef int merge_and_validate(CoreState* core, Window* window, uint64_t operation, Failure* failure) noexcept nogil:
    """One use for each block, in the order of first sight (contract 103).  Makes no driver call, changes nothing."""
    cdef size_t i
    cdef Request* request
    cdef Block* block
    cdef Use use
    window.uses.clear()
    for i in range(window.requests.size()):
        request = &window.requests[i]
        block = find_live(core, request.slot, request.generation)
        if block == NULL:
            failure.kind = BLOCK_IS_STALE
            failure.generation = request.generation
            failure.argument = i + 1
            return 1
        if block.operation == operation:
            if planted(defect.MERGE_KEEPS_FIRST):
                continue
            window.uses[block.use].access |= request.access
            continue
        block.operation = operation
        block.use = window.uses.size()
        use.block = block
        use.access = request.access
        window.uses.push_back(use)
    return 0


cdef int prepare(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """Open one window over all blocks of a launch.

    Everything is validated, and the windows are opened, in one acquisition and before any driver call; then the
    missing waits are queued.  If one cannot be queued the windows close as in a cancel.  What was queued stays
    known, so a retry is cheap.
    """
    cdef Scope scope
    cdef int failed
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    failed = refuse_stream(core, window.stream, failure)
    if not failed:
        failed = open_window(core, window, failure)
    leave_context(&scope)
    return note(core, failed, failure)


cdef int refuse_stream(CoreState* core, StreamState* stream, Failure* failure) except -1 nogil:
    """Refuse to work on a stream that is dead or capturing.  Without the lock."""
    cdef bint capturing = False
    failure.stream = stream.number
    if not stream.alive:
        failure.kind = STREAM_IS_DEAD
        return 1
    if stream_is_capturing(stream.handle, &capturing, failure):
        return 1
    if capturing and not planted(defect.CAPTURING_STREAM_USED):
        failure.kind = STREAM_IS_CAPTURING
        return 1
    return 0


cdef inline int refuse_lost(CoreState* core, Failure* failure) noexcept nogil:
    if core.lost.load() == 0:
        return 0
    failure.kind = DEVICE_IS_LOST
    return 1


cdef inline int refuse_forked(Failure* failure) noexcept nogil:
    """Before the lock: in a forked child it may be held by a thread that the child does not have."""
    if not process_was_forked():
        return 0
    failure.kind = PROCESS_WAS_FORKED
    return 1


cdef inline int note(CoreState* core, int failed, Failure* failure) noexcept nogil:
    """Remember that the device is lost (W36)."""
    if failed and is_sticky(failure):
        core.lost.store(1)
    return failed


cdef bint contested(CoreState* core, Window* window, Failure* failure) noexcept nogil:
    """Is a window open on another stream that conflicts with one of the uses?  What that launch does cannot be
    waited for yet, because it was not filed (W11)."""
    cdef size_t i
    cdef Use* use
    for i in range(window.uses.size()):
        use = &window.uses[i]
        if (use.block.windows and use.block.window_stream != window.stream
                and (use.access & WRITE or use.block.writers) and not planted(defect.CONFLICT_UNNOTICED)):
            core.counters.conflicts += 1
            failure.kind = BLOCK_IS_CONTESTED
            failure.generation = use.block.generation
            failure.argument = i + 1
            return True
    return False


cdef void open_on(Window* window, Use* use) noexcept nogil:
    cdef Block* block = use.block
    if block.windows == 0:
        block.window_stream = window.stream
    elif block.window_stream != window.stream:
        block.window_stream = NULL
    block.windows += 1
    if use.access & WRITE:
        block.writers += 1


cdef int open_window(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    cdef OrderState* order = core.order
    cdef uint64_t operation
    cdef Use* use
    cdef size_t i
    cdef Failure other
    cdef bint more
    cdef int failed = 0
    order.lock.lock()
    order.operations += 1
    operation = order.operations
    if not window.stream.alive:
        failure.kind = STREAM_IS_DEAD
        failure.stream = window.stream.number
        order.lock.unlock()
        return 1
    if merge_and_validate(core, window, operation, failure) or (
            contested(core, window, failure) and window.exclusive):
        order.lock.unlock()
        return 1
    window.ticket.clear()
    window.needs.clear()
    window.changes = order.changes
    for i in range(window.uses.size()):
        use = &window.uses[i]
        use.first = window.ticket.size()
        look(order, use.block, window.stream, use.access, operation, &window.ticket, &window.needs)
        use.end = window.ticket.size()
        if use.block.fresh and window.stream != use.block.stream and planted(defect.FRESH_UNTIL_PREPARE):
            use.block.fresh = False
        if not planted(defect.WINDOWS_OPEN_LATE):
            open_on(window, use)
    if planted(defect.POSITION_AT_PREPARE):
        window.position = touch(window.stream)
    window.is_open = True
    window.stream.windows += 1
    if not window.needs.empty():
        order.in_flight += 1
        if window.needs.size() > 1 and not planted(defect.WAITS_BEFORE_VALIDATION):
            failed = refuse_capturing(order, window.stream, &window.needs, failure)
        if not failed:
            failed = order_all(order, window.stream, &window.needs, failure)
        if not failed:
            for i in range(window.needs.size()):
                if window.needs[i].stage != BIRTH:
                    window.needs[i].source.credit = PRECISE_FOR
        order.in_flight -= 1
    if planted(defect.WINDOWS_OPEN_LATE):
        for i in range(window.uses.size()):
            open_on(window, &window.uses[i])
    more = failed and not planted(defect.FAILED_WINDOW_STAYS_OPEN) and file_window(core, window, NOT_PREPARED)
    order.lock.unlock()
    if more:
        finish_rest(core, window, &other)
    return failed


# ---------------------------------------------------------------------------------------------- finish
cdef void file_use(CoreState* core, Window* window, Use* use) noexcept nogil:
    cdef OrderState* order = core.order
    cdef StreamState* stream = window.stream
    cdef StreamState* source
    cdef Entry* seen
    cdef size_t i
    if use.access & WRITE:
        for i in range(use.first, use.end):
            seen = &window.ticket[i]
            source = order.streams[seen.stream]
            if not use.block.lent.empty() and is_lent(use.block, source) and not planted(defect.LENT_ENTRY_REMOVED):
                if source.alive or seen.position < source.count:
                    continue                            # more may stand behind it
                end_loans(use.block, source)
            if source.discipline != OPAQUE or planted(defect.OPAQUE_ENTRY_REMOVED):
                remove_entry(use.block, seen)
        if planted(defect.FINISH_REMOVES_ALL):
            use.block.frontier.clear()
    file_access(use.block, stream, use.access, window.position)
    if use.access & WRITE:
        use.block.writer = stream.number + 1
    if stream != use.block.stream:
        use.block.fresh = False


cdef void leave_changed(OrderState* order, Window* window) noexcept nogil:
    """A stream got another discipline while the window was open.  What may be hidden behind its entries is more than
    the launch was ordered after: they stay."""
    cdef size_t i
    for i in range(window.ticket.size()):
        if window.ticket[i].position < order.streams[window.ticket[i].stream].hidden:
            window.ticket[i].position = 0               # no entry has this one


cdef void note_home(Window* window, Use* use) noexcept nogil:
    """Copied now: once the window is closed the block may be freed."""
    cdef StreamState* home = home_of(use.block)
    cdef Need entry
    cdef size_t i
    if home == NULL or home.discipline != OPAQUE or home == window.stream or planted(defect.HAND_BACK_SKIPPED):
        return
    if (window.hand_back == HAND_BACK_WRITES or planted(defect.HAND_BACK_FORGETS_READS)) and not use.access & WRITE:
        return
    for i in range(window.homes.size()):
        if window.homes[i].source == home:
            return
    entry.source = home
    entry.position = window.position
    entry.stage = CONTENTS
    window.homes.push_back(entry)


cdef bint file_window(CoreState* core, Window* window, Outcome outcome) noexcept nogil:
    """Close the windows and file the launch, or forget it if nothing was launched.  Called with the lock held; refuses
    nothing and makes no driver call.  True if `finish_rest` has to follow."""
    cdef StreamState* stream = window.stream
    cdef Policy policy = core.order.policy
    cdef Use* use
    cdef size_t i
    window.is_open = False
    window.record = False
    window.homes.clear()
    window.claimed.clear()
    if outcome == LAUNCHED:
        core.counters.uses += 1
        if not planted(defect.POSITION_AT_PREPARE):
            window.position = touch(stream)
        if unlikely(window.changes != core.order.changes):
            leave_changed(core.order, window)
        for i in range(window.uses.size()):
            use = &window.uses[i]
            if i > 0 and i + 1 == window.uses.size() and planted(defect.COMMIT_STOPS_HALF_WAY):
                break
            if use.block.state == RETIRED and planted(defect.RETIRED_USE_LOST):
                continue
            file_use(core, window, use)
            note_home(window, use)
        window.record = policy == PRECISE or (stream.raw and policy == ADAPTIVE)
        if policy == ADAPTIVE and stream.credit:
            stream.credit -= 1
            window.record = True
    elif outcome == CANCELLED:
        core.counters.cancelled += 1
        for i in range(window.uses.size() if planted(defect.CANCEL_REMOVES_ENTRIES) else 0):
            window.uses[i].block.frontier.clear()
    for i in range(window.uses.size()):
        use = &window.uses[i]
        check(use.block.windows > 0, "a window that closes was open")
        check(use.block.state == LIVE or use.block.state == RETIRED or use.block.generation == 0
              or planted(defect.EVERY_CLOSE_CLAIMS), "a block is not freed inside a window")
        use.block.windows -= 1
        if use.access & WRITE:
            use.block.writers -= 1
        if use.block.state == RETIRED and ((use.block.windows == 0 and use.block.pins == 0)
                                           or planted(defect.EVERY_CLOSE_CLAIMS)):
            use.block.state = FREEING                   # claimed in this acquisition: nobody else frees it
            window.claimed.push_back(use.block)
    stream.windows -= 1
    if not (window.record or not window.homes.empty() or not window.claimed.empty()):
        return False
    stream.busy += 1                                    # instead of the window, until `finish_rest` is done
    core.order.in_flight += 1
    return True


cdef int finish_rest(CoreState* core, Window* window, Failure* failure) except -1 nogil:
    """The driver calls that follow a filing: the fence, the hand-back, the claimed frees.

    A fence that cannot be recorded now is recorded when it is needed.  A free that fails is tried again by the next
    call.  Only a hand-back that failed on the stream and on the host is a failure, reported after everything else was
    done.
    """
    cdef OrderState* order = core.order
    cdef Failure ignored
    cdef Fence* fence
    cdef Scope scope
    cdef size_t i
    cdef int failed = enter_context(order.context, &scope, failure)
    cdef bint entered = not failed
    order.lock.lock()
    if failed:                                          # the claimed frees are kept for a later call
        for i in range(window.claimed.size()):
            keep_for_later(core, window.claimed[i], failure)
        failed = not window.homes.empty()
    else:
        if window.record and not bound_elsewhere(window.stream):
            note(core, record_fence(order, window.stream, &fence, &ignored), &ignored)
        for i in range(window.homes.size()):
            if hand_back(order, window.homes[i].source, window.stream, window.position,
                         &ignored if failed else failure):
                failed = 1
        for i in range(window.claimed.size()):
            free_for_somebody_else(core, window.claimed[i])
    window.stream.busy -= 1
    order.in_flight -= 1
    order.lock.unlock()
    if entered:
        leave_context(&scope)
    return note(core, failed, failure)


cdef int hand_back(OrderState* order, StreamState* home, StreamState* stream, uint64_t position,
                   Failure* failure) except -1 nogil:
    """Order an opaque home after a use elsewhere; if that cannot be queued the host waits, so that everything queued
    there later is ordered.  Called with the lock held, releases it."""
    cdef int failed = 1
    if not home.alive:
        return 0                                        # unregistered meanwhile: no hidden work there any more
    if not bound_elsewhere(home):
        home.busy += 1
        failed = (refuse_if_capturing(order, home, STREAM_IS_CAPTURING, failure)
                  or order_after(order, home, stream, position, failure))
        home.busy -= 1
    if failed and planted(defect.HAND_BACK_GIVES_UP):
        return 0
    if failed:
        failed = host_waits_for(order, stream, position, failure)
    return failed


# ---------------------------------------------------------------------------------------------- work without a window
cdef int record_use(CoreState* core, uint32_t slot, uint64_t generation, StreamState* stream, uint32_t access,
                    Failure* failure) except -1 nogil:
    """Work is already queued that nobody prepared: file it, remove nothing, keep the block fresh.  Of unknown
    access (0) it counts as written, so that later readers are ordered after it too (W5).  On a retired block it
    files, then refuses."""
    cdef OrderState* order = core.order
    cdef Failure ignored
    cdef Fence* fence
    cdef Block* block
    cdef Scope scope
    cdef bint known
    cdef int failed = 0
    if refuse_lost(core, failure) or enter_context(order.context, &scope, failure):
        return 1
    drain(core)
    order.lock.lock()
    block = core.blocks[slot] if slot < core.blocks.size() else NULL
    known = block != NULL and block.generation == generation and block.state in (LIVE, RETIRED)
    if not stream.alive:
        failure.kind = STREAM_IS_DEAD
        failure.stream = stream.number
        failed = 1
    elif known and not (block.state == RETIRED and planted(defect.LATE_RECORD_LOST)):
        if planted(defect.RECORD_REMOVES_ENTRIES):
            block.frontier.clear()
        if access == 0 and planted(defect.UNKNOWN_ACCESS_IS_READ):
            access = READ
        if stream != block.stream and planted(defect.RECORD_ENDS_FRESHNESS):
            block.fresh = False
        file_access(block, stream, access, touch(stream))
        if access != READ:
            block.writer = stream.number + 1
        if stream.raw and order.policy != LAZY and not bound_elsewhere(stream):
            record_fence(order, stream, &fence, &ignored)
    if not failed and (not known or block.state == RETIRED):
        failure.kind = BLOCK_IS_STALE
        failure.generation = generation
        failure.argument = 0
        failed = 1
    order.lock.unlock()
    leave_context(&scope)
    return failed


# ---------------------------------------------------------------------------------------------- lending
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
        if block.lent[i].stream == stream and (not block.lent[i].pinned or planted(defect.OFFER_ENDS_WITH_LOAN)):
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
                if not planted(defect.GIVEN_BACK_UNFILED):
                    file_access(block, stream, access, touch(stream))
                break
        if stream == NULL and not planted(defect.GIVEN_BACK_UNFILED):
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


# ---------------------------------------------------------------------------------------------- allocate, adopt
cdef inline Block* new_block(CoreState* core, uint64_t ptr, size_t nbytes, StreamState* stream) noexcept nogil:
    cdef Block* block
    cdef Entry* entry
    if unlikely(core.empty.empty()):
        block = new Block()
        block.slot = core.blocks.size()
        core.blocks.push_back(block)
    else:
        block = core.blocks[core.empty.back()]
        core.empty.pop_back()
    check(block.windows == 0 and block.generation == 0, "an empty slot is empty")
    block.generation = generations.fetch_add(1) + 1
    block.ptr = ptr
    block.nbytes = nbytes
    block.stream = stream
    block.home = NULL
    block.owner = block.piece = NULL
    block.adopted = False
    block.windows = block.writers = 0
    block.pins = 0
    block.writer = 0
    block.operation = 0
    block.state = LIVE
    block.frontier.clear()
    block.fresh = stream != NULL
    if stream != NULL:
        stream.blocks += 2                  # as its stream and as its home
        block.home = stream
        entry = &block.frontier.emplace_back()
        entry.kind = ALLOCATED
        entry.stream = stream.index
        entry.position = stream.count if planted(defect.BIRTH_TAKES_NO_POSITION) else touch(stream)
    link(core, block)
    return block


cdef inline void link(CoreState* core, Block* block) noexcept nogil:
    """Into the address index."""
    cdef Tracked* known = insert(&core.index, block.ptr)
    known.generation = block.generation
    known.nbytes = block.nbytes
    known.stream = block.stream.index if block.stream != NULL else <uint32_t>NO_STREAM
    known.slot = block.slot


cdef int allocate(CoreState* core, size_t nbytes, StreamState* stream, Block** result,
                  Failure* failure) except -1 nogil:
    cdef Scope scope
    cdef int failed
    if refuse_forked(failure) or begin_call(core.order, stream, failure):
        return 1
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        end_call(core.order, stream)
        return 1
    drain(core)
    failed = refuse_stream(core, stream, failure)
    if failed:
        end_call(core.order, stream)
    else:
        failed = allocate_on_busy(core, nbytes, stream, True, result, failure)
    leave_context(&scope)
    return note(core, failed, failure)


cdef int allocate_on_busy(CoreState* core, size_t nbytes, StreamState* stream, bint ends, Block** result,
                          Failure* failure) except -1 nogil:
    """Get memory from the resource and track it.  The allocation entry is a position taken after the resource's call,
    so whatever covers it covers the birth of the memory.  The stream is busy, which `ends` here or goes on, and not
    capturing; the context is current, but for a resource that finds its device."""
    cdef OrderState* order = core.order
    cdef uint64_t ptr = 0
    cdef void* piece = NULL
    cdef int failed = get_bytes(core, nbytes, stream, &ptr, &piece, failure)
    if (unlikely(failed) and failure.kind in (DRIVER_FAILED, PYTHON_RAISED, RESOURCE_FAILED)
            and failure.code == cy.CUDA_ERROR_OUT_OF_MEMORY):
        order.lock.unlock()
        failed = allocate_again(core, nbytes, stream, &ptr, &piece, failure)
    if ends:
        stream.busy -= 1
    if not unlikely(failed):
        if not planted(defect.COLLISION_IGNORED):
            disown(core, ptr, nbytes)
        result[0] = new_block(core, ptr, nbytes, stream)
        result[0].piece = piece
        core.live_bytes += nbytes
        core.live_blocks += 1
        core.counters.allocations += 1
    order.lock.unlock()
    return note(core, failed, failure)


cdef int begin_call(OrderState* order, StreamState* stream, Failure* failure) noexcept nogil:
    """Nobody may unregister the stream while a call uses its handle."""
    cdef int failed = 0
    order.lock.lock()
    if stream.alive:
        stream.busy += 1
    else:
        failure.kind = STREAM_IS_DEAD
        failure.stream = stream.number
        failed = 1
    order.lock.unlock()
    return failed


cdef void end_call(OrderState* order, StreamState* stream) noexcept nogil:
    order.lock.lock()
    stream.busy -= 1
    order.lock.unlock()


cdef inline int get_bytes(CoreState* core, size_t nbytes, StreamState* stream, uint64_t* ptr, void** piece,
                          Failure* failure) except -1 nogil:
    """Memory that may be used on the stream from now on.  Returns with the lock held, failed or not."""
    cdef int failed
    if core.resource.frontiers != NULL:
        core.order.lock.lock()
        return core.resource.frontiers.allocate(core.resource.self, nbytes, stream, ptr, piece, failure)
    failed = core.resource.allocate(core.resource.self, nbytes, stream.handle, ptr, failure)
    fetch(core, stream)
    core.order.lock.lock()
    return failed


cdef int allocate_again(CoreState* core, size_t nbytes, StreamState* stream, uint64_t* ptr, void** piece,
                        Failure* failure) except -1 nogil:
    """Out of memory: let the host wait for the frees that are queued, have the resource give back what it keeps, and
    try once more (W34)."""
    cdef vector[Failure] failures
    cdef Failure ignored
    cdef size_t i
    cdef int failed = 0
    reap(core, True, &failures)
    core.order.lock.lock()
    if failure.kind == PYTHON_RAISED:
        let_go_later(core, failure.exception)
    for i in range(failures.size()):                    # told by the next reap
        keep_failure(core, &failures[i])
        core.untold = True
    core.order.lock.unlock()
    if core.resource.frontiers != NULL:
        core.order.lock.lock()
        failed = core.resource.frontiers.trim(core.resource.self, nbytes, stream, &ignored)
        core.order.lock.unlock()
    elif core.resource.trim != NULL:
        failed = core.resource.trim(core.resource.self, &ignored)
    if failed:
        drop_exception(&ignored)
    return get_bytes(core, nbytes, stream, ptr, piece, failure)


cdef void disown(CoreState* core, uint64_t ptr, size_t nbytes) noexcept nogil:
    """The resource handed out addresses that we think are live: their old blocks are the corrupt ones (W19).  They are
    taken out of the books without a free, so that their handles are stale and the new owner is safe."""
    cdef uint64_t base
    cdef Tracked* known = floor_of(&core.index, ptr, &base)
    if unlikely(known != NULL and ptr - base < known.nbytes):
        disown_block(core, core.blocks[known.slot])
    known = successor_of(&core.index, ptr, &base)
    while unlikely(known != NULL and base - ptr < nbytes):
        disown_block(core, core.blocks[known.slot])
        known = successor_of(&core.index, ptr, &base)


cdef void disown_block(CoreState* core, Block* block) noexcept nogil:
    erase(&core.index, block.ptr)
    forget(core, block)
    block.state = FREED                                 # the slot is not used again: a window may still point to it
    block.generation = 0


cdef inline void forget(CoreState* core, Block* block) noexcept nogil:
    """Out of the books of bytes and streams."""
    if unlikely(block.adopted):
        if block.owner != NULL:
            let_go_later(core, block.owner)
            block.owner = NULL
    else:
        check(core.live_bytes >= block.nbytes and core.live_blocks > 0, "live bytes are those of the live blocks")
        core.live_bytes -= block.nbytes
        core.live_blocks -= 1
    set_home(block, NULL)
    if block.stream != NULL:
        block.stream.blocks -= 1
        block.stream = NULL
    while unlikely(not block.lent.empty()):
        block.lent.back().stream.blocks -= 1
        block.lent.pop_back()


cdef void let_go_later(CoreState* core, void* owner) noexcept nogil:
    core.orphans.push_back(owner)
    core.orphaned.store(True)


cdef inline void release_slot(CoreState* core, Block* block) noexcept nogil:
    forget(core, block)
    block.state = FREED
    block.generation = 0
    if block.windows and (planted(defect.FREED_INSIDE_WINDOW) or planted(defect.EVERY_CLOSE_CLAIMS)):
        return                                          # a window still points to it
    core.empty.push_back(block.slot)


cdef int adopt(CoreState* core, uint64_t ptr, size_t nbytes, StreamState* stream, void* owner, Found* result,
               Failure* failure) except -1 nogil:
    """Track memory of somebody else, without taking it: what is inside a tracked block is that block, what overlaps
    one in part is refused (failure BLOCK_IS_CONTESTED).  `stream` says where the owner's work on it was queued;
    NULL says that it is ready for everybody.  Makes no driver call but for drained frees."""
    cdef OrderState* order = core.order
    cdef Tracked* below
    cdef Tracked* above
    cdef Block* block
    cdef Scope scope
    cdef uint64_t base = 0, following = 0
    cdef bint inside
    cdef int failed = 0
    if refuse_lost(core, failure) or enter_context(order.context, &scope, failure):
        return 1
    drain(core)
    leave_context(&scope)
    order.lock.lock()
    below = floor_of(&core.index, ptr, &base)
    above = successor_of(&core.index, ptr, &following)
    inside = below != NULL and ptr - base < below.nbytes
    result.adopted = False
    if inside and nbytes <= below.nbytes - (ptr - base):
        describe(order, base, below, result)
    elif (inside or (above != NULL and following - ptr < nbytes)) and not planted(defect.OVERLAP_ADOPTED):
        failure.kind = BLOCK_IS_CONTESTED
        failure.generation = below.generation if inside else above.generation
        failed = 1
    elif stream != NULL and not stream.alive:
        failure.kind = STREAM_IS_DEAD
        failure.stream = stream.number
        failed = 1
    else:
        block = new_block(core, ptr, nbytes, stream)
        block.adopted = True
        block.owner = owner
        result.ptr = ptr
        result.nbytes = nbytes
        result.generation = block.generation
        result.slot = block.slot
        result.stream = stream
        result.adopted = True
    order.lock.unlock()
    return failed


# ---------------------------------------------------------------------------------------------- free
cdef int free_block(CoreState* core, uint32_t slot, uint64_t generation, StreamState* stream,
                    Failure* failure) except -1 nogil:
    """Free on `stream` (NULL: on the block's home) after every use.  Inside a window: when the last one closes."""
    cdef Scope scope
    cdef Block* block
    cdef int failed = 0
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    core.order.lock.lock()
    block = find_live(core, slot, generation)
    if block == NULL:
        failure.kind = BLOCK_IS_STALE
        failure.generation = generation
        failure.argument = 0
        failed = 1
    elif stream != NULL and not stream.alive:
        failure.kind = STREAM_IS_DEAD
        failure.stream = stream.number
        failed = 1
    else:
        failed = free_found(core, block, stream, False, failure)
    core.order.lock.unlock()
    leave_context(&scope)
    return note(core, failed, failure)


cdef int free_found(CoreState* core, Block* block, StreamState* stream, bint asked, Failure* failure) except -1 nogil:
    """Free a live block, now or when its last window closes.  `asked`: `stream` was just seen not to capture.  Called
    with the lock held, releases it."""
    cdef int failed
    if stream != NULL and stream != home_of(block):
        set_home(block, stream)
    if unlikely((block.windows and not planted(defect.FREED_INSIDE_WINDOW))
                or (block.pins and not planted(defect.FREED_WHILE_LENT))):
        block.state = RETIRED
        core.counters.deferred_frees += 1
        return 0
    failed = free_now(core, block, asked, failure)
    if unlikely(failed) and failure.kind == STREAM_IS_CAPTURING:
        keep_for_later(core, block, failure)            # carried out by the first call after the capture
        core.counters.deferred_frees += 1
        failed = 0
    return failed


cdef int free_unless_used(CoreState* core, uint64_t ptr, StreamState* stream, Block** result,
                          Failure* failure) except -1 nogil:
    """The short way, for callers without a handle: free the block that is allocated there, if that makes nobody wait;
    else nothing is done, and the result is NULL.  The stream is busy and not capturing.  Without the lock."""
    cdef Block* block
    cdef int failed = 0
    result[0] = NULL
    fetch(core, stream)
    core.order.lock.lock()
    block = live_block_at(core, ptr)
    if block != NULL and not (block.windows or block.pins) and (
            core.resource.frontiers != NULL or (block.home == stream and used_at_home_alone(core, block))):
        if home_of(block) != stream:
            set_home(block, stream)
        result[0] = block
        failed = free_now(core, block, True, failure)
    core.order.lock.unlock()
    return failed


cdef Block* live_block_at(CoreState* core, uint64_t ptr) noexcept nogil:
    """The block that is allocated there, NULL if there is none, or only adopted memory.  With the lock held."""
    cdef uint64_t base
    cdef Tracked* known = floor_of(&core.index, ptr, &base)
    cdef Block* block
    if known == NULL or base != ptr:
        return NULL
    block = core.blocks[known.slot]
    return block if block.state == LIVE and not block.adopted else NULL


cdef inline bint used_at_home_alone(CoreState* core, Block* block) noexcept nogil:
    """Does a free of this block make nobody wait?"""
    cdef StreamState* home = block.home
    return (home != NULL and block.frontier.size() == 1 and block.frontier[0].stream == home.index and home.alive
            and home.thread == 0 and core.resource.order == STREAM_ORDERED)


cdef inline void fetch(CoreState* core, StreamState* stream) noexcept nogil:
    """Somebody else's code has run, a driver maybe, and taken the cache for itself.  Behind the lock everything would
    be waited for in turn."""
    prefetch(core.order)
    prefetch(&core.index)
    prefetch(&core.blocks)
    prefetch(&core.pending)
    prefetch(&core.counters)
    prefetch(stream)


cdef int free_now(CoreState* core, Block* block, bint asked, Failure* failure) except -1 nogil:
    """The order of these steps keeps addresses, entries and accounting consistent.  Called with the lock held.

    1. (lock) the state is FREEING and the block leaves the address index;
    2. (no lock) the home stream, or the host, is ordered after the frontier;
    3. (no lock) the resource gets the bytes: from this call on the address may come back, to anybody;
    4. (lock) live bytes become pending, with a marker position taken after step 3, and the slot is released.

    On a failure in 2 or 3 the resource has not taken the bytes: the block returns to the index and keeps its state.
    Adopted memory skips step 3: its owner is let go once its stream, or the host, is ordered after the frontier.
    """
    cdef OrderState* order = core.order
    cdef uint8_t before = block.state if block.state != FREEING else <uint8_t>RETIRED
    cdef StreamState* home
    cdef bint ordered, filed = False
    cdef int failed = 0
    check(block.windows == 0 or planted(defect.FREED_INSIDE_WINDOW) or planted(defect.EVERY_CLOSE_CLAIMS),
          "a block is not freed inside a window")
    if core.resource.frontiers != NULL and not block.adopted:
        hand_over(core, block, home_of(block))
        return 0
    block.state = FREEING
    erase(&core.index, block.ptr)
    if planted(defect.UNLINKED_AFTER_FREE):
        link(core, block)
    order.in_flight += 1
    if used_at_home_alone(core, block):                  # as most blocks are
        order.counters.known += 1
        block.home.busy += 1
        failed = refuse_capture(order, block.home, asked, failure)
    else:
        failed = wait_for_users(core, block, asked, failure)
    home = block.home
    ordered = not block.adopted and core.resource.order == STREAM_ORDERED
    if not failed and not block.adopted:
        if ordered and planted(defect.MARKER_BEFORE_FREE):
            file_marker(core, home, block.nbytes)
            filed = True
        if planted(defect.BYTES_IN_NEITHER_COUNT):
            core.live_bytes -= block.nbytes
        order.lock.unlock()
        failed = core.resource.deallocate(core.resource.self, block.ptr, block.nbytes, home.handle, failure)
        fetch(core, home)
        order.lock.lock()
        if planted(defect.BYTES_IN_NEITHER_COUNT):
            core.live_bytes += block.nbytes
        if failed and planted(defect.FREE_FAILURE_IGNORED):
            failed = 0
    if planted(defect.UNLINKED_AFTER_FREE):
        erase(&core.index, block.ptr)
    order.in_flight -= 1
    if home != NULL:
        home.busy -= 1
    if unlikely(failed):
        block.state = before
        if not planted(defect.FAILED_FREE_NOT_RELINKED):
            link(core, block)
        return note(core, 1, failure)
    if ordered and not filed:
        file_marker(core, home, block.nbytes)
    core.counters.frees += not block.adopted
    release_slot(core, block)
    return 0


cdef inline int refuse_capture(OrderState* order, StreamState* home, bint asked, Failure* failure) except -1 nogil:
    if asked:
        return 0
    return refuse_if_capturing(order, home, STREAM_IS_CAPTURING, failure) and not planted(defect.FREED_INTO_CAPTURE)


cdef int wait_for_users(CoreState* core, Block* block, bint asked, Failure* failure) except -1 nogil:
    """Order the home of a block that is being freed, or the host, after everybody who used it; the home is busy from
    now on, failed or not.  With the lock held, releases it."""
    cdef OrderState* order = core.order
    cdef StreamState* home = home_of(block)
    cdef bint on_host = home == NULL or (not block.adopted and core.resource.order == HOST_SYNCHRONOUS)
    cdef StreamState* waiting                            # who has to come after the uses; NULL: the host
    cdef vector[Need] needs
    cdef int failed = 0
    if home != NULL and bound_elsewhere(home):           # its handle means another stream in this thread
        set_entry(block, ALLOCATED, home.index, touch(home))
        home = order.streams[0]
        set_home(block, home)
        asked = False
    waiting = home
    if (block.stream != NULL and block.stream != home and block.stream.alive
            and planted(defect.WAITS_ON_ANOTHER_STREAM)):
        waiting = block.stream
    if on_host:
        waiting = NULL
    order.operations += 1
    look(order, block, waiting, READ_WRITE, order.operations, NULL, &needs)
    if on_host and home != NULL and not planted(defect.HOST_FORGETS_HOME):
        # "freed on S" means after everything on S, recorded or not
        need(order, NULL, home, touch(home), order.operations, &needs, BIRTH)
    if home != NULL:
        home.busy += 1
        failed = refuse_capture(order, home, asked, failure)
    if not failed and needs.size() > 1:
        failed = refuse_capturing(order, waiting, &needs, failure)
    if not failed and not (on_host and planted(defect.HOST_WAITS_FOR_NOBODY)) and not (
            block.adopted and planted(defect.OWNER_LET_GO_EARLY)):
        failed = order_all(order, waiting, &needs, failure)
    return failed


cdef void hand_over(CoreState* core, Block* block, StreamState* home) noexcept nogil:
    """A free into a resource that keeps frontiers: all of the above in one acquisition, without a driver call, and it
    cannot fail.

    "Freed on S" means after everything on S, recorded or not, so the free is a position of the home; what that stream
    knows already is left out.  A sealed home promises that all is recorded: its entries are enough, and whoever knows
    those goes on knowing.  Whoever was lent the block there promised nothing.
    """
    cdef OrderState* order = core.order
    cdef vector[Need]* frontier = &core.frontier
    cdef Need entry
    cdef size_t i
    frontier.clear()
    order.operations += 1
    look(order, block, home, READ_WRITE, order.operations, NULL, frontier)      # raises what may hide work
    if home.discipline == SEALED and (not is_lent(block, home) or planted(defect.SEALED_FREE_FORGETS_LOAN)):
        frontier.clear()
        for i in range(block.frontier.size()):
            entry.source = order.streams[block.frontier[i].stream]
            entry.position = block.frontier[i].position
            entry.stage = block.frontier[i].kind
            if knows(order, home, entry.source, entry.position) and planted(defect.SEALED_FREE_LEAVES_OUT):
                continue
            frontier.push_back(entry)
    else:
        entry.source = home
        entry.position = home.count if planted(defect.POOL_FREE_TAKES_NO_POSITION) else touch(home)
        entry.stage = BIRTH
        frontier.push_back(entry)
    erase(&core.index, block.ptr)
    core.resource.frontiers.deallocate(core.resource.self, block.piece, frontier)
    core.counters.frees += 1
    release_slot(core, block)


cdef int free_for_somebody_else(CoreState* core, Block* block) except -1 nogil:
    """A free inside another operation: its failure is not that operation's."""
    cdef Failure failure
    if block.state == FREED:                            # disowned meanwhile: the bytes are somebody else's
        return 0
    if free_now(core, block, False, &failure) and not planted(defect.FAILED_FREE_FORGOTTEN):
        keep_for_later(core, block, &failure)
    return 0


cdef void keep_for_later(CoreState* core, Block* block, Failure* failure) noexcept nogil:
    """Back on the list of dropped blocks: the next operation tries again, and the next reap tells.  What a capture
    puts off is no failure."""
    block.state = RETIRED
    drop(core, block)
    if failure.kind == STREAM_IS_CAPTURING:
        core.put_off = block
        return
    core.counters.failed_frees += 1
    core.stuck += 1
    keep_failure(core, failure)


cdef void keep_failure(CoreState* core, Failure* failure) noexcept nogil:
    """The next reap tells.  What a Python resource raised is owned by whoever has the failure: one that is never told
    is dropped by whoever holds the GIL next."""
    drop_failure(core)
    core.stuck_failure = failure[0]


cdef void drop_failure(CoreState* core) noexcept nogil:
    if core.stuck_failure.kind == PYTHON_RAISED:        # its traceback may hold blocks, and so this runtime
        let_go_later(core, core.stuck_failure.exception)
    core.stuck_failure.kind = NO_FAILURE


# ---------------------------------------------------------------------------------------------- dropped by finalizers
cdef void drop(CoreState* core, Block* block) noexcept nogil:
    """What a finalizer may do: push, nothing else.  The collector runs anywhere, in any thread."""
    block.next = core.dropped.load()
    while not core.dropped.compare_exchange_weak(block.next, block):
        pass


cdef void abandon(CoreState* core, Window* window) noexcept nogil:
    """A recorder went away between prepare and finish; its launch may be queued, so it will be filed."""
    window.next = core.abandoned.load()
    while not core.abandoned.compare_exchange_weak(window.next, window):
        pass


cdef int drain(CoreState* core) except -1 nogil:
    """Do what finalizers left behind and try failed frees again.  The context is current, the lock is not held."""
    if core.lost.load():
        return 0
    if core.abandoned.load() != NULL:
        drain_windows(core)
    if core.dropped.load() != NULL and not planted(defect.DROPPED_NOT_DRAINED):
        drain_blocks(core)
    return 0


cdef int tidy(CoreState* core) except -1 nogil:
    """`drain` by itself: a window whose recorder was dropped keeps its stream in use until it is filed."""
    cdef Failure ignored
    cdef Scope scope
    if core.abandoned.load() == NULL or enter_context(core.order.context, &scope, &ignored):
        return 0
    drain(core)
    leave_context(&scope)
    return 0


cdef int drain_windows(CoreState* core) except -1 nogil:
    """Taken from the list and filed in one acquisition: nobody finds the list empty and the uses not filed."""
    cdef OrderState* order = core.order
    cdef Window* window
    cdef Window* following
    cdef vector[Window*] rest
    cdef Failure failure
    cdef size_t i
    order.lock.lock()
    window = core.abandoned.exchange(NULL)
    while window != NULL:
        following = window.next
        core.counters.abandoned += 1
        if file_window(core, window, CANCELLED if planted(defect.DROPPED_WINDOW_FORGOTTEN) else LAUNCHED):
            rest.push_back(window)
        else:
            give_window(window)
        window = following
    order.lock.unlock()
    for i in range(rest.size()):
        if finish_rest(core, rest[i], &failure):
            order.lock.lock()
            keep_failure(core, &failure)
            core.untold = True
            order.lock.unlock()
        give_window(rest[i])
    return 0


cdef int drain_blocks(CoreState* core) except -1 nogil:
    cdef StreamState* capturing = NULL                  # just found capturing: asked once for all its blocks
    cdef StreamState* home
    cdef Block* block
    cdef Block* following
    core.order.lock.lock()
    core.stuck = 0
    if not core.untold:
        drop_failure(core)
    block = core.dropped.exchange(NULL)
    while block != NULL:
        following = block.next
        home = block.home
        if block.state == LIVE and (block.windows or block.pins):
            block.state = RETIRED
            core.counters.deferred_frees += 1
        elif block.state == RETIRED and home == capturing and home != NULL:
            drop(core, block)
        else:
            core.put_off = NULL
            free_for_somebody_else(core, block)
            if core.put_off == block:
                capturing = home
        block = following
    core.order.lock.unlock()
    return 0


# ---------------------------------------------------------------------------------------------- accounting
cdef void file_marker(CoreState* core, StreamState* home, size_t nbytes) noexcept nogil:
    """Live bytes become pending: a reap may release them once the host has seen a position taken after the free was
    queued (W26).  A stream keeps a bounded number of markers: neighbours are merged, on the newer position."""
    cdef vector[Marker]* markers
    cdef Marker* marker
    cdef size_t i
    if unlikely(home.index >= core.pending.size()):
        core.pending.resize(home.index + 1)
    markers = &core.pending[home.index]
    if unlikely(markers.size() >= MARKERS):
        for i in range(<size_t>MARKERS // 2):
            marker = &markers[0][2 * i]
            markers[0][i].position = marker[not planted(defect.MERGED_MARKER_OLDER)].position
            markers[0][i].nbytes = marker[0].nbytes + marker[1].nbytes
        markers.resize(MARKERS // 2)
    marker = &markers.emplace_back()
    marker.position = home.count if planted(defect.MARKER_TAKES_NO_POSITION) else touch(home)
    marker.nbytes = nbytes
    core.pending_bytes += nbytes


cdef void release_seen(CoreState* core, StreamState* home) noexcept nogil:
    """Subtract the pending bytes whose markers the host has seen complete."""
    cdef vector[Marker]* markers = &core.pending[home.index]
    cdef size_t i, kept = 0
    for i in range(markers.size()):
        if knows(core.order, NULL, home, markers[0][i].position) or planted(defect.RELEASED_UNSEEN):
            check(core.pending_bytes >= markers[0][i].nbytes, "pending bytes are those of the markers")
            core.pending_bytes -= markers[0][i].nbytes
        else:
            markers[0][kept] = markers[0][i]
            kept += 1
    markers.resize(kept)


cdef int reap(CoreState* core, bint blocking, vector[Failure]* failures) except -1 nogil:
    """Release pending bytes: after the host has waited for each stream's newest free, or of those that are complete
    now.  Every stream is visited; what failed stays pending and is told (W28)."""
    cdef OrderState* order = core.order
    cdef StreamState* home
    cdef Failure failure
    cdef Scope scope
    cdef size_t i
    if refuse_lost(core, &failure) or enter_context(order.context, &scope, &failure):
        failures.push_back(failure)
        return 0
    if blocking and note(core, settle_escaped(core, &failure), &failure):
        failures.push_back(failure)
    drain(core)
    order.lock.lock()
    order.in_flight += 1
    for i in range(order.streams.size()):
        home = order.streams[i]
        if i < core.pending.size() and not core.pending[i].empty():
            if note(core, reap_stream(core, home, blocking, &failure), &failure):
                failures.push_back(failure)
            release_seen(core, home)
        if note(core, settle(order, home, blocking, &failure), &failure):
            failures.push_back(failure)
        if not failures.empty() and planted(defect.REAP_STOPS_AT_FAILURE):
            break
    order.in_flight -= 1
    if core.untold or (core.stuck and core.dropped.load() != NULL):
        failures.push_back(core.stuck_failure)
        core.stuck_failure.kind = NO_FAILURE            # told once: the caller owns the exception now
        core.untold = False
        core.stuck = 0
    order.lock.unlock()
    leave_context(&scope)
    return 0


cdef int reap_stream(CoreState* core, StreamState* home, bint blocking, Failure* failure) except -1 nogil:
    """Teach the host the frees of the stream, by waiting for the newest or by asking from the oldest on.  With the lock
    held, releases it."""
    cdef uint64_t oldest
    if blocking:
        return host_waits_from_afar(core.order, home, core.pending[home.index].back().position, failure)
    while not core.pending[home.index].empty():
        oldest = core.pending[home.index][0].position
        if ask_host(core.order, home, oldest, failure):
            return 1
        if not knows(core.order, NULL, home, oldest):
            break
        release_seen(core, home)
    return 0


# ---------------------------------------------------------------------------------------------- lookup and end
cdef inline void describe(OrderState* order, uint64_t base, Tracked* known, Found* found) noexcept nogil:
    found.ptr = base
    found.generation = known.generation
    found.nbytes = known.nbytes
    found.slot = known.slot
    found.stream = NULL
    if known.stream != <uint32_t>NO_STREAM:             # its place is not given away while it has blocks
        found.stream = order.streams[known.stream]


cdef bint find_by_address(CoreState* core, uint64_t ptr, Found* found) noexcept nogil:
    cdef uint64_t base
    cdef Tracked* known = floor_of(&core.index, ptr, &base)
    if known == NULL or ptr - base >= known.nbytes:
        return False
    describe(core.order, base, known, found)
    return True


cdef Block* block_at(CoreState* core, uint32_t slot) noexcept nogil:
    cdef Block* block
    core.order.lock.lock()
    block = core.blocks[slot]
    core.order.lock.unlock()
    return block


cdef int tear_down(CoreState* core) except -1 nogil:
    """Free what is left: no handle of a block, a stream or a recorder exists any more."""
    cdef Failure ignored
    cdef Scope scope
    cdef int failed
    if core.lost.load() or enter_context(core.order.context, &scope, &ignored):
        return 0
    core.order.lock.lock()
    failed = bury_foreign(core.order, &ignored)
    core.order.lock.unlock()
    if not failed:                                      # else foreign streams, destroyed maybe, would be touched
        settle_escaped(core, &ignored)
        drain(core)
    leave_context(&scope)
    return 0
