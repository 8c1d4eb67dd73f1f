"""CuPy's arrays as blocks: found by their addresses, ordered by `use`, freed in order."""
from __future__ import annotations

import gc
import weakref

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
    OutOfDeviceMemoryError,
    PinnedMemoryResource,
    PoolMemoryResource,
    StreamMisuseError,
    allocators,
    host,
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


@pytest.mark.parametrize("known", [True, False])
def test_arrays_of_programs_that_name_no_stream_are_of_the_legacy_one(enabled, x, monkeypatch, known):
    """Work there is neither recorded nor ordered by hand.  The twin takes the stream of allocations that name none."""
    if not known:
        monkeypatch.setattr(_opaque.OpaqueStreams, "find", lambda self, runtime, owner, stays: runtime.default_stream)
    enabled.current.stream = enabled.cuda.Stream.null
    for _ in range(2):
        array = enabled.empty(512)
        x.kernels.fill(0, array.data.ptr, 1, 1)
        with use(x.T, read_write=array):
            x.kernels.add(x.T.handle, array.data.ptr, 1, 1)
        x.kernels.add(0, array.data.ptr, 1, 1)
        del array
    check(cuda.cuCtxSynchronize())
    found = x.driver.races()
    x.driver.clear_races()
    assert bool(found) is not known, found


def test_an_ordinary_stream_would_not_do(enabled, x, monkeypatch):
    """The twin of the test above: after the first use elsewhere, CuPy's own work is waited for because it is opaque."""
    monkeypatch.setattr(_opaque.OpaqueStreams, "find",
                        lambda self, runtime, owner, stays: runtime.register_stream(owner))
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


# ---------------------------------------------------------------------------------------------- page-locked memory
NBYTES = 4096


@pytest.fixture
def pinned(cupy, x):
    """CuPy's page-locked memory comes from x's runtime, too; copies run as late as they may."""
    x.driver.set_policy("min")
    xlogmem.enable("cupy", pinned=True)
    return cupy


def one_block(x):
    """The pool of x's runtime has room for one block."""
    x.runtime._page_locked = PoolMemoryResource(PinnedMemoryResource(), maximum_pool_size=NBYTES, chunk_size=NBYTES)


def upload(x, array, declared=True):
    """Queue a copy on S that reads the array; what it has copied is read behind it."""
    target = x.alloc(x.S, array.nbytes)
    accesses = {"read": array.ctypes.data} if declared else {}
    with use(x.S, write=target, **accesses):
        check(cuda.cuMemcpyHtoDAsync(target.ptr, array.ctypes.data, array.nbytes, x.S.handle))
    return target


def copied(x, target):
    check(cuda.cuCtxSynchronize())
    value = x.driver.peek(target.ptr, 1)[0]
    target.free()
    x.driver.clear_races()
    return value


def test_a_page_locked_array_is_a_block_for_the_host(pinned, x):
    array = pinned.empty_pinned(NBYTES)
    found = x.runtime.find_block(array[5:])
    assert (found.ptr, found.alloc_stream, x.runtime.live_bytes) == (array.ctypes.data, None, NBYTES)
    with use(host, write=array):                        # the memory is idle
        array[:] = 1
    assert (x.driver.calls("cuEventSynchronize"), x.driver.calls("cuEventRecord")) == (0, 0)
    view = array[10:]
    del array
    assert x.runtime.find_block(view) == found
    before = x.driver.all_calls()
    del view
    assert x.driver.all_calls() == before               # a finalizer makes no driver call
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0
    memory = pinned.cuda.alloc_pinned_memory(NBYTES)
    assert memory.ptr == int(memory.mem) == found.ptr   # used again
    assert memory.mem.size == NBYTES


@pytest.mark.parametrize("dropped", [False, True])
def test_the_host_waits_for_the_copy_that_reads_its_array(pinned, x, dropped):
    array = pinned.empty_pinned(NBYTES)
    array[:] = 1
    target = upload(x, array)
    if dropped:
        x.driver.drop("cuEventSynchronize")
    with use(host, write=array):
        array[:] = 2
    assert copied(x, target) == (2 if dropped else 1)


@pytest.mark.parametrize("declared", [True, False])
def test_memory_that_a_copy_reads_is_not_handed_out_again(pinned, x, declared):
    """Twin: of a copy that no `use` names nothing is known."""
    array = pinned.empty_pinned(NBYTES)
    array[:] = 1
    target, address = upload(x, array, declared), array.ctypes.data
    del array
    array = pinned.empty_pinned(NBYTES)
    array[:] = 2
    assert (array.ctypes.data != address) == declared
    assert x.driver.calls("cuEventSynchronize") == 0
    assert copied(x, target) == (1 if declared else 2)


