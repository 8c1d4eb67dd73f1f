"""What a pool does when little memory is left: it coalesces, splits and waits in an order that saves memory."""
from __future__ import annotations

import random

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE
from pools import GRAIN, HALF, QUARTER, WHOLE, no_driver_call, simulated

from xlogmem import (
    OutOfDeviceMemoryError,
    PoolMemoryResource,
)
from xlogmem.sim.kernels import check

RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


# A pool of SIXTEEN that one chunk fills: more than half of it is in use where `filled` is.
SIXTEEN = 16 * QUARTER


def sixteen(maximum=SIXTEEN) -> PoolMemoryResource:
    return PoolMemoryResource(None, SIXTEEN, maximum)


@pytest.mark.parametrize("maximum", [SIXTEEN, 2 * SIXTEEN, None])
@simulated
def test_a_tight_pool_coalesces_what_several_streams_had_before_it_splits_a_larger_span(four, maximum):
    """S knows the rest of the chunk; with much memory left it takes that, and does not wait."""
    x = four(resource=sixteen(maximum))
    mine, theirs, filled = x.alloc(x.S, QUARTER), x.alloc(x.T, QUARTER), x.alloc(x.S, 7 * QUARTER)
    x.work(x.T, (theirs, WRITE))
    mine.free()
    theirs.free()
    waits = x.waits()
    taken = x.alloc(x.S, HALF)
    x.work(x.S, (taken, WRITE))
    tight = maximum == SIXTEEN
    assert taken.ptr == (mine.id.ptr if tight else filled.id.ptr + 7 * QUARTER)
    assert x.waits() - waits == tight
    assert x.runtime.resource.statistics()["waited"] == tight


