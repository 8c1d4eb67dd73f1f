"""`from_dlpack` with ``device=`` and ``copy=``: host memory, page-locked and managed memory, copies."""
from __future__ import annotations

import gc

import numpy as np
import pytest
from capsules import CPU, Producer
from cuda.bindings import driver as cuda
from four_streams import WRITE

from xlogmem import DeviceState, from_dlpack, use
from xlogmem.sim.kernels import check

PINNED, MANAGED = 3, 13


def settle() -> None:
    gc.collect()


class Host(Producer):
    """An array in host memory; its class says where."""

    kind = CPU

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0


class Pinned(Host):
    kind = PINNED


@pytest.mark.parametrize("copy", [None, True])
def test_host_memory_is_copied_to_the_device_that_is_named(state, copy):
    array = np.arange(12, dtype="float32").reshape(3, 4)
    for device in (0, (2, 0), np.int64(0)):
        buffer = from_dlpack(array, device=device, copy=copy, state=state)
        assert (buffer.tolist(), buffer.readonly) == (array.tolist(), False)
    array[:] = 0                                        # it is a copy
    assert buffer[0].tolist() == [0, 1, 2, 3]
    assert from_dlpack(np.zeros((0, 3)), device=0, state=state).shape == (0, 3)
    read_only = np.arange(3)
    read_only.flags.writeable = False
    assert from_dlpack(read_only, device=0, state=state).tolist() == [0, 1, 2]


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_page_locked_memory_is_copied_and_waited_for(four, driver, dropped):
    """It may be changed when the call returns; its owner is called once."""
    x = four()
    driver.set_policy("min")
    host = int(check(cuda.cuMemHostAlloc(64, 0)))
    memory = (np.ctypeslib.ctypes.c_uint8 * 64).from_address(host)
    memory[:] = [7] * 64
    producer = Pinned(host, (64,), device_type=PINNED)
    if dropped:
        driver.drop("cuEventSynchronize")
    state = DeviceState(x.runtime)
    buffer = from_dlpack(producer, device=0, stream=x.T, state=state)
    memory[:] = [8] * 64
    settle()
    assert producer.deleted == 1
    assert (buffer.access().ptr != host, buffer.access().stream) == (True, x.T)
    x.runtime.synchronize()
    assert bytes(driver.peek(buffer.ptr, 64)) == bytes([8 if dropped else 7] * 64)
    check(cuda.cuMemFreeHost(host))


def test_host_memory_that_cannot_be_taken(state):
    array = np.arange(6).reshape(2, 3)
    with pytest.raises(BufferError, match=r"host memory.*from_dlpack\(array, device=0\)"):
        from_dlpack(array, state=state)
    with pytest.raises(BufferError, match=r"host memory.*from_dlpack\(array, device=0\)"):
        from_dlpack(array, copy=True, state=state)
    with pytest.raises(BufferError, match="can only be a copy"):
        from_dlpack(array, device=0, copy=False, state=state)
    with pytest.raises(ValueError, match="not contiguous"):
        from_dlpack(array[:, ::2], device=0, state=state)
    with pytest.raises(BufferError, match="is on device 1"):
        from_dlpack(array, device=1, state=state)
    for wrong, error in (((1, 0), BufferError), (-1, BufferError), ((2, -1), BufferError), ("cuda", TypeError),
                         (1.5, TypeError), ((2,), TypeError)):
        with pytest.raises(error, match="device"):
            from_dlpack(array, device=wrong, state=state)
    liar = Host(4096, (4,), device_type=2)
    with pytest.raises(BufferError, match="its array is in host memory"):
        from_dlpack(liar, device=0, state=state)
    liar.forget()
    assert state.runtime.live_bytes == 0


@pytest.mark.simulator
def test_managed_memory_is_shared(four, driver):
    x = four()
    state = DeviceState(x.runtime)
    ptr = int(check(cuda.cuMemAllocManaged(64, 1)))
    producer = Producer(ptr, (16,), code=0, bits=32, device_type=MANAGED)
    buffer = from_dlpack(producer, stream=x.S, state=state)
    assert buffer.ptr == ptr
    buffer.fill(5, x.T)
    assert buffer.tolist(x.U) == [5] * 16
    del buffer
    settle()
    x.runtime.reap_pending()
    assert producer.deleted == 1
    check(cuda.cuMemFree(ptr))


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_a_copy_is_ordered_on_the_stream_that_is_named(four, driver, dropped):
    x = four()
    state = DeviceState(x.runtime)
    source = state.full((4, 8), 3, "int16", x.S)
    with use(x.T, write=source):
        x.work(x.T, (source.access(), WRITE))
    if dropped:
        driver.drop("cuStreamWaitEvent", 1)
        driver.drop("cuStreamWaitEvent", 2)
    copy = from_dlpack(source, copy=True, stream=x.U, state=state)
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    assert copy.access().stream == x.U
    assert copy.access() is not source.access()


def test_copies_of_strided_arrays_keep_their_strides(state):
    array = np.arange(24, dtype="int32").reshape(4, 6)
    buffer = state.from_numpy(array)
    for key in (np.s_[:, ::2], np.s_[::-1], np.s_[1:3, ::-2], np.s_[2], np.s_[:, 3]):
        copy = from_dlpack(buffer[key], copy=True, state=state)
        assert (copy.tolist(), copy.strides) == (array[key].tolist(), array[key].strides)
    assert from_dlpack(buffer[:0], copy=True, state=state).shape == (0, 6)
    shared = from_dlpack(buffer.T, copy=False, state=state)
    assert (shared.ptr, shared.tolist()) == (buffer.ptr, array.T.tolist())
    assert from_dlpack(buffer, device=0, state=state).ptr == buffer.ptr
    with pytest.raises(BufferError, match="copies nothing from there to device 1"):
        from_dlpack(buffer, device=1, state=state)
    capsule = buffer.__dlpack__(stream=1)
    assert from_dlpack(capsule, copy=True, stream=1, state=state).tolist() == array.tolist()
