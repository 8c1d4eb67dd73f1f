"""Pairs of allocate and free: on one stream, on several in turn, and in threads."""
from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import repeat

from cuda.bindings import driver as cuda

from xlogmem.sim.kernels import check
from xlogmem_bench.allocators import CPP, PYTHON, NativeAllocator, PythonAllocator, native, python
from xlogmem_bench.cases.model import GIB, Build, Candidate, timed
from xlogmem_bench.world import Failed, World

__all__ = ["allocate_and_free", "for_each_allocator", "in_threads"]


def for_each_allocator(of_native: Callable[[NativeAllocator], Candidate],
                       of_python: Callable[[PythonAllocator], Candidate] | None, room: int) -> Build:
    """A candidate of each allocator, which gets `room` bytes; without `of_python` from C++ only."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        share = world.share(room)
        yield from map(of_native, native(world, stack, share, failed))
        if of_python is not None:
            yield from map(of_python, python(world, stack, share, failed))

    return build


def allocate_and_free(nbytes: int, streams: int = 1, room: int = GIB) -> Build:
    """A pair; on several streams in turn."""
    def of_native(a: NativeAllocator) -> Candidate:
        return Candidate(a.name, CPP, a.role, partial(a.loops.pairs, nbytes, a.streams[:streams]), a.note)

    def of_python(a: PythonAllocator) -> Candidate:
        run = one_stream(a, nbytes) if streams == 1 else streams_in_turn(a, nbytes, streams)
        return Candidate(a.name, PYTHON, a.role, run, a.note)

    return for_each_allocator(of_native, of_python, room)


def one_stream(a: PythonAllocator, nbytes: int) -> Callable[[int], float]:
    loop = timed(a.pair(nbytes, 0))

    def run(calls: int) -> float:
        a.enter(0)
        return loop(calls)

    return run


def streams_in_turn(a: PythonAllocator, nbytes: int, streams: int) -> Callable[[int], float]:
    functions = [a.on(stream, switching=True) for stream in range(streams)]
    turn = 0

    def pair() -> None:
        nonlocal turn
        allocate, free = functions[turn % streams]
        turn += 1
        free(allocate(nbytes), nbytes)

    return timed(pair)


def in_threads(nbytes: int, threads: int) -> Build:
    """Pairs in threads that begin together, each on a stream of its own: what a pair takes in each."""
    def of_native(a: NativeAllocator) -> Candidate:
        return Candidate(a.name, CPP, a.role, partial(a.loops.pairs_in_threads, nbytes, a.streams[:threads]), a.note)

    def of_python(a: PythonAllocator) -> Candidate:
        return Candidate(a.name, PYTHON, a.role, partial(pairs_in_threads, a, nbytes, threads), a.note)

    return for_each_allocator(of_native, of_python, GIB)


def pairs_in_threads(a: PythonAllocator, nbytes: int, threads: int, calls: int) -> float:
    start = threading.Barrier(threads + 1)
    context = check(cuda.cuCtxGetCurrent())

    def loop(stream: int) -> None:
        # The context is the thread's own, as are the current streams of CuPy and PyTorch.
        check(cuda.cuCtxSetCurrent(context))
        a.enter(stream)
        pair = a.pair(nbytes, stream)
        start.wait()
        for _ in repeat(None, calls):
            pair()

    workers = [threading.Thread(target=loop, args=(stream,)) for stream in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    before = time.perf_counter_ns()
    for worker in workers:
        worker.join()
    return time.perf_counter_ns() - before
