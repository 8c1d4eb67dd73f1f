# `LaunchRecorder`: uses are registered, prepared before the launch, and filed after it.

cimport cython

from xlogmem._base.signatures import Signed
from xlogmem.errors import StreamMisuseError
from xlogmem._base.cpp cimport unlikely
from xlogmem._base.failures cimport Failure, raise_failure
from xlogmem._base.sections cimport Section
from libc.stdint cimport uint64_t

from xlogmem._core cimport (
    ACCESSED,
    ADOPT_UNTRACKED,
    CANCELLED,
    COUNT_CONFLICTS,
    DONE,
    HAND_BACK_ALL,
    HAND_BACK_WRITES,
    IGNORE_UNTRACKED,
    LAUNCHED,
    NOT_AT_ONCE,
    NO_THREAD,
    RAISE_UNTRACKED,
    READ,
    READ_WRITE,
    REFUSED,
    REFUSE_CONFLICTS,
    WAIT_FOR_CONFLICTS,
    WRITE,
    Outcome,
    file_window_locked,
    finish_rest,
    note_thread,
    prepare,
    prepare_at_once,
    prepare_rest,
    refuse_forked,
)
from xlogmem._driver cimport process_was_forked
from xlogmem._order cimport OrderState, current_thread
from xlogmem.blocks cimport Core
from xlogmem.streams cimport Stream, core_of, handle_of


