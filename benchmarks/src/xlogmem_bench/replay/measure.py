"""One log on one resource: its cost, its need of memory, and fragmentation during the run."""
from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from xlogmem import sim
from xlogmem._driver import is_simulated
from xlogmem_bench.programs import Programs, least
from xlogmem_bench.replay.candidates import RESOURCES, Candidate, NotHere

__all__ = ["Row", "Sample", "replayed"]

TURNS = 3                       # that are timed; a first one is not, in which pools grow
LONG = 5e9                      # nanoseconds of a turn after which there is no other


class Sample(NamedTuple):
    """The memory after so many allocations and frees; None: the resource does not say.

    `fragmentation` is the share of the free bytes of a pool outside of the largest place."""

    calls: int
    in_use: int
    held: int | None
    fragmentation: float | None


@dataclass
class Row:
    """A log on a resource.

    `ns_per_pair` is the median of the turns, from C++ on one thread, and None if allocations were refused: then
    programs did less.  `least_pool_size` is the `maximum_pool_size` that suffices, taken at once; None: it has none.
    `failed_in_log` counts the allocations that had failed when the log was written; the replay does not make them, and
    with a pool of `least_pool_with_failed` they would have fitted, too.
    """

    log: str
    resource: str
    pairs: int
    streams: int
    peak_bytes: int
    ns_per_pair: float | None
    refused: int
    least_pool_size: int | None
    most_held: int | None
    samples: list[Sample] = field(default_factory=list)
    failed_in_log: int = 0
    least_pool_with_failed: int | None = None


def replayed(log: str, programs: Programs, name: str, bisect: bool = True,
             progress: Callable[[str], object] = lambda text: None, with_failed: Programs | None = None,
             failed_in_log: int = 0) -> Row:
    """Replay a log.  `progress` is called before each turn; `with_failed` also makes the allocations that failed.

    Raises
    ------
    NotHere
        The resource cannot be used on this machine.
    """
    resource = RESOURCES[name]
    with memory_unfilled():
        try:
            candidate = resource.make(programs.streams, programs.peak)
        except NotHere as error:
            raise NotHere(f"{name}: {error}") from error
        progress("the first turn")
        samples, took, refused = first_turn(programs, candidate)
        times = [took]
        while not refused and len(times) <= TURNS and times[-1] < LONG:
            progress("timed")
            times.append(sum(nanoseconds for nanoseconds, _ in programs.run(candidate.allocator, candidate.handles)))
        del candidate
        gc.collect(0)
    smallest = None
    if resource.fits is not None and bisect and programs.pairs:
        smallest = least(resource.fits, programs, tried=lambda: progress("the least pool"))
    with_failed_too = None
    if resource.fits is not None and bisect and with_failed is not None:
        with_failed_too = least(resource.fits, with_failed,
                                tried=lambda: progress("the least pool for what has failed"))
    held = [sample.held for sample in samples if sample.held is not None]
    return Row(log, name, programs.pairs, programs.streams, programs.peak,
               statistics.median(times[1:] or times) / max(1, programs.pairs) if not refused else None, refused,
               smallest, max(held, default=None), samples, failed_in_log, with_failed_too)


@contextmanager
def memory_unfilled() -> Iterator[None]:
    """The simulated driver does not write to memory meanwhile: a replay reads none, and waits for little else."""
    before = is_simulated() and sim.simulator().set_fills(False)
    try:
        yield
    finally:
        if before:
            sim.simulator().set_fills(True)


def first_turn(programs: Programs, candidate: Candidate) -> tuple[list[Sample], int, int]:
    samples, took, refused, calls = [], 0, 0, 0
    for place, (nanoseconds, not_made) in enumerate(programs.run(candidate.allocator, candidate.handles)):
        took += nanoseconds
        refused += not_made
        calls = 2 * programs.pairs * (place + 1) // len(programs.parts)
        samples.append(Sample(calls, programs.in_use[place], *candidate.look()))
    return samples, took, refused
