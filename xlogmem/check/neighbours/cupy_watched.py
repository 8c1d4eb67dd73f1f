"""CuPy's events for its own page-locked buffers: it queries them to use a buffer again, which orders nothing for the
program.  All such events come to one function of a C table, and the program never sees them.  Where the buffers are
blocks of xlogmem's (`xlogmem.enable("cupy", pinned=True)`), it is these queries that allow the next owner."""
from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from xlogmem.check.neighbours import _cupy_watched, pieces, tables
from xlogmem.check.neighbours.noted import note

__all__ = ["prepare"]

NAME = "_add_to_watch_list"


class Own:
    """An event that CuPy alone queries."""

    def __init__(self, event: Any) -> None:
        self.event = event
        allocators = sys.modules.get("xlogmem.allocators.cupy")
        self.frees_block = allocators is not None and allocators.has_pinned()

    @property
    def done(self) -> bool:
        if self.frees_block:
            return bool(self.event.done)
        with pieces.queries_for_itself():
            done: bool = self.event.done
            return done


def prepare(module: ModuleType) -> None:
    """`module` is cupy.cuda.pinned_memory, before the modules that call its function are loaded."""
    ours = _cupy_watched.__pyx_capi__[NAME]             # type: ignore[attr-defined]
    theirs = getattr(module, "__pyx_capi__", {}).get(NAME)
    if theirs is None or tables.signature_of(theirs) != tables.signature_of(ours):
        note("in this release of CuPy, its own queries of events count as waits of the program")
        return
    _cupy_watched.begin(module, Own)
    tables.replace(module, NAME, tables.address_of(ours))
