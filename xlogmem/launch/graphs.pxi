# Graphs that hold their memory: `capture`, `capturing`, and launches.
#
# A launch is one use of all blocks of the graph.  The graph holds them until it is closed: a free meanwhile is put off,
# and comes after the launches, as after any use.

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.signatures import Signed
from xlogmem._base.cpp cimport make_new
from xlogmem._driver cimport (
    LEGACY,
    begin_capture,
    context_of,
    end_capture,
    executable_destroy,
    graph_destroy,
    graph_instantiate,
    graph_launch,
)
from xlogmem.blocks cimport Export, release_export
from xlogmem.streams cimport device_of

cdef dict MODES = {"global": cy.CU_STREAM_CAPTURE_MODE_GLOBAL, "thread_local": cy.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                   "relaxed": cy.CU_STREAM_CAPTURE_MODE_RELAXED}


cdef cppclass DroppedGraph:
    # What a graph that was dropped leaves to the next call that needs memory.
    Export released
    PyObject* held              # a list of `Held`
    cy.CUgraphExec executable
    cy.CUcontext context


@cython.final
@cython.no_gc_clear                         # __dealloc__ needs what it holds
cdef class Graph:
    """A CUDA graph that holds the memory it uses; made by `capture` and `capturing`.

    A block that is used in the capture stays until the graph is closed, and until the last launch is complete, also if
    the program frees it before.  Each launch is a use of these blocks: it waits for those who wrote them, and whoever
    uses or frees them waits for it.  The host waits, too, before it changes page-locked memory from which the graph
    copies.

    Notes
    -----
    Thread-safe.  Two launches of one graph run one after the other, as CUDA has it.  ``with graph:`` closes the graph
    at the end.  A graph that is dropped is closed by a later call of xlogmem.

    Examples
    --------
    >>> with xlogmem.capture(stream) as graph:
    ...     with xlogmem.use(stream, read=a, write=b):
    ...         launch(a, b, stream)
    >>> graph.launch(stream)
    """
    cdef Core runtime
    cdef CaptureCore core                   # while it is captured
    cdef list held
    cdef cy.CUgraphExec executable          # NULL: another library has it
    cdef str state
    cdef int launching_now

    __signature__ = Signed("")

    def __init__(self):
        raise TypeError("graphs are made by xlogmem.capture(stream) and xlogmem.capturing(stream)")

    def __dealloc__(self):
        cdef DroppedGraph* dropped
        if self.held is None or process_is_closing():
            return
        dropped = make_new[DroppedGraph]()
        dropped.released.block = NULL
        dropped.released.shell = dropped
        dropped.released.destroy = end_dropped
        dropped.held = <PyObject*>self.held
        Py_INCREF(self.held)
        dropped.executable = self.executable
        dropped.context = self.runtime.ordering.context.handle
        release_export(&dropped.released)

    def __reduce__(self):
        raise TypeError("a graph cannot be copied: it holds memory")

    # ------------------------------------------------------------------------------------------ the capture
    def fork(self, stream):
        """Let another stream take part in the capture: it goes on after all that the captured stream has captured so
        far.  At the end of the capture the captured stream comes after it.

        Parameters
        ----------
        stream : stream
            A stream of the same device that captures nothing.  What was queued there before is not captured.

        Raises
        ------
        StreamMisuseError
            The capture has ended, or the stream takes part in another one, or is the legacy default stream.
        DriverError
            The driver refused.
        """
        cdef CaptureCore core = self.core
        cdef Stream known = stream if isinstance(stream, Stream) else None
        cdef cy.CUstream handle = <cy.CUstream><size_t>known.handle if known is not None else parse(stream)
        cdef CaptureCore other
        cdef Stream member, first
        cdef Failure failure
        cdef int failed
        if core is None:
            raise StreamMisuseError(f"fork: the capture has ended, and this graph is {self.state}: fork inside the "
                                    "`with` statement of the capture")
        refuse_legacy(handle, "fork")
        other = capture_on(handle, core.ordering.context)
        if other is core:
            core.member(handle, known)
            return
        if other is not None:
            raise StreamMisuseError(f"fork: {stream!r} takes part in another capture")
        first = core.first()
        member = core.member(handle, known)
        core.owners.append(stream)
        with nogil:
            failed = order_after_all(&core.state, member.state, first.state, &failure)
        if failed:
            core.fail(&failure, f"forking {stream!r}")

    cdef int begin(self, CaptureCore core) except -1:
        self.core = core
        self.runtime = core.runtime
        self.state = "captured"
        return 0

    cdef int end(self, bint failed) except -1:
        """Take what the capture has used."""
        cdef CaptureCore core = self.core
        self.core = None
        self.held = core.end(failed)
        self.state = "failed" if failed else "ready"
        return 0

    cdef int fail(self) except -1:
        """Hold nothing, because there is no graph after all."""
        self.state = "failed"
        return self.release()

    cdef int release(self) except -1:
        cdef list held = self.held
        self.held = None
        for item in held or ():
            (<Held>item).release()
        return self.runtime.free_dropped()

    # ------------------------------------------------------------------------------------------ launches
    def launch(self, stream):
        """Launch the graph on a stream, as one use of all its blocks.

        Parameters
        ----------
        stream : stream
            A stream of the device on which the graph was captured, which takes part in no capture.

        Raises
        ------
        StreamMisuseError
            The graph is not ready: it is being captured, its capture failed, or it was closed; or another library has
            it (see `launching`).  Or the stream takes part in a capture: CUDA launches no graph there.
        DriverError
            A wait could not be queued, or the launch was refused.  Nothing is filed.

        Notes
        -----
        Waits are queued on the stream; the host does not wait.  Thread-safe; the GIL is released in the driver.
        """
        cdef LaunchRecorder recorder
        cdef Failure failure
        cdef Scope scope
        cdef cy.CUstream handle
        cdef cy.CUcontext context
        cdef int failed
        if self.executable == NULL:
            self.refuse_unready("launch")
            raise StreamMisuseError("launch: another library has captured this graph: put `with "
                                    "graph.launching(stream)` around its own launch")
        recorder = self.use_on(stream, "launch")
        handle = recorder.stream.state.handle
        context = self.runtime.ordering.context.handle
        self.launching_now += 1                         # no thread closes the graph meanwhile
        try:
            recorder.open()
            with nogil:
                failed = enter_context(context, &scope, &failure)
                if not failed:
                    failed = graph_launch(self.executable, handle, &failure)
                    leave_context(&scope)
            recorder.finish(CANCELLED if failed else LAUNCHED)
        finally:
            self.launching_now -= 1
        if failed:
            self.runtime.fail(&failure, f"launching a graph on {stream!r}")

    def launching(self, stream):
        """Protect a launch that another library makes: ``with graph.launching(stream): g.replay()``.

        Returns a context manager as `use` does, for all blocks of the graph.  See `launch` for parameters and errors.
        """
        return self.use_on(stream, "launching")

    cdef LaunchRecorder use_on(self, object stream, str method):
        """Make a recorder of all blocks."""
        cdef LaunchRecorder recorder
        cdef Request* request
        cdef Held held
        self.refuse_unready(method)
        if isinstance(stream, Stream) and (<Stream>stream).core is self.runtime:
            recorder = record_on(<Stream>stream)
        else:
            recorder = LaunchRecorder(stream, runtime=self.runtime)
        if recorder.stream is None or recorder.together is not None:
            raise StreamMisuseError(f"{method}: {stream!r} is not a stream of device {self.runtime.device_id}, on "
                                    "which the graph was captured")
        if isinstance(recorder.runtime, CaptureCore):
            raise StreamMisuseError(f"{method}: {stream!r} takes part in a capture, and CUDA launches no graph inside "
                                    "a capture, which it would spoil. Capture the same work there, or launch one graph "
                                    "after the other")
        self.refuse_unready(method)                     # foreign code may have run
        recorder.window.is_graphs = True
        for item in self.held:
            held = <Held>item
            request = &recorder.window.requests.emplace_back()
            request.slot = held.block.slot
            request.access = held.access
            request.generation = held.block.generation
        return recorder

    cdef int refuse_unready(self, str method) except -1:
        if self.state == "ready":
            return 0
        reason = {"captured": "it is being captured: leave the `with` statement of the capture first",
                  "failed": "its capture failed, so there is no graph: capture it again",
                  "closed": "it was closed before: capture it again"}.get(self.state, "it was never captured")
        raise StreamMisuseError(f"{method}: this graph cannot be launched, because {reason}")

    # ------------------------------------------------------------------------------------------ what it has
    @property
    def reads(self):
        """The blocks that a launch reads and does not write, as a tuple of `BlockId`."""
        return self.blocks(READ)

    @property
    def writes(self):
        """The blocks that a launch writes, and perhaps reads, as a tuple of `BlockId`."""
        return self.blocks(READ_WRITE)

    cdef tuple blocks(self, uint32_t access):
        cdef Held held
        cdef list found = []
        for item in self.held or ():
            held = <Held>item
            if held.access == access:
                found.append(self.runtime.identity(held.block.ptr, held.block.generation, held.block.slot, None))
        return tuple(found)

    @property
    def handle(self):
        """The executable graph (``CUgraphExec``) as an int, valid until the graph is closed; 0 if another library has
        it."""
        return <size_t>self.executable

    @property
    def closed(self):
        """True after `close`."""
        return self.state == "closed"

    def close(self):
        """Close the graph: it cannot be launched any more, and holds no memory.  Blocks that were freed meanwhile are
        freed after the last launch.  May be repeated.

        Raises
        ------
        StreamMisuseError
            The graph is being captured, or another thread is launching it.
        DriverError
            The driver could not destroy the graph.  The memory is not held any more.
        """
        cdef cy.CUgraphExec executable = self.executable
        cdef Failure failure
        cdef int failed = 0
        if self.core is not None or self.launching_now:
            reason = ("it is being captured: leave the `with` statement of the capture first"
                      if self.core is not None else "another thread is launching it")
            raise StreamMisuseError(f"close: this graph cannot be closed, because {reason}")
        if self.state == "closed":
            return
        self.state = "closed"
        self.executable = NULL
        if executable != NULL:
            failed = destroy(executable, self.runtime.ordering.context.handle, &failure)
        self.release()
        if failed:
            self.runtime.fail(&failure, "destroying a graph")

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.close()

    def __repr__(self):
        return f"<Graph of device {self.runtime.device_id}: {counted(len(self.held or ()), 'block')}, {self.state}>"


