"""The simulated driver: where a device is on the bus, and a profiler that there is not."""
from __future__ import annotations

import pytest
from cuda.bindings import driver
from sim_support import ok

pytestmark = pytest.mark.simulator


def test_a_device_is_found_by_its_place_on_the_bus(simulator):
    """The domain or the function may be missing."""
    names = [ok(driver.cuDeviceGetPCIBusId(13, device)).rstrip(b"\0") for device in range(2)]
    assert names == [b"0000:01:00.0", b"0000:02:00.0"]
    for name in (names[1], b"02:00.0", b"0000:02:00", b"0:2:0.0"):
        assert int(ok(driver.cuDeviceGetByPCIBusId(name))) == 1
    for name, status in ((b"0000:03:00.0", 101), (b"0001:02:00.0", 101), (b"0000:02:00.1", 101), (b"02", 1), (b"", 1)):
        assert int(driver.cuDeviceGetByPCIBusId(name)[0]) == status


def test_a_profiler_needs_a_context_and_nothing_else(simulator):
    calls = [driver.cuProfilerStart, driver.cuProfilerStop]
    for call in calls:
        ok(call())
    context = ok(driver.cuCtxPopCurrent())
    try:
        assert [int(call()[0]) for call in calls] == [201, 201]
    finally:
        ok(driver.cuCtxPushCurrent(context))
