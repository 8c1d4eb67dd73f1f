"""A pipeline over four streams: upload, work on two streams, download; a chunk of memory at a time.

The host queues everything at once and runs far ahead of the device.  Each chunk has three blocks: one is uploaded, the
first stream works it into the second and third, the second stream works the third into the second, and that one is
downloaded.  The ways differ in the source of the blocks and in what orders the streams:

    one stream               everything on one stream, in blocks that are kept
    events by hand           a ring of kept blocks, and an event for each hand-over: what can be reached
    driver's pool by hand    cuMemAllocAsync, an event for each hand-over, cuMemFreeAsync on the last user's stream
    xlogmem, async           allocate, use, free; the free names no stream
    xlogmem, async, named    the same, but each free names the last user's stream
    xlogmem, pool            as the first of the two, on a PoolMemoryResource
    xlogmem, pool of 2 GiB   the same, with that initial_pool_size
    xlogmem, kept            the ring of kept blocks, and `use` for each launch
    xlogmem, ranges          the same ring in the ranges of two buffers, each of which is one block

All in one process and in turn.  Times are medians of the rounds, ratios medians of each round's ratio to events by
hand.  Memory is what the device has less once everything of the first round was queued, before anything was waited
for.  What comes down is compared with what went up in each round.

    python benchmarks/pipeline.py --json pipeline.json
"""
from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cuda.bindings import driver as cuda
from prefetcher import facts

import xlogmem
from xlogmem.sim.kernels import Kernels, check

RING = 6                                                # chunks in flight, by hand
PATIENCE = 0.025                                        # nanoseconds of work for each byte, as for 40 GB/s
CHUNKS = {64 << 10: 400, 1 << 20: 300, 16 << 20: 48}    # bytes of a chunk, and how many
Blocks = tuple[int, int, int]


class OwnedStream:
    """A stream that its object keeps alive, as those of CuPy and cuda.core."""

    def __init__(self) -> None:
        self.handle = int(check(cuda.cuStreamCreate(1)))

    def __del__(self) -> None:
        check(cuda.cuStreamDestroy(self.handle))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


class Pipeline:
    """Four streams, and the work on a chunk."""

    def __init__(self, nbytes: int, chunks: int) -> None:
        self.nbytes, self.chunks, self.words = nbytes, chunks, nbytes // 4
        self.kernels = Kernels()
        self.state: xlogmem.DeviceState | None = None       # which buffers need
        self.streams = [OwnedStream() for _ in range(4)]
        self.up, self.first, self.second, self.down = (stream.handle for stream in self.streams)
        self.events = [[check(cuda.cuEventCreate(2)) for _ in range(4)] for _ in range(RING)]
        self.host = [int(check(cuda.cuMemAllocHost(nbytes * RING))) for _ in range(2)]
        ctypes.memset(self.host[0], 7, nbytes * RING)
        self.kept = [tuple(int(check(cuda.cuMemAlloc(nbytes))) for _ in range(3)) for _ in range(RING)]

    def close(self) -> None:
        for blocks in self.kept:
            for block in blocks:
                check(cuda.cuMemFree(block))
        for address in self.host:
            check(cuda.cuMemFreeHost(address))
        for events in self.events:
            for event in events:
                check(cuda.cuEventDestroy(event))
        self.kernels.close()

    # ------------------------------------------------------------------------------------------ steps
    def upload(self, stream: int, target: int, number: int) -> None:
        check(cuda.cuMemcpyHtoDAsync(target, self.host[0] + number % RING * self.nbytes, self.nbytes, stream))

    def work(self, stream: int, target: int, source: int) -> None:
        self.kernels.copy(stream, target, source, self.words)
        self.kernels.delay(stream, int(self.nbytes * PATIENCE))

    def download(self, stream: int, source: int, number: int) -> None:
        check(cuda.cuMemcpyDtoHAsync(self.host[1] + number % RING * self.nbytes, source, self.nbytes, stream))

    def hand_over(self, event: Any, before: int, after: int) -> None:
        check(cuda.cuEventRecord(event, before))
        check(cuda.cuStreamWaitEvent(after, event, 0))

    def is_right(self) -> bool:
        return ctypes.string_at(self.host[0], self.nbytes * RING) == ctypes.string_at(self.host[1], self.nbytes * RING)

    # ------------------------------------------------------------------------------------------ ways
    def one_stream(self) -> None:
        x, y, z = self.kept[0]
        for number in range(self.chunks):
            self.upload(self.up, x, number)
            self.work(self.up, y, x)
            self.work(self.up, z, y)
            self.work(self.up, y, z)
            self.download(self.up, y, number)

    def by_hand(self, blocks: Callable[[int], Blocks], free: Callable[[int, int], object] | None = None) -> None:
        for number in range(self.chunks):
            events = self.events[number % RING]
            if free is None and number >= RING:
                check(cuda.cuStreamWaitEvent(self.up, events[3], 0))
            x, y, z = blocks(number)
            self.upload(self.up, x, number)
            self.hand_over(events[0], self.up, self.first)
            self.work(self.first, y, x)
            self.work(self.first, z, y)
            self.hand_over(events[1], self.first, self.second)
            self.work(self.second, y, z)
            self.hand_over(events[2], self.second, self.down)
            self.download(self.down, y, number)
            if free is None:
                check(cuda.cuEventRecord(events[3], self.down))
                continue
            free(x, self.first)
            free(z, self.second)
            free(y, self.down)

    def with_xlogmem(self, runtime: xlogmem.DeviceRuntime, named: bool = False, kept: Any = None) -> None:
        up, first, second, down = map(runtime.register_stream, self.streams)
        use = xlogmem.use
        for number in range(self.chunks):
            if kept is not None:
                x, y, z = kept[number % RING]
            else:
                x, y, z = (runtime.allocate(self.nbytes, stream) for stream in (up, first, first))
            with use(up, write=x):
                self.upload(self.up, x.ptr, number)
            with use(first, read=x, write=[y, z]):
                self.work(self.first, y.ptr, x.ptr)
                self.work(self.first, z.ptr, y.ptr)
            with use(second, read=z, write=y):
                self.work(self.second, y.ptr, z.ptr)
            with use(down, read=y):
                self.download(self.down, y.ptr, number)
            if kept is None:
                for block, stream in ((x, first), (z, second), (y, down)):
                    block.free(stream if named else None)