@pytest.mark.parametrize("dropped", [False, True])
def test_an_allocation_waits_for_the_copy_where_the_pool_may_not_grow(pinned, x, dropped):
    one_block(x)
    array = pinned.empty_pinned(NBYTES)
    array[:] = 1
    target, address = upload(x, array), array.ctypes.data
    del array
    if dropped:
        x.driver.drop("cuEventSynchronize")
    array = pinned.empty_pinned(NBYTES)
    array[:] = 2
    assert array.ctypes.data == address
    assert copied(x, target) == (2 if dropped else 1)


def test_page_locked_memory_without_bytes_is_no_block(pinned, x):
    before = x.driver.all_calls()
    memory = pinned.cuda.alloc_pinned_memory(0)
    assert (memory.ptr, memory.mem.size, int(memory.mem)) == (0, 0, 0)
    assert x.driver.all_calls() == before
    assert x.runtime._page_locked is None


def test_out_of_page_locked_memory_is_cupys_error_after_a_collection(pinned, x):
    one_block(x)
    circle = [pinned.empty_pinned(NBYTES)]
    with pytest.raises(pinned.cuda.runtime.CUDARuntimeError) as caught:
        pinned.empty_pinned(NBYTES)
    assert caught.value.status == 2
    assert isinstance(caught.value.__cause__, OutOfDeviceMemoryError)
    del caught
    circle.append(circle)
    del circle
    assert pinned.empty_pinned(NBYTES).ctypes.data      # what was in the circle is collected


def test_page_locked_memory_from_before_stays_cupys(cupy, x):
    """It is tracked if it is adopted; CuPy frees it."""
    before = cupy.empty_pinned(NBYTES)
    xlogmem.enable("cupy", pinned=True)
    assert x.runtime.find_block(before) is None
    tracked = x.runtime.adopt(before)
    with use(host, write=before):
        pass
    tracked.free()
    del before, tracked
    assert x.driver.calls("cuMemFreeHost") == 1


@pytest.mark.parametrize("enabled_before", [True, False])
def test_page_locked_memory_is_replaced_and_restored(cupy, x, enabled_before):
    def is_tracked():
        return x.runtime.find_block(cupy.empty_pinned(NBYTES)) is not None

    if enabled_before:
        xlogmem.enable("cupy")
        assert not is_tracked()
    xlogmem.enable("cupy", pinned=True)
    assert is_tracked()
    xlogmem.enable("cupy")                              # leaves it
    assert is_tracked()
    array = cupy.empty_pinned(NBYTES)
    xlogmem.disable("cupy")
    assert cupy.current.pinned == cupy.get_default_pinned_memory_pool().malloc
    assert x.runtime.find_block(array)
    xlogmem.enable("cupy")
    assert not is_tracked()


@pytest.mark.parametrize("refuses", [False, True])
def test_another_allocator_of_page_locked_memory_stays(cupy, x, refuses):
    """CuPy does not say which one it has: memory without bytes does, if the allocator gives any."""
    def other(nbytes):
        if refuses:
            raise ValueError("no bytes")
        return cupy.get_default_pinned_memory_pool().malloc(nbytes)

    xlogmem.enable("cupy", pinned=True)
    cupy.cuda.set_pinned_memory_allocator(other)
    xlogmem.disable("cupy")
    assert cupy.current.pinned is other
    xlogmem.enable("cupy", pinned=True)
    assert cupy.current.pinned is allocators.cupy.allocate_pinned


def test_page_locked_memory_of_each_device(pinned, x):
    here = pinned.empty_pinned(NBYTES)
    pinned.current.device = 1
    there = pinned.empty_pinned(NBYTES)
    other = xlogmem.get_runtime(1)
    assert (x.runtime.find_block(here).device_id, other.find_block(there).device_id) == (0, 1)
    assert [resource.device_id for resource in other.resources] == [1, 1]
    assert x.runtime._page_locked_pool() is x.runtime.resources[1] is not other._page_locked_pool()
    with use(host, write=[here, there]):
        pass
    del here, there
    for runtime in (x.runtime, other):
        runtime.reap_pending()
        assert runtime.live_bytes == 0


def test_the_pool_keeps_no_runtime(pinned, x):
    pinned.current.device = 1
    pinned.empty_pinned(NBYTES)
    other = weakref.ref(xlogmem.get_runtime(1))
    runtimes._runtimes[1] = None
    gc.collect()
    assert other() is None


def test_threads_that_allocate_first_share_one_pool(pinned, x):
    """The second thread comes while the first makes the pool."""
    pools = []
    runtime = x.runtime
    x.driver.on_call("cuMemHostAlloc", lambda: pools.append(runtime._page_locked_pool()))
    array = pinned.empty_pinned(NBYTES)
    assert pools == [x.runtime.resources[1]]
    del array
