# Uses of callers without the GIL.
#
# The usual use is of a stream that is known to live, and of blocks that have nothing to wait for.  It takes the lock
# twice: in one acquisition it finds the stream and the blocks and opens the window, in the other it files the use.
# Windows come from the hold, so no other lock is taken for them.  Everything else (a first use of a stream, a bare
# handle, waits, conflicts, deferred work, a check) goes the ordinary way, without the GIL if the caller holds it.
#
# A hold counts its open uses.  `close` leaves the hold to the last of them.

from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport memcpy, memset, strncmp

from xlogmem.errors import UseAfterFreeError
from xlogmem._base.cpp cimport check, unlikely, vector
from xlogmem._base.failures cimport (
    BLOCK_IS_CONTESTED,
    BLOCK_IS_STALE,
    PYTHON_RAISED,
    Failure,
    fail_block,
)
from xlogmem._core cimport (
    ACCESSED,
    CANCELLED,
    DONE,
    HAND_BACK_ALL,
    HAND_BACK_WRITES,
    LAUNCHED,
    NOT_AT_ONCE,
    NO_THREAD,
    RAISE_UNTRACKED,
    READ,
    READ_WRITE,
    REFUSED,
    REFUSE_CONFLICTS,
    UNFINISHED,
    WAIT_FOR_CONFLICTS,
    AtOnce,
    Block,
    CoreState,
    Figures,
    Found,
    Outcome,
    Request,
    Window,
    count_all_locked,
    drain,
    file_window_locked,
    find_by_address_locked,
    finish_rest,
    has_deferred_work,
    is_host,
    is_still_locked,
    look_at_block,
    note_thread,
    open_known_locked,
    prepare,
    prepare_rest,
    refuse_forked,
    refuse_lost,
    take_window,
    wait_for_block,
)
from xlogmem._driver cimport (
    PER_THREAD,
    Scope,
    enter_context,
    leave_context,
    process_is_closing,
    stream_is_capturing,
)
from xlogmem._foreign.named cimport Extent
from xlogmem._order cimport ORDINARY, StreamState
from xlogmem.blocks cimport NOTHING, READ_ONLY_HERE, TRACKED, Core, Resolved
from xlogmem.native cimport (
    XLOGMEM_ANY_THREAD,
    XLOGMEM_FAILED,
    XLOGMEM_HAND_BACK_WRITES,
    XLOGMEM_INVALID,
    XLOGMEM_KEEPS_STREAM,
    XLOGMEM_NOT_FOUND,
    XLOGMEM_READ,
    XLOGMEM_READ_WRITE,
    XLOGMEM_REFUSE_CONFLICTS,
    XLOGMEM_TEXT,
    xlogmem_access,
    xlogmem_counters,
    xlogmem_error,
    xlogmem_runtime,
    xlogmem_use,
)


cdef extern from "Python.h":
    ctypedef struct PyThreadState:
        pass
    bint PyGILState_Check() nogil
    void PyErr_SetInterrupt() nogil
    PyThreadState* PyEval_SaveThread() nogil
    void PyEval_RestoreThread(PyThreadState* thread) nogil


cdef enum:
    ALL_FLAGS = (XLOGMEM_REFUSE_CONFLICTS | XLOGMEM_HAND_BACK_WRITES | XLOGMEM_ANY_THREAD | XLOGMEM_KEEPS_STREAM)
    OF_GRAPH = 0x40000000       # beside these: a launch of a graph, which holds its blocks


cdef struct Launch:
    # The arguments of a `prepare`.
    cy.CUstream handle
    const xlogmem_access* accesses
    size_t count
    const vector[Request]* requests     # of a graph, the same blocks; NULL: they are to be found
    uint32_t flags
    size_t refused              # result: the number of the access that is wrong, from 1; 0: none


# ---------------------------------------------------------------------------------------------- the GIL
cdef PyThreadState* release_gil() noexcept nogil:
    """Release the GIL before a call that may wait, if this thread holds it.  Returns what `restore_gil` needs.

    An interpreter that is gone says of every thread that it holds the GIL, so the end of the process is looked at after
    the interpreter."""
    return PyEval_SaveThread() if PyGILState_Check() and not process_is_closing() else NULL


