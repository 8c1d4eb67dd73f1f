# Captures and graphs for callers of the C table.
#
# What happens in a capture is Python's (launch/captures.pxi), and takes the GIL: a capture is made once.  A launch of a
# graph is a use of all its blocks, prepared and filed as any use, without the GIL.

from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from cuda.bindings cimport cydriver as cy
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport snprintf

from xlogmem.errors import StreamMisuseError
from xlogmem.launch import capture, capturing
from xlogmem._base.cpp cimport make_new, unlikely, vector
from xlogmem._base.failures cimport Failure, UnderWay, fail_resource, put_back, set_aside
from xlogmem._core cimport Block, CoreState, Found, GraphState, begin_launch, end_launch, free_block, refuse_lost
from xlogmem._driver cimport Scope, enter_context, graph_launch, leave_context
from xlogmem._order cimport ORDINARY, StreamState
from xlogmem.blocks cimport Core
from xlogmem.launch cimport (
    give_to_graph,
    has_captures,
    is_of_graph,
    launches_of,
    promise_to_live,
    stream_outside,
    take_from_graph,
)
from xlogmem.native cimport (
    XLOGMEM_CAPTURE_GLOBAL,
    XLOGMEM_CAPTURE_OF_OTHERS,
    XLOGMEM_CAPTURE_RELAXED,
    XLOGMEM_CAPTURE_THREAD_LOCAL,
    XLOGMEM_CAPTURING,
    XLOGMEM_CONFLICT,
    XLOGMEM_INVALID,
    XLOGMEM_READ,
    XLOGMEM_TEXT,
    XLOGMEM_WRITE,
    xlogmem_access,
    xlogmem_capture,
    xlogmem_error,
    xlogmem_graph,
    xlogmem_runtime,
    xlogmem_use,
)

cdef dict MODES = {XLOGMEM_CAPTURE_GLOBAL: "global", XLOGMEM_CAPTURE_THREAD_LOCAL: "thread_local",
                   XLOGMEM_CAPTURE_RELAXED: "relaxed"}


cdef cppclass GraphHold:
    # A graph of Python; callers of the table know it as an xlogmem_graph.
    CoreState* core
    GraphState* launches
    vector[xlogmem_access] accesses     # of a launch
    PyObject* graph             # a strong reference
    bint is_owner               # it was captured through the table, and is closed with the hold


# ---------------------------------------------------------------------------------------------- captures
cdef int table_begin_capture(xlogmem_runtime* runtime, void* stream, uint32_t mode, const xlogmem_access* accesses,
                             size_t count, xlogmem_capture** capture, xlogmem_error* error) noexcept nogil:
    cdef int failed
    capture[0] = NULL
    if mode > <uint32_t>XLOGMEM_CAPTURE_OF_OTHERS:
        return refuse_argument(error, "begin_capture: mode is not an xlogmem_capture_mode", mode)
    if count != 0 and mode != <uint32_t>XLOGMEM_CAPTURE_OF_OTHERS:
        return refuse_argument(error, "begin_capture: accesses are for XLOGMEM_CAPTURE_OF_OTHERS alone; in another "
                               "capture each launch is a use. Their number", count)
    if names_host(stream):
        return refuse_argument(error, "begin_capture: the host captures nothing", <uint64_t>stream)
    if mode != <uint32_t>XLOGMEM_CAPTURE_OF_OTHERS:
        identify_before_capture(<RuntimeHold*>runtime, stream)
    if not enter_interpreter():
        return refuse_exit(error)
    failed = begin_capture_for(<RuntimeHold*>runtime, stream, mode, accesses, count, capture, error)
    leave_interpreter()
    return failed


cdef void identify_before_capture(RuntimeHold* hold, void* stream) noexcept nogil:
    """Find out which stream a handle means, if nothing was done with it yet: a query would end its capture, and without
    one no free can name the stream."""
    cdef StreamState* state = NULL
    cdef bint capturing = False
    cdef Failure ignored                                # the capture says what is wrong with the stream
    cdef Scope scope
    if refuse_lost(hold.core, &ignored) or enter_context(hold.core.order.context, &scope, &ignored):
        return
    lookup_stream_locks(hold, <cy.CUstream>named_handle(stream), ORDINARY, &capturing, &state, &ignored)
    if state != NULL:
        state.busy -= 1
    hold.core.order.lock.unlock()
    leave_context(&scope)


cdef int refuse_exit(xlogmem_error* error) noexcept nogil:
    return refuse_graph(error, "the process is exiting, and nothing is captured any more")


