"""Right programs, recorded on a GPU: the engine has no certain finding in them, and would without its rules."""
from __future__ import annotations

import pytest
from engine_traces import HERE, build_planted, compiler, run

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")
FOLDER = HERE / "recorded"
# The program, how many possible findings it has, and a rule without which there are certain ones.
RECORDED = [("adam", 0, "released-unused-reported"),        # what is freed and handed out again on one stream
            ("batch_norm", 4, "library-waits"),             # cuDNN's own stream; known.toml suppresses these four
            ("graph", 0, "released-unused-reported"),
            ("upload", 0, "released-unused-reported")]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return build_planted(tmp_path_factory.mktemp("planted"))


def findings(program, name, defect=None):
    lines = (FOLDER / f"{name}.txt").read_text().splitlines()
    return run(program, {name: [line for line in lines if not line.startswith("#")]}, defect)[name]


@pytest.mark.parametrize(("name", "possible", "rule"), RECORDED, ids=[name for name, *_ in RECORDED])
def test_a_right_program_has_no_certain_finding(planted, name, possible, rule):
    found = findings(planted, name)
    assert [finding.split()[0] for finding in found] == ["possible"] * possible
    assert any(finding.startswith("certain") for finding in findings(planted, name, rule))


def test_a_graph_of_pytorchs_needs_to_know_its_pieces(planted):
    for rule in ("piece-not-there", "graphs-piece-is-stale", "capture-is-now"):
        assert findings(planted, "graph", rule) != []


def test_every_recording_is_fed():
    assert {path.stem for path in FOLDER.glob("*.txt")} == {name for name, *_ in RECORDED}
