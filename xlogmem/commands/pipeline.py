"""The demo: one small pipeline on two streams, first without xlogmem, then with `use` around the launches.

Each round allocates a block on the producer's stream, fills it there *late*, lets a consumer check it on another
stream at once and again later, frees it and fills new memory, which is at the same address.  Without xlogmem the
consumer reads too early, and its block is overwritten too early; with xlogmem neither happens, and the host never
waits for the pipeline.
"""
from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem._driver import device_name, is_simulated
from xlogmem.launch import use
from xlogmem.runtime import DeviceRuntime
from xlogmem.sim.kernels import Kernels, check

__all__ = ["Demo", "Outcome"]

WORDS = 1 << 14                             # of a block: 64 KiB
DELAY_NS = 60_000                           # of the producer and of the consumer's second look
AT_ONCE = 100                               # rounds that are enqueued before the host waits: queues are finite


@dataclass(frozen=True)
class Outcome:
    """The result of one run of the pipeline.  `races` is None on a GPU, which does not report them."""

    rounds: int
    corrupted: int
    races: int | None
    records: int
    waits: int
    uses: int
    host_ns_per_use: float | None
    seconds: float


class Demo:
    """The pipeline on one device.

    Parameters
    ----------
    rounds : int
        How often the pipeline runs.
    policy : str or None
        See `DeviceRuntime`.
    device_id : int
        The device.
    """

    def __init__(self, rounds: int = 100, policy: str | None = None, device_id: int = 0) -> None:
        self.rounds = rounds
        self.runtime = DeviceRuntime(device_id, policy=policy)
        self.simulated = is_simulated()
        self.device = device_name(device_id)
        self.policy = self.runtime.policy

    def run(self, protected: bool, advance: Callable[[int], None] = lambda _: None) -> Outcome:
        """Run all rounds, with `use` around every launch or without; `advance` gets numbers of rounds that are done.
        """
        context = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(self.runtime.device_id))))
        check(cuda.cuCtxPushCurrent(context))
        try:
            return self._run(protected, advance)
        finally:
            check(cuda.cuCtxPopCurrent())
            check(cuda.cuDevicePrimaryCtxRelease(check(cuda.cuDeviceGet(self.runtime.device_id))))

    def _run(self, protected: bool, advance: Callable[[int], None]) -> Outcome:
        simulator = self._fresh_simulator()
        pipeline = _Pipeline(self.runtime, self.rounds, protected)
        before = self.runtime.counters()
        started = time.perf_counter()
        for number in range(self.rounds):
            pipeline.round(number)
            if number % AT_ONCE == AT_ONCE - 1:
                check(cuda.cuCtxSynchronize())
                advance(AT_ONCE)
        check(cuda.cuCtxSynchronize())
        seconds = time.perf_counter() - started
        after = self.runtime.counters()
        corrupted = pipeline.corrupted_rounds()
        races = len(simulator.races()) if simulator else None
        pipeline.close()
        if simulator:
            simulator.clear_races()
        return Outcome(rounds=self.rounds, corrupted=corrupted, races=races,
                       records=after["records"] - before["records"], waits=after["waits"] - before["waits"],
                       uses=pipeline.uses, host_ns_per_use=pipeline.use_ns / pipeline.uses if pipeline.uses else None,
                       seconds=seconds)

    def _fresh_simulator(self) -> Any:
        """The simulated driver, set to run enqueued work in another order each time; None on a GPU."""
        if not self.simulated:
            return None
        from xlogmem import sim

        simulator = sim.simulator()
        simulator.reset("seeded", seed=1)
        return simulator


class _Pipeline:
    """Producer and consumer, and the buffer in which the consumer counts wrong words."""

    def __init__(self, runtime: DeviceRuntime, rounds: int, protected: bool) -> None:
        self.runtime = runtime
        self.rounds = rounds
        self.kernels = Kernels()
        self.producer = runtime.acquire_stream()
        self.consumer = runtime.acquire_stream()
        self.protect = self._timed_use if protected else self._no_use
        self.uses = 0
        self.use_ns = 0
        self.errors = runtime.allocate(4 * rounds, self.consumer, tag="result")
        self.kernels.fill(self.consumer.handle, self.errors.ptr, 0, rounds)

    def round(self, number: int) -> None:
        producer, consumer, kernels = self.producer.handle, self.consumer.handle, self.kernels
        value = number + 1
        wrong = self.errors.ptr + 4 * number
        block = self.runtime.allocate(4 * WORDS, self.producer, tag="produced")
        with self.protect(self.producer, write=block):
            kernels.delay(producer, DELAY_NS)
            kernels.fill(producer, block.ptr, value, WORDS)
        with self.protect(self.consumer, read=block, read_write=self.errors):
            kernels.count_unequal(consumer, wrong, block.ptr, value, WORDS)
            kernels.delay(consumer, DELAY_NS)
            kernels.count_unequal(consumer, wrong, block.ptr, value, WORDS)
        block.free()
        following = self.runtime.allocate(4 * WORDS, self.producer, tag="following")
        with self.protect(self.producer, write=following):
            kernels.fill(producer, following.ptr, ~value & 0xFFFFFFFF, WORDS)
        following.free()

    def _no_use(self, *_: Any, **__: Any) -> Any:
        return nullcontext()

    def _timed_use(self, *args: Any, **accesses: Any) -> _Timed:
        return _Timed(self, args, accesses)

    def corrupted_rounds(self) -> int:
        wrong = (ctypes.c_uint32 * self.rounds)()
        check(cuda.cuMemcpyDtoHAsync(ctypes.addressof(wrong), self.errors.ptr, ctypes.sizeof(wrong),
                                     self.consumer.handle))
        check(cuda.cuStreamSynchronize(self.consumer.handle))
        return sum(1 for words in wrong if words)

    def close(self) -> None:
        self.errors.free()
        self.runtime.reap_pending()
        self.kernels.close()


class _Timed:
    """`use`, which adds up the host time spent in it."""

    def __init__(self, pipeline: _Pipeline, args: tuple[Any, ...], accesses: dict[str, Any]) -> None:
        self.pipeline, self.args, self.accesses = pipeline, args, accesses

    def __enter__(self) -> None:
        started = time.perf_counter_ns()
        self.recorder = use(*self.args, **self.accesses)
        self.recorder.__enter__()
        self.pipeline.use_ns += time.perf_counter_ns() - started

    def __exit__(self, *exception: Any) -> None:
        started = time.perf_counter_ns()
        self.recorder.__exit__(*exception)
        self.pipeline.use_ns += time.perf_counter_ns() - started
        self.pipeline.uses += 1
