"""The exceptions of xlogmem.

One class for each thing that a caller may want to handle apart.  They are raised by the compiled modules; nothing here
imports them.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from xlogmem._base.texts import printable
from xlogmem._base.units import bytes_in_words

__all__ = [
    "BlockingStreamWarning",
    "DeviceLostError",
    "DriverError",
    "DriverNotFoundError",
    "MemoryCorruptionError",
    "MemoryGuardWarning",
    "OutOfBudgetError",
    "OutOfDeviceMemoryError",
    "StaleBufferError",
    "StreamMisuseError",
    "TokenError",
    "UnknownBufferError",
    "UnknownDeviceError",
    "UnknownNodeError",
    "UntestedReleaseWarning",
    "UseAfterFreeError",
    "XlogmemError",
]


def _restore(kind: type[XlogmemError], args: tuple[Any, ...]) -> XlogmemError:
    """The text was made by the constructor: it is not made again."""
    return Exception.__new__(kind, *args)               # that of `kind` is MemoryError's in some, which refuses it


class XlogmemError(Exception):
    """Base class of every error that xlogmem raises on purpose.  All of them can be copied and pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args), self.__dict__ or None


class DriverError(XlogmemError):
    """A CUDA driver call failed, or cannot be made.

    Attributes
    ----------
    call : str or None
        The driver function, for example ``"cuStreamWaitEvent"``.
    code : int or None
        Its ``CUresult``.
    name : str or None
        The name of the code, for example ``"CUDA_ERROR_INVALID_HANDLE"``.
    """

    def __init__(self, message: str, *, call: str | None = None, code: int | None = None,
                 name: str | None = None) -> None:
        super().__init__(message)
        self.call = call
        self.code = code
        self.name = name


class DeviceLostError(DriverError):
    """The device's context is broken (illegal address, failed launch, uncorrectable memory error, ...).

    Every later call of the runtime fails with this error at once, without touching the driver.
    """


class DriverNotFoundError(DriverError):
    """There is no CUDA driver on this machine, or it is too old."""


class OutOfDeviceMemoryError(DriverError, MemoryError):
    """The device has no memory left for an allocation."""


class OutOfBudgetError(XlogmemError, MemoryError):
    """A `LimitingResourceAdaptor` does not admit the request; nothing was allocated.

    Attributes
    ----------
    requested, remaining, current, limit : int
        Bytes, exact at the moment of the decision.
    pending : int
        Bytes of `current` that belong to no live block: freed, and not seen complete or not returned yet.
    holders : list of (str or None, int)
        The tags whose live blocks have most of it, at most five, and their bytes; None stands for all without a tag.
    """

    def __init__(self, requested: int, remaining: int, current: int, limit: int, *, pending: int = 0,
                 holders: Iterable[tuple[str | None, int]] = (), what: str = "") -> None:
        self.holders = list(holders)
        largest = ", ".join(f"{printable(tag) if tag is not None else 'memory without a tag'}: {bytes_in_words(nbytes)}"
                            for tag, nbytes in self.holders)
        super().__init__(f"out of budget: requested {bytes_in_words(requested)}, remaining {bytes_in_words(remaining)} "
                         f"of {bytes_in_words(limit)}" + (f" while {what}" if what else "")
                         + (f". Held by {largest}" if largest else "")
                         + (f"; {bytes_in_words(pending)} freed and not seen complete" if pending else ""))
        self.requested = requested
        self.remaining = remaining
        self.current = current
        self.limit = limit
        self.pending = pending


class MemoryCorruptionError(XlogmemError):
    """A `GuardResourceAdaptor` found that memory was written, or freed, against the rules.

    Attributes
    ----------
    violations : list of GuardViolation
        Found since this was last raised, at most the first 1,000.
    left_out : int
        How many more there were.
    """

    def __init__(self, violations: Iterable[Any], left_out: int = 0) -> None:
        self.violations = list(violations)
        self.left_out = left_out
        others = len(self.violations) - 1 + left_out
        more = f" (and {others} more)" if others else ""
        super().__init__(f"memory was corrupted: {self.violations[0]}{more}")


class StreamMisuseError(XlogmemError):
    """A stream, or memory, cannot be used as the call wants; nothing was queued and nothing changed."""


_STALE = {
    "consumed": "release() has freed its memory, or copy_from() or an import has taken it over. Make another one",
    "device state dropped": "the DeviceState that it was made by is gone. Keep that as long as its buffers",
    "device shutting down": "the device is being shut down",
    "context lost": "the device's context was lost. DeviceState.recover() makes another; then make the buffer again",
    "context rebuilt": "the device's context was lost and made again since. Make the buffer again",
}


class StaleBufferError(XlogmemError):
    """A buffer must not be used any more.

    Attributes
    ----------
    reason : str
        ``"device state dropped"``, ``"device shutting down"``, ``"context lost"``, ``"context rebuilt"`` or
        ``"consumed"``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the buffer cannot be used any more ({reason})"
                         + (f": {_STALE[reason]}" if reason in _STALE else ""))
        self.reason = reason


class TokenError(XlogmemError, LookupError):
    """A `BufferToken` that is well formed names nothing here; see the classes below and `StaleBufferError`."""


class UnknownNodeError(TokenError):
    """The token was made by another process."""


class UnknownDeviceError(TokenError):
    """No device state for the token's device is alive."""


class UnknownBufferError(TokenError):
    """The token's buffer is gone, or was never given a token."""


class UseAfterFreeError(XlogmemError):
    """A block was named that is not alive any more.

    Attributes
    ----------
    generation : int
        The generation that the caller named.
    """

    def __init__(self, generation: int, message: str | None = None) -> None:
        super().__init__(message or f"block {generation} was freed, and cannot be used any more")
        self.generation = generation


class BlockingWindowWarning(UserWarning):
    """A launch waits for a conflicting one that has been prepared for seconds, and is not filed yet.

    The host waits until the other recorder is committed, cancelled or dropped, because a launch can be ordered only
    after launches that are filed.
    """


class MemoryGuardWarning(UserWarning):
    """A `GuardResourceAdaptor` with ``on_violation="warn"`` found a violation; see `MemoryCorruptionError`."""


class BlockingStreamWarning(UserWarning):
    """A stream was registered that the legacy default stream waits for, and that waits for it.

    Work on the two is ordered implicitly, which hides missing waits and serialises what could overlap.  Create streams
    as non-blocking.
    """


class UntestedReleaseWarning(UserWarning):
    """A library is newer than the releases with which this version of xlogmem was tested.

    `xlogmem.rmm` warns once, when it is imported beside a newer RMM.
    """