def ways_of(pipeline: Pipeline) -> tuple[dict[str, Callable[[], None]], list[xlogmem.DeviceRuntime]]:
    """Each way by its name, and the runtimes to end behind it."""
    properties = cuda.CUmemPoolProps()
    properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool = check(cuda.cuMemPoolCreate(properties))
    check(cuda.cuMemPoolSetAttribute(pool, cuda.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                                     cuda.cuuint64_t(2**63)))

    def from_driver(number: int) -> Blocks:
        x, y, z = (int(check(cuda.cuMemAllocFromPoolAsync(pipeline.nbytes, pool, stream)))
                   for stream in (pipeline.up, pipeline.first, pipeline.first))
        return x, y, z

    def runtime(resource: xlogmem.DeviceMemoryResource) -> xlogmem.DeviceRuntime:
        runtimes.append(xlogmem.DeviceRuntime(resource=resource))
        return runtimes[-1]

    def async_runtime() -> xlogmem.DeviceRuntime:
        return runtime(xlogmem.AsyncMemoryResource(release_threshold=2**63))

    runtimes: list[xlogmem.DeviceRuntime] = []
    keeper = async_runtime()
    kept = [tuple(keeper.allocate(pipeline.nbytes) for _ in range(3)) for _ in range(RING)]
    pipeline.state = xlogmem.DeviceState(keeper)
    uploaded, worked = (pipeline.state.empty((count * RING, pipeline.nbytes), "u1") for count in (1, 2))
    ranges = [(uploaded[slot], worked[2 * slot], worked[2 * slot + 1]) for slot in range(RING)]
    by_xlogmem = {
        "async": partial(pipeline.with_xlogmem, async_runtime()),
        "async, named": partial(pipeline.with_xlogmem, async_runtime(), named=True),
        "pool": partial(pipeline.with_xlogmem, runtime(xlogmem.PoolMemoryResource())),
        "pool of 2 GiB": partial(pipeline.with_xlogmem, runtime(xlogmem.PoolMemoryResource(initial_pool_size=2 << 30))),
        "kept": partial(pipeline.with_xlogmem, keeper, kept=kept),
        "ranges": partial(pipeline.with_xlogmem, keeper, kept=ranges)}
    ways = {
        "one stream": pipeline.one_stream,
        "events by hand": partial(pipeline.by_hand, lambda number: pipeline.kept[number % RING]),
        "driver's pool by hand": partial(pipeline.by_hand, from_driver,
                                         lambda block, stream: check(cuda.cuMemFreeAsync(block, stream))),
        **{f"xlogmem, {name}": way for name, way in by_xlogmem.items()}}
    return ways, runtimes


def measure(nbytes: int, chunks: int, rounds: int) -> list[dict[str, Any]]:
    pipeline = Pipeline(nbytes, chunks)
    ways, runtimes = ways_of(pipeline)
    total: dict[str, list[float]] = {way: [] for way in ways}
    host: dict[str, list[float]] = {way: [] for way in ways}
    memory: dict[str, int] = {}
    wrong = dict.fromkeys(ways, 0)
    for turn in range(rounds + 1):                      # the first warms up
        for way in list(ways)[::1 if turn % 2 else -1]:
            ctypes.memset(pipeline.host[1], 0, nbytes * RING)
            check(cuda.cuCtxSynchronize())
            before, began = check(cuda.cuMemGetInfo())[0], time.perf_counter()
            ways[way]()
            queued = time.perf_counter()
            if not turn:
                memory[way] = before - check(cuda.cuMemGetInfo())[0]
            check(cuda.cuCtxSynchronize())
            done = time.perf_counter()
            wrong[way] += not pipeline.is_right()
            if turn:
                total[way].append(1e6 * (done - began) / chunks)
                host[way].append(1e6 * (queued - began) / chunks)
    rows = [{"chunk_bytes": nbytes, "way": way, "microseconds_per_chunk": round(statistics.median(total[way]), 1),
             "host_microseconds_per_chunk": round(statistics.median(host[way]), 1),
             "to_events_by_hand": round(statistics.median(
                 one / other for one, other in zip(total[way], total["events by hand"], strict=True)), 3),
             "device_bytes": memory[way], "wrong": wrong[way]} for way in ways]
    for runtime in runtimes:
        runtime.reap_pending()
    pipeline.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check(cuda.cuInit(0))
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    rows = []
    for nbytes, chunks in CHUNKS.items():
        rows += measure(nbytes, chunks, options.rounds)
        for row in rows[-9:]:
            print(f"{row['chunk_bytes'] >> 10:6,} KiB  {row['way']:24}{row['microseconds_per_chunk']:9,.1f} us, host "
                  f"{row['host_microseconds_per_chunk']:7,.1f}  {row['to_events_by_hand']:6.3f}x"
                  f"{row['device_bytes'] / 2**20:9,.0f} MiB{row['wrong']:4} wrong", flush=True)
    if options.json:
        options.json.write_text(json.dumps(facts() | {"rounds": options.rounds, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
