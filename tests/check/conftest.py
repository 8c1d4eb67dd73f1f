"""The engine of the check, compiled once for all tests of this folder."""
from __future__ import annotations

import os
from pathlib import Path

import pytest
from engine_traces import build


@pytest.fixture(scope="session")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that replays traces."""
    return build(tmp_path_factory.mktemp("replay"))


@pytest.fixture
def clean_environment():
    """For programs that choose their driver themselves."""
    return {name: value for name, value in os.environ.items() if not name.startswith("XLOGMEM_")}
