"""What becomes of a device: `DeviceState`, from which buffers are made, and the tokens that name buffers elsewhere.

A state owns a runtime, the *context*, and a generation.  When the context is lost to an error, or somebody says that he
reset the device, the generation advances at once, and everything made before is stale; with a new context it advances
again.  Both change in one step, under the state's lock, and whoever allocates takes both in one step: memory of an old
context never carries the number of a new one.

Buffers do not hold the state; what they need to know of it is in its `DeviceStatus` (see `buffers`).
"""
from __future__ import annotations

import os
import struct
import threading
import time
import uuid
import weakref
from typing import Any, NamedTuple, SupportsIndex

from xlogmem._driver import forget_context
from xlogmem.interop._dtypes import dtype_of
from xlogmem.blocks import Core
from xlogmem.interop.buffers import Buffer, DeviceStatus, make_buffer, mark_lost, shape_of
from xlogmem.errors import (
    StaleBufferError,
    StreamMisuseError,
    UnknownBufferError,
    UnknownDeviceError,
    UnknownNodeError,
)
from xlogmem.runtime import DeviceRuntime, get_runtime, set_runtime

__all__ = ["BufferToken", "DeviceState", "Watch", "get_device_state"]

LOOK_EVERY = 0.05                           # seconds: a loss that nobody told of is looked for by whoever waits for one

_node = uuid.uuid4().int                    # this process; a child of fork has no buffers to be named
_states: weakref.WeakKeyDictionary[Core, weakref.ref[DeviceState]] = weakref.WeakKeyDictionary()
_own: dict[int, DeviceState] = {}           # the process's own, by device
_named: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()
_lock = threading.RLock()


def _state_of(runtime: Core) -> DeviceState | None:
    reference = _states.get(runtime)
    return reference() if reference is not None else None


