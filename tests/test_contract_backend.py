"""Contract 16 to 69 and 127 to 134: what resources promise, and what the core promises on top of them."""
from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import pytest
from bench import READ, READ_WRITE, WRITE, Bench, nothing_happens
from cuda.bindings import driver as cuda

from xlogmem import (
    Access,
    AsyncMemoryResource,
    BlockState,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
    _driver,
    use,
)
from xlogmem._kernels import check

UNKNOWN = 999                                           # a CUresult that does not lose the device
RESOURCES = [AsyncMemoryResource, DirectMemoryResource]


# ---------------------------------------------------------------------------------------- resources
@pytest.mark.contract(16, 21)
@pytest.mark.parametrize("resource", RESOURCES)
def test_a_resource_serves_many_threads(resource, _context):
    """One resource, eight threads: no address is handed out twice at the same time."""
    shared = resource()
    pool = StreamPool()
    stream = pool.acquire()
    live, doubled = set(), []
    start = threading.Barrier(8)

    def work(_: int) -> None:
        start.wait()
        for turn in range(50):
            ptr = shared.allocate(256 + turn, stream)
            if ptr in live:
                doubled.append(ptr)
            live.add(ptr)
            live.remove(ptr)
            shared.deallocate(ptr, 256 + turn, stream)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert not doubled
    assert shared.device_ordinal == 0


class Outer(DeviceMemoryResource):
    """A decorator: counts what its inner resource does."""

    order = "stream"

    def __init__(self, inner: DeviceMemoryResource) -> None:
        super().__init__(inner.device_ordinal)
        self.inner = inner
        self.log: list[tuple[str, int]] = []

    def allocate(self, nbytes, stream):
        self.log.append(("allocate", nbytes))
        return self.inner.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.log.append(("deallocate", nbytes))
        self.inner.deallocate(ptr, nbytes, stream)


@pytest.mark.simulator
@pytest.mark.contract(17, 27, 62)
def test_resources_compose_and_are_tracked_whatever_they_are(bench, driver):
    """A decorator around a decorator around the driver's pool: blocks are ordered as on the bare resource."""
    inner = Outer(AsyncMemoryResource())
    x = bench(resource=Outer(inner))
    block = x.alloc(x.S, 300)
    read = x.use(x.T, (block, READ))
    block.free()
    assert x.ordered(read, x.S)
    assert inner.log == x.runtime.resource.log == [("allocate", 300), ("deallocate", 300)]
    assert driver.calls("cuMemFreeAsync") == 1


@pytest.mark.simulator
@pytest.mark.contract(33)
@pytest.mark.parametrize("dropped", [False, True])
def test_a_pool_and_a_quarantine_in_python(bench, driver, dropped):
    """Memory that a resource keeps and hands out again is as safe as the driver's: its frees are ordered before."""
    class Pool(Outer):
        kept: dict[int, list[int]]

        def allocate(self, nbytes, stream):
            spare = self.kept.setdefault(nbytes, [])
            return spare.pop() if spare else super().allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            self.kept[nbytes].append(ptr)               # on a stream that the free is ordered on

    pool = Pool(AsyncMemoryResource())
    pool.kept = {}
    x = bench(resource=pool)
    old = x.alloc(x.S)
    read = x.use(x.T, (old, READ))
    if dropped:
        driver.drop("cuStreamWaitEvent")
    old.free()
    new = x.alloc(x.S)
    assert (new.ptr, new.generation == old.generation) == (old.ptr, False)
    with use(x.S, write=new):
        x.kernels.fill(x.S.handle, new.ptr, 1, 1)
    assert bool(driver.races()) == dropped
    driver.clear_races()
    assert x.ordered(read, x.S) == (not dropped)
    new.free()
    for ptr in pool.kept[512]:
        pool.inner.deallocate(ptr, 512, x.S)


