"""Copies, fills and pointers of buffers are ordered uses."""
from __future__ import annotations

import copy
import importlib.util
import threading

import numpy as np
import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE

from xlogmem import (
    Access,
    DeviceRuntime,
    DeviceState,
    DriverError,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem.interop._dtypes import DTYPES
from xlogmem.sim.kernels import check


@pytest.mark.promise(120, 121)
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
    foreign = DeviceRuntime().acquire_stream()
    with pytest.raises(StreamMisuseError, match="another runtime"):
        buffer.record_write(foreign)                                    # W71
    assert buffer.last_write_stream == first
    identity = first.id
    del first
    renewed = runtime.acquire_stream()
    assert renewed.id != identity
    assert buffer.last_write_stream is None                             # that stream is gone


@pytest.mark.simulator
@pytest.mark.promise(120, 121)
@pytest.mark.parametrize("dropped", [False, True])
def test_what_record_write_recorded_is_waited_for(four, driver, dropped):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)
    done = x.use(x.S, (buffer.access(), WRITE))
    own = check(cuda.cuEventCreate(2))
    check(cuda.cuEventRecord(own, x.S.handle))
    check(cuda.cuStreamWaitEvent(x.T.handle, own, 0))                   # ordered by hand, then recorded
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
@pytest.mark.promise(122, 237)
@pytest.mark.parametrize("access", list(Access))
def test_a_pointer_is_given_out_with_the_use_that_it_is_for(four, driver, access):
    """W72: the waits of its stream before, its use recorded after; `ptr` alone shows the address, too."""
    x = four()
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
    assert shown == ["ptr"]
    assert buffer.ptr == buffer.data.ptr == ptr
    pointer = buffer.pointer(x.T, access)
    with pointer:
        pointer.cancel()
    with pytest.raises(StreamMisuseError), pointer:
        pass
    with pytest.raises(TypeError, match="cannot pickle"):                # two would leave it
        copy.copy(buffer.pointer(x.T, access))
    for wrong in (0, 1, "read", None, Access(0)):
        with pytest.raises(TypeError, match="access must be"):
            buffer.pointer(x.T, wrong)


@pytest.mark.simulator
@pytest.mark.promise(199, 202)
@pytest.mark.parametrize("dropped", [None, "cuStreamWaitEvent"])
@pytest.mark.parametrize("operation", ["fill", "wide fill", "in", "across", "out"])
def test_copies_and_fills_are_ordered(four, driver, operation, dropped):
    """On any stream, after the writers before and before the users after; the twin drops the wait and races."""
    x = four()
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
@pytest.mark.promise(199)
def test_nothing_is_queued_when_the_preflight_fails(four, driver):
    x = four()
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
@pytest.mark.promise(201, 232)
@pytest.mark.parametrize("call", ["cuMemsetD8Async", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync"])
def test_a_copy_that_fails_is_recorded_all_the_same(four, driver, call):
    """W9: it may have been queued; the error names the call, and nothing is left open."""
    x = four()
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
@pytest.mark.promise(239)
def test_the_host_waits_for_one_stream_and_never_for_the_device(four, driver):
    """A copy to the host waits for its own stream, and for nothing that another one does."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(1024, "int32", x.S)
    driver.set_policy("min")                                            # nothing runs before it is waited for
    x.work(x.V)
    buffer.copy_from(np.arange(1024, dtype="int32"), x.S)
    assert buffer.to_numpy(x.T).tolist() == list(range(1024))
    target = np.zeros(1024, "int32")
    buffer.copy_to(target, x.U)
    assert target.tolist() == list(range(1024))
    assert driver.calls("cuCtxSynchronize") == driver.calls("cuStreamSynchronize") == 0
    assert driver.pending_operations() == 1


@pytest.mark.simulator
@pytest.mark.promise(232, 239)
def test_the_gil_is_released_while_a_copy_is_under_way(four, driver):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(64, 1, "uint8", x.S)
    for call, name in ((lambda: buffer.to_numpy(), "cuMemcpyDtoHAsync"), (lambda: buffer.fill(2), "cuMemsetD8Async"),
                       (lambda: buffer.copy_from(bytes(64)), "cuMemcpyHtoDAsync")):
        hold = driver.hold(name)
        thread = threading.Thread(target=call)
        thread.start()
        assert hold.reached()                           # this thread runs meanwhile
        assert hold.release()
        thread.join()


@pytest.mark.simulator
@pytest.mark.promise(232)
def test_page_locked_sources_may_be_changed_when_the_copy_returns(four, driver):
    import ctypes

    x = four()
    driver.set_policy("min")                            # nothing runs before it is waited for
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


@pytest.mark.promise(238)
def test_arguments_that_do_not_fit_are_refused_before_anything_is_called(state):
    buffer = state.full((4, 4), 1, "int32")
    elsewhere = DeviceState(DeviceRuntime())
    foreign = elsewhere.empty((4, 4), "int32")
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
            (StreamMisuseError, lambda: buffer.copy_from(foreign)),
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
