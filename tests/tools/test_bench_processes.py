"""The processes that a benchmark starts, and its command line."""
from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
from bench_runs import LIBRARIES, LOUD, bench, by_row
from xlogmem_bench import cases, processes, results
from xlogmem_bench.allocators import CPP, OURS
from xlogmem_bench.settings import Order, Settings

THREE = ("use/hand-over", "use/ping-pong", "use/fan-out to 8 readers and back")


def children(monkeypatch, *ends: tuple[int, str, str | None], fails: tuple[str, str] = ("", "")) -> list[Order]:
    """Processes of candidates "good", "bad" and "late"; a candidate, or the turns of a case (None), ends them."""
    calls = []

    def child(order, until):
        calls.append(replace(order, banned=list(order.banned)))
        yield {"kind": "facts", "missing": {}}
        for case in order.cases:
            yield {"kind": "case", "case": case}
            names = [name for name in ("good", "bad", "late") if (case, name) not in order.banned]
            for name in list(names):
                yield {"kind": "trying", "case": case, "candidate": name}
                if (order.process, case, name) in ends:
                    yield {"kind": "died", "text": "the process ended with -11: no message"}
                    return
                if (case, name) == fails:
                    yield {"kind": "failure", "case": case, "candidate": name, "text": f"in process {order.process}"}
                    names.remove(name)
            yield {"kind": "turns", "case": case}
            if (order.process, case, None) in ends:
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
def test_a_library_that_ends_the_process_is_named_and_left_out(monkeypatch):
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
    """... by name, and in all processes: the turns do not show which candidate was to blame."""
    calls = children(monkeypatch, (0, THREE[1], None))
    seen = processes.run(Settings(families=("use",), only=THREE, processes=2), lambda event: None)
    assert [order.cases for order in calls] == [list(THREE), [THREE[2]], [THREE[0], THREE[2]]]
    assert [(failure["case"], failure["candidate"]) for failure in seen["failures"]] == [(THREE[1], "all of it")]


@pytest.mark.simulator
def test_a_candidate_that_failed_once_is_not_tried_again(monkeypatch):
    calls = children(monkeypatch, fails=(THREE[0], "bad"))
    seen = processes.run(Settings(families=("use",), only=THREE, processes=2), lambda event: None)
    assert [order.banned for order in calls] == [[], [(THREE[0], "bad")]]
    assert seen["failures"] == [{"case": THREE[0], "candidate": "bad", "text": "in process 0"}]


@pytest.mark.simulator
def test_without_its_reference_a_process_has_no_rows(monkeypatch):
    """Its ratios would be to another reference."""
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
        "cuda.bindings", *LIBRARIES} - {"pylibcudf", "Numba"}   # not used by these families
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
    run = bench(*arguments, quiet=True)
    assert run.returncode == 2
    assert said in run.stderr


def test_a_file_of_another_schema_is_refused(tmp_path):
    (tmp_path / "old.json").write_text('{"schema": 0}')
    run = bench("--read", str(tmp_path / "old.json"))
    assert run.returncode == 1
    assert "schema 0" in run.stderr


def test_a_library_that_hangs_is_left_out_by_name(monkeypatch):
    chosen = next(case.id for case in cases.all_cases() if case.family == "lookup")
    said = [{"kind": "facts"}, {"kind": "case", "case": chosen}, {"kind": "trying", "case": chosen, "candidate": "it"}]
    program = f"import json, time\nfor line in {said!r}: print(json.dumps(line), flush=True)\ntime.sleep(60)"
    monkeypatch.setattr(processes, "COMMAND", [sys.executable, "-c", program])
    events = list(processes._child(Order(Settings(candidate_seconds=1), [chosen]), float("inf")))
    assert [event["kind"] for event in events] == ["facts", "case", "trying", "died"]
    assert "no output for 1 s" in events[-1]["text"]