cdef int begin_capture_for(RuntimeHold* hold, void* handle, uint32_t mode, const xlogmem_access* accesses,
                           size_t count, xlogmem_capture** result, xlogmem_error* error) noexcept with gil:
    cdef UnderWay exception
    cdef list named = [[], [], []]
    cdef Core own = <Core>hold.owner
    set_aside(&exception)
    try:
        for i in range(count):
            if not is_access(&accesses[i]):
                return refuse_argument(error, "begin_capture: an access is not XLOGMEM_READ, _WRITE or _READ_WRITE",
                                       accesses[i].access)
            if accesses[i].address == 0 and accesses[i].generation == 0:
                continue
            block = block_anywhere(own, &accesses[i])
            if block is None:
                return refuse_untracked(error, &accesses[i], i + 1, count)
            named[0 if accesses[i].access == XLOGMEM_READ else 1 if accesses[i].access == XLOGMEM_WRITE else 2].append(
                block)
        stream = stream_named(own, handle)
        if mode == XLOGMEM_CAPTURE_OF_OTHERS:
            manager = capturing(stream, *named, runtime=own)
        else:
            manager = capture(stream, runtime=own, mode=MODES[mode])
        pair = (manager, manager.__enter__())
        Py_INCREF(pair)
        result[0] = <xlogmem_capture*><void*>pair
        return 0
    except BaseException as raised:
        fill_raised(raised, error)
        return 1
    finally:
        put_back(&exception)


cdef object stream_named(Core own, void* handle):
    """The runtime's own stream that has a handle, or else the handle."""
    own_stream = own.streams.own(<cy.CUstream>handle, False)
    return own_stream if own_stream is not None else <size_t>handle


cdef int table_fork_capture(xlogmem_runtime* runtime, xlogmem_capture* capture, void* stream,
                            xlogmem_error* error) noexcept nogil:
    cdef int failed
    if names_host(stream):
        return refuse_argument(error, "fork_capture: the host captures nothing", <uint64_t>stream)
    identify_before_capture(<RuntimeHold*>runtime, stream)
    if not enter_interpreter():
        return refuse_exit(error)
    failed = fork_capture_to(<RuntimeHold*>runtime, capture, stream, error)
    leave_interpreter()
    return failed


cdef int fork_capture_to(RuntimeHold* hold, xlogmem_capture* capture, void* handle,
                         xlogmem_error* error) noexcept with gil:
    cdef UnderWay exception
    set_aside(&exception)
    try:
        (<tuple><void*>capture)[1].fork(stream_named(<Core>hold.owner, handle))
        promise_to_live(<Core>hold.owner, <cy.CUstream>handle)
        return 0
    except BaseException as raised:
        fill_raised(raised, error)
        return 1
    finally:
        put_back(&exception)


cdef int table_end_capture(xlogmem_runtime* runtime, xlogmem_capture* capture, xlogmem_graph** graph,
                           xlogmem_error* error) noexcept nogil:
    cdef int failed
    if graph != NULL:
        graph[0] = NULL
    if capture == NULL:
        return 0
    if not enter_interpreter():
        return refuse_exit(error)
    failed = end_capture_for(<RuntimeHold*>runtime, capture, graph, error)
    leave_interpreter()
    return failed


cdef int end_capture_for(RuntimeHold* hold, xlogmem_capture* capture, xlogmem_graph** result,
                         xlogmem_error* error) noexcept with gil:
    cdef UnderWay exception
    pair = <tuple><void*>capture
    manager, graph = pair
    set_aside(&exception)
    try:
        given_up = StreamMisuseError("the capture was given up") if result == NULL else None
        manager.__exit__(type(given_up), given_up, None)
        if result != NULL:
            result[0] = hold_graph(hold, graph, True)
        return 0
    except BaseException as raised:
        fill_raised(raised, error)
        if manager._goes_on:
            error.kind = XLOGMEM_CONFLICT
        return 1
    finally:
        if not manager._goes_on:
            Py_DECREF(pair)
        put_back(&exception)


# ---------------------------------------------------------------------------------------------- graphs
cdef xlogmem_graph* hold_graph(RuntimeHold* hold, object graph, bint is_owner) except NULL:
    cdef GraphState* launches = launches_of(graph, <Core>hold.owner)
    cdef GraphHold* held = make_new[GraphHold]()
    cdef xlogmem_access access
    cdef size_t i
    for i in range(launches.requests.size()):
        access.address = 0
        access.generation = launches.requests[i].generation
        access.slot = launches.requests[i].slot
        access.access = launches.requests[i].access
        held.accesses.push_back(access)
    held.core = hold.core
    held.launches = launches
    held.graph = <PyObject*>graph
    held.is_owner = is_owner
    Py_INCREF(graph)
    return <xlogmem_graph*>held


