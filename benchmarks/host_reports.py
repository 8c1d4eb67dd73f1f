"""Small twins of public reports about page-locked memory: wrong as reported, right with xlogmem.

In each report the host or another stream uses page-locked memory while a copy that was queued before still has to read
or write it.  A twin has the shape of the report, and is run in two ways:

    as reported       plain calls of the driver; what arrives is compared, and has to be wrong
    with xlogmem      the same program with `use`, `map`, a pool of page-locked memory, or `async with`: never wrong

The copy waits for a gate, a word in page-locked memory.  As reported the host opens the gate after its mistake, so the
result is certain.  With xlogmem another thread opens it, a millisecond after the host began the access in which it
waits (--delay).  The runtime counts the waits of the host: one for the copy, and one for the stream of each new block.

    python benchmarks/host_reports.py --json host_reports.json
"""
from __future__ import annotations

import argparse
import asyncio
import ctypes
import faulthandler
import json
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
from cuda.bindings import driver as cuda
from prefetcher import facts

import xlogmem
from xlogmem import PinnedMemoryResource, PoolMemoryResource, _driver, host, use
from xlogmem.sim.kernels import check

NBYTES = 64 << 10
READY = int(cuda.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)
PATTERNS = [bytes([value]) * NBYTES for value in range(256)]


# ---------------------------------------------------------------------------------------------- what all twins share
class Gate:
    """Work on a stream that waits until the host opens the gate: at once, or from another thread and later."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.word = int(check(cuda.cuMemHostAlloc(8, 2)))               # mapped
        self.value = ctypes.c_uint32.from_address(self.word)
        self.value.value = 0
        self.thread = ThreadPoolExecutor(1, initializer=cuda.cuCtxSetCurrent, initargs=(check(cuda.cuCtxGetCurrent()),))
        self.opening: Future[None] | None = None

    def shut(self, stream: xlogmem.Stream) -> None:
        """What is queued on the stream from now on waits."""
        if self.opening is not None:
            self.opening.result()
            self.opening = None
        check(cuda.cuStreamWaitValue32(stream.handle, self.word, self.value.value + 1, READY))

    def open(self) -> None:
        self.value.value += 1

    def open_later(self) -> None:
        self.opening = self.thread.submit(self._open_later)

    def _open_later(self) -> None:
        time.sleep(self.delay)
        self.open()
        if _driver.is_simulated():                      # it works in calls alone, and a coroutine that waits makes none
            check(cuda.cuCtxSynchronize())

    def close(self) -> None:
        self.thread.shutdown()
        check(cuda.cuMemFreeHost(self.word))


class Place:
    """Two streams, a block of the device for what each brings, and the gate."""

    def __init__(self, delay: float) -> None:
        self.runtime = xlogmem.get_runtime()
        self.stream, self.other = self.runtime.acquire_stream(), self.runtime.acquire_stream()
        self.target, self.second = (xlogmem.empty(NBYTES, "u1", stream) for stream in (self.stream, self.other))
        self.gate = Gate(delay)
        self.seen = ctypes.create_string_buffer(NBYTES)

    def upload(self, target: xlogmem.Buffer, address: int, stream: xlogmem.Stream) -> None:
        check(cuda.cuMemcpyHtoDAsync(target.ptr, address, NBYTES, stream.handle))

    def download(self, address: int, source: xlogmem.Buffer, stream: xlogmem.Stream) -> None:
        check(cuda.cuMemcpyDtoHAsync(address, source.ptr, NBYTES, stream.handle))

    def host_waits(self) -> int:
        return self.runtime.counters()["host_waits"]

    def settle(self) -> None:
        """Everything is complete, and xlogmem knows that: no access waits for the round before."""
        check(cuda.cuCtxSynchronize())
        self.runtime.synchronize()

    def contents(self, where: xlogmem.Buffer | bytes) -> bytes:
        if isinstance(where, bytes):
            return where
        check(cuda.cuMemcpyDtoH(ctypes.addressof(self.seen), where.ptr, NBYTES))
        return self.seen.raw

    def close(self) -> None:
        self.gate.close()
        for target in (self.target, self.second):
            target.release()
        self.runtime.reap_pending()


class FreeList:
    """Page-locked memory that the next owner gets at once: the allocators of the reports, in small."""

    def __init__(self, count: int) -> None:
        self.addresses = [int(check(cuda.cuMemAllocHost(NBYTES))) for _ in range(count)]
        self.free = list(self.addresses)
        for address in self.addresses:
            fill(address, 0)

    def take(self) -> int:
        return self.free.pop()

    def put(self, address: int) -> None:
        self.free.append(address)

    def close(self) -> None:
        for address in self.addresses:
            check(cuda.cuMemFreeHost(address))


Expected = list[tuple[xlogmem.Buffer | bytes, bytes]]    # on the device, or as the host has read it; and what is right


class Twin:
    """A report, named by its docstring.  Each way runs it once and returns what has to have arrived."""

    BUFFERS = 1                                         # of page-locked memory

    def __init__(self, place: Place) -> None:
        self.place, self.runtime, self.gate = place, place.runtime, place.gate
        self.stream, self.other = place.stream, place.other
        self.target, self.second = place.target, place.second
        self.list = FreeList(self.BUFFERS)

    def as_reported(self, first: int, second: int) -> Expected:
        raise NotImplementedError

    def with_xlogmem(self, first: int, second: int) -> Expected:
        raise NotImplementedError

    def close(self) -> None:
        self.runtime.reap_pending()
        self.list.close()


class Reused(Twin):
    """The program keeps its buffers, and fills them again."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.tracked = [self.runtime.adopt(address, NBYTES) for address in self.list.addresses]

    def close(self) -> None:
        for block in self.tracked:
            block.free()
        super().close()


