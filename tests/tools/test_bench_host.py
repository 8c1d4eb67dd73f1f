"""The family `host` of the benchmarks: copies that arrive wrong are noticed, and the libraries' memory is kept."""
from __future__ import annotations

import weakref
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import pytest
from bench_runs import TINY, all_of, bench
from cuda.bindings import driver as cuda
from xlogmem_bench import _loops, measure, pinned
from xlogmem_bench.allocators import CPP, PYTHON
from xlogmem_bench.cases import awaiting, host, uploads
from xlogmem_bench.cases.uploads import NOTHING

import xlogmem
from xlogmem.sim.kernels import check

pytestmark = [pytest.mark.simulator, pytest.mark.with_gil]
NBYTES, COPIES = 8192, 80
HAND, WAITS = "events by hand", "cuEventSynchronize"


def candidates_of(build, world, stack, failed=pytest.fail):
    return {candidate.name: candidate for candidate in build(world, stack, failed) if candidate.language == PYTHON}


@pytest.fixture
def late(world, driver):
    """Copies run as late as they may: the host is always ahead."""
    driver.set_policy("min")
    return world


BUILDS = {"freed at once": uploads.freed_at_once(NBYTES, COPIES),
          "two buffers": uploads.through_buffers(NBYTES, COPIES, 2)}


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_all_copies_arrive_but_those_that_nothing_keeps(build, late):
    with ExitStack() as stack:
        for name, candidate in candidates_of(build, late, stack).items():
            assert [candidate.run(1) > 0 for _ in range(2)] == [True, True], name


@pytest.mark.parametrize("buffers", [1, 2])
def test_without_a_wait_copies_are_wrong(buffers, late):
    with ExitStack() as stack:
        some = uploads.Uploads(late, stack, NBYTES, COPIES)
        memory = uploads.made_buffers(stack, NBYTES, buffers)
        unkept = partial(uploads.into_buffers, some, memory)
        assert some.timed(unkept, lambda: None)[1] == COPIES - buffers
        with pytest.raises(RuntimeError, match=f"{COPIES - buffers} of {COPIES} copies arrived with the bytes of ano"):
            some.candidate("unkept", uploads.PEER, unkept).run(1)


@pytest.mark.parametrize(("build", "name"), [
    ("freed at once", HAND), ("freed at once", "xlogmem, stream"), ("two buffers", HAND), ("two buffers", "xlogmem")])
def test_a_wait_that_the_driver_drops_is_noticed(build, name, late, driver):
    with ExitStack() as stack:
        candidate = candidates_of(BUILDS[build], late, stack)[name]
        candidate.run(1)
        for nth in range(1, COPIES):
            driver.drop(WAITS, nth)
        with pytest.raises(RuntimeError, match="copies arrived with the bytes of another one"):
            candidate.run(1)
        driver.reset("eager")


@pytest.mark.parametrize(("nbytes", "policy", "turns", "said"), [
    (uploads.LONG, "eager", 1, True), (uploads.LONG, "eager", 0, False), (uploads.LONG, "min", 1, False),
    (NBYTES, "eager", 1, False)])
def test_a_comparison_that_finds_nothing_is_a_failure(nbytes, policy, turns, said, world, driver):
    """... on a GPU, if the copies are long."""
    driver.set_policy(policy)
    failures = []
    with ExitStack() as stack:
        made = candidates_of(uploads.through_buffers(nbytes, 8, 2), world, stack,
                             lambda name, error: failures.append((name, str(error))))
        for _ in range(turns):
            made[NOTHING].run(1)
        made[NOTHING].close()
        assert failures == []
        world.simulated = False
        made[NOTHING].close()
        world.simulated = True
    assert failures == [(NOTHING, "no copy arrived wrong: the comparison of this case shows nothing")] * said


@pytest.mark.parametrize("pending", [1, 40])
def test_what_does_not_wait_for_the_work_is_noticed(pending, world, monkeypatch):
    """... as where the work does not wait for the host."""
    with ExitStack() as stack:
        made = candidates_of(awaiting.awaited(pending), world, stack)
        assert list(made) == ["host functions", "xlogmem", "one host function", "threads"]
        for name, candidate in made.items():
            assert candidate.run(1) > 0, name
            with monkeypatch.context() as patch:
                patch.setattr(cuda, "cuStreamWaitValue32", lambda *_: (cuda.CUresult.CUDA_SUCCESS,))
                with pytest.raises(RuntimeError, match=r"(\d+) of \1 did not wait for the work"):
                    candidate.run(1)


# ---------------------------------------------------------------------------------------------- the libraries
class Memory:
    """Page-locked memory of a pool, to which it returns at its end, or before that."""

    live = 0
    spare: list[int] = []                               # noqa: RUF012

    def __init__(self, nbytes):
        self.ptr = self.handle = self.spare.pop() if self.spare else int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
        Memory.live += 1
        self.close = weakref.finalize(self, self.end, self.ptr)

    @staticmethod
    def end(address):
        Memory.live -= 1
        Memory.spare.append(address)

    def data_ptr(self):
        return self.ptr


class Event:
    def __init__(self, disable_timing=True):
        self.event = check(cuda.cuEventCreate(2))
        weakref.finalize(self, lambda event: check(cuda.cuEventDestroy(event)), self.event)

    def record(self, stream):
        check(cuda.cuEventRecord(self.event, stream.handle))

    def query(self):
        return not int(cuda.cuEventQuery(self.event)[0])

    done = property(query)

    def synchronize(self):
        check(cuda.cuEventSynchronize(self.event))


