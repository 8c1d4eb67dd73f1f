"""`enable` on several devices, and after `rmm.reinitialize`."""
from __future__ import annotations

import sys

import pytest
from cuda.bindings import driver as cuda
from rmm_if_installed import RuntimeMemoryResource, Source, current, needs_rmm, rmm

import xlogmem
from xlogmem import _devices, allocators
from xlogmem.sim.kernels import check

pytestmark = [needs_rmm, pytest.mark.simulator]


@pytest.fixture
def simulated_initialize(monkeypatch):
    """What `rmm.reinitialize` calls in the end, without CUDA's runtime library."""
    made = {}

    def initialize(devices=0, fail=False, **options):
        if fail:
            raise MemoryError("the pool is too large")
        for device in [devices] if isinstance(devices, int) else devices:
            made[device] = Source()
            rmm.mr.set_per_device_resource(device, made[device].mr)

    monkeypatch.setattr(rmm.rmm, "_initialize", initialize)
    return made


def device_of(buffer):
    return check(cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, buffer.ptr))


@pytest.mark.parametrize("enable", [
    lambda: xlogmem.rmm.enable("all"), lambda: xlogmem.rmm.enable(devices=xlogmem.devices()),
    lambda: xlogmem.enable("rmm", devices="all"), lambda: xlogmem.enable("rmm", devices=[1, 0])])
def test_all_devices(two, enable, _context):
    enable()
    assert int(check(cuda.cuCtxGetCurrent())) == int(_context)
    for device, source in enumerate(two):
        assert current(device).runtime is xlogmem.get_runtime(device)
        assert current(device).upstream_mr is source.mr
        assert xlogmem.rmm.is_current(device)
    xlogmem.disable("rmm") if "rmm" in allocators._enabled else xlogmem.rmm.disable()
    assert [current(device) for device in (0, 1)] == [source.mr for source in two]
    assert not xlogmem.rmm.is_current(1)


def test_a_pool_takes_its_first_chunk_on_its_own_device(two):
    """Although another device is current."""
    xlogmem.rmm.enable("all", pool_allocator=True, initial_pool_size=1 << 16)
    buffers = [rmm.DeviceBuffer(size=1 << 8, mr=current(device)) for device in (0, 1)]
    assert list(map(device_of, buffers)) == [0, 1]
    assert [current(device).get_allocated_bytes() for device in (0, 1)] == [1 << 8] * 2
    del buffers
    for device in (0, 1):
        xlogmem.get_runtime(device).reap_pending()


def test_where_one_device_fails_those_before_it_are_restored(two):
    by_hand = xlogmem.get_runtime(1)
    for devices in ("all", [0, 1]):
        with pytest.raises(RuntimeError, match="device 1 has a runtime already"):
            xlogmem.rmm.enable(devices)
        assert [current(device) for device in (0, 1)] == [source.mr for source in two]
        assert xlogmem.devices()[0].runtime is None
        assert xlogmem.rmm.active_devices() == []
    assert xlogmem.get_runtime(1) is by_hand
    xlogmem.rmm.enable(0, limit="1MiB")                 # other arguments: nothing was kept
    mine = current()
    with pytest.raises(RuntimeError, match="device 1 has a runtime already"):
        xlogmem.rmm.enable("all", limit="1MiB")
    assert current() is mine                            # what was enabled stays so
    assert xlogmem.rmm.active_devices() == [0]


def test_a_former_runtime_is_restored_too(two):
    """It is that of a resource which was replaced since."""
    xlogmem.rmm.enable(0)
    former, other = current().runtime, Source()
    xlogmem.rmm.disable()
    rmm.mr.set_per_device_resource(0, other.mr)
    xlogmem.get_runtime(1)
    with pytest.raises(RuntimeError, match="device 1 has a runtime already"):
        xlogmem.rmm.enable("all")
    assert current() is other.mr
    assert xlogmem.get_runtime(0) is former
    rmm.mr.set_per_device_resource(0, two[0].mr)
    xlogmem.rmm.enable(0)
    assert current().runtime is former


def test_a_device_that_is_not_there_is_refused_before_anything(two):
    with pytest.raises(ValueError, match=r"device 7 is not here: this process sees 2 devices, 0 to 1"):
        xlogmem.rmm.enable([0, 7])
    assert current() is two[0].mr
    assert xlogmem.devices()[0].runtime is None


def test_more_devices_than_a_process_has_runtimes_are_refused(two, monkeypatch):
    monkeypatch.setattr(_devices, "device_count", lambda: 17)
    for enable in (lambda: xlogmem.rmm.enable("all"), lambda: xlogmem.enable("rmm", devices=[0, 16])):
        with pytest.raises(ValueError, match=r"devices 0 to 15, and not of device 16: .* CUDA_VISIBLE_DEVICES"):
            enable()
    assert current() is two[0].mr


