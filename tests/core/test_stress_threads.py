"""Worker threads and reapers at once, and memory that comes back.

Data is checked with kernels, so the tests run on a GPU too.
"""
from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from cuda.bindings import driver as cuda
from stress import held_up, together, words_at
from which_driver import SIMULATED

from xlogmem import (
    DeviceRuntime,
    get_runtime,
    sim,
    use,
)
from xlogmem.sim.kernels import Kernels, check

WORDS = 256                                             # of a block
LATE = 100_000                                          # nanoseconds: what is queued comes late on a GPU
SCHEDULES = sim.POLICIES if SIMULATED else ("hardware",)


@pytest.fixture(params=SCHEDULES)
def schedule(request) -> str:
    """The order in which the simulated driver runs what is queued."""
    if SIMULATED:
        sim.simulator().reset(request.param, seed=11)
    return request.param


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.promise(208)
@pytest.mark.parametrize("blocking", [True, False])
def test_workers_and_a_reaper_lose_no_byte(blocking):
    """Four workers allocate and free on streams of their own while a fifth thread reaps: totals match, all is zero at
    the end."""
    own = DeviceRuntime()
    streams = [own.acquire_stream() for _ in range(4)]
    at_work = [threading.Event() for _ in streams]
    seen = []

    def work(number: int) -> None:
        try:
            for _ in range(200):
                own.allocate(1024, streams[number]).free()
        finally:
            at_work[number].set()

    def reap() -> None:
        for finished in at_work:
            while not finished.wait(0.0005):
                own.reap_pending(blocking=blocking)
                seen.append(own.bytes_outstanding)

    together(lambda number: work(number) if number < 4 else reap(), 5)
    counters = own.counters()
    assert (counters["allocations"], counters["frees"], counters["live_blocks"]) == (800, 800, 0)
    assert own.live_bytes == 0
    assert all(0 <= number <= 800 * 1024 and number % 1024 == 0 for number in seen)
    own.reap_pending()
    assert (own.live_bytes, own.pending_bytes, own.bytes_outstanding) == (0, 0, 0)


@pytest.mark.promise(208)
def test_pending_is_what_was_freed_on_each_stream():
    """At every quiescent point pending is the sum over the streams; a reap that does not wait leaves the bytes of
    the streams that are held up, and no others."""
    own = DeviceRuntime()
    streams = [own.acquire_stream() for _ in range(4)]
    for turn in range(20):
        blocks = [[own.allocate(1024 + 17 * number + i + turn, stream) for i in range(40)]
                  for number, stream in enumerate(streams)]
        sums = [sum(block.nbytes for block in some) for some in blocks]
        held = {turn % 4, (turn + 1 + turn // 4) % 4}
        with held_up(*[streams[number] for number in held]):
            together(lambda number, blocks=blocks: [block.free() for block in blocks[number]], 4)
            assert (own.live_bytes, own.pending_bytes) == (0, sum(sums))
            for number in {0, 1, 2, 3} - held:
                check(cuda.cuStreamSynchronize(streams[number].handle))
            own.reap_pending(blocking=False)
            assert own.bytes_outstanding == own.pending_bytes == sum(sums[number] for number in held)
        own.reap_pending()
        assert own.bytes_outstanding == 0
    assert own.counters()["allocations"] == own.counters()["frees"] == 20 * 4 * 40


@pytest.mark.promise(209)
@pytest.mark.parametrize("rounds", [1, 32])
@pytest.mark.parametrize("facade", [True, False])
def test_memory_that_comes_back_holds_what_was_written_last(schedule, kernels, _cold, facade, rounds):
    """Allocate A, write it, free it, allocate B, which may be the same memory, write it; one wait at the end."""
    own = get_runtime() if facade else DeviceRuntime()
    stream = own.acquire_stream()
    kept, addresses = [], set()
    for number in range(rounds):
        a = own.allocate(4 * WORDS, stream)
        with use(stream, write=a):
            kernels.delay(stream.handle, LATE)
            kernels.fill(stream.handle, a.ptr, 0xAAAA, WORDS)
        addresses.add(a.ptr)
        a.free()
        b = own.allocate(4 * WORDS, stream)
        with use(stream, write=b):
            kernels.fill(stream.handle, b.ptr, number, WORDS)
        addresses.add(b.ptr)
        kept.append(b)
    check(cuda.cuStreamSynchronize(stream.handle))
    for number, b in enumerate(kept):
        assert words_at(b.ptr, WORDS, stream) == [number] * WORDS, f"round {number} under {schedule}"
    assert len(addresses) == rounds                     # B is where A was


def across_streams(kernels: Kernels, recorded: bool, look: Callable[[int], None] = lambda number: None) -> int:
    """64 times: filled on S, read late on T, freed, overwritten on S where it comes back.  How many words T saw wrong.
    """
    own = DeviceRuntime()
    S, T = own.acquire_stream(), own.acquire_stream()
    wrong = own.allocate(4, T)
    kernels.fill(T.handle, wrong.ptr, 0, 1)
    for number in range(64):
        a = own.allocate(4 * WORDS, S)
        kernels.fill(S.handle, a.ptr, number, WORDS)
        with use(T, read=a, read_write=wrong) as recorder:
            if not recorded:
                recorder.cancel()                       # ordered after the fill, and then forgotten
            kernels.delay(T.handle, LATE)
            kernels.count_unequal(T.handle, wrong.ptr, a.ptr, number, WORDS)
        old = a.ptr
        a.free(S)
        b = own.allocate(4 * WORDS, S)
        assert b.ptr == old, "the memory did not come back: nothing was tested"
        kernels.fill(S.handle, b.ptr, 0xBBBB, WORDS)
        b.free()
        look(number)
    return words_at(wrong.ptr, 1, T)[0]


@pytest.mark.promise(210)
def test_a_recorded_use_is_never_clobbered(schedule, kernels):
    """The memory comes back in each round, and no reader ever sees what its next owner wrote."""
    assert across_streams(kernels, recorded=True) == 0


@pytest.mark.simulator
@pytest.mark.promise(210)
def test_an_unrecorded_use_is_a_race_every_time(schedule, kernels, driver):
    """The twin: by design the free does not wait for it, and the driver reports it in each of the rounds."""
    rounds = []

    def look(number: int) -> None:
        rounds.append({race.split(":")[0] for race in driver.races()})
        driver.clear_races()

    across_streams(kernels, recorded=False, look=look)
    assert rounds == [{"RACE read/free"}] * 64
