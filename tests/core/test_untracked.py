"""`untracked=`: memory that no runtime tracks is refused, left out, or adopted for as long as its owner lives."""
from __future__ import annotations

import contextlib
import gc
import sys
from types import SimpleNamespace

import pytest
from arrays import Array, CudaArray
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE, nothing_happens
from stand_ins import BARE, NBYTES, SIZED, Buffer, MemoryPointer, Tensor

from xlogmem import DeviceRuntime, LaunchRecorder, StreamMisuseError, use
from xlogmem.blocks import unfinished_runtimes
from xlogmem.sim.kernels import check


class Slots:
    """Without weak references, as RMM's buffers and cuda.bindings' pointers are."""

    __slots__ = ("__cuda_array_interface__",)

    def __init__(self, ptr: int) -> None:
        self.__cuda_array_interface__ = Array(data=(ptr, False)).interface


def judge(driver, wrong):
    """Whether there was a race, and none is left of what the context still has queued."""
    races = driver.races()
    driver.clear_races()
    assert bool(races) == wrong
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


def at(ptr: int) -> SimpleNamespace:
    return SimpleNamespace(ptr=ptr)


# ---------------------------------------------------------------------------------------------- choices
def test_the_choices_are_named():
    runtime = DeviceRuntime()
    S = runtime.default_stream
    assert LaunchRecorder(S).untracked == use(S).untracked == "raise"
    for choice in ("raise", "ignore", "adopt"):
        for recorder in (LaunchRecorder(S, untracked=choice), use(S, untracked=choice)):
            assert recorder.untracked == choice
            assert f"untracked='{choice}'" in repr(recorder)
    for wrong in ("", "strict", "Adopt", None):
        with pytest.raises(ValueError, match="choose raise, ignore or adopt"):
            use(S, untracked=wrong)
    with pytest.raises(TypeError):
        use(S, untracked=1)


@pytest.mark.parametrize("kind", SIZED)
def test_what_is_not_tracked_is_refused_left_out_or_adopted(memory, kind):
    runtime = DeviceRuntime()
    S = runtime.acquire_stream()
    what = SIZED[kind](memory)
    with pytest.raises(StreamMisuseError, match="is not tracked by"):
        use(S, read=what).preflight()
    with use(S, read=what, untracked="ignore") as recorder:
        assert recorder.recorded_count == 0
    assert runtime.find_block(what) is None
    with use(S, read=what, untracked="adopt") as recorder:
        assert recorder.recorded_count == 1
    found = runtime.find_block(what)
    assert (found.ptr, found.alloc_stream) == (memory, S)
    with use(S, write=what):                            # it is tracked from now on
        pass
    with use(S, write=what, untracked="adopt"):
        pass
    assert runtime.find_block(what) == found


def test_what_cannot_be_adopted_is_refused_before_the_driver_is_called(memory, driver):
    runtime = DeviceRuntime()
    S = runtime.acquire_stream()
    bare = [make(memory) for make in BARE.values()]
    for what, says in (*((one, "does not say how many bytes") for one in bare), (Slots(memory), "no weak references"),
                       ([Tensor(memory), 4711], "does not say how many bytes")):
        recorder = use(S, read=what, untracked="adopt")
        with nothing_happens(driver, runtime), pytest.raises(StreamMisuseError, match=says):
            recorder.preflight()
        with pytest.raises(StreamMisuseError, match=says):
            recorder.commit()
    assert runtime.find_block(memory) is None           # nothing of the list either
    block = runtime.adopt(Slots(memory), stream=S)      # as the message says
    with use(S, read=Slots(memory), untracked="adopt"):
        pass
    del block


def test_an_adoption_is_the_preflights(memory):
    runtime = DeviceRuntime()
    S = runtime.acquire_stream()
    what = Tensor(memory)
    recorder = use(S, write=what, untracked="adopt")
    assert runtime.find_block(what) is None
    with pytest.raises(StreamMisuseError, match=r"preflight\(\) was not called"):
        recorder.commit()
    recorder.preflight()
    assert runtime.find_block(what) is not None
    recorder.commit()
    use(S, write=Tensor(memory), untracked="adopt").cancel()


