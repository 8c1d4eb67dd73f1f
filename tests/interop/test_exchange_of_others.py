"""Arrays of others whose types have `__dlpack_c_exchange_api__`: named in `use`, and imported, by one call."""
from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import pytest
from capsules import CPU, CUDA, settle
from cuda.bindings import driver as cuda
from exchange_of_others import kind_of_arrays
from four_streams import READ, WRITE

from xlogmem import DeviceState, StreamMisuseError, from_dlpack, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
LARGE = 1 << 62


def scene(four):
    x = four()
    block = x.runtime.allocate(4096, x.S)
    x.use(x.S, (block, WRITE))
    return x, block


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("kind", [kind_of_arrays(), kind_of_arrays(methods=False)], ids=["data_ptr", "dlpack"])
def test_an_array_is_named_by_one_call(four, kind, dropped):
    x, memory = scene(four)
    array = kind(memory.ptr + 64, (4, 8))
    if dropped:
        x.driver.drop("cuStreamWaitEvent", 1)
    with use(x.T, read=array, runtime=x.runtime):
        x.work(x.T, (memory, READ))
    assert array.calls == ["tensor_of"]
    assert bool(x.driver.races()) == dropped
    x.driver.clear_races()
    check(cuda.cuCtxSynchronize())


@pytest.mark.parametrize("where", ["base", "metaclass", "later"])
def test_an_exchange_is_found_wherever_a_type_has_it(four, where):
    """In a base, in the metaclass, and once the type has it, even if it had none before."""
    x, memory = scene(four)
    given = kind_of_arrays(methods=False)
    capsule = given.__dlpack_c_exchange_api__
    if where == "base":
        kind = type("Array", (given,), {})
    else:
        meta = type("Meta", (type,), {"__dlpack_c_exchange_api__": capsule if where == "metaclass" else None})
        kind = (meta if where == "metaclass" else type)("Array", given.__bases__, {})
    if where == "later":
        with pytest.raises(BufferError, match="no capsule here"), use(x.S, read=kind(memory.ptr, (4,)),
                                                                      runtime=x.runtime):
            pass
        kind.__dlpack_c_exchange_api__ = capsule
    array = kind(memory.ptr, (4, 8))
    with use(x.S, read=array, runtime=x.runtime):
        pass
    assert array.calls == ["tensor_of"]


