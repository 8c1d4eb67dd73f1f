"""Right programs, recorded on a GPU: the engine has no certain finding in them, and would without its rules."""
from __future__ import annotations

import re

import pytest
from engine_traces import HERE, compiler, run

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")
FOLDER = HERE / "recorded"
POSSIBLE = {"adam": 0, "batch_norm": 4, "graph": 0, "upload": 0}   # of cuDNN's stream: known.toml suppresses those
# The same program in which a stream does not come after what it did itself, or a library's stream counts as others do.
WRONG = [("adam", "earlier-owner-at-home"), ("batch_norm", "library-waits")]


def lines_of(name):
    return [line for line in (FOLDER / f"{name}.txt").read_text().splitlines() if not line.startswith("#")]


def findings(program, name, defect=None):
    return run(program, {name: lines_of(name)}, defect)[name]


@pytest.mark.parametrize("name", POSSIBLE)
def test_a_right_program_has_no_certain_finding(planted, name):
    assert [finding.split()[0] for finding in findings(planted, name)] == ["possible"] * POSSIBLE[name]


@pytest.mark.parametrize(("name", "rule"), WRONG)
def test_without_the_rule_there_are_certain_findings(planted, name, rule):
    assert any(finding.startswith("certain") for finding in findings(planted, name, rule))


def test_a_graph_of_pytorchs_needs_to_know_its_pieces(planted):
    for rule in ("piece-not-there", "graphs-piece-is-stale", "capture-is-now"):
        assert findings(planted, "graph", rule) != []


def test_an_upload_on_another_stream_is_found(planted):
    copies = re.compile(r"^:work 1 (?=5 )")                 # 5: cuMemcpyHtoDAsync
    lines = [copies.sub(":work 2 ", line) for line in lines_of("upload")]
    at = next(number for number, line in enumerate(lines) if line.startswith(":stream 1 "))
    lines.insert(at, ":stream 2 2 0 0 0")
    found = run(planted, {"upload": lines})["upload"]
    assert any(re.match(r"certain write/read cuMemcpyHtoDAsync\S+ cupy_multiply", finding) for finding in found)


def test_every_recording_is_fed():
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(POSSIBLE)
