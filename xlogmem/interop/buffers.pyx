"""`Buffer`: a typed array in a tracked block, which users hold and export.

A buffer holds its block, and checks before each use that the memory may still be accessed: the device may be shutting
down, lost, or have a new context in which the address means nothing.  A buffer does not hold the device's state; the
part that it needs is in a `DeviceStatus`, which is read without a lock.

The class is a shell.  The description of a buffer is its `ArrayLayout`; the operations are in the pages.  Every copy,
fill and export goes through the launch machinery of the layers below, so all of them are ordered, and a buffer can be
named in `use` like a block.  Nothing here decides about the order of work.

The pages:

* `buffers/status.pxi`: validity of the memory of a device
* `buffers/array.pxi`: `ArrayView`: dtype, shape, slices
* `buffers/pointer.pxi`: the address, for one launch
* `buffers/mapping.pxi`: an array over memory that the host reaches
* `buffers/copies.pxi`: fills, and copies on the device and to and from the host
* `buffers/staging.pxi`: copies that the host does not wait for
* `buffers/exports.pxi`: DLPack, the CUDA array interface, Arrow
* `buffers/exchange.pxi`: DLPack between functions in C
"""

import itertools

cimport cython

from xlogmem._base.signatures import Signed
from xlogmem.blocks import set_makers
from xlogmem.launch import awaiter_of
from xlogmem._base.sections cimport Section
from xlogmem.blocks cimport DeviceBlock, flags_of
from xlogmem._core cimport WAIT_OR_COUNT, WRITE
from xlogmem._foreign.dltensor cimport CUDA
from xlogmem._order cimport is_other_threads_default
from xlogmem.interop._arrow cimport schema_capsule
from xlogmem.launch cimport LaunchRecorder, add_use, record_on
from xlogmem.streams cimport Stream


__all__ = ["Buffer"]

cdef object buffer_numbers = itertools.count(1)         # of this process; a number is not used again
cdef object token_maker = None                          # set by `tokens`, which stands above


include "buffers/status.pxi"   # DeviceStatus: validity of the memory of a device
include "buffers/array.pxi"    # ArrayView: dtype, shape, slices


