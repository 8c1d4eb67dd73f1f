"""How small a pool may be for cuDF's log, and for small versions of the others of `benchmarks/pool_fragmentation.py`.

A bound is percent beyond the most in use, in steps of half a percent, of the smallest maximum that is enough where the
pool takes all of it at once, and where it grows.  RMM's pool needs 18.5 and 20.5 for cuDF's log.  A change that needs
more has to say why; one that needs less lowers the bound.
"""
from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterable

import pytest
from places import ROOT
from xlogmem_bench import logs
from xlogmem_bench.recorded import recorded

pytestmark = pytest.mark.simulator
BENCHMARKS = ROOT / "benchmarks"
BOUNDS: dict[str, tuple[Callable[[], Iterable[logs.Event]], float, float]] = {
    "random sizes": (lambda: logs.random_sizes(random.Random(0), 1, 4000), 13.5, 14),
    "random sizes, 8 streams": (lambda: logs.random_sizes(random.Random(0), 8, 4000), 17, 17),
    "ORC-like bursts": (lambda: logs.orc_bursts(random.Random(0), 2, 1000), 0, 12),
    "queries": (lambda: logs.queries(random.Random(0), 1, 40), 6.5, 7),
    "queries, 4 streams": (lambda: logs.queries(random.Random(0), 4, 40), 10, 10),
    "queries, 8 streams": (lambda: logs.queries(random.Random(1), 8, 40), 13.5, 13),
    "cuDF": (lambda: recorded(str(BENCHMARKS / "logs" / "cudf-26.10-h200.csv.gz")), 16, 17)}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_pool_needs_no_more_memory_than_was_recorded(monkeypatch, name):
    monkeypatch.syspath_prepend(BENCHMARKS)
    script = importlib.import_module("pool_fragmentation")
    events, *bounds = BOUNDS[name]
    log = list(events())
    least = logs.peak(log)
    for at_once, bound in zip((True, False), bounds, strict=True):
        seen = script.smallest(script.fits_ours, log, at_once)
        assert seen <= logs.rounded(least + int(2 * bound) * least // script.FINE), 100 * (seen / least - 1)
