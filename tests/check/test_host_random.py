"""Random programs against a model of their own: each access of the host is found exactly if nothing orders it.

Small ranges of several kinds of host memory, many of them in one page; two streams, two events, system calls.
"""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from page_guard import NEEDED

import xlogmem.check.command

pytestmark = [pytest.mark.simulator, *NEEDED]
PROGRAM = Path(__file__).parents[1] / "helpers/random_host.py"


@pytest.fixture
def play(clean_environment):
    def run(*arguments: object) -> str:
        environment = clean_environment | xlogmem.check.command.preloaded() | {
            "XLOGMEM_SIMULATE": "1", "XLOGMEM_SIM": "quiet"}
        done = subprocess.run([sys.executable, PROGRAM, *map(str, arguments)], capture_output=True, text=True,
                              env=environment, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_memory_that_comes_and_goes(play):
    """... with its addresses."""
    said = play(100, 60, 20)
    assert "differs" not in said
    assert int(said.split()[1]) > 300


@pytest.mark.parametrize("seed", range(4))
def test_what_is_found_is_what_the_model_says(play, seed):
    said = play(seed, 1000)
    assert "differs" not in said
    races, accesses = (int(word) for word in said.split()[:2])
    assert races > 10
    assert accesses > 300


def test_several_threads(play):
    """What they find depends on them; nothing breaks."""
    assert int(play(20, 400, 1, 4).split()[0]) > 0
