"""`xlogmem.enable` and `disable`: what is refused, replaced and restored."""
from __future__ import annotations

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import pytest
from allocator_stand_ins import CoreResource, NullStream, NumbaManager
from other_threads import Beside

import xlogmem
from xlogmem import allocators

pytestmark = pytest.mark.simulator
BOTH = pytest.mark.parametrize("call", [xlogmem.enable, xlogmem.disable])


@BOTH
def test_no_name_and_unknown_names_are_refused_with_the_choices(clean, call):
    for names in (*[()] * (call is xlogmem.enable), ("numpy",), ("cupy", "CuPy"), (3,), (["cupy"],)):
        with pytest.raises(ValueError, match=r"'cuda\.core', 'cupy', 'numba', 'rmm', 'torch'"):
            call(*names)
    assert not allocators._enabled


@pytest.mark.parametrize(("name", "module", "library"), [
    ("cupy", "cupy", "CuPy"), ("numba", "numba", "Numba-CUDA"), ("cuda.core", "cuda.core", "cuda.core")])
def test_a_library_that_is_not_there_is_named(cupy, monkeypatch, name, module, library):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"enable\('{name}'\) needs {library}, which cannot be imported"):
        xlogmem.enable(*dict.fromkeys(["cupy", name]))
    xlogmem.disable(name)                               # which imports nothing
    assert cupy.cuda.get_allocator() == cupy.pool.malloc


def test_all_are_replaced_and_restored(cupy, numba, core):
    context = numba.make_context(1)
    resources = [device.memory_resource for device in core.Device.get_all_devices()]
    for _ in range(2):
        xlogmem.enable("cupy", "numba", "cuda.core")
        xlogmem.enable("cuda.core")                     # twice is once
        assert cupy.cuda.get_allocator() is allocators.cupy.allocate
        assert numba._memory_manager is allocators.numba.BlockManager
        assert isinstance(context.memory_manager, allocators.numba.BlockManager)
        assert [device.memory_resource.device_id for device in core.Device.get_all_devices()] == [0, 1]
        xlogmem.disable("cuda.core", "numba", "cupy")
        xlogmem.disable("cupy")
        assert cupy.cuda.get_allocator() == cupy.pool.malloc
        assert (numba._memory_manager, type(context.memory_manager)) == (NumbaManager, NumbaManager)
        assert (context.memory_manager.initialized, context.pushed) == (True, 0)
        assert [device.memory_resource for device in core.Device.get_all_devices()] == resources


def test_what_other_code_puts_there_stays_until_the_next_enable(cupy, numba, core):
    xlogmem.enable("cupy", "numba", "cuda.core")
    def other(nbytes): ...
    cupy.cuda.set_allocator(other)
    numba._memory_manager = OtherManager = type("OtherManager", (NumbaManager,), {})
    core.Device(0).memory_resource = mine = CoreResource()
    xlogmem.disable("cupy", "numba", "cuda.core")
    assert cupy.cuda.get_allocator() is other
    assert numba._memory_manager is OtherManager
    assert core.Device(0).memory_resource is mine
    xlogmem.enable("cupy", "cuda.core")
    cupy.cuda.set_allocator(other)
    core.Device(0).memory_resource = mine
    xlogmem.enable("cupy", "cuda.core")
    assert cupy.cuda.get_allocator() is allocators.cupy.allocate
    assert isinstance(core.Device(0).memory_resource, allocators.cuda_core.BlockMemoryResource)
    xlogmem.disable("cupy", "cuda.core")
    assert cupy.cuda.get_allocator() is other
    assert core.Device(0).memory_resource is mine


def test_memory_in_use_is_a_reason_and_nothing_is_changed(cupy, numba, core):
    cupy.pool.used[0] = 512
    with pytest.raises(RuntimeError, match=r"CuPy has 512 bytes in use.*before anything is allocated"):
        xlogmem.enable("numba", "cupy")
    cupy.pool.used.clear()
    context = numba.make_context()
    context.memory_manager.memalloc(10)
    with pytest.raises(RuntimeError, match="Numba has 1 allocation on device 0"):
        xlogmem.enable("cupy", "numba")
    context.memory_manager.reset()
    buffer = core.Device(0).allocate(10, stream=NullStream())
    with pytest.raises(RuntimeError, match=r"cuda\.core has 10 bytes in use"):
        xlogmem.enable("cupy", "numba", "cuda.core")
    assert cupy.cuda.get_allocator() == cupy.pool.malloc
    assert numba._memory_manager is NumbaManager
    buffer.close()
    xlogmem.enable("cupy", "numba", "cuda.core")


