"""Several resources in one runtime: a block goes back to the resource that it came from, and each resource hears of
its own blocks alone."""
from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
from c_table import Hold
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE
from pools import no_driver_call
from sim_support import python

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    ManagedMemoryResource,
    MemoryCorruptionError,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    PinnedMemoryResource,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    StreamMisuseError,
    TrackingResourceAdaptor,
    use,
)
from xlogmem.sim.kernels import check

KIB = 1 << 10
KINDS = {"async": AsyncMemoryResource, "direct": DirectMemoryResource, "pool": PoolMemoryResource,
         "pinned": PinnedMemoryResource, "managed": ManagedMemoryResource,
         "pool of pinned": lambda: PoolMemoryResource(PinnedMemoryResource())}
FREES = {"async": "cuMemFreeAsync", "direct": "cuMemFree", "managed": "cuMemFree", "pinned": "cuMemFreeHost"}


class Noted(DeviceMemoryResource):
    """Memory of an async resource, and a list of what was freed."""

    order = "stream"

    def __init__(self) -> None:
        super().__init__()
        self.below = AsyncMemoryResource()
        self.freed: list[int] = []

    def allocate(self, nbytes: int, stream: int) -> int:
        return self.below.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        self.freed.append(ptr)
        self.below.deallocate(ptr, nbytes, stream)


# ---------------------------------------------------------------------------------------------- whose block it is
@pytest.mark.parametrize("own", ["async", "direct", "pool", "pinned"])
@pytest.mark.parametrize("other", KINDS)
def test_a_block_goes_back_where_it_came_from(own, other):
    """Whatever the runtime's own resource is, and however the block is freed."""
    first, second = (StatisticsResourceAdaptor(KINDS[name]()) for name in (own, other))
    runtime = DeviceRuntime(resource=first)
    s, t = runtime.acquire_stream(), runtime.acquire_stream()
    for free in ("home", "elsewhere", "dropped", "together", "inside"):
        mine, other_block = runtime.allocate(1000, s), runtime.allocate(2000, s, resource=second)
        assert (mine.resource, other_block.resource) == (first, second)
        for adaptor, nbytes in ((first, 1000), (second, 2000)):
            assert adaptor.allocation_counts.current_bytes == nbytes
        with use(t, read=[mine, other_block]):
            if free == "inside":
                other_block.free()
                assert second.allocation_counts.current_bytes == 2000
        if free == "home":
            other_block.free()
        elif free == "elsewhere":
            other_block.free(t)
        elif free == "together":
            runtime.deallocate_many([other_block, mine])
        assert other_block.resource is None or free == "dropped"
        del other_block
        runtime.reap_pending()
        assert second.allocation_counts.current_bytes == 0
        assert first.allocation_counts.current_bytes == (0 if free == "together" else 1000)
        del mine
        runtime.reap_pending()
        assert first.allocation_counts.current_bytes == runtime.live_bytes == 0


@pytest.mark.simulator
def test_each_is_freed_by_its_own_function(driver):
    runtime = DeviceRuntime(resource=AsyncMemoryResource())
    resources = {name: KINDS[name]() for name in FREES}
    blocks = [runtime.allocate(100, resource=resource) for resource in resources.values()]
    assert runtime.resources == (runtime.resource, *resources.values())
    for block, function in zip(blocks, FREES.values(), strict=True):
        before = driver.calls(function)
        block.free()
        assert driver.calls(function) == before + 1


def test_the_own_resource_is_none_of_the_others():
    pool = PoolMemoryResource()
    runtime = DeviceRuntime(resource=pool)
    a, b, c = runtime.allocate(10), runtime.allocate(10, resource=pool), runtime.allocate(10, resource=None)
    assert runtime.resources == (pool,)
    assert a.resource is b.resource is c.resource is pool


def test_adopted_memory_and_no_bytes_have_none(memory):
    runtime = DeviceRuntime()
    pinned = PinnedMemoryResource()
    assert runtime.adopt(memory, 64).resource is None
    empty = runtime.allocate(0, resource=pinned)
    assert empty.resource is None
    assert runtime.resources == (runtime.resource, pinned)
    empty.free()


