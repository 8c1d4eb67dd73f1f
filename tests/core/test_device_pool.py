"""`devices` and `DevicePool`: what a process sees, and the choice of one device."""
from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from collections import Counter

import pytest
from children import variables
from cuda.bindings import driver as cuda
from other_threads import Beside

import xlogmem
from xlogmem import DevicePool, DeviceRuntime, DriverError
from xlogmem import runtime as runtimes
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


@pytest.fixture
def fresh(monkeypatch):
    """No runtime was made."""
    monkeypatch.setattr(runtimes, "_runtimes", [None] * runtimes.MAX_DEVICES)


def test_devices_are_described_without_a_context():
    """In a process of its own: here there are contexts already."""
    program = ("import xlogmem; from xlogmem import _driver\n"
               "one, other = devices = xlogmem.devices()\n"
               "print(one, other, sep='\\n')\n"
               "print(one.uuid, other.uuid, [d.total_memory for d in devices], [d.device_id for d in devices])\n"
               "pool = xlogmem.DevicePool(); pool.round_robin(); pool.synchronize()\n"
               "print(_driver.active_devices(), other.runtime)\n"
               "print(other.mem_info == (other.total_memory,) * 2, _driver.active_devices())\n")
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True,
                          env=variables(XLOGMEM_SIMULATE="1", CUDA_VISIBLE_DEVICES="2,0", memory=1 << 30, devices=3))
    assert done.stdout.splitlines() == [
        "<Device 0: xlogmem simulated device, 1.0 GiB, no runtime>",
        "<Device 1: xlogmem simulated device, 1.0 GiB, no runtime>",
        "786c6f67-6d65-6d2d-7369-6d0000000002 786c6f67-6d65-6d2d-7369-6d0000000000 "
        f"{[1 << 30] * 2} [0, 1]",
        "[] None", "True [1]"], done.stderr


def test_a_device_has_the_runtime_that_the_process_has(fresh):
    device = xlogmem.devices()[1]
    assert device.runtime is None
    runtime = device.get_runtime()
    assert runtime is device.runtime is xlogmem.get_runtime(1) is xlogmem.get_runtime(device)
    assert {device, xlogmem.devices()[1]} == {device}
    block = runtime.allocate(3000)
    assert repr(device) == "<Device 1: xlogmem simulated device, 16.0 GiB, 2.9 KiB live, 0 B pending>"
    del block


@pytest.mark.promise(198)
def test_round_robin_goes_on_whatever_happens(fresh):
    pool = DevicePool()
    for turn in range(4):
        device = pool.round_robin()
        assert device.device_id == turn % 2
        with pytest.raises(xlogmem.OutOfDeviceMemoryError):
            device.get_runtime().allocate(1 << 50)
    assert [device.device_id for device in (DevicePool(1).round_robin(), DevicePool([1, 0]).round_robin())] == [1, 1]
    assert [device.device_id for device in pool] == [0, 1]
    assert (len(pool), pool[1].device_id) == (2, 1)


def test_round_robin_and_least_loaded_do_not_share_their_turns(fresh):
    pool = DevicePool()
    runtimes = [device.get_runtime() for device in pool]
    assert [(pool.round_robin().device_id, pool.least_loaded().device_id) for _ in range(4)] == [(0, 0), (1, 1)] * 2
    del runtimes


def test_devices_of_two_processes_differ_by_uuid():
    one, other = xlogmem.devices()
    elsewhere = dataclasses.replace(other, device_id=0)             # with CUDA_VISIBLE_DEVICES=1,0
    assert elsewhere != one
    assert len({one, elsewhere, pickle.loads(pickle.dumps(one))}) == 2


def test_round_robin_is_fair_to_threads(fresh, _busy_interpreter):
    pool, found = DevicePool(), []
    threads = [Beside(lambda: found.extend(pool.round_robin().device_id for _ in range(200))) for _ in range(4)]
    for thread in threads:
        thread.result()
    assert Counter(found) == {0: 400, 1: 400}


