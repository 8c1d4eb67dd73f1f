"""What people hold and hand on: `Buffer`, a typed part of a block, and how things stand with its device.

A buffer holds its memory, and looks before each use whether it may still be raised_to: its device may be shutting down,
lost, or come back with a new context in which the address means nothing.  It holds the block, not the device's state;
what it has to know of that is in a `DeviceStatus`, which is read without a lock.  Uses go through the launch machinery of
the rooms below, so every copy and fill here is ordered, and a buffer is named in `use` like a block.

Others get the memory in three ways, and each time the stream that they name is ordered first (`export_to`):

* a DLPack capsule pins the block until its deleter runs; until then the consumer may work on his stream unreported;
* the CUDA array interface names a stream of ours that is ordered after all writers, and holds the buffer itself;
* an Arrow device array carries an event that is recorded after all writers.

Nothing here decides what comes after what, and nothing here imports NumPy but `to_numpy`.
"""
import itertools

cimport cython

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_CheckBuffer,
    PyObject_GetBuffer,
)
from cpython.number cimport PyIndex_Check, PyNumber_Index
from libc.stdint cimport int64_t

from xlogmem._failures cimport is_sticky
from xlogmem.interop._arrow cimport array_capsule, schema_capsule
from xlogmem._core cimport LAUNCHED, READ, READ_WRITE, WRITE
from xlogmem.interop._dlpack cimport COPIED, CPU, CUDA, READ_ONLY, DLPackExport, capsule_of, new_export
from xlogmem._driver cimport (
    LEGACY,
    Scope,
    copy_across,
    copy_in,
    copy_out,
    enter_context,
    fill,
    host_is_pinned,
    leave_context,
)
from xlogmem._order cimport OrderState, is_other_threads_default, host_wait_unlocks
from xlogmem.blocks cimport release_export

from xlogmem.interop._dtypes import dtype_of, element
from xlogmem.blocks import Access
from xlogmem.errors import StaleBufferError, StreamMisuseError

__all__ = ["Buffer"]

numbers = itertools.count(1)                # of buffers, in this process; never used again
METHODS = {READ: "read", WRITE: "write", READ_WRITE: "read_write"}


cdef tuple c_strides(tuple shape, object itemsize):
    """The strides of a contiguous array, in bytes, the last dimension fastest."""
    strides = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(extent, 1)
    return tuple(reversed(strides))


def shape_of(what):
    """A shape as a tuple: an int is one dimension."""
    shape = (PyNumber_Index(what),) if PyIndex_Check(what) else tuple([PyNumber_Index(extent) for extent in what])
    if any(extent < 0 for extent in shape):
        raise ValueError(f"a shape has no negative extents: {shape}")
    return shape


# ---------------------------------------------------------------------------------------------- status
@cython.final
@cython.no_gc
cdef class DeviceStatus:
    """How things stand with a device.  `DeviceState` owns and changes it; buffers read it."""

    def __cinit__(self, int ordinal):
        self.ordinal = ordinal

    @property
    def generation(self):
        return self.current.load()

    @property
    def lost(self):
        return <bint>self.gone

    @property
    def shutting_down(self):
        return <bint>self.closed

    @property
    def in_use(self):
        """Pointers that are given out."""
        return self.accesses.load()

    def advance(self, bint lost):
        """The context is lost, or there is a new one: whatever was minted before is stale.  Returns the generation."""
        self.gone.store(lost)
        return self.current.fetch_add(1) + 1

    def close(self):
        self.closed.store(True)

    def drop(self):
        self.dropped.store(True)


def mark_lost(Core core not None):
    """Every later call of the runtime fails: somebody said that its context is gone."""
    core.state.lost.store(1)


def make_buffer(DeviceStatus status not None, Core core not None, uint64_t generation, DeviceBlock block, shape, kind,
         bint readonly=False):
    """A buffer over the whole of a block (None: zero bytes)."""
    return view_of(status, core, generation, block, block.ptr if block is not None else 0, shape,
                   c_strides(shape, kind.itemsize), kind, readonly, None)


cdef Buffer view_of(DeviceStatus status, Core core, uint64_t generation, DeviceBlock block, uint64_t ptr, tuple shape,
                    tuple strides, object kind, bint readonly, object owner):
    cdef Buffer buffer = Buffer.__new__(Buffer)
    cdef object size = 1
    for extent in shape:
        size *= extent
    buffer.status = status
    buffer.core = core
    buffer.generation = generation
    buffer.block = block
    buffer.ptr = ptr
    buffer.shape = shape
    buffer.strides = strides
    buffer.kind = kind
    buffer.readonly = readonly
    buffer.owner = owner
    buffer.itemsize = kind.itemsize
    buffer.size = size
    return buffer


