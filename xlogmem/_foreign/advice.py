"""Advice for memory that a runtime does not track, by the library that it belongs to."""
from __future__ import annotations

import sys
from typing import Any

from xlogmem._foreign.stream_owners import library_of

__all__ = ["adopted_late", "how_to_track", "kind_of"]

NAMES = {"cupy": "CuPy", "torch": "PyTorch", "numba": "Numba"}
ADOPT = "adopt(x, stream=s) of the runtime, where s is the stream on which it was made"


def kind_of(what: Any) -> str:
    """The type of an object as a user writes it: ``cupy.ndarray``."""
    kind = type(what)
    names = {"cupy": "cupy.", "torch": "torch.", "numpy": "numpy.", "jaxlib": "jax."}
    return names.get(library_of(what), "") + kind.__name__


def how_to_track(what: Any) -> str:
    """What to do about memory that a launch names and the runtime does not track."""
    library = library_of(what)
    if library not in NAMES:
        return (f"Allocate it from the runtime, or track it with {ADOPT}. untracked='ignore' leaves it out, and the "
                "order to you")
    allocators = sys.modules.get("xlogmem.allocators")
    if allocators is not None and library in allocators.enabled_libraries():
        return f"{NAMES[library]} allocated it before xlogmem.enable({library!r}): enable it first, or use {ADOPT}"
    return (f"Call xlogmem.enable({library!r}) before {NAMES[library]} allocates, which tracks everything that it "
            f"allocates; or track it with {ADOPT}. untracked='adopt' alone does not order what other streams have "
            "queued on it before")


def adopted_late(what: Any) -> str | None:
    """What `untracked="adopt"` leaves open where the stream that made an array is not known; None for arrays of
    libraries that have no allocator here."""
    library = library_of(what)
    if library not in NAMES:
        return None
    return (f"untracked='adopt': this use does not wait for what other streams have queued on this {kind_of(what)} "
            f"before. Call xlogmem.enable({library!r}) before {NAMES[library]} allocates, or track the array with "
            f"{ADOPT}")