class Stream:
    def __init__(self, handle=0):
        self.handle = handle

    def sync(self):
        check(cuda.cuStreamSynchronize(self.handle))


class Resource:
    """RMM's or cuda.core's."""

    handle = 0
    kept: dict[int, Memory] = {}                        # noqa: RUF012

    def __init__(self, *arguments, **options):
        self.options = options

    def allocate(self, nbytes, stream=None):
        memory = Memory(nbytes)
        if stream is not None:
            return memory
        self.kept[memory.ptr] = memory
        return memory.ptr

    def deallocate(self, address, nbytes):
        self.kept.pop(address)


CUDA = SimpleNamespace(ExternalStream=Stream, Event=Event, PinnedMemoryPool=lambda: SimpleNamespace(malloc=Memory))
STAND_INS = {
    "CuPy": SimpleNamespace(cuda=CUDA),
    "PyTorch": SimpleNamespace(cuda=CUDA, uint8="uint8", empty=lambda nbytes, dtype, pin_memory: Memory(nbytes)),
    "cuda.core": SimpleNamespace(Device=lambda number: SimpleNamespace(create_stream=Stream),
                                 PinnedMemoryResource=Resource, PinnedMemoryResourceOptions=dict),
    "RMM": SimpleNamespace(mr=SimpleNamespace(PinnedHostMemoryResource=Resource, PoolMemoryResource=Resource))}


@pytest.fixture
def libraries(monkeypatch, late):
    """Stand-ins, whose memory is the driver's: this tests the shape, and not the libraries."""
    monkeypatch.setattr(pinned.Rmm, "native_of", lambda self: _loops.Allocator.of_page_locked())
    monkeypatch.setattr(pinned.CudaCore, "keep_all", lambda self: None)
    late.modules |= STAND_INS
    yield late
    for name in STAND_INS:
        del late.modules[name]
    assert Memory.live == 0
    assert not Resource.kept
    while Memory.spare:
        check(cuda.cuMemFreeHost(Memory.spare.pop()))


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("kind", [kind for kinds in pinned.WAYS.values() for kind in kinds], ids=lambda kind: kind.name)
def test_memory_of_a_library_is_kept_until_its_copy_is_complete(kind, early, libraries, driver, monkeypatch):
    """... and copies are wrong if it is not.  The host waits where as many are kept as may be."""
    monkeypatch.setattr(uploads, "KEPT", 8)
    library = next(name for name, kinds in pinned.WAYS.items() if kind in kinds)
    with ExitStack() as stack:
        some = uploads.Uploads(libraries, stack, NBYTES, COPIES)
        way = kind(libraries.modules[library], some.stream.handle)
        if early:
            way.is_done = lambda event: True
        kept = uploads.Kept(some, stack, way)
        for _ in range(2):
            assert (some.timed(kept.queue, kept.collect)[1] > 0) is early
            assert Memory.live == 0
            assert len(Memory.spare) == (1 if early else 8)
        assert early or driver.calls(WAITS) > 0


def test_every_library_has_a_pair(libraries):
    with ExitStack() as stack:
        made = [(candidate.name, candidate.language) for candidate in host.pinned_pairs(NBYTES)(
            libraries, stack, pytest.fail) if candidate.run(3) > 0]
    assert {name for name, language in made if language == CPP} == {
        "driver", "xlogmem, host", "xlogmem, stream", "rmm pinned", "rmm pool, pinned"}
    assert {name for name, language in made if language == PYTHON} == {
        "xlogmem, host", "xlogmem, stream", "cuda.bindings", "rmm pinned", "rmm pool, pinned", "cupy PinnedMemoryPool",
        "torch.empty, pinned", "cuda.core, pinned"}


def test_a_library_without_such_memory_is_left_out_with_its_reason(libraries, monkeypatch):
    """... and the others go on."""
    monkeypatch.delattr(STAND_INS["cuda.core"], "PinnedMemoryResource")
    monkeypatch.setattr(STAND_INS["RMM"].mr, "PoolMemoryResource", None)
    said = []
    case = next(case for case in all_of() if case.id == "host/pinned pair, 4 KiB")
    measure.measure(case, libraries, TINY, [], said.append)
    assert [(event["candidate"], event["text"].partition(":")[0]) for event in said if event["kind"] == "failure"] == [
        ("rmm pool, pinned", "TypeError"), ("cuda.core, pinned", "AttributeError")]
    assert {event["candidate"] for event in said if event["kind"] == "row"} >= {"rmm pinned", "torch.empty, pinned"}


def test_the_quick_part_runs():
    run = bench("--family", "host", "--quick", quiet=True)
    assert run.returncode == 0, run.stderr
    assert "failed:" not in run.stdout
    for said in ("pinned pair, 4 KiB", "1 MiB, freed at once", "1 pending", "xlogmem, host", "without RMM: "):
        assert said in run.stdout, said


def test_the_floor_reports_what_the_driver_says(world):
    with pytest.raises(xlogmem.DriverError, match="cuMemHostAlloc failed with 2"):
        _loops.Allocator.of_page_locked().pairs(1 << 60, [0], 1)
