"""Callbacks of the library: owners of adopted memory, and resources written in Python."""
from __future__ import annotations

import weakref
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.resources import AsyncMemoryResource, DeviceMemoryResource, DirectMemoryResource
from xlogmem_selftest.world.bookkeeping import Bookkeeping
from xlogmem_selftest.world.calls import Injected, sure
from xlogmem_selftest.world.models import Item, ProgramStream
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
            with world.context(self.device), world.lock:            # refused in a forked child, whose lock may be taken
                world.owners -= 1
                item = self.item
                home = item.home if item else None
                unknown = item is None or item.unsure or (home is not None and (home.gone or home.closing))
                if world.captures and (unknown or (home and not world.usable(home))):
                    world.after_captures.append(lambda: self.free(None, True))
                else:
                    self.free(home, unknown)
            world.in_gap("owner")
        except BaseException as error:
            world.surprise(error)

    def free(self, home: ProgramStream | None, unknown: bool) -> None:
        """On a stream, or after a synchronize, where it is unknown on which stream the runtime frees."""
        with self.world.context(self.device):
            if unknown:
                self.world.synchronize()
                home = None
            self.world.end_raw_captures()
            sure(cuda.cuMemFreeAsync, self.ptr, home.handle if home else self.world.asides[self.device])


class PinnedOwner(Owner):
    """Holds page-locked memory."""

    def __del__(self) -> None:
        world = self.world
        try:
            with world.context(self.device), world.lock:
                world.owners -= 1
                if world.captures:
                    world.after_captures.append(self.free_pinned)
                else:
                    self.free_pinned()
            world.in_gap("owner")
        except BaseException as error:
            world.surprise(error)

    def free_pinned(self) -> None:
        with self.world.context(self.device):
            self.world.synchronize()                    # as cuMemFreeHost does
            sure(cuda.cuMemFreeHost, self.ptr)


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
