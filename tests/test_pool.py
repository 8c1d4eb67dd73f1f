"""The pool: free memory that carries its frontier.  Order with twins (see `scenarios`), costs counted in driver calls,
growth and limits, failures of every call, threads.
"""
from __future__ import annotations

import contextlib
import gc
import itertools
import random
import re
import threading

import pytest
from bench import QUERIES, READ, READ_WRITE, WRITE, Bench
from cuda.bindings import driver as cuda
from scenarios import Scenarios
from stress import Program, held_up, together

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StreamMisuseError,
    StreamPool,
)
from xlogmem._kernels import check
from xlogmem.devices import DeviceState

WHOLE, HALF, QUARTER, GRAIN = 4096, 2048, 1024, 256     # bytes of the one chunk that most tests have, and parts of it
RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED

simulated = pytest.mark.simulator


def one_chunk() -> PoolMemoryResource:
    """Whoever takes WHOLE gets what the last owner had."""
    return PoolMemoryResource(maximum_pool_size=WHOLE, chunk_size=WHOLE)


scenario = Scenarios(one_chunk)


# ---------------------------------------------------------------------------------------- order
@scenario()
def an_allocation_orders_its_stream(x: Bench) -> bool:
    """Memory last read on V, freed on S, taken on T and handed to U: U is ordered through T's new position."""
    b = x.alloc(x.S, WHOLE)
    one, two = x.use(x.V, (b, READ)), x.use(x.V, (b, READ))
    late = x.work(x.S, (b, READ))
    b.free()
    c = x.alloc(x.T, WHOLE)
    x.use(x.U, (c, WRITE))
    return x.ordered(one, x.T) and x.ordered(two, x.U) and x.ordered(late, x.T)


@scenario(opaque="T", spare=1)
def hidden_work_on_an_opaque_stream_is_handed_over_as_a_new_position(x: Bench) -> bool:
    """The entry of the opaque T is raised for the last time when b is freed: a position that U knows is not enough.
    (T waits for S a second time, for what may have been filled into the other block: nothing was.)"""
    b, other = x.alloc(x.S, HALF), x.alloc(x.S, HALF)
    x.use(x.T, (b, READ))
    x.use(x.T, (other, READ))
    x.use(x.U, (other, READ_WRITE))                     # U knows T
    hidden = x.work(x.T, (b, READ))
    late = x.work(x.S, (b, READ))
    b.free()
    x.alloc(x.U, HALF)
    return x.ordered(hidden, x.U) and x.ordered(late, x.U)


@scenario(spare=1)
def h6_fill_then_free_then_reuse_elsewhere(x: Bench) -> bool:
    """T knows S; b is filled on S without a recorder and freed on S; T gets the bytes."""
    b, other = x.alloc(x.S, HALF), x.alloc(x.S, HALF)
    x.use(x.T, (other, READ))
    fill = x.work(x.S, (b, WRITE))
    b.free()
    x.alloc(x.T, HALF)
    return x.ordered(fill, x.T)


@scenario()
def h6b_work_before_a_free_on_the_same_stream(x: Bench) -> bool:
    """The same after a use elsewhere: everybody relies on "freed on S" meaning "after everything queued on S"."""
    b = x.alloc(x.S, WHOLE)
    write = x.work(x.S, (b, WRITE))
    x.use(x.T, (b, READ))                               # T knows S
    late = x.work(x.S, (b, READ))
    b.free()
    x.alloc(x.T, WHOLE)
    return x.ordered(late, x.T) and x.ordered(write, x.T)


@scenario()
def h7_the_rest_of_a_new_chunk(x: Bench) -> bool:
    """The pool grows for S; T takes from the rest of that chunk, which is not there before S's allocation."""
    x.alloc(x.S, QUARTER)
    rest = x.alloc(x.T, QUARTER)
    x.work(x.T, (rest, WRITE))
    return not x.driver.races()


@scenario()
def neighbours_with_different_readers_are_joined(x: Bench) -> bool:
    """Two neighbours are freed; T takes the whole, and waits for both readers."""
    a, b = x.alloc(x.S, HALF), x.alloc(x.S, HALF)
    one, two = x.use(x.U, (a, READ)), x.use(x.V, (b, READ))
    late = x.work(x.S, (a, READ))
    a.free()
    b.free()
    x.alloc(x.T, WHOLE)
    return x.ordered(one, x.T) and x.ordered(two, x.T) and x.ordered(late, x.T)


@scenario()
def neighbours_of_one_stream_are_joined_on_the_newest_position(x: Bench) -> bool:
    """The lower was freed before U came to know S, the upper after."""
    lower, upper, other = x.alloc(x.S, HALF), x.alloc(x.S, QUARTER), x.alloc(x.S, QUARTER)
    first = x.work(x.S, (lower, WRITE))
    lower.free()
    other.free()
    taken = x.alloc(x.U, QUARTER)                       # U waits for S
    known = x.ordered(first, x.U)
    second = x.work(x.S, (upper, WRITE))
    upper.free()
    whole = x.alloc(x.U, HALF + QUARTER)
    assert (taken.ptr, whole.ptr) == (other.ptr, lower.ptr)
    x.work(x.U, (whole, WRITE))
    return known and x.ordered(second, x.U)


