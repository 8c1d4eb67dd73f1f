"""How a pool grows, its limits, and when chunks return upstream."""
from __future__ import annotations

import gc
import itertools
import re

import pytest
from cuda.bindings import driver as cuda
from pools import GRAIN, HALF, QUARTER, WHOLE, Counted, simulated

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    DriverError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StreamMisuseError,
    StreamPool,
)
from xlogmem.sim.kernels import check


def test_sizes_and_addresses_are_multiples_of_256():
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=1 << 20))
    blocks = [runtime.allocate(nbytes) for nbytes in (1, 255, 256, 257, 1000, 5)]
    assert [block.nbytes for block in blocks] == [1, 255, 256, 257, 1000, 5]
    assert all(block.ptr % 256 == 0 for block in blocks)
    assert runtime.resource.statistics()["used_bytes"] == 256 * (1 + 1 + 1 + 2 + 4 + 1)
    assert runtime.live_bytes == 1 + 255 + 256 + 257 + 1000 + 5
    ends = sorted((block.ptr, block.ptr + block.nbytes) for block in blocks)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends))


def test_neighbours_that_are_complete_are_coalesced_before_the_pool_grows():
    """The span of both depends on no stream any more, so it is on the list of spans that are ready."""
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=WHOLE, maximum_pool_size=2 * WHOLE))
    sealed, other = runtime.acquire_stream(discipline="sealed"), runtime.acquire_stream()
    state = DeviceState(runtime)
    ends = [state.empty(HALF, "uint8", stream) for stream in (sealed, other)]       # to wait for: the first chunk
    runtime.allocate(WHOLE, other).free()
    lower, upper = runtime.allocate(HALF, sealed), runtime.allocate(HALF, other)
    ends[0].to_numpy(sealed)                            # the host has seen all that the sealed free passes on
    upper.free()
    lower.free()
    ends[1].to_numpy(other)
    whole = runtime.allocate(WHOLE, sealed)
    assert whole.ptr == lower.id.ptr
    assert (runtime.resource.statistics()["joins"], runtime.resource.statistics()["grown"]) == (1, 2)


def test_it_grows_by_chunks_and_what_is_larger_gets_a_chunk_of_its_own():
    upstream = Counted()
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, chunk_size=10_000))
    blocks = [runtime.allocate(nbytes) for nbytes in (100, 5000, 4000, 50_001, 3000)]
    assert upstream.requests == [10_240, 50_176, 10_240]
    assert runtime.resource.pool_size() == sum(upstream.requests)
    assert len(blocks) == 5


def test_by_default_it_grows_by_what_it_has():
    upstream, kept = Counted(), []
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream))
    while len(upstream.requests) < 8:
        kept.append(runtime.allocate(30 << 20))
    assert [nbytes >> 20 for nbytes in upstream.requests] == [32, 32, 64, 128, 256, 512, 1024, 1024]


def test_the_initial_size_is_there_when_a_runtime_takes_the_pool():
    upstream = Counted()
    pool = PoolMemoryResource(upstream, 5000, 10_000)
    assert (pool.pool_size(), upstream.requests) == (0, [])
    runtime = DeviceRuntime(resource=pool)
    assert upstream.requests == [5120]
    assert pool.pool_size() == 5120
    block = runtime.allocate(5120, runtime.acquire_stream())
    assert pool.statistics()["waited"] == 0             # the host waited, then
    block.free()


def test_an_initial_size_that_is_not_there_is_reported_by_the_runtime():
    pool = PoolMemoryResource(Counted(1000), 5000)
    with pytest.raises(OutOfDeviceMemoryError, match="no 5120 bytes here"):
        DeviceRuntime(resource=pool)
    assert pool.pool_size() == 0
    total = check(cuda.cuMemGetInfo())[1]
    with pytest.raises(ValueError, match=r"initial_pool_size is .*, and device 0 has .*: give less"):
        PoolMemoryResource(AsyncMemoryResource(), total + 1)
    pool = PoolMemoryResource(AsyncMemoryResource(), total)
    kept = DirectMemoryResource().allocate("1MiB", 0)
    with pytest.raises(OutOfDeviceMemoryError, match=r"taking the first .* bytes\) of a pool"):
        DeviceRuntime(resource=pool)
    DirectMemoryResource().deallocate(kept, "1MiB", 0)


def test_the_maximum_is_kept_and_the_error_says_what_is_free():
    pool = PoolMemoryResource(Counted(), maximum_pool_size=WHOLE + 100, chunk_size=WHOLE)
    runtime = DeviceRuntime(resource=pool)
    a, b = runtime.allocate(QUARTER), runtime.allocate(HALF)
    with pytest.raises(OutOfDeviceMemoryError, match=(
            r"no 1280 bytes, the pool may not grow so far \(maximum_pool_size\); the pool has 4096, of which 3072 are "
            r"in use, and its largest free span has 1024")):
        runtime.allocate(QUARTER + 1)
    a.free()
    c = runtime.allocate(QUARTER)
    assert c.ptr == a.id.ptr
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
    assert upstream.requests == [WHOLE]
    assert pool.pool_size() == WHOLE                    # nothing was returned in vain


def test_where_upstream_has_less_than_a_chunk_it_takes_what_there_is():
    upstream = Counted(50_000)
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream, chunk_size=1 << 18))
    block = runtime.allocate(1000)
    assert upstream.requests == [1 << 18, 1 << 17, 1 << 16, 1 << 15]
    block.free()


