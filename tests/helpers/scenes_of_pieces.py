"""Scenes of pools whose pieces are reported: xlogmem's own runtimes, and CuPy's and RMM's pools with `--pools real`."""
from __future__ import annotations

import ctypes
from typing import Any

from fabricated import A, B, C, Program, X, scene

CONTEXT = 1
IN_ORDER, BY_HOST, LATER = range(3)                     # xlogmem_check_end


class Hooks(ctypes.Structure):
    """xlogmem_check_hooks, as far as pieces go."""

    _fields_ = [("find_site", ctypes.CFUNCTYPE(None)),
                ("allocated", ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_uint64] * 2, ctypes.c_char_p,
                                               ctypes.c_int)),
                ("freed", ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, ctypes.c_uint64, *[ctypes.c_int] * 2))]


def hooks(p: Program) -> Any:
    p.library.xcheck_hooks.restype = ctypes.c_void_p
    return Hooks.from_address(p.library.xcheck_hooks())


def allocate(p: Program, stream: int) -> None:
    """The piece is all of X."""
    hooks(p).allocated(CONTEXT, stream, X, 4096, None, 1)


def free(p: Program, stream: int, end: int = IN_ORDER) -> None:
    hooks(p).freed(CONTEXT, stream, X, end, 0)


@scene("certain write/free")
def a_piece_is_freed_on_another_stream(p: Program, repaired: bool) -> None:
    allocate(p, A)
    p.fill(X, A)
    if repaired:
        p.order(A, B)
    free(p, B)


@scene("certain write/reuse")
def a_piece_is_handed_to_another_stream(p: Program, repaired: bool) -> None:
    allocate(p, A)
    p.fill(X, A)
    free(p, A, LATER)
    if repaired:
        p.order(A, B)
    allocate(p, B)


@scene("certain write/reuse")
def a_piece_outlives_the_stream_that_it_was_made_for(p: Program, repaired: bool) -> None:
    """A pool may remember a stream that is gone: that is no call with a dead handle, and orders nothing."""
    allocate(p, C)
    p.fill(X, C)
    if repaired:
        p.order(C, B)
    p.call("cuStreamDestroy_v2", hStream=C)
    free(p, C)
    allocate(p, B)