class Pooled(Twin):
    """The memory is freed into a pool that has no other, so the next owner gets the same."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.pool = PoolMemoryResource(PinnedMemoryResource(), initial_pool_size=NBYTES, maximum_pool_size=NBYTES)

    def close(self) -> None:
        self.runtime.reap_pending()
        self.pool.trim()
        super().close()


def fill(address: int, value: int) -> None:
    ctypes.memset(address, value, NBYTES)


# ---------------------------------------------------------------------------------------------- memory that stays
class Overwritten(Reused):
    """https://github.com/cupy/cupy/pull/5155: `pinned[:] = 0` overtakes the upload that `cupy.array(pinned)` queued."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        memory = (ctypes.c_uint8 * NBYTES).from_address(self.list.addresses[0])
        self.array = numpy.frombuffer(memory, numpy.uint8)

    def as_reported(self, first: int, second: int) -> Expected:
        self.array[:] = first
        self.gate.shut(self.stream)
        self.place.upload(self.target, self.array.ctypes.data, self.stream)
        self.array[:] = second
        self.gate.open()
        return [(self.target, PATTERNS[first])]

    def with_xlogmem(self, first: int, second: int) -> Expected:
        with use(host, write=self.array):
            self.array[:] = first
        self.gate.shut(self.stream)
        with use(self.stream, read=self.array, write=self.target):
            self.place.upload(self.target, self.array.ctypes.data, self.stream)
        self.gate.open_later()
        with use(host, write=self.array):
            self.array[:] = second
        return [(self.target, PATTERNS[first])]


