"""examples/races: each program is found, with its pair and its two lines, and the repaired form is silent."""
from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from cuda.bindings import driver as cuda
from gallery import CHECKED, FOLDER, RACES, Race, require

PLACES = [pytest.param("--no-gpu", marks=pytest.mark.simulator), pytest.param("--gpu", marks=pytest.mark.gpu)]
FROM_MACHINE_CODE = {"12_stream_of_a_pool", "15_upload_not_awaited"}       # `use` may stand for `read` there
FROM_PAGEABLE = "33_array_dropped_after_a_batch"


@pytest.fixture
def run(xlogmem_check, tmp_path):
    def check(place: str, *command: str):
        done = xlogmem_check(place, "--json", "out.json", "--", sys.executable, *command)
        return done, json.loads((tmp_path / "out.json").read_text())["findings"]

    return check


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("race", CHECKED)
def test_the_race_is_found_with_both_lines(race, place, run):
    require(race, place)
    certain = place == "--no-gpu" or race.program != FROM_PAGEABLE or not kernels_reach_all_memory()
    done, findings = run(place, str(race.file))
    found = {(pair_of(one, race, place), line_of(one["first"], race), line_of(one["second"], race))
             for one in findings if one["certain"] or not certain}
    assert found == {(race.finding, race.line("first"), race.line("then"))}, done.stderr
    assert done.returncode == (1 if certain else 0), done.stderr


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("race", CHECKED)
def test_the_repaired_program_is_silent(race, place, run):
    require(race, place)
    done, findings = run(place, str(race.file), "--fixed")
    assert done.returncode == 0, done.stderr
    assert findings == []


def pair_of(finding, race: Race, place: str) -> str:
    pair = finding["pair"] if finding["kind"] == "race" else finding["kind"]
    unknown = place == "--gpu" and race.program in FROM_MACHINE_CODE
    return pair.replace("use", "read") if unknown else pair


def kernels_reach_all_memory() -> bool:
    _, value = cuda.cuDeviceGetAttribute(cuda.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0)
    return value != 0


def line_of(access, race: Race) -> int | None:
    """Of the innermost frame in the program."""
    stack = access["captured"] or access["stack"]       # the gallery marks what was captured
    return next((frame["line"] for frame in stack if Path(frame["file"]) == race.file), None)


@pytest.mark.simulator
def test_every_program_is_in_the_table():
    files = {file.stem for file in FOLDER.glob("[0-9]*.py")}
    assert files == {race.program for race in RACES}
    assert len(RACES) == 33


@pytest.mark.simulator
@pytest.mark.parametrize("race", RACES, ids=str)
def test_a_program_says_where_it_comes_from(race):
    text = race.file.read_text()
    assert race.thread in text
    assert all(word in text for word in ("Wrong:", "Repair:"))
    assert not re.search("xlogmem|simulat", text)       # it is a plain program
