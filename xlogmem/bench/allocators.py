"""Everybody's allocators in one shape, for the loops in `cases`: ours, the driver's, RMM's, CuPy's, PyTorch's and
cuda.core's.

This is the only place of the benchmarks that knows how a neighbour is made to allocate.  One that is not installed, or
does not start, is named with the reason.
"""
from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem._driver import initialize, is_simulated
from xlogmem._kernels import Kernels, check
from xlogmem.bench import _loops

__all__ = ["CPP", "FLOOR", "OURS", "PEER", "PYTHON", "NativeAllocator", "PythonAllocator", "World", "native", "python",
           "rmm_resources", "runtimes", "streams_for"]

PYTHON, CPP = "Python", "C++"
OURS, FLOOR, PEER = "ours", "floor", "peer"
STREAMS = 16
MIB = 1 << 20

# Neighbours: the name that people know, the module, and the names of its distribution.  pylibcudf wants a newer CUDA
# library than PyTorch brings, so it comes first.
NEIGHBOURS: dict[str, tuple[str, tuple[str, ...]]] = {
    "RMM": ("rmm", ("rmm-cu12", "rmm-cu13", "rmm")),
    "pylibcudf": ("pylibcudf", ("pylibcudf-cu12", "pylibcudf-cu13", "pylibcudf")),
    "CuPy": ("cupy", ("cupy-cuda12x", "cupy-cuda13x", "cupy")),
    "PyTorch": ("torch", ("torch",)),
    "cuda.core": ("cuda.core", ("cuda-core",)),
    "CUDASTF": ("cuda.stf._experimental", ("cuda-stf",)),
}


