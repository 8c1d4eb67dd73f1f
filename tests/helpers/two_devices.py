"""Two runtimes on two devices, each with two streams, and kernels that run on either."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

from cuda.bindings import driver as cuda

from xlogmem import DeviceBlock, DeviceRuntime, Stream, disable_peer_access, enable_peer_access
from xlogmem._driver import device_count
from xlogmem.sim.kernels import Kernels, check

COUNT = 64                                              # words of a block


@contextlib.contextmanager
def current(device_id: int) -> Iterator[None]:
    """The device's primary context is current inside."""
    device = check(cuda.cuDeviceGet(device_id))
    context = check(cuda.cuDevicePrimaryCtxRetain(device))
    check(cuda.cuCtxPushCurrent(context))
    try:
        yield
    finally:
        check(cuda.cuCtxPopCurrent())
        check(cuda.cuDevicePrimaryCtxRelease(device))


class Devices:
    """Runtimes 0 to `count` - 1, two streams of each, and peer access between all of them."""

    def __init__(self, count: int = 2, peers: bool = True, **options: object) -> None:
        assert device_count() >= count
        self.runtimes = [DeviceRuntime(device_id, **{name: value(device_id) if callable(value) else value
                                                     for name, value in options.items()})
                         for device_id in range(count)]
        self.streams = [[runtime.acquire_stream(), runtime.acquire_stream()] for runtime in self.runtimes]
        self.kernels = []
        for device_id in range(count):
            with current(device_id):
                self.kernels.append(Kernels())
        self.pairs = [(device, peer) for device in range(count) for peer in range(count) if peers and device != peer]
        for pair in self.pairs:
            enable_peer_access(*pair)

    def close(self) -> None:
        for device_id, kernels in enumerate(self.kernels):
            with current(device_id):
                check(cuda.cuCtxSynchronize())
                kernels.close()
        for pair in self.pairs:
            disable_peer_access(*pair)
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtimes

    def allocate(self, device_id: int, stream: Stream | None = None) -> DeviceBlock:
        return self.runtimes[device_id].allocate(4 * COUNT, stream or self.streams[device_id][0])

    def write(self, stream: Stream, block: DeviceBlock, value: int = 1) -> None:
        """Queue a kernel on the stream's device."""
        with current(stream.device_id):
            self.kernels[stream.device_id].fill(stream.handle, block.ptr, value, COUNT)

    def add(self, stream: Stream, block: DeviceBlock, value: int = 1) -> None:
        with current(stream.device_id):
            self.kernels[stream.device_id].add(stream.handle, block.ptr, value, COUNT)

    def copy(self, stream: Stream, target: DeviceBlock, source: DeviceBlock) -> None:
        with current(stream.device_id):
            self.kernels[stream.device_id].copy(stream.handle, target.ptr, source.ptr, COUNT)
