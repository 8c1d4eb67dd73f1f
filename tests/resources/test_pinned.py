"""Page-locked and managed memory as blocks: what the host reaches too."""
from __future__ import annotations

import ctypes

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE, FourStreams

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    ManagedMemoryResource,
    PinnedMemoryResource,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    use,
)
from xlogmem.sim.kernels import check

KIB = 1 << 10


def words(ptr: int, count: int) -> ctypes.Array[ctypes.c_uint32]:
    """Memory that the host reaches, as an array of words."""
    return (ctypes.c_uint32 * count).from_address(ptr)


# ---------------------------------------------------------------------------------------------- who may access it
def test_who_may_access_the_memory_is_passed_on():
    class Ours(DeviceMemoryResource):
        order = "host"
        is_host_accessible = True
        is_device_accessible = False

    for resource, host, device in ((AsyncMemoryResource(), False, True), (DirectMemoryResource(), False, True),
                                   (PinnedMemoryResource(), True, True), (ManagedMemoryResource(), True, True),
                                   (Ours(), True, False)):
        for stack in (resource, StatisticsResourceAdaptor(resource), LimitingResourceAdaptor(resource, "1GiB"),
                      PoolMemoryResource(resource), StatisticsResourceAdaptor(PoolMemoryResource(resource))):
            assert (stack.is_host_accessible, stack.is_device_accessible) == (host, device), stack
            assert stack.is_managed == isinstance(resource, ManagedMemoryResource), stack
    assert GuardResourceAdaptor(ManagedMemoryResource()).is_host_accessible
    assert DeviceRuntime(resource=PinnedMemoryResource()).allocate(64).resource.is_host_accessible


def test_a_declaration_is_a_bool():
    class Ours(DeviceMemoryResource):
        order = "host"
        is_host_accessible = "yes"

    with pytest.raises(ValueError, match=r"Ours\.is_host_accessible is 'yes'; choose True or False"):
        Ours()


def test_declared_host_memory_is_memory_of_a_pool():
    """A resource in Python declares it; one that does not is refused: tests/resources/test_pool_limits.py."""
    class Ours(DeviceMemoryResource):
        order = "host"
        is_host_accessible = True

        def allocate(self, nbytes: int, stream: int) -> int:
            return int(check(cuda.cuMemHostAlloc(nbytes, 0)))

        def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
            check(cuda.cuMemFreeHost(ptr))

    DeviceRuntime().allocate(64, resource=PoolMemoryResource(Ours())).free()


@pytest.mark.parametrize("kind", [PinnedMemoryResource, ManagedMemoryResource,
                                  lambda: PoolMemoryResource(PinnedMemoryResource()),
                                  lambda: PoolMemoryResource(ManagedMemoryResource())])
def test_both_sides_see_what_the_other_wrote(kernels, kind):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(4 * KIB, stream, resource=kind())
    block.synchronize()
    seen = words(block.ptr, KIB)
    seen[:] = range(KIB)
    with use(stream, read_write=block):
        kernels.add(stream.handle, block.ptr, 5, KIB)
    block.synchronize()
    assert list(seen) == [number + 5 for number in range(KIB)]
    del seen
    block.free()


@pytest.mark.simulator
def test_the_memory_is_used_by_itself(driver):
    """Without a runtime nothing is tracked."""
    for resource in (PinnedMemoryResource(), PinnedMemoryResource(portable=False), ManagedMemoryResource()):
        ptr = resource.allocate(100, 0)
        words(ptr, 25)[:] = [7] * 25
        resource.deallocate(ptr, 100, 0)
    assert driver.calls("cuMemHostAlloc") == driver.calls("cuMemFreeHost") == 2
    assert driver.calls("cuMemAllocManaged") == driver.calls("cuMemFree") == 1


# ---------------------------------------------------------------------------------------------- a pool of pinned memory
def upload(x: FourStreams, pool: PoolMemoryResource, driver, dropped: bool) -> tuple[bool, bool]:
    """Upload from a block on S, free it at once, take the memory on T, and write it there: was it the same memory, and
    was the copy read before it was written?"""
    target = x.runtime.allocate(4 * KIB, x.S)
    staging = x.runtime.allocate(4 * KIB, x.S, resource=pool)
    address = staging.ptr
    with use(x.S, read=staging, write=target):
        check(cuda.cuMemcpyHtoDAsync(target.ptr, staging.ptr, 4 * KIB, x.S.handle))
    staging.free()
    if dropped:
        driver.drop("cuStreamWaitEvent")
    again = x.runtime.allocate(4 * KIB, x.T, resource=pool)
    x.work(x.T, (again, WRITE))
    races = driver.races()
    driver.clear_races()
    return again.ptr == address, not races


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("maximum", [None, 64 * KIB])
def test_an_upload_that_is_freed_at_once_is_read_before_the_memory_is_written(four, driver, maximum, dropped):
    x = four()
    driver.set_policy("min")
    pool = PoolMemoryResource(PinnedMemoryResource(), maximum_pool_size=maximum, chunk_size=4 * KIB)
    assert upload(x, pool, driver, dropped) == (True, not dropped)
    assert (driver.calls("cuMemHostAlloc"), driver.calls("cuMemFreeHost")) == (1, 0)


