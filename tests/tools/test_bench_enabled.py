"""Pairs through the calls of other libraries: each allocator in a process of its own, which takes its turns."""
from __future__ import annotations

import gc
import sys
import threading
from contextlib import ExitStack
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import MagicMock

import allocator_stand_ins as stand_ins
import pytest
from bench_runs import TINY, all_of
from cuda.bindings import driver as cuda
from xlogmem_bench import measure, neighbours, workers
from xlogmem_bench.allocators import OURS, PEER, PYTHON
from xlogmem_bench.cases import enabled
from xlogmem_bench.world import World

import xlogmem
from xlogmem import allocators
from xlogmem import runtime as runtimes
from xlogmem.sim.kernels import check

pytestmark = [pytest.mark.simulator, pytest.mark.with_gil]

ROOM = 4 << 20


class Stream(stand_ins.NullStream):
    """A stream of a stand-in, which notes when it is made current."""

    used: ClassVar[list[Stream]] = []

    def use(self) -> None:
        self.used.append(self)


def stand_in_for_cupy() -> dict:
    """CuPy's, whose own pool has no memory, and what a pair needs besides."""
    modules = stand_ins.cupy()
    of_cuda = modules["cupy.cuda"]
    of_cuda.Stream = lambda non_blocking: Stream()
    of_cuda.alloc = lambda nbytes: of_cuda.get_allocator()(nbytes)
    of_cuda.set_allocator(lambda nbytes: None)
    return modules


def stand_in_for_cuda_core() -> dict:
    modules = stand_ins.cuda_core()
    device = modules["cuda.core"].Device
    device.set_current, device.create_stream = lambda self: None, lambda self: stand_ins.NullStream()
    return modules


def stand_in_for_numba() -> dict:
    modules = stand_ins.numba()
    of_cuda, driver = modules["numba.cuda"], modules["numba.cuda.cudadrv.driver"]

    def current_context():
        return driver.driver.list_devices()[0].primary_context or driver.make_context()

    of_cuda.current_context = current_context
    of_cuda.device_array = lambda nbytes, dtype: nbytes and current_context().memory_manager.memalloc(nbytes)
    return modules | {"numpy": sys.modules.get("numpy") or MagicMock()}


STAND_INS = {"CuPy": stand_in_for_cupy, "Numba": stand_in_for_numba, "cuda.core": stand_in_for_cuda_core}


@pytest.fixture
def clean(monkeypatch, driver):
    """Nothing is enabled before and after, and this process has no runtime."""
    modules = [f"xlogmem.allocators.{name}" for name in ("cuda_core", "cupy", "numba", "rmm")]
    for name in modules:
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(allocators, name.rpartition(".")[2], raising=False)
    monkeypatch.setattr(runtimes, "_runtimes", [None] * runtimes.MAX_DEVICES)
    monkeypatch.setattr(allocators, "_enabled", {})
    yield
    for name in modules:
        module = sys.modules.pop(name, None)
        if hasattr(module, "_streams"):
            module._streams._known.clear()
        vars(allocators).pop(name.rpartition(".")[2], None)
    allocators._enabled.clear()
    runtimes._runtimes[:] = [None] * runtimes.MAX_DEVICES
    gc.collect()


@pytest.fixture
def libraries(clean, monkeypatch):
    for make in STAND_INS.values():
        for name, module in make().items():
            monkeypatch.setitem(sys.modules, name, module)


def close_context() -> None:
    check(cuda.cuDevicePrimaryCtxRelease(check(cuda.cuDeviceGet(0))))


@pytest.mark.parametrize("allocator", ["xlogmem async", "xlogmem pool"])
@pytest.mark.parametrize("name", STAND_INS)
def test_a_pair_is_a_block_of_xlogmems_once_the_library_is_enabled(name, allocator, libraries):
    neighbour = neighbours.made(name, allocator, ROOM)
    streams = neighbour.make_streams(3)
    runtime = xlogmem.get_runtime()
    assert type(runtime.resource).__name__ == {
        "xlogmem async": "AsyncMemoryResource", "xlogmem pool": "PoolMemoryResource"}[allocator]
    for shape in ((256, 1), (1024, 3 if neighbour.several_streams else 1)):
        before = runtime.counters()["allocations"]
        pair = neighbour.pair_in_turn(shape[0], streams[:shape[1]])
        assert workers.timed(pair, 5) > 0
        assert runtime.counters()["allocations"] == before + 6         # one before the clock
    workers.timed(neighbour.pair_in_turn(0, streams[:1]), 5)
    assert runtime.counters()["allocations"] == 12
    runtime.reap_pending()
    assert runtime.live_bytes == 0
    assert Stream.used == ([streams[0], *streams, *streams] if name == "CuPy" else [])
    Stream.used.clear()
    close_context()


@pytest.mark.parametrize("name", STAND_INS)
def test_a_library_on_its_own_allocator_is_left_as_it_is(name, libraries):
    neighbour = neighbours.made(name, neighbours.OWN, ROOM)
    workers.timed(neighbour.pair_in_turn(256, neighbour.make_streams(1)), 3)
    assert runtimes.existing_runtime(0) is None
    assert not allocators._enabled
    close_context()


@pytest.mark.parametrize(("name", "seen"), [
    ("CuPy", lambda: sys.modules["cupy"].cuda.get_allocator()),
    ("Numba", lambda: sys.modules["numba.cuda.cudadrv.driver"]._memory_manager)])
