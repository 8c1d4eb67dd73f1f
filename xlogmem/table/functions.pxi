# The functions of the table; include/xlogmem.h documents them for callers.
#
# The usual stream is the legacy one, and the usual call has nothing to do but its own work.  Such a call makes no
# lookup and, where the resource finds its device itself, no driver call except the resource's.

from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_INCREF
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.string cimport strlen

from xlogmem.native cimport (
    XLOGMEM_CAPTURING,
    XLOGMEM_CONFLICT,
    XLOGMEM_FAILED,
    XLOGMEM_INVALID,
    XLOGMEM_LOST,
    XLOGMEM_NOT_FOUND,
    XLOGMEM_OUT_OF_MEMORY,
    XLOGMEM_STALE,
    XLOGMEM_TABLE,
    XLOGMEM_TABLE_VERSION,
    XLOGMEM_TEXT,
    xlogmem_error,
    xlogmem_runtime,
    xlogmem_table,
)
from xlogmem._base.cpp cimport check, make_new, unlikely
from xlogmem._base.failures cimport (
    ARGUMENT_IS_WRONG,
    BLOCK_IS_AWAITED,
    BLOCK_IS_CONTESTED,
    BLOCK_IS_ON_DEVICE,
    BLOCK_IS_STALE,
    DEVICE_IS_LOST,
    DRIVER_FAILED,
    OUT_OF_BUDGET,
    PYTHON_RAISED,
    SOURCE_IS_CAPTURING,
    STREAM_IS_CAPTURING,
    STREAM_IS_ELSEWHERE,
    WAIT_IS_CIRCULAR,
    Failure,
    UnderWay,
    fail_argument,
    fail_resource,
    fail_stream,
    format_failure,
    is_out_of_memory,
    is_put_off,
    is_sticky,
    put_back,
    set_aside,
)
from xlogmem._base.labels cimport Label, label_of_stack, label_of_tag, release
from xlogmem._core cimport (
    CAPTURE_WAS_CHECKED,
    CHECK_CAPTURE,
    HOST_HANDLE,
    KEEP_STREAM_BUSY,
    NOT_AT_ONCE,
    RELEASE_STREAM,
    UNKNOWN_ACCESS,
    Block,
    CaptureCheck,
    CoreState,
    Figures,
    Found,
    StreamCache,
    allocate,
    allocate_at_once,
    allocate_by_handle,
    allocate_from_cache,
    allocate_in_call,
    bring_in_at_locked,
    count_all_locked,
    drain,
    encode_for_check,
    drop_exception_locked,
    file_unprepared_unlocks,
    find_by_address_locked,
    find_site_for_check,
    free_at_into_cache,
    free_block,
    free_by_handle,
    free_by_id_into_cache,
    free_found_unlocks,
    free_plainly_at,
    free_without_wait,
    goes_slowly,
    has_deferred_work,
    host_cache_of,
    is_fence_due_locked,
    is_in_parts,
    join_parts_locked,
    keep_stack_of_free,
    keep_unreported_locked,
    live_block_at_locked,
    mark_lost_if_sticky,
    refuse_lost,
    report_refused_free_locked,
    requeue_free_locked,
)
from xlogmem._driver cimport Scope, enter_context, leave_context, process_is_closing, process_was_forked
from xlogmem._order cimport (
    OPAQUE,
    StreamState,
    advance,
    fence_now_unlocks,
    host_wait_unlocks,
    is_unowned,
)
from xlogmem.blocks cimport Core
from xlogmem.resources.base cimport Allocation, FrontierTable, start_call, start_call_on


