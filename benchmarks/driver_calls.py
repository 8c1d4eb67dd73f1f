"""Counts a process's calls of the driver by name, whichever library makes them: CUPTI's callbacks, by ctypes.

    with DriverCalls() as calls:
        ...
    calls.counts["cuEventQuery"]

CUPTI admits one tool at a time, and is searched for as `xlogmem check --gpu` does.  Each call takes a few microseconds
more meanwhile, so times are measured without it.
"""
from __future__ import annotations

import collections
import ctypes
from typing import Any

from xlogmem.check.gpu import cupti_path

__all__ = ["DriverCalls"]

DRIVER_API, ENTER = 1, 0                    # CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_API_ENTER
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)


class CallbackData(ctypes.Structure):
    """The beginning of CUpti_CallbackData."""

    _fields_ = (("site", ctypes.c_int), ("name", ctypes.c_char_p))


class DriverCalls:
    """A context manager.  `counts` has the name of each call that was begun meanwhile, and how often."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self._cupti = ctypes.CDLL(cupti_path())
        self._subscriber = ctypes.c_void_p()
        self._callback = CALLBACK(self._note)           # held as long as CUPTI has it

    def __enter__(self) -> DriverCalls:
        self._call("cuptiSubscribe", ctypes.byref(self._subscriber), self._callback, None)
        try:
            self._call("cuptiEnableDomain", ctypes.c_uint32(1), self._subscriber, DRIVER_API)
        except RuntimeError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._call("cuptiUnsubscribe", self._subscriber)

    def _note(self, _user: int, _domain: int, _number: int, data: int) -> None:
        call = CallbackData.from_address(data)
        if call.site == ENTER:
            self.counts[call.name.decode()] += 1

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._cupti, name)(*arguments):
            raise RuntimeError(f"{name} failed with CUPTI's error {status}; 39: another tool uses CUPTI")

    def matching(self, *parts: str) -> int:
        """How many calls had one of these in their names."""
        return sum(count for name, count in self.counts.items() if any(part in name for part in parts))
