"""What users of NumPy, CuPy and RMM expect of buffers and blocks: views, addresses, dtypes, lists, fills."""
from __future__ import annotations

import itertools
import subprocess
import sys
import warnings

import numpy as np
import pytest
from four_streams import READ, WRITE

from xlogmem import DeviceRuntime, DeviceState, DriverError, StaleBufferError, from_cuda_array, use
from xlogmem.interop._dtypes import DTYPES, dtype_of

KEYS = [np.s_[:], np.s_[::-1], np.s_[:, ::-1], np.s_[:, :2], np.s_[::2], np.s_[:, ::2], np.s_[..., 1], np.s_[1],
        np.s_[1, 2], np.s_[:, 1:2], np.s_[0:0], np.s_[:, :0]]


def view_of(array, shape):
    """With this shape; None where there is none. Only an assignment says so, which NumPy 2.5 deprecates."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            view = array.view()
            view.shape = shape
    except (ValueError, AttributeError):
        return None
    return view


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("key", range(len(KEYS)))
def test_reshapes_are_numpys_views(state, key, turned):
    """Whatever NumPy can say with strides is a view, with these strides; what it copies is refused."""
    array = np.arange(24, dtype="int32").reshape(4, 6)
    buffer = state.from_numpy(array)
    array, buffer = np.asarray(array[KEYS[key]]), buffer[KEYS[key]]
    if turned:
        array, buffer = array.T, buffer.T
    assert buffer.tolist() == array.tolist()
    assert (buffer.shape, buffer.size and buffer.strides) == (array.shape, buffer.size and array.strides)
    factors = [extents for n in range(4) for extents in itertools.product((-1, 0, 1, 2, 3, 4, 6, 8, 12, 24), repeat=n)]
    for shape in factors:
        view = view_of(array, shape)
        if view is None:
            with pytest.raises(ValueError, match=r"cannot (have|be seen as) shape"):
                buffer.reshape(shape)
            continue
        seen = buffer.reshape(*shape)
        assert (seen.shape, seen.tolist()) == (view.shape, view.tolist())
        assert seen.access() is buffer.access()


def test_arguments_of_reshape(state):
    buffer = state.empty((2, 3), "int8")
    assert buffer.reshape(6).shape == buffer.reshape((6,)).shape == buffer.reshape([6]).shape == (6,)
    assert buffer.reshape(np.int64(3), 2).T.shape == (2, 3)
    for wrong in (5, (-1, -1), (-2, -3), (4, -1), (0, -1), ()):
        with pytest.raises(ValueError, match="cannot have shape"):
            buffer.reshape(wrong)
    for wrong in (1.5, "6", None, (2, "3")):
        with pytest.raises(TypeError):
            buffer.reshape(wrong)
    buffer.release()
    for call in (lambda: buffer.reshape(6), lambda: buffer.T, lambda: buffer.ptr):
        with pytest.raises(StaleBufferError):
            call()


@pytest.mark.simulator
def test_views_share_the_uses(four):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty((4, 8), "uint8", x.S)
    block = buffer.access()
    done = x.use(x.T, (block, WRITE))
    with use(x.U, read=[buffer.T, buffer.reshape(-1)]):
        assert x.ordered(done, x.U)


def test_the_address(state):
    buffer = state.full((4, 4), 1, "int32")
    base = buffer.access().ptr
    assert (buffer.ptr, buffer[1, 2:].ptr, buffer[::-1].ptr, buffer.T[2].ptr) == (base, base + 24, base + 48, base + 8)
    assert buffer[1:].data.ptr == base + 16
    assert (state.empty(0).ptr, state.empty((3, 0)).data.ptr) == (0, 0)
    state.begin_shutdown()
    with pytest.raises(StaleBufferError, match="shutting down"):
        _ = buffer.ptr


def test_numpy_makes_no_array_of_objects(state):
    """It took a second for each half million elements."""
    buffer = state.full(1000, 1, "float32")
    for make in (np.asarray, np.array, lambda what: np.add(what, 1), lambda what: np.array([1, 2]) + what):
        with pytest.raises(TypeError, match=r"use to_numpy\(\)"):
            make(buffer)


def test_lists(state):
    assert state.from_numpy([[1, 2], [3, 4]])[:, 1].tolist() == [2, 4]
    assert state.from_numpy(2.5).tolist() == 2.5
    assert state.from_numpy([True, False]).dtype == "bool"
    assert state.from_numpy(range(3)).dtype == "int64"
    assert state.empty((2, 0)).tolist() == [[], []]
    for wrong in (["a"], [object()], None, [[1], [2, 3]]):
        with pytest.raises((TypeError, ValueError)):
            state.from_numpy(wrong)
    state.runtime.reap_pending()
    assert state.runtime.live_bytes == 0


@pytest.mark.simulator
def test_a_list_is_made_after_the_writers(four, driver):
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(4, "uint8", x.S)
    buffer.fill(7, x.T)
    driver.set_policy("min")
    assert buffer.tolist(x.U) == [7] * 4


def test_dtypes_are_what_numpy_takes_for_one():
    """Every spelling of NumPy's, in both directions: what it takes is taken for the same, and the rest is refused."""
    kinds = "?bBhHiIlLqQpPefdFD"
    widths = [f"{letter}{width}" for letter in "biufc" for width in (1, 2, 4, 8, 16)]
    names = ["bool", "byte", "short", "intc", "int", "long", "longlong", "ubyte", "ushort", "uintc", "uint", "ulong",
             "ulonglong", "half", "single", "float", "double", "csingle", "cdouble", "complex", "intp", "uintp",
             "bool_", "int_", "int8", "float32", "complex128", "float128", "longdouble", "g", "S4", "U1", "O", "V8",
             "M8", "", "x", "f", "f3", "4", "f4,i4"]
    spelled = [*kinds, *widths, *names]
    for spelling in (*spelled, *(order + name for order in "<=|>" for name in spelled)):
        try:
            name = np.dtype(spelling).name if spelling else None
        except (TypeError, ValueError):
            name = None
        if name not in DTYPES or np.dtype(spelling).byteorder == ">":
            if spelling in DTYPES:                      # NumPy has it by its name alone
                continue
            with pytest.raises(TypeError, match="is unknown; choose one of"):
                dtype_of(spelling)
        else:
            assert dtype_of(spelling).name == name, spelling
            assert dtype_of(np.dtype(spelling)).name == dtype_of(np.dtype(spelling).type).name == name


