"""The zoo's lists, programs and marks agree, and its runner judges as it says: what needs no GPU of .ci/gpu-zoo."""
from __future__ import annotations

import ast
import json
import os
import re
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import run as zoo
import zoo_report as report
from places import ROOT
from zoo_judge import CERTAIN, PROGRAM_FAILED, UNCHECKED, Outcome, judged, last_line, step_ms
from zoo_manifest import HERE, Mistake, Program, Wrong, is_installed, marks, of_others, ours, programs, why_not

OURS, THEIRS = list(ours()), list(of_others(Path("/public")))
FILES = sorted((HERE / "programs").glob("*.py"))
BY_FILE = {file: [program for program in OURS if program.file == file] for file in FILES}
MARKED = sorted({(program.file, wrong.name) for program in OURS for wrong in program.wrong
                 if wrong.places == "marked"})


def docstring(file: Path) -> str:
    return ast.get_docstring(ast.parse(file.read_text())) or ""


# ---------------------------------------------------------------------------------------------- lists and programs


def test_enough_programs_are_right():
    assert sum(program.right for program in OURS) >= zoo.LEAST
    assert sum(program.right for program in OURS + THEIRS) >= zoo.LEAST + 60
    assert len(MARKED) >= 40


def test_each_program_is_listed_and_there():
    assert [file.name for file, listed in BY_FILE.items() if not listed] == []
    assert [program.name for program in OURS if not program.file.is_file()] == []
    assert all(program.file in BY_FILE or program.file.is_relative_to(ROOT / "examples") for program in OURS)
    names = [program.name for program in programs(Path("/public"))]
    assert len(names) == len(OURS + THEIRS) == len(set(names))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_program_says_what_it_does_and_why_it_is_right(file):
    text = docstring(file)
    compile(file.read_text(), str(file), "exec")
    assert len(text.splitlines()[0]) > 40
    assert "\nRight: " in text
    for program in BY_FILE[file]:
        assert all(f"{wrong.name}: " in text for wrong in program.wrong)
    assert "xlogmem" not in text or file.name.startswith("xlogmem_")    # it is a plain program


@pytest.mark.parametrize(("file", "variant"), MARKED, ids=lambda one: one.stem if isinstance(one, Path) else one)
def test_both_places_of_a_variant_are_marked(file, variant):
    found = marks(file.read_text())[variant]
    assert found["first"]
    assert found["then"]
    lines = file.read_text().splitlines()
    assert all(lines[line - 1].split("#")[0].strip() for of in found.values() for line in of)   # marks are beside code


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_marks_and_variants_of_a_file_are_those_that_are_listed(file):
    text = file.read_text()
    listed = {wrong.name for program in BY_FILE[file] for wrong in program.wrong}
    assert set(marks(text)) == {variant for of, variant in MARKED if of == file} <= listed
    assert set(re.findall(r'VARIANT [!=]= "(\w+)"', text)) - {"right"} == listed
    assert ("sys.argv" in text) >= bool(listed)


def test_programs_of_one_stream_can_be_tried_without_a_gpu():
    simple = [file for file in FILES if file.name.startswith(("torch_", "lib_"))]
    assert {file.stem for file in simple if "ZOO_DEVICE" not in file.read_text()} == {
        "torch_mempool", "torch_memory_stats", "torch_shared_tensors", "torch_out_of_memory"}


def test_timed_programs_print_the_time_of_a_step():
    """... and no others; those whose steps are long take as many as they are given."""
    assert {program.file for program in OURS if program.timed} == {
        file for file in FILES if "step_ms: " in file.read_text()}
    assert all("ZOO_STEPS" in program.file.read_text() for program in OURS if program.timed)


def test_where_public_programs_come_from_is_said():
    text = (HERE / "public.toml").read_text()
    listed = tomllib.loads(text)
    known = {row["name"]: row for row in listed["repository"]}
    head = text.partition("[[")[0]
    for row in known.values():
        assert re.fullmatch(r"[0-9a-f]{40}", row["commit"])
        assert f"git clone {row['source']} PUBLIC/{row['name']}" in head
        assert f"git -C PUBLIC/{row['name']} checkout {row['commit']}" in head
    assert {row["repository"] for row in listed["program"]} == set(known)
    assert sum(not program.right for program in THEIRS) == 2