class World:
    """What the cases of one process share: the context, streams that belong to nobody, and who is installed.

    `neighbours` are to take part, but for those `without` whom it is to be.  `room` is what each allocator with memory
    of its own may take, in bytes; `longest` what a program may take from C++, in seconds.
    """

    def __init__(self, room: int | None = None, without: Collection[str] = (), longest: float = 0,
                 neighbours: Collection[str] = tuple(NEIGHBOURS)) -> None:
        initialize()
        self.longest = longest
        self.simulated = is_simulated()
        self.device = check(cuda.cuDeviceGet(0))
        self.context = check(cuda.cuDevicePrimaryCtxRetain(self.device))
        check(cuda.cuCtxSetCurrent(self.context))
        self.kernels = Kernels()
        self.streams = [int(check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)))
                        for _ in range(STREAMS)]
        self.free = check(cuda.cuMemGetInfo())[0]
        self.room = room or min(20 << 30, self.free // 7)
        self.missing: dict[str, str] = {}
        self.found: dict[str, str] = {"cuda.bindings": version("cuda-bindings")}
        self.modules: dict[str, Any] = {}
        for name, (module, distributions) in NEIGHBOURS.items():
            if name not in neighbours:
                continue
            if name in without:
                self.missing[name] = "left out"
                continue
            try:
                self.modules[name] = importlib.import_module(module)
                self._start(name)
            except Exception as error:                          # whatever a neighbour's import may raise
                self.modules.pop(name, None)
                absent = isinstance(error, ModuleNotFoundError)
                self.missing[name] = "not installed" if absent else f"{type(error).__name__}: {error}"[:200]
            else:
                self.found[name] = _version_of(distributions) or "of unknown version"
        check(cuda.cuCtxSetCurrent(self.context))

    def _start(self, name: str) -> None:
        """Make a neighbour do what it does at its first call; on the simulated driver some do not start."""
        module = self.modules[name]
        if name == "RMM":
            if self.simulated:
                raise RuntimeError("its CUDA runtime does not start on the simulated driver")
            module.mr.CudaMemoryResource().deallocate(module.mr.CudaMemoryResource().allocate(256), 256)
        elif name == "CuPy":
            module.cuda.Device(0).use()
            module.empty(1)
        elif name == "PyTorch":
            module.empty(1, device="cuda")
        elif name == "cuda.core":
            module.Device(0).set_current()
        elif name == "CUDASTF":
            module.context().finalize()                         # the import alone loads nothing that was compiled

    def share(self, wanted: int) -> int:
        """What an allocator of a case gets."""
        return min(wanted, self.room) // MIB * MIB

    def synchronize(self) -> None:
        check(cuda.cuCtxSynchronize())

    def close(self) -> None:
        self.synchronize()
        self.kernels.close()
        for stream in self.streams:
            check(cuda.cuStreamDestroy(stream))
        check(cuda.cuDevicePrimaryCtxRelease(self.device))


def _version_of(distributions: tuple[str, ...]) -> str | None:
    for name in distributions:
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return None


# ---------------------------------------------------------------------------------------------- from Python
class PythonAllocator:
    """How somebody allocates and frees from Python, on streams that are known by their number.

    `on` gives two functions, ``allocate(nbytes) -> token`` and ``free(token, nbytes)``.  Who allocates on a current
    stream sets it in `enter`, once for a loop on one stream, or each time where `switching` says that streams change.
    """

    role = PEER
    note = ""

    def __init__(self, name: str, streams: list[Any]) -> None:
        self.name = name
        self.streams = streams

    def enter(self, stream: int) -> None:
        """Called in the thread that allocates, before it does."""

    def on(self, stream: int, switching: bool = False) -> tuple[Callable[[int], Any], Callable[[Any, int], object]]:
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

    def on(self, stream: int, switching: bool = False) -> tuple[Callable[[int], Any], Callable[[Any, int], object]]:
        allocate, target = self.runtime.allocate, self.streams[stream]
        return lambda nbytes: allocate(nbytes, target), lambda block, _: block.free()

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        allocate, target = self.runtime.allocate, self.streams[stream]
        return lambda: allocate(nbytes, target).free()


class Bindings(PythonAllocator):
    """The driver's calls through cuda.bindings' Python functions, on the device's current pool."""

    note = "cuda.bindings' calls carry Python's call cost, check no error and keep no books"

    def on(self, stream: int, switching: bool = False) -> tuple[Callable[[int], Any], Callable[[Any, int], object]]:
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

    def on(self, stream: int, switching: bool = False) -> tuple[Callable[[int], Any], Callable[[Any, int], object]]:
        target, allocate, free = self.streams[stream], self.mr.allocate, self.mr.deallocate
        return lambda nbytes: allocate(nbytes, target), lambda ptr, nbytes: free(ptr, nbytes, target)

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        target, allocate, free = self.streams[stream], self.mr.allocate, self.mr.deallocate
        return lambda: free(allocate(nbytes, target), nbytes, target)


class RmmBuffer(Rmm):
    """`rmm.DeviceBuffer`, which is what people hold."""

    def on(self, stream: int, switching: bool = False) -> tuple[Callable[[int], Any], Callable[[Any, int], object]]:
        from rmm import DeviceBuffer

        target, mr = self.streams[stream], self.mr
        return lambda nbytes: DeviceBuffer(size=nbytes, stream=target, mr=mr), lambda buffer, _: None

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        from rmm import DeviceBuffer

        target, mr = self.streams[stream], self.mr
        return lambda: DeviceBuffer(size=nbytes, stream=target, mr=mr)


class CupyPool(PythonAllocator):
    """`malloc` of a CuPy pool; the memory goes back when the pointer is dropped."""

    note = "CuPy's current stream; nothing orders a use elsewhere or after the free"

    def __init__(self, name: str, pool: Any, streams: list[Any]) -> None:
        super().__init__(name, streams)
        self.malloc = pool.malloc

    def enter(self, stream: int) -> None:
        self.streams[stream].use()

    def on(self, stream: int, switching: bool = False) -> tuple[Callable[[int], Any], Callable[[Any, int], object]]:
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

    def on(self, stream: int, switching: bool = False) -> tuple[Callable[[int], Any], Callable[[Any, int], object]]:
        empty, kind, device = self.torch.empty, self.torch.uint8, self.torch.device("cuda", 0)
        target, switch = self.streams[stream], self.torch.cuda.set_stream

        def plain(nbytes: int) -> Any:
            return empty(nbytes, dtype=kind, device=device)

        def switched(nbytes: int) -> Any:
            switch(target)
            return empty(nbytes, dtype=kind, device=device)

        return switched if switching else plain, lambda tensor, _: None

    def pair(self, nbytes: int, stream: int) -> Callable[[], object]:
        empty, kind, device = self.torch.empty, self.torch.uint8, self.torch.device("cuda", 0)
        return lambda: empty(nbytes, dtype=kind, device=device)


class CudaCore(PythonAllocator):
    """`DeviceMemoryResource.allocate` and `Buffer.close` of cuda.core."""

    note = "makes a Buffer on the device's current pool; nothing orders a use elsewhere"

    def __init__(self, name: str, core: Any, streams: list[Any]) -> None:
        super().__init__(name, streams)
        self.allocate = core.Device(0).memory_resource.allocate

    def on(self, stream: int, switching: bool = False) -> tuple[Callable[[int], Any], Callable[[Any, int], object]]:
        allocate, target = self.allocate, self.streams[stream]
        return lambda nbytes: allocate(nbytes, stream=target), lambda buffer, _: buffer.close(target)


class _Foreign:
    """A stream of nobody's, under the ``__cuda_stream__`` protocol."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def streams_for(world: World, name: str) -> list[Any]:
    """The streams as a neighbour wants them."""
    module = world.modules[name]
    if name == "RMM":
        from rmm.pylibrmm.stream import Stream

        return [Stream(_Foreign(handle)) for handle in world.streams]
    if name == "CuPy":
        return [module.cuda.ExternalStream(handle) for handle in world.streams]
    if name == "PyTorch":
        return [module.cuda.ExternalStream(handle) for handle in world.streams]
    return [module.Stream.from_handle(handle) for handle in world.streams]


def keep_current_pool(world: World, stack: ExitStack) -> None:
    """Have the device's current pool keep what it has, as every pool here does."""
    pool = check(cuda.cuDeviceGetMemPool(world.device))
    threshold = cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    before = check(cuda.cuMemPoolGetAttribute(pool, threshold))
    check(cuda.cuMemPoolSetAttribute(pool, threshold, cuda.cuuint64_t(2 ** 64 - 1)))
    stack.callback(lambda: check(cuda.cuMemPoolSetAttribute(pool, threshold, cuda.cuuint64_t(int(before)))))
    stack.callback(lambda: check(cuda.cuMemPoolTrimTo(pool, 0)))


def runtimes(room: int) -> dict[str, xlogmem.DeviceRuntime]:
    """Ours, with streams for everybody."""
    resources = {"xlogmem async": xlogmem.AsyncMemoryResource(),
                 "xlogmem pool": xlogmem.PoolMemoryResource(initial_pool_size=room, maximum_pool_size=room)}
    return {name: xlogmem.DeviceRuntime(resource=resource, stream_pool=xlogmem.StreamPool(max_streams=2 * STREAMS))
            for name, resource in resources.items()}


def rmm_resources(world: World, room: int) -> dict[str, Any]:
    """RMM's resources, the statistics adaptor too: what an adaptor costs at least."""
    mr = world.modules["RMM"].mr
    asynchronous = mr.CudaAsyncMemoryResource()
    return {"rmm async": asynchronous,
            "rmm async, statistics": mr.StatisticsResourceAdaptor(asynchronous),
            "rmm pool": mr.PoolMemoryResource(mr.CudaMemoryResource(), room, room),
            "rmm arena": mr.ArenaMemoryResource(mr.CudaMemoryResource(), room)}


def python(world: World, stack: ExitStack, room: int, failed: Callable[[str, BaseException], None]
           ) -> Iterator[PythonAllocator]:
    """Everybody's way to allocate from Python, new for each case."""
    for name, runtime in runtimes(room).items():
        yield Ours(name, runtime, [runtime.acquire_stream() for _ in world.streams])
    keep_current_pool(world, stack)
    yield Bindings("cuda.bindings", world.streams)

    def of_rmm() -> Iterator[PythonAllocator]:
        streams = streams_for(world, "RMM")
        for name, mr in rmm_resources(world, room).items():
            yield Rmm(name, mr, streams)
            if name in ("rmm async", "rmm pool"):
                yield RmmBuffer(f"rmm.DeviceBuffer, {name[4:]}", mr, streams)

    def of_cupy() -> Iterator[PythonAllocator]:
        memory, streams = world.modules["CuPy"].cuda, streams_for(world, "CuPy")
        previous = memory.get_current_stream()
        stack.callback(previous.use)
        for name, pool in (("cupy MemoryPool", memory.MemoryPool()),
                           ("cupy MemoryAsyncPool", memory.MemoryAsyncPool())):
            yield CupyPool(name, pool, streams)
            stack.callback(pool.free_all_blocks)

    def of_torch() -> Iterator[PythonAllocator]:
        torch = world.modules["PyTorch"]
        stack.callback(torch.cuda.empty_cache)
        stack.callback(torch.cuda.set_stream, torch.cuda.current_stream())
        yield Torch("torch.empty", torch, streams_for(world, "PyTorch"))

    def of_core() -> Iterator[PythonAllocator]:
        yield CudaCore("cuda.core", world.modules["cuda.core"], streams_for(world, "cuda.core"))

    for name, make in (("RMM", of_rmm), ("CuPy", of_cupy), ("PyTorch", of_torch), ("cuda.core", of_core)):
        if name in world.modules:
            try:
                yield from make()
            except GeneratorExit:
                raise
            except Exception as error:
                failed(name, error)


# ---------------------------------------------------------------------------------------------- from C++
class NativeAllocator:
    """The same from C++, without the GIL: `loops` has the loops, `streams` the handles for them."""

    def __init__(self, name: str, role: str, loops: _loops.Allocator, streams: list[int], note: str = "") -> None:
        self.name, self.role, self.loops, self.streams, self.note = name, role, loops, streams, note


def native(world: World, stack: ExitStack, room: int, failed: Callable[[str, BaseException], None]
           ) -> Iterator[NativeAllocator]:
    """Everybody's way to allocate from C++, new for each case; the floor first."""
    yield NativeAllocator("driver", FLOOR, _loops.Allocator.driver(), world.streams)
    for name, runtime in runtimes(room).items():
        streams = [runtime.acquire_stream() for _ in world.streams]
        stack.callback(streams.clear)                                   # held until the case is over
        yield NativeAllocator(name, OURS, _loops.Allocator.table(runtime), [stream.handle for stream in streams])
    yield NativeAllocator("an event for each use (the seeds)", PEER, _loops.Allocator.seed(), world.streams)
    if "RMM" in world.modules:
        from xlogmem.rmm._binding import upstream_of

        try:
            for name, mr in rmm_resources(world, room).items():
                yield NativeAllocator(name, PEER, _loops.Allocator.of(upstream_of(mr)), world.streams)
        except GeneratorExit:
            raise
        except Exception as error:
            failed("RMM", error)
