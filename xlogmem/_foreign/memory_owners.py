"""Owners of other libraries' arrays.  Imports none of these libraries.

An array may be a view, which ends before its memory does.
"""
from __future__ import annotations

from typing import Any

from xlogmem._foreign.stream_owners import library_of

__all__ = ["find_memory_owner"]


def find_memory_owner(what: Any) -> Any:
    """The object that lives as long as the memory of `what` and names all of the memory, as far as it is known; `what`
    itself if its library is not known."""
    library = library_of(what)
    if library == "cupy":                               # views refer to the array that made the allocation
        base = getattr(what, "base", None)
        return what if base is None else base
    if library == "numba":                              # its pointers count the views of one owner
        pointer = getattr(what, "gpu_data", what)
        owner = getattr(pointer, "owner", None)
        return pointer if owner is None else owner
    if library == "torch" and callable(getattr(what, "untyped_storage", None)):
        return what.untyped_storage()
    if library == "numpy":                              # a view has the array that made the allocation, or another view
        while library_of(getattr(what, "base", None)) == "numpy":
            what = what.base
    return what
