"""Accesses by the host through the C table: XLOGMEM_HOST in place of a stream."""
from __future__ import annotations

import ctypes

import pytest
from c_table import (
    ANY_THREAD,
    CONFLICT,
    HOST,
    INVALID,
    KEEPS_STREAM,
    NOT_FOUND,
    REFUSE_CONFLICTS,
    STALE,
    WRITE,
    Hold,
    Refused,
)
from cuda.bindings import driver as cuda
from four_streams import nothing_happens
from other_threads import Beside, beside_waiting

from xlogmem import BlockState, DeviceRuntime, PinnedMemoryResource, PoolMemoryResource, get_runtime, host, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
NBYTES = 512


class Upload:
    """A page-locked buffer, a block of the device, and copies that run as late as they may."""

    def __init__(self, x) -> None:
        x.driver.set_policy("min")
        self.x, self.hold = x, Hold(x.runtime)
        self.address = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
        ctypes.memset(self.address, 1, NBYTES)
        self.block, self.device = x.runtime.adopt(self.address, NBYTES), x.alloc(x.S, NBYTES)

    def copy(self) -> None:
        with self.hold.use(self.x.S.handle, read=[self.address], write=[self.device.ptr]):
            check(cuda.cuMemcpyHtoDAsync(self.device.ptr, self.address, NBYTES, self.x.S.handle))

    def arrived(self) -> int:
        check(cuda.cuCtxSynchronize())
        return int(self.x.driver.peek(self.device.ptr, 1)[0])

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        self.hold.close()
        for block in (self.block, self.device):
            block.close()
        self.x.runtime.reap_pending()
        check(cuda.cuMemFreeHost(self.address))
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime


@pytest.fixture
def upload(four):
    made = Upload(four())
    yield made
    made.close()


def refused(kind: int, text: str):
    return pytest.raises(Refused, match=text, check=lambda error: error.kind == kind)


@pytest.mark.parametrize(("declared", "arrives"), [(True, 1), (False, 2)])
def test_a_write_waits_for_the_copy_that_reads(upload, declared, arrives):
    upload.copy()
    if declared:
        with upload.hold.use(HOST, write=[upload.address + 5]):
            ctypes.memset(upload.address, 2, NBYTES)
    else:
        ctypes.memset(upload.address, 2, NBYTES)
    assert upload.arrived() == arrives


@pytest.mark.parametrize(("access", "waits"), [("read", 0), ("write", 1), ("read_write", 1)])
def test_it_waits_for_what_conflicts_and_files_nothing(upload, access, waits):
    upload.copy()
    filed, before = upload.block.frontier, upload.x.runtime.counters()
    with upload.hold.use(HOST, **{access: [upload.address]}):
        pass
    after = upload.x.runtime.counters()
    assert (after["host_waits"] - before["host_waits"], after["uses"] - before["uses"]) == (waits, 0)
    assert upload.block.frontier == filed


def test_a_launch_of_another_thread_waits(upload):
    with upload.hold.use(HOST, write=[upload.address]):
        beside = beside_waiting(upload.x.runtime, upload.copy)
        ctypes.memset(upload.address, 3, NBYTES)
    beside.result()
    assert upload.arrived() == 3


def test_both_languages_are_one_thread_of_the_host(upload):
    with use(host, write=upload.block), upload.hold.use(HOST, write=[upload.address]):
        beside = beside_waiting(upload.x.runtime, lambda: upload.hold.finish(
            upload.hold.prepare(HOST, read=[upload.address])))
    beside.result()


def test_conflicts_are_refused_where_that_is_wanted_and_where_a_wait_would_never_end(upload):
    with upload.hold.use(HOST, write=[upload.address]):
        with refused(CONFLICT, "still open, on the host, and cannot be left"):
            upload.hold.prepare(upload.x.S.handle, read=[upload.address])
        Beside(lambda: refused_beside(upload)).result()
    upload.copy()


def refused_beside(upload: Upload) -> None:
    with refused(CONFLICT, "still open, on the host"):
        upload.hold.prepare(HOST, read=[upload.address], flags=REFUSE_CONFLICTS)


def test_another_thread_may_finish(upload):
    access = upload.hold.prepare(HOST, write=[upload.address], flags=ANY_THREAD)
    beside = beside_waiting(upload.x.runtime, upload.copy)
    Beside(lambda: upload.hold.finish(access)).result()
    beside.result()


def test_a_thread_that_ends_inside_ends_its_access(upload):
    """Nothing is filed for it, and launches that wait go on."""
    access = Beside(lambda: upload.hold.prepare(HOST, write=[upload.address])).result()
    upload.copy()
    assert [kind for kind, _ in upload.block.frontier] == ["has-read"]
    upload.hold.finish(access)


def test_a_free_inside_is_put_off(upload):
    with upload.hold.use(HOST, write=[upload.address]):
        upload.block.free()
        assert upload.block.state is BlockState.RETIRED
    assert upload.block.state is BlockState.FREED


def test_a_cancel_ends_it_too(upload):
    upload.hold.cancel(upload.hold.prepare(HOST, write=[upload.address]))
    with nothing_happens(upload.x.driver, upload.x.runtime):
        upload.hold.finish(upload.hold.prepare(HOST, read=[upload.address]))


