"""Several blocks by one call of xlogmem.hpp: what calls one by one would be, all or none."""
from __future__ import annotations

import pytest
from four_streams import Capture, at, nothing_happens
from native_calls import Thrown

from xlogmem import AsyncMemoryResource, LimitingResourceAdaptor, PoolMemoryResource

pytestmark = pytest.mark.simulator
DECLARED = pytest.mark.parametrize("declared", [True, False])
SIZES = [1000, 0, 8, *[512] * 150, 70_000, 0]           # more than a group of the table


@pytest.mark.parametrize("resource", [AsyncMemoryResource, PoolMemoryResource])
def test_blocks_are_allocated_and_freed(native, resource):
    b, runtime = native(resource=resource())
    memory = runtime.allocate_many(SIZES, b.S.handle)
    there = [address for address in memory if address]
    assert [address != 0 for address in memory] == [nbytes != 0 for nbytes in SIZES]
    assert len(set(there)) == len(there) == len(SIZES) - 2
    assert b.runtime.live_bytes == sum(SIZES)
    with runtime.launch(b.S.handle, read=memory[:2], write=memory[2:]):      # null is no memory
        pass
    runtime.free_many(memory, b.S.handle)
    assert (b.runtime.live_bytes, b.runtime.counters()["live_blocks"]) == (0, 0)
    runtime.free_many(memory[1:2], b.S.handle)          # null alone


@pytest.mark.parametrize("sizes", [[], [0], [0, 0, 0]])
def test_no_bytes_are_no_call(native, sizes):
    b, runtime = native()
    with nothing_happens(b.driver, b.runtime):
        memory = runtime.allocate_many(sizes, b.S.handle)
        assert memory == [0] * len(sizes)
        runtime.free_many(memory, b.S.handle)


@DECLARED
def test_a_free_comes_after_the_uses(native, foreign, declared):
    b, runtime = native()
    home = foreign()
    memory = runtime.allocate_many([512, 512], home)
    operation = b.work(b.T)
    if declared:
        with runtime.launch(b.T.handle, write=memory[1:]):
            operation = b.work(b.T)
    runtime.free_many(memory, home)
    assert b.ordered(operation, at(home)) == declared


def test_a_free_comes_after_what_the_stream_has(native):
    """The next owner of the bytes waits for the stream that the free has named."""
    b, runtime = native(resource=PoolMemoryResource(maximum_pool_size=1 << 20))
    memory = runtime.allocate_many([1 << 19, 1 << 19], b.S.handle)
    operation = b.work(b.T)
    runtime.free_many(memory, b.T.handle)
    again = runtime.allocate_many([1 << 20], b.U.handle)
    assert b.ordered(operation, b.U)
    runtime.free_many(again, b.U.handle)


def test_all_or_none(native):
    b, runtime = native(resource=LimitingResourceAdaptor(PoolMemoryResource(), 1 << 20))
    with pytest.raises(Thrown, match="requested", check=lambda error: error.name == "out_of_memory"):
        runtime.allocate_many([512, 512, 1 << 20], b.S.handle)
    assert b.runtime.live_bytes == 0
    runtime.free_many(runtime.allocate_many([512, 1 << 19], b.S.handle), b.S.handle)
    assert b.runtime.live_bytes == 0


def test_a_stream_that_captures_is_refused(native, foreign):
    b, runtime = native()
    stream = foreign()
    for one in (at(stream), b.T):
        with Capture(one), nothing_happens(b.driver, b.runtime), pytest.raises(Thrown, match="captur"):
            runtime.allocate_many([512, 512], one.handle)
    runtime.free_many(runtime.allocate_many([512, 512], stream), stream)