@cython.final
cdef class Buffer(ArrayView):
    """A tracked, typed array in device memory.

    Made by `DeviceState.empty` and its like, by `from_dlpack`, `from_cuda_array` and `from_arrow`, and by slicing; a
    slice shares the block and its uses.  Name it in `use` to launch on it, or take its `pointer`.

    Attributes
    ----------
    core : Core
        The runtime that tracks the memory.

    Notes
    -----
    A buffer keeps its memory, also while the device is shutting down; the device does not keep the buffer.  Methods
    that access the memory raise `StaleBufferError` once access is not allowed any more; methods that describe the
    buffer still work.  Thread-safe.  `pointer` gives the address together with a use, `ptr` gives the address alone.

    Examples
    --------
    >>> stream = xlogmem.get_runtime().acquire_stream()
    >>> x = xlogmem.from_numpy([[1, 2], [3, 4]], stream)
    >>> y = xlogmem.empty(x.shape, x.dtype, stream)
    >>> y.copy_from(x, stream)                      # after the work on both, on the device
    >>> y[0].tolist()                               # the host waits for the copy
    [1, 2]
    """

    __signature__ = Signed("")

    def __init__(self):
        raise TypeError("buffers are made by DeviceState.empty(), from_dlpack(), from_cuda_array() and from_arrow()")

    def __reduce__(self):
        raise TypeError("a buffer cannot be pickled: send its token, or its contents with to_numpy()")

    def __deepcopy__(self, memo):
        raise TypeError("a deep copy would have to choose a stream: make an empty buffer and use copy_from()")

    # ------------------------------------------------------------------------------------------ ends
    def into_bytes(self):
        """The same memory as bytes; this buffer is consumed."""
        self.refuse_stale()
        seen = self.view("uint8")
        self.release()
        return seen

    def release(self):
        """Release the memory, which is freed once no other buffer holds a part of it; this buffer is consumed, and
        empty."""
        cdef Section section
        section.begin(self)
        self.consumed = True
        if self.former is None:                         # other threads may be reading it
            self.former = self.layout
            self.layout = self.layout.without_elements()
        self.block = None
        self.owner = None

    # ------------------------------------------------------------------------------------------ names
    @property
    def number(self):
        """The number that identifies this buffer in tokens; no other buffer of this process has this number."""
        cdef Section section
        section.begin(self)
        if self._number == 0:
            self._number = next(buffer_numbers)
        return self._number

    @property
    def token(self):
        """A `BufferToken` that names the buffer to another thread or process.

        Raises
        ------
        StaleBufferError
            See `access`.
        """
        self.refuse_stale()
        return token_maker(self)

    # ------------------------------------------------------------------------------------------ uses
    cdef Stream resolve_stream(self, object stream):
        """The stream of an argument; None means the stream on which the memory was allocated, if work can be enqueued
        there, else the default stream of the pool."""
        cdef Stream home
        if stream is not None:
            return self.core.stream_of(stream)
        cdef DeviceBlock block = self.held()
        home = block.stream if block is not None else None
        if home is None or not home.registered or home.state.unowned or is_other_threads_default(home.state):
            home = self.core.stream_pool.default
        return home

    cdef LaunchRecorder new_recorder(self, Stream stream, int access):
        """Make a recorder with a use of this buffer."""
        cdef LaunchRecorder recorder = record_on(stream)
        add_use(recorder, self, access, self)
        return recorder

    cdef LaunchRecorder new_hand_over(self, Stream stream, int access):
        """Make a recorder for a consumer or producer whose work comes after the uses so far.  The recorder launches
        nothing, so a hand-over inside a window of the same thread, as in ``with use(…): cupy.asarray(buffer)``, is
        right too."""
        cdef LaunchRecorder recorder = self.new_recorder(stream, access)
        recorder.window.on_conflict = WAIT_OR_COUNT
        return recorder

    def pointer(self, stream, access):
        """The address, for a launch: ``with buffer.pointer(stream, Access.READ) as ptr: launch(ptr)``.

        Parameters
        ----------
        stream : stream
            The stream of the launch.
        access : Access
            The access of the launch to the memory.

        Returns
        -------
        context manager
            Gives the address of the first element, as an int.  It is a `use` of the buffer: the waits are queued on
            entry, the use is filed on exit.  Meanwhile the device's context is not replaced.

        Raises
        ------
        StaleBufferError
            See `access`.
        ValueError
            The buffer is read-only, and `access` includes writing.
        """
        cdef int flags = flags_of(access)
        self.refuse_stale()
        if flags & WRITE:
            self.refuse_writing("a pointer for writing")
        return new_pointer(self, self.new_recorder(self.core.stream_for_use(stream) if stream is not None else
                                                   self.resolve_stream(None), flags))

    def __await__(self):
        """Suspend the coroutine until the work on the buffer's block is complete; see `DeviceBlock.__await__`."""
        self.refuse_stale()
        return awaiter_of(self.held())

    def map(self, *, write=False):
        """The memory as a NumPy array, for an access by the host.

        Parameters
        ----------
        write : bool
            Whether the host writes too.  Otherwise the array is read-only.

        Returns
        -------
        context manager
            Gives an array with the buffer's dtype, shape and strides.  It is a `use` by `xlogmem.host`: on entry the
            host waits for the work that uses the memory, and on exit the array becomes empty.  In a coroutine ``async
            with`` suspends it until the work is complete, and the event loop goes on.

        Raises
        ------
        TypeError, ValueError
            At the call: NumPy has no such dtype (see `to_numpy`), or the buffer is read-only and `write` is true.  On
            entry: the host cannot reach the memory.
        StaleBufferError, UseAfterFreeError, StreamMisuseError, DriverError
            Nothing is open; see `access` and `LaunchRecorder.preflight`.
        BufferError
            On exit: views of the array are alive, such as slices.  The access has ended.  An exception that leaves the
            ``with`` statement gets a note instead.

        Notes
        -----
        A launch inside that conflicts is refused in the same thread; in another thread it waits until the exit.
        Thread-safe.

        NumPy does not report a memoryview, a tensor or an array of a subclass that was made from the array: these bring
        no BufferError, and nothing orders their accesses after the exit.  They keep the memory, as the array and its
        views do, unless the program frees the block itself or replaces the device's context.

        Examples
        --------
        >>> staging = xlogmem.empty(1000, "float32", resource=xlogmem.PinnedMemoryResource())
        >>> with staging.map(write=True) as array:
        ...     array[:] = 1
        >>> x = xlogmem.empty(1000, "float32")
        >>> x.copy_from(staging)
        """
        return new_mapping(self, write)

    def record_write(self, stream):
        """File that work already enqueued on `stream` has written the memory.

        This protects later users; nothing protects the work itself.  For that, name the buffer in `use`.

        Raises
        ------
        StaleBufferError, StreamMisuseError
            The buffer is stale, or the stream is not of its device or is capturing a graph.  Nothing is filed.
        """
        self.refuse_stale()
        self.refuse_writing("record_write")
        block = self.held()
        if block is not None:
            self.core.record_block_use(block, stream)

    @property
    def last_write_stream(self):
        """The stream of the newest filed write to any part of the block; None if there is no write, or if the stream is
        unregistered.  It is not needed for ordering: `use` orders."""
        cdef DeviceBlock block = self.held()
        return self.core.writer_of(block) if block is not None else None

    # ------------------------------------------------------------------------------------------ copies
    def fill(self, value, stream=None):
        """Set every element, ordered on a stream.

        Parameters
        ----------
        value : scalar
            One element.
        stream : stream, or xlogmem.host, optional
            The default is the stream on which the memory was allocated.  `xlogmem.host`: the host itself writes memory
            that it reaches, after the work that uses the memory.

        Raises
        ------
        ValueError, TypeError
            The value is not an element of this dtype, or the buffer is read-only or not contiguous.
        StaleBufferError, StreamMisuseError
            Nothing was enqueued.
        DriverError
            If the fill itself was refused, it counts as a write all the same: part of it may have been enqueued.
        """
        fill_buffer(self, value, stream)

    def copy_from(self, source, stream=None):
        """Copy into the buffer, ordered on a stream.

        Parameters
        ----------
        source : Buffer, or object with a buffer of host memory
            As many bytes, contiguous, and of the same shape and dtype if it has these.
        stream : stream, or xlogmem.host, optional
            The default is the stream on which this buffer's memory was allocated.  `xlogmem.host`: the host itself
            copies from host memory into a buffer that it reaches, after the work that uses either.

        Notes
        -----
        Host memory may be changed when the call returns: the driver has taken a copy of ordinary memory; for
        page-locked memory the host waits for this stream, and for nothing else.  Page-locked memory that xlogmem tracks
        is read behind the work that writes it, on any device.  A copy that the driver refused counts
        as a write, because it may have been enqueued; so does every failed copy or fill.

        Examples
        --------
        >>> import numpy
        >>> x = xlogmem.empty(3, "int32")
        >>> x.copy_from(numpy.arange(3, dtype="int32"))
        >>> x.tolist()
        [0, 1, 2]
        """
        self.refuse_stale()
        self.refuse_writing("copy_from")
        self.layout.refuse_strided("only a contiguous buffer can be copied to")
        if isinstance(source, Buffer):
            copy_device(self, <Buffer>source, stream)
        else:
            copy_from_host(self, source, stream)

    def copy_to(self, target, stream=None):
        """Copy out of the buffer, ordered on a stream.

        Parameters
        ----------
        target : Buffer, or object with a writable buffer of host memory
            As many bytes, contiguous, and of the same shape and dtype if it has these.
        stream : stream, or xlogmem.host, optional
            The default is the stream on which the memory of `target`, if it is a Buffer, else of this buffer, was
            allocated.  `xlogmem.host`: see `copy_from`.

        Notes
        -----
        Host memory holds the contents when the call returns: the host waits for this stream, and for nothing else.
        Page-locked memory that xlogmem tracks is written behind the work that uses it, on any device.
        """
        self.refuse_stale()
        if isinstance(target, Buffer):
            target.copy_from(self, stream)
            return
        self.layout.refuse_strided("only a contiguous buffer can be copied from; to_numpy() copies others")
        copy_to_host(self, target, stream)

    def to_numpy(self, stream=None):
        """The contents as a NumPy array; the host waits for this stream, and for nothing else.  With `xlogmem.host`, in
        place of a stream, the host itself copies memory that it reaches, after the work that writes the memory.

        Raises
        ------
        TypeError
            NumPy has no such dtype (bfloat16 and its like need the package ml_dtypes).
        StaleBufferError, StreamMisuseError, DriverError, MemoryError
            No copy was made.

        Examples
        --------
        >>> xlogmem.from_numpy([1, 2, 3]).to_numpy()
        array([1, 2, 3])
        """
        return copy_to_numpy(self, stream)

    def download(self, stream=None, *, resource=None):
        """A copy of the contents in page-locked memory, for which the host does not wait.

        Parameters
        ----------
        stream : stream, optional
            The copy is enqueued there; the default is the stream on which the memory was allocated.
        resource : DeviceMemoryResource, optional
            Where the bytes come from; the default is a pool of page-locked memory that the runtime keeps for copies.

        Returns
        -------
        Buffer
            With the same dtype and shape.  `map` waits for the copy, and so does ``await``.

        Raises
        ------
        ValueError
            The buffer is not contiguous, or the host does not reach memory of the resource.
        StaleBufferError, StreamMisuseError, DriverError, OutOfDeviceMemoryError
            No copy was made.

        Examples
        --------
        >>> x = xlogmem.from_numpy([1.0, 2.0, 3.0])
        >>> result = x.download()
        >>> with result.map() as array:                 # waits for the copy, and for nothing that is queued behind it
        ...     array.sum()
        np.float64(6.0)
        """
        return download_buffer(self, stream, resource)

    def tolist(self, stream=None):
        """The contents as Python numbers, in lists nested as deep as there are dimensions.  Waits as `to_numpy` does,
        and needs NumPy."""
        return copy_to_numpy(self, stream).tolist()

    def __array__(self, dtype=None, copy=None):
        raise TypeError("a buffer is not copied to the host unasked: use to_numpy(). Memory that the host reaches is "
                        "seen with map()")

    # ------------------------------------------------------------------------------------------ exports
    def __dlpack_device__(self):
        """``(kDLCUDA, device)``, for page-locked and managed memory too.

        These have device types of their own, ``kDLCUDAHost`` and ``kDLCUDAManaged``.  NumPy takes such memory without
        naming a stream, and would read it before the work on it is complete; CuPy takes no ``kDLCUDAHost``, PyTorch
        neither of the two.  As ``kDLCUDA`` the memory is imported by all that name the stream of their work, and
        refused by all others.  The host sees the memory with `map`, or has a copy: ``numpy.from_dlpack(buffer,
        device="cpu")``.
        """
        self.refuse_stale()
        return int(CUDA), self.device.status.device_id

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A DLPack capsule (Python array API standard).

        Parameters
        ----------
        stream : int, optional
            The stream of the consumer's work: 1 (the legacy default stream, also for None), 2 (the per-thread default
            stream) or a handle.  The stream is ordered after all uses of the memory so far, on the device.  -1: nothing
            is ordered; the consumer orders its work itself.  0 is ambiguous and not allowed.
        max_version : (int, int), optional
            The newest version that the consumer supports; from (1, 0) on the capsule is versioned.
        dl_device : (int, int), optional
            This device, or ``(1, 0)`` for a copy in host memory, for which the host waits.
        copy : bool, optional
            True: a copy is exported.  False: never.

        Notes
        -----
        The block stays until the deleter has run, on whatever thread.  Until then the consumer may enqueue unrecorded
        work on its stream: uses elsewhere are ordered after all work enqueued there so far.  For -1, and if no owner of
        the stream is known, the consumer's later work is not waited for: name it in `use`; and a blocking
        `DeviceRuntime.reap_pending` frees the block.

        Raises
        ------
        BufferError
            The export is not possible as requested: read-only memory for a consumer of DLPack before 1.0, another
            device, a copy in host memory with ``copy=False``.
        ValueError, TypeError
            An argument is none of the above.
        StaleBufferError, StreamMisuseError, DriverError, MemoryError
            Nothing was exported.
        """
        return export_dlpack(self, stream, dl_device, copy, max_version)

    # DLPack's exchange between functions in C, since 1.3: see buffers/exchange.pxi.
    __dlpack_c_exchange_api__ = exchange_capsule()

    @property
    def __cuda_array_interface__(self):
        """Version 3 of the CUDA array interface.

        ``stream`` names a stream that is ordered, at this moment, after all uses of the memory: the stream of the
        newest write if possible, else the stream of the allocation.  A consumer orders its own stream after the named
        stream, and the named stream after its work; until the block is freed, uses elsewhere are ordered after all work
        enqueued on the named stream.
        """
        return export_interface(self)

    def __arrow_c_schema__(self):
        """The schema of `__arrow_c_device_array__`."""
        return schema_capsule(self.layout)

    def __arrow_c_device_array__(self, requested_schema=None, **kwargs):
        """The capsules of Arrow's C device data interface: ``(schema, array)``.

        The array carries one event, recorded after all writers of the memory.  The block stays until the array is
        released.  The consumer's work is not known then, so a blocking `DeviceRuntime.reap_pending` frees the block.

        Raises
        ------
        TypeError
            Arrow has no such array: one dimension, contiguous, and a fixed-width type.
        NotImplementedError
            An unknown keyword has a value.
        """
        return export_arrow(self, kwargs)


include "buffers/pointer.pxi"  # the address of a buffer, for one launch
include "buffers/staging.pxi"  # copies from and to page-locked memory of the runtime's own
include "buffers/mapping.pxi"  # an array over the memory, for an access by the host
include "buffers/copies.pxi"   # copies and fills
include "buffers/exports.pxi"  # exports: DLPack, CUDA array interface
include "buffers/exchange.pxi"  # DLPack between functions in C

set_makers(interface_of_block, mapping_of_block)