@pytest.mark.contract(25, 27, 29, 31, 133)
def test_a_resource_that_orders_nothing_is_refused_and_direct_is_not():
    """A resource that does not say how its frees are ordered never answers "fine"; what it says decides, not what it
    is."""
    class Silent(DeviceMemoryResource):
        def allocate(self, nbytes, stream):
            return 4096

        def deallocate(self, ptr, nbytes, stream):
            pass

    with pytest.raises(StreamMisuseError, match=r"does not support cross-stream use tracking \(unsupported\)"):
        DeviceRuntime(resource=Silent())
    runtime = DeviceRuntime(resource=DirectMemoryResource())
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    runtime.record_block_use(block, stream)
    runtime.prepare_block_use(block, stream, Access.READ)
    runtime.finish_block_use(block, stream, Access.READ)
    assert set(block.frontier) == {("allocated", 0), ("written", stream.id), ("has-read", stream.id)}


@pytest.mark.simulator
@pytest.mark.contract(23, 55, 132)
@pytest.mark.parametrize("resource", RESOURCES)
def test_a_reap_without_pending_frees_asks_nobody(driver, resource):
    """Nothing to do is no driver call, on either backend; and live blocks are nothing to do."""
    runtime = DeviceRuntime(resource=resource())
    block = runtime.allocate(64)
    with nothing_happens(driver, runtime):
        for blocking in (True, False):
            runtime.reap_pending(blocking=blocking)
    block.free()
    assert runtime.bytes_outstanding == (64 if resource is AsyncMemoryResource else 0)
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0


# ---------------------------------------------------------------------------------------- allocating
@pytest.mark.contract(34, 35, 44)
def test_the_books_start_at_zero_and_follow_each_allocation():
    """A new runtime has no blocks; each allocation adds its bytes as asked."""
    runtime = DeviceRuntime()
    assert set(runtime.counters().values()) == {0}
    assert (runtime.live_bytes, runtime.pending_bytes, runtime.bytes_outstanding) == (0, 0, 0)
    stream = runtime.acquire_stream()
    blocks, total = [], 0
    for nbytes in (1, 1000, 64, 1 << 20):
        blocks.append(runtime.allocate(nbytes, stream, tag=str(nbytes)))
        total += nbytes
        assert (runtime.live_bytes, runtime.pending_bytes, runtime.bytes_outstanding) == (total, 0, total)
        assert (blocks[-1].nbytes, blocks[-1].tag) == (nbytes, str(nbytes))
    assert runtime.counters()["live_blocks"] == runtime.counters()["allocations"] == 4
    assert runtime.stream_pool.default == runtime.default_stream
    assert isinstance(runtime.resource, DeviceMemoryResource)


@pytest.mark.simulator
@pytest.mark.contract(37, 38, 128)
@pytest.mark.parametrize("resource", RESOURCES)
def test_zero_bytes_are_refused_before_the_stream_is_looked_at(driver, resource):
    """Zero bytes: DriverError; then an unknown stream: StreamMisuseError; neither touches the driver."""
    runtime, foreign = DeviceRuntime(resource=resource()), DeviceRuntime()
    with nothing_happens(driver, runtime, foreign):
        for stream in (None, foreign.default_stream, "no stream"):
            with pytest.raises(DriverError, match=r"zero-byte allocation is not supported"):
                runtime.allocate(0, stream)
        with pytest.raises(StreamMisuseError, match="another runtime"):
            runtime.allocate(64, foreign.default_stream)


@pytest.mark.simulator
@pytest.mark.contract(18, 39)
@pytest.mark.parametrize(("resource", "call"), [(AsyncMemoryResource, "cuMemAllocFromPoolAsync"),
                                                (DirectMemoryResource, "cuMemAlloc")])