cdef xlogmem_graph* table_open_graph(xlogmem_runtime* runtime, void* graph) except NULL:
    return hold_graph(<RuntimeHold*>runtime, <object>graph, False)


cdef void* table_graph_handle(xlogmem_runtime* runtime, xlogmem_graph* graph) noexcept nogil:
    return <void*>(<GraphHold*>graph).launches.executable


cdef void table_close_graph(xlogmem_runtime* runtime, xlogmem_graph* graph) noexcept nogil:
    if graph == NULL or not enter_interpreter():        # at the end it goes with the process
        return
    close_held_graph(<GraphHold*>graph)
    leave_interpreter()


cdef void close_held_graph(GraphHold* held) noexcept with gil:
    """Release a graph, and close it if it was captured through the table.  It cannot be reported what a lost device
    says of that."""
    cdef UnderWay exception
    graph = <object>held.graph
    set_aside(&exception)
    try:
        Py_DECREF(graph)
        if held.is_owner:
            graph.close()
    except BaseException as raised:
        log_raised("closing a graph", raised)
    finally:
        del held
        put_back(&exception)


cdef int log_raised(str what, object raised) except -1:
    text = f"{what} failed: {raised}".encode(errors="replace")
    log_later(text)
    return 0


cdef int table_prepare_graph(xlogmem_runtime* runtime, void* stream, xlogmem_graph* graph, uint32_t flags,
                             xlogmem_use** use, xlogmem_error* error) noexcept nogil:
    cdef GraphState* launches = (<GraphHold*>graph).launches
    cdef int failed
    use[0] = NULL
    if flags & ~<uint32_t>ALL_FLAGS != 0:
        return refuse_argument(error, "prepare_graph: flags has bits that this version does not know", flags)
    if not begin_launch(launches):                      # no thread closes it meanwhile
        return refuse_closed(error)
    failed = prepare_launch_of(<RuntimeHold*>runtime, stream, <GraphHold*>graph, flags, use, error)
    end_launch(launches)
    return failed


cdef inline int prepare_launch_of(RuntimeHold* hold, void* stream, GraphHold* held, uint32_t flags, xlogmem_use** use,
                                  xlogmem_error* error) noexcept nogil:
    """Prepare a launch that was begun."""
    cdef Launch launch
    cdef int failed
    use[0] = NULL
    if unlikely(names_host(stream)):
        return refuse_argument(error, "prepare_graph: the host launches no graph on itself", <uint64_t>stream)
    if unlikely(held.core != hold.core):
        return refuse_graph(error, "this graph belongs to another runtime than the hold with which it is launched")
    launch.handle = <cy.CUstream>named_handle(stream)
    launch.accesses = held.accesses.data()
    launch.count = held.accesses.size()
    launch.requests = &held.launches.requests
    launch.flags = flags | <uint32_t>OF_GRAPH
    launch.refused = 0
    failed = prepare_launch(hold, &launch, use, error)
    if unlikely(not failed and use[0] == NULL):         # a graph without memory: nothing has looked at the stream
        failed = refuse_capturing(hold, launch.handle, error)
    elif unlikely(failed) and error.kind == XLOGMEM_CAPTURING:
        say_capturing(error)
    return failed


cdef int refuse_closed(xlogmem_error* error) noexcept nogil:
    return refuse_graph(error, "this graph was closed, and cannot be launched: capture it again")


cdef int refuse_graph(xlogmem_error* error, const char* why) noexcept nogil:
    error.kind = XLOGMEM_INVALID
    snprintf(error.text, XLOGMEM_TEXT, "%s", why)
    return 1


cdef void say_capturing(xlogmem_error* error) noexcept nogil:
    error.kind = XLOGMEM_CAPTURING
    snprintf(error.text, XLOGMEM_TEXT, "the stream takes part in a capture, or waits for one that does, and CUDA "
             "launches no graph inside a capture, which it would spoil. Capture the same work there, or launch one "
             "graph after the other")


cdef int refuse_capturing(RuntimeHold* hold, cy.CUstream handle, xlogmem_error* error) noexcept nogil:
    cdef StreamState* state = NULL
    cdef Failure failure
    cdef Scope scope
    cdef int failed = refuse_lost(hold.core, &failure) or enter_context(hold.core.order.context, &scope, &failure)
    if not failed:
        failed = lookup_usable_stream_locks(hold, handle, ORDINARY, &state, &failure)
        if not failed:
            state.busy -= 1
        hold.core.order.lock.unlock()
        leave_context(&scope)
    if failed:
        refuse_use(hold.core, &failure, 0, error)
    if failed and error.kind == XLOGMEM_CAPTURING:
        say_capturing(error)
    return failed