@scenario()
def neighbours_that_a_tight_pool_joins(x: Bench) -> bool:
    """S has a larger span of its own, and takes what U and V had: it waits for both."""
    a, b, filled = x.alloc(x.S, HALF // 4), x.alloc(x.S, HALF // 4), x.alloc(x.S, QUARTER + GRAIN)
    one, two = x.use(x.U, (a, READ)), x.use(x.V, (b, READ))
    a.free()
    b.free()
    taken = x.alloc(x.S, QUARTER)
    assert a.ptr == taken.ptr < filled.ptr
    x.work(x.S, (taken, WRITE))
    return x.ordered(one, x.S) and x.ordered(two, x.S)


@scenario()
def both_parts_of_what_is_split_are_waited_for(x: Bench) -> bool:
    b = x.alloc(x.S, WHOLE)
    one, two = x.use(x.V, (b, READ)), x.use(x.V, (b, READ))
    three, four = x.work(x.S, (b, READ)), x.work(x.S, (b, READ))
    b.free()
    lower, upper = x.alloc(x.T, HALF), x.alloc(x.U, HALF)
    assert lower.ptr != upper.ptr
    return x.ordered(one, x.T) and x.ordered(two, x.U) and x.ordered(three, x.T) and x.ordered(four, x.U)


@scenario()
def memory_freed_on_a_stream_that_the_caller_named(x: Bench) -> bool:
    """Fresh on S, freed on T, taken on U: what was filled on S without a recorder, and what T did."""
    b = x.alloc(x.S, WHOLE)
    fill = x.work(x.S, (b, WRITE))
    later = x.work(x.T)
    b.free(x.T)
    x.alloc(x.U, WHOLE)
    return x.ordered(fill, x.U) and x.ordered(later, x.U)


@scenario()
def memory_of_a_stream_that_died(x: Bench) -> bool:
    """Its last fence answers for the memory that was freed there."""
    handle = int(check(cuda.cuStreamCreate(1)))
    stream = x.runtime.register_stream(handle)
    b = x.alloc(stream, WHOLE)
    word = x.next_word()
    x.kernels.fill(handle, word, 1, 1)
    b.free()
    x.runtime.unregister_stream(stream, heir=x.V)
    check(cuda.cuStreamDestroy(handle))
    c = x.alloc(x.T, WHOLE)
    x.work(x.T, (c, WRITE))
    x.kernels.fill(x.T.handle, word, 2, 1)              # a race, if T is not ordered after the dead stream
    return not x.driver.races()


@scenario()
def memory_whose_home_died_before_it_was_freed(x: Bench) -> bool:
    """The heir frees it; the new owner waits for what was queued on the dead home."""
    handle = int(check(cuda.cuStreamCreate(1)))
    stream = x.runtime.register_stream(handle)
    b = x.alloc(stream, WHOLE)
    x.kernels.fill(handle, b.ptr, 1, 1)
    x.runtime.unregister_stream(stream, heir=x.V)
    check(cuda.cuStreamDestroy(handle))
    later = x.work(x.V)
    b.free()
    c = x.alloc(x.T, WHOLE)
    x.work(x.T, (c, WRITE))
    return x.ordered(later, x.T) and not x.driver.races()


@scenario(sealed="S", spare=1)
def the_entries_of_a_sealed_home_are_kept_one_and_all(x: Bench) -> bool:
    """S knows U's read, but a sealed home takes no new position: who knows S's write only does not know that read.
    (S waits for U to know it.)"""
    b = x.alloc(x.S, HALF)
    write = x.use(x.S, (b, WRITE))
    read = x.use(x.U, (b, READ))
    other = x.alloc(x.U, HALF)
    x.use(x.S, (other, READ))
    b.free()
    x.alloc(x.T, HALF)
    return x.ordered(read, x.T) and x.ordered(write, x.T)


@scenario(sealed="S", spare=1)
def memory_that_was_lent_on_a_sealed_home(x: Bench) -> bool:
    """Sealed is the promise of whoever allocated.  Who reads the interface works on the stream that it names, and T
    knows S up to there: the library's own window was the last that was recorded."""
    state = DeviceState(x.runtime)
    buffer = state.empty(HALF // 4, "uint32", x.S)
    assert buffer.__cuda_array_interface__["stream"] == x.S.handle
    other = x.alloc(x.S, HALF)
    x.use(x.T, (other, READ))
    block = buffer.access()
    late = x.work(x.S, (block, WRITE))
    block.free()
    x.alloc(x.T, HALF)
    return x.ordered(late, x.T)


@scenario()
def a_chunk_goes_upstream_after_the_uses_of_its_memory(x: Bench) -> bool:
    a, b = x.alloc(x.S, HALF), x.alloc(x.T, HALF)
    x.use(x.U, (a, READ))
    x.use(x.V, (b, READ))
    x.work(x.S, (a, READ))
    x.work(x.T, (b, READ))
    a.free()
    b.free()
    return x.runtime.resource.trim() == WHOLE and not x.driver.races()


@scenario()
def an_allocation_that_could_not_wait_leaves_the_frontier_with_the_memory(x: Bench) -> bool:
    b = x.alloc(x.S, WHOLE)
    late = x.work(x.S, (b, WRITE))
    b.free()
    x.driver.fail("cuStreamWaitEvent", 1, 999)
    with contextlib.suppress(DriverError):
        x.alloc(x.T, HALF)
    x.alloc(x.T, WHOLE)
    return x.ordered(late, x.T)


@simulated
@pytest.mark.parametrize(("name", "policy"), scenario.under_each_policy())
@pytest.mark.contract(33)
def test_scenario(driver, name, policy):
    verdict, _ = scenario.play(driver, name, policy)
    assert verdict


@simulated
@pytest.mark.parametrize("name", scenario.named)
def test_twin_without_a_wait_is_noticed(driver, name):
    scenario.twin_is_noticed(driver, name)


class Recycling(DeviceMemoryResource):
    """Looks at no stream: what is given back is handed out again at once."""

    order = "host"

    def __init__(self):
        super().__init__(0)
        self.below = DirectMemoryResource()
        self.kept = []

    def allocate(self, nbytes, stream):
        return self.kept.pop() if self.kept else self.below.allocate(WHOLE, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.kept.append(ptr)


@simulated
@pytest.mark.parametrize("dropped", [False, True])
def test_the_host_waits_before_a_chunk_goes_to_an_upstream_without_streams(bench, driver, dropped):
    upstream = Recycling()
    pool = PoolMemoryResource(upstream, maximum_pool_size=WHOLE, chunk_size=WHOLE)
    x = bench(resource=pool)
    b = x.alloc(x.S, WHOLE)
    x.use(x.T, (b, WRITE))
    b.free()
    assert driver.calls("cuEventSynchronize") == 0      # a free keeps nobody
    if dropped:
        driver.drop("cuEventSynchronize", 1)            # the wait for T
    assert pool.trim() == WHOLE
    c = x.alloc(x.U, WHOLE)
    assert c.ptr == b.ptr
    x.work(x.U, (c, WRITE))
    assert bool(driver.races()) == dropped
    driver.clear_races()
    c.free()
    pool.trim()
    upstream.below.deallocate(upstream.kept.pop(), WHOLE, x.S)


@simulated
def test_memory_from_an_upstream_without_streams_is_ready_for_everybody(bench):
    x = bench(resource=PoolMemoryResource(DirectMemoryResource(), chunk_size=WHOLE))
    blocks = [x.alloc(stream, QUARTER) for stream in (x.S, x.T, x.U, x.V)]
    for block, stream in zip(blocks, (x.S, x.T, x.U, x.V), strict=True):
        x.work(stream, (block, WRITE))
    assert (x.records(), x.waits()) == (0, 0)


# ---------------------------------------------------------------------------------------- costs
@contextlib.contextmanager
def no_driver_call(driver, *but):
    """But queries, which change nothing."""
    before = driver.all_calls()
    yield
    after = {name: count - before.get(name, 0) for name, count in driver.all_calls().items()}
    assert {name for name, count in after.items() if count} <= QUERIES | set(but), after


@simulated
@pytest.mark.parametrize("discipline", ["ordinary", "opaque", "sealed"])
def test_a_free_makes_no_driver_call_and_neither_does_taking_what_the_stream_knows(bench, driver, discipline):
    x = bench(resource=one_chunk(), **({} if discipline == "ordinary" else {discipline: "S"}))
    b = x.alloc(x.S, WHOLE)
    x.use(x.T, (b, WRITE))
    waits = x.waits()
    asked = driver.calls("cuStreamIsCapturing")
    with no_driver_call(driver):
        b.free()
    assert driver.calls("cuStreamIsCapturing") == asked
    c = x.alloc(x.S, WHOLE)                             # S waits for T's write, unless it was handed back before
    assert x.waits() == waits + (discipline != "opaque")
    c.free()
    with no_driver_call(driver):
        x.alloc(x.S, WHOLE).free()
        d = x.alloc(x.S, HALF)
        x.alloc(x.S, HALF).free()
        d.free()


@simulated
def test_a_dropped_block_is_freed_without_a_driver_call(bench, driver):
    x = bench(resource=one_chunk())
    b = x.alloc(x.S, WHOLE)
    with no_driver_call(driver):
        del b
        x.runtime.reap_pending()
    assert x.runtime.resource.statistics()["used_bytes"] == 0


@simulated
@pytest.mark.parametrize(("policy", "sealed", "records", "waits"), [
    ("lazy", "", 399, 399), ("adaptive", "", 399, 399), ("precise", "", 599, 399), ("lazy", "ST", 200, 200)])
def test_memory_that_goes_back_and_forth_between_two_streams(bench, policy, sealed, records, waits):
    x = bench(resource=one_chunk(), policy=policy, sealed=sealed)
    for i in range(200):
        b = x.alloc((x.S, x.T)[i % 2], WHOLE)
        x.use((x.T, x.S)[i % 2], (b, READ))
        b.free()
    assert x.records() <= records
    assert x.waits() <= waits


@simulated
def test_streams_that_take_what_they_freed_themselves_never_meet(bench, driver):
    """Eight streams, each with blocks of its own sizes: grown once, nobody waits for anybody."""
    pool = PoolMemoryResource(chunk_size=1 << 20)
    x = bench(resource=pool)
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
def test_steady_churn_waits_at_most_once_for_each_foreign_stream(bench, driver, policy):
    """Random sizes on eight streams, used elsewhere now and then: no growth and no call upstream in the steady state,
    and an allocation makes at most one wait for each other stream, none for what its stream knows."""
    pool = PoolMemoryResource(chunk_size=1 << 20)
    x = bench(resource=pool, policy=policy)
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
def test_what_the_stream_knows_is_taken_before_a_tighter_fit_that_it_would_wait_for(bench):
    x = bench(resource=PoolMemoryResource(chunk_size=WHOLE))
    mine, between, theirs = x.alloc(x.S, HALF), x.alloc(x.S, GRAIN), x.alloc(x.T, QUARTER)
    mine.free()
    theirs.free()
    waits = x.waits()
    assert x.alloc(x.S, QUARTER).ptr == mine.ptr
    assert x.waits() == waits
    between.free()


# A pool of SIXTEEN that one chunk fills: more than half of it is in use where `filled` is.
SIXTEEN = 16 * QUARTER


def sixteen(maximum=SIXTEEN) -> PoolMemoryResource:
    return PoolMemoryResource(None, SIXTEEN, maximum)


@pytest.mark.parametrize("maximum", [SIXTEEN, 2 * SIXTEEN, None])
@simulated
def test_a_tight_pool_joins_what_several_streams_had_before_it_cuts_a_larger_span(bench, maximum):
    """S knows the rest of the chunk; with much memory left it takes that, and waits for nobody."""
    x = bench(resource=sixteen(maximum))
    mine, theirs, filled = x.alloc(x.S, QUARTER), x.alloc(x.T, QUARTER), x.alloc(x.S, 7 * QUARTER)
    x.work(x.T, (theirs, WRITE))
    mine.free()
    theirs.free()
    waits = x.waits()
    taken = x.alloc(x.S, HALF)
    x.work(x.S, (taken, WRITE))
    tight = maximum == SIXTEEN
    assert taken.ptr == (mine.ptr if tight else filled.ptr + 7 * QUARTER)
    assert x.waits() - waits == tight
    assert x.runtime.resource.statistics()["waited"] == tight


@pytest.mark.parametrize(("mine", "known"), [(QUARTER + HALF // 4, True), (QUARTER + HALF // 4 + GRAIN, False)])
@simulated
def test_a_tight_pool_takes_what_is_known_up_to_half_more_than_is_asked_for(bench, mine, known):
    x = bench(resource=sixteen())
    own, between, theirs = x.alloc(x.S, mine), x.alloc(x.S, GRAIN), x.alloc(x.T, QUARTER)
    filled = x.alloc(x.S, SIXTEEN - mine - GRAIN - QUARTER)
    own.free()
    theirs.free()
    waits = x.waits()
    taken = x.alloc(x.S, QUARTER)
    assert taken.ptr == (own.ptr if known else theirs.ptr)
    assert x.waits() - waits == (not known)
    assert between.ptr < filled.ptr


@simulated
def test_a_tight_pool_takes_what_another_stream_had_and_is_known_before_what_has_to_be_waited_for(bench, driver):
    """S knows what T freed first; its own span is too large, and a tighter fit of U's would cost a wait."""
    x = bench(resource=sixteen())
    own, b1, known = x.alloc(x.S, WHOLE), x.alloc(x.S, GRAIN), x.alloc(x.T, QUARTER + GRAIN)
    b2, theirs, filled = x.alloc(x.S, GRAIN), x.alloc(x.U, QUARTER), x.alloc(x.T, 9 * QUARTER)
    own.free()
    known.free()
    theirs.free()
    x.use(x.S, (filled, READ))
    with no_driver_call(driver):
        assert x.alloc(x.S, QUARTER).ptr == known.ptr
    assert b1.ptr < b2.ptr


@simulated
def test_a_tight_pool_leaves_memory_alone_that_only_the_host_could_wait_for(bench, driver):
    """T is a bare handle, that may be gone: what it freed is a tighter fit, and a neighbour of more."""
    x = bench(resource=sixteen())
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
    assert x.alloc(x.S, QUARTER).ptr == mine.ptr
    assert driver.calls("cuCtxSynchronize") == calls
    assert x.runtime.counters()["host_waits"] == host
    filled.free()
    whole = x.alloc(x.S, SIXTEEN)                       # until nothing else is left
    assert whole.ptr == mine.ptr
    assert driver.calls("cuCtxSynchronize") == calls + 1
    del theirs
    check(cuda.cuStreamDestroy(handle))


@simulated
def test_a_tight_pool_joins_what_was_out_of_reach_once_a_fence_covers_it(bench, driver):
    """T is a bare handle.  Its next commit records a fence, which the device can wait for."""
    x = bench(resource=sixteen())
    handle = int(check(cuda.cuStreamCreate(1)))
    mine, theirs, between = x.alloc(x.S, QUARTER), x.runtime.allocate(QUARTER, handle), x.alloc(x.S, GRAIN)
    other, filled = x.runtime.allocate(GRAIN, handle), x.alloc(x.S, 9 * QUARTER)
    x.alloc(x.T, GRAIN).free()
    mine.free()
    theirs.free()
    x.alloc(x.S, WHOLE).free()                          # looks at the two: out of reach so far
    x.use(x.runtime.register_stream(handle), (other, WRITE))
    calls = driver.calls("cuCtxSynchronize")
    assert x.alloc(x.S, HALF).ptr == mine.ptr
    assert driver.calls("cuCtxSynchronize") == calls
    assert between.ptr < other.ptr < filled.ptr
    check(cuda.cuCtxSynchronize())
    del theirs, other
    check(cuda.cuStreamDestroy(handle))


@simulated
def test_where_nothing_else_fits_what_the_device_can_wait_for_comes_before_what_the_host_has_to(bench, driver):
    """Of two pairs of neighbours one is covered by a fence meanwhile; the other is not, and comes first."""
    x = bench(resource=sixteen())
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
    assert kept[-1].ptr == pairs[1][0].ptr
    assert driver.calls("cuCtxSynchronize") == calls
    kept.append(x.alloc(x.S, HALF))
    assert kept[-1].ptr == pairs[0][0].ptr
    assert driver.calls("cuCtxSynchronize") == calls + 1
    del pairs, other, block
    for handle in handles:
        check(cuda.cuStreamDestroy(handle))


@simulated
def test_a_tight_pool_takes_a_larger_span_where_the_tightest_is_of_a_stream_that_captures(bench):
    x = bench(resource=sixteen())
    own, between, theirs = x.alloc(x.S, WHOLE), x.alloc(x.S, GRAIN), x.alloc(x.T, QUARTER)
    filled = x.alloc(x.S, 11 * QUARTER - GRAIN)
    own.free()
    check(cuda.cuStreamBeginCapture(x.T.handle, RELAXED))
    theirs.free()
    taken = x.alloc(x.S, QUARTER)
    assert taken.ptr == own.ptr
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.T.handle))))
    assert x.alloc(x.S, QUARTER).ptr == theirs.ptr
    assert between.ptr < filled.ptr


@simulated
def test_a_maximum_that_is_far_away_changes_nothing(bench):
    """Churn on eight streams with less than half of it in use: the same addresses and the same waits as without."""
    def churn(pool):
        x = bench(resource=pool)
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
    without = churn(PoolMemoryResource(None, size))
    peak = without[-1]
    assert peak < size // 2
    assert churn(PoolMemoryResource(None, size, size)) == without
    places, waits, waited, _ = churn(PoolMemoryResource(None, 3 * peak // 2, 3 * peak // 2))
    assert places != without[0]
    assert waits > without[1]
    assert waited > without[2]


@simulated
def test_another_streams_memory_that_is_known_costs_nothing(bench, driver):
    """T is ordered after what S did, by a use of its own: memory that S freed before is taken without a wait."""
    x = bench(resource=one_chunk())
    freed, handed = x.alloc(x.S, HALF), x.alloc(x.S, HALF)
    freed.free()
    x.use(x.T, (handed, READ))
    with no_driver_call(driver):
        assert x.alloc(x.T, HALF).ptr == freed.ptr
    assert x.runtime.resource.statistics()["waited"] == 0


@simulated
def test_memory_of_a_stream_that_has_gone_quiet_is_not_kept_back(bench, driver):
    """A side stream is used once and never again: its memory is used by others, for one wait, without growing."""
    pool = PoolMemoryResource(chunk_size=1 << 20)
    x = bench(resource=pool)
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
def test_what_the_host_has_seen_nobody_waits_for(bench, driver):
    """The host saw a dead stream's last fence complete: memory that was freed there is ready for everybody."""
    x = bench(resource=one_chunk())
    handle = int(check(cuda.cuStreamCreate(1)))
    stream = x.runtime.register_stream(handle)
    x.alloc(stream, WHOLE).free()
    x.runtime.unregister_stream(stream)
    check(cuda.cuStreamDestroy(handle))
    x.runtime.reap_pending()
    with no_driver_call(driver):
        x.alloc(x.T, WHOLE).free()


# ---------------------------------------------------------------------------------------- growing, limits
class Counted(DeviceMemoryResource):
    """An upstream of so many bytes, which remembers what it was asked for."""

    order = "stream"

    def __init__(self, nbytes=1 << 40, skew=0):
        super().__init__(0)
        self.left = nbytes
        self.skew = skew
        self.asked = []
        self.given = {}
        self.fail_frees = 0
        self.below = AsyncMemoryResource()

    def allocate(self, nbytes, stream):
        self.asked.append(nbytes)
        if nbytes > self.left:
            raise OutOfDeviceMemoryError(f"no {nbytes} bytes here")
        self.left -= nbytes
        ptr = self.below.allocate(nbytes + self.skew, stream) + self.skew
        self.given[ptr] = nbytes
        return ptr

    def deallocate(self, ptr, nbytes, stream):
        if self.fail_frees:
            self.fail_frees -= 1
            raise ZeroDivisionError("not now")
        assert self.given.pop(ptr) == nbytes
        self.left += nbytes
        self.below.deallocate(ptr - self.skew, nbytes + self.skew, stream)


def test_sizes_and_addresses_are_multiples_of_256():
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=1 << 20))
    blocks = [runtime.allocate(nbytes) for nbytes in (1, 255, 256, 257, 1000, 5)]
    assert [block.nbytes for block in blocks] == [1, 255, 256, 257, 1000, 5]
    assert all(block.ptr % 256 == 0 for block in blocks)
    assert runtime.resource.statistics()["used_bytes"] == 256 * (1 + 1 + 1 + 2 + 4 + 1)
    assert runtime.live_bytes == 1 + 255 + 256 + 257 + 1000 + 5
    ends = sorted((block.ptr, block.ptr + block.nbytes) for block in blocks)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))