@pytest.mark.parametrize(("mine", "known"), [(QUARTER + HALF // 4, True), (QUARTER + HALF // 4 + GRAIN, False)])
@simulated
def test_a_tight_pool_takes_what_is_known_up_to_half_more_than_is_requested(four, mine, known):
    x = four(resource=sixteen())
    own, between, theirs = x.alloc(x.S, mine), x.alloc(x.S, GRAIN), x.alloc(x.T, QUARTER)
    filled = x.alloc(x.S, SIXTEEN - mine - GRAIN - QUARTER)
    own.free()
    theirs.free()
    waits = x.waits()
    taken = x.alloc(x.S, QUARTER)
    assert taken.ptr == (own.id.ptr if known else theirs.id.ptr)
    assert x.waits() - waits == (not known)
    assert between.ptr < filled.ptr


@simulated
def test_a_tight_pool_takes_what_another_stream_had_and_is_known_before_what_has_to_be_waited_for(four, driver):
    """S knows what T freed first; its own span is too large, and a tighter fit of U's would cost a wait."""
    x = four(resource=sixteen())
    own, b1, known = x.alloc(x.S, WHOLE), x.alloc(x.S, GRAIN), x.alloc(x.T, QUARTER + GRAIN)
    b2, theirs, filled = x.alloc(x.S, GRAIN), x.alloc(x.U, QUARTER), x.alloc(x.T, 9 * QUARTER)
    own.free()
    known.free()
    theirs.free()
    x.use(x.S, (filled, READ))
    with no_driver_call(driver):
        assert x.alloc(x.S, QUARTER).ptr == known.id.ptr
    assert b1.ptr < b2.ptr


@simulated
def test_a_tight_pool_leaves_memory_alone_that_only_the_host_could_wait_for(four, driver):
    """T is a bare handle, that may be gone: what it freed is a tighter fit, and it is next to more."""
    x = four(resource=sixteen())
    handle = int(check(cuda.cuStreamCreate(1)))
    mine, theirs = x.alloc(x.S, QUARTER), x.runtime.allocate(QUARTER + 2 * GRAIN, handle)
    filled = x.alloc(x.S, 9 * QUARTER)
    x.alloc(x.T, GRAIN).free()
    mine.free()
    theirs.free()
    calls, host = driver.calls("cuCtxSynchronize"), x.runtime.counters()["host_waits"]
    for nbytes in (HALF, QUARTER + GRAIN):              # of both together there is enough, of the one
        taken = x.alloc(x.S, nbytes)
        assert taken.ptr > filled.ptr
        taken.free()
    assert x.alloc(x.S, QUARTER).ptr == mine.id.ptr
    assert driver.calls("cuCtxSynchronize") == calls
    assert x.runtime.counters()["host_waits"] == host
    filled.free()
    with pytest.raises(OutOfDeviceMemoryError, match="reap_pending"):
        x.alloc(x.S, SIXTEEN)                           # nothing else is left
    assert driver.calls("cuCtxSynchronize") == calls
    x.runtime.reap_pending()
    whole = x.alloc(x.S, SIXTEEN)
    assert whole.ptr == mine.id.ptr
    assert driver.calls("cuCtxSynchronize") == calls + 1
    del theirs
    check(cuda.cuStreamDestroy(handle))


@simulated
def test_a_tight_pool_coalesces_what_was_out_of_reach_once_a_fence_covers_it(four, driver):
    """T is a bare handle.  Its next commit records a fence, which the device can wait for."""
    x = four(resource=sixteen())
    handle = int(check(cuda.cuStreamCreate(1)))
    mine, theirs, between = x.alloc(x.S, QUARTER), x.runtime.allocate(QUARTER, handle), x.alloc(x.S, GRAIN)
    other, filled = x.runtime.allocate(GRAIN, handle), x.alloc(x.S, 9 * QUARTER)
    x.alloc(x.T, GRAIN).free()
    mine.free()
    theirs.free()
    x.alloc(x.S, WHOLE).free()                          # looks at the two: out of reach so far
    x.use(x.runtime.register_stream(handle), (other, WRITE))
    calls = driver.calls("cuCtxSynchronize")
    assert x.alloc(x.S, HALF).ptr == mine.id.ptr
    assert driver.calls("cuCtxSynchronize") == calls
    assert between.ptr < other.ptr < filled.ptr
    check(cuda.cuCtxSynchronize())
    del theirs, other
    check(cuda.cuStreamDestroy(handle))


@simulated
def test_where_nothing_else_fits_what_the_device_can_wait_for_comes_before_what_the_host_has_to(four, driver):
    """Of two adjacent pairs one is covered by a fence meanwhile; the other is not, and comes first."""
    x = four(resource=sixteen())
    handles = [int(check(cuda.cuStreamCreate(1))) for _ in range(2)]
    x.alloc(x.T, SIXTEEN).free()
    pairs, kept = [], []
    for handle in handles:
        pairs.append((x.alloc(x.S, QUARTER), x.runtime.allocate(QUARTER, handle)))
        kept.append(x.alloc(x.S, GRAIN))
    other = x.runtime.allocate(GRAIN, handles[1])
    kept.append(x.alloc(x.S, SIXTEEN - 8 * QUARTER - 3 * GRAIN))
    rest = x.alloc(x.S, 4 * QUARTER)
    for block in (*pairs[0], *pairs[1], rest):
        block.free()
    kept += [x.alloc(x.S, HALF + GRAIN), x.alloc(x.S, HALF - GRAIN)]    # now nothing else is left
    x.use(x.runtime.register_stream(handles[1]), (other, WRITE))
    calls = driver.calls("cuCtxSynchronize")
    kept.append(x.alloc(x.S, HALF))
    assert kept[-1].ptr == pairs[1][0].id.ptr
    assert driver.calls("cuCtxSynchronize") == calls
    with pytest.raises(OutOfDeviceMemoryError, match="reap_pending"):
        x.alloc(x.S, HALF)
    x.runtime.reap_pending()
    kept.append(x.alloc(x.S, HALF))
    assert kept[-1].ptr == pairs[0][0].id.ptr
    assert driver.calls("cuCtxSynchronize") == calls + 1
    del pairs, other, block
    for handle in handles:
        check(cuda.cuStreamDestroy(handle))


@simulated
def test_a_tight_pool_takes_a_larger_span_where_the_tightest_is_of_a_stream_that_captures(four):
    x = four(resource=sixteen())
    own, between, theirs = x.alloc(x.S, WHOLE), x.alloc(x.S, GRAIN), x.alloc(x.T, QUARTER)
    filled = x.alloc(x.S, 11 * QUARTER - GRAIN)
    own.free()
    check(cuda.cuStreamBeginCapture(x.T.handle, RELAXED))
    theirs.free()
    taken = x.alloc(x.S, QUARTER)
    assert taken.ptr == own.id.ptr
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.T.handle))))
    assert x.alloc(x.S, QUARTER).ptr == theirs.id.ptr
    assert between.ptr < filled.ptr


@simulated
def test_a_maximum_that_is_far_away_changes_nothing(four):
    """Churn on eight streams with less than half of it in use: the same addresses and the same waits as without."""
    def churn(pool):
        x = four(resource=pool)
        streams = [x.S, x.T, x.U, x.V, *(x.runtime.acquire_stream() for _ in range(4))]
        draw = random.Random(7)
        alive, places, base = [], [], None
        for _ in range(2000):
            if len(alive) >= 40:
                alive.pop(draw.randrange(len(alive))).free()
            alive.append(x.alloc(draw.choice(streams), GRAIN * draw.randint(1, 40)))
            base = base or alive[-1].ptr
            places.append(alive[-1].ptr - base)
        seen = pool.statistics()
        assert seen["grown"] == 1
        return places, x.waits(), seen["waited"], seen["peak_bytes"]

    size = 1 << 20
    without = churn(PoolMemoryResource(None, size, stream_cache_size=0))
    peak = without[-1]
    assert peak < size // 2
    assert churn(PoolMemoryResource(None, size, size, stream_cache_size=0)) == without
    places, waits, waited, _ = churn(PoolMemoryResource(None, 3 * peak // 2, 3 * peak // 2, stream_cache_size=0))
    assert places != without[0]
    assert waits > without[1]
    assert waited > without[2]
