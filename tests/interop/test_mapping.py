"""`Buffer.map`: an array over memory that the host reaches, which ends with the access."""
from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import subprocess
import sys
from types import SimpleNamespace

import numpy
import pytest
from children import variables
from cuda.bindings import driver as cuda
from four_streams import Capture, FourStreams, nothing_happens
from other_threads import Beside, beside_waiting
from stale import reason

import xlogmem
from xlogmem import (
    BlockState,
    DeviceRuntime,
    DeviceState,
    DriverError,
    ManagedMemoryResource,
    PinnedMemoryResource,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    host,
    use,
)
from xlogmem.interop._dtypes import DTYPES
from xlogmem.interop.buffers import Mapping
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

COUNT = 512


class Staging:
    """A buffer that the host reaches, and one of the device; copies run as late as they may."""

    def __init__(self, x: FourStreams, resource=PinnedMemoryResource) -> None:
        x.driver.set_policy("min")
        self.x, self.runtime, self.state = x, x.runtime, DeviceState(x.runtime)
        self.buffer = self.state.empty(COUNT, "uint8", x.S, resource=resource())
        self.device = self.state.empty(COUNT, "uint8", x.S)
        with self.buffer.map(write=True) as array:
            array[:] = 1

    def fill(self, value: int, declared: bool) -> None:
        if declared:
            with self.buffer.map(write=True) as array:
                array[:] = value
        else:
            ctypes.memset(self.buffer.ptr, value, COUNT)

    def first(self, declared: bool) -> int:
        if declared:
            with self.buffer.map() as array:
                return int(array[0])
        return ctypes.string_at(self.buffer.ptr, 1)[0]

    def contents(self) -> int:
        """The first byte on the device, when everything is complete."""
        check(cuda.cuCtxSynchronize())
        return int(self.x.driver.peek(self.device.ptr, 1)[0])

    def raced(self) -> bool:
        races = self.x.driver.races()
        self.x.driver.clear_races()
        return bool(races)

    def waits(self) -> int:
        return self.runtime.counters()["host_waits"]

    def close(self) -> None:
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime


@pytest.fixture(params=[PinnedMemoryResource, ManagedMemoryResource,
                        lambda: PoolMemoryResource(PinnedMemoryResource(), initial_pool_size=4096)],
                ids=["pinned", "managed", "pool"])
def each(four, request):
    """Memory of each kind."""
    staging = Staging(four(), request.param)
    yield staging
    staging.close()


@pytest.fixture
def p(four):
    staging = Staging(four())
    yield staging
    staging.close()


def numbers(state):
    """Twelve numbers that the host reaches."""
    return state.empty((3, 4), "float32", resource=PinnedMemoryResource())


def fill_in(buffer, values=None) -> None:
    with buffer.map(write=True) as array:
        array[:] = numpy.arange(array.size).reshape(array.shape) if values is None else values


# ---------------------------------------------------------------------------------------------- the order
@pytest.mark.parametrize(("declared", "arrives"), [(True, 1), (False, 2)])
def test_a_buffer_is_filled_again_after_the_copy_that_reads_it(each, declared, arrives):
    each.device.copy_from(each.buffer, each.x.T)
    each.fill(2, declared)
    assert each.contents() == arrives


@pytest.mark.parametrize(("declared", "seen"), [(True, 3), (False, 1)])
def test_a_result_is_read_after_the_copy_that_brings_it(each, declared, seen):
    each.device.fill(3, each.x.S)
    each.buffer.copy_from(each.device, each.x.T)
    assert each.first(declared) == seen


@pytest.mark.parametrize(("dropped", "arrives"), [(False, 1), (True, 5)])
def test_a_result_is_brought_after_the_upload_that_reads_the_same_memory(p, dropped, arrives):
    other = settled(p, 5)
    p.device.copy_from(p.buffer, p.x.T)
    if dropped:
        p.x.driver.drop("cuStreamWaitEvent")
    p.buffer.copy_from(other, p.x.U)
    p.x.U.synchronize()                                 # alone, unless it waits for T
    assert p.contents() == arrives
    assert p.raced() == dropped


@pytest.mark.parametrize(("dropped", "arrives"), [(False, 5), (True, 1)])
def test_memory_is_uploaded_after_the_copy_that_brings_a_result(p, dropped, arrives):
    other = settled(p, 5)
    p.buffer.copy_from(other, p.x.U)
    if dropped:
        p.x.driver.drop("cuStreamWaitEvent")
    p.device.copy_from(p.buffer, p.x.T)
    p.x.T.synchronize()                                 # alone, unless it waits for U
    assert p.contents() == arrives
    assert p.raced() == dropped