@pytest.mark.parametrize(("shape", "more", "first", "last"), [
    ((4, 8), {}, 0, 31), ((4, 8), {"dtype": (0, 32, 1)}, 0, 127), ((4, 8), {"strides": (16, 1)}, 0, 55),
    ((4,), {"strides": (-2,)}, -6, 0), ((2, 2), {"strides": (-8, 4), "dtype": (0, 16, 1)}, -16, 9), ((), {}, 0, 0),
    ((3,), {"offset": 32}, 32, 34), ((3,), {"dtype": (2, 32, 4)}, 0, 47), ((3,), {"dtype": (0, 4, 1)}, 0, 2),
    ((1, 5), {"strides": (LARGE // 4, 1)}, 0, 4)])
def test_the_extent_of_an_array(four, shape, more, first, last):
    """From its lowest byte to its highest: it is in the block where both are, and one byte further it is not."""
    x, memory = scene(four)
    kind = kind_of_arrays()
    for ptr in (memory.ptr - first, memory.ptr + memory.nbytes - 1 - last):
        array = kind(ptr, shape, **more)
        with use(x.S, read=array, runtime=x.runtime) as recorder:
            assert recorder.recorded_count == 1
        assert set(array.calls) == {"tensor_of"}
    for ptr in (memory.ptr - first - 1, memory.ptr + memory.nbytes - last):
        with pytest.raises(StreamMisuseError):
            use(x.S, read=kind(ptr, shape, **more), runtime=x.runtime).preflight()


@pytest.mark.parametrize(("why", "kind", "more"), [
    ("the function raises", {"raising": True}, {}), ("the function fails", {"failing": True}, {}),
    ("there is none", {"without": ("tensor_of",)}, {}),
    ("an unknown version", {"major": 2}, {}), ("an unknown capsule", {"name": b"another"}, {}),
    ("too large a reach", {}, {"strides": (LARGE, LARGE)}),
    ("no memory", {}, {"dtype": (0, 0, 1)}), ("outside of the address space", {}, {"offset": (1 << 64) - 1})])
def test_else_its_methods_describe_it(four, why, kind, more):
    """They say what is wrong, or what it is."""
    x, memory = scene(four)
    array = kind_of_arrays(**kind)(memory.ptr, (4, 8), **more)
    try:
        with use(x.S, read=array, runtime=x.runtime):
            pass
    except (StreamMisuseError, TypeError, ValueError, BufferError):
        assert more
    assert "data_ptr" in array.calls, why


def test_an_array_without_elements_names_nothing(four):
    x, memory = scene(four)
    array = kind_of_arrays()(memory.ptr, (0, 8))
    with use(x.S, read=[array, memory], runtime=x.runtime):
        pass
    assert "data_ptr" in array.calls


def test_an_array_in_host_memory_is_described_by_its_methods(four):
    """It may be page-locked."""
    x, _ = scene(four)
    array = kind_of_arrays()(id(x), (4,), device=(CPU, 0))
    with pytest.raises(TypeError, match="host memory"):
        use(x.S, read=array, runtime=x.runtime)
    assert "__dlpack_device__" in array.calls


def test_a_type_without_an_exchange_is_not_held(four):
    """Types of a program may be made for a moment."""
    x, memory = scene(four)

    class Array:
        def data_ptr(self):
            return memory.ptr

        nbytes = 16

    with use(x.S, read=Array(), runtime=x.runtime):
        pass
    gone = weakref.ref(Array)
    del Array
    gc.collect()
    assert gone() is None


# ---------------------------------------------------------------------------------------------- imports
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("named", [False, True])
def test_an_import_takes_the_tensor(four, driver, named, dropped):
    """It orders nothing: the producer's stream is known, and its work counts.  The deleter runs after the uses here."""
    x = four()
    state = DeviceState(x.runtime)
    memory = int(check(cuda.cuMemAlloc(4096)))
    array = kind_of_arrays()(memory, (4, 8))
    array.flags = 1
    x.kernels.fill(x.S.handle, memory, 1, 1)
    if dropped:
        for nth in (1, 2):
            driver.drop("cuStreamWaitEvent", nth)
    buffer = from_dlpack(array, state=state, producer=x.S, stream=x.T if named else None)
    assert array.calls == ["managed_of"]
    assert (buffer.shape, buffer.dtype, buffer.ptr, buffer.readonly) == ((4, 8), "int8", memory, True)
    with use(x.T, read=buffer):
        x.kernels.count_unequal(x.T.handle, x.next_word(), memory, 0, 1)
    assert bool(driver.races()) == dropped
    driver.clear_races()
    buffer.release()
    x.runtime.reap_pending()
    settle()
    assert array.calls == ["managed_of", "deleter"]
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFree(memory))


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("says", ["default", "another", "nothing"])
def test_the_stream_of_pytorch_is_queried_in_c(four, driver, monkeypatch, says, dropped):
    """The legacy default stream is named so.  Any other by PyTorch's object, which keeps it alive."""
    x = four()
    state = DeviceState(x.runtime)
    handle = x.S.handle if says == "another" else 0
    own = SimpleNamespace(cuda_stream=handle, __cuda_stream__=lambda: (0, handle))
    queried: list[object] = []

    def current_stream(device: object) -> object:
        queried.append(device)
        return own

    def current(device_id: int) -> int | None:
        queried.append(device_id)
        return None if says == "nothing" else handle

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(current_stream=current_stream)))
    kind = kind_of_arrays(current=current)
    kind.__module__, kind.device = "torch", "cuda:0"
    memory = int(check(cuda.cuMemAlloc(4096)))
    array = kind(memory, (4, 8))
    x.kernels.fill(handle or 1, memory, 1, 1)
    if dropped:
        driver.drop("cuStreamWaitEvent", 1)
    buffer = from_dlpack(array, state=state)
    assert queried == ([0] if says == "default" else [0, "cuda:0"])
    with use(x.T, read=buffer):
        x.kernels.count_unequal(x.T.handle, x.next_word(), memory, 0, 1)
    assert bool(driver.races()) == dropped
    driver.clear_races()
    buffer.release()
    x.runtime.reap_pending()
    settle()
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFree(memory))


def test_a_use_without_a_stream_has_the_object_of_pytorchs(four, monkeypatch):
    """The number of a default stream would not say on which device."""
    x, memory = scene(four)
    queried: list[object] = []

    def current_stream(device: object) -> object:
        queried.append(device)
        return SimpleNamespace(__cuda_stream__=lambda: (0, x.T.handle))

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(current_stream=current_stream)))
    kind = kind_of_arrays(current=lambda device_id: 0)
    kind.__module__, kind.device = "torch", "cuda:0"
    with use(None, read=kind(memory.ptr, (4, 8)), runtime=x.runtime) as recorder:
        assert recorder.stream == x.T
    assert queried == ["cuda:0"]


