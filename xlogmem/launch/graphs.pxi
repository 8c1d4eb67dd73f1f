# Graphs that hold their memory, and their launches.
#
# A launch is one use of all blocks of the graph.  The graph holds them until it is closed: a free meanwhile is put off,
# and comes after the launches, as after any use.

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint32_t, uint64_t

from xlogmem._base.signatures import Signed
from xlogmem._base.cpp cimport make_new
from xlogmem._base.sections cimport Section
from xlogmem._core cimport (
    NOT_READY,
    GraphState,
    begin_close,
    begin_launch,
    end_launch,
    fence_before_capture,
)
from xlogmem._driver cimport executable_destroy, graph_launch
from xlogmem.blocks cimport Export, release_export


cdef cppclass DroppedGraph:
    # What a graph that was dropped leaves to the next call that needs memory.
    Export released
    PyObject* held              # a tuple of `Held`, or of the core of a capture
    cy.CUgraphExec executable
    cy.CUcontext context


@cython.final
@cython.no_gc_clear                         # __dealloc__ needs what it holds
cdef class Graph:
    """A CUDA graph that holds the memory it uses; made by `capture` and `capturing`.

    A block that is used in the capture stays until the graph is closed, and until the last launch is complete, also if
    the program frees it before.  Each launch is a use of these blocks: it waits for their former writers, and later
    users and frees wait for it.  The host waits, too, before it changes page-locked memory from which the graph
    copies.

    Notes
    -----
    Thread-safe.  Two launches of one graph run one after the other, as CUDA has it.  ``with graph:`` closes the graph
    at the end.  A graph that is dropped is closed by a later call of xlogmem.

    Examples
    --------
    >>> stream = xlogmem.get_runtime().acquire_stream()
    >>> a, b = (xlogmem.from_numpy([1, 2, 3], stream) for _ in range(2))
    >>> with xlogmem.capture(stream) as graph:
    ...     b.copy_from(a, stream)
    >>> graph.launch(stream)
    >>> graph.close()
    """
    cdef Core runtime
    cdef CaptureCore core                   # while it is captured
    cdef tuple held                         # no list, which a collector may clear before it is released
    cdef GraphState launches
    cdef str state

    def __cinit__(self):
        self.launches.launching.store(NOT_READY)

    __signature__ = Signed("")

    def __init__(self):
        raise TypeError("graphs are made by xlogmem.capture(stream) and xlogmem.capturing(stream)")

    def __dealloc__(self):
        if self.held is not None and not process_is_closing():
            leave_dropped(self.held, self.launches.executable, self.runtime.ordering.context.handle)

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
        cdef CaptureCore core = self.capture_core()
        cdef Stream known = stream if isinstance(stream, Stream) else None
        cdef cy.CUstream handle = <cy.CUstream><size_t>known.handle if known is not None else parse(stream)
        cdef Stream member
        if core is None:
            raise StreamMisuseError(f"fork: the capture has ended, and this graph is {self.state}: fork inside the "
                                    "`with` statement of the capture")
        refuse_legacy(handle, "fork")
        if <size_t>handle == PER_THREAD and handle_takes_part(core, handle) and not takes_part(handle, core):
            raise StreamMisuseError("fork: the per-thread default stream of another thread takes part in this capture, "
                                    "so that of this thread cannot: take another stream")
        device_id = known.device_id if known is not None else device_of(stream)
        if device_id != core.device_id:
            raise StreamMisuseError(f"fork: {stream!r} is on device {device_id}, and the capture on device "
                                    f"{core.device_id}")
        if takes_part(handle, core):
            core.entered(handle, known)
            return
        if known is not None and core_of(known) is not core.runtime:
            raise StreamMisuseError(f"fork: {known!r} belongs to another runtime than {core.runtime!r}")
        core.owners.append(stream)
        with nogil:
            fence_before_capture(&core.runtime.state, handle)
        member = core.member(handle, known)
        try:
            core.order_after(member, core.first(), f"forking {stream!r}")
        except BaseException:
            core.forget(member)
            raise
        core.catch_up(member)

    cdef CaptureCore capture_core(self):
        cdef Section section
        section.begin(self)
        return self.core

    cdef tuple blocks_held(self):
        cdef Section section
        section.begin(self)
        return self.held

    cdef int begin(self, CaptureCore core) except -1:
        self.core = core
        self.runtime = core.runtime
        self.state = "captured"
        return 0

    cdef int end(self, bint failed) except -1:
        """Take what the capture has used."""
        cdef CaptureCore core = self.core
        cdef Section section
        cdef Request* request
        cdef Held held
        section.begin(self)
        self.core = None
        self.held = tuple(core.end(failed))
        for item in self.held:
            held = <Held>item
            request = &self.launches.requests.emplace_back()
            request.slot = held.block.slot
            request.access = held.access
            request.generation = held.block.generation
        self.state = "failed" if failed else "ready"
        self.launches.launching.store(NOT_READY if failed else 0)
        return 0

    cdef int release(self) except -1:
        cdef tuple held
        cdef Section section
        section.begin(self)
        held, self.held = self.held, None
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
        if self.launches.executable == NULL:
            self.refuse_unready("launch")
            raise StreamMisuseError("launch: another library has captured this graph: put `with "
                                    "graph.launching(stream)` around its own launch")
        recorder = self.use_on(stream, "launch")
        handle = recorder.stream.state.handle
        context = self.runtime.ordering.context.handle
        if not begin_launch(&self.launches):
            raise StreamMisuseError("launch: another thread has closed this graph: capture it again")
        try:
            recorder.open()
            with nogil:
                failed = enter_context(context, &scope, &failure)
                if not failed:
                    failed = graph_launch(self.launches.executable, handle, &failure)
                    leave_context(&scope)
            recorder.finish(CANCELLED if failed else LAUNCHED)
        finally:
            end_launch(&self.launches)
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
        self.refuse_unready(method)
        if stream is None:
            raise TypeError(f"{method}: stream is missing: {method}(stream)")
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
        recorder.window.requests = self.launches.requests
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
        for item in self.blocks_held() or ():
            held = <Held>item
            if held.access == access:
                found.append(self.runtime.identity(held.block.ptr, held.block.generation, held.block.slot, None))
        return tuple(found)

    @property
    def handle(self):
        """The executable graph (``CUgraphExec``) as an int, valid until the graph is closed; 0 if another library has
        it."""
        return <size_t>self.launches.executable

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
        cdef cy.CUgraphExec executable = self.launches.executable
        cdef Failure failure
        cdef int failed = 0
        if self.runtime is None:
            raise StreamMisuseError("close: this graph was never captured")
        if self.state == "closed":
            return
        if self.core is not None or not begin_close(&self.launches):
            reason = ("it is being captured: leave the `with` statement of the capture first"
                      if self.core is not None else "another thread is launching it")
            raise StreamMisuseError(f"close: this graph cannot be closed, because {reason}")
        self.state = "closed"
        self.launches.executable = NULL
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
        if self.runtime is None:
            return "<Graph that was never captured>"
        blocks = counted(len(self.blocks_held() or ()), "block")
        return f"<Graph of device {self.runtime.device_id}: {blocks}, {self.state}>"


