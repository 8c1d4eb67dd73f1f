"""Copies from and to page-locked memory that is tracked wait for the work that uses it, without a line about it."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import Buffer, DeviceState, ManagedMemoryResource, PinnedMemoryResource, StreamMisuseError, host, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

NBYTES = 512


class Program:
    """Memory of the host as an array, and buffers of the device; copies run as late as they may."""

    def __init__(self, x: Any, resource: Callable = PinnedMemoryResource) -> None:
        x.driver.set_policy("min")
        self.x = x
        self.state = DeviceState(x.runtime)
        self.block = x.runtime.allocate(NBYTES, x.S, resource=resource())
        self.array = numpy.frombuffer((ctypes.c_uint8 * NBYTES).from_address(self.block.ptr), numpy.uint8)
        self.array[:] = 1

    def full(self, value: int) -> Buffer:
        return self.state.full(NBYTES, value, "uint8", self.x.S)

    def download(self, source: Buffer, declared: bool) -> None:
        """On T, without a wait of the host.  A copy that is not declared still waits for its source."""
        with use(self.x.T, read=source, write=self.block if declared else []):
            check(cuda.cuMemcpyDtoHAsync(self.block.ptr, source.ptr, NBYTES, self.x.T.handle))

    def upload(self, target: Buffer, declared: bool) -> None:
        with use(self.x.T, read=self.block if declared else [], write=target):
            check(cuda.cuMemcpyHtoDAsync(target.ptr, self.block.ptr, NBYTES, self.x.T.handle))

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        del self.array
        self.block.close()


@pytest.fixture
def program(four):
    made = []

    def make(**options: Any) -> Program:
        made.append(Program(four(), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
        one.__dict__.clear()                            # pytest keeps this object, which must not keep the runtime


def upload_of_a_download(p: Program, declared: bool) -> int:
    source, target = p.full(5), p.full(0)
    p.download(source, declared)
    target.copy_from(p.array, p.x.U)
    return int(target.to_numpy(p.x.U)[0])


def import_of_a_download(p: Program, declared: bool) -> int:
    p.download(p.full(5), declared)
    return int(xlogmem.from_dlpack(p.array, device=0, state=p.state, stream=p.x.U).to_numpy()[0])


def upload_of_every_second_byte(p: Program, declared: bool) -> int:
    """The host makes it contiguous, and the driver copies the copy."""
    p.download(p.full(5), declared)
    return int(p.state.from_numpy(p.array[::-2], p.x.U).to_numpy()[0])


def download_behind_a_download(p: Program, declared: bool) -> int:
    """Two write one after the other: the second is what stays."""
    first, second = p.full(7), p.full(5)
    p.download(first, declared)
    second.copy_to(p.array, p.x.U)
    check(cuda.cuCtxSynchronize())
    return int(p.array[0])


def download_over_an_upload(p: Program, declared: bool) -> int:
    """The upload brings what was there before the download."""
    source, target = p.full(7), p.full(0)
    p.array[:] = 5
    p.upload(target, declared)
    source.copy_to(p.array, p.x.U)
    return int(target.to_numpy()[0])


PROGRAMS = [upload_of_a_download, import_of_a_download, download_behind_a_download, download_over_an_upload]
READ_BY_THE_HOST = [upload_of_every_second_byte]        # which the simulated driver does not see


@pytest.mark.parametrize("resource", [PinnedMemoryResource, ManagedMemoryResource])
@pytest.mark.parametrize("run", PROGRAMS + READ_BY_THE_HOST)
def test_copies_are_ordered_with_the_work_on_the_host_memory(program, run, resource):
    assert run(program(resource=resource), True) == 5


@pytest.mark.parametrize("run", PROGRAMS + READ_BY_THE_HOST)
def test_copies_beside_work_that_is_not_declared_are_too_early(program, run):
    p = program()
    assert run(p, False) != 5
    assert len(p.x.driver.races()) == (run in PROGRAMS)
    p.x.driver.clear_races()


def test_work_waits_for_a_copy_only_as_long_as_it_lasts(program):
    """The host has waited for the copy, so nothing waits for it once more."""
    p = program()
    buffer = p.full(5)
    address = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
    block = p.x.runtime.adopt(address, NBYTES)
    array = (ctypes.c_uint8 * NBYTES).from_address(address)
    array[:] = [1] * NBYTES
    buffer.copy_from(array, p.x.T)
    before = p.x.runtime.counters()["host_waits"]
    with use(host, write=block):
        array[:] = [2] * NBYTES
    assert p.x.runtime.counters()["host_waits"] == before
    assert buffer.to_numpy().tolist() == [1] * NBYTES
    block.free()
    check(cuda.cuMemFreeHost(address))


def test_memory_that_reaches_over_several_blocks(program):
    """Each block that the copy reads is waited for."""
    p = program()
    address = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
    halves = [p.x.runtime.adopt(address + offset, NBYTES // 2) for offset in (0, NBYTES // 2)]
    source, target = p.full(5), p.full(0)
    with use(p.x.T, read=source, write=halves[1]):
        check(cuda.cuMemcpyDtoHAsync(address, source.ptr, NBYTES, p.x.T.handle))
    target.copy_from((ctypes.c_uint8 * NBYTES).from_address(address), p.x.U)
    assert target.to_numpy().tolist() == [5] * NBYTES
    for half in halves:
        half.free()
    check(cuda.cuMemFreeHost(address))


def test_an_array_that_is_not_contiguous_and_not_tracked(program):
    p = program()
    address = int(check(cuda.cuMemHostAlloc(4 * NBYTES, 0)))
    array = numpy.frombuffer((ctypes.c_uint8 * (4 * NBYTES)).from_address(address), numpy.uint8)
    array[:] = numpy.arange(4 * NBYTES) % 251
    for part in (array[::2], array.reshape(8, -1).T, array.reshape(4, 8, -1)[::-1, ::3, ::-2], array[:0:2]):
        assert p.state.from_numpy(part, p.x.T).tolist() == part.tolist()
    del array, part
    check(cuda.cuMemFreeHost(address))


def test_a_handle_that_was_dropped_is_in_the_way_of_no_copy(program):
    """The program keeps the memory; only the handle has gone, which no call has noticed yet."""
    p = program()
    address = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
    array = (ctypes.c_uint8 * NBYTES).from_address(address)
    array[:] = [5] * NBYTES
    buffer = p.full(0)
    handle = p.x.runtime.adopt(address, NBYTES, p.x.S)
    with use(p.x.S, read=handle):
        pass
    del handle
    buffer.copy_from(array, p.x.T)
    assert buffer.to_numpy().tolist() == [5] * NBYTES
    check(cuda.cuMemFreeHost(address))


def test_a_copy_inside_an_access_of_its_own_thread_is_refused(program):
    p = program()
    buffer = p.full(5)
    with use(host, write=p.block), pytest.raises(StreamMisuseError, match="still open, on the host"):
        buffer.copy_from(p.array)
    assert buffer.to_numpy().tolist() == [5] * NBYTES
    with use(host, read=p.block):                       # two that read are not in each other's way
        buffer.copy_from(p.array)
    assert buffer.to_numpy().tolist() == [1] * NBYTES


# ---------------------------------------------------------------------------------------------- several devices
@pytest.mark.parametrize("declared", [True, False])
def test_memory_that_another_device_s_runtime_tracks(devices, driver, declared):
    x = devices(peers=False)
    driver.set_policy("min")
    states = [DeviceState(runtime) for runtime in x.runtimes]
    block = x.runtimes[1].allocate(NBYTES, x.streams[1][0], resource=PinnedMemoryResource(device_id=1))
    array = numpy.frombuffer((ctypes.c_uint8 * NBYTES).from_address(block.ptr), numpy.uint8)
    array[:] = 1
    source = states[1].full(NBYTES, 5, "uint8", x.streams[1][0])
    with use(x.streams[1][1], read=source, write=block if declared else []):
        check(cuda.cuMemcpyDtoHAsync(block.ptr, source.ptr, NBYTES, x.streams[1][1].handle))
    target = states[0].empty(NBYTES, "uint8", x.streams[0][0])
    target.copy_from(array)
    assert (target.to_numpy().tolist() == [5] * NBYTES) is declared
    assert len(driver.races()) == (not declared)
    driver.clear_races()
    for runtime in x.runtimes:
        runtime.synchronize()
    del array
    block.free()


@pytest.mark.parametrize("parts", [
    [(0, 0, NBYTES // 2), (1, NBYTES // 2, NBYTES // 2)],       # one half each
    [(1, NBYTES // 2, NBYTES // 2)],                            # where the copy begins, nothing is tracked
    [(1, NBYTES // 4, NBYTES // 4), (0, NBYTES // 2, 8), (1, 3 * NBYTES // 4, NBYTES // 4)],
])
def test_memory_of_which_several_devices_runtimes_track_parts(devices, driver, parts):
    """The copy comes after the work on each of them; the last is written late."""
    x = devices(peers=False)
    states = [DeviceState(runtime) for runtime in x.runtimes]
    address = int(check(cuda.cuMemHostAlloc(NBYTES, cuda.CU_MEMHOSTALLOC_PORTABLE)))
    array = (ctypes.c_uint8 * NBYTES).from_address(address)
    array[:] = [1] * NBYTES
    blocks = [x.runtimes[device].adopt(address + offset, nbytes) for device, offset, nbytes in parts]
    source, target = (state.full(NBYTES, 5, "uint8", x.streams[n][0]) for n, state in ((1, states[1]), (0, states[0])))
    driver.set_policy("min")
    _, offset, nbytes = parts[-1]
    with use(x.streams[1][1], read=source, write=blocks[-1]):
        check(cuda.cuMemcpyDtoHAsync(address + offset, source.ptr, nbytes, x.streams[1][1].handle))
    target.copy_from(array, x.streams[0][0])
    assert target.to_numpy().tolist()[offset:offset + nbytes] == [5] * nbytes
    for block in blocks:
        block.free()
    check(cuda.cuMemFreeHost(address))
