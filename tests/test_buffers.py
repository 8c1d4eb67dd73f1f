"""Buffers, what becomes of their device, and the tokens that name them: what people hold (contract 112 to 126)."""
from __future__ import annotations

import copy
import gc
import importlib.util
import os
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from bench import READ, WRITE
from conftest import SIMULATED
from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import (
    Access,
    BlockState,
    Buffer,
    BufferToken,
    DeviceLostError,
    DeviceRuntime,
    DeviceState,
    DirectMemoryResource,
    DriverError,
    OutOfDeviceMemoryError,
    StaleBufferError,
    StreamMisuseError,
    TokenError,
    UnknownBufferError,
    UnknownDeviceError,
    UnknownNodeError,
    UseAfterFreeError,
    XlogmemError,
    use,
)
from xlogmem._dtypes import DTYPES
from xlogmem._kernels import check


def reason(call) -> str:
    with pytest.raises(StaleBufferError) as error:
        call()
    assert str(error.value) == f"buffer stale: {error.value.reason}"
    return error.value.reason


def give_up(ptr: int) -> None:
    """Free memory of a runtime that thinks its device is lost."""
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFreeAsync(ptr, 0))
    check(cuda.cuCtxSynchronize())


# ---------------------------------------------------------------------------------------- a shared handle
@pytest.mark.contract(112, 114, 188)
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


@pytest.mark.contract(112)
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


@pytest.mark.contract(113, 116)
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
    DeviceState(runtime)                                # nobody else's state makes it fresh again (W74)
    assert reason(buffer.access) == "device state dropped"


@pytest.mark.contract(115)
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


@pytest.mark.contract(126)
def test_a_buffer_over_nothing_is_harmless():
    """The seed's stub had to be leaked and never touched; ours is stale, and may be dropped."""
    nothing = Buffer.__new__(Buffer)
    assert reason(nothing.access) == "device state dropped"
    assert repr(nothing) == "<Buffer that was never made>"
    for call in (lambda: nothing.__dlpack__(), lambda: nothing.to_numpy(), lambda: nothing.copy_from(b""),
                 lambda: nothing.pointer(0, Access.READ), lambda: nothing[0], lambda: nothing.token,
                 lambda: nothing.__dlpack_device__(), lambda: nothing.record_write(0)):
        assert reason(call) == "device state dropped"
    assert nothing.last_write_stream is None
    assert nothing.device_id is None


# ---------------------------------------------------------------------------------------- stale
@pytest.mark.contract(114, 116, 216)
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


@pytest.mark.contract(116)
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


@pytest.mark.contract(117, 118, 119, 123)
@pytest.mark.simulator
def test_what_describes_a_buffer_works_on_a_stale_one(driver):
    state = DeviceState(DeviceRuntime())
    buffer = state.full((3, 5), 2, "int16")
    before = (buffer.generation, buffer.size, buffer.shape, buffer.strides, buffer.dtype, buffer.nbytes, len(buffer),
              buffer.is_empty, buffer.device_id, buffer.readonly, buffer.ndim, buffer.itemsize)
    assert before == (0, 15, (3, 5), (10, 2), "int16", 30, 3, False, 0, False, 2, 2)
    ptr = buffer.access().ptr
    text = repr(buffer)
    assert "generation=0" in text
    assert "len=15" in text
    assert f"{ptr:x}" not in text
    assert str(ptr) not in text
    state.mark_lost()
    assert state.generation == 1
    after = (buffer.generation, buffer.size, buffer.shape, buffer.strides, buffer.dtype, buffer.nbytes, len(buffer),
             buffer.is_empty, buffer.device_id, buffer.readonly, buffer.ndim, buffer.itemsize)
    assert after == before
    assert repr(buffer) == text.replace(">", ", context lost>")
    assert buffer[1].shape == (5,)                      # a part of a stale buffer is stale
    assert buffer[1].is_stale
    del state
    assert buffer.device_id is None
    give_up(ptr)


