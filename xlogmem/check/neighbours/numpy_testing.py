"""NumPy's assertions about arrays under `python -O`: without a GPU a failed one ends no program whose kernels computed
nothing, as `-O` leaves out the statement `assert`.  CuPy's assertions call these.
"""
from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import ParamSpec, TypeVar

from xlogmem import sim
from xlogmem._base.units import counted
from xlogmem.check.neighbours.noted import note_at_end

__all__ = ["prepare"]

P = ParamSpec("P")
T = TypeVar("T")

NAMES = ("assert_", "assert_equal", "assert_almost_equal", "assert_approx_equal", "assert_array_equal",
         "assert_array_less", "assert_array_almost_equal", "assert_array_almost_equal_nulp", "assert_array_max_ulp",
         "assert_allclose")

_failed = 0


def prepare(module: ModuleType) -> None:
    """`module` is numpy.testing."""
    if __debug__:
        return
    for name in NAMES:
        if (function := getattr(module, name, None)) is not None:
            setattr(module, name, _without_an_end(function))
    note_at_end(_note)


def _without_an_end(function: Callable[P, T]) -> Callable[P, T | None]:
    @functools.wraps(function)
    def compare(*args: P.args, **kwargs: P.kwargs) -> T | None:
        global _failed
        try:
            return function(*args, **kwargs)
        except AssertionError:
            if not sim.simulator().notes()["computed_nothing"]:
                raise
            _failed += 1
            return None

    return compare


def _note() -> str:
    if not _failed:
        return ""
    return (f"{counted(_failed, 'assertion')} of numpy.testing failed, and Python's -O went on: without a GPU kernels "
            "compute nothing")