def settled(p: Staging, value: int):
    """Another buffer of the device; no stream has to wait any more for what was queued so far."""
    other = p.state.empty(COUNT, "uint8", p.x.U)
    other.fill(value, p.x.U)
    p.runtime.synchronize()
    return other


def test_a_reading_map_waits_for_writers_alone(p):
    p.device.copy_from(p.buffer, p.x.T)
    with p.buffer.map():                                # waits for the stream of the allocation
        before = p.waits()
    with p.buffer.map():
        assert p.waits() == before
    with p.buffer.map(write=True):
        assert p.waits() == before + 1


def test_a_map_makes_the_driver_calls_of_a_use(p):
    for what in (p.buffer, p.buffer[8:]):
        for write in (False, True):
            use_of = {"read_write" if write else "read": what}
            assert calls(p, what.map(write=write)) == calls(p, use(host, **use_of))


def calls(p: Staging, access) -> dict[str, int]:
    before = p.x.driver.all_calls()
    with access:
        pass
    return {name: count - before.get(name, 0) for name, count in p.x.driver.all_calls().items()}


def test_a_launch_of_another_thread_waits_until_the_exit(p):
    with p.buffer.map(write=True) as array:
        beside = beside_waiting(p.runtime, lambda: p.device.copy_from(p.buffer, p.x.S))
        array[:] = 8
    beside.result()
    assert p.contents() == 8


def test_a_launch_inside_is_refused_in_the_same_thread(p):
    with p.buffer.map(write=True), pytest.raises(StreamMisuseError, match="open, on the host, and cannot be left"):
        p.device.copy_from(p.buffer, p.x.S)
    with use(p.x.S, write=p.buffer), pytest.raises(StreamMisuseError, match="while this one on the host waits"):
        p.buffer.map().__enter__()
    with p.buffer.map() as array:                       # readers do not conflict
        p.device.copy_from(p.buffer, p.x.S)
        assert array[0] == 1
    assert p.contents() == 1


def test_a_map_in_a_map_of_the_same_thread(p):
    with p.buffer.map(write=True) as array, p.buffer.map() as seen:
        array[:] = 6
        assert set(seen.tolist()) == {6}


def test_a_map_is_entered_in_one_thread_and_left_in_another(p):
    mapping = p.buffer.map(write=True)
    array = Beside(mapping.__enter__).result()
    assert array is not None
    beside = beside_waiting(p.runtime, lambda: p.device.copy_from(p.buffer, p.x.S))
    array[:] = 7
    mapping.__exit__(None, None, None)
    beside.result()
    assert p.contents() == 7


# ---------------------------------------------------------------------------------------------- the array
def test_the_array_is_like_the_buffer(state):
    pinned = numbers(state)
    fill_in(pinned)
    whole = numpy.arange(12, dtype="float32").reshape(3, 4)
    for part, expected in ((pinned, whole), (pinned[1:, ::2], whole[1:, ::2]), (pinned.T, whole.T),
                           (pinned[::-1, ::-2], whole[::-1, ::-2]), (pinned[1, 2], whole[1, 2]),
                           (pinned.view("uint8"), whole.reshape(-1).view("uint8"))):
        with part.map() as array:
            assert array.dtype == expected.dtype
            assert (array.shape, array.strides) == (part.shape, part.strides) == (expected.shape, expected.strides)
            numpy.testing.assert_array_equal(array, expected)
            del array


@pytest.mark.parametrize("name", [name for name, row in DTYPES.items() if row.pack is not None])
def test_each_dtype_is_that_of_a_copy(state, name):
    buffer = state.empty(3, name, resource=PinnedMemoryResource())
    fill_in(buffer, 1)
    with buffer.map() as array:
        assert (array.dtype, array.tolist()) == (numpy.dtype(name), buffer.tolist())


def test_a_dtype_that_numpy_has_not(state):
    buffer = state.empty(3, "bfloat16", resource=PinnedMemoryResource())
    if "ml_dtypes" in sys.modules:
        pytest.skip("ml_dtypes is there")
    with pytest.raises(TypeError, match=r"bfloat16 with the package ml_dtypes only; see it as another dtype with view"):
        buffer.map()
    with buffer.view("uint16").map() as array:
        assert array.shape == (3,)


def test_an_array_is_read_only_unless_the_host_writes(state):
    pinned = numbers(state)
    fill_in(pinned)
    with pinned.map() as array:
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True
    with pinned.map(write=True) as array:
        array += 1
    assert pinned.tolist()[0] == [1, 2, 3, 4]


