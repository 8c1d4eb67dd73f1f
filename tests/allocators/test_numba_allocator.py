"""Numba's device memory as blocks, by its External Memory Management plugin."""
from __future__ import annotations

import pytest
from allocator_stand_ins import NumbaManager
from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import LimitingResourceAdaptor, OutOfBudgetError, allocators, use
from xlogmem import runtime as runtimes
from xlogmem.resources import AsyncMemoryResource, PoolMemoryResource
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
LEGACY = 1


@pytest.fixture
def manager(numba, x):
    """That of a context of device 0."""
    xlogmem.enable("numba")
    return numba.make_context().memory_manager


def test_memory_is_a_block_of_the_default_stream_until_it_is_dropped(manager, x):
    memory = manager.memalloc(512)
    found = x.runtime.find_block(memory.device_pointer_value)
    assert (found.ptr, memory.size, x.runtime.live_bytes) == (memory.device_pointer_value, 512, 512)
    assert (found.alloc_stream.handle, found.alloc_stream.discipline) == (LEGACY, "opaque")
    with use(x.T, read=found):
        read = x.work(x.T)
    del memory, found
    x.runtime.reap_pending(blocking=False)
    assert x.ordered(read, x.runtime.register_stream(0))
    assert not x.ordered(x.work(x.V), x.runtime.register_stream(0))
    assert x.runtime.live_bytes == 0
    assert manager.allocations == {}


@pytest.mark.parametrize("recorded", [True, False])
def test_bytes_of_a_pool_come_after_all_of_numbas_streams(numba, clean, four, driver, monkeypatch, recorded):
    """A pool makes no driver call for a free and an allocation, for which those streams would wait."""
    x = four(resource=PoolMemoryResource(initial_pool_size=1 << 20, maximum_pool_size=1 << 20))
    runtimes._runtimes[0] = x.runtime
    xlogmem.enable("numba")
    manager = numba.make_context().memory_manager
    if not recorded:
        monkeypatch.setattr(manager, "_allocate", lambda size: x.runtime.allocate(size, 0))
    streams = [check(cuda.cuStreamCreate(0)) for _ in range(2)]     # as Numba makes them
    addresses = []
    for stream in streams:
        memory = manager.memalloc(512)
        addresses.append(memory.device_pointer_value)
        x.kernels.fill(int(stream), addresses[-1], 1, 128)
        del memory
        x.runtime.reap_pending(blocking=False)
    assert len(set(addresses)) == 1
    assert len(driver.races()) == (not recorded)
    driver.clear_races()
    for stream in streams:
        check(cuda.cuStreamDestroy(stream))


def test_with_default_streams_for_each_thread_that_of_the_thread_is_meant(manager, x, numba):
    numba.config.CUDA_PER_THREAD_DEFAULT_STREAM = 1
    memory = manager.memalloc(512)
    assert x.runtime.find_block(memory.device_pointer_value).alloc_stream.handle == 2


def test_a_reset_frees_and_a_late_finalizer_frees_nothing_else(manager, x):
    """The address may be another block's by then."""
    before = manager.memalloc(512)
    manager.reset()
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0
    after = manager.memalloc(512)
    assert after.device_pointer_value == before.device_pointer_value
    del before
    x.runtime.reap_pending()
    assert x.runtime.find_block(after.device_pointer_value)


def test_memory_outlives_the_manager_that_made_it(manager, x, numba):
    memory = manager.memalloc(512)
    xlogmem.disable("numba")
    context = next(allocators.numba.contexts())
    assert type(context.memory_manager) is NumbaManager
    del manager
    assert x.runtime.find_block(memory.device_pointer_value)
    xlogmem.enable("numba")                             # the memory is ours: no reason against it
    assert isinstance(context.memory_manager, allocators.numba.BlockManager)
    del memory
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0


def test_out_of_memory_is_numbas_error(numba, clean, four):
    x = four(resource=LimitingResourceAdaptor(AsyncMemoryResource(), 1024))
    runtimes._runtimes[0] = x.runtime
    xlogmem.enable("numba")
    manager = numba.make_context().memory_manager
    with pytest.raises(numba.CudaAPIError) as caught:
        manager.memalloc(2048)
    assert (caught.value.code, type(caught.value.__cause__)) == (2, OutOfBudgetError)
    assert "1024" in caught.value.msg
    assert manager.get_memory_info() == (1 << 20, 1 << 30)
    assert manager.interface_version == 1
