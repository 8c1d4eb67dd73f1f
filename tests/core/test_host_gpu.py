"""What only a GPU can show of the host's accesses: a buffer that is filled again, and a result that is read."""
from __future__ import annotations

import ctypes

import pytest
from c_table import HOST, Hold
from cuda.bindings import driver as cuda

from xlogmem import DeviceRuntime, host, use
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
