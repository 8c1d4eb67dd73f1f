"""Tokens: names of buffers for other threads, processes and machines.  A token does not keep its buffer alive.

This module stands above `buffers` and `devices`; `Buffer.token` calls the function that is registered here.
"""
from __future__ import annotations

import os
import struct
import weakref
from typing import NamedTuple, SupportsIndex

from xlogmem.errors import StaleBufferError, UnknownBufferError, UnknownDeviceError, UnknownNodeError
from xlogmem.interop.buffers import Buffer, set_token_maker
from xlogmem.interop.devices import has_state

__all__ = ["BufferToken", "token_of"]

_FORM = struct.Struct(">4sI16sIIQQ")        # big endian: tokens sort as their fields do
_MAGIC, _VERSION = b"XLBT", 1

_node = int.from_bytes(os.urandom(16))      # this process; a child of fork is another, without buffers
_buffers: weakref.WeakValueDictionary[int, Buffer] = weakref.WeakValueDictionary()      # that have a token, by number


class BufferToken(NamedTuple):
    """Names a buffer to another thread, process or machine; does not say where its memory is.

    Attributes
    ----------
    node : int
        The process that has the buffer.
    device : int
        The device's number there.
    buffer : int
        The buffer; numbers are not used again.
    epoch : int
        That of the device's state when the buffer was made.

    Examples
    --------
    >>> x = xlogmem.empty(1000)
    >>> sent = x.token.to_bytes()                   # to another thread, for example
    >>> xlogmem.BufferToken.from_bytes(sent).resolve() is x
    True
    """

    node: int
    device: int
    buffer: int
    epoch: int

    def to_bytes(self) -> bytes:
        """The token as bytes of constant length, which sort as tokens do.

        Raises
        ------
        ValueError
            A field is out of its range.
        """
        try:
            return _FORM.pack(_MAGIC, _VERSION, self.node.to_bytes(16, "big"), self.device, 0, self.buffer,
                              self.epoch)
        except (struct.error, OverflowError, AttributeError, TypeError) as error:
            raise ValueError(f"{self!r} is not a token: {error}") from None

    @classmethod
    def from_bytes(cls, data: bytes) -> BufferToken:
        """The token that `to_bytes` wrote.

        Raises
        ------
        ValueError
            The bytes are not a token, or one of an unknown version.
        """
        data = bytes(memoryview(data).cast("B"))
        if len(data) != _FORM.size:
            raise ValueError(f"a buffer token has {_FORM.size} bytes, not {len(data)}")
        magic, version, node, device, zero, buffer, epoch = _FORM.unpack(data)
        if magic != _MAGIC or zero != 0 or buffer == 0:
            raise ValueError("the bytes are not a buffer token")
        if version != _VERSION:
            raise ValueError(f"a buffer token of version {version}, but only version {_VERSION} is supported")
        return cls(int.from_bytes(node, "big"), device, buffer, epoch)

    def resolve(self) -> Buffer:
        """The buffer, in the process that has it.

        Raises
        ------
        TypeError
            A field is not a number.
        UnknownNodeError
            Another process has it.
        UnknownDeviceError
            The device has no state here.
        UnknownBufferError
            It is gone.
        StaleBufferError
            It must not be used any more, or the epoch is another one.
        """
        for name, value in zip(self._fields, self, strict=True):
            if not isinstance(value, SupportsIndex):    # as of a tuple that was made by hand, or scattered by Dask
                raise TypeError(f"{name} of a BufferToken must be an int, not {type(value).__name__}")
        if self.node != _node:
            raise UnknownNodeError(f"the token's buffer is in another process ({self.node:032x}, this is {_node:032x})")
        if not has_state(self.device):
            raise UnknownDeviceError(f"device {self.device} has no state in this process")
        buffer = _buffers.get(self.buffer)
        if buffer is None or buffer.device_id not in (self.device, None):
            raise UnknownBufferError(f"buffer {self.buffer} of device {self.device} is gone")
        buffer.access()
        if buffer.epoch != self.epoch:
            raise StaleBufferError("context rebuilt")
        return buffer


def token_of(buffer: Buffer) -> BufferToken:
    """A buffer's token, which can be resolved as long as the buffer exists."""
    _buffers[buffer.number] = buffer
    return BufferToken(_node, buffer.device_id or 0, buffer.number, buffer.epoch)


def _in_child() -> None:
    """A forked child is another process, and has none of the buffers."""
    global _node
    _node = int.from_bytes(os.urandom(16))


os.register_at_fork(after_in_child=_in_child)
set_token_maker(token_of)
