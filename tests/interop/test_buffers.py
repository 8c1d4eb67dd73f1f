"""Buffers as handles: parts, threads, and what they keep alive."""
from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
from stale import reason
from which_driver import SIMULATED

import xlogmem
from xlogmem import (
    Access,
    BlockState,
    Buffer,
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    StreamMisuseError,
    use,
)


@pytest.mark.promise(112, 114, 188)
def test_parts_share_the_block_and_each_keeps_it(state):
    """Slices, views and copies of the handle are the same memory, which lives as long as one of them."""
    buffer = state.from_numpy(np.arange(24, dtype="int32").reshape(4, 6))
    block = buffer.access()
    parts = [buffer[1:3], buffer.view("uint8"), copy.copy(buffer), buffer[2], buffer[::-1, ::2], buffer[...]]
    assert all(part.access() is block for part in parts)
    want = np.arange(24, dtype="int32").reshape(4, 6)
    for part, same in zip(parts, (want[1:3], want.view("u1").ravel(), want, want[2], want[::-1, ::2], want),
                          strict=True):
        assert part.to_numpy().tolist() == same.tolist()
    last = parts.pop(3)
    del buffer, parts, part
    state.runtime.reap_pending()
    assert block.state is BlockState.LIVE
    assert last.to_numpy().tolist() == want[2].tolist()
    del last, block
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0


@pytest.mark.promise(112)
def test_every_thread_may_use_a_buffer(state):
    buffer = state.full(64, 0, "int64")
    stream = [state.runtime.acquire_stream() for _ in range(4)]
    wrong = []

    def work(number):
        for turn in range(20):
            part = buffer[number * 16:number * 16 + 16]
            part.fill(turn, stream[number])
            if part.to_numpy(stream[number]).tolist() != [turn] * 16:
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.promise(113, 116)
def test_a_buffer_does_not_keep_its_state_and_says_so():
    """Strong on the memory, weak on the state."""
    runtime = DeviceRuntime()
    state = DeviceState(runtime)
    buffer = state.full(10, 1.5, "float32")
    alive = weakref.ref(state)
    del state
    gc.collect()
    assert alive() is None
    assert reason(buffer.access) == "device state dropped"
    assert runtime.live_bytes == 40
    assert buffer.is_stale
    assert buffer.device_id is None
    DeviceState(runtime)                                # another state does not make it valid again (W74)
    assert reason(buffer.access) == "device state dropped"


@pytest.mark.promise(115)
def test_buffers_and_blocks_come_from_their_device_only(state):
    for kind in (Buffer, type(state.empty(1).access())):
        with pytest.raises(TypeError, match="made by"):
            kind()
    with pytest.raises(StreamMisuseError, match="has a device state already"):
        DeviceState(state.runtime)
    with pytest.raises(TypeError):
        pickle.dumps(state.empty(1))
    with pytest.raises(TypeError, match="choose a stream"):
        copy.deepcopy(state.empty(1))


@pytest.mark.promise(126)
def test_a_buffer_over_nothing_is_harmless():
    """It is stale, and may be dropped."""
    nothing = Buffer.__new__(Buffer)
    assert reason(nothing.access) == "device state dropped"
    assert repr(nothing) == "<Buffer that was never made>"
    for call in (lambda: nothing.__dlpack__(), lambda: nothing.to_numpy(), lambda: nothing.copy_from(b""),
                 lambda: nothing.pointer(0, Access.READ), lambda: nothing[0], lambda: nothing.token,
                 lambda: nothing.__dlpack_device__(), lambda: nothing.record_write(0)):
        assert reason(call) == "device state dropped"
    assert nothing.last_write_stream is None
    assert nothing.device_id is None


@pytest.mark.promise(118)
def test_zero_elements_are_trivially_safe(state, _context):
    """W24: no memory, no wait, no count; accepted by strict recorders."""
    buffer = state.empty((3, 0), "float32")
    assert (buffer.size, buffer.is_empty, len(buffer), buffer.access()) == (0, True, 3, None)
    assert state.runtime.live_bytes == 0
    stream = state.runtime.default_stream
    with use(stream, read=buffer, write=buffer[1:]) as recorder:
        assert recorder.recorded_count == 0
    with buffer.pointer(stream, Access.WRITE) as address:
        assert address == 0
    buffer.fill(1)
    buffer.record_write(stream)
    buffer.copy_from(state.empty((3, 0), "float32"))
    buffer.copy_from(np.empty((3, 0), "float32"))
    assert buffer.to_numpy().shape == (3, 0)
    assert state.from_numpy(np.empty(0)).size == 0
    full = state.full(4, 1, "uint8")
    assert full[2:2].to_numpy().tolist() == []
    assert full[4:].is_empty
    assert buffer.last_write_stream is None
    assert state.runtime.counters()["allocations"] == 1


@pytest.mark.promise(184, 185, 186, 187, 236)
def test_a_consumed_buffer_is_empty_and_stale(state):
    buffer = state.from_numpy(np.arange(6, dtype="int32"))
    pointer = buffer.access().ptr
    raw = buffer.into_bytes()
    assert (raw.dtype, raw.size, raw.access().ptr) == ("uint8", 24, pointer)
    assert (buffer.size, len(buffer), buffer.is_stale, buffer.is_empty) == (0, 0, True, True)
    assert reason(buffer.access) == reason(buffer.into_bytes) == reason(lambda: buffer[0]) == "consumed"
    assert "consumed" in repr(buffer)
    buffer.release()
    assert raw.to_numpy().view("int32").tolist() == list(range(6))
    raw.release()
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0         # one free
    assert state.runtime.counters()["frees"] == 1


def test_blocks_of_every_resource_carry_buffers():
    state = DeviceState(DeviceRuntime(resource=DirectMemoryResource()))
    assert state.full(100, 3, "int16").to_numpy().tolist() == [3] * 100


@pytest.mark.promise(221)
@pytest.mark.simulator
def test_without_a_gpu_everything_is_there():
    """Promise 221 in its better form: no device that refuses to allocate, but a simulated one that works."""
    assert SIMULATED
    state = DeviceState(DeviceRuntime())
    assert state.full(3, 5, "int8").to_numpy().tolist() == [5, 5, 5]
    assert xlogmem.is_simulated()
