"""What users wrap their launches in: `use`, and the `LaunchRecorder` behind it.

A recorder collects what one launch touches, asks the core to prepare it before the launch, and files it afterwards.  It
turns objects into block identities and knows nothing of waits and events.
"""
import warnings

cimport cython

from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport UINT64_MAX

from xlogmem._core cimport (
    HAND_BACK_ALL,
    HAND_BACK_WRITES,
    READ,
    READ_WRITE,
    WRITE,
    Found,
    Request,
    abandon,
    file_window,
    finish_rest,
    give_window,
    prepare,
    take_window,
)
from xlogmem._driver cimport Failure, raise_failure
from xlogmem._order cimport OrderState
from xlogmem.blocks cimport BlockId, DeviceBlock
from xlogmem.streams cimport core_of

from xlogmem.errors import StreamMisuseError

__all__ = ["LaunchRecorder", "use"]


@cython.final
@cython.no_gc
@cython.freelist(16)
cdef class LaunchRecorder:
    """Records what one launch, or one group of launches on one stream, reads and writes.

    Register every block, call `preflight`, launch, call `commit`; or use it as a context manager around the launch,
    which does the same.  Leaving the ``with`` block by an exception commits too: the launch may have been queued
    before the exception came, and filing too much is harmless (W9).  Where nothing was launched, say so with
    `cancel`.

    Parameters
    ----------
    stream : Stream
        Where the launch goes.
    mode : {"strict", "permissive"}
        What to do with memory that no runtime tracks: refuse it at preflight, or leave it out silently.  Left-out
        memory is not protected.
    handback : {"all", "writes"}
        After which uses an opaque home stream of a block is made to wait (see `Stream.discipline`): after all, or after
        those that write, for programs that know that nobody writes in place there.

    Notes
    -----
    A recorder belongs to one thread at a time; different recorders may be used at once.  Recording keeps no hold on the
    blocks: one that is freed before preflight is reported there (contract 91, 110), one that is freed between preflight
    and commit is freed by the commit.
    """

    def __cinit__(self, Stream stream not None, *, str mode="strict", str handback="all"):
        if mode not in ("strict", "permissive"):
            raise ValueError(f"mode {mode!r} is unknown; choose strict or permissive")
        if handback not in ("all", "writes"):
            raise ValueError(f"handback {handback!r} is unknown; choose all or writes")
        self.runtime = core_of(stream)
        self.stream = stream
        self.strict = mode == "strict"
        self.window = take_window()
        self.window.stream = stream.state
        self.window.hand_back = HAND_BACK_ALL if handback == "all" else HAND_BACK_WRITES

    def __dealloc__(self):
        if self.window == NULL:
            return
        if self.window.is_open:                         # filed by the next call to the runtime
            abandon(&self.runtime.state, self.window)
        else:
            give_window(self.window)

    def __del__(self):
        if self.window != NULL and self.window.is_open:
            warnings.warn(f"{self!r} was dropped between preflight and commit; its uses are filed as if launched. "
                          "Call commit() or cancel()", ResourceWarning, stacklevel=2)

    # ------------------------------------------------------------------------------------------ recording
    def read(self, what):
        """Register something that the launch reads; see `use` for what may be given.  Returns the recorder."""
        self.register(what, READ, "read")
        return self

    def write(self, what):
        """Register something that the launch writes without reading it.  Returns the recorder."""
        self.register(what, WRITE, "write")
        return self

    def read_write(self, what):
        """Register something that the launch reads and writes.  Returns the recorder."""
        self.register(what, READ_WRITE, "read_write")
        return self

    cdef int register(self, object what, int access, str method) except -1:
        if self.preflighted or self.done:
            raise StreamMisuseError(
                f"LaunchRecorder.{method}: a use was recorded after preflight; nothing was added, and commit files "
                "what was preflighted. Register everything first")
        if isinstance(what, tuple):
            for item in <tuple>what:
                self.resolve(item, access, method)
        elif isinstance(what, list):
            for item in <list>what:
                self.resolve(item, access, method)
        else:
            self.resolve(what, access, method)
        return 0

    cdef int resolve(self, object what, int access, str method) except -1:
        """Find the block behind an object and note its identity."""
        cdef Request request
        cdef Found found
        cdef DeviceBlock block
        cdef object interface
        request.access = access
        if isinstance(what, DeviceBlock):
            block = <DeviceBlock>what
            if block.core is not self.runtime:
                raise StreamMisuseError(
                    f"LaunchRecorder.{method}: {block!r} belongs to another runtime than {self.stream!r}")
            request.slot = block.block.slot
            request.generation = block.generation
            self.window.requests.push_back(request)
            return 0
        if isinstance(what, BlockId):
            request.slot = (<BlockId>what).slot
            request.generation = (<BlockId>what).generation
            self.window.requests.push_back(request)
            return 0
        interface = None if isinstance(what, int) else getattr(what, "__cuda_array_interface__", None)
        if interface is not None:
            address = interface["data"][0]
            if 0 in interface["shape"]:
                return 0                                # nothing to touch (W24)
        elif PyIndex_Check(what):
            address = PyNumber_Index(what)
        else:
            raise TypeError(f"LaunchRecorder.{method}: {type(what).__name__} is no block, address or CUDA array "
                            "(it has no __cuda_array_interface__), nor a list or tuple of these")
        if 0 <= address <= UINT64_MAX and self.runtime.find(address, &found):
            request.slot = found.slot
            request.generation = found.generation
            self.window.requests.push_back(request)
        elif self.strict:
            self.rejections = self.rejections or []
            self.rejections.append(
                f"LaunchRecorder.{method}: untracked buffer rejected: {type(what).__name__} is not memory of "
                f"{self.runtime!r}. Allocate it there, or use mode='permissive' and order it yourself")
        return 0

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

    cdef int open(self) except -1:
        cdef Failure failure
        cdef int failed
        if self.preflighted or self.done:
            raise StreamMisuseError("the recorder was preflighted before; make a new one for each launch")
        if self.rejections:
            raise StreamMisuseError("; ".join(self.rejections))
        if not self.window.requests.empty():
            with nogil:
                failed = prepare(&self.runtime.state, self.window, &failure)
            if failed:
                raise_failure(&failure, f"preparing a launch on {self.stream!r}")
        self.preflighted = True
        return 0

    def commit(self):
        """File the launch.  Call it after the launch was queued.

        Never refuses to file.

        Raises
        ------
        StreamMisuseError
            There was no successful preflight although something was registered (contract 101).
        DriverError
            An opaque stream could not be ordered after the launch, and the host could not wait for it either.  The uses
            are filed all the same.
        """
        if not self.preflighted and not self.window.requests.empty():
            raise StreamMisuseError("commit without a successful preflight: the launch is not protected")
        if self.rejections:
            raise StreamMisuseError("; ".join(self.rejections))
        self.finish(True)

    def cancel(self):
        """Say that nothing was launched: close without filing."""
        self.finish(False)

    cdef int finish(self, bint filed) except -1:
        cdef OrderState* order = self.runtime.state.order
        cdef Failure failure
        cdef bint more
        cdef int failed = 0
        if self.done:
            raise StreamMisuseError("the recorder was committed or cancelled before")
        self.done = True
        if not self.window.is_open:
            return 0
        if order.lock.try_lock():
            more = file_window(&self.runtime.state, self.window, filed)
            order.lock.unlock()
        else:
            with nogil:
                order.lock.lock()
                more = file_window(&self.runtime.state, self.window, filed)
                order.lock.unlock()
        if more:
            with nogil:
                failed = finish_rest(&self.runtime.state, self.window, &failure)
            if failed:
                raise_failure(&failure, f"handing blocks back after a launch on {self.stream!r}")
        return 0

    def __enter__(self):
        self.open()
        return self

    def __exit__(self, kind, exception, traceback):
        if not self.done:
            self.finish(True)

    @property
    def mode(self):
        """``"strict"`` or ``"permissive"``."""
        return "strict" if self.strict else "permissive"

    @property
    def recorded_count(self):
        """How many uses were registered, before uses of one block are merged (contract 106)."""
        return self.window.requests.size()

    def __repr__(self):
        state = "done" if self.done else "preflighted" if self.preflighted else "recording"
        return f"<LaunchRecorder {self.mode} on stream {self.stream.id}: {self.recorded_count} uses, {state}>"