cdef dict ARGUMENTS = {READ: "read=", WRITE: "write=", READ_WRITE: "read_write="}   # of `use`, in messages
cdef dict UNTRACKED_CHOICES = {"raise": RAISE_UNTRACKED, "ignore": IGNORE_UNTRACKED, "adopt": ADOPT_UNTRACKED}
cdef dict ON_CONFLICT = {"wait": WAIT_FOR_CONFLICTS, "raise": REFUSE_CONFLICTS, "count": COUNT_CONFLICTS}


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class LaunchRecorder:
    """Records what one launch, or one group of launches on one stream, reads and writes.

    Register every block, call `preflight`, launch, call `commit`; or use the recorder as a context manager around the
    launch, which does the same.  Leaving the ``with`` block by an exception commits too: the launch may have been
    queued before the exception was raised, and filing too much is harmless.  Where nothing was launched, call `cancel`.

    Parameters
    ----------
    stream : stream
        The stream of the launch: one of the runtime's, or a foreign stream, which is registered on first use (see
        `DeviceRuntime.register_stream`).
    runtime : DeviceRuntime, optional
        The runtime whose blocks are meant, for a foreign stream; the default is the process's own runtime for the
        stream's device.
    untracked : {"raise", "ignore", "adopt"}
        What to do with memory that no runtime tracks: refuse it at preflight (default), leave it out silently, which
        does not protect it, or have the preflight adopt it: the memory is tracked from then on, for as long as its
        owner lives (the array or buffer that has the memory, of which the argument may be a view).  The owner is not
        held.  The owner has to be an object with weak references that gives its size; an address is refused, and so is
        an object without weak references: `DeviceRuntime.adopt` returns a handle for those.

        The recorder cannot know where the last work on the memory was queued.  All work counts that was queued so far
        on the stream of the recorder, and on the current stream of the library that has the memory (CuPy, PyTorch,
        Numba) if there is one; work on other streams has to be complete, or waited for there.  The library's stream, or
        else that of the recorder, counts as opaque for this memory from then on (see `Stream.discipline`), because the
        library goes on working there and does not record its work.  A stream that was named by a bare handle does not
        count as opaque, because it may be destroyed: there the library's further work has to be recorded, or ordered by
        the program.
    handback : {"all", "writes"}
        The uses after which an opaque home stream of a block (see `Stream.discipline`), or a stream that the block is
        exported to, has to wait: all uses, or only those that write, for programs that never write in place there.
    on_conflict : {"wait", "raise", "count"}
        What to do when a window that conflicts with this one is open on another stream: its launch is not filed yet, so
        this launch cannot be ordered after it.  Wait on the host, at preflight, until it is filed; refuse at preflight;
        or let the two race and count the conflict (``counters()["conflicts"]``).  Recorders that wait go on in the
        order in which they came, and can be interrupted.  With ``"raise"``, a conflict with a waiting recorder is
        refused too; with ``"count"``, such a conflict is not counted.  A wait that would never end is refused: of a
        thread for itself, or of two threads for each other.

    Notes
    -----
    A recorder belongs to one thread at a time; different recorders may be used at once.  A recorder that is made in one
    thread and preflighted in another (``asyncio.to_thread(recorder.preflight)``) may be committed in any: then nothing
    is refused for its sake, and a `BlockingWindowWarning` reports a wait that does not end.  A thread that will not
    commit a recorder itself should not make it either.  Recording keeps no hold on the blocks: the preflight reports a
    block that was freed before, and the commit carries out a free that was requested between preflight and commit.

    Examples
    --------
    >>> runtime = xlogmem.get_runtime()
    >>> stream = runtime.acquire_stream()
    >>> x, y = runtime.allocate(1000, stream), runtime.allocate(1000, stream)
    >>> recorder = xlogmem.LaunchRecorder(stream).read(x).write(y)
    >>> recorder.preflight()                        # the waits are queued
    >>> recorder.commit()                           # after the launch
    """

    def __cinit__(self):
        self.call = enter_or_leave

    __signature__ = Signed("stream, *, runtime=None, untracked='raise', handback='all', on_conflict='wait'")

    def __init__(self, stream=None, *, Core runtime=None, str untracked="raise", str handback="all",
                 str on_conflict="wait"):
        if stream is None:
            raise TypeError("LaunchRecorder: stream is missing: LaunchRecorder(stream)")
        if untracked not in UNTRACKED_CHOICES:
            raise ValueError(f"untracked {untracked!r} is unknown; choose raise, ignore or adopt")
        if handback not in ("all", "writes"):
            raise ValueError(f"handback {handback!r} is unknown; choose all or writes")
        if on_conflict not in ON_CONFLICT:
            raise ValueError(f"on_conflict {on_conflict!r} is unknown; choose wait, raise or count")
        if self.window != NULL:
            raise RuntimeError("a recorder is initialised once")
        what = None if isinstance(stream, Stream) or stream is host else stream
        inside = captured_foreign(what) if has_captures() and what is not None else None
        if inside is not None:
            stream, what, runtime = inside, None, None
        elif what is not None:
            runtime = runtime if runtime is not None else runtime_of(what)
            stream = runtime.streams.find_at_home(what)
        if stream is host:
            begin_access(self, runtime if runtime is not None else process_runtime(0))
        else:
            begin_on(self, <Stream>stream, runtime, what)
        self.window.untracked = UNTRACKED_CHOICES[untracked]
        self.window.on_conflict = ON_CONFLICT[on_conflict]
        self.window.hand_back = HAND_BACK_ALL if handback == "all" else HAND_BACK_WRITES

    # ------------------------------------------------------------------------------------------ recording
    def read(self, what):
        """Register something that the launch reads; see `use` for the types of arguments.  Returns the recorder."""
        register(self, what, READ)
        return self

    def write(self, what):
        """Register something that the launch writes without reading it.  Returns the recorder."""
        register(self, what, WRITE)
        return self

    def read_write(self, what):
        """Register something that the launch reads and writes.  Returns the recorder."""
        register(self, what, READ_WRITE)
        return self

    cdef int refuse_late(self, int access) except -1:
        """Refuse a use that is registered after the preflight.  Checked again wherever foreign code has run, which may
        have called the preflight."""
        self.refuse_busy()
        if self.together is not None and self.together.opening:
            refuse_opening(self)
        if self.cancelled:
            raise StreamMisuseError(f"{ARGUMENTS[access]}: this use was cancelled, and takes no more memory: make a "
                                    "new one with use(). Nothing was added")
        if self.preflighted or self.done:
            raise StreamMisuseError(f"{ARGUMENTS[access]}: this use was entered before, and takes no more memory: name "
                                    "all of it first. Nothing was added")
        return 0

    cdef int reject(self, int access, str why) except -1:
        """Note an error that the preflight will raise."""
        self.refuse_late(access)
        self.unsettled = self.unsettled or []
        self.unsettled.append(f"{ARGUMENTS[access]}: {why}")
        return 0

    # ------------------------------------------------------------------------------------------ the window
    def preflight(self):
        """Validate everything, then queue the waits that the launch needs.  Call it before the launch.

        Raises
        ------
        StreamMisuseError
            Untracked memory was registered and is refused, or the stream, or one that it has to wait for, is capturing
            a graph.  Nothing was queued.
        UseAfterFreeError
            A block was freed before.  Nothing was queued.
        DriverError
            A wait could not be queued; nothing may be launched.  The call may be repeated, and repeats nothing.

        Notes
        -----
        Memory that ``untracked="adopt"`` adopted stays tracked if another argument is refused afterwards.
        """
        self.open()

    cdef int refuse_busy(self) except -1:
        cdef Failure failure
        if self.window == NULL:
            raise StreamMisuseError("this LaunchRecorder was never initialised: make one with use()")
        if self.busy:
            raise StreamMisuseError("another thread is entering this use: each thread needs one of its own")
        if refuse_forked(&failure):
            raise_failure(&failure)
        return 0

    cdef int open(self) except -1:
        return self.open_here() if self.together is None else open_everywhere(self)

    cdef int open_here(self) except -1:
        cdef Failure failure
        cdef Section section                            # a thread that shares the recorder is refused, as `busy` says
        cdef int done = DONE
        section.begin(self)
        if self.window == NULL or self.busy or self.preflighted or self.done or self.unsettled is not None:
            self.settle()
        if self.window.requests.empty():
            self.refuse_busy()
        elif unlikely(self.stream is None):
            open_on_host(self)
        else:
            self.busy = True
            done = prepare_at_once(&self.runtime.state, self.window, &failure)
            self.busy = False
        if done != DONE:
            self.open_slowly(done, &failure)
        self.preflighted = True
        return 0

    cdef int settle(self) except -1:
        """Raise if the recorder cannot be preflighted; else adopt the memory that has to be adopted first."""
        self.refuse_busy()
        if self.cancelled:
            raise StreamMisuseError("this use was cancelled, and cannot be entered any more: make a new one for each "
                                    "launch, with use()")
        if self.preflighted or self.done:
            raise StreamMisuseError("this use was entered before: make a new one for each launch, with use()")
        self.refuse_unsettled()
        self.busy = True
        try:
            adopt_noted(self)
        finally:
            self.busy = False
        return 0

    cdef int refuse_unsettled(self) except -1:
        """Raise if an argument was rejected."""
        texts = [item for item in self.unsettled if isinstance(item, str)]
        if texts:
            raise StreamMisuseError("; ".join(texts) + (f". {self.advice}" if self.advice else ""))
        return 0

    cdef int open_slowly(self, int done, Failure* failure) except -1:
        """Open the window without the GIL: all of it if it could not be done at once, or the rest."""
        cdef int failed = done == REFUSED
        if not failed:
            self.busy = True
            if done == NOT_AT_ONCE:                     # else other threads see the window already
                note_thread(self.window)
            with nogil:
                if done == NOT_AT_ONCE:
                    failed = prepare(&self.runtime.state, self.window, failure)
                else:
                    failed = prepare_rest(&self.runtime.state, self.window, failure)
            self.busy = False
        if failed:
            self.runtime.fail(failure, f"preparing a launch on {self.stream!r}", self.arguments_of(failure.generation))
        return 0

    cdef str arguments_of(self, uint64_t generation):
        """The argument that names a block first, to begin a message: ``"read=: "``, and of several things
        ``"read=, number 2 of 3: "``; empty for other failures."""
        cdef size_t i, count = self.window.requests.size()
        for i in range(count):
            if generation != 0 and self.window.requests[i].generation == generation:
                several = count > 1 and not self.is_part and self.together is None
                place = f", number {i + 1} of {count}" if several else ""
                return f"{ARGUMENTS[self.window.requests[i].access]}{place}: "
        return ""

    def commit(self):
        """File the launch.  Call it after the launch was queued.  After a successful preflight, commit always files the
        launch.

        Raises
        ------
        StreamMisuseError
            There was no successful preflight although something was registered, or the recorder was committed or
            cancelled before.
        DriverError
            An opaque stream could not be ordered after the launch, and the host could not wait for it either.  The uses
            are filed all the same.
        """
        if self.unsettled is not None:
            self.refuse_unsettled()
        if not self.preflighted and has_uses(self):
            raise StreamMisuseError("commit(): preflight() was not called before, or has failed: the launch is not "
                                    "protected. Use it in a `with` statement around the launch")
        self.finish(LAUNCHED)

    def cancel(self):
        """Close the window without filing: nothing was launched.  Raises StreamMisuseError after a commit or cancel."""
        self.finish(CANCELLED)

    cdef int finish(self, Outcome outcome) except -1:
        return self.finish_here(outcome) if self.together is None else finish_everywhere(self, outcome)

    cdef int finish_here(self, Outcome outcome) except -1:
        cdef OrderState* order
        cdef Section section
        cdef bint more
        section.begin(self)
        if self.window == NULL or self.busy or self.done or process_was_forked():
            self.refuse_busy()
            how = "cancelled" if self.cancelled else "committed"
            raise StreamMisuseError(f"this use was left before ({how}): make a new one for each launch, with use()")
        self.done = True
        if outcome == CANCELLED:
            self.cancelled = True
        elif unlikely(self.stream is None):
            outcome = ACCESSED
        held = self.held                                # dropped when everything is filed
        if held is not None:
            self.held = None
        if not self.window.is_open:
            return self.finish_unopened(outcome)
        order = self.runtime.state.order
        if order.lock.try_lock():
            more = file_window_locked(&self.runtime.state, self.window, outcome)
            order.lock.unlock()
        else:
            with nogil:
                order.lock.lock()
                more = file_window_locked(&self.runtime.state, self.window, outcome)
                order.lock.unlock()
        if more:
            self.finish_slowly()
        if self.window.thread == NO_THREAD:
            raise StreamMisuseError(
                f"the thread that entered this use on {place_of_use(self)} ended before the use was left, and launches "
                "that waited for it have gone on since: they are ordered after what was on the stream by then, and "
                "perhaps not after this launch. Enter and leave in threads that live meanwhile, or hold a "
                "LaunchRecorder")
        return 0

    cdef int finish_unopened(self, Outcome outcome) except -1:
        if outcome != CANCELLED and not self.preflighted and has_uses(self):
            raise StreamMisuseError("this use was left, and not entered before: what was launched is not protected. "
                                    "Use it in a `with` statement around the launch")
        return 0

    cdef int finish_slowly(self) except -1:
        """Do the work that follows a filing and may call the driver."""
        cdef Failure failure
        cdef int failed
        with nogil:
            failed = finish_rest(&self.runtime.state, self.window, &failure)
        if failed:
            self.runtime.fail(&failure, f"handing blocks back after a launch on {place_of_use(self)}")
        return self.runtime.drop_owners()

    cdef int leave(self) except -1:
        if self.done:
            return 0
        return self.finish_here(LAUNCHED) if self.together is None else finish_everywhere(self, LAUNCHED)

    @cython.binding(False)
    def __enter__(self):
        self.open()
        return self

    @cython.binding(False)
    def __exit__(self, kind, exception, traceback, /):
        self.leave()

    async def __aenter__(self):
        """Suspend the coroutine until the work on the memory is complete, and begin the access.  See `Host`."""
        self.refuse_busy()
        if self.stream is not None:
            raise TypeError(f"async with use({self.stream!r}): only accesses by the host, use(xlogmem.host, ...), are "
                            "awaited. A launch waits on the device: write `with` without async")
        await until_accessible(self)
        self.open()
        return self

    async def __aexit__(self, kind, exception, traceback):
        self.leave()

    def _keep_by_runtime(self):
        """Drop the references to the runtime, for a runtime that itself keeps the recorder until the finish: the
        runtime may end before."""
        self.refuse_busy()
        cdef OrderState* order = self.runtime.state.order
        cdef Stream stream = None
        if self.stream is not None:
            stream = handle_of(self.stream.ordering, self.stream.state)
            stream.core = None
        with nogil:
            order.lock.lock()
            self.window.is_kept = True
            order.lock.unlock()
        self.stream = stream
        if self.together is not None:
            self.together.own_stream = None
        self.runtime = None

    def _take_from(self, Core runtime not None):
        """End what `_keep_by_runtime` began."""
        self.refuse_busy()
        cdef OrderState* order = runtime.state.order
        self.runtime = runtime
        with nogil:
            order.lock.lock()
            self.window.is_kept = False
            order.lock.unlock()

    @property
    def untracked(self):
        """``"raise"``, ``"ignore"`` or ``"adopt"``."""
        return name_of_choice(self.window) if self.window != NULL else "raise"

    @property
    def recorded_count(self):
        """The number of registered uses, before uses of one block are merged."""
        if self.window == NULL:
            return 0
        return self.window.requests.size() + sum(
            [other.recorded_count for other in self.together.others] if self.together is not None else ())

    def __repr__(self):
        if self.window == NULL:
            return "<LaunchRecorder that was never initialised>"
        state = ("cancelled" if self.cancelled else "done" if self.done else "entered" if self.preflighted else
                 "recording")
        return describe_window(self.window, state)


