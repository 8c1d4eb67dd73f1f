"""The engine of the check, compiled once for all tests of this folder."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from engine_traces import build, build_planted


@pytest.fixture(scope="session")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that replays traces."""
    return build(tmp_path_factory.mktemp("replay"))


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with all defects of the engine, of which the environment selects one."""
    return build_planted(tmp_path_factory.mktemp("planted"))


@pytest.fixture
def clean_environment():
    """For programs that choose their driver themselves, and import what lies beside them."""
    return {name: value for name, value in os.environ.items()
            if (not name.startswith("XLOGMEM_") or name == "XLOGMEM_DEFECT") and name != "PYTHONSAFEPATH"}


@pytest.fixture
def checked(tmp_path, clean_environment):
    """Runs a program under `xlogmem check`; `notes` of what is returned has the JSON."""
    def run(program, *arguments, **environment):
        file, out = tmp_path / "program.py", tmp_path / "out.json"
        file.write_text(textwrap.dedent(program))
        done = subprocess.run([sys.executable, "-m", "xlogmem", "check", "--json", str(out), "--", sys.executable,
                               str(file), *arguments], capture_output=True, text=True, cwd=tmp_path, timeout=300,
                              env=clean_environment | environment)
        done.notes = json.loads(out.read_text())
        done.findings = done.notes["findings"]
        done.pairs = [(one["pair"], one["certain"]) for one in done.findings]
        return done

    return run
