"""Callbacks of the library: owners of adopted memory, and resources written in Python."""
from __future__ import annotations

import weakref
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.resources import AsyncMemoryResource, DeviceMemoryResource, DirectMemoryResource
from xlogmem_selftest.world.bookkeeping import Bookkeeping
from xlogmem_selftest.world.calls import Injected, sure
from xlogmem_selftest.world.models import Item
from xlogmem_selftest.world.streams import Streams

__all__ = ["Owner", "Scripted"]


class Owner:
    """Holds memory that the runtime adopted, and frees it in stream order once the runtime drops the owner."""

    def __init__(self, world: Streams, ptr: int, device: int = 0) -> None:
        self.world = world
        self.ptr = ptr
        self.device = device
        self.item: Item | None = None
        with world.lock:
            world.owners += 1

    def __del__(self) -> None:
        world = self.world
        try:
            with world.context(self.device), world.lock:           # the stream is not closed meanwhile
                world.owners -= 1
                item = self.item
                home = item.home if item else None
                if item is None or item.unsure or (home is not None and (home.gone or home.closing)):
                    world.synchronize()                 # on which stream the runtime frees is unknown
                    home = None
                world.end_captures()
                sure(cuda.cuMemFreeAsync, self.ptr, home.handle if home else world.asides[self.device])
            world.in_gap("owner")
        except BaseException as error:
            world.surprise(error)


class PinnedOwner(Owner):
    """Holds page-locked memory."""

    def __del__(self) -> None:
        world = self.world
        try:
            with world.context(self.device), world.lock:
                world.owners -= 1
                world.synchronize()                     # as cuMemFreeHost does
                sure(cuda.cuMemFreeHost, self.ptr)
            world.in_gap("owner")
        except BaseException as error:
            world.surprise(error)


class Scripted(DeviceMemoryResource):
    """A resource written in Python, which calls back into the program and fails now and then."""

    def __init__(self, world: Bookkeeping, order: str) -> None:
        self.order = order
        super().__init__(0)
        self.upstream = AsyncMemoryResource() if order == "stream" else DirectMemoryResource()
        self.world = weakref.ref(world)

    def _play(self) -> None:
        world = self.world()
        if world is None:
            return
        world.in_gap("resource")
        if world.resource_fails > 0:
            world.resource_fails -= 1
            raise Injected("a resource that fails")

    def allocate(self, nbytes: int, stream: Any) -> int:
        self._play()
        return self.upstream.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        self._play()
        self.upstream.deallocate(ptr, nbytes, stream)
