"""`DeviceState`: makes buffers on one device, and survives the loss of its context.

A state owns a runtime (whose CUDA context it watches) and an epoch.  When the context is lost to an error, or the
program says that the device was reset, the epoch advances at once, and everything made before is stale; with a new
context it advances again.  Both change in one step, under the state's lock, and an allocation takes a snapshot of both
in one step: memory of an old context never carries the number of a new one.

Buffers do not hold the state; they read its `DeviceStatus` (see `buffers/status.pxi`).
"""
from __future__ import annotations

import math
import threading
import time
import weakref
from typing import Any, SupportsIndex

from xlogmem._base.signatures import refuse_type
from xlogmem._driver import ProcessLock, forget_context, forget_peer_access
from xlogmem.blocks import Core
from xlogmem.errors import StaleBufferError, StreamMisuseError
from xlogmem.interop._dtypes import dtype_of
from xlogmem.interop._layout import shape_of
from xlogmem.interop.buffers import (
    Buffer,
    DeviceSnapshot,
    DeviceStatus,
    calls_of_this_thread,
    copy_on_host,
    make_buffer,
    mark_lost,
    upload_into,
)
from xlogmem.launch import forget_peers
from xlogmem.resources import DeviceMemoryResource
from xlogmem.runtime import DeviceRuntime, existing_runtime, get_runtime, set_runtime

__all__ = ["DeviceState", "Watch", "asarray", "empty", "from_numpy", "get_device_state", "upload"]

HOST, PAGE_LOCKED = 1, 3                    # kinds of devices in DLPack; PyTorch names either
POLL_INTERVAL = 0.05                        # seconds: a loss that is not reported is noticed by polling while waiting

_states: weakref.WeakKeyDictionary[Core, weakref.ref[DeviceState]] = weakref.WeakKeyDictionary()
_own: dict[int, DeviceState] = {}           # the process's own, by device
_lock = ProcessLock()


def _state_of(runtime: Core) -> DeviceState | None:
    reference = _states.get(runtime)
    return reference() if reference is not None else None


