"""CuPy's arrays as blocks: found by their addresses, ordered by `use`, freed in order."""
from __future__ import annotations

import pytest
from allocator_stand_ins import NullStream
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream

import xlogmem
from xlogmem import (
    DeviceRuntime,
    DriverError,
    LimitingResourceAdaptor,
    OutOfBudgetError,
    StreamMisuseError,
    allocators,
    use,
)
from xlogmem import runtime as runtimes
from xlogmem.allocators import _opaque
from xlogmem.resources import AsyncMemoryResource
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


@pytest.fixture
def enabled(cupy, x):
    """CuPy allocates from x's runtime, on a stream of its own."""
    cupy.current.stream = ForeignStream()
    xlogmem.enable("cupy")
    yield cupy
    cupy.current.stream = NullStream()


def test_an_array_is_a_block_until_nothing_refers_to_it(enabled, x):
    array = enabled.empty(512)
    found = x.runtime.find_block(array.data.ptr + 511)
    assert (found.ptr, found.device_id) == (array.data.ptr, 0)
    assert found.alloc_stream.handle == enabled.current.stream.handle
    assert found.alloc_stream.discipline == "opaque"
    assert (array.data.mem.size, array.data.mem.device_id, x.runtime.live_bytes) == (512, 0, 512)
    view = array.data
    del array
    assert x.runtime.find_block(view.ptr) == found
    xlogmem.disable("cupy")                             # it stays tracked
    assert x.runtime.find_block(view.ptr) == found
    del view
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0


def test_arrays_without_bytes_are_no_blocks(enabled, x):
    array = enabled.empty(0)
    assert (array.data.ptr, array.data.mem.size, x.runtime.counters()["allocations"]) == (0, 0, 0)
    with use(x.T, read=array):
        pass


@pytest.mark.parametrize("declared", [True, False])
def test_a_use_orders_another_stream_after_cupy_and_cupy_after_it(enabled, x, declared):
    """CuPy writes, T adds, CuPy adds, U adds: unrecorded on CuPy's stream.  What is not declared races."""
    stream = enabled.current.stream
    array = enabled.empty(512)
    ptr, races = array.data.ptr, []
    x.kernels.fill(stream.handle, ptr, 1, 1)
    for other in (x.T, x.U):
        if declared:
            with use(other, read_write=array):
                x.kernels.add(other.handle, ptr, 1, 1)
        else:
            x.kernels.add(other.handle, ptr, 1, 1)
            races.append(len(x.driver.races()))
            x.driver.clear_races()
        x.kernels.add(stream.handle, ptr, 1, 1)
    if not declared:
        assert races[0]
        check(cuda.cuCtxSynchronize())
        x.driver.clear_races()
    del array


def test_an_ordinary_stream_would_not_do(enabled, x, monkeypatch):
    """The twin of the test above: after the first use elsewhere, CuPy's own work is waited for because it is opaque."""
    monkeypatch.setattr(_opaque.OpaqueStreams, "find", lambda self, runtime, owner: runtime.register_stream(owner))
    stream = enabled.current.stream
    array = enabled.empty(512)
    with use(x.T, read_write=array):
        x.kernels.add(x.T.handle, array.data.ptr, 1, 1)
    x.kernels.add(stream.handle, array.data.ptr, 1, 1)
    assert x.driver.races()
    x.driver.clear_races()
    check(cuda.cuCtxSynchronize())
    x.driver.clear_races()


@pytest.mark.parametrize("declared", [True, False])
def test_the_free_waits_for_uses_and_for_no_other_work(enabled, x, declared):
    stream = enabled.current.stream
    array = enabled.empty(512)
    if declared:
        with use(x.T, read=array):
            read = x.work(x.T)
    else:
        read = x.work(x.T)
    del array
    x.runtime.reap_pending(blocking=False)              # carries out what finalizers left
    assert x.ordered(read, stream) == declared
    assert not x.ordered(x.work(x.V), stream)


def test_a_stream_that_a_use_named_first_becomes_opaque_inside_of_it(enabled, x):
    """``with stream, use(stream, read=x): y = x * 2``: CuPy allocates the result while the window is open."""
    array = enabled.empty(512)
    side = ForeignStream()
    with use(side, read=array):
        assert x.runtime.register_stream(side).discipline == "ordinary"
        enabled.current.stream = side
        result = enabled.empty(512)
    assert x.runtime.register_stream(side).discipline == "opaque"
    x.kernels.fill(side.handle, result.data.ptr, 1, 1)
    with use(x.T, read=result):
        x.kernels.add(x.T.handle, result.data.ptr, 1, 1)


