"""Imports and exports of memory that the host reaches: as with `adopt`, the driver says what kind of memory it is."""
from __future__ import annotations

import ctypes
from typing import Any

import numpy
import pytest
from arrays import Array
from capsules import CUDA, Producer, Taken, settle
from cuda.bindings import driver as cuda
from two_devices import current

from xlogmem import (
    Buffer,
    DeviceRuntime,
    DeviceState,
    DriverError,
    ManagedMemoryResource,
    PinnedMemoryResource,
    from_arrow,
    from_cuda_array,
    from_dlpack,
    host,
    use,
)
from xlogmem._driver import device_count
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

NBYTES = 512
MANAGED = 13


class Program:
    """Memory of one kind that another library has, and a buffer of the device; copies run as late as they may."""

    def __init__(self, x: Any, kind: str) -> None:
        self.x, self.kind, self.state = x, kind, DeviceState(x.runtime)
        if kind == "managed":
            self.address = int(check(cuda.cuMemAllocManaged(NBYTES, 1)))
        elif kind == "page-locked":
            self.address = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
        else:
            self.address = int(check(cuda.cuMemAlloc(NBYTES)))
        if kind != "device":
            ctypes.memset(self.address, 1, NBYTES)
        self.source = self.state.full(NBYTES, 5, "uint8", x.S)
        x.driver.set_policy("min")

    def fill_late(self) -> None:
        """The library's own stream brings fives."""
        self.x.runtime.synchronize()
        check(cuda.cuMemcpyAsync(self.address, self.source.ptr, NBYTES, self.x.T.handle))

    def array(self, **fields: Any) -> Array:
        return Array(data=(self.address, False), shape=(NBYTES,), **fields)

    def close(self) -> None:
        settle()
        self.x.runtime.reap_pending()
        check(cuda.cuCtxSynchronize())
        check((cuda.cuMemFreeHost if self.kind == "page-locked" else cuda.cuMemFree)(self.address))
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime


@pytest.fixture
def program(four):
    made = []

    def make(kind: str) -> Program:
        made.append(Program(four(), kind))
        return made[-1]

    yield make
    for one in made:
        one.close()


def by_interface(p: Program) -> Buffer:
    return from_cuda_array(p.array(), producer=p.x.T, state=p.state)


def by_dlpack(p: Program) -> Buffer:
    kind = MANAGED if p.kind == "managed" else CUDA
    return from_dlpack(Producer(p.address, (NBYTES,), device_type=kind), producer=p.x.T, state=p.state)


def by_arrow(p: Program) -> Buffer:
    """Of a buffer in another runtime, which has an event for the stream that the library's work was on."""
    other = DeviceState(DeviceRuntime())
    work = from_cuda_array(p.array(), producer=p.x.T.handle, state=other)
    pair = work.__arrow_c_device_array__()
    del work
    return from_arrow(pair, state=p.state)


def by_adopt(p: Program) -> Any:
    return p.x.runtime.adopt(p.address, NBYTES, p.x.T, owner=p)


IMPORTS = [by_interface, by_dlpack, by_arrow]


@pytest.mark.parametrize("kind", ["page-locked", "managed"])
@pytest.mark.parametrize("make", [by_interface, by_dlpack])
@pytest.mark.parametrize("declared", [True, False])
def test_the_host_reads_it_after_the_library_s_work(program, kind, make, declared):
    p = program(kind)
    p.fill_late()
    buffer = make(p)
    if declared:
        with buffer.map() as array:
            assert array.tolist() == [5] * NBYTES
    else:
        assert ctypes.string_at(buffer.ptr, 1) == b"\1"
    with use(host, write=buffer):
        ctypes.memset(buffer.ptr, 7, NBYTES)
    assert buffer.tolist() == [7] * NBYTES


@pytest.mark.parametrize("kind", ["page-locked", "managed", "device"])
@pytest.mark.parametrize("make", [*IMPORTS, by_adopt])
def test_the_host_reaches_what_it_reaches_after_adopt(program, kind, make):
    p = program(kind)
    made = make(p)
    if kind == "device":
        with pytest.raises(TypeError, match="is device memory, which the host cannot read"), use(host, read=made):
            pass
    else:
        with use(host, read=made):
            pass


@pytest.mark.parametrize("resource", [PinnedMemoryResource, ManagedMemoryResource])
@pytest.mark.parametrize("back", [from_cuda_array, from_arrow, from_dlpack])
def test_a_round_trip_of_our_own_memory(state, resource, back):
    """Into the same block, and into a block of another runtime."""
    buffer = state.full(4, 3, "uint8", resource=resource())
    other = DeviceState(DeviceRuntime())
    for into in (state, other):
        again = back(buffer, state=into)
        with again.map() as array:
            assert array.tolist() == [3] * 4
        del again
    other.runtime.reap_pending()
    settle()


