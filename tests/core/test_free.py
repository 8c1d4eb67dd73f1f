"""Freeing: what is refused, what is waited for, and the bytes that move."""
from __future__ import annotations

import random

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, READ_WRITE, WRITE, Capture, nothing_happens

from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    LimitingResourceAdaptor,
    StreamMisuseError,
    UseAfterFreeError,
    _driver,
    use,
)
from xlogmem.sim.kernels import check

UNKNOWN = 999                                           # a CUresult that does not lose the device
RESOURCES = [AsyncMemoryResource, DirectMemoryResource]


class KeepsForTheStream(DeviceMemoryResource):
    """A resource in Python, of which that is not known."""

    order = "stream"

    def __init__(self, below):
        super().__init__()
        self.allocate, self.deallocate = below.allocate, below.deallocate


@pytest.mark.simulator
@pytest.mark.promise(46, 47, 48)
@pytest.mark.parametrize("resource", RESOURCES)
def test_frees_that_are_refused_change_nothing(driver, resource):
    """A block of another device, an unregistered stream, a stale block: each its error, the accounting as before."""
    runtime, elsewhere = DeviceRuntime(resource=resource()), DeviceRuntime(1, resource=resource(1))
    raw = check(cuda.cuStreamCreate(1))
    dead = runtime.register_stream(raw)
    runtime.unregister_stream(dead)
    block, theirs, gone = runtime.allocate(64), elsewhere.allocate(64), runtime.allocate(64)
    gone.free()
    runtime.reap_pending()
    with nothing_happens(driver, runtime, elsewhere):
        with pytest.raises(StreamMisuseError, match=r"another runtime than <DeviceRuntime device=0"):
            runtime.deallocate(theirs, dead)
        with pytest.raises(StreamMisuseError, match="was unregistered"):
            runtime.deallocate(block, dead)
        with pytest.raises(UseAfterFreeError) as error:
            runtime.deallocate(gone)
        for wrong in (block.id, block.ptr, None):
            with pytest.raises(TypeError):
                runtime.deallocate(wrong)
    assert error.value.generation == gone.generation
    assert (block.state, theirs.state) == (BlockState.LIVE, BlockState.LIVE)
    block.free()
    check(cuda.cuStreamDestroy(raw))


@pytest.mark.simulator
@pytest.mark.promise(47)
def test_the_successor_of_an_unregistered_stream_frees(four):
    """A block whose stream is gone is freed on the successor, after everything that was queued on the old stream."""
    x = four()
    raw = check(cuda.cuStreamCreate(1))
    S = x.runtime.register_stream(raw)
    block = x.alloc(S)
    fill = x.work(S, (block, WRITE))
    x.runtime.unregister_stream(S, successor=x.V)
    check(cuda.cuStreamDestroy(raw))
    block.free()
    assert block.state is BlockState.FREED
    assert x.ordered(fill, x.V)


@pytest.mark.simulator
@pytest.mark.promise(49, 52)
def test_a_free_waits_once_for_each_other_stream(four):
    """Its own stream is skipped; the events are free for other use as soon as the waits are queued."""
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    readers = [x.use(stream, (block, READ)) for stream in (x.T, x.U, x.V) for _ in range(5)]
    waits = x.waits()
    block.free()
    assert x.waits() - waits == 3
    for _ in range(20):                                 # the rings go round: the waits keep what they captured
        other = x.alloc(x.T)
        x.use(x.U, (other, WRITE))
        x.use(x.V, (other, READ_WRITE))
        other.free()
    assert all(x.ordered(read, x.S) for read in readers)
    assert _driver.live_events()[0] <= 16               # four rings of four, for a hundred operations


