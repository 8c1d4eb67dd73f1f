"""Each library's way to allocate and free, in one shape for the loops in `cases`: xlogmem's, the driver's, RMM's,
CuPy's, PyTorch's and cuda.core's.

Only this part of the benchmarks calls the libraries' allocation functions; for page-locked memory `pinned` does.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem.sim.kernels import check
from xlogmem_bench import _loops
from xlogmem_bench.world import STREAMS, Failed, World, streams_for, unless_failed

__all__ = ["CPP", "FLOOR", "OURS", "PEER", "PER_USE_EVENTS", "PYTHON", "NativeAllocator", "PythonAllocator", "native",
           "python", "rmm_resources", "runtimes"]

PYTHON, CPP = "Python", "C++"
OURS, FLOOR, PEER = "ours", "floor", "peer"
PER_USE_EVENTS = "per-use-event scheme"                 # the row of `_loops.Allocator.per_use_events`
Functions = tuple[Callable[[int], Any], Callable[[Any, int], object]]       # allocate and free, see PythonAllocator.on


class PythonAllocator:
    """A way to allocate and free from Python, on streams that are known by their number.

    `on` returns two functions, ``allocate(nbytes) -> token`` and ``free(token, nbytes)``.  A library that allocates on
    a current stream sets it in `enter`, once for a loop on one stream; with `switching` it is set in each call.
    """

    role = PEER
    note = ""

    def __init__(self, name: str, streams: list[Any]) -> None:
        self.name = name
        self.streams = streams

    def enter(self, stream: int) -> None:
        """Called in the allocating thread, before its first allocation."""

    def on(self, stream: int, switching: bool = False) -> Functions:
        raise NotImplementedError

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        allocate, free = self.on(stream)
        return lambda: free(allocate(nbytes), nbytes)


class Ours(PythonAllocator):
    """`DeviceRuntime.allocate` and `DeviceBlock.free`."""

    role = OURS

    def __init__(self, name: str, runtime: xlogmem.DeviceRuntime, streams: list[Any]) -> None:
        super().__init__(name, streams)
        self.runtime = runtime

    def on(self, stream: int, switching: bool = False) -> Functions:
        allocate, target = self.runtime.allocate, self.streams[stream]
        return lambda nbytes: allocate(nbytes, target), lambda block, _: block.free()

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        allocate, target = self.runtime.allocate, self.streams[stream]
        return lambda: allocate(nbytes, target).free()


class Bindings(PythonAllocator):
    """The driver's calls through cuda.bindings' Python functions, on the device's current pool."""

    note = "cuda.bindings' calls carry Python's call cost, check no error and do no bookkeeping"

    def on(self, stream: int, switching: bool = False) -> Functions:
        target, allocate, free = self.streams[stream], cuda.cuMemAllocAsync, cuda.cuMemFreeAsync
        return lambda nbytes: allocate(nbytes, target)[1], lambda ptr, _: free(ptr, target)

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        target, allocate, free = self.streams[stream], cuda.cuMemAllocAsync, cuda.cuMemFreeAsync
        return lambda: free(allocate(nbytes, target)[1], target)


class Rmm(PythonAllocator):
    """An RMM resource's own methods."""

    def __init__(self, name: str, mr: Any, streams: list[Any], role: str = PEER) -> None:
        super().__init__(name, streams)
        self.mr = mr
        self.role = role

    def on(self, stream: int, switching: bool = False) -> Functions:
        target, allocate, free = self.streams[stream], self.mr.allocate, self.mr.deallocate
        return lambda nbytes: allocate(nbytes, target), lambda ptr, nbytes: free(ptr, nbytes, target)

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        target, allocate, free = self.streams[stream], self.mr.allocate, self.mr.deallocate
        return lambda: free(allocate(nbytes, target), nbytes, target)


class RmmBuffer(Rmm):
    """`rmm.DeviceBuffer`, the usual owner of RMM memory in Python."""

    def on(self, stream: int, switching: bool = False) -> Functions:
        from rmm import DeviceBuffer

        target, mr = self.streams[stream], self.mr
        return lambda nbytes: DeviceBuffer(size=nbytes, stream=target, mr=mr), lambda buffer, _: None

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        from rmm import DeviceBuffer

        target, mr = self.streams[stream], self.mr
        return lambda: DeviceBuffer(size=nbytes, stream=target, mr=mr)


