"""Reports of adaptors, as plain data and as text."""
from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from xlogmem._base.log import logger
from xlogmem._base.texts import shown
from xlogmem._base.units import counted, format_bytes
from xlogmem.resources.endings import at_end

__all__ = ["Outstanding", "Statistics", "leaks_as_text", "outstanding_as_text", "report_at_exit"]


@dataclass(frozen=True)
class Statistics:
    """Counts of a `StatisticsResourceAdaptor`; the names are those of RMM's class.

    Attributes
    ----------
    current_bytes, current_count : int
        Allocations that were not freed since.  Negative after a push, where more was freed than allocated.
    peak_bytes, peak_count : int
        The most that the current ones ever were.
    total_bytes, total_count : int
        All allocations.

    Examples
    --------
    >>> counted = xlogmem.StatisticsResourceAdaptor(xlogmem.AsyncMemoryResource())
    >>> runtime = xlogmem.DeviceRuntime(resource=counted)
    >>> block = runtime.allocate(1000)
    >>> counts = xlogmem.statistics.get_statistics(runtime=runtime)
    >>> counts.current_bytes, counts.peak_count
    (1000, 1)
    """

    current_bytes: int
    current_count: int
    peak_bytes: int
    peak_count: int
    total_bytes: int
    total_count: int


@dataclass(frozen=True)
class Outstanding:
    """Memory that was allocated through a `TrackingResourceAdaptor` and not freed.

    Attributes
    ----------
    ptr : int
        The device address.
    nbytes : int
        As requested.
    tag : str or None
        Of the block.
    generation : int or None
        Of the block; None for memory that no runtime tracks, such as a pool's chunk.
    stream : int or str
        Where it was allocated: the stream's id; in a call without a runtime its handle in hexadecimal.
    stack : object or None
        The Python frames of the call; `str` formats them as a traceback.  None where none was taken.
    """

    ptr: int
    nbytes: int
    tag: str | None
    generation: int | None
    stream: int | str
    stack: Any

    def __str__(self) -> str:
        facts = [f"tag {shown(self.tag)}"] if self.tag is not None else []
        facts += [f"block {self.generation}"] if self.generation is not None else []
        facts += [f"stream {self.stream}"]
        return f"{self.ptr:#x}: {self.nbytes} B ({', '.join(facts)})"


def outstanding_as_text(records: Iterable[Outstanding]) -> str:
    """A line for each, and its stack below; empty if there are none."""
    return "\n".join(f"{record} : callstack:\n{record.stack}" if record.stack is not None else str(record)
                     for record in records)


def leaks_as_text(records: Iterable[Outstanding], most: int | None = None) -> str:
    """Summed by stack, the largest sum first; `most` of them."""
    by_stack: dict[Any, list[Outstanding]] = {}
    for record in records:
        by_stack.setdefault(record.stack, []).append(record)
    groups = sorted(by_stack.items(), key=lambda group: -sum(record.nbytes for record in group[1]))
    return "\n".join(line for stack, group in groups[:most] for line in _lines_of_group(stack, group))


def _lines_of_group(stack: Any, group: list[Outstanding]) -> list[str]:
    nbytes, count = sum(record.nbytes for record in group), len(group)
    return [f"{format_bytes(nbytes)} in {counted(count, 'allocation')}, the oldest {group[0]}",
            str(stack) if stack is not None else "  without a stack"]


# ---------------------------------------------------------------------------------------------- at exit
_reporting: WeakKeyDictionary[Any, int] = WeakKeyDictionary()       # by adaptor: the process


def report_at_exit(adaptor: Any) -> None:
    """Report the allocations outstanding at the end of the process."""
    logger()                                            # imported before the end, where it closes its files
    _reporting[adaptor] = os.getpid()
    at_end(_report)


def _report() -> None:
    while _reporting:
        adaptor, process = _reporting.popitem()
        if os.getpid() != process:                      # the memory is the parent's
            continue
        records = adaptor.outstanding_allocations()
        if records:
            nbytes = sum(record.nbytes for record in records)
            logger().warning("%s of %s %s not freed before the process ended:\n%s", counted(len(records), "allocation"),
                             format_bytes(nbytes), "was" if len(records) == 1 else "were", leaks_as_text(records))