def test_made_up_data_is_the_same_each_time(tmp_path):
    import make_data

    seen = []
    for name in ("one", "two"):
        (tmp_path / name / "examples/vae").mkdir(parents=True)
        make_data.main.__globals__["sys"].argv[1:] = [str(tmp_path / name)]
        make_data.main()
        seen.append({file.relative_to(tmp_path / name): file.read_bytes()
                     for file in (tmp_path / name).rglob("*") if file.is_file()})
    assert seen[0] == seen[1]
    assert len(seen[0]) == 16


@pytest.mark.parametrize("row", [
    {"compare": "nothing"}, {"modes": ("bare", "fast")}, {"wrong": (Wrong("a"), Wrong("a"))}])
def test_a_manifest_with_mistakes_is_refused(row):
    with pytest.raises(Mistake):
        Program("x", Path("x.py"), **row)


@pytest.mark.parametrize("row", [{"places": "none"}, {"modes": ("bare",)}, {"certain": False}, {"modes": ("driver",)}])
def test_a_variant_of_which_less_is_expected_needs_a_reason(row):
    with pytest.raises(Mistake):
        Wrong("x", **row)


def test_an_unknown_key_is_a_mistake(tmp_path):
    manifest = tmp_path / "zoo.toml"
    for text in ('[[program]]\nname = "x"\nfast = true', '[[program]]\nname = "x"\n[program.wrong.a]\nfast = true'):
        manifest.write_text(text)
        with pytest.raises(Mistake, match="fast"):
            list(ours(manifest))


def test_why_a_program_cannot_run(monkeypatch, tmp_path):
    monkeypatch.delenv("ZOO_NUMPY24", raising=False)
    program = Program("x", tmp_path / "x.py", needs=("json",))
    assert "is not there" in why_not(program)
    program.file.write_text("")
    assert why_not(program) is None
    assert why_not(replace(program, needs=("json", "no_such_module"))) == "no_such_module is not installed"
    assert not is_installed("no_such_module.inside")
    assert "ZOO_NUMPY24" in why_not(replace(program, needs=("numpy24",)))


# ---------------------------------------------------------------------------------------------- judgement


def access(*frames: tuple[str, int]) -> dict:
    return {"stack": [{"file": file, "line": line, "function": "f"} for file, line in frames]}


def finding(first: dict, second: dict, certain: bool = True) -> dict:
    return {"certain": certain, "first": first, "second": second}


def document(*findings: dict, status: int = 0) -> dict:
    return {"status": status, "notes": {}, "findings": list(findings)}


RIGHT = Program("x", Path("/x.py"))
BARE = Outcome(0, "step_ms: 2.5\nsum: 4\n\n")
CLEAN = Outcome(0, "sum: 4\n", document=document())
SOME = finding(access(), access())


def test_a_right_program_that_is_clean_passes():
    assert judged(RIGHT, None, BARE, CLEAN, "driver") == []
    assert judged(RIGHT, None, BARE, replace(CLEAN, document=document({**SOME, "certain": False})), "real") == []
    assert judged(RIGHT, None, BARE, BARE, "bare") == []
    failing = Outcome(3, "sum: 4\n", document=document(status=7))
    assert judged(RIGHT, None, replace(BARE, status=7), failing, "driver") == []
    assert judged(RIGHT, None, None, CLEAN, "driver") == []
    status = replace(RIGHT, compare="status")
    assert judged(status, None, BARE, replace(CLEAN, out="other"), "driver") == []
    assert judged(status, None, None, Outcome(0), "bare") == []


@pytest.mark.parametrize(("outcome", "said"), [
    (replace(CLEAN, status=1, document=document(SOME, SOME)), "2 certain findings in a right program"),
    (replace(CLEAN, status=3, document=document(status=1)), "the program ended with status 1, alone with 0"),
    (replace(CLEAN, status=3, document=document(status=-6)), "the program ended with status -6, alone with 0"),
    (replace(CLEAN, out="sum: 5\n"), "the last line is 'sum: 5', alone 'sum: 4'"),
    (replace(CLEAN, out=""), "the last line is '', alone 'sum: 4'"),
    (replace(CLEAN, status=3), "the check ended with status 3 in place of 0"),
    (replace(CLEAN, status=-11), "the check ended with status -11 in place of 0"),
    (replace(CLEAN, status=None, seconds=120.0), "killed after 120 s"),
    (replace(CLEAN, document=None, status=2), "no report: the check ended with status 2"),
    (replace(CLEAN, err="xlogmem check: nothing was checked: no Python"), "no process was checked")])
def test_a_right_program_that_is_not_fails(outcome, said):
    assert judged(RIGHT, None, BARE, outcome, "driver") == [said]


