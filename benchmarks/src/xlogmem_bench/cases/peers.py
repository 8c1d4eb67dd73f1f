"""The same uses through the means of other libraries, from Python: their events, marks and tasks."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from cuda.bindings import driver as cuda

from xlogmem.sim.kernels import check
from xlogmem_bench import _loops
from xlogmem_bench.allocators import PEER, PYTHON
from xlogmem_bench.cases.model import Candidate, timed
from xlogmem_bench.cases.patterns import BY_HAND, READ, READ_WRITE, WRITE, Pattern
from xlogmem_bench.world import Failed, World, streams_for, unless_failed

__all__ = ["ordered_by_peers"]

Maker = Callable[[int, int], Callable[[], object]]      # of a call, from (stream, event)


def ordered_by_peers(pattern: Pattern, world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
    for name, make in (("cuda.bindings", with_bindings), ("PyTorch", with_torch), ("CuPy", with_cupy),
                       ("cuda.core", with_core), ("CUDASTF", with_stf)):
        if name in world.modules or name == "cuda.bindings":
            yield from unless_failed(name, make(pattern, world, stack), failed)


def by_hand(name: str, pattern: Pattern, record: Maker, wait: Maker) -> Candidate:
    calls = [record(stream, event) if what == _loops.RECORD else wait(stream, event)
             for what, stream, event in pattern.hand]

    def one() -> None:
        for call in calls:
            call()

    return Candidate(name, PYTHON, PEER, timed(one), BY_HAND)


def with_bindings(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    events = [check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING)) for _ in range(9)]
    stack.callback(lambda: [check(cuda.cuEventDestroy(event)) for event in events])
    record, wait = cuda.cuEventRecord, cuda.cuStreamWaitEvent
    yield by_hand("cuda.bindings", pattern,
                  lambda stream, event: partial(record, events[event], world.streams[stream]),
                  lambda stream, event: partial(wait, world.streams[stream], events[event], 0))


def with_torch(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    torch, streams = world.modules["PyTorch"], streams_for(world, "PyTorch")
    events = [torch.cuda.Event() for _ in range(9)]
    yield by_hand("torch events", pattern, lambda stream, event: partial(events[event].record, streams[stream]),
                  lambda stream, event: partial(streams[stream].wait_event, events[event]))
    tensors = [torch.empty(256, dtype=torch.uint8, device="cuda") for _ in range(pattern.blocks)]
    marks = [(tensors[block].record_stream, streams[stream + 1]) for stream, accesses in pattern.uses
             for block, _ in accesses]

    def marked() -> None:
        for mark, stream in marks:
            mark(stream)

    yield Candidate("torch record_stream", PYTHON, PEER, timed(marked),
                    "marks only: orders no use after another, and the memory is kept until its events were polled")


def with_cupy(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    cupy, streams = world.modules["CuPy"], streams_for(world, "CuPy")
    events = [cupy.cuda.Event(disable_timing=True) for _ in range(9)]
    yield by_hand("cupy events", pattern, lambda stream, event: partial(events[event].record, streams[stream]),
                  lambda stream, event: partial(streams[stream].wait_event, events[event]))


def with_core(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    streams = streams_for(world, "cuda.core")
    events = [stream.record() for stream in streams[:9]]
    yield by_hand("cuda.core events", pattern, lambda stream, event: partial(streams[stream].record, events[event]),
                  lambda stream, event: partial(streams[stream].wait, events[event]))


def with_stf(pattern: Pattern, world: World, stack: ExitStack) -> Iterator[Candidate]:
    context = world.modules["CUDASTF"].context()
    stack.callback(context.finalize)
    count = 1 + max(block for _, accesses in pattern.uses for block, _ in accesses)
    tokens = [context.token() for _ in range(count)]
    names = {READ: "read", WRITE: "write", READ_WRITE: "rw"}

    def one() -> None:
        for _, accesses in pattern.uses:
            task = context.task(*(getattr(tokens[block], names[flags])() for block, flags in accesses))
            task.start()
            task.end()

    one()
    yield Candidate("CUDASTF tasks", PYTHON, PEER, timed(one),
                    "tasks on tokens, on streams that CUDASTF chooses; no allocation behind them")
