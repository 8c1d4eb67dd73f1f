"""Looks for the compiled modules and for cuda-bindings before any of them is imported; the errors say what to do."""
from __future__ import annotations

from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from os.path import dirname, exists, join

__all__: list[str] = []


def _find_compiled() -> None:
    """A checkout has the package without them, and comes first in the path of a Python that is started there."""
    package = dirname(dirname(__file__))
    if not any(exists(join(package, f"_table{suffix}")) for suffix in EXTENSION_SUFFIXES):
        folder = dirname(package)
        raise ImportError(f"{folder} has xlogmem's source, which is not built, and Python looks there before it looks "
                          "for an installed xlogmem: start Python in another folder, or build the source in place with "
                          "`pip install -e .`", name="xlogmem._table", path=folder)


def _find_bindings() -> None:
    try:
        import_module("cuda.bindings.cydriver")
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] != "cuda":
            raise
        raise ModuleNotFoundError(
            "xlogmem calls the driver through cuda-bindings, which is not installed: pip install cuda-bindings, of "
            "the CUDA version that the program's other libraries use (\"cuda-bindings<13\" for CUDA 12)",
            name=error.name) from error


_find_compiled()
_find_bindings()
