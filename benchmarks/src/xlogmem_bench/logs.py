"""Logs of allocations, generated, and RMM's benchmark shapes: events, and programs that can be replayed.

An event is an allocation or its free.  Nothing here measures or replays; `recorded` reads the logs of programs.
"""
from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import NamedTuple

__all__ = ["ALLOCATE", "FREE", "GRAIN", "LAUNCH", "SYNCHRONIZE", "Event", "Step", "fragments", "held", "multi_stream",
           "orc_bursts", "pairs", "peak", "queries", "random_allocations", "random_sizes", "rounded", "steps_of"]

GRAIN = 256
ALLOCATE, FREE, LAUNCH, SYNCHRONIZE = range(4)          # as in _loops
Step = tuple[int, int, int, int]                        # (operation, slot, bytes, stream)


class Event(NamedTuple):
    """`number` is allocated with `nbytes`, or freed (0), on a stream."""

    number: int
    nbytes: int
    stream: int


# ---------------------------------------------------------------------------------------------- logs
def random_sizes(draw: random.Random, streams: int = 1, events: int = 20_000) -> Iterator[Event]:
    """Any size from 256 B to 64 MiB, each power of two as often; any live allocation may be freed next."""
    alive: list[tuple[int, int]] = []
    numbers = itertools.count()
    for _ in range(events):
        if alive and draw.random() < (.5 if len(alive) > 200 else .45):
            number, stream = alive.pop(draw.randrange(len(alive)))
            yield Event(number, 0, stream)
        else:
            stream = draw.randrange(streams)
            alive.append((next(numbers), stream))
            yield Event(alive[-1][0], int(2 ** draw.uniform(8, 26)), stream)


def orc_bursts(draw: random.Random, bursts: int = 4, small: int = 10_000) -> Iterator[Event]:
    """Columns stay while many small buffers, which encode them, are allocated and freed."""
    numbers = itertools.count()
    columns: list[int] = []
    for _ in range(bursts):
        burst = []
        for place in range(small):
            if place % 500 == 0:
                columns.append(next(numbers))
                yield Event(columns[-1], draw.randint(1 << 20, 64 << 20), 0)
            burst.append(next(numbers))
            yield Event(burst[-1], draw.randint(16, 16 << 10), 0)
        draw.shuffle(burst)
        for number in burst:
            yield Event(number, 0, 0)
        draw.shuffle(columns)
        while len(columns) > 10:
            yield Event(columns.pop(), 0, 0)


def queries(draw: random.Random, streams: int = 1, count: int = 150) -> Iterator[Event]:
    """Tables of a few sizes; each query frees its intermediates, the last first, and keeps a result for a while."""
    numbers = itertools.count()
    results: list[tuple[int, int]] = []
    for _ in range(count):
        stream = draw.randrange(streams)
        rows = draw.choice([10_000, 250_000, 1_000_000, 4_000_000])
        made = []
        for _ in range(draw.randint(10, 60)):
            made.append(next(numbers))
            width = draw.choice([1 / 8, 1, 4, 8, 8, 16])
            yield Event(made[-1], max(1, int(rows * width * draw.choice([1, 1, draw.random()]))), stream)
            if draw.random() < .3:
                yield Event(made.pop(draw.randrange(len(made))), 0, stream)
        results += [(made.pop(draw.randrange(len(made))), stream) for _ in range(min(3, len(made)))]
        for number in reversed(made):
            yield Event(number, 0, stream)
        while len(results) > 12:
            number, stream = results.pop(draw.randrange(len(results)))
            yield Event(number, 0, stream)


def rounded(nbytes: int) -> int:
    return -(-nbytes // GRAIN) * GRAIN


def peak(log: Iterable[Event]) -> int:
    """The most bytes that a log has in use at any time."""
    sizes: dict[int, int] = {}
    used = most = 0
    for event in log:
        if event.nbytes:
            sizes[event.number] = rounded(event.nbytes)
            used += sizes[event.number]
        else:
            used -= sizes.pop(event.number)
        most = max(most, used)
    return most


# ---------------------------------------------------------------------------------------------- programs
def steps_of(log: Iterable[Event]) -> list[Step]:
    """A log as a program that frees all of its memory, so that it can be run again and again."""
    steps: list[Step] = []
    sizes: dict[int, tuple[int, int]] = {}
    for event in log:
        if event.nbytes:
            sizes[event.number] = event.nbytes, event.stream
            steps.append((ALLOCATE, event.number, event.nbytes, event.stream))
        else:
            nbytes, _ = sizes.pop(event.number)
            steps.append((FREE, event.number, nbytes, event.stream))
    return steps + [(FREE, number, nbytes, stream) for number, (nbytes, stream) in sizes.items()]


def held(count: int, nbytes: int) -> list[Step]:
    """`count` allocations at once, then their frees."""
    return [(operation, number, nbytes, 0) for operation in (ALLOCATE, FREE) for number in range(count)]


def pairs(largest: int, count: int, slot: int) -> list[Step]:
    """One pair after the other in one slot, of 1 to `largest` bytes."""
    draw = random.Random(largest)
    return [(operation, slot, nbytes, 0) for nbytes in [draw.randint(1, largest) for _ in range(count)]
            for operation in (ALLOCATE, FREE)]


def random_allocations(seed: int, allocations: int, largest: int, most: int) -> list[Step]:
    """RMM's benchmark of that name: sizes from 1 to `largest` bytes, an allocation with a chance of 73 in 100 as long
    as `most` bytes are not in use, else a free of any block; twice as many turns as allocations.

    The numbers drawn are not those of C++'s default engine."""
    draw = random.Random(seed)
    steps: list[Step] = []
    alive: list[tuple[int, int]] = []
    used = made = 0
    for _ in range(2 * allocations):
        nbytes = draw.randint(1, largest)
        if not alive or (draw.randrange(100) < 73 and made < allocations and used + nbytes < most):
            steps.append((ALLOCATE, made, nbytes, 0))
            alive.append((made, nbytes))
            made += 1
            used += nbytes
        else:
            place = draw.randrange(len(alive))
            alive[place], alive[-1] = alive[-1], alive[place]
            number, nbytes = alive.pop()
            steps.append((FREE, number, nbytes, 0))
            used -= nbytes
    return steps + [(FREE, number, nbytes, 0) for number, nbytes in alive]


def multi_stream(streams: int, kernels: int) -> list[Step]:
    """RMM's benchmark multi_stream_allocations: eight bytes, a kernel that computes for a while, their free, on the
    streams in turn; then the host waits."""
    steps: list[Step] = []
    for number in range(kernels):
        stream = number % streams
        steps += [(ALLOCATE, number, 8, stream), (LAUNCH, number, 0, stream), (FREE, number, 8, stream)]
    return [*steps, (SYNCHRONIZE, 0, 0, 0)]


def fragments(draw: random.Random, blocks: int, largest: int) -> tuple[list[Step], list[Step]]:
    """Steps that leave `blocks` holes between as many blocks, and the steps that clean up after them."""
    sizes = [draw.randint(1, largest) for _ in range(2 * blocks)]
    made = [(ALLOCATE, number, nbytes, 0) for number, nbytes in enumerate(sizes)]
    frees = [(FREE, number, nbytes, 0) for number, nbytes in enumerate(sizes)]
    return made + frees[1::2], frees[::2]