def test_overlapping_memory_is_refused_and_what_was_adopted_stays(memory):
    runtime = DeviceRuntime()
    S = runtime.acquire_stream()
    first, part = Tensor(memory, (1024,)), Tensor(memory + 512, (1024,))
    recorder = use(S, read=[first, part], untracked="adopt")
    for _ in range(2):
        with pytest.raises(StreamMisuseError, match="overlaps block"):
            recorder.preflight()
    assert runtime.find_block(first) is not None
    assert recorder.recorded_count == 1


# ---------------------------------------------------------------------------------------------- order
@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_everything_queued_on_the_stream_named_comes_first(four, driver, memory, dropped):
    """It is adopted there: the next use elsewhere comes after what was queued, recorded or not."""
    x = four()
    what = Tensor(memory)
    x.kernels.fill(x.S.handle, memory, 1, 1)
    with use(x.S, read=what, untracked="adopt"):
        pass
    if dropped:
        driver.drop("cuStreamWaitEvent")
    with use(x.T, read=what):
        x.work(x.T, (at(memory), READ))
    judge(driver, dropped)


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [0, 1, 2], ids=["none", "the use's wait", "the hand-back"])
def test_what_the_owner_queues_later_and_does_not_record(four, driver, memory, dropped):
    """A use elsewhere comes after it, and it after the use: the stream counts as opaque for this memory."""
    x = four()
    what = Tensor(memory)
    with use(x.S, write=what, untracked="adopt"):
        x.work(x.S, (at(memory), WRITE))
    if dropped:
        driver.drop("cuStreamWaitEvent", dropped)
    x.kernels.fill(x.S.handle, memory, 2, 1)            # as any function of the library does
    with use(x.T, write=what):
        x.work(x.T, (at(memory), WRITE))
    x.kernels.fill(x.S.handle, memory, 3, 1)
    judge(driver, bool(dropped))


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_the_next_owner_of_the_address_comes_after_the_uses_of_the_last(four, driver, memory, dropped):
    x = four()
    what = Tensor(memory)
    with use(x.S, write=what, untracked="adopt"):
        pass
    if dropped:
        driver.drop("cuStreamWaitEvent", 2)             # the hand-back
    with use(x.T, write=what):
        x.work(x.T, (at(memory), WRITE))
    del what                                            # its library hands out the address again, on its stream
    following = Tensor(memory)
    x.kernels.fill(x.S.handle, memory, 3, 1)
    with use(x.S, write=following, untracked="adopt"):
        x.work(x.S, (at(memory), WRITE))
    judge(driver, dropped)


@pytest.mark.simulator
def test_the_stream_of_the_owners_library_is_its_home(four, driver, memory, monkeypatch):
    """CuPy's current stream, if that is another one than the launch goes to."""
    x = four()
    module = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: x.S))
    monkeypatch.setitem(sys.modules, "cupy", module)
    what = type("ndarray", (Array,), {"__module__": "cupy", "base": None})(data=(memory, False))
    x.kernels.fill(x.S.handle, memory, 1, 1)
    with use(x.T, write=what, untracked="adopt"):
        x.work(x.T, (at(memory), WRITE))
    x.kernels.fill(x.S.handle, memory, 1, 1)
    assert x.runtime.find_block(what).alloc_stream == x.S
    assert driver.calls("cuStreamWaitEvent") == 2
    check(cuda.cuCtxSynchronize())


# ---------------------------------------------------------------------------------------------- the end of the owner
def test_an_adoption_ends_with_its_owner_and_the_next_is_another(memory):
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    generations = set()
    for _ in range(3):
        owner = Tensor(memory)
        with use(S, write=owner, untracked="adopt"):
            pass
        block = runtime.find_block(memory)
        assert block.generation not in generations
        generations.add(block.generation)
        calls = runtime.counters()
        del owner                                       # no driver call: pushed, as a block's handle is
        assert runtime.counters() == calls
        assert runtime.find_block(memory) is None       # at once, although nothing was drained
        for what in (memory, Tensor(memory)):
            with pytest.raises(StreamMisuseError, match="untracked"):
                use(T, read=what).preflight()
        with use(T, read=memory, untracked="ignore") as recorder:
            assert recorder.recorded_count == 0
    runtime.reap_pending()
    assert runtime.counters()["live_blocks"] == 0