cdef void fill_error(CoreState* core, Failure* failure, xlogmem_error* error) noexcept nogil:
    mark_lost_if_sticky(core, 1, failure)
    error.kind = kind_of_failure(failure)
    format_failure(failure, error.text, XLOGMEM_TEXT)
    if error.kind == XLOGMEM_OUT_OF_MEMORY and failure.kind in (DRIVER_FAILED, OUT_OF_BUDGET):
        add_figures(core, error)                        # a resource's own text stays: a caller may recognise it
    if failure.kind in (PYTHON_RAISED, OUT_OF_BUDGET):  # it refers to something
        core.order.lock.lock()
        drop_exception_locked(core, failure)
        core.order.lock.unlock()


cdef int kind_of_failure(Failure* failure) noexcept nogil:
    """Return the `xlogmem_kind` of a failure."""
    if is_out_of_memory(failure):
        return XLOGMEM_OUT_OF_MEMORY
    if failure.kind == BLOCK_IS_STALE:
        return XLOGMEM_STALE
    if failure.kind in (STREAM_IS_CAPTURING, SOURCE_IS_CAPTURING) or (
            failure.kind == DRIVER_FAILED and is_of_capture(failure.code)):
        return XLOGMEM_CAPTURING
    if failure.kind in (BLOCK_IS_CONTESTED, BLOCK_IS_AWAITED, WAIT_IS_CIRCULAR):
        return XLOGMEM_CONFLICT
    if failure.kind == DEVICE_IS_LOST or is_sticky(failure):
        return XLOGMEM_LOST
    if failure.kind in (STREAM_IS_ELSEWHERE, BLOCK_IS_ON_DEVICE, ARGUMENT_IS_WRONG):
        return XLOGMEM_INVALID
    return XLOGMEM_FAILED


cdef inline bint is_of_capture(int code) noexcept nogil:
    """True for the codes by which the driver refuses a call because a graph is being captured."""
    return <int>cy.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED <= code <= <int>cy.CUDA_ERROR_CAPTURED_EVENT


cdef void add_figures(CoreState* core, xlogmem_error* error) noexcept nogil:
    """Add the live and pending bytes to the text of an error, if they fit."""
    cdef char[XLOGMEM_TEXT] line
    cdef Figures figures
    cdef uint64_t pending
    cdef size_t length = strlen(error.text)
    core.order.lock.lock()
    count_all_locked(core, &figures)
    pending = core.pending_bytes
    core.order.lock.unlock()
    snprintf(line, XLOGMEM_TEXT, "; %llu bytes live, %llu pending", <unsigned long long>figures.live_bytes,
             <unsigned long long>pending)
    if length + strlen(line) < <size_t>XLOGMEM_TEXT:
        snprintf(error.text + length, XLOGMEM_TEXT - length, "%s", line)


cdef xlogmem_runtime* table_open(void* runtime) noexcept:
    cdef RuntimeHold* hold
    run_deferred(NULL)
    if not isinstance(<object>runtime, Core):
        return NULL
    hold = make_new[RuntimeHold]()
    hold.core = &(<Core><object>runtime).state
    hold.owner = runtime
    hold.tag = NULL
    Py_INCREF(<object>runtime)
    return <xlogmem_runtime*>hold


def name_memory(size_t runtime, str tag):
    """Give a tag to what is allocated through this hold of `open`, before the first allocation."""
    (<RuntimeHold*>runtime).tag = label_of_tag(tag)
    encode_for_check((<RuntimeHold*>runtime).tag)


cdef void table_close(xlogmem_runtime* runtime) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef CoreState* core = hold.core
    cdef PyThreadState* thread
    cdef bint entered, last
    cdef Failure ignored
    cdef Scope scope
    if process_is_closing() or process_was_forked():    # the runtime ends with the process, or was left to the parent
        return
    thread = release_gil()
    entered = not enter_context(core.order.context, &scope, &ignored)
    core.order.lock.lock()
    while not hold.kept.empty():                        # now: the caller may destroy these streams
        leave_kept_unlocks(hold, hold.kept.size() - 1, entered)
    hold.is_closed = True
    last = hold.open_uses == 0                          # else the last use releases the hold
    core.order.lock.unlock()
    if entered:
        leave_context(&scope)
    if last:
        release_later(hold)
    restore_gil(thread)


