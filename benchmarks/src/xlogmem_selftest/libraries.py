"""Other libraries in random programs: blocks that they work on, and arrays of theirs that are used here.

A program needs four things of a library: streams, memory from its allocator, a view of a block, and copies.  It writes
by a copy from memory of the library's own, which a kernel has filled, and reads by a copy to there, where a kernel
looks at it.  So each word is checked on the device, and on the simulated driver as well, where kernels of libraries
compute nothing.

What a library needs is imported when it is chosen, here and nowhere else in the selftest.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, cast

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import allocators
from xlogmem.runtime import DeviceRuntime, existing_runtime, forget_runtime, set_runtime
from xlogmem.sim.kernels import check

__all__ = ["LIBRARIES", "Handed", "Library", "enabled", "installed", "loaded"]

STREAMS = 2                                 # of each library, made once: some are never destroyed
WORD = 4


class Library:
    """A library that is imported and works here.  Arrays have words of 32 bits; offsets and sizes are in bytes.

    `module` is imported.  `knows_current`: its current stream, or its default one, is known to `use`.  `by_interface`:
    it takes blocks by the CUDA array interface, which names the stream, and by DLPack otherwise.  `enables`: the name
    that `xlogmem.enable` has for it, where that can be undone.
    """

    module = ""
    knows_current = False
    by_interface = False
    enables: str | None = None

    def __init__(self) -> None:
        self.library: Any = import_module(self.module)
        self.start()
        self.streams = [self.make_stream() for _ in range(STREAMS)]
        for stream in self.streams:                     # what it makes at its first call stays
            one, other = self.empty(256, stream), self.empty(256, stream)
            self.copy(one, 0, other, 0, 256, stream)
        check(cuda.cuCtxSynchronize())
        del one, other
        self.finish()

    def start(self) -> None:
        """Choose the device."""

    def make_stream(self) -> Any:
        raise NotImplementedError

    def handle_of(self, stream: Any) -> int:
        return int(stream.__cuda_stream__()[1])

    def named(self, handle: int) -> Any:
        """A stream of another library, as an object of this one."""
        raise NotImplementedError

    def current(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        """A context in which this stream is the library's current one, if the library has a current stream."""
        return contextlib.nullcontext()

    def empty(self, nbytes: int, stream: Any) -> Any:
        """An array from the library's allocator, for work on a stream."""
        raise NotImplementedError

    def view(self, exporter: Any, stream: Any) -> Any:
        """An array over the memory of a buffer, for work on a stream."""
        raise NotImplementedError

    def address_of(self, array: Any) -> int:
        raise NotImplementedError

    def copy(self, target: Any, to: int, source: Any, at: int, nbytes: int, stream: Any) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Return memory that is cached."""


class Cupy(Library):
    module, knows_current, enables = "cupy", True, "cupy"

    def start(self) -> None:
        self.library.cuda.Device(0).use()

    def make_stream(self) -> Any:
        return self.library.cuda.Stream(non_blocking=True)

    def current(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        entered: contextlib.AbstractContextManager[Any] = stream
        return entered

    def empty(self, nbytes: int, stream: Any) -> Any:
        with stream:
            return self.library.empty(nbytes // WORD, "uint32")

    def view(self, exporter: Any, stream: Any) -> Any:
        with stream:
            return self.library.from_dlpack(exporter)

    def address_of(self, array: Any) -> int:
        return int(array.data.ptr)

    def copy(self, target: Any, to: int, source: Any, at: int, nbytes: int, stream: Any) -> None:
        (target.data + to).copy_from_device_async(source.data + at, nbytes, stream)

    def finish(self) -> None:
        self.library.get_default_memory_pool().free_all_blocks()


class Torch(Library):
    """Its allocator cannot be changed back, so `enables` is None."""

    module, knows_current = "torch", True

    def start(self) -> None:
        if not self.library.cuda.is_available():
            raise RuntimeError("PyTorch finds no CUDA device")
        self.library.cuda.init()

    def make_stream(self) -> Any:
        return self.library.cuda.Stream()

    def handle_of(self, stream: Any) -> int:
        return int(stream.cuda_stream)

    def current(self, stream: Any) -> contextlib.AbstractContextManager[Any]:
        entered: contextlib.AbstractContextManager[Any] = self.library.cuda.stream(stream)
        return entered

    def empty(self, nbytes: int, stream: Any) -> Any:
        with self.current(stream):
            return self.library.empty(nbytes // WORD, dtype=self.library.uint32, device="cuda:0")

    def view(self, exporter: Any, stream: Any) -> Any:
        with self.current(stream):
            return self.library.from_dlpack(exporter)

    def address_of(self, array: Any) -> int:
        return int(array.data_ptr())

    def copy(self, target: Any, to: int, source: Any, at: int, nbytes: int, stream: Any) -> None:
        with self.current(stream):
            target[to // WORD:(to + nbytes) // WORD].copy_(source[at // WORD:(at + nbytes) // WORD], non_blocking=True)

    def finish(self) -> None:
        self.library.cuda.empty_cache()


class Numba(Library):
    """Memory belongs to the default stream, for which Numba's own streams wait."""

    module, knows_current, by_interface, enables = "numba.cuda", True, True, "numba"

    def start(self) -> None:
        self.library.current_context()

    def make_stream(self) -> Any:
        return self.library.stream()

    def handle_of(self, stream: Any) -> int:
        handle = stream.handle
        return int(getattr(handle, "value", handle) or 0)

    def named(self, handle: int) -> Any:
        return self.library.external_stream(handle)

    def empty(self, nbytes: int, stream: Any) -> Any:
        return self.library.device_array(nbytes // WORD, "uint32")

    def view(self, exporter: Any, stream: Any) -> Any:
        return self.library.as_cuda_array(exporter, sync=False)

    def address_of(self, array: Any) -> int:
        return int(array.__cuda_array_interface__["data"][0])

    def copy(self, target: Any, to: int, source: Any, at: int, nbytes: int, stream: Any) -> None:
        target[to // WORD:(to + nbytes) // WORD].copy_to_device(source[at // WORD:(at + nbytes) // WORD], stream=stream)

    def finish(self) -> None:
        self.library.current_context().memory_manager.deallocations.clear()


class CudaCore(Library):
    module, enables = "cuda.core", "cuda.core"

    def start(self) -> None:
        self.library.Device(0).set_current()

    def make_stream(self) -> Any:
        return self.library.Device(0).create_stream()

    def empty(self, nbytes: int, stream: Any) -> Any:
        return self.library.Device(0).allocate(nbytes, stream=stream)

    def view(self, exporter: Any, stream: Any) -> Any:
        seen = import_module("cuda.core.utils").StridedMemoryView.from_dlpack(exporter, self.handle_of(stream))
        return self.library.Buffer.from_handle(seen.ptr, seen.size * WORD, owner=seen)

    def address_of(self, array: Any) -> int:
        return int(array.handle)

    def copy(self, target: Any, to: int, source: Any, at: int, nbytes: int, stream: Any) -> None:
        self.part(target, to, nbytes).copy_from(self.part(source, at, nbytes), stream=stream)

    def part(self, buffer: Any, offset: int, nbytes: int) -> Any:
        return self.library.Buffer.from_handle(int(buffer.handle) + offset, nbytes, owner=buffer)


class Rmm(Library):
    """Its current resource; a block is named by its interface, because RMM has no arrays over other memory."""

    module, by_interface = "rmm", True

    def start(self) -> None:
        self.streams_of: Any = import_module("rmm.pylibrmm.stream")
        self.copies: Any = import_module("rmm.pylibrmm.device_buffer")

    def make_stream(self) -> Any:
        return self.streams_of.Stream()

    def named(self, handle: int) -> Any:
        return self.streams_of.Stream(Handle(handle))

    def wrapped(self, stream: Any) -> Any:
        """Before 26.08 RMM's calls take no others than its own streams."""
        return stream if isinstance(stream, self.streams_of.Stream) else self.streams_of.Stream(stream)

    def empty(self, nbytes: int, stream: Any) -> Any:
        return self.library.DeviceBuffer(size=nbytes, stream=self.wrapped(stream))

    def view(self, exporter: Any, stream: Any) -> Any:
        return exporter.__cuda_array_interface__

    def address_of(self, array: Any) -> int:
        return int(array["data"][0] if isinstance(array, dict) else array.ptr)

    def copy(self, target: Any, to: int, source: Any, at: int, nbytes: int, stream: Any) -> None:
        self.copies.copy_device_to_ptr(self.address_of(source) + at, self.address_of(target) + to, nbytes,
                                       self.wrapped(stream))


class Handle:
    """A stream under the ``__cuda_stream__`` protocol."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


LIBRARIES: dict[str, type[Library]] = {"cupy": Cupy, "torch": Torch, "numba": Numba, "cuda.core": CudaCore, "rmm": Rmm}
_loaded: dict[str, Library] = {}


def loaded(name: str) -> Library:
    """The library, imported and started once.

    Raises
    ------
    Exception
        Whatever it raises where it is not installed, or does not work.
    """
    if name not in _loaded:
        primary = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))
        check(cuda.cuCtxPushCurrent(primary))
        try:
            _loaded[name] = LIBRARIES[name]()
        finally:
            check(cuda.cuCtxSetCurrent(primary))        # libraries may have made others current
            check(cuda.cuCtxPopCurrent())
    return _loaded[name]


def installed(names: tuple[str, ...]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Those of the libraries that work here, and of the others why they do not."""
    missing: dict[str, str] = {}
    for name in names:
        try:
            loaded(name)
        except Exception as error:                      # a library may raise anything
            absent = isinstance(error, ModuleNotFoundError)
            missing[name] = "not installed" if absent else f"{type(error).__name__}: {error}"[:200]
    return tuple(name for name in names if name not in missing), missing


class Handed:
    """Memory as a library has it, which works on it on one stream; `own` is memory of the library's, for that stream.
    """

    def __init__(self, library: Library, array: Any, stream: Any, own: Any) -> None:
        self.library, self.array, self.stream, self.own = library, array, stream, own
        self.at = library.address_of(own)

    def read(self, offset: int, nbytes: int) -> None:
        """Copy a part of it to the library's own memory."""
        self.library.copy(self.own, 0, self.array, offset, nbytes, self.stream)

    def write(self, offset: int, nbytes: int) -> None:
        """Copy the library's own memory there."""
        self.library.copy(self.array, offset, self.own, 0, nbytes, self.stream)


@contextlib.contextmanager
def enabled(runtime: DeviceRuntime, names: list[str]) -> Iterator[None]:
    """These libraries allocate from a runtime, which is the process's own meanwhile."""
    former = existing_runtime(runtime.device_id)
    set_runtime(runtime, instead_of=former)
    try:
        xlogmem.enable(*cast(list[allocators.Library], names))
        yield
    finally:
        xlogmem.disable(*cast(list[allocators.Library], names))
        for name in names:
            streams = getattr(import_module(f"xlogmem.allocators.{name.replace('.', '_')}"), "_streams", None)
            if streams is not None:
                streams.sweep()                         # those of the runtime are unregistered, and held no more
        forget_runtime(runtime)
        if former is not None:
            set_runtime(former)