def test_it_grows_by_chunks_and_what_is_larger_gets_a_chunk_of_its_own():
    upstream = Counted()
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, chunk_size=10_000))
    blocks = [runtime.allocate(nbytes) for nbytes in (100, 5000, 4000, 50_001, 3000)]
    assert upstream.asked == [10_240, 50_176, 10_240]
    assert runtime.resource.pool_size() == sum(upstream.asked)
    assert len(blocks) == 5


def test_by_default_it_grows_by_what_it_has():
    upstream, kept = Counted(), []
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream))
    while len(upstream.asked) < 8:
        kept.append(runtime.allocate(30 << 20))
    assert [nbytes >> 20 for nbytes in upstream.asked] == [32, 32, 64, 128, 256, 512, 1024, 1024]


def test_the_initial_size_is_there_when_a_runtime_takes_the_pool():
    upstream = Counted()
    pool = PoolMemoryResource(upstream, 5000, 10_000)
    assert (pool.pool_size(), upstream.asked) == (0, [])
    runtime = DeviceRuntime(resource=pool)
    assert upstream.asked == [5120]
    assert pool.pool_size() == 5120
    block = runtime.allocate(5120, runtime.acquire_stream())
    assert pool.statistics()["waited"] == 0             # the host waited, then
    block.free()