class CupyPool(PythonAllocator):
    """`malloc` of a CuPy pool; dropping the pointer frees the memory."""

    note = "CuPy's current stream; nothing orders a use elsewhere or after the free"

    def __init__(self, name: str, pool: Any, streams: list[Any]) -> None:
        super().__init__(name, streams)
        self.malloc = pool.malloc

    def enter(self, stream: int) -> None:
        self.streams[stream].use()

    def on(self, stream: int, switching: bool = False) -> Functions:
        target, malloc = self.streams[stream], self.malloc

        def allocate(nbytes: int) -> Any:
            target.use()
            return malloc(nbytes)

        return allocate if switching else malloc, lambda pointer, _: None

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        malloc = self.malloc
        return lambda: malloc(nbytes)


class Torch(PythonAllocator):
    """`torch.empty` and the end of the tensor."""

    note = "makes a tensor, on PyTorch's current stream; nothing orders a use elsewhere"

    def __init__(self, name: str, torch: Any, streams: list[Any]) -> None:
        super().__init__(name, streams)
        self.torch = torch

    def enter(self, stream: int) -> None:
        self.torch.cuda.set_stream(self.streams[stream])

    def on(self, stream: int, switching: bool = False) -> Functions:
        empty, dtype, device = self.torch.empty, self.torch.uint8, self.torch.device("cuda", 0)
        target, switch = self.streams[stream], self.torch.cuda.set_stream

        def plain(nbytes: int) -> Any:
            return empty(nbytes, dtype=dtype, device=device)

        def switched(nbytes: int) -> Any:
            switch(target)
            return empty(nbytes, dtype=dtype, device=device)

        return switched if switching else plain, lambda tensor, _: None

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        empty, dtype, device = self.torch.empty, self.torch.uint8, self.torch.device("cuda", 0)
        return lambda: empty(nbytes, dtype=dtype, device=device)


class CudaCore(PythonAllocator):
    """`DeviceMemoryResource.allocate` and `Buffer.close` of cuda.core."""

    note = "makes a Buffer on the device's current pool; nothing orders a use elsewhere"

    def __init__(self, name: str, core: Any, streams: list[Any]) -> None:
        super().__init__(name, streams)
        self.allocate = core.Device(0).memory_resource.allocate

    def on(self, stream: int, switching: bool = False) -> Functions:
        allocate, target = self.allocate, self.streams[stream]
        return lambda nbytes: allocate(nbytes, stream=target), lambda buffer, _: buffer.close(target)


def keep_current_pool(world: World, stack: ExitStack) -> None:
    """Make the device's current pool keep all of its memory, as every pool here does."""
    pool = check(cuda.cuDeviceGetMemPool(world.device))
    threshold = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    before = check(cuda.cuMemPoolGetAttribute(pool, threshold))
    check(cuda.cuMemPoolSetAttribute(pool, threshold, cuda.cuuint64_t(2 ** 64 - 1)))
    stack.callback(lambda: check(cuda.cuMemPoolSetAttribute(pool, threshold, cuda.cuuint64_t(int(before)))))
    stack.callback(lambda: check(cuda.cuMemPoolTrimTo(pool, 0)))


def runtimes(room: int) -> dict[str, xlogmem.DeviceRuntime]:
    """xlogmem's runtimes, with streams for all candidates."""
    resources = {"xlogmem async": xlogmem.AsyncMemoryResource(),
                 "xlogmem pool": xlogmem.PoolMemoryResource(initial_pool_size=room, maximum_pool_size=room)}
    return {name: xlogmem.DeviceRuntime(resource=resource, stream_pool=xlogmem.StreamPool(max_streams=2 * STREAMS))
            for name, resource in resources.items()}


