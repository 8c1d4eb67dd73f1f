"""Cases and their candidates; the sizes and the Python loop that all families share."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from xlogmem_bench.world import Failed, World

__all__ = ["GIB", "KERNEL_NS", "KIB", "MIB", "Build", "Candidate", "Case", "built", "timed"]

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
KERNEL_NS = 505_000                         # a million cycles at an H200's 1.98 GHz


@dataclass
class Candidate:
    """One way to do what the case measures.  ``run(calls)`` does it that often and returns the nanoseconds."""

    name: str
    language: str
    role: str
    run: Callable[[int], float]
    note: str = ""                          # why it is not like for like, if it is not
    most: int = 1 << 30                     # calls in one turn, at most
    before: Callable[[], object] = lambda: None         # of each turn, not measured
    close: Callable[[], object] = lambda: None


Build = Callable[[World, ExitStack, Failed], Iterator[Candidate]]


@dataclass(frozen=True)
class Case:
    """`build` makes the candidates; `per` is how many `unit`s one call does; `quick`: part of a quick run; `needs`:
    bytes of device memory that have to be free."""

    id: str
    family: str
    unit: str
    build: Build
    parameters: dict[str, Any] = field(default_factory=dict)
    per: int = 1
    quick: bool = False
    needs: int = 0


def timed(function: Callable[[], object]) -> Callable[[int], float]:
    """Calls in a loop of Python, as pyperf makes them; the loop itself is in the figure."""
    def run(calls: int) -> float:
        clock, turns = time.perf_counter_ns, repeat(None, calls)
        before = clock()
        for _ in turns:
            function()
        return clock() - before

    return run


@contextmanager
def built(case: Case, world: World, failed: Failed) -> Iterator[list[Candidate]]:
    """The candidates of a case; they end with it."""
    with ExitStack() as stack:
        made: list[Candidate] = []
        try:
            made += case.build(world, stack, failed)
            yield made
        finally:
            for candidate in made:
                candidate.close()
            world.synchronize()