cdef inline int begin(LaunchRecorder recorder, Stream stream) except -1:
    """Begin a recorder with the defaults of `LaunchRecorder`."""
    if unlikely(has_captures()):
        stream = captured(stream)
    if stream.core is None:
        core_of(stream)                                 # finds it, or says why there is none
    recorder.runtime = <Core>stream.core
    recorder.stream = stream
    begin_window(recorder)
    recorder.window.stream = stream.state
    if unlikely(stream.state.remote):
        begin_together(recorder, stream)
    return 0


cdef inline int begin_window(LaunchRecorder recorder) except -1:
    cdef Window* window = window_for(recorder.runtime)
    window.thread = current_thread()
    window.moved = window.is_anyones = window.is_kept = window.is_graphs = False
    window.untracked = RAISE_UNTRACKED
    window.on_conflict = WAIT_FOR_CONFLICTS
    window.hand_back = HAND_BACK_ALL
    recorder.window = recorder.owned.item = window
    recorder.owned.object = <void*>recorder.runtime
    recorder.owned.end = end_window
    return 0


cdef int begin_on(LaunchRecorder recorder, Stream named, Core runtime, object what) except -1:
    """Begin a recorder on a stream, in its own runtime or in that of another device.  `what` is the object that the
    program gave for it; None: the stream itself."""
    cdef Stream stream = named
    if runtime is not None and runtime is not core_of(named):
        if runtime.device_id == named.ordering.context.device_id:
            raise StreamMisuseError(f"{named!r} belongs to another runtime than {runtime!r}")
        stream = runtime.streams.find_for_use(named)
    begin(recorder, stream)
    if named is not stream:
        recorder.together.own_stream = named
        recorder.together.named = what
    return 0


cdef LaunchRecorder record_on(Stream stream):
    """Make a recorder with the defaults of `LaunchRecorder`."""
    cdef LaunchRecorder recorder = LaunchRecorder.__new__(LaunchRecorder)
    begin(recorder, stream)
    return recorder
