"""What a pool costs, counted in driver calls, and which free memory it takes first."""
from __future__ import annotations

import random

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE
from pools import GRAIN, HALF, QUARTER, WHOLE, no_driver_call, one_chunk, simulated

from xlogmem import (
    PoolMemoryResource,
)
from xlogmem.sim.kernels import check


@simulated
@pytest.mark.parametrize("discipline", ["ordinary", "opaque", "sealed"])
def test_a_free_makes_no_driver_call_and_neither_does_taking_what_the_stream_knows(four, driver, discipline):
    x = four(resource=one_chunk(), **({} if discipline == "ordinary" else {discipline: "S"}))
    b = x.alloc(x.S, WHOLE)
    x.use(x.T, (b, WRITE))
    waits = x.waits()
    queries = driver.calls("cuStreamIsCapturing")
    with no_driver_call(driver):
        b.free()
    assert driver.calls("cuStreamIsCapturing") == queries
    c = x.alloc(x.S, WHOLE)                             # S waits for T's write, unless it was handed back before
    assert x.waits() == waits + (discipline != "opaque")
    c.free()
    with no_driver_call(driver):
        x.alloc(x.S, WHOLE).free()
        d = x.alloc(x.S, HALF)
        x.alloc(x.S, HALF).free()
        d.free()


@simulated
def test_a_dropped_block_is_freed_without_a_driver_call(four, driver):
    x = four(resource=one_chunk())
    b = x.alloc(x.S, WHOLE)
    with no_driver_call(driver):
        del b
        x.runtime.reap_pending()
    assert x.runtime.resource.statistics()["used_bytes"] == 0


@simulated
@pytest.mark.parametrize(("policy", "sealed", "records", "waits"), [
    ("lazy", "", 399, 399), ("adaptive", "", 399, 399), ("precise", "", 599, 399), ("lazy", "ST", 200, 200)])
def test_memory_that_goes_back_and_forth_between_two_streams(four, policy, sealed, records, waits):
    x = four(resource=one_chunk(), policy=policy, sealed=sealed)
    for i in range(200):
        b = x.alloc((x.S, x.T)[i % 2], WHOLE)
        x.use((x.T, x.S)[i % 2], (b, READ))
        b.free()
    assert x.records() <= records
    assert x.waits() <= waits


@simulated
def test_streams_that_take_what_they_freed_themselves_never_meet(four, driver):
    """Eight streams, each with blocks of its own sizes: grown once, and no stream waits for another."""
    pool = PoolMemoryResource(chunk_size=1 << 20)
    x = four(resource=pool)
    streams = [x.S, x.T, x.U, x.V, *(x.runtime.acquire_stream() for _ in range(4))]

    def rounds(count):
        for number in range(count):
            blocks = [x.alloc(stream, GRAIN * (1 + i % 3 + number % 2)) for i, stream in enumerate(streams)]
            for stream, block in zip(streams, blocks, strict=True):
                x.kernels.fill(stream.handle, block.ptr, 1, 1)
                block.free()

    rounds(4)
    grown = pool.statistics()["grown"]
    with no_driver_call(driver, "cuLaunchKernel", "cuModuleGetFunction"):
        rounds(100)
    assert pool.statistics()["grown"] == grown


@simulated
@pytest.mark.parametrize("policy", ["lazy", "adaptive", "precise"])
def test_steady_churn_waits_at_most_once_for_each_foreign_stream(four, driver, policy):
    """Random sizes on eight streams, used elsewhere now and then: no growth and no call upstream in the steady state,
    and an allocation makes at most one wait for each other stream, none for what its stream knows."""
    pool = PoolMemoryResource(chunk_size=1 << 20, maximum_pool_size=1 << 20)
    x = four(resource=pool, policy=policy)
    streams = [x.S, x.T, x.U, x.V, *(x.runtime.acquire_stream() for _ in range(4))]
    draw = random.Random(7)
    alive = []

    def step():
        if len(alive) >= 40:
            alive.pop(draw.randrange(len(alive))).free()
        waits, host = x.waits(), x.runtime.counters()["host_waits"]
        block = x.alloc(draw.choice(streams), GRAIN * draw.randint(1, 40))
        assert x.waits() - waits <= 7
        assert x.runtime.counters()["host_waits"] == host
        if draw.random() < .3:
            with x.recorder(draw.choice(streams), (block, READ)):
                pass
        alive.append(block)

    for _ in range(400):
        step()
    before = pool.statistics()
    calls = [driver.calls(name) for name in ("cuMemAllocFromPoolAsync", "cuMemFreeAsync")]
    for _ in range(2000):
        step()
    after = pool.statistics()
    assert [driver.calls(name) for name in ("cuMemAllocFromPoolAsync", "cuMemFreeAsync")] == calls
    assert (after["grown"], after["released"]) == (before["grown"], 0)
    assert after["waited"] - before["waited"] < 2000
    alive.clear()


@simulated
def test_what_the_stream_knows_is_taken_before_a_tighter_fit_that_it_would_wait_for(four):
    x = four(resource=PoolMemoryResource(chunk_size=WHOLE))
    mine, between, theirs = x.alloc(x.S, HALF), x.alloc(x.S, GRAIN), x.alloc(x.T, QUARTER)
    mine.free()
    theirs.free()
    waits = x.waits()
    assert x.alloc(x.S, QUARTER).ptr == mine.id.ptr
    assert x.waits() == waits
    between.free()


@simulated
def test_another_streams_memory_that_is_known_costs_nothing(four, driver):
    """T is ordered after what S did, by a use of its own: memory that S freed before is taken without a wait."""
    x = four(resource=one_chunk())
    freed, handed = x.alloc(x.S, HALF), x.alloc(x.S, HALF)
    freed.free()
    x.use(x.T, (handed, READ))
    with no_driver_call(driver):
        assert x.alloc(x.T, HALF).ptr == freed.id.ptr
    assert x.runtime.resource.statistics()["waited"] == 0


@simulated
def test_memory_of_a_stream_that_has_gone_quiet_is_not_kept_back(four, driver):
    """A side stream is used once and never again: its memory is used by others, for one wait, without growing."""
    pool = PoolMemoryResource(chunk_size=1 << 20)
    x = four(resource=pool)
    side = [x.alloc(x.U, 1 << 18) for _ in range(4)]
    for block in side:
        x.work(x.U, (block, WRITE))
    driver.set_policy("min")                            # the side stream never gets on by itself
    addresses = {block.ptr for block in side}
    for block in side:
        block.free()
    del block, side
    grown, waits = pool.statistics()["grown"], x.waits()
    blocks = [x.alloc(x.S, 1 << 18) for _ in range(4)]
    assert {block.ptr for block in blocks} == addresses
    assert pool.statistics()["grown"] == grown
    assert x.waits() == waits + 1
    assert x.runtime.counters()["host_waits"] == 0


@simulated
def test_what_the_host_has_seen_is_not_waited_for(four, driver):
    """The host saw the last fence of an unregistered stream complete: memory freed there is ready on all streams."""
    x = four(resource=one_chunk())
    handle = int(check(cuda.cuStreamCreate(1)))
    stream = x.runtime.register_stream(handle)
    x.alloc(stream, WHOLE).free()
    x.runtime.unregister_stream(stream)
    check(cuda.cuStreamDestroy(handle))
    x.runtime.reap_pending()
    with no_driver_call(driver):
        x.alloc(x.T, WHOLE).free()
