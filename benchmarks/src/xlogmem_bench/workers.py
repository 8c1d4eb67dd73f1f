"""Processes in which a library has one allocator each: a process of a run has them make pairs, in turns.

They do nothing between their turns, so those of one library stand beside each other in the same second, as candidates
of one process do.
"""
from __future__ import annotations

import gc
import multiprocessing
import os
import time
from contextlib import suppress
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem.commands.start import start_driver
from xlogmem.sim.kernels import check
from xlogmem_bench import neighbours
from xlogmem_bench.neighbours import Pair

__all__ = ["STREAMS_IN_TURN", "Worker", "Workers", "serve"]

STREAMS_IN_TURN = 8
ENDS = 5                                    # seconds after which a process that does not end is killed
Shape = tuple[int, int]                     # bytes, and streams in turn


class Worker:
    """A process in which the library `name` allocates from `allocator`.

    Raises
    ------
    RuntimeError
        In `started` and `run`: what the process raised, or that it has ended.
    """

    def __init__(self, name: str, allocator: str, room: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, name, allocator, room), daemon=True)
        self.process.start()
        theirs.close()
        self.failure: str | None = None
        self.is_started = False

    def started(self) -> None:
        """Wait until its library is there."""
        if not self.is_started:
            self._answer()
            self.is_started = True

    def run(self, shape: Shape, calls: int) -> float:
        """Nanoseconds of so many pairs."""
        self.started()
        with suppress(BrokenPipeError):
            self.pipe.send((shape, calls))
        return self._answer()

    def _answer(self) -> float:
        """A failure is the answer from then on: the process ends with it."""
        if self.failure is None:
            try:
                took, self.failure = self.pipe.recv()
            except (EOFError, ConnectionError):
                self.process.join(ENDS)
                self.failure = f"its process ended with {self.process.exitcode}"
            else:
                if self.failure is None:
                    return float(took)
        raise RuntimeError(self.failure)

    def close(self) -> None:
        self.pipe.close()
        self.process.join(ENDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Workers:
    """The workers of one library at a time: they start together, and stay while its cases follow each other."""

    def __init__(self) -> None:
        self.name: str | None = None
        self.running: dict[str, Worker] = {}

    def of(self, name: str, allocators: list[str], room: int) -> dict[str, Worker]:
        if name != self.name:
            self.close()
            self.name = name
            self.running = {allocator: Worker(name, allocator, room) for allocator in allocators}
        return self.running

    def close(self) -> None:
        for worker in self.running.values():
            worker.close()
        self.running, self.name = {}, None


def serve(pipe: Connection, name: str, allocator: str, room: int) -> None:
    """Answer requests in a worker process until the other end of the pipe is closed: `(nanoseconds, failure)` for each.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)        # what libraries print is no event of the run
    with suppress(EOFError, ConnectionError):
        try:
            answer_requests(pipe, name, allocator, room)
        except Exception as error:                      # a library may raise anything
            pipe.send((0, f"{type(error).__name__}: {error}"[:300]))


def answer_requests(pipe: Any, name: str, allocator: str, room: int) -> None:
    start_driver()
    neighbour = neighbours.made(name, allocator, room)
    streams = neighbour.make_streams(STREAMS_IN_TURN)
    pairs: dict[Shape, Pair] = {}
    gc.collect()
    gc.disable()
    pipe.send((0, None))
    while True:
        (nbytes, count), calls = pipe.recv()
        if (nbytes, count) not in pairs:
            pairs[nbytes, count] = neighbour.pair_in_turn(nbytes, streams[:count])
        pipe.send((timed(pairs[nbytes, count], calls), None))


def timed(pair: Pair, calls: int) -> int:
    """Nanoseconds of so many pairs; one is made before, because the process has just woken up."""
    check(cuda.cuCtxSynchronize())
    pair()
    clock, turns = time.perf_counter_ns, repeat(None, calls)
    before = clock()
    for _ in turns:
        pair()
    return clock() - before
