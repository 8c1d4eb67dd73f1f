"""The cache of the host: memory that was freed idle is taken again without a lock of the runtime or a search."""
from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from c_table import HOST, Hold
from cuda.bindings import driver as cuda

from xlogmem import (
    DeviceBlock,
    DeviceRuntime,
    LimitingResourceAdaptor,
    PinnedMemoryResource,
    PoolMemoryResource,
    host,
    record_history,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
NBYTES = 4096


class Pairs:
    """Pools of page-locked memory, and copies that run as late as they may."""

    def __init__(self, x: Any) -> None:
        x.driver.set_policy("min")
        self.x = x
        self.pool = self.new_pool()
        self.target = x.alloc(x.S, NBYTES)

    def new_pool(self, maximum: int | None = None, **options: Any) -> PoolMemoryResource:
        return PoolMemoryResource(PinnedMemoryResource(), maximum_pool_size=maximum,
                                  **{"chunk_size": NBYTES, **options})

    def allocate(self, pool: PoolMemoryResource | None = None, nbytes: int = NBYTES, where: Any = host) -> DeviceBlock:
        return self.x.runtime.allocate(nbytes, where, resource=pool or self.pool)

    def pairs(self, count: int, pool: PoolMemoryResource | None = None) -> None:
        for _ in range(count):
            self.allocate(pool).free()

    def cached(self) -> int:
        """How many allocations came from caches."""
        return int(self.x.runtime.counters()["cached"])

    def copy(self, block: DeviceBlock) -> None:
        with use(self.x.S, read=block, write=self.target):
            check(cuda.cuMemcpyHtoDAsync(self.target.ptr, block.ptr, NBYTES, self.x.S.handle))

    def arrived(self) -> int:
        check(cuda.cuCtxSynchronize())
        return int(self.x.driver.peek(self.target.ptr, 1)[0])

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.target.close()
        self.x.runtime.reap_pending()
        for pool in self.x.runtime.resources[1:]:
            if isinstance(pool, PoolMemoryResource):
                pool.trim()
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime


@pytest.fixture
def p(four):
    made = Pairs(four())
    yield made
    made.close()


def test_what_is_allocated_often_is_from_the_cache(p):
    """... at the same address, with a new identity, and the pool counts it."""
    p.pairs(3)
    assert p.cached() == 0
    first = p.allocate()
    address, former = first.ptr, first.id
    first.free()
    block = p.allocate()
    assert p.cached() == 2
    assert (block.ptr, block.stream) == (address, None)
    assert block.id != former
    assert p.pool.statistics()["allocations"] == 5
    block.free()


def test_a_dropped_block_is_cached(p):
    p.pairs(3)
    block = p.allocate()
    del block
    before = p.cached()
    p.pairs(1)
    assert p.cached() == before + 1
    assert p.x.runtime.live_bytes == NBYTES             # the target


def test_a_block_of_the_cache_is_used_as_any_other(p):
    p.pairs(3)
    block = p.allocate()
    with use(host, write=block):
        ctypes.memset(block.ptr, 7, NBYTES)
    p.copy(block)
    with use(host, write=block):                        # waits for the copy
        ctypes.memset(block.ptr, 9, NBYTES)
    assert p.arrived() == 7
    block.free()


def test_memory_that_a_copy_reads_is_not_cached(p):
    p.pairs(3)
    block = p.allocate()
    ctypes.memset(block.ptr, 7, NBYTES)
    p.copy(block)
    block.free()
    again = p.allocate()
    ctypes.memset(again.ptr, 9, NBYTES)
    assert p.arrived() == 7
    again.free()


def test_memory_whose_copies_the_host_has_seen_complete_is_cached(p):
    p.pairs(3)
    block = p.allocate()
    ctypes.memset(block.ptr, 7, NBYTES)
    p.copy(block)
    block.synchronize()
    before = p.cached()
    block.free()
    p.pairs(1)
    assert p.cached() == before + 1
    assert p.arrived() == 7


def test_a_free_on_a_stream_is_not_cached(p):
    """... because the next owner comes after what is queued there."""
    p.pairs(3)
    before = p.cached()
    block = p.allocate()
    block.free(p.x.S)
    p.allocate().free()
    assert p.cached() == before + 1                     # the first of the two


def test_a_stream_gets_what_the_host_has_cached(p):
    """... from a pool that has no more, and without a wait."""
    small = p.new_pool(NBYTES)
    p.pairs(3, small)
    block = p.allocate(small, where=p.x.S)
    assert block.stream is p.x.S
    block.free()
    assert small.statistics()["used_bytes"] == 0


def test_other_sizes_get_it_too(p):
    small = p.new_pool(2 * NBYTES, chunk_size=2 * NBYTES)
    p.pairs(3, small)
    held = [p.allocate(small), p.allocate(small)]
    for block in held:
        block.free()
    p.allocate(small, 2 * NBYTES).free()


def test_trim_returns_it(p):
    p.pairs(3)
    assert p.pool.statistics()["used_bytes"] == 0
    p.pairs(1)
    assert p.pool.trim() == NBYTES
    assert p.pool.statistics()["pool_size"] == 0


def test_each_pool_has_its_own_cache(p):
    pools = [p.pool, *(p.new_pool() for _ in range(3))]
    addresses = []
    for pool in pools:
        p.pairs(3, pool)
        block = p.allocate(pool)
        addresses.append(block.ptr)
        block.free()
    assert len(set(addresses)) == 4
    before = p.cached()
    for pool, address in zip(pools, addresses, strict=True):
        block = p.allocate(pool)
        assert (block.ptr, block.resource) == (address, pool)
        block.free()
    assert p.cached() == before + 4
    assert [pool.trim() for pool in pools] == [NBYTES] * 4


def test_a_fifth_pool_has_none(p):
    pools = [p.new_pool() for _ in range(5)]
    for pool in pools:
        p.pairs(3, pool)
    before = p.cached()
    p.pairs(3, pools[4])
    assert p.cached() == before
    assert [pool.statistics()["used_bytes"] for pool in pools] == [0] * 5


def test_a_pool_without_caches_has_none(p):
    pool = p.new_pool(stream_cache_size=0)
    p.pairs(5, pool)
    assert p.cached() == 0


def test_what_an_adaptor_counts_is_not_cached(p):
    pool = LimitingResourceAdaptor(p.new_pool(), NBYTES)
    p.pairs(5, pool)
    assert p.cached() == 0
    p.allocate(pool).free()


def test_through_the_c_table():
    """... of the runtime's own resource."""
    runtime = DeviceRuntime(resource=PoolMemoryResource(PinnedMemoryResource(), chunk_size=1 << 20))
    hold = Hold(runtime)
    addresses = set()
    for _ in range(5):
        address = hold.allocate(NBYTES, HOST)
        addresses.add(address)
        hold.free(address, HOST)
    assert len(addresses) == 1
    assert runtime.counters()["cached"] == 2
    held = [hold.allocate(NBYTES, HOST) for _ in range(3)]
    assert len(set(held)) == 3
    for address in held:
        hold.free(address, HOST)
    hold.close()
    assert runtime.live_bytes == 0


def test_a_history_has_the_pairs(p):
    p.pairs(3)
    with record_history() as recording:
        p.pairs(2)
    assert [(event.kind, event.stream) for event in recording.events() if event.nbytes == NBYTES] == [
        ("allocate", None), ("free", None)] * 2


def test_tags_are_kept(p):
    """A cache has no blocks with tags."""
    p.pairs(3)
    block = p.x.runtime.allocate(NBYTES, host, resource=p.pool, tag="staging")
    assert block.tag == "staging"
    block.free()


def test_threads_make_pairs_at_once(p):
    def run(number: int) -> None:
        for turn in range(200):
            block = p.allocate()
            ctypes.memset(block.ptr, 10 * number + turn % 10, NBYTES)
            assert ctypes.string_at(block.ptr, NBYTES) == bytes([10 * number + turn % 10]) * NBYTES
            block.free()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run, range(4)))
    assert p.pool.statistics()["used_bytes"] == 0
    assert p.x.runtime.counters()["allocations"] == 801  # and the target