def test_an_initial_size_that_is_not_there_is_told_by_the_runtime():
    pool = PoolMemoryResource(Counted(1000), 5000)
    with pytest.raises(OutOfDeviceMemoryError, match="no 5120 bytes here"):
        DeviceRuntime(resource=pool)
    assert pool.pool_size() == 0
    pool = PoolMemoryResource(AsyncMemoryResource(), 1 << 49)
    with pytest.raises(OutOfDeviceMemoryError, match=r"taking the first .* bytes of a pool"):
        DeviceRuntime(resource=pool)


def test_the_maximum_is_kept_and_the_error_says_what_is_free():
    pool = PoolMemoryResource(Counted(), maximum_pool_size=WHOLE + 100, chunk_size=WHOLE)
    runtime = DeviceRuntime(resource=pool)
    a, b = runtime.allocate(QUARTER), runtime.allocate(HALF)
    with pytest.raises(OutOfDeviceMemoryError, match=(
            r"the pool has 4096 bytes, 3072 of them in use, and its largest free span has 1024, which is not enough "
            r"for 1280; it may not grow so far \(maximum_pool_size\)")):
        runtime.allocate(QUARTER + 1)
    a.free()
    c = runtime.allocate(QUARTER)
    assert c.ptr == a.ptr
    assert b.ptr
    assert pool.pool_size() == WHOLE


