"""The process has one runtime for each device."""
from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from stress import in_its_own_process, together

from xlogmem import (
    MAX_DEVICES,
    AsyncMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    StreamPool,
    get_runtime,
    runtime,
    use,
)

UNKNOWN = 999
THREADS = 8


@pytest.mark.simulator
@pytest.mark.promise(70, 72)
def test_numbers_out_of_range_do_not_touch_the_driver(driver):
    """16 and more, and negative ones, are refused by name; what is not an integer is a TypeError."""
    before = driver.all_calls()
    assert MAX_DEVICES == 16
    for device_id in (16, 17, 9999, 1 << 70, -1):
        with pytest.raises(ValueError, match=f"^device_id must be .* from 0 to 15, got {device_id}"):
            get_runtime(device_id)
    for wrong in ("0", 0.5, None):
        with pytest.raises(TypeError):
            get_runtime(wrong)
    assert driver.all_calls() == before


@pytest.mark.usefixtures("_cold")
@pytest.mark.promise(73, 76, 77, 81)
def test_the_same_object_every_time_and_without_a_lock():
    """A runtime that was made is returned as it is, even while the slot's lock is held; the caller need not keep it."""
    first = get_runtime()
    assert first.device_id == 0
    assert isinstance(first.stream_pool, StreamPool)
    number = id(first)
    block = first.allocate(64)
    del first
    gc.collect()
    with runtime._locks[0]:
        assert id(get_runtime(0)) == number
    assert block.core is get_runtime()


@pytest.mark.usefixtures("_cold")
@pytest.mark.promise(71, 74)
def test_one_build_for_each_device(monkeypatch):
    """Callers that come while a runtime is made wait and get that one; other devices do not wait."""
    made, inside, go_on = [], threading.Event(), threading.Event()

    class Slow:
        def __init__(self, device_id: int) -> None:
            made.append(device_id)
            if device_id == 0:
                inside.set()
                assert go_on.wait(60)

    monkeypatch.setattr(runtime, "DeviceRuntime", Slow)
    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(get_runtime, 0) for _ in range(8)]
        assert inside.wait(60)
        assert get_runtime(3) is get_runtime(3)         # not behind the first
        assert not any(result.done() for result in results)
        go_on.set()
        assert len({id(result.result(60)) for result in results}) == 1
    assert sorted(made) == [0, 3]


@pytest.mark.simulator
@pytest.mark.usefixtures("_cold")
@pytest.mark.promise(75)
def test_a_failed_build_leaves_the_slot_empty(driver, monkeypatch):
    """The error has the number and the cause, whatever it is; the next caller tries again."""
    driver.fail("cuMemPoolCreate", code=UNKNOWN)
    with pytest.raises(DriverError, match=r"cuMemPoolCreate.*device 1"):
        get_runtime(1)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "DeviceRuntime", lambda device_id: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            get_runtime(1)
    with pytest.raises(ValueError, match="device 9 is not here"):
        get_runtime(9)
    assert runtime._runtimes == [None] * MAX_DEVICES
    assert get_runtime(1).device_id == 1


@pytest.mark.usefixtures("_cold")
@pytest.mark.promise(69, 78)
def test_the_default_backend_is_stream_ordered(monkeypatch):
    """Where the device has memory pools the process's runtime is asynchronous, so recorders work with it."""
    monkeypatch.delenv("XLOGMEM_RESOURCE", raising=False)
    own = get_runtime()
    assert type(own.resource) is AsyncMemoryResource
    block = own.allocate(64)
    with use(own.default_stream, write=block):
        pass
    monkeypatch.setattr(runtime, "supports_memory_pools", lambda device_id: False)
    assert type(DeviceRuntime().resource) is DirectMemoryResource


@pytest.mark.usefixtures("_cold")
@pytest.mark.promise(206)
def test_the_process_has_one_runtime_for_all_threads():
    """The same object again and again and in eight threads; each allocates and frees through its default resource."""
    def work(number: int) -> DeviceRuntime:
        own = get_runtime(0)
        block = own.allocate(1024 + number)
        assert block.core is own
        assert own.bytes_outstanding >= block.nbytes
        block.free()
        return own

    seen = together(work, THREADS)
    assert len({id(own) for own in [*seen, get_runtime(), get_runtime(0)]}) == 1
    assert seen[0].counters()["allocations"] == seen[0].counters()["frees"] == THREADS
    seen[0].reap_pending()
    assert seen[0].bytes_outstanding == 0


@pytest.mark.promise(207)
@pytest.mark.parametrize("interval", [5e-3, 1e-6])
def test_a_cold_process_makes_one_runtime(interval):
    """Nothing was loaded before; eight threads at a barrier get one object, whose parts were made once."""
    assert in_its_own_process("""
import sys, threading, xlogmem
from xlogmem import _driver, sim
with open("/proc/self/maps") as maps:
    loaded = maps.read()
assert "libcuda.so" not in loaded           # the simulated driver is there, and has made no call
assert not sim.installed() or not sim.simulator().all_calls()
sys.setswitchinterval(float(sys.argv[1]))
seen, start = [], threading.Barrier(8)
def first():
    start.wait(60)
    runtime = xlogmem.get_runtime()
    runtime.allocate(64).free()
    seen.append(runtime)
threads = [threading.Thread(target=first) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert len(seen) == 8 and len({id(runtime) for runtime in seen}) == 1
assert seen[0] is xlogmem.get_runtime()
assert seen[0].counters()["allocations"] == seen[0].counters()["frees"] == 8
if sim.installed():
    calls = sim.simulator().all_calls()
    assert calls["cuMemPoolCreate"] == calls["cuDevicePrimaryCtxRetain"] == 1, calls
    assert calls["cuStreamCreateWithPriority"] == 1, calls
print("one")
""", interval) == "one\n"
