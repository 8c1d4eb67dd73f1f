"""Fixtures of the tests of the benchmarks."""
from __future__ import annotations

import pytest
from bench_runs import LIBRARIES, TINY
from xlogmem_bench.world import World


@pytest.fixture
def world():
    world = World(TINY.room, tuple(LIBRARIES))
    yield world
    world.close()