def test_a_library_is_put_on_rmms_resource(name, seen, libraries, monkeypatch):
    rmm = MagicMock()
    manager = type("RMMNumbaManager", (stand_ins.NumbaManager,), {})
    for module, stand in (("rmm", rmm), ("rmm.allocators", MagicMock()),
                          ("rmm.allocators.cupy", SimpleNamespace(rmm_cupy_allocator=manager)),
                          ("rmm.allocators.numba", SimpleNamespace(RMMNumbaManager=manager))):
        monkeypatch.setitem(sys.modules, module, stand)
    for allocator, resource in (("rmm async", rmm.mr.CudaAsyncMemoryResource()),
                                ("rmm pool", rmm.mr.PoolMemoryResource())):
        neighbours.made(name, allocator, ROOM)
        assert seen() is manager
        rmm.mr.set_current_device_resource.assert_called_with(resource)
        close_context()
    rmm.mr.PoolMemoryResource.assert_called_with(rmm.mr.CudaMemoryResource(), ROOM, ROOM)


# ---------------------------------------------------------------------------------------------- processes
class Thread(workers.Worker):
    """A worker in a thread of this process, whose library is made by hand."""

    def __init__(self, name: str, allocator: str, room: int) -> None:
        self.pipe, theirs = Pipe()
        self.failure, self.is_started, self.allocator = None, False, allocator
        self.process = threading.Thread(target=self.serve, args=(theirs, name, allocator, room))
        self.process.start()

    @staticmethod
    def serve(pipe, *arguments) -> None:
        try:
            workers.answer_requests(pipe, *arguments)
        except EOFError:
            pass
        except Exception as error:
            pipe.send((0, str(error)))
        finally:
            gc.enable()

    def close(self) -> None:
        self.pipe.close()
        self.process.join()


class Counting:
    """A library that has no memory."""

    calls: ClassVar[list[tuple[str, int, int]]] = []

    def __init__(self, allocator: str) -> None:
        self.allocator = allocator

    def make_streams(self, count: int) -> list[int]:
        return list(range(count))

    def pair_in_turn(self, nbytes: int, streams: list[int]):
        return lambda: self.calls.append((self.allocator, nbytes, len(streams)))


@pytest.fixture
def counted(monkeypatch):
    """Libraries without memory; that of xlogmem's pool does not start."""
    def made(name: str, allocator: str, room: int) -> Counting:
        check(cuda.cuCtxSetCurrent(world.context))
        if allocator == "xlogmem pool":
            raise NotImplementedError("not yet")
        return Counting(allocator)

    monkeypatch.setattr(neighbours, "made", made)
    monkeypatch.setattr(workers, "Worker", Thread)
    Counting.calls.clear()
    world = World(TINY.room, libraries=())
    yield world
    world.close()


@pytest.mark.parametrize("name", neighbours.NEIGHBOURS)
def test_each_allocator_takes_its_turns_beside_the_librarys_own(name, counted):
    counted.modules |= {name: MagicMock(), "RMM": MagicMock()}
    case = next(case for case in all_of() if case.id == f"enabled/{name}, 1 MiB")
    said = []
    measure.measure(case, counted, TINY, [], said.append)
    rows = {event["candidate"]: event for event in said if event["kind"] == "row"}
    on_rmm = [] if name == "cuda.core" else ["rmm async", "rmm pool"]      # RMM has none for it
    assert [(row, event["role"]) for row, event in rows.items()] == [
        (neighbours.OWN, PEER), *((one, PEER) for one in on_rmm), ("xlogmem async", OURS), (neighbours.NO_BYTES, PEER)]
    assert {event["reference"] for event in rows.values()} == {neighbours.OWN}
    assert {event["language"] for event in rows.values()} == {PYTHON}
    assert {row for row, event in rows.items() if event["note"]} == {neighbours.OWN, neighbours.NO_BYTES}
    assert [event["text"] for event in said if event["kind"] == "failure"] == ["RuntimeError: not yet"]
    assert {(one, nbytes) for one, nbytes, _ in Counting.calls} == {
        (neighbours.OWN, 0), *((one, 1 << 20) for one in rows if one != neighbours.NO_BYTES)}


def test_processes_stay_for_the_cases_of_a_library(counted):
    counted.modules |= {"CuPy": MagicMock(), "PyTorch": MagicMock()}
    seen = []
    for name in ("CuPy", "CuPy", "PyTorch"):
        with ExitStack() as stack:
            list(enabled.through_enabled(name, 256, 8)(counted, stack, lambda *_: None))
        seen.append(counted.lasts(workers.Workers).running)
    assert seen[0] is seen[1]
    assert seen[2] is not seen[0]
    assert all(worker.pipe.closed for worker in seen[0].values())
    assert set(seen[2]) == {"its own", "xlogmem async", "xlogmem pool"}    # without RMM


def test_a_process_reports_what_its_library_raises():
    worker = workers.Worker("no such library", neighbours.OWN, ROOM)
    try:
        for call in (worker.started, lambda: worker.run((256, 1), 1)):
            with pytest.raises(RuntimeError, match="KeyError: 'no such library'"):
                call()
    finally:
        worker.close()
    assert worker.process.exitcode == 0


def test_a_process_that_ends_is_a_failure_of_its_candidate():
    worker = workers.Worker("no such library", neighbours.OWN, ROOM)
    worker.process.kill()
    try:
        with pytest.raises(RuntimeError, match="its process ended with -9"):
            worker.run((256, 1), 1)
    finally:
        worker.close()