cdef int take_stack(CoreState* core, Label** stack) except -1 nogil:
    """Take the Python stack of the caller, for a resource that wants it; NULL in a thread without Python frames."""
    cdef UnderWay exception
    stack[0] = NULL
    if core.stack_depth and PyGILState_GetThisThreadState() != NULL:
        with gil:
            set_aside(&exception)                       # the caller may be a finalizer
            try:
                stack[0] = label_of_stack(core.stack_depth)
                find_site_for_check()
            finally:
                put_back(&exception)
    return 0


cdef int allocate_on(RuntimeHold* hold, size_t nbytes, void* stream, Block** block, Failure* failure) except -1 nogil:
    if unlikely(names_host(stream)):
        return allocate_for_host_from(hold, nbytes, block, failure)
    cdef CoreState* core = hold.core
    cdef StreamState* state = default_stream(hold, stream)
    cdef StreamCache* cache = cache_of_handle(hold, state, stream)
    cdef size_t handle = 0
    cdef Allocation wanted
    cdef Scope scope
    cdef int failed
    if cache != NULL and not goes_slowly(core):
        handle = find_handle(state, cache, stream)
    if handle != 0:
        start_call(&wanted, nbytes, <cy.CUstream>stream)
        wanted.tag = hold.tag
        if (allocate_from_cache(core, cache, handle, &wanted, block)
                or (hold.tag == NULL and allocate_by_handle(core, cache, handle, nbytes, block))):
            return 0
    if state != NULL and not goes_slowly(core):
        start_call_on(&wanted, nbytes, state)
        wanted.tag = hold.tag
        if core.resource.finds_device:                  # xlogmem itself makes no driver call
            return allocate_in_call(core, core.resource, &wanted, KEEP_STREAM_BUSY, block, failure)
        if enter_context(core.order.context, &scope, failure):
            return 1
        failed = allocate_in_call(core, core.resource, &wanted, KEEP_STREAM_BUSY, block, failure)
        leave_context(&scope)
        return failed
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1                                        # in a forked child too, before the lock
    drain(core)
    failed = lookup_usable_stream_locks(hold, <cy.CUstream>stream, OPAQUE, &state, failure)
    core.order.lock.unlock()
    if not failed:
        start_call_on(&wanted, nbytes, state)
        wanted.tag = hold.tag
        take_stack(core, &wanted.stack)
        failed = allocate_in_call(core, core.resource, &wanted, RELEASE_STREAM, block, failure)
        release(wanted.stack)
    leave_context(&scope)
    return failed and allocate_inside(hold, nbytes, stream, block, failure)


cdef int allocate_for_host_from(RuntimeHold* hold, size_t nbytes, Block** block, Failure* failure) except -1 nogil:
    """Allocate memory for the host, of the runtime's own resource."""
    cdef CoreState* core = hold.core
    cdef StreamCache* cache
    cdef Allocation wanted
    cdef int failed = 0
    if not core.resource.host_accessible:
        snprintf(failure.text, sizeof(failure.text),
                 "XLOGMEM_HOST: the runtime's resource has memory of the device alone, which the host cannot use")
        return fail_argument(failure, cy.CUDA_ERROR_INVALID_VALUE)
    start_call(&wanted, nbytes, core.order.first)
    wanted.tag = hold.tag
    cache = host_cache_of(core, core.resource)
    if cache != NULL and not goes_slowly(core) and allocate_from_cache(core, cache, HOST_HANDLE, &wanted, block):
        return 0
    take_stack(core, &wanted.stack)
    if allocate_at_once(core, core.resource, &wanted, block, failure) == NOT_AT_ONCE:
        failed = allocate(core, core.resource, &wanted, block, failure)
    release(wanted.stack)
    return failed