class DeviceState:
    """Makes buffers on one device, and says whether they may still be used.

    Parameters
    ----------
    runtime : DeviceRuntime
        Tracks the memory.  A runtime has one state.

    Raises
    ------
    TypeError
        It is not a `DeviceRuntime`.
    StreamMisuseError
        The runtime has a state already.

    Notes
    -----
    Keep it as long as its buffers are used: they do not keep it, and are stale without it.  Thread-safe.
    `get_device_state` returns the process's own, which is kept.

    Examples
    --------
    >>> state = xlogmem.DeviceState(xlogmem.DeviceRuntime())
    >>> x = state.full((2, 2), 7, "float32")
    >>> x.tolist()
    [[7.0, 7.0], [7.0, 7.0]]
    """

    def __init__(self, runtime: DeviceRuntime) -> None:
        if not isinstance(runtime, DeviceRuntime):
            refuse_type("runtime", runtime, DeviceRuntime)
        with _lock:
            if _state_of(runtime) is not None:
                raise StreamMisuseError(f"{runtime!r} has a device state already: use that one")
            self._status = DeviceStatus(runtime.device_id)
            self._taken: DeviceSnapshot | None = None           # the last one, which may be stale
            self._runtime: DeviceRuntime | None = runtime
            self._lost: DeviceRuntime | None = None             # held until there is the next one
            self._lock = ProcessLock()
            self._changed = threading.Condition(self._lock)     # type: ignore[arg-type]
            _states[runtime] = weakref.ref(self)

    def __del__(self) -> None:
        status = getattr(self, "_status", None)     # none where the constructor refused
        if status is not None:
            status.drop()

    def __reduce__(self) -> Any:
        raise TypeError("a device state cannot be copied: it owns the device's context")

    def __repr__(self) -> str:
        how = "" if self.accepting_operations else " shutting down"
        return (f"<DeviceState device={self.device_id} epoch={self.epoch}{how}"
                f"{' context lost' if self._status.lost else ''}>")

    # ------------------------------------------------------------------------------------------ status
    @property
    def device_id(self) -> int:
        """The number of the device."""
        return self._status.device_id

    @property
    def epoch(self) -> int:
        """The number of times that the context was lost or replaced, from 0."""
        self._notice_loss()
        return self._status.epoch

    @property
    def accepting_operations(self) -> bool:
        """True if operations are accepted: `begin_shutdown` was not called yet."""
        return not self._status.shutting_down

    @property
    def runtime(self) -> DeviceRuntime | None:
        """The current runtime, None between the loss of a context and the next one."""
        self._notice_loss()
        return self._runtime

    def snapshot(self) -> tuple[DeviceRuntime, int]:
        """The runtime and the epoch, taken in one step.

        Raises
        ------
        StaleBufferError
            ``device shutting down``, or ``context lost``.
        """
        with self._lock:
            self._notice_loss()
            if not self.accepting_operations:
                raise StaleBufferError("device shutting down")
            if self._runtime is None:
                raise StaleBufferError("context lost")
            return self._runtime, self._status.epoch

    def _take_snapshot(self) -> DeviceSnapshot:
        """The snapshot that a buffer is made from; see `snapshot`.  While the last one is not stale, it is the same."""
        with self._lock:
            self._taken = DeviceSnapshot(self._status, *self.snapshot())
            return self._taken

    def _notice_loss(self) -> None:
        """If the runtime has found its context broken, whatever was made in it is stale from now on."""
        runtime = self._runtime
        if runtime is not None and not runtime.lost:    # without the lock, which a forked child is refused
            return
        with self._lock:
            if self._runtime is not None and self._runtime.lost:
                self._lost, self._runtime, self._taken = self._runtime, None, None
                self._status.advance(True)
                self._changed.notify_all()

    def begin_shutdown(self) -> None:
        """Accept no more operations, for good.  Buffers keep their memory and are stale."""
        with self._lock:
            self._status.close()
            self._changed.notify_all()

    def mark_lost(self) -> None:
        """Say that the context is gone, because other code reset the device: its memory must not be accessed."""
        with self._lock:
            if self._runtime is not None:
                mark_lost(self._runtime)
            self._notice_loss()

    def recover(self, runtime: DeviceRuntime | None = None) -> int:
        """Go on in a new context after the old one was lost and the program has reset the device.

        xlogmem does not reset devices: other libraries use the primary context too.  Fills and copies of buffers that
        are under way in other threads are waited for.

        Parameters
        ----------
        runtime : DeviceRuntime, optional
            Tracks the memory from now on; the default is a new one.

        Returns
        -------
        int
            The new epoch.

        Raises
        ------
        StreamMisuseError
            The context is not lost, the state is shutting down, pointers or mappings of buffers are in use, or the call
            came from inside a fill or copy; nothing changed.
        DriverError
            There is no new context: the device was not reset.  The state stays as it is.
        """
        while True:
            with self._lock:
                self._notice_loss()
                if not self.accepting_operations:
                    raise StreamMisuseError("the device is shutting down")
                if self._runtime is not None:
                    raise StreamMisuseError("the context is not lost; call mark_lost() if other code has reset the "
                                            "device")
                if self._status.in_use:
                    raise StreamMisuseError(f"{self._status.in_use} pointer(s) or map(s) of buffers are still in use")
                if not self._status.calls_under_way:    # and none begins any more: all buffers are stale
                    self._take_over(self._runtime_for_new_context(runtime))
                    return self._status.epoch
            self._wait_for_calls()

    def _wait_for_calls(self) -> None:
        """Fills and copies that began in the old context may enqueue work on its streams until they return."""
        if calls_of_this_thread():
            raise StreamMisuseError("the context cannot be replaced inside a fill or copy of a buffer")
        while self._status.calls_under_way:
            time.sleep(0.001)

    def _runtime_for_new_context(self, given: DeviceRuntime | None) -> DeviceRuntime:
        """The one that was given, or a new one.  The access to peers ended with the old context."""
        forget_peer_access(self.device_id)
        forget_peers(self.device_id)
        if given is None:
            forget_context(self.device_id)
            return DeviceRuntime(self.device_id)
        if given.device_id != self.device_id or given.lost:
            raise StreamMisuseError(f"{given!r} is not on device {self.device_id}, or lost as well")
        return given

    def _take_over(self, runtime: DeviceRuntime) -> None:
        """The state goes on with this runtime.  An interrupt leaves it as it was, and able to recover with another."""
        with _lock:
            if _state_of(runtime) not in (None, self):
                raise StreamMisuseError(f"{runtime!r} has a device state already")
            _states[runtime] = weakref.ref(self)
            if _own.get(self.device_id) is self:
                former = existing_runtime(self.device_id)
                ours = former is not None and _state_of(former) is self
                try:
                    set_runtime(runtime, instead_of=former if ours else None)
                except RuntimeError:
                    _states.pop(runtime, None)
                    raise
        self._lost, self._runtime = None, runtime
        self._status.advance(False)
        self._changed.notify_all()

    def watch(self) -> Watch:
        """Follow the epoch; see `Watch`."""
        return Watch(self)

    # ------------------------------------------------------------------------------------------ buffers
    def empty(self, shape: SupportsIndex | tuple[SupportsIndex, ...], dtype: Any = "float64", stream: Any = None, *,
              tag: str | None = None, resource: DeviceMemoryResource | None = None) -> Buffer:
        """A new buffer, not initialised.

        Parameters
        ----------
        shape : int or tuple of int
            Zero elements need no memory.
        dtype : dtype
            Anything that NumPy takes for one of these dtypes: a name (``"float32"``, ``"f4"``), a type, a dtype.
        stream : stream, or xlogmem.host, optional
            Where the memory may be used at once; the default is the runtime's default stream.
        tag : str, optional
            A label for messages and logs.
        resource : DeviceMemoryResource, optional
            Where the bytes come from; the default is the runtime's own.  See `DeviceRuntime.allocate`.

        Raises
        ------
        StaleBufferError
            The device is not accepting operations, or its context was lost meanwhile; the memory was freed.
        OutOfDeviceMemoryError, DriverError, StreamMisuseError
            See `DeviceRuntime.allocate`.
        """
        row, dimensions = dtype_of(dtype), shape_of(shape)
        device = self._take_snapshot()
        nbytes = row.itemsize * math.prod(dimensions)
        block = device.core.allocate(nbytes, stream, tag=tag, resource=resource) if nbytes else None
        buffer = make_buffer(device, block, dimensions, row)
        buffer.access()                                 # it may be another context's by now
        return buffer

    def full(self, shape: SupportsIndex | tuple[SupportsIndex, ...], value: Any, dtype: Any = "float64",
             stream: Any = None, *, resource: DeviceMemoryResource | None = None) -> Buffer:
        """A new buffer, every element of which is `value`; see `empty`."""
        buffer = self.empty(shape, dtype, stream, resource=resource)
        buffer.fill(value, stream)
        return buffer

    def from_numpy(self, array: Any, stream: Any = None, *, resource: DeviceMemoryResource | None = None) -> Buffer:
        """A new buffer with the contents of a NumPy array, or of what NumPy makes one of, as a list of numbers; see
        `empty` and `Buffer.copy_from`."""
        array = self._contiguous(array)
        buffer = self.empty(array.shape, array.dtype, stream, resource=resource)
        buffer.copy_from(array, stream)
        return buffer

    def upload(self, array: Any, stream: Any = None, *, tag: str | None = None) -> Buffer:
        """A new buffer with the contents of an array, for which the host does not wait; see `xlogmem.upload`."""
        array = self._contiguous(array)
        buffer = self.empty(array.shape, array.dtype, stream, tag=tag)
        upload_into(buffer, array, stream)
        return buffer

    def _contiguous(self, array: Any) -> Any:
        """The array as NumPy's, without gaps."""
        if not hasattr(array, "flags"):
            import numpy

            array = numpy.asarray(array)
        return array if array.flags.c_contiguous else copy_on_host(self.snapshot()[0], array)

    def asarray(self, array: Any, stream: Any = None) -> Buffer:
        """See `xlogmem.asarray`."""
        from xlogmem.interop.interchange import from_arrow, from_cuda_array, from_dlpack  # which stands above

        if isinstance(array, Buffer):
            return array
        where = getattr(array, "__dlpack_device__", None)
        if where is not None and where()[0] not in (HOST, PAGE_LOCKED):
            return from_dlpack(array, stream=stream, state=self)
        if hasattr(array, "__cuda_array_interface__"):
            return from_cuda_array(array, stream=stream, state=self)
        if hasattr(array, "__arrow_c_device_array__") and not hasattr(array, "__array__"):
            return from_arrow(array, stream=stream, state=self)
        return self.from_numpy(array, stream)