cdef int table_launch_graph(xlogmem_runtime* runtime, void* stream, xlogmem_graph* graph,
                            xlogmem_error* error) noexcept nogil:
    cdef RuntimeHold* hold = <RuntimeHold*>runtime
    cdef GraphState* launches = (<GraphHold*>graph).launches
    cdef xlogmem_use* use
    cdef Failure failure
    cdef int failed
    if not begin_launch(launches):                      # no thread closes it before the launch is done
        return refuse_closed(error)
    if launches.executable == NULL:
        failed = refuse_graph(error, "another library has captured this graph: call prepare_graph before its own "
                              "launch, and finish after it")
    else:
        failed = prepare_launch_of(hold, stream, <GraphHold*>graph, 0, &use, error)
    if not failed and launch_executable(hold, launches, <cy.CUstream>named_handle(stream), &failure):
        table_cancel(runtime, use)
        failed = refuse_use(hold.core, &failure, 0, error)
    elif not failed:
        failed = table_finish(runtime, use, error)
    end_launch(launches)
    return failed


cdef int launch_executable(RuntimeHold* hold, GraphState* graph, cy.CUstream handle, Failure* failure) except -1 nogil:
    cdef PyThreadState* thread
    cdef Scope scope
    cdef int failed
    thread = release_gil()                              # a launch may wait for the device
    failed = enter_context(hold.core.order.context, &scope, failure)
    if not failed:
        failed = graph_launch(graph.executable, handle, failure)
        leave_context(&scope)
    restore_gil(thread)
    return failed


# ---------------------------------------------------------------------------------------------- memory of a graph
cdef int allocate_inside(RuntimeHold* hold, size_t nbytes, void* stream, Block** block,
                         Failure* failure) noexcept nogil:
    """Allocate memory of the graph that a stream captures, after an allocation was refused.  Returns 1 if that fails;
    then the failure says why, or is what it was."""
    cdef int failed
    if kind_of_failure(failure) != XLOGMEM_CAPTURING or not has_captures() or not enter_interpreter():
        return 1
    failed = allocate_of_graph(hold, nbytes, stream, block, failure)
    leave_interpreter()
    return failed


cdef int allocate_of_graph(RuntimeHold* hold, size_t nbytes, void* stream, Block** block,
                           Failure* failure) noexcept with gil:
    cdef Core own = <Core>hold.owner
    cdef UnderWay exception
    cdef Failure ignored
    cdef size_t outside
    cdef int failed = 1
    set_aside(&exception)
    block[0] = NULL
    try:
        lane = stream_outside(own, <cy.CUstream>stream)
        if lane is None:
            return 1
        outside = lane.handle
        with nogil:
            failed = allocate_on(hold, nbytes, <void*>outside, block, failure)
        if not failed:
            give_to_graph(own, <cy.CUstream>stream, block[0].slot, block[0].generation)
        return failed
    except BaseException as raised:
        if block[0] != NULL:
            with nogil:
                free_block(hold.core, block[0].slot, block[0].generation, NULL, NULL, &ignored)
        text = str(raised).encode(errors="replace")
        snprintf(failure.text, sizeof(failure.text), "%s", <const char*>text)
        return fail_resource(failure, cy.CUDA_ERROR_UNKNOWN)
    finally:
        put_back(&exception)


cdef bint free_inside(RuntimeHold* hold, uint64_t ptr, void* stream, bint is_new) noexcept nogil:
    """Free memory of the graph that a stream captures: it is free when the graph is closed, or, if nothing has named it
    yet (`is_new`), when the capture ends.  False for other memory."""
    cdef bint done
    if not has_captures() or names_host(stream) or not enter_interpreter():
        return False
    done = free_of_graph(hold, ptr, stream, is_new)
    leave_interpreter()
    return done


cdef bint free_of_graph(RuntimeHold* hold, uint64_t ptr, void* stream, bint is_new) noexcept with gil:
    cdef Core own = <Core>hold.owner
    cdef UnderWay exception
    cdef Failure failure
    cdef Found found
    cdef int failed = 1
    set_aside(&exception)
    try:
        if own.find(ptr, &found) and found.ptr == ptr and is_of_graph(own, <cy.CUstream>stream, &found):
            with nogil:
                failed = free_block(hold.core, found.slot, found.generation, NULL, NULL, &failure)
            if is_new:
                take_from_graph(own, <cy.CUstream>stream, found.generation)
        return not failed
    except BaseException as raised:
        log_raised("freeing memory in a capture", raised)
        return False
    finally:
        put_back(&exception)
