"""Programs of allocations, frees and launches, over and over: logs, and the benchmarks of RMM."""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.sim.kernels import check
from xlogmem_bench import _loops, logs
from xlogmem_bench.allocators import CPP, PYTHON, NativeAllocator, PythonAllocator
from xlogmem_bench.cases.allocate import for_each_allocator
from xlogmem_bench.cases.model import KERNEL_NS, Build, Candidate
from xlogmem_bench.world import Failed, World

__all__ = ["replayed"]

Steps = list[logs.Step]


def replayed(made: Callable[[], Steps], room: int, prelude: tuple[Steps, Steps] | None = None,
             from_python: bool = True) -> Build:
    """The program that `made` returns when the case begins; `prelude` runs before the first time and after the last."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        steps = made()
        slots = 1 + max(step[1] for step in [*steps, *(prelude[0] if prelude else ())])
        streams = 1 + max(step[3] for step in steps)

        def of_native(a: NativeAllocator) -> Candidate:
            return native_replay(a, world, _loops.Slots(slots), steps, prelude)

        def of_python(a: PythonAllocator) -> Candidate:
            return python_replay(a, world, streams, steps, prelude)

        yield from for_each_allocator(of_native, of_python if from_python else None, room)(world, stack, failed)

    return build


def native_replay(a: NativeAllocator, world: World, slots: _loops.Slots, steps: Steps,
                  prelude: tuple[Steps, Steps] | None) -> Candidate:
    function = int(check(cuda.cuModuleGetFunction(world.kernels._module, b"xlogmem_delay")))

    def runner(some: Steps, limit: float = 0) -> Callable[..., float]:
        program = _loops.Program(some, slots, function, 0 if world.simulated else KERNEL_NS)
        return lambda *_: a.loops.program(program, a.streams, limit)

    candidate = Candidate(a.name, CPP, a.role, runner(steps, world.longest), a.note, most=1)
    if prelude:
        runner(prelude[0])()
        candidate.close = runner(prelude[1])
    return candidate


def python_replay(a: PythonAllocator, world: World, streams: int, steps: Steps, prelude: tuple[Steps, Steps] | None
                  ) -> Candidate:
    functions = [a.on(stream, switching=streams > 1) for stream in range(streams)]
    held: dict[int, Any] = {}

    def run(some: Steps) -> float:
        a.enter(0)
        before = time.perf_counter_ns()
        for operation, slot, nbytes, stream in some:
            if operation == logs.ALLOCATE:
                with suppress(MemoryError):             # allocations that find no memory are left out
                    held[slot] = functions[stream][0](nbytes)
            elif operation == logs.FREE:
                if slot in held:
                    functions[stream][1](held.pop(slot), nbytes)
            elif operation == logs.LAUNCH:
                world.kernels.delay(world.streams[stream], 0 if world.simulated else KERNEL_NS)
            else:
                world.synchronize()
        return time.perf_counter_ns() - before

    candidate = Candidate(a.name, PYTHON, a.role, lambda _: run(steps), a.note, most=1, close=held.clear)
    if prelude:
        after = prelude[1]
        run(prelude[0])
        candidate.close = lambda: run(after)
    return candidate
