"""Fixtures of the tests of the benchmarks."""
from __future__ import annotations

import pytest
from bench_runs import NEIGHBOURS, TINY

from xlogmem.bench.allocators import World


@pytest.fixture
def world():
    world = World(TINY.room, tuple(NEIGHBOURS))
    yield world
    world.close()
