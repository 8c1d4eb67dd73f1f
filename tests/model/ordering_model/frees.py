"""Allocations and frees: when bytes may be used again, and what is still counted."""
from __future__ import annotations

from collections.abc import Callable
from itertools import count

from ordering_model.driver import Clock, Driver
from ordering_model.frontiers import Block, Frontiers, State
from ordering_model.pool import Pool
from ordering_model.rules import (
    ALLOCATED,
    READ_WRITE,
    REFUSED,
    Operation,
    Rules,
    StreamMisuse,
    UseAfterFree,
    unlocked,
)
from ordering_model.streams import Stream, calling


def _no_observer(block: Block) -> None:
    pass


class Frees(Frontiers):
    def __init__(self, driver: Driver, rules: Rules) -> None:
        super().__init__(driver, rules)
        self.index: dict[int, Block] = {}               # address: block, from its allocation to its free
        self.pool = Pool(self)
        self.dropped: list[Block] = []                  # by finalizers; the next operation frees them
        self.to_retry: list[Block] = []                 # frees that failed inside another operation
        self.live = self.pending = 0                    # cells
        self.markers: list[tuple[Stream, int, int]] = []    # stream, position after the free, cells
        self.on_birth: Callable[[Block], None] = _no_observer
        self._generations = count(1)

    # ------------------------------------------------------------------------------------ allocations
    def allocate(self, cells: int, stream: Stream, memory: str = "driver") -> Operation[Block]:
        """The allocation entry is a position taken after the resource's call and after the waits for the memory.

        So a fence that covers the position covers the birth of the block, and all that the memory had to wait for
        (allocation-entry, pool-allocate).
        """
        yield from self.free_deferred()
        if not stream.usable:
            raise StreamMisuse("an allocation on an unregistered or capturing stream")
        with calling(stream):
            early = 0 if self.rules.allocation_position_after_call else self.advance(stream)
            if memory == "pool":
                address = yield from self._allocate_from_pool(cells, stream)
            else:
                address = yield from unlocked(self.driver.mem_alloc, stream.handle, cells)
            position = early or self.advance(stream)
        block = Block(next(self._generations), address, cells, stream, stream, memory,
                      {(ALLOCATED, stream.number): position}, fresh=not stream.sealed)
        return self.add(block)

    def _allocate_from_pool(self, cells: int, stream: Stream) -> Operation[int]:
        """If the wait for the memory fails, the memory returns with its frontier (pool-failed-wait)."""
        address, frontier = yield from self.pool.take(cells, stream)
        try:
            if self.rules.pool_allocation_waits:
                for number, position in frontier.items():
                    yield from self.order(stream, self.streams[number], position)
        except REFUSED:
            self.pool.put(address, cells, frontier)
            raise
        return address

    def add(self, block: Block) -> Block:
        if block.address in self.index:
            raise AssertionError(f"address {block.address} came back while its former block is in the index")
        self.index[block.address] = block
        if block.memory != "adopted":
            self.live += block.cells
        self.on_birth(block)
        return block

    def adopt(self, address: int, cells: int, stream: Stream | None) -> Block:
        """With a stream, the entry is a new position of it, and the block is fresh (adopt).

        A range inside a tracked block is that block; a partial overlap is refused (adopt-overlap).
        """
        for other in self.index.values():
            if other.address < address + cells and address < other.address + other.cells:
                if other.address <= address and address + cells <= other.address + other.cells:
                    return other
                raise StreamMisuse("the range overlaps a tracked block")
        frontier = {(ALLOCATED, stream.number): self.advance(stream)} if stream else {}
        fresh = stream is not None and not stream.sealed
        return self.add(Block(next(self._generations), address, cells, stream, stream, "adopted", frontier, fresh))

    # ------------------------------------------------------------------------------------ frees
    def free(self, block: Block, stream: Stream | None = None) -> Operation[None]:
        """Free at home, or on the named stream, which is the home from then on.

        If the free fails, the block keeps the home that it had (failed-free-stays).
        """
        yield from self.free_deferred()
        self.check_live(block)
        home = self.home_of(block)
        if stream is not None:
            if not stream.alive:
                raise StreamMisuse("a free on an unregistered stream")
            block.home = stream
        if block.windows and self.rules.free_waits_for_windows:
            block.state = State.RETIRED                 # its bytes still count; the last close frees it
            return
        try:
            yield from self.free_now(block)
        except REFUSED:
            block.home = home
            raise

    def check_live(self, block: Block) -> None:
        if block.state is not State.LIVE:
            raise UseAfterFree(block.generation)

    def drop(self, block: Block) -> None:
        """A finalizer pushes on a list, and does nothing else (finalizers-push)."""
        self.dropped.append(block)

    def free_deferred(self) -> Operation[None]:
        """What operations do first: free dropped blocks, and retry frees that failed (drain-first)."""
        while self.dropped:
            block = self.dropped.pop()
            if block.state is State.LIVE:
                if block.windows:
                    block.state = State.RETIRED
                else:
                    yield from self.free_inside_operation(block)
        for block in list(self.to_retry):
            if block in self.to_retry:
                self.to_retry.remove(block)
                yield from self.free_inside_operation(block)

    def free_inside_operation(self, block: Block) -> Operation[None]:
        """The failure of such a free is not the failure of the operation (deferred-failures)."""
        block.state = State.RETIRED
        try:
            yield from self.free_now(block)
        except REFUSED:
            self.to_retry.append(block)

    def free_now(self, block: Block) -> Operation[None]:
        """The order of the steps keeps addresses, entries and counts consistent (free-steps).

        1. With the lock: the state becomes FREEING, and the block leaves the address index.
        2. Without it: the waits.
        3. Without it: the resource gets the bytes.  From this call on the address may be handed out again.
        4. With the lock: live cells become pending cells, with a marker that is taken after step 3.

        If step 2 or 3 fails, the block returns to the index and stays counted (failed-free-stays).
        """
        before, block.state = block.state, State.FREEING
        if self.rules.leaves_index_first:
            self.index.pop(block.address, None)
        home = self.home_of(block)
        try:
            with calling(home):
                yield from self.return_bytes(block, home)
        except REFUSED:
            block.state = before
            if self.rules.leaves_index_first:
                self.index[block.address] = block
            raise
        if not self.rules.leaves_index_first and self.index.get(block.address) is block:
            del self.index[block.address]
        block.state = State.FREED

    def return_bytes(self, block: Block, home: Stream | None) -> Operation[None]:
        """Steps 2 to 4 for each kind of memory."""
        if block.memory == "pool":
            assert home is not None
            frontier = self.frontier_after_free(block, home)
            yield
            self.pool.put(block.address, block.cells, frontier)
            self.live -= block.cells
            return
        yield from self._wait_for_users(block, home)
        if block.memory == "driver":
            assert home is not None
            if not self.rules.marker_after_free:
                self._mark(block, home)
            yield from unlocked(self.driver.mem_free, home.handle, block.address)
            if self.rules.marker_after_free:
                self._mark(block, home)

    def _wait_for_users(self, block: Block, home: Stream | None) -> Operation[None]:
        """The home waits for the whole frontier; for memory adopted without a stream, the host does."""
        snapshot = self.collect(block, home, READ_WRITE, {})
        if home is None:
            for (_, number), position in snapshot.items():
                yield from self.host_waits(self.streams[number], position)
        elif home.handle.capturing:
            raise StreamMisuse("the home is capturing: the free is deferred")
        else:
            yield from self.order_after(home, [snapshot])

    def _mark(self, block: Block, home: Stream) -> None:
        self.live -= block.cells
        self.pending += block.cells
        self.markers.append((home, self.advance(home), block.cells))

    def frontier_after_free(self, block: Block, home: Stream | None) -> Clock:
        """What the next owner of these bytes must be ordered after (pool-free, pool-free-sealed).

        "Freed on S" means after everything on S, so the free takes a new position of the home.  That position stands
        for the entries that the home is ordered after already.  A sealed home has no unrecorded work: its entries are
        enough.  Memory without a home is the host's (host-free): it takes no position.
        """
        advances = home is not None and self.rules.pool_free_advances and not home.sealed
        implied = advances or home is None
        frontier: Clock = {}
        for (_, number), position in self.collect(block, home, READ_WRITE, {}).items():
            if not implied or not self.is_ordered(home, self.streams[number], position):
                frontier[number] = max(frontier.get(number, 0), position)
        if home is not None and advances:
            frontier[home.number] = self.advance(home)
        return frontier

    # ------------------------------------------------------------------------------------ pending cells
    def reap(self) -> Operation[None]:
        """The host waits for the markers.  Cells whose wait fails stay pending (reap-visits-all)."""
        yield from self.free_deferred()
        markers, self.markers = self.markers, []
        for stream, position, cells in markers:
            try:
                yield from self.host_waits(stream, position)
            except REFUSED:
                self.markers.append((stream, position, cells))
                continue
            self.pending -= cells
