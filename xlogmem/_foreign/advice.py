"""Advice for memory that a runtime does not track, by the library that it belongs to."""
from __future__ import annotations

import sys
from typing import Any

from xlogmem._base.texts import printable
from xlogmem._foreign.stream_owners import LIBRARIES, library_of

__all__ = ["adopted_late", "how_to_track", "in_words", "kind_of"]

ADOPT = "xlogmem.get_runtime().adopt(x, stream=s), where s is the stream on which it was made"
# The name of each library that can allocate through xlogmem, and the call that lets it.
ALLOCATE_HERE = {
    "cupy": ("CuPy", "xlogmem.enable('cupy')"), "torch": ("PyTorch", "xlogmem.enable('torch')"),
    "numba": ("Numba", "xlogmem.enable('numba')"), "rmm": ("RMM", "xlogmem.rmm.enable()"),
    "cudf": ("cuDF", "xlogmem.cudf.enable()"), "pylibcudf": ("cuDF", "xlogmem.cudf.enable()"),
}


def kind_of(what: Any) -> str:
    """The type of an object as a user writes it: ``cupy.ndarray``, ``int``."""
    library = library_of(what)
    name = type(what).__name__
    return name if library in ("builtins", "__main__") else f"{library}.{name}"


def in_words(what: Any) -> str:
    """An argument in a message: its type, and its value if that is a number or a text: ``'x' (of type str)``."""
    if what is None:
        return "None"
    if type(what) not in (bool, bytes, float, int, str):
        return kind_of(what)
    value = printable(repr(what)) if not isinstance(what, int) or abs(what) < 1 << 70 else "a very large number"
    return f"{value if len(value) <= 60 else value[:57] + '...'} (of type {type(what).__name__})"


def how_to_track(what: Any) -> str:
    """What to do about memory that a launch names and the runtime does not track."""
    library = library_of(what)
    if library not in ALLOCATE_HERE:
        return (f"Allocate it from the runtime, or track it with {ADOPT}. untracked='ignore' leaves it out, and the "
                "order to you")
    name, call = ALLOCATE_HERE[library]
    allocators = sys.modules.get("xlogmem.allocators")
    if allocators is not None and library in allocators.enabled_libraries():
        return f"{name} allocated it before {call}: call that first, or use {ADOPT}"
    return (f"Call {call} before {name} allocates, which tracks everything that it allocates; or track it with "
            f"{ADOPT}. untracked='adopt' alone does not order what other streams have queued on it before")


def adopted_late(what: Any) -> str | None:
    """What `untracked="adopt"` leaves open where the stream that made an array is not known; None for arrays of other
    libraries."""
    library = library_of(what)
    if library not in LIBRARIES:
        return None
    name, call = ALLOCATE_HERE[library]
    return (f"untracked='adopt': this use does not wait for what other streams have queued on this {kind_of(what)} "
            f"before. Call {call} before {name} allocates, or track the array with {ADOPT}")
