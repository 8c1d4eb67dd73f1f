"""Tests with other libraries are left out where these are not installed."""
from __future__ import annotations

import importlib.util

import pytest


def needs(library: str, *wheels: str) -> pytest.MarkDecorator:
    """NVIDIA's compilers come in wheels of their own, which need no GPU."""
    here = all(found(name) for name in (library, *wheels))
    return pytest.mark.skipif(not here, reason=f"needs a checked library: {library}")


def found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def line_with(program: str, text: str) -> int:
    return next(number for number, line in enumerate(program.splitlines(), 1) if text in line)
