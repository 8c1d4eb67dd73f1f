"""Buffers whose device was lost, reset or shut down."""
from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from children import variables
from cuda.bindings import driver as cuda
from stale import reason

from xlogmem import (
    Access,
    DeviceLostError,
    DeviceRuntime,
    DeviceState,
    DriverError,
    OutOfDeviceMemoryError,
    StaleBufferError,
    StreamMisuseError,
    TokenError,
    XlogmemError,
    use,
)
from xlogmem.sim.kernels import check


def give_up(ptr: int) -> None:
    """Free memory of a runtime whose device counts as lost."""
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFreeAsync(ptr, 0))
    check(cuda.cuCtxSynchronize())


@pytest.mark.promise(114, 116, 216)
def test_shutting_down_keeps_the_memory_and_refuses_its_use(state):
    runtime = state.runtime
    buffer = state.full(16, 7, "uint8")
    assert state.accepting_operations
    state.begin_shutdown()
    assert not state.accepting_operations
    state.begin_shutdown()                              # one way, and no further
    stream = runtime.default_stream
    for call in (buffer.access, lambda: buffer.fill(1), buffer.to_numpy, lambda: buffer.copy_from(bytes(16)),
                 lambda: buffer.copy_to(bytearray(16)), lambda: buffer.__dlpack__(), lambda: buffer.token,
                 lambda: buffer.__cuda_array_interface__, lambda: buffer.__arrow_c_device_array__(),
                 lambda: use(stream, read=buffer), lambda: buffer.pointer(stream, Access.READ),
                 lambda: buffer.record_write(stream), lambda: runtime.record_block_use(buffer, stream),
                 lambda: state.empty(1)):
        assert reason(call) == "device shutting down"
    assert runtime.live_bytes == 16


@pytest.mark.promise(116)
@pytest.mark.simulator
def test_the_reasons_are_looked_at_in_their_order(driver):
    """State gone, then shutting down, then the context."""
    state = DeviceState(DeviceRuntime())
    buffer = state.full(4, 1, "uint8")
    ptr = buffer.access().ptr
    state.mark_lost()
    assert reason(buffer.access) == "context lost"
    state.begin_shutdown()
    assert reason(buffer.access) == "device shutting down"
    del state
    assert reason(buffer.access) == "device state dropped"
    give_up(ptr)


@pytest.mark.promise(117, 118, 119, 123)
@pytest.mark.simulator
def test_what_describes_a_buffer_works_on_a_stale_one(driver):
    state = DeviceState(DeviceRuntime())
    buffer = state.full((3, 5), 2, "int16")
    before = (buffer.epoch, buffer.size, buffer.shape, buffer.strides, buffer.dtype, buffer.nbytes, len(buffer),
              buffer.is_empty, buffer.device_id, buffer.readonly, buffer.ndim, buffer.itemsize)
    assert before == (0, 15, (3, 5), (10, 2), "int16", 30, 3, False, 0, False, 2, 2)
    ptr = buffer.access().ptr
    text = repr(buffer)
    assert "epoch=0" in text
    assert "len=15" in text
    assert f"{ptr:x}" not in text
    assert str(ptr) not in text
    state.mark_lost()
    assert state.epoch == 1
    after = (buffer.epoch, buffer.size, buffer.shape, buffer.strides, buffer.dtype, buffer.nbytes, len(buffer),
             buffer.is_empty, buffer.device_id, buffer.readonly, buffer.ndim, buffer.itemsize)
    assert after == before
    assert repr(buffer) == text.replace(">", ", context lost>")
    assert buffer[1].shape == (5,)                      # a part of a stale buffer is stale
    assert buffer[1].is_stale
    del state
    assert buffer.device_id is None
    give_up(ptr)


@pytest.mark.promise(125, 216, 217)
def test_epochs_are_followed(state):
    """The epoch starts at 0 and goes up; watchers see the newest one, whatever they missed."""
    assert state.epoch == 0
    watch, late = state.watch(), state.watch()
    assert not watch.changed
    assert watch.wait(0.01) is None
    state.mark_lost()
    assert state.runtime is None
    assert state.epoch == 1
    assert watch.changed
    assert watch.wait() == 1
    assert watch.wait(0.01) is None
    assert state.recover() == 2
    assert state.epoch == 2
    assert watch.wait(30) == 2
    assert late.wait(30) == 2                           # coalesced
    seen = []
    thread = threading.Thread(target=lambda: seen.append(watch.wait(60)))
    thread.start()
    state.mark_lost()
    thread.join(60)
    assert seen == [3]
    state.recover()
    ended = state.watch()
    thread = threading.Thread(target=lambda: seen.append(ended.wait(60)))
    thread.start()
    state.begin_shutdown()
    thread.join(60)
    assert seen == [3, None]


