"""examples/races: each program is found, with its pair and its two lines, and the repaired form is silent."""
from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from gallery import CHECK, CHECKED, FOLDER, RACES, Race, require

pytestmark = pytest.mark.simulator


def run(environment, out: Path, *command: str):
    done = subprocess.run([*CHECK, "--json", str(out), "--", sys.executable, *command], capture_output=True, text=True,
                          env=environment, timeout=120, cwd=out.parent)     # not where the sources of xlogmem are
    return done, json.loads(out.read_text())["findings"]


@pytest.fixture
def environment(clean_environment):
    return clean_environment


@pytest.mark.parametrize("race", CHECKED)
def test_the_race_is_found_with_both_lines(race, environment, tmp_path):
    require(race)
    done, findings = run(environment, tmp_path / "out.json", str(race.file))
    assert done.returncode == 1, done.stderr
    found = {(one["pair"] if one["kind"] == "race" else one["kind"], line_of(one["first"], race),
              line_of(one["second"], race)) for one in findings if one["certain"]}
    assert found == {(race.finding, race.line("first"), race.line("then"))}, done.stderr


@pytest.mark.parametrize("race", CHECKED)
def test_the_repaired_program_is_silent(race, environment, tmp_path):
    require(race)
    done, findings = run(environment, tmp_path / "out.json", str(race.file), "--fixed")
    assert done.returncode == 0, done.stderr
    assert findings == []


def line_of(access, race: Race) -> int | None:
    """Of the innermost frame in the program."""
    stack = access["captured"] or access["stack"]       # the gallery marks what was captured
    return next((frame["line"] for frame in stack if Path(frame["file"]) == race.file), None)


def test_every_program_is_in_the_table():
    files = {file.stem for file in FOLDER.glob("[0-9]*.py")}
    assert files == {race.program for race in RACES}
    assert len(RACES) == 33


@pytest.mark.parametrize("race", RACES, ids=str)
def test_a_program_says_where_it_comes_from(race):
    text = race.file.read_text()
    assert race.thread in text
    assert all(word in text for word in ("Wrong:", "Repair:"))
    assert not re.search("xlogmem|simulat", text)       # it is a plain program