cdef void restore_gil(PyThreadState* thread) noexcept nogil:
    if thread != NULL:
        PyEval_RestoreThread(thread)


# ---------------------------------------------------------------------------------------------- errors
cdef int refuse_argument(xlogmem_error* error, const char* why, uint64_t value) noexcept nogil:
    error.kind = XLOGMEM_INVALID
    snprintf(error.text, XLOGMEM_TEXT, "%s: %#llx. Nothing was done", why, <unsigned long long>value)
    return 1


cdef int refuse_untracked(xlogmem_error* error, const xlogmem_access* access, size_t place,
                          size_t count) noexcept nogil:
    error.kind = XLOGMEM_NOT_FOUND
    snprintf(error.text, XLOGMEM_TEXT, "access %llu of %llu: no block of this runtime is alive around %#llx. Allocate "
             "the memory from xlogmem, or have the runtime adopt() it", <unsigned long long>place,
             <unsigned long long>count, <unsigned long long>access.address)
    return 1


cdef int refuse_prepare(CoreState* core, Failure* failure, Launch* launch, xlogmem_error* error) noexcept nogil:
    cdef const xlogmem_access* access
    if launch.refused == 0:
        return refuse_use(core, failure, launch.count, error)
    access = &launch.accesses[launch.refused - 1]
    if is_access(access) and access.generation != 0:
        fail_block(failure, BLOCK_IS_STALE, access.generation, launch.refused)
        return refuse_use(core, failure, launch.count, error)
    if not is_access(access):
        return refuse_argument(error, "prepare: an access is not XLOGMEM_READ, _WRITE or _READ_WRITE", access.access)
    return refuse_untracked(error, access, launch.refused, launch.count)


cdef int refuse_use(CoreState* core, Failure* failure, size_t count, xlogmem_error* error) noexcept nogil:
    """Fill in the error of a failure of a use; `count` is the number of its accesses."""
    cdef char[XLOGMEM_TEXT] text
    cdef size_t argument = failure.argument if failure.kind in (BLOCK_IS_STALE, BLOCK_IS_CONTESTED) else 0
    cdef bint raised = failure.kind == PYTHON_RAISED    # `fill_error` drops the exception
    fill_error(core, failure, error)
    if raised and strncmp(error.text, "KeyboardInterrupt", 17) == 0:
        PyErr_SetInterrupt()                            # it ended a wait; Python raises it when it goes on
    if failure.kind == BLOCK_IS_STALE and argument and count > 1:
        memcpy(text, error.text, XLOGMEM_TEXT)
        snprintf(error.text, XLOGMEM_TEXT, "access %llu of %llu: %.200s", <unsigned long long>argument,
                 <unsigned long long>count, text)
    return 1


# ---------------------------------------------------------------------------------------------- windows
cdef inline Window* take_window_of_hold_locked(RuntimeHold* hold) noexcept nogil:
    check(hold.core.order.lock.held(), "the lock is held")
    cdef Window* window
    if hold.windows.empty():
        window = take_window(hold.core)
        window.table_hold = hold
        return window
    window = hold.windows.back()
    hold.windows.pop_back()
    return window


cdef inline int find_blocks_locked(CoreState* core, Window* window, Launch* launch) noexcept nogil:
    """Make the window's requests from the accesses.  Returns 1, with `launch.refused` set, where an access is none or
    no block is found."""
    check(core.order.lock.held(), "the lock is held")
    cdef const xlogmem_access* access = launch.accesses
    cdef const xlogmem_access* end = access + launch.count
    cdef Request* request
    cdef Found found
    if launch.requests != NULL:
        window.requests = launch.requests[0]
        return 0
    window.requests.resize(launch.count)
    request = window.requests.data()
    while access != end:
        if access.generation != 0:
            request.slot = access.slot
            request.generation = access.generation
        elif access.address == 0 and is_access(access):         # an empty array
            access += 1
            continue
        elif find_by_address_locked(core, access.address, &found):
            request.slot = found.slot
            request.generation = found.generation
        else:
            break
        if unlikely(not is_access(access)):
            break
        request.access = access.access
        request += 1
        access += 1
    window.requests.resize(request - window.requests.data())
    if access != end:
        launch.refused = access - launch.accesses + 1
    return access != end


