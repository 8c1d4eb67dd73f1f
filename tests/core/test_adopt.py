"""Adopted memory: blocks around memory that another library allocated."""
from __future__ import annotations

import gc
import weakref

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE

from xlogmem import (
    BlockState,
    DeviceRuntime,
    StreamMisuseError,
    UseAfterFreeError,
    host,
    use,
)
from xlogmem.sim.kernels import check

NBYTES = 4096


class Owner:
    """Device memory of another library, freed with its object."""

    def __init__(self) -> None:
        self.ptr = int(check(cuda.cuMemAlloc(NBYTES)))

    def __del__(self) -> None:
        check(cuda.cuMemFree(self.ptr))


def test_adopted_memory_is_used_like_a_block_and_its_owner_is_held():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    owner = Owner()
    alive = weakref.ref(owner)
    block = runtime.adopt(owner.ptr, NBYTES, stream, owner=owner, tag="theirs")
    ptr = owner.ptr
    del owner
    gc.collect()
    assert alive() is not None
    assert (block.ptr, block.nbytes, block.stream, block.tag) == (ptr, NBYTES, stream, "theirs")
    assert runtime.bytes_outstanding == 0               # not our bytes
    with use(stream, read=[block, ptr + 5]):
        pass
    block.free()
    assert block.state is BlockState.FREED
    assert alive() is None
    assert runtime.find_block(ptr) is None


@pytest.mark.parametrize("untracked", [False, True])
def test_page_locked_memory_is_adopted(untracked):
    """The device reaches it, and `use(xlogmem.host, ...)` orders the host.  So is managed memory."""
    runtime = DeviceRuntime()
    ptr = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
    array = type("Array", (), {"__cuda_array_interface__": {
        "version": 3, "shape": (NBYTES,), "typestr": "|u1", "data": (ptr, False), "stream": None}})()
    if untracked:
        with use(runtime.acquire_stream(), read=array, untracked="adopt", runtime=runtime):
            pass
    else:
        block = runtime.adopt(array)
    with use(host, write=ptr, runtime=runtime):
        pass
    if untracked:
        del array
        runtime.reap_pending()
    else:
        block.free()
    assert runtime.find_block(ptr) is None
    check(cuda.cuMemFreeHost(ptr))
    managed = int(check(cuda.cuMemAllocManaged(NBYTES, 1)))
    runtime.adopt(managed, NBYTES).free()
    check(cuda.cuMemFree(managed))


@pytest.mark.simulator
@pytest.mark.parametrize("handle_is_dropped", [True, False])
def test_page_locked_memory_is_adopted_again_after_it_has_gone(handle_is_dropped):
    """No call has noticed yet that the former handle, or owner, has gone: the driver is queried anew."""
    runtime = DeviceRuntime()
    ptr = int(check(cuda.cuMemHostAlloc(NBYTES, 0)))
    for _ in range(2):
        if handle_is_dropped:
            gone = runtime.adopt(ptr, NBYTES)
        else:
            gone = type("Array", (), {"__cuda_array_interface__": {
                "version": 3, "shape": (NBYTES,), "typestr": "|u1", "data": (ptr, False), "stream": None}})()
            with use(runtime.acquire_stream(), read=gone, untracked="adopt", runtime=runtime):
                pass
        del gone
        block = runtime.adopt(ptr, NBYTES)
        with use(host, write=block):
            pass
        del block
    check(cuda.cuMemFreeHost(ptr))
    with pytest.raises(ValueError, match="the driver knows no allocation there"):
        runtime.adopt(ptr, NBYTES)


