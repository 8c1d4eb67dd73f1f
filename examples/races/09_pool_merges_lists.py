"""A pool merges two lists of free memory and loses what one of them has to wait for.

Thread:  https://github.com/rapidsai/rmm/issues/2489
Wrong:   RMM's pool has a list of free blocks for each stream, with an event that is recorded at each free; a stream
         that takes from another one's list waits for that event.  When B has to merge A's list into its own, B waits
         for A's event, but B's event is not recorded again.  C takes a block from B's list, waits for B's event, and
         has memory on which A still works.  Three streams are needed, and a pool that is nearly full.
Repair:  Record the event of the list that grows after the wait (https://github.com/rapidsai/rmm/pull/2490).

RMM has been repaired; the part of its pool that matters is repeated here in Python.
"""
from __future__ import annotations

import sys
from dataclasses import dataclass, field

from driver import begin, cuda, ok, stream

FIXED = "--fixed" in sys.argv
BLOCK = 1 << 16


@dataclass
class FreeList:
    """The blocks that were freed on one stream."""

    stream: object
    event: object = field(default_factory=lambda: ok(cuda.cuEventCreate(0)))
    blocks: list[int] = field(default_factory=list)


class Pool:
    """Blocks of one size, cut out of one allocation."""

    def __init__(self, blocks: int, streams: list[object]) -> None:
        self.lists = [FreeList(stream) for stream in streams]
        slab = int(ok(cuda.cuMemAlloc(blocks * BLOCK)))
        self.fresh = [slab + i * BLOCK for i in range(blocks)]

    def allocate(self, mine: FreeList) -> int:
        if self.fresh:
            return self.fresh.pop()
        if not mine.blocks:
            other = next(one for one in self.lists if one.blocks)
            ok(cuda.cuStreamWaitEvent(mine.stream, other.event, 0))
            mine.blocks.append(other.blocks.pop())
        return mine.blocks.pop()

    def free(self, block: int, mine: FreeList) -> None:
        mine.blocks.append(block)
        ok(cuda.cuEventRecord(mine.event, mine.stream))

    def merge(self, mine: FreeList, other: FreeList) -> None:
        """For an allocation that no list can serve alone: RMM's merge_lists."""
        ok(cuda.cuStreamWaitEvent(mine.stream, other.event, 0))
        if FIXED:
            ok(cuda.cuEventRecord(mine.event, mine.stream))
        mine.blocks += other.blocks
        other.blocks = []


begin()
pool = Pool(1, [stream(), stream(), stream()])
a, b, c = pool.lists
x = pool.allocate(a)
ok(cuda.cuMemsetD8Async(x, 1, BLOCK, a.stream))         # first
pool.free(x, a)
pool.merge(b, a)
y = pool.allocate(c)
ok(cuda.cuMemsetD8Async(y, 2, BLOCK, c.stream))         # then
ok(cuda.cuCtxSynchronize())