cdef GraphState* launches_of(object graph, Core runtime) except NULL:
    """Return what launches of a graph of this runtime need, for as long as something refers to the graph."""
    if not isinstance(graph, Graph):
        raise TypeError(f"open_graph: {type(graph).__name__} is not an xlogmem.Graph")
    (<Graph>graph).refuse_unready("open_graph")
    if (<Graph>graph).runtime is not runtime:
        raise StreamMisuseError(f"open_graph: {graph!r} belongs to another runtime than {runtime!r}")
    return &(<Graph>graph).launches


cdef bint handle_takes_part(CaptureCore core, cy.CUstream handle):
    """True if a stream that has, or had, this handle takes part."""
    return <size_t>handle in core.members


cdef bint takes_part(cy.CUstream handle, CaptureCore core) except -1:
    """True if a stream takes part in this capture; raises if it does in another one."""
    cdef uint64_t capture = 0
    cdef Failure failure
    cdef Scope scope
    cdef int failed
    cdef cy.CUcontext context = core.ordering.context.handle
    with nogil:
        failed = enter_context(context, &scope, &failure)
        if not failed:
            failed = capture_of(handle, &capture, &failure)
            leave_context(&scope)
    if failed:
        core.runtime.fail(&failure, "looking for the capture of a stream")
    if capture and captures.get(capture) is not core:
        raise StreamMisuseError(f"fork: stream {<size_t>handle:#x} takes part in another capture")
    return capture != 0


cdef int destroy(cy.CUgraphExec executable, cy.CUcontext context, Failure* failure) except -1:
    cdef Scope scope
    cdef int failed
    with nogil:
        failed = enter_context(context, &scope, failure)
        if not failed:
            failed = executable_destroy(executable, failure)
            leave_context(&scope)
    return failed


cdef void leave_dropped(tuple held, cy.CUgraphExec executable, cy.CUcontext context) noexcept:
    """Leave what a graph held, or the core of a capture, to the next call that needs memory.  For finalizers."""
    cdef DroppedGraph* dropped = make_new[DroppedGraph]()
    dropped.released.block = NULL
    dropped.released.shell = dropped
    dropped.released.destroy = end_dropped
    dropped.held = <PyObject*>held
    Py_INCREF(held)
    dropped.executable = executable
    dropped.context = context
    release_export(&dropped.released)


cdef void end_dropped(void* shell) noexcept nogil:
    """End a graph that was dropped.  Called with the GIL, by the next call that needs memory."""
    cdef DroppedGraph* dropped = <DroppedGraph*>shell
    with gil:
        end_dropped_graph(dropped)
    del dropped


cdef void end_dropped_graph(DroppedGraph* dropped) noexcept:
    cdef tuple held = <tuple>dropped.held
    cdef Failure ignored                                # a lost device has no graph any more
    if dropped.executable != NULL:
        destroy(dropped.executable, dropped.context, &ignored)
    for item in held:
        if isinstance(item, Held):
            (<Held>item).release()
        else:
            forget_capture(<CaptureCore>item)
    Py_DECREF(held)