class ReadEarly(Twin):
    """https://github.com/cupy/cupy/issues/7820: the array that `asnumpy` returns is read before the copy to it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.result = xlogmem.empty(NBYTES, "u1", self.stream, resource=PinnedMemoryResource())

    def as_reported(self, first: int, second: int) -> Expected:
        address = self.list.addresses[0]
        check(cuda.cuMemsetD8Async(self.target.ptr, first, NBYTES, self.stream.handle))
        self.gate.shut(self.stream)
        self.place.download(address, self.target, self.stream)
        read = ctypes.string_at(address, NBYTES)
        self.gate.open()
        return [(read, PATTERNS[first])]

    def with_xlogmem(self, first: int, second: int) -> Expected:
        with use(self.stream, write=self.target):
            check(cuda.cuMemsetD8Async(self.target.ptr, first, NBYTES, self.stream.handle))
        self.gate.shut(self.stream)
        self.result.copy_from(self.target, self.stream)
        self.gate.open_later()
        with self.result.map() as array:
            return [(array.tobytes(), PATTERNS[first])]

    def close(self) -> None:
        self.result.release()
        super().close()


class InPlace(Reused):
    """https://github.com/NVIDIA/TensorRT-LLM/pull/15546: the next step changes part of the one table of block offsets
    that each step uploads, while the upload of the step before waits behind a stalled stream."""

    PART = NBYTES // 4

    def change(self, value: int) -> bytes:
        """Part of the table, and what a copy has to bring."""
        ctypes.memset(self.list.addresses[0], value, self.PART)
        return ctypes.string_at(self.list.addresses[0], NBYTES)

    def as_reported(self, first: int, second: int) -> Expected:
        before = self.change(first)
        self.gate.shut(self.stream)
        self.place.upload(self.target, self.list.addresses[0], self.stream)
        after = self.change(second)
        self.place.upload(self.second, self.list.addresses[0], self.stream)
        self.gate.open()
        return [(self.target, before), (self.second, after)]

    def with_xlogmem(self, first: int, second: int) -> Expected:
        table = self.tracked[0]
        with use(host, read_write=table):
            before = self.change(first)
        self.gate.shut(self.stream)
        with use(self.stream, read=table, write=self.target):
            self.place.upload(self.target, table.ptr, self.stream)
        self.gate.open_later()
        with use(host, read_write=table):
            after = self.change(second)
        with use(self.stream, read=table, write=self.second):
            self.place.upload(self.second, table.ptr, self.stream)
        return [(self.target, before), (self.second, after)]


class SeveralReused(Reused):
    """https://github.com/vllm-project/vllm/pull/32799: step N + 1 updates reused buffers, of FlashInfer's indices and
    lengths, that the copies of step N still read."""

    BUFFERS = 3

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.targets = [xlogmem.empty(NBYTES, "u1", self.stream) for _ in range(self.BUFFERS)]

    def update(self, value: int) -> None:
        for index, address in enumerate(self.list.addresses):
            fill(address, value + index)

    def copy(self) -> None:
        for target, address in zip(self.targets, self.list.addresses, strict=True):
            self.place.upload(target, address, self.stream)

    def expected(self, value: int) -> Expected:
        return [(target, PATTERNS[value + index]) for index, target in enumerate(self.targets)]

    def as_reported(self, first: int, second: int) -> Expected:
        self.update(first)
        self.gate.shut(self.stream)
        self.copy()
        self.update(second)
        self.gate.open()
        return self.expected(first)

    def with_xlogmem(self, first: int, second: int) -> Expected:
        with use(host, write=self.tracked):
            self.update(first)
        self.gate.shut(self.stream)
        with use(self.stream, read=self.tracked, write=self.targets):
            self.copy()
        self.gate.open_later()
        with use(host, write=self.tracked):
            self.update(second)
        return self.expected(first)

    def close(self) -> None:
        for target in self.targets:
            target.release()
        super().close()


class TwoInTurn(Twin):
    """https://github.com/vllm-project/vllm-ascend/issues/12191: of two staging buffers in turn, without the events that
    belong to them, the third step fills the first again before its copy has read it."""

    BUFFERS = 2

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        pinned = PinnedMemoryResource()                 # on another stream: new memory waits for what that has queued
        self.staging = [xlogmem.empty(NBYTES, "u1", self.other, resource=pinned) for _ in range(self.BUFFERS)]
        self.targets = [xlogmem.empty(NBYTES, "u1", self.stream) for _ in range(self.BUFFERS + 1)]

    def expected(self, value: int) -> Expected:
        return [(target, PATTERNS[value + step]) for step, target in enumerate(self.targets)]

    def as_reported(self, first: int, second: int) -> Expected:
        for step, target in enumerate(self.targets):
            address = self.list.addresses[step % self.BUFFERS]
            fill(address, first + step)
            if step == 0:
                self.gate.shut(self.stream)
            self.place.upload(target, address, self.stream)
        self.gate.open()
        return self.expected(first)

    def with_xlogmem(self, first: int, second: int) -> Expected:
        for step, target in enumerate(self.targets):
            batch = self.staging[step % self.BUFFERS]
            if step == self.BUFFERS:
                self.gate.open_later()
            with batch.map(write=True) as array:
                array[:] = first + step
            if step == 0:
                self.gate.shut(self.stream)
            target.copy_from(batch, self.stream)
        return self.expected(first)

    def close(self) -> None:
        for buffer in self.staging + self.targets:
            buffer.release()
        super().close()


# ---------------------------------------------------------------------------------------------- memory of a pool
class Dropped(Pooled):
    """https://github.com/cupy/cupy/issues/8789: the last reference to the page-locked source of a queued upload is
    dropped, and the pool gives its memory to the next array, which the program fills."""

    def as_reported(self, first: int, second: int) -> Expected:
        source = self.list.take()
        fill(source, first)
        self.gate.shut(self.stream)
        self.place.upload(self.target, source, self.stream)
        self.list.put(source)
        following = self.list.take()
        fill(following, second)
        self.gate.open()
        self.list.put(following)
        return [(self.target, PATTERNS[first])]

    def with_xlogmem(self, first: int, second: int) -> Expected:
        source = xlogmem.empty(NBYTES, "u1", self.stream, resource=self.pool)
        with source.map(write=True) as array:
            array[:] = first
        self.gate.shut(self.stream)
        self.target.copy_from(source, self.stream)
        del source, array
        following = xlogmem.empty(NBYTES, "u1", self.stream, resource=self.pool)
        self.gate.open_later()
        with following.map(write=True) as array:
            array[:] = second
        return [(self.target, PATTERNS[first])]


class NextRequest(Pooled):
    """https://github.com/NVIDIA/TensorRT-LLM/issues/19172: the source of a prompt table returns to the page-locked pool
    while its upload is queued, and the thread of the next request fills it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.request = ThreadPoolExecutor(1)

    def as_reported(self, first: int, second: int) -> Expected:
        table = self.list.take()
        fill(table, first)
        self.gate.shut(self.stream)
        self.place.upload(self.target, table, self.stream)
        self.list.put(table)
        self.request.submit(lambda: self.list.put(self.filled(self.list.take(), second))).result()
        self.gate.open()
        return [(self.target, PATTERNS[first])]

    def filled(self, address: int, value: int) -> int:
        fill(address, value)
        return address

    def with_xlogmem(self, first: int, second: int) -> Expected:
        with self.runtime.allocate(NBYTES, self.stream, resource=self.pool) as table:
            with use(host, write=table):
                fill(table.ptr, first)
            self.gate.shut(self.stream)
            with use(self.stream, read=table, write=self.target):
                self.place.upload(self.target, table.ptr, self.stream)
        self.gate.open_later()
        self.request.submit(self.next_request, second).result()
        return [(self.target, PATTERNS[first])]

    def next_request(self, value: int) -> None:
        with self.runtime.allocate(NBYTES, self.other, resource=self.pool) as table, use(host, write=table):
            fill(table.ptr, value)

    def close(self) -> None:
        self.request.shutdown()
        super().close()


