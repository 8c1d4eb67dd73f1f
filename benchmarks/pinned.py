"""Page-locked memory of the host: a pair of allocation and free, and uploads through memory that is freed at once.

The first table has the time of a pair, from Python, and ours through the C table.  The second has that of an upload:
allocate, fill 4 KiB, queue the copy to the device, free.  The ways differ in the source of the memory and in what keeps
it until the copy has read it:

    xlogmem, host            memory of a pool that is idle for the host; `use` around the copy, and freed at once
    xlogmem, stream          memory of a pool for a stream; `use(host, write=...)` around the fill, then likewise
    CuPy                     `PinnedMemoryPool`, which knows of no copy: kept until an event behind it is complete
    PyTorch                  `torch.empty(pin_memory=True)` and the driver's copy, which PyTorch does not see: likewise
    PyTorch, copy_           PyTorch's own copy, `non_blocking=True`, behind which its allocator records an event
    cuda.core                `PinnedMemoryResource`, where driver and device have such pools: likewise kept for an event
    RMM                      `PinnedHostMemoryResource`: likewise
    RMM, pool                `PoolMemoryResource` on it: likewise
    driver                   `cuMemHostAlloc` and `cuMemFreeHost`: likewise
    nothing                  one buffer that is filled again and again: what arrives is compared, and has to be wrong

At most 64 pieces are kept for their events; then the host waits for the oldest.  The number of pieces is that of the
addresses that were copied from.  What is not installed, or fails, is left out, and the reason is printed.

All in one process and in turn.  Times are medians of the rounds, ratios medians of each round's ratio to the quickest
peer, which is neither xlogmem nor `nothing`.  An upload is timed until all copies are complete and what was kept is
free.  The fill is a memset of part of the memory, so that the loop waits for the allocator and the copy engine.

    python benchmarks/pinned.py --json pinned.json
"""
from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda
from prefetcher import facts
from xlogmem_bench import _loops

import xlogmem
from xlogmem.sim.kernels import check

PAIRS = (4 << 10, 1 << 20)                              # bytes
UPLOADS = {64 << 10: 2000, 1 << 20: 1000}               # bytes of a piece, and how many
FILLED = 4096                                           # bytes of each piece that change
KEPT = 64                                               # pieces at most that wait for their events
ROUND = 0.02                                            # seconds of pairs in a round


class Uploads:
    """Room on the device for what is copied on a stream."""

    def __init__(self, stream: xlogmem.Stream, nbytes: int, copies: int) -> None:
        self.stream, self.nbytes, self.copies = stream, nbytes, copies
        self.target = xlogmem.get_runtime().allocate(nbytes, stream)
        self.heads = int(check(cuda.cuMemAlloc(FILLED * copies)))       # the filled part of each copy
        self.pieces: set[int] = set()                   # addresses

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.target.free()
        check(cuda.cuMemFree(self.heads))

    def fill(self, address: int, number: int) -> None:
        self.pieces.add(address)
        ctypes.memset(address, number % 251 + 1, FILLED)

    def copy(self, address: int, number: int) -> None:
        check(cuda.cuMemcpyHtoDAsync(self.target.ptr, address, self.nbytes, self.stream.handle))
        self.keep_head(self.target.ptr, number)

    def keep_head(self, target: int, number: int) -> None:
        check(cuda.cuMemcpyDtoDAsync(self.heads + number * FILLED, target, FILLED, self.stream.handle))

    def timed(self, way: Way) -> tuple[float, int]:
        """Microseconds of an upload, and how many brought what was filled in for another."""
        check(cuda.cuMemsetD8(self.heads, 0, FILLED * self.copies))
        check(cuda.cuCtxSynchronize())
        self.pieces.clear()
        began = time.perf_counter()
        way.upload(self)
        check(cuda.cuStreamSynchronize(self.stream.handle))
        way.finish()
        seconds = time.perf_counter() - began
        arrived = (ctypes.c_uint8 * (FILLED * self.copies))()
        check(cuda.cuMemcpyDtoH(ctypes.addressof(arrived), self.heads, FILLED * self.copies))
        return seconds / self.copies * 1e6, sum(
            arrived[number * FILLED] != number % 251 + 1 for number in range(self.copies))


