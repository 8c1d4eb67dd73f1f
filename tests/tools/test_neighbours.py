"""The command that runs other libraries' own tests with ours: what it counts, and when it fails."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HELPERS = Path(__file__).parents[1] / "helpers"
COMMAND = f"""
import os, sys
sys.path.insert(0, {str(HELPERS)!r})
import neighbour_suites, neighbours_on_xlogmem

class Library(neighbour_suites.Suite):
    name, files = "library", ("test_library.py",)
    def version(self):
        return "1.0"
    def before(self, item):
        os.environ["OURS"] = "1"

neighbour_suites.REASONS["library"] = {{"test_known": "it is so"}}
neighbours_on_xlogmem.SUITES["library"] = Library
sys.exit(neighbours_on_xlogmem.main())
"""
TESTS = """
import os, pytest, xlogmem

def ours():
    return "OURS" in os.environ

@pytest.mark.parametrize("turn", [f"turn_{number}" for number in range(19)])
def test_reaches(turn):
    if ours():
        xlogmem.get_runtime().allocate(64).free()

def test_reaches_none(): pass
def test_known(): assert not ours()
def test_other(): assert not ours()
def test_wrong(): assert False
def test_left_out():
    if ours():
        pytest.skip()
def test_ends():
    if ours():
        os._exit(3)
def test_after_it(): pass
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "command.py").write_text(COMMAND)
    (tmp_path / "test_library.py").write_text(TESTS)
    (tmp_path / "test_broken.py").write_text("import what_is_not_there")

    def run(*arguments: str) -> tuple[int, str, dict]:
        done = subprocess.run([sys.executable, tmp_path / "command.py", "library", tmp_path, *arguments, "--json",
                               tmp_path / "out.json"], env={**os.environ, "XLOGMEM_SIMULATE": "1"}, text=True,
                              capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr, json.loads((tmp_path / "out.json").read_text())

    return run


def test_of_the_tests_that_reach_us_95_percent_have_to_pass(run):
    status, text, found = run("-k", "reaches or known or wrong or left_out")
    assert (found["tests"], found["passed_without"], found["passed_with"]) == (23, 22, 20)
    assert (found["reaching"], found["reaching_passed"], found["share"]) == (20, 19, 0.95)
    assert found["skipped_with"] == ["test_library.py::test_left_out"]
    assert [row["reason"] for row in found["failing"]] == ["it is so"]
    assert list(found["failing_without"]) == ["test_library.py::test_wrong"]
    assert status == 0, text
    status, _, found = run("-k", "(reaches and not turn_18) or known")   # 18 alone may be in the folder's name
    assert (status, found["reaching"], found["reaching_passed"]) == (1, 19, 18)


def test_a_reason_that_is_not_known_fails(run):
    status, text, found = run("-k", "reaches or other")
    assert (status, found["share"], found["failing"][0]["reason"]) == (1, 0.95, "")
    assert "test_other: UNKNOWN REASON: assert not True" in text


def test_the_tests_go_on_after_one_that_ends_the_process(run):
    status, text, found = run("-k", "reaches or ends or after_it")
    assert (status, found["failing"][0]["error"]) == (1, "the process ended")
    assert (found["passed_without"], found["passed_with"], found["reaching"]) == (22, 21, 20)
    assert "the process of the tests ended with" in text


@pytest.mark.parametrize("arguments", [["test_broken.py", "test_library.py"], ["-k", "reaches_none"]])
def test_what_was_not_imported_and_what_reaches_nothing_fail(run, arguments):
    status, text, found = run(*arguments, *([] if "-k" in arguments else ["-k", "reaches"]))
    assert status == 1
    assert ("No module named 'what_is_not_there'" in text) == (arguments[0] == "test_broken.py")
    assert found["reaching"] == (19 if arguments[0] == "test_broken.py" else 0)
