"""Uploads from page-locked memory: through memory that is freed at once, and through buffers in turn.

An upload fills part of its memory and queues the copy to the device.  The ways differ in where the memory is from and
in what keeps it until its copy has read it.  The device keeps the filled part of each copy, so that what arrives can
be compared: a candidate with wrong copies fails.  `NOTHING` fills the same memory again without a wait, and is compared
likewise: on a GPU its copies have to be wrong, if they are so long that the host is ahead.

A turn ends when all copies are complete and what was kept is free.  The fill is a memset of a page, so that the loop
waits for the allocator and for the copy engine.
"""
from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem.sim.kernels import check
from xlogmem_bench import pinned
from xlogmem_bench.allocators import FLOOR, OURS, PEER, PYTHON
from xlogmem_bench.cases.model import MIB, Build, Candidate
from xlogmem_bench.pinned import KEPT, Pinned
from xlogmem_bench.world import Failed, World, unless_failed

__all__ = ["NOTHING", "Uploads", "freed_at_once", "through_buffers"]

FILLED = 4096                               # bytes of each upload that change
LONG = MIB                                  # bytes whose copy takes longer than the host needs for the next fill
NOTHING = "nothing"
NOTE_OF_NOTHING = "fills memory whose copy may not have read it: copies arrive wrong"
NOTE_OF_HAND = "buffers that are made before, and an event for each: no allocation"
NOTE_OF_SYNCHRONIZE = "the host waits for each copy before the next fill"


class Uploads:
    """A stream, and room on the device for so many copies of a case."""

    def __init__(self, world: World, stack: ExitStack, nbytes: int, copies: int) -> None:
        self.world, self.nbytes, self.copies = world, nbytes, copies
        self.runtime = xlogmem.DeviceRuntime()
        self.stream = self.runtime.acquire_stream()
        self.target = self.runtime.allocate(nbytes, self.stream)
        self.heads = int(check(cuda.cuMemAlloc(FILLED * copies)))       # the filled part of each copy
        stack.callback(self.close)

    def close(self) -> None:
        self.target.free()
        check(cuda.cuMemFree(self.heads))

    def fill(self, address: int, number: int) -> None:
        ctypes.memset(address, number % 251 + 1, FILLED)

    def copy(self, address: int, number: int) -> None:
        check(cuda.cuMemcpyHtoDAsync(self.target.ptr, address, self.nbytes, self.stream.handle))
        self.keep_head(self.target.ptr, number)

    def keep_head(self, target: int, number: int) -> None:
        check(cuda.cuMemcpyDtoDAsync(self.heads + number * FILLED, target, FILLED, self.stream.handle))

    def timed(self, queue: Callable[[], object], finish: Callable[[], object]) -> tuple[float, int]:
        """Nanoseconds of all uploads, and how many brought what was filled in for another."""
        check(cuda.cuMemsetD8(self.heads, 0, FILLED * self.copies))
        self.world.synchronize()
        before = time.perf_counter_ns()
        queue()
        check(cuda.cuStreamSynchronize(self.stream.handle))
        finish()
        took = time.perf_counter_ns() - before
        arrived = (ctypes.c_uint8 * (FILLED * self.copies))()
        check(cuda.cuMemcpyDtoH(ctypes.addressof(arrived), self.heads, FILLED * self.copies))
        return took, sum(arrived[number * FILLED] != number % 251 + 1 for number in range(self.copies))

    def candidate(self, name: str, role: str, queue: Callable[[], object], finish: Callable[[], object] = lambda: None,
                  note: str = "") -> Candidate:
        def run(_: int) -> float:
            took, wrong = self.timed(queue, finish)
            if wrong:
                raise RuntimeError(f"{wrong} of {self.copies} copies arrived with the bytes of another one")
            return took

        return Candidate(name, PYTHON, role, run, note, most=1)

    def without_waits(self, buffers: list[int], failed: Failed) -> Candidate:
        """What the comparison has to find wrong."""
        wrong = turns = 0

        def run(_: int) -> float:
            nonlocal wrong, turns
            took, some = self.timed(partial(into_buffers, self, buffers), lambda: None)
            wrong, turns = wrong + some, turns + 1
            return took

        def close() -> None:
            if turns and not wrong and self.nbytes >= LONG and not self.world.simulated:
                failed(NOTHING, RuntimeError("no copy arrived wrong: the comparison of this case shows nothing"))

        return Candidate(NOTHING, PYTHON, PEER, run, NOTE_OF_NOTHING, most=1, close=close)


# ------------------------------------------------------------------------------------------ buffers in turn
def made_buffers(stack: ExitStack, nbytes: int, count: int) -> list[int]:
    buffers = [int(check(cuda.cuMemHostAlloc(nbytes, 0))) for _ in range(count)]
    for buffer in buffers:
        stack.callback(lambda buffer: check(cuda.cuMemFreeHost(buffer)), buffer)
    return buffers


def into_buffers(uploads: Uploads, buffers: list[int], synchronize: bool = False) -> None:
    for number in range(uploads.copies):
        address = buffers[number % len(buffers)]
        if synchronize:
            check(cuda.cuStreamSynchronize(uploads.stream.handle))
        uploads.fill(address, number)
        uploads.copy(address, number)


def by_hand(uploads: Uploads, stack: ExitStack, buffers: list[int]) -> Callable[[], None]:
    """An event for each buffer: what can be reached."""
    events = [check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)) for _ in buffers]
    for event in events:
        stack.callback(lambda event: check(cuda.cuEventDestroy(event)), event)
    count, handle = len(buffers), uploads.stream.handle

    def queue() -> None:
        for number in range(uploads.copies):
            buffer = number % count
            if number >= count:
                check(cuda.cuEventSynchronize(events[buffer]))
            uploads.fill(buffers[buffer], number)
            uploads.copy(buffers[buffer], number)
            check(cuda.cuEventRecord(events[buffer], handle))

    return queue