cdef int destroy(cy.CUgraphExec executable, cy.CUcontext context, Failure* failure) except -1:
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = enter_context(context, &scope, failure)
        if not failed:
            failed = executable_destroy(executable, failure)
            leave_context(&scope)
    return failed


cdef void end_dropped(void* shell) noexcept nogil:
    """End a graph that was dropped.  Called with the GIL, by the next call that needs memory."""
    cdef DroppedGraph* dropped = <DroppedGraph*>shell
    with gil:
        end_dropped_graph(dropped)
    del dropped


cdef void end_dropped_graph(DroppedGraph* dropped) noexcept:
    cdef list held = <list>dropped.held
    cdef Failure ignored                                # a lost device has no graph any more
    if dropped.executable != NULL:
        destroy(dropped.executable, dropped.context, &ignored)
    for item in held:
        (<Held>item).release()
    Py_DECREF(held)


# ---------------------------------------------------------------------------------------------- captures
@cython.final
cdef class Capture:
    """The context manager that `capture` and `capturing` return."""
    cdef object stream
    cdef Core runtime
    cdef str mode                           # None: another library captures
    cdef Graph graph
    cdef CaptureCore core
    cdef cy.CUstream handle
    cdef uint64_t number
    cdef tuple uses                         # of what the other library captures

    def __init__(self):
        raise TypeError("captures are made by xlogmem.capture(stream) and xlogmem.capturing(stream)")

    def __enter__(self):
        global captures_open
        cdef Stream known
        if self.graph is not None:
            raise StreamMisuseError("this capture was entered before: make a new one")
        known = self.stream if isinstance(self.stream, Stream) else None
        self.handle = <cy.CUstream><size_t>known.handle if known is not None else parse(self.stream)
        refuse_legacy(self.handle, "capturing" if self.mode is None else "capture")
        runtime = self.runtime
        if runtime is None:
            runtime = core_of(known) if known is not None else runtime_of(self.stream)
        elif known is not None and core_of(known) is not runtime:
            raise StreamMisuseError(f"{known!r} belongs to another runtime than {runtime!r}")
        self.core = make_capture_core(runtime, self.mode is None)
        self.graph = Graph.__new__(Graph)
        self.begin_on_device()
        self.core.ordering.state.capture = self.number
        captures[self.number] = self.core
        captures_open += 1
        self.core.member(self.handle, known)
        self.core.owners.append(self.stream)
        self.graph.begin(self.core)
        if self.uses is not None:
            self.name_uses()
        return self.graph

    cdef int begin_on_device(self) except -1:
        """Begin the capture, unless another library has, and get its number."""
        cdef cy.CUcontext context = self.core.ordering.context.handle
        cdef cy.CUstreamCaptureMode mode = MODES[self.mode] if self.mode is not None else <cy.CUstreamCaptureMode>0
        cdef bint begins = self.mode is not None
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        with nogil:
            failed = enter_context(context, &scope, &failure)
            if not failed:
                failed = capture_of(self.handle, &self.number, &failure)
                if not failed and begins and self.number == 0:
                    failed = (begin_capture(self.handle, mode, &failure)
                              or capture_of(self.handle, &self.number, &failure))
                    begins = False
                leave_context(&scope)
        if failed:
            self.core.runtime.fail(&failure, f"beginning a capture on {self.stream!r}")
        if begins or self.number in captures:
            raise StreamMisuseError(f"capture: {self.stream!r} takes part in a capture already. For a capture that "
                                    "another library has begun there is xlogmem.capturing(stream)")
        if self.number == 0:
            raise StreamMisuseError(f"capturing: {self.stream!r} captures nothing: begin the library's capture first, "
                                    "or use xlogmem.capture(stream)")
        return 0

    cdef int name_uses(self) except -1:
        """File what the other library's own work does with memory."""
        try:
            use(self.core.first(), *self.uses).__enter__().__exit__(None, None, None)
        except BaseException:
            self.end(True)
            raise
        for item in self.core.stand_ins.values():
            (<StandIn>item).is_named = True
        return 0

    def __exit__(self, kind, error, traceback):
        cdef bint failed = error is not None
        cdef object first = None
        try:
            if not failed and self.core.has_open_window():
                raise StreamMisuseError("a use is still open in this capture: leave it before the capture ends. There "
                                        "is no graph")
            if not failed:
                self.core.join_all()
        except BaseException as problem:                # the capture ends all the same
            failed, first = True, problem
        try:
            self.end(failed)
        except BaseException as problem:
            if first is None:
                raise
            first.add_note(f"and: {problem}")
        if first is not None:
            raise first

    cdef int end(self, bint failed) except -1:
        """End the capture, and make the graph of it unless it has failed."""
        global captures_open
        cdef cy.CUcontext context = self.core.ordering.context.handle
        cdef bint is_own = self.mode is not None
        cdef Failure failure, ignored
        cdef Scope scope
        cdef uint64_t number = self.number
        cdef cy.CUgraph graph = NULL
        cdef cy.CUgraphExec executable = NULL
        cdef int refused
        with nogil:
            refused = enter_context(context, &scope, &failure)
            if not refused:
                if is_own:
                    refused = end_capture(self.handle, &graph, &failure)
                else:
                    refused = capture_of(self.handle, &number, &failure)
                if graph != NULL:
                    if not failed and not refused:
                        refused = graph_instantiate(graph, &executable, &failure)
                    graph_destroy(graph, &ignored)
                leave_context(&scope)
        if captures.pop(self.number, None) is not None:
            captures_open -= 1
        self.graph.executable = executable
        self.graph.end(failed or refused or number != self.number)
        self.core = None
        if refused and not failed:
            self.graph.runtime.fail(&failure, f"ending the capture on {self.stream!r}")
        if number != self.number and not failed:
            raise StreamMisuseError(f"capturing: the capture on {self.stream!r} ended, or was spoilt, before this "
                                    "`with` statement did: put it inside that of the library's capture")
        return 0


