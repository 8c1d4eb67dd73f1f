"""A stream of a green context is a stream: of the runtime of its device, ordered as any other."""
from __future__ import annotations

from contextlib import nullcontext

import pytest
from allocator_stand_ins import NullStream
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import FourStreams
from green import GreenContext, GreenStream
from places import HELPERS
from sim_support import python
from two_devices import Devices, current

from xlogmem import DeviceRuntime, PoolMemoryResource, StreamMisuseError, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


@pytest.fixture
def green(driver):
    made = GreenContext()
    yield made
    made.destroy()


@pytest.fixture
def x(four) -> FourStreams:
    return four()


@pytest.mark.parametrize("current", [False, True])
def test_a_use_a_hand_over_and_a_free(x, green, current):
    g = GreenStream(green)
    if current:
        check(cuda.cuCtxPushCurrent(green.context))
    before = check(cuda.cuCtxGetCurrent())
    block = x.alloc(x.S)
    with use(x.S, write=block):
        written = x.work(x.S)
    with use(g, read_write=block):
        assert x.ordered(written, g)
        read = x.work(g)
    with use(x.T, read=block):
        assert x.ordered(read, x.T)
        last = x.work(x.T)
    block.free(g)
    assert x.ordered(last, g)
    assert int(check(cuda.cuCtxGetCurrent())) == int(before)
    if current:
        check(cuda.cuCtxPopCurrent())
    assert x.runtime.register_stream(g).discipline == "ordinary"
    x.runtime.unregister_stream(g)


def test_without_a_use_nothing_is_ordered(x, green):
    g = GreenStream(green)
    block = x.alloc(x.S)
    written = x.work(x.S, (block, "write"))
    assert not x.ordered(written, g)
    block.free()


def test_memory_that_is_allocated_there_and_goes_through_the_pool(four, green):
    x = four(resource=PoolMemoryResource(initial_pool_size="1MiB", maximum_pool_size="1MiB"))
    g, other = GreenStream(green), ForeignStream()
    block = x.alloc(g, 1 << 20)
    with use(g, write=block):
        written = x.work(g)
    with use(other, read=block):
        read = x.work(other)
    block.free()
    again = x.alloc(x.S, 1 << 20)
    assert x.ordered(written, x.S)
    assert x.ordered(read, x.S)
    again.free()
    for one in (g, other):
        x.runtime.unregister_stream(one)


def test_the_runtime_of_its_device_is_found(x, driver):
    """Streams of green contexts of two devices, and memory of the first."""
    second = check(cuda.cuDevicePrimaryCtxRetain(1))
    green, runtime = GreenContext(1), DeviceRuntime(device_id=1)
    g = GreenStream(green)
    assert runtime.register_stream(g).handle == g.handle
    with pytest.raises(StreamMisuseError, match="belongs to another context or device"):
        x.runtime.register_stream(g)
    runtime.unregister_stream(g)
    g.destroy()
    del runtime
    green.destroy()
    assert second
    check(cuda.cuDevicePrimaryCtxRelease(1))


@pytest.mark.usefixtures("_own")
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("current", [True, False])
def test_memory_of_another_device(driver, named, current):
    """Used on a stream of a green context, in order; the twin names no use, and races."""
    d, green = Devices(), GreenContext(1)
    g, block = GreenStream(green), d.allocate(0)
    d.write(d.streams[0][0], block)
    with green if current else nullcontext(), use(g, read_write=block) if named else nullcontext():
        check(cuda.cuMemsetD32Async(block.ptr, 1, 16, g.stream))
    with use(d.streams[0][1], read=block):
        assert bool(driver.races()) == (not named)
    driver.clear_races()
    check(cuda.cuStreamSynchronize(g.stream))
    block.free()
    d.close()
    g.destroy()
    green.destroy()


@pytest.mark.parametrize("default", [0, 1, 2, NullStream()], ids=["0", "1", "2", "object"])
def test_a_default_stream_while_a_green_context_is_current_is_refused(x, green, default):
    """It is another one than the primary context's, and a handle does not say which.  An object is known by then."""
    block = x.alloc(x.S)
    for _ in range(2):
        with green, pytest.raises(StreamMisuseError, match=r"default stream, .* not the primary one of device 0"), \
                use(default, read=block):
            pass
        with use(default, read=block):                  # that of the primary context
            pass
    block.free()


@pytest.mark.parametrize("default", [0, NullStream()], ids=["0", "object"])
def test_a_default_stream_of_another_device_likewise(default):
    """Each use finds the device that is current by then."""
    d = Devices()
    block, green = d.allocate(0), GreenContext(1)
    for _ in range(2):
        with green, pytest.raises(StreamMisuseError, match=r"default stream, .* not the primary one of device 1"), \
                use(default, read=block):
            pass
        with current(1), use(default, read=block) as recorder:
            assert recorder.stream.device_id == 1
        with use(default, read=block) as recorder:
            assert recorder.stream.device_id == 0
    block.free()
    green.destroy()
    d.close()


def test_a_driver_that_says_less_of_a_stream():
    """Before CUDA 12.5 a driver gives the green context alone, which is not that of the runtime."""
    program = """
from xlogmem.commands.start import start_driver
start_driver()
import xlogmem
from cuda.bindings import driver as cuda
from green import GreenContext
from foreign_streams import ForeignStream
from xlogmem.sim.kernels import check
runtime, green = xlogmem.get_runtime(), GreenContext()
with green:
    g = ForeignStream()
try:
    runtime.register_stream(g)
except xlogmem.StreamMisuseError as error:
    print("belongs to another context" in str(error))
"""
    assert python("-c", program, version=12040, PYTHONPATH=str(HELPERS)).stdout == "True\n"


LEFT_BEHIND = """
from xlogmem.commands.start import start_driver
start_driver()
import xlogmem
from cuda.bindings import driver as cuda
from green import GreenContext, GreenStream
from xlogmem.sim.kernels import check
runtime, green = xlogmem.get_runtime(), GreenContext()
S, g = runtime.acquire_stream(), GreenStream(green)
block, used = runtime.allocate(512, g), runtime.allocate(512, S)
with xlogmem.use(g, read=used):
    pass
green.destroy()
for free in (lambda: block.free(g), used.free):
    try:
        free()
    except xlogmem.DriverError as error:
        print(error.code, error.name, "green context" in str(error))
runtime.unregister_stream(g)
g.destroy()
block.free()
used.free()
runtime.reap_pending()
print(runtime.live_bytes)
again = runtime.allocate(512, S)
with xlogmem.use(S, write=again):
    pass
again.free()
"""


def test_a_stream_that_its_green_context_left_behind():
    """Its driver calls fail, without a crash; it is unregistered as one that was destroyed, and the rest goes on."""
    done = python("-c", LEFT_BEHIND, version=13010, PYTHONPATH=str(HELPERS))
    assert (done.stdout, done.stderr) == (2 * "917 CUDA_ERROR_STREAM_DETACHED True\n" + "0\n", "")
