"""The blocks of a world: which there are, and which a step keeps from being freed."""
from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Any

from xlogmem.blocks import BlockId, DeviceBlock
from xlogmem_selftest.programs import Kind
from xlogmem_selftest.world.callbacks import Owner
from xlogmem_selftest.world.calls import NothingToDo
from xlogmem_selftest.world.models import Item, ProgramStream, Window
from xlogmem_selftest.world.streams import Streams

__all__ = ["ROOM", "Blocks"]

ROOM = 12                                   # blocks of one thread, before the oldest go


class Blocks(Streams):
    """The layer that knows blocks; what is *held* is not freed meanwhile."""

    def __init__(self, kind: Kind, simulator: Any, protect: bool, threads: int, devices: int = 1) -> None:
        super().__init__(kind, simulator, protect, threads, devices)
        self.items: list[Item] = []
        self.all_items: weakref.WeakSet[Item] = weakref.WeakSet()
        self.exported: list[Item] = []      # that consumers have, freed or not
        self.windows: list[Window] = []
        self.stale: deque[tuple[BlockId, DeviceBlock]] = deque(maxlen=8)
        self.freed_at: dict[int, int] = {}  # the stream's handle, by address

    def add_item(self, block: DeviceBlock, stream: ProgramStream | None, value: int | None = None,
                 owner: Owner | None = None, *, filled: int | None = None) -> Item:
        """A new block; `value` is in every word of an adopted one, which `owner` holds (None: another runtime does),
        and `filled` in those of one that the host has filled."""
        item = Item(self.next_number("item"), block, stream)
        if value is not None:
            item.adopted = True
            item.from_neighbour = owner is None
        item.on_host = filled is not None
        for part in item.parts:
            part.value = value if filled is None else filled
        if owner is not None:
            owner.item = item
        with self.lock:
            freed_at = self.freed_at.pop(item.ptr, None)
            if freed_at is not None and stream is not None and freed_at != stream.handle:
                self.happened["cross_stream_reuses"] += 1
            self.items.append(item)
            self.all_items.add(item)
        return item

    def take_item(self, rng: Random) -> Item:
        """Choose a block that is about to be freed: no other step chooses it any more."""
        with self.lock:
            choice = [item for item in self.items if not item.held]
            if not choice:
                raise NothingToDo
            item = rng.choice(choice)
            self.items.remove(item)
            item.gone = True
        return item

    @contextlib.contextmanager
    def holding(self, rng: Random) -> Iterator[Item]:
        """Choose a block that is not freed meanwhile."""
        with self.lock:
            choice = [item for item in self.items if not item.held]
            if not choice:
                raise NothingToDo
            item = rng.choice(choice)
            item.held += 1
        try:
            yield item
        finally:
            with self.lock:
                item.held -= 1

    def restore(self, item: Item) -> None:
        """It could not be freed: put it among the others again."""
        with self.lock:
            item.gone = False
            item.quiet = True
            item.unsure = True
            self.items.append(item)

    def freed(self, item: Item, block: DeviceBlock | None = None) -> None:
        with self.lock:
            if block is not None:
                self.stale.append((item.id, block))
            if item.home is not None and not item.adopted:
                self.freed_at[item.ptr] = item.home.handle

    def end_registration(self, stream: ProgramStream, successor: ProgramStream | None) -> None:
        """Apply the rules about blocks of a stream that is not registered any more."""
        with self.lock:
            for item in list(self.all_items):
                if item.stream is stream:
                    item.quiet = True
                if item.last_opaque and item.last_opaque[0] is stream:
                    item.last_opaque = None
                if item.home is stream and successor is not None:
                    item.home = successor
                    item.unsure |= item.gone            # freed before or after?
            stream.registration += 1
