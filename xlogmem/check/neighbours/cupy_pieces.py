"""CuPy's own pool on a GPU: reports each allocation and free, piece by piece."""
from __future__ import annotations

from types import ModuleType

from xlogmem.check.neighbours import pieces

__all__ = ["prepare"]


def prepare(cupy: ModuleType) -> None:
    """Install a hook for all allocations.  A piece goes back to the arena of the stream that it was allocated for."""
    streams: dict[int, int] = {}

    class Reporting(cupy.cuda.MemoryHook):              # type: ignore[misc,name-defined]
        name = "xlogmem check"

        def malloc_postprocess(self, *, mem_size: int, mem_ptr: int, **_: object) -> None:
            streams[mem_ptr] = cupy.cuda.get_current_stream().ptr
            pieces.allocated(mem_ptr, mem_size, streams[mem_ptr], pieces.CACHED)

        def free_preprocess(self, *, mem_ptr: int, **_: object) -> None:
            pieces.freed(mem_ptr, streams.pop(mem_ptr, 0), pieces.CACHED)

    Reporting().__enter__()                             # for the life of the process, in each thread that has hooks