cdef inline bint is_access(const xlogmem_access* access) noexcept nogil:
    """True if the kind of an access is one of `xlogmem_access_kind`."""
    return access.access - 1 < <uint32_t>XLOGMEM_READ_WRITE


cdef bint names_memory(Launch* launch) noexcept nogil:
    """False if all accesses are to empty arrays."""
    cdef size_t i
    for i in range(launch.count):
        if launch.accesses[i].address != 0 or launch.accesses[i].generation != 0 or not is_access(&launch.accesses[i]):
            return True
    return False


cdef inline void begin_window(Window* window, StreamState* stream, uint32_t flags) noexcept nogil:
    """Set what a recorder of Python sets.  If the thread ends before it finishes the use, launches that wait for the
    use go on, as for `prepare_block_use`."""
    window.stream = stream
    window.is_graphs = flags & <uint32_t>OF_GRAPH != 0
    window.untracked = RAISE_UNTRACKED
    window.on_conflict = REFUSE_CONFLICTS if flags & <uint32_t>XLOGMEM_REFUSE_CONFLICTS else WAIT_FOR_CONFLICTS
    window.hand_back = HAND_BACK_WRITES if flags & <uint32_t>XLOGMEM_HAND_BACK_WRITES else HAND_BACK_ALL
    note_thread(window)
    window.moved = window.is_anyones = flags & <uint32_t>XLOGMEM_ANY_THREAD != 0
    window.is_kept = not window.moved


# ---------------------------------------------------------------------------------------------- before a launch
cdef AtOnce prepare_known(RuntimeHold* hold, Launch* launch, Window** result, Failure* failure) noexcept nogil:
    """Prepare a use on a stream that is known to live.  UNFINISHED: the stream, or the host, has to wait."""
    cdef CoreState* core = hold.core
    cdef StreamState* stream
    cdef Window* window
    cdef bint capturing = False
    cdef AtOnce done = NOT_AT_ONCE
    if (has_deferred_work(core) or <size_t>launch.handle <= PER_THREAD         # whose state depends on other streams
            or stream_is_capturing(launch.handle, &capturing, failure)):
        return NOT_AT_ONCE
    if capturing:
        return NOT_AT_ONCE
    core.order.lock.lock()
    stream = known_stream_locked(hold, launch.handle)
    if stream != NULL:
        window = take_window_of_hold_locked(hold)
        done = REFUSED
        if find_blocks_locked(core, window, launch) == 0:
            if unlikely(window.requests.empty()):
                done = DONE
            else:
                begin_window(window, stream, launch.flags)
                done = open_known_locked(core, window, failure)
        if unlikely(done == REFUSED or window.requests.empty()):
            hold.windows.push_back(window)
        else:
            hold.open_uses += 1
            result[0] = window
            stream.busy += window.is_waiting            # until `prepare_rest` is done: it is not unregistered meanwhile
    core.order.lock.unlock()
    return done


