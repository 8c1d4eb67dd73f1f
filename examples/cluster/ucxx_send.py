"""UCXX: memory is sent while the program goes on, and writes what it sent.

    python examples/cluster/ucxx_send.py [--api blocking|async] [--rounds N] [--mib N] [--late SECONDS] [--json]
    python examples/cluster/ucxx_send.py --without         # without the uses

Each round a slow producer writes its number to `source` on a stream, hands it to a sender, and begins the next round,
which writes `source` again.  UCX reads the memory when the receiver asks for it, on streams of its own, after nothing
and before nothing.  So a send is a use of the host (`on_host`): it begins when what was queued before is complete, and
until the request is complete the producer's next launch waits.  Every other receiver is late.  Without the uses some
receive what was there too early, others what was written too late.

``blocking`` is UCXX's core: a worker for each side, in threads.  ``async`` is its asyncio, where both are coroutines.
"""
from __future__ import annotations

import argparse
import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy
from cuda.bindings import driver as cuda
from on_host import main, needed, on_host, on_host_awaited, use_awaited

import xlogmem

SETTLED = 0.002                                         # seconds that a launch may need to run
POLL = 50e-6
SLOW = 64                                               # fills that the producer has to do first


class Bytes:
    """The memory of a block for UCXX, which only needs the address: it is ordered here, on no stream."""

    def __init__(self, block: xlogmem.DeviceBlock) -> None:
        self.nbytes = block.nbytes
        self.__cuda_array_interface__ = {"data": (block.ptr, False), "shape": (block.nbytes,), "typestr": "|u1",
                                         "strides": None, "version": 3}


class Program:
    """The producer, and both ends of the memory."""

    make_event: Any = threading.Event

    def __init__(self, rounds: int, mib: float, protected: bool, late: float) -> None:
        self.rounds, self.protected, self.late = rounds, protected, late
        self.words = int(mib * 2**18)
        runtime = xlogmem.get_runtime()
        use_device()
        self.producer, self.sends, self.receives = (runtime.acquire_stream() for _ in range(3))
        self.source, self.scratch = (runtime.allocate(4 * self.words, self.producer) for _ in range(2))
        self.target = runtime.allocate(4 * self.words, self.receives)
        self.sent, self.wanted = Bytes(self.source), Bytes(self.target)
        self.received = numpy.empty(self.words, numpy.uint32)
        self.launched = [self.make_event() for _ in range(rounds + 1)]
        self.seen = {"too_early": 0, "too_late": 0}
        for block, stream in (self.source, self.producer), (self.target, self.receives):
            ok(cuda.cuMemsetD32Async(block.ptr, rounds, self.words, stream.handle))     # no round's number
            stream.synchronize()

    def launch(self, number: int) -> None:
        """In place of kernels: it is slow, and then writes."""
        for _ in range(SLOW):
            ok(cuda.cuMemsetD32Async(self.scratch.ptr, number, self.words, self.producer.handle))
        ok(cuda.cuMemsetD32Async(self.source.ptr, number, self.words, self.producer.handle))
        self.launched[number].set()

    def compare(self, number: int) -> None:
        ok(cuda.cuMemcpyDtoH(self.received.ctypes.data, self.target.ptr, 4 * self.words))
        if (self.received != number).any():
            later = (self.received > number) & (self.received < self.rounds)
            self.seen["too_late" if later.any() else "too_early"] += 1

    def protection(self, use: Callable[..., Any], *stream: Any, **what: Any) -> Any:
        return use(*stream, **what) if self.protected else contextlib.nullcontext()


