"""Numba-CUDA: an External Memory Management plugin, whose device memory is blocks."""
from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

from numba import cuda
from numba.cuda.cudadrv import driver

from xlogmem._base.units import counted
from xlogmem.allocators._simulated import find_simulated_driver
from xlogmem.runtime import get_runtime

__all__ = ["BlockManager", "disable", "enable", "is_on_rmm", "refuse"]

OUT_OF_MEMORY = 2                                       # CUDA_ERROR_OUT_OF_MEMORY
LEGACY, PER_THREAD = 0, 2

_former: type | None = None                             # what `enable` has replaced; None: Numba has not chosen yet


class BlockManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):
    """Device memory from the process's own runtime.  Host memory is Numba's, as it was.

    Numba does not say for which stream memory is meant: it belongs to the default stream, for which the streams that
    Numba makes wait, as it waits for them.
    """

    def initialize(self) -> None:
        """Nothing is needed before the first allocation."""

    def memalloc(self, size: int) -> cuda.MemoryPointer:
        """The memory is freed when nothing refers to it, or with the context."""
        block = self._attempt_allocation(partial(self._allocate, size))
        self.allocations[block.id] = block
        return cuda.MemoryPointer(weakref.proxy(self.context), ctypes.c_void_p(block.ptr), size,
                                  finalizer=partial(self.allocations.pop, block.id, None))

    def _allocate(self, size: int) -> Any:
        runtime = get_runtime(self.context.device.id)
        per_thread = getattr(driver.config, "CUDA_PER_THREAD_DEFAULT_STREAM", 0)
        stream = runtime.register_stream(PER_THREAD if per_thread else LEGACY)
        try:
            block = runtime.allocate(size, stream, tag=runtime._tag_here("Numba"))
        except MemoryError as error:
            raise driver.CudaAPIError(OUT_OF_MEMORY, str(error)) from error
        # Numba's streams wait for work on the default one, and a pool queues none there for a free and an allocation:
        # without this, a stream would write while another works on the former block.
        stream.record()
        return block

    def get_memory_info(self) -> cuda.MemoryInfo:
        """Free and total memory of the device, in bytes.  Memory that a pool of xlogmem's keeps counts as used."""
        free, total = driver.driver.cuMemGetInfo()
        return cuda.MemoryInfo(free=free, total=total)

    @property
    def interface_version(self) -> int:
        return 1


_numba_memory_manager = BlockManager                    # for NUMBA_CUDA_MEMORY_MANAGER=xlogmem.allocators.numba


# ---------------------------------------------------------------------------------------------- see Neighbour
def is_on_rmm() -> bool:
    rmm = sys.modules.get("rmm.allocators.numba")
    return rmm is not None and driver._memory_manager is rmm.RMMNumbaManager


def contexts() -> Iterator[Any]:
    """The contexts that Numba has made.  Each has a memory manager of its own."""
    for device in driver.driver.list_devices():
        if device.primary_context is not None:
            yield device.primary_context


def refuse() -> None:
    find_simulated_driver("Numba-CUDA", driver.find_driver)
    for context in contexts():
        manager = context.memory_manager
        count = len(getattr(manager, "allocations", ()))
        if count and not isinstance(manager, BlockManager):
            raise RuntimeError(f"Numba has {counted(count, 'allocation')} on device {context.device.id} from its own "
                               "memory manager, which xlogmem does not track: call xlogmem.enable('numba') before "
                               "anything is allocated, or delete these arrays")


def enable() -> None:
    global _former
    if driver._memory_manager is not BlockManager:
        _former = driver._memory_manager                # first: after an interrupt the next call goes on from there
        cuda.set_memory_manager(BlockManager)
    _replace_in_contexts(BlockManager)


def disable() -> None:
    if driver._memory_manager is BlockManager:
        driver._memory_manager = _former                # set_memory_manager does not take None
        driver._ensure_memory_manager()
    _replace_in_contexts(driver._memory_manager)


def _replace_in_contexts(kind: type) -> None:
    """Replace the contexts' managers; memory of a former manager can still be freed."""
    for context in contexts():
        former = context.memory_manager
        if not isinstance(former, kind):
            context.push()                              # this thread may have none yet, or another device's
            try:
                former.deallocations.clear()            # host memory that waits to be unpinned
                context.memory_manager = kind(context=context)
                context.memory_manager.initialize()
            finally:
                context.pop()
