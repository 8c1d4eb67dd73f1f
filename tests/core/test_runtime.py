"""Runtimes made by hand, and what all of their operations promise."""
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE, nothing_happens

from xlogmem import (
    Access,
    AsyncMemoryResource,
    BlockState,
    DeviceRuntime,
    DirectMemoryResource,
    StreamMisuseError,
    StreamPool,
    get_runtime,
    runtime,
    use,
)
from xlogmem.sim.kernels import check


@pytest.mark.usefixtures("_cold")
@pytest.mark.promise(79, 83)
@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource])
def test_a_runtime_made_by_hand_is_not_that_of_the_process(resource):
    """It is in no table; what it allocates and frees changes its own accounting alone."""
    assert not any(runtime._runtimes)
    own, pool = resource(), StreamPool()
    mine = DeviceRuntime(resource=own, stream_pool=pool)
    assert not any(runtime._runtimes)
    assert (mine.resource, mine.stream_pool) == (own, pool)
    stream = mine.acquire_stream()
    kept = mine.allocate(100, stream)
    before = mine.bytes_outstanding
    block = mine.allocate(4096, stream)
    assert mine.bytes_outstanding == before + 4096
    assert get_runtime() is not mine
    assert get_runtime().bytes_outstanding == 0
    mine.deallocate(block)
    mine.reap_pending()
    assert mine.bytes_outstanding == before == kept.nbytes


@pytest.mark.simulator
@pytest.mark.promise(80, 81)
def test_parts_that_do_not_fit_are_refused(driver):
    """Another device, a pool in use, things that are not parts: refused, and the parts may be used elsewhere."""
    pool, resource = StreamPool(), AsyncMemoryResource(1)
    with nothing_happens(driver):
        with pytest.raises(StreamMisuseError, match="resource is on device 1, and device_id is 0"):
            DeviceRuntime(stream_pool=pool, resource=resource)
        for wrong in ({"stream_pool": 3}, {"resource": "async"}, {"resource": AsyncMemoryResource}):
            with pytest.raises(TypeError):
                DeviceRuntime(**{"stream_pool": pool, "resource": resource} | wrong)
    one, two = DeviceRuntime(stream_pool=pool), DeviceRuntime(1, resource=resource)
    assert (one.device_id, two.device_id, one.stream_pool, two.resource) == (0, 1, pool, resource)
    with pytest.raises(StreamMisuseError, match="belongs to another runtime"):
        DeviceRuntime(stream_pool=pool)


@pytest.mark.simulator
@pytest.mark.promise(82)
def test_no_lock_is_held_across_driver_calls(four, driver):
    """Every operation can be called, and used, from inside a driver call of every other, from another thread too."""
    x = four(policy="precise")
    kept = x.alloc(x.S)

    def everything() -> None:
        block = x.runtime.allocate(64, x.U)
        with use(x.V, read=[block, kept]):
            pass
        x.runtime.record_block_use(block, x.V)
        block.free()
        assert x.runtime.bytes_outstanding >= kept.nbytes
        x.runtime.reap_pending()

    def elsewhere() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(everything).result(60)

    calls = ("cuMemAllocFromPoolAsync", "cuStreamIsCapturing", "cuEventRecord", "cuStreamWaitEvent", "cuMemFreeAsync",
             "cuEventSynchronize")
    for name in calls:
        for inside in (everything, elsewhere):
            entered = []
            driver.on_call(name, lambda inside=inside, entered=entered: (entered.append(1), inside()))
            block = x.alloc(x.S)
            x.use(x.S, (block, WRITE))
            x.use(x.T, (block, READ))
            block.free()
            x.runtime.reap_pending()
            assert entered, name
    assert x.runtime.live_bytes == kept.nbytes


@pytest.mark.promise(84, 85, 86)
def test_refused_uses_leave_the_block_usable():
    """Untracked memory is refused by record, prepare and finish; a block that was refused elsewhere is freed as
    ever."""
    mine, other = DeviceRuntime(), DeviceRuntime()
    stream, block = mine.acquire_stream(), mine.allocate(64)
    theirs = check(cuda.cuMemAlloc(256))
    for what in (int(theirs), 0):
        for call in (lambda what=what: mine.prepare_block_use(what, stream, Access.WRITE),
                     lambda what=what: mine.finish_block_use(what, stream, Access.WRITE),
                     lambda what=what: mine.record_block_use(what, stream)):
            with pytest.raises(StreamMisuseError, match="is not tracked by <DeviceRuntime"):
                call()
    with pytest.raises(StreamMisuseError):
        other.record_block_use(block, other.default_stream)
    mine.record_block_use(block, stream)
    mine.deallocate(block)
    assert block.state is BlockState.FREED
    check(cuda.cuMemFree(theirs))


@pytest.mark.simulator
@pytest.mark.promise(85, 86, 87)
@pytest.mark.parametrize("too_late", [False, True])
def test_scratch_is_prepared_before_the_work_and_finished_after(four, driver, too_late):
    """Scratch from one stream, used at once on another: safe if the prepare comes before the launch."""
    x = four()
    old = x.alloc(x.S)
    x.use(x.V, (old, WRITE))
    old.free(x.S)
    scratch = x.alloc(x.S)                              # the address of `old`
    if not too_late:
        x.runtime.prepare_block_use(scratch, x.T, Access.WRITE)
    write = x.work(x.T, (scratch, WRITE))
    if too_late:
        x.runtime.prepare_block_use(scratch, x.T, Access.WRITE)
    x.runtime.finish_block_use(scratch, x.T, Access.WRITE)
    assert bool(driver.races()) == too_late
    driver.clear_races()
    scratch.free(x.S)
    assert x.ordered(write, x.S)
