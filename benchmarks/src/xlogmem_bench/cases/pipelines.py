"""A pipeline over four streams (see `xlogmem_bench.pipelines`); a turn ends when its last chunk is downloaded."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from cuda.bindings import driver as cuda

from xlogmem.sim.kernels import check
from xlogmem_bench.allocators import FLOOR, OURS, PEER, PYTHON
from xlogmem_bench.cases.model import Build, Candidate
from xlogmem_bench.pipelines import BY_HAND, Pipeline, ways_of
from xlogmem_bench.world import Failed, World

__all__ = ["piped"]

NOTES = {BY_HAND: "a ring of blocks that are made before, and an event for each hand-over",
         "one stream": "nothing overlaps", "driver's pool by hand": "an event for each hand-over, by the program"}


def piped(nbytes: int, chunks: int) -> Build:
    def build(_world: World, stack: ExitStack, _failed: Failed) -> Iterator[Candidate]:
        pipeline = Pipeline(nbytes, chunks)
        stack.callback(pipeline.close)
        ways, runtimes = ways_of(pipeline)
        for runtime in runtimes:
            stack.callback(runtime.reap_pending)
        for name in sorted(ways, key=lambda name: name != BY_HAND):     # the floor first
            role = FLOOR if name == BY_HAND else OURS if name.startswith("xlogmem") else PEER
            yield Candidate(name, PYTHON, role, timed(pipeline, ways[name]), NOTES.get(name, ""), most=1)

    return build


def timed(pipeline: Pipeline, way: Callable[[], None]) -> Callable[[int], float]:
    """All chunks, compared afterwards."""
    def run(_: int) -> float:
        pipeline.forget()
        check(cuda.cuCtxSynchronize())
        before = time.perf_counter_ns()
        way()
        check(cuda.cuCtxSynchronize())
        took = time.perf_counter_ns() - before
        if not pipeline.is_right():
            raise RuntimeError("what came down is not what went up")
        return took

    return run
