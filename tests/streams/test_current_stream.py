"""`use` without a stream: the current stream of the libraries whose arrays are named.  With stand-ins for them."""
from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from arrays import Array
from four_streams import READ, WRITE
from stand_ins import Buffer, Tensor

from xlogmem import DeviceRuntime, StreamMisuseError, use

NAMES = ("cupy", "torch", "numba")


@pytest.fixture
def libraries(monkeypatch):
    """No library is in use, until one of these functions says which stream of it is current."""
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)

    def cupy(stream):
        current = SimpleNamespace(get_current_stream=lambda: stream)
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=current))

    def torch(stream, initialized=True, device=None):
        def current_stream(where):
            assert initialized
            assert device is None or where == device
            return stream

        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(
            current_stream=current_stream, is_initialized=lambda: initialized)))

    def numba(per_thread):
        monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(config=SimpleNamespace(
            CUDA_PER_THREAD_DEFAULT_STREAM=per_thread)))

    return SimpleNamespace(cupy=cupy, torch=torch, numba=numba)


def array(library, ptr):
    if library == "torch":
        return type("Tensor", (Tensor,), {"__module__": "torch", "device": "cuda:0"})(ptr, (64,))
    return type("Array", (Array,), {"__module__": f"{library}.core"})(data=(ptr, False))


@pytest.mark.parametrize("nothing", [None, "current"])
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_the_library_of_the_arrays_says_which(libraries, nothing, library):
    runtime = DeviceRuntime()
    block = runtime.allocate(64)
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    libraries.cupy(S if library == "cupy" else T)
    libraries.torch(T if library == "cupy" else S, device="cuda:0" if library == "torch" else None)
    what = array(library, block.ptr)
    for things in (what, [block, what], {"x": ([what],)}):
        with use(nothing, read=things, runtime=runtime) as recorder:
            assert recorder.stream == S
    with use(stream=nothing, write=[block, what]) as recorder:      # the runtime of the block
        assert (recorder.stream, recorder.runtime) == (S, runtime)


@pytest.mark.parametrize(("per_thread", "handle"), [(0, 1), (1, 2)])
def test_numbas_is_its_default_stream(libraries, per_thread, handle):
    runtime = DeviceRuntime()
    block = runtime.allocate(64)
    libraries.numba(per_thread)
    with use(None, read=[block, array("numba", block.ptr)]) as recorder:
        assert recorder.stream.handle == handle


def test_two_libraries_have_to_agree(libraries):
    runtime = DeviceRuntime()
    block = runtime.allocate(64)
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    libraries.cupy(S)
    libraries.torch(T)
    both = [array("cupy", block.ptr), array("torch", block.ptr)]
    says = rf"cupy is on {S.handle:#x}, torch is on {T.handle:#x}"
    for read, write in ((both, ()), (both[0], {"x": both[1]}), (block, ())):
        with pytest.raises(StreamMisuseError, match=says):
            use(None, read, write, runtime=runtime)
    assert block.frontier.keys() == {("allocated", block.stream.id)}
    libraries.torch(S)
    with use(None, read=both, write=block) as recorder:
        assert recorder.stream == S


def test_blocks_have_no_library_and_those_in_use_count(libraries):
    runtime = DeviceRuntime()
    block = runtime.allocate(64)
    S = runtime.acquire_stream()
    libraries.cupy(S)
    libraries.torch(5, initialized=False)               # imported, and not in use: a query would start it
    libraries.numba(0)                                  # it has no current stream for what is not its own
    for what in (block, block.id, block.ptr, Buffer(block.ptr, 64)):
        with use(None, write=what, runtime=runtime) as recorder:
            assert recorder.stream == S


@pytest.mark.parametrize("module", [None, "cupy", "torch", "numba"])
def test_without_a_current_stream_one_has_to_be_named(libraries, monkeypatch, module):
    """No library is in use, one is being imported, or cuda.core's buffers are named, which has none."""
    runtime = DeviceRuntime()
    block = runtime.allocate(64)
    if module is not None:
        monkeypatch.setitem(sys.modules, module, SimpleNamespace())
    for what in ((), block, Buffer(block.ptr, 64)):
        for nothing in (None, "current"):
            with pytest.raises(TypeError, match="no stream was named"):
                use(nothing, read=what)
    with pytest.raises(TypeError, match=r"'legacy' \(of type str\) is not a CUDA stream"):
        use("legacy", read=block)
    assert "cupy" not in sys.modules or module == "cupy"


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_a_launch_on_the_current_stream_is_ordered(four, driver, libraries, dropped):
    x = four()
    block = x.alloc(x.S)
    libraries.cupy(x.T)
    with use(x.S, write=block):
        x.work(x.S, (block, WRITE))
    if dropped:
        driver.drop("cuStreamWaitEvent")
    with use(None, read=array("cupy", block.ptr), runtime=x.runtime):
        x.work(x.T, (block, READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    driver.reset("eager")
