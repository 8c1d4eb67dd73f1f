"""A table of many columns: all of them allocated, then all freed; one by one, and by one call where there is one."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import xlogmem
from xlogmem_bench import _loops, logs
from xlogmem_bench.allocators import CPP, OURS, PYTHON, runtimes
from xlogmem_bench.cases.model import GIB, Build, Candidate, timed
from xlogmem_bench.cases.replay import replayed
from xlogmem_bench.world import Failed, World

__all__ = ["in_columns"]


def in_columns(count: int, nbytes: int) -> Build:
    one_by_one = replayed(partial(logs.held, count, nbytes), GIB)

    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        yield from one_by_one(world, stack, failed)
        for name, runtime in runtimes(world.share(GIB)).items():
            sizes, stream = [nbytes] * count, runtime.acquire_stream()
            yield Candidate(f"{name}, by one call", CPP, OURS, from_table(runtime, sizes, stream))
            yield Candidate(f"{name}, by one call", PYTHON, OURS, timed(partial(one_table, runtime, sizes, stream)))

    return build


def from_table(runtime: xlogmem.DeviceRuntime, sizes: list[int], stream: xlogmem.Stream) -> Callable[[int], float]:
    loops = _loops.Allocator.table(runtime)
    return lambda calls: loops.batches(sizes, stream.handle, calls)


def one_table(runtime: xlogmem.DeviceRuntime, sizes: list[int], stream: xlogmem.Stream) -> None:
    runtime.deallocate_many(runtime.allocate_many(sizes, stream))