@pytest.mark.parametrize(("outcome", "said"), [
    (Outcome(1, "x"), "the program itself ends with status 1"), (Outcome(0, " \n"), "prints nothing"),
    (Outcome(None, seconds=9.0), "killed after 9 s")])
def test_a_program_that_fails_alone_fails(outcome, said):
    problem, = judged(RIGHT, None, outcome, outcome, "bare")
    assert said in problem


def test_what_the_command_says_is_what_is_looked_for():
    """... in the text of the check itself."""
    from xlogmem.check import command

    assert UNCHECKED in (ROOT / "xlogmem/commands/check.py").read_text()
    assert (CERTAIN, PROGRAM_FAILED) == (command.CERTAIN, command.PROGRAM_FAILED)


PROGRAM = """\
x = 1  # first: nowait
y = 2  # then: nowait, drop
z = 3  # first: drop  # then: nowait
"""


@pytest.fixture
def program(tmp_path) -> Program:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return Program("program", file, wrong=(Wrong("nowait"), Wrong("drop")))


def wrongly(program: Program, *findings: dict, wrong: Wrong | None = None, **more) -> list[str]:
    outcome = replace(Outcome(1, document=document(*findings)), **more)
    return judged(program, wrong or program.wrong[0], BARE, outcome, "driver")


def at(program: Program, line: int) -> dict:
    """An access whose innermost frames are a library's."""
    return access(("/lib/torch.py", 7), (str(program.file), line), (str(program.file), 99))


def test_marks_are_read():
    assert marks(PROGRAM) == {"nowait": {"first": {1}, "then": {2, 3}}, "drop": {"first": {3}, "then": {2}}}


@pytest.mark.parametrize("lines", [(1, 2), (2, 1), (1, 3), (3, 1)])
def test_a_wrong_variant_is_found_at_its_lines(program, lines):
    pair = finding(*(at(program, line) for line in lines))
    assert wrongly(program, pair) == []
    assert wrongly(program, finding(at(program, 99), access()), pair) == []
    assert wrongly(program, pair, out="another line", document=document(pair, status=3)) == []


def test_a_wrong_variant_that_is_not_found_fails(program):
    assert wrongly(program) == ["no certain finding"]
    assert wrongly(program, finding(at(program, 1), at(program, 2), certain=False)) == ["no certain finding"]
    elsewhere = finding(at(program, 1), access(("/lib/torch.py", 2)))
    assert wrongly(program, elsewhere) == ["no certain finding at the marked lines, but at 1 and none"]
    assert wrongly(program, finding(at(program, 2), at(program, 3))) == [
        "no certain finding at the marked lines, but at 2 and 3"]
    assert wrongly(program, finding(at(program, 1), at(program, 2)), wrong=program.wrong[1]) != []
    pair = finding(at(program, 1), at(program, 2))
    assert wrongly(program, pair, document=document(pair, status=-11)) == ["ended by signal 11"]
    assert wrongly(program, pair, status=None) == ["killed after 0 s"]
    assert wrongly(program, pair, document=None) == ["no report: the check ended with status 1"]


def test_less_may_be_expected_of_a_variant(program):
    elsewhere = finding(at(program, 99), access())
    assert wrongly(program, elsewhere, wrong=Wrong("nowait", places="any")) == []
    assert wrongly(program, {**elsewhere, "certain": False}, wrong=Wrong("nowait", places="any")) != []
    possible = Wrong("nowait", certain=False, because="it is")
    assert wrongly(program, finding(at(program, 1), at(program, 2), certain=False), wrong=possible) == []
    assert wrongly(program, wrong=possible) == ["no finding"]


def test_outputs_are_read():
    assert last_line("a\nb \n\n") == "b"
    assert last_line("") == ""
    assert step_ms("step_ms: 3.0\nstep_ms: 2.5\nlast") == 2.5
    assert step_ms("took step_ms: 2.5") is None


# ---------------------------------------------------------------------------------------------- the runner

# In place of the check: it runs the command, and finds what the program says that it finds.
STAND_IN = """
import json, subprocess, sys
document, command = sys.argv[1], sys.argv[2:]
done = subprocess.run(command, capture_output=True, text=True)
sys.stdout.write(done.stdout)
found = [json.loads(line[7:]) for line in done.stderr.splitlines() if line.startswith("FOUND: ")]
json.dump({"status": done.returncode, "notes": {}, "findings": found}, open(document, "w"))
sys.exit(1 if any(one["certain"] for one in found) else 3 if done.returncode else 0)
"""
ZOO = """
import json, os, sys
if sys.argv[1:] == ["nowait"]:
    place = {"stack": [{"file": __file__, "line": 4, "function": "f"}]}  # first: nowait  # then: nowait
    print("FOUND: " + json.dumps({"certain": True, "first": place, "second": place}), file=sys.stderr)
print("step_ms:", 1.0 if "BARE" in os.environ else 3.0)
print("of", os.environ["OMP_NUM_THREADS"], "threads:", os.environ["MASTER_PORT"].isdigit())
"""