class Watch:
    """Follows the epoch of a device state; epochs that pass between two looks are not reported.

    Attributes
    ----------
    seen : int
        The epoch that this watch has reported last.

    Examples
    --------
    >>> state = xlogmem.DeviceState(xlogmem.DeviceRuntime())
    >>> watch = state.watch()
    >>> watch.seen == state.epoch
    True
    """

    def __init__(self, state: DeviceState) -> None:
        self._state = state
        self.seen = state.epoch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._state!r}, seen epoch {self.seen}>"

    @property
    def changed(self) -> bool:
        """True if the device has an epoch that this watch has not reported."""
        return self._state.epoch != self.seen

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for an epoch that was not seen, and return it; None after `timeout` seconds, or once the device is
        shutting down."""
        state = self._state
        end = None if timeout is None else time.monotonic() + timeout
        with state._lock:
            while not self.changed:
                left = POLL_INTERVAL if end is None else min(POLL_INTERVAL, end - time.monotonic())
                if left <= 0 or not state.accepting_operations:
                    return None
                state._changed.wait(left)
            self.seen = state.epoch
            return self.seen


def get_device_state(device_id: SupportsIndex = 0) -> DeviceState:
    """The process's own state of a device, over its own runtime; made by the first call.  See `get_runtime`.

    Examples
    --------
    >>> x = xlogmem.get_device_state(1).empty((2, 3), "float32")
    >>> x.device_id
    1
    """
    runtime = get_runtime(device_id)
    state = _own.get(runtime.device_id)                 # which stays, once it is there
    if state is not None:
        return state
    with _lock:
        state = _own.get(runtime.device_id)
        if state is None:
            state = _own[runtime.device_id] = _state_of(runtime) or DeviceState(runtime)
        return state


def empty(shape: SupportsIndex | tuple[SupportsIndex, ...], dtype: Any = "float64", stream: Any = None, *,
          tag: str | None = None, resource: DeviceMemoryResource | None = None) -> Buffer:
    """A new buffer on device 0, not initialised, from the process's own runtime.

    Parameters
    ----------
    shape : int or tuple of int
        Zero elements need no memory.
    dtype : dtype
        Anything that NumPy takes for one of these dtypes: a name (``"float32"``, ``"f4"``), a type, a dtype.
    stream : stream, or xlogmem.host, optional
        Where the memory may be used at once; elsewhere `use` orders it.  The default is the runtime's default stream.
        `xlogmem.host`: by the host, and it belongs to no stream; `resource` has memory that the host reaches.
    tag : str, optional
        A label for messages and logs.
    resource : DeviceMemoryResource, optional
        Where the bytes come from; the default is the runtime's own.  See `DeviceRuntime.allocate`.

    Returns
    -------
    Buffer

    Raises
    ------
    StaleBufferError, OutOfDeviceMemoryError, DriverError, StreamMisuseError
        See `DeviceState.empty`.

    Notes
    -----
    ``get_device_state(n).empty(...)`` makes one on another device.  The host waits for nothing.  Thread-safe.

    Examples
    --------
    >>> import xlogmem
    >>> stream = xlogmem.get_runtime().acquire_stream()
    >>> x = xlogmem.empty((2, 3), "float32", stream, tag="samples")
    >>> with xlogmem.use(stream, write=x):
    ...     pass                                # launch(x.ptr)
    >>> x.shape
    (2, 3)
    """
    return get_device_state().empty(shape, dtype, stream, tag=tag, resource=resource)


def from_numpy(array: Any, stream: Any = None, *, resource: DeviceMemoryResource | None = None) -> Buffer:
    """A new buffer on device 0 with the contents of a NumPy array, or of what NumPy makes one of, as a list of numbers.

    Parameters
    ----------
    array : array_like
        In host memory.
    stream : stream, or xlogmem.host, optional
        The copy is enqueued there, and the buffer may be used there at once; elsewhere `use` orders it after the copy.
        The default is the runtime's default stream.  `xlogmem.host`: the host copies, and no stream has to wait;
        `resource` has memory that the host reaches.
    resource : DeviceMemoryResource, optional
        Where the bytes come from; the default is the runtime's own.  See `DeviceRuntime.allocate`.

    Returns
    -------
    Buffer

    Raises
    ------
    StaleBufferError, OutOfDeviceMemoryError, DriverError, StreamMisuseError
        See `DeviceState.empty`.

    Notes
    -----
    The array may be changed when the call returns: the driver has taken a copy of ordinary memory; for page-locked
    memory the host waits for this stream, and for nothing else.  Thread-safe.

    Examples
    --------
    >>> import xlogmem
    >>> x = xlogmem.from_numpy([1.0, 2.0, 3.0])
    >>> x.to_numpy()
    array([1., 2., 3.])
    """
    return get_device_state().from_numpy(array, stream, resource=resource)


def upload(array: Any, stream: Any = None, *, tag: str | None = None) -> Buffer:
    """A new buffer on device 0 with the contents of an array of host memory.  The host does not wait for the stream.

    Parameters
    ----------
    array : array_like
        In host memory.  A NumPy array over a block of the runtime (`Buffer.map`, memory that was adopted) is read in
        place, by the copy engine: write to it inside ``with xlogmem.use(xlogmem.host, write=...)``, which waits for the
        copy.  All other memory may be changed when the call returns.
    stream : stream, optional
        The copy is enqueued there, and the buffer may be used there at once; elsewhere `use` orders it after the copy.
        The default is the runtime's default stream.
    tag : str, optional
        A label for messages and logs.

    Returns
    -------
    Buffer

    Raises
    ------
    StaleBufferError, OutOfDeviceMemoryError, DriverError, StreamMisuseError
        See `DeviceState.empty`.

    Notes
    -----
    The bytes go through page-locked memory of the runtime's own, in pieces.  The host waits only if the pieces under
    way together have more than 64 MiB, for the oldest.  ``get_device_state(n).upload(...)`` makes a buffer on another
    device.  Thread-safe.

    Examples
    --------
    >>> import numpy
    >>> import xlogmem
    >>> batch = numpy.arange(1000.0)
    >>> x = xlogmem.upload(batch)
    >>> batch[:] = 0                            # at once
    >>> float(x.to_numpy()[999])
    999.0
    """
    return get_device_state().upload(array, stream, tag=tag)


def asarray(array: Any, stream: Any = None) -> Buffer:
    """A buffer with the contents of an array: its own memory, if that is on a device, else a copy.

    Parameters
    ----------
    array : Buffer, array of another library, or array_like
        A buffer is returned as it is.  An array in device memory is imported and shares the memory: by DLPack
        (`from_dlpack`), else by the CUDA array interface (`from_cuda_array`) or as an Arrow array (`from_arrow`).
        Everything else is copied from the host to device 0 (`from_numpy`).
    stream : stream, optional
        Where an imported or copied array may be used at once: the stream waits, on the device, for what its library has
        queued on the array, or has the copy.  Elsewhere `use` orders it.  The default is the runtime's default stream.
        For a buffer nothing is queued: `use` orders it on every stream.

    Returns
    -------
    Buffer

    Raises
    ------
    BufferError, TypeError, ValueError, StreamMisuseError, StaleBufferError
        See these functions.

    Notes
    -----
    Thread-safe.

    Examples
    --------
    >>> import xlogmem
    >>> x = xlogmem.asarray([[1, 2], [3, 4]])
    >>> xlogmem.asarray(x) is x
    True
    """
    return get_device_state().asarray(array, stream)


def has_state(device_id: int) -> bool:
    """True if there is a state of this device."""
    with _lock:
        states = [reference() for reference in _states.values()]
    return any(state is not None and state.device_id == device_id for state in states)
