"""How the benchmarks call other libraries."""
from __future__ import annotations

import sys
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from bench_runs import LIBRARIES, TINY, all_of, bench
from rmm_if_installed import Source, _binding, needs_rmm, rmm
from xlogmem_bench import _loops, cases, measure, settings
from xlogmem_bench.allocators import OURS, PEER, Rmm
from xlogmem_bench.cases import adaptors, through_rmm
from xlogmem_bench.recorded import recorded
from xlogmem_bench.settings import Order
from xlogmem_bench.world import World

import xlogmem

pytestmark = pytest.mark.with_gil                       # as the raw driver calls of the benchmarks do


@pytest.mark.simulator
def test_libraries_take_part_as_they_are_called(monkeypatch, driver):
    """Stand-ins that accept every call: a GPU proves how each is called, this test that each takes part."""
    stands = {name: MagicMock() for name in ("cupy", "torch", "cuda.core", "cuda.stf._experimental")}
    for name, stand in stands.items():
        monkeypatch.setitem(sys.modules, name, stand)
    world = World(TINY.room, ("RMM", "pylibcudf", "Numba"))
    assert set(world.found) == {"cuda.bindings", "CuPy", "PyTorch", "cuda.core", "CUDASTF"}
    seen = {}
    try:
        for case in all_of(replace(TINY, only=("allocate/1 MiB", "allocate/1 MiB, 8 streams in turn", "use/ping-pong",
                                               "allocate/1 MiB, 2 threads", "replay/queries, 4 streams",
                                               "free/after 4 foreign reads"))):
            said = []
            measure.measure(case, world, TINY, [], said.append)
            assert not [event for event in said if event["kind"] == "failure"]
            seen[case.id] = {event["candidate"]: event["note"] for event in said if event["kind"] == "row"}
    finally:
        world.close()
    allocators = {"cupy MemoryPool", "cupy MemoryAsyncPool", "torch.empty", "cuda.core", "cuda.bindings"}
    for case in ("allocate/1 MiB", "allocate/1 MiB, 8 streams in turn", "allocate/1 MiB, 2 threads",
                 "replay/queries, 4 streams"):
        assert set(seen[case]) >= allocators
    marked = {"torch events", "cupy events", "cuda.core events", "cuda.bindings", "torch record_stream",
              "CUDASTF tasks"}
    assert all(seen["use/ping-pong"][name] for name in marked)
    assert seen["free/after 4 foreign reads"]["torch empty, record_stream"]
    stands["torch"].cuda.Event().record.assert_called()
    stands["cuda.stf._experimental"].context().task.assert_called()


class Columns:
    """pylibcudf 26.10 as far as it is called, by the names that its stubs give the parameters."""

    class TypeId:
        INT64 = "INT64"

    def __init__(self, refusing: object) -> None:
        self.refusing, self.calls = refusing, []
        self.types = self.copying = self.column_factories = self.binaryop = self

    class MaskState:
        UNALLOCATED = "UNALLOCATED"

    class MaskAllocationPolicy:
        NEVER = "NEVER"

    class BinaryOperator:
        ADD = "ADD"

    def DataType(self, id):
        return id, 0

    def column(self, name, mr, stream, *arguments):
        if mr is self.refusing:
            raise MemoryError(name)
        assert stream == "legacy"
        self.calls.append((name, mr))
        return ("column", *arguments)

    def make_numeric_column(self, type_, size, mstate, stream=None, mr=None):
        assert (type_, mstate) == (("INT64", 0), "UNALLOCATED")
        return self.column("make", mr, stream, size)

    def allocate_like(self, input_column, policy, size=None, stream=None, mr=None):
        assert (input_column, policy) == (("column", size), "NEVER")
        return self.column("allocate_like", mr, stream, size)

    def binary_operation(self, lhs, rhs, op, output_type, stream=None, mr=None):
        assert (lhs[0], rhs[0], op, output_type) == ("column", "column", "ADD", ("INT64", 0))
        return self.column("binary_operation", mr, stream, lhs[1])