def test_a_failed_allocation_names_call_and_size_and_counts_nothing(driver, resource, call):
    """The error has the driver function, its code and the bytes; the books are unchanged, the next call succeeds."""
    runtime = DeviceRuntime(resource=resource())
    stream = runtime.acquire_stream()
    before = runtime.counters()
    driver.fail(call, code=UNKNOWN)
    with pytest.raises(DriverError, match=f"{call} gave CUDA_ERROR_UNKNOWN.*allocating 4711 bytes") as error:
        runtime.allocate(4711, stream)
    assert (error.value.call, error.value.code) == (call, UNKNOWN)
    assert runtime.counters() == before
    assert runtime.bytes_outstanding == 0
    with pytest.raises(OutOfDeviceMemoryError):
        runtime.allocate(1 << 63, stream)
    assert runtime.allocate(64, stream).state is BlockState.LIVE


@pytest.mark.simulator
@pytest.mark.contract(40, 41)
@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
def test_an_allocation_records_no_event(driver, policy):
    """It is one call of the driver, and no event that could fail; the block's entry is a position."""
    runtime = DeviceRuntime(policy=policy)
    stream = runtime.acquire_stream()
    driver.fail("cuEventRecord", code=UNKNOWN)
    first, second = runtime.allocate(64, stream), runtime.allocate(64, stream)
    assert driver.calls("cuEventRecord") == driver.calls("cuEventCreate") == 0
    assert driver.calls("cuMemAllocFromPoolAsync") == 2
    (one,), (two,) = first.frontier.values(), second.frontier.values()
    assert 0 < one < two


@pytest.mark.simulator
@pytest.mark.contract(42, 130)
@pytest.mark.parametrize("order", ["stream", "host"])
def test_an_address_handed_out_twice_poisons_the_older_block(driver, order):
    """The old block is never freed, its handles are stale; the new one lives and is freed once (W19)."""
    class Twice(DeviceMemoryResource):
        given: list[int]

        def allocate(self, nbytes, stream):
            return self.given[0]

        def deallocate(self, ptr, nbytes, stream):
            self.given.append(ptr)

    Twice.order = order
    resource = Twice()
    resource.given = [int(check(cuda.cuMemAlloc(64)))]
    runtime = DeviceRuntime(resource=resource)
    old, new = runtime.allocate(64), runtime.allocate(64)
    assert old.ptr == new.ptr
    assert (old.state, new.state) == (BlockState.FREED, BlockState.LIVE)
    assert runtime.live_bytes == 64
    with pytest.raises(UseAfterFreeError):
        old.free()
    assert len(resource.given) == 1
    new.free()
    assert resource.given == [new.ptr] * 2
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    check(cuda.cuMemFree(resource.given[0]))


@pytest.mark.contract(43, 45)
def test_the_table_knows_the_generation_that_the_handle_has():
    """Handle, identity and lookup agree; after the free nobody finds the entry."""
    runtime = DeviceRuntime()
    blocks = [runtime.allocate(100 * n) for n in range(1, 20)]
    for block in blocks:
        found = runtime.find_block(block.ptr + block.nbytes - 1)
        assert (found.generation, found.ptr) == (block.generation, block.ptr)
    for block in blocks[::2]:
        block.free()
    assert [runtime.find_block(block.ptr) is None for block in blocks] == [n % 2 == 0 for n in range(19)]


# ---------------------------------------------------------------------------------------- uses
@pytest.mark.simulator
@pytest.mark.contract(28, 65)
def test_what_each_access_waits_for(bench):
    """A reader waits for the writer, not for readers; a writer for everybody; nobody for his own stream."""
    x = bench()
    block = x.alloc(x.S)
    waits = []

    def used(stream, access):
        before = x.waits()
        operation = x.use(stream, (block, access))
        waits.append(x.waits() - before)
        return operation

    write = used(x.S, WRITE)                            # its own allocation
    first, second = used(x.T, READ), used(x.U, READ)
    assert x.ordered(write, x.T)
    assert not x.ordered(first, x.U)
    assert waits == [0, 1, 1]
    last = used(x.V, WRITE)                             # both readers, and through them the writer
    assert waits[3] == 2
    assert all(x.ordered(before, x.V) for before in (write, first, second))
    again = used(x.V, READ_WRITE)
    assert waits[4] == 0
    assert used(x.S, READ)
    assert x.ordered(last, x.S)
    assert x.ordered(again, x.S)
    assert waits[5] == 1


