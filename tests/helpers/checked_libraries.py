"""Tests with other libraries are left out where these are not installed."""
from __future__ import annotations

import importlib.util
from pathlib import Path

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


def torch_for_cuda() -> bool:
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations or [] if found else []
    return any(Path(folder, "lib/libc10_cuda.so").exists() for folder in folders)


def is_here(library: str) -> bool:
    return torch_for_cuda() if library == "torch" else found(library)


def line_with(program: str, text: str) -> int:
    return next(number for number, line in enumerate(program.splitlines(), 1) if text in line)