class DeviceState:
    """Makes buffers on one device, and knows whether they may still be used.

    Parameters
    ----------
    runtime : DeviceRuntime
        Tracks the memory.  A runtime has one state.

    Raises
    ------
    StreamMisuseError
        The runtime has a state already (W74).

    Notes
    -----
    Keep it as long as its buffers are to be used: they do not.  Thread-safe.  `get_device_state` gives the process's
    own, which is kept.
    """

    def __init__(self, runtime: DeviceRuntime) -> None:
        with _lock:
            if _state_of(runtime) is not None:
                raise StreamMisuseError(f"{runtime!r} has a device state already: use that one")
            self._status = DeviceStatus(runtime.ordinal)
            self._runtime: DeviceRuntime | None = runtime
            self._lost: DeviceRuntime | None = None
            self._changed = threading.Condition(threading.RLock())
            _states[runtime] = weakref.ref(self)

    def __del__(self) -> None:
        status = getattr(self, "_status", None)     # none where the constructor refused
        if status is not None:
            status.drop()

    def __reduce__(self) -> Any:
        raise TypeError("a device state cannot be copied: it owns the device's context")

    def __repr__(self) -> str:
        how = "" if self.accepting_operations else " shutting down"
        return (f"<DeviceState device={self.device_id} generation={self.generation}{how}"
                f"{' context lost' if self._status.lost else ''}>")

    # ------------------------------------------------------------------------------------------ how things stand
    @property
    def device_id(self) -> int:
        """The device ordinal."""
        return self._status.ordinal

    @property
    def generation(self) -> int:
        """How often the context was lost or replaced, from 0."""
        self._look()
        return self._status.generation

    @property
    def accepting_operations(self) -> bool:
        """Whether `begin_shutdown` was not called yet."""
        return not self._status.shutting_down

    @property
    def runtime(self) -> DeviceRuntime | None:
        """The current runtime, None between the loss of a context and the next one."""
        self._look()
        return self._runtime

    def snapshot(self) -> tuple[DeviceRuntime, int]:
        """The runtime and the generation, taken in one step (W66).

        Raises
        ------
        StaleBufferError
            ``device shutting down``, or ``context lost``.
        """
        with self._changed:
            self._look()
            if not self.accepting_operations:
                raise StaleBufferError("device shutting down")
            if self._runtime is None:
                raise StaleBufferError("context lost")
            return self._runtime, self._status.generation

    def _look(self) -> None:
        """Notice that the runtime has found its context broken: whatever was made in it is stale from now on (W67)."""
        with self._changed:
            if self._runtime is not None and self._runtime.lost:
                self._lost, self._runtime = self._runtime, None
                self._status.advance(True)
                self._changed.notify_all()

    def begin_shutdown(self) -> None:
        """Accept nothing any more, for good.  Buffers keep their memory and are stale."""
        with self._changed:
            self._status.close()
            self._changed.notify_all()

    def mark_lost(self) -> None:
        """Say that the context is gone, because somebody reset the device: nobody may touch its memory any more."""
        with self._changed:
            if self._runtime is not None:
                mark_lost(self._runtime)
            self._look()

    def recover(self, runtime: DeviceRuntime | None = None) -> int:
        """Go on in a new context after the old one was lost, and the device was reset by whoever does that.

        xlogmem resets no device: the primary context is everybody's.

        Parameters
        ----------
        runtime : DeviceRuntime, optional
            Tracks the memory from now on; the default is a new one.

        Returns
        -------
        int
            The new generation.

        Raises
        ------
        StreamMisuseError
            The context is not lost, the state is shutting down, or pointers of buffers are still given out (W69);
            nothing changed.
        DriverError
            There is no new context: the device was not reset.  The state stays as it is.
        """
        with self._changed:
            self._look()
            old = self._runtime
            if not self.accepting_operations:
                raise StreamMisuseError("the device is shutting down")
            if old is not None:
                raise StreamMisuseError("the context is not lost; call mark_lost() if somebody has reset the device")
            if self._status.in_use:
                raise StreamMisuseError(f"{self._status.in_use} pointer(s) of buffers are still in use")
            if runtime is None:
                forget_context(self.device_id)
                runtime = DeviceRuntime(self.device_id)
            elif runtime.ordinal != self.device_id or runtime.lost:
                raise StreamMisuseError(f"{runtime!r} is not on device {self.device_id}, or lost as well")
            with _lock:
                if _state_of(runtime) is not None:
                    raise StreamMisuseError(f"{runtime!r} has a device state already")
                if _own.get(self.device_id) is self:
                    set_runtime(runtime, instead_of=self._lost)
                _states[runtime] = weakref.ref(self)
            self._lost = None
            self._runtime = runtime                     # before the number: nobody takes one without the other
            self._status.advance(False)
            self._changed.notify_all()
            return self._status.generation

    def watch(self) -> Watch:
        """Follow the generation; see `Watch`."""
        return Watch(self)

    # ------------------------------------------------------------------------------------------ buffers
    def empty(self, shape: SupportsIndex | tuple[SupportsIndex, ...], dtype: Any = "float64", stream: Any = None, *,
              tag: str | None = None) -> Buffer:
        """A new buffer, not initialised.

        Parameters
        ----------
        shape : int or tuple of int
            Zero elements need no memory.
        dtype : dtype
            A name (``"float32"``), or anything that NumPy calls a dtype.
        stream : stream, optional
            Where the memory may be used at once; the default is the runtime's.
        tag : str, optional
            A label for messages and logs.

        Raises
        ------
        StaleBufferError
            The device is not accepting operations, or its context was lost meanwhile; the memory was given back.
        OutOfDeviceMemoryError, DriverError, StreamMisuseError
            See `DeviceRuntime.allocate`.
        """
        kind, dimensions = dtype_of(dtype), shape_of(shape)
        runtime, generation = self.snapshot()
        nbytes = kind.itemsize
        for extent in dimensions:
            nbytes *= extent
        block = runtime.allocate(nbytes, stream, tag=tag) if nbytes else None
        buffer = make_buffer(self._status, runtime, generation, block, dimensions, kind)
        buffer.access()                                 # it may be another context's by now
        return buffer

    def full(self, shape: SupportsIndex | tuple[SupportsIndex, ...], value: Any, dtype: Any = "float64",
             stream: Any = None) -> Buffer:
        """A new buffer, every element of which is `value`; see `empty`."""
        buffer = self.empty(shape, dtype, stream)
        buffer.fill(value, stream)
        return buffer

    def from_numpy(self, array: Any, stream: Any = None) -> Buffer:
        """A new buffer with the contents of a NumPy array; see `Buffer.copy_from`."""
        if not array.flags.c_contiguous:
            array = array.copy()
        buffer = self.empty(array.shape, array.dtype, stream)
        buffer.copy_from(array, stream)
        return buffer


