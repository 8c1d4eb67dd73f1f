"""CuPy on a GPU: its arrays are allocated by the driver, where the check sees each allocation and each free.

A program's missing waits stay the same; errors of CuPy's own pool are not seen then.
"""
from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from xlogmem.check.neighbours import cupy_allocator, pieces

__all__ = ["prepare"]


def prepare(cupy: ModuleType) -> None:
    """Arrays are allocated by cudaMallocAsync, and freed on the stream on which they were."""
    @cache
    def pool(device: int) -> Any:
        return cupy.cuda.MemoryAsyncPool()              # which initialises the driver: not before the program does

    runtime = cupy.cuda.runtime
    runtime.ipcGetMemHandle = cannot_be_shared

    def allocate(size: int) -> Any:
        with pieces.in_place_of_a_pool():
            return pool(runtime.getDevice()).malloc(size)

    cupy_allocator.use(cupy, allocate)


def cannot_be_shared(pointer: int) -> bytes:
    """In place of `ipcGetMemHandle`, which the driver refuses for memory of its pools."""
    raise RuntimeError(f"memory at {pointer:#x} cannot be shared between processes (ipcGetMemHandle): under the check "
                       "it is of the driver's pool, in place of CuPy's own: run `xlogmem check --pools real`")
