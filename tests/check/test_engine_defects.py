"""Planted defects of the engine: each breaks one rule, and the traces notice."""
from __future__ import annotations

import re

import pytest
from engine_traces import CASES, compiler, defects, programs, run

DEFECTS = [defect.name for defect in defects()]
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")


def wrong(found: dict[str, list[str]]) -> list[str]:
    """The traces of which something else is found than in an engine without a defect."""
    expected = {case.wrong_name: case.wrong_findings for case in CASES}
    expected |= {case.right_name: case.right_findings for case in CASES if case.has_twin}
    return [name for name, findings in expected.items() if found.get(name) != findings]


def test_each_defect_breaks_a_rule_of_its_own():
    assert len(set(DEFECTS)) == len(DEFECTS) > 40
    for defect in defects():
        assert re.fullmatch(r"[a-z]+(-[a-z]+)+", defect.name)
        assert re.fullmatch(r"[A-Z].*\.", defect.rule), defect.name
    assert len({defect.rule for defect in defects()}) == len(DEFECTS)


def test_without_a_defect_nothing_is_wrong(planted):
    """... or every one would be found, whatever it does."""
    found = run(planted, programs())
    assert wrong(found) == []
    assert found["reached"] == ["0"]


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_noticed(planted, name):
    found = run(planted, programs(), name)
    assert found.get("reached") != ["0"], "no trace comes to it"
    assert wrong(found)
