"""RMM's current resources, by `xlogmem.rmm`."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex

import xlogmem.rmm

__all__ = ["disable", "enable", "is_on_rmm", "refuse"]

_devices: set[int] = set()                  # where it was enabled here, and not by the program itself


def is_on_rmm() -> bool:
    return False


def refuse() -> None:
    """`xlogmem.rmm.enable` checks its arguments before it changes anything, and is called first."""
    xlogmem.rmm.refuse_without_gpu()


def enable(devices: str | SupportsIndex | Iterable[SupportsIndex] | None = None, **options: Any) -> None:
    before: Iterable[int] = xlogmem.rmm.active_devices()
    xlogmem.rmm.enable(devices, **options)
    _devices.update(set(xlogmem.rmm.active_devices()).difference(before))


def disable() -> None:
    xlogmem.rmm.disable(_devices)
    _devices.clear()
