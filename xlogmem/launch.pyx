"""What users wrap their launches in: `use`, and the `LaunchRecorder` behind it.

A recorder collects what one launch touches, has the core prepare it before the launch, and files it afterwards.  It
turns objects into block identities and knows nothing of waits and events.
"""
import warnings

cimport cython

from libc.stdint cimport uint64_t

from xlogmem._core cimport (
    CANCELLED,
    HAND_BACK_ALL,
    HAND_BACK_WRITES,
    LAUNCHED,
    NO_THREAD,
    READ,
    READ_WRITE,
    WRITE,
    Found,
    Outcome,
    Request,
    abandon,
    file_window_locked,
    finish_rest,
    COUNT_CONFLICTS,
    REFUSE_CONFLICTS,
    WAIT_FOR_CONFLICTS,
    note_thread,
    return_window,
    prepare,
    refuse_forked,
    take_window,
)
from xlogmem._driver cimport process_is_closing
from xlogmem._failures cimport Failure, raise_failure
from xlogmem._order cimport OrderState, current_thread
from xlogmem.blocks cimport BEYOND, TRACKED, UNTRACKED, BlockView, Core, DeviceBlock, Extent, Resolved
from xlogmem.blocks cimport describe_beyond, resolver_of
from xlogmem.streams cimport Stream, core_of, device_of, handle_of

from xlogmem.errors import StreamMisuseError

__all__ = ["LaunchRecorder", "use"]

cdef extern from "Python.h":
    int Py_GetRecursionLimit()

ADVICE = "Allocate it there, adopt it, or use mode='permissive' and order it yourself"
cdef dict METHODS = {READ: "LaunchRecorder.read", WRITE: "LaunchRecorder.write",
                     READ_WRITE: "LaunchRecorder.read_write"}