def test_dtypes_need_no_numpy():
    code = ("import sys; sys.modules['numpy'] = None\n"
            "from xlogmem.interop._dtypes import dtype_of\n"
            "print(*(dtype_of(what).name for what in ('f4', '?', 'double', '<i2', float, bool)))")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["float32", "bool", "float64", "int16", "float64", "bool"]


# ---------------------------------------------------------------------------------------------- fills
@pytest.mark.simulator
@pytest.mark.parametrize(("count", "dtype", "value", "copies"), [
    (1 << 20, "float64", 0.1, 11), (512, "float64", 0.1, 0), (513, "float64", 0.1, 1), (1, "complex128", 1 + 2j, 0),
    (1000, "complex128", 1 + 2j, 2), (12345, "int64", 1 << 40, 5), (7, "int64", -2, 0)])
def test_a_wide_fill_is_doubled_on_the_device(state, driver, count, dtype, value, copies):
    """At most 4 KiB come from the host, in one call."""
    buffer = state.full(count, value, dtype)
    assert driver.calls("cuMemcpyHtoDAsync") == 1
    assert driver.calls("cuMemcpyDtoDAsync") == copies
    assert driver.calls("cuMemsetD8Async") + driver.calls("cuMemsetD16Async") + driver.calls("cuMemsetD32Async") == 0
    assert buffer.tolist() == [value] * count
    part = buffer[count // 3:]
    part.fill(value * 2)
    assert buffer.tolist() == [value] * (count // 3) + [value * 2] * (count - count // 3)


@pytest.mark.simulator
@pytest.mark.parametrize(("dtype", "value"), [("float64", 0.0), ("int64", -1), ("complex64", 1 + 1j), ("int8", 3)])
def test_an_even_fill_is_one_call(state, driver, dtype, value):
    buffer = state.full(1000, value, dtype)
    assert driver.calls("cuMemcpyHtoDAsync") == driver.calls("cuMemcpyDtoDAsync") == 0
    assert buffer.tolist() == [value] * 1000


@pytest.mark.simulator
def test_a_wide_fill_that_fails_counts_as_a_write(four, driver):
    """Part of it was enqueued."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(4096, "float64", x.S)
    driver.fail("cuMemcpyDtoDAsync", 2, code=999)
    with pytest.raises(DriverError, match=r"cuMemcpyDtoDAsync.*filling"):
        buffer.fill(0.1, x.T)
    assert ("written", x.T.id) in buffer.access().frontier
    x.use(x.U, (buffer.access(), READ))


# ---------------------------------------------------------------------------------------------- blocks as arrays
@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_the_interface_of_a_block_is_ordered(four, driver, dropped):
    """The stream that it names comes after all uses."""
    x = four()
    block = x.alloc(x.S)
    done = x.use(x.T, (block, WRITE))
    if dropped:
        driver.drop("cuStreamWaitEvent")
    said = block.__cuda_array_interface__
    assert said == {"version": 3, "shape": (512,), "typestr": "|u1", "data": (block.ptr, False), "strides": None,
                    "mask": None, "stream": x.S.handle}
    assert x.ordered(done, x.S) != dropped


@pytest.mark.simulator
def test_work_of_a_reader_of_a_block_is_waited_for(four):
    """Unrecorded, on the stream that was named, until the block is freed."""
    x = four()
    block = x.alloc(x.S)
    x.use(x.T, (block, WRITE))
    assert block.__cuda_array_interface__["stream"] == x.S.handle
    work = x.work(x.S, (block, WRITE))
    x.use(x.U, (block, READ))
    assert x.ordered(work, x.U)


def test_a_block_is_imported_as_an_array(state):
    block = state.runtime.allocate(16)
    seen = from_cuda_array(block, state=state)
    assert (seen.shape, seen.dtype, seen.ptr) == ((16,), "uint8", block.ptr)
    seen.fill(3)
    assert seen.tolist() == [3] * 16
    del seen
    block.free()
    with pytest.raises(Exception, match="was freed"):
        _ = block.__cuda_array_interface__
    assert from_cuda_array(DeviceRuntime().allocate(0), state=state).shape == (0,)
