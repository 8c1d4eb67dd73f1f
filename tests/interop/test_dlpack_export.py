"""DLPack exports: what a capsule says, and on which streams consumers come after the writers."""
from __future__ import annotations

import numpy as np
import pytest
from capsules import CPU, CUDA, Producer, Taken, look, name_of, settle
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import READ, WRITE, at

from xlogmem import (
    DeviceState,
    from_dlpack,
)
from xlogmem.interop._dtypes import DTYPES
from xlogmem.sim.kernels import check

LEGACY, PER_THREAD = 1, 2


@pytest.mark.simulator
@pytest.mark.promise(190, 195)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("named", ["None", "legacy", "per-thread", "own", "held", "raw"])
@pytest.mark.parametrize("access", [WRITE, READ])
def test_the_consumers_stream_comes_after_all_uses_of_the_memory(four, driver, access, named, dropped):
    """Every value that names a stream.  The twin: the driver drops the wait, and the consumer's first work races."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)
    block = buffer.access()
    x.use(x.S, (block, WRITE))
    last = x.use(x.U, (block, access))                  # a reader counts too: the consumer may write
    foreign = ForeignStream()
    stream, handle = {"None": (None, LEGACY), "legacy": (1, LEGACY), "per-thread": (2, PER_THREAD),
                      "own": (x.T.handle, x.T.handle), "held": (foreign.handle, foreign.handle),
                      "raw": (foreign.handle, foreign.handle)}[named]
    if named == "held":
        x.runtime.register_stream(foreign)
    if dropped:
        for nth in (1, 2, 3):
            driver.drop("cuStreamWaitEvent", nth)
    taken = Taken(buffer.__dlpack__(stream=stream))
    if not dropped:
        assert x.ordered(last, at(handle))
    x.kernels.fill(handle, taken.tensor.data, 1, 1)
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    check(cuda.cuCtxSynchronize())
    taken.delete()
    del block, buffer
    x.runtime.reap_pending()
    driver.clear_races()
    assert x.runtime.bytes_outstanding == 0


@pytest.mark.simulator
@pytest.mark.promise(195)
def test_minus_one_orders_nothing(four, driver):
    """With -1 the consumer takes care of the order; if it does not, it is a race."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    calls = driver.calls("cuStreamWaitEvent"), driver.calls("cuEventRecord")
    taken = Taken(buffer.__dlpack__(stream=-1))
    assert (driver.calls("cuStreamWaitEvent"), driver.calls("cuEventRecord")) == calls
    x.kernels.fill(x.T.handle, taken.tensor.data, 1, 1)
    assert driver.races()
    driver.clear_races()
    taken.delete()
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.promise(195)
def test_streams_that_may_not_be_named(state):
    buffer = state.full(4, 1, "int32")
    uses = state.runtime.counters()["uses"]
    with pytest.raises(ValueError, match="stream 0 is ambiguous"):
        buffer.__dlpack__(stream=0)
    for value in (-2, -100, 1 << 64):
        with pytest.raises(ValueError, match="is not a CUDA stream handle"):
            buffer.__dlpack__(stream=value)
    for value in (1.0, "1", True, [], object()):
        with pytest.raises(TypeError, match="stream is an integer"):
            buffer.__dlpack__(stream=value)
    assert state.runtime.counters()["uses"] == uses
    stream = state.runtime.default_stream
    Taken(buffer.__dlpack__(stream=stream)).delete()     # not in the standard, and clear enough


@pytest.mark.promise(194)
def test_what_a_capsule_says(state):
    """Shape, strides in elements, dtype, device; version and flags from 1.0 on."""
    buffer = state.from_numpy(np.arange(24, dtype="float32").reshape(4, 6))
    assert buffer.__dlpack_device__() == (CUDA, 0)
    ptr = buffer.access().ptr
    for version, name, inside in ((None, b"dltensor", None), ((0, 8), b"dltensor", None),
                                  ((1, 0), b"dltensor_versioned", (1, 0)), ((1, 3), b"dltensor_versioned", (1, 0)),
                                  ((2, 1), b"dltensor_versioned", (1, 0))):
        capsule = buffer[1:, ::2].__dlpack__(max_version=version, stream=1)
        assert name_of(capsule) == name
        seen = look(capsule)
        tensor = seen.tensor
        assert (tensor.data, tensor.byte_offset) == (ptr + 24, 0)
        assert (tensor.device_type, tensor.device_id) == (CUDA, 0)
        assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim) == (2, 32, 1, 2)
        assert (tensor.shape[:2], tensor.strides[:2]) == ([3, 3], [6, 2])
        if inside:
            assert (seen.major, seen.minor, seen.flags) == (*inside, 0)
    point = buffer[2, 3].__dlpack__(stream=1)
    assert look(point).tensor.ndim == 0
    for wrong in (1, (1,), (1, "x"), "10x"):
        with pytest.raises(TypeError, match="max_version is a pair"):
            buffer.__dlpack__(max_version=wrong)
    for name, row in DTYPES.items():
        tensor = look(state.empty(3, name).__dlpack__(stream=1)).tensor
        assert (tensor.code, tensor.bits, tensor.lanes) == (row.code, 8 * row.itemsize, 1)