@pytest.mark.simulator
@pytest.mark.contract(65)
def test_the_first_use_of_a_fresh_block(bench):
    """Elsewhere one wait, which covers the fill too, also where S was waited for before it; on S itself none."""
    x = bench()
    block, earlier = x.alloc(x.S), x.alloc(x.S)
    x.use(x.S, (earlier, READ))
    assert (x.records(), x.waits()) == (0, 0)
    x.use(x.T, (earlier, READ))                         # T knows the allocation of both now
    fill = x.work(x.S, (block, WRITE))
    x.use(x.S, (block, READ))
    assert x.waits() == 1
    x.use(x.T, (block, READ))
    assert x.waits() == 2
    assert x.ordered(fill, x.T)


@pytest.mark.simulator
@pytest.mark.contract(30, 36, 45, 67)
def test_what_is_kept_of_uses(bench):
    """One entry for each kind and stream; a write removes what it was ordered after, a read removes nothing."""
    x = bench()
    block = x.alloc(x.S)
    assert set(block.frontier) == {("allocated", x.S.id)}
    for _ in range(100):
        x.use(x.T, (block, READ))
    x.use(x.U, (block, READ))
    assert set(block.frontier) == {("allocated", x.S.id), ("has-read", x.T.id), ("has-read", x.U.id)}
    newest = block.frontier["has-read", x.T.id]
    window = x.prepare(x.V, (block, WRITE))
    x.use(x.T, (block, READ))                           # slips in: not in the writer's ticket
    window.commit()
    assert block.frontier.keys() == {("written", x.V.id), ("has-read", x.T.id)}
    assert block.frontier["has-read", x.T.id] > newest
    x.use(x.U, (block, READ_WRITE))
    assert block.frontier.keys() == {("written", x.U.id)}
    block.free()
    assert block.frontier == {}


@pytest.mark.simulator
@pytest.mark.contract(24, 26, 63)
@pytest.mark.parametrize("recorded", [True, False])
def test_record_block_use_protects_later_users_and_the_free(bench, driver, recorded):
    """Work of unknown access is filed as written: a reader elsewhere and the free wait for it."""
    x = bench()
    block = x.alloc(x.S)
    x.use(x.T, (block, READ))                           # T knows S
    done = x.work(x.T, (block, WRITE))
    if recorded:
        with pytest.raises(StreamMisuseError, match="not memory"):
            x.runtime.record_block_use(4711, x.T)
        with pytest.raises(StreamMisuseError, match="another runtime"):
            x.runtime.record_block_use(block, DeviceRuntime().default_stream)
        calls = x.records(), x.waits()
        x.runtime.record_block_use(block, x.T)
        assert (x.records(), x.waits()) == calls        # no event, none that could fail
        assert ("written", x.T.id) in block.frontier
    x.use(x.U, (block, READ))
    assert bool(driver.races()) == (not recorded)
    driver.clear_races()
    if recorded:
        assert x.ordered(done, x.U)
    identity = block.id
    block.free()
    driver.clear_races()
    with pytest.raises(UseAfterFreeError):
        x.runtime.record_block_use(identity, x.T)


