"""The simulator answers as an H200 did."""

from __future__ import annotations

from pathlib import Path

import pytest
import sim_support as cu
from places import HELPERS

pytestmark = pytest.mark.simulator

HERE = Path(__file__).parent


@pytest.mark.parametrize("policy", ["eager", "min", "max", "seeded"])
def test_same_answers_as_the_hardware(policy):
    # A fresh process: the first query is made without a context.
    done = cu.python(str(HELPERS / "conform.py"), policy)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (HERE / "conform.h200.txt").read_text()
