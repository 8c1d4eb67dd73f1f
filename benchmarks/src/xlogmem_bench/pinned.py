"""Each library's way to page-locked memory of the host from Python, in one shape for the pairs and the uploads in
`cases`: the driver's, RMM's, CuPy's, PyTorch's and cuda.core's.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.sim.kernels import check
from xlogmem_bench import _loops
from xlogmem_bench.world import Failed, World, unless_failed

__all__ = ["KEPT", "STREAM_ORDERED", "Pinned", "ways"]

KEPT = 64                                   # pieces at most that wait for their events
MIB = 1 << 20
STREAM_ORDERED = "belongs to a stream, for which the host has to wait before it touches the memory"


class Pinned:
    """Page-locked memory, and events that say when its copy is complete.  Here: the driver's.

    `stream` is the handle of the stream of the copies."""

    name = "cuda.bindings"
    note = ""                               # on a pair
    native: _loops.Allocator | None = None  # the same from C++

    def __init__(self, module: Any, stream: int) -> None:
        self.module, self.stream = module, stream

    def allocate(self, nbytes: int) -> Any:
        return check(cuda.cuMemHostAlloc(nbytes, 0))

    def address(self, memory: Any) -> int:
        return int(memory)

    def free(self, memory: Any, nbytes: int) -> None:
        check(cuda.cuMemFreeHost(memory))

    def pair(self, nbytes: int) -> Callable[[], object]:
        allocate, free = self.allocate, self.free
        return lambda: free(allocate(nbytes), nbytes)

    def make_event(self) -> Any:
        return check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))

    def drop_event(self, event: Any) -> None:
        check(cuda.cuEventDestroy(event))

    def record(self, event: Any) -> None:
        check(cuda.cuEventRecord(event, self.stream))

    def is_done(self, event: Any) -> bool:
        return not int(cuda.cuEventQuery(event)[0])

    def wait(self, event: Any) -> None:
        check(cuda.cuEventSynchronize(event))


class WithEvents(Pinned):
    """... of a library whose objects free their memory and their events at their end."""

    def __init__(self, module: Any, stream: int) -> None:
        super().__init__(module, stream)
        self.on = module.cuda.ExternalStream(stream)

    def free(self, memory: Any, nbytes: int) -> None:
        """The end of the object does it."""

    def drop_event(self, event: Any) -> None:
        """Likewise."""

    def record(self, event: Any) -> None:
        event.record(self.on)

    def wait(self, event: Any) -> None:
        event.synchronize()


class Cupy(WithEvents):
    name = "cupy PinnedMemoryPool"

    def __init__(self, module: Any, stream: int) -> None:
        super().__init__(module, stream)
        self.malloc = module.cuda.PinnedMemoryPool().malloc

    def allocate(self, nbytes: int) -> Any:
        return self.malloc(nbytes)

    def address(self, memory: Any) -> int:
        return int(memory.ptr)

    def pair(self, nbytes: int) -> Callable[[], object]:
        malloc = self.malloc
        return lambda: malloc(nbytes)

    def make_event(self) -> Any:
        return self.module.cuda.Event(disable_timing=True)

    def is_done(self, event: Any) -> bool:
        return bool(event.done)


class Torch(WithEvents):
    name = "torch.empty, pinned"

    def allocate(self, nbytes: int) -> Any:
        return self.module.empty(nbytes, dtype=self.module.uint8, pin_memory=True)

    def address(self, memory: Any) -> int:
        return int(memory.data_ptr())

    def pair(self, nbytes: int) -> Callable[[], object]:
        empty, dtype = self.module.empty, self.module.uint8
        return lambda: empty(nbytes, dtype=dtype, pin_memory=True)

    def make_event(self) -> Any:
        return self.module.cuda.Event()

    def is_done(self, event: Any) -> bool:
        return bool(event.query())


class CudaCore(Pinned):
    """Allocated on a stream of its own, which is synchronized before the host touches the memory."""

    name, note = "cuda.core, pinned", STREAM_ORDERED

    def __init__(self, module: Any, stream: int) -> None:
        super().__init__(module, stream)
        self.own = module.Device(0).create_stream()
        self.resource = module.PinnedMemoryResource(module.PinnedMemoryResourceOptions())
        self.keep_all()

    def keep_all(self) -> None:
        """Have the pool keep what is freed, as the other pools do."""
        check(cuda.cuMemPoolSetAttribute(
            self.resource.handle, cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cuda.cuuint64_t(2**63)))

    def allocate(self, nbytes: int) -> Any:
        memory = self.resource.allocate(nbytes, stream=self.own)
        self.own.sync()
        return memory

    def address(self, memory: Any) -> int:
        return int(memory.handle)

    def free(self, memory: Any, nbytes: int) -> None:
        memory.close()

    def pair(self, nbytes: int) -> Callable[[], object]:
        allocate, own = self.resource.allocate, self.own
        return lambda: allocate(nbytes, stream=own).close()


class Rmm(Pinned):
    name = "rmm pinned"

    def __init__(self, module: Any, stream: int) -> None:
        super().__init__(module, stream)
        self.resource = self.resource_of(module.mr)
        self.native = self.native_of()

    def resource_of(self, mr: Any) -> Any:
        return mr.PinnedHostMemoryResource()

    def native_of(self) -> _loops.Allocator:
        from xlogmem.rmm._binding import upstream_of

        return _loops.Allocator.of(upstream_of(self.resource))

    def allocate(self, nbytes: int) -> Any:
        return self.resource.allocate(nbytes)

    def free(self, memory: Any, nbytes: int) -> None:
        self.resource.deallocate(memory, nbytes)

    def pair(self, nbytes: int) -> Callable[[], object]:
        allocate, deallocate = self.resource.allocate, self.resource.deallocate
        return lambda: deallocate(allocate(nbytes), nbytes)


class RmmPool(Rmm):
    name = "rmm pool, pinned"

    def resource_of(self, mr: Any) -> Any:
        return mr.PoolMemoryResource(mr.PinnedHostMemoryResource(), initial_pool_size=2 * KEPT * MIB)


WAYS: dict[str, tuple[type[Pinned], ...]] = {
    "RMM": (Rmm, RmmPool), "CuPy": (Cupy,), "PyTorch": (Torch,), "cuda.core": (CudaCore,)}


def ways(world: World, stream: int, failed: Failed) -> Iterator[Pinned]:
    """The driver's, and those of the libraries that are here, new for each case."""
    yield Pinned(None, stream)
    for library, kinds in WAYS.items():
        for kind in kinds if library in world.modules else ():
            yield from unless_failed(kind.name, map(kind, [world.modules[library]], [stream]), failed)
