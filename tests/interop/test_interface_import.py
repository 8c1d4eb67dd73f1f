"""`from_cuda_array`: arrays with an interface become tracked blocks."""
from __future__ import annotations

import gc
import weakref

import pytest
from arrays import Array
from capsules import Producer
from cuda.bindings import driver as cuda

from xlogmem import (
    DeviceState,
    StaleBufferError,
    StreamMisuseError,
    from_arrow,
    from_cuda_array,
    from_dlpack,
    use,
)
from xlogmem.sim.kernels import check


@pytest.mark.promise(94, 189, 200)
def test_untracked_memory_is_refused_until_it_is_imported(state, memory):
    """A strict recorder refuses a foreign array at preflight, and accepts it as a buffer."""
    array = Array(data=(memory, False))
    stream = state.runtime.default_stream
    recorder = use(stream, write=array)
    with pytest.raises(StreamMisuseError, match="is not tracked by"):
        recorder.preflight()
    buffer = from_cuda_array(array, state=state)
    with use(stream, write=[array, buffer]):
        pass
    assert ("written", stream.id) in buffer.access().frontier


@pytest.mark.promise(189)
def test_an_array_with_an_interface_becomes_a_tracked_block(state, memory):
    array = Array(data=(memory, True), shape=(2, 8), typestr="<i4", strides=(64, 4))
    buffer = from_cuda_array(array, state=state)
    assert (buffer.shape, buffer.dtype, buffer.strides, buffer.readonly) == ((2, 8), "int32", (64, 4), True)
    assert (buffer.access().ptr, buffer.access().nbytes) == (memory, 96)
    with use(state.runtime.default_stream, read=[array, buffer]) as recorder:
        assert recorder.recorded_count == 2
    alive = weakref.ref(array)
    del array
    gc.collect()
    assert alive() is not None
    del buffer
    state.runtime.reap_pending()
    assert state.runtime.find_block(memory) is None
    gc.collect()
    assert alive() is None
    empty = from_cuda_array(Array(shape=(0, 4)), state=state)
    assert (empty.shape, empty.access()) == ((0, 4), None)


@pytest.mark.simulator
@pytest.mark.promise(189)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("kind", ["legacy", "own", "raw", "said"])
def test_our_uses_come_after_the_stream_that_an_interface_names(four, driver, memory, kind, dropped):
    x = four()
    state = DeviceState(x.runtime)
    other = check(cuda.cuStreamCreate(1))
    handle = {"legacy": 1, "own": x.S.handle, "raw": int(other), "said": x.S.handle}[kind]
    x.kernels.fill(handle, memory, 1, 4)
    if dropped:
        driver.drop("cuStreamWaitEvent")
    buffer = from_cuda_array(Array(data=(memory, False), stream=handle if kind != "said" else None), state=state,
                             producer=x.S if kind == "said" else None)
    check(cuda.cuStreamDestroy(other))                  # it was never promised to live longer
    with use(x.T, read=buffer):
        x.kernels.count_unequal(x.T.handle, x.next_word(), memory, 1, 1)
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    del buffer
    x.runtime.reap_pending()
    check(cuda.cuCtxSynchronize())
    assert not [race for race in driver.races() if "DEAD" in race]
    driver.clear_races()


@pytest.mark.simulator
def test_an_interface_without_a_stream(four, driver, memory):
    """From version 3 on it says that the array is ready; before, it says nothing, and the caller has to."""
    x = four()
    state = DeviceState(x.runtime)
    from_cuda_array(Array(data=(memory, False)), state=state)
    x.runtime.reap_pending()
    for version in (0, 1, 2):
        old = Array(data=(memory, False), version=version)
        with pytest.raises(StreamMisuseError, match="does not say on which stream"):
            from_cuda_array(old, state=state)
        x.kernels.fill(x.S.handle, memory, 1, 4)
        buffer = from_cuda_array(old, state=state, producer=x.S)
        with use(x.T, write=buffer):
            x.kernels.fill(x.T.handle, memory, 2, 4)
        del buffer
        x.runtime.reap_pending()
    assert not driver.races()


INTERFACES = {
    "no mapping": 5, "shape": {"shape": None}, "a shape of floats": {"shape": (1.5,)},
    "a negative extent": {"shape": (-1,)}, "too many dimensions": {"shape": (1,) * 65}, "typestr": {"typestr": None},
    "big endian": {"typestr": ">i4"},
    "a struct": {"typestr": "|V12"}, "no such type": {"typestr": "<i3"}, "dates": {"typestr": "<M8[ns]"},
    "data": {"data": None}, "data of one": {"data": (0,)}, "a name as data": {"data": ("x", False)},
    "no memory": {"data": (0, False)}, "nowhere": {"data": (1 << 40, False)}, "beyond": {"data": (1 << 70, False)},
    "below": {"data": (-8, False)}, "misaligned": {"typestr": "<i4", "odd": 2}, "stream 0": {"stream": 0},
    "stream -1": {"stream": -1}, "a stream by name": {"stream": "1"}, "a stream too far": {"stream": 1 << 64},
    "a mask": {"mask": (0, 1)}, "strides": {"strides": (1, 2)}, "odd strides": {"typestr": "<i4", "strides": (3,)},
    "strides of text": {"strides": ("1",)}, "strides to nowhere": {"strides": (1 << 62,)}, "version": {"version": "3"},
    "version -1": {"version": -1}, "too much": {"shape": (1 << 62, 1 << 62)}, "outside": {"shape": (5000,)},
    "everywhere at once": {"shape": (1 << 62, 1 << 62), "strides": (0, 0)},
}


@pytest.mark.simulator
@pytest.mark.parametrize("wrong", INTERFACES)
def test_interfaces_that_are_refused(state, memory, wrong):
    fields = INTERFACES[wrong]
    array = Array(data=(memory, False))
    if isinstance(fields, dict):
        fields = dict(fields)
        array.interface |= {"data": (memory + fields.pop("odd", 0), False)} | fields
    else:
        array.interface = fields
    with pytest.raises((ValueError, TypeError, BufferError)):
        from_cuda_array(array, state=state)
    assert state.runtime.find_block(memory) is None
    with pytest.raises(TypeError, match="has no __cuda_array_interface__"):
        from_cuda_array(object(), state=state)


def test_every_key_is_missed(state):
    for key in ("shape", "typestr", "data", "version"):
        array = Array()
        del array.interface[key]
        with pytest.raises(ValueError, match=f"lacks {key}"):
            from_cuda_array(array, state=state)


def test_everything_is_refused_on_a_device_that_shuts_down(state, memory):
    pair = state.full(4, 1, "int8").__arrow_c_device_array__()
    state.begin_shutdown()
    for call in (lambda: from_dlpack(Producer(memory, (4,)), state=state), lambda: from_arrow(pair, state=state),
                 lambda: from_cuda_array(Array(data=(memory, False)), state=state)):
        with pytest.raises(StaleBufferError, match="device shutting down"):
            call()
