"""CuPy: its settings, and an allocator that leaves every array to the driver.

CuPy's own pool hands memory out again without a call of the driver, so that the check would not see where the life of
an array begins and ends.  The pool's rule is kept: memory belongs to the stream that was current when the memory
was allocated, and is freed on this stream.
"""
from __future__ import annotations

import os
import tempfile
from types import ModuleType

from xlogmem.check.neighbours import cupy_allocator, pieces

__all__ = ["before", "prepare"]


def before() -> None:
    """Set CuPy up: kernels as PTX, which shows their reads and writes; a cache that has no others; no kernels of CUB,
    which bring a runtime of their own."""
    os.environ.setdefault("CUPY_COMPILE_WITH_PTX", "1")
    os.environ.setdefault("CUPY_ACCELERATORS", "")
    os.environ.setdefault("CUPY_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"xlogmem-check-cupy-{os.getuid()}"))


def prepare(module: ModuleType) -> None:
    """`module` is cupy."""
    from cupy.cuda import memory, runtime, stream  # type: ignore[import-not-found,unused-ignore]

    class Array(memory.BaseMemory):  # type: ignore[misc,unused-ignore]
        """The memory of one array."""

        def __init__(self, size: int) -> None:
            self.ptr = 0
            self.size = size
            self.device_id = runtime.getDevice()
            self.stream = stream.get_current_stream()   # kept: a stream outlives what is to be freed on it
            self.runtime = runtime                      # at the end of the interpreter its name may be gone
            if size:
                with pieces.in_place_of_a_pool():
                    self.ptr = runtime.mallocAsync(size, self.stream.ptr)

        def __del__(self) -> None:
            if not self.ptr:
                return
            current = self.runtime.getDevice()
            self.runtime.setDevice(self.device_id)      # each device has a null stream of its own
            try:
                self.runtime.freeAsync(self.ptr, self.stream.ptr)
            finally:
                self.runtime.setDevice(current)

    cupy_allocator.use(module, lambda size: memory.MemoryPointer(Array(size), 0))
