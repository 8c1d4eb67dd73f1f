"""``with xlogmem.check.ignore("reason"):`` leaves out findings of the block.

A finding belongs to the block if one of its two operations was called from there.  The text of the program
gives the lines of the block; a block that left out nothing is reported, as a suppression is.
"""
from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from xlogmem.check.findings import Finding

__all__ = ["Ignored", "as_json", "ignore", "left_out", "merged"]


@dataclass
class Ignored:
    """A block that was entered, with its lines."""

    reason: str
    file: str
    first: int
    last: int
    used: int = 0

    def fits(self, finding: Finding) -> bool:
        return any(frame.file == self.file and self.first <= frame.line <= self.last
                   for access in (finding.first, finding.second) for frame in (*access.stack, *access.captured))


_entered: dict[tuple[str, int], Ignored] = {}
_report: Callable[[Ignored], None] | None = None


def report_entered(report: Callable[[Ignored], None]) -> None:
    """Call `report` with each block that is entered for the first time, and now with those that were entered before."""
    global _report
    _report = report
    for block in list(_entered.values()):
        report(block)


class ignore:                                           # as Python's own context managers are called
    """Leave out of the check the findings between operations of this block and others.

    Without a check the block has no effect.

    Parameters
    ----------
    reason : str
        The reason why that is right.

    Examples
    --------
    >>> import xlogmem.check
    >>> with xlogmem.check.ignore("both write the same value"):
    ...     pass                                    # launches
    """

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError("a reason is required")
        self.reason = reason

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r})"

    def __enter__(self) -> None:
        frame = sys._getframe(1)
        while frame.f_code.co_filename == contextlib.__file__ and frame.f_back:    # of an ExitStack
            frame = frame.f_back
        place = frame.f_code.co_filename, frame.f_lineno
        if place not in _entered:
            _entered[place] = block = Ignored(self.reason, place[0], *lines_of_block(*place))
            if _report is not None:
                _report(block)

    def __exit__(self, *error: object) -> None:
        pass


@functools.cache
def lines_of_block(file: str, line: int) -> tuple[int, int]:
    """Return the lines of the innermost ``with`` statement around a line; the line alone where there is no text."""
    text = "".join(linecache.getlines(file))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return line, line
    around = [(node.lineno, node.end_lineno or line) for node in ast.walk(tree)
              if isinstance(node, ast.With | ast.AsyncWith) and node.lineno <= line <= (node.end_lineno or line)]
    return max(around, default=(line, line))


def left_out(findings: Iterable[Finding], blocks: Iterable[Ignored] | None = None) -> tuple[list[Finding], int]:
    """Return the findings that no block ignores, and the number of findings left out.  Without `blocks`: those that
    this process has entered."""
    kept, count = [], 0
    entered = list(_entered.values() if blocks is None else blocks)
    for finding in findings:
        fitting = next((one for one in entered if one.fits(finding)), None)
        if fitting is None:
            kept.append(finding)
        else:
            fitting.used += 1
            count += 1
    return kept, count


def as_json(blocks: Iterable[Ignored] | None = None) -> list[dict[str, Any]]:
    """Return these blocks, or those that were entered so far."""
    return [{"reason": one.reason, "place": f"{one.file}:{one.first}", "used": one.used}
            for one in (_entered.values() if blocks is None else blocks)]


def merged(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the ignored blocks of all processes: those of the same place become one."""
    found: dict[str, dict[str, Any]] = {}
    for document in documents:
        for record in document["ignored"]:
            known = found.setdefault(record["place"], {**record, "used": 0})
            known["used"] += record["used"]
    return list(found.values())
