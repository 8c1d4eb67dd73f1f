"""What RMM shows on a GPU only: its own streams and copies, its current device, and whether its counts are ours."""
from __future__ import annotations

import ctypes
import importlib.util
import random

import pytest
from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import DeviceRuntime, StreamMisuseError, launch, use
from xlogmem import runtime as runtimes
from xlogmem.sim.kernels import Kernels, check

HAVE_RMM = importlib.util.find_spec("rmm") is not None
if HAVE_RMM:
    import rmm
    import rmm.mr
    import rmm.statistics
    from rmm.pylibrmm.stream import DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Stream

    import xlogmem.rmm
    from xlogmem.rmm import RmmMemoryResource, RuntimeMemoryResource
    from xlogmem.rmm._binding import upstream_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAVE_RMM, reason="needs RMM")]
WORDS, ROUNDS, DELAY_NS = 1 << 16, 30, 300_000


@pytest.fixture
def current():
    """RMM's current resource is restored at the end."""
    before = rmm.mr.get_current_device_resource()
    yield
    rmm.mr.set_current_device_resource(before)


def handle(stream) -> int:
    return stream.__cuda_stream__()[1]


@pytest.mark.parametrize("protected", [True, False])
@pytest.mark.filterwarnings("ignore::xlogmem.BlockingStreamWarning")
def test_buffers_on_rmm_streams_are_read_before_they_are_reused(protected, current):
    """A late producer, or a late reader on another stream; the buffer is dropped meanwhile, its memory filled again."""
    runtime = DeviceRuntime()
    kernels = Kernels()
    rmm.mr.set_current_device_resource(RuntimeMemoryResource(runtime))
    producer, consumer = Stream(), Stream()
    wrong = runtime.allocate(4, runtime.register_stream(consumer))
    with use(consumer, write=wrong, runtime=runtime):
        kernels.fill(handle(consumer), wrong.ptr, 0, 1)
    consumer.synchronize()
    for turn in range(ROUNDS):
        buffer = rmm.DeviceBuffer(size=4 * WORDS, stream=producer)
        if turn % 2 == 0:
            kernels.delay(handle(producer), DELAY_NS)
        kernels.fill(handle(producer), buffer.ptr, turn, WORDS)         # as libcudf does: unrecorded
        recorder = use(consumer, read=buffer, read_write=wrong, runtime=runtime)
        if protected:
            recorder.preflight()
        if turn % 2:
            kernels.delay(handle(consumer), DELAY_NS)
        kernels.count_unequal(handle(consumer), wrong.ptr, buffer.ptr, turn, WORDS)
        if protected:
            recorder.commit()
        del buffer
    seen = rmm.DeviceBuffer(ptr=wrong.ptr, size=4, stream=consumer).tobytes(consumer)
    assert (int.from_bytes(seen, "little") == 0) == protected
    runtime.reap_pending()
    kernels.close()


def test_rmm_counts_what_we_count(current):
    runtime = DeviceRuntime()
    statistics = rmm.mr.StatisticsResourceAdaptor(RuntimeMemoryResource(runtime))
    rmm.mr.set_current_device_resource(statistics)
    chance = random.Random(7)
    streams = [DEFAULT_STREAM, PER_THREAD_DEFAULT_STREAM, Stream(), Stream()]
    kept: list[rmm.DeviceBuffer] = []
    for _ in range(2000):
        if kept and chance.random() < 0.5:
            kept.pop(chance.randrange(len(kept)))
        else:
            kept.append(rmm.DeviceBuffer(size=chance.randrange(1 << 16), stream=chance.choice(streams)))
        assert statistics.allocation_counts.current_bytes == runtime.live_bytes
    kept.clear()
    assert statistics.allocation_counts.current_bytes == runtime.live_bytes == 0
    counters = runtime.counters()
    assert counters["allocations"] == counters["frees"]
    runtime.reap_pending()