def test_what_the_maximum_can_never_grant_costs_the_pool_nothing():
    upstream = Counted()
    pool = PoolMemoryResource(upstream, maximum_pool_size=WHOLE, chunk_size=WHOLE)
    runtime = DeviceRuntime(resource=pool)
    runtime.allocate(HALF).free()
    for nbytes in (WHOLE + 1, 1 << 51, (1 << 64) - 1):
        with pytest.raises(OutOfDeviceMemoryError, match="maximum_pool_size"):
            runtime.allocate(nbytes)
    assert upstream.asked == [WHOLE]
    assert pool.pool_size() == WHOLE                    # nothing was given back in vain


def test_where_upstream_has_less_than_a_chunk_it_takes_what_there_is():
    upstream = Counted(50_000)
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, chunk_size=1 << 18))
    block = runtime.allocate(1000)
    assert upstream.asked == [1 << 18, 1 << 17, 1 << 16, 1 << 15]
    block.free()


def test_when_nothing_is_left_idle_chunks_are_given_back_and_it_is_tried_once_more():
    upstream = Counted(40_000)
    pool = PoolMemoryResource(upstream, chunk_size=10_000)
    runtime = DeviceRuntime(resource=pool)
    blocks = [runtime.allocate(10_000) for _ in range(3)]
    kept = blocks.pop()
    blocks.clear()                                      # two idle chunks, neither of which is large enough
    large = runtime.allocate(25_000)
    assert pool.statistics()["released"] == 2
    assert pool.pool_size() == 25_088 + 10_240
    with pytest.raises(OutOfDeviceMemoryError, match="no 25088 bytes here"):     # as upstream puts it
        runtime.allocate(25_000)
    assert kept.ptr != large.ptr
    del large
    assert runtime.allocate(25_000).ptr