@pytest.mark.simulator
@pytest.mark.contract(64, 100)
@pytest.mark.parametrize("call", ["prepare_block_use", "finish_block_use"])
def test_single_uses_check_before_they_act(driver, call):
    """Another device's block, then another runtime's stream, then a stale identity: refused with no effect."""
    runtime, elsewhere = DeviceRuntime(), DeviceRuntime(1)
    stream, block = runtime.acquire_stream(), runtime.allocate(64)
    theirs, gone = elsewhere.allocate(64), runtime.allocate(64)
    identity = gone.id
    gone.free()
    before = block.frontier
    single = getattr(runtime, call)
    with nothing_happens(driver, runtime, elsewhere):
        for what, where, error in ((theirs, stream, StreamMisuseError), (theirs.id, stream, StreamMisuseError),
                                   (block, elsewhere.default_stream, StreamMisuseError),
                                   (identity, elsewhere.default_stream, StreamMisuseError),
                                   (identity, stream, UseAfterFreeError), (gone, stream, UseAfterFreeError),
                                   ("a block", stream, TypeError), (4711, stream, StreamMisuseError)):
            with pytest.raises(error):
                single(what, where, Access.WRITE)
    assert block.frontier == before
    block.free()
    assert block.state is BlockState.FREED              # no window was left on it


@pytest.mark.simulator
@pytest.mark.contract(29, 64)
def test_a_prepare_whose_wait_fails_changes_nothing(bench, driver):
    """DriverError; the block's frontier is the same, no window is open, and the call may be repeated."""
    x = bench()
    block = x.alloc(x.S)
    write = x.use(x.S, (block, WRITE))
    kinds = block.frontier.keys()
    driver.fail("cuStreamWaitEvent", code=UNKNOWN)
    with pytest.raises(DriverError, match="cuStreamWaitEvent"):
        x.runtime.prepare_block_use(block, x.T, Access.READ)
    assert block.frontier.keys() == kinds
    x.runtime.prepare_block_use(block, x.T, Access.READ)
    assert x.ordered(write, x.T)
    x.runtime.finish_block_use(block, x.T, Access.READ)
    block.free()
    assert block.state is BlockState.FREED


@pytest.mark.simulator
@pytest.mark.contract(66, 68)
def test_what_was_prepared_cannot_vanish(bench):
    """A free between prepare and finish waits for the finish, which is never refused."""
    x = bench()
    block = x.alloc(x.S)
    x.runtime.prepare_block_use(block, x.T, Access.WRITE)
    write = x.work(x.T, (block, WRITE))
    block.free()
    other = x.alloc(x.S)
    assert other.ptr != block.ptr
    x.runtime.finish_block_use(block, x.T, Access.WRITE)
    assert block.state is BlockState.FREED
    assert x.ordered(write, x.S)
    with pytest.raises(UseAfterFreeError):
        x.runtime.finish_block_use(block.id, x.T, Access.WRITE)


# ---------------------------------------------------------------------------------------- freeing
@pytest.mark.simulator
@pytest.mark.contract(46, 47, 48)
@pytest.mark.parametrize("resource", RESOURCES)
def test_frees_that_are_refused_change_nothing(driver, resource):
    """A block of another device, then a dead stream, then a stale block: each its error, the books as before."""
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
@pytest.mark.contract(47)
def test_the_heir_of_a_dead_stream_frees(bench):
    """A block whose stream is gone is freed on the heir, after everything that was queued on the dead stream."""
    x = bench()
    raw = check(cuda.cuStreamCreate(1))
    S = x.runtime.register_stream(raw)
    block = x.alloc(S)
    fill = x.work(S, (block, WRITE))
    x.runtime.unregister_stream(S, heir=x.V)
    check(cuda.cuStreamDestroy(raw))
    block.free()
    assert block.state is BlockState.FREED
    assert x.ordered(fill, x.V)


