"""What the stress tests share: threads that start together, a stream that is held up, and random programs whose results
are known.

Nothing here needs the simulated driver: all of it runs on a GPU too.
"""
from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import random
import subprocess
import sys
import threading
import zlib
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from children import variables
from cuda.bindings import driver as cuda
from places import HELPERS
from which_driver import SIMULATED

from xlogmem import DeviceBlock, DeviceRuntime, Stream, sim, use
from xlogmem.sim.kernels import Kernels, check

Result = TypeVar("Result")
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
PATIENCE = 60                                           # seconds, for what has to happen: a deadlock ends as a failure


def together(work: Callable[[int], Result], count: int) -> list[Result]:
    """Call work(0), work(1), … in threads that start at the same moment; what one of them raises is raised here."""
    start = threading.Barrier(count)

    def one(number: int) -> Result:
        start.wait(PATIENCE)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@contextlib.contextmanager
def held_up(*streams: Stream) -> Iterator[None]:
    """What is queued on the streams inside does not run before the end: a host function on the device's side waits."""
    opened = threading.Event()
    callback = HOST_FUNCTION(lambda _: opened.wait(PATIENCE))
    pointer = cuda.CUhostFn(_ptr=ctypes.addressof(ctypes.c_void_p.from_buffer(callback)))
    for stream in streams:
        check(cuda.cuLaunchHostFunc(stream.handle, pointer, 0))
    try:
        yield
    finally:
        opened.set()
        for stream in streams:
            check(cuda.cuStreamSynchronize(stream.handle))


def words_at(ptr: int, count: int, stream: Stream) -> list[int]:
    """The 32-bit words at an address, after what is queued on the stream.  The host waits."""
    seen = bytearray(4 * count)
    check(cuda.cuMemcpyDtoHAsync(seen, ptr, len(seen), stream.handle))
    check(cuda.cuStreamSynchronize(stream.handle))
    return array("I", bytes(seen)).tolist()


def nothing_lost(runtime: DeviceRuntime, allocations: int | None = None) -> None:
    """The accounting at the end, when the threads and all their handles are gone."""
    gc.collect()
    runtime.reap_pending()
    counters = runtime.counters()
    assert (runtime.live_bytes, runtime.pending_bytes, runtime.bytes_outstanding) == (0, 0, 0)
    assert counters["live_blocks"] == 0
    assert counters["allocations"] == counters["frees"] > 0
    assert allocations in (None, counters["allocations"])


def in_its_own_process(program: str, *arguments: object, **environment: object) -> str:
    """What the program prints; its failure is the test's.  See `children.variables`."""
    paths = [str(HELPERS), str(Path(sim.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run([sys.executable, "-W", "error", "-c", program, *map(str, arguments)], capture_output=True,
                          text=True, timeout=100, env=variables(**{
                              "PYTHONPATH": os.pathsep.join(filter(None, paths)),
                              "XLOGMEM_SIMULATE": "1" if SIMULATED else "0"} | environment))
    assert done.returncode == 0, f"{arguments} {environment}: {done.stderr}"
    return done.stdout


# ---------------------------------------------------------------------------------------- random programs
WORDS, BUFFERS, STREAMS, STEPS = 64, 5, 4, 40
LATE = 20_000                                           # nanoseconds that a step may keep its stream busy before
OPERATIONS = ("renew", "fill", "add", "copy", "count")


@dataclass(frozen=True)
class Step:
    """One launch: `operation` on `count` words from `first` of buffer `target`, and the same words of `source`."""

    operation: str
    target: int
    source: int
    stream: int
    value: int
    first: int
    count: int
    late: bool


class Program:
    """A random program over a few buffers and streams; the same seed is the same program.

    A buffer is renewed without a synchronize: dropped while earlier steps may still use it, and allocated again on
    some stream, where an unrecorded kernel fills it.
    """

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.steps = []
        for number in range(STEPS):
            first = draw.randrange(WORDS)
            target, source = draw.sample(range(BUFFERS), 2)
            operation = draw.choice(OPERATIONS)
            if number < BUFFERS:
                operation, target = "renew", number
            self.steps.append(Step(operation, target, source, draw.randrange(STREAMS), draw.randrange(1000), first,
                                   draw.randint(1, WORDS - first), draw.random() < 0.2))

    def serial(self) -> int:
        """What `run` has to return, computed step after step on the host."""
        buffers = [[0] * WORDS for _ in range(BUFFERS)]
        for step in self.steps:
            target, source = buffers[step.target], buffers[step.source]
            if step.operation == "renew":
                target[:] = [step.value] * WORDS
            for i in range(step.first, step.first + step.count):
                if step.operation == "fill":
                    target[i] = step.value
                elif step.operation == "add":
                    target[i] += step.value
                elif step.operation == "copy":
                    target[i] = source[i]
                elif step.operation == "count":
                    target[step.first] += source[i] != step.value
        return checksum(buffers)

    def run(self, runtime: DeviceRuntime, streams: list[Stream], kernels: Kernels) -> int:
        """The checksum of all buffers at the end.  The host waits there only."""
        buffers: dict[int, DeviceBlock] = {}
        for step in self.steps:
            stream = streams[step.stream]
            if step.late:
                kernels.delay(stream.handle, LATE)
            if step.operation == "renew":
                buffers.pop(step.target, None)          # dropped first, so that its memory may come back at once
                buffers[step.target] = runtime.allocate(4 * WORDS, stream)
                kernels.fill(stream.handle, buffers[step.target].ptr, step.value, WORDS)
            else:
                self._launch(step, stream, buffers[step.target], buffers[step.source], kernels)
        contents = []
        for number in range(BUFFERS):
            with use(streams[0], read=buffers[number]):
                contents.append(words_at(buffers[number].ptr, WORDS, streams[0]))
        return checksum(contents)

    @staticmethod
    def _launch(step: Step, stream: Stream, target: DeviceBlock, source: DeviceBlock, kernels: Kernels) -> None:
        to, origin = target.ptr + 4 * step.first, source.ptr + 4 * step.first
        if step.operation == "fill":
            with use(stream, write=target):
                kernels.fill(stream.handle, to, step.value, step.count)
        elif step.operation == "add":
            with use(stream, read_write=target):
                kernels.add(stream.handle, to, step.value, step.count)
        elif step.operation == "copy":
            with use(stream, read=source, write=target):
                kernels.copy(stream.handle, to, origin, step.count)
        else:
            with use(stream, read=source, read_write=target):
                kernels.count_unequal(stream.handle, to, origin, step.value, step.count)


def checksum(buffers: list[list[int]]) -> int:
    return zlib.crc32(b"".join(array("I", words).tobytes() for words in buffers))


def main() -> None:
    """``python -c "import stress; stress.main()" SEED COUNT``: one checksum a line, then the number of races."""
    seed, count = map(int, sys.argv[1:])
    runtime = DeviceRuntime()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))
    if sim.installed():
        sim.simulator().reset("seeded", seed)
    streams = [runtime.acquire_stream() for _ in range(STREAMS)]
    kernels = Kernels()
    for number in range(count):
        print(Program(seed + number).run(runtime, streams, kernels))
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    print(f"races: {len(sim.simulator().races()) if sim.installed() else 0}")
