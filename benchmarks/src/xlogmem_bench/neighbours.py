"""Allocators of other libraries: a pair in the words of each, and the switch to another allocator.

A process can put a library on another allocator once: PyTorch's cannot be changed back.  So this runs in the processes
of `workers`, one for each allocator.
"""
from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import cycle
from typing import Any, cast

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem.allocators import Library
from xlogmem.runtime import set_runtime
from xlogmem.sim.kernels import check
from xlogmem_bench.allocators import runtimes

__all__ = ["ALLOCATORS", "NEIGHBOURS", "NO_BYTES", "OWN", "Neighbour", "made"]

OWN, NO_BYTES = "its own", "no bytes"
ALLOCATORS = (OWN, "rmm async", "rmm pool", "xlogmem async", "xlogmem pool")
Pair = Callable[[], object]


class Neighbour:
    """A library, imported.  `name` is what `xlogmem.enable` takes; `streams` are its own, and do not block others."""

    name = ""
    module = ""                                         # that is imported, if it is not called so
    note = "nothing orders a use elsewhere"             # why its own allocator is not like for like
    known_to_rmm = True                                 # RMM has an allocator for it
    several_streams = True

    def __init__(self) -> None:
        self.library: Any = import_module(self.module or self.name)

    def on_rmm(self) -> None:
        """Allocate from RMM's current resource from now on."""
        raise NotImplementedError

    def make_streams(self, count: int) -> list[Any]:
        """Once the allocator is chosen.  The first is current from now on."""
        raise NotImplementedError

    def pair(self, nbytes: int, stream: Any) -> Pair:
        """On the stream that is current, or where `stream` is named in each call."""
        raise NotImplementedError

    def switched(self, nbytes: int, stream: Any) -> Pair:
        """The same on another stream, which it makes current first."""
        return self.pair(nbytes, stream)

    def pair_in_turn(self, nbytes: int, streams: list[Any]) -> Pair:
        if len(streams) == 1:
            return self.pair(nbytes, streams[0])
        following = cycle([self.switched(nbytes, stream) for stream in streams]).__next__
        return lambda: following()()


class Cupy(Neighbour):
    """`cupy.cuda.alloc`; dropping the pointer frees the memory."""

    name = "cupy"

    def on_rmm(self) -> None:
        self.library.cuda.set_allocator(import_module("rmm.allocators.cupy").rmm_cupy_allocator)

    def make_streams(self, count: int) -> list[Any]:
        streams = [self.library.cuda.Stream(non_blocking=True) for _ in range(count)]
        streams[0].use()
        return streams

    def pair(self, nbytes: int, stream: Any) -> Pair:
        alloc = self.library.cuda.alloc
        return lambda: alloc(nbytes)

    def switched(self, nbytes: int, stream: Any) -> Pair:
        alloc, use = self.library.cuda.alloc, stream.use

        def one() -> None:
            use()
            alloc(nbytes)

        return one


class Numba(Neighbour):
    """`device_array` and its end.  Memory belongs to the default stream, whichever allocator it is from."""

    name, module = "numba", "numba.cuda"
    note = "the driver's memory without a pool; frees wait in a queue, and are made ten at a time"
    several_streams = False

    def on_rmm(self) -> None:
        self.library.set_memory_manager(import_module("rmm.allocators.numba").RMMNumbaManager)

    def make_streams(self, count: int) -> list[Any]:
        self.library.current_context()
        return [None] * count

    def pair(self, nbytes: int, stream: Any) -> Pair:
        device_array, dtype = self.library.device_array, import_module("numpy").uint8
        return lambda: device_array(nbytes, dtype)


class CudaCore(Neighbour):
    """`Device.allocate` and `Buffer.close`, on streams that each call names."""

    name = "cuda.core"
    known_to_rmm = False

    def make_streams(self, count: int) -> list[Any]:
        self.device = self.library.Device(0)
        self.device.set_current()
        return [self.device.create_stream() for _ in range(count)]

    def pair(self, nbytes: int, stream: Any) -> Pair:
        allocate = self.device.allocate
        return lambda: allocate(nbytes, stream=stream).close()


class Torch(Neighbour):
    """`torch.empty` and the end of the tensor."""

    name = "torch"

    def on_rmm(self) -> None:
        self.library.cuda.memory.change_current_allocator(import_module("rmm.allocators.torch").rmm_torch_allocator)

    def make_streams(self, count: int) -> list[Any]:
        streams = [self.library.cuda.Stream() for _ in range(count)]
        self.library.cuda.set_stream(streams[0])
        return streams

    def pair(self, nbytes: int, stream: Any) -> Pair:
        empty, dtype, device = self.library.empty, self.library.uint8, self.library.device("cuda", 0)
        return lambda: empty(nbytes, dtype=dtype, device=device)

    def switched(self, nbytes: int, stream: Any) -> Pair:
        switch, pair = self.library.cuda.set_stream, self.pair(nbytes, stream)

        def one() -> None:
            switch(stream)
            pair()

        return one


NEIGHBOURS: dict[str, type[Neighbour]] = {"CuPy": Cupy, "Numba": Numba, "cuda.core": CudaCore, "PyTorch": Torch}


def made(name: str, allocator: str, room: int) -> Neighbour:
    """The library on an allocator, whose pool has `room` bytes, in the device's primary context.

    Raises
    ------
    Exception
        Whatever the library, RMM or `xlogmem.enable` raises if the allocator cannot be used.
    """
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))
    neighbour = NEIGHBOURS[name]()
    if allocator.startswith("rmm"):
        put_on_rmm(neighbour, allocator, room)
    elif allocator.startswith("xlogmem"):
        set_runtime(runtimes(room)[allocator])
        xlogmem.enable(cast(Library, neighbour.name))
    return neighbour


def put_on_rmm(neighbour: Neighbour, allocator: str, room: int) -> None:
    mr = import_module("rmm").mr
    mr.set_current_device_resource(mr.CudaAsyncMemoryResource() if allocator == "rmm async" else
                                   mr.PoolMemoryResource(mr.CudaMemoryResource(), room, room))
    neighbour.on_rmm()
