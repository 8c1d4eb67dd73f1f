"""Accesses by the host: it waits for copies that use page-locked memory, and launches wait for it."""
from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import threading
from pathlib import Path

import numpy
import pytest
from cuda.bindings import driver as cuda
from four_streams import Capture, FourStreams, nothing_happens
from other_threads import Beside, beside_waiting, until

import xlogmem
from xlogmem import (
    Access,
    BlockState,
    LaunchRecorder,
    ManagedMemoryResource,
    PinnedMemoryResource,
    PoolMemoryResource,
    StreamMisuseError,
    UseAfterFreeError,
    host,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

NBYTES = 512


class Staging:
    """Page-locked memory as an array, and a block of the device; copies run as late as they may."""

    def __init__(self, x: FourStreams, stream=None) -> None:
        x.driver.set_policy("min")
        self.x, self.runtime = x, x.runtime
        self.address = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
        self.array = numpy.frombuffer((ctypes.c_uint8 * NBYTES).from_address(self.address), numpy.uint8)
        self.array[:] = 1
        self.block = x.runtime.adopt(self.address, NBYTES, stream)
        self.device = x.alloc(x.S, NBYTES)

    def upload(self, stream) -> None:
        """A copy that has to be declared."""
        check(cuda.cuMemcpyHtoDAsync(self.device.ptr, self.address, NBYTES, stream.handle))

    def download(self, stream) -> None:
        check(cuda.cuMemcpyDtoHAsync(self.address, self.device.ptr, NBYTES, stream.handle))

    def contents(self) -> int:
        """The first byte on the device, when everything is complete."""
        check(cuda.cuCtxSynchronize())
        return int(self.x.driver.peek(self.device.ptr, 1)[0])

    def waits(self) -> int:
        return self.runtime.counters()["host_waits"]

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        del self.array
        for block in (self.block, self.device):
            block.close()
        self.runtime.reap_pending()
        check(cuda.cuMemFreeHost(self.address))
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime


@pytest.fixture
def staging(four):
    """Makes `Staging`, which is closed at the end."""
    made = []

    def make(stream: str | None = None) -> Staging:
        x = four()
        made.append(Staging(x, None if stream is None else getattr(x, stream)))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---------------------------------------------------------------------------------------------- the order
def refill(p: Staging, declared: bool) -> int:
    """A buffer is refilled behind a copy that reads it; what arrives on the device."""
    with use(p.x.S, read=p.block, write=p.device):
        p.upload(p.x.S)
    if declared:
        with use(host, write=p.block):
            p.array[:] = 2
    else:
        p.array[:] = 2
    return p.contents()


def test_a_write_waits_for_the_copy_that_reads(staging):
    assert refill(staging(), True) == 1


def test_a_write_that_is_not_declared_is_too_early(staging):
    assert refill(staging(), False) == 2


def read_result(p: Staging, declared: bool) -> int:
    """A result is read behind the copy that brings it."""
    with use(p.x.S, write=p.device):
        check(cuda.cuMemsetD8Async(p.device.ptr, 3, NBYTES, p.x.S.handle))
    with use(p.x.T, read=p.device, write=p.block):
        p.download(p.x.T)
    if not declared:
        return int(p.array[0])
    with use(host, read=p.block):
        return int(p.array[0])


def test_a_read_waits_for_the_copy_that_writes(staging):
    assert read_result(staging(), True) == 3


def test_a_read_that_is_not_declared_is_too_early(staging):
    assert read_result(staging(), False) == 1


def test_a_read_does_not_wait_for_readers(staging):
    p = staging()
    with use(p.x.S, read=p.block, write=p.device):
        p.upload(p.x.S)
    before = p.waits()
    with use(host, read=p.block):
        assert p.waits() == before
    with use(host, write=p.block):
        assert p.waits() == before + 1


def test_what_the_host_has_seen_complete_costs_no_wait(staging):
    p = staging()
    with use(p.x.S, read=p.block, write=p.device):
        p.upload(p.x.S)
    before = p.waits()
    for _ in range(3):
        with use(host, write=p.block):
            pass
    assert p.waits() == before + 1


def test_memory_that_no_stream_has_used_costs_no_driver_call(staging):
    p = staging()
    with nothing_happens(p.x.driver, p.runtime), use(host, write=p.block):
        p.array[:] = 4


def test_fresh_memory_waits_for_what_its_own_stream_has_queued_without_a_record(staging):
    p = staging("S")
    for value in (5, 6):
        p.upload(p.x.S)                                 # not declared: the block's own stream may do that
        with use(host, write=p.block):
            p.array[:] = value
    assert p.contents() == 5


def test_an_access_files_nothing(staging):
    """What is queued after it began later: no stream waits, and the readers that it waited for stay filed."""
    p = staging()
    with use(p.x.S, read=p.block, write=p.device):
        p.upload(p.x.S)
    filed = p.block.frontier
    with use(host, read_write=p.block):
        p.array[:] = 7
    assert p.block.frontier == filed
    before = p.x.waits()
    with use(p.x.U, read=p.block):
        pass
    assert p.x.waits() == before


@pytest.mark.parametrize("how", ["cancel", "exception", "dropped"])
def test_an_access_ends_in_any_way(staging, how):
    p = staging()
    filed = p.block.frontier
    if how == "exception":
        with pytest.raises(KeyError), use(host, write=p.block):
            raise KeyError
    else:
        recorder = use(host, write=p.block)
        recorder.preflight()
        if how == "cancel":
            recorder.cancel()
        else:
            with pytest.warns(ResourceWarning, match="<LaunchRecorder on the host"):
                del recorder
                gc.collect()
    with use(p.x.S, read=p.block):                      # nothing is open any more
        pass
    assert [key for key in p.block.frontier if key not in filed] == [("has-read", p.x.S.id)]


# ---------------------------------------------------------------------------------------------- while it is open
def test_a_launch_of_another_thread_waits_until_the_access_ends(staging):
    p = staging()
    with use(host, write=p.block):
        beside = beside_waiting(p.runtime, lambda: refill_from(p))
        p.array[:] = 8
    beside.result()
    assert p.contents() == 8


def refill_from(p: Staging) -> None:
    with use(p.x.S, read=p.block, write=p.device):
        p.upload(p.x.S)


def test_a_launch_that_does_not_wait_reads_what_is_half_written(staging):
    p = staging()
    with use(host, write=p.block):
        Beside(lambda: counted(p)).result()
        check(cuda.cuCtxSynchronize())
        p.array[:] = 8
    assert p.contents() == 1
    assert p.runtime.counters()["conflicts"] == 1


def counted(p: Staging) -> None:
    with use(p.x.S, read=p.block, write=p.device, on_conflict="count"):
        p.upload(p.x.S)


def test_two_threads_conflict_and_one_does_not(staging):
    p = staging()
    order = []

    def write() -> None:
        with use(host, write=p.block):
            order.append("other")

    with use(host, write=p.block):
        with use(host, read=p.block), use(host, write=p.block):
            beside = beside_waiting(p.runtime, write)
        order.append("this")
    beside.result()
    assert order == ["this", "other"]


def test_two_threads_may_read(staging):
    p = staging()
    with use(host, read=p.block):
        Beside(lambda: use(host, read=p.block).__enter__().commit()).result()
    assert p.runtime.counters()["conflict_waits"] == 0


def test_threads_that_have_ended_leave_nothing(staging):
    """The next thread takes the place of one that has ended, and conflicts like any other."""
    p = staging()
    for _ in range(40):
        Beside(lambda: use(host, write=p.block).__enter__().commit()).result()
    with use(host, write=p.block):
        beside = beside_waiting(p.runtime, lambda: use(host, read=p.block).__enter__().commit())
    beside.result()


def test_an_access_whose_thread_has_ended_is_still_in_the_way(staging):
    p = staging()
    recorder = use(host, write=p.block)
    beside = Beside(recorder.preflight)
    task = Path(f"/proc/self/task/{beside.native_id}")
    beside.result()
    until(lambda: not task.exists())                    # Python joins it before the system has ended it
    with pytest.raises(StreamMisuseError, match="still open, on the host"):
        use(host, write=p.block, on_conflict="raise").preflight()
    recorder.commit()


def test_a_launch_inside_an_access_of_the_same_thread_is_refused(staging):
    """One use() cannot be on a stream and on the host: the advice is to leave the access."""
    p = staging()
    with (use(host, write=p.block), pytest.raises(StreamMisuseError, match="open, on the host, and cannot be left.*"
                                                  r"wait for ever\. Leave that one first$")):
        use(p.x.S, read=p.block).preflight()
    with (use(p.x.S, write=p.block), pytest.raises(StreamMisuseError, match="while this one on the host waits.*"
                                                   r"wait for ever\. Leave that one first$")):
        use(host, read=p.block).preflight()


def test_a_conflict_may_be_refused(staging):
    p = staging()
    with use(host, write=p.block):
        Beside(lambda: refused_on(p)).result()


def refused_on(p: Staging) -> None:
    with pytest.raises(StreamMisuseError, match="still open, on the host"):
        use(p.x.S, read=p.block, on_conflict="raise").preflight()
    with pytest.raises(StreamMisuseError, match="still open, on the host"):
        use(host, read=p.block, on_conflict="raise").preflight()


def test_a_free_inside_is_put_off(staging):
    p = staging()
    with use(host, write=p.block):
        p.block.free()
        assert p.block.state is BlockState.RETIRED
        p.array[:] = 9
    assert p.block.state is BlockState.FREED


def test_one_recorder_is_opened_in_one_thread_and_closed_in_another(staging):
    p = staging()
    recorder = use(host, write=p.block)
    Beside(recorder.preflight).result()
    beside = beside_waiting(p.runtime, lambda: refill_from(p))
    recorder.commit()
    beside.result()


# ---------------------------------------------------------------------------------------------- refusals
def test_device_memory_is_refused(staging):
    p = staging()
    with nothing_happens(p.x.driver, p.runtime), pytest.raises(TypeError, match="which the host cannot read or write"):
        use(host, read=[p.block, p.device]).preflight()
    with use(p.x.S, write=p.block):                     # nothing is open
        pass


def test_a_refusal_of_device_memory_names_what_the_host_reaches(four):
    """The same host memory is refused and accessed: by what its class declares."""
    class OfHost(xlogmem.DeviceMemoryResource):
        order = "host"

        def allocate(self, nbytes, stream):
            return int(check(cuda.cuMemHostAlloc(nbytes, 0)))

        def deallocate(self, ptr, nbytes, stream):
            check(cuda.cuMemFreeHost(ptr))

    x = four()
    block = x.runtime.allocate(NBYTES, x.S, resource=OfHost())
    with pytest.raises(TypeError, match=r"or from a resource that declares is_host_accessible$"):
        use(host, write=block).preflight()
    declared = x.runtime.allocate(NBYTES, x.S, resource=type("Declared", (OfHost,), {"is_host_accessible": True})())
    with use(host, write=declared):
        pass
    for made in (block, declared):
        made.free()


def test_managed_memory_is_accessed(four):
    x = four()
    address = int(check(cuda.cuMemAllocManaged(NBYTES, 1)))
    block = x.runtime.adopt(address, NBYTES)
    with use(host, write=block):
        pass
    block.free()
    check(cuda.cuMemFree(address))


def test_a_freed_block_is_refused(staging):
    p = staging()
    p.block.free()
    with pytest.raises(UseAfterFreeError, match="read=: block"):
        use(host, read=p.block).preflight()


def test_a_source_that_captures_is_refused_and_nothing_is_open(staging):
    p = staging("S")
    with Capture(p.x.S), pytest.raises(StreamMisuseError, match="capturing a graph"):
        use(host, write=p.block).preflight()
    with use(host, write=p.block):
        pass


def test_the_host_waits_in_vain_and_nothing_is_open(staging):
    p = staging()
    with use(p.x.S, read=p.block, write=p.device):
        p.upload(p.x.S)
    p.x.driver.fail("cuEventSynchronize")
    with pytest.raises(xlogmem.DriverError, match="preparing an access by the host"):
        use(host, write=p.block).preflight()
    with use(host, write=p.block):
        pass


def test_the_host_is_no_stream(staging):
    p = staging()
    for wrong in (lambda: p.runtime.register_stream(host),
                  lambda: p.block.free(host), lambda: p.runtime.adopt(p.address, 16, host)):
        with pytest.raises(TypeError, match=r"xlogmem\.host is not a CUDA stream"):
            wrong()
    with pytest.raises(TypeError, match=r"prepare_block_use: xlogmem\.host is not a stream"):
        p.runtime.prepare_block_use(p.block, host, Access.READ)
    with pytest.raises(StreamMisuseError, match="no memory is named"):
        use(host, runtime=p.runtime).preflight()


def test_an_access_that_was_not_entered_is_not_left(staging):
    p = staging()
    with pytest.raises(StreamMisuseError, match="left, and not entered before"):
        LaunchRecorder.__exit__(use(host, write=p.block), None, None, None)


def test_there_is_one_host():
    assert repr(host) == "xlogmem.host"
    assert pickle.loads(pickle.dumps(host)) is host is copy.copy(host) is copy.deepcopy(host)
    with pytest.raises(TypeError, match="there is one host"):
        xlogmem.Host()
    with pytest.raises(TypeError):
        type("Guest", (xlogmem.Host,), {})


def test_a_recorder_says_that_it_is_on_the_host(staging):
    p = staging()
    recorder = LaunchRecorder(host, runtime=p.runtime).write(p.block)
    assert recorder.stream is None
    assert repr(recorder) == "<LaunchRecorder on the host, untracked='raise': 1 use, recording>"
    recorder.cancel()


# ---------------------------------------------------------------------------------------------- arrays
def test_a_page_locked_array_names_its_memory(staging):
    p = staging()
    assert p.runtime.find_block(p.array) is not None
    with use(p.x.S, read=p.array[8:], write=p.device):
        p.upload(p.x.S)
    before = p.waits()
    with use(host, write=p.array[::-2], runtime=p.runtime):
        assert p.waits() == before + 1


def test_a_read_only_array_is_not_written(staging):
    p = staging()
    view = p.array[:]
    view.flags.writeable = False
    with pytest.raises(StreamMisuseError, match="says that it is read-only"):
        use(host, write=view, runtime=p.runtime)


def test_pageable_memory_is_refused(four):
    x = four()
    for wrong in (numpy.zeros(3), bytearray(3), memoryview(b"abc")):
        with pytest.raises(TypeError, match="is host memory that is not page-locked"):
            use(host, read=wrong, runtime=x.runtime)
        with pytest.raises(TypeError, match="is host memory that is not page-locked"):
            x.runtime.adopt(wrong)


def test_an_untracked_array_is_refused_with_what_tracks_it(staging):
    p = staging()
    p.block.free()
    with pytest.raises(StreamMisuseError, match=r"Track page-locked memory with xlogmem\.get_runtime\(\)\.adopt\(x\)"):
        use(p.x.S, read=p.array).preflight()
    p.block = p.runtime.adopt(p.array)
    with use(p.x.S, read=p.array, write=p.device):
        p.upload(p.x.S)
    with use(host, write=p.array, runtime=p.runtime):
        p.array[:] = 2
    assert p.contents() == 1


def test_an_array_is_adopted_as_long_as_it_lives(staging):
    p = staging()
    p.block.free()
    owner = numpy.frombuffer((ctypes.c_uint8 * NBYTES).from_address(p.address), numpy.uint8)
    with use(p.x.S, read=owner[16:], write=p.device, untracked="adopt"):
        p.upload(p.x.S)
    found = p.runtime.find_block(p.address)
    assert found is not None
    with use(host, write=owner, runtime=p.runtime):
        p.array[:] = 2
    assert p.contents() == 1
    del owner
    gc.collect()
    p.runtime.reap_pending()
    assert p.runtime.find_block(p.address) is None


@pytest.mark.parametrize("by", ["address", "array"])
def test_memory_is_adopted_again_where_the_handle_before_was_dropped(staging, by):
    """The free of that handle is still deferred, and the address is found: the new block is page-locked, too."""
    p = staging()
    for _ in range(3):
        p.block = None
        p.block = p.runtime.adopt(p.address, NBYTES) if by == "address" else p.runtime.adopt(p.array)
        with use(host, write=p.block):
            pass


@pytest.mark.parametrize("nbytes", [2 * NBYTES, NBYTES])
def test_memory_that_is_gone_is_not_adopted_where_the_handle_before_was_dropped(four, nbytes):
    x = four()
    address = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
    block = x.runtime.adopt(address, NBYTES)
    check(cuda.cuMemFreeHost(address))
    del block
    with pytest.raises(ValueError, match="the driver knows no allocation there"):
        x.runtime.adopt(address, nbytes)


def test_an_adoption_by_an_access_says_that_it_does_not_wait(staging):
    p = staging()
    p.block.free()
    with (pytest.warns(RuntimeWarning, match="does not wait for what streams have queued"),
          use(host, write=p.array, runtime=p.runtime, untracked="adopt")):
        pass


# ---------------------------------------------------------------------------------------------- memory of the runtime
def reused(x: FourStreams, declared: bool) -> int:
    """Memory of a pool comes back while a copy of its former owner reads it; what that copy brings."""
    x.driver.set_policy("min")
    pool = PoolMemoryResource(PinnedMemoryResource(), initial_pool_size=4096, maximum_pool_size=4096)
    device = x.alloc(x.S, 4096)
    first = x.runtime.allocate(4096, x.S, resource=pool)
    with use(host, write=first):
        ctypes.memset(first.ptr, 1, 4096)
    with use(x.S, read=first, write=device):
        check(cuda.cuMemcpyHtoDAsync(device.ptr, first.ptr, 4096, x.S.handle))
    first.free()
    second = x.runtime.allocate(4096, x.T, resource=pool)
    if declared:
        with use(host, write=second):
            ctypes.memset(second.ptr, 2, 4096)
    else:
        ctypes.memset(second.ptr, 2, 4096)
    check(cuda.cuCtxSynchronize())
    return x.driver.peek(device.ptr, 1)[0]


def test_memory_of_a_pool_is_filled_after_the_copy_of_its_former_owner(four):
    assert reused(four(), True) == 1


def test_memory_of_a_pool_that_is_filled_at_once_is_filled_too_early(four):
    assert reused(four(), False) == 2


@pytest.mark.parametrize("resource", [PinnedMemoryResource, ManagedMemoryResource])
def test_memory_of_a_resource_that_the_host_reaches_is_accessed(four, resource):
    x = four(resource=resource())
    block = x.alloc(x.S)
    x.use(x.T, (block, "write"))
    before = x.runtime.counters()["host_waits"]
    with use(host, read=block):
        assert x.runtime.counters()["host_waits"] > before


# ---------------------------------------------------------------------------------------------- several devices
def test_memory_of_two_runtimes_is_accessed_by_one_use(devices):
    x = devices(peers=False)
    addresses = [int(check(cuda.cuMemHostAlloc(NBYTES, 1))) for _ in range(2)]
    blocks = [runtime.adopt(address, NBYTES) for runtime, address in zip(x.runtimes, addresses, strict=True)]
    before = [runtime.counters()["host_waits"] for runtime in x.runtimes]
    for device_id in range(2):
        with use(x.streams[device_id][0], read=blocks[device_id]):
            pass
    with use(host, write=blocks) as recorder:
        assert recorder.stream is None
    assert [runtime.counters()["host_waits"] for runtime in x.runtimes] == [count + 1 for count in before]
    with use(x.streams[1][0], read=blocks):             # page-locked memory is accessible to every device
        pass
    for block, address in zip(blocks, addresses, strict=True):
        block.free()
        check(cuda.cuMemFreeHost(address))


# ---------------------------------------------------------------------------------------------- what others see
def test_a_history_has_the_accesses(staging):
    p = staging()
    with xlogmem.record_history() as history, use(host, read_write=p.block):
        pass
    events = [event for event in history.events() if event.kind == "use"]
    assert [(event.stream, event.generation) for event in events] == [(None, p.block.generation)]


def test_many_threads_and_streams(staging):
    """Threads fill and copy one buffer; each copy brings what its own thread filled in."""
    p = staging()
    p.x.driver.set_policy("eager")
    wrong = []
    fills = threading.Barrier(4)

    def work(stream, value: int) -> None:
        fills.wait()
        for _ in range(50):
            with use(host, write=p.block):
                p.array[:] = value
                if set(p.array.tolist()) != {value}:
                    wrong.append(value)
            with use(stream, read=p.block, write=p.device):
                p.upload(stream)

    threads = [Beside(lambda stream=stream, value=value: work(stream, value))
               for value, stream in enumerate((p.x.S, p.x.T, p.x.U, p.x.V), 10)]
    for thread in threads:
        thread.result()
    assert wrong == []
    until(lambda: p.block.ready)