cdef dict ON_CONFLICT = {"wait": WAIT_FOR_CONFLICTS, "raise": REFUSE_CONFLICTS, "count": COUNT_CONFLICTS}
explanations = []                           # functions of a runtime: a sentence about untracked memory, or None


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class LaunchRecorder:
    """Records what one launch, or one group of launches on one stream, reads and writes.

    Register every block, call `preflight`, launch, call `commit`; or use it as a context manager around the launch,
    which does the same.  Leaving the ``with`` block by an exception commits too: the launch may have been queued
    before the exception was raised, and filing too much is harmless.  Where nothing was launched, say so with `cancel`.

    Parameters
    ----------
    stream : stream
        Where the launch goes: one of the runtime's, or a foreign one, which is registered on first use (see
        `DeviceRuntime.register_stream`).
    runtime : DeviceRuntime, optional
        Whose blocks are meant, for a foreign stream; the default is the process's own for the stream's device.
    mode : {"strict", "permissive"}
        What to do with memory that no runtime tracks: refuse it at preflight, or leave it out silently.  Left-out
        memory is not protected.
    handback : {"all", "writes"}
        After which uses an opaque home stream of a block (see `Stream.discipline`), or one that it is exported to, is
        made to wait: after all, or after those that write, for programs that never write in place there.
    on_conflict : {"wait", "raise", "count"}
        What to do when a window that conflicts with this one is open on another stream: its launch is not filed yet, so
        this one cannot be ordered after it.  Wait on the host, at preflight, until it is; refuse at preflight; or let
        the two race and count it (``counters()["conflicts"]``).  Those that wait go on in the order in which they came,
        and can be interrupted; others are refused while they wait, too, and those that count do not look at them.  What
        would wait for ever is refused: a thread for itself, two threads for each other.

    Notes
    -----
    A recorder belongs to one thread at a time; different recorders may be used at once.  One that is made in one thread
    and preflighted in another (``asyncio.to_thread(recorder.preflight)``) may be committed in any: then nothing is
    refused for its sake, and a wait that does not end is named in a `BlockingWindowWarning`.  A thread that will not
    commit a recorder itself should not make it either.  Recording keeps no hold on the blocks: one that is freed before
    preflight is reported there, one that is freed between preflight and commit is freed by the commit.
    """

    def __cinit__(self, stream not None, *, Core runtime=None, str mode="strict", str handback="all",
                  str on_conflict="wait"):
        if mode not in ("strict", "permissive"):
            raise ValueError(f"mode {mode!r} is unknown; choose strict or permissive")
        if handback not in ("all", "writes"):
            raise ValueError(f"handback {handback!r} is unknown; choose all or writes")
        if on_conflict not in ON_CONFLICT:
            raise ValueError(f"on_conflict {on_conflict!r} is unknown; choose wait, raise or count")
        if isinstance(stream, Stream):
            self.runtime = core_of(<Stream>stream)
            self.stream = <Stream>stream
            if runtime is not None and runtime is not self.runtime:
                raise StreamMisuseError(f"{stream!r} belongs to another runtime than {runtime!r}")
        else:
            self.runtime = runtime if runtime is not None else runtime_of(stream)
            self.stream = self.runtime.stream_of(stream)
        self.strict = mode == "strict"
        self.window = take_window(&self.runtime.state)
        self.window.stream = self.stream.state
        self.window.thread = current_thread()
        self.window.moved = self.window.is_kept = False
        self.window.on_conflict = ON_CONFLICT[on_conflict]
        self.window.hand_back = HAND_BACK_ALL if handback == "all" else HAND_BACK_WRITES

    def __dealloc__(self):
        if self.window == NULL:
            return
        if self.window.is_open:                         # filed by the next call to the runtime, or by its end
            abandon(&self.runtime.state if self.runtime is not None else self.keeper, self.window)
        else:
            return_window(&self.runtime.state, self.window)

    def __del__(self):
        if self.window != NULL and self.window.is_open and not process_is_closing():
            warnings.warn(f"{self!r} was dropped between preflight and commit; its uses are filed as if launched. "
                          "Call commit() or cancel()", ResourceWarning, stacklevel=2)

    # ------------------------------------------------------------------------------------------ recording
    def read(self, what):
        """Register something that the launch reads; see `use` for what may be given.  Returns the recorder."""
        self.register(what, READ)
        return self

    def write(self, what):
        """Register something that the launch writes without reading it.  Returns the recorder."""
        self.register(what, WRITE)
        return self

    def read_write(self, what):
        """Register something that the launch reads and writes.  Returns the recorder."""
        self.register(what, READ_WRITE)
        return self

    cdef int register(self, object what, int access) except -1:
        self.refuse_late(access)
        if self.window.thread != current_thread():
            self.window.moved = True
        if isinstance(what, tuple):
            for item in <tuple>what:
                self.add_use(item, access, item)
        elif isinstance(what, list):
            for item in <list>what:
                self.add_use(item, access, item)
        else:
            self.add_use(what, access, what)
        return 0

    cdef int refuse_late(self, int access) except -1:
        """Refuse what is registered after the preflight.  Looked at again wherever code of others has run, which may
        have called it."""
        self.refuse_busy()
        if self.preflighted or self.done:
            raise StreamMisuseError(
                f"{METHODS[access]}: a use was recorded after preflight; nothing was added, and commit files "
                "what was preflighted. Register everything first")
        return 0

    cdef int add_use(self, object what, int access, object named) except -1:
        """Find the blocks behind an object and note their identities; keep no hold on them.  `named` is what the user
        gave, of which `what` is a part."""
        cdef Request request
        request.access = access
        if isinstance(what, DeviceBlock) and (<DeviceBlock>what).core is self.runtime:
            request.slot = (<DeviceBlock>what).block.slot
            request.generation = (<DeviceBlock>what).generation
            self.window.requests.push_back(request)
            return 0
        resolver = resolver_of(what)
        if resolver is not None:
            self.add_parts(self.parts_of(what, resolver), access, named)
            return self.refuse_late(access)
        return self.add_memory(what, access, named)

    cdef int add_memory(self, object what, int access, object named) except -1:
        """Find the block behind an object without a resolver."""
        cdef Request request
        cdef Found found
        cdef Extent extent
        cdef Resolved known
        request.access = access
        known = self.runtime.resolve(what, &found, &extent, METHODS[access])
        self.refuse_late(access)
        if known == BEYOND and self.strict:
            self.reject(access, f"{type(named).__name__} is not in one block: {describe_beyond(&found, &extent)}. Make "
                        "one of its size, or adopt all of it")
        elif known == BEYOND:
            self.add_tracked_in(&extent, access)
        elif known == TRACKED:
            request.slot = found.slot
            request.generation = found.generation
            self.window.requests.push_back(request)
        elif known == UNTRACKED and self.strict:
            self.reject(access, f"untracked buffer rejected: {type(named).__name__} is not memory of {self.runtime!r}. "
                        f"{self.explanation() or ADVICE}")
        elif known == UNTRACKED and explanations:
            explanation = self.explanation()
            if explanation:
                warnings.warn(explanation, RuntimeWarning, stacklevel=2)
            self.refuse_late(access)
        return 0

    cdef int reject(self, int access, str why) except -1:
        """The preflight will raise this."""
        self.refuse_late(access)
        self.rejections = self.rejections or []
        self.rejections.append(f"{METHODS[access]}: {why}")
        return 0

    cdef int add_tracked_in(self, Extent* extent, int access) except -1:
        """Register every block that an array reaches, which is not in one block."""
        cdef Request request
        cdef Found found
        cdef uint64_t ptr = extent.first
        request.access = access
        while self.runtime.find_from(ptr, extent.last, &found):
            request.slot = found.slot
            request.generation = found.generation
            self.window.requests.push_back(request)
            if extent.last - found.ptr < found.nbytes:
                break
            ptr = found.ptr + found.nbytes
        return 0

    cdef int add_parts(self, object parts, int access, object named) except -1:
        """Find the blocks behind the parts of an object, and behind theirs.  Resolvers may name each other in a circle:
        parts may be as deep as calls may."""
        cdef list iterators = [parts]                   # the innermost last
        while iterators:
            for part in iterators[len(iterators) - 1]:
                resolver = resolver_of(part)
                if resolver is None:
                    self.add_memory(part, access, named)
                    continue
                if len(iterators) >= Py_GetRecursionLimit():
                    raise RecursionError(f"{METHODS[access]}: the resolvers of {type(named).__name__} and its parts "
                                         f"name parts of parts, {len(iterators)} deep: does one of them name itself?")
                iterators.append(self.parts_of(part, resolver))
                break
            else:
                iterators.pop()
        return 0

    cdef object parts_of(self, object what, object resolver):
        """An iterator over what the resolver names."""
        if self.held is None:
            self.held = []
        parts = resolver(what, self.held.append)
        try:
            return iter(parts)
        except TypeError:
            raise TypeError(f"the resolver of {type(what).__name__} gave {parts!r}, not an iterable of parts") from None

    cdef str explanation(self):
        """Why memory is untracked that should be tracked, if a binding knows."""
        for explain in explanations:
            explanation = explain(self.runtime)
            if explanation:
                return explanation
        return None

    # ------------------------------------------------------------------------------------------ the window
    def preflight(self):
        """Validate everything, then queue the waits that the launch needs.  Call it before the launch.

        Raises
        ------
        StreamMisuseError
            Something untracked was registered in strict mode, or the stream, or one that has to be waited for, is
            capturing a graph.  Nothing was queued.
        UseAfterFreeError
            A block was freed before.  Nothing was queued.
        DriverError
            A wait could not be queued; nothing may be launched.  The call may be repeated, and repeats nothing.
        """
        self.open()

    cdef int refuse_busy(self) except -1:
        cdef Failure failure
        if self.busy:
            raise StreamMisuseError("the recorder is in preflight in another thread: a recorder belongs to one thread")
        if refuse_forked(&failure):
            raise_failure(&failure)
        return 0

    cdef int open(self) except -1:
        cdef Failure failure
        cdef int failed
        self.refuse_busy()
        if self.preflighted or self.done:
            raise StreamMisuseError("the recorder was preflighted before; make a new one for each launch")
        if self.rejections:
            raise StreamMisuseError("; ".join(self.rejections))
        if not self.window.requests.empty():
            self.busy = True
            note_thread(self.window)
            with nogil:
                failed = prepare(&self.runtime.state, self.window, &failure)
            self.busy = False
            if failed:
                self.runtime.fail(&failure, f"preparing a launch on {self.stream!r}")
        self.preflighted = True
        return 0

    def commit(self):
        """File the launch.  Call it after the launch was queued.  After a successful preflight it always files.

        Raises
        ------
        StreamMisuseError
            There was no successful preflight although something was registered, or the recorder was committed or
            cancelled before.
        DriverError
            An opaque stream could not be ordered after the launch, and the host could not wait for it either.  The uses
            are filed all the same.
        """
        if self.rejections:
            raise StreamMisuseError("; ".join(self.rejections))
        if not self.preflighted and not self.window.requests.empty():
            raise StreamMisuseError("commit without a successful preflight: the launch is not protected")
        self.finish(LAUNCHED)

    def cancel(self):
        """Say that nothing was launched: close without filing.  Raises StreamMisuseError after a commit or cancel."""
        self.finish(CANCELLED)

    cdef int finish(self, Outcome outcome) except -1:
        cdef OrderState* order = self.runtime.state.order
        cdef Failure failure
        cdef bint more
        cdef int failed = 0
        self.refuse_busy()
        if self.done:
            raise StreamMisuseError("the recorder was committed or cancelled before")
        self.done = True
        _held, self.held = self.held, None              # dropped when everything is filed
        if not self.window.is_open:
            return 0
        if order.lock.try_lock():
            more = file_window_locked(&self.runtime.state, self.window, outcome)
            order.lock.unlock()
        else:
            with nogil:
                order.lock.lock()
                more = file_window_locked(&self.runtime.state, self.window, outcome)
                order.lock.unlock()
        if more:
            with nogil:
                failed = finish_rest(&self.runtime.state, self.window, &failure)
            if failed:
                self.runtime.fail(&failure, f"handing blocks back after a launch on {self.stream!r}")
            self.runtime.drop_owners()
        if self.window.thread == NO_THREAD:
            raise StreamMisuseError(
                f"the thread that prepared this use on {self.stream!r} ended before the use was finished, and launches "
                "that waited for it have gone on since: they are ordered after what was on the stream by then, and "
                "perhaps not after this launch, which is filed now. Prepare and finish in threads that live meanwhile, "
                "or hold a LaunchRecorder")
        return 0

    def __enter__(self):
        self.open()
        return self

    def __exit__(self, kind, exception, traceback):
        if not self.done:
            self.finish(LAUNCHED)

    def _keep_by_runtime(self):
        """For a runtime that itself keeps the recorder until the finish: without a reference back, so that it may end
        before."""
        cdef OrderState* order = self.runtime.state.order
        cdef Stream stream = handle_of(self.stream.ordering, self.stream.state)
        stream.core = None
        with nogil:
            order.lock.lock()
            self.window.is_kept = True
            order.lock.unlock()
        self.stream = stream
        self.keeper = &self.runtime.state
        self.runtime = None

    def _take_from(self, Core runtime not None):
        """The end of `_keep_by_runtime`."""
        cdef OrderState* order = runtime.state.order
        self.runtime = runtime
        with nogil:
            order.lock.lock()
            self.window.is_kept = False
            order.lock.unlock()

    @property
    def mode(self):
        """``"strict"`` or ``"permissive"``."""
        return "strict" if self.strict else "permissive"

    @property
    def recorded_count(self):
        """How many uses were registered, before uses of one block are merged."""
        return self.window.requests.size()

    def __repr__(self):
        state = "done" if self.done else "preflighted" if self.preflighted else "recording"
        return f"<LaunchRecorder {self.mode} on stream {self.stream.id}: {self.recorded_count} uses, {state}>"


include "launch/use.pxi"                    # `use`, and whose blocks it means