def use(Stream stream not None, read=(), write=(), read_write=(), *, str mode="strict", str handback="all"):
    """Protect a launch: ``with use(stream, read=a, write=b): launch(...)``.

    On entry `stream` is made to wait, on the device, for whatever the launch has to come after: writers of what it
    reads, readers and writers of what it writes.  On exit the launch is filed, so that later users and the free of
    each block wait for it.

    Parameters
    ----------
    stream : Stream
        Where the launch goes.
    read, write, read_write : object, or list or tuple of objects
        What it touches: blocks, their ids, integer device addresses, or anything with ``__cuda_array_interface__``.
        Addresses inside a block stand for the block.
    mode, handback : str
        See `LaunchRecorder`.

    Returns
    -------
    LaunchRecorder
        A context manager; its `cancel` says that nothing was launched.

    Raises
    ------
    StreamMisuseError, UseAfterFreeError, DriverError
        See `LaunchRecorder.preflight`; raised on entry, before anything was queued.

    Examples
    --------
    >>> with xlogmem.use(stream, read=[a, b], write=c):
    ...     kernel[grid, block, stream](a, b, c)
    """
    cdef LaunchRecorder recorder
    if mode == "strict" and handback == "all":
        recorder = LaunchRecorder.__new__(LaunchRecorder, stream)
    else:
        recorder = LaunchRecorder.__new__(LaunchRecorder, stream, mode=mode, handback=handback)
    recorder.register(read, READ, "read")
    recorder.register(write, WRITE, "write")
    recorder.register(read_write, READ_WRITE, "read_write")
    return recorder