cdef int prepare_by_lookup(RuntimeHold* hold, Launch* launch, Window** result, Failure* failure) except -1 nogil:
    """Prepare a use that may have to do other work first."""
    cdef CoreState* core = hold.core
    cdef StreamState* stream = NULL
    cdef Window* window = NULL
    cdef AtOnce done = NOT_AT_ONCE
    cdef Scope scope
    cdef int failed
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1                                        # in a forked child too, before the lock
    drain(core)
    failed = lookup_usable_stream_locks(hold, launch.handle, ORDINARY, &stream, failure)
    if not failed:
        if launch.flags & <uint32_t>XLOGMEM_KEEPS_STREAM and <size_t>launch.handle > PER_THREAD:
            keep_stream_locked(hold, launch.handle, stream)
        know_stream_locked(hold, launch.handle, stream)
        window = take_window_of_hold_locked(hold)
        failed = find_blocks_locked(core, window, launch)
    if not failed:
        begin_window(window, stream, launch.flags)
        if <size_t>launch.handle > PER_THREAD and core.marks.load() == 0:
            done = open_known_locked(core, window, failure)     # its capture state was queried a moment ago
            failed = done == REFUSED
    core.order.lock.unlock()
    if not failed and done == UNFINISHED:
        failed = prepare_rest(core, window, failure)
    elif not failed and done == NOT_AT_ONCE:
        failed = prepare(core, window, failure)         # the stream is busy: it is not unregistered meanwhile
    core.order.lock.lock()
    if stream != NULL:
        stream.busy -= 1
    if not failed:
        hold.open_uses += 1
        result[0] = window
    elif window != NULL:
        hold.windows.push_back(window)
    core.order.lock.unlock()
    leave_context(&scope)
    return failed


cdef int prepare_slowly(RuntimeHold* hold, Launch* launch, AtOnce done, Window** window,
                        Failure* failure) except -1 nogil:
    """Do what `prepare_known` has left, without the GIL."""
    cdef PyThreadState* thread
    cdef bint waits
    cdef int failed
    if done == NOT_AT_ONCE and not names_memory(launch):
        return 0
    thread = release_gil()
    if done == NOT_AT_ONCE:
        failed = prepare_by_lookup(hold, launch, window, failure)
    else:
        waits = window[0].is_waiting
        failed = prepare_rest(hold.core, window[0], failure)
        if waits:
            hold.core.order.lock.lock()
            window[0].stream.busy -= 1
            hold.core.order.lock.unlock()
    restore_gil(thread)
    return failed


cdef int refuse_or_look_elsewhere(RuntimeHold* hold, Launch* launch, Failure* failure, xlogmem_use** use,
                                  xlogmem_error* error) noexcept nogil:
    """Prepare the use in a capture, or in the runtimes of other devices, too, or fill in the error."""
    cdef bint inside = may_be_inside(launch, failure)
    cdef bint known
    if (inside or may_be_elsewhere(launch, failure)) and enter_interpreter():
        known = prepare_elsewhere(hold, launch, inside, use, error) == 0 or error.kind != 0
        leave_interpreter()
        if known:
            return error.kind != 0
    return refuse_prepare(hold.core, failure, launch, error)


cdef int table_prepare(xlogmem_runtime* runtime, void* stream, const xlogmem_access* accesses, size_t count,
                       uint32_t flags, xlogmem_use** use, xlogmem_error* error) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef Window* window = NULL
    cdef Failure failure
    cdef Launch launch
    cdef int failed
    use[0] = NULL
    if unlikely(flags & ~<uint32_t>ALL_FLAGS != 0):
        return refuse_argument(error, "prepare: flags has bits that this version does not know", flags)
    launch.handle = <cy.CUstream>named_handle(stream)
    launch.accesses = accesses
    launch.count = count
    launch.requests = NULL
    launch.flags = flags
    launch.refused = 0
    if unlikely(names_host(stream)):
        failed = prepare_access(hold, &launch, &window, &failure)
        use[0] = <xlogmem_use*>window
        return failed and refuse_or_look_elsewhere(hold, &launch, &failure, use, error)
    return prepare_launch(hold, &launch, use, error)


cdef inline int prepare_launch(RuntimeHold* hold, Launch* launch, xlogmem_use** use,
                               xlogmem_error* error) noexcept nogil:
    cdef Window* window = NULL
    cdef Failure failure
    cdef AtOnce done
    cdef int failed
    done = prepare_known(hold, launch, &window, &failure)
    if unlikely(done != DONE):
        if done == REFUSED or prepare_slowly(hold, launch, done, &window, &failure):
            failed = refuse_or_look_elsewhere(hold, launch, &failure, use, error)
            if window != NULL:                          # it was counted while it waited, and `close` may have come
                end_with_window(hold, window)                 # meanwhile: the hold may be gone afterwards
            return failed
    use[0] = <xlogmem_use*>window
    return 0