@pytest.mark.parametrize("what", [lambda p: from_cuda_array(p.array(), state=p.state),
                                  lambda p: from_dlpack(Producer(p.address, (NBYTES,)).capsule(), stream=1,
                                                        state=p.state)], ids=["interface", "dlpack"])
def test_memory_beyond_the_allocation_and_none_at_all(program, what):
    p = program("page-locked")
    address = p.address
    for wrong in (address + 8, 1 << 40, id(p)):
        p.address = wrong
        with pytest.raises(BufferError, match="is neither memory of device 0 nor page-locked"):
            what(p)
    p.address = address
    assert p.x.runtime.find_block(address) is None


@pytest.mark.skipif(device_count() < 2, reason="needs two devices")
def test_page_locked_memory_is_each_device_s():
    with current(1):
        address = int(check(cuda.cuMemHostAlloc(64, cuda.CU_MEMHOSTALLOC_PORTABLE)))
    for device_id in (0, 1):
        state = DeviceState(DeviceRuntime(device_id))
        with from_cuda_array(Array(data=(address, False)), state=state).map(write=True) as array:
            array[:] = device_id
        del array
        state.runtime.reap_pending()
    check(cuda.cuMemFreeHost(address))


# ---------------------------------------------------------------------------------------------- exports
@pytest.mark.parametrize("resource", [PinnedMemoryResource, ManagedMemoryResource])
def test_numpy_gets_a_copy_that_is_complete_or_nothing(four, resource):
    """NumPy names no stream and reads at once.  It takes memory that is exported as page-locked or managed."""
    x = four()
    x.driver.set_policy("min")
    state = DeviceState(x.runtime)
    buffer, source = state.full(64, 1, "uint8", x.S, resource=resource()), state.full(64, 5, "uint8", x.S)
    buffer.copy_from(source, x.T)
    assert (buffer.__dlpack_device__(), buffer[:0].__dlpack_device__()) == ((CUDA, 0), (CUDA, 0))
    with pytest.raises((BufferError, RuntimeError), match=r"[Uu]nsupported device"):     # RuntimeError before 2.1
        numpy.from_dlpack(buffer)
    for wrong in (3, MANAGED):
        with pytest.raises(BufferError, match=rf"on device \(2, 0\) and cannot be exported to \({wrong}, 0\)"):
            buffer.__dlpack__(dl_device=(wrong, 0))
    if numpy.lib.NumpyVersion(numpy.__version__) >= "2.1.0":
        copied = numpy.from_dlpack(buffer, device="cpu")
        assert copied.tolist() == [5] * 64
    with buffer.map() as array:
        assert array.tolist() == [5] * 64


@pytest.mark.parametrize("resource", [PinnedMemoryResource, ManagedMemoryResource])
@pytest.mark.parametrize("dropped", [False, True])
def test_a_consumer_on_the_device_is_ordered(four, driver, resource, dropped):
    x = four()
    driver.set_policy("min")
    state = DeviceState(x.runtime)
    buffer = state.full(NBYTES, 1, "uint8", x.S, resource=resource())
    source, target = state.full(NBYTES, 5, "uint8", x.S), state.full(NBYTES, 0, "uint8", x.S)
    x.runtime.synchronize()
    buffer.copy_from(source, x.T)
    for nth in (1, 2) if dropped else ():
        driver.drop("cuStreamWaitEvent", nth)
    taken = Taken(buffer.__dlpack__(stream=x.U.handle))
    assert (taken.tensor.device_type, taken.tensor.data) == (CUDA, buffer.ptr)
    check(cuda.cuMemcpyAsync(target.ptr, buffer.ptr, NBYTES, x.U.handle))
    x.U.synchronize()                                   # alone, unless it waits for T
    assert bytes(driver.peek(target.ptr, 1)) == (b"\1" if dropped else b"\5")
    assert bool(driver.races()) == dropped
    driver.clear_races()
    taken.delete()
    settle()


@pytest.mark.parametrize("pageable", [0, 1])
def test_memory_is_refused_where_the_driver_cannot_say_if_the_device_reaches_it(state, driver, pageable):
    """Ordinary memory of the host, with devices that reach it and with others."""
    array = numpy.zeros(NBYTES, "uint8")
    before = driver.set_pageable(pageable)
    try:
        driver.fail("cuDeviceGetAttribute", code=1)
        with pytest.raises(DriverError, match="cuDeviceGetAttribute"):
            from_cuda_array(Array(shape=(NBYTES,), data=(array.ctypes.data, False)), state=state)
        driver.fail("cuDeviceGetAttribute", code=1)
        block = state.runtime.adopt(array.ctypes.data, NBYTES)
        with pytest.raises(TypeError, match="is device memory"), use(host, read=block):
            pass                                        # as far as is known
        block.free()
    finally:
        driver.set_pageable(before)
