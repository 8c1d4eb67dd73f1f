"""CuPy's runtime module: NVIDIA's runtime is linked into it, and its functions stand in a table, where ours
(`_cupy_table`) take their places.  A function with another signature is not replaced."""
from __future__ import annotations

import sys
from types import ModuleType

from xlogmem._base.texts import printable
from xlogmem.check import cudart
from xlogmem.check.neighbours import tables

__all__ = ["prepare"]

# Those that CuPy's own code does not call, and its table does not have.
_PYTHONS = ("_getLocalRuntimeVersion", "deviceDisablePeerAccess", "ipcCloseMemHandle", "ipcGetEventHandle",
            "ipcGetMemHandle", "ipcOpenEventHandle", "ipcOpenMemHandle")


def prepare(module: ModuleType) -> None:
    """`module` is cupy_backends.cuda.api.runtime."""
    cudart.loaded(12 if module.runtimeGetVersion() < 13000 else 13)
    from xlogmem.check.neighbours import _cupy_table

    _cupy_table.begin(module)
    other = []
    for name, capsule in _cupy_table.__pyx_capi__.items():
        theirs = module.__pyx_capi__.get(name)
        if theirs is None or tables.signature_of(theirs) != tables.signature_of(capsule):
            other.append(name)
            continue
        tables.replace(module, name, tables.address_of(capsule))
        if hasattr(_cupy_table, name):
            setattr(module, name, getattr(_cupy_table, name))
    for name in _PYTHONS:
        if hasattr(module, name):
            setattr(module, name, getattr(_cupy_table, name))
    if other:
        print(printable(f"xlogmem check: in this release of CuPy, {', '.join(sorted(other))} have other signatures: "
                        "what uses them does not work without a GPU"), file=sys.stderr)
