"""Programs of other libraries under the check: whether a library is here, and the lines of a program."""
from __future__ import annotations

import importlib.util

import pytest

__all__ = ["found", "line_with", "needs"]


def needs(library, *wheels):
    """NVIDIA's compilers come in wheels of their own, which need no GPU."""
    here = all(found(name) for name in (library, *wheels))
    return pytest.mark.skipif(not here, reason=f"needs a checked library: {library}")


def found(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def line_with(program, text):
    return next(number for number, line in enumerate(program.splitlines(), 1) if text in line)