cdef int table_allocate(xlogmem_runtime* runtime, size_t nbytes, void* stream, void** ptr,
                        xlogmem_error* error) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef Block* block = NULL
    cdef Failure failure
    ptr[0] = NULL
    if nbytes == 0:
        return 0
    if unlikely(allocate_on(hold, nbytes, stream, &block, &failure)):
        fill_error(hold.core, &failure, error)
        return 1
    ptr[0] = <void*>block.ptr
    return 0


cdef int table_allocate_sync(xlogmem_runtime* runtime, size_t nbytes, void** ptr, xlogmem_error* error) noexcept nogil:
    """Allocate memory for use on streams that are not named here: its home is the one stream that blocking streams wait
    for by themselves."""
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef CoreState* core = hold.core
    cdef Block* block = NULL
    cdef Failure failure
    cdef Failure ignored
    cdef Scope scope
    cdef int failed
    ptr[0] = NULL
    if nbytes == 0:
        return 0
    failed = allocate_on(hold, nbytes, NULL, &block, &failure)
    if not failed:
        failed = enter_context(core.order.context, &scope, &failure)
        if not failed:
            core.order.lock.lock()
            core.order.in_flight += 1
            failed = host_wait_unlocks(core.order, block.stream, advance(block.stream), &failure)
            core.order.in_flight -= 1
            core.order.lock.unlock()
            leave_context(&scope)
        if failed:
            free_block(core, block.slot, block.generation, NULL, NULL, &ignored)
    if failed:
        fill_error(core, &failure, error)
        return 1
    ptr[0] = <void*>block.ptr
    return 0


cdef void table_deallocate(xlogmem_runtime* runtime, void* ptr, void* stream) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef Block* block = NULL
    cdef Failure failure
    if unlikely(ptr == NULL or process_is_closing()):   # at the end the memory goes with the process
        return
    if unlikely(free_on(hold, <uint64_t>ptr, stream, &block, &failure)):
        if block == NULL and free_inside(hold, <uint64_t>ptr, stream, False):
            return
        report_failed_free(hold.core, <uint64_t>ptr, block, &failure)


cdef int free_on(RuntimeHold* hold, uint64_t ptr, void* stream, Block** block, Failure* failure) except -1 nogil:
    """Free the block at an address.  `block` gets the block that was found there, if the free succeeds or not; NULL if
    none was found."""
    cdef CoreState* core = hold.core
    cdef StreamState* state
    cdef StreamCache* cache
    cdef int failed
    if unlikely(names_host(stream)):
        cache = host_cache_of(core, core.resource)
        if cache != NULL and free_at_into_cache(core, cache, HOST_HANDLE, ptr):
            return 0
        if core.resource.frontiers != NULL and not goes_slowly(core) and free_plainly_at(core, ptr):
            return 0
        return free_slowly(hold, ptr, stream, block, failure)
    state = default_stream(hold, stream)
    cache = cache_of_handle(hold, state, stream)
    if unlikely(cache != NULL and state == NULL and <bint>cache.by_id):
        if free_by_id(core, cache, stream, ptr):
            return 0
    elif cache != NULL and (free_at_into_cache(core, cache, named_handle(stream), ptr)
                            or free_by_handle(core, cache, named_handle(stream), ptr)):
        return 0
    if (state != NULL and (core.resource.finds_device or core.resource.frontiers != NULL)
            and not goes_slowly(core)):
        failed = free_without_wait(core, ptr, state, block, failure)    # xlogmem itself makes no driver call
        if block[0] != NULL:
            return failed
    return free_slowly(hold, ptr, stream, block, failure)


cdef bint free_by_id(CoreState* core, StreamCache* cache, void* stream, uint64_t ptr) noexcept nogil:
    """Free on a stream that may be destroyed, into its cache alone: a free into the pool takes its part in a fence."""
    cdef size_t handle = 0
    if not has_deferred_work(core):
        handle = find_handle(NULL, cache, stream)
    return handle != 0 and free_by_id_into_cache(cache, handle, ptr)