class Way:
    """A source of page-locked memory, and what a program does to upload through it."""

    name, library = "", ""
    is_peer, has_pair = True, True
    refusals: tuple[type[Exception], ...] = (Exception,)                # for which it is left out

    def __init__(self, stream: xlogmem.Stream) -> None:
        self.module: Any = import_module(self.library) if self.library else None

    def pair(self, nbytes: int) -> Callable[[], object]:
        raise NotImplementedError

    def upload(self, uploads: Uploads) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Free what is kept, once all copies are complete."""


class OnHost(Way):
    name, is_peer = "xlogmem, host", False
    refusals: tuple[type[Exception], ...] = (TypeError, ValueError)     # of a release that allocates on streams alone

    def __init__(self, stream: xlogmem.Stream) -> None:
        super().__init__(stream)
        self.where: Any = xlogmem.host
        self.allocate = xlogmem.get_runtime().allocate
        self.pool = xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource())

    def pair(self, nbytes: int) -> Callable[[], object]:
        allocate, where, pool = self.allocate, self.where, self.pool
        return lambda: allocate(nbytes, where, resource=pool).free()

    def upload(self, uploads: Uploads) -> None:
        use, allocate, where, pool = xlogmem.use, self.allocate, self.where, self.pool
        stream, target, nbytes = uploads.stream, uploads.target, uploads.nbytes
        for number in range(uploads.copies):
            block = allocate(nbytes, where, resource=pool)
            uploads.fill(block.ptr, number)
            with use(stream, read=block, write=target):
                uploads.copy(block.ptr, number)
            block.free()


class OnStream(OnHost):
    name, refusals = "xlogmem, stream", ()

    def __init__(self, stream: xlogmem.Stream) -> None:
        super().__init__(stream)
        self.where = stream

    def upload(self, uploads: Uploads) -> None:
        use, host, allocate, pool = xlogmem.use, xlogmem.host, self.allocate, self.pool
        stream, target, nbytes = uploads.stream, uploads.target, uploads.nbytes
        for number in range(uploads.copies):
            block = allocate(nbytes, stream, resource=pool)
            with use(host, write=block):
                uploads.fill(block.ptr, number)
            with use(stream, read=block, write=target):
                uploads.copy(block.ptr, number)
            block.free()


class Kept(Way):
    """Memory that is kept until an event behind its copy is complete.  Here: the driver's memory, and its events."""

    name = "driver"

    def __init__(self, stream: xlogmem.Stream) -> None:
        super().__init__(stream)
        self.handle = stream.handle
        self.kept: deque[tuple[Any, Any]] = deque()     # memory, and its event
        self.spare: list[Any] = []                      # events

    def allocate(self, nbytes: int) -> Any:
        return int(check(cuda.cuMemHostAlloc(nbytes, 0)))

    def address(self, memory: Any) -> int:
        return int(memory)

    def free(self, memory: Any, nbytes: int) -> None:
        check(cuda.cuMemFreeHost(memory))

    def pair(self, nbytes: int) -> Callable[[], object]:
        allocate, free = self.allocate, self.free
        return lambda: free(allocate(nbytes), nbytes)

    def make_event(self) -> Any:
        return check(cuda.cuEventCreate(2))

    def record(self, event: Any) -> None:
        check(cuda.cuEventRecord(event, self.handle))

    def is_done(self, event: Any) -> bool:
        return not int(cuda.cuEventQuery(event)[0])

    def wait(self, event: Any) -> None:
        check(cuda.cuEventSynchronize(event))

    def collect(self, nbytes: int) -> None:
        """Free what has been copied; where too much has not, wait for the oldest."""
        kept = self.kept
        if len(kept) >= KEPT:
            self.wait(kept[0][1])
        while kept and self.is_done(kept[0][1]):
            memory, event = kept.popleft()
            self.free(memory, nbytes)
            self.spare.append(event)

    def upload(self, uploads: Uploads) -> None:
        self.nbytes = nbytes = uploads.nbytes
        for number in range(uploads.copies):
            self.collect(nbytes)
            memory = self.allocate(nbytes)
            address = self.address(memory)
            uploads.fill(address, number)
            uploads.copy(address, number)
            event = self.spare.pop() if self.spare else self.make_event()
            self.record(event)
            self.kept.append((memory, event))

    def finish(self) -> None:
        self.collect(self.nbytes)


class Cupy(Kept):
    name, library = "CuPy", "cupy"

    def __init__(self, stream: xlogmem.Stream) -> None:
        super().__init__(stream)
        make = self.module.cuda.Stream
        self.stream = (make.from_external(stream) if hasattr(make, "from_external")
                       else self.module.cuda.ExternalStream(stream.handle))
        self.pool = self.module.cuda.PinnedMemoryPool()

    def allocate(self, nbytes: int) -> Any:
        return self.pool.malloc(nbytes)

    def address(self, memory: Any) -> int:
        return int(memory.ptr)

    def free(self, memory: Any, nbytes: int) -> None:
        """The end of the object does it."""

    def pair(self, nbytes: int) -> Callable[[], object]:
        allocate = self.pool.malloc
        return lambda: allocate(nbytes)

    def make_event(self) -> Any:
        return self.module.cuda.Event(disable_timing=True)

    def record(self, event: Any) -> None:
        event.record(self.stream)

    def is_done(self, event: Any) -> bool:
        return bool(event.done)

    def wait(self, event: Any) -> None:
        event.synchronize()


