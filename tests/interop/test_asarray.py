"""`empty`, `from_numpy` and `asarray`: buffers of the process's own runtime."""
from __future__ import annotations

import doctest
import inspect
from types import SimpleNamespace

import numpy
import pytest
from arrays import Array
from capsules import Producer
from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import DeviceState, use
from xlogmem.sim.kernels import check


@pytest.mark.usefixtures("_own")
def test_they_are_those_of_the_process():
    stream = xlogmem.get_runtime().acquire_stream()
    x = xlogmem.empty((2, 3), "f4", stream, tag="a tag")
    block = x.access()
    assert (x.shape, x.dtype, block.stream, block.tag) == ((2, 3), "float32", stream, "a tag")
    assert block.core is xlogmem.get_runtime()
    y = xlogmem.from_numpy([1, 2, 3], stream)
    assert ("written", stream.id) in y.access().frontier
    assert y.to_numpy().tolist() == [1, 2, 3]
    del x, y, block


@pytest.mark.parametrize("name", ["empty", "from_numpy", "asarray"])
def test_they_take_what_the_methods_take(name):
    method = inspect.signature(getattr(DeviceState, name))
    function = inspect.signature(getattr(xlogmem, name))
    assert [*method.parameters.values()][1:] == [*function.parameters.values()]


@pytest.mark.usefixtures("_own")
@pytest.mark.parametrize("name", ["empty", "from_numpy", "asarray"])
def test_their_examples_run(name):
    test, = doctest.DocTestFinder(recurse=False).find(getattr(xlogmem, name), name, globs={})
    assert doctest.DocTestRunner().run(test) == (0, len(test.examples))
    test.globs.clear()


def test_an_array_on_the_device_shares_its_memory(state, memory):
    stream = state.runtime.acquire_stream()
    for array in (Producer(memory), Array(data=(memory, False))):
        x = state.asarray(array, stream)
        assert x.ptr == memory
        assert x.shape == (16,)
        assert state.asarray(x) is x
        with use(stream, write=x):
            pass
        del x
        state.runtime.reap_pending()


def test_the_stream_waits_for_what_the_library_has_queued(four, driver, memory):
    for dropped in (False, True):
        x = four()
        state = DeviceState(x.runtime)
        x.kernels.fill(x.S.handle, memory, 1, 4)
        if dropped:
            driver.drop("cuStreamWaitEvent")
        buffer = state.asarray(Array(data=(memory, False), stream=x.S.handle), x.T)
        x.kernels.count_unequal(x.T.handle, x.next_word(), memory, 1, 1)
        races = driver.races()
        driver.clear_races()
        assert bool(races) == dropped
        del buffer
        x.runtime.reap_pending()


@pytest.mark.parametrize("array", [[1, 2], (1.5, 2.5), 7, numpy.arange(6).reshape(2, 3),
                                   numpy.arange(6)[::2], numpy.float32(3)])
def test_what_is_in_host_memory_is_copied(state, array):
    """NumPy's arrays have DLPack, too, of the host."""
    x = state.asarray(array)
    assert x.to_numpy().tolist() == numpy.asarray(array).tolist()
    assert x.dtype == numpy.asarray(array).dtype.name
    del x
    state.runtime.reap_pending()


class PinnedTensor:
    """As PyTorch's: DLPack's device says that the memory is page-locked."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return (3, 0)

    def __dlpack__(self, **_):
        raise AssertionError("a copy needs no capsule")

    def __array__(self, *args, **kwargs):
        return self.array


def test_a_page_locked_tensor_is_copied_as_an_array_is(state):
    x = state.asarray(PinnedTensor(numpy.arange(6)[::2]))
    assert x.tolist() == [0, 2, 4]
    del x
    state.runtime.reap_pending()


def test_an_arrow_array_is_imported(state):
    source = state.from_numpy(numpy.arange(8, dtype="int32"))
    column = SimpleNamespace(__arrow_c_device_array__=source.__arrow_c_device_array__)
    x = state.asarray(column)
    assert (x.ptr, x.shape, x.readonly) == (source.ptr, (8,), True)
    del x, source, column
    check(cuda.cuCtxSynchronize())
    state.runtime.reap_pending()
