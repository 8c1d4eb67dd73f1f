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
    set_allocator = cupy.cuda.set_allocator

    def set_other(allocator: Allocator | None = None) -> None:
        # RMM's pools are the driver's own while a program is checked.
        if not (getattr(allocator, "__module__", None) or "").startswith("rmm"):
            note("the program has set an allocator of its own for CuPy: what that hands out again, without a call of "
                 "the driver, is not seen")
        set_allocator(allocator)

    set_allocator(allocator)
    cupy.cuda.set_allocator = set_other
