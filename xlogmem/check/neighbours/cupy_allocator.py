"""CuPy's allocator in a program that is checked: the check's, until the program chooses its own."""
from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from xlogmem.check.neighbours.noted import note

__all__ = ["use"]

Allocator = Callable[[int], Any]


def use(cupy: ModuleType, allocator: Allocator) -> None:
    """Let CuPy allocate with this from here on, until the program sets another allocator, which the report notes."""
    def chosen(other: Allocator | None) -> Allocator | None:
        owner = getattr(other, "__self__", None)
        if isinstance(owner, cupy.cuda.MemoryPool):     # CuPy's own, as the one that was there
            return allocator
        if not (other is None or isinstance(owner, cupy.cuda.MemoryAsyncPool) or is_seen(other)):
            note("the program has set an allocator of its own for CuPy: what that hands out again, without a call of "
                 "the driver, is not seen")
        return other

    set_allocator, using_allocator = cupy.cuda.set_allocator, cupy.cuda.using_allocator
    set_allocator(allocator)
    cupy.cuda.set_allocator = lambda allocator=None: set_allocator(chosen(allocator))
    cupy.cuda.using_allocator = lambda allocator=None: using_allocator(chosen(allocator))


def is_seen(allocator: Allocator) -> bool:
    """True if the check sees what an allocator hands out: xlogmem reports its blocks, RMM's pools are the driver's own
    while a program is checked, and CuPy's functions call the driver each time."""
    module = getattr(allocator, "__module__", None) or ""
    return module.split(".")[0] in ("cupy", "rmm", "xlogmem")