@pytest.mark.contract(125, 216, 217)
def test_generations_are_followed(state):
    """The generation starts at 0 and goes up; watchers see the newest one, whatever they missed."""
    assert state.generation == 0
    watch, late = state.watch(), state.watch()
    assert not watch.changed
    assert watch.wait(0.01) is None
    state.mark_lost()
    assert state.runtime is None
    assert state.generation == 1
    assert watch.changed
    assert watch.wait() == 1
    assert watch.wait(0.01) is None
    assert state.recover() == 2
    assert state.generation == 2
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


@pytest.mark.contract(116, 125, 218)
def test_a_new_context_makes_what_was_before_stale(state):
    """W66, W67: loss and recovery both count, and only a lost context is replaced."""
    old = state.full(8, 1, "int32")
    block = old.access()
    with pytest.raises(StreamMisuseError, match="not lost"):
        state.recover()
    old_runtime = state.runtime
    state.mark_lost()
    state.mark_lost()                                   # once
    assert state.generation == 1
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
    assert (old.generation, old.size) == (0, 8)
    new = state.full(8, 2, "int32")
    assert new.generation == 2
    assert new.to_numpy().tolist() == [2] * 8
    assert reason(old.access) == "context rebuilt"
    give_up(block.ptr)                                  # nobody has reset this device: its memory is still there


@pytest.mark.simulator
@pytest.mark.contract(125, 218, 222)
def test_a_sticky_error_anywhere_is_a_loss(driver):
    """Noticed by whoever looks, without being told (W67); the library's errors are told apart by class."""
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
@pytest.mark.contract(218)
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
    assert state.empty(64, "uint8").generation == 2
    ptr = block.ptr                                     # which a runtime that is lost cannot free
    del error, block
    give_up(ptr)


def test_a_pointer_that_is_given_out_holds_off_a_new_context(state):
    """W69: whoever has looked may act on it."""
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
def test_after_somebody_elses_reset_the_state_comes_back():
    """In a process of its own: a reset is for everybody in it."""
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
assert state.recover() == 2 == state.generation
assert xlogmem.get_runtime() is state.runtime and xlogmem.get_device_state() is state
again = state.from_numpy(np.arange(100))
assert again.to_numpy().tolist() == list(range(100))
print(buffer.is_stale, again.is_stale)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100,
                         env=os.environ | {"XLOGMEM_SIM_QUIET": "1"})
    assert (run.stdout, run.stderr) == ("context lost\nTrue False\n", "")


# ---------------------------------------------------------------------------------------- uses
@pytest.mark.contract(120, 121)
def test_the_last_write_stream_is_that_of_the_newest_write(state):
    runtime = state.runtime
    first, second = runtime.acquire_stream(), runtime.acquire_stream()
    buffer = state.empty(16, "uint8")
    part = buffer[4:]
    assert buffer.last_write_stream is None
    buffer.record_write(second)
    assert buffer.last_write_stream == part.last_write_stream == second     # through all parts
    part.record_write(first)
    assert buffer.last_write_stream == first
    with use(second, write=buffer):
        pass
    assert buffer.last_write_stream == second                           # recorded launches count too (W70)
    with use(first, read=buffer):
        pass
    buffer.to_numpy(first)
    assert buffer.last_write_stream == second
    buffer.fill(3, first)
    assert buffer.last_write_stream == first
    stranger = DeviceRuntime().acquire_stream()
    with pytest.raises(StreamMisuseError, match="another runtime"):
        buffer.record_write(stranger)                                   # W71
    assert buffer.last_write_stream == first
    identity = first.id
    del first
    renewed = runtime.acquire_stream()
    assert renewed.id != identity
    assert buffer.last_write_stream is None                             # nobody has that stream any more