def test_the_resource_is_named():
    runtime = DeviceRuntime(resource=AsyncMemoryResource())
    block = runtime.allocate(10, resource=PinnedMemoryResource())
    assert "resource=PinnedMemoryResource" in repr(block)
    assert "resource" not in repr(runtime.allocate(10))
    block.free()
    assert "resource" not in repr(block)


def test_the_c_table_finds_blocks_of_every_resource(driver):
    """A free names an address; the block there knows its resource.  Allocations come from the runtime's own."""
    for own in ("async", "pool"):
        runtime = DeviceRuntime(resource=KINDS[own]())
        stream = runtime.acquire_stream()
        hold = Hold(runtime)
        for other in KINDS:
            adaptor = StatisticsResourceAdaptor(KINDS[other]())
            block = runtime.allocate(1000, stream, resource=adaptor)
            hold.free(block.ptr, stream.handle)
            runtime.reap_pending()
            assert (adaptor.allocation_counts.current_bytes, runtime.live_bytes) == (0, 0), (own, other)
        hold.close()


# ---------------------------------------------------------------------------------------------- order
@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("other", ["pinned", "managed", "direct", "async"])
def test_a_free_comes_after_the_readers(four, driver, other, dropped):
    """The runtime's own resource is another one, which would not wait, or would wait elsewhere."""
    x = four(resource=DirectMemoryResource() if other == "async" else AsyncMemoryResource())
    driver.set_policy("min")
    block = x.runtime.allocate(512, x.S, resource=KINDS[other]())
    x.work(x.S, (block, WRITE))                         # unrecorded
    x.use(x.T, (block, READ))
    if dropped:
        for name in ("cuEventSynchronize", "cuStreamWaitEvent"):
            driver.drop(name)
            driver.drop(name, 2)
    queued: list[int] = []
    driver.on_call(FREES[other], lambda: queued.append(driver.pending_operations()))
    block.free(x.S)
    if other == "async":
        assert (len(driver.races()) > 0) == dropped
    else:
        assert (queued[0] > 0) == dropped
    driver.clear_races()


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("kind", ["pinned", "managed", "pool of pinned"])
def test_uses_of_such_memory_are_ordered(four, driver, kind, dropped):
    """One window and one wait for blocks of several resources."""
    x = four(resource=AsyncMemoryResource())
    driver.set_policy("min")
    block, other = x.runtime.allocate(512, x.S, resource=KINDS[kind]()), x.alloc(x.S)
    x.use(x.S, (block, WRITE), (other, WRITE))
    waits = x.waits()
    if dropped:
        driver.drop("cuStreamWaitEvent")
    x.use(x.T, (block, READ), (other, READ))
    assert x.waits() == waits + 1
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    check(cuda.cuCtxSynchronize())


@pytest.mark.simulator
def test_memory_of_a_second_pool_is_in_no_cache_of_a_stream(four, driver):
    """The caches have memory of the runtime's own pool: what another pool gets back it hands out itself."""
    x = four(resource=PoolMemoryResource(initial_pool_size=1 << 20))
    second = PoolMemoryResource(initial_pool_size=1 << 20)
    for _ in range(8):                                  # the size is allocated often enough to be cached
        x.runtime.allocate(4096, x.S).free()
    taken = [x.runtime.allocate(4096, x.S, resource=second) for _ in range(4)]
    there = {block.ptr for block in taken}
    for block in taken:
        block.free()
    mine = [x.runtime.allocate(4096, x.S) for _ in range(8)]
    assert not there & {block.ptr for block in mine}
    assert second.statistics()["used_bytes"] == 0


@pytest.mark.simulator
def test_a_second_pool_needs_no_driver_call_and_keeps_the_gil(four, driver):
    x = four(resource=AsyncMemoryResource())
    second = PoolMemoryResource(initial_pool_size=1 << 20)
    x.runtime.allocate(512, x.S, resource=second).free()
    with no_driver_call(driver, "cuStreamIsCapturing"):
        for _ in range(4):
            x.runtime.allocate(512, x.S, resource=second).free()
        block = x.runtime.allocate(512, x.S, resource=second)
        del block
        x.runtime.allocate(512, x.S, resource=second).free()
    assert second.statistics()["used_bytes"] == 0


