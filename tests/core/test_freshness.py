"""New memory is filled on its own stream without a record, until its first use elsewhere is filed and no longer."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE, FourStreams
from scenarios import Scenarios

from xlogmem import PoolMemoryResource
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

scenario = Scenarios()


def filled_inside_the_first_use_elsewhere(x: FourStreams, access: str):
    """Half of the block, that is: the launch on T uses the other one.  The use elsewhere, and the fill."""
    block = x.alloc(x.S)
    window = x.prepare(x.T, (block, access))
    fill = x.work(x.S)
    x.work(x.T, (block, access))
    window.commit()
    return block, fill


@scenario(spare=1)
def a_reader_waits_for_what_was_filled_inside_the_window_of_a_writer(x: FourStreams) -> bool:
    block, fill = filled_inside_the_first_use_elsewhere(x, WRITE)
    x.use(x.U, (block, READ))
    return x.ordered(fill, x.U)


@scenario(spare=1)
def a_writer_waits_for_what_was_filled_inside_the_window_of_a_reader(x: FourStreams) -> bool:
    block, fill = filled_inside_the_first_use_elsewhere(x, READ)
    x.use(x.U, (block, WRITE))
    return x.ordered(fill, x.U)


@scenario(spare=1)
def the_stream_of_the_first_use_waits_at_the_second(x: FourStreams) -> bool:
    block, fill = filled_inside_the_first_use_elsewhere(x, WRITE)
    x.use(x.T, (block, WRITE))
    return x.ordered(fill, x.T)


@scenario(spare=1)
def a_free_elsewhere_waits_for_the_fill(x: FourStreams) -> bool:
    block, fill = filled_inside_the_first_use_elsewhere(x, WRITE)
    block.free(x.T)
    return x.ordered(fill, x.T)


@scenario(spare=2)
def every_block_of_a_launch_keeps_its_fill(x: FourStreams) -> bool:
    """S made two of them, U one."""
    blocks = [x.alloc(x.S), x.alloc(x.S), x.alloc(x.U)]
    window = x.prepare(x.T, *((block, WRITE) for block in blocks))
    fills = [x.work(x.S), x.work(x.U)]
    x.work(x.T, *((block, WRITE) for block in blocks))
    window.commit()
    x.use(x.V, (blocks[1], READ), (blocks[2], READ))
    return all(x.ordered(fill, x.V) for fill in fills)


test_scenario, test_twin = scenario.tests()


def test_the_next_owner_of_pool_memory_waits_for_the_fill(four):
    x = four(resource=PoolMemoryResource(maximum_pool_size=512))
    block, fill = filled_inside_the_first_use_elsewhere(x, WRITE)
    block.free(x.T)
    again = x.alloc(x.T)
    assert x.ordered(fill, x.T)
    again.free()


@pytest.mark.parametrize("discipline", ["ordinary", "sealed"])
def test_a_launch_costs_one_more_wait_for_each_stream_of_its_fresh_blocks(four, discipline):
    """However many blocks there are, and once; a sealed stream has nothing to wait for."""
    x = four()
    streams = [x.runtime.acquire_stream(discipline=discipline) for _ in range(2)]
    blocks = [x.alloc(stream) for stream in streams for _ in range(5)]
    calls = []
    for _ in range(4):
        before = x.records(), x.waits()
        x.use(x.T, *((block, WRITE) for block in blocks))
        calls.append((x.records() - before[0], x.waits() - before[1]))
    more = (2, 2) if discipline == "ordinary" else (0, 0)
    assert calls == [(2, 2), more, (0, 0), (0, 0)]


@pytest.mark.parametrize("policy", ["lazy", "adaptive", "precise"])
def test_a_stream_that_may_be_gone_is_not_needed_after_the_first_use_elsewhere(four, policy):
    x = four(policy=policy)
    handle = check(cuda.cuStreamCreate(1))
    block = x.alloc(int(handle))
    fill = x.work(x.runtime.register_stream(int(handle)), (block, WRITE))
    x.use(x.T, (block, WRITE))
    check(cuda.cuStreamDestroy(handle))
    x.use(x.U, (block, WRITE))
    block.free(x.V)
    assert x.ordered(fill, x.V)
