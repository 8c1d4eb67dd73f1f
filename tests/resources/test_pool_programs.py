"""Random programs and threads on a pool."""
from __future__ import annotations

import itertools
import random

import pytest
from cuda.bindings import driver as cuda
from pools import WHOLE, one_chunk, simulated
from stress import Program, held_up, together

from xlogmem import (
    DeviceRuntime,
    PoolMemoryResource,
    StreamPool,
)
from xlogmem.sim.kernels import check


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
    assert seen["free_spans"] == seen["chunks"]         # adjacent free spans count as one
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
def test_nothing_waits_for_a_stream_that_is_held_up(four):
    """Neither the free nor an allocation of its memory elsewhere keeps the host."""
    x = four(resource=one_chunk())
    with held_up(x.S):
        b = x.alloc(x.S, WHOLE)
        b.free()
        c = x.alloc(x.T, WHOLE)
        c.free()
    assert x.runtime.counters()["host_waits"] == 0