def test_the_host_waits_without_an_access(upload):
    upload.copy()
    upload.hold.wait(HOST, upload.address)              # for writers, and there is none
    assert not upload.block.ready
    upload.hold.wait(HOST, upload.address, WRITE)
    assert upload.block.ready


def test_no_memory_is_named(upload):
    assert upload.hold.prepare(HOST) == 0


@pytest.mark.parametrize(("kind", "text", "access"), [
    (INVALID, "device memory, which the host cannot read or write", "device"),
    (NOT_FOUND, "access 1 of 1: no block of this runtime", "elsewhere"),
    (STALE, "was freed", "freed"),
])
def test_memory_is_refused(upload, kind, text, access):
    named = {"device": upload.device.ptr, "elsewhere": 4096, "freed": upload.hold.find(upload.address)[0]}[access]
    if access == "freed":
        upload.block.free()
    with nothing_happens(upload.x.driver, upload.x.runtime), refused(kind, text):
        upload.hold.prepare(HOST, write=[named])


def test_the_host_is_no_stream(upload):
    """No call of the driver gets that handle."""
    with nothing_happens(upload.x.driver, upload.x.runtime):
        for wrong in (lambda: upload.hold.record_use(upload.device.ptr, HOST), lambda: upload.hold.hold_stream(HOST),
                      lambda: upload.hold.prepare(HOST, read=[upload.address], flags=KEEPS_STREAM)):
            with refused(INVALID, "XLOGMEM_HOST is the host, and no stream"):
                wrong()


def test_memory_for_the_host_needs_a_resource_of_such_memory(upload):
    with (nothing_happens(upload.x.driver, upload.x.runtime),
          refused(INVALID, "XLOGMEM_HOST: the runtime's resource has memory of the device alone")):
        upload.hold.allocate(16, HOST)


class Own:
    """A hold on a runtime whose own resource is a pool of page-locked memory."""

    def __init__(self) -> None:
        self.runtime = DeviceRuntime(resource=PoolMemoryResource(PinnedMemoryResource(), chunk_size=NBYTES))
        self.hold = Hold(self.runtime)

    def close(self) -> None:
        self.hold.close()
        self.runtime.reap_pending()
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime


@pytest.fixture
def own(driver):
    driver.set_policy("min")
    made = Own()
    yield made
    made.close()


def test_memory_for_the_host_is_allocated_and_freed(own, driver):
    hold, runtime = own.hold, own.runtime
    first = hold.allocate(NBYTES, HOST)
    with nothing_happens(driver), hold.use(HOST, write=[first]):
        ctypes.memset(first, 1, NBYTES)
    with nothing_happens(driver):
        hold.free(first, HOST)
        assert hold.allocate(NBYTES, HOST) == first
    block = runtime.find_block(first)
    assert block.alloc_stream is None
    hold.free(first, HOST)
    assert runtime.live_bytes == 0
    assert hold.allocate(0, HOST) is None


@pytest.mark.parametrize("waits", [True, False])
def test_memory_for_the_host_is_not_handed_out_while_a_copy_reads(own, driver, waits):
    """Twin: a free at once, and a write to the former address."""
    hold, runtime = own.hold, own.runtime
    stream = runtime.acquire_stream()
    source, target = hold.allocate(NBYTES, HOST), int(check(cuda.cuMemAlloc(NBYTES)))
    ctypes.memset(source, 1, NBYTES)
    with hold.use(stream.handle, read=[source]):
        check(cuda.cuMemcpyHtoDAsync(target, source, NBYTES, stream.handle))
    hold.free(source, HOST)
    following = hold.allocate(NBYTES, HOST) if waits else source
    ctypes.memset(following, 2, NBYTES)
    check(cuda.cuCtxSynchronize())
    assert driver.peek(target, 1)[0] == (1 if waits else 2)
    if waits:
        hold.free(following, HOST)
    check(cuda.cuMemFree(target))


def test_memory_of_the_driver_is_freed_after_its_uses(driver):
    driver.set_policy("min")
    runtime = DeviceRuntime(resource=PinnedMemoryResource())
    hold, stream = Hold(runtime), runtime.acquire_stream()
    source, left = hold.allocate(NBYTES, HOST), []
    with hold.use(stream.handle, write=[source]):
        check(cuda.cuMemsetD8Async(source, 1, NBYTES, stream.handle))
    driver.on_call("cuMemFreeHost", lambda: left.append(driver.pending_operations()))
    hold.free(source, HOST)
    assert left == [0]
    hold.close()
    runtime.reap_pending()


def test_memory_of_two_devices_is_accessed_by_one_use(upload, devices):
    x = devices(peers=False)
    addresses = [int(check(cuda.cuMemHostAlloc(NBYTES, 1))) for _ in range(2)]
    blocks = [runtime.adopt(address, NBYTES) for runtime, address in zip(x.runtimes, addresses, strict=True)]
    hold = Hold(x.runtimes[0])
    for device_id in range(2):
        with use(x.streams[device_id][0], read=blocks[device_id]):
            pass
    before = [runtime.counters()["host_waits"] for runtime in x.runtimes]
    if all(runtime is get_runtime(device_id) for device_id, runtime in enumerate(x.runtimes)):
        with hold.use(HOST, write=addresses):
            pass
        assert [runtime.counters()["host_waits"] for runtime in x.runtimes] == [count + 1 for count in before]
    hold.close()
    for block, address in zip(blocks, addresses, strict=True):
        block.free()
        check(cuda.cuMemFreeHost(address))
