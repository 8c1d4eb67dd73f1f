"""Which libraries are here that a program under the check may use."""
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