def test_out_of_memory_is_cupys_error_after_a_collection(cupy, clean, four):
    x = four(resource=LimitingResourceAdaptor(AsyncMemoryResource(), 1024))
    runtimes._runtimes[0] = x.runtime
    xlogmem.enable("cupy")
    array = cupy.empty(600)
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match=r"600 bytes \(so far: 600, limit: 1024\)") as caught:
        cupy.empty(600)
    assert isinstance(caught.value.__cause__, OutOfBudgetError)
    del caught
    circle = [array]
    circle.append(circle)
    del array, circle
    assert cupy.empty(600).data.ptr                     # what was in the circle is collected


def test_arrays_that_are_dropped_in_a_capture_bring_a_warning(enabled, x):
    """The graph does not own their memory.  Arrays before and after, and a capture without any, are silent."""
    before, first, second, kept = (enabled.empty(nbytes) for nbytes in (512, 512, 1024, 512))
    stream = enabled.cuda.Stream(enabled.current.stream.handle)
    del before
    stream.begin_capture()
    x.kernels.fill(stream.handle, first.data.ptr, 1, 1)
    del first, second
    with pytest.warns(RuntimeWarning, match=r"2 CuPy arrays of 1.5 KiB dropped .* alive as long as the graph") as said:
        graphs = [stream.end_capture()]
    assert said[0].filename == __file__
    del kept
    stream.begin_capture()
    graphs.append(stream.end_capture())
    for graph in graphs:
        check(cuda.cuGraphDestroy(graph))


def test_captures_that_overlap_warn_once(enabled, x):
    foreign = [ForeignStream(), ForeignStream()]
    streams = [enabled.cuda.ExternalStream(stream.handle) for stream in foreign]
    array = enabled.empty(512)
    for stream in streams:
        stream.begin_capture()
    del array
    graphs = [streams[0].end_capture()]
    with pytest.warns(RuntimeWarning, match="1 CuPy array of 512 B dropped"):
        graphs.append(streams[1].end_capture())
    for graph in graphs:
        check(cuda.cuGraphDestroy(graph))


@pytest.mark.parametrize("disabled", ["between", "in a capture"])
def test_a_disabled_library_has_its_own_methods_again(enabled, x, disabled):
    kinds = enabled.cuda.Stream, enabled.cuda.ExternalStream
    stream = enabled.cuda.Stream(enabled.current.stream.handle)
    array = enabled.empty(512)
    if disabled == "in a capture":
        stream.begin_capture()
    xlogmem.disable("cupy")
    assert not any("capture" in name for kind in kinds for name in vars(kind))
    if disabled == "between":
        stream.begin_capture()
    del array
    check(cuda.cuGraphDestroy(stream.end_capture()))
    xlogmem.enable("cupy")


def test_a_capture_that_ends_without_a_graph_is_silent(enabled, x):
    stream = enabled.cuda.Stream(enabled.current.stream.handle)
    array = enabled.empty(512)
    with pytest.raises(DriverError, match="ILLEGAL_STATE"):
        stream.end_capture()                            # none has begun
    stream.begin_capture()
    with pytest.raises(DriverError):
        stream.begin_capture()
    (error,) = cuda.cuStreamSynchronize(stream.handle)
    assert error == cuda.CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    del array
    with pytest.raises(DriverError, match="INVALIDATED"):
        stream.end_capture()
    array = enabled.empty(512)                          # and nothing is counted any more
    del array


def test_a_capture_is_refused_and_the_stream_goes_on(enabled, x):
    stream = enabled.current.stream
    array = enabled.empty(512)
    check(cuda.cuStreamBeginCapture(stream.stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    with pytest.raises(StreamMisuseError, match="capturing"):
        enabled.empty(512)
    del array                                           # freed after the capture
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(stream.stream))))
    assert enabled.empty(512).data.ptr
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0


def test_each_device_has_its_runtime(enabled, x):
    enabled.current.stream = NullStream()               # the same object stands for that of each device
    here = enabled.empty(512)
    enabled.current.device = 1
    there = enabled.empty(512)
    other = xlogmem.get_runtime(1)
    assert isinstance(other, DeviceRuntime)
    assert there.data.mem.device_id == other.find_block(there.data.ptr).device_id == 1
    assert (x.runtime.live_bytes, other.live_bytes) == (512, 512)
    assert x.runtime.find_block(there.data.ptr) is None
    del here, there
    for runtime in (x.runtime, other):
        runtime.reap_pending()
        assert runtime.live_bytes == 0
    assert len(allocators.cupy._streams) == 0           # default streams need no entry