def test_least_loaded_compares_live_and_pending_bytes(fresh, driver):
    pool = DevicePool()
    one, other = (device.get_runtime() for device in pool)
    assert [pool.least_loaded().device_id for _ in range(4)] == [0, 1, 0, 1]        # equal ones in turn
    block = one.allocate(4096)
    assert {pool.least_loaded().device_id for _ in range(4)} == {1}
    driver.set_policy("min")                            # what is freed is not complete yet
    more = other.allocate(8192)
    with xlogmem.use(other.acquire_stream(), write=more):
        pass
    more.free()
    assert (other.live_bytes, other.pending_bytes) == (0, 8192)
    assert {pool.least_loaded().device_id for _ in range(4)} == {0}
    other.reap_pending()
    assert {pool.least_loaded().device_id for _ in range(4)} == {1}
    block.free()
    one.reap_pending()


def test_without_a_runtime_the_driver_says_what_is_in_use(fresh, memory):
    """`memory` is device 0's, and no runtime knows of it."""
    assert {DevicePool().least_loaded().device_id for _ in range(2)} == {1}
    runtime = xlogmem.get_runtime(1)
    block = runtime.allocate(64)
    assert {DevicePool().least_loaded().device_id for _ in range(2)} == {1}      # fewer
    block.free()
    runtime.reap_pending()


def test_a_lost_device_comes_last(fresh):
    lost = DeviceRuntime(0)
    runtimes._runtimes[0] = lost
    block = xlogmem.get_runtime(1).allocate(4096)
    assert DevicePool().least_loaded().device_id == 0
    from xlogmem.interop.buffers import mark_lost

    mark_lost(lost)
    assert {DevicePool().least_loaded().device_id for _ in range(2)} == {1}
    assert "context lost" in repr(xlogmem.devices()[0])
    block.free()
    xlogmem.get_runtime(1).reap_pending()


@pytest.mark.promise(197)
@pytest.mark.parametrize(("wanted", "error", "match"), [
    ([], ValueError, "at least one device"), ([0, 2], ValueError, r"device 2 is not here: this process sees 2"),
    (-1, ValueError, "device -1 is not here"),
    ("some", ValueError, "must be \"all\", the number of a device or several"),
    ([0, "1"], TypeError, "devices must be an int, not '1'"), (1.0, TypeError, "devices must be an int, not 1.0")])
def test_devices_that_are_not_there_are_named(wanted, error, match):
    with pytest.raises(error, match=match):
        DevicePool(wanted)


@pytest.mark.promise(197)
def test_synchronize_waits_for_all_and_names_the_device_that_failed(fresh, driver, kernels):
    other = xlogmem.get_runtime(1)
    pool = DevicePool([1, 0])
    driver.set_policy("min")
    block = xlogmem.get_runtime(0).allocate(256)
    check(cuda.cuMemsetD8Async(block.ptr, 7, 256, block.stream.handle))
    assert driver.pending_operations()
    driver.fail("cuCtxSynchronize", 1, 719)
    with pytest.raises(DriverError, match=r"cuCtxSynchronize gave CUDA_ERROR_LAUNCH_FAILED .* synchronizing device 1"):
        pool.synchronize()
    assert driver.calls("cuCtxSynchronize") == 2        # and the other one was waited for
    assert not driver.pending_operations()
    pool.synchronize()
    block.free()
    assert other.live_bytes == 0


def test_the_current_context_is_what_it_was(fresh, _context):
    """None, and another device's: the end of every test looks at that of device 0."""
    other = check(cuda.cuDevicePrimaryCtxRetain(1))
    for current in (cuda.CUcontext(0), other):
        check(cuda.cuCtxSetCurrent(current))
        pool = DevicePool()
        pool.least_loaded().get_runtime()
        pool.synchronize()
        assert pool[0].mem_info[1] == pool[0].total_memory
        assert int(check(cuda.cuCtxGetCurrent())) == int(current)
    check(cuda.cuCtxSetCurrent(_context))
    check(cuda.cuDevicePrimaryCtxRelease(1))