@pytest.mark.simulator
@pytest.mark.contract(49, 52)
def test_a_free_waits_once_for_each_other_stream(bench):
    """Its own stream is skipped; the events are free for other use as soon as the waits are queued."""
    x = bench()
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
@pytest.mark.contract(50)
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("call", ["cuStreamWaitEvent", "cuEventRecord"])
def test_a_free_whose_wait_fails_may_be_repeated(bench, driver, call, nth):
    """DriverError; the block is live with its entries, the books are the same; the second free succeeds."""
    x = bench(policy="lazy")
    block = x.alloc(x.S)
    readers = [x.use(stream, (block, READ)) for stream in (x.T, x.U, x.V)]
    kinds, books = block.frontier.keys(), (x.runtime.live_bytes, x.runtime.pending_bytes)
    driver.fail(call, nth, code=UNKNOWN)
    with pytest.raises(DriverError, match=call):
        block.free()
    assert block.state is BlockState.LIVE
    assert block.frontier.keys() == kinds
    assert (x.runtime.live_bytes, x.runtime.pending_bytes) == books
    assert driver.calls("cuMemFreeAsync") == 0
    block.free()
    assert block.state is BlockState.FREED
    assert all(x.ordered(read, x.S) for read in readers)


@pytest.mark.simulator
@pytest.mark.contract(22, 51, 53)
def test_bytes_move_from_live_to_pending_to_nothing(bench, driver):
    """Live until the free is queued, pending until the host has seen it complete, outstanding all the while."""
    x = bench()
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


@pytest.mark.contract(54)
@pytest.mark.parametrize("seed", range(3))
def test_the_books_agree_with_a_ledger(seed):
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
        assert runtime.pending_bytes == freed
        assert runtime.bytes_outstanding == runtime.live_bytes + freed
        assert runtime.counters()["live_blocks"] == len(blocks)


# ---------------------------------------------------------------------------------------- reaping
def pending_on(x: Bench) -> dict[int, int]:
    """Pending bytes on three streams: their id and how many."""
    blocks = [x.runtime.allocate(100 << n, stream) for n, stream in enumerate((x.S, x.T, x.U))]
    for block in blocks:
        block.free()
    return {block.stream.id: block.nbytes for block in blocks}


@pytest.mark.simulator
@pytest.mark.contract(56, 57, 58, 60, 61)
@pytest.mark.parametrize("call", ["cuEventSynchronize", "cuEventRecord"])
@pytest.mark.parametrize("failing", [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)])
def test_a_reap_that_fails_on_some_streams_releases_the_others(bench, driver, failing, call):
    """Every stream is visited; the failed ones alone stay pending, the error says so, and the next reap drains."""
    x = bench()
    kept = x.alloc(x.V)
    sizes = pending_on(x)
    for nth in failing:
        driver.fail(call, nth, code=UNKNOWN)
    with pytest.raises(DriverError, match=f"{call} gave CUDA_ERROR_UNKNOWN.*while reaping") as error:
        x.runtime.reap_pending()
    assert error.value.call == call
    left = x.runtime.pending_bytes
    assert left in {sum(some) for some in combinations(sizes.values(), len(failing))}
    assert x.runtime.live_bytes == kept.nbytes
    late = x.runtime.allocate(7, x.S)
    late.free()                                         # what arrives meanwhile is added
    assert x.runtime.pending_bytes == left + 7
    x.runtime.reap_pending()
    assert (x.runtime.pending_bytes, x.runtime.bytes_outstanding) == (0, kept.nbytes)


@pytest.mark.simulator
@pytest.mark.contract(56, 57)
def test_a_reap_that_only_looks_may_fail_too(bench, driver):
    """Without waiting: a stream that cannot be asked keeps its bytes, the others are released."""
    x = bench()
    sizes = pending_on(x)
    driver.fail("cuEventQuery", 2, code=UNKNOWN)
    with pytest.raises(DriverError, match="cuEventQuery"):
        x.runtime.reap_pending(blocking=False)
    assert x.runtime.pending_bytes in sizes.values()
    x.runtime.reap_pending(blocking=False)
    assert x.runtime.pending_bytes == 0


