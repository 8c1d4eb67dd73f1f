"""Driver calls of the program's own, and their setup once for the process."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.sim.kernels import Kernels, check

__all__ = ["CODES", "ForeignStream", "Injected", "NothingToDo", "sure", "tools"]

CODES = (999, 2, 500)                       # of injected failures: unknown, out of memory, not found; none is sticky

_loaded: dict[int, tuple[Any, Kernels]] = {}


class NothingToDo(Exception):
    """The step finds nothing to work on; it does not count."""


class Injected(Exception):
    """The error that a resource written in Python raises in a program with failures."""


class ForeignStream:
    """A stream object of some other library, which destroys its stream with itself."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def __del__(self) -> None:
        cuda.cuStreamDestroy(self.handle)


def tools(device_id: int = 0) -> tuple[Any, Kernels]:
    """A device's primary context and kernels, once for the process: compiling those takes longer than a program."""
    if device_id not in _loaded:
        primary = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(device_id))))
        check(cuda.cuCtxPushCurrent(primary))
        _loaded[device_id] = primary, Kernels()
        check(cuda.cuCtxPopCurrent())
    return _loaded[device_id]


def sure(call: Callable[..., tuple[Any, ...]], *arguments: Any) -> Any:
    """A driver call of the program's own: an injected failure is not meant for it, and is used up."""
    for _ in range(20):
        result = call(*arguments)
        if int(result[0]) == 0:
            break
    return check(result)
