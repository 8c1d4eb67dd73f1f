"""Logs as compiled programs, and the pools on which they are tried without memory behind them."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import xlogmem
from xlogmem_bench import _loops
from xlogmem_bench.logs import GRAIN, Event, rounded, steps_of

__all__ = ["Addresses", "Programs", "fits_ours", "fits_rmms", "least", "rmm_pool", "runtime_over"]

PARTS = 200                     # of a program: samples are taken, interrupts seen and failures noticed between them
RESOLUTION = 1000               # the least pool is found to this part of the most in use
SCANNED = 330                   # of these beyond the most in use are tried in turn
Fits = Callable[["Programs", int, bool], bool]


class Programs:
    """The steps of a log, in parts that follow each other and free all of their memory.

    Attributes
    ----------
    parts : list
        Of `_loops.Program`.
    pairs, streams : int
        Allocations with their frees; streams that they are on.
    peak : int
        The most bytes in use at any time, each allocation rounded up to 256.
    in_use : list of int
        Bytes in use after each part.
    """

    def __init__(self, events: Iterable[Event], parts: int = PARTS) -> None:
        steps = steps_of(events)
        size = max(1, -(-len(steps) // parts))
        slots = _loops.Slots(1 + max((step[1] for step in steps), default=0))
        self.parts = [_loops.Program(steps[at:at + size], slots) for at in range(0, len(steps), size)]
        self.pairs = len(steps) // 2
        self.streams = 1 + max((step[3] for step in steps), default=0)
        self.in_use: list[int] = []
        used = self.peak = 0
        for place, (operation, _, nbytes, _) in enumerate(steps, 1):
            used += rounded(nbytes) if operation == _loops.ALLOCATE else -rounded(nbytes)
            self.peak = max(self.peak, used)
            if place % size == 0 or place == len(steps):
                self.in_use.append(used)

    def run(self, allocator: _loops.Allocator, streams: list[int]) -> Iterator[tuple[int, int]]:
        """Run it: nanoseconds and refused allocations of each part."""
        for part in self.parts:
            took = allocator.program(part, streams)
            yield took, part.refused


# ---------------------------------------------------------------------------------------------- pools
class Addresses(xlogmem.DeviceMemoryResource):
    """Returns addresses without memory behind them."""

    order = "stream"

    def __init__(self) -> None:
        super().__init__(0)
        self.next = 1 << 40

    def allocate(self, nbytes: int, stream: object) -> int:
        self.next += rounded(nbytes) + GRAIN
        return self.next - rounded(nbytes) - GRAIN

    def deallocate(self, ptr: int, nbytes: int, stream: object) -> None:
        pass


def runtime_over(resource: xlogmem.DeviceMemoryResource, streams: int) -> tuple[_loops.Allocator, list[Any]]:
    """A runtime as C++ code calls it, and streams of it."""
    runtime = xlogmem.DeviceRuntime(resource=resource, stream_pool=xlogmem.StreamPool(max_streams=streams + 1))
    return _loops.Allocator.table(runtime), [runtime.acquire_stream() for _ in range(streams)]


def fits_ours(programs: Programs, maximum: int, at_once: bool) -> bool:
    """True if xlogmem's pool of `maximum` bytes is enough, which takes them at once or grows."""
    pool = xlogmem.PoolMemoryResource(Addresses(), maximum if at_once else None, maximum)
    allocator, streams = runtime_over(pool, programs.streams)
    return not any(refused for _, refused in programs.run(allocator, [stream.handle for stream in streams]))


def rmm_pool(maximum: int | None, at_once: bool) -> Any:
    """RMM's pool, over addresses."""
    import rmm.mr

    rmm.set_logging_level(rmm.level_enum.off)                   # it logs each failed attempt as an error
    source = Addresses()
    upstream = rmm.mr.CallbackMemoryResource(source.allocate, source.deallocate)
    return rmm.mr.PoolMemoryResource(upstream, initial_pool_size=(maximum or 0) if at_once else 0,
                                     maximum_pool_size=maximum)


def fits_rmms(programs: Programs, maximum: int, at_once: bool) -> bool:
    """True if RMM's pool is enough, as in `fits_ours`, with the default stream as the first."""
    from xlogmem.rmm._binding import upstream_of

    allocator = _loops.Allocator.of(upstream_of(rmm_pool(maximum, at_once)))
    of_streams = xlogmem.StreamPool(max_streams=programs.streams + 1)
    streams = [of_streams.acquire() for _ in range(programs.streams - 1)]
    handles = [0, *(stream.handle for stream in streams)]
    return not any(refused for _, refused in programs.run(allocator, handles))


def least(fits: Fits, programs: Programs, at_once: bool = True, tried: Callable[[], object] = lambda: None) -> int:
    """The smallest pool that is found to suffice.

    A larger pool may fail where a smaller one suffices, so sizes from the most in use on are tried in turn, in percent
    of it.  Bisection finds the size between the last that fails and the first that suffices, and begins at once where
    a third more does not suffice.
    """
    grain = max(GRAIN, rounded(programs.peak // RESOLUTION))

    def enough(grains: int) -> bool:
        tried()
        return fits(programs, rounded(programs.peak) + grains * grain, at_once)

    low = -1
    for high in itertools.chain(range(0, SCANNED, 10), (SCANNED << power for power in itertools.count())):
        if enough(high):
            break
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return rounded(programs.peak) + high * grain