class Watch:
    """The newest generation of a device state, for those who follow it; slow ones miss what was in between.

    Attributes
    ----------
    seen : int
        The generation that this watch has told of last.
    """

    def __init__(self, state: DeviceState) -> None:
        self._state = state
        self.seen = state.generation

    @property
    def changed(self) -> bool:
        """Whether there is a generation that was not seen."""
        return self._state.generation != self.seen

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for a generation that was not seen, and return it; None after `timeout` seconds, or once the device is
        shutting down."""
        state = self._state
        end = None if timeout is None else time.monotonic() + timeout
        with state._changed:
            while not self.changed:
                left = LOOK_EVERY if end is None else min(LOOK_EVERY, end - time.monotonic())
                if left <= 0 or not state.accepting_operations:
                    return None
                state._changed.wait(left)
            self.seen = state.generation
            return self.seen


def get_device_state(ordinal: SupportsIndex = 0) -> DeviceState:
    """The process's own state of a device, over its own runtime; made at the first call.  See `get_runtime`."""
    runtime = get_runtime(ordinal)
    with _lock:
        state = _own.get(runtime.ordinal)
        if state is None:
            state = _own[runtime.ordinal] = _state_of(runtime) or DeviceState(runtime)
        return state


# ---------------------------------------------------------------------------------------------- tokens
_FORM = struct.Struct(">4sI16sIIQQ")        # big endian: tokens sort as their fields do
_MAGIC, _VERSION = b"XLBT", 1


class BufferToken(NamedTuple):
    """Names a buffer to another thread, process or machine; says nothing of where it is.

    Attributes
    ----------
    node : int
        The process that has the buffer.
    device : int
        The device's ordinal there.
    buffer : int
        The buffer; numbers are not used again.
    generation : int
        That of the device's state when the buffer was made.
    """

    node: int
    device: int
    buffer: int
    generation: int

    def to_bytes(self) -> bytes:
        """48 bytes, whatever is in them; they sort as tokens do.

        Raises
        ------
        ValueError
            A field is out of its range.
        """
        try:
            return _FORM.pack(_MAGIC, _VERSION, self.node.to_bytes(16, "big"), self.device, 0, self.buffer,
                              self.generation)
        except (struct.error, OverflowError, AttributeError, TypeError) as error:
            raise ValueError(f"{self!r} is no token: {error}") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> BufferToken:
        """The token that these bytes are.

        Raises
        ------
        ValueError
            They are none, or of a version that nobody knows here.
        """
        data = bytes(memoryview(data).cast("B"))
        if len(data) != _FORM.size:
            raise ValueError(f"a buffer token has {_FORM.size} bytes, not {len(data)}")
        magic, version, node, device, zero, buffer, generation = _FORM.unpack(data)
        if magic != _MAGIC or zero != 0 or buffer == 0:
            raise ValueError("the bytes are no buffer token")
        if version != _VERSION:
            raise ValueError(f"a buffer token of version {version}; {_VERSION} is known here")
        return cls(int.from_bytes(node, "big"), device, buffer, generation)

    def resolve(self) -> Buffer:
        """The buffer.

        Raises
        ------
        UnknownNodeError
            Another process has it.
        UnknownDeviceError
            The device has no state here.
        UnknownBufferError
            It is gone.
        StaleBufferError
            It must not be used any more, or the generation is another one.
        """
        if self.node != _node:
            raise UnknownNodeError(f"the token's buffer is in another process ({self.node:032x}, this is {_node:032x})")
        with _lock:
            states = [reference() for reference in _states.values()]
        if not any(state is not None and state.device_id == self.device for state in states):
            raise UnknownDeviceError(f"device {self.device} has no state in this process")
        buffer = _named.get(self.buffer)
        if buffer is None or buffer.device_id not in (self.device, None):
            raise UnknownBufferError(f"buffer {self.buffer} of device {self.device} is gone")
        buffer.access()
        if buffer.generation != self.generation:
            raise StaleBufferError("context rebuilt")
        return buffer


def name(buffer: Buffer) -> BufferToken:
    """The token of a buffer, which can be resolved as long as somebody holds the buffer."""
    _named[buffer.number] = buffer
    return BufferToken(_node, buffer.device_id or 0, buffer.number, buffer.generation)


def _in_child() -> None:
    """A forked child is another process, and has none of the buffers."""
    global _node, _lock
    _node = uuid.uuid4().int
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_in_child)
