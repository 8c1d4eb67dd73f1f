"""What an adaptor costs: a pair through it, beside RMM's adaptor of the same kind over RMM's resources."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import xlogmem
from xlogmem.bench import _loops
from xlogmem.bench.allocators import CPP, FLOOR, OURS, PEER, PYTHON, Ours, Rmm
from xlogmem.bench.cases.model import MIB, Build, Candidate, timed
from xlogmem.bench.world import Failed, World, streams_for, unless_failed

__all__ = ["ADAPTORS", "through_adaptor"]

ROOM = 64 * MIB                             # of a pool
NO_LIMIT = 1 << 40                          # bytes, that is
DEPTH = 16
Wrap = Callable[[Any], Any]                 # a resource in an adaptor

# By name: xlogmem's, and what makes RMM's of its module `mr`.
ADAPTORS: dict[str, tuple[Wrap, Callable[[Any], Wrap]]] = {
    "none": (lambda below: below, lambda mr: lambda below: below),
    "limiting": (lambda below: xlogmem.LimitingResourceAdaptor(below, NO_LIMIT),
                 lambda mr: lambda below: mr.LimitingResourceAdaptor(below, NO_LIMIT)),
    "statistics": (xlogmem.StatisticsResourceAdaptor, lambda mr: mr.StatisticsResourceAdaptor),
    "tracking": (lambda below: xlogmem.TrackingResourceAdaptor(below, depth=0), lambda mr: mr.TrackingResourceAdaptor),
    "tracking, stacks": (lambda below: xlogmem.TrackingResourceAdaptor(below, depth=DEPTH),
                         lambda mr: lambda below: mr.TrackingResourceAdaptor(below, True)),
}


def through_adaptor(name: str, nbytes: int) -> Build:
    """A pair on one stream, over the driver's allocator and over a pool."""
    ours, theirs = ADAPTORS[name]

    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        floor = _loops.Allocator.driver()
        yield Candidate("driver", CPP, FLOOR, partial(floor.pairs, nbytes, world.streams[:1]))
        yield from of_xlogmem(ours, nbytes, stack)
        if "RMM" in world.modules:
            yield from unless_failed("RMM", of_rmm(theirs, nbytes, world), failed)

    return build


def of_xlogmem(wrap: Wrap, nbytes: int, stack: ExitStack) -> Iterator[Candidate]:
    for name, below in (("xlogmem async", xlogmem.AsyncMemoryResource()),
                        ("xlogmem pool", xlogmem.PoolMemoryResource(initial_pool_size=ROOM, maximum_pool_size=ROOM))):
        runtime = xlogmem.DeviceRuntime(resource=wrap(below))
        held = [runtime.acquire_stream()]
        stack.callback(held.clear)                      # its handle is valid until the case is over
        loops = _loops.Allocator.table(runtime)
        yield Candidate(name, CPP, OURS, partial(loops.pairs, nbytes, [held[0].handle]))
        yield Candidate(name, PYTHON, OURS, timed(Ours(name, runtime, held).pair(nbytes, 0)))


def of_rmm(theirs: Callable[[Any], Wrap], nbytes: int, world: World) -> Iterator[Candidate]:
    from xlogmem.rmm._binding import upstream_of

    mr = world.modules["RMM"].mr
    wrap, streams = theirs(mr), streams_for(world, "RMM")
    for name, below in (("rmm async", mr.CudaAsyncMemoryResource()),
                        ("rmm pool", mr.PoolMemoryResource(mr.CudaMemoryResource(), ROOM, ROOM))):
        resource = wrap(below)
        loops = _loops.Allocator.of(upstream_of(resource))
        yield Candidate(name, CPP, PEER, partial(loops.pairs, nbytes, world.streams[:1]))
        yield Candidate(name, PYTHON, PEER, timed(Rmm(name, resource, streams).pair(nbytes, 0)))