@simulated
def test_when_the_driver_has_no_memory_left_the_error_says_what_the_pool_has(driver):
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=WHOLE))
    block = runtime.allocate(HALF)
    for nth in (1, 2):
        driver.fail("cuMemAllocFromPoolAsync", nth, 2)
    with pytest.raises(OutOfDeviceMemoryError, match=(
            "the pool has 4096 bytes, 2048 of them in use, and its largest free span has 2048, which is not enough for "
            "4096; there is no more upstream")):
        runtime.allocate(WHOLE)
    assert runtime.allocate(WHOLE).ptr
    block.free()


def test_trim_gives_idle_chunks_back_down_to_what_shall_be_kept():
    upstream = Counted()
    pool = PoolMemoryResource(upstream, chunk_size=WHOLE)
    runtime = DeviceRuntime(resource=pool)
    assert pool.trim() == 0
    blocks = [runtime.allocate(WHOLE) for _ in range(4)]
    kept = blocks.pop(0)
    assert pool.trim() == 0
    blocks.clear()
    runtime.reap_pending()
    assert pool.statistics()["idle_bytes"] == 3 * WHOLE
    assert pool.trim(3 * WHOLE) == WHOLE
    assert pool.trim() == 2 * WHOLE
    assert pool.pool_size() == WHOLE == sum(upstream.given.values())
    kept.free()
    assert pool.trim() == WHOLE
    assert upstream.given == {}
    assert runtime.allocate(GRAIN).ptr                  # it grows again


@pytest.mark.parametrize("arguments", [(None, -1), (None, 1000, 500), (None, None, 100), (None, 1 << 60)])
def test_sizes_that_make_no_sense_are_refused(arguments):
    with pytest.raises(ValueError, match=r"initial_pool_size|maximum_pool_size"):
        PoolMemoryResource(*arguments)


def test_other_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="chunk_size"):
        PoolMemoryResource(chunk_size=-1)
    with pytest.raises(TypeError, match="upstream must be a DeviceMemoryResource of xlogmem, not int"):
        PoolMemoryResource(1 << 20)

    class Silent(DeviceMemoryResource):
        pass

    with pytest.raises(StreamMisuseError, match=r"Silent does not support a pool on it \(unsupported\)"):
        PoolMemoryResource(Silent())
    pool = PoolMemoryResource()
    with pytest.raises(ValueError, match="bytes_to_keep"):
        pool.trim(-1)
    with pytest.raises(RuntimeError, match="initialised once"):
        pool.__init__()
    assert pool.trim() == 0
    assert pool.pool_size() == 0


def test_a_pool_is_used_through_its_runtime():
    pool = PoolMemoryResource()
    for use in (lambda: pool.allocate(256, 0), lambda: pool.deallocate(256, 256, 0)):
        with pytest.raises(StreamMisuseError, match="Give it to a DeviceRuntime"):
            use()


def test_a_pool_belongs_to_one_runtime():
    pool, streams = PoolMemoryResource(), StreamPool()
    runtime = DeviceRuntime(resource=pool, stream_pool=streams)
    with pytest.raises(StreamMisuseError, match="the memory pool belongs to another runtime"):
        DeviceRuntime(resource=pool)
    runtime.allocate(256).free()
    del runtime
    gc.collect()
    assert DeviceRuntime(resource=pool, stream_pool=streams).allocate(256).ptr     # the same streams


def test_the_environment_puts_every_runtime_on_a_pool_of_its_own(monkeypatch):
    monkeypatch.setenv("XLOGMEM_RESOURCE", "pool")
    one, other = DeviceRuntime(), DeviceRuntime()
    assert isinstance(one.resource, PoolMemoryResource)
    assert one.resource is not other.resource
    assert isinstance(one.resource.upstream, AsyncMemoryResource)
    one.allocate(1000).free()
    assert one.resource.pool_size() == 32 << 20


def test_under_a_maximum_it_takes_half_and_then_the_rest():
    upstream = Counted()
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, maximum_pool_size=1 << 20))
    blocks = [runtime.allocate(100_000) for _ in range(10)]
    assert upstream.asked == [1 << 19, 1 << 19]
    assert len(blocks) == 10


@pytest.mark.simulator
def test_a_pool_over_a_pool(driver):
    below = PoolMemoryResource(chunk_size=1 << 20)
    pool = PoolMemoryResource(below, chunk_size=1 << 16)
    runtime = DeviceRuntime(resource=pool)
    s, t = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(1000, s)
    other = runtime.allocate(1 << 17, t)
    assert below.statistics()["used_bytes"] == pool.pool_size() == (1 << 16) + (1 << 17)
    block.free()
    other.free()
    assert pool.trim() == (1 << 16) + (1 << 17)
    assert below.statistics()["used_bytes"] == 0
    assert below.trim() == 1 << 20


def test_memory_that_is_not_aligned_is_refused_and_given_back():
    upstream = Counted(skew=64)
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream))
    with pytest.raises(DriverError, match="not aligned to 256 bytes"):
        runtime.allocate(100)
    assert upstream.given == {}
    assert runtime.resource.pool_size() == 0