@pytest.mark.simulator
def test_a_pool_of_pinned_memory_does_not_expand_rather_than_let_a_stream_wait(four, driver):
    """One of the device's memory does, as far as the device's memory goes."""
    for upstream, chunks in ((PinnedMemoryResource(), 2), (DirectMemoryResource(), 3)):
        x = four()
        driver.set_policy("min")
        pool = PoolMemoryResource(upstream, chunk_size=4 * KIB)
        blocks = [x.runtime.allocate(4 * KIB, stream, resource=pool) for stream in (x.S, x.T)]
        for stream, block in zip((x.S, x.T), blocks, strict=True):
            x.use(stream, (block, READ))
            block.free()
        x.runtime.allocate(4 * KIB, x.U, resource=pool).free()
        assert pool.statistics()["grown"] == chunks


@pytest.mark.simulator
def test_the_host_waits_for_a_new_block_before_it_writes(four, driver):
    """The memory is that of an upload that still waits on the device: `synchronize` waits for it, through the stream
    that got the memory."""
    x = four()
    driver.set_policy("min")
    pool = PoolMemoryResource(PinnedMemoryResource(), maximum_pool_size=4 * KIB)
    target = x.runtime.allocate(4 * KIB, x.S)
    staging = x.runtime.allocate(4 * KIB, x.S, resource=pool)
    staging.synchronize()
    words(staging.ptr, KIB)[:] = [1] * KIB
    with use(x.S, read=staging, write=target):
        check(cuda.cuMemcpyHtoDAsync(target.ptr, staging.ptr, 4 * KIB, x.S.handle))
    staging.free()
    again = x.runtime.allocate(4 * KIB, x.T, resource=pool)
    assert driver.pending_operations() > 0
    assert not again.ready
    again.synchronize()
    words(again.ptr, KIB)[:] = [2] * KIB
    target.synchronize()
    result = (ctypes.c_uint32 * KIB)()
    check(cuda.cuMemcpyDtoH(result, target.ptr, 4 * KIB))
    assert set(result) == {1}


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_a_chunk_goes_back_after_its_uses(four, driver, dropped):
    """`cuMemFreeHost` gets idle memory; the host waits without a lock and without the GIL."""
    x = four()
    driver.set_policy("min")
    pool = PoolMemoryResource(PinnedMemoryResource(), chunk_size=4 * KIB)
    block = x.runtime.allocate(4 * KIB, x.S, resource=pool)
    x.use(x.T, (block, READ))
    block.free()
    if dropped:
        driver.drop("cuEventSynchronize")
        driver.drop("cuEventSynchronize", 2)
    queued: list[int] = []
    driver.on_call("cuMemFreeHost", lambda: queued.append(driver.pending_operations()))
    assert pool.trim() == 4 * KIB
    assert (queued[0] > 0) == dropped
    assert "cuMemFreeHost" not in driver.calls_with_gil()
    driver.clear_races()


@pytest.mark.simulator
def test_a_dropped_block_is_freed_by_the_next_call(four, driver):
    """A finalizer makes no driver call, because `cuMemFreeHost` waits for the whole device."""
    x = four()
    block = x.runtime.allocate(512, x.S, resource=PinnedMemoryResource())
    x.use(x.T, (block, READ))
    del block
    assert driver.calls("cuMemFreeHost") == 0
    x.runtime.allocate(512, x.S).free()
    assert driver.calls("cuMemFreeHost") == 1
    assert not {"cuMemFreeHost", "cuMemHostAlloc"} & driver.calls_with_gil().keys()


def test_a_pool_of_pinned_memory_is_a_runtimes_own_too():
    runtime = DeviceRuntime(resource=PoolMemoryResource(PinnedMemoryResource(), 1 << 16))
    s, t = runtime.acquire_stream(), runtime.acquire_stream()
    for stream in (s, t) * 4:
        runtime.allocate(4 * KIB, stream).free()
    device = AsyncMemoryResource()
    block = runtime.allocate(64, s, resource=device)
    assert (block.resource, block.resource.is_host_accessible) == (device, False)


# ---------------------------------------------------------------------------------------------- arguments
@pytest.mark.simulator
def test_a_numa_node_needs_the_drivers_pools(driver):
    """The simulated driver has no pools of host memory: the argument is refused, and nothing is left."""
    with pytest.raises(DriverError, match=r"cuMemPoolCreate.*numa_id: .*NUMA node 0") as caught:
        PinnedMemoryResource(0)
    assert "Leave numa_id out" in "".join(caught.value.__notes__)
    assert driver.calls("cuMemPoolDestroy") == 0


@pytest.mark.parametrize(("arguments", "kind", "text"), [
    ({"numa_id": -1}, ValueError, "numa_id"), ({"numa_id": "0"}, TypeError, "numa_id"),
    ({"portable": 1}, TypeError, "portable must be True or False, not 1"), ({"device_id": 99}, ValueError, "device 99"),
    ({"numa": 0}, TypeError, "numa")])
def test_wrong_arguments(arguments, kind, text):
    with pytest.raises(kind, match=text):
        PinnedMemoryResource(**arguments)


def test_a_resource_is_initialised_once():
    resource = PinnedMemoryResource()
    with pytest.raises(RuntimeError, match="once"):
        resource.__init__()