def test_after_an_error_none_is_changed(cupy, numba, core, monkeypatch):
    xlogmem.enable("cupy", "cuda.core")
    xlogmem.disable("cuda.core")

    def broken():
        raise OSError("broken")

    monkeypatch.setattr(allocators.cuda_core, "enable", broken)
    with pytest.raises(OSError, match="broken"):
        xlogmem.enable("cupy", "numba", "cuda.core")
    assert numba._memory_manager is NumbaManager
    assert cupy.cuda.get_allocator() is allocators.cupy.allocate
    assert list(allocators._enabled) == ["cupy"]        # as before


def test_pytorch_comes_last_because_it_cannot_be_undone(cupy, core, monkeypatch):
    calls = []

    def disable():
        raise RuntimeError("PyTorch stays")

    torch = SimpleNamespace(is_on_rmm=lambda: False, refuse=lambda: None, disable=disable,
                            enable=lambda: calls.append("enable"))
    monkeypatch.setitem(sys.modules, "xlogmem.allocators.torch", torch)
    xlogmem.enable("cupy", "cuda.core")
    xlogmem.disable("cupy", "cuda.core")
    with monkeypatch.context() as broken:
        broken.setattr(allocators.cuda_core, "enable", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            xlogmem.enable("cupy", "torch", "cuda.core")
    assert (calls, allocators._enabled) == ([], {})
    xlogmem.enable("torch", "cupy")
    with pytest.raises(RuntimeError, match="PyTorch stays"):
        xlogmem.disable("cupy", "torch")
    assert cupy.cuda.get_allocator() is allocators.cupy.allocate        # nothing was changed
    assert list(allocators._enabled) == ["cupy", "torch"]
    with pytest.raises(RuntimeError, match="PyTorch stays"):
        xlogmem.disable()                               # all, as far as that is possible
    assert list(allocators._enabled) == ["torch"]
    assert cupy.cuda.get_allocator() == cupy.pool.malloc


def test_inside_of_using_allocator_nothing_can_be_changed(cupy):
    cupy.current.of_thread = cupy.pool.malloc
    with pytest.raises(RuntimeError, match="using_allocator"):
        xlogmem.enable("cupy")
    cupy.current.of_thread = None
    xlogmem.enable("cupy")
    cupy.current.of_thread = cupy.pool.malloc
    with pytest.raises(RuntimeError, match="using_allocator"):
        xlogmem.disable("cupy")
    cupy.current.of_thread = None
    assert cupy.cuda.get_allocator() is allocators.cupy.allocate
    xlogmem.disable("cupy")
    assert cupy.cuda.get_allocator() == cupy.pool.malloc


class Rmm(ModuleType):
    """`xlogmem.rmm`, where the program has enabled device 0 itself."""

    def __init__(self):
        super().__init__("xlogmem.rmm")
        self.devices = [0]
        self.calls = []

    def active_devices(self):
        return list(self.devices)

    def refuse_without_gpu(self):
        pass

    def enable(self, devices):
        assert devices is None
        self.calls.append("enable")
        self.devices = [0, 1]

    def disable(self, devices):
        self.calls.append(("disable", sorted(devices)))
        self.devices = [device for device in self.devices if device not in devices]


@pytest.fixture
def rmm(monkeypatch, clean):
    made = Rmm()
    monkeypatch.setitem(sys.modules, "xlogmem.rmm", made)
    monkeypatch.setattr(xlogmem, "rmm", made, raising=False)
    return made


def test_libraries_that_allocate_through_rmm_stay_there(cupy, numba, rmm, monkeypatch):
    """As cuDF sets them up."""
    def theirs(nbytes): ...
    monkeypatch.setitem(sys.modules, "rmm.allocators.cupy", SimpleNamespace(rmm_cupy_allocator=theirs))
    monkeypatch.setitem(sys.modules, "rmm.allocators.numba", SimpleNamespace(RMMNumbaManager=NumbaManager))
    cupy.cuda.set_allocator(theirs)
    numba._memory_manager = NumbaManager
    xlogmem.enable("cupy", "numba")
    assert cupy.cuda.get_allocator() is theirs
    assert numba._memory_manager is NumbaManager
    assert rmm.devices == [0, 1]
    xlogmem.disable("cupy")
    assert rmm.devices == [0, 1]                        # Numba needs it
    xlogmem.disable("numba")
    assert rmm.calls[-1] == ("disable", [1])            # and the program device 0


def test_pinned_is_for_cupys_own_allocators(cupy, numba, rmm, monkeypatch):
    for names, pinned, error in ((("numba",), True, ValueError), (("cuda.core", "rmm", "torch"), True, ValueError),
                                 (("cupy",), "no", TypeError), (("cupy",), 1, TypeError), (("cupy",), None, TypeError)):
        with pytest.raises(error, match="pinned"):
            xlogmem.enable(*names, pinned=pinned)
    def theirs(nbytes): ...
    monkeypatch.setitem(sys.modules, "rmm.allocators.cupy", SimpleNamespace(rmm_cupy_allocator=theirs))
    cupy.cuda.set_allocator(theirs)
    with pytest.raises(ValueError, match=r"pinned=True .* allocates through RMM"):
        xlogmem.enable("cupy", pinned=True)
    assert (rmm.calls, allocators._enabled) == ([], {})
    assert cupy.current.pinned == cupy.get_default_pinned_memory_pool().malloc


@pytest.mark.parametrize("enabled", [False, True])
def test_after_an_error_page_locked_memory_is_as_before(cupy, monkeypatch, enabled):
    if enabled:
        xlogmem.enable("cupy")
    own = cupy.current.pinned

    def broken(allocator):
        raise OSError("broken")

    monkeypatch.setattr(cupy.cuda, "set_pinned_memory_allocator", broken)
    with pytest.raises(OSError, match="broken"):
        xlogmem.enable("cupy", pinned=True)
    assert list(allocators._enabled) == ["cupy"] * enabled
    assert cupy.current.pinned == own
    assert (cupy.cuda.get_allocator() is allocators.cupy.allocate) == enabled


def test_rmm_comes_first_and_is_undone_where_another_fails(cupy, rmm):
    def broken(nbytes):
        assert rmm.calls == ["enable"]
        raise OSError("broken")

    cupy.cuda.set_allocator = broken
    with pytest.raises(OSError, match="broken"):
        xlogmem.enable("cupy", "rmm")
    assert rmm.calls == ["enable", ("disable", [1])]
    assert not allocators._enabled


def test_a_thread_that_disables_waits_for_one_that_enables(cupy):
    replace, beside = cupy.cuda.set_allocator, []

    def in_between(allocator):
        cupy.cuda.set_allocator = replace
        called = threading.Event()

        def disable():
            called.set()
            xlogmem.disable("cupy")                     # without waiting it would find nothing to do

        beside.append(Beside(disable))
        assert called.wait(30)
        time.sleep(0.02)                                # for a defect to show: right code passes without it
        replace(allocator)

    cupy.cuda.set_allocator = in_between
    xlogmem.enable("cupy")
    beside[0].result()
    assert cupy.cuda.get_allocator() == cupy.pool.malloc


def test_threads_that_enable_and_disable_leave_one_state(cupy, core, _busy_interpreter):
    def work():
        for _ in range(50):
            xlogmem.enable("cupy")
            assert cupy.cuda.get_allocator() in (allocators.cupy.allocate, cupy.pool.malloc)
            xlogmem.disable("cupy")

    for thread in [Beside(work) for _ in range(4)]:
        thread.result()
    assert cupy.cuda.get_allocator() == cupy.pool.malloc
    assert not allocators._enabled


def test_devices_of_other_threads_are_theirs(core):
    """cuda.core has a device for each thread; one that has ended is not kept."""
    xlogmem.enable("cuda.core")
    seen = []

    def work():
        seen.append(isinstance(core.Device(0).memory_resource, allocators.cuda_core.BlockMemoryResource))
        xlogmem.enable("cuda.core")
        seen.append(isinstance(core.Device(0).memory_resource, allocators.cuda_core.BlockMemoryResource))

    Beside(work).result()
    assert seen == [False, True]
    xlogmem.enable("cuda.core")
    assert len(allocators.cuda_core._replaced) == 2     # of this thread
    xlogmem.disable("cuda.core")
    assert isinstance(core.Device(0).memory_resource, CoreResource)


@pytest.mark.parametrize(("name", "place", "attribute"), [
    ("cupy", "cupy.cuda", "runtime"), ("numba", "numba.cuda.cudadrv.driver", "find_driver")])
def test_a_library_that_does_not_find_the_simulated_driver(request, monkeypatch, name, place, attribute):
    """CuPy's runtime and Numba's search know nothing of it, unless the program is checked."""
    library = request.getfixturevalue(name)

    def fail():
        raise OSError("no driver")

    monkeypatch.setattr(sys.modules[place], attribute, SimpleNamespace(getDeviceCount=fail) if name == "cupy" else fail)
    with pytest.raises(RuntimeError, match=r"does not find the simulated driver by itself: `xlogmem check --no-gpu "):
        xlogmem.enable(name)
    assert name not in allocators.enabled_libraries()
    assert library is not None


def test_without_a_driver_the_message_names_the_check(cupy, monkeypatch):
    def load(name):
        raise OSError(f"{name}: no such file")

    monkeypatch.setattr(allocators, "is_simulated", lambda: False)
    monkeypatch.setattr(allocators, "ctypes", SimpleNamespace(CDLL=load))
    with pytest.raises(xlogmem.DriverNotFoundError, match=r"^xlogmem\.enable\('cupy'\): no CUDA driver was found .*"
                       r"`xlogmem check --no-gpu program\.py` runs a program on the simulated driver"):
        xlogmem.enable("cupy")
    assert cupy.cuda.get_allocator() == cupy.pool.malloc
