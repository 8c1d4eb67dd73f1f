"""Streams of other libraries: `__cuda_stream__`, and stand-ins for CuPy, PyTorch and Numba."""
from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from arrays import Array
from cuda.bindings import driver as cuda
from four_streams import WRITE

from xlogmem import (
    DeviceState,
    from_cuda_array,
    use,
)
from xlogmem.sim.kernels import check


def test_streams_follow_the_protocol_both_ways(state):
    own = state.runtime.acquire_stream()
    assert own.__cuda_stream__() == (0, own.handle)

    class Theirs:
        def __init__(self, answer):
            self.answer = answer

        def __cuda_stream__(self):
            return self.answer

    buffer = state.full(4, 1, "int32", Theirs((0, 1)))
    assert buffer.last_write_stream.handle == 1
    assert buffer.to_numpy(Theirs((0, 1))).tolist() == [1] * 4
    for wrong in (None, 0, (0,), ("0", 1), (0, None), (0, 1.5), "01", {}):
        with pytest.raises(TypeError, match=r"not \(0, handle\)"):
            buffer.fill(1, Theirs(wrong))
    with pytest.raises(ValueError, match="is version 1"):
        buffer.fill(1, Theirs((1, 1)))
    for wrong in ((0, -1), (0, 1 << 64)):
        with pytest.raises(ValueError, match="not the handle of a CUDA stream"):
            buffer.fill(1, Theirs(wrong))


class Stream:
    def __init__(self, handle):
        self.ptr = self.cuda_stream = self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


def library(name: str, **parts) -> SimpleNamespace:
    """The part of a module that xlogmem queries, and the class of its arrays."""
    kind = type("Array", (Array,), {"__module__": f"{name}.core"})
    return SimpleNamespace(Array=kind, **parts)


@pytest.fixture(params=["cupy", "torch", "jax"])
def other_library(request, monkeypatch):
    """A library that works on a stream of its own, which only its own functions name."""
    stream = Stream(int(check(cuda.cuStreamCreate(1))))
    if request.param == "cupy":
        found = library("cupy", cuda=SimpleNamespace(get_current_stream=lambda: stream, ExternalStream=int))
    elif request.param == "torch":
        found = library("torch", cuda=SimpleNamespace(current_stream=lambda device: stream,
                                                      is_initialized=lambda: True))
    else:
        device = SimpleNamespace(platform="gpu", local_hardware_id=0,
                                 get_stream_for_external_ready_events=lambda: stream.handle)
        found = library("jax", local_devices=lambda: [SimpleNamespace(platform="cpu"), device])
        monkeypatch.setitem(sys.modules, "jax._src.xla_bridge",
                            SimpleNamespace(backends_are_initialized=lambda: True))
    found.stream, found.Array.device = stream, 0
    monkeypatch.setitem(sys.modules, request.param, found)
    yield found
    check(cuda.cuCtxSynchronize())
    check(cuda.cuStreamDestroy(stream.handle))


@pytest.mark.simulator
def test_what_another_librarys_stream_does_with_our_memory_is_waited_for(four, driver, other_library):
    """It is named by its handle; its owner is found, so the stream counts as opaque until the deleter runs."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    capsule = buffer.__dlpack__(stream=other_library.stream.handle)
    x.kernels.fill(other_library.stream.handle, buffer.access().ptr, 1, 1)
    with use(x.T, write=buffer):
        x.work(x.T, (buffer.access(), WRITE))
    del capsule, buffer
    x.runtime.reap_pending(blocking=False)
    assert x.runtime.live_bytes == 0                    # nothing waited for the context
    assert driver.calls("cuCtxSynchronize") == 0
    x.runtime.unregister_stream(other_library.stream.handle)


@pytest.mark.simulator
@pytest.mark.parametrize("other_library", ["cupy", "torch"], indirect=True)
@pytest.mark.parametrize("dropped", [False, True])
def test_another_librarys_arrays_come_with_the_stream_that_it_works_on(four, driver, memory, other_library, dropped):
    """PyTorch's interface is of version 2 and names none; CuPy's names the current one."""
    x = four()
    state = DeviceState(x.runtime)
    x.kernels.fill(other_library.stream.handle, memory, 1, 1)
    if dropped:
        driver.drop("cuStreamWaitEvent")
    buffer = from_cuda_array(other_library.Array(data=(memory, False), version=2), state=state)
    with use(x.T, write=buffer):
        x.kernels.fill(x.T.handle, memory, 2, 1)
    del buffer
    x.runtime.reap_pending(blocking=False)
    x.kernels.fill(other_library.stream.handle, memory, 3, 1)          # released to the library, after our use
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    check(cuda.cuCtxSynchronize())
    driver.clear_races()
    x.runtime.unregister_stream(other_library.stream.handle)


@pytest.mark.simulator
def test_numbas_arrays_are_the_legacy_streams_unless_they_say_another(four, driver, memory, monkeypatch):
    x = four()
    state = DeviceState(x.runtime)
    numba = library("numba")
    monkeypatch.setitem(sys.modules, "numba", numba)
    for stream, handle in ((0, 1), (Stream(x.S.handle), x.S.handle)):
        array = numba.Array(data=(memory, False))
        array.stream = stream
        x.kernels.fill(handle, memory, 1, 1)
        buffer = from_cuda_array(array, state=state)
        with use(x.T, write=buffer):
            x.kernels.fill(x.T.handle, memory, 2, 1)
        del buffer
        x.runtime.reap_pending(blocking=False)
        x.kernels.fill(handle, memory, 3, 1)
        check(cuda.cuCtxSynchronize())
    assert not driver.races()
