# `capture` and `capturing`: a capture begins with its core, and ends with its graph.

from xlogmem._base.failures cimport DRIVER_FAILED, Failure, raise_failure
from xlogmem._core cimport drain_if_abandoned, fence_before_capture, refuse_forked
from xlogmem._driver cimport (
    LEGACY,
    SPOILT_CAPTURE,
    begin_capture,
    end_capture,
    graph_destroy,
    graph_instantiate,
)
from xlogmem.streams cimport device_of

cdef dict MODES = {"global": cy.CU_STREAM_CAPTURE_MODE_GLOBAL, "thread_local": cy.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                   "relaxed": cy.CU_STREAM_CAPTURE_MODE_RELAXED}


@cython.final
@cython.no_gc_clear                         # __dealloc__ needs the core
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

    def __dealloc__(self):
        """Leave a capture that was entered and dropped to the next call that needs memory."""
        if self.core is not None and not process_is_closing():
            leave_dropped((self.core,), NULL, self.core.ordering.context.handle)

    @property
    def _goes_on(self):
        """True from its begin to its end, which another thread may not be allowed to bring about."""
        return self.core is not None

    def __reduce__(self):
        raise TypeError("a capture cannot be copied: a stream has one at a time")

    def __enter__(self):
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
        try:
            self.begin_on_device()
        except BaseException:
            self.core = None
            raise
        self.graph = Graph.__new__(Graph)
        self.core.ordering.state.capture = self.number
        know_capture(self.core)
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
        cdef cy.CUgraph graph = NULL
        cdef Failure failure, ignored
        cdef Scope scope
        cdef int failed
        with nogil:
            failed = enter_context(context, &scope, &failure)
            if not failed:
                failed = capture_of(self.handle, &self.number, &failure)
                if not failed and begins and self.number == 0:
                    begins = False
                    fence_before_capture(&self.core.runtime.state, self.handle)
                    failed = begin_capture(self.handle, mode, &failure)
                    if not failed and capture_of(self.handle, &self.number, &failure):
                        failed = 1
                        end_capture(self.handle, &graph, &ignored)
                        if graph != NULL:
                            graph_destroy(graph, &ignored)
                leave_context(&scope)
        if failed:
            self.core.runtime.fail(&failure, f"beginning a capture on {self.stream!r}")
        if self.mode is None and self.number in captures:
            raise StreamMisuseError(f"capturing: xlogmem knows the capture of {self.stream!r} already: `use` inside, "
                                    "or name its memory to the first capturing(stream, read=..., write=...)")
        if begins or self.number in captures:
            raise StreamMisuseError(f"capture: {self.stream!r} takes part in a capture already. For a capture that "
                                    "another library has begun there is xlogmem.capturing(stream)")
        if self.number == 0:
            raise StreamMisuseError(f"capturing: {self.stream!r} captures nothing: begin the library's capture first, "
                                    "or use xlogmem.capture(stream)")
        return 0

    cdef int name_uses(self) except -1:
        """File what the other library's own work does with memory.  The arguments are not held: the graph has it."""
        cdef tuple uses = self.uses
        self.uses = None
        try:
            use(self.core.first(), *uses).__enter__().__exit__(None, None, None)
            if self.core is None:
                raise StreamMisuseError("this capture was left while it was entered")
        except BaseException:
            if self.core is not None:
                self.end(True)
            raise
        for item in self.core.stand_ins.values():
            (<StandIn>item).is_named = True
        return 0

    def __exit__(self, kind, error, traceback):
        cdef bint failed = error is not None
        cdef object first = None
        cdef Failure failure
        if self.core is None:
            raise StreamMisuseError("this capture is not entered, or has ended: use it in a `with` statement")
        if refuse_forked(&failure):
            raise_failure(&failure)
        try:
            with nogil:
                drain_if_abandoned(&self.core.state)    # uses that were dropped are filed
            if not failed and self.core.has_open_window():
                raise StreamMisuseError("a use is still open in this capture: leave it before the capture ends. No "
                                        "graph was made")
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
        cdef cy.CUcontext context = self.core.ordering.context.handle
        cdef bint is_own = self.mode is not None
        cdef Failure failure, ignored
        cdef Scope scope
        cdef uint64_t number = self.number
        cdef cy.CUgraph graph = NULL
        cdef cy.CUgraphExec executable = NULL
        cdef int refused, entered
        with nogil:
            entered = not enter_context(context, &scope, &failure)
            refused = capture_of(self.handle, &number, &failure)
            if refused:
                number = self.number                    # as far as is known
            if number in (0, self.number, <uint64_t>SPOILT_CAPTURE):    # else the program has begun another one
                if is_own and number != 0:              # if it was spoilt, too
                    refused = end_capture(self.handle, &graph, &failure)
                    number = self.number
                if graph != NULL:
                    if not failed and not refused:
                        refused = graph_instantiate(graph, &executable, &failure)
                    graph_destroy(graph, &ignored)
            if entered:
                leave_context(&scope)
        if refused and failure.kind == DRIVER_FAILED and failure.code == cy.CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
            raise StreamMisuseError(f"capture: another thread has begun this capture, with mode={self.mode!r}: leave "
                                    "the `with` statement there, or pass mode='relaxed'. The capture goes on")
        end_known(self.number)
        self.graph.launches.executable = executable
        self.graph.end(failed or refused or number != self.number)
        self.core = None
        if refused and not failed:
            self.graph.runtime.fail(&failure, f"ending the capture on {self.stream!r}")
        if number != self.number and not failed:
            raise StreamMisuseError(f"the capture on {self.stream!r} ended, or was spoilt, before this "
                                    "`with` statement did: leave it before the capture ends")
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
    >>> runtime = xlogmem.get_runtime()
    >>> s, t = runtime.acquire_stream(), runtime.acquire_stream()
    >>> a, b, c = (xlogmem.from_numpy([1, 2, 3], s) for _ in range(3))
    >>> with xlogmem.capture(s) as graph:
    ...     b.copy_from(a, s)
    ...     graph.fork(t)
    ...     c.copy_from(b, t)                       # comes after the first copy
    >>> graph.launch(s)
    >>> graph.close()
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
    >>> stream = torch.cuda.current_stream()                                # doctest: +SKIP
    >>> with torch.cuda.graph(g), xlogmem.capturing(stream, read=x, write=y) as graph:      # doctest: +SKIP
    ...     torch.mul(x, 2, out=y)
    >>> with graph.launching(stream):                                       # doctest: +SKIP
    ...     g.replay()
    """
    return make_capture(stream, runtime, None, (read, write, read_write))