def test_dropping_the_handle_releases_the_owner():
    runtime = DeviceRuntime()
    owner = Owner()
    alive = weakref.ref(owner)
    block = runtime.adopt(owner.ptr, NBYTES, owner=owner)
    del owner, block
    runtime.reap_pending()
    assert alive() is None
    owner = Owner()
    alive = weakref.ref(owner)
    block = runtime.adopt(owner.ptr, NBYTES, owner=owner)
    del owner, block, runtime                           # and so does the end of the runtime
    gc.collect()
    assert alive() is None


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_adopted_with_a_stream_its_work_so_far_comes_first(four, driver, dropped):
    x = four()
    owner = Owner()
    theirs = x.work(x.S)
    x.kernels.fill(x.S.handle, owner.ptr, 1, 1)
    block = x.runtime.adopt(owner.ptr, NBYTES, x.S, owner=owner)
    if dropped:
        driver.drop("cuStreamWaitEvent")
    read = x.use(x.T, (block, READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    assert x.ordered(theirs, x.T) == (not dropped)
    block.free()                                        # S comes after the reader before the owner goes
    assert x.ordered(read, x.S)
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.simulator
def test_adopted_without_a_stream_the_host_waits_before_the_owner_goes(four, driver):
    x = four()
    driver.set_policy("min")
    owner = Owner()
    block = x.runtime.adopt(owner.ptr, NBYTES, owner=owner)
    x.use(x.T, (block, WRITE))
    assert driver.calls("cuStreamWaitEvent") == 0       # it was ready on all streams
    del owner
    block.free()
    assert driver.calls("cuEventSynchronize") == 1
    assert not driver.races()


def test_a_part_of_a_tracked_block_is_that_block():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(4096, stream)
    part = runtime.adopt(block.ptr + 256, 512)
    assert part.generation == block.generation
    assert part.state is BlockState.LIVE
    with use(stream, write=part):
        pass
    assert ("written", stream.id) in block.frontier
    with pytest.raises(UseAfterFreeError):
        part.free()                                     # it owns nothing
    for ptr, nbytes in ((block.ptr + 4000, 512), (block.ptr + 4095, 2)):
        with pytest.raises(StreamMisuseError, match="overlaps"):
            runtime.adopt(ptr, nbytes)
    del part
    assert block.state is BlockState.LIVE


@pytest.mark.parametrize(("ptr", "nbytes"), [(0, 5), (-1, 5), (4096, 0), (4096, -1), (2**64 - 2, 16), (1.5, 1),
                                            (1, "x")])
def test_ranges_that_make_no_sense(ptr, nbytes):
    runtime = DeviceRuntime()
    with pytest.raises((ValueError, TypeError)):
        runtime.adopt(ptr, nbytes)


class Tensor:
    """Has an index, as PyTorch's tensors have, and says what memory it is."""

    def __init__(self, ptr: int) -> None:
        self.__cuda_array_interface__ = {"shape": (64,), "typestr": "|u1", "data": (ptr, False), "version": 3}

    def __index__(self) -> int:
        return int(self.__cuda_array_interface__["data"][0])


def test_an_array_that_has_an_index_is_held_too():
    runtime, memory = DeviceRuntime(), int(check(cuda.cuMemAlloc(64)))
    tensor = Tensor(memory)
    alive = weakref.ref(tensor)
    block = runtime.adopt(tensor)
    del tensor
    gc.collect()
    assert alive() is not None
    block.free()
    runtime.reap_pending()
    gc.collect()
    assert alive() is None
    check(cuda.cuMemFree(memory))


@pytest.mark.parametrize("untracked", ["adopt", "raise"])
def test_memory_whose_handle_was_dropped_is_untracked(untracked):
    """The block is freed by the next operation: until then its library may hand out the address again."""
    runtime, memory = DeviceRuntime(), int(check(cuda.cuMemAlloc(64)))
    stream, tensor = runtime.acquire_stream(), Tensor(memory)
    runtime.adopt(memory, 64)                           # dropped at once
    if untracked == "raise":
        with pytest.raises(StreamMisuseError, match="untracked"), use(stream, read=tensor, runtime=runtime):
            pass
    else:
        with use(stream, write=tensor, runtime=runtime, untracked="adopt"):
            pass
        assert runtime.find_block(tensor) is not None
    del tensor
    runtime.reap_pending()
    check(cuda.cuMemFree(memory))