@pytest.mark.simulator
@pytest.mark.promise(50)
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("call", ["cuStreamWaitEvent", "cuEventRecord"])
def test_a_free_whose_wait_fails_may_be_repeated(four, driver, call, nth):
    """DriverError; the block is live with its entries, the accounting is the same; the second free succeeds."""
    x = four(policy="lazy")
    driver.set_policy("min")
    block = x.alloc(x.S)
    readers = [x.use(stream, (block, READ)) for stream in (x.T, x.U, x.V)]
    kinds, figures = block.frontier.keys(), (x.runtime.live_bytes, x.runtime.pending_bytes)
    driver.fail(call, nth, code=UNKNOWN)
    with pytest.raises(DriverError, match=call):
        block.free()
    assert block.state is BlockState.LIVE
    assert block.frontier.keys() == kinds
    assert (x.runtime.live_bytes, x.runtime.pending_bytes) == figures
    assert driver.calls("cuMemFreeAsync") == 0
    block.free()
    assert block.state is BlockState.FREED
    assert all(x.ordered(read, x.S) for read in readers)


@pytest.mark.simulator
@pytest.mark.promise(22, 51, 53)
def test_bytes_move_from_live_to_pending_to_nothing(four, driver):
    """Live until the free is queued, pending until the host has seen it complete, outstanding all the while."""
    x = four()
    driver.set_policy("min")
    block = x.alloc(x.S, 1000)
    during = []
    driver.on_call("cuMemFreeAsync", lambda: during.append((x.runtime.live_bytes, x.runtime.pending_bytes)))
    block.free()
    assert during == [(1000, 0)]
    assert (x.runtime.live_bytes, x.runtime.pending_bytes, x.runtime.bytes_outstanding) == (0, 1000, 1000)
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0
    assert driver.pending_operations() == 0             # the free itself, not only what came before


@pytest.mark.promise(54)
@pytest.mark.parametrize("seed", range(3))
def test_the_accounting_agrees_with_a_ledger(seed):
    """Random allocations, uses, frees and reaps: live is the sum of the live blocks, at every step."""
    rng = random.Random(seed)
    runtime = DeviceRuntime()
    streams = [runtime.acquire_stream() for _ in range(3)]
    blocks, freed = [], 0
    for _ in range(400):
        action = rng.randrange(6)
        if action < 2:
            blocks.append(runtime.allocate(rng.randrange(1, 5000), rng.choice(streams)))
        elif action == 2 and blocks:
            with use(rng.choice(streams), read_write=rng.choice(blocks)):
                pass
        elif action < 5 and blocks:
            block = blocks.pop(rng.randrange(len(blocks)))
            block.free(rng.choice([None, *streams]))
            freed += block.nbytes
        elif rng.random() < 0.3:
            runtime.reap_pending()
            assert runtime.pending_bytes == 0
            freed = 0
        assert runtime.live_bytes == sum(block.nbytes for block in blocks)
        assert runtime.pending_bytes <= freed           # it is queried which frees are complete
        freed = runtime.pending_bytes
        assert runtime.bytes_outstanding == runtime.live_bytes + freed
        assert runtime.counters()["live_blocks"] == len(blocks)


# ------------------------------------------------- frees that name no stream: docs/ordering.md, delayed-home
def used_elsewhere(x, *readers):
    """A block that S has written and that these streams have read, and the reads."""
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    return block, [x.use(stream, (block, READ)) for stream in readers]


@pytest.mark.simulator
@pytest.mark.parametrize("freed", ["by a call", "by a drop", "by the close of a window"])
def test_a_producer_does_not_wait_for_its_consumer(four, freed):
    """The consumer frees, behind everything that the producer has queued."""
    x = four()
    block, (read,) = used_elsewhere(x, x.T)
    window = x.prepare(x.T, (block, READ)) if freed == "by the close of a window" else None
    late, later = x.work(x.S, (block, READ)), x.work(x.T)
    if freed == "by a drop":
        del block
        x.alloc(x.V).free()                             # carries out what finalizers left
    else:
        block.free()
    if window is not None:
        window.commit()
    assert not x.ordered(read, x.S)
    assert x.ordered(late, x.T)
    assert not x.ordered(later, x.U)
    assert x.runtime.live_bytes == 0


