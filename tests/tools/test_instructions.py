"""Instructions are counted by module, and limits are kept."""
from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from places import ROOT
from which_driver import SIMULATED
from xlogmem_bench import cases, processes, settings
from xlogmem_bench.settings import Settings


def test_instructions_are_counted_by_module(tmp_path):
    """In xlogmem's modules, but for the loops and the simulated driver; what they call elsewhere does not count."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import instructions
    finally:
        sys.path.pop(0)
    dump = tmp_path / "out.1"
    dump.write_text("events: Ir\nob=(1) /x/xlogmem/_core.so\nfn=(1) a\n12 5\n+3 7\n"
                    "cob=(2) /x/xlogmem/sim/_simcuda.so\ncfn=(2) b\ncalls=1 90\n+1 1000\n* 2\n\n"
                    "ob=(2)\nfn=(2)\n90 1000\n\nob=(3) /x/benchmarks/src/xlogmem_bench/_loops.so\n"
                    "fn=(3) c\n1 400\n\nob=(4) /lib/libc.so.6\nfn=(4) d\n1 800\n\nob=(1)\nfn=(5) e\n-2 30\n")
    assert instructions.counted(dump) == 5 + 7 + 2 + 30
    recorded = json.loads((ROOT / "benchmarks" / "instructions.json").read_text())
    assert set(recorded["instructions"]) == set(instructions.PATHS)


@pytest.mark.skipif(not SIMULATED, reason="needs the simulated driver")
def test_without_valgrind_it_says_so_and_does_not_fail():
    run = subprocess.run([sys.executable, str(ROOT / "benchmarks" / "instructions.py")], capture_output=True, text=True,
                         timeout=100, env=os.environ | {"PATH": "/nonexistent"})
    assert run.returncode == 0, run.stderr
    assert "INSTRUCTIONS NOT COUNTED: valgrind is not installed" in run.stdout


def test_what_is_not_reached_in_time_is_named():
    chosen = tuple(case.id for case in cases.all_cases() if case.family == "lookup")[:2]
    raw = processes.run(Settings(only=chosen, seconds=0, processes=2), lambda event: None)
    assert not raw["rows"]
    assert [(failure["case"], failure["text"]) for failure in raw["failures"]] == [
        (case, settings.LATE) for case in chosen]