# ---------------------------------------------------------------------------------------------- after a launch
cdef inline bint return_to_hold_locked(RuntimeHold* hold, Window* window) noexcept nogil:
    """Return the window of a use that is closed.  True if it was the last one of a hold that was closed before."""
    check(hold.core.order.lock.held(), "the lock is held")
    hold.windows.push_back(window)
    hold.open_uses -= 1
    return hold.is_closed and hold.open_uses == 0


cdef void end_with_window(RuntimeHold* hold, Window* window) noexcept nogil:
    """Return a closed window, and release the hold if this was the last one of it."""
    cdef CoreState* core = hold.core
    cdef bint last
    core.order.lock.lock()
    last = return_to_hold_locked(hold, window)
    core.order.lock.unlock()
    if last:
        release_later(hold)


cdef int end_use(RuntimeHold* hold, Window* window, Outcome outcome, xlogmem_error* error) noexcept nogil:
    """File a use, or forget it, and close it.  Once its window is returned, `close` in another thread, or the end of
    another use, may take hold and core away: nothing of them is touched after that."""
    cdef CoreState* core = hold.core
    cdef PyThreadState* thread
    cdef Failure failure
    cdef bint more, last = False
    cdef int failed = 0
    if refuse_forked(&failure):
        return refuse_use(core, &failure, 0, error)
    core.order.lock.lock()
    if unlikely(window.table_hold != hold or not window.is_open):
        core.order.lock.unlock()
        return refuse_argument(error, "finish: this use was ended before, or prepared with another hold",
                               <uint64_t>window)
    if unlikely(is_host(window.stream)) and outcome == LAUNCHED:
        outcome = ACCESSED
    more = file_window_locked(core, window, outcome)
    if not more and (outcome != LAUNCHED or window.thread != NO_THREAD):
        last = return_to_hold_locked(hold, window)
        core.order.lock.unlock()
        if unlikely(last):
            release_later(hold)
        return 0
    core.order.lock.unlock()
    if more:
        thread = release_gil()
        failed = finish_rest(core, window, &failure)
        restore_gil(thread)
        if core.has_pending_decrefs:
            drop_owners_later(hold)
    failed = failed or (outcome == LAUNCHED and refuse_ended(window, &failure))
    if failed:
        refuse_use(core, &failure, 0, error)
    end_with_window(hold, window)
    return failed


cdef inline int refuse_ended(Window* window, Failure* failure) noexcept nogil:
    """Fail if the thread that opened the window ended, and others have gone on since."""
    if window.thread != NO_THREAD:
        return 0
    snprintf(failure.text, sizeof(failure.text), "the thread that prepared this use on stream %llu ended before it was "
             "finished, and launches that waited for it have gone on since: name XLOGMEM_ANY_THREAD where another "
             "thread finishes", <unsigned long long>window.stream.number)
    return fail_resource(failure, cy.CUDA_ERROR_UNKNOWN)


cdef int table_finish(xlogmem_runtime* runtime, xlogmem_use* use, xlogmem_error* error) noexcept nogil:
    if use == NULL:
        return 0
    if unlikely(is_recorder(use)):
        return end_recorder(use, True, error)
    return end_use(<RuntimeHold*>runtime, <Window*>use, LAUNCHED, error)


cdef void table_cancel(xlogmem_runtime* runtime, xlogmem_use* use) noexcept nogil:
    cdef xlogmem_error unread
    if use != NULL and is_recorder(use):
        end_recorder(use, False, &unread)
    elif use != NULL:
        end_use(<RuntimeHold*>runtime, <Window*>use, CANCELLED, &unread)


