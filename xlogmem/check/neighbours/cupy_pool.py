"""CuPy on a GPU: its arrays are allocated by the driver, where the check sees each allocation and each free.

A program's missing waits stay the same; errors of CuPy's own pool are not seen then.
"""
from __future__ import annotations

from types import ModuleType
from typing import Any

from cuda.bindings import driver

from xlogmem._driver import can_access_peer
from xlogmem.check.neighbours import cupy_allocator, pieces
from xlogmem.sim.kernels import check

__all__ = ["prepare"]


def prepare(cupy: ModuleType) -> None:
    """Arrays are allocated by cudaMallocAsync, and freed on the stream on which they were."""
    pools: dict[int, Any] = {}

    def pool(device: int) -> Any:
        if device not in pools:
            made = cupy.cuda.MemoryAsyncPool()          # which initialises the driver: not before the program does
            for other in pools:
                open_to_each_other(device, other)
            pools[device] = made
        return pools[device]

    runtime = cupy.cuda.runtime
    runtime.ipcGetMemHandle = cannot_be_shared

    def allocate(size: int) -> Any:
        with pieces.in_place_of_a_pool():
            return pool(runtime.getDevice()).malloc(size)

    cupy_allocator.use(cupy, allocate)


def open_to_each_other(device: int, other: int) -> None:
    """Let copies of arrays reach both devices' pools, as they reach the memory of CuPy's own pool."""
    for owner, user in ((device, other), (other, device)):
        if can_access_peer(user, owner):
            pool = check(driver.cuDeviceGetMemPool(owner))
            access = driver.CUmemAccessDesc()
            access.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            access.location.id = user
            access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            check(driver.cuMemPoolSetAccess(pool, [access], 1))


def cannot_be_shared(pointer: int) -> bytes:
    """In place of `ipcGetMemHandle`, which the driver refuses for memory of its pools."""
    raise RuntimeError(f"memory at {pointer:#x} cannot be shared between processes (ipcGetMemHandle): under the check "
                       "it is of the driver's pool, in place of CuPy's own: run `xlogmem check --pools real`")
