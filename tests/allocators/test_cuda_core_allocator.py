"""cuda.core's buffers as blocks, freed on the stream that a buffer has in the end."""
from __future__ import annotations

import copy
import pickle

import pytest
from allocator_stand_ins import NullStream
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream

import xlogmem
from xlogmem import (
    AsyncMemoryResource,
    ManagedMemoryResource,
    OutOfDeviceMemoryError,
    PinnedMemoryResource,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    StreamMisuseError,
    allocators,
    runtime,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


@pytest.fixture
def device(core, x):
    xlogmem.enable("cuda.core")
    return core.Device(0)


def test_a_buffer_is_a_block(device, x):
    stream = ForeignStream()
    resource = device.memory_resource
    buffer = device.allocate(512, stream=stream)
    assert buffer.memory_resource is resource
    assert (resource.is_device_accessible, resource.is_host_accessible, resource.is_managed) == (True, False, False)
    assert resource.device_id == 0
    assert repr(resource) == "<BlockMemoryResource device=0>"
    found = x.runtime.find_block(buffer.handle)
    assert (found.alloc_stream.handle, found.alloc_stream.discipline) == (stream.handle, "opaque")
    xlogmem.disable("cuda.core")
    assert x.runtime.find_block(buffer.handle) == found
    buffer.close()
    assert (x.runtime.live_bytes, resource._blocks) == (0, {})


@pytest.mark.parametrize("how", ["stays", "set", "close"])
@pytest.mark.parametrize("declared", [True, False])
def test_the_stream_that_it_has_then_frees_it_after_every_use(device, x, how, declared):
    stream, other = ForeignStream(), ForeignStream()
    buffer = device.allocate(512, stream=stream)
    if declared:
        with use(x.T, read=buffer.handle):
            read = x.work(x.T)
    else:
        read = x.work(x.T)
    x.kernels.fill(stream.handle, buffer.handle, 1, 1)  # unrecorded: the free has to come after it too
    if how == "set":
        buffer.set_deallocation_stream(other)
    buffer.close(other if how == "close" else None)
    assert x.ordered(read, stream if how == "stays" else other) == declared
    assert not x.ordered(x.work(x.V), other)


@pytest.mark.parametrize(("made", "on_host", "managed"), [
    (PinnedMemoryResource, True, False), (ManagedMemoryResource, True, True), (AsyncMemoryResource, False, False),
    (lambda: PoolMemoryResource(ManagedMemoryResource()), True, True),
    (lambda: StatisticsResourceAdaptor(PoolMemoryResource(PinnedMemoryResource())), True, False)])
def test_any_resource_may_be_one_of_cuda_core(device, x, made, on_host, managed):
    resource = made()
    memory = allocators.cuda_core.BlockMemoryResource(0, resource)
    assert (memory.is_device_accessible, memory.is_host_accessible, memory.is_managed) == (True, on_host, managed)
    stream = ForeignStream()
    buffer = memory.allocate(512, stream=stream)
    assert memory._blocks[buffer.handle].resource is resource
    with use(x.T, read=buffer.handle):
        read = x.work(x.T)
    buffer.close()
    if resource.order == "stream":
        assert x.ordered(read, stream)
    x.runtime.reap_pending()
    assert (x.runtime.live_bytes, memory._blocks) == (0, {})


def test_without_a_resource_it_is_that_of_the_runtime(core, clean, four):
    x = four(resource=ManagedMemoryResource())
    runtime.set_runtime(x.runtime)
    xlogmem.enable("cuda.core")
    memory = core.Device(0).memory_resource
    assert (memory.is_device_accessible, memory.is_host_accessible, memory.is_managed) == (True, True, True)


def test_its_memory_is_not_shared_between_processes(device, x):
    """What cuda.core queries of its resources about IPC is answered; the rest is refused by name."""
    resource = device.memory_resource
    buffer = device.allocate(512, stream=ForeignStream())
    assert (resource.is_ipc_enabled, resource.is_mapped) == (False, False)
    with pytest.raises(RuntimeError, match="xlogmem's memory is not shared between processes"):
        _ = resource.allocation_handle
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"BlockMemoryResource is not copied or pickled: xlogmem's memory is not"):
            copied(resource)
        with pytest.raises(RuntimeError, match="not IPC-enabled"):
            copied(buffer)
    buffer.close()
    assert x.runtime.live_bytes == 0


def test_only_resources_of_xlogmem_are_taken(device, core):
    with pytest.raises(TypeError, match="resource must be a DeviceMemoryResource of xlogmem, not CoreResource"):
        allocators.cuda_core.BlockMemoryResource(0, xlogmem.disable("cuda.core") or core.Device(0).memory_resource)


def test_a_buffer_without_bytes_is_no_block(device, x):
    buffer = device.allocate(0, stream=NullStream())
    assert buffer.handle == 0
    buffer.close()
    assert x.runtime.counters()["allocations"] == 0


@pytest.mark.parametrize("stream", [None, 5, "stream"])
def test_what_is_no_stream_is_refused(device, x, stream):
    with pytest.raises(TypeError, match=r"stream= has to be a stream.*default_stream"):
        device.allocate(512, stream=stream)
    assert x.runtime.counters()["allocations"] == 0


def test_a_buffer_that_cannot_be_made_leaks_nothing(device, x, core, monkeypatch):
    def broken(*arguments, **keywords):
        raise OSError("broken")

    monkeypatch.setattr(core.Buffer, "from_handle", broken)
    with pytest.raises(OSError, match="broken"):
        device.allocate(512, stream=NullStream())
    x.runtime.reap_pending()
    assert (x.runtime.live_bytes, device.memory_resource._blocks) == (0, {})
    with pytest.raises(OutOfDeviceMemoryError):
        device.allocate(1 << 60, stream=NullStream())


def test_a_stream_that_cannot_free_leaves_that_to_the_one_of_the_allocation(device, x):
    stream, capturing = ForeignStream(), ForeignStream()
    buffer = device.allocate(512, stream=stream)
    with use(x.T, read=buffer.handle):
        read = x.work(x.T)
    check(cuda.cuStreamBeginCapture(capturing.stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    with pytest.raises(StreamMisuseError, match="capturing"):
        buffer.close(capturing)                         # cuda.core makes a warning of it
    with pytest.raises(StreamMisuseError, match="capturing"):
        device.allocate(512, stream=capturing)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(capturing.stream))))
    x.runtime.reap_pending(blocking=False)
    assert x.ordered(read, stream)
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == 0
    assert allocators.cuda_core._streams.find(x.runtime, capturing).discipline == "opaque"