class Torch(Kept):
    name, library = "PyTorch", "torch"

    def __init__(self, stream: xlogmem.Stream) -> None:
        super().__init__(stream)
        self.stream = self.module.cuda.ExternalStream(stream.handle)

    def allocate(self, nbytes: int) -> Any:
        return self.module.empty(nbytes, dtype=self.module.uint8, pin_memory=True)

    def address(self, memory: Any) -> int:
        return int(memory.data_ptr())

    def free(self, memory: Any, nbytes: int) -> None:
        """The end of the tensor does it."""

    def pair(self, nbytes: int) -> Callable[[], object]:
        empty, dtype = self.module.empty, self.module.uint8
        return lambda: empty(nbytes, dtype=dtype, pin_memory=True)

    def make_event(self) -> Any:
        return self.module.cuda.Event()

    def record(self, event: Any) -> None:
        event.record(self.stream)

    def is_done(self, event: Any) -> bool:
        return bool(event.query())

    def wait(self, event: Any) -> None:
        event.synchronize()


class TorchCopies(Torch):
    name, has_pair = "PyTorch, copy_", False

    def upload(self, uploads: Uploads) -> None:
        empty, dtype, nbytes = self.module.empty, self.module.uint8, uploads.nbytes
        with self.module.cuda.stream(self.stream):
            target = empty(nbytes, dtype=dtype, device="cuda")
            for number in range(uploads.copies):
                piece = empty(nbytes, dtype=dtype, pin_memory=True)
                uploads.fill(piece.data_ptr(), number)
                target.copy_(piece, non_blocking=True)
                uploads.keep_head(target.data_ptr(), number)
                del piece

    def finish(self) -> None:
        """Nothing is kept."""


class CudaCore(Kept):
    """Allocated on a stream of its own, which is synchronized before the host touches the memory."""

    name, library = "cuda.core", "cuda.core"

    def __init__(self, stream: xlogmem.Stream) -> None:
        super().__init__(stream)
        device = self.module.Device(0)
        device.set_current()
        self.own = device.create_stream()
        self.resource = self.module.PinnedMemoryResource(self.module.PinnedMemoryResourceOptions())
        check(cuda.cuMemPoolSetAttribute(               # it keeps what is freed, as the other pools do
            self.resource.handle, cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, cuda.cuuint64_t(2**63)))

    def allocate(self, nbytes: int) -> Any:
        memory = self.resource.allocate(nbytes, stream=self.own)
        self.own.sync()
        return memory

    def address(self, memory: Any) -> int:
        return int(memory.handle)

    def free(self, memory: Any, nbytes: int) -> None:
        memory.close()

    def pair(self, nbytes: int) -> Callable[[], object]:
        allocate, own = self.resource.allocate, self.own
        return lambda: allocate(nbytes, stream=own).close()


class Rmm(Kept):
    name, library = "RMM", "rmm"

    def __init__(self, stream: xlogmem.Stream) -> None:
        super().__init__(stream)
        self.resource = self.resource_from(import_module("rmm.mr"))

    def allocate(self, nbytes: int) -> Any:
        return self.resource.allocate(nbytes)

    def resource_from(self, resources: Any) -> Any:
        return resources.PinnedHostMemoryResource()

    def free(self, memory: Any, nbytes: int) -> None:
        self.resource.deallocate(memory, nbytes)

    def pair(self, nbytes: int) -> Callable[[], object]:
        allocate, deallocate = self.resource.allocate, self.resource.deallocate
        return lambda: deallocate(allocate(nbytes), nbytes)


class RmmPool(Rmm):
    name = "RMM, pool"

    def resource_from(self, resources: Any) -> Any:
        return resources.PoolMemoryResource(resources.PinnedHostMemoryResource(), initial_pool_size=2 * KEPT << 20)


class Nothing(Way):
    name, is_peer, has_pair = "nothing", False, False

    def upload(self, uploads: Uploads) -> None:
        self.buffer = int(check(cuda.cuMemHostAlloc(uploads.nbytes, 0)))
        for number in range(uploads.copies):
            uploads.fill(self.buffer, number)
            uploads.copy(self.buffer, number)

    def finish(self) -> None:
        check(cuda.cuMemFreeHost(self.buffer))


KINDS: tuple[type[Way], ...] = (
    OnHost, OnStream, Cupy, Torch, TorchCopies, CudaCore, Rmm, RmmPool, Kept, Nothing)