cdef int free_slowly(RuntimeHold* hold, uint64_t ptr, void* stream, Block** block, Failure* failure) except -1 nogil:
    """Do as `free_on`, in a call that may have more to do.  For the host the block is freed on its home."""
    cdef CoreState* core = hold.core
    cdef StreamState* state = NULL
    cdef CaptureCheck check_capture = CHECK_CAPTURE
    cdef bint capturing = False
    cdef Label* stack
    cdef Scope scope
    cdef int failed = 0
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    take_stack(core, &stack)
    if names_host(stream):
        core.order.lock.lock()
    else:
        failed = lookup_stream_locks(hold, <cy.CUstream>stream, OPAQUE, &capturing, &state, failure)
        check_capture = CHECK_CAPTURE if capturing else CAPTURE_WAS_CHECKED
    if not failed:
        failed = free_at_unlocks(core, ptr, state, check_capture, stack, block, failure)
        if state != NULL:
            state.busy -= 1
    core.order.lock.unlock()
    leave_context(&scope)
    release(stack)
    return failed


cdef int free_at_unlocks(CoreState* core, uint64_t ptr, StreamState* stream, CaptureCheck check_capture, Label* stack,
                         Block** block, Failure* failure) except -1 nogil:
    """Free the block that is alive at an address, on a stream that is busy (NULL: on the block's home)."""
    check(core.order.lock.held(), "the lock is held")
    cdef FrontierTable* frontiers
    cdef size_t nbytes
    if stream != NULL:
        bring_in_at_locked(core, stream, ptr)
    block[0] = live_block_at_locked(core, ptr)
    if block[0] == NULL:
        report_refused_free_locked(core, ptr, stack)
        snprintf(failure.text, sizeof(failure.text), "no block of the runtime is alive at %p, which was freed",
                 <void*>ptr)
        return fail_resource(failure, cy.CUDA_ERROR_INVALID_VALUE)
    nbytes = block[0].nbytes
    frontiers = block[0].resource.frontiers
    if stack != NULL:
        keep_stack_of_free(block[0], stack)
    if free_found_unlocks(core, block[0], stream, check_capture, failure):
        return 1
    if check_capture == CAPTURE_WAS_CHECKED and frontiers != NULL and is_unowned(stream):
        fence_after_frees_unlocks(core, frontiers, stream, nbytes)
    return 0


