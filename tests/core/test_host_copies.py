"""Copies from and to page-locked memory that is tracked wait for the work that uses it, without a line about it."""
from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import numpy
import pytest
from cuda.bindings import driver as cuda
from four_streams import Capture
from other_threads import Beside, beside_waiting, until

import xlogmem
from xlogmem import (
    Buffer,
    DeviceRuntime,
    DeviceState,
    DriverError,
    LaunchRecorder,
    ManagedMemoryResource,
    PinnedMemoryResource,
    StreamMisuseError,
    host,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

NBYTES = 512


class Program:
    """Memory of the host as an array, and buffers of the device; copies run as late as they may.  `beside`: another
    runtime of the device has the memory of the host."""

    def __init__(self, x: Any, resource: Callable = PinnedMemoryResource, beside: bool = False) -> None:
        x.driver.set_policy("min")
        self.x = x
        self.state = self.there = DeviceState(x.runtime)
        self.S, self.T = x.S, x.T
        if beside:
            self.there = DeviceState(DeviceRuntime())
            self.S, self.T = self.there.runtime.acquire_stream(), self.there.runtime.acquire_stream()
        self.block = self.there.runtime.allocate(NBYTES, self.S, resource=resource())
        self.array = numpy.frombuffer((ctypes.c_uint8 * NBYTES).from_address(self.block.ptr), numpy.uint8)
        self.array[:] = 1

    def full(self, value: int) -> Buffer:
        return self.state.full(NBYTES, value, "uint8", self.x.S)

    def full_there(self, value: int) -> Buffer:
        """In the runtime that has the memory of the host."""
        return self.there.full(NBYTES, value, "uint8", self.S)

    def download(self, source: Buffer, declared: bool) -> None:
        """On T, without a wait of the host.  A copy that is not declared still waits for its source."""
        with use(self.T, read=source, write=self.block if declared else []):
            check(cuda.cuMemcpyDtoHAsync(self.block.ptr, source.ptr, NBYTES, self.T.handle))

    def upload(self, target: Buffer, declared: bool) -> None:
        with use(self.T, read=self.block if declared else [], write=target):
            check(cuda.cuMemcpyHtoDAsync(target.ptr, self.block.ptr, NBYTES, self.T.handle))

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        del self.array
        self.block.close()
        self.there.runtime.reap_pending()


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
    source, target = p.full_there(5), p.full(0)
    p.download(source, declared)
    target.copy_from(p.array, p.x.U)
    return int(target.to_numpy(p.x.U)[0])


def import_of_a_download(p: Program, declared: bool) -> int:
    p.download(p.full_there(5), declared)
    return int(xlogmem.from_dlpack(p.array, device=0, state=p.state, stream=p.x.U).to_numpy()[0])


def upload_of_every_second_byte(p: Program, declared: bool) -> int:
    """The host makes it contiguous, and the driver copies the copy."""
    p.download(p.full_there(5), declared)
    return int(p.state.from_numpy(p.array[::-2], p.x.U).to_numpy()[0])


def download_behind_a_download(p: Program, declared: bool) -> int:
    """Two write one after the other: the second is what stays."""
    first, second = p.full_there(7), p.full(5)
    p.download(first, declared)
    second.copy_to(p.array, p.x.U)
    check(cuda.cuCtxSynchronize())
    return int(p.array[0])


def download_over_an_upload(p: Program, declared: bool) -> int:
    """The upload brings what was there before the download."""
    source, target = p.full(7), p.full_there(0)
    p.array[:] = 5
    p.upload(target, declared)
    source.copy_to(p.array, p.x.U)
    return int(target.to_numpy()[0])


def copy_by_the_host(p: Program, declared: bool) -> int:
    p.download(p.full_there(5), declared)
    staging = p.state.empty(NBYTES, "uint8", host, resource=PinnedMemoryResource())
    staging.copy_from(p.array, host)
    with staging.map() as array:
        return int(array[0])


def copy_to_by_the_host(p: Program, declared: bool) -> int:
    first = p.full_there(7)
    p.download(first, declared)
    staging = p.state.empty(NBYTES, "uint8", host, resource=PinnedMemoryResource())
    with staging.map(write=True) as array:
        array[:] = 5
    staging.copy_to(p.array, host)
    check(cuda.cuCtxSynchronize())
    return int(p.array[0])


def upload_without_a_wait(p: Program, declared: bool) -> int:
    p.download(p.full_there(5), declared)
    return int(p.state.upload(p.array, p.x.U).to_numpy()[0])


PROGRAMS = [upload_of_a_download, import_of_a_download, download_behind_a_download, download_over_an_upload]
READ_BY_THE_HOST = [upload_of_every_second_byte, copy_by_the_host, copy_to_by_the_host]     # the driver does not see it


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("resource", [PinnedMemoryResource, ManagedMemoryResource])
@pytest.mark.parametrize("run", [*PROGRAMS, *READ_BY_THE_HOST, upload_without_a_wait])
def test_copies_are_ordered_with_the_work_on_the_host_memory(program, run, resource, beside):
    assert run(program(resource=resource, beside=beside), True) == 5


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("run", PROGRAMS + READ_BY_THE_HOST)
def test_copies_beside_work_that_is_not_declared_are_too_early(program, run, beside):
    p = program(beside=beside)
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


@pytest.mark.parametrize("code", [1, 2, 999])
@pytest.mark.parametrize("copy", [
    lambda p, made: made.copy_from(p.array, p.x.U), lambda p, made: made.copy_to(p.array, p.x.U),
    lambda p, made: made.to_numpy(p.x.U), lambda p, made: p.state.upload(p.array, p.x.U),
    lambda p, made: p.state.from_numpy(p.array[::2], p.x.U), lambda p, made: LaunchRecorder(p.x.U).read(p.array)])
def test_memory_of_which_the_driver_cannot_say_what_it_is(program, copy, code):
    """Nothing is copied, and nothing without an order."""
    p = program()
    source, made = p.full(7), p.full(5)
    p.download(source, True)
    p.x.driver.fail("cuPointerGetAttributes", code=code)
    with pytest.raises(DriverError, match="cuPointerGetAttributes gave"):
        copy(p, made)
    copy(p, made)


# ---------------------------------------------------------------------------------------------- beside
def test_a_copy_is_a_use_in_the_runtime_beside(program):
    """Until the copy is queued, launches there wait; afterwards nothing is open."""
    p = program(beside=True)
    target, refused = p.full(0), []

    def look(*_: Any) -> None:
        try:
            use(p.T, write=p.block, on_conflict="raise").preflight()
        except StreamMisuseError as error:
            refused.append(str(error))

    for call, copy in (("cuMemcpyHtoDAsync", target.copy_from), ("cuMemcpyDtoHAsync", target.copy_to)):
        p.x.driver.on_call(call, lambda *_: Beside(look).result())
        copy(p.array, p.x.U)
        assert len(refused) == 1
        assert "is still open, on stream" in refused.pop()
        with use(p.T, write=p.block):
            pass


def test_a_copy_waits_for_a_launch_of_another_thread_beside(program):
    p = program(beside=True)
    source, target = p.full_there(5), p.full(0)
    with use(p.T, read=source, write=p.block):
        beside = beside_waiting(p.there.runtime, lambda: target.copy_from(p.array, p.x.U))
        check(cuda.cuMemcpyDtoHAsync(p.block.ptr, source.ptr, NBYTES, p.T.handle))
    beside.result()
    assert target.to_numpy().tolist() == [5] * NBYTES


def test_a_copy_inside_a_launch_of_its_own_thread_beside_is_refused(program):
    p = program(beside=True)
    target = p.full(5)
    with use(p.T, write=p.block):
        for copy in (target.copy_from, target.copy_to, p.state.upload):
            with pytest.raises(StreamMisuseError, match=r"while this one on (stream \d+|the host) waits"):
                copy(p.array)
    assert target.tolist() == [5] * NBYTES


@pytest.mark.parametrize("dropped", [False, True])
def test_an_upload_of_memory_that_two_runtimes_track(program, dropped):
    """Each has a block that has all of it."""
    p = program()
    state = DeviceState(DeviceRuntime())
    stream = state.runtime.acquire_stream()
    source = state.full(NBYTES, 5, "uint8", stream)
    address = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
    array = (ctypes.c_uint8 * NBYTES).from_address(address)
    array[:] = [1] * NBYTES
    blocks = [runtime.adopt(address, NBYTES) for runtime in (p.x.runtime, state.runtime)]
    with use(stream, read=source, write=blocks[1]):
        check(cuda.cuMemcpyDtoHAsync(address, source.ptr, NBYTES, stream.handle))
    if dropped:
        p.x.driver.drop("cuStreamWaitEvent")
    made = p.state.upload(array, p.x.U)
    assert made.to_numpy().tolist() == [1 if dropped else 5] * NBYTES
    p.x.driver.clear_races()
    for block in blocks:
        block.free()
    state.runtime.synchronize()
    check(cuda.cuMemFreeHost(address))


@pytest.mark.parametrize("dropped", [False, True])
def test_a_copy_waits_for_the_work_of_the_runtime_beside(program, dropped):
    p = program(beside=True)
    source, target = p.full_there(5), p.state.full(NBYTES, 0, "uint8", p.x.U)
    p.download(source, True)
    if dropped:
        p.x.driver.drop("cuStreamWaitEvent")
    target.copy_from(p.array, p.x.U)
    assert target.to_numpy().tolist() == [1 if dropped else 5] * NBYTES
    assert bool(p.x.driver.races()) == dropped
    p.x.driver.clear_races()


@pytest.mark.parametrize("nth", [1, 2])
def test_two_threads_copy_between_two_runtimes_of_a_device(program, nth):
    """Each copy is in both runtimes, and both threads open the windows of their copies in one order: also where one
    begins at the worst moment of the other's, none is refused."""
    p = program()
    states = p.state, DeviceState(DeviceRuntime())
    streams = p.x.U, states[1].runtime.acquire_stream()
    buffers = [state.full(NBYTES, 5, "uint8", stream, resource=PinnedMemoryResource())
               for state, stream in zip(states, streams, strict=True)]
    arrays = [(ctypes.c_uint8 * NBYTES).from_address(buffer.ptr) for buffer in buffers]
    copies = [lambda: buffers[0].copy_from(arrays[1], streams[0]), lambda: buffers[1].copy_from(arrays[0], streams[1])]
    for copy in copies:                                 # each runtime knows both streams
        copy()
    besides: list[Beside] = []

    def waits() -> int:
        return sum(state.runtime.counters()["conflict_waits"] for state in states)

    def begin_the_other() -> None:
        before = waits()
        besides.append(Beside(copies[1]))
        until(lambda: waits() > before or not besides[0].is_alive())

    p.x.driver.on_call("cuStreamIsCapturing", begin_the_other, nth)
    copies[0]()
    besides[0].result()
    assert buffers[0].tolist() == buffers[1].tolist() == [5] * NBYTES
    copies.clear()                                      # the hook keeps them


@pytest.mark.parametrize(("call", "dropped"), [
    ("cuMemcpyDtoHAsync", False), ("cuEventSynchronize", False), ("cuEventSynchronize", True)])
def test_a_copy_whose_wait_fails_stays_a_use_beside(program, call, dropped):
    """What comes next there waits for the copy."""
    p = program(beside=True)
    source = p.full(5)
    if call == "cuEventSynchronize":                    # once the copy is queued
        p.x.driver.on_call("cuMemcpyDtoHAsync", lambda: p.x.driver.fail(call))
    else:
        p.x.driver.fail(call)
    with pytest.raises(DriverError, match=call):
        source.copy_to(p.array, p.x.U)
    assert "written" in [kind for kind, _ in p.block.frontier]
    if dropped:
        p.x.driver.drop("cuStreamWaitEvent")
    with use(p.S, write=p.block):                       # its home, which waits for the copy alone
        check(cuda.cuMemsetD8Async(p.block.ptr, 9, NBYTES, p.S.handle))
    check(cuda.cuCtxSynchronize())
    assert len(p.x.driver.races()) == dropped
    p.x.driver.clear_races()
    assert dropped or list(p.array) == [9] * NBYTES


@pytest.mark.parametrize("which", ["legacy", "per thread", "foreign", "known to both"])
def test_a_copy_on_a_stream_that_may_end(program, which):
    """The runtime beside knows it as the stream of a launch, until it is unregistered where the program named it."""
    p = program(beside=True)
    handle = {"legacy": 1, "per thread": 2}.get(which) or check(cuda.cuStreamCreate(1))
    stream = p.x.runtime.register_stream(handle)
    there = p.there.runtime.register_stream(handle) if which == "known to both" else p.T
    source, target = p.full_there(5), p.full(0)
    with use(there, read=source, write=p.block):
        check(cuda.cuMemcpyDtoHAsync(p.block.ptr, source.ptr, NBYTES, there.handle))
    target.copy_from(p.array, stream)
    with use(there, write=p.block):
        check(cuda.cuMemsetD8Async(p.block.ptr, 9, NBYTES, there.handle))
    assert target.tolist() == [5] * NBYTES
    if which not in ("legacy", "per thread"):
        p.x.runtime.unregister_stream(stream)
        if there is not p.T:
            p.there.runtime.unregister_stream(there)
        check(cuda.cuStreamDestroy(handle))
    with use(p.T, write=p.block):
        check(cuda.cuMemsetD8Async(p.block.ptr, 7, NBYTES, p.T.handle))
    check(cuda.cuCtxSynchronize())
    assert list(p.array) == [7] * NBYTES


def test_the_runtime_of_a_copy_ends_before_the_runtime_beside(program):
    p = program(beside=True)
    state = DeviceState(DeviceRuntime())
    target = state.full(NBYTES, 0, "uint8", state.runtime.acquire_stream())
    target.copy_from(p.array)
    assert target.tolist() == [1] * NBYTES
    del state, target
    gc.collect()
    for stream in (p.S, p.T):
        with use(stream, write=p.block):
            check(cuda.cuMemsetD8Async(p.block.ptr, 9, NBYTES, stream.handle))


def test_a_copy_on_a_capturing_stream_is_refused_and_the_capture_goes_on(program):
    p = program(beside=True)
    target = p.full(3)
    with Capture(p.x.U), pytest.raises(StreamMisuseError, match="is capturing a graph"):
        target.copy_from(p.array, p.x.U)
    assert target.tolist() == [3] * NBYTES
    assert [kind for kind, _ in p.block.frontier] == ["allocated"]


def test_a_runtime_beside_whose_context_is_lost_is_in_the_way_of_no_copy(program):
    p = program()
    other = DeviceState(DeviceRuntime())
    address = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
    array = (ctypes.c_uint8 * NBYTES).from_address(address)
    array[:] = [5] * NBYTES
    block = other.runtime.adopt(address, NBYTES)
    other.mark_lost()
    target, staging = p.full(0), p.state.empty(NBYTES, "uint8", host, resource=PinnedMemoryResource())
    target.copy_from(array)
    staging.copy_from(array, host)
    assert target.tolist() == p.state.upload(array).tolist() == staging.tolist() == [5] * NBYTES
    assert block.nbytes == NBYTES
    check(cuda.cuMemFreeHost(address))


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