@pytest.mark.simulator
def test_the_last_of_a_chain_of_users_frees(four, driver):
    """V is ordered after U, and U after T: V alone is after all."""
    x = four()
    driver.set_policy("min")                            # no use is complete before the free
    block, reads = used_elsewhere(x, x.T)
    for before, stream in ((x.T, x.U), (x.U, x.V)):
        stream.wait(before)
        reads.append(x.use(stream, (block, READ)))
    fill = x.work(x.S)
    block.free()
    assert x.ordered(fill, x.V)
    assert [x.ordered(read, stream) for read, stream in zip(reads, (x.S, x.S, x.U), strict=True)] == [False] * 3


@pytest.mark.simulator
@pytest.mark.parametrize("sealed", ["", "S"])
@pytest.mark.parametrize("failed", ["", "cuMemFreeAsync", "cuStreamWaitEvent", "cuEventRecord"])
def test_a_consumer_that_frees_waits_for_the_producer(four, driver, sealed, failed):
    """For all that is queued there, recorded or not, as a free at home does; a sealed home records all."""
    x = four(sealed=sealed, policy="lazy")
    block, (read,) = used_elsewhere(x, x.T)
    last = x.use(x.S, (block, READ)) if sealed else x.work(x.S, (block, READ))
    if failed:
        driver.fail(failed, code=UNKNOWN)
        with pytest.raises(DriverError, match=failed):
            block.free()
        assert block.state is BlockState.LIVE
    block.free()
    assert x.ordered(last, x.T)
    assert not x.ordered(read, x.S)


@pytest.mark.simulator
@pytest.mark.parametrize("policy", ["eager", "min"])
def test_uses_that_are_complete_delay_nothing(four, driver, policy):
    """A fence that was recorded before shows that, and the free makes neither a record nor a wait."""
    x = four(policy="precise")
    driver.set_policy(policy)
    block, (read,) = used_elsewhere(x, x.T)
    later = x.work(x.T)
    calls = x.records(), x.waits(), driver.calls("cuEventQuery")
    block.free()
    assert driver.calls("cuEventQuery") == calls[2] + 1
    assert (x.records() - calls[0], x.waits() - calls[1]) == ((0, 0) if policy == "eager" else (1, 1))
    assert x.ordered(read, x.S) == (policy == "eager")
    assert not x.ordered(later, x.S)


@pytest.mark.simulator
def test_a_block_that_is_fresh_is_freed_behind_its_fill(four):
    """A use that is filed alone ends no freshness: T frees, after what S filled and what T read."""
    x = four()
    block = x.alloc(x.S)
    fill, read = x.work(x.S, (block, WRITE)), x.work(x.T)
    x.runtime.record_block_use(block, x.T)
    block.free()
    assert x.ordered(fill, x.T)
    assert not x.ordered(read, x.S)


@pytest.mark.simulator
@pytest.mark.parametrize("case", ["named", "two readers", "the home is after the reader", "adopted"])
def test_a_free_stays_at_home(four, driver, case):
    """Where the home is named, no user is after all others, the home need not wait, or an owner relies on it."""
    x = four()
    driver.set_policy("min")                            # no use is complete before the free
    if case == "adopted":
        memory = check(cuda.cuMemAlloc(512))
        block = x.runtime.adopt(int(memory), 512, stream=x.S)
        reads = [x.use(x.T, (block, READ))]
    else:
        block, reads = used_elsewhere(x, *((x.T, x.U) if case == "two readers" else (x.T,)))
    if case == "the home is after the reader":
        x.S.wait(x.T)
    waits, later = x.waits(), [x.work(x.T), x.work(x.U)]
    block.free(x.S if case == "named" else None)
    assert x.waits() - waits == {"two readers": 2, "the home is after the reader": 0}.get(case, 1)
    assert all(x.ordered(read, x.S) for read in reads)
    assert not x.ordered(later[0], x.U)
    assert not x.ordered(later[1], x.T)
    if case == "adopted":
        check(cuda.cuMemFree(memory))


