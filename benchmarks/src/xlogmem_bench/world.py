"""State shared by the cases of one process: the context, the streams, and the other libraries that are installed.

A library that is not installed, or does not start, is listed with the reason.
"""
from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from cuda.bindings import driver as cuda

from xlogmem._driver import initialize, is_simulated
from xlogmem.sim.kernels import Kernels, check

__all__ = ["LIBRARIES", "STREAMS", "Failed", "World", "streams_for", "unless_failed"]

STREAMS = 16
MIB = 1 << 20
T = TypeVar("T")
Failed = Callable[[str, BaseException], None]           # the name of a library or candidate, and its error

# The other libraries: the name in reports, the module, and the names of its distribution.  pylibcudf needs a newer CUDA
# library than PyTorch brings, so it is imported first.
LIBRARIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "RMM": ("rmm", ("rmm-cu12", "rmm-cu13", "rmm")),
    "pylibcudf": ("pylibcudf", ("pylibcudf-cu12", "pylibcudf-cu13", "pylibcudf")),
    "CuPy": ("cupy", ("cupy-cuda12x", "cupy-cuda13x", "cupy")),
    "PyTorch": ("torch", ("torch",)),
    "cuda.core": ("cuda.core", ("cuda-core",)),
    "Numba": ("numba.cuda", ("numba-cuda",)),
    "CUDASTF": ("cuda.stf._experimental", ("cuda-stf",)),
}


class World:
    """The context, streams that belong to no library, the kernels, and the imported libraries.

    Parameters
    ----------
    room : int, optional
        Bytes that each allocator with memory of its own may take.  The default is a seventh of what is free.
    without : collection of str
        Libraries that are left out.
    longest : float
        Seconds that a program may take from C++; 0: no limit.
    libraries : collection of str
        Libraries that take part, if they are installed.
    """

    def __init__(self, room: int | None = None, without: Collection[str] = (), longest: float = 0,
                 libraries: Collection[str] = tuple(LIBRARIES)) -> None:
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
        self.lasting: dict[type[Any], Any] = {}
        self.missing: dict[str, str] = {}
        self.found: dict[str, str] = {"cuda.bindings": version("cuda-bindings")}
        self.modules: dict[str, Any] = {}
        for name in LIBRARIES:
            if name in libraries:
                if name in without:
                    self.missing[name] = "left out"
                else:
                    self._load(name)
        check(cuda.cuCtxSetCurrent(self.context))

    def _load(self, name: str) -> None:
        module, distributions = LIBRARIES[name]
        try:
            self.modules[name] = importlib.import_module(module)
            self._start(name)
        except Exception as error:                              # importing a library may raise anything
            self.modules.pop(name, None)
            absent = isinstance(error, ModuleNotFoundError)
            self.missing[name] = "not installed" if absent else f"{type(error).__name__}: {error}"[:200]
        else:
            self.found[name] = _version_of(distributions) or "of unknown version"

    def _start(self, name: str) -> None:
        """Make a library do now what it does at its first call; on the simulated driver some do not start."""
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
        elif name == "Numba":
            module.current_context()
        elif name == "CUDASTF":
            module.context().finalize()                         # the import alone loads nothing that was compiled

    def share(self, wanted: int) -> int:
        """Bytes for one allocator of a case."""
        return min(wanted, self.room) // MIB * MIB

    def lasts(self, kind: type[T]) -> T:
        """The one object of a kind that all cases share; it is closed with the world."""
        if kind not in self.lasting:
            self.lasting[kind] = kind()
        made: T = self.lasting[kind]
        return made

    def synchronize(self) -> None:
        check(cuda.cuCtxSynchronize())

    def close(self) -> None:
        for made in self.lasting.values():
            made.close()
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


class _Foreign:
    """A stream handle under the ``__cuda_stream__`` protocol."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


def streams_for(world: World, name: str) -> list[Any]:
    """The streams as objects of a library."""
    module = world.modules[name]
    if name == "RMM":
        from rmm.pylibrmm.stream import Stream

        return [Stream(_Foreign(handle)) for handle in world.streams]
    if name in ("CuPy", "PyTorch"):
        return [module.cuda.ExternalStream(handle) for handle in world.streams]
    return [module.Stream.from_handle(handle) for handle in world.streams]


def unless_failed(name: str, made: Iterable[T], failed: Failed) -> Iterator[T]:
    """Yield what a library makes, until it raises: then report the error, and the other libraries go on."""
    try:
        yield from made
    except Exception as error:
        failed(name, error)
