"""CuPy: its settings, and an allocator that leaves every array to the driver.

CuPy's own pool hands memory out again without a call of the driver, so that the check would not see where the life of
an array begins and ends.  The pool's rule is kept: memory belongs to the stream that was current when the memory
was allocated, and is freed on this stream.
"""
from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from types import ModuleType

from xlogmem import sim
from xlogmem._base.private import private_folder
from xlogmem.check.neighbours import cupy_allocator, pieces

__all__ = ["before", "prepare"]


def before() -> None:
    """Set CuPy up: kernels as PTX, which shows their reads and writes; a cache that has no others; no kernels of CUB,
    which bring a runtime of their own."""
    os.environ.setdefault("CUPY_COMPILE_WITH_PTX", "1")
    os.environ.setdefault("CUPY_ACCELERATORS", "")
    if "CUPY_CACHE_DIR" not in os.environ:
        os.environ["CUPY_CACHE_DIR"] = cache()


def cache() -> str:
    """A folder that is this user's alone: CuPy runs the kernels and imports the modules that it finds there."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(home, "xlogmem-check-cupy")
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
        private_folder(path, make=True).close()
    except OSError:                                     # no home, or another user's
        path = tempfile.mkdtemp(prefix="xlogmem-check-cupy-")
        atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def prepare(module: ModuleType) -> None:
    """`module` is cupy."""
    from cupy.cuda import memory, runtime, stream  # type: ignore[import-not-found,unused-ignore]

    class Array(memory.BaseMemory):  # type: ignore[misc,unused-ignore]
        """The memory of one array."""

        def __init__(self, size: int) -> None:
            self.ptr = 0
            self.size = size
            self.device_id = runtime.getDevice()
            self.stream = stream.get_current_stream()   # kept: a stream outlives memory to be freed on it
            self.driver = sim.simulator()
            self.runtime = runtime                      # at the end of the interpreter its name may be gone
            if size:
                with pieces.in_place_of_a_pool():
                    self.ptr = runtime.mallocAsync(size, self.stream.ptr)
                self.number = self.driver.stream_number(self.stream.ptr)

        def __del__(self) -> None:
            if not self.ptr:
                return
            current = self.runtime.getDevice()
            self.runtime.setDevice(self.device_id)      # each device has a null stream of its own
            try:
                state = self.driver.stream_state(self.number)
                if state == "capturing":                # a pool takes memory back at any time
                    self.driver.free_after_capture(self.ptr, self.number)
                elif state == "there":                  # else it is in a pool that has no stream any more, for ever
                    self.runtime.freeAsync(self.ptr, self.stream.ptr)
            finally:
                self.runtime.setDevice(current)

    cupy_allocator.use(module, lambda size: memory.MemoryPointer(Array(size), 0))