class NextStream(Pooled):
    """https://github.com/NVIDIA/cudf/pull/22321: RMM's page-locked resource ignores the stream of `deallocate`, so the
    memory of a staging vector has a next owner before the upload has read it: here a download on another stream."""

    def as_reported(self, first: int, second: int) -> Expected:
        check(cuda.cuMemsetD8Async(self.second.ptr, second, NBYTES, self.other.handle))
        staging = self.list.take()
        fill(staging, first)
        self.gate.shut(self.stream)
        self.place.upload(self.target, staging, self.stream)
        self.list.put(staging)
        result = self.list.take()
        self.place.download(result, self.second, self.other)
        check(cuda.cuStreamSynchronize(self.other.handle))
        self.gate.open()
        self.list.put(result)
        return [(self.target, PATTERNS[first])]

    def with_xlogmem(self, first: int, second: int) -> Expected:
        with use(self.other, write=self.second):
            check(cuda.cuMemsetD8Async(self.second.ptr, second, NBYTES, self.other.handle))
        with self.runtime.allocate(NBYTES, self.stream, resource=self.pool) as staging:
            with use(host, write=staging):
                fill(staging.ptr, first)
            self.gate.shut(self.stream)
            with use(self.stream, read=staging, write=self.target):
                self.place.upload(self.target, staging.ptr, self.stream)
        with self.runtime.allocate(NBYTES, self.other, resource=self.pool) as result:
            with use(self.other, read=self.second, write=result):
                self.place.download(result.ptr, self.second, self.other)
            self.gate.open_later()
            with use(host, read=result):
                downloaded = ctypes.string_at(result.ptr, NBYTES)
        return [(self.target, PATTERNS[first]), (downloaded, PATTERNS[second])]


