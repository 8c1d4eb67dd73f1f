"""What a pool cuts out of its memory, and gets again, as xlogmem's own runtimes report it: see engine/hooks.hpp."""
from __future__ import annotations

import ctypes
from functools import cache

from cuda.bindings import driver

__all__ = ["allocated", "freed", "report_to"]

FREED_IN_ORDER = 0                                      # on the stream, after all that this one has queued


class _Hooks(ctypes.Structure):
    _fields_ = [
        ("find_site", ctypes.CFUNCTYPE(None)),
        ("piece_allocated", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64,
                                             ctypes.c_char_p, ctypes.c_int)),
        ("piece_freed", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int,
                                         ctypes.c_int)),
    ]


_address = 0


def report_to(address: int) -> None:
    """The table of the front end."""
    global _address
    _address = address


@cache
def _table() -> _Hooks:
    return _Hooks.from_address(_address)


def _context() -> int:
    return int(driver.cuCtxGetCurrent()[1])


def allocated(ptr: int, nbytes: int, stream: int) -> None:
    """A pool has handed out a piece of its memory for work on this stream."""
    if ptr and nbytes:
        _table().find_site()
        _table().piece_allocated(_context(), stream, ptr, nbytes, None, 1)


def freed(ptr: int, stream: int) -> None:
    """It is returned: what the stream has queued may use it still."""
    if ptr:
        _table().find_site()
        _table().piece_freed(_context(), stream, ptr, FREED_IN_ORDER, 0)
