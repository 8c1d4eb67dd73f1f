"""The recorder: what it accepts, what it refuses, and when."""
from __future__ import annotations

import gc
import warnings

import pytest

from xlogmem import Access, BlockState, DeviceRuntime, LaunchRecorder, StreamMisuseError, UseAfterFreeError, use


class CudaArray:
    """Somebody's array on the device."""

    def __init__(self, ptr: int, shape: tuple[int, ...] = (4,)) -> None:
        self.__cuda_array_interface__ = {"data": (ptr, False), "shape": shape, "typestr": "<f4", "version": 3}


@pytest.mark.parametrize("mode", ["strict", "permissive"])
@pytest.mark.contract(102)
def test_empty(mode):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    LaunchRecorder(stream, mode=mode).commit()
    with LaunchRecorder(stream, mode=mode) as recorder:
        assert recorder.recorded_count == 0


@pytest.mark.contract(90, 166)
def test_every_form_of_naming_a_block():
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)
    for what in (block, block.id, block.ptr, block.ptr + 63, CudaArray(block.ptr + 16), [block], (block, block.id)):
        with use(T, read=what) as recorder:
            assert recorder.recorded_count == (len(what) if isinstance(what, (list, tuple)) else 1)
        assert ("has-read", T.id) in block.frontier


def test_a_stream_keeps_its_runtime():
    stream = DeviceRuntime().acquire_stream()
    with use(stream) as recorder:
        assert recorder.stream == stream
    assert recorder.runtime.allocate(64, stream).stream == stream


@pytest.mark.contract(103, 104, 106)
def test_uses_of_one_block_are_merged_to_the_strongest():
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    for first, second in (("read", "write"), ("write", "read"), ("read_write", "read"), ("read", "read_write")):
        block = runtime.allocate(64, S)
        with LaunchRecorder(T) as recorder:
            recorder.cancel()
        recorder = LaunchRecorder(T)
        assert getattr(recorder, first)(block) is recorder
        getattr(recorder, second)(block.id)
        with recorder:
            pass
        assert recorder.recorded_count == 2
        assert set(block.frontier) == {("written", T.id)}
    block = runtime.allocate(64, S)
    with use(T, read=[block, block]):
        pass
    assert set(block.frontier) == {("allocated", S.id), ("has-read", T.id)}


@pytest.mark.contract(7)
def test_access_says_what_it_does():
    assert (Access.READ.reads, Access.READ.writes) == (True, False)
    assert (Access.WRITE.reads, Access.WRITE.writes) == (False, True)
    assert (Access.READ_WRITE.reads, Access.READ_WRITE.writes) == (True, True)
    assert Access.READ | Access.WRITE is Access.READ_WRITE


@pytest.mark.contract(94, 95)
def test_strict_refuses_untracked_memory_at_preflight():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    recorder = LaunchRecorder(stream).read(CudaArray(0x1234)).write(0x5678)
    with pytest.raises(StreamMisuseError, match=r"read: untracked buffer rejected.*; .*write: untracked"):
        recorder.preflight()
    with pytest.raises(StreamMisuseError, match="untracked buffer rejected"), use(stream, read=0x1234):
        raise AssertionError("not reached")


@pytest.mark.contract(93, 96)
def test_permissive_leaves_untracked_memory_out():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    with use(stream, read=[0x1234, block], write=CudaArray(0x5678), mode="permissive") as recorder:
        assert recorder.recorded_count == 1
    assert ("has-read", stream.id) in block.frontier


def test_zero_length_arrays_are_trivially_safe():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    with use(stream, read=CudaArray(0, shape=(0, 5))) as recorder:
        assert recorder.recorded_count == 0


def test_what_is_no_memory_is_a_type_error():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    with pytest.raises(TypeError, match=r"LaunchRecorder\.write: str is no block"):
        use(stream, write="a block")
    with pytest.raises(TypeError):
        use("a stream", write=[])
    with pytest.raises(ValueError, match="mode"):
        LaunchRecorder(stream, mode="lenient")
    with pytest.raises(ValueError, match="handback"):
        use(stream, handback="never")


@pytest.mark.contract(97)
def test_registering_after_preflight_is_refused_and_nothing_is_lost():
    """W7: the late call raises at once; what was preflighted is filed all the same."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block, late = runtime.allocate(64), runtime.allocate(64)
    recorder = LaunchRecorder(stream).write(block)
    recorder.preflight()
    with pytest.raises(StreamMisuseError, match="recorded after preflight"):
        recorder.read(late)
    recorder.commit()
    assert ("written", stream.id) in block.frontier
    assert ("has-read", stream.id) not in late.frontier


@pytest.mark.contract(101)
def test_commit_needs_a_preflight():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    recorder = LaunchRecorder(stream).write(block)
    with pytest.raises(StreamMisuseError, match="without a successful preflight"):
        recorder.commit()
    recorder.preflight()                                # nothing was lost
    recorder.commit()
    for again in (recorder.preflight, recorder.commit, recorder.cancel):
        with pytest.raises(StreamMisuseError):
            again()


@pytest.mark.contract(100, 110)
def test_a_stale_block_is_found_before_anything_opens():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    alive, dead = runtime.allocate(64), runtime.allocate(64)
    recorder = LaunchRecorder(stream).read(alive).write(dead)
    dead.free()
    with pytest.raises(UseAfterFreeError, match="argument 2"):
        recorder.preflight()
    alive.free()
    assert alive.state is BlockState.FREED
    assert runtime.counters()["waits"] == 0


def test_cancel_files_nothing():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    before = block.frontier.keys()
    with use(stream, write=block) as recorder:
        recorder.cancel()
    assert block.frontier.keys() == before
    assert runtime.counters()["cancelled"] == 1


def test_an_exception_files_and_goes_on():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    with pytest.raises(KeyError), use(stream, write=block):
        raise KeyError
    assert ("written", stream.id) in block.frontier


@pytest.mark.contract(107)
def test_a_recorder_dropped_in_its_window_warns_and_is_filed_by_the_next_call():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    recorder = LaunchRecorder(stream).write(block)
    recorder.preflight()
    with pytest.warns(ResourceWarning, match="dropped between preflight and commit"):
        del recorder
        gc.collect()
    assert ("written", stream.id) not in block.frontier
    runtime.reap_pending()
    assert ("written", stream.id) in block.frontier
    block.free()
    assert block.state is BlockState.FREED


def test_a_recorder_dropped_before_preflight_is_silent():
    runtime = DeviceRuntime()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LaunchRecorder(runtime.acquire_stream()).write(runtime.allocate(64))
        gc.collect()


@pytest.mark.contract(91)
def test_a_recorder_keeps_its_runtime_and_no_block():
    runtime = DeviceRuntime()
    recorder = LaunchRecorder(runtime.acquire_stream()).read(runtime.allocate(64))
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    del runtime
    with pytest.raises(UseAfterFreeError):
        recorder.preflight()