def rmm_resources(world: World, room: int) -> dict[str, Any]:
    """RMM's resources, one of them under the statistics adaptor, which is the least that an adaptor costs."""
    mr = world.modules["RMM"].mr
    asynchronous = mr.CudaAsyncMemoryResource()
    return {"rmm async": asynchronous,
            "rmm async, statistics": mr.StatisticsResourceAdaptor(asynchronous),
            "rmm pool": mr.PoolMemoryResource(mr.CudaMemoryResource(), room, room),
            "rmm arena": mr.ArenaMemoryResource(mr.CudaMemoryResource(), room)}


def python(world: World, stack: ExitStack, room: int, failed: Failed) -> Iterator[PythonAllocator]:
    """Each way to allocate from Python, new for each case."""
    for name, runtime in runtimes(room).items():
        yield Ours(name, runtime, [runtime.acquire_stream() for _ in world.streams])
    keep_current_pool(world, stack)
    yield Bindings("cuda.bindings", world.streams)
    for name, make in (("RMM", _of_rmm), ("CuPy", _of_cupy), ("PyTorch", _of_torch), ("cuda.core", _of_core)):
        if name in world.modules:
            yield from unless_failed(name, make(world, stack, room), failed)


def _of_rmm(world: World, stack: ExitStack, room: int) -> Iterator[PythonAllocator]:
    streams = streams_for(world, "RMM")
    for name, mr in rmm_resources(world, room).items():
        yield Rmm(name, mr, streams)
        if name in ("rmm async", "rmm pool"):
            yield RmmBuffer(f"rmm.DeviceBuffer, {name[4:]}", mr, streams)


def _of_cupy(world: World, stack: ExitStack, room: int) -> Iterator[PythonAllocator]:
    memory, streams = world.modules["CuPy"].cuda, streams_for(world, "CuPy")
    previous = memory.get_current_stream()
    stack.callback(previous.use)
    for name, pool in (("cupy MemoryPool", memory.MemoryPool()), ("cupy MemoryAsyncPool", memory.MemoryAsyncPool())):
        yield CupyPool(name, pool, streams)
        stack.callback(pool.free_all_blocks)


def _of_torch(world: World, stack: ExitStack, room: int) -> Iterator[PythonAllocator]:
    torch = world.modules["PyTorch"]
    stack.callback(torch.cuda.empty_cache)
    stack.callback(torch.cuda.set_stream, torch.cuda.current_stream())
    yield Torch("torch.empty", torch, streams_for(world, "PyTorch"))


def _of_core(world: World, stack: ExitStack, room: int) -> Iterator[PythonAllocator]:
    yield CudaCore("cuda.core", world.modules["cuda.core"], streams_for(world, "cuda.core"))


# ---------------------------------------------------------------------------------------------- from C++
class NativeAllocator:
    """A way to allocate from C++, without the GIL: `loops` has the loops, `streams` the handles for them."""

    def __init__(self, name: str, role: str, loops: _loops.Allocator, streams: list[int], note: str = "") -> None:
        self.name, self.role, self.loops, self.streams, self.note = name, role, loops, streams, note


def native(world: World, stack: ExitStack, room: int, failed: Failed) -> Iterator[NativeAllocator]:
    """Each way to allocate from C++, new for each case; the floor first."""
    yield NativeAllocator("driver", FLOOR, _loops.Allocator.driver(), world.streams)
    for name, runtime in runtimes(room).items():
        streams = [runtime.acquire_stream() for _ in world.streams]
        stack.callback(streams.clear)                           # held until the case is over
        yield NativeAllocator(name, OURS, _loops.Allocator.table(runtime), [stream.handle for stream in streams])
    yield NativeAllocator(PER_USE_EVENTS, PEER, _loops.Allocator.per_use_events(), world.streams)
    if "RMM" in world.modules:
        yield from unless_failed("RMM", _native_rmm(world, room), failed)


def _native_rmm(world: World, room: int) -> Iterator[NativeAllocator]:
    from xlogmem.rmm._binding import upstream_of

    for name, mr in rmm_resources(world, room).items():
        yield NativeAllocator(name, PEER, _loops.Allocator.of(upstream_of(mr)), world.streams)