@pytest.mark.simulator
@pytest.mark.contract(55, 58)
def test_a_reap_waits_once_for_each_stream_with_frees(bench, driver):
    """Streams without frees are not waited for; many frees of one stream are one wait."""
    x = bench()
    for _ in range(10):
        pending_on(x)
    x.use(x.V, (x.alloc(x.V), WRITE))
    before = driver.calls("cuEventSynchronize")
    x.runtime.reap_pending()
    assert driver.calls("cuEventSynchronize") - before == 3 + 1     # and the block of V, dropped above
    with nothing_happens(driver, x.runtime):
        x.runtime.reap_pending()


@pytest.mark.simulator
@pytest.mark.contract(59)
def test_bytes_of_a_stream_that_is_gone_stay_until_they_are_seen(bench, driver):
    """A free on a stream that was unregistered is pending until the host has seen the stream's last event."""
    x = bench()
    driver.set_policy("min")
    raw = check(cuda.cuStreamCreate(1))
    S = x.runtime.register_stream(raw)
    x.alloc(S, 100).free()
    x.runtime.unregister_stream(S)
    assert x.runtime.pending_bytes == 100
    driver.fail("cuEventSynchronize", code=UNKNOWN)
    with pytest.raises(DriverError):
        x.runtime.reap_pending()
    assert x.runtime.pending_bytes == 100
    x.runtime.reap_pending()
    assert x.runtime.pending_bytes == 0
    check(cuda.cuStreamDestroy(raw))


# ---------------------------------------------------------------------------------------- the direct backend
@pytest.mark.simulator
@pytest.mark.contract(127, 132, 133)
@pytest.mark.parametrize("dropped", [False, True])
def test_direct_frees_after_the_uses_and_its_stream(bench, driver, dropped):
    """The host waits for every use and for the block's stream; then the bytes are gone, with nothing to reap."""
    x = bench(resource=DirectMemoryResource())
    driver.set_policy("min")
    block = x.alloc(x.S)
    assert block.stream == x.S
    x.work(x.S, (block, WRITE))                         # nobody recorded this
    x.use(x.T, (block, READ))
    if dropped:
        driver.drop("cuEventSynchronize")
        driver.drop("cuEventSynchronize", 2)
    queued = []
    driver.on_call("cuMemFree", lambda: queued.append(driver.pending_operations()))
    block.free()
    assert (queued[0] > 0) == dropped
    assert driver.calls("cuEventSynchronize") == 2
    assert driver.calls("cuMemFree") == 1
    assert x.runtime.bytes_outstanding == 0


@pytest.mark.contract(129, 131)
def test_direct_validates_streams_and_generations():
    """A stream of nobody is refused, and a stale block does not free the newer one at its address."""
    runtime, other = DeviceRuntime(resource=DirectMemoryResource()), DeviceRuntime()
    with pytest.raises(StreamMisuseError, match="another runtime"):
        runtime.allocate(64, other.default_stream)
    seen = {}
    for _ in range(20):
        block = runtime.allocate(64)
        if block.ptr in seen:
            with pytest.raises(UseAfterFreeError):
                seen[block.ptr].free()
            assert (block.state, runtime.live_bytes) == (BlockState.LIVE, 64)
        seen[block.ptr] = block
        block.free()
    assert len(seen) < 20


@pytest.mark.contract(69, 134)
def test_direct_is_chosen_for_memory_checkers(monkeypatch):
    """XLOGMEM_RESOURCE=direct puts every runtime on cuMemAlloc; without it the stream-ordered backend serves."""
    monkeypatch.delenv("XLOGMEM_RESOURCE", raising=False)
    assert type(DeviceRuntime().resource) is AsyncMemoryResource
    monkeypatch.setenv("XLOGMEM_RESOURCE", "direct")
    runtime = DeviceRuntime()
    assert type(runtime.resource) is DirectMemoryResource
    runtime.allocate(64).free()
    assert runtime.bytes_outstanding == 0
