"""What only a GPU can show of the host's accesses: a buffer that is filled again, and a result that is read."""
from __future__ import annotations

import ctypes

import numpy
import pytest
from c_table import HOST, Hold
from cuda.bindings import driver as cuda

from xlogmem import (
    DeviceRuntime,
    DeviceState,
    PinnedMemoryResource,
    PoolMemoryResource,
    SystemMemoryResource,
    host,
    use,
)
from xlogmem.sim.kernels import Kernels, check

pytestmark = pytest.mark.gpu
NBYTES = 32 << 20                                       # a copy of about a millisecond
MILLISECOND = 1_000_000


class Buffer:
    """Page-locked memory, and memory of the device."""

    def __init__(self) -> None:
        self.runtime = DeviceRuntime()
        self.stream, self.other = self.runtime.acquire_stream(), self.runtime.acquire_stream()
        self.address = int(check(cuda.cuMemAllocHost(NBYTES)))
        self.block = self.runtime.adopt(self.address, NBYTES)
        self.device = self.runtime.allocate(NBYTES, self.stream)
        self.hold = Hold(self.runtime)

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.hold.close()
        self.block.free()
        self.device.free()
        self.runtime.reap_pending()
        check(cuda.cuMemFreeHost(self.address))
        self.__dict__.clear()

    def last_byte(self) -> int:
        """On the device."""
        seen = ctypes.c_uint8()
        check(cuda.cuMemcpyDtoH(ctypes.addressof(seen), self.device.ptr + NBYTES - 1, 1))
        return seen.value


@pytest.fixture
def buffer():
    made = Buffer()
    yield made
    made.close()


def access(buffer: Buffer, way: str, kind: str):
    return buffer.hold.use(HOST, **{kind: [buffer.address]}) if way == "table" else use(host, **{kind: buffer.block})


@pytest.mark.parametrize("way", ["python", "table", "undeclared"])
def test_a_buffer_is_filled_again_behind_its_copy(buffer, way):
    wrong = 0
    for turn in range(1, 101):
        ctypes.memset(buffer.address, turn, NBYTES)
        with use(buffer.stream, read=buffer.block, write=buffer.device):
            check(cuda.cuMemcpyHtoDAsync(buffer.device.ptr, buffer.address, NBYTES, buffer.stream.handle))
        if way == "undeclared":
            ctypes.memset(buffer.address + NBYTES - 4096, 0, 4096)
        else:
            with access(buffer, way, "write"):
                ctypes.memset(buffer.address + NBYTES - 4096, 0, 4096)
        check(cuda.cuStreamSynchronize(buffer.stream.handle))
        wrong += buffer.last_byte() != turn
    assert wrong >= 50 if way == "undeclared" else wrong == 0


@pytest.mark.parametrize("way", ["python", "table", "undeclared"])
def test_a_result_is_read_behind_the_copy_that_brings_it(buffer, way):
    wrong, kernels = 0, Kernels()
    for turn in range(1, 101):
        with use(buffer.stream, write=buffer.device):
            kernels.delay(buffer.stream.handle, MILLISECOND)
            check(cuda.cuMemsetD8Async(buffer.device.ptr, turn, NBYTES, buffer.stream.handle))
        with use(buffer.other, read=buffer.device, write=buffer.block):
            check(cuda.cuMemcpyDtoHAsync(buffer.address, buffer.device.ptr, NBYTES, buffer.other.handle))
        last = ctypes.c_uint8.from_address(buffer.address + NBYTES - 1)
        if way == "undeclared":
            wrong += last.value != turn
        else:
            with access(buffer, way, "read"):
                wrong += last.value != turn
        check(cuda.cuStreamSynchronize(buffer.other.handle))
    kernels.close()
    assert wrong >= 50 if way == "undeclared" else wrong == 0


# ---------------------------------------------------------------------------------------------- where memory comes from
ATTRIBUTES = cuda.CUdevice_attribute


def has(attribute: str) -> bool:
    """Whether device 0 has what the attribute is about; one that this driver does not know it has not."""
    error, value = cuda.cuDeviceGetAttribute(getattr(ATTRIBUTES, attribute), 0)
    return int(error) == 0 and value != 0


def on_numa_node(portable: bool):
    attribute = "CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED"
    if not hasattr(ATTRIBUTES, attribute):
        pytest.skip(f"these bindings do not know {attribute}: it needs those of CUDA 12.6")
    if not has(attribute):
        pytest.skip(f"{attribute} is 0: the driver has no pools of memory on a NUMA node of the host")
    return PinnedMemoryResource(0, portable=portable)


def of_the_system(pool: bool):
    if not has("CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS"):
        pytest.skip("CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS is 0: the device does not reach memory of malloc")
    return PoolMemoryResource(SystemMemoryResource()) if pool else SystemMemoryResource()


@pytest.mark.parametrize("make", [
    lambda: on_numa_node(True), lambda: on_numa_node(False), lambda: PoolMemoryResource(on_numa_node(True)),
    lambda: of_the_system(False), lambda: of_the_system(True)],
    ids=["numa", "numa, one device", "numa in a pool", "system", "system in a pool"])
def test_memory_of_the_host_is_written_copied_freed_and_written_again(make):
    """By the host, by a kernel behind a delay, and by copies both ways; then the memory goes to the next owner."""
    resource = make()
    runtime = DeviceRuntime()
    state, kernels = DeviceState(runtime), Kernels()
    s, t = runtime.acquire_stream(), runtime.acquire_stream()
    count = 1 << 20
    assert resource.is_host_accessible
    for turn in range(1, 11):
        block = runtime.allocate(4 * count, s, resource=resource)
        seen = numpy.frombuffer((ctypes.c_uint32 * count).from_address(block.ptr), numpy.uint32)
        with use(host, write=block):
            seen[:] = turn
        with use(s, read_write=block):
            kernels.delay(s.handle, MILLISECOND)
            kernels.add(s.handle, block.ptr, 5, count)
        device = state.empty(count, "uint32", t)
        device.copy_from(seen, t)                       # after the kernel
        assert set(device.to_numpy(t)[[0, -1]]) == {turn + 5}
        device.fill(turn + 7, t)
        device.copy_to(seen, t)
        with use(host, read=block):
            assert set(seen[[0, -1]]) == {turn + 7}
        with use(s, read=block, write=device):
            kernels.delay(s.handle, MILLISECOND)
            kernels.add(s.handle, device.ptr, 1, count)
        block.free()
        del seen, device
    runtime.synchronize()
    kernels.close()
    state.__dict__.clear()