def all_ways(stream: xlogmem.Stream) -> tuple[list[Way], dict[str, str]]:
    """Those that work, and why others do not."""
    ways, left_out = [], {}
    uploads = Uploads(stream, FILLED, 2)
    for kind in KINDS:
        try:
            way = kind(stream)
            if way.has_pair:
                way.pair(FILLED)()
            uploads.timed(way)
        except kind.refusals as error:
            left_out[kind.name] = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"left out: {kind.name:16}{left_out[kind.name]}", flush=True)
        else:
            ways.append(way)
    uploads.close()
    return ways, left_out


def ratios_of(times: dict[str, list[float]], ways: list[Way]) -> dict[str, float]:
    """To the quickest peer, round by round."""
    quickest = min((times[way.name] for way in ways if way.is_peer), key=statistics.median)
    return {name: statistics.median(one / by for one, by in zip(some, quickest, strict=True))
            for name, some in times.items()}


def nanoseconds(one: Callable[[], object], turns: int) -> float:
    began = time.perf_counter_ns()
    for _ in range(turns):
        one()
    return (time.perf_counter_ns() - began) / turns


def measure_pairs(ways: list[Way], nbytes: int, rounds: int, seconds: float) -> list[dict[str, Any]]:
    ways = [way for way in ways if way.has_pair]
    pairs = {way.name: way.pair(nbytes) for way in ways}
    turns = {}
    for name, one in pairs.items():
        nanoseconds(one, 3)
        turns[name] = max(1, int(seconds * 1e9 / nanoseconds(one, 3)))
    times: dict[str, list[float]] = {name: [] for name in pairs}
    for turn in range(rounds + 1):                      # the first is not counted
        for name, one in pairs.items():
            took = nanoseconds(one, turns[name])
            if turn:
                times[name].append(took)
    ratios = ratios_of(times, ways)
    return [{"bytes": nbytes, "way": name, "ns": statistics.median(some), "ratio": ratios[name], "turns": turns[name]}
            for name, some in times.items()]


def pair_in_c(nbytes: int, rounds: int, turns: int) -> dict[str, Any]:
    """A pair by the C table, which has the runtime's own resource."""
    runtime = xlogmem.DeviceRuntime(resource=xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource()))
    pairs = _loops.Allocator.table(runtime).pairs
    pairs(nbytes, [_loops.HOST], turns)
    return {"bytes": nbytes, "way": "xlogmem, host, C table", "turns": turns,
            "ns": statistics.median(pairs(nbytes, [_loops.HOST], turns) / turns for _ in range(rounds))}


def measure_uploads(stream: xlogmem.Stream, ways: list[Way], nbytes: int, copies: int,
                    rounds: int) -> list[dict[str, Any]]:
    uploads = Uploads(stream, nbytes, copies)
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    wrong, pieces = dict.fromkeys(times, 0), dict.fromkeys(times, 0)
    for turn in range(rounds + 1):                      # the first is not counted
        for way in ways:
            took, bad = uploads.timed(way)
            wrong[way.name] += bad
            pieces[way.name] = max(pieces[way.name], len(uploads.pieces))
            if turn:
                times[way.name].append(took)
    uploads.close()
    ratios = ratios_of(times, ways)
    return [{"bytes": nbytes, "copies": copies, "way": name, "us": statistics.median(some), "ratio": ratios[name],
             "pieces": pieces[name], "wrong": wrong[name]} for name, some in times.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the work, three rounds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check(cuda.cuInit(0))
    stream = xlogmem.get_runtime().acquire_stream()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    ways, left_out = all_ways(stream)
    rounds = 3 if options.quick else options.rounds
    pairs, uploads = [], []
    for nbytes in PAIRS:
        pairs += measure_pairs(ways, nbytes, rounds, ROUND / 100 if options.quick else ROUND)
        for row in pairs[-sum(way.has_pair for way in ways):]:
            print(f"{nbytes >> 10:6} KiB  pair    {row['way']:16}{row['ns']:12,.0f} ns {row['ratio']:8.2f}x",
                  flush=True)
        pairs.append(pair_in_c(nbytes, rounds, 200 if options.quick else 20_000))
        print(f"{nbytes >> 10:6} KiB  pair    {pairs[-1]['way']}  {pairs[-1]['ns']:6,.0f} ns", flush=True)
    for nbytes, copies in UPLOADS.items():
        uploads += measure_uploads(stream, ways, nbytes, copies // 100 + 8 if options.quick else copies, rounds)
        for row in uploads[-len(ways):]:
            print(f"{nbytes >> 10:6} KiB  upload  {row['way']:16}{row['us']:12,.2f} us {row['ratio']:8.2f}x"
                  f"{row['pieces']:6} pieces{row['wrong']:6} wrong", flush=True)
    if options.json:
        versions = {way.library: way.module.__version__ for way in ways if way.library}
        options.json.write_text(json.dumps({"facts": facts(), "versions": versions, "left_out": left_out,
                                            "pairs": pairs, "uploads": uploads}, indent=1) + "\n")


if __name__ == "__main__":
    main()
