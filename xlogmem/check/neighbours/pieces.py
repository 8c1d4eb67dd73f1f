"""Pieces that a pool cuts out of its memory, reported as xlogmem's own runtimes do: see cpp/engine/hooks.hpp."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from cuda.bindings import driver

__all__ = ["CACHED", "IN_ORDER", "Hooks", "Rules", "address", "allocated", "freed", "hooks",
           "in_place_of_a_pool", "queries_for_itself", "report_to"]


class Rules(NamedTuple):
    """Rules of a pool: `piece` for pieces that the pool hands out, `end` for pieces that it gets back."""

    piece: int
    end: int


IN_ORDER = Rules(1, 0)                                  # both are operations of the stream
CACHED = Rules(2, 3)                                    # a caching pool: see engine/pools.hpp


class Hooks(ctypes.Structure):
    _fields_ = [
        ("find_site", ctypes.CFUNCTYPE(None)),
        ("piece_allocated", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64,
                                             ctypes.c_char_p, ctypes.c_int)),
        ("piece_freed", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int,
                                         ctypes.c_int)),
        ("window_opened", ctypes.c_void_p),
        ("window_closed", ctypes.c_void_p),
        ("piece_recorded", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)),
        ("replaces_pool", ctypes.CFUNCTYPE(None, ctypes.c_int)),
        ("queries_for_itself", ctypes.CFUNCTYPE(None, ctypes.c_int)),
        ("site_of_caller", ctypes.CFUNCTYPE(ctypes.c_uint32)),
        ("act_for", ctypes.PYFUNCTYPE(None, ctypes.c_uint32)),  # these keep the GIL: they wait for nothing
        ("operator_begins", ctypes.PYFUNCTYPE(None)),
        ("operator_launches", ctypes.PYFUNCTYPE(ctypes.c_size_t)),
        ("operator_ends", ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)),
    ]


_address = 0


def report_to(address: int) -> None:
    """Set the address of the front end's table of hooks."""
    global _address
    _address = address


def address() -> int:
    """The address of the front end's table of hooks."""
    return _address


@cache
def hooks() -> Hooks:
    """The front end's table of hooks."""
    return Hooks.from_address(_address)


def _context() -> int:
    return int(driver.cuCtxGetCurrent()[1])


def allocated(ptr: int, nbytes: int, stream: int, rules: Rules) -> None:
    """A pool has handed out a piece of its memory for work on this stream."""
    if ptr and nbytes:
        hooks().find_site()
        hooks().piece_allocated(_context(), stream, ptr, nbytes, None, rules.piece)


def freed(ptr: int, stream: int, rules: Rules) -> None:
    """A piece is returned to its pool: work that the stream has queued may use it still."""
    if ptr:
        hooks().find_site()
        hooks().piece_freed(_context(), stream, ptr, rules.end, 0)


@contextmanager
def in_place_of_a_pool() -> Iterator[None]:
    """Allocations of the thread from the driver, inside this context, take the place of a caching pool's memory."""
    hooks().replaces_pool(1)
    try:
        yield
    finally:
        hooks().replaces_pool(0)


@contextmanager
def queries_for_itself() -> Iterator[None]:
    """Queries of the thread, inside this context, are a library's for buffers of its own, and order nothing."""
    hooks().queries_for_itself(1)
    try:
        yield
    finally:
        hooks().queries_for_itself(0)