@pytest.fixture
def small_zoo(tmp_path, monkeypatch):
    """Three programs, and a stand-in for the check."""
    for name in ("right", "twin", "absent"):
        (tmp_path / f"{name}.py").write_text(ZOO)
    listed = [Program("right", tmp_path / "right.py", environment={"BARE": "1"}),
              Program("twin", tmp_path / "twin.py", wrong=(Wrong("nowait"),), timed=True),
              Program("absent", tmp_path / "absent.py", needs=("no_such_module",))]
    monkeypatch.setattr(zoo, "programs", lambda public: listed)
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    plain = zoo.command_of

    def command_of(run, folder, document):
        command = plain(run, folder, document)
        if run.mode == "bare":
            return command
        assert command[:7] == [sys.executable, "-m", "xlogmem", "check", "--gpu", "--possible", "--json"]
        assert ("--pools" in command) == (run.mode == "real")
        return [sys.executable, str(tmp_path / "stand_in.py"), command[7], *command[command.index("--") + 1:]]

    monkeypatch.setattr(zoo, "command_of", command_of)
    monkeypatch.setattr(zoo, "LEAST", 2)
    return listed


def rows_of(out: Path) -> dict[tuple[str, str, str], dict]:
    rows = json.loads((out / "zoo.json").read_text())["runs"]
    return {(row["program"], row["variant"], row["mode"]): row for row in rows}


def test_the_least_of_several_turns_counts(small_zoo, tmp_path):
    (tmp_path / "twin.py").write_text(ZOO + """
if not sys.argv[1:]:                                    # 99 ms, 98 ms …
    with open(__file__ + ".runs", "a") as file:
        print("-", file=file)
    print("step_ms:", 100.0 - len(open(__file__ + ".runs").readlines()))
print("done")
""")
    assert zoo.main([str(tmp_path / "out"), "--timed", "--turns", "3", "--workers", "1"]) == 0
    rows = rows_of(tmp_path / "out")
    assert len(rows) == 5
    assert [rows["twin", "", mode]["step_ms"] for mode in zoo.MODES] == [93, 92, 91]
    assert rows["twin", "", "driver"]["slowdown"] == 0.99
    assert rows["twin", "nowait", "driver"]["slowdown"] is None


def test_a_whole_run(small_zoo, tmp_path, capsys):
    out = tmp_path / "out"
    assert zoo.main([str(out), "--workers", "3"]) == 0
    rows = rows_of(out)
    assert len(rows) == 3 + 3 + 2 + 3
    assert all(row["failures"] == [] for row in rows.values())
    assert rows["twin", "nowait", "driver"]["certain"] == 1
    assert rows["right", "", "bare"]["peak_mb"] > 1
    assert rows["right", "", "driver"]["slowdown"] == 1
    assert (out / "zoo.txt").read_text() == ""
    printed = capsys.readouterr().out
    assert re.search(r"^twin nowait +[\d.]+s 1/0", printed, re.MULTILINE)
    for line in ("driver: 2 right programs, 0 failed, 0 flagged (0 certain findings); 1 wrong ones, 1 found",
                 "skipped: no_such_module is not installed: absent", "zoo: 8 runs as they have to be, 0 failed"):
        assert line in printed


def test_failures_are_reported(small_zoo, tmp_path, capsys):
    """A flagged program, a missed one, and one that prints something else under the check."""
    (right, twin, _), out = small_zoo, tmp_path / "out"
    right.file.write_text(ZOO.replace("if sys.argv[1:] ==", "if 'right' in __file__ or sys.argv ==")
                          .replace('"threads:"', '"threads:", "no" if len(sys.argv) else 0, os.getppid()'))
    twin.file.write_text(ZOO.replace('"certain": True', '"certain": False'))
    assert zoo.main([str(out), "--modes", "bare", "driver"]) == 1
    rows, texts = rows_of(out), (out / "zoo.txt").read_text()
    assert rows["right", "", "driver"]["failures"][0] == "1 certain findings in a right program"
    assert "the last line is" in rows["right", "", "driver"]["failures"][1]
    assert rows["twin", "nowait", "driver"]["failures"] == ["no certain finding"]
    assert "==== twin nowait [driver]\nFAILED: no certain finding\n-- standard output\nstep_ms: 3.0" in texts
    printed = capsys.readouterr().out
    assert "FAILED twin nowait [driver]: no certain finding" in printed
    assert "1 right programs, 1 failed" not in printed
    assert "driver: 2 right programs, 1 failed, 1 flagged (1 certain findings); 1 wrong ones, 0 found" in printed