def test_data_comes_back_through_every_resource_below(current):
    data = bytes(range(256)) * 1000
    for below in (rmm.mr.CudaMemoryResource(), rmm.mr.CudaAsyncMemoryResource(), rmm.mr.ManagedMemoryResource(),
                  rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource(), arena_size=1 << 26),
                  rmm.mr.FixedSizeMemoryResource(rmm.mr.CudaMemoryResource()),
                  rmm.mr.BinningMemoryResource(rmm.mr.CudaMemoryResource(), 12, 20)):
        runtime = DeviceRuntime(resource=RmmMemoryResource(below))
        rmm.mr.set_current_device_resource(RuntimeMemoryResource(runtime))
        buffers = [rmm.DeviceBuffer.to_device(data) for _ in range(3)]
        assert all(buffer.tobytes() == data for buffer in buffers)
        assert runtime.live_bytes == 3 * len(data)
        buffers.clear()
        runtime.reap_pending()
        assert runtime.bytes_outstanding == 0


def pool_of(ptr: int) -> int:
    return int(check(cuda.cuPointerGetAttribute(cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, ptr)))


def flags_of(mr: rmm.mr.DeviceMemoryResource) -> int:
    """Of the xlogmem_upstream that is made for it: its last member."""
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = upstream_of(mr)
    at = get_pointer(capsule, b"xlogmem.upstream")
    size = ctypes.c_uint32.from_address(at + 4).value
    return ctypes.c_uint64.from_address(at + size - 8).value


@pytest.mark.parametrize("kind", ["pool of its own", "view"])
def test_memory_of_an_asynchronous_resource_is_of_its_pool(kind, current):
    """The driver is called directly, for the pool that RMM has, and RMM is called for what it refuses."""
    theirs = rmm.mr.CudaAsyncMemoryResource()
    ptr = theirs.allocate(256, DEFAULT_STREAM)
    pool = pool_of(ptr)
    theirs.deallocate(ptr, 256, DEFAULT_STREAM)
    below = theirs if kind != "view" else rmm.mr.CudaAsyncViewMemoryResource(cuda.CUmemoryPool(pool))
    runtime = DeviceRuntime(resource=RmmMemoryResource(below))
    ours = RuntimeMemoryResource(runtime)
    assert flags_of(theirs) == flags_of(below) == 3     # as in xlogmem.h: finds its device, is a CUDA pool
    assert flags_of(type("Derived", (rmm.mr.CudaAsyncMemoryResource,), {})()) == 1
    for stream in (DEFAULT_STREAM, Stream(), PER_THREAD_DEFAULT_STREAM):
        buffers = [rmm.DeviceBuffer(size=1000, stream=stream, mr=ours) for _ in range(3)]
        assert {pool_of(buffer.ptr) for buffer in buffers} == {pool}
        buffers.clear()
    with pytest.raises(MemoryError, match="out_of_memory"):
        rmm.DeviceBuffer(size=1 << 50, mr=ours)
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0


def test_enable_keeps_a_pool_and_notices_a_reinitialize(monkeypatch, current):
    monkeypatch.setattr(runtimes, "_runtimes", [None] * runtimes.MAX_DEVICES)
    monkeypatch.setattr(xlogmem.rmm, "_wrapped", {})
    monkeypatch.setattr(launch, "explanations", [])
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), 1 << 26, 1 << 26)
    rmm.mr.set_current_device_resource(pool)
    xlogmem.rmm.enable()
    assert rmm.mr.get_current_device_resource().upstream_mr is pool
    buffer = rmm.DeviceBuffer.to_device(b"abc")
    with use(0, read=buffer):
        pass
    assert buffer.tobytes() == b"abc"
    del buffer
    rmm.reinitialize()
    buffer = rmm.DeviceBuffer.to_device(b"abc")
    with pytest.raises(StreamMisuseError, match=r"call xlogmem\.rmm\.enable"), use(0, read=buffer):
        pass
    del buffer
    xlogmem.rmm.enable()
    buffer = rmm.DeviceBuffer.to_device(b"abc")
    with use(0, read=buffer):
        pass
    del buffer
    xlogmem.rmm.disable()