cdef int fence_after_frees_unlocks(CoreState* core, FrontierTable* frontiers, StreamState* stream,
                                   size_t nbytes) except -1 nogil:
    """Record a fence after a number of frees on an unowned stream, which was alive for this free.  A wait for memory
    that a pool has from the stream can do without the stream, up to its last fence.  So there is a fence for a number
    of frees, or for fewer large frees; where the pool has a maximum, for each free, because an allocation does not wait
    for the whole context instead."""
    check(core.order.lock.held(), "the lock is held")
    stream.unfenced_frees += 1 + <uint32_t>(nbytes // <size_t>LARGE)
    if is_fence_due_locked(stream, stream.unfenced_frees, frontiers.frees_per_fence):
        fence_now_unlocks(core.order, stream)
    return 0


cdef void report_failed_free(CoreState* core, uint64_t ptr, Block* block, Failure* failure) noexcept nogil:
    """Report a failed free, because `deallocate` cannot raise.  A later call frees a block that was found (NULL: none
    was).  A free that is put off, because a stream that has used the block is capturing, is not a failure."""
    cdef char[XLOGMEM_TEXT] text
    cdef char[XLOGMEM_TEXT] line
    cdef bint put_off = block != NULL and is_put_off(failure)
    format_failure(failure, text, XLOGMEM_TEXT)
    core.order.lock.lock()
    if block != NULL:
        requeue_free_locked(core, block, failure)
    else:
        keep_unreported_locked(core, failure)
    if put_off:
        core.counters.deferred_frees += 1
    else:
        core.unreported = True
    core.order.lock.unlock()
    if put_off:
        return
    snprintf(line, XLOGMEM_TEXT, "freeing %p, allocated through the C table, failed: %.150s. "
             "DeviceRuntime.reap_pending() raises it", <void*>ptr, text)
    log_later(line)


cdef void table_deallocate_sync(xlogmem_runtime* runtime, void* ptr) noexcept nogil:
    table_deallocate(runtime, ptr, NULL)


cdef int table_record_use(xlogmem_runtime* runtime, void* ptr, void* stream, xlogmem_error* error) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef Failure failure
    cdef bint found = False
    if unlikely(record_use_at(hold, <uint64_t>ptr, stream, &found, &failure)):
        fill_error(hold.core, &failure, error)
        return 1
    if not found:
        error.kind = XLOGMEM_NOT_FOUND
        snprintf(error.text, XLOGMEM_TEXT, "no block of the runtime is alive at %p", ptr)
        return 1
    return 0


cdef int record_use_at(RuntimeHold* hold, uint64_t ptr, void* stream, bint* found, Failure* failure) except -1 nogil:
    """File a use in the block around an address.  An opaque home needs no entry: its work counts in any case."""
    cdef CoreState* core = hold.core
    cdef StreamState* state = NULL
    cdef bint capturing = False
    cdef Found known
    cdef Block* block
    cdef Scope scope
    cdef int failed
    core.order.lock.lock()
    found[0] = find_by_address_locked(core, ptr, &known)
    core.order.lock.unlock()
    if not found[0]:                                    # nothing about the stream: it may be another device's
        return 0
    if refuse_lost(core, failure) or enter_context(core.order.context, &scope, failure):
        return 1
    drain(core)
    failed = lookup_stream_locks(hold, <cy.CUstream>stream, OPAQUE, &capturing, &state, failure)
    found[0] = find_by_address_locked(core, ptr, &known)
    if not failed and found[0]:
        block = core.blocks[known.slot]
        if is_in_parts(block):
            join_parts_locked(core, block, 0)
        if capturing:
            failed = fail_stream(failure, STREAM_IS_CAPTURING, state.number)
        elif block.home != state or state.discipline != OPAQUE:
            file_unprepared_unlocks(core.order, block, state, UNKNOWN_ACCESS)
    if state != NULL:
        state.busy -= 1
    core.order.lock.unlock()
    leave_context(&scope)
    return failed


cdef xlogmem_table functions
functions.version = XLOGMEM_TABLE_VERSION
functions.size = sizeof(xlogmem_table)
functions.open = table_open
functions.close = table_close
functions.allocate = table_allocate
functions.allocate_sync = table_allocate_sync
functions.deallocate = table_deallocate
functions.deallocate_sync = table_deallocate_sync
functions.record_use = table_record_use
functions.runtime_for = table_runtime_for
functions.prepare = table_prepare
functions.finish = table_finish
functions.cancel = table_cancel
functions.wait = table_wait
functions.find = table_find
functions.identify = table_identify
functions.ready = table_ready
functions.synchronize = table_synchronize
functions.hold_stream = table_hold_stream
functions.release_stream = table_release_stream
functions.allocate_many = table_allocate_many
functions.deallocate_many = table_deallocate_many
functions.counters = table_counters
functions.begin_capture = table_begin_capture
functions.fork_capture = table_fork_capture
functions.end_capture = table_end_capture
functions.open_graph = table_open_graph
functions.prepare_graph = table_prepare_graph
functions.launch_graph = table_launch_graph
functions.close_graph = table_close_graph
functions.graph_handle = table_graph_handle

table = PyCapsule_New(&functions, XLOGMEM_TABLE, NULL)
