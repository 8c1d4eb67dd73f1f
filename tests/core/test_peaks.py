"""`DeviceRuntime.peak_bytes`: the most that was live at a time."""
from __future__ import annotations

import random
import threading

import pytest
from made_up import adopt_anywhere
from stress import PATIENCE, together

import xlogmem
from xlogmem import AsyncMemoryResource, DirectMemoryResource, PoolMemoryResource
from xlogmem.blocks import PeakSpan


@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource, PoolMemoryResource])
def test_it_is_the_most_that_was_live(four, resource):
    x = four(resource=resource())
    assert x.runtime.peak_bytes == 0
    first, second = x.alloc(x.S, 1000), x.alloc(x.T, 2000)
    assert x.runtime.peak_bytes == 3000
    first.free()
    third = x.alloc(x.S, 500)
    assert (x.runtime.live_bytes, x.runtime.peak_bytes) == (2500, 3000)
    fourth = x.alloc(x.S, 501)
    assert x.runtime.peak_bytes == x.runtime.snapshot().peak_bytes == 3001
    assert "  peak                 2.9 KiB\n" in x.runtime.memory_summary()
    del second, third, fourth


def test_it_stays_though_nothing_looks_at_it_meanwhile(four):
    x = four()
    x.alloc(x.S, 3000).free()
    x.alloc(x.S, 500).free()
    assert x.runtime.peak_bytes == 3000


def test_it_begins_anew(four):
    x = four()
    kept, dropped = x.alloc(x.S, 1000), x.alloc(x.S, 2000)
    dropped.free()
    x.runtime.reset_peak_bytes()
    assert x.runtime.peak_bytes == 1000
    x.alloc(x.S, 300).free()
    assert x.runtime.peak_bytes == 1300
    del kept


def test_what_fails_and_what_is_adopted_does_not_count(four):
    x = four()
    block = x.alloc(x.S, 1000)
    with pytest.raises(MemoryError):
        x.alloc(x.S, 1 << 60)
    part = adopt_anywhere(x.runtime, 0x7000_0000_0000, 4096, x.S)
    assert x.runtime.peak_bytes == 1000
    part.free()
    block.free()


def test_spans_overlap_as_they_like(four):
    """As the scopes of several threads do."""
    runtime = (x := four()).runtime
    early = PeakSpan(runtime)
    x.alloc(x.S, 4000).free()
    late = PeakSpan(runtime)
    runtime.reset_peak_bytes()
    x.alloc(x.S, 1000).free()
    assert early.peak_bytes == 4000
    early.end()
    x.alloc(x.S, 2000).free()
    late.end()
    x.alloc(x.S, 3000).free()
    assert (early.peak_bytes, late.peak_bytes, runtime.peak_bytes) == (4000, 2000, 3000)
    late.end()


def test_a_span_ends_with_the_object(four):
    x = four()
    PeakSpan(x.runtime)
    x.alloc(x.S, 1000).free()
    assert x.runtime.peak_bytes == 1000


@pytest.mark.simulator
def test_what_caches_keep_counts_and_no_more(four):
    """Never less than what was live, never more than what the pool had handed out, and exact once they are empty."""
    x = four(resource=PoolMemoryResource(stream_cache_size="64KiB", chunk_size="1MiB"))
    random.seed(5)
    most = 0
    kept = []
    for _ in range(2000):
        if kept and random.random() < .5:
            kept.pop(random.randrange(len(kept))).free()
        else:
            kept.append(x.alloc(random.choice([x.S, x.T]), random.choice([200, 256, 700, 1024])))
        most = max(most, sum(block.nbytes for block in kept))
    peak = x.runtime.peak_bytes
    assert x.runtime.counters()["cached"] > 100         # else nothing was looked at
    assert most <= peak <= x.runtime.resource.statistics()["peak_bytes"]
    for block in kept:
        block.free()
    x.runtime.snapshot()                                # empties the caches into the pool
    x.runtime.reset_peak_bytes()
    assert x.runtime.peak_bytes == 0


def test_it_is_right_beside_threads(four):
    """All threads' blocks are live at once; what caches keep of them counts as the pool has cut it."""
    x = four(resource=PoolMemoryResource())
    all_have_theirs = threading.Barrier(3)

    def work(number: int) -> None:
        with xlogmem.scope(f"thread {number}", runtime=x.runtime) as scope:
            blocks = [x.alloc(stream, 1000) for stream in (x.S, x.T) for _ in range(50)]
            all_have_theirs.wait(PATIENCE)
            for block in blocks:
                block.free()
        assert scope.peak_bytes >= 100_000

    together(work, 3)
    assert 300_000 <= x.runtime.peak_bytes <= x.runtime.resource.statistics()["peak_bytes"]


@pytest.mark.usefixtures("_busy_interpreter")
def test_spans_are_looked_at_and_end_beside_each_other(four):
    """The core writes the figures of all spans: under `.ci/sanitize tsan` a look at one without the lock is a race."""
    x = four()
    shared = PeakSpan(x.runtime)

    def work(number: int) -> None:
        for _ in range(1000):
            span = PeakSpan(x.runtime)
            block = x.runtime.allocate(512, x.S)
            assert span.peak_bytes >= 512
            assert shared.peak_bytes >= 512
            block.free()
            span.end()
            assert shared.peak_bytes >= span.peak_bytes >= 512

    together(work, 3)
    together(lambda _: shared.end(), 3)                 # every call but one does nothing
    peak = shared.peak_bytes
    blocks = [x.runtime.allocate(512, x.S) for _ in range(8)]
    assert 512 <= shared.peak_bytes == peak < 512 * len(blocks)
