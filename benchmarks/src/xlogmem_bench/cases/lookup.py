"""Find the block that an address is in, for addresses of random blocks."""
from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import xlogmem
from xlogmem_bench import _loops
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PEER, PYTHON
from xlogmem_bench.cases.model import Build, Candidate
from xlogmem_bench.world import Failed, World

__all__ = ["looked_up"]

LOOKUPS, SPACING = 4096, 512


def looked_up(live: int, interior: bool) -> Build:
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        runtime = xlogmem.DeviceRuntime()
        stream = runtime.acquire_stream()
        resource = xlogmem.DirectMemoryResource(runtime.device_id)
        memory = resource.allocate(SPACING * live, stream)
        stack.callback(resource.deallocate, memory, SPACING * live, stream)
        bases = [memory + SPACING * number for number in range(live)]
        blocks = [runtime.adopt(base, SPACING, stream) for base in bases]
        stack.callback(blocks.clear)
        chosen = random.Random(live).choices(range(live), k=LOOKUPS)
        offset = 300 if interior else 0
        addresses = [bases[number] + offset for number in chosen]
        wanted, searched = _loops.Addresses(addresses), _loops.Bases(bases)
        yield Candidate("sorted array", CPP, FLOOR, partial(searched.sorted, wanted),
                        "without insertion and without a lock", LOOKUPS)
        yield Candidate("xlogmem", CPP, OURS, partial(_loops.lookups, runtime, wanted), most=LOOKUPS)
        yield Candidate("std::map under a lock", CPP, PEER, partial(searched.tree, wanted), most=LOOKUPS)

        def by_use(address: Any, use: Any = xlogmem.use) -> None:
            with use(stream, read=address, runtime=runtime):
                pass

        yield Candidate("xlogmem", PYTHON, OURS, over(addresses, runtime.find_block), most=LOOKUPS)
        yield Candidate("xlogmem, use by address", PYTHON, OURS, over(addresses, by_use),
                        "a whole use, not the search alone", LOOKUPS)
        if not interior:
            yield Candidate("xlogmem, use by handle", PYTHON, OURS, over([blocks[number] for number in chosen], by_use),
                            "a whole use, without a search", LOOKUPS)

    return build


def over(arguments: list[Any], function: Callable[[Any], object]) -> Callable[[int], float]:
    """One call for each argument."""
    def run(calls: int) -> float:
        before = time.perf_counter_ns()
        for argument in arguments[:calls]:
            function(argument)
        return time.perf_counter_ns() - before

    return run
