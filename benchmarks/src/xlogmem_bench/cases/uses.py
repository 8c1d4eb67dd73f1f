"""Uses of blocks: rounds of launches on one stream and across streams, and beside them events by hand."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import xlogmem
from xlogmem_bench import _loops
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PEER, PER_USE_EVENTS, PYTHON
from xlogmem_bench.cases.model import Build, Candidate, timed
from xlogmem_bench.cases.patterns import BY_HAND, READ, READ_WRITE, WRITE, Pattern
from xlogmem_bench.cases.peers import ordered_by_peers
from xlogmem_bench.world import Failed, World

__all__ = ["used"]


def used(pattern: Pattern) -> Build:
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        floor = _loops.Hand(pattern.hand, world.streams)
        yield Candidate("driver", CPP, FLOOR, floor.run, BY_HAND, pattern.most)
        for policy in ("adaptive", "lazy", "precise"):
            yield from used_by_xlogmem(world, pattern, policy)
        scheme = _loops.PerUseEvents(pattern.uses, world.streams, pattern.blocks, 256, pattern.stride)
        stack.callback(scheme.close)
        yield Candidate(PER_USE_EVENTS, CPP, PEER, scheme.run, most=pattern.most,
                        before=scheme.settle if pattern.stride else nothing)
        yield from ordered_by_peers(pattern, world, stack, failed)

    return build


def used_by_xlogmem(world: World, pattern: Pattern, policy: str) -> Iterator[Candidate]:
    name = "xlogmem" if policy == "adaptive" else f"xlogmem, {policy}"
    runtime = xlogmem.DeviceRuntime(policy=policy)
    on = [runtime.acquire_stream() for _ in range(1 + max(stream for stream, _ in pattern.uses))]
    blocks = [runtime.allocate(256, on[0]) for _ in range(pattern.blocks)]
    if pattern.stride:                      # so that each block was used before: first hand-overs are in `frees`
        with xlogmem.use(on[1], read=blocks):
            pass
    before = partial(settle, on, blocks, runtime.allocate(256, on[0])) if pattern.stride else nothing
    yield Candidate(name, CPP, OURS, _loops.Uses(pattern.uses, on, blocks, pattern.stride).run, most=pattern.most,
                    before=before)
    if policy == "adaptive":
        yield from used_otherwise(world, pattern)
        yield Candidate(name, PYTHON, OURS, timed(with_use(xlogmem.use, pattern, on, blocks)), most=pattern.most,
                        before=before)
        yield Candidate("empty context manager", PYTHON, PEER, timed(with_use(_loops.empty_use, pattern, on, blocks)),
                        "does nothing, with the same arguments: the least that Python could take", pattern.most)


def used_otherwise(world: World, pattern: Pattern) -> Iterator[Candidate]:
    """Blocks by their addresses, and streams of others, which are held or may be destroyed at any time."""
    for how in ("by address", "held streams", "bare streams") if not pattern.stride else ():
        runtime = xlogmem.DeviceRuntime()
        on = [runtime.acquire_stream() for _ in range(len(world.streams))]
        blocks = [runtime.allocate(256, on[0]) for _ in range(pattern.blocks)]
        uses = _loops.Uses(pattern.uses, on if how == "by address" else world.streams, blocks,
                           by_address=how == "by address", hold=how == "held streams")
        yield Candidate(f"xlogmem, {how}", CPP, OURS, uses.run)


def nothing() -> None:
    """Nothing to do."""


def settle(streams: list[Any], blocks: list[Any], spare: Any) -> None:
    """Order the first stream after every use of the blocks, and use up the eager commits of the adaptive policy:
    otherwise the turn would begin with waits for the readers of the turn before."""
    with xlogmem.use(streams[0], read_write=blocks):
        pass
    for stream in streams[1:]:
        for _ in range(64):                             # the number of eager commits in the core
            with xlogmem.use(stream, read=spare):
                pass


def with_use(use: Callable[..., Any], pattern: Pattern, streams: list[Any], blocks: list[Any]) -> Callable[[], None]:
    """The round as a program writes it."""
    names = {READ: "read", WRITE: "write", READ_WRITE: "read_write"}
    rounds: list[list[tuple[Any, dict[str, Any]]]] = []
    for base in range(0, pattern.blocks if pattern.stride else 1, pattern.stride or 1):
        rounds.append([])
        for stream, accesses in pattern.uses:
            arguments: dict[str, Any] = {}
            for block, flags in accesses:
                arguments.setdefault(names[flags], []).append(blocks[base + block])
            rounds[-1].append((streams[stream], {name: some if len(some) > 1 else some[0]
                                                 for name, some in arguments.items()}))
    turn = 0

    def one() -> None:
        nonlocal turn
        for stream, arguments in rounds[turn]:
            with use(stream, **arguments):
                pass
        turn += 1
        if turn == len(rounds):
            turn = 0

    return one
