"""The benchmarks' cases run and do what they say."""
from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from bench_runs import TINY, all_of
from xlogmem_bench import _loops, cases, logs, measure
from xlogmem_bench.allocators import CPP, FLOOR, OURS, PER_USE_EVENTS, PYTHON
from xlogmem_bench.cases import adaptors, patterns, uses
from xlogmem_bench.recorded import recorded
from xlogmem_bench.settings import Settings

import xlogmem
from xlogmem.sim import Simulator

pytestmark = pytest.mark.with_gil                       # as the raw driver calls of the benchmarks do
# Units that no loop in C++ measures.
PYTHON_ALONE = ("upload", "await", "launch", "round of two nodes", "array imported and dropped", "chunk")


@pytest.mark.simulator
@pytest.mark.parametrize("case", all_of(), ids=lambda case: case.id)
def test_every_case_runs(case, world, driver):
    """... without a race, and measures every candidate."""
    said = []
    measure.measure(case, world, TINY, [], said.append)
    rows = [event for event in said if event["kind"] == "row"]
    failures = [event for event in said if event["kind"] == "failure"]
    assert not failures
    if case.family in ("rmm", "pylibcudf", "enabled"):
        assert rows == []                               # without libraries: RMM does not start here
        return
    assert [row["role"] for row in rows].count(FLOOR) == 1
    assert {row["language"] for row in rows if row["role"] == OURS} >= {PYTHON if case.unit in PYTHON_ALONE else CPP}
    assert all(len(row["values"]) == TINY.turns and min(row["values"]) > 0 for row in rows)
    if case.family in ("allocate", "use", "free"):      # each path from Python has its twin
        assert ({row["candidate"] for row in rows if row["role"] == OURS and row["language"] == PYTHON}
                <= {row["candidate"] for row in rows if row["role"] == OURS and row["language"] == CPP})
        assert any(row["candidate"] == PER_USE_EVENTS for row in rows)


def test_the_families_are_those_that_were_chosen():
    found = all_of()
    assert {case.family for case in found} == set(cases.FAMILIES)
    assert len({case.id for case in found}) == len(found)
    for said in ("256 B", "64 MiB", "8 streams", "16 threads", "512 held", "1,000 columns", "fragmented"):
        assert any(said in case.id for case in found if case.family == "allocate"), said
    for said in ("1 block,", "4 blocks,", "16 blocks,", "64 blocks,", "hand-over", "ping-pong", "fan-out to 8"):
        assert any(said in case.id for case in found if case.family == "use"), said
    for said in ("pinned pair, 4 KiB", "pinned pair, 1 MiB", "freed at once", "two buffers", "access", "1,000 pending"):
        assert any(said in case.id for case in found if case.family == "host"), said
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
        for name in (("driver", CPP), ("xlogmem", CPP), ("xlogmem", PYTHON), (PER_USE_EVENTS, CPP)):
            made[name].run(100)
            before = driver.calls("cuEventRecord"), driver.calls("cuStreamWaitEvent")
            made[name].run(10)
            seen[name] = driver.calls("cuEventRecord") - before[0], driver.calls("cuStreamWaitEvent") - before[1]
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
        for name in 2 * [("driver", CPP), ("xlogmem, lazy", CPP), ("xlogmem", CPP), ("xlogmem", PYTHON)]:
            made[name].before()
            before = driver.calls("cuEventRecord"), driver.calls("cuStreamWaitEvent")
            made[name].run(200)
            records, waits = driver.calls("cuEventRecord") - before[0], driver.calls("cuStreamWaitEvent") - before[1]
            assert (records, waits) == (200, 200), name
        made.clear()


@pytest.mark.simulator
def test_a_free_after_foreign_reads_waits_for_each_reader(world, driver):
    runtime = xlogmem.DeviceRuntime()
    streams = [runtime.acquire_stream() for _ in range(5)]
    _loops.frees_after_reads(streams, 256, 4, 1)
    before = driver.calls("cuStreamWaitEvent")
    _loops.frees_after_reads(streams, 256, 4, 10)
    assert driver.calls("cuStreamWaitEvent") - before == 10 * 8         # 4 of readers, 4 of the free


def candidates_of(name, world, stack, failed=pytest.fail):
    made = adaptors.through_adaptor(name, 256)(world, stack, failed)
    return {(candidate.name, candidate.language): candidate for candidate in made}


@pytest.mark.simulator
def test_a_turn_of_a_log_ends_when_all_is_written(monkeypatch, world):
    """... in the row that says so; RMM's columns are what is written."""
    paths = []
    adaptor = adaptors.ADAPTORS["logging"]
    monkeypatch.setitem(adaptors.ADAPTORS, "logging", replace(
        adaptor, ours=lambda below, path: paths.append(path) or adaptor.ours(below, path)))
    with ExitStack() as stack:
        candidate = candidates_of("logging", world, stack)["xlogmem pool, until written", CPP]
        candidate.before()
        before = len(list(recorded(paths[1])))
        candidate.run(1)
        assert len(list(recorded(paths[1]))) - before == 2 * adaptors.WRITTEN
    assert not Path(paths[1]).exists()


@pytest.mark.simulator
def test_a_log_that_was_full_is_reported(monkeypatch, world):
    monkeypatch.setitem(adaptors.ADAPTORS, "logging", adaptors.Adaptor(
        lambda below, path: xlogmem.LoggingResourceAdaptor(below, path, capacity=1), None))
    said = []
    with ExitStack() as stack:
        candidates_of("logging", world, stack, lambda name, error: said.append((name, str(error))))
    assert [name for name, _ in said] == ["xlogmem pool", "xlogmem async"]
    assert all("records found the log full" in text for _, text in said)


@pytest.mark.simulator
@pytest.mark.parametrize("name", ["guard", "guard, stacks"])
def test_a_guard_is_beside_the_same_resources_alone(name, world, driver):
    """A pair through the guard fills twice, checks at the free, and checks what the full quarantine returns."""
    with ExitStack() as stack:
        made = candidates_of(name, world, stack)
        launches = {}
        for (candidate, language), run in made.items():
            before = driver.calls("cuLaunchKernel")
            run.run(10)
            launches[candidate, language] = driver.calls("cuLaunchKernel") - before
        for below in ("xlogmem async", "xlogmem pool"):
            for language in (CPP, PYTHON):
                assert launches[below, language] >= 40, launches
                assert launches[f"{below}, alone", language] == 0
                assert "RMM has none" in made[f"{below}, alone", language].note
        assert adaptors.ADAPTORS[name].theirs is None
        made.clear()


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


def test_a_log_of_rmm_becomes_a_program(tmp_path):
    log = tmp_path / "rmm.csv"
    log.write_text("Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,free,0x1,64,0x0\n"
                   "1,00:00:00.1,allocate,0x2,100,0x0\n1,00:00:00.2,allocate,0x3,300,0x7\n"
                   "1,00:00:00.3,free,0x2,100,0x7\n1,00:00:00.4,allocate,0x2,500,0x0\n")
    events = list(recorded(str(log)))
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
