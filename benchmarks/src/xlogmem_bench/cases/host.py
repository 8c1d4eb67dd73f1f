"""Page-locked memory of the host: a pair of allocation and free, and what an access by the host costs."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem.sim.kernels import check
from xlogmem_bench import _loops, pinned
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PEER, PYTHON
from xlogmem_bench.cases.model import Build, Candidate, timed
from xlogmem_bench.cases.patterns import WRITE
from xlogmem_bench.world import Failed, World

__all__ = ["accessed_by_host", "pinned_pairs"]

NOTE_OF_EMPTY = "does nothing, with the same arguments: the least that Python could take"


def pinned_pairs(nbytes: int) -> Build:
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        on = world.streams[:1]
        yield Candidate("driver", CPP, FLOOR, partial(_loops.Allocator.of_page_locked().pairs, nbytes, on))
        yield from pairs_of_xlogmem(nbytes)
        for way in pinned.ways(world, on[0], failed):
            if way.native is not None:
                yield Candidate(way.name, CPP, PEER, partial(way.native.pairs, nbytes, on), way.note)
            yield Candidate(way.name, PYTHON, PEER, timed(way.pair(nbytes)), way.note)

    return build


def pairs_of_xlogmem(nbytes: int) -> Iterator[Candidate]:
    """Each from a pool of its own; the C table has the runtime's own resource, and from Python it is named."""
    for name, note in (("xlogmem, host", ""), ("xlogmem, stream", pinned.STREAM_ORDERED)):
        pool = xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource())
        runtime = xlogmem.DeviceRuntime(resource=pool)
        stream = runtime.acquire_stream()
        where, handle = (stream, stream.handle) if note else (xlogmem.host, _loops.HOST)
        yield Candidate(name, CPP, OURS, partial(_loops.Allocator.table(runtime).pairs, nbytes, [handle]), note)
        yield Candidate(name, PYTHON, OURS, timed(pair_of(runtime.allocate, nbytes, where, pool)), note)


def pair_of(allocate: Callable[..., xlogmem.DeviceBlock], nbytes: int, where: Any, pool: xlogmem.DeviceMemoryResource
            ) -> Callable[[], object]:
    return lambda: allocate(nbytes, where, resource=pool).free()


def accessed_by_host(nbytes: int) -> Build:
    """An access that waits for nothing, beside a use on a stream; each has a block of its own."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        runtime = xlogmem.DeviceRuntime()
        stream = runtime.acquire_stream()
        for name, role, use, where, handle in (
                ("empty context manager", FLOOR, _loops.empty_use, xlogmem.host, None),
                ("xlogmem, host", OURS, xlogmem.use, xlogmem.host, _loops.HOST),
                ("xlogmem, stream", OURS, xlogmem.use, stream, stream.handle)):
            block = runtime.adopt(int(check(cuda.cuMemHostAlloc(nbytes, 0))), nbytes)
            stack.callback(release, block)
            if handle is not None:
                yield Candidate(name, CPP, role, _loops.Uses([(0, [(0, WRITE)])], [handle], [block]).run)
            yield Candidate(name, PYTHON, role, timed(partial(access, use, where, block)),
                            "" if handle else NOTE_OF_EMPTY)

    return build


def access(use: Any, where: Any, block: xlogmem.DeviceBlock) -> None:
    with use(where, write=block):
        pass


def release(block: xlogmem.DeviceBlock) -> None:
    address = block.ptr
    block.free()
    check(cuda.cuMemFreeHost(address))
