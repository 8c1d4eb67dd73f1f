"""`GuardResourceAdaptor`: its own work is ordered, costs no wait, and may fail."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from guarded import read, write

import xlogmem
from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    GuardResourceAdaptor,
    MemoryCorruptionError,
)
from xlogmem.sim.kernels import check


@pytest.mark.simulator
@pytest.mark.parametrize("policy", ["eager", "min", "max", "seeded"])
def test_fills_and_checks_are_ordered(x, driver, policy):
    """Whatever the schedule: no race of the guard's own, and no false alarm."""
    guard, runtime = x.guard, x.runtime
    driver.set_policy(policy, 3)
    streams = [runtime.acquire_stream() for _ in range(3)]
    blocks = []
    for i in range(40):
        blocks.append(runtime.allocate(256 * (1 + i % 5), streams[i % 3]))
        with xlogmem.use(streams[(i + 1) % 3], write=blocks[-1]):
            check(cuda.cuMemsetD8Async(blocks[-1].ptr, i, blocks[-1].nbytes, streams[(i + 1) % 3].handle))
        if i % 2:
            blocks.pop(0).free(streams[i % 3])
        if i % 9 == 0:
            guard.trim()
        if i % 7 == 0:
            guard.check(blocking=False)
    assert not driver.races()
    guard.check()


@pytest.mark.simulator
def test_a_lost_wait_is_a_race(driver):
    """The twin: without the wait for the poison, what leaves the quarantine races with it."""
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=guard)
    runtime.allocate(1024, runtime.acquire_stream()).free()
    driver.drop("cuStreamWaitEvent")
    guard.trim()
    assert any("xlogmem_guard" in race for race in driver.races())
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.simulator
def test_canaries_that_are_not_there_yet_are_not_compared(driver):
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=guard)
    stream = runtime.acquire_stream()
    driver.set_policy("min")                            # nothing runs before it is waited for
    block = runtime.allocate(1024, stream)
    assert guard.check() == []
    assert not driver.races()
    check(cuda.cuCtxSynchronize())
    write(runtime, block.ptr - 1)
    with pytest.raises(MemoryCorruptionError):
        guard.check()


@pytest.mark.simulator
def test_contents_survive_a_free_that_fails(driver):
    """The poison is the last that may fail; behind it one failure is made good, and two keep the memory for ever."""
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=guard)
    for call, nth in (("cuLaunchKernel", 1), ("cuLaunchKernel", 2), ("cuEventRecord", 1)):
        block = runtime.allocate(1024)
        write(runtime, block.ptr, 5, 1024)
        driver.fail(call, nth=nth, code=999)
        try:
            block.free()
        except DriverError:
            assert block.state is BlockState.LIVE
            assert read(block.ptr, 1024) == b"\x05" * 1024
            block.free()
        else:
            assert call == "cuEventRecord"
        assert block.state is BlockState.QUARANTINED
    assert guard.check() == []
    guard.trim()
    assert guard.quarantined_blocks == 0


def fail_records(driver, count):
    for number in range(1, count + 1):
        driver.fail("cuEventRecord", nth=number, code=999)


@pytest.mark.simulator
@pytest.mark.parametrize(("poison", "poison_fails"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("records", [0, 1, 2])
def test_a_free_that_fails_leaves_nothing_unordered(driver, poison, poison_fails, records):
    """The free is tried on another stream.  What it has queued there reads the memory, and upstream may hand that out
    again: the next free waits, or the memory never leaves.  `records` of the events behind it fail as well."""
    guard = GuardResourceAdaptor(AsyncMemoryResource(), poison=poison, quarantine_bytes=0)
    runtime = DeviceRuntime(resource=guard)
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    driver.set_policy("min")
    block = runtime.allocate(1024, S)
    ptr = block.ptr
    if poison_fails:
        driver.fail("cuLaunchKernel", nth=2, code=999)
    driver.on_call("cuLaunchKernel", lambda: fail_records(driver, records))
    try:
        block.free(T)
    except DriverError:
        block.free()
    runtime.reap_pending()
    guard.trim()
    assert guard.quarantined_blocks == (records == 2)
    assert not driver.races()
    assert guard.check() == []
    check(cuda.cuCtxSynchronize())
    if records == 2:
        check(cuda.cuMemFreeAsync(ptr - guard.canary, 0))


@pytest.mark.simulator
def test_the_host_does_not_wait(driver):
    guard = GuardResourceAdaptor(AsyncMemoryResource(), quarantine_bytes=4096)
    runtime = DeviceRuntime(resource=guard)
    driver.set_policy("min")
    before = driver.all_calls()
    for _ in range(20):
        runtime.allocate(1024).free()
    after = driver.all_calls()
    assert not {name for name in after if "Synchronize" in name and after[name] > before.get(name, 0)}


@pytest.mark.simulator
def test_freeing_is_refused_whole_where_a_kernel_cannot_be_launched(driver):
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=guard)
    block = runtime.allocate(1024)
    for nth in (1, 2):
        driver.fail("cuLaunchKernel", nth=nth, code=999)
        with pytest.raises(DriverError, match="cuLaunchKernel"):
            block.free()
        assert block.state is BlockState.LIVE
    driver.fail("cuLaunchKernel", code=999)
    with pytest.raises(DriverError, match="cuLaunchKernel"):
        runtime.allocate(1024)
    block.free()
    driver.fail("cuMemFreeAsync", code=999)
    with pytest.raises(DriverError, match="cuMemFreeAsync"):
        guard.trim()
    assert guard.quarantined_blocks == 1                # it stays
    guard.trim()
    assert guard.quarantined_blocks == 0
    assert guard.check() == []


@pytest.mark.simulator
def test_host_synchronous_upstream_gets_memory_that_nothing_compares(driver):
    class Host(DeviceMemoryResource):
        order = "host"

        def allocate(self, nbytes, stream):
            return direct.allocate(nbytes, stream)

        def deallocate(self, ptr, nbytes, stream):
            pending.append(driver.pending_operations())
            direct.deallocate(ptr, nbytes, stream)

    direct, pending = DirectMemoryResource(), []
    guard = GuardResourceAdaptor(Host())
    runtime = DeviceRuntime(resource=guard)
    driver.set_policy("min")                            # nothing runs before it is waited for
    for _ in range(3):
        runtime.allocate(1024).free()
    guard.trim()
    assert pending == [0, 0, 0]