# ---------------------------------------------------------------------------------------------- accounting
@pytest.mark.simulator
def test_pending_bytes_settle_at_their_resources():
    """Frees of two resources on one stream share a marker, and its bytes go to both budgets."""
    own, other = (LimitingResourceAdaptor(AsyncMemoryResource(), 64 * KIB) for _ in range(2))
    runtime = DeviceRuntime(resource=own)
    stream = runtime.acquire_stream()
    for turn in range(3):
        one = [runtime.allocate(1 * KIB, stream) for _ in range(4)]
        two = [runtime.allocate(2 * KIB, stream, resource=other) for _ in range(4)]
        assert (own.current_bytes, other.current_bytes) == (4 * KIB, 8 * KIB)
        for a, b in zip(one, two, strict=True):
            a.free()
            b.free()
        assert (own.current_bytes, other.current_bytes) == (4 * KIB, 8 * KIB)
        assert runtime.snapshot().pending_bytes == 12 * KIB
        runtime.reap_pending()
        assert (own.current_bytes, other.current_bytes, runtime.live_bytes) == (0, 0, 0), turn
    runtime.allocate(2 * KIB, stream, resource=other).free()
    runtime.allocate(1 * KIB, stream).free()
    assert (own.current_bytes, other.current_bytes) == (1 * KIB, 2 * KIB)
    del runtime, stream, a, b, one, two
    gc.collect()
    assert (own.current_bytes, other.current_bytes) == (0, 0)       # at the end of the runtime, too


@pytest.mark.simulator
def test_merged_markers_keep_the_shares_of_each(four, driver):
    own, other = (LimitingResourceAdaptor(AsyncMemoryResource(), "1GiB") for _ in range(2))
    x = four(resource=own)
    driver.set_policy("min")
    for _ in range(20):                                 # a marker each: none is looked at while a poll has closed it
        x.runtime.allocate(3 * KIB, x.S).free()
        x.runtime.allocate(5 * KIB, x.S, resource=other).free()
        x.work(x.S)
        x.runtime.reap_pending(blocking=False)
    assert own.current_bytes * 5 == other.current_bytes * 3
    x.runtime.reap_pending()
    assert (own.current_bytes, other.current_bytes, x.runtime.pending_bytes) == (0, 0, 0)


def test_a_snapshot_says_how_much_each_has(memory):
    runtime = DeviceRuntime(resource=AsyncMemoryResource())
    pinned, managed = PoolMemoryResource(PinnedMemoryResource()), ManagedMemoryResource()
    blocks = [runtime.allocate(1000, tag="a"), runtime.allocate(2000, resource=pinned),
              runtime.allocate(3000, resource=managed), runtime.allocate(4000, resource=pinned, tag="a")]
    adopted = runtime.adopt(memory, 64)
    snapshot = runtime.snapshot()
    assert snapshot.live_bytes == runtime.live_bytes == sum(block.nbytes for block in blocks)
    assert snapshot.resources == ((repr(runtime.resource), 1000, 1), (repr(pinned), 6000, 2), (repr(managed), 3000, 1))
    assert [name.name for name in snapshot.resources] == [repr(resource) for resource in runtime.resources]
    places = {block.address: block.resource for block in snapshot.blocks}
    assert [places[block.ptr] for block in blocks] == [0, 1, 2, 1]
    assert places[adopted.ptr] is None
    assert len(snapshot.pools) == 1
    assert "PinnedMemoryResource" in str(snapshot)
    assert snapshot.to_dict()["resources"][1] == {"name": repr(pinned), "nbytes": 6000, "blocks": 2}
    assert "over PinnedMemoryResource" in runtime.memory_summary()
    assert len(DeviceRuntime().snapshot().resources) == 1


def test_adaptors_around_a_second_resource_see_its_blocks_alone(tmp_path):
    log = tmp_path / "second.csv"
    budget = LimitingResourceAdaptor(PoolMemoryResource(PinnedMemoryResource()), 64 * KIB)
    tracked = TrackingResourceAdaptor(StatisticsResourceAdaptor(budget))
    second = LoggingResourceAdaptor(tracked, str(log))
    assert second.is_host_accessible
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    own = runtime.allocate(16 * KIB, stream)
    block = runtime.allocate(48 * KIB, stream, resource=second, tag="staging")
    assert budget.holders() == {"staging": 48 * KIB}
    assert [allocation.ptr for allocation in tracked.outstanding_allocations()] == [block.ptr]
    with pytest.raises(OutOfBudgetError, match=r"requested 32.0 KiB.*PinnedMemoryResource.*48.0 KiB"):
        runtime.allocate(32 * KIB, stream, resource=second)
    block.free()
    runtime.allocate(64 * KIB, stream, resource=second).free()
    own.free()
    runtime.reap_pending()
    assert (budget.current_bytes, tracked.outstanding_bytes) == (0, 0)
    second.flush()
    assert log.read_text().count(",allocate,") == 2