def test_read_only_memory_is_exported_only_where_a_flag_can_say_so(state):
    buffer = state.full(4, 1, "int32")
    seen = from_dlpack(Producer(buffer.access().ptr, (4,), code=0, bits=32, version=(1, 0), flags=1), state=state)
    assert seen.readonly
    with pytest.raises(BufferError, match="read-only"):
        seen.__dlpack__(stream=1)
    assert look(seen.__dlpack__(stream=1, max_version=(1, 0))).flags == 1
    assert look(seen.__dlpack__(stream=1, max_version=(1, 0), copy=True)).flags == 2
    assert seen.__dlpack__(stream=1, copy=True) is not None
    for call in (lambda: seen.fill(1), lambda: seen.copy_from(bytes(16)), lambda: seen.record_write(1)):
        with pytest.raises(ValueError, match="read-only"):
            call()
    assert seen.__cuda_array_interface__["data"][1] is True


def test_copies_and_other_devices(state):
    buffer = state.from_numpy(np.arange(6, dtype="int16").reshape(2, 3))
    copied = Taken(buffer.__dlpack__(stream=1, copy=True, max_version=(1, 0)))
    assert copied.tensor.data != buffer.access().ptr
    assert copied.managed.flags == 2
    buffer.fill(0)
    again = from_dlpack(Producer(copied.tensor.data, (2, 3), code=0, bits=16), state=state)
    assert again.to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    del again
    copied.delete()
    assert look(buffer.__dlpack__(stream=1, copy=False)).tensor.data == buffer.access().ptr
    assert buffer.__dlpack__(dl_device=(CUDA, 0)) is not None
    for device in ((CUDA, 1), (10, 0), (CPU, 1)):
        with pytest.raises(BufferError, match="cannot be exported"):
            buffer.__dlpack__(dl_device=device)
    with pytest.raises(BufferError, match="can only be a copy"):
        buffer.__dlpack__(dl_device=(CPU, 0), copy=False)
    with pytest.raises(TypeError, match="dl_device is a pair"):
        buffer.__dlpack__(dl_device=1)
    buffer.copy_from(np.arange(6, dtype="int16").reshape(2, 3))
    strided = Taken(buffer[:, ::2].__dlpack__(stream=1, copy=True))
    again = from_dlpack(Producer(strided.tensor.data, (2, 2), strides=(3, 2), code=0, bits=16), state=state)
    buffer.fill(0)
    assert again.tolist() == [[0, 2], [3, 5]]
    del again
    strided.delete()


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_numpy_gets_a_copy_after_the_writers(four, driver, dropped):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty((3, 4), "int32", x.S)
    buffer.copy_from(np.arange(12, dtype="int32").reshape(3, 4), x.T)
    x.use(x.U, (buffer.access(), READ))
    if dropped:
        driver.drop("cuStreamWaitEvent")
    host = np.from_dlpack(buffer[:, 1::2], device="cpu")
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    if not dropped:
        assert host.tolist() == [[1, 3], [5, 7], [9, 11]]
    assert np.from_dlpack(state.empty((0, 3), "int8"), device="cpu").shape == (0, 3)
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(buffer)                          # on the device: NumPy says that it cannot
    del host
    settle()


@pytest.mark.simulator
@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
def test_a_raw_stream_is_not_touched_after_an_export(four, driver, policy):
    """Its owner may have destroyed it; the consumer's release says nothing about that."""
    x = four(policy=policy)
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)
    handle = int(check(cuda.cuStreamCreate(1)))
    records = x.records()
    capsule = buffer.__dlpack__(stream=handle)
    assert x.records() <= records + 2                   # for the consumer's wait, and for what comes after it
    late = x.work(at(handle))
    del capsule
    check(cuda.cuStreamDestroy(handle))
    waits = x.waits()
    buffer.fill(1, x.T)
    assert x.waits() > waits
    del buffer
    x.runtime.reap_pending()
    assert x.ordered(late, x.T)
