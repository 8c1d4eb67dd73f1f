"""RMM on a GPU: its own pools are made of the driver's, where the check sees each allocation and each free.

A program's missing waits stay the same; errors of RMM's pools are not seen then.
"""
from __future__ import annotations

from types import ModuleType
from typing import Any

__all__ = ["prepare"]


def prepare(mr: ModuleType) -> None:
    """The pools' limits do not apply."""
    def made_of(name: str) -> type:
        class Replaced(mr.CudaAsyncMemoryResource):     # type: ignore[misc,name-defined]
            __doc__ = f"{name} under `xlogmem check`: cudaMallocAsync."

            def __new__(cls, *arguments: object, **keywords: object) -> Any:
                return super().__new__(cls)             # the base would take the arguments for its own

            def __init__(self, *arguments: object, **keywords: object) -> None:
                super().__init__()

        Replaced.__name__ = Replaced.__qualname__ = name
        return Replaced

    for name in ("PoolMemoryResource", "ArenaMemoryResource", "BinningMemoryResource"):
        if hasattr(mr, name):
            setattr(mr, name, made_of(name))