cdef int refuse_legacy(cy.CUstream handle, str method) except -1:
    if <size_t>handle == LEGACY:
        raise StreamMisuseError(f"{method}: the legacy default stream takes part in no capture: take another stream, "
                                "such as runtime.acquire_stream()")
    return 0


cdef Capture make_capture(object stream, Core runtime, str mode, tuple uses):
    cdef Capture capture = Capture.__new__(Capture)
    capture.stream = stream
    capture.runtime = runtime
    capture.mode = mode
    capture.uses = uses
    if stream is host:
        raise TypeError("capture: xlogmem.host is not a stream")
    return capture


def capture(stream, *, Core runtime=None, str mode="relaxed"):
    """Capture a graph that holds its memory: ``with xlogmem.capture(stream) as graph: ...``.

    Inside, `use` works as ever, on this stream and on those that take part (`Graph.fork`, or by events of the program):
    it orders what is captured.  What was queued before is waited for at each launch, not in the graph.

    Parameters
    ----------
    stream : stream
        The stream that captures.  Not the legacy default stream.
    runtime : DeviceRuntime, optional
        The runtime whose blocks are meant, for a foreign stream; the default is the process's own runtime for the
        stream's device.
    mode : {"relaxed", "thread_local", "global"}
        CUDA's capture mode: what other threads, or this one, may do meanwhile.

    Returns
    -------
    context manager
        It gives the `Graph`, which can be launched when the ``with`` statement is left.  An exception inside ends the
        capture: then there is no graph, and no memory is held.

    Raises
    ------
    ValueError
        The mode is unknown.
    StreamMisuseError
        On entry: the stream takes part in a capture already, or is the legacy default stream.  On exit: a use is still
        open.
    DriverError
        The driver refused to begin or to end the capture, or to make the graph.

    Notes
    -----
    Memory that is allocated inside, on a stream that takes part, is the graph's: it stays until the graph is closed.
    Memory of other devices is refused.  Public source: CUDA Programming Guide, "Creating a Graph Using Stream Capture".

    Examples
    --------
    >>> with xlogmem.capture(s) as graph:
    ...     with xlogmem.use(s, read=a, write=b):
    ...         first(a, b, s)
    ...     graph.fork(t)
    ...     with xlogmem.use(t, read=b, write=c):      # comes after the first
    ...         second(b, c, t)
    >>> graph.launch(s)
    """
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; choose relaxed, thread_local or global")
    return make_capture(stream, runtime, mode, None)


