"""The benchmarks do what they say: every case runs, the figures are made of what was measured, and what is missing or
not like for like is named.  No figure decides anything here: on the simulated driver none means anything."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from conftest import SIMULATED
from rich.console import Console

import xlogmem
from xlogmem.bench import _loops, cases, logs, measure, processes, results, settings
from xlogmem.bench.allocators import CPP, FLOOR, OURS, PEER, PER_USE_EVENTS, PYTHON
from xlogmem.bench.cases import patterns, through_rmm, uses
from xlogmem.bench.results import chart, documents
from xlogmem.bench.settings import Order, Settings
from xlogmem.bench.world import World
from xlogmem.sim import Simulator

ROOT = Path(__file__).parent.parent
TINY = Settings(turns=2, turn_ms=.001, processes=1, case_seconds=1e9, scale=100, room=256 << 20)
LIBRARIES = {"RMM", "CuPy", "PyTorch", "cuda.core", "CUDASTF", "pylibcudf"}
LOUD = "no GPU is involved"


@pytest.fixture
def world():
    world = World(TINY.room, tuple(LIBRARIES))
    yield world
    world.close()


def all_of(chosen: Settings = TINY) -> list[cases.Case]:
    return settings.selected(chosen)


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "xlogmem", "bench", *arguments], capture_output=True, text=True,
                          timeout=110, env=os.environ | {"XLOGMEM_SIM_QUIET": "", "COLUMNS": "200"} | environment)


# ---------------------------------------------------------------------------------------------- the cases
@pytest.mark.simulator
@pytest.mark.parametrize("case", all_of(), ids=lambda case: case.id)
def test_every_case_runs(case, world, driver):
    """... with nothing that races, and measures everybody it has."""
    said = []
    measure.measure(case, world, TINY, [], said.append)
    rows = [event for event in said if event["kind"] == "row"]
    failures = [event for event in said if event["kind"] == "failure"]
    assert not failures
    if case.family in ("rmm", "pylibcudf"):
        assert rows == []                               # without RMM, which does not start here
        return
    assert [row["role"] for row in rows].count(FLOOR) == 1
    assert {row["language"] for row in rows if row["role"] == OURS} >= {CPP}
    assert all(len(row["values"]) == TINY.turns and min(row["values"]) > 0 for row in rows)
    if case.family in ("allocate", "use", "free"):      # each path from Python has its twin
        assert ({row["candidate"] for row in rows if row["role"] == OURS and row["language"] == PYTHON}
                <= {row["candidate"] for row in rows if row["role"] == OURS and row["language"] == CPP})
        assert any(row["candidate"] == PER_USE_EVENTS for row in rows)


def test_the_families_are_those_that_were_asked_for():
    found = all_of()
    assert {case.family for case in found} == set(cases.FAMILIES)
    assert len({case.id for case in found}) == len(found)
    for said in ("256 B", "64 MiB", "8 streams", "16 threads", "512 held", "fragmented"):
        assert any(said in case.id for case in found if case.family == "allocate"), said
    for said in ("1 block,", "4 blocks,", "16 blocks,", "64 blocks,", "hand-over", "ping-pong", "fan-out to 8"):
        assert any(said in case.id for case in found if case.family == "use"), said
    assert {case.parameters["live"] for case in cases.all_cases() if case.family == "lookup"} == {
        10 ** 3, 10 ** 4, 10 ** 5, 10 ** 6}
    quick = all_of(Settings(quick=True))
    assert {case.family for case in quick} == set(cases.FAMILIES)
    assert len(quick) < len(found) / 2


@pytest.mark.simulator
@pytest.mark.parametrize(("pattern", "records", "waits"), [
    (patterns.same_stream(16), 0, 0), (patterns.PING_PONG, 2, 2), (patterns.FAN_OUT, 9, 16)])
def test_ours_waits_where_the_work_by_hand_waits(pattern, records, waits, world, driver: Simulator):
    """The twins in C++ and from Python make the waits of the floor, in a steady state."""
    with ExitStack() as stack:
        made = {(x.name, x.language): x for x in uses.used(pattern)(world, stack, lambda *_: None)}
        seen = {}
        for who in (("driver", CPP), ("xlogmem", CPP), ("xlogmem", PYTHON), (PER_USE_EVENTS, CPP)):
            made[who].run(100)
            before = driver.calls("cuEventRecord"), driver.calls("cuStreamWaitEvent")
            made[who].run(10)
            seen[who] = driver.calls("cuEventRecord") - before[0], driver.calls("cuStreamWaitEvent") - before[1]
        assert seen["xlogmem", CPP] == seen["xlogmem", PYTHON] == (10 * records, 10 * waits)
        assert seen["driver", CPP] == (10 * (records or 1), 10 * waits)
        touched = sum(len(accesses) for _, accesses in pattern.uses)
        assert seen[PER_USE_EVENTS, CPP] == (10 * touched, 10 * waits)
        made.clear()


@pytest.mark.simulator
def test_a_hand_over_is_one_record_and_one_wait(world, driver):
    """... in every turn: what the turn before left behind is settled before it begins."""
    with ExitStack() as stack:
        made = {(x.name, x.language): x for x in uses.used(patterns.HAND_OVER)(world, stack, lambda *_: None)}
        for who in 2 * [("driver", CPP), ("xlogmem, lazy", CPP), ("xlogmem", CPP), ("xlogmem", PYTHON)]:
            made[who].before()
            before = driver.calls("cuEventRecord"), driver.calls("cuStreamWaitEvent")
            made[who].run(200)
            records, waits = driver.calls("cuEventRecord") - before[0], driver.calls("cuStreamWaitEvent") - before[1]
            assert (records, waits) == (200, 200), who
        made.clear()


@pytest.mark.simulator
def test_a_free_after_foreign_reads_waits_for_each_reader(world, driver):
    runtime = xlogmem.DeviceRuntime()
    streams = [runtime.acquire_stream() for _ in range(5)]
    _loops.frees_after_reads(streams, 256, 4, 1)
    before = driver.calls("cuStreamWaitEvent")
    _loops.frees_after_reads(streams, 256, 4, 10)
    assert driver.calls("cuStreamWaitEvent") - before == 10 * 8         # each reader for the birth, the free for each


@pytest.mark.simulator
@pytest.mark.parametrize("limit", [0, 1e-9])
def test_a_program_that_takes_too_long_is_given_up_with_nothing_allocated(limit, world, driver):
    """... at the first look at the clock, which is every 64 steps; without a limit it ends."""
    slots = _loops.Slots(100)
    steps = [(operation, number, 256, 0) for operation in (logs.ALLOCATE, logs.FREE) for number in range(100)]
    allocator = _loops.Allocator.driver()
    before = driver.calls("cuMemAllocFromPoolAsync"), driver.calls("cuMemFreeAsync")
    try:
        allocator.program(_loops.Program(steps, slots), world.streams, limit)
        assert not limit
    except TimeoutError as error:
        assert limit
        assert str(error) in {f"given up after 1e-09 s, with {share} % of the 200 steps done" for share in (0, 32)}
    allocated, freed = (driver.calls(name) - count for name, count in zip(
        ("cuMemAllocFromPoolAsync", "cuMemFreeAsync"), before, strict=True))
    assert allocated == freed
    assert allocated <= 64 if limit else allocated == 100


@pytest.mark.simulator
def test_what_finds_no_memory_is_left_out_and_counted(world):
    steps = [(logs.ALLOCATE, 0, 1 << 20, 0), (logs.ALLOCATE, 1, 1 << 50, 0), (logs.FREE, 1, 1 << 50, 0),
             (logs.FREE, 0, 1 << 20, 0)]
    program = _loops.Program(steps, _loops.Slots(2))
    _loops.Allocator.driver().program(program, world.streams)
    assert program.refused == 1


def test_a_step_beyond_the_slots_is_refused():
    with pytest.raises(ValueError, match="slot 2 of 2"):
        _loops.Program([(logs.ALLOCATE, 2, 64, 0)], _loops.Slots(2))


def test_lookups_of_what_is_nowhere_are_an_error():
    with pytest.raises(LookupError, match="2 of 2"):
        _loops.lookups(xlogmem.DeviceRuntime(), _loops.Addresses([1 << 40, 1 << 41]), 2)


# ---------------------------------------------------------------------------------------------- neighbours
@pytest.mark.simulator
def test_neighbours_take_part_as_they_are_called(monkeypatch, driver):
    """Stand-ins that accept every call: what is called how is proved on a GPU, that everybody takes part is here."""
    stands = {name: MagicMock() for name in ("cupy", "torch", "cuda.core", "cuda.stf._experimental")}
    for name, stand in stands.items():
        monkeypatch.setitem(sys.modules, name, stand)
    world = World(TINY.room, ("RMM", "pylibcudf"))
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


@pytest.mark.simulator
def test_without_pylibcudf_its_family_says_so_and_nothing_else_is_asked_for():
    run = bench("--family", "pylibcudf", "--processes", "1", XLOGMEM_SIM_QUIET="1")
    assert run.returncode == 0, run.stderr
    if "pylibcudf: not installed" not in run.stdout:
        pytest.skip("pylibcudf is installed")
    assert [line.split(":")[0] for line in run.stdout.splitlines() if line.startswith("without")] == [
        "without RMM", "without pylibcudf"]


@pytest.mark.simulator
def test_a_process_imports_who_takes_part_in_its_families(monkeypatch, driver):
    asked = []
    monkeypatch.setattr(measure, "World", lambda *arguments: asked.append(arguments[3]) or World(
        TINY.room, tuple(LIBRARIES)))
    for families in (("lookup",), ("use", "rmm"), ("pylibcudf",)):
        chosen = replace(TINY, families=families)
        measure.work(Order(chosen, [
            next(case.id for case in settings.selected(chosen) if case.family == family) for family in families]),
            lambda event: None)
    assert asked == [set(), {"CuPy", "PyTorch", "cuda.core", "CUDASTF", "RMM"}, {"RMM", "pylibcudf"}]
    assert {name for names in cases.FAMILIES.values() for name in names} == LIBRARIES


# ---------------------------------------------------------------------------------------------- logs
def test_a_log_of_rmm_becomes_a_program(tmp_path):
    log = tmp_path / "rmm.csv"
    log.write_text("Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,free,0x1,64,0x0\n"
                   "1,00:00:00.1,allocate,0x2,100,0x0\n1,00:00:00.2,allocate,0x3,300,0x7\n"
                   "1,00:00:00.3,free,0x2,100,0x7\n1,00:00:00.4,allocate,0x2,500,0x0\n")
    events = list(logs.recorded(str(log)))
    assert logs.peak(events) == 512 + 512
    assert logs.steps_of(events) == [
        (logs.ALLOCATE, 0, 100, 0), (logs.ALLOCATE, 1, 300, 1), (logs.FREE, 0, 100, 1), (logs.ALLOCATE, 2, 500, 0),
        (logs.FREE, 1, 300, 1), (logs.FREE, 2, 500, 0)]
    chosen = Settings(logs=(str(log),), families=("replay",))
    assert f"replay/{log}" in [case.id for case in all_of(chosen)]


@pytest.mark.parametrize("steps", [
    logs.random_allocations(3, 200, 1 << 20, 50 << 20), logs.multi_stream(4, 8),
    [step for part in logs.fragments(logs.random.Random(3), 50, 1 << 16) for step in part], logs.held(20, 1 << 16),
    logs.pairs(1 << 16, 50, 7)], ids=["random_allocations", "multi_stream", "fragments", "held", "pairs"])
def test_programs_end_with_nothing_allocated(steps):
    alive, used = {}, 0
    for operation, slot, nbytes, _ in steps:
        if operation == logs.ALLOCATE:
            assert slot not in alive
            alive[slot] = nbytes
        elif operation == logs.FREE:
            assert alive.pop(slot) == nbytes
        used = max(used, sum(alive.values()))
    assert not alive
    assert 0 < used < 50 << 20


# ---------------------------------------------------------------------------------------------- figures
def raw(beside: list[list[float]] | None = None, **values: list[list[float]]) -> dict:
    """A run of one case: names to turns of each process; `beside` is what the reference took around all of them."""
    about = {"floor": (CPP, FLOOR, ""), "ours": (CPP, OURS, ""), "peer": (CPP, PEER, ""), "slow": (CPP, PEER, ""),
             "unlike": (CPP, PEER, "marks only"), "snake": (PYTHON, PEER, "")}
    reference = next(iter(values))
    beside = beside or values[reference]
    rows = {}
    for name, turns in values.items():
        language, role, note = about[name]
        rows[name] = {"case": "use/ping-pong", "candidate": name, "language": language, "role": role, "note": note,
                      "calls": 7, "reference": reference, "values": dict(enumerate(turns)),
                      "beside": dict(enumerate(values[name] if name == reference else beside))}
    facts = {"device": "none", "simulated": False, "found": {}, "missing": {"CuPy": "not installed"}, "commit": "abc"}
    return {"rows": rows, "facts": facts, "failures": [], "seconds": 1.0, "spent": {"use/ping-pong": .5},
            "processes": 1}


def document(beside: list[list[float]] | None = None, **values: list[list[float]]) -> dict:
    return results.assembled(raw(beside, **values), Settings(), ["xlogmem", "bench"])


def by_row(document: dict) -> dict:
    return {(row["case"], row["candidate"], row["language"]): row for row in document["rows"]}


def row_of(document: dict, name: str) -> dict:
    return next(row for row in document["rows"] if row["candidate"] == name)


def test_ratios_are_taken_turn_by_turn():
    """The clock doubles half-way; the ratio does not notice."""
    seen = document(floor=[[100, 100, 200], [200, 200]], ours=[[150, 150, 300], [300, 300]])
    row = row_of(seen, "ours")
    assert row["to_reference"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert (row["best"], row["median"], row["low"], row["high"]) == (150, 300, 150, 300)


def test_ratios_are_to_what_the_reference_took_just_then():
    """... not to the mean of its turn."""
    seen = document(beside=[[50, 200]], floor=[[100, 100]], ours=[[75, 300]], peer=[[50, 200]])
    assert row_of(seen, "ours")["to_reference"] == {"median": 1.5, "low": 1.5, "high": 1.5}
    assert row_of(seen, "ours")["to_best_peer"] == {"median": 1.5, "low": 1.5, "high": 1.5}


@pytest.mark.parametrize(("turns", "low", "high"), [
    ([[10, 1, 11, 12, 13, 14, 99]], 10, 14),                            # a disturbed turn is left out on either side
    ([[10, 10, 10, 10, 10, 10, 10], [20, 20, 20, 20, 20, 20, 20]], 10, 20),   # a slow process is not
    ([[10, 10, 10, 10, 10, 10, 10]] * 9 + [[20, 20, 20, 20, 20, 20, 20]], 10, 20),
    ([[10]], 10, 10)])
def test_the_spread_is_that_of_all_processes_without_their_extreme_turns(turns, low, high):
    row = row_of(document(floor=turns), "floor")
    assert (row["low"], row["high"]) == (low, high)


def test_a_process_without_the_reference_has_no_part_in_the_ratio():
    seen = raw(floor=[[100, 100]], ours=[[1, 1], [150, 150]])
    seen["rows"]["ours"]["beside"] = {1: [100, 100]}
    assert row_of(results.assembled(seen, Settings(), []), "ours")["to_reference"]["median"] == 1.5


def test_the_best_peer_is_like_for_like_and_of_the_same_language():
    row = row_of(document(floor=[[100]], ours=[[150]], slow=[[400]], peer=[[300]], unlike=[[10]], snake=[[20]]), "ours")
    assert row["best_peer"] == "peer"
    assert row["to_best_peer"]["median"] == .5


def test_without_a_floor_the_first_is_the_reference():
    seen = document(peer=[[300]], ours=[[150]])
    assert row_of(seen, "ours")["reference"] == "peer"
    assert row_of(seen, "ours")["to_reference"]["median"] == .5


def test_a_command_is_kept_without_folders():
    command = ["xlogmem", "bench", "--case", "pylibcudf/allocate_like", "--json", "/there/a.json", "--compare",
               "/there/c.json.gz", "--plot=/there/b.png"]
    assert documents.without_folders(command) == [
        "xlogmem", "bench", "--case", "pylibcudf/allocate_like", "--json", "a.json", "--compare", "c.json.gz",
        "--plot=b.png"]


def test_a_document_survives_its_file(tmp_path):
    seen = document(floor=[[100, 101]], ours=[[150, 160]])
    for name in ("a.json", "a.json.gz"):
        results.saved(seen, str(tmp_path / name))
        assert results.loaded(str(tmp_path / name)) == json.loads(json.dumps(seen))
    assert (tmp_path / "a.json.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert set(seen) == {"schema", "command", "settings", "seconds", "processes", "spent", "machine", "failures",
                         "rows"}
    (tmp_path / "b.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="schema 99"):
        results.loaded(str(tmp_path / "b.json"))


def test_documents_of_earlier_releases_are_read_under_the_names_of_today(tmp_path):
    """... so that their rows are compared: the per-use-event scheme had another name."""
    former = "an event for each use (the seeds)"
    seen = document(floor=[[100.] * 3], ours=[[150.] * 3], peer=[[300.] * 3])
    seen["failures"].append({"case": "use/ping-pong", "candidate": former, "text": "out of patience"})
    (tmp_path / "old.json").write_text(json.dumps(seen).replace('"peer"', json.dumps(former)).replace(
        f'"role": {json.dumps(former)}', '"role": "peer"'))
    read = results.loaded(str(tmp_path / "old.json"))
    assert [row["candidate"] for row in read["rows"]] == ["floor", "ours", PER_USE_EVENTS]
    assert row_of(read, "ours")["best_peer"] == read["failures"][0]["candidate"] == PER_USE_EVENTS


def printed(seen: dict, everything: bool = False) -> str:
    console = Console(file=StringIO(), width=200)
    results.print_table(seen, console, everything)
    return console.file.getvalue()


def test_the_table_names_what_is_missing_failed_and_not_like_for_like():
    seen = document(floor=[[100]], ours=[[150]], peer=[[300]], unlike=[[10]])
    seen["failures"].append({"case": "use/ping-pong", "candidate": "PyTorch", "text": "out of patience"})
    text = printed(seen, everything=True)
    for said in ("unlike [1]", "[1] not like for like: marks only", "without CuPy: not installed", "1.50 (1.50–1.50)",
                 "failed: PyTorch in use/ping-pong: out of patience", "use/ping-pong, ns per round of two uses"):
        assert said in text, said
    assert "unlike" not in printed(seen)                # in short: the floor, ours, and the best peers
    assert "peer" in printed(seen)
    seen["machine"]["simulated"] = True
    assert LOUD in printed(seen)


@pytest.mark.parametrize(("then", "now", "agree"), [
    ([1.5, 1.6, 1.7], [1.7, 1.8, 1.9], True), ([1.5, 1.6, 1.7], [1.71, 1.8, 1.9], False),
    ([1.8, 1.85, 1.9], [1.5, 1.6, 1.79], False), ([1.5, 1.6, 1.7], [1.55, 1.6, 1.65], True)])
def test_two_runs_agree_if_their_spreads_overlap(then, now, agree):
    a = document(floor=[[100.] * 3], ours=[[100 * x for x in then]])
    b = document(floor=[[50.] * 3], ours=[[50 * x for x in now]])
    found = results.agreement(b, a)
    assert [row["agree"] for row in found] == [agree]
    console = Console(file=StringIO(), width=200)
    assert results.print_agreement(b, a, console) is agree
    assert f"of xlogmem's {int(agree)} of 1" in console.file.getvalue()
    assert ("use/ping-pong: ours" in console.file.getvalue()) is not agree


def test_rows_of_other_parameters_are_not_compared():
    a, b = document(floor=[[100.] * 3], ours=[[150.] * 3]), document(floor=[[100.] * 3], ours=[[900.] * 3])
    assert len(results.agreement(b, a)) == 1
    row_of(b, "ours")["parameters"] = {"nbytes": 1}
    assert results.agreement(b, a) == []


def test_rows_of_one_run_only_are_counted():
    console = Console(file=StringIO(), width=200)
    results.print_agreement(document(floor=[[100.] * 3], ours=[[150.] * 3], peer=[[1.] * 3]), document(
        floor=[[100.] * 3], ours=[[150.] * 3]), console)
    assert "of xlogmem's 1 of 1. 1 rows are in one of the runs only." in console.file.getvalue()


@pytest.mark.parametrize("turns", [[[1., 1.]], [[1.], [1.]], [[1.], [1.], [1.]]])
def test_less_than_three_turns_are_no_spread(turns):
    """... so they neither agree nor differ; three processes of one turn have one."""
    floor = [[100.] * len(some) for some in turns]
    a, b = (document(floor=floor, ours=[[figure] * len(some) for some in turns]) for figure in (150., 900.))
    console = Console(file=StringIO(), width=200)
    assert results.print_agreement(b, a, console) is False
    enough = len(turns) == 3
    assert [row["agree"] for row in results.agreement(b, a)] == [False if enough else None]
    assert ("1 rows of fewer than 3 turns are not compared" in console.file.getvalue()) is not enough


# ---------------------------------------------------------------------------------------------- pieces of a run
def of_case(seen: dict, case: str) -> dict:
    """The same document, of another case."""
    seen = json.loads(json.dumps(seen).replace("use/ping-pong", case))
    for row in seen["rows"]:
        row["family"] = case.split("/")[0]
    return seen


def test_pieces_of_a_run_are_put_together():
    """... in the order of the families, with their times, and without "the time was up" where another piece has it."""
    late = {"case": "allocate/1 MiB", "candidate": "all of it", "text": settings.LATE}
    other = {"case": "use/ping-pong", "candidate": "PyTorch", "text": "out of patience"}
    use, allocate = document(floor=[[100.]], ours=[[150.]]), of_case(document(floor=[[10.]], ours=[[20.]]),
                                                                      "allocate/1 MiB")
    use["failures"] = [late, other]
    allocate["failures"] = [other]
    use["machine"] |= {"found": {"RMM": "26.10"}, "missing": {"CuPy": "not installed", "pylibcudf": "not installed"}}
    allocate["machine"] |= {"found": {"RMM": "26.08", "CuPy": "14.2"}, "missing": {"pylibcudf": "not installed"},
                            "commit": "def"}
    seen = results.merged([use, allocate])
    assert [(row["case"], row["candidate"]) for row in seen["rows"]] == [
        ("allocate/1 MiB", "floor"), ("allocate/1 MiB", "ours"), ("use/ping-pong", "floor"), ("use/ping-pong", "ours")]
    assert [row["to_reference"]["median"] for row in seen["rows"]] == [1, 2, 1, 1.5]
    assert seen["failures"] == [other]
    assert seen["seconds"] == 2
    assert seen["spent"] == {"use/ping-pong": .5, "allocate/1 MiB": .5}
    assert seen["machine"]["found"] == {"RMM": "26.10 / 26.08", "CuPy": "14.2"}
    assert seen["machine"]["missing"] == {"pylibcudf": "not installed"}
    assert seen["machine"]["commit"] == "abc / def"
    assert [part["seconds"] for part in results.merged([seen, use])["parts"]] == [1, 1, 1]
    assert "2 processes took 2 s: allocate 0, use 0, to begin and end 1." in printed(seen)


def test_the_same_rows_of_two_runs_count_as_more_processes():
    first = document(floor=[[100.] * 3], ours=[[150.] * 3])
    second = document(floor=[[100.] * 3] * 2, ours=[[300.] * 3] * 2)
    row = row_of(results.merged([first, second]), "ours")
    assert {process: turns[0] for process, turns in row["values"].items()} == {"0": 150, "1": 300, "2": 300}
    assert row["to_reference"] == {"median": 3, "low": 1.5, "high": 3}
    assert row_of(first, "ours")["to_reference"]["high"] == 1.5         # as it was


def test_a_best_peer_may_come_from_another_piece():
    peer = document(floor=[[100.]], peer=[[50.]])
    row = row_of(results.merged([document(floor=[[100.]], ours=[[150.]]), peer]), "ours")
    assert (row["best_peer"], row["to_best_peer"]["median"]) == ("peer", 3)


def test_what_does_not_go_together_is_refused():
    one, other = document(floor=[[100.]]), document(floor=[[100.]])
    other["rows"][0]["parameters"] = {"nbytes": 1}
    with pytest.raises(ValueError, match="use/ping-pong is not the same in both runs"):
        results.merged([one, other])
    other["machine"]["device"] = "another"
    with pytest.raises(ValueError, match="'none' and on 'another'"):
        results.merged([one, other])


def test_the_readmes_rows_may_come_in_pieces():
    """... and say so where there is none."""
    pieces = []
    for _, case, candidate in results.README[1:4]:
        piece = of_case(document(floor=[[100.]], ours=[[150.]]), case)
        for row in piece["rows"]:
            row["candidate"] = row["reference"] if row["role"] == FLOOR else candidate
        pieces.append(piece)
    lines = results.markdown(results.merged(pieces)).splitlines()
    assert lines[2] == "| `allocate` + `free`, 1 MiB, tracked | – | – | – | – | – |"
    assert lines[3] == "| the same from `PoolMemoryResource` | 150 | 1.50 | – | – | – |"
    assert lines == results.markdown(results.merged(pieces[::-1])).splitlines()
    assert lines[-1] == "`xlogmem bench`: none, driver None, xlogmem abc"
    pieces[1]["command"] = ["xlogmem", "bench", "--family", "use"]
    assert results.markdown(results.merged(pieces)).endswith(
        "\n\n`xlogmem bench`, `xlogmem bench --family use`: none, driver None, xlogmem abc")


def test_runs_that_have_nothing_in_common_do_not_agree():
    seen = document(floor=[[100.]])
    assert results.print_agreement(seen, seen, Console(file=StringIO())) is False


def test_the_chart_is_drawn_or_says_what_it_needs(tmp_path):
    seen = document(floor=[[100, 101]], ours=[[150, 160]], peer=[[300, 300]], unlike=[[10, 11]])
    row_of(seen, "ours")["candidate"] = "xlogmem"
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(RuntimeError, match=r"xlogmem\[bench\]"):
            results.plot(seen, str(tmp_path / "a.png"))
        return
    results.plot(seen, str(tmp_path / "a.png"))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    results.plot(seen, str(tmp_path / "a.svg"))
    text = (tmp_path / "a.svg").read_text()
    for said in ("ping-pong, two uses  [100 ns]", "from C++", "from Python", ">peer<", "best peer", "not like for like",
                 "xlogmem, pool; uses", "× the time of the raw driver calls in C", "spread of up to 1 processes"):
        assert said in text, said
    other = of_case(seen, "lookup/1,000 live")          # drawn where there is nothing that the chart knows
    results.plot(other, str(tmp_path / "b.svg"))
    assert "lookup/1,000 live  [100 ns]" in (tmp_path / "b.svg").read_text()
    results.plot(results.merged([seen, other]), str(tmp_path / "c.svg"))
    assert "lookup/1,000 live" not in (tmp_path / "c.svg").read_text()
    with pytest.raises(ValueError, match="nothing to draw"):
        results.plot(seen | {"rows": []}, str(tmp_path / "d.png"))


def test_without_a_floor_the_chart_says_what_to():
    assert chart.label(document(peer=[[3e5]], ours=[[150]]), "use/ping-pong") == "ping-pong, two uses  [peer 300 µs]"


def test_the_chart_and_its_marks_are_of_what_there_is():
    assert set(results.CHART) <= {case.id for case in all_of()}


def test_the_readmes_rows_are_cases_that_there_are():
    found = {case.id for case in all_of()}
    assert {case for _, case, _ in results.README} <= found
    readme = (ROOT / "README.md").read_text()
    for text, _, _ in results.README:
        assert f"| {text} |" in readme, text
    assert "xlogmem bench --readme" in readme


# ---------------------------------------------------------------------------------------------- the turns
class Clockless:
    """A world in which everything is idle."""

    def synchronize(self) -> None:
        """Nothing is queued."""


def entrant(name: str, figures: list[float], ran: list[str], seconds: float = 0.) -> measure.Entrant:
    """Takes these nanoseconds, one after the other; more calls fail."""
    left = iter(figures)

    def run(calls: int) -> float:
        ran.append(name)
        return 2 * 10 * next(left)

    return measure.Entrant(cases.Candidate(name, CPP, PEER, run), 2, seconds, 10)


@pytest.mark.parametrize(("beside", "order", "floors"), [
    (0., ["f", "a", "f", "b", "f"], [50, 100, 200]), (1e9, ["f", "a", "b", "f"], [50, 100])])
def test_the_reference_is_run_between_the_others(monkeypatch, beside, order, floors):
    """... as soon as the last time is long enough ago, before the first and after the last."""
    monkeypatch.setattr(measure, "BESIDE", beside)
    ran = []
    reference, a, b = (entrant(name, figures, ran) for name, figures in (("f", floors), ("a", [7]), ("b", [8])))
    measure.take_turns([a, b], reference, Clockless(), lambda *_: pytest.fail("dropped"))
    assert ran == order
    assert (a.values, b.values) == ([7], [8])
    assert a.beside == [75]                             # the mean of before and after
    assert b.beside == [150 if beside == 0 else 75]
    assert reference.values == reference.beside == [sum(floors) / len(floors)]


def test_a_slow_reference_is_run_less_often(monkeypatch):
    monkeypatch.setattr(measure, "BESIDE", 0.)
    ran = []
    measure.take_turns([entrant("a", [1], ran), entrant("b", [1], ran)], entrant("f", [1, 1], ran, 1e9), Clockless(),
                       lambda *_: pytest.fail("dropped"))
    assert ran == ["f", "a", "b", "f"]


@pytest.mark.parametrize("broken", ["a", "b"])
def test_who_fails_in_a_turn_is_dropped_and_the_others_go_on(broken):
    ran, dropped = [], []
    good, bad = entrant("good", [7], ran), entrant("bad", [], ran)
    measure.take_turns([bad, good] if broken == "a" else [good, bad], entrant("f", [50, 100], ran), Clockless(),
                       lambda who, error: dropped.append((who, type(error))))
    assert dropped == [(bad, StopIteration)]
    assert (good.values, good.beside, bad.beside) == ([7], [75], [])


@pytest.mark.simulator
@pytest.mark.parametrize(("seconds", "turns"), [(0, 1), (1e9, 3)])
def test_a_case_of_long_turns_has_one_at_least(seconds, turns, world):
    said = []
    case = next(case for case in all_of() if case.id == "use/ping-pong")
    measure.measure(case, world, replace(TINY, turns=3, case_seconds=seconds), [], said.append)
    rows = [event for event in said if event["kind"] == "row"]
    assert rows
    assert {(len(row["values"]), len(row["beside"])) for row in rows} == {(turns, turns)}


@pytest.mark.simulator
def test_each_turn_has_an_order_of_its_own_and_so_has_each_process(monkeypatch, world):
    orders = []
    monkeypatch.setattr(measure, "take_turns", lambda entrants, *_: orders.append(
        [(one.candidate.name, one.candidate.language) for one in entrants]))
    case = next(case for case in all_of() if case.id == "allocate/1 MiB")
    for process in (0, 0, 1):
        measure.measure(case, world, replace(TINY, turns=3), [], lambda event: None, process)
    assert len(orders) == 9
    assert orders[0] != orders[1]
    assert orders[:3] == orders[3:6] != orders[6:]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)


# ---------------------------------------------------------------------------------------------- the processes
THREE = ("use/hand-over", "use/ping-pong", "use/fan-out to 8 readers and back")


def children(monkeypatch, *dies: tuple[int, str, str | None], fails: tuple[str, str] = ("", "")) -> list[Order]:
    """Processes of candidates "good", "bad" and "late", which die of a candidate, or in the turns of a case (None)."""
    calls = []

    def child(order, until):
        calls.append(replace(order, banned=list(order.banned)))
        yield {"kind": "facts", "missing": {}}
        for case in order.cases:
            yield {"kind": "case", "case": case}
            names = [name for name in ("good", "bad", "late") if (case, name) not in order.banned]
            for name in list(names):
                yield {"kind": "trying", "case": case, "candidate": name}
                if (order.process, case, name) in dies:
                    yield {"kind": "died", "text": "the process ended with -11: no message"}
                    return
                if (case, name) == fails:
                    yield {"kind": "failure", "case": case, "candidate": name, "text": f"in process {order.process}"}
                    names.remove(name)
            yield {"kind": "turns", "case": case}
            if (order.process, case, None) in dies:
                yield {"kind": "died", "text": "the process ended with -11: no message"}
                return
            for name in names:
                yield {"kind": "row", "case": case, "candidate": name, "language": CPP, "values": [1.],
                       "beside": [1.], "reference": names[0]}
            yield {"kind": "took", "case": case, "seconds": 2.}
        yield {"kind": "done"}

    monkeypatch.setattr(processes, "_child", child)
    return calls


@pytest.mark.simulator
def test_a_neighbour_that_ends_the_process_is_named_and_left_out(monkeypatch):
    """The others of the case, and the cases after it, go on in another process; later processes do not try it."""
    calls = children(monkeypatch, (0, THREE[1], "bad"))
    seen = processes.run(Settings(families=("use",), only=THREE, processes=2), lambda event: None)
    assert [(order.process, order.cases[0]) for order in calls] == [(0, THREE[0]), (0, THREE[1]), (1, THREE[0])]
    assert [order.banned for order in calls] == [[], [(THREE[1], "bad")], [(THREE[1], "bad")]]
    assert seen["failures"] == [{"case": "use/ping-pong", "candidate": "bad",
                                 "text": "the process ended with -11: no message"}]
    assert len(seen["rows"]) == 8
    assert all(sorted(row["values"]) == sorted(row["beside"]) == [0, 1] for row in seen["rows"].values())
    assert seen["spent"] == dict.fromkeys(THREE, 4.)
    assert seen["processes"] == 2


@pytest.mark.simulator
def test_a_case_whose_turns_end_the_process_is_left_out(monkeypatch):
    """... by name, and in all processes: nobody knows who of it was to blame."""
    calls = children(monkeypatch, (0, THREE[1], None))
    seen = processes.run(Settings(families=("use",), only=THREE, processes=2), lambda event: None)
    assert [order.cases for order in calls] == [list(THREE), [THREE[2]], [THREE[0], THREE[2]]]
    assert [(failure["case"], failure["candidate"]) for failure in seen["failures"]] == [(THREE[1], "all of it")]


@pytest.mark.simulator
def test_who_failed_once_is_not_tried_again(monkeypatch):
    calls = children(monkeypatch, fails=(THREE[0], "bad"))
    seen = processes.run(Settings(families=("use",), only=THREE, processes=2), lambda event: None)
    assert [order.banned for order in calls] == [[], [(THREE[0], "bad")]]
    assert seen["failures"] == [{"case": THREE[0], "candidate": "bad", "text": "in process 0"}]


@pytest.mark.simulator
def test_without_its_reference_a_process_has_no_rows(monkeypatch):
    """Its ratios would be to somebody else."""
    children(monkeypatch, (1, THREE[0], "good"))
    seen = processes.run(Settings(families=("use",), only=THREE[:1], processes=2), lambda event: None)
    assert {name: sorted(row["values"]) for (_, name, _), row in seen["rows"].items()} == {
        "good": [0], "bad": [0], "late": [0]}


@pytest.mark.simulator
@pytest.mark.parametrize(("seconds", "begun"), [(1000, 5), (31, 3), (15, 1)])
def test_no_process_is_begun_that_would_not_end_in_time(monkeypatch, seconds, begun):
    """Each takes ten seconds."""
    children(monkeypatch)
    begin, clock = processes.Run.one_process, [0.]

    def one_process(*arguments: object) -> bool:
        clock[0] += 10
        return begin(*arguments)

    monkeypatch.setattr(processes.Run, "one_process", one_process)
    monkeypatch.setattr(processes.time, "time", lambda: clock[0])
    seen = processes.run(Settings(families=("use",), only=THREE, seconds=seconds), lambda event: None)
    assert (seen["processes"], seen["seconds"]) == (begun, 10 * begun)
    assert not seen["failures"]


@pytest.mark.simulator
def test_the_command_runs_says_that_it_is_simulated_and_agrees_with_itself(tmp_path):
    first, second = tmp_path / "1.json", tmp_path / "2.json"
    run = bench("--case", "use/ping-pong", "--case", "allocate/256 B", "--turns", "2", "--processes", "2", "--json",
                str(first))
    assert run.returncode == 0, run.stderr
    assert LOUD in run.stdout
    assert "THE TIMES OF THIS RUN MEAN NOTHING" in run.stderr
    seen = json.loads(first.read_text())
    assert seen["schema"] == results.SCHEMA
    assert seen["machine"]["simulated"] is True
    assert set(seen["machine"]["missing"]) | set(seen["machine"]["found"]) == {
        "cuda.bindings", *LIBRARIES} - {"pylibcudf"}   # nobody asks for it in these families
    for name, reason in seen["machine"]["missing"].items():
        assert f"without {name}: {reason}" in " ".join(run.stdout.split())
    assert seen["command"][:3] == ["xlogmem", "bench", "--case"]
    assert all(sorted(row["values"]) == ["0", "1"] for row in seen["rows"])
    pieces = []
    for case in ("use/ping-pong", "allocate/256 B"):
        pieces += ["--read", str(tmp_path / f"{len(pieces)}.json")]
        results.saved(seen | {"rows": [row for row in seen["rows"] if row["case"] == case]}, pieces[-1])
    whole = tmp_path / "whole.json"
    assert bench(*pieces, "--json", str(whole), "--compare", str(first)).returncode == 0
    assert {key: row["to_reference"] for key, row in by_row(results.loaded(str(whole))).items()} == {
        key: row["to_reference"] for key, row in by_row(seen).items()}
    again = bench("--read", str(first), "--compare", str(first), "--json", str(second))
    assert again.returncode == 0, again.stderr
    assert "of xlogmem's" in again.stdout
    for row in seen["rows"]:                            # as if everything of ours had become ten times as slow
        if row["to_reference"] and row["role"] == OURS:
            row["to_reference"] = {name: 10 * value for name, value in row["to_reference"].items()}
    second.write_text(json.dumps(seen))
    assert bench("--read", str(second), "--compare", str(first)).returncode == 1


@pytest.mark.parametrize(("arguments", "said"), [
    (["--family", "gravity"], "gravity"), (["--case", "use/nothing"], "use/nothing"), (["--turns", "0"], "--turns"),
    (["--compare", "no such file"], "no such file")])
def test_wrong_arguments_are_named(arguments, said):
    run = bench(*arguments, XLOGMEM_SIM_QUIET="1")
    assert run.returncode == 2
    assert said in run.stderr


def test_a_file_of_another_schema_is_refused(tmp_path):
    (tmp_path / "old.json").write_text('{"schema": 0}')
    run = bench("--read", str(tmp_path / "old.json"))
    assert run.returncode == 1
    assert "schema 0" in run.stderr


# ---------------------------------------------------------------------------------------------- instructions
def test_instructions_are_counted_by_module(tmp_path):
    """In our own modules, but for the loops and the simulated driver; calls into others are theirs."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import instructions
    finally:
        sys.path.pop(0)
    dump = tmp_path / "out.1"
    dump.write_text("events: Ir\nob=(1) /x/xlogmem/_core.so\nfn=(1) a\n12 5\n+3 7\n"
                    "cob=(2) /x/xlogmem/sim/_simcuda.so\ncfn=(2) b\ncalls=1 90\n+1 1000\n* 2\n\n"
                    "ob=(2)\nfn=(2)\n90 1000\n\nob=(3) /x/xlogmem/bench/_loops.so\n"
                    "fn=(3) c\n1 400\n\nob=(4) /lib/libc.so.6\nfn=(4) d\n1 800\n\nob=(1)\nfn=(5) e\n-2 30\n")
    assert instructions.counted(dump) == 5 + 7 + 2 + 30
    recorded = json.loads((ROOT / "benchmarks" / "instructions.json").read_text())
    assert set(recorded["instructions"]) == set(instructions.PATHS)


