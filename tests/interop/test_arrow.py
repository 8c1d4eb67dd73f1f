"""Arrow device arrays, both ways."""
from __future__ import annotations

import ctypes
import gc
import threading

import numpy as np
import pytest
from capsules import CPU, ArrowDeviceArray, arrow_array
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE

from xlogmem import (
    BlockState,
    DeviceRuntime,
    DeviceState,
    DriverError,
    from_arrow,
    use,
)
from xlogmem._driver import live_events
from xlogmem.sim.kernels import check

try:
    import pyarrow
except ImportError:                                     # its tests are skipped, and counted
    pyarrow = None


needs_pyarrow = pytest.mark.skipif(pyarrow is None, reason="needs pyarrow")


# ---------------------------------------------------------------------------------------- Arrow out
@pytest.mark.promise(196)
def test_the_struct_is_the_standards(state):
    """Byte for byte: the array is embedded, and there is an event."""
    buffer = state.from_numpy(np.arange(5, dtype="int32"))
    _, capsule = buffer[1:].__arrow_c_device_array__()
    seen = arrow_array(capsule)
    assert ctypes.sizeof(ArrowDeviceArray) == 128
    assert (seen.device_type, seen.device_id) == (2, 0)
    assert (seen.array.length, seen.array.null_count, seen.array.offset, seen.array.n_buffers) == (4, 0, 0, 2)
    assert seen.array.buffers[0] is None
    assert seen.array.buffers[1] == buffer.access().ptr + 4
    assert seen.sync_event
    event = ctypes.c_uint64.from_address(seen.sync_event).value
    check(cuda.cuEventSynchronize(event))
    assert not any(seen.reserved)
    _, empty = state.empty(0, "int8").__arrow_c_device_array__()
    assert (arrow_array(empty).array.length, arrow_array(empty).sync_event) == (0, None)
    for wrong, error in ((lambda: state.empty((2, 2)).__arrow_c_device_array__(), TypeError),
                         (lambda: buffer[::2].__arrow_c_device_array__(), TypeError),
                         (lambda: state.empty(3, "bool").__arrow_c_device_array__(), TypeError),
                         (lambda: state.empty(3, "complex64").__arrow_c_schema__(), TypeError),
                         (lambda: buffer.__arrow_c_device_array__(None, offset=3), NotImplementedError)):
        with pytest.raises(error):
            wrong()
    assert buffer.__arrow_c_device_array__(None, later=None)