cdef int table_wait(xlogmem_runtime* runtime, void* stream, const xlogmem_access* access,
                    xlogmem_error* error) noexcept nogil:
    cdef xlogmem_use* use
    if table_prepare(runtime, stream, access, 1, 0, &use, error):
        return 1
    table_cancel(runtime, use)
    return 0


# ---------------------------------------------------------------------------------------------- blocks
cdef int find_block_of(CoreState* core, const xlogmem_access* access, Found* found, Block** block,
                       xlogmem_error* error) noexcept nogil:
    """Find the block that an access names, which another thread may free at any time.  Of an identity `found` has no
    more than the access."""
    cdef Failure failure
    cdef bint known
    if refuse_forked(&failure):
        return refuse_use(core, &failure, 1, error)
    found.slot, found.generation = access.slot, access.generation
    core.order.lock.lock()
    known = access.generation != 0 or find_by_address_locked(core, access.address, found)
    block[0] = core.blocks[found.slot] if known and found.slot < core.blocks.size() else NULL
    core.order.lock.unlock()
    if not known:
        return refuse_untracked(error, access, 1, 1)
    if block[0] == NULL:
        fail_block(&failure, BLOCK_IS_STALE, found.generation, 0)
        return refuse_use(core, &failure, 1, error)
    return 0


cdef inline bint names_nothing(const xlogmem_access* access) noexcept nogil:
    return access.address == 0 and access.generation == 0


cdef int table_find(xlogmem_runtime* runtime, const void* ptr, xlogmem_access* access, uint64_t* base, size_t* nbytes,
                    xlogmem_error* error) noexcept nogil:
    cdef xlogmem_access named
    cdef Block* block
    cdef Found found
    named.address, named.generation, named.slot = <uint64_t>ptr, 0, 0
    if find_block_of((<RuntimeHold*>runtime).core, &named, &found, &block, error):
        return 1
    fill_access(access, &found)
    if base != NULL:
        base[0] = found.ptr
    if nbytes != NULL:
        nbytes[0] = found.nbytes
    return 0


cdef void fill_access(xlogmem_access* access, Found* found) noexcept nogil:
    access.address = found.ptr
    access.generation = found.generation
    access.slot = found.slot


cdef int table_identify(xlogmem_runtime* runtime, void* what, xlogmem_access* access) except 1:
    cdef Core core = <Core>(<RuntimeHold*>runtime).owner
    cdef object named = <object>what
    cdef Extent extent
    cdef Found found
    cdef Resolved resolved
    cdef bint there = True
    resolved = core.resolve(named, &found, &extent, "identify")
    if resolved == NOTHING:
        found.ptr = found.generation = found.slot = 0
    elif resolved not in (TRACKED, READ_ONLY_HERE):
        raise LookupError(f"identify: {type(named).__name__} is not in one block of {core!r}: allocate it from "
                          "xlogmem, or adopt() it")
    else:
        with nogil:
            there = find_address_of(&core.state, &found)
    if not there:
        raise UseAfterFreeError(f"identify: block {found.generation} was freed, and cannot be used any more")
    fill_access(access, &found)
    return 0


cdef bint find_address_of(CoreState* core, Found* found) noexcept nogil:
    """Find the address of a block; handles are resolved without it.  False if the block was freed."""
    cdef Block* block
    cdef bint there
    core.order.lock.lock()
    block = core.blocks[found.slot] if found.slot < core.blocks.size() else NULL
    there = block != NULL and is_still_locked(core, block, found.generation)
    if there:
        found.ptr = block.ptr
    core.order.lock.unlock()
    return there


cdef inline int kind_of_wait(const xlogmem_access* access) noexcept nogil:
    """What `ready` and `synchronize` are for.  Callers need not set the kind, which `find` leaves as it was."""
    return READ if access.access == <uint32_t>XLOGMEM_READ else READ_WRITE


