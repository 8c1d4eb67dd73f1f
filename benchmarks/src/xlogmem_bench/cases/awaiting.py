"""From the end of work on the device to the coroutine that waits for it.

Work is one fill of a few bytes, which is recorded as a use of all blocks.  Its stream waits for a number that the host
writes last, so that nothing is complete when the coroutines are suspended.  The time is from that write until the next
line of the coroutine, the median of all coroutines.  Beside it are as many host functions of the driver, on at most 32
streams that wait for an event behind the work.  They are written in Python, too, so each of them takes the GIL.

A driver call blocks while a stream has about a thousand entries that cannot begin, and then nothing would write the
number.  So no stream has more than a few dozen.  For that the blocks are allocated on another stream than that of the
work: where work without a record may stand behind a block, each await records an event.
"""
from __future__ import annotations

import asyncio
import ctypes
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem.sim.kernels import check
from xlogmem_bench.allocators import FLOOR, OURS, PEER, PYTHON
from xlogmem_bench.cases.model import Build, Candidate
from xlogmem_bench.world import Failed, World

__all__ = ["awaited"]

STREAMS = 32                                # with host functions
NBYTES = 4096
SUSPENDED = 0.05                            # seconds after which all wait
READY = int(cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
NOTE_OF_ONE = "one of them, on the stream of the work: what can be reached for one"


class Gate:
    """Work on a stream that waits until the host writes a number, and streams that wait for the work."""

    def __init__(self, world: World, stack: ExitStack, pending: int) -> None:
        self.world, self.runtime = world, xlogmem.DeviceRuntime()
        self.home, self.stream = self.runtime.acquire_stream(), self.runtime.acquire_stream()
        self.word = int(check(cuda.cuMemHostAlloc(8, cuda.CU_MEMHOSTALLOC_DEVICEMAP)))
        self.value = ctypes.c_uint32.from_address(self.word)
        self.value.value = 0
        self.blocks = [self.runtime.allocate(NBYTES, self.home) for _ in range(pending)]
        self.followers = [int(check(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)))
                          for _ in range(min(pending, STREAMS))]
        self.event = check(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
        self.opened = 0
        stack.callback(self.close)
        self.work()                                     # and loads what the driver loads on first use
        world.synchronize()
        asyncio.run(self.make_lanes())

    def work(self) -> None:
        with xlogmem.use(self.stream, write=self.blocks):
            check(cuda.cuMemsetD8Async(self.blocks[0].ptr, 1, NBYTES, self.stream.handle))

    async def make_lanes(self) -> None:
        """Await all blocks once.  The driver may block while a stream is made until the work on the device is complete,
        so another thread ends that here."""
        context = check(cuda.cuCtxGetCurrent())

        def end() -> None:
            check(cuda.cuCtxSetCurrent(context))
            time.sleep(SUSPENDED)
            self.open()

        self.queue()
        ended = asyncio.get_running_loop().run_in_executor(None, end)
        await asyncio.gather(*(of(block) for block in self.blocks))
        await ended

    def queue(self) -> None:
        self.opened = 0
        check(cuda.cuStreamWaitValue32(self.stream.handle, self.word, self.value.value + 1, READY))
        self.work()

    def follow(self) -> None:
        """Have the other streams wait for the work."""
        check(cuda.cuEventRecord(self.event, self.stream.handle))
        for stream in self.followers:
            check(cuda.cuStreamWaitEvent(stream, self.event, 0))

    def open(self) -> None:
        self.opened = time.perf_counter_ns()
        self.value.value += 1
        if self.world.simulated:                        # that driver works in calls alone
            self.world.synchronize()

    def passed(self) -> int:
        """Nanoseconds since the release; 0 before it."""
        return self.opened and time.perf_counter_ns() - self.opened

    def close(self) -> None:
        for block in self.blocks:
            block.free()
        self.runtime.reap_pending()
        for stream in self.followers:
            check(cuda.cuStreamDestroy(stream))
        check(cuda.cuEventDestroy(self.event))
        check(cuda.cuMemFreeHost(self.word))


async def until_open(gate: Gate, waits: list[Callable[[], Awaitable[Any]]]) -> list[int]:
    """Nanoseconds from the release to each coroutine."""
    times: list[int] = []

    async def one(wait: Callable[[], Awaitable[Any]]) -> None:
        await wait()
        times.append(gate.passed())

    gate.queue()
    tasks = [asyncio.ensure_future(one(wait)) for wait in waits]
    await asyncio.sleep(SUSPENDED)
    gate.open()
    await asyncio.gather(*tasks)
    return times


def until_called(gate: Gate, streams: list[int], count: int) -> list[int]:
    """Nanoseconds from the release to each of so many host functions, on these streams in turn."""
    times: list[int] = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: times.append(gate.passed()))
    called = cuda.CUhostFn(ctypes.cast(function, ctypes.c_void_p).value)
    gate.queue()
    if streams is gate.followers:
        gate.follow()
    for number in range(count):
        check(cuda.cuLaunchHostFunc(streams[number % len(streams)], called, 0))
    time.sleep(SUSPENDED)
    gate.open()
    while len(times) < count:                           # not inside a wait of the driver's: the functions take the GIL
        time.sleep(0.001)
    gate.world.synchronize()                            # the last has returned
    return times


def median_of(times: list[int]) -> float:
    if early := times.count(0):
        raise RuntimeError(f"{early} of {len(times)} did not wait for the work")
    return statistics.median(times)


async def of(what: Awaitable[Any]) -> Any:
    return await what


def awaited(pending: int) -> Build:
    """So many coroutines at a time, a block for each."""
    def build(world: World, stack: ExitStack, failed: Failed) -> Iterator[Candidate]:
        gate = Gate(world, stack, pending)

        def candidate(name: str, role: str, times: Callable[[], list[int]], note: str = "") -> Candidate:
            return Candidate(name, PYTHON, role, lambda _: median_of(times()), note, most=1)

        yield candidate("host functions", FLOOR, lambda: until_called(gate, gate.followers, pending))
        yield candidate("xlogmem", OURS, lambda: asyncio.run(until_open(gate, [
            partial(of, block) for block in gate.blocks])))
        yield candidate("one host function", PEER, lambda: until_called(gate, [gate.stream.handle], 1), NOTE_OF_ONE)
        yield candidate("threads", PEER, lambda: asyncio.run(until_open(gate, [
            partial(asyncio.to_thread, block.synchronize) for block in gate.blocks])))

    return build