def test_chunks_are_given_back_at_the_end_whoever_goes_first():
    for order in (["block", "runtime", "pool"], ["pool", "runtime", "block"], ["runtime", "pool", "block"]):
        upstream = Counted()
        things = {"pool": PoolMemoryResource(upstream, chunk_size=WHOLE)}
        things["runtime"] = DeviceRuntime(resource=things["pool"])
        things["block"] = things["runtime"].allocate(100, things["runtime"].acquire_stream())
        for name in order:
            del things[name]
        gc.collect()
        assert upstream.given == {}


def test_a_summary_for_a_person():
    pool = PoolMemoryResource(chunk_size=1 << 20, maximum_pool_size=1 << 30)
    runtime = DeviceRuntime(resource=pool)
    a, b, c = (runtime.allocate(100_000) for _ in range(3))
    b.free()
    text = pool.memory_summary()
    for line in ("PoolMemoryResource device=0 over AsyncMemoryResource",
                 r"from upstream +1.0 MiB in 1 chunks, limit 1.0 GiB",
                 r"in use +195.5 KiB, at most 293.2 KiB so far",
                 r"free +828.5 KiB in 2 places, the largest 730.8 KiB \(fragmentation 12%\)",
                 r"idle chunks +0 B", r"allocations +3, 0 had to wait", r"chunks +1 taken, 0 given back"):
        assert re.search(line, text), (line, text)
    whole = runtime.memory_summary()
    assert text in whole
    assert re.search(r"live +200000 B|live +195.3 KiB", whole)
    assert "pending" in DeviceRuntime().memory_summary()
    a.free()
    c.free()
    assert pool.statistics()["fragmentation"] == 0


# ---------------------------------------------------------------------------------------- failures, captures
CALLS = ("cuEventCreate", "cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing", "cuMemAllocFromPoolAsync",
         "cuMemFreeAsync", "cuCtxGetCurrent", "cuMemPoolTrimTo")


@simulated
@pytest.mark.parametrize("call", CALLS)
def test_a_failure_of_any_call_loses_nothing_and_leaks_nothing(bench, driver, call):
    """Each call fails once, at each place of a program that splits, joins, waits, grows and trims."""
    from xlogmem import _driver

    def program(x, pool, refused):
        def attempt(function):
            for _ in range(3):
                try:
                    return function()
                except DriverError as error:
                    refused.append(error)
            raise AssertionError("it goes on failing")

        a = attempt(lambda: x.alloc(x.S, HALF))
        b = attempt(lambda: x.alloc(x.T, QUARTER))
        x.work(x.S, (a, WRITE))
        x.work(x.T, (b, WRITE))
        for block in (a, b):
            attempt(block.free)
        del a, b
        c = attempt(lambda: x.alloc(x.U, WHOLE))
        x.work(x.U, (c, WRITE))
        attempt(c.free)
        d = attempt(lambda: x.alloc(x.V, 3 * WHOLE))
        x.work(x.V, (d, WRITE))
        attempt(d.free)
        attempt(pool.trim)
        return pool.statistics()

    nth = 0
    while True:
        nth += 1
        driver.reset("eager")
        _driver.trim_events()
        pool = PoolMemoryResource(chunk_size=WHOLE)
        x = Bench(driver, resource=pool)
        refused = []
        calls = driver.calls(call)
        driver.fail(call, nth, 999)
        seen = program(x, pool, refused)
        happened = driver.calls(call) - calls
        assert (seen["used_bytes"], seen["pool_size"], seen["free_spans"]) == (0, 0, 0)
        assert x.runtime.bytes_outstanding == 0
        assert driver.races() == []
        x.close()
        if happened < nth:
            break
        assert len(refused) <= 1
    assert nth > 1


@simulated
def test_a_chunk_that_cannot_be_given_back_stays(bench):
    upstream = Counted()
    pool = PoolMemoryResource(upstream, chunk_size=WHOLE)
    x = bench(resource=pool)
    blocks = [x.alloc(x.S, WHOLE), x.alloc(x.T, WHOLE)]
    blocks.clear()
    x.runtime.reap_pending()
    upstream.fail_frees = 1
    with pytest.raises(ZeroDivisionError):
        pool.trim()
    assert pool.pool_size() == WHOLE == sum(upstream.given.values())
    b = x.alloc(x.S, WHOLE)
    assert b.ptr in upstream.given
    b.free()
    assert pool.trim() == WHOLE


@simulated
def test_what_a_resource_in_python_raises_when_idle_chunks_go_is_dropped():
    upstream = Counted(2 * WHOLE)
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, chunk_size=WHOLE))
    runtime.allocate(HALF).free()
    upstream.fail_frees = 1
    with pytest.raises(OutOfDeviceMemoryError):
        runtime.allocate(2 * WHOLE)
    assert runtime.allocate(2 * WHOLE).ptr


@simulated
def test_memory_freed_on_a_stream_that_captures_is_left_alone_while_there_is_other(bench, driver):
    pool = PoolMemoryResource(chunk_size=WHOLE, maximum_pool_size=2 * WHOLE)
    x = bench(resource=pool)
    b = x.alloc(x.S, WHOLE)
    check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
    with no_driver_call(driver):
        b.free()                                        # a free asks nobody
    assert b.state.value == "freed"
    other = x.alloc(x.T, WHOLE)
    assert other.ptr != b.ptr
    with pytest.raises(StreamMisuseError, match="is capturing a graph"):
        x.alloc(x.T, WHOLE)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    assert x.alloc(x.T, WHOLE).ptr == b.ptr
    assert other.ptr


@simulated
def test_a_chunk_used_on_a_stream_that_captures_is_not_given_back(bench):
    pool = one_chunk()
    x = bench(resource=pool)
    x.alloc(x.S, WHOLE).free()
    check(cuda.cuStreamBeginCapture(x.S.handle, RELAXED))
    with pytest.raises(StreamMisuseError, match="is capturing a graph"):
        pool.trim()
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    assert pool.trim() == WHOLE