@pytest.mark.parametrize("write", [False, True])
def test_an_empty_buffer_gives_an_empty_array(state, write):
    pinned = numbers(state)
    for buffer in (state.empty((0, 3), "int16"), pinned[:0]):
        with buffer.map(write=write) as array:
            assert (array.shape, array.dtype, array.flags.writeable) == (buffer.shape, buffer.dtype, write)


# ---------------------------------------------------------------------------------------------- blocks
@pytest.mark.parametrize(("declared", "seen"), [(True, 3), (False, 1)])
def test_a_block_is_read_after_the_copy_that_brings_it(p, declared, seen):
    p.device.fill(3, p.x.S)
    p.buffer.copy_from(p.device, p.x.T)
    block = p.buffer.access()
    if declared:
        with block.map() as array:
            assert (array.tolist(), array.flags.writeable) == ([seen] * COUNT, False)
        assert calls(p, block.map()) == calls(p, use(host, read=block))
    else:
        assert ctypes.string_at(block.ptr, 1)[0] == seen


def test_a_block_for_the_host_is_an_array(p):
    pool = PoolMemoryResource(PinnedMemoryResource(), initial_pool_size=4096)
    with p.runtime.allocate(48, host, resource=pool) as block:
        before = p.waits()
        with block.map("float32", write=True) as array:
            array[:] = numpy.arange(12)
        assert (array.size, p.waits()) == (0, before)
        with block.map("int64") as array:
            assert array.shape == (6,)
        with pytest.raises(BufferError, match="views of the array"), block.map() as array:
            kept = array[1:]
        del kept
    with pytest.raises(UseAfterFreeError, match="read=: block"), block.map():
        pass