# ---------------------------------------------------------------------------------------------- buffers
@cython.final
cdef class Buffer(BlockView):
    """A typed array of device memory that is tracked.

    Made by `DeviceState.empty` and its like, by `from_dlpack`, `from_cuda_array` and `from_arrow`, and by slicing; a
    slice shares the block and its uses.  Name it in `use` to launch on it, or take its `pointer`.

    Attributes
    ----------
    shape : tuple of int
        Elements in each dimension.
    strides : tuple of int
        Bytes from one element to the next in each dimension.
    itemsize, size : int
        Bytes of an element, and how many elements there are.
    readonly : bool
        Whether nobody may write it here.
    generation : int
        That of the device's state when the buffer was made; it never changes.
    core : Core
        The runtime that tracks the memory.

    Notes
    -----
    It keeps the memory, also while the device is shutting down, and is not kept by the device.  Whatever looks at the
    memory raises `StaleBufferError` once that must not be raised_to; what describes the buffer works all the same.
    Thread-safe.  The address is given out with the use that it is for, by `pointer`, and shown nowhere else.
    """

    def __init__(self):
        raise TypeError("buffers are made by DeviceState.empty(), from_dlpack(), from_cuda_array() and from_arrow()")

    def __reduce__(self):
        raise TypeError("a buffer cannot be pickled: send its token, or its contents with to_numpy()")

    def __copy__(self):
        if self.status is None or self.consumed:
            self.refuse_stale()
        return self.part(self.ptr, self.shape, self.strides, self.kind)

    def __deepcopy__(self, memo):
        raise TypeError("a deep copy would have to choose a stream: make an empty buffer and use copy_from()")

    # ------------------------------------------------------------------------------------------ how things stand
    cdef const char* stale(self) noexcept:
        """Why the memory must not be raised_to, NULL if it may be."""
        cdef DeviceStatus status = self.status
        if status is None or status.dropped:
            return "device state dropped"
        if status.closed:
            return "device shutting down"
        if self.generation != status.current.load():
            return "context lost" if status.gone else "context rebuilt"
        if self.core.state.lost.load():
            return "context lost"
        if self.consumed:
            return "consumed"
        return NULL

    cdef int refuse_stale(self) except -1:
        cdef const char* reason = self.stale()
        if reason != NULL:
            raise StaleBufferError((<bytes>reason).decode())
        return 0

    @property
    def is_stale(self):
        """Whether the memory must not be raised_to any more; `access` says why."""
        return self.stale() != NULL

    def access(self):
        """The block, if it may be used.

        Returns
        -------
        DeviceBlock or None
            None for zero bytes.

        Raises
        ------
        StaleBufferError
            ``device state dropped``, ``device shutting down``, ``context lost`` or ``context rebuilt``, in this order,
            or ``consumed``.
        """
        self.refuse_stale()
        return self.block

    def pointer(self, stream, access):
        """The address, for a launch: ``with buffer.pointer(stream, Access.READ) as ptr: launch(ptr)``.

        Parameters
        ----------
        stream : stream
            Where the launch goes.
        access : Access
            What it does with the memory.

        Returns
        -------
        context manager
            Gives the address of the first element, as an int.  It is a `use` of the buffer: the waits are queued
            before, the use is filed after.  Meanwhile the device's context is not replaced.

        Raises
        ------
        StaleBufferError
            See `access`.
        ValueError
            The buffer is read-only, and this would write.
        """
        cdef Pointer pointer = Pointer.__new__(Pointer)
        if not isinstance(access, Access) or not access:
            raise TypeError(f"access must be Access.READ, Access.WRITE or Access.READ_WRITE, got {access!r}")
        self.refuse_stale()
        if access.writes:
            self.refuse_writing("a pointer for writing")
        pointer.buffer = self
        pointer.recorder = self.window(self.resolve_stream(stream), access.value)
        return pointer

    cdef int refuse_writing(self, str what) except -1:
        if self.readonly:
            raise ValueError(f"{what}: the buffer is read-only")
        return 0

    # ------------------------------------------------------------------------------------------ what it is
    @property
    def dtype(self):
        """The kind of the elements, by NumPy's name for it."""
        return self.kind.name if self.kind is not None else None

    @property
    def ndim(self):
        """How many dimensions there are."""
        return len(self.shape)

    @property
    def nbytes(self):
        """Bytes of all elements together."""
        return self.size * self.itemsize

    @property
    def is_empty(self):
        """Whether there are no elements."""
        return self.size == 0

    @property
    def device_id(self):
        """The device, None once its state was dropped (contract 119)."""
        return self.status.ordinal if self.status is not None and not self.status.dropped else None

    def __len__(self):
        if not self.shape:
            raise TypeError("a buffer without dimensions has no length")
        return self.shape[0]

    def __bool__(self):
        raise TypeError("whether a buffer is true is on the device; ask for size")

    def __repr__(self):
        if self.status is None:
            return "<Buffer that was never made>"
        extra = ", consumed" if self.consumed else f", {(<bytes>self.stale()).decode()}" if self.stale() != NULL else ""
        return (f"<Buffer {self.dtype} shape={self.shape} len={self.size} device={self.device_id} "
                f"generation={self.generation}{extra}>")

    def made_by(self, DeviceStatus status):
        """Whether the buffer was made by the state that owns this status."""
        return self.status is status

    @property
    def number(self):
        """Names this buffer in tokens; no other buffer of this process has it."""
        if self._number == 0:
            self._number = next(numbers)
        return self._number

    # ------------------------------------------------------------------------------------------ parts
    cdef bint contiguous(self):
        return self.size == 0 or all(
            stride == full or extent == 1
            for stride, full, extent in zip(self.strides, c_strides(self.shape, self.itemsize), self.shape, strict=True))

    cdef tuple extent(self):
        """The bytes that the elements are in: where they begin, and how many."""
        low = high = self.ptr
        for length, stride in zip(self.shape, self.strides, strict=True):
            if stride < 0:
                low += (length - 1) * stride
            else:
                high += (length - 1) * stride
        return low, high - low + self.itemsize

    cdef Buffer part(self, uint64_t ptr, tuple shape, tuple strides, object kind):
        return view_of(self.status, self.core, self.generation, self.block, ptr, shape, strides, kind, self.readonly,
                       self.owner)

    def __getitem__(self, key):
        """A part, which shares the memory: integers, slices and an ellipsis."""
        if self.status is None or self.consumed:
            self.refuse_stale()
        keys = list(key) if isinstance(key, tuple) else [key]
        dots = [place for place, item in enumerate(keys) if item is Ellipsis]
        if len(dots) > 1:
            raise IndexError("an index has one ellipsis at most")
        if len(keys) - len(dots) > len(self.shape):
            raise IndexError(f"too many indices: {len(keys) - len(dots)} for {len(self.shape)} dimension(s)")
        place = dots[0] if dots else len(keys)
        keys[place:place + len(dots)] = [slice(None)] * (len(self.shape) - len(keys) + len(dots))
        offset, shape, strides = 0, [], []
        for item, extent, stride in zip(keys, self.shape, self.strides, strict=True):
            if isinstance(item, slice):
                start, stop, step = item.indices(extent)
                length = len(range(start, stop, step))
                offset += start * stride if length else 0
                shape.append(length)
                strides.append(step * stride)
            else:
                number = PyNumber_Index(item)
                if not -extent <= number < extent:
                    raise IndexError(f"index {number} is out of bounds for {extent} elements")
                offset += number % extent * stride
        return self.part(self.ptr + offset if self.ptr else 0, tuple(shape), tuple(strides), self.kind)

    def view(self, dtype=None, shape=None):
        """The same bytes as another dtype or shape; the buffer has to be contiguous.

        Parameters
        ----------
        dtype : dtype, optional
            The default is the buffer's own.
        shape : int or tuple of int, optional
            The default is one dimension if the dtype is another, else the buffer's own.

        Raises
        ------
        ValueError
            The sizes do not fit, or the buffer is not contiguous.
        """
        if self.status is None or self.consumed:
            self.refuse_stale()
        kind = self.kind if dtype is None else dtype_of(dtype)
        nbytes = self.nbytes
        if not self.contiguous():
            raise ValueError("only a contiguous buffer can be seen as another one")
        if shape is None:
            if kind is self.kind:
                shape = self.shape
            elif nbytes % kind.itemsize:
                raise ValueError(f"{nbytes} bytes are no whole number of {kind.name}")
            else:
                shape = (nbytes // kind.itemsize,)
        shape = shape_of(shape)
        cdef Buffer seen = self.part(self.ptr, shape, c_strides(shape, kind.itemsize), kind)
        if seen.nbytes != nbytes:
            raise ValueError(f"{nbytes} bytes cannot be seen as {kind.name} of shape {shape}")
        return seen

    def into_bytes(self):
        """The same memory as bytes; this buffer is consumed (contract 186)."""
        self.refuse_stale()
        seen = self.view("uint8")
        self.release()
        return seen

    def release(self):
        """Give up the memory: it is freed once nobody else holds a part of it.  The buffer is consumed, and empty."""
        self.consumed = True
        self.size = 0
        self.shape = (0,) * max(1, len(self.shape)) if self.shape is not None else (0,)
        self.strides = (0,) * len(self.shape)
        self.block = None
        self.owner = None

    # ------------------------------------------------------------------------------------------ uses
    cdef Stream resolve_stream(self, object stream):
        """The stream of an argument; None is where the memory was allocated, if work can be queued there."""
        cdef Stream home
        if stream is not None:
            return self.core.stream_of(stream)
        home = self.block.stream if self.block is not None else None
        if home is None or not home.registered or home.state.unowned or is_other_threads_default(home.state):
            home = self.core.stream_pool.default
        return home

    cdef LaunchRecorder window(self, Stream stream, int access):
        cdef LaunchRecorder recorder = LaunchRecorder.__new__(LaunchRecorder, stream)
        recorder.add_use(self, access, METHODS[access], self)
        return recorder

    def record_write(self, stream):
        """File that work queued on `stream` already has written the memory (contract 120).

        It protects those who come later; nothing protects the work itself.  Use `use` for that.

        Raises
        ------
        StaleBufferError, StreamMisuseError
            The buffer is stale, or the stream is not of its device.  Nothing is filed (W71).
        """
        self.refuse_stale()
        self.refuse_writing("record_write")
        if self.block is not None:
            self.core.record_block_use(self.block, stream)

    @property
    def last_write_stream(self):
        """The stream of the newest write that was filed, for all parts of the block; None if there is none, or its
        stream is gone.  Nobody has to order anything by it: `use` does (W70)."""
        return self.core.writer_of(self.block) if self.block is not None else None

    def fill(self, value, stream=None):
        """Set every element, ordered on a stream.

        Parameters
        ----------
        value : scalar
            One element.
        stream : stream, optional
            The default is where the memory was allocated.

        Raises
        ------
        ValueError, TypeError
            The value is no such element, or the buffer is read-only or not contiguous.
        StaleBufferError, StreamMisuseError, DriverError
            Nothing was queued.
        """
        cdef bytes pattern = element(self.kind, value)
        cdef Stream place
        cdef LaunchRecorder recorder
        cdef Failure failure
        cdef Scope scope
        cdef uint32_t word
        cdef size_t count
        cdef uint64_t target = self.ptr
        cdef int width, failed
        self.refuse_stale()
        self.refuse_writing("fill")
        if self.size == 0:
            return
        if not self.contiguous():
            raise ValueError("only a contiguous buffer can be filled")
        place = self.resolve_stream(stream)
        for width in (1, 2, 4):
            if len(pattern) % width == 0 and pattern == pattern[:width] * (len(pattern) // width):
                break
        else:                                           # wider than the driver's fills, and not uniform
            pattern *= self.size
            self.upload(<const char*>pattern, len(pattern), place, False)
            return
        word = int.from_bytes(pattern[:width], "little")
        count = self.nbytes // width
        recorder = self.window(place, WRITE)
        recorder.open()
        try:
            with nogil:
                failed = enter_context(self.core.state.order.context, &scope, &failure)
                if not failed:
                    failed = fill(target, word, width, count, place.state.handle, &failure)
                    leave_context(&scope)
        finally:
            recorder.finish(LAUNCHED)
        if failed:
            self.fail(&failure, "filling a buffer")

    def copy_from(self, source, stream=None):
        """Copy into the buffer, ordered on a stream.

        Parameters
        ----------
        source : Buffer, or object with a buffer of host memory
            As many bytes, contiguous, and of the same shape and dtype where it has these.
        stream : stream, optional
            The default is where this buffer's memory was allocated.

        Notes
        -----
        Host memory may be changed when the call returns: of ordinary memory the driver has taken a copy; for
        page-locked memory the host waits for this stream, and for nothing else.
        """
        cdef Py_buffer view
        cdef bint pinned = False
        self.refuse_stale()
        self.refuse_writing("copy_from")
        if not self.contiguous():
            raise ValueError("only a contiguous buffer can be copied to")
        if isinstance(source, Buffer):
            copy_device(self, <Buffer>source, stream)
            return
        get_host(source, self, &view, 0)
        try:
            if self.size:
                host_is_pinned(view.buf, &pinned)
                self.upload(view.buf, view.len, self.resolve_stream(stream), pinned)
        finally:
            PyBuffer_Release(&view)

    def copy_to(self, target, stream=None):
        """Copy out of the buffer, ordered on a stream.

        Parameters
        ----------
        target : Buffer, or object with a writable buffer of host memory
            As many bytes, contiguous, and of the same shape and dtype where it has these.
        stream : stream, optional
            The default is where the memory of the device buffer that is written, or else of this one, was allocated.

        Notes
        -----
        Host memory holds the contents when the call returns: the host waits for this stream, and for nothing else.
        """
        cdef Py_buffer view
        self.refuse_stale()
        if isinstance(target, Buffer):
            target.copy_from(self, stream)
            return
        if not self.contiguous():
            raise ValueError("only a contiguous buffer can be copied from; to_numpy() copies others")
        get_host(target, self, &view, PyBUF_WRITABLE)
        try:
            if self.size:
                self.download(view.buf, self.ptr, view.len, self.resolve_stream(stream))
        finally:
            PyBuffer_Release(&view)

    def to_numpy(self, stream=None):
        """The contents as a NumPy array; the host waits for this stream, and for nothing else.

        TypeError: NumPy has no such dtype (bfloat16 and its like need the package ml_dtypes).
        """
        import numpy

        cdef bytearray host
        self.refuse_stale()
        if self.kind.pack is None:
            try:
                import ml_dtypes
            except ImportError:
                raise TypeError(f"NumPy knows {self.dtype} with the package ml_dtypes only; see it as another dtype "
                                "with view()") from None
            dtype = numpy.dtype(getattr(ml_dtypes, self.kind.name))
        else:
            dtype = numpy.dtype(self.kind.name)
        if self.size == 0:
            return numpy.empty(self.shape, dtype)
        start, nbytes = self.extent()
        host = bytearray(nbytes)
        self.download(<char*>host, start, nbytes, self.resolve_stream(stream))
        return numpy.ndarray(self.shape, dtype, host, self.ptr - start, self.strides)

    cdef int upload(self, const void* source, size_t nbytes, Stream stream, bint wait) except -1:
        cdef uint64_t position = self.copy_host(<void*>source, self.ptr, nbytes, stream, WRITE)
        if wait:
            self.wait(stream, position)
        return 0

    cdef int download(self, void* target, uint64_t source, size_t nbytes, Stream stream) except -1:
        return self.wait(stream, self.copy_host(target, source, nbytes, stream, READ))

    cdef uint64_t copy_host(self, void* host, uint64_t device, size_t nbytes, Stream stream, int access) except? 0:
        """Copy between the host and the device, to there if `access` is WRITE; the position that it was filed at."""
        cdef LaunchRecorder recorder = self.window(stream, access)
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        recorder.open()
        try:
            with nogil:
                failed = enter_context(self.core.state.order.context, &scope, &failure)
                if not failed:
                    if access == WRITE:
                        failed = copy_in(device, host, nbytes, stream.state.handle, &failure)
                    else:
                        failed = copy_out(host, device, nbytes, stream.state.handle, &failure)
                    leave_context(&scope)
        finally:
            recorder.finish(LAUNCHED)
        if failed:
            self.fail(&failure, "copying from the host" if access == WRITE else "copying to the host")
        return recorder.window.position

    cdef int wait(self, Stream stream, uint64_t position) except -1:
        """The host waits for a position of this stream, and for nothing else."""
        cdef OrderState* order = self.core.state.order
        cdef Failure failure
        cdef Scope scope
        cdef int failed
        with nogil:
            failed = enter_context(order.context, &scope, &failure)
            if not failed:
                order.lock.lock()
                failed = host_wait_unlocks(order, stream.state, position, &failure)
                order.lock.unlock()
                leave_context(&scope)
        if failed:
            self.fail(&failure, f"waiting for {stream!r}")
        return 0

    cdef int fail(self, Failure* failure, str what) except -1:
        if is_sticky(failure):
            self.core.state.lost.store(1)
        return self.core.fail(failure, what)

    # ------------------------------------------------------------------------------------------ others get it
    cdef int export_to(self, Stream stream, bint waits, Export* export) except -1:
        """Order a stream after whoever uses the memory, and let somebody work on it there.  None: he does not say
        where."""
        cdef LaunchRecorder recorder
        if self.block is None:
            self.refuse_stale()
        if not waits or stream is None:
            return self.core.export_block(self.block, stream.state if stream is not None else NULL, not self.readonly, export)
        recorder = self.window(stream, READ if self.readonly else READ_WRITE)
        recorder.open()
        try:
            self.core.export_block(self.block, stream.state, not self.readonly, export)
        finally:
            recorder.finish(LAUNCHED)
        return 0

    def __dlpack_device__(self):
        """``(kDLCUDA, device)``."""
        self.refuse_stale()
        return int(CUDA), self.status.ordinal

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack capsule (Python array API standard).

        Parameters
        ----------
        stream : int, optional
            Where the consumer will work: 1 (the legacy default stream, also for None), 2 (the per-thread default
            stream) or a handle.  It is ordered after everything that uses the memory, on the device, now.  -1: not
            ordered; the consumer takes care of that.  0 is ambiguous and not allowed.
        max_version : (int, int), optional
            The newest version that the consumer knows; from (1, 0) on the capsule is a versioned one.
        dl_device : (int, int), optional
            This device, or ``(1, 0)`` for a copy in host memory, for which the host waits.
        copy : bool, optional
            True: a copy is exported.  False: never.

        Notes
        -----
        The block stays until the deleter has run, on whatever thread.  Until then the consumer may work on his stream
        without telling: uses elsewhere are ordered after what was queued there so far.  Where nobody is known to keep
        that stream alive, and for -1, nothing is known of his later work: say `use`; and the block is freed by a
        blocking `DeviceRuntime.reap_pending`.

        Raises
        ------
        BufferError
            The export is not possible as asked: read-only memory for a consumer that cannot be last_interface_stream, another device, a
            copy in host memory with ``copy=False``.
        ValueError, TypeError
            An argument is none of the above.
        StaleBufferError, StreamMisuseError, DriverError
            Nothing was exported.
        """
        cdef Buffer buffer = self
        cdef Stream consumer = None
        cdef DLPackExport* export
        cdef bint versioned, waits
        cdef int flags = 0
        versioned = version_of(max_version) >= (1, 0)
        device = self.__dlpack_device__() if dl_device is None else pair_of(dl_device, "dl_device")
        handle = stream_of_consumer(stream)
        if device == (CPU, 0):
            if copy is not None and not copy:
                raise BufferError("the memory is on the device: host memory can only be a copy")
            return self.host_capsule(versioned)
        if device != self.__dlpack_device__():
            raise BufferError(f"the memory is on device {self.__dlpack_device__()} and cannot be exported to {device}")
        if copy:
            buffer = copy_of(self)
            flags |= COPIED
        if buffer.readonly:
            if not versioned:
                raise BufferError("the buffer is read-only, which a consumer of DLPack before 1.0 cannot be last_interface_stream: ask "
                                  "with max_version=(1, 0), or for a copy")
            flags |= READ_ONLY
        if any(stride % <int64_t>buffer.itemsize for stride in buffer.strides):
            raise BufferError("the strides are no whole numbers of elements")
        waits = handle != -1
        if buffer.size and handle != -1:
            consumer = self.core.owned_stream(handle) or self.core.stream_of(handle)
        export = new_export()
        try:
            if buffer.size:
                buffer.export_to(consumer, waits, &export.base)
            fill_tensor(export, buffer, <void*>buffer.ptr if buffer.size else NULL, CUDA, device[1])
        except BaseException:
            release_export(&export.base)
            raise
        export.versioned.flags = flags
        return capsule_of(export, versioned)

    cdef object host_capsule(self, bint versioned):
        cdef DLPackExport* export = new_export()
        cdef Buffer buffer = self
        try:
            self.refuse_stale()
            start, nbytes = self.extent() if self.size else (self.ptr, 0)
            export.host.resize(nbytes)
            if self.size:
                self.download(export.host.data(), start, nbytes, self.resolve_stream(None))
            first = self.ptr - start
            fill_tensor(export, buffer, export.host.data() + <size_t>first if self.size else NULL, CPU, 0)
        except BaseException:
            release_export(&export.base)
            raise
        export.versioned.flags = COPIED
        return capsule_of(export, versioned)

    @property
    def __cuda_array_interface__(self):
        """Version 3 of the CUDA array interface.

        ``stream`` names a stream that is ordered, at this moment, after all who use the memory: that of the newest
        write if it can be, else that of the allocation.  A consumer orders its own stream after that one, and that one
        after its work; until the block is freed, uses elsewhere are ordered after what was queued there.
        """
        cdef Stream interface_stream = None

        if self.kind is not None and self.kind.typestr is None:
            raise AttributeError(f"the CUDA array interface has no name for {self.dtype}: export it with DLPack")
        self.refuse_stale()
        if self.size:
            interface_stream = self.interface_stream()
            self.last_interface_stream = interface_stream if interface_stream.foreign else None        # own ones live as long as the runtime, and are few
            self.export_to(interface_stream, True, NULL)
        return {"version": 3, "shape": self.shape, "typestr": self.kind.typestr,
                "data": (self.ptr if self.size else 0, bool(self.readonly)),
                "strides": None if self.contiguous() else self.strides, "mask": None,
                "stream": (interface_stream.handle or LEGACY) if interface_stream is not None else LEGACY}

    cdef Stream interface_stream(self):
        """A stream that others can be last_interface_stream of: it lives as long as the runtime, or somebody keeps it, or this buffer
        that named it last."""
        cdef Stream newest = self.last_write_stream
        if newest is None or (newest.state.unowned and newest.state.thread == 0) or is_other_threads_default(newest.state):
            newest = self.resolve_stream(None)
        return newest

    def __arrow_c_schema__(self):
        """The schema of `__arrow_c_device_array__`."""
        return schema_capsule(self._arrow_format())

    @property
    def token(self):
        """A `BufferToken` that names the buffer to others.

        Raises
        ------
        StaleBufferError
            See `access`.
        """
        from xlogmem.interop.devices import name

        self.refuse_stale()
        return name(self)

    def _arrow_format(self):
        if self.kind.arrow is None:
            raise TypeError(f"Arrow has no such fixed-width type: {self.dtype}")
        if len(self.shape) != 1 or not self.contiguous():
            raise TypeError("an Arrow array has one dimension and is contiguous")
        return self.kind.arrow

    def __arrow_c_device_array__(self, requested_schema=None, **kwargs):
        """The capsules of Arrow's C device data interface: ``(schema, array)``.

        The array carries one event, recorded after all who write the memory.  The block stays until the array is
        released; what its consumer did is not known then, so it is freed by a blocking `DeviceRuntime.reap_pending`.

        Raises
        ------
        TypeError
            Arrow has no such array: one dimension, contiguous, and a fixed-width type.
        NotImplementedError
            A keyword that nobody knows here was given a value.
        """
        self.refuse_stale()
        text = self._arrow_format()
        unknown = [name for name, value in kwargs.items() if value is not None]
        if unknown:
            raise NotImplementedError(f"unknown keyword(s): {', '.join(unknown)}")
        schema = schema_capsule(text)
        recorder = self.window(self.interface_stream(), READ) if self.size else None
        return schema, array_capsule(self.block, recorder, self.ptr, self.size, self.status.ordinal)


# ---------------------------------------------------------------------------------------------- arguments
cdef tuple pair_of(object what, str name):
    try:
        first, second = what
        return PyNumber_Index(first), PyNumber_Index(second)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is a pair of integers, not {what!r}") from None


cdef tuple version_of(object what):
    return (0, 0) if what is None else pair_of(what, "max_version")


cdef object stream_of_consumer(object stream):
    """The stream that a consumer names: a handle, -1, or a stream object."""
    if stream is None:
        return LEGACY
    if not PyIndex_Check(stream) and hasattr(stream, "__cuda_stream__"):
        return stream
    if not PyIndex_Check(stream) or isinstance(stream, bool):
        raise TypeError(f"stream is an integer: 1, 2, -1 or a handle; not {stream!r}")
    handle = PyNumber_Index(stream)
    if handle == 0:
        raise ValueError("stream 0 is ambiguous, and the standard does not allow it: say 1 for the legacy default "
                         "stream, 2 for the per-thread default stream")
    if not -1 <= handle < 1 << 64:
        raise ValueError(f"{handle} is no CUDA stream handle")
    return handle


cdef int get_host(object host, Buffer buffer, Py_buffer* view, int flags) except -1:
    """The memory of a host object that has to fit the buffer."""
    if not PyObject_CheckBuffer(host):
        raise TypeError(f"{type(host).__name__} has no buffer of host memory; take arrays on the device over with "
                        "from_dlpack() or from_cuda_array()")
    kind = getattr(host, "dtype", None)
    if kind is not None and dtype_of(kind) is not buffer.kind:
        raise TypeError(f"dtype {kind} is not the buffer's, {buffer.dtype}")
    if kind is not None and tuple(host.shape) != buffer.shape:
        raise ValueError(f"shape {tuple(host.shape)} is not the buffer's, {buffer.shape}")
    try:
        PyObject_GetBuffer(host, view, PyBUF_C_CONTIGUOUS | flags)
    except BufferError as error:
        raise ValueError(f"the host memory cannot be used: {error}") from None
    if <size_t>view.len != buffer.nbytes:
        length = view.len
        PyBuffer_Release(view)
        raise ValueError(f"{length} bytes are not the buffer's {buffer.nbytes}")
    return 0


# ---------------------------------------------------------------------------------------------- copies
cdef int copy_device(Buffer target, Buffer source, object stream) except -1:
    cdef LaunchRecorder recorder
    cdef Stream place
    cdef Failure failure
    cdef Scope scope
    cdef uint64_t to = target.ptr, origin = source.ptr
    cdef size_t nbytes
    cdef int failed
    source.refuse_stale()
    if source.core is not target.core:
        raise StreamMisuseError(f"{source!r} belongs to another runtime than {target!r}: import it with from_dlpack()")
    if source.kind is not target.kind:
        raise TypeError(f"dtype {source.dtype} is not the buffer's, {target.dtype}")
    if source.shape != target.shape:
        raise ValueError(f"shape {source.shape} is not the buffer's, {target.shape}")
    if not source.contiguous():
        raise ValueError("only a contiguous buffer can be copied from; to_numpy() copies others")
    nbytes = source.nbytes
    if nbytes == 0:
        return 0
    if to < origin + nbytes and origin < to + nbytes:
        raise ValueError("the buffers overlap")
    place = target.resolve_stream(stream)
    recorder = target.window(place, WRITE)
    recorder.add_use(source, READ, "read", source)
    recorder.open()
    try:
        with nogil:
            failed = enter_context(target.core.state.order.context, &scope, &failure)
            if not failed:
                failed = copy_across(to, origin, nbytes, place.state.handle, &failure)
                leave_context(&scope)
    finally:
        recorder.finish(LAUNCHED)
    if failed:
        target.fail(&failure, "copying between buffers")
    return 0


cdef Buffer copy_of(Buffer source):
    """A buffer of its own with the same contents."""
    cdef Stream place
    cdef DeviceBlock block = None
    cdef Buffer made
    source.refuse_stale()
    if not source.contiguous():
        raise BufferError("only a contiguous buffer can be copied on the device")
    if source.size:
        place = source.resolve_stream(None)
        block = source.core.allocate(source.nbytes, place)
    made = view_of(source.status, source.core, source.generation, block, block.ptr if block is not None else 0,
                   source.shape, source.strides, source.kind, False, None)
    copy_device(made, source, None)
    return made


cdef int fill_tensor(DLPackExport* export, Buffer buffer, void* data, int device_type, int device_id) except -1:
    cdef size_t i, ndim = len(buffer.shape)
    export.extents.resize(2 * ndim)
    for i in range(ndim):
        export.extents[i] = buffer.shape[i]
        export.extents[ndim + i] = buffer.strides[i] // <int64_t>buffer.itemsize
    export.plain.dl_tensor.data = data
    export.plain.dl_tensor.device.device_type = device_type
    export.plain.dl_tensor.device.device_id = device_id
    export.plain.dl_tensor.ndim = ndim
    export.plain.dl_tensor.dtype.code = buffer.kind.code
    export.plain.dl_tensor.dtype.bits = 8 * buffer.itemsize
    export.plain.dl_tensor.dtype.lanes = 1
    if ndim:
        export.plain.dl_tensor.shape = export.extents.data()
        export.plain.dl_tensor.strides = export.extents.data() + ndim
    return 0


# ---------------------------------------------------------------------------------------------- pointers
@cython.final
@cython.no_gc_clear                         # __dealloc__ needs the buffer
cdef class Pointer:
    """The address of a buffer, for one launch; see `Buffer.pointer`."""

    def __dealloc__(self):
        if self.entered:
            self.buffer.status.accesses.fetch_sub(1)

    def __enter__(self):
        if self.buffer is None or self.entered:
            raise StreamMisuseError("a pointer is entered once; take another for each launch")
        self.buffer.status.accesses.fetch_add(1)
        self.entered = True
        try:
            self.buffer.refuse_stale()
            self.recorder.open()
        except BaseException:
            self.leave()
            raise
        return self.buffer.ptr if self.buffer.size else 0

    def __exit__(self, kind, exception, traceback):
        try:
            self.recorder.__exit__(kind, exception, traceback)
        finally:
            self.leave()

    def cancel(self):
        """Say that nothing was launched."""
        self.recorder.cancel()

    cdef int leave(self) except -1:
        if self.entered:
            self.entered = False
            self.buffer.status.accesses.fetch_sub(1)
        return 0
