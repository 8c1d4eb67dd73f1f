"""Costs of adaptors: a pair through each, beside RMM's adaptor of the same kind over RMM's resources."""
from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import xlogmem
from xlogmem_bench import _loops
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PEER, PYTHON, Ours, Rmm
from xlogmem_bench.cases.model import KIB, MIB, Build, Candidate, timed
from xlogmem_bench.world import Failed, World, streams_for, unless_failed

__all__ = ["ADAPTORS", "Adaptor", "through_adaptor"]

ROOM = 64 * MIB                             # of a pool
NO_LIMIT = 1 << 40                          # bytes, that is
DEPTH = 16
QUARANTINE = 64 * KIB                       # of a guard: full before the first turn
WRITTEN = 1000                              # pairs


@dataclass(frozen=True)
class Adaptor:
    """`ours` puts a resource into xlogmem's adaptor, which may write to the file that is given; `theirs` into that of
    RMM's module, which is given first, and is None where RMM has none; `note`: why that is not like for like."""

    ours: Callable[[Any, str], Any]
    theirs: Callable[[Any, Any, str], Any] | None
    note: str = ""


def taken(record: object) -> None:
    """The least that a sink in Python does."""


def guarding(depth: int) -> Adaptor:
    return Adaptor(lambda below, _: xlogmem.GuardResourceAdaptor(below, quarantine_bytes=QUARANTINE, depth=depth), None)


WRITES_LATER = "a thread of the log's own writes the rows; the row \"until written\" waits for that"
ALONE = "the resource without the adaptor, of which RMM has none"
ADAPTORS: dict[str, Adaptor] = {
    "none": Adaptor(lambda below, _: below, lambda mr, below, _: below),
    "limiting": Adaptor(lambda below, _: xlogmem.LimitingResourceAdaptor(below, NO_LIMIT),
                        lambda mr, below, _: mr.LimitingResourceAdaptor(below, NO_LIMIT)),
    "logging": Adaptor(lambda below, path: xlogmem.LoggingResourceAdaptor(below, path, format="rmm"),
                       lambda mr, below, path: mr.LoggingResourceAdaptor(below, path)),
    "logging, callable": Adaptor(lambda below, _: xlogmem.LoggingResourceAdaptor(below, taken),
                                 lambda mr, below, path: mr.LoggingResourceAdaptor(below, path),
                                 "RMM's log takes no callable: this one writes a file"),
    "statistics": Adaptor(lambda below, _: xlogmem.StatisticsResourceAdaptor(below),
                          lambda mr, below, _: mr.StatisticsResourceAdaptor(below)),
    "tracking": Adaptor(lambda below, _: xlogmem.TrackingResourceAdaptor(below, depth=0),
                        lambda mr, below, _: mr.TrackingResourceAdaptor(below)),
    "tracking, stacks": Adaptor(lambda below, _: xlogmem.TrackingResourceAdaptor(below, depth=DEPTH),
                                lambda mr, below, _: mr.TrackingResourceAdaptor(below, True)),
    "guard": guarding(0),
    "guard, stacks": guarding(DEPTH),
}


def through_adaptor(name: str, nbytes: int) -> Build:
    """A pair on one stream, over the driver's allocator and over a pool."""
    adaptor = ADAPTORS[name]

    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xlogmem-bench-")))
        floor = _loops.Allocator.driver()
        yield Candidate("driver", CPP, FLOOR, partial(floor.pairs, nbytes, world.streams[:1]))
        for name, below in resources():
            yield from of_xlogmem(name, adaptor.ours(below, str(folder / f"{name}.csv")), nbytes, stack, failed)
        if adaptor.theirs is None:
            for name, below in resources():
                for candidate in of_xlogmem(f"{name}, alone", below, nbytes, stack, failed):
                    yield replace(candidate, note=ALONE)
        elif "RMM" in world.modules:
            yield from unless_failed("RMM", of_rmm(adaptor, nbytes, world, folder), failed)

    return build


def resources() -> Iterator[tuple[str, xlogmem.DeviceMemoryResource]]:
    yield "xlogmem async", xlogmem.AsyncMemoryResource()
    yield "xlogmem pool", xlogmem.PoolMemoryResource(initial_pool_size=ROOM, maximum_pool_size=ROOM)


def of_xlogmem(name: str, resource: Any, nbytes: int, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
    runtime = xlogmem.DeviceRuntime(resource=resource)
    held = [runtime.acquire_stream()]
    stack.callback(held.clear)                          # its handle is valid until the case is over
    loops = _loops.Allocator.table(runtime)
    native = Candidate(name, CPP, OURS, partial(loops.pairs, nbytes, [held[0].handle]))
    python = Candidate(name, PYTHON, OURS, timed(Ours(name, runtime, held).pair(nbytes, 0)))
    native.run(QUARANTINE // nbytes)                    # a guard begins to return what it has kept
    if isinstance(resource, xlogmem.LoggingResourceAdaptor):
        stack.callback(end_log, resource, partial(failed, name))
        native.note = python.note = WRITES_LATER
        native.before = python.before = resource.flush  # so that no turn finds the log full
        yield Candidate(f"{name}, until written", CPP, OURS, partial(until_written, resource, native.run),
                        before=resource.flush)
    yield native
    yield python


def until_written(log: xlogmem.LoggingResourceAdaptor, run: Callable[[int], float], calls: int) -> float:
    """At least `WRITTEN` pairs, and the part of so many calls: few rows are written sooner than the writer is awake."""
    pairs = max(calls, WRITTEN)
    before = time.perf_counter_ns()
    run(pairs)
    log.flush()
    return (time.perf_counter_ns() - before) * calls / pairs


def end_log(log: xlogmem.LoggingResourceAdaptor, failed: Callable[[BaseException], None]) -> None:
    dropped = log.flush()
    log.close()
    if dropped:
        failed(RuntimeError(f"{dropped} records found the log full: the figures are without their price"))


def of_rmm(adaptor: Adaptor, nbytes: int, world: World, folder: Path) -> Iterator[Candidate]:
    from xlogmem.rmm._binding import upstream_of

    mr, streams = world.modules["RMM"].mr, streams_for(world, "RMM")
    assert adaptor.theirs is not None
    for name, below in (("rmm async", mr.CudaAsyncMemoryResource()),
                        ("rmm pool", mr.PoolMemoryResource(mr.CudaMemoryResource(), ROOM, ROOM))):
        resource = adaptor.theirs(mr, below, str(folder / f"{name}.csv"))
        loops = _loops.Allocator.of(upstream_of(resource))
        yield Candidate(name, CPP, PEER, partial(loops.pairs, nbytes, world.streams[:1]), adaptor.note)
        yield Candidate(name, PYTHON, PEER, timed(Rmm(name, resource, streams).pair(nbytes, 0)), adaptor.note)
