"""Contract 206 to 211 and 213 to 215: the seeds' stress suites.

Data is checked with kernels, so they run on a GPU too; on the simulated driver under every schedule, and there each
test also ends with no race reported.
"""
from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import SIMULATED
from cuda.bindings import driver as cuda
from stress import STREAMS, Program, held_up, together, words_at

from xlogmem import (
    MAX_DEVICE_ORDINALS,
    AsyncMemoryResource,
    BlockState,
    DeviceBlock,
    DeviceRuntime,
    DirectMemoryResource,
    StreamMisuseError,
    StreamPool,
    get_runtime,
    runtime,
    sim,
    use,
)
from xlogmem._kernels import Kernels, check

HERE = Path(__file__).parent
THREADS = 8
WORDS = 256                                             # of a block
LATE = 100_000                                          # nanoseconds: what is queued comes late on a GPU
SCHEDULES = sim.POLICIES if SIMULATED else ("hardware",)
RESOURCES = [AsyncMemoryResource, DirectMemoryResource]


def in_its_own_process(program: str, *arguments: object, **environment: str) -> str:
    """What the program prints; its failure is the test's."""
    paths = [str(HERE), str(Path(sim.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run([sys.executable, "-W", "error", "-c", program, *map(str, arguments)], capture_output=True,
                          text=True, timeout=100, env=os.environ | {
                              "PYTHONPATH": os.pathsep.join(filter(None, paths)), "XLOGMEM_SIM_QUIET": "1",
                              "XLOGMEM_SIMULATE": "1" if SIMULATED else "0"} | environment)
    assert done.returncode == 0, f"{arguments} {environment}: {done.stderr}"
    return done.stdout


@pytest.fixture(params=SCHEDULES)
def schedule(request) -> str:
    """The order in which the simulated driver runs what is queued."""
    if SIMULATED:
        sim.simulator().reset(request.param, seed=11)
    return request.param


# ---------------------------------------------------------------------------------------- one runtime for the process
@pytest.fixture
def _cold(monkeypatch):
    """As if nobody had asked for the process's runtimes yet."""
    monkeypatch.setattr(runtime, "_runtimes", [None] * MAX_DEVICE_ORDINALS)


@pytest.mark.usefixtures("_cold")
@pytest.mark.contract(206)
def test_the_process_has_one_runtime_for_all_threads():
    """The same object again and again and in eight threads; each allocates and frees through its default resource."""
    def work(number: int) -> DeviceRuntime:
        own = get_runtime(0)
        block = own.allocate(1024 + number)
        assert block.core is own
        assert own.bytes_outstanding >= block.nbytes
        block.free()
        return own

    seen = together(work, THREADS)
    assert len({id(own) for own in [*seen, get_runtime(), get_runtime(0)]}) == 1
    assert seen[0].counters()["allocations"] == seen[0].counters()["frees"] == THREADS
    seen[0].reap_pending()
    assert seen[0].bytes_outstanding == 0


@pytest.mark.contract(207)
@pytest.mark.parametrize("interval", [5e-3, 1e-6])
def test_a_cold_process_makes_one_runtime(interval):
    """Nothing was loaded before; eight threads at a barrier get one object, whose parts were made once."""
    assert in_its_own_process("""
import sys, threading, xlogmem
from xlogmem import _driver, sim
with open("/proc/self/maps") as maps:
    loaded = maps.read()
assert "libcuda.so" not in loaded and "_simcuda" not in loaded
sys.setswitchinterval(float(sys.argv[1]))
seen, start = [], threading.Barrier(8)
def first():
    start.wait(60)
    runtime = xlogmem.get_runtime()
    runtime.allocate(64).free()
    seen.append(runtime)
threads = [threading.Thread(target=first) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(seen) == 8 and len({id(runtime) for runtime in seen}) == 1
assert seen[0] is xlogmem.get_runtime()
assert seen[0].counters()["allocations"] == seen[0].counters()["frees"] == 8
if sim.installed():
    calls = sim.simulator().all_calls()
    assert calls["cuMemPoolCreate"] == calls["cuDevicePrimaryCtxRetain"] == 1, calls
    assert calls["cuStreamCreateWithPriority"] == 1, calls
print("one")
""", interval) == "one\n"


# ---------------------------------------------------------------------------------------- frees and reaps at once
@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.contract(208)
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


@pytest.mark.contract(208)
def test_pending_is_what_was_freed_on_each_stream():
    """At every quiescent point pending is the sum over the streams; a reap that waits for nobody leaves the bytes of
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


# ---------------------------------------------------------------------------------------- memory that comes back
@pytest.mark.contract(209)
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
        a.free()
        b = own.allocate(4 * WORDS, S)
        assert b.ptr == old, "the memory did not come back: nothing was tested"
        kernels.fill(S.handle, b.ptr, 0xBBBB, WORDS)
        b.free()
        look(number)
    return words_at(wrong.ptr, 1, T)[0]


@pytest.mark.contract(210)
def test_a_recorded_use_is_never_clobbered(schedule, kernels):
    """The memory comes back in each round, and no reader ever sees what its next owner wrote."""
    assert across_streams(kernels, recorded=True) == 0


@pytest.mark.simulator
@pytest.mark.contract(210)
def test_a_use_that_nobody_recorded_is_a_race_every_time(schedule, kernels, driver):
    """The twin: by design the free does not wait for it, and the driver reports it in each of the rounds."""
    rounds = []

    def look(number: int) -> None:
        rounds.append({race.split(":")[0] for race in driver.races()})
        driver.clear_races()

    across_streams(kernels, recorded=False, look=look)
    assert rounds == [{"RACE read/free"}] * 64


# ---------------------------------------------------------------------------------------- the direct resource
@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.contract(211)
def test_direct_memory_in_many_threads(kernels, _context):
    """Random sizes, each written and read back; the books return to what they were."""
    own = DeviceRuntime(resource=DirectMemoryResource(), stream_pool=StreamPool(max_streams=THREADS))
    kept = own.allocate(4096)
    baseline = own.bytes_outstanding
    streams = [own.acquire_stream() for _ in range(THREADS)]
    seed = 211

    def work(number: int) -> None:
        check(cuda.cuCtxSetCurrent(_context))
        draw, stream = random.Random(f"{seed} {number}"), streams[number]
        for turn in range(64):
            count, value = draw.randint(16, 1024), draw.getrandbits(32)         # 64 to 4,096 bytes
            block = own.allocate(4 * count, stream)
            with use(stream, write=block):
                kernels.fill(stream.handle, block.ptr, value, count)
            with use(stream, read=block):
                seen = words_at(block.ptr, count, stream)
            assert seen == [value] * count, f"seed {seed}, thread {number}, turn {turn}"
            if turn % 2:
                block.free()
            del block

    together(work, THREADS)
    own.reap_pending()
    assert own.bytes_outstanding == baseline == kept.nbytes
    assert own.counters()["allocations"] == own.counters()["frees"] + 1 == 64 * THREADS + 1


# ---------------------------------------------------------------------------------------- drop and reuse, by operator
class Pinned:
    """Page-locked host memory."""

    def __init__(self) -> None:
        self.ptr = int(check(cuda.cuMemHostAlloc(4 * WORDS, 0)))

    def write(self, value: int) -> None:
        (ctypes.c_uint32 * WORDS).from_address(self.ptr)[:] = [value] * WORDS

    def close(self) -> None:
        check(cuda.cuMemFreeHost(self.ptr))


class Array:
    """Somebody's array over memory that it does not keep."""

    def __init__(self, ptr: int) -> None:
        self.__cuda_array_interface__ = {"data": (ptr, False), "shape": (WORDS,), "typestr": "<u4", "version": 3}


NAMINGS: dict[str, Callable[[DeviceBlock], object]] = {
    "block": lambda block: block, "id": lambda block: block.id, "address": lambda block: block.ptr,
    "inside": lambda block: block.ptr + 4 * WORDS - 1, "array": lambda block: Array(block.ptr)}


# What may be done to two operands a and b, each full of one value: how they are used, the launch, which leaves its
# outcome in `out`, and that outcome.
Launch = Callable[[Kernels, int, int, int, int, int], None]
OPERATORS: dict[str, tuple[str, str, Launch, Callable[[int, int], int]]] = {
    "copy": ("read", "read", lambda k, s, a, b, out, host: k.copy(s, out, a, WORDS), lambda a, b: a),
    "driver's copy": ("read", "read", lambda k, s, a, b, out, host: check(
        cuda.cuMemcpyDtoDAsync(out, b, 4 * WORDS, s)), lambda a, b: b),
    "copy through": ("read", "write", lambda k, s, a, b, out, host: (
        k.copy(s, b, a, WORDS), k.copy(s, out, b, WORDS)), lambda a, b: a),
    "add": ("read", "read_write", lambda k, s, a, b, out, host: (
        k.add(s, b, 5, WORDS), k.copy(s, out, b, WORDS)), lambda a, b: b + 5),
    "count": ("read", "read", lambda k, s, a, b, out, host: (
        k.fill(s, out, 0, WORDS), *(k.count_unequal(s, out + 4 * i, a, i, WORDS) for i in range(WORDS))),
        lambda a, b: WORDS),
    "fill": ("write", "write", lambda k, s, a, b, out, host: (
        k.fill(s, a, 9, WORDS), k.fill(s, b, 8, WORDS), k.copy(s, out, a, WORDS)), lambda a, b: 9),
    "memset": ("write", "read", lambda k, s, a, b, out, host: (
        check(cuda.cuMemsetD32Async(a, 77, WORDS, s)), k.copy(s, out, a, WORDS)), lambda a, b: 77),
    "upload": ("write", "read", lambda k, s, a, b, out, host: (
        check(cuda.cuMemcpyHtoDAsync(a, host, 4 * WORDS, s)), k.copy(s, out, a, WORDS)), lambda a, b: 4321),
    "download": ("read", "read", lambda k, s, a, b, out, host: (
        check(cuda.cuMemcpyDtoHAsync(host, b, 4 * WORDS, s)), check(cuda.cuMemcpyHtoDAsync(out, host, 4 * WORDS, s))),
        lambda a, b: b),
}


def uses_of(operator: str, *operands: object) -> dict[str, list[object]]:
    """The arguments of `use` for the operands."""
    uses: dict[str, list[object]] = {"read": [], "write": [], "read_write": []}
    for access, operand in zip(OPERATORS[operator], operands, strict=False):
        uses[access].append(operand)
    return uses


def drop_and_reuse(kernels: Kernels, operator: str, naming: str) -> None:
    """Operands made on S, the operator on T, late; they are dropped at once and their memory is overwritten on S."""
    own, host = DeviceRuntime(), Pinned()
    host.write(4321)
    S, T = own.acquire_stream(), own.acquire_stream()
    launch, outcome = OPERATORS[operator][2:]
    operands, old = [], []
    for value in (1000, 2000):
        operands.append(own.allocate(4 * WORDS, S))
        old.append(operands[-1].ptr)
        kernels.fill(S.handle, operands[-1].ptr, value, WORDS)
    out = own.allocate(4 * WORDS, T)
    with use(T, **uses_of(operator, *map(NAMINGS[naming], operands)), runtime=own):
        kernels.delay(T.handle, LATE)
        launch(kernels, T.handle, *old, out.ptr, host.ptr)
    operands.clear()
    reused = [own.allocate(4 * WORDS, S) for _ in old]
    for block in reused:
        with use(S, write=block):
            kernels.fill(S.handle, block.ptr, 0xDDDD, WORDS)
    with use(T, read=out):
        seen = words_at(out.ptr, WORDS, T)
    kept = [words_at(block.ptr, WORDS, S) for block in reused]
    check(cuda.cuCtxSynchronize())
    host.close()
    assert {block.ptr for block in reused} == set(old), "the memory did not come back: nothing was tested"
    assert seen == [outcome(1000, 2000)] * WORDS
    assert kept == [[0xDDDD] * WORDS] * 2


@pytest.mark.contract(213)
@pytest.mark.parametrize("naming", NAMINGS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_survives_drop_and_reuse(kernels, operator, naming):
    for number, policy in enumerate(SCHEDULES):
        if SIMULATED:
            sim.simulator().set_policy(policy, seed=number)
        drop_and_reuse(kernels, operator, naming)


@pytest.mark.simulator
@pytest.mark.contract(213)
@pytest.mark.parametrize("dropped", [1, 2])
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_without_one_of_its_waits_is_noticed(kernels, driver, operator, dropped):
    """The twin: T does not wait for the operands to be made, or their free on S not for T."""
    driver.drop("cuStreamWaitEvent", dropped)
    drop_and_reuse(kernels, operator, "block")          # eager: the data is right by luck
    assert driver.races()
    driver.clear_races()


@pytest.mark.contract(213)
@pytest.mark.parametrize("foreign", ["a", "b", "both"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_rejects_untracked_buffers_in_strict_mode(kernels, operator, foreign):
    """Nothing is queued and nothing filed; permissive mode lets it through."""
    own = DeviceRuntime()
    stream = own.acquire_stream()
    theirs = int(check(cuda.cuMemAlloc(4 * WORDS)))
    block = own.allocate(4 * WORDS, stream)
    a, b = (theirs if foreign in (name, "both") else block for name in "ab")
    before = own.counters(), block.frontier
    with (pytest.raises(StreamMisuseError, match="untracked buffer rejected") as error,
          use(stream, **uses_of(operator, a, b), runtime=own)):
        pytest.fail("it was launched")
    assert str(error.value).count("untracked buffer rejected") == (2 if foreign == "both" else 1)
    assert (own.counters(), block.frontier) == before
    assert block.state is BlockState.LIVE
    with use(stream, **uses_of(operator, a, b), runtime=own, mode="permissive"):
        pass
    assert own.counters()["uses"] == (foreign != "both")
    check(cuda.cuMemFree(theirs))


# ---------------------------------------------------------------------------------------- memory pressure
@pytest.mark.contract(214)
@pytest.mark.parametrize("resource", RESOURCES)
def test_the_figures_are_exact_at_every_step(resource):
    """Live, pending and outstanding follow each allocation, free and reap to the byte, also while the stream is held
    up."""
    own = DeviceRuntime(resource=resource())
    stream, other = own.acquire_stream(), own.acquire_stream()
    draw = random.Random(214)
    deferred = resource is AsyncMemoryResource          # frees of the other take effect at once
    blocks: list[DeviceBlock] = []
    live = pending = 0
    for step in range(200):
        if len(blocks) < 3 or draw.random() < 0.6:
            blocks.append(own.allocate(draw.randint(1, 1 << 16), draw.choice((stream, other))))
            live += blocks[-1].nbytes
        else:
            block = blocks.pop(draw.randrange(len(blocks)))
            live -= block.nbytes
            pending += block.nbytes * deferred
            block.free()
            del block
        assert (own.live_bytes, own.pending_bytes, own.bytes_outstanding) == (live, pending, live + pending), step
        if step % 50 == 49:
            own.reap_pending()
            pending = 0
    if deferred:
        blocks.append(own.allocate(12345, other))
        check(cuda.cuCtxSynchronize())
        with held_up(other):
            blocks.pop().free()
            own.reap_pending(blocking=False)
            assert (own.live_bytes, own.pending_bytes) == (live, 12345)
    blocks.clear()
    own.reap_pending()
    assert (own.live_bytes, own.pending_bytes, own.bytes_outstanding) == (0, 0, 0)


@pytest.mark.simulator
@pytest.mark.contract(214)
@pytest.mark.parametrize("policy", sim.POLICIES)
@pytest.mark.parametrize("resource", ["AsyncMemoryResource", "DirectMemoryResource"])
def test_a_device_of_64_mib_is_used_to_the_last_byte(resource, policy):
    """Out of memory comes when it has to and not before; it names what was asked for, changes nothing but what is
    pending, and the next free makes room, for another runtime too."""
    assert in_its_own_process("""
import sys
import xlogmem
from xlogmem import sim
M = 1 << 20
kind = getattr(xlogmem, sys.argv[1])
deferred = kind is xlogmem.AsyncMemoryResource
runtime, other = (xlogmem.DeviceRuntime(resource=kind()) for _ in range(2))
S, T = runtime.acquire_stream(), runtime.acquire_stream()
def figures(live, pending, of=runtime):
    pending *= deferred
    seen = of.live_bytes, of.pending_bytes, of.bytes_outstanding
    assert seen == (live, pending, live + pending), (seen, live, pending)
def refused(nbytes, of=runtime):
    before = of.counters()["allocations"], of.counters()["live_blocks"]
    try:
        of.allocate(nbytes)
    except xlogmem.OutOfDeviceMemoryError as error:
        assert f"allocating {nbytes} bytes" in str(error), error
    else:
        raise SystemExit(f"{nbytes} bytes were allocated")
    assert (of.counters()["allocations"], of.counters()["live_blocks"]) == before
blocks = [runtime.allocate(M, (S, T)[number % 2]) for number in range(48)]
figures(48 * M, 0)
refused(17 * M)
figures(48 * M, 0)
for _ in range(8):
    blocks.pop().free(S)
figures(40 * M, 8 * M)
blocks.append(runtime.allocate(16 * M, T))                # there was room without the freed ones
figures(56 * M, 8 * M)
blocks.append(runtime.allocate(M, S))                     # one of the freed ones
figures(57 * M, 8 * M)
refused(8 * M)
figures(57 * M, 0)                                        # the frees were waited for before it was refused
blocks.append(runtime.allocate(7 * M, S))
figures(64 * M, 0)
for nbytes in (1, M, 1 << 40):
    refused(nbytes)
    refused(nbytes, other)
figures(64 * M, 0)
figures(0, 0, other)
blocks.pop(0).free()
theirs = other.allocate(M)
figures(63 * M, M)
figures(M, 0, other)
refused(1)
figures(63 * M, 0)
del theirs
blocks.clear()
other.reap_pending()
runtime.reap_pending()
figures(0, 0)
figures(0, 0, other)
assert runtime.counters()["allocations"] == runtime.counters()["frees"] == 51
assert sim.simulator().live_bytes() == 0 and not sim.simulator().races()
print("exact")
""", resource, XLOGMEM_SIM_MEMORY=str(64 << 20), XLOGMEM_SIM_POLICY=policy) == "exact\n"


# ---------------------------------------------------------------------------------------- random programs
@pytest.mark.simulator
@pytest.mark.contract(215)
@pytest.mark.parametrize("seed", range(8))
def test_the_random_programs_notice_a_missing_wait(kernels, driver, seed):
    """The twin: nothing covers for the first wait of a program."""
    driver.reset("seeded", seed)
    program = Program(seed)
    for dropped in (False, True):
        own = DeviceRuntime()
        streams = [own.acquire_stream() for _ in range(STREAMS)]
        if dropped:
            driver.drop("cuStreamWaitEvent")
        assert program.run(own, streams, kernels) == program.serial() or dropped
        assert bool(driver.races()) == dropped
        driver.clear_races()


@pytest.mark.usefixtures("_busy_interpreter")
@pytest.mark.contract(215)
@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
@pytest.mark.parametrize("shared", [True, False])
def test_a3_threads_compute_what_one_would(kernels, _context, shared, policy):
    """Eight threads of 32 programs on the streams of one runtime, and in runtimes of their own in one context."""
    if SIMULATED:
        sim.simulator().reset("seeded", seed=215)
    one = DeviceRuntime(policy=policy)
    common = [one.acquire_stream() for _ in range(STREAMS)]
    runtimes = {one}

    def work(number: int) -> list[str]:
        check(cuda.cuCtxSetCurrent(_context))
        own, streams = one, common
        if not shared:
            own = DeviceRuntime(policy=policy)
            streams = [own.acquire_stream() for _ in range(STREAMS)]
            runtimes.add(own)
        wrong = []
        for iteration in range(32):
            program = Program(seed := 1000 * number + iteration)
            if program.run(own, streams, kernels) != program.serial():
                wrong.append(f"stress.Program({seed}) in thread {number}")
        return wrong

    assert together(work, THREADS) == [[]] * THREADS
    assert len(runtimes) == (1 if shared else THREADS + 1)
    for own in runtimes:
        own.reap_pending()
        assert own.bytes_outstanding == own.counters()["live_blocks"] == 0
        assert own.counters()["allocations"] == own.counters()["frees"]


@pytest.mark.contract(215)
@pytest.mark.parametrize("seed", [100, 200, 300, 400])
def test_a4_fresh_processes_compute_what_a_serial_one_would(seed):
    policy = ("lazy", "precise", "adaptive", "adaptive")[seed // 100 - 1]
    printed = in_its_own_process("import stress; stress.main()", seed, 4, XLOGMEM_POLICY=policy)
    assert printed.splitlines() == [*(str(Program(seed + number).serial()) for number in range(4)), "races: 0"], (
        f"replay: PYTHONPATH=tests XLOGMEM_POLICY={policy} python -c 'import stress; stress.main()' {seed} 4")