@pytest.mark.simulator
@pytest.mark.parametrize("operation", ["allocate_like", "binary_operation"])
def test_columns_are_made_from_every_resource(operation, monkeypatch, driver):
    """... each with its own; one that fails is named, and the others go on."""
    columns = Columns(refusing="broken")
    monkeypatch.setitem(sys.modules, "pylibcudf", columns)
    for name in ("rmm", "rmm.pylibrmm", "rmm.pylibrmm.stream"):
        monkeypatch.setitem(sys.modules, name, MagicMock(DEFAULT_STREAM="legacy"))
    resources = [("rmm async", PEER, "theirs"), ("rmm pool", PEER, "broken"), ("xlogmem over rmm async", OURS, "ours")]
    monkeypatch.setattr(through_rmm, "resources_of_rmm", lambda world: iter(resources))
    world = World(TINY.room, libraries=("pylibcudf",))
    assert set(world.found) == {"cuda.bindings", "pylibcudf"}
    world.modules["RMM"] = MagicMock()
    said = []
    try:
        case = next(case for case in all_of() if case.id == f"pylibcudf/{operation}, 1,000 rows")
        measure.measure(case, world, TINY, [], said.append)
    finally:
        world.close()
    rows = {event["candidate"]: event for event in said if event["kind"] == "row"}
    assert {name: (row["role"], row["reference"]) for name, row in rows.items()} == {
        "rmm async": (PEER, "rmm async"), "xlogmem over rmm async": (OURS, "rmm async")}
    assert [(event["candidate"], event["text"]) for event in said if event["kind"] == "failure"] == [
        ("rmm pool", "MemoryError: make")]
    for mr in ("theirs", "ours"):
        assert columns.calls.count(("make", mr)) == 2
        assert columns.calls.count((operation, mr)) > TINY.turns
    assert {name for name, _ in columns.calls} == {"make", operation}


@needs_rmm
@pytest.mark.parametrize("name", [name for name, adaptor in adaptors.ADAPTORS.items() if adaptor.theirs])
def test_rmms_adaptors_are_made_as_ours_are(name, monkeypatch, tmp_path):
    """What the family "adaptors" measures over RMM's own resources, here over one that needs no GPU."""
    monkeypatch.setattr("rmm.pylibrmm.memory_resource._memory_resource.getDevice", lambda: 0)
    adaptor, source = adaptors.ADAPTORS[name], Source()
    wrapped = adaptor.theirs(rmm.mr, source.mr, str(tmp_path / "theirs.csv"))
    _loops.Allocator.of(_binding.upstream_of(wrapped)).pairs(256, [0], 3)
    Rmm(name, wrapped, [rmm.pylibrmm.stream.DEFAULT_STREAM]).pair(256, 0)()
    assert len(source.streams) >= 4
    assert not source.live
    kind = type(adaptor.ours(xlogmem.AsyncMemoryResource(), str(tmp_path / "ours.csv"))).__name__
    assert type(wrapped).__name__ == (kind if name != "none" else "CallbackMemoryResource")
    if kind == "LoggingResourceAdaptor":
        wrapped.flush()
        assert len(list(recorded(wrapped.get_file_name()))) == 8


@pytest.mark.simulator
def test_without_pylibcudf_its_family_says_so_and_no_other_library_is_needed():
    run = bench("--family", "pylibcudf", "--processes", "1", quiet=True)
    assert run.returncode == 0, run.stderr
    if "pylibcudf: not installed" not in run.stdout:
        pytest.skip("pylibcudf is installed")
    assert [line.split(":")[0] for line in run.stdout.splitlines() if line.startswith("without")] == [
        "without RMM", "without pylibcudf"]


@pytest.mark.simulator
def test_a_process_imports_the_libraries_of_its_families(monkeypatch, driver):
    wanted = []
    monkeypatch.setattr(measure, "World", lambda *arguments: wanted.append(arguments[3]) or World(
        TINY.room, tuple(LIBRARIES)))
    for families in (("lookup",), ("use", "rmm"), ("pylibcudf",)):
        chosen = replace(TINY, families=families)
        measure.work(Order(chosen, [
            next(case.id for case in settings.selected(chosen) if case.family == family) for family in families]),
            lambda event: None)
    assert wanted == [set(), {"CuPy", "PyTorch", "cuda.core", "CUDASTF", "RMM"}, {"RMM", "pylibcudf"}]
    assert {name for names in cases.FAMILIES.values() for name in names} == LIBRARIES