def test_a_run_that_is_not_whole_fails(small_zoo, tmp_path, capsys, monkeypatch):
    assert zoo.main([str(tmp_path), "--seconds", "-1"]) == 1
    assert "NOT RUN: 8 runs, for want of time" in capsys.readouterr().out
    monkeypatch.setattr(zoo, "LEAST", 3)
    assert zoo.main([str(tmp_path), "--modes", "bare"]) == 1
    assert "FAILED: only 2 right programs ran, of at least 3" in capsys.readouterr().out
    assert zoo.main([str(tmp_path), "--modes", "bare", "--only", "ri*"]) == 0
    assert [row["program"] for row in rows_of(tmp_path).values()] == ["right"]
    assert zoo.main([str(tmp_path), "--only", "absent"]) == 1
    assert "FAILED: nothing ran" in capsys.readouterr().out


def test_a_long_step_may_not_be_slowed_down_much():
    def rows(alone, slowdown):
        return [report.Row("x", "torch", "", "bare", 1.0, step_ms=alone),
                report.Row("x", "torch", "", "driver", 1.0, step_ms=alone * slowdown, slowdown=slowdown)]

    for alone, slowdown, failed in ((30.0, 1.4, False), (30.0, 1.6, True), (5.0, 3.0, False)):
        seen = rows(alone, slowdown)
        report.judge_slowdown(seen, 1.5)
        assert bool(seen[1].failures) == failed
    assert "median 1.60, worst 1.6 (x, 48.0 ms), of 1" in report.slowdown_of(rows(30.0, 1.6), "driver")


def test_timed_programs_alone(small_zoo, tmp_path, monkeypatch):
    monkeypatch.setenv("BARE", "1")
    seen = []
    plain = zoo.environment_of
    monkeypatch.setattr(zoo, "environment_of", lambda program, steps: seen.append(plain(program, steps)) or seen[-1])
    assert zoo.main([str(tmp_path), "--timed", "--steps", "60", "--modes", "bare"]) == 0
    assert [variables["ZOO_STEPS"] for variables in seen] == ["60"]


def test_a_program_that_does_not_end_is_killed_with_its_children(tmp_path):
    file = tmp_path / "program.py"
    file.write_text("import subprocess, sys, time\n"
                    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
                    "print(child.pid, flush=True)\ntime.sleep(600)\n")
    outcome = zoo.outcome_of(zoo.Run(Program("x", file, seconds=1), "bare"))
    assert outcome.status is None
    assert 1 <= outcome.seconds < 60
    child = Path("/proc", last_line(outcome.out), "stat")
    for _ in range(500):                                # a killed one may be waited for by init yet
        if not child.exists() or child.read_text().split()[2] == "Z":
            return
        time.sleep(0.02)
    pytest.fail("the child is still there")


def test_a_program_runs_in_a_folder_of_its_own(tmp_path):
    file = tmp_path / "program.py"
    file.write_text("import os, sys\nprint(os.getcwd() == sys.argv[1], sys.argv[2:])\n")
    program = Program("x", file, arguments=("{tmp}", "ptx"), wrong=(Wrong("nowait"),))
    assert last_line(zoo.outcome_of(zoo.Run(program, "bare")).out) == "True ['ptx']"
    assert last_line(zoo.outcome_of(zoo.Run(program, "bare", program.wrong[0])).out) == "True ['ptx', 'nowait']"
    elsewhere = replace(program, folder=tmp_path)
    assert last_line(zoo.outcome_of(zoo.Run(elsewhere, "bare")).out) == "False ['ptx']"


def test_each_program_has_a_port_of_its_own():
    assert len({zoo.free_port() for _ in range(50)}) == 50


def test_numba_finds_an_older_numpy(monkeypatch):
    monkeypatch.setenv("ZOO_NUMPY24", "/old")
    monkeypatch.setenv("PYTHONPATH", "/more")
    program = Program("x", Path("x.py"), needs=("numpy24",))
    assert zoo.environment_of(program, None)["PYTHONPATH"] == os.pathsep.join(["/old", "/more"])
    assert zoo.environment_of(replace(program, needs=()), None)["PYTHONPATH"] == "/more"