def test_when_nothing_is_left_idle_chunks_are_returned_and_it_is_tried_once_more():
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
            "no 4096 bytes, there is no more upstream; the pool has 4096, of which 2048 are in use, and its largest "
            "free span has 2048")):
        runtime.allocate(WHOLE)
    assert runtime.allocate(WHOLE).ptr
    block.free()


def test_trim_returns_idle_chunks_down_to_what_shall_be_kept():
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


def test_sizes_may_be_written_as_rmm_has_them():
    pool = PoolMemoryResource(initial_pool_size="1MiB", maximum_pool_size="0.5 GiB", chunk_size=1e6)
    runtime = DeviceRuntime(resource=pool)
    assert pool.pool_size() == 1 << 20
    assert pool.trim("0 B") == 1 << 20
    del runtime


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
    assert upstream.requests == [1 << 19, 1 << 19]
    assert len(blocks) == 10


@pytest.mark.parametrize(("initial", "size", "count"), [
    (0, 8, 8), (1, 8, 8), (2, 8, 8), (7, 8, 8), (8, 8, 8), (64, 8, 8), (2, 16, 4), (20, 16, 3), (1, 9, 7),
    (2, 30, 2), (1, 64, 1), (5, 33, 1)])
def test_a_pool_with_an_initial_size_reaches_its_maximum(initial, size, count):
    """As many blocks of one size as fit into the maximum, or beside what the initial chunk has left of itself."""
    runtime = DeviceRuntime(resource=PoolMemoryResource(Counted(), initial_pool_size=initial << 10,
                                                        maximum_pool_size=64 << 10))
    blocks = [runtime.allocate(size << 10) for _ in range(count)]
    with pytest.raises(OutOfDeviceMemoryError):
        runtime.allocate(size << 10)
    assert len(blocks) == count


class Pinned(DeviceMemoryResource):
    """Host memory that the device reaches."""

    order = "host"

    def allocate(self, nbytes, stream):
        return int(check(cuda.cuMemHostAlloc(nbytes, 0)))

    def deallocate(self, ptr, nbytes, stream):
        check(cuda.cuMemFreeHost(ptr))


@pytest.mark.parametrize("initial", [None, 1 << 16])
def test_host_memory_is_no_memory_of_a_pool(initial):
    """The next owner's host would write while a copy of the former owner reads.  Without a pool the host waits."""
    with pytest.raises(DriverError, match=r"host memory at 0x.*use PinnedMemoryResource, or leave the pool out, or "
                                          r"declare is_host_accessible = True while"):
        DeviceRuntime(resource=PoolMemoryResource(Pinned(), initial_pool_size=initial)).allocate(4096)
    DeviceRuntime(resource=Pinned()).allocate(4096).free()


@pytest.mark.simulator
@pytest.mark.parametrize("upstream", [AsyncMemoryResource, DirectMemoryResource])
def test_memory_of_which_the_driver_cannot_say_what_it_is_is_no_memory_of_a_pool(driver, upstream):
    """It might be host memory; it goes back to upstream."""
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream()))
    driver.fail("cuPointerGetAttributes", code=1)
    with pytest.raises(DriverError, match="cuPointerGetAttributes"):
        runtime.allocate(4096)
    assert runtime.resource.pool_size() == 0
    runtime.allocate(4096).free()
    assert runtime.bytes_outstanding == 0


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


def test_memory_that_is_not_aligned_is_refused_and_returned():
    upstream = Counted(skew=64)
    runtime = DeviceRuntime(resource=PoolMemoryResource(upstream))
    with pytest.raises(DriverError, match="not aligned to 256 bytes"):
        runtime.allocate(100)
    assert upstream.given == {}
    assert runtime.resource.pool_size() == 0


def test_chunks_are_returned_at_the_end_in_any_order():
    for order in (["block", "runtime", "pool"], ["pool", "runtime", "block"], ["runtime", "pool", "block"]):
        upstream = Counted()
        things = {"pool": PoolMemoryResource(upstream, chunk_size=WHOLE)}
        things["runtime"] = DeviceRuntime(resource=things["pool"])
        things["block"] = things["runtime"].allocate(100, things["runtime"].acquire_stream())
        for name in order:
            del things[name]
        gc.collect()
        assert upstream.given == {}


def test_a_summary_as_text():
    pool = PoolMemoryResource(chunk_size=1 << 20, maximum_pool_size=1 << 30)
    runtime = DeviceRuntime(resource=pool)
    a, b, c = (runtime.allocate(100_000) for _ in range(3))
    b.free()
    text = pool.memory_summary()
    for line in ("PoolMemoryResource device=0 over AsyncMemoryResource",
                 r"from upstream +1.0 MiB in 1 chunk, limit 1.0 GiB",
                 r"in use +195.5 KiB, at most 293.2 KiB so far",
                 r"free +828.5 KiB in 2 places, the largest 730.8 KiB \(fragmentation 12%\)",
                 r"idle chunks +0 B", r"allocations +3, 0 had to wait", r"chunks +1 taken, 0 returned"):
        assert re.search(line, text), (line, text)
    whole = runtime.memory_summary()
    assert text in whole
    assert re.search(r"live +200000 B|live +195.3 KiB", whole)
    assert "pending" in DeviceRuntime().memory_summary()
    a.free()
    c.free()
    assert pool.statistics()["fragmentation"] == 0


def test_a_maximum_that_is_not_a_multiple_of_the_grain_may_be_taken_at_once():
    pool = PoolMemoryResource(initial_pool_size=1000, maximum_pool_size=1000)
    runtime = DeviceRuntime(resource=pool)
    assert pool.pool_size() == 768
    del runtime
    assert pool.pool_size() == 0