@pytest.mark.parametrize(("kind", "more", "calls"), [
    ({"failing": True}, {}, ["managed_of", "__dlpack_device__", "__dlpack__"]),
    ({"raising": True}, {}, ["__dlpack_device__", "__dlpack__"]),
    ({"without": ("managed_of",)}, {}, ["__dlpack_device__", "__dlpack__"]),
    ({}, {"version": 2}, ["managed_of", "deleter", "__dlpack_device__", "__dlpack__"]),
    ({}, {"device": (CPU, 0)}, ["managed_of", "deleter", "__dlpack_device__"])])
def test_else_it_makes_a_capsule(four, kind, more, calls):
    x = four()
    array = kind_of_arrays(**kind)(0x1000, (4, 8), **{key: value for key, value in more.items() if key == "device"})
    array.version = more.get("version", 1)
    with pytest.raises(BufferError):
        from_dlpack(array, state=DeviceState(x.runtime), producer=x.S)
    assert array.calls == calls


@pytest.mark.parametrize(("dtype", "requires_grad", "calls"), [
    ((5, 64, 1), False, ["managed_of", "deleter", "__dlpack_device__", "__dlpack__"]),
    ((2, 32, 1), True, ["__dlpack_device__", "__dlpack__"])])
def test_what_only_the_methods_refuse_is_left_to_them(four, dtype, requires_grad, calls):
    """PyTorch's table gives the memory of a tensor that has yet to be conjugated, and of one that requires a gradient.
    """
    x = four()
    array = kind_of_arrays()(0x1000, (4, 8), dtype=dtype)
    array.requires_grad = requires_grad
    with pytest.raises(BufferError, match="no capsule here"):
        from_dlpack(array, state=DeviceState(x.runtime), producer=x.S)
    assert array.calls == calls


def test_without_a_known_producer_the_library_orders_its_work(four):
    """A capsule of it is ordered, where a tensor is not."""
    x = four()
    array = kind_of_arrays()(0x1000, (4, 8))
    with pytest.raises(BufferError, match="no capsule here"):
        from_dlpack(array, state=DeviceState(x.runtime))
    assert array.calls == ["managed_of", "__dlpack__", "deleter"]


def test_a_tensor_on_another_device_is_refused(four):
    x = four()
    array = kind_of_arrays()(0x1000, (4, 8), device=(CUDA, 1))
    with pytest.raises(BufferError, match="device 1"):
        from_dlpack(array, state=DeviceState(x.runtime), producer=x.S)
    assert array.calls == ["managed_of", "deleter"]