@pytest.mark.promise(116, 125, 218)
def test_a_new_context_makes_what_was_before_stale(state):
    """W66, W67: loss and recovery both count, and only a lost context is replaced."""
    old = state.full(8, 1, "int32")
    block = old.access()
    with pytest.raises(StreamMisuseError, match="not lost"):
        state.recover()
    old_runtime = state.runtime
    state.mark_lost()
    state.mark_lost()                                   # once
    assert state.epoch == 1
    assert reason(old.access) == "context lost"
    assert reason(lambda: state.empty(1)) == "context lost"
    with pytest.raises(DeviceLostError):
        old_runtime.allocate(1)
    runtime = DeviceRuntime()
    other = DeviceState(DeviceRuntime())
    with pytest.raises(StreamMisuseError, match="has a device state"):
        state.recover(other.runtime)
    with pytest.raises(StreamMisuseError, match="or lost as well"):
        state.recover(old_runtime)
    assert state.recover(runtime) == 2
    assert state.runtime is runtime
    assert reason(old.access) == "context rebuilt"
    assert (old.epoch, old.size) == (0, 8)
    new = state.full(8, 2, "int32")
    assert new.epoch == 2
    assert new.to_numpy().tolist() == [2] * 8
    assert reason(old.access) == "context rebuilt"
    give_up(block.ptr)                                  # this device was not reset: its memory is still there


@pytest.mark.simulator
@pytest.mark.promise(125, 218, 222)
def test_a_sticky_error_anywhere_is_a_loss(driver):
    """Noticed by the next call, whatever it is (W67); the library's errors differ by class."""
    state = DeviceState(DeviceRuntime())
    watch = state.watch()
    buffer = state.full(4, 1, "int32")
    ptr = buffer.access().ptr
    driver.fail("cuMemcpyDtoHAsync", code=700)
    with pytest.raises(DeviceLostError, match="CUDA driver error: cuMemcpyDtoHAsync"):
        buffer.to_numpy()
    assert reason(buffer.access) == "context lost"
    assert watch.wait() == 1
    assert reason(lambda: state.empty(3)) == "context lost"
    for kind in (DeviceLostError, OutOfDeviceMemoryError, StaleBufferError, StreamMisuseError, TokenError):
        assert issubclass(kind, XlogmemError)
    assert not issubclass(StaleBufferError, DriverError)
    del buffer
    give_up(ptr)


@pytest.mark.simulator
@pytest.mark.promise(218)
@pytest.mark.parametrize("when", ["before", "after"])
def test_memory_of_an_old_context_never_carries_the_new_number(driver, when):
    """W66: the context is lost and replaced while memory is being allocated in it."""
    state = DeviceState(DeviceRuntime())

    def replace():
        state.mark_lost()
        state.recover()

    driver.on_call("cuMemAllocFromPoolAsync", replace, when=when)
    with pytest.raises(StaleBufferError, match="context rebuilt") as error:
        state.empty(64, "uint8")
    block = next(entry.frame.f_locals["block"] for entry in error.traceback if "block" in entry.frame.f_locals)
    assert state.empty(64, "uint8").epoch == 2
    ptr = block.ptr                                     # which a runtime that is lost cannot free
    del error, block
    give_up(ptr)


def test_a_pointer_that_is_given_out_holds_off_a_new_context(state):
    """W69: a caller may act on what it has read."""
    buffer = state.full(4, 1, "uint8")
    ptr = buffer.access().ptr
    stream = state.runtime.default_stream
    with buffer.pointer(stream, Access.READ_WRITE) as address:
        assert address == ptr
        state.mark_lost()
        with pytest.raises(StreamMisuseError, match="1 pointer"):
            state.recover()
    pending = buffer[1:]
    assert reason(lambda: pending.pointer(stream, Access.READ)) == "context lost"
    state.recover()
    give_up(ptr)


@pytest.mark.simulator
def test_after_a_reset_by_other_code_the_state_comes_back():
    """In a process of its own: a reset concerns all code in it."""
    program = """
import numpy as np
from cuda.bindings import driver as cuda
from xlogmem import sim
sim.install()
import xlogmem
state = xlogmem.get_device_state()
buffer = state.from_numpy(np.arange(100))
assert cuda.cuDevicePrimaryCtxReset(0)[0] == 0
state.mark_lost()
try:
    buffer.to_numpy()
except xlogmem.StaleBufferError as error:
    print(error.reason)
assert state.recover() == 2 == state.epoch
assert xlogmem.get_runtime() is state.runtime and xlogmem.get_device_state() is state
again = state.from_numpy(np.arange(100))
assert again.to_numpy().tolist() == list(range(100))
print(buffer.is_stale, again.is_stale)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100,
                         env=variables())
    assert (run.stdout, run.stderr) == ("context lost\nTrue False\n", "")