@pytest.mark.simulator
@pytest.mark.promise(190, 196)
@pytest.mark.parametrize("dropped", [None, "cuStreamWaitEvent", "cuEventRecord"])
def test_the_event_comes_after_all_writers(four, driver, dropped):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(128, "int32", x.S)
    x.use(x.S, (buffer.access(), WRITE))
    done = x.use(x.T, (buffer.access(), WRITE))
    x.runtime.record_block_use(buffer, x.S)             # the newest entry; T's write has to be joined
    if dropped:
        driver.drop(dropped)
    _, capsule = buffer.__arrow_c_device_array__()
    seen = arrow_array(capsule)
    check(cuda.cuStreamWaitEvent(x.V.handle, ctypes.c_uint64.from_address(seen.sync_event).value, 0))
    if dropped is None:
        assert x.ordered(done, x.V)
    x.work(x.V, (buffer.access(), READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == bool(dropped)
    check(cuda.cuCtxSynchronize())
    del capsule, seen, buffer
    gc.collect()
    x.runtime.reap_pending()
    driver.clear_races()
    assert x.runtime.bytes_outstanding == 0


@pytest.mark.simulator
@pytest.mark.promise(190)
def test_an_export_whose_event_cannot_be_recorded_leaves_nothing_behind(four, driver):
    """The teardown of every test counts events and bytes."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(128, 1, "int32", x.S)
    in_use = live_events()[0]
    driver.fail("cuEventRecord", code=999)
    with pytest.raises(DriverError, match="cuEventRecord"):
        buffer.__arrow_c_device_array__()
    assert live_events()[0] == in_use
    block = buffer.access()
    block.free()
    assert block.state is BlockState.FREED              # no export pins it


@pytest.mark.promise(190)
@pytest.mark.parametrize("where", ["here", "a thread"])
def test_a_released_array_releases_the_block_and_the_event(state, where):
    buffer = state.full(100, 1, "int8")
    block = buffer.access()
    _, capsule = buffer.__arrow_c_device_array__()
    seen = arrow_array(capsule)
    moved = ArrowDeviceArray.from_buffer_copy(seen)
    seen.array.release = None                           # as a consumer does that moves it
    del capsule, seen
    block.free()
    assert block.state is BlockState.RETIRED
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(moved.array.release)
    if where == "here":
        release(ctypes.addressof(moved))
    else:
        thread = threading.Thread(target=release, args=(ctypes.addressof(moved),))
        thread.start()
        thread.join()
    assert moved.array.release is None
    gc.collect()
    state.runtime.reap_pending()
    assert block.state is BlockState.FREED


# ---------------------------------------------------------------------------------------- Arrow in
@pytest.mark.promise(189, 196)
def test_our_own_arrays_come_home(state):
    buffer = state.from_numpy(np.arange(10, dtype="float64"))
    seen = from_arrow(buffer[3:], state=state)
    assert (seen.dtype, seen.shape, seen.readonly) == ("float64", (7,), True)
    assert seen.to_numpy().tolist() == list(range(3, 10))
    pair = buffer.__arrow_c_device_array__()
    assert from_arrow(pair, state=state).size == 10
    with pytest.raises(BufferError, match="used before"):
        from_arrow(pair, state=state)
    assert from_arrow(state.empty(0, "int8"), state=state).size == 0
    del seen, buffer, pair
    gc.collect()
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0


@pytest.mark.simulator
@pytest.mark.promise(196)
@pytest.mark.parametrize("dropped", [False, True])
def test_our_uses_wait_for_the_arrays_event(four, driver, dropped):
    x = four()
    state, other = DeviceState(x.runtime), DeviceState(DeviceRuntime())
    buffer = other.empty(64, "int32")
    place = other.runtime.default_stream
    with use(place, write=buffer):
        x.kernels.fill(place.handle, buffer.access().ptr, 1, 64)
    pair = buffer.__arrow_c_device_array__()
    if dropped:
        driver.drop("cuStreamWaitEvent")
    seen = from_arrow(pair, state=state)
    with use(x.T, read=seen):
        x.work(x.T, (seen.access(), READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    check(cuda.cuCtxSynchronize())
    del seen, pair, buffer
    x.runtime.reap_pending()
    gc.collect()
    other.runtime.reap_pending()
    driver.clear_races()


def edit(state, **fields):
    """A pair of ours with some fields changed."""
    pair = state.full(16, 1, "int32").__arrow_c_device_array__()
    seen = arrow_array(pair[1])
    for name, value in fields.items():
        setattr(seen if hasattr(seen, name) else seen.array, name, value)
    return pair


@pytest.mark.promise(189, 193)
def test_arrays_that_are_refused(state):
    for fields in ({"device_type": 1}, {"device_type": 3}, {"device_id": 5}, {"n_buffers": 3}, {"n_children": 1},
                   {"length": -1}, {"offset": -1}, {"null_count": 3}, {"length": 1 << 61}, {"offset": 1 << 61},
                   {"length": 1 << 40}):
        pair = edit(state, **fields)
        with pytest.raises(BufferError):
            from_arrow(pair, state=state)
        assert arrow_array(pair[1]).array.release       # still the producer's
    schema, array = state.full(4, 1, "int8").__arrow_c_device_array__()
    for what in (5, None, (1, 2), (schema, schema), (array, array), (schema,), object(), "xy"):
        with pytest.raises(TypeError):
            from_arrow(what, state=state)


@needs_pyarrow
@pytest.mark.promise(189)
def test_pyarrow_reads_our_schema_and_its_host_arrays_are_refused(state):
    for name, text in (("int32", "int32"), ("float64", "double"), ("uint8", "uint8"), ("float16", "halffloat")):
        field = pyarrow.Field._import_from_c_capsule(state.empty(3, name).__arrow_c_schema__())
        assert str(field.type) == text
    with pytest.raises(BufferError, match="Arrow device type 1"):
        from_arrow(pyarrow.array([1, 2, 3]), state=state)
    with pytest.raises(TypeError, match="is not a supported dtype"):
        from_arrow(pyarrow.array(["a"]), state=state)


@needs_pyarrow
@pytest.mark.promise(194)
def test_pyarrow_reads_and_releases_our_array(state):
    """The struct, made to point to host memory: pyarrow takes it, reads it and releases it in its own time."""
    buffer = state.from_numpy(np.arange(8, dtype="int32"))
    schema, capsule = buffer[2:].__arrow_c_device_array__()
    host = np.arange(2, 8, dtype="int32")
    seen = arrow_array(capsule)
    seen.device_type, seen.device_id, seen.sync_event = CPU, -1, None
    seen.array.buffers[1] = host.ctypes.data
    array = pyarrow.Array._import_from_c_device_capsule(schema, capsule)
    assert array.to_pylist() == [2, 3, 4, 5, 6, 7]
    block = buffer.access()
    block.free()
    assert block.state is BlockState.RETIRED
    del array, schema, capsule, seen
    gc.collect()
    state.runtime.reap_pending()
    assert block.state is BlockState.FREED
