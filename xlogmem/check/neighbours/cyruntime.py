"""cuda.bindings.runtime: NVIDIA's runtime is linked into it, and its functions stand in a table, where ours take their
places.

`signatures` has the signatures that ours were written for: an entry with another signature is left as it is.
"""
from __future__ import annotations

import ctypes
import sys
from importlib.metadata import version
from types import ModuleType

from xlogmem._base.texts import printable
from xlogmem.check import cudart
from xlogmem.check.neighbours import tables
from xlogmem.check.neighbours.signatures import SIGNATURES

__all__ = ["prepare"]


def prepare(module: ModuleType) -> None:
    """`module` is cuda.bindings._bindings.cyruntime, in CUDA 13 cuda.bindings._internal.runtime.

    The first releases of cuda-bindings 12.9 import it with the driver's bindings, which xlogmem needs itself, and have
    taken NVIDIA's functions from its table before this is called.
    """
    if "cuda.bindings._lib.cyruntime" in sys.modules:
        return
    major = int(version("cuda-bindings").split(".")[0])
    library = cudart.loaded(12 if major < 13 else 13)
    other = []
    for name, capsule in list(module.__pyx_capi__.items()):
        plain = name.removeprefix("_")
        if not hasattr(library, plain):
            continue                                    # it needs no driver
        if SIGNATURES.get(plain, tables.signature_of(capsule)) != tables.signature_of(capsule):
            other.append(plain)
            continue
        address = ctypes.cast(getattr(library, plain), ctypes.c_void_p).value
        assert address
        tables.replace(module, name, address)
    if other:
        print(printable(f"xlogmem check: in this release of cuda-bindings, {', '.join(other)} have other signatures: "
                        "they do not work without a GPU"), file=sys.stderr)