class NextHost(Pooled):
    """https://github.com/NVIDIA/cudf/issues/24255: a pool has the next owner's stream wait for the stream of the free,
    which does not delay what the host writes to the memory at once."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.freed = check(cuda.cuEventCreate(2))       # without times

    def as_reported(self, first: int, second: int) -> Expected:
        offsets = self.list.take()
        fill(offsets, first)
        self.gate.shut(self.stream)
        self.place.upload(self.target, offsets, self.stream)
        check(cuda.cuEventRecord(self.freed, self.stream.handle))
        self.list.put(offsets)
        following = self.list.take()
        check(cuda.cuStreamWaitEvent(self.other.handle, self.freed, 0))
        fill(following, second)
        self.gate.open()
        self.list.put(following)
        return [(self.target, PATTERNS[first])]

    def with_xlogmem(self, first: int, second: int) -> Expected:
        with self.runtime.allocate(NBYTES, self.stream, resource=self.pool) as offsets:
            with use(host, write=offsets):
                fill(offsets.ptr, first)
            self.gate.shut(self.stream)
            with use(self.stream, read=offsets, write=self.target):
                self.place.upload(self.target, offsets.ptr, self.stream)
        with self.runtime.allocate(NBYTES, self.other, resource=self.pool) as following:
            self.gate.open_later()
            with use(host, write=following):
                fill(following.ptr, second)
        return [(self.target, PATTERNS[first])]

    def close(self) -> None:
        check(cuda.cuEventDestroy(self.freed))
        super().close()


class NextTask(Pooled):
    """https://github.com/NVIDIA/cuCascade/pull/158: a slab goes to the next task at once, on another stream, which
    fills and uploads it while the upload of the task before is queued.  (The repair is an event for each slab.)"""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.loop = asyncio.new_event_loop()

    def as_reported(self, first: int, second: int) -> Expected:
        for stream, target, value in ((self.stream, self.target, first), (self.other, self.second, second)):
            slab = self.list.take()
            fill(slab, value)
            if stream is self.stream:
                self.gate.shut(stream)
            self.place.upload(target, slab, stream)
            self.list.put(slab)
        self.gate.open()
        return [(self.target, PATTERNS[first]), (self.second, PATTERNS[second])]

    def with_xlogmem(self, first: int, second: int) -> Expected:
        self.loop.run_until_complete(self.tasks(first, second))
        return [(self.target, PATTERNS[first]), (self.second, PATTERNS[second])]

    async def tasks(self, first: int, second: int) -> None:
        await self.task(self.stream, self.target, first)
        self.gate.open_later()
        await self.task(self.other, self.second, second)

    async def task(self, stream: xlogmem.Stream, target: xlogmem.Buffer, value: int) -> None:
        with self.runtime.allocate(NBYTES, stream, resource=self.pool) as slab:
            async with use(host, write=slab):
                fill(slab.ptr, value)
            if stream is self.stream:
                self.gate.shut(stream)
            with use(stream, read=slab, write=target):
                self.place.upload(target, slab.ptr, stream)

    def close(self) -> None:
        self.loop.close()
        super().close()


# ---------------------------------------------------------------------------------------------- the program
REPORTS: dict[str, type[Twin]] = {
    "cupy#5155": Overwritten, "cupy#7820": ReadEarly, "cupy#8789": Dropped, "TensorRT-LLM#15546": InPlace,
    "TensorRT-LLM#19172": NextRequest, "vllm#32799": SeveralReused, "vllm-ascend#12191": TwoInTurn,
    "cudf#22321": NextStream, "cudf#24255": NextHost, "cuCascade#158": NextTask}


def run(report: str, place: Place, times: int) -> list[dict[str, Any]]:
    """Both ways in turn; contents differ from those of the round before."""
    faulthandler.dump_traceback_later(max(120, times // 10), exit=True)
    twin = REPORTS[report](place)
    rows = []
    for way, once in (("as reported", twin.as_reported), ("with xlogmem", twin.with_xlogmem)):
        wrong, waits, began = 0, 0, time.perf_counter()
        for turn in range(times):
            before = place.host_waits()
            expected = once(turn % 120 + 1, turn % 120 + 125)
            waits += place.host_waits() - before
            place.settle()
            wrong += any(place.contents(where) != right for where, right in expected)
        rows.append({"report": report, "way": way, "times": times, "wrong": wrong, "host_waits": waits,
                     "seconds": time.perf_counter() - began})
    twin.close()
    faulthandler.cancel_dump_traceback_later()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1000, help="rounds of each report, in each way")
    parser.add_argument("--delay", type=float, default=1, help="milliseconds until the gate opens, with xlogmem")
    parser.add_argument("--only", choices=REPORTS, help="one report")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    check(cuda.cuInit(0))
    xlogmem.get_runtime()
    check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
    rows, place = [], Place(options.delay / 1000)       # few streams, so that the gate's holds up no other
    for report in [options.only] if options.only else REPORTS:
        for row in run(report, place, options.times):
            rows.append(row)
            print(f"{row['report']:20} {row['way']:13} {row['wrong']:6} of {row['times']} wrong  "
                  f"{row['host_waits']:6} waits of the host  {row['seconds']:7.2f} s", flush=True)
    place.close()
    if options.json:
        options.json.write_text(json.dumps({"facts": facts(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
