"""RMM's own pools on a GPU: report each allocation and free, piece by piece."""
from __future__ import annotations

from types import ModuleType
from typing import Any

from xlogmem.check.neighbours import pieces

__all__ = ["prepare"]


def prepare(mr: ModuleType) -> None:
    """Each pool is reached through a resource that reports, by way of Python: C++ callers find that, too."""
    def reporting(name: str) -> type:
        pool_of = getattr(mr, name)

        class Reporting(mr.CallbackMemoryResource):     # type: ignore[misc,name-defined]
            __doc__ = f"{name} under `xlogmem check --pools real`."

            def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
                pool = pool_of(*arguments, **keywords)

                def allocate(nbytes: int, stream: Any) -> int:
                    ptr: int = pool.allocate(nbytes, stream)
                    pieces.allocated(ptr, nbytes, stream.__cuda_stream__()[1], pieces.IN_ORDER)
                    return ptr

                def deallocate(ptr: int, nbytes: int, stream: Any) -> None:
                    pieces.freed(ptr, stream.__cuda_stream__()[1], pieces.IN_ORDER)
                    pool.deallocate(ptr, nbytes, stream)

                made = super().__new__(cls, allocate, deallocate)
                mr.CallbackMemoryResource.__init__(made, allocate, deallocate)
                made.pool = pool
                return made

            def __init__(self, *arguments: Any, **keywords: Any) -> None:
                pass

            def __getattr__(self, name: str) -> Any:    # pool_size and the like
                return getattr(self.pool, name)

        Reporting.__name__ = Reporting.__qualname__ = name
        return Reporting

    for name in ("PoolMemoryResource", "ArenaMemoryResource", "BinningMemoryResource"):
        if hasattr(mr, name):
            setattr(mr, name, reporting(name))
