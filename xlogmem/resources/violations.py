"""Violations that a guard of memory finds, as data."""
from __future__ import annotations

from dataclasses import dataclass

from xlogmem._base.texts import printable
from xlogmem._base.units import bytes_in_words, counted

__all__ = ["GuardViolation"]


@dataclass(frozen=True)
class GuardViolation:
    """A rule of memory that was broken, as a `GuardResourceAdaptor` found it.

    Attributes
    ----------
    kind : str
        ``"underrun"`` and ``"overrun"``: bytes before or behind the memory were written.  ``"write after free"``.
        ``"double free"``.
    tag : str or None
        Of the block.
    generation : int
        Of the block; 0 where no runtime allocated it.
    ptr, nbytes : int
        The memory, as its user got it.
    offset : int
        Of the first byte that is wrong, from `ptr`: negative before the memory, at least `nbytes` behind it.
    value : int
        What stands there.
    count : int
        How many bytes are wrong.
    allocated_at, freed_at, freed_again_at : str or None
        The Python stacks, the innermost frame first; None where there is none.

    Examples
    --------
    >>> guard = xlogmem.GuardResourceAdaptor(xlogmem.AsyncMemoryResource(), on_violation="warn")
    >>> runtime = xlogmem.DeviceRuntime(resource=guard)
    >>> [(violation.kind, violation.tag, violation.allocated_at) for violation in guard.check()]
    []
    """

    kind: str
    tag: str | None
    generation: int
    ptr: int
    nbytes: int
    offset: int
    value: int
    count: int
    allocated_at: str | None
    freed_at: str | None
    freed_again_at: str | None

    def __str__(self) -> str:
        where = "" if self.kind == "double free" else (
            f": {counted(self.count, 'byte')} from offset {self.offset} on, the first is {self.value:#04x}")
        stacks = "".join(f"\n{title}:\n{stack}" for title, stack in (
            ("allocated at", self.allocated_at), ("freed at", self.freed_at), ("freed again at", self.freed_again_at))
            if stack is not None)
        tag = printable(self.tag) if self.tag else "memory without a tag"
        return (f"{self.kind} of {tag}, block {self.generation}, {bytes_in_words(self.nbytes)} at {self.ptr:#x}{where}"
                f"{stacks}")