def test_a_use_of_a_range_that_ignores_leaves_out_what_ended(memory):
    runtime = DeviceRuntime()
    S = runtime.acquire_stream()
    low, high = Tensor(memory, (1024,)), Tensor(memory + 2048, (1024,))
    with use(S, read=[low, high], untracked="adopt"):
        pass
    del high
    with use(S, read=Tensor(memory), untracked="ignore") as recorder:
        assert recorder.recorded_count == 1


@pytest.mark.simulator
def test_the_end_of_an_owner_inside_a_use_or_a_capture_waits(four, driver, memory):
    x = four()
    owner = Tensor(memory)
    with use(x.S, write=owner, untracked="adopt"):
        pass
    with use(x.T, write=owner):
        del owner
        x.runtime.reap_pending(blocking=False)          # the window keeps the block
        following = Tensor(memory)
        with pytest.raises(StreamMisuseError, match="whose owner is gone"):
            use(x.S, write=following, untracked="adopt").preflight()
        with pytest.raises(StreamMisuseError, match="whose owner is gone"):
            x.runtime.adopt(following)
    with use(x.S, write=following, untracked="adopt"):
        pass
    calls = driver.all_calls()
    check(cuda.cuStreamBeginCapture(x.S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    del following
    gc.collect()
    graph = check(cuda.cuStreamEndCapture(x.S.handle))  # the finalizer has not touched it
    check(cuda.cuGraphDestroy(graph))
    changed = {name for name, count in driver.all_calls().items() if count != calls.get(name, 0)}
    assert changed <= {"cuStreamBeginCapture", "cuStreamEndCapture", "cuGraphDestroy"}


def test_a_closed_buffer_is_gone(memory):
    """cuda.core's are closed, and live on; what is at the address then is another buffer."""
    runtime = DeviceRuntime()
    S = runtime.acquire_stream()
    closed = Buffer(memory)
    with use(S, write=closed, untracked="adopt"):
        pass
    former = runtime.find_block(memory)
    closed.close()
    assert runtime.find_block(memory) is None
    following = Buffer(memory)
    with use(S, write=following, untracked="adopt"):
        pass
    assert runtime.find_block(memory).generation > former.generation
    del closed
    assert runtime.find_block(memory) is not None


def test_owners_that_live_longer_than_the_runtime(memory):
    owners = [Tensor(memory), Buffer(memory + NBYTES // 2, 64)]
    owners[0].shape = (64,)
    runtime = DeviceRuntime()
    with use(runtime.acquire_stream(), read=owners, untracked="adopt"):
        pass
    del runtime
    gc.collect()
    assert unfinished_runtimes() == 0
    owners.clear()
    gc.collect()


def test_the_owner_is_not_held_and_neither_is_the_runtime(memory):
    runtime = DeviceRuntime()
    owner = Tensor(memory)
    references = sys.getrefcount(owner), sys.getrefcount(runtime)
    recorder = use(runtime.default_stream, read=owner, untracked="adopt")
    with recorder:
        assert sys.getrefcount(owner) > references[0]   # until the use is filed
    del recorder
    gc.collect()
    assert (sys.getrefcount(owner), sys.getrefcount(runtime)) == references


def test_an_owner_without_another_reference(memory):
    """It lives until the use is filed, and its memory is tracked that long."""
    runtime = DeviceRuntime()
    with use(runtime.default_stream, read=Tensor(memory), untracked="adopt") as recorder:
        assert recorder.recorded_count == 1
    assert runtime.find_block(memory) is None


# ---------------------------------------------------------------------------------------------- views
def cupy_array(ptr: int, nbytes: int, base: object = None) -> object:
    kind = type("ndarray", (Array,), {"__module__": "cupy", "base": base})
    return kind(data=(ptr, False), shape=(nbytes,))


def numba_array(ptr: int, nbytes: int, base: object = None) -> object:
    owner = base.gpu_data.owner if base is not None else type("Pointer", (), {
        "__module__": "numba.cuda", "handle": ptr, "size": nbytes})()
    kind = type("DeviceNDArray", (Array,), {"__module__": "numba.cuda", "stream": 0})
    array = kind(data=(ptr, False), shape=(nbytes,))
    array.gpu_data = type("View", (), {"__module__": "numba.cuda"})()
    array.gpu_data.owner = owner
    return array


def torch_tensor(ptr: int, nbytes: int, base: object = None) -> object:
    storage = base.untyped_storage() if base is not None else type("UntypedStorage", (), {
        "__module__": "torch.storage", "data_ptr": lambda self: ptr, "nbytes": lambda self: nbytes})()
    kind = type("Tensor", (Tensor,), {"__module__": "torch", "device": 0})
    tensor = kind(ptr, (nbytes,))
    tensor.untyped_storage = lambda: storage
    return tensor


@pytest.mark.parametrize("make", [cupy_array, numba_array, torch_tensor])
def test_of_a_view_all_of_the_memory_is_adopted_for_as_long_as_it_lives(memory, make, monkeypatch):
    runtime = DeviceRuntime()
    S = runtime.acquire_stream()
    current = SimpleNamespace(get_current_stream=lambda: S, current_stream=lambda device: S)
    for library in ("cupy", "torch", "numba"):
        monkeypatch.setitem(sys.modules, library, SimpleNamespace(cuda=current, config=None))
    whole = make(memory, NBYTES)
    # Numba goes on with an array on the default stream, the others on S: who else has used it is not known.
    expected = contextlib.nullcontext() if make is numba_array else pytest.warns(
        RuntimeWarning, match=r"does not wait for what other streams .* Call xlogmem.enable")
    with expected, use(S, read=make(memory + 64, 8, whole), untracked="adopt"):
        pass
    gc.collect()                                        # the view is gone
    found = runtime.find_block(whole)
    assert found is not None
    assert found.ptr == memory
    with use(S, write=[whole, make(memory + 1024, 2048, whole)]):
        pass
    del whole
    gc.collect()
    assert runtime.find_block(memory) is None


def test_a_pointer_into_an_allocation_is_adopted_to_its_end(memory):
    runtime = DeviceRuntime()
    pointer = MemoryPointer(memory, 256)
    block = runtime.adopt(pointer)
    assert (block.ptr, block.nbytes) == (memory + 256, NBYTES - 256)


@pytest.mark.parametrize(("library", "advice"), [
    ("cupy", r"cupy\.ndarray at 0x\w+ \(4\.0 KiB\) is not .*Call xlogmem\.enable\('cupy'\) before CuPy allocates"),
    ("torch", r"torch\.ndarray at .*Call xlogmem\.enable\('torch'\) before PyTorch allocates"),
    ("numba", r"numba\.ndarray at .*Call xlogmem\.enable\('numba'\) before Numba allocates"),
    ("another", r"ndarray at .*Allocate it from the runtime, or track it with xlogmem.get_runtime\(\).adopt\("),
])
def test_advice_depends_on_the_library(memory, library, advice):
    """It stands once, however many arrays there are; `untracked="adopt"` is not the advice."""
    S = DeviceRuntime().acquire_stream()
    kind = type("ndarray", (CudaArray,), {"__module__": f"{library}._core"})
    arrays = [kind(memory, shape=(1024,)), kind(memory + NBYTES, shape=(1024,))]
    with pytest.raises(StreamMisuseError, match=advice) as error:
        use(S, read=arrays[0], write=arrays[1]).preflight()
    text = str(error.value)
    assert text.count("is not tracked by") == 2
    assert text.count("adopt(x, stream=s)") == 1


def test_memory_from_before_enable_is_named(memory, monkeypatch):
    import xlogmem.allocators

    monkeypatch.setitem(xlogmem.allocators._enabled, "cupy", SimpleNamespace())
    kind = type("ndarray", (CudaArray,), {"__module__": "cupy"})
    with pytest.raises(StreamMisuseError, match=r"CuPy allocated it before xlogmem\.enable\('cupy'\): call that first"):
        use(DeviceRuntime().acquire_stream(), read=kind(memory)).preflight()
