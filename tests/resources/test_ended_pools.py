"""Pools of the driver that end while frees into them are pending: docs/ordering.md, driver-pool-ends."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda

from xlogmem import AsyncMemoryResource, DeviceRuntime
from xlogmem._driver import forget_context
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


def end_with_a_pending_free(driver) -> None:
    """A runtime comes and goes; nothing that it has queued runs until something waits for it."""
    driver.set_policy("max")
    runtime = DeviceRuntime()
    runtime.allocate(1024).free()


def look_again() -> None:
    AsyncMemoryResource()


def test_a_pool_is_destroyed_once_nothing_is_pending_in_it(driver):
    look_again()
    destroyed = driver.calls("cuMemPoolDestroy")
    end_with_a_pending_free(driver)
    assert driver.calls("cuMemPoolDestroy") == destroyed
    look_again()                                        # which ends a pool itself: that one is empty
    assert driver.calls("cuMemPoolDestroy") == destroyed + 1
    check(cuda.cuCtxSynchronize())
    look_again()
    assert driver.calls("cuMemPoolDestroy") == destroyed + 3


def test_a_pool_in_which_nothing_is_pending_is_destroyed_at_once(driver):
    driver.set_policy("max")
    runtime = DeviceRuntime()
    runtime.allocate(1024).free()
    runtime.synchronize()
    destroyed = driver.calls("cuMemPoolDestroy")
    del runtime
    assert driver.calls("cuMemPoolDestroy") == destroyed + 1


def test_what_is_pending_holds_no_memory_once_it_is_complete(driver):
    """At a synchronization the driver takes it back, without another call here."""
    runtime = DeviceRuntime()
    total = int(check(cuda.cuDeviceTotalMem(0)))
    driver.set_policy("max")
    runtime.allocate(total // 2 + 1).free()
    del runtime
    check(cuda.cuCtxSynchronize())
    address = check(cuda.cuMemAlloc(total // 2 + 1))
    check(cuda.cuMemFree(address))
    look_again()


def test_a_shortage_takes_what_has_ended(driver):
    other = DeviceRuntime()
    total = int(check(cuda.cuDeviceTotalMem(0)))
    end_with_a_pending_free(driver)
    runtime = DeviceRuntime()
    runtime.allocate(total // 2 + 1).free()
    stream = runtime.default_stream
    del runtime
    stream.synchronize()
    block = other.allocate(total // 2 + 1)
    block.free()
    del stream


@pytest.mark.parametrize("call", ["cuMemPoolSetAttribute", "cuMemPoolTrimTo", "cuMemPoolGetAttribute"])
def test_a_driver_that_fails_meanwhile_is_called_again(driver, call):
    look_again()
    runtime = DeviceRuntime()
    destroyed = driver.calls("cuMemPoolDestroy")
    driver.fail(call, code=999)
    del runtime
    look_again()
    assert driver.calls("cuMemPoolDestroy") == destroyed + 2


def test_a_reset_takes_the_pools_with_it(driver):
    """Their handles mean nothing afterwards."""
    look_again()
    end_with_a_pending_free(driver)
    forget_context(0)
    check(cuda.cuCtxSynchronize())
    destroyed = driver.calls("cuMemPoolDestroy")
    look_again()
    assert driver.calls("cuMemPoolDestroy") == destroyed + 1


def test_without_this_the_simulated_driver_reports_it(driver):
    """The twin: what a finalizer did before."""
    driver.set_policy("max")
    properties = cuda.CUmemPoolProps()
    properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    pool = check(cuda.cuMemPoolCreate(properties))
    stream = check(cuda.cuStreamCreate(1))
    check(cuda.cuMemFreeAsync(check(cuda.cuMemAllocFromPoolAsync(1024, pool, stream)), stream))
    check(cuda.cuMemPoolDestroy(pool))
    assert driver.races() == ["EARLY POOL: cuMemPoolDestroy was called while frees were pending"]
    driver.clear_races()
    check(cuda.cuStreamSynchronize(stream))
    check(cuda.cuStreamDestroy(stream))