class Blocking(Program):
    """The producer is the main thread; both sides have a thread and a worker of their own."""

    def run(self) -> dict[str, int]:
        self.ucx, self.array = needed("ucxx._lib.libucxx"), needed("ucxx._lib.arr").Array
        context = self.ucx.UCXContext(feature_flags=(self.ucx.Feature.TAG,))
        self.workers = [self.ucx.UCXWorker(context) for _ in range(2)]
        self.endpoint = self.ucx.UCXEndpoint.create_from_worker_address(
            self.workers[0], self.workers[1].address, endpoint_error_handling=False)
        self.produced: queue.Queue[int | None] = queue.Queue()
        self.posted: queue.Queue[int | None] = queue.Queue()
        self.begun = threading.Semaphore(0)
        self.errors: list[BaseException] = []
        threads = [threading.Thread(target=self.guarded, args=(side,)) for side in (self.send, self.receive)]
        for thread in threads:
            thread.start()
        for number in range(self.rounds):
            with self.protection(xlogmem.use, self.producer, write=self.source):     # after the last send
                self.launch(number)
            self.produced.put(number)
            self.begun.acquire()                        # the sender has it: it is queued, not sent
        self.produced.put(None)
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        return self.seen

    def guarded(self, side: Any) -> None:
        try:
            use_device()
            side()
        except BaseException as error:                  # raised by the main thread
            self.errors.append(error)
            self.posted.put(None)
            self.begun.release(self.rounds)

    def send(self) -> None:
        while (number := self.produced.get()) is not None:
            with self.protection(on_host, self.sends, read=self.source):
                request = self.endpoint.tag_send(self.array(self.sent), tag=self.ucx.UCXXTag(number))
                self.posted.put(number)
                self.begun.release()
                self.wait_for(request, self.workers[0])
        self.posted.put(None)

    def receive(self) -> None:
        while (number := self.posted.get()) is not None:
            if number % 2:                              # with the uses, that launch waits for this
                self.launched[number + 1].wait(self.late)
                time.sleep(SETTLED)
            with self.protection(on_host, self.receives, write=self.target):
                request = self.workers[1].tag_recv(self.array(self.wanted), tag=self.ucx.UCXXTag(number))
                self.wait_for(request, self.workers[1])
            self.compare(number)

    def wait_for(self, request: Any, worker: Any) -> None:
        while not request.completed:
            worker.progress()
            time.sleep(POLL)                            # others need the GIL
        request.check_error()


class Async(Program):
    """All are coroutines of one thread."""

    make_event = asyncio.Event

    def run(self) -> dict[str, int]:
        self.ucxx, self.array = needed("ucxx"), needed("ucxx._lib.arr").Array
        asyncio.run(self.produce())
        return self.seen

    async def produce(self) -> None:
        self.ucxx.init()
        self.endpoint = await self.ucxx.create_endpoint_from_worker_address(self.ucxx.get_worker_address())
        self.receiving = asyncio.Lock()
        async with asyncio.TaskGroup() as sides:
            for number in range(self.rounds):
                async with self.protection(use_awaited, self.producer, write=self.source):      # after the last send
                    self.launch(number)
                posted = asyncio.Event()
                sides.create_task(self.send(number, posted))
                sides.create_task(self.receive(number, posted))
                await posted.wait()
        self.endpoint.abort()

    async def send(self, number: int, posted: asyncio.Event) -> None:
        async with self.protection(on_host_awaited, self.sends, read=self.source):
            posted.set()
            await self.endpoint.send(self.array(self.sent), tag=number, force_tag=True)

    async def receive(self, number: int, posted: asyncio.Event) -> None:
        await posted.wait()
        async with self.receiving:                      # one at a time: they have one `target`
            if number % 2:                              # with the uses, that launch waits for this
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.launched[number + 1].wait(), self.late)
                await asyncio.sleep(SETTLED)
            async with self.protection(on_host_awaited, self.receives, write=self.target):
                await self.ucxx.recv(self.array(self.wanted), tag=number)
            self.compare(number)


def ok(result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise RuntimeError(result[0])
    return result[1] if len(result) == 2 else result[1:]


def use_device() -> None:
    """Of this thread."""
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))


def run(options: argparse.Namespace) -> dict[str, int]:
    needed("ucxx")
    kinds = {"blocking": Blocking, "async": Async}
    return kinds[options.api](options.rounds, options.mib, not options.without, options.late).run()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--api", choices=("blocking", "async"), default="blocking")
    parser.add_argument("--late", type=float, default=0.05,
                        help="seconds that every other receiver waits for the producer's next launch")


if __name__ == "__main__":
    main(__doc__.splitlines()[0], run, add_options)