cdef int table_ready(xlogmem_runtime* runtime, const xlogmem_access* access, int* ready,
                     xlogmem_error* error) noexcept nogil:
    cdef CoreState* core = (<RuntimeHold*>runtime).core
    cdef Block* block = NULL
    cdef bint done = False
    cdef Failure failure
    cdef Found found
    ready[0] = names_nothing(access)                    # an empty array has no uses
    if ready[0]:
        return 0
    if find_block_of(core, access, &found, &block, error):
        return 1
    if look_at_block(core, block, found.generation, kind_of_wait(access), &done, &failure):
        return refuse_use(core, &failure, 1, error)
    ready[0] = done
    return 0


cdef int table_synchronize(xlogmem_runtime* runtime, const xlogmem_access* access,
                           xlogmem_error* error) noexcept nogil:
    cdef CoreState* core = (<RuntimeHold*>runtime).core
    cdef Block* block = NULL
    cdef PyThreadState* thread
    cdef Failure failure
    cdef Found found
    cdef int failed
    if names_nothing(access):
        return 0
    if find_block_of(core, access, &found, &block, error):
        return 1
    thread = release_gil()
    failed = wait_for_block(core, block, found.generation, kind_of_wait(access), NULL, &failure)
    restore_gil(thread)
    return refuse_use(core, &failure, 1, error) if failed else 0


# ---------------------------------------------------------------------------------------------- streams that live
cdef int table_hold_stream(xlogmem_runtime* runtime, void* stream, xlogmem_error* error) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef CoreState* core = hold.core
    cdef cy.CUstream handle = <cy.CUstream>named_handle(stream)
    cdef StreamState* state = NULL
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    if refuse_lost(core, &failure) or enter_context(core.order.context, &scope, &failure):
        return refuse_use(core, &failure, 0, error)
    failed = lookup_usable_stream_locks(hold, handle, ORDINARY, &state, &failure)
    if not failed:
        keep_stream_locked(hold, handle, state)
        know_stream_locked(hold, handle, state)
        state.busy -= 1
    core.order.lock.unlock()
    leave_context(&scope)
    return refuse_use(core, &failure, 0, error) if failed else 0


cdef int table_release_stream(xlogmem_runtime* runtime, void* stream, xlogmem_error* error) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef cy.CUstream handle = <cy.CUstream>named_handle(stream)
    cdef PyThreadState* thread
    cdef Failure failure
    cdef bint entered, held
    cdef Scope scope
    if refuse_forked(&failure):
        return refuse_use(hold.core, &failure, 0, error)
    thread = release_gil()
    entered = not enter_context(hold.core.order.context, &scope, &failure)
    hold.core.order.lock.lock()
    held = leave_stream_of_hold_unlocks(hold, handle, entered)
    hold.core.order.lock.unlock()
    if entered:
        leave_context(&scope)
    restore_gil(thread)
    if held:
        return 0
    error.kind = XLOGMEM_NOT_FOUND
    snprintf(error.text, XLOGMEM_TEXT, "release_stream: stream %p is not held: call hold_stream first", stream)
    return 1


# ---------------------------------------------------------------------------------------------- figures
cdef void table_counters(xlogmem_runtime* runtime, xlogmem_counters* counters, size_t size) noexcept nogil:
    cdef CoreState* core = (<RuntimeHold*>runtime).core
    cdef xlogmem_counters now
    cdef Figures figures
    cdef Failure ignored
    memset(counters, 0, size)
    if refuse_forked(&ignored):
        return
    core.order.lock.lock()
    count_all_locked(core, &figures)
    now.live_bytes = figures.live_bytes
    now.live_blocks = figures.live_blocks
    now.pending_bytes = core.pending_bytes
    now.allocations = figures.counters.allocations
    now.frees = figures.counters.frees
    now.uses = figures.counters.uses
    now.waits = core.order.counters.waits
    now.records = core.order.counters.records
    now.host_waits = core.order.counters.host_waits
    core.order.lock.unlock()
    memcpy(counters, &now, size if size < sizeof(now) else sizeof(now))


cdef xlogmem_runtime* table_runtime_for(int device) except NULL:
    from xlogmem.runtime import get_runtime
    runtime = get_runtime(device)
    return table_open(<void*>runtime)
