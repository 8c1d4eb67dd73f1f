"""`benchmarks/host_reports.py`: each twin of a public report is wrong as reported, and right with xlogmem."""
from __future__ import annotations

import importlib
import json

import pytest
from places import ROOT
from sim_support import python

pytestmark = pytest.mark.simulator
PROGRAM = ROOT / "benchmarks/host_reports.py"
TIMES = 5


def rows_of(tmp_path, *arguments):
    file = tmp_path / "rows.json"
    done = python(*arguments, "--json", str(file), XLOGMEM_SIMULATE="1", PYTHONPATH=str(PROGRAM.parent))
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())["rows"]


def test_each_report_is_wrong_as_reported_and_right_with_xlogmem(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(PROGRAM.parent)
    reports = importlib.import_module("host_reports").REPORTS
    rows = rows_of(tmp_path, str(PROGRAM), "--times", str(TIMES))
    assert [(row["report"], row["way"], row["wrong"]) for row in rows] == [
        (report, *way) for report in reports for way in (("as reported", TIMES), ("with xlogmem", 0))]
    assert all(row["host_waits"] >= TIMES for row in rows if row["way"] == "with xlogmem")


WITHOUT_A_WAIT = """
import runpy, sys
from xlogmem import sim
call, *sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
simulator = sim.simulator()
for nth in range(1, 9):                                 # those that know the round before complete, too
    simulator.drop(call, nth)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(("report", "call"), [
    ("cupy#5155", "cuEventSynchronize"), ("cupy#7820", "cuEventSynchronize"), ("cudf#22321", "cuStreamWaitEvent"),
    ("cudf#24255", "cuStreamWaitEvent"), ("vllm#32799", "cuEventSynchronize")])
def test_a_wait_that_the_driver_drops_is_noticed(tmp_path, report, call):
    rows = rows_of(tmp_path, "-c", WITHOUT_A_WAIT, call, str(PROGRAM), "--times", "1", "--only", report,
                   "--delay", "200")                    # within which the host makes its mistake
    assert [(row["way"], row["wrong"]) for row in rows] == [("as reported", 1), ("with xlogmem", 1)]
