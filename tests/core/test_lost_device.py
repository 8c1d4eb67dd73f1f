"""A sticky error loses the device."""
from __future__ import annotations

import gc

import pytest
from c_table import Hold, Refused
from cuda.bindings import driver as cuda

from xlogmem import (
    AsyncMemoryResource,
    DeviceLostError,
    DeviceMemoryResource,
    DeviceRuntime,
    DeviceState,
    DriverError,
    PoolMemoryResource,
    StreamPool,
    use,
)
from xlogmem.sim.kernels import check

# "This leaves the process in an inconsistent state", "must be terminated and relaunched": cuda.h, CUresult.  With them
# an uncorrectable memory error, and a context that was destroyed.
STICKY = (214, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911)
OTHER = (1, 201, 400, 720, 801, 802, 805, 900, 912, 999)


@pytest.mark.simulator
def test_a_sticky_error_loses_the_device(driver):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block, kept = runtime.allocate(64, stream), runtime.allocate(64, stream)
    other = DeviceRuntime()
    driver.fail("cuMemFreeAsync", code=700)
    with pytest.raises(DeviceLostError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        block.free()
    assert runtime.lost
    assert not other.lost
    calls = sum(driver.all_calls().values())
    for call in (lambda: runtime.allocate(64, stream), lambda: use(stream, read=kept).preflight(), kept.free,
                 runtime.reap_pending, lambda: runtime.record_block_use(kept, stream),
                 lambda: runtime.adopt(1 << 40, 64)):
        with pytest.raises(DeviceLostError, match="lost to an earlier error"):
            call()
    assert sum(driver.all_calls().values()) == calls
    assert runtime.live_bytes == 128
    for ptr in (block.ptr, kept.ptr):                               # the simulated device lives on
        check(cuda.cuMemFreeAsync(ptr, stream.handle))


class OfPython(DeviceMemoryResource):
    """Hands on what the resource below it raises, and knows what is not freed."""

    order = "stream"

    def __init__(self) -> None:
        super().__init__()
        self.below = AsyncMemoryResource()
        self.live = set()

    def allocate(self, nbytes, stream):
        ptr = self.below.allocate(nbytes, stream)
        self.live.add(ptr)
        return ptr

    def deallocate(self, ptr, nbytes, stream):
        self.below.deallocate(ptr, nbytes, stream)
        self.live.discard(ptr)


class Scene:
    """A runtime, and operations that make driver calls."""

    def __init__(self, foreign, pool: bool) -> None:
        self.bytes = OfPython()
        self.runtime = DeviceRuntime(resource=PoolMemoryResource(self.bytes) if pool else self.bytes)
        self.hold = Hold(self.runtime)
        self.stream, self.known, self.unknown = self.runtime.acquire_stream(), foreign(), foreign()
        self.runtime.register_stream(self.known)
        self.state = DeviceState(self.runtime)
        self.buffer = self.state.empty(8, "uint8", self.stream)
        self.block = self.runtime.allocate(64, self.stream)
        with use(self.runtime.default_stream, write=self.block):
            pass

    def operations(self):
        runtime, state, buffer = self.runtime, self.state, self.buffer
        return {
            "acquire": runtime.acquire_stream, "register": lambda: runtime.register_stream(self.unknown),
            "change": lambda: runtime.register_stream(self.known, discipline="opaque"),
            "unregister": lambda: runtime.unregister_stream(self.known),
            "trim": getattr(runtime.resource, "trim", lambda: runtime.allocate(64)), "empty": lambda: state.empty(8),
            "allocate": lambda: runtime.allocate(64), "free": self.block.free, "fill": lambda: buffer.fill(1),
            "copy_from": lambda: buffer.copy_from(bytes(8)), "to_numpy": buffer.to_numpy,
            "use": lambda: use(self.stream, read=self.block).preflight(), "reap": runtime.reap_pending,
            "record": lambda: runtime.record_block_use(self.block, self.stream),
            "adopt": lambda: runtime.adopt(1 << 40, 64), "__dlpack__": lambda: buffer.__dlpack__(),
            "interface": lambda: buffer.__cuda_array_interface__, "arrow": buffer.__arrow_c_device_array__,
            "table": self.table_allocate,
        }

    def table_allocate(self) -> None:
        try:
            self.hold.allocate(64, self.unknown)
        except Refused as refused:
            raise DeviceLostError(str(refused)) from refused

    def close(self) -> None:
        """The simulated device lives on: what a lost runtime leaves is freed by hand."""
        self.hold.close()
        live, former = self.bytes.live, self.__dict__.copy()
        self.__dict__.clear()
        former.clear()
        gc.collect()
        check(cuda.cuCtxSynchronize())
        for ptr in live:
            check(cuda.cuMemFreeAsync(ptr, 0))


@pytest.fixture(params=[True, False], ids=["pool", "Python"])
def scene(request, foreign, driver):
    made = Scene(foreign, request.param)
    yield made
    driver.sticky_error(0)
    made.close()


NAMES = ("acquire", "register", "change", "unregister", "trim", "empty", "allocate", "free", "fill", "copy_from",
         "to_numpy", "use", "reap", "record", "adopt", "__dlpack__", "interface", "arrow", "table")


@pytest.mark.simulator
def test_a_free_into_a_pool_cannot_meet_the_error(driver, foreign):
    """It makes no driver call."""
    scene = Scene(foreign, pool=True)
    driver.sticky_error(911)
    before = sum(driver.all_calls().values())
    scene.block.free()
    assert sum(driver.all_calls().values()) == before
    driver.sticky_error(0)
    assert not scene.runtime.lost
    scene.close()


@pytest.mark.simulator
@pytest.mark.parametrize("name", NAMES)
def test_whatever_raises_that_the_device_is_lost_notes_it(driver, scene, name):
    if name == "free" and isinstance(scene.runtime.resource, PoolMemoryResource):
        pytest.skip("a free into a pool makes no driver call")
    driver.sticky_error(911)
    with pytest.raises(DeviceLostError):
        scene.operations()[name]()
    driver.sticky_error(0)
    assert scene.runtime.lost
    assert scene.state.runtime is None


@pytest.mark.simulator
@pytest.mark.parametrize(("name", "site"), [
    ("acquire", "cuStreamCreateWithPriority"), ("register", "cuStreamGetId"), ("unregister", "cuEventRecord"),
    ("allocate", "cuMemAllocFromPoolAsync"), ("free", "cuStreamWaitEvent"), ("fill", "cuMemsetD8Async"),
    ("arrow", "cuEventRecord"), ("table", "cuStreamGetId"),
])
def test_the_call_itself_does(driver, foreign, name, site):
    scene = Scene(foreign, pool=False)
    driver.fail(site, code=226)
    with pytest.raises(DeviceLostError):
        scene.operations()[name]()
    assert scene.runtime.lost
    scene.close()


@pytest.mark.simulator
@pytest.mark.parametrize("code", STICKY + OTHER)
def test_which_errors_lose_the_device(driver, code):
    """Those of which cuda.h says so, and no others."""
    runtime = DeviceRuntime()
    driver.fail("cuStreamCreateWithPriority", code=code)
    with pytest.raises(DriverError) as error:
        runtime.acquire_stream()
    assert isinstance(error.value, DeviceLostError) == runtime.lost == (code in STICKY)


@pytest.mark.simulator
def test_streams_of_a_pool_whose_runtime_is_gone_lose_nothing(driver):
    streams = StreamPool()
    DeviceRuntime(stream_pool=streams)
    driver.fail("cuStreamCreateWithPriority", code=700)
    with pytest.raises(DeviceLostError):
        streams.acquire()
    assert not DeviceRuntime(stream_pool=streams).lost