@simulated
def test_a_bare_handle_whose_stream_was_destroyed_is_not_touched(bench, driver):
    """Nobody promised that it lives longer than its blocks: the host waits for the context, once."""
    x = bench(resource=one_chunk())
    handle = int(check(cuda.cuStreamCreate(1)))
    b = x.runtime.allocate(WHOLE, handle)
    x.kernels.fill(handle, b.ptr, 1, 1)
    b.free()
    del b
    check(cuda.cuStreamDestroy(handle))
    before = driver.calls("cuCtxSynchronize")
    c = x.alloc(x.S, WHOLE)
    x.work(x.S, (c, WRITE))
    assert driver.calls("cuCtxSynchronize") == before + 1
    c.free()


@simulated
def test_the_default_stream_of_another_thread(bench, driver):
    x = bench(resource=one_chunk())

    def other():
        check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
        b = x.runtime.allocate(WHOLE, 2)
        x.kernels.fill(2, b.ptr, 1, 1)
        b.free()
        check(cuda.cuCtxPopCurrent())
        check(cuda.cuDevicePrimaryCtxRelease(0))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    c = x.alloc(x.S, WHOLE)
    x.work(x.S, (c, WRITE))
    c.free()


@simulated
def test_another_call_gets_nothing_of_what_one_is_waiting_for(bench, driver):
    """T waits for S's memory with the lock released; meanwhile U asks, and the pool has nothing else: it grows."""
    pool = PoolMemoryResource(chunk_size=WHOLE)
    x = bench(resource=pool)
    x.alloc(x.S, WHOLE).free()
    seen = []
    driver.on_call("cuStreamWaitEvent", lambda: seen.append(x.alloc(x.U, WHOLE)))
    b = x.alloc(x.T, WHOLE)
    assert seen[0].ptr != b.ptr
    assert pool.statistics()["grown"] == 2
    seen.clear()


@simulated
def test_two_calls_that_grow_at_once_keep_the_maximum(bench, driver):
    pool = PoolMemoryResource(chunk_size=WHOLE, maximum_pool_size=WHOLE + HALF)
    x = bench(resource=pool)
    seen = []
    driver.on_call("cuMemAllocFromPoolAsync", lambda: seen.append(x.alloc(x.T, HALF)))
    b = x.alloc(x.S, HALF)
    assert pool.pool_size() == WHOLE + HALF
    assert b.ptr != seen[0].ptr
    seen.clear()


@simulated
def test_a_chunk_that_is_being_given_back_is_nobodys(bench, driver):
    pool = one_chunk()
    x = bench(resource=pool)
    x.alloc(x.S, WHOLE).free()
    refused = []

    def meanwhile():
        with pytest.raises(OutOfDeviceMemoryError):
            x.alloc(x.T, GRAIN)
        refused.append(pool.trim())

    driver.on_call("cuMemFreeAsync", meanwhile)
    assert pool.trim() == WHOLE
    assert refused == [0]
    x.alloc(x.T, GRAIN).free()


# ---------------------------------------------------------------------------------------- many blocks, threads
@pytest.mark.parametrize("seed", range(3))
def test_random_sizes_never_overlap_and_all_comes_back(seed):
    draw = random.Random(seed)
    pool = PoolMemoryResource(chunk_size=1 << 20)
    runtime = DeviceRuntime(resource=pool)
    streams = [runtime.acquire_stream() for _ in range(3)]
    alive = []
    for _ in range(3000):
        if alive and draw.random() < .48:
            alive.pop(draw.randrange(len(alive))).free()
        else:
            alive.append(runtime.allocate(draw.choice((draw.randint(1, 2000), draw.randint(1, 200_000))),
                                          draw.choice(streams)))
    spans = sorted((block.ptr, block.ptr + block.nbytes) for block in alive)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    assert pool.statistics()["used_bytes"] == sum(-(-block.nbytes // 256) * 256 for block in alive)
    alive.clear()
    runtime.reap_pending()
    seen = pool.statistics()
    assert seen["used_bytes"] == 0
    assert seen["idle_bytes"] == seen["pool_size"]
    assert seen["free_spans"] == seen["chunks"]         # free neighbours count as one place
    assert pool.trim() == seen["pool_size"]


@simulated
@pytest.mark.parametrize("seed", range(4))
def test_programs_compute_on_a_pool_what_they_compute_serially(driver, kernels, seed):
    driver.reset("seeded", seed)
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=8192))
    streams = [runtime.acquire_stream() for _ in range(4)]
    for number in range(8):
        program = Program(100 * seed + number)
        assert program.run(runtime, streams, kernels) == program.serial()
    assert driver.races() == []


@simulated
def test_threads_share_a_pool(driver, kernels):
    """Eight threads, each with programs of its own on its own streams, on one pool that also grows and is trimmed."""
    driver.reset("seeded", 3)
    pool = PoolMemoryResource(chunk_size=8192)
    runtime = DeviceRuntime(resource=pool, stream_pool=StreamPool(max_streams=64))
    primary = check(cuda.cuDevicePrimaryCtxRetain(0))

    def work(number):
        check(cuda.cuCtxPushCurrent(primary))
        streams = [runtime.acquire_stream() for _ in range(4)]
        right = []
        for i in range(6):
            program = Program(1000 * number + i)
            right.append(program.run(runtime, streams, kernels) == program.serial())
            pool.trim(16384)
        check(cuda.cuCtxPopCurrent())
        return all(right)

    assert all(together(work, 8))
    check(cuda.cuDevicePrimaryCtxRelease(0))
    runtime.reap_pending()
    assert pool.statistics()["used_bytes"] == 0
    assert driver.races() == []


@simulated
def test_nothing_waits_for_a_stream_that_is_held_up(bench):
    """Neither the free nor an allocation of its memory elsewhere keeps the host."""
    x = bench(resource=one_chunk())
    with held_up(x.S):
        b = x.alloc(x.S, WHOLE)
        b.free()
        c = x.alloc(x.T, WHOLE)
        c.free()
    assert x.runtime.counters()["host_waits"] == 0


def test_a_maximum_that_is_no_multiple_of_the_grain_may_be_taken_at_once():
    pool = PoolMemoryResource(initial_pool_size=1000, maximum_pool_size=1000)
    DeviceRuntime(resource=pool)
    assert pool.pool_size() == 768
