"""A pipeline over four streams: upload, work on two streams, download; a chunk of memory at a time.

The host queues everything at once and runs far ahead of the device.  Each chunk has three blocks: one is uploaded, the
first stream works it into the second and third, the second stream works the third into the second, and that one is
downloaded.  The ways differ in the source of the blocks and in what orders the streams.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

from cuda.bindings import driver as cuda

import xlogmem
from xlogmem.sim.kernels import Kernels, check

__all__ = ["BY_HAND", "RING", "Pipeline", "ways_of"]

BY_HAND = "events by hand"
RING = 6                                                # chunks in flight, by hand
PATIENCE = 0.025                                        # nanoseconds of work for each byte, as for 40 GB/s
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
        self.kept: list[Blocks] = [
            (self.device_memory(), self.device_memory(), self.device_memory()) for _ in range(RING)]
        self.pool: Any = None                           # of the driver

    def device_memory(self) -> int:
        return int(check(cuda.cuMemAlloc(self.nbytes)))

    def close(self) -> None:
        if self.pool is not None:
            check(cuda.cuMemPoolDestroy(self.pool))
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

    def forget(self) -> None:
        """Clear what came down."""
        ctypes.memset(self.host[1], 0, self.nbytes * RING)

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
    pool = pipeline.pool = check(cuda.cuMemPoolCreate(properties))
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
    ways: dict[str, Callable[[], None]] = {
        "one stream": pipeline.one_stream,
        BY_HAND: partial(pipeline.by_hand, lambda number: pipeline.kept[number % RING]),
        "driver's pool by hand": partial(pipeline.by_hand, from_driver,
                                         lambda block, stream: check(cuda.cuMemFreeAsync(block, stream))),
        **{f"xlogmem, {name}": way for name, way in by_xlogmem.items()}}
    return ways, runtimes