def test_the_findings_of_a_guard_of_a_second_resource_are_raised(kernels):
    guard = GuardResourceAdaptor(ManagedMemoryResource())
    runtime = DeviceRuntime(resource=AsyncMemoryResource())
    stream = runtime.acquire_stream()
    block = runtime.allocate(1024, stream, resource=guard)
    runtime.allocate(1024, stream).free()
    with use(stream, write=block):
        kernels.fill(stream.handle, block.ptr + 1024, 7, 1)
    block.free()
    assert block.state.value == "quarantined"
    with pytest.raises(MemoryCorruptionError, match="overrun"):
        runtime.reap_pending()
    with pytest.raises(Exception, match="was freed"):
        block.free()


# ---------------------------------------------------------------------------------------------- out of memory
@pytest.mark.simulator
def test_out_of_memory_of_a_second_resource(four, driver):
    """Its pending frees are waited for, it is trimmed, and the error names it; the other one goes on."""
    x = four(resource=AsyncMemoryResource())
    second = PoolMemoryResource(PinnedMemoryResource(), maximum_pool_size=64 * KIB)
    kept = x.runtime.allocate(40 * KIB, x.S, resource=second)
    with pytest.raises(OutOfDeviceMemoryError, match=r"from <PoolMemoryResource.*PinnedMemoryResource.*the pool has 0"
                       ) as caught:
        x.runtime.allocate(32 * KIB, x.S, resource=second)
    assert "the device has" not in str(caught.value)
    x.runtime.allocate(1 << 20, x.S).free()
    kept.free()
    x.runtime.allocate(64 * KIB, x.T, resource=second).free()


@pytest.mark.simulator
@pytest.mark.parametrize("kind", ["pinned", "managed"])
def test_the_driver_has_no_more(four, driver, kind):
    x = four(resource=AsyncMemoryResource())
    second = KINDS[kind]()
    name = "cuMemHostAlloc" if kind == "pinned" else "cuMemAllocManaged"
    driver.fail(name)
    driver.fail(name, 2)
    with pytest.raises(OutOfDeviceMemoryError, match=f"{name}.*from <"):
        x.runtime.allocate(512, x.S, resource=second)
    driver.fail(name)
    assert x.runtime.allocate(512, x.S, resource=second).resource is second     # the second attempt
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0


# ---------------------------------------------------------------------------------------------- the end
@pytest.mark.simulator
@pytest.mark.parametrize("other", KINDS)
def test_the_end_of_a_runtime_frees_all(driver, other):
    """The resource lives as long as the runtime, and its memory goes at the runtime's end, in a cycle too."""
    def count() -> int:
        names = ("cuMemHostAlloc", "cuMemAllocManaged", "cuMemAlloc")
        return sum(map(driver.calls, names)) - driver.calls("cuMemFreeHost") - driver.calls("cuMemFree")

    for in_cycle in (False, True):
        runtime = DeviceRuntime(resource=AsyncMemoryResource())
        resource = KINDS[other]()
        blocks = [runtime.allocate(10 * KIB, runtime.acquire_stream(), resource=resource) for _ in range(3)]
        blocks.pop().free()
        del resource
        gc.collect()
        assert len(runtime.resources) == 2
        if in_cycle:
            runtime.__dict__["me"] = runtime
        del blocks, runtime
        gc.collect()
        DeviceRuntime().reap_pending()
        assert (count(), driver.live_bytes()) == (0, 0)