def test_where_another_library_fails_all_devices_are_restored(two, monkeypatch):
    class Refusing:
        is_on_rmm = refuse = disable = staticmethod(lambda: False)

        @staticmethod
        def enable():
            raise RuntimeError("not now")

    monkeypatch.setitem(sys.modules, "xlogmem.allocators.cupy", Refusing)
    with pytest.raises(RuntimeError, match="not now"):
        xlogmem.enable("rmm", "cupy", devices="all")
    assert [current(device) for device in (0, 1)] == [source.mr for source in two]
    with pytest.raises(ValueError, match="devices are chosen for RMM alone"):
        xlogmem.enable("cupy", devices=[1])
    with pytest.raises(RuntimeError, match="not now"):
        xlogmem.enable("cupy", devices="all")           # which is what it does anyway


# ---------------------------------------------------------------------------------------------- rmm.reinitialize
def test_reinitialize_is_followed(two, simulated_initialize):
    xlogmem.rmm.enable("all", limit="1MiB", follow_reinitialize=True)
    former = [xlogmem.get_runtime(device) for device in (0, 1)]
    for devices in ([0, 1], 0):
        rmm.reinitialize(devices=devices)
        for device in (0, 1):
            assert isinstance(current(device), RuntimeMemoryResource)
            assert current(device).upstream_mr is simulated_initialize[device].mr
            assert current(device).runtime is xlogmem.get_runtime(device)
            assert current(device).runtime.resource.limit == 1 << 20
    assert xlogmem.get_runtime(0) is not former[0]
    xlogmem.rmm.disable(1)
    rmm.reinitialize(devices=[0, 1])
    assert [xlogmem.rmm.is_current(device) for device in (0, 1)] == [True, False]
    xlogmem.rmm.disable()
    rmm.reinitialize(devices=[0, 1])
    assert [current(device) for device in (0, 1)] == [simulated_initialize[device].mr for device in (0, 1)]
    assert rmm.rmm._initialize.__name__ == "initialize"  # RMM's function is where it was


def test_without_following_the_new_resource_stays(two, simulated_initialize):
    """The twin."""
    xlogmem.rmm.enable(0)
    rmm.reinitialize()
    assert current() is simulated_initialize[0].mr
    assert not xlogmem.rmm.is_current(0)


def test_the_own_function_of_rmm_is_followed(two):
    """All that it calls for its initial resource needs no device; RMM 26.06 to 26.10 have it under this name."""
    from rmm import reinitialize
    from rmm.pylibrmm.memory_resource import _memory_resource

    assert rmm.rmm._initialize is _memory_resource._initialize
    xlogmem.rmm.enable(0, follow_reinitialize=True)
    assert rmm.rmm._initialize is not _memory_resource._initialize
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_memory_resource, "getDevice", lambda: 0)
        patched.setattr(_memory_resource, "setDevice", lambda device: None)
        reinitialize()                                  # imported by name, before or after
    assert isinstance(current().upstream_mr, rmm.mr.CudaMemoryResource)
    assert xlogmem.rmm.is_current(0)
    xlogmem.rmm.disable()
    assert rmm.rmm._initialize is _memory_resource._initialize


def test_memory_that_outlives_the_reinitialization_is_reported(two, simulated_initialize):
    xlogmem.rmm.enable(0, follow_reinitialize=True)
    buffer = rmm.DeviceBuffer(size=64, mr=current())
    with pytest.warns(RuntimeWarning, match="1 buffer was allocated before RMM's resource was replaced"):
        rmm.reinitialize()
    assert xlogmem.rmm.is_current(0)
    del buffer
    assert not two[0].live


def test_a_reinitialization_that_fails_is_not_followed(two, simulated_initialize):
    xlogmem.rmm.enable(0, follow_reinitialize=True)
    mine = current()
    with pytest.raises(MemoryError, match="too large"):
        rmm.rmm._initialize(fail=True)
    assert current() is mine


def test_a_named_log_cannot_be_kept(two, tmp_path):
    log = tmp_path / "log.csv"
    with pytest.raises(ValueError, match="a file that is named would be emptied"):
        xlogmem.rmm.enable(0, log=log, follow_reinitialize=True)
    assert not log.exists()
    assert current() is two[0].mr


@pytest.mark.simulator
def test_without_a_gpu_rmm_is_refused_by_name(fresh):
    """NVIDIA's runtime, which RMM has linked in, does not start on the simulated driver."""
    rmm.mr.set_per_device_resource(0, rmm.mr.CudaMemoryResource())
    with pytest.raises(RuntimeError, match="RMM's CudaMemoryResource needs a GPU"):
        xlogmem.enable("rmm")
    assert xlogmem.rmm.active_devices() == []
