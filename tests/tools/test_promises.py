"""The `promise` marker itself: wrong citations are errors, right ones are counted if their tests pass."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import HELPERS
from promises import COUNTED, ITEMS, MOST, REPLACED


def run(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    """pytest in a process and a folder of its own."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    promise(*items)\n")
    (folder / "conftest.py").write_text(
        "from promises import Ledger\n"
        "def pytest_configure(config):\n    config.pluginmanager.register(Ledger(), 'promises')\n")
    (folder / "test_it.py").write_text("import pytest\n" + program)
    return subprocess.run([sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options], capture_output=True,
                          text=True, timeout=100, cwd=folder, env=os.environ | {"PYTHONPATH": str(HELPERS)})


def test_wrong_citations_stop_the_run(tmp_path):
    """More than five items, an unknown item, a duplicate, no item: each is named, and nothing is run."""
    done = run(tmp_path, """
@pytest.mark.promise(1, 2, 3, 4, 5, 6)
def test_six(): raise SystemExit("ran")
@pytest.mark.promise(1, 2, 3)
@pytest.mark.promise(4, 5, 6)
def test_three_and_three(): pass
@pytest.mark.promise(240)
def test_unknown(): pass
@pytest.mark.promise(0, "37", True)
def test_strange(): pass
@pytest.mark.promise(7, 8, 7)
def test_twice(): pass
@pytest.mark.promise()
def test_none(): pass
@pytest.mark.promise(1, 2, 3, 4, 239)
def test_fine(): pass
""")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    said = done.stdout + done.stderr
    for line in ("test_six: 6 items are cited, at most 5 may be", "test_three_and_three: 6 items",
                 "test_unknown: there is no item 240", "test_strange: there is no item 0",
                 "test_strange: there is no item '37'", "test_strange: there is no item True",
                 "test_twice: item 7 is cited twice", "test_none: a promise marker takes"):
        assert line in said, said
    assert "test_fine" not in said
    assert "passed" not in said


PROGRAM = """
@pytest.mark.promise(1, 2, 127, 206, 212)
def test_passes(): pass
@pytest.mark.promise(2, 3)
@pytest.mark.parametrize("n", [1, 2])
def test_passes_twice(n): pass
@pytest.mark.promise(3, 4)
@pytest.mark.xfail(strict=True)
def test_is_expected_to_fail(): assert False
@pytest.mark.promise(5)
def test_skips(): pytest.skip()
@pytest.fixture
def broken():
    yield
    assert EXPECTED
@pytest.mark.promise(6)
def test_fails_afterwards(broken): pass
"""


def test_what_passes_is_counted(tmp_path):
    """One line: the items to be checked that passing tests cite and no failing one."""
    done = run(tmp_path, PROGRAM.replace("EXPECTED", "True"))
    assert f"\npromises: 4/{len(COUNTED)}\n" in done.stdout         # 1, 2, 6 and 206
    assert "replaced:" not in done.stdout
    done = run(tmp_path, PROGRAM.replace("EXPECTED", "False"), "-v")
    missing = "3-126 135-154 177 183-190 193-202 207-211 213-218 221-222 232 236-239"
    assert f"\npromises: 3/{len(COUNTED)}\nmissing: {missing}\nnot kept: 3-4 6\nreplaced: 3 – " in done.stdout
    assert done.stdout.count("\nreplaced: ") == len(REPLACED)


def test_a_part_of_the_tests_says_so(tmp_path):
    """A run that leaves tests out does not look like a verdict."""
    done = run(tmp_path, PROGRAM, "-k", "twice")
    assert f"\npromises: 2/{len(COUNTED)} (of the tests that were selected)\n" in done.stdout
    done = run(tmp_path, PROGRAM, "-k", "skips")
    assert "promises:" not in done.stdout


def test_the_table_of_replaced_items():
    """Every replaced item exists, and says what replaces it and why."""
    assert set(COUNTED) < set(ITEMS)
    assert list(COUNTED) == sorted(set(COUNTED))
    assert MOST == 5
    for number, (rule, why) in REPLACED.items():
        assert number in ITEMS
        assert rule
        assert why
    assert list(REPLACED) == sorted(REPLACED)
