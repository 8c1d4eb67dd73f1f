"""RMM if it is installed, and an RMM resource with memory of the driver."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime
from xlogmem.sim.kernels import check

__all__ = ["RmmMemoryResource", "RuntimeMemoryResource", "Source", "Stream", "_binding", "current", "needs_rmm", "rmm",
           "runtime_resource"]

try:
    import rmm
    import rmm.mr
    from rmm.pylibrmm.stream import Stream

    from xlogmem.rmm import RmmMemoryResource, RuntimeMemoryResource, _binding
except ImportError as error:
    if error.name != "rmm":
        raise
    rmm = RmmMemoryResource = RuntimeMemoryResource = Stream = _binding = None      # its tests are skipped


needs_rmm = pytest.mark.skipif(rmm is None, reason="needs RMM")


class Source:
    """An RMM resource with memory of the driver, as callbacks; counts."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.live: dict[int, int] = {}
        self.streams: list[int] = []
        self.limit = limit
        self.mr = rmm.mr.CallbackMemoryResource(self.allocate, self.deallocate)

    def allocate(self, nbytes: int, stream: Stream) -> int:
        if sum(self.live.values()) + nbytes > self.limit:
            raise MemoryError("the source is dry")
        handle = stream.__cuda_stream__()[1]
        ptr = int(check(cuda.cuMemAllocAsync(nbytes, handle)))
        self.live[ptr] = nbytes
        self.streams.append(handle)
        return ptr

    def deallocate(self, ptr: int, nbytes: int, stream: Stream) -> None:
        assert self.live.pop(ptr) == nbytes
        handle = stream.__cuda_stream__()[1]
        self.streams.append(handle)
        check(cuda.cuMemFreeAsync(ptr, handle))


def runtime_resource() -> RuntimeMemoryResource:
    return RuntimeMemoryResource(DeviceRuntime())


def current(device: int = 0) -> rmm.mr.DeviceMemoryResource:
    return rmm.mr.get_per_device_resource(device)