@pytest.mark.parametrize("nbytes", [0, 10])
def test_blocks_that_are_no_whole_number_of_elements(p, nbytes):
    with p.runtime.allocate(nbytes, p.x.S, resource=PinnedMemoryResource()) as block:
        if nbytes:
            with pytest.raises(ValueError, match="10 bytes are not a whole number of float32"):
                block.map("float32")
        with block.map("int16", write=True) as array:
            assert (array.shape, array.flags.writeable) == ((nbytes // 2,), True)


def test_a_block_of_the_device_is_refused(p):
    block = p.device.access()
    with pytest.raises(TypeError, match=r"read=: block .* is device memory"), block.map():
        pass
    with pytest.raises(TypeError, match="write must be True or False"):
        block.map(write=1)


# ---------------------------------------------------------------------------------------------- the end
def test_the_array_reads_as_empty_afterwards(state):
    pinned = numbers(state)
    fill_in(pinned)
    with pinned.map(write=True) as array:
        pass
    assert (array.size, array.dtype, array.base) == (0, numpy.dtype("float32"), None)
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 1                                    # it would be lost
    with pytest.raises(IndexError):
        array[0]


VIEWS = {
    "slice": lambda array: array[1:], "reshape": lambda array: array.reshape(-1), "transpose": lambda array: array.T,
    "row": lambda array: list(array)[-1], "slice of a slice": lambda array: array[1:][:, 1:],
    "other dtype": lambda array: array.view("uint8"), "base": lambda array: array.base,
    "broadcast": lambda array: numpy.broadcast_to(array, (2, 3, 4)),
    "more dimensions": lambda array: numpy.atleast_3d(array),
    "memoryview of a slice": lambda array: memoryview(array[1:]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_is_alive_is_an_error_after_the_access_has_ended(state, name):
    pinned = numbers(state)
    fill_in(pinned)
    with pytest.raises(BufferError, match=r"views of the array of <Buffer float32 .*> are alive .*array\.copy\(\)"), (
            pinned.map(write=True)) as array:
        kept = VIEWS[name](array)
    assert array.size == 0
    with use(pinned.core.acquire_stream(), write=pinned):       # the access has ended
        pass
    assert memoryview(kept).nbytes > 0


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_is_gone_is_no_error(state, name):
    pinned = numbers(state)
    fill_in(pinned)
    with pinned.map() as array:
        kept = VIEWS[name](array)
        del kept
    with pinned.map() as array:
        copied = array[1:].copy()
    assert copied.tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_the_variable_of_a_loop_is_a_view(state):
    pinned = numbers(state)
    fill_in(pinned)
    with pytest.raises(BufferError, match="del row"), pinned.map() as array:
        for row in array:
            assert row.shape == (4,)
    with pinned.map() as array:
        for row in array:
            assert row.shape == (4,)
        del row


def test_an_exception_goes_on_with_a_note(state):
    pinned = numbers(state)
    with pytest.raises(KeyError) as error, pinned.map() as array:
        kept = array[1:]
        raise KeyError(3)
    assert [note[:18] for note in error.value.__notes__] == ["views of the array"]
    del kept
    with pytest.raises(KeyError) as error, pinned.map():
        raise KeyError(3)
    assert not hasattr(error.value, "__notes__")


LEFT_OVER = {
    "memoryview": lambda array: memoryview(array).cast("B"), "flat": lambda array: array.flat,
    "subclass": lambda array: array.view(numpy.recarray),
    "ctypes": lambda array: (ctypes.c_uint8 * 48).from_buffer(array), "slice": lambda array: array[:],
}


@pytest.mark.parametrize("name", LEFT_OVER)
def test_memory_stays_as_long_as_an_address_of_it(name):
    """What NumPy does not report keeps the memory all the same; then it is freed."""
    state = DeviceState(DeviceRuntime())
    runtime = state.runtime
    buffer = state.empty((3, 4), "float32", resource=PinnedMemoryResource())
    kept, address = left_over(buffer, LEFT_OVER[name])
    del buffer
    gc.collect()
    runtime.reap_pending()
    assert runtime.live_bytes == 48
    ctypes.memset(address, 0, 48)                       # it is there
    assert kept is not None
    del kept
    runtime.reap_pending()
    assert runtime.live_bytes == 0


def left_over(buffer, make):
    address = buffer.ptr
    try:
        with buffer.map(write=True) as array:
            kept = make(array)
    except BufferError:
        pass
    return kept, address


def test_what_was_made_of_it_has_no_memory_afterwards(state):
    """Another name of the array itself is not a view: the array is empty under both names."""
    pinned = numbers(state)
    with pinned.map() as array:
        same = numpy.asarray(array)
    assert same.size == 0


def test_memory_stays_as_long_as_the_array_and_no_longer():
    state = DeviceState(DeviceRuntime())
    with state.empty(8, "uint8", resource=PinnedMemoryResource()).map() as array:
        assert state.runtime.live_bytes == 8
    assert array.size == 0
    del array
    state.runtime.reap_pending()
    assert state.runtime.live_bytes == 0


def test_a_mapping_that_is_dropped_takes_the_array_along(state):
    pinned = numbers(state)
    mapping = pinned.map(write=True)
    array = mapping.__enter__()
    with pytest.warns(ResourceWarning, match="<LaunchRecorder on the host"):
        del mapping
        gc.collect()
    assert array.size == 0
    with use(pinned.core.acquire_stream(), write=pinned):
        pass


def test_a_process_that_ends_inside():
    program = ("import xlogmem, numpy\n"
               "p = xlogmem.empty(4, 'uint8', resource=xlogmem.PinnedMemoryResource())\n"
               "m = p.map(write=True)\n"
               "a = m.__enter__()\n"
               "with p.map() as b:\n"
               "    v = memoryview(b)\n"
               "print(a.size)\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False,
                          env=variables(XLOGMEM_SIMULATE="1", XLOGMEM_SIM="quiet"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "4\n", "")


# ---------------------------------------------------------------------------------------------- refusals
def test_device_memory_is_refused_as_by_use(p):
    with (nothing_happens(p.x.driver, p.runtime),
          pytest.raises(TypeError, match=r"read=: block .* is device memory, which the host cannot read or write .*"
                                         r"resource=PinnedMemoryResource\(\)")):
        p.device.map().__enter__()
    with use(p.x.S, write=p.device):                    # nothing is open
        pass
    assert p.state._status.in_use == 0


def test_a_read_only_buffer_is_not_written(state):
    managed = state.empty(4, "uint8", resource=ManagedMemoryResource())
    fill_in(managed, 1)
    interface = managed.__cuda_array_interface__
    shown = SimpleNamespace(__cuda_array_interface__={**interface, "data": (managed.ptr, True)})
    part = xlogmem.from_cuda_array(shown, state=state)
    with pytest.raises(ValueError, match=r"map\(write=True\): the buffer is read-only"):
        part.map(write=True)
    with part.map() as array:
        assert array.tolist() == [1, 1, 1, 1]


def test_what_users_of_numpy_try_first_names_map(state):
    pinned = numbers(state)
    with pytest.raises(TypeError, match=r"use to_numpy\(\)\. Memory that the host reaches is seen with map\(\)"):
        numpy.asarray(pinned)
    with pytest.raises(TypeError, match=r"Memory that the host reaches is written with map\(write=True\)"):
        pinned[:] = 1


@pytest.mark.parametrize("wrong", [1, None, "yes"])
def test_write_is_true_or_false(state, wrong):
    pinned = numbers(state)
    with pytest.raises(TypeError, match="write must be True or False, not"):
        pinned.map(write=wrong)


def test_a_mapping_is_entered_once(state):
    pinned = numbers(state)
    mapping = pinned.map()
    with mapping, pytest.raises(StreamMisuseError, match=r"entered once: call map\(\) again"):
        mapping.__enter__()
    with pytest.raises(StreamMisuseError, match=r"entered once: call map\(\) again"):
        mapping.__enter__()
    mapping.__exit__(None, None, None)                  # as a use: nothing is left
    with pytest.raises(StreamMisuseError, match="left, and not entered before"):
        pinned.map().__exit__(None, None, None)


def test_a_mapping_is_made_by_map_alone(state):
    pinned = numbers(state)
    with pytest.raises(StreamMisuseError, match="entered once"):
        Mapping().__enter__()
    with pytest.raises(StreamMisuseError, match=r"made by Buffer\.map\(\)"):
        Mapping().__exit__(None, None, None)
    for call in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="pickle"):
            call(pinned.map())


def test_stale_buffers_are_refused(state):
    pinned = numbers(state)
    mapping, released = pinned.map(), pinned[1:]
    released.release()
    assert reason(released.map) == "consumed"
    state.begin_shutdown()
    assert reason(pinned.map) == reason(mapping.__enter__) == "device shutting down"
    assert state._status.in_use == 0


def test_a_mapping_holds_off_a_new_context(state):
    pinned = numbers(state)
    address = pinned.ptr
    with pinned.map(write=True) as array:
        array[:] = 1
        state.mark_lost()
        with pytest.raises(StreamMisuseError, match=r"1 pointer\(s\) or map\(s\) of buffers are still in use"):
            state.recover()
    assert reason(pinned.map) == "context lost"
    state.recover()
    del array, pinned
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFreeHost(address))


def test_a_freed_block_is_refused(state):
    pinned = numbers(state)
    pinned.access().free()
    with pytest.raises(UseAfterFreeError, match="read=: block"):
        pinned.map().__enter__()


def test_a_free_inside_is_put_off(state):
    pinned = numbers(state)
    with pinned.map(write=True) as array:
        block = pinned.access()
        block.free()
        assert block.state is BlockState.RETIRED
        array[:] = 1
    assert block.state is BlockState.FREED


def test_a_release_inside_is_put_off(state):
    pinned = state.empty(8, "uint8", resource=PinnedMemoryResource())
    with pinned.map(write=True) as array:
        pinned.release()
        array[:] = 1
        assert state.runtime.live_bytes == 8
    del array
    state.runtime.reap_pending()
    assert state.runtime.live_bytes == 0


def test_a_release_while_the_map_waits_is_put_off(state):
    pinned = numbers(state)
    fill_in(pinned, 3)
    with use(host, write=pinned):
        beside = beside_waiting(state.runtime, lambda: first_of(pinned.map()))
        pinned.release()
    assert beside.result() == 3
    state.runtime.reap_pending()
    assert state.runtime.live_bytes == 0


def first_of(mapping) -> float:
    with mapping as array:
        return float(array[0, 0])


def test_a_stream_that_captures_is_refused_and_nothing_is_open(p):
    with Capture(p.x.S), pytest.raises(StreamMisuseError, match="capturing a graph"):
        p.buffer.map(write=True).__enter__()
    assert p.state._status.in_use == 0
    with p.buffer.map(write=True):
        pass


def test_the_host_waits_in_vain_and_nothing_is_open(p):
    p.device.copy_from(p.buffer, p.x.T)
    p.x.driver.fail("cuEventSynchronize")
    with pytest.raises(DriverError, match="preparing an access by the host"):
        p.buffer.map(write=True).__enter__()
    assert p.state._status.in_use == 0
    with p.buffer.map(write=True):
        pass


def test_a_use_by_the_host_and_a_map_are_one_thing(p):
    with use(host, write=p.buffer):
        beside = beside_waiting(p.runtime, lambda: mapped_to_two(p))
        ctypes.memset(p.buffer.ptr, 1, COUNT)
    beside.result()
    assert p.first(True) == 2


def mapped_to_two(p: Staging) -> None:
    with p.buffer.map(write=True) as array:
        array[:] = 2
