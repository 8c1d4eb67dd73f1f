"""Ordinary memory of the host, where devices reach it: the driver does not know it, and xlogmem orders it."""
from __future__ import annotations

import asyncio
import ctypes

import numpy
import pytest
from arrays import Array
from cuda.bindings import driver as cuda
from four_streams import READ, Capture, nothing_happens
from other_threads import Beside

from xlogmem import (
    DeviceMemoryResource,
    DeviceRuntime,
    DeviceState,
    DriverError,
    GuardResourceAdaptor,
    OutOfDeviceMemoryError,
    PinnedMemoryResource,
    PoolMemoryResource,
    StreamMisuseError,
    SystemMemoryResource,
    _driver,
    from_cuda_array,
    host,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
COUNT = 256
NBYTES = 4 * COUNT
KINDS = pytest.mark.parametrize("kind", [SystemMemoryResource, lambda: PoolMemoryResource(SystemMemoryResource())],
                                ids=["alone", "pool"])


@pytest.fixture(autouse=True)
def _reached(driver):
    """Devices reach ordinary memory of the host."""
    driver.set_pageable(True)
    yield
    driver.set_pageable(False)


def words(ptr: int, count: int = COUNT) -> numpy.ndarray:
    return numpy.frombuffer((ctypes.c_uint32 * count).from_address(ptr), numpy.uint32)


class Program:
    """A block of ordinary memory, full of ones, and kernels that run as late as they may."""

    def __init__(self, x, kernels, resource) -> None:
        x.driver.set_policy("min")
        self.x, self.kernels, self.resource = x, kernels, resource
        self.state = DeviceState(x.runtime)
        self.block = x.runtime.allocate(NBYTES, host, resource=resource)
        self.array = words(self.block.ptr)
        self.array[:] = 1

    def add(self, amount: int = 4, declared: bool = True) -> None:
        """On T."""
        with use(self.x.T, read_write=self.block if declared else []):
            self.kernels.add(self.x.T.handle, self.block.ptr, amount, COUNT)

    def buffer(self, value: int):
        """Of the device."""
        return self.state.full(COUNT, value, "uint32", self.x.S)

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        del self.array
        self.block.close()


@pytest.fixture
def program(four, kernels):
    made = []

    def make(kind=SystemMemoryResource) -> Program:
        made.append(Program(four(), kernels, kind()))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.__dict__.clear()                            # pytest keeps this object, which must not keep the runtime


# ---------------------------------------------------------------------------------------------- memory
def test_both_sides_reach_it_and_the_driver_does_not_know_it(driver):
    resource = SystemMemoryResource()
    assert (resource.is_host_accessible, resource.is_device_accessible) == (True, True)
    assert GuardResourceAdaptor(resource).is_host_accessible
    with nothing_happens(driver):
        ptr = resource.allocate(100, 0)
        words(ptr, 25)[:] = 7
        resource.deallocate(ptr, 100, 0)


@pytest.mark.parametrize("nbytes", [1, 255, 4095, 4096, 5000, 1 << 20])
def test_memory_is_aligned(nbytes):
    resource = SystemMemoryResource()
    made = [resource.allocate(nbytes, 0) for _ in range(20)]
    assert not [ptr for ptr in made if ptr % (256 if nbytes < 4096 else 4096)]
    for ptr in made:
        resource.deallocate(ptr, nbytes, 0)


@pytest.mark.skipif(_driver.BUILD in ("asan", "tsan"), reason="a sanitizer ends a process that wants so much")
def test_there_is_no_more_memory_than_the_host_has():
    """The error is that of every other resource."""
    runtime = DeviceRuntime()
    with pytest.raises(OutOfDeviceMemoryError, match=f"the host has no {1 << 60} bytes"):
        runtime.allocate(1 << 60, resource=SystemMemoryResource())


def test_threads_allocate_and_free():
    """What is freed is ordinary memory of others again, and what is alive is found."""
    resource, runtime = SystemMemoryResource(), DeviceRuntime()

    def is_known(address: int) -> bool:
        try:
            runtime.find_block(words(address, 8))
        except TypeError:                               # pageable memory
            return False
        return True

    def churn(sizes: list[int]) -> bool:
        right = True
        for _ in range(20):
            made = [(resource.allocate(nbytes, 0), nbytes) for nbytes in sizes]
            right &= all(is_known(ptr) and is_known(ptr + nbytes - 32) for ptr, nbytes in made)
            for ptr, nbytes in made:
                resource.deallocate(ptr, nbytes, 0)
        return right

    threads = [Beside(lambda start=start: churn([*range(start, 9000, 800)])) for start in range(64, 164, 20)]
    assert [thread.result() for thread in threads] == [True] * 5
    ptr = resource.allocate(4096, 0)
    resource.deallocate(ptr, 4096, 0)
    assert not is_known(ptr)


def test_a_device_that_does_not_reach_it_is_refused(driver):
    driver.set_pageable(False)
    with pytest.raises(DriverError, match=r"device 1 does not .*CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS is 0.*: use "
                                          "PinnedMemoryResource"):
        SystemMemoryResource(1)


@pytest.mark.parametrize(("arguments", "kind", "text"), [
    ({"device_id": 99}, ValueError, "device 99"), ({"device_id": "0"}, TypeError, "device_id"),
    ({"portable": True}, TypeError, "portable")])
def test_wrong_arguments(arguments, kind, text):
    with pytest.raises(kind, match=text):
        SystemMemoryResource(**arguments)


# ---------------------------------------------------------------------------------------------- uses
@KINDS
@pytest.mark.parametrize("declared", [True, False])
def test_the_host_waits_for_a_kernel(program, kind, declared):
    p = program(kind)
    p.add()
    if declared:
        with use(host, read=p.block):
            pass
    assert set(p.array) == {5 if declared else 1}


@KINDS
@pytest.mark.parametrize("named", ["block", "array", "address"])
def test_uses_name_it_by_the_block_and_by_an_array(program, kind, named):
    p = program(kind)
    what = {"block": p.block, "array": p.array, "address": p.block.ptr + 8}[named]
    with use(p.x.T, read_write=what):
        p.kernels.add(p.x.T.handle, p.block.ptr, 4, COUNT)
    before = p.x.runtime.counters()["waits"]
    with use(p.x.U, read_write=what):
        p.kernels.add(p.x.U.handle, p.block.ptr, 4, COUNT)
    assert p.x.runtime.counters()["waits"] == before + 1
    with use(host, write=what, runtime=p.x.runtime):
        assert set(p.array) == {9}


def test_ordinary_memory_of_others_is_refused_as_before(program):
    p = program()
    with pytest.raises(TypeError, match="is host memory that is not page-locked"):
        use(p.x.S, read=numpy.zeros(3)).preflight()


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize(("how", "seen"), [
    ("copy_from", 5), ("upload", 5), ("reversed", 5), ("by the host", 5), ("buffer", 5), ("to_numpy", 5),
    ("copy_to", 7), ("into the buffer", 7), ("fill", 9)])
def test_ordinary_memory_of_others_that_was_adopted(four, kernels, imported, how, seen):
    """Copies come after the kernel on it, and fills too, as on memory of the resource."""
    x = four()
    x.driver.set_policy("min")
    state = DeviceState(x.runtime)
    array = numpy.ones(COUNT, numpy.uint32)
    shown = from_cuda_array(Array(data=(array.ctypes.data, False), shape=(COUNT,), typestr="<u4"), state=state)
    block = shown if imported else x.runtime.adopt(array.ctypes.data, NBYTES)
    device = state.full(COUNT, 7, "uint32", x.S)
    x.runtime.synchronize()
    with use(x.T, read_write=block):
        kernels.add(x.T.handle, array.ctypes.data, 4, COUNT)
    if how == "copy_from":
        device.copy_from(array, x.U)
    elif how == "upload":
        device = state.upload(array, x.U)
    elif how == "reversed":
        device = state.from_numpy(array[::-1], x.U)
    elif how == "by the host":
        device = state.empty(COUNT, "uint32", host, resource=PinnedMemoryResource())
        device.copy_from(array, host)
    elif how == "buffer":
        device.copy_from(shown, x.U)
    elif how == "to_numpy":
        device = state.from_numpy(shown.to_numpy(x.U))
    elif how == "copy_to":
        device.copy_to(array, x.U)
    elif how == "into the buffer":
        shown.copy_from(device, x.U)
    else:
        shown.fill(9, x.U)
    result = device.to_numpy() if seen == 5 else array
    check(cuda.cuCtxSynchronize())
    assert set(result) == {seen}


def test_adopted_ranges_of_ordinary_memory_meet(four):
    x = four()
    array = numpy.zeros(5 * 4096, "uint8")
    for first, last in ((0, 4096), (3 * 4096, 4 * 4096), (4096 - 1, 2 * 4096), (0, 5 * 4096), (17, 18)):
        x.runtime.adopt(array.ctypes.data + first, last - first).free()
    device = DeviceState(x.runtime)
    made = device.from_numpy(array[4 * 4096:], x.S)
    assert made.tolist() == [0] * 4096


@pytest.mark.parametrize("dropped", [False, pytest.param(True, marks=pytest.mark.skipif(
    _driver.BUILD in ("asan", "tsan"), reason="a sanitizer reports the use after the free"))])
def test_a_free_waits_for_the_uses(four, dropped):
    x = four()
    x.driver.set_policy("min")
    block = x.runtime.allocate(NBYTES, x.S, resource=SystemMemoryResource())
    x.use(x.T, (block, READ))
    if dropped:
        x.driver.drop("cuEventSynchronize")
    assert x.driver.pending_operations()
    block.free()
    assert (x.driver.pending_operations() > 0) is dropped
    x.driver.clear_races()


def test_memory_of_a_pool_is_not_handed_out_for_the_host_while_a_kernel_uses_it(program):
    p = program(lambda: PoolMemoryResource(SystemMemoryResource()))
    p.add()
    address, p.block = p.block.ptr, p.block.close()
    p.block = p.x.runtime.allocate(NBYTES, host, resource=p.resource)
    assert p.block.ptr != address


# ---------------------------------------------------------------------------------------------- copies
def upload(p: Program, declared: bool) -> int:
    p.add(declared=declared)
    return int(p.state.upload(p.array, p.x.U).to_numpy()[0])


def copy_from_the_array(p: Program, declared: bool) -> int:
    target = p.buffer(0)
    p.add(declared=declared)
    target.copy_from(p.array, p.x.U)
    return int(target.to_numpy(p.x.U)[0])


def copy_by_the_host(p: Program, declared: bool) -> int:
    p.add(declared=declared)
    return int(p.state.from_numpy(p.array[::-2], p.x.U).to_numpy()[0])


def copy_to_the_array(p: Program, declared: bool) -> int:
    """The kernel adds to what was there before the copy."""
    source = p.buffer(5)
    p.add(declared=declared)
    source.copy_to(p.array, p.x.U)
    check(cuda.cuCtxSynchronize())
    return int(p.array[0])


COPIES = [upload, copy_from_the_array, copy_by_the_host, copy_to_the_array]


@KINDS
@pytest.mark.parametrize("run", COPIES)
def test_copies_are_ordered_with_the_kernel_on_the_memory(program, kind, run):
    assert run(program(kind), True) == 5


@pytest.mark.parametrize("run", COPIES)
def test_copies_beside_a_kernel_that_is_not_declared_are_too_early(program, run):
    p = program()
    assert run(p, False) != 5
    p.x.driver.clear_races()


def over(p: Program, value: int, amount: int = 4):
    """A buffer over memory of the resource, to which a kernel on T adds the amount."""
    made = p.state.empty(COUNT, "uint32", p.x.S, resource=p.resource)
    made.fill(value)
    with use(p.x.T, read_write=made):
        p.kernels.add(p.x.T.handle, made.ptr, amount, COUNT)
    return made


def to_the_device(p: Program):
    target = p.buffer(0)
    target.copy_from(over(p, 1), p.x.U)
    return target


def from_the_device(p: Program):
    target = over(p, 7)
    target.copy_from(p.buffer(5), p.x.U)
    return target


def on_the_host(p: Program):
    target = over(p, 7, 2)
    target.copy_from(over(p, 1), p.x.U)
    return target


def from_an_array(p: Program):
    target = over(p, 7)
    target.copy_from(numpy.full(COUNT, 5, numpy.uint32), p.x.U)
    return target


def filled(p: Program):
    target = over(p, 7)
    target.fill(5, p.x.U)
    return target


@KINDS
@pytest.mark.parametrize("run", [to_the_device, from_the_device, on_the_host, from_an_array, filled])
def test_buffers_are_copied_and_filled_in_order(program, kind, run):
    assert set(run(program(kind)).to_numpy()) == {5}


@pytest.mark.parametrize("run", [to_the_device, on_the_host, from_an_array, filled])
def test_buffers_are_copied_and_filled_too_early_without_a_wait_for_the_stream(program, run):
    """A copy from the device needs none: the driver brings it in the order of the stream."""
    p = program()
    for number in range(1, 9):
        p.x.driver.drop("cuStreamSynchronize", number)
    result = run(p)
    check(cuda.cuCtxSynchronize())
    assert set(result.to_numpy()) != {5}
    p.x.driver.clear_races()


@KINDS
def test_a_buffer_is_mapped(program, kind):
    p = program(kind)
    made = over(p, 1)
    with made.map() as array:
        assert set(array) == {5}


def test_a_coroutine_waits(program):
    async def later() -> None:
        await p.block

    p = program()
    p.x.driver.set_policy("eager")
    p.add()
    asyncio.run(later())
    assert set(p.array) == {5}


def test_an_upload_does_not_wait_for_the_stream(program):
    """The host reads the memory, which is idle, while the stream has work."""
    p = program()
    p.x.work(p.x.U)
    p.state.upload(p.array, p.x.U)
    assert p.x.driver.calls("cuStreamSynchronize") == 0
    assert p.x.driver.pending_operations()


def test_a_copy_is_refused_where_the_stream_captures(program):
    p = program()
    made, target = over(p, 1), p.buffer(0)
    check(cuda.cuCtxSynchronize())
    made.copy_from(target)
    with Capture(p.x.U), pytest.raises(StreamMisuseError, match="captur"):
        target.copy_from(made, p.x.U)


# ---------------------------------------------------------------------------------------------- several devices
@pytest.mark.parametrize("reached", [True, False])
def test_another_device_uses_it_where_that_reaches_it(devices, driver, reached):
    x = devices(peers=False)
    block = x.runtimes[0].allocate(NBYTES, x.streams[0][0], resource=SystemMemoryResource())
    driver.set_pageable(reached)
    launch = use(x.streams[1][0], read=block)
    if reached:
        with launch:
            pass
    else:
        with pytest.raises(StreamMisuseError, match=r"device 1, to which .* belongs, does not reach .*ordinary"):
            launch.preflight()
    block.free()


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("on", [None, 0, 1])
@pytest.mark.parametrize("to_system", [False, True])
def test_copies_between_it_and_memory_of_a_device_that_is_no_peer(devices, driver, to_system, on, dropped):
    """On a stream of either device.  Twin: the host does not wait for the stream before it has the other device copy;
    on the stream of the memory's own device only a copy from the system needs that wait."""
    x = devices(peers=False)
    driver.set_policy("min")
    states = [DeviceState(runtime) for runtime in x.runtimes]
    memory = states[1].empty(COUNT, "uint32", x.streams[1][0], resource=SystemMemoryResource(1))
    with memory.map(write=True) as array:
        array[:] = 1 if to_system else 5
    buffer = states[0].full(COUNT, 5 if to_system else 1, "uint32", x.streams[0][0])
    target, source = (memory, buffer) if to_system else (buffer, memory)
    if dropped:
        driver.drop("cuStreamSynchronize")
    target.copy_from(source, None if on is None else x.streams[on][1])
    far = on == 1 or (on is None and to_system)
    copied = set(target.to_numpy(x.streams[1 if to_system else 0][0]))
    assert (copied == {5}) == (not (dropped and far))
    driver.clear_races()


@pytest.mark.parametrize(("call", "nth"), [
    ("cuStreamIsCapturing", 3), ("cuStreamSynchronize", 1), ("cuStreamCreate", 1), ("cuMemcpyDtoHAsync", 1),
    ("cuStreamSynchronize", 2)])
def test_a_copy_by_another_device_that_fails(devices, driver, call, nth):
    """It can be made again, and nothing is copied behind its back."""
    x = devices(peers=False)
    driver.set_policy("min")
    states = [DeviceState(runtime) for runtime in x.runtimes]
    memory = states[1].empty(COUNT, "uint32", host, resource=SystemMemoryResource(1))
    buffer = states[0].full(COUNT, 5, "uint32", x.streams[0][0])
    before = driver.all_calls()
    driver.fail(f"{call}WithPriority" if call == "cuStreamCreate" else call, nth)
    with pytest.raises(DriverError, match=call):
        memory.copy_from(buffer, x.streams[1][1])
    with memory.map(write=True) as array:
        array[:] = 9
    check(cuda.cuCtxSynchronize())
    assert set(memory.to_numpy(host)) == {9}
    memory.copy_from(buffer, x.streams[1][1])
    assert set(memory.to_numpy(host)) == {5}
    made, gone = (driver.all_calls()[name] - before.get(name, 0) for name in (
        "cuStreamCreateWithPriority", "cuStreamDestroy"))
    assert made - (call == "cuStreamCreate") == gone


def test_it_is_one_of_the_resources(driver):
    assert issubclass(SystemMemoryResource, DeviceMemoryResource)
    runtime = DeviceRuntime(resource=PoolMemoryResource(SystemMemoryResource()))
    stream = runtime.acquire_stream()
    block = runtime.allocate(NBYTES, stream)
    with use(host, write=block):
        words(block.ptr)[:] = 3
    block.free()