@pytest.mark.simulator
@pytest.mark.contract(120, 121)
@pytest.mark.parametrize("dropped", [False, True])
def test_what_record_write_told_is_waited_for(bench, driver, dropped):
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)
    done = x.use(x.S, (buffer.access(), WRITE))
    own = check(cuda.cuEventCreate(2))
    check(cuda.cuEventRecord(own, x.S.handle))
    check(cuda.cuStreamWaitEvent(x.T.handle, own, 0))                   # ordered by hand, then told
    x.work(x.T, (buffer.access(), WRITE))
    buffer.record_write(x.T)
    if dropped:
        driver.drop("cuStreamWaitEvent", 2)
    with use(x.U, read=buffer):
        x.work(x.U, (buffer.access(), READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    check(cuda.cuEventDestroy(own))
    assert done


@pytest.mark.simulator
@pytest.mark.contract(122, 237)
@pytest.mark.parametrize("access", list(Access))
def test_a_pointer_is_given_out_with_the_use_that_it_is_for(bench, driver, access):
    """W72: the waits of its stream before, its use filed after; nothing else shows the address."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)[128:]
    ptr = buffer.access().ptr + 128
    write = x.use(x.S, (buffer.access(), WRITE))
    with buffer.pointer(x.T, access) as address:
        assert address == ptr
        assert x.ordered(write, x.T)
        done = x.work(x.T)
    with use(x.U, write=buffer):
        assert x.ordered(done, x.U)
    shown = [name for name in dir(buffer) if "__" not in name and isinstance(getattr(buffer, name), int)
             and getattr(buffer, name) >= 1 << 32]
    assert shown == []
    pointer = buffer.pointer(x.T, access)
    with pointer:
        pointer.cancel()
    with pytest.raises(StreamMisuseError), pointer:
        pass
    for wrong in (0, 1, "read", None, Access(0)):
        with pytest.raises(TypeError, match="access must be"):
            buffer.pointer(x.T, wrong)


@pytest.mark.simulator
@pytest.mark.contract(199, 202)
@pytest.mark.parametrize("dropped", [None, "cuStreamWaitEvent"])
@pytest.mark.parametrize("operation", ["fill", "wide fill", "in", "across", "out"])
def test_copies_and_fills_are_ordered(bench, driver, operation, dropped):
    """On any stream, after the writers before and before the users after; the twin drops the wait and races."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer, other = state.empty(512, "uint8", x.S), state.empty(512, "uint8", x.T)
    before = x.use(x.S, (buffer.access(), WRITE))
    if dropped:
        driver.drop(dropped)
    host = bytearray(512)
    call = {"fill": lambda: buffer.fill(3, x.T), "wide fill": lambda: buffer.view("int64").fill(1 << 40, x.T),
            "in": lambda: buffer.copy_from(bytes(512), x.T), "across": lambda: other.copy_from(buffer, x.T),
            "out": lambda: buffer.copy_to(host, x.T)}[operation]
    call()
    races = driver.races()
    driver.clear_races()
    assert bool(races) == bool(dropped)
    if dropped:
        return
    assert x.ordered(before, x.T)
    after = x.use(x.U, (buffer.access(), WRITE))
    assert x.ordered(after, x.U)
    assert not driver.races()


@pytest.mark.simulator
@pytest.mark.contract(199)
def test_nothing_is_queued_when_the_preflight_fails(bench, driver):
    x = bench()
    state = DeviceState(x.runtime)
    a, b = state.full(4, 1, "int32", x.S), state.full(4, 2, "int32", x.S)
    x.use(x.T, (a.access(), WRITE))
    for call in (lambda: a.fill(7, x.U), lambda: a.copy_from(bytes(16), x.U), lambda: a.copy_from(b, x.U),
                 lambda: a.copy_to(bytearray(16), x.U), lambda: a.to_numpy(x.U), lambda: a.view("int64").fill(1, x.U)):
        before = {name: driver.calls(name) for name in ("cuMemsetD32Async", "cuMemcpyHtoDAsync", "cuMemcpyDtoDAsync",
                                                        "cuMemcpyDtoHAsync")}
        driver.fail("cuStreamWaitEvent", code=999)
        with pytest.raises(DriverError, match="cuStreamWaitEvent"):
            call()
        assert before == {name: driver.calls(name) for name in before}
    a.access().free()
    assert type(a.access()) is not None
    with pytest.raises(UseAfterFreeError):
        a.fill(1)


@pytest.mark.simulator
@pytest.mark.contract(201, 232)
@pytest.mark.parametrize("call", ["cuMemsetD8Async", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync"])
def test_a_copy_that_fails_is_filed_all_the_same(bench, driver, call):
    """W9: it may have been queued; the error names the call, and nothing is left open."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer, other = state.full(8, 1, "uint8", x.S), state.full(8, 2, "uint8", x.S)
    driver.fail(call, code=999)
    with pytest.raises(DriverError, match=call):
        {"cuMemsetD8Async": lambda: buffer.fill(1, x.T), "cuMemcpyHtoDAsync": lambda: buffer.copy_from(bytes(8), x.T),
         "cuMemcpyDtoHAsync": lambda: buffer.copy_to(bytearray(8), x.T),
         "cuMemcpyDtoDAsync": lambda: buffer.copy_from(other, x.T)}[call]()
    assert any(stream == x.T.id for _, stream in buffer.access().frontier)
    buffer.fill(5, x.T)
    assert buffer.to_numpy().tolist() == [5] * 8


@pytest.mark.simulator
@pytest.mark.contract(239)
def test_the_host_waits_for_one_stream_and_never_for_the_device(bench, driver):
    """A copy to the host waits for its own stream; what another one is at is nobody's business."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.empty(1024, "int32", x.S)
    driver.set_policy("min")                                            # nothing runs before somebody waits for it
    x.work(x.V)
    buffer.copy_from(np.arange(1024, dtype="int32"), x.S)
    assert buffer.to_numpy(x.T).tolist() == list(range(1024))
    target = np.zeros(1024, "int32")
    buffer.copy_to(target, x.U)
    assert target.tolist() == list(range(1024))
    assert driver.calls("cuCtxSynchronize") == driver.calls("cuStreamSynchronize") == 0
    assert driver.pending_operations() == 1


@pytest.mark.simulator
@pytest.mark.contract(232, 239)
def test_the_gil_is_released_while_a_copy_is_under_way(bench, driver):
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.full(64, 1, "uint8", x.S)
    for call, name in ((lambda: buffer.to_numpy(), "cuMemcpyDtoHAsync"), (lambda: buffer.fill(2), "cuMemsetD8Async"),
                       (lambda: buffer.copy_from(bytes(64)), "cuMemcpyHtoDAsync")):
        hold = driver.hold(name)
        thread = threading.Thread(target=call)
        thread.start()
        assert hold.reached()                           # this thread runs meanwhile
        assert hold.let_go()
        thread.join()


@pytest.mark.simulator
@pytest.mark.contract(232)
def test_page_locked_sources_may_be_changed_when_the_copy_returns(bench, driver):
    import ctypes

    x = bench()
    driver.set_policy("min")                            # nothing runs before somebody waits
    state = DeviceState(x.runtime)
    buffer = state.empty(64, "uint8", x.S)
    host = int(check(cuda.cuMemHostAlloc(64, 0)))
    pinned = np.ctypeslib.as_array((ctypes.c_uint8 * 64).from_address(host))
    pinned[:] = 7
    buffer.copy_from(pinned)
    pinned[:] = 8
    assert buffer.to_numpy().tolist() == [7] * 64
    ordinary = bytearray(b"\5" * 64)
    buffer.copy_from(ordinary)
    ordinary[:] = bytes(64)
    assert buffer.to_numpy().tolist() == [5] * 64
    check(cuda.cuMemFreeHost(host))


@pytest.mark.parametrize("dtype", [name for name, row in DTYPES.items() if row.pack])
def test_every_dtype_goes_to_numpy_and_back(state, dtype):
    values = np.array([[0, 1, 3], [1, 0, 2]]).astype(dtype)
    buffer = state.from_numpy(values)
    assert (buffer.dtype, buffer.shape, buffer.itemsize) == (dtype, (2, 3), values.itemsize)
    back = buffer.to_numpy()
    assert back.dtype == values.dtype
    assert back.tolist() == values.tolist()
    value = values[0, 2]
    buffer.fill(value)
    assert buffer.to_numpy().tolist() == [[value] * 3] * 2
    assert buffer[:, 1:].to_numpy().tolist() == [[value] * 2] * 2
    target = np.empty((2, 3), dtype)
    buffer.copy_to(target)
    assert target.tolist() == [[value] * 3] * 2


def test_fills_of_what_numpy_has_no_name_for(state):
    buffer = state.full(3, -1.2345678, "bfloat16")
    assert buffer.view("uint16").to_numpy().tolist() == [0xBF9E] * 3
    buffer.fill(float("nan"))
    assert all(word & 0x7FFF > 0x7F80 for word in buffer.view("uint16").to_numpy())
    buffer.fill(float("inf"))
    assert buffer.view("uint16").to_numpy().tolist() == [0x7F80] * 3
    if importlib.util.find_spec("ml_dtypes") is None:
        with pytest.raises(TypeError, match="ml_dtypes only"):
            buffer.to_numpy()
    else:
        assert str(buffer.to_numpy().dtype) == "bfloat16"
    with pytest.raises(TypeError, match="no value can be written"):
        state.full(3, 1, "float8_e4m3fn")


@pytest.mark.contract(238)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_called(state):
    buffer = state.full((4, 4), 1, "int32")
    stranger = DeviceState(DeviceRuntime())
    strange = stranger.empty((4, 4), "int32")
    uses = state.runtime.counters()["uses"]
    host = np.zeros((4, 4), "int32")
    for error, call in (
            (TypeError, lambda: buffer.copy_from(host.astype("int64"))), (TypeError, lambda: buffer.copy_from(5)),
            (ValueError, lambda: buffer.copy_from(host[:2])), (ValueError, lambda: buffer.copy_from(bytes(63))),
            (ValueError, lambda: buffer.copy_from(host.T)), (ValueError, lambda: buffer.copy_to(bytes(64))),
            (ValueError, lambda: buffer[:, 1:].copy_from(bytes(48))), (ValueError, lambda: buffer[:, 1:].fill(1)),
            (ValueError, lambda: buffer[:, 1:].view("uint8")), (ValueError, lambda: buffer.view("int32", (5, 3))),
            (ValueError, lambda: buffer[0, :3].view("int64")), (ValueError, lambda: buffer.fill(1 << 31)),
            (ValueError, lambda: buffer.fill("x")), (ValueError, lambda: buffer[1:].copy_from(buffer[:3])),
            (TypeError, lambda: buffer.copy_from(state.empty((4, 4), "float32"))),
            (ValueError, lambda: buffer.copy_from(state.empty((4, 3), "int32"))),
            (StreamMisuseError, lambda: buffer.copy_from(strange)),
            (TypeError, lambda: state.empty(1, "float7")), (TypeError, lambda: state.empty(1, ">i4")),
            (TypeError, lambda: state.empty(1, np.dtype(">i4"))), (ValueError, lambda: state.empty(-1)),
            (TypeError, lambda: state.empty(1.5)), (IndexError, lambda: buffer[4]),
            (IndexError, lambda: buffer[0, 0, 0]), (IndexError, lambda: buffer[..., 0, ...]),
            (TypeError, lambda: buffer["a"]), (TypeError, lambda: bool(buffer)),
            (TypeError, lambda: len(buffer[0, 0])), (TypeError, lambda: buffer.fill(1, "a stream"))):
        with pytest.raises(error):
            call()
    assert state.runtime.counters()["uses"] == uses
    assert state.empty(3, np.float32).dtype == state.empty(3, np.dtype("f4")).dtype == "float32"
    assert state.empty(3, float).dtype == "float64"


@pytest.mark.contract(118)
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


@pytest.mark.contract(184, 185, 186, 187, 236)
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


# ---------------------------------------------------------------------------------------- tokens
@pytest.mark.contract(124)
def test_a_token_names_its_buffer_and_nothing_else(state):
    """Node, device, buffer, generation: constant size, no address, the order of the fields."""
    buffer = state.full(4, 1, "int32")
    token = buffer.token
    assert token == buffer.token
    assert (token.device, token.buffer, token.generation) == (0, buffer.number, 0)
    data = token.to_bytes()
    assert len(data) == 48
    assert buffer.access().ptr.to_bytes(8, "little") not in data
    assert buffer.access().ptr.to_bytes(8, "big") not in data
    assert BufferToken.from_bytes(data) == token == pickle.loads(pickle.dumps(token))
    assert token.resolve() is buffer
    part = buffer[1:]
    assert part.token != token
    assert part.token.resolve() is part
    tokens = [BufferToken(*fields) for fields in ((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 4, 0), (1, 3, 1, 0), (2, 0, 1, 0))]
    assert sorted(tokens) == sorted(tokens, key=BufferToken.to_bytes) == tokens
    assert {len(token.to_bytes()) for token in tokens} == {48}


@pytest.mark.contract(124)
def test_every_wrong_token_has_its_own_error(state):
    buffer = state.full(4, 1, "int32")
    token = buffer.token
    with pytest.raises(UnknownNodeError):
        token._replace(node=token.node ^ 1).resolve()
    with pytest.raises(UnknownDeviceError):
        token._replace(device=7).resolve()
    with pytest.raises(UnknownBufferError):
        token._replace(buffer=1 << 40).resolve()
    assert reason(token._replace(generation=1).resolve) == "context rebuilt"
    state.begin_shutdown()
    assert reason(token.resolve) == "device shutting down"
    del buffer
    gc.collect()
    with pytest.raises(UnknownBufferError):
        token.resolve()
    other = DeviceState(DeviceRuntime())
    again = other.empty(4, "int32")
    assert again.token.buffer > token.buffer            # numbers do not come back
    data = token.to_bytes()
    for garbage in (b"", data[:-1], data + b"\0", bytes(48), b"x" * 48, data[:4] + b"\0\0\0\2" + data[8:],
                    data[:28] + b"\1" + data[29:]):
        with pytest.raises(ValueError, match="token"):
            BufferToken.from_bytes(garbage)
    for wrong in (BufferToken(-1, 0, 1, 0), BufferToken(1 << 128, 0, 1, 0), BufferToken(0, 1 << 32, 1, 0),
                  BufferToken("x", 0, 1, 0), BufferToken(0, 0, 1, -1)):
        with pytest.raises(ValueError, match="is no token"):
            wrong.to_bytes()


def test_a_token_of_another_process_is_not_resolved(state, _context):
    token = state.empty(1).token
    program = ("import sys, pickle; from xlogmem import BufferToken, UnknownNodeError\n"
               "try: BufferToken.from_bytes(bytes.fromhex(sys.argv[1])).resolve()\n"
               "except UnknownNodeError: print('another node')")
    run = subprocess.run([sys.executable, "-c", program, token.to_bytes().hex()], capture_output=True, text=True,
                         timeout=100)
    assert run.stdout == "another node\n", run.stderr


@pytest.mark.contract(221)
@pytest.mark.simulator
def test_without_a_gpu_everything_is_there():
    """Contract 221 in its better form: no device that refuses to allocate, but a simulated one that works."""
    assert SIMULATED
    state = DeviceState(DeviceRuntime())
    assert state.full(3, 5, "int8").to_numpy().tolist() == [5, 5, 5]
    assert xlogmem.is_simulated()