def with_uses(uploads: Uploads, stack: ExitStack, buffers: list[int]) -> Callable[[], None]:
    use, host, stream, target = xlogmem.use, xlogmem.host, uploads.stream, uploads.target
    blocks = [uploads.runtime.adopt(address, uploads.nbytes) for address in buffers]
    for block in blocks:
        stack.callback(block.free)

    def queue() -> None:
        for number in range(uploads.copies):
            block, address = blocks[number % len(blocks)], buffers[number % len(blocks)]
            with use(host, write=block):
                uploads.fill(address, number)
            with use(stream, read=block, write=target):
                uploads.copy(address, number)

    return queue


def through_buffers(nbytes: int, copies: int, count: int) -> Build:
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        uploads = Uploads(world, stack, nbytes, copies)
        buffers = made_buffers(stack, nbytes, count)
        yield uploads.candidate("events by hand", FLOOR, by_hand(uploads, stack, buffers))
        yield uploads.candidate("xlogmem", OURS, with_uses(uploads, stack, buffers))
        yield uploads.candidate("synchronize", PEER, partial(into_buffers, uploads, buffers, True),
                                note=NOTE_OF_SYNCHRONIZE)
        yield uploads.without_waits(buffers, failed)

    return build


# ------------------------------------------------------------------------------------------ freed at once
def on_host(uploads: Uploads, pool: xlogmem.DeviceMemoryResource) -> None:
    """Memory that is idle when it is handed out."""
    use, host, allocate = xlogmem.use, xlogmem.host, uploads.runtime.allocate
    stream, target, nbytes = uploads.stream, uploads.target, uploads.nbytes
    for number in range(uploads.copies):
        block = allocate(nbytes, host, resource=pool)
        uploads.fill(block.ptr, number)
        with use(stream, read=block, write=target):
            uploads.copy(block.ptr, number)
        block.free()


def on_stream(uploads: Uploads, pool: xlogmem.DeviceMemoryResource) -> None:
    """Memory that the stream hands out, for which the access by the host waits."""
    use, host, allocate = xlogmem.use, xlogmem.host, uploads.runtime.allocate
    stream, target, nbytes = uploads.stream, uploads.target, uploads.nbytes
    for number in range(uploads.copies):
        block = allocate(nbytes, stream, resource=pool)
        with use(host, write=block):
            uploads.fill(block.ptr, number)
        with use(stream, read=block, write=target):
            uploads.copy(block.ptr, number)
        block.free()


class Kept:
    """Memory of a library that knows of no copy: it is kept until an event behind the copy is complete.  If `KEPT`
    pieces are kept, the host waits for the oldest."""

    def __init__(self, uploads: Uploads, stack: ExitStack, way: Pinned) -> None:
        self.uploads, self.way = uploads, way
        self.kept: deque[tuple[Any, Any]] = deque()     # memory, and its event
        self.spare: list[Any] = []                      # events
        stack.callback(self.close)

    def close(self) -> None:
        self.collect()
        for event in self.spare:
            self.way.drop_event(event)

    def collect(self) -> None:
        kept, way = self.kept, self.way
        if len(kept) >= KEPT:
            way.wait(kept[0][1])
        while kept and way.is_done(kept[0][1]):
            memory, event = kept.popleft()
            way.free(memory, self.uploads.nbytes)
            self.spare.append(event)

    def queue(self) -> None:
        way, uploads = self.way, self.uploads
        for number in range(uploads.copies):
            self.collect()
            memory = way.allocate(uploads.nbytes)
            address = way.address(memory)
            uploads.fill(address, number)
            uploads.copy(address, number)
            event = self.spare.pop() if self.spare else way.make_event()
            way.record(event)
            self.kept.append((memory, event))
            del memory                                  # so that `collect` ends it


def of_torch(uploads: Uploads, torch: Any) -> Iterator[Candidate]:
    """PyTorch's own copy, behind which its allocator records an event."""
    stream = torch.cuda.ExternalStream(uploads.stream.handle)

    def queue() -> None:
        empty, dtype, nbytes = torch.empty, torch.uint8, uploads.nbytes
        with torch.cuda.stream(stream):
            target = empty(nbytes, dtype=dtype, device="cuda")
            for number in range(uploads.copies):
                piece = empty(nbytes, dtype=dtype, pin_memory=True)
                uploads.fill(piece.data_ptr(), number)
                target.copy_(piece, non_blocking=True)
                uploads.keep_head(target.data_ptr(), number)
                del piece

    yield uploads.candidate("torch.empty, copy_", PEER, queue)


def freed_at_once(nbytes: int, copies: int) -> Build:
    """Allocate, fill, queue the copy, free; beside buffers that are made before."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        uploads = Uploads(world, stack, nbytes, copies)
        buffers = made_buffers(stack, nbytes, min(KEPT, copies))
        yield uploads.candidate("events by hand", FLOOR, by_hand(uploads, stack, buffers), note=NOTE_OF_HAND)
        for name, way in (("xlogmem, host", on_host), ("xlogmem, stream", on_stream)):
            pool = xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource())
            yield uploads.candidate(name, OURS, partial(way, uploads, pool))
        for peer in pinned.ways(world, uploads.stream.handle, failed):
            kept = Kept(uploads, stack, peer)
            yield uploads.candidate(peer.name, PEER, kept.queue, kept.collect)
        if "PyTorch" in world.modules:
            yield from unless_failed("PyTorch", of_torch(uploads, world.modules["PyTorch"]), failed)
        yield uploads.without_waits(buffers[:1], failed)

    return build