@pytest.mark.skipif(not SIMULATED, reason="asks the simulated driver")
def test_without_valgrind_it_says_so_and_is_no_failure():
    run = subprocess.run([sys.executable, str(ROOT / "benchmarks" / "instructions.py")], capture_output=True, text=True,
                         timeout=100, env=os.environ | {"PATH": "/nonexistent"})
    assert run.returncode == 0, run.stderr
    assert "INSTRUCTIONS NOT COUNTED: valgrind is not installed" in run.stdout


def test_what_is_not_reached_in_time_is_named():
    chosen = tuple(case.id for case in cases.all_cases() if case.family == "lookup")[:2]
    raw = processes.run(Settings(only=chosen, seconds=0, processes=2), lambda event: None)
    assert not raw["rows"]
    assert [(failure["case"], failure["text"]) for failure in raw["failures"]] == [
        (case, settings.LATE) for case in chosen]


def test_a_neighbour_that_hangs_is_left_out_by_name(monkeypatch):
    chosen = next(case.id for case in cases.all_cases() if case.family == "lookup")
    said = [{"kind": "facts"}, {"kind": "case", "case": chosen}, {"kind": "trying", "case": chosen, "candidate": "it"}]
    program = f"import json, time\nfor line in {said!r}: print(json.dumps(line), flush=True)\ntime.sleep(60)"
    monkeypatch.setattr(processes, "COMMAND", [sys.executable, "-c", program])
    events = list(processes._child(Order(Settings(candidate_seconds=1), [chosen]), float("inf")))
    assert [event["kind"] for event in events] == ["facts", "case", "trying", "died"]
    assert "no output for 1 s" in events[-1]["text"]