@pytest.mark.simulator
@pytest.mark.parametrize("keeps", [False, True])
def test_a_resource_may_keep_the_memory_of_a_free_for_its_stream(four, keeps):
    """Then the free stays at home; adaptors on the driver's pool are as good as the pool."""
    below = AsyncMemoryResource()
    x = four(resource=KeepsForTheStream(below) if keeps else LimitingResourceAdaptor(below, 1 << 20))
    block, (read,) = used_elsewhere(x, x.T)
    block.free()
    assert x.ordered(read, x.S) == keeps


@pytest.mark.simulator
@pytest.mark.parametrize("kind", ["opaque", "unowned"])
def test_no_free_goes_to_a_stream_that_cannot_take_it(four, foreign, kind):
    """Its owner relies on what is queued there, or may destroy it; test_devices.py has streams of other devices."""
    x = four(opaque="T")
    reader = x.T if kind == "opaque" else x.runtime.register_stream(foreign())
    block, (read,) = used_elsewhere(x, reader)
    block.free()
    assert x.ordered(read, x.S)


@pytest.mark.simulator
def test_a_free_is_deferred_while_its_home_captures(four, driver):
    """As it is where no other stream has used the block: the first call after the capture carries it out."""
    x = four()
    driver.set_policy("min")
    block, (read,) = used_elsewhere(x, x.T)
    with Capture(x.S):
        block.free()
        assert block.state is BlockState.RETIRED
    x.alloc(x.V).free()
    assert block.state is BlockState.FREED
    assert not x.ordered(read, x.S)


@pytest.mark.simulator
def test_a_free_stays_at_home_while_the_user_captures(four, driver):
    """There a fence that was recorded before is enough."""
    x = four(policy="precise")
    driver.set_policy("min")
    block, (read,) = used_elsewhere(x, x.T)
    with Capture(x.T):
        block.free()
        assert block.state is BlockState.FREED
    assert x.ordered(read, x.S)


@pytest.mark.simulator
@pytest.mark.parametrize("failures", [1, 2, 3])
@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent", "cuMemFreeAsync"])
def test_each_try_of_a_dropped_block_goes_where_it_delays_nothing(four, driver, call, failures):
    """However often it fails: the home does not wait for what the user queues meanwhile."""
    x = four(policy="lazy")
    driver.set_policy("min")
    block, (read,) = used_elsewhere(x, x.T)
    other = x.alloc(x.V)
    del block
    for _ in range(failures):
        driver.fail(call, code=UNKNOWN)
        with use(x.V, write=other):                     # carries out what finalizers left
            pass
    late = x.work(x.T)
    assert x.runtime.counters()["failed_frees"] == failures
    with use(x.V, write=other):
        pass
    assert x.runtime.counters()["frees"] == 1
    assert not x.ordered(read, x.S)
    assert not x.ordered(late, x.S)


@pytest.mark.simulator
def test_a_free_that_failed_where_it_was_named_names_nothing(four, driver):
    x = four(policy="lazy")
    driver.set_policy("min")
    block, (read,) = used_elsewhere(x, x.T)
    driver.fail("cuMemFreeAsync", code=UNKNOWN)
    with pytest.raises(DriverError, match="cuMemFreeAsync"):
        block.free(x.U)
    block.free()
    assert not x.ordered(read, x.S)


@pytest.mark.simulator
def test_a_home_without_an_owner_leaves_the_free_to_the_default_stream(four, foreign):
    """... after the entries, as docs/ordering.md says: the user does not wait for the default stream."""
    x = four(policy="precise")
    S = x.runtime.register_stream(foreign())
    block = x.alloc(S)
    with use(S, write=block):
        pass
    x.use(x.T, (block, READ))
    later = x.work(x.runtime.default_stream)
    block.free()
    assert not x.ordered(later, x.T)