def capturing(stream, read=(), write=(), read_write=(), *, Core runtime=None):
    """Have a graph that another library captures hold its memory.

    ``with torch.cuda.graph(g), xlogmem.capturing(stream, read=x, write=y) as graph: ...`` and then, around each launch,
    ``with graph.launching(stream): g.replay()``.

    Parameters
    ----------
    stream : stream
        The stream that the library captures.
    read, write, read_write : object, or nested lists, tuples and dicts of objects
        The memory that the library's work in the graph touches; see `use`.  It need not be named by a `use` inside.
    runtime : DeviceRuntime, optional
        As for `capture`.

    Returns
    -------
    context manager
        It gives the `Graph`.  Inside, `use` orders work on other streams that take part.  Memory that only such a `use`
        names counts as written by a launch, because the library's own work is not recorded.

    Raises
    ------
    StreamMisuseError
        On entry: the stream captures nothing.  On exit: the capture ended before, or a use is still open.

    Notes
    -----
    The graph holds xlogmem's blocks, also those behind arrays, and not what the library allocates by itself.  Close it
    when the library's graph is dropped.

    Examples
    --------
    >>> with torch.cuda.graph(g), xlogmem.capturing(torch.cuda.current_stream(), read=x, write=y) as graph:
    ...     torch.mul(x, 2, out=y)
    >>> with graph.launching(stream):
    ...     g.replay()
    """
    return make_capture(stream, runtime, None, (read, write, read_write))
