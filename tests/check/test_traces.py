"""The engine of the check alone, fed with traces: what is wrong is found, and its repaired twin is silent.

A trace is a part of a file of `traces/`, behind a line ``== NAME``: a call a line, as replay.cpp reads them.  A line
that begins with ``-`` stands in the wrong program alone, one with ``+`` in the repaired one; ``=>`` is a finding in the
wrong program, ``=+>`` one in the repaired.  ``@N`` is the place of a call in the program, ``%`` the round of a
``repeat``.
"""
from __future__ import annotations

import subprocess

import pytest
from engine_traces import CASES, Case, compiler, programs, run
from places import ROOT

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler here")


@pytest.fixture(scope="module")
def found(replay) -> dict[str, list[str]]:
    return run(replay, programs())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_wrong_program_is_found(case: Case, found):
    assert found[case.wrong_name] == case.wrong_findings


@pytest.mark.parametrize("case", [case for case in CASES if case.has_twin], ids=str)
def test_the_repaired_program_is_silent(case: Case, found):
    assert found[case.right_name] == case.right_findings


def test_what_is_wrong_has_a_repaired_twin():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names) > 100
    for case in CASES:
        certain = [finding for finding in case.wrong_findings if finding.startswith("certain")]
        assert case.has_twin or not certain, case.name
        assert not any(finding.startswith("certain") for finding in case.right_findings), case.name


def test_findings_are_bounded_where_no_place_is_known(replay):
    trace = ["stream A", "stream B", "alloc p 2048 host", "run A fill p[0:2048]:write", "repeat 1005",
             "run B copy p[%:%+1]:read", "done"]
    found = run(replay, {"it": trace})["it"]
    assert len(set(found)) == 1001
    assert found[999:] == ["certain write/read fill@0/A copy@0/B p[999:1000]", "left out 5"]


def test_places_of_allocations_leave_room_for_other_findings(replay):
    """The first 500 of them are findings of their own; the others are counted with the first one."""
    trace = ["stream A", "stream B", "alloc q 64 host @9999", "repeat 700", "alloc p% 64 host @%",
             "run A fill p%[0:64]:write @8000", "run B copy p%[0:64]:read @8001", "done",
             "run A fill q[0:64]:write @8002", "run B copy q[0:64]:read @8003"]
    found = run(replay, {"it": trace})["it"]
    assert len(set(found)) == 501
    assert found[0] == "certain write/read fill@8000/A copy@8001/B p0[0:64] x201"
    assert found[-1] == "certain write/read fill@8002/A copy@8003/B q[0:64]"


def test_a_trace_that_is_no_trace_is_refused(replay):
    with pytest.raises(AssertionError, match="line 2: free q host: no block q"):
        run(replay, {"it": ["free q host"]})


def test_the_benchmark_of_the_engine_compiles():
    subprocess.run([compiler(), "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", ROOT / "cpp",
                    ROOT / "benchmarks/check_engine.cpp"], check=True)