@pytest.mark.simulator
def test_a_pool_that_outlives_its_runtime_has_nothing_left(driver):
    """The end of the runtime returns the chunks of every pool, though the program holds the pool."""
    pools = [PoolMemoryResource(AsyncMemoryResource()), PoolMemoryResource(PinnedMemoryResource())]
    runtime = DeviceRuntime(resource=AsyncMemoryResource())
    for pool in pools:
        runtime.allocate(10 * KIB, resource=pool).free()
        assert pool.pool_size() > 0
    del runtime
    gc.collect()
    assert [pool.pool_size() for pool in pools] == [0, 0]
    assert driver.calls("cuMemFreeHost") == 1


def test_a_resource_in_python_that_refers_to_its_runtime():
    runtime = DeviceRuntime(resource=AsyncMemoryResource())
    resource = Noted()
    resource.runtime = runtime                          # type: ignore[attr-defined]
    freed = resource.freed
    ptr = runtime.allocate(100, resource=resource).ptr
    del runtime, resource
    gc.collect()
    DeviceRuntime().reap_pending()
    assert freed == [ptr]


EXIT = """
import xlogmem
xlogmem.sim.install()
runtime = xlogmem.get_runtime()
kinds = (xlogmem.PinnedMemoryResource(), xlogmem.ManagedMemoryResource(),
         xlogmem.PoolMemoryResource(xlogmem.PinnedMemoryResource()))
kept = [runtime.allocate(100, resource=kind) for kind in kinds]
print(len(runtime.resources))
"""


@pytest.mark.simulator
def test_the_exit_of_a_process():
    done = python("-c", EXIT)
    assert (done.returncode, done.stdout.strip(), done.stderr.count("Error")) == (0, "4", 0)


# ---------------------------------------------------------------------------------------------- binding
def test_a_pool_of_another_runtime_is_refused():
    pool = PoolMemoryResource(PinnedMemoryResource())
    first, second = DeviceRuntime(), DeviceRuntime()
    kept = first.allocate(64, resource=pool)
    with pytest.raises(StreamMisuseError, match=r"resource: the memory pool belongs to another runtime; give each"):
        second.allocate(64, resource=pool)
    with pytest.raises(StreamMisuseError, match="the memory pool belongs to another runtime"):
        DeviceRuntime(resource=pool)
    assert second.resources == (second.resource,)
    kept.free()


def test_what_is_no_resource_is_refused():
    runtime = DeviceRuntime()

    class Undeclared(Noted):
        order = None

    for wrong, kind, text in ((7, TypeError, r"resource must be a DeviceMemoryResource.*not 7"),
                              (PinnedMemoryResource, TypeError, "resource must be a DeviceMemoryResource"),
                              (Undeclared(), StreamMisuseError, r"resource: Undeclared.*Set order = "),
                              (PinnedMemoryResource.__new__(PinnedMemoryResource), StreamMisuseError,
                               "resource: the PinnedMemoryResource was never initialised")):
        for nbytes in (64, 0):
            with pytest.raises(kind, match=text):
                runtime.allocate(nbytes, resource=wrong)
    assert runtime.resources == (runtime.resource,)


def test_threads_bind_a_resource_once(driver):
    runtime = DeviceRuntime()
    pool = PoolMemoryResource(PinnedMemoryResource(), initial_pool_size=1 << 16)
    start = threading.Barrier(4)
    blocks = []

    def work() -> None:
        start.wait()
        blocks.append(runtime.allocate(64, resource=pool))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runtime.resources == (runtime.resource, pool)
    assert {block.resource for block in blocks} == {pool}
    assert driver.calls("cuMemHostAlloc") == 1


def test_buffers_come_from_a_named_resource():
    state = DeviceState(DeviceRuntime())
    pinned = PoolMemoryResource(PinnedMemoryResource())
    stream = state.runtime.acquire_stream()
    buffer = state.empty((4, 8), "float32", stream, resource=pinned)
    assert state.runtime.snapshot().resources[1][1:] == (128, 1)
    target = state.empty((4, 8), "float32", stream)
    buffer.fill(3, stream)
    target.copy_from(buffer, stream)
    assert np.array_equal(target.to_numpy(stream), np.full((4, 8), 3, "float32"))
    for more in (state.full(4, 2, "uint8", stream, resource=pinned),
                 state.from_numpy([2] * 4, stream, resource=pinned)):
        assert more.access().resource is pinned
        assert more.tolist(stream) == [2, 2, 2, 2]
    with pytest.raises(TypeError, match="resource must be"):
        state.empty(4, resource="pinned")
