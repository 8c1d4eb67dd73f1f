"""Allocate, read on other streams, free: the free waits for the readers, on the device."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import xlogmem
from xlogmem_bench import _loops
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PEER, PER_USE_EVENTS, PYTHON, runtimes
from xlogmem_bench.cases.model import GIB, MIB, Build, Candidate, timed
from xlogmem_bench.cases.patterns import BY_HAND
from xlogmem_bench.world import Failed, World, streams_for, unless_failed

__all__ = ["freed_after_reads"]


def freed_after_reads(readers: int, nbytes: int = MIB) -> Build:
    hand = [(_loops.TAKE, 0, 0), (_loops.RECORD, 0, 0), *((_loops.WAIT, reader, 0) for reader in range(1, readers + 1)),
            *(step for reader in range(1, readers + 1)
              for step in ((_loops.RECORD, reader, reader), (_loops.WAIT, 0, reader))), (_loops.GIVE, 0, 0)]

    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        yield Candidate("driver", CPP, FLOOR, _loops.Hand(hand, world.streams, nbytes).run, BY_HAND)
        for name, runtime in runtimes(world.share(GIB)).items():
            yield from freed_by_xlogmem(name, runtime, readers, nbytes)
        scheme = _loops.Allocator.per_use_events()
        yield Candidate(PER_USE_EVENTS, CPP, PEER, partial(
            _loops.per_use_event_frees, scheme, world.streams, nbytes, readers))
        if "PyTorch" in world.modules:
            yield from unless_failed("PyTorch", freed_by_torch(world, stack, readers, nbytes), failed)

    return build


def freed_by_xlogmem(name: str, runtime: xlogmem.DeviceRuntime, readers: int, nbytes: int) -> Iterator[Candidate]:
    streams = [runtime.acquire_stream() for _ in range(readers + 1)]
    use = xlogmem.use
    yield Candidate(name, CPP, OURS, partial(_loops.frees_after_reads, streams, nbytes, readers))

    def one() -> None:
        block = runtime.allocate(nbytes, streams[0])
        for stream in streams[1:]:
            with use(stream, read=block):
                pass
        block.free()

    yield Candidate(name, PYTHON, OURS, timed(one))


def freed_by_torch(world: World, stack: ExitStack, readers: int, nbytes: int) -> Iterator[Candidate]:
    torch, streams = world.modules["PyTorch"], streams_for(world, "PyTorch")
    device = torch.device("cuda", 0)
    stack.callback(torch.cuda.empty_cache)

    def one() -> None:
        tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
        for stream in streams[1:readers + 1]:
            tensor.record_stream(stream)

    yield Candidate("torch empty, record_stream", PYTHON, PEER, timed(one),
                    "readers are not ordered after the allocation; the memory is kept until its events were polled")
