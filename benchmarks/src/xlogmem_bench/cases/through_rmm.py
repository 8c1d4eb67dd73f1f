"""Through RMM: pairs as libcudf makes them, the GIL's part in them, and small columns of pylibcudf."""
from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import xlogmem
from xlogmem_bench import _loops
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PEER, PYTHON, rmm_resources, runtimes
from xlogmem_bench.cases.model import GIB, Build, Candidate, timed
from xlogmem_bench.world import Failed, World, unless_failed

__all__ = ["beside_python", "in_pylibcudf", "loops_of", "pairs_beside_python", "resources_of_rmm", "through_rmm"]


def when_rmm(build: Build) -> Build:
    """The candidates of `build` if RMM is here, until RMM fails."""
    def guarded(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        if "RMM" in world.modules:
            yield from unless_failed("RMM", build(world, stack, failed), failed)

    return guarded


def loops_of(mr: Any) -> _loops.Allocator:
    from xlogmem.rmm._binding import upstream_of

    return _loops.Allocator.of(upstream_of(mr))


def resources_of_rmm(world: World) -> Iterator[tuple[str, str, Any]]:
    """RMM's resources alone, under its statistics, and under an xlogmem runtime; then xlogmem's own, through RMM."""
    import xlogmem.rmm as binding

    room = world.share(GIB)
    mr = world.modules["RMM"].mr
    for name, below in rmm_resources(world, room).items():
        yield name, PEER, below
        if name.endswith("statistics"):
            continue
        if name != "rmm async":
            yield f"{name}, statistics", PEER, mr.StatisticsResourceAdaptor(below)
        runtime = xlogmem.DeviceRuntime(resource=binding.RmmMemoryResource(below))
        yield f"xlogmem over {name}", OURS, binding.RuntimeMemoryResource(runtime)
    for name, runtime in runtimes(room).items():
        yield name, OURS, binding.RuntimeMemoryResource(runtime)


def through_rmm(nbytes: int, own_stream: bool) -> Build:
    """A pair as libcudf makes it: in C++, through RMM's types, on the legacy default stream (cuDF's) or on another."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        on = world.streams[:1] if own_stream else [0]
        floor = _loops.Allocator.driver()
        yield Candidate("driver", CPP, FLOOR, partial(floor.pairs, nbytes, on))
        for name, role, mr in resources_of_rmm(world):
            yield Candidate(name, CPP, role, partial(loops_of(mr).pairs, nbytes, on))

    return when_rmm(build)


def beside_python(nbytes: int, calls: int) -> Build:
    """The 99th percentile of a pair in C++ while a Python thread computes: a pair that takes the GIL waits for it."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        import xlogmem.rmm as binding

        mr = world.modules["RMM"].mr
        asynchronous = mr.CudaAsyncMemoryResource()
        over = binding.RuntimeMemoryResource(xlogmem.DeviceRuntime(resource=binding.RmmMemoryResource(asynchronous)))
        floor = _loops.Allocator.driver()
        yield Candidate("driver", CPP, FLOOR, while_python_computes(floor, nbytes, calls), most=1)
        for name, role, resource in (("rmm async", PEER, asynchronous), ("xlogmem over rmm async", OURS, over)):
            yield Candidate(name, CPP, role, while_python_computes(loops_of(resource), nbytes, calls), most=1)
        callback = mr.CallbackMemoryResource(asynchronous.allocate, asynchronous.deallocate)
        few = max(calls // 500, 8)
        yield Candidate("rmm callbacks in Python", CPP, PEER, while_python_computes(loops_of(callback), nbytes, few),
                        f"what a resource written in Python costs; the worst of {few} pairs", most=1)

    return when_rmm(build)


def pairs_beside_python(loops: _loops.Allocator, nbytes: int, count: int) -> list[int]:
    """Nanoseconds of each pair, sorted, while another thread keeps the interpreter busy."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(100))

    thread = threading.Thread(target=spin)
    thread.start()
    took = loops.each_pair(nbytes, [0], count)
    stop.set()
    thread.join()
    return took


def while_python_computes(loops: _loops.Allocator, nbytes: int, count: int) -> Callable[[int], float]:
    def run(_: int) -> float:
        return float(pairs_beside_python(loops, nbytes, count)[count * 99 // 100])

    return run


def in_pylibcudf(operation: str, rows: int, calls: int) -> Build:
    """Small columns made one after the other: as bound by allocation as cuDF gets."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        if "pylibcudf" not in world.modules:
            return
        for name, role, mr in resources_of_rmm(world):
            try:
                one = column_maker(operation, rows, mr)
                one()                                   # loads kernels, the first time
            except Exception as error:                  # the other resources go on
                failed(name, error)
            else:
                yield Candidate(name, PYTHON, role, timed(one), most=calls)

    return when_rmm(build)


def column_maker(operation: str, rows: int, mr: Any) -> Callable[[], object]:
    """The operation on columns of 64-bit integers, with all memory from `mr`."""
    import pylibcudf as plc
    from rmm.pylibrmm.stream import DEFAULT_STREAM

    dtype = plc.DataType(plc.TypeId.INT64)
    a, b = (plc.column_factories.make_numeric_column(dtype, rows, plc.types.MaskState.UNALLOCATED, DEFAULT_STREAM, mr)
            for _ in range(2))
    if operation == "allocate_like":
        never = plc.copying.MaskAllocationPolicy.NEVER
        return lambda: plc.copying.allocate_like(a, never, rows, DEFAULT_STREAM, mr)
    add = plc.binaryop.BinaryOperator.ADD
    return lambda: plc.binaryop.binary_operation(a, b, add, dtype, DEFAULT_STREAM, mr)
