"""Looks for cuda-bindings before any module that was compiled with it is imported; the error says what to install."""
from __future__ import annotations

from importlib import import_module

__all__: list[str] = []


def _find_bindings() -> None:
    try:
        import_module("cuda.bindings.cydriver")
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] != "cuda":
            raise
        raise ModuleNotFoundError(
            "xlogmem calls the driver through cuda-bindings, which is not installed: install xlogmem[cu12] or "
            "xlogmem[cu13], for the CUDA version that the program's other libraries use", name=error.name) from error


_find_bindings()
