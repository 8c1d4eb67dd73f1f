"""The engine of the check, compiled once for all tests of this folder."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from check_server import Server
from engine_traces import build, build_planted
from made_once import made_once


@pytest.fixture(scope="session")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that replays traces."""
    return made_once(tmp_path_factory, "engine", build)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with all defects of the engine, of which the environment selects one."""
    return made_once(tmp_path_factory, "engine-planted", build_planted)


def without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items()
            if (not name.startswith("XLOGMEM_") or name == "XLOGMEM_DEFECT") and name != "PYTHONSAFEPATH"}


@pytest.fixture
def clean_environment():
    """For programs that choose their driver themselves, and import what lies beside them."""
    return without_settings()


@pytest.fixture(scope="session")
def _check_server():
    server = Server(without_settings())
    yield server
    server.close()


@pytest.fixture
def xlogmem_check(tmp_path, clean_environment, _check_server):
    """Runs `xlogmem check` with these words in the test's folder; the text and the status are in what it returns."""
    def run(*words, timeout=300, **environment):
        variables = clean_environment | environment
        if _check_server.serves(variables):
            return _check_server.run(["check", *map(str, words)], tmp_path, variables, timeout)
        return subprocess.run([sys.executable, "-m", "xlogmem", "check", *words], capture_output=True, text=True,
                              cwd=tmp_path, timeout=timeout, env=variables)

    return run


@pytest.fixture
def checked(tmp_path, xlogmem_check):
    """Runs a program under `xlogmem check`; `notes` of what is returned has the JSON."""
    def run(program, *arguments, **environment):
        file, out = tmp_path / "program.py", tmp_path / "out.json"
        file.write_text(textwrap.dedent(program))
        done = xlogmem_check("--json", out, "--", sys.executable, file, *arguments, **environment)
        done.notes = json.loads(out.read_text())
        done.findings = done.notes["findings"]
        done.pairs = [(one["pair"], one["certain"]) for one in done.findings]
        return done

    return run
