"""Handles: identity, state, addresses, and what happens to them when the block is gone."""
from __future__ import annotations

import copy
import gc
import pickle

import numpy as np
import pytest

from xlogmem import (
    AsyncMemoryResource,
    BlockId,
    BlockState,
    DeviceBlock,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    LaunchRecorder,
    OutOfDeviceMemoryError,
    Stream,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
    use,
)


@pytest.mark.promise(11, 12, 18, 44)
def test_a_block_knows_what_it_is():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(1000, stream, tag="scratch")
    assert (block.nbytes, block.stream, block.tag, block.state) == (1000, stream, "scratch", BlockState.LIVE)
    assert block.ptr % block.align == 0
    assert block.core is runtime
    assert "1000" in repr(block)
    assert "scratch" in repr(block)
    assert f" ptr={block.ptr:#x} " in repr(block)
    block.free()
    assert "ptr" not in repr(block)


@pytest.mark.promise(4, 6)
def test_generations_are_never_reused_addresses_are():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    seen, addresses = set(), set()
    for _ in range(50):
        block = runtime.allocate(256, stream)
        assert block.generation not in seen
        seen.add(block.generation)
        addresses.add(block.ptr)
        block.free()
    assert len(addresses) < 50
    assert sorted(seen) == list(range(min(seen), min(seen) + 50))


@pytest.mark.promise(43)
def test_interior_addresses_find_their_block():
    runtime = DeviceRuntime()
    blocks = [runtime.allocate(n) for n in (1, 256, 1000, 4096, 1 << 20)]
    for block in blocks:
        for offset in {0, 1, block.nbytes // 2, block.nbytes - 1}:
            found = runtime.find_block(block.ptr + offset)
            if 0 <= offset < block.nbytes:
                assert found == block.id
    last = max(blocks, key=lambda b: b.ptr)
    assert runtime.find_block(last.ptr + last.nbytes) is None
    assert runtime.find_block(0) is None
    assert runtime.find_block(2**64 - 1) is None
    ptr = blocks[2].ptr
    blocks[2].free()
    assert runtime.find_block(ptr + 5) is None


@pytest.mark.promise(8, 9)
def test_identity():
    runtime = DeviceRuntime()
    a, b = runtime.allocate(64), runtime.allocate(64)
    assert a.id == a.id
    assert a.id != b.id
    assert a.id != a
    assert len({a.id, a.id, b.id}) == 2
    assert (a.id.ptr, a.id.generation, a.id.alloc_stream, a.id.device_id) == (a.ptr, a.generation, a.stream, 0)
    kept = a.id
    a.free()
    assert kept.generation == a.generation


def test_handles_are_not_made_by_hand():
    for kind in (DeviceBlock, BlockId):
        with pytest.raises(TypeError):
            kind()
    block = DeviceRuntime().allocate(64)
    with pytest.raises(AttributeError):
        block.nbytes = 1 << 30                          # the accounting is not the caller's (W20)


@pytest.mark.promise(48, 68)
def test_double_free_and_use_after_free():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64, stream)
    identity = block.id
    block.free()
    assert block.state is BlockState.FREED
    assert block.frontier == {}
    with pytest.raises(UseAfterFreeError, match=rf"^block {block.generation} \(") as error:
        block.free()
    assert error.value.generation == block.generation
    other = runtime.allocate(64, stream)                # the same address, another generation
    assert other.ptr == identity.ptr
    for stale in (block, identity):
        with pytest.raises(UseAfterFreeError, match="number 2 of "), use(stream, read=[other, stale]):
            raise AssertionError("not reached")
    assert other.state is BlockState.LIVE


def test_dropping_the_last_reference_frees():
    runtime = DeviceRuntime()
    block = runtime.allocate(64)
    assert runtime.live_bytes == 64
    del block
    gc.collect()
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    assert runtime.counters()["frees"] == 1


def test_a_block_dropped_inside_a_window_is_freed_by_the_close():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64, stream)
    with use(stream, read=block):
        del block
        runtime.reap_pending()
        assert runtime.live_bytes == 64
    assert runtime.live_bytes == 0


def test_a_block_outlives_the_name_of_its_runtime():
    block = DeviceRuntime().allocate(64)
    assert block.core.live_bytes == 64
    block.free()


@pytest.mark.promise(37)
def test_sizes_that_make_no_sense():
    runtime = DeviceRuntime()
    for error, nbytes in ((ValueError, -1), (ValueError, -1.0), (ValueError, "many"), (ValueError, "-1 KiB"),
                          (TypeError, 0.5), (TypeError, b"1"), (OverflowError, 1 << 70), (OverflowError, 1e30)):
        with pytest.raises(error, match="nbytes"):
            runtime.allocate(nbytes)
    assert runtime.counters()["allocations"] == 0


def test_sizes_as_rmm_and_people_write_them():
    runtime = DeviceRuntime()
    sizes = {"1KiB": 1024, "1.5 kB": 1500, 1e3: 1000, 64.0: 64, np.int64(7): 7, True: 1, "0 B": 0, 0.0: 0}
    assert [runtime.allocate(size).nbytes for size in sizes] == list(sizes.values())


@pytest.mark.promise(38, 46)
def test_foreign_blocks_and_streams_are_refused():
    one, two = DeviceRuntime(), DeviceRuntime()
    stream, block = one.acquire_stream(), two.allocate(64)
    with pytest.raises(StreamMisuseError, match="another runtime"):
        two.allocate(64, stream)
    with pytest.raises(StreamMisuseError, match="another runtime"):
        one.deallocate(block)
    with pytest.raises(StreamMisuseError, match="another runtime"):
        two.deallocate(block, stream)
    with pytest.raises(StreamMisuseError, match="another runtime"):
        use(stream, read=block)
    assert block.state is BlockState.LIVE


@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource])
@pytest.mark.promise(22, 53, 132)
def test_accounting(resource):
    runtime = DeviceRuntime(resource=resource())
    stream = runtime.acquire_stream()
    blocks = [runtime.allocate(100 * n, stream) for n in range(1, 5)]
    assert (runtime.live_bytes, runtime.pending_bytes, runtime.bytes_outstanding) == (1000, 0, 1000)
    for block in blocks:
        block.free()
    assert runtime.live_bytes == 0
    assert runtime.pending_bytes == (1000 if resource is AsyncMemoryResource else 0)
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    runtime.reap_pending()                              # nothing to do is fine


def test_a_reap_that_does_not_wait():
    runtime = DeviceRuntime()
    runtime.allocate(64).free()
    for _ in range(1000):
        runtime.reap_pending(blocking=False)
        if not runtime.bytes_outstanding:
            break
    assert runtime.bytes_outstanding == 0


@pytest.mark.simulator
@pytest.mark.promise(54)
def test_a_reap_that_does_not_wait_releases_what_is_complete(driver):
    """Once, whatever the looks before it were about."""
    runtime = DeviceRuntime()
    driver.set_policy("min")
    runtime.allocate(64).free()
    runtime.reap_pending(blocking=False)                # not complete: it goes on querying this one
    assert runtime.pending_bytes == 64
    runtime.reap_pending()
    driver.set_policy("eager")
    runtime.allocate(64).free()
    assert driver.pending_operations() == 0
    runtime.reap_pending(blocking=False)
    assert runtime.pending_bytes == 0


@pytest.mark.promise(54)
def test_many_frees_between_reaps_are_still_exact():
    runtime = DeviceRuntime()
    for number in range(1, 1001):
        runtime.allocate(number).free()
    assert runtime.pending_bytes == sum(range(1, 1001))
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0


@pytest.mark.simulator
@pytest.mark.promise(127, 133)
def test_direct_frees_wait_on_the_host(driver):
    runtime = DeviceRuntime(resource=DirectMemoryResource())
    driver.set_policy("min")
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)
    with use(T, read=block):
        pass
    before = driver.calls("cuEventSynchronize")
    block.free()
    assert driver.calls("cuEventSynchronize") - before == 2         # T's use, and S, where unrecorded work may be
    assert driver.calls("cuMemFree") == 1


@pytest.mark.simulator
def test_out_of_memory_reaps_trims_and_tries_once_more(driver):
    runtime = DeviceRuntime()
    runtime.allocate(64).free()
    driver.fail("cuMemAllocFromPoolAsync", code=2)
    block = runtime.allocate(64)
    assert runtime.pending_bytes == 0
    assert driver.calls("cuMemPoolTrimTo") == 1
    driver.fail("cuMemAllocFromPoolAsync", 1, code=2)
    driver.fail("cuMemAllocFromPoolAsync", 2, code=2)
    with pytest.raises(OutOfDeviceMemoryError, match="allocating 99 bytes") as error:
        runtime.allocate(99)
    assert isinstance(error.value, MemoryError)
    assert isinstance(error.value, DriverError)
    assert runtime.live_bytes == block.nbytes


@pytest.mark.promise(2, 155, 157, 159)
def test_streams_and_pools():
    pool = StreamPool(max_streams=2)
    runtime = DeviceRuntime(stream_pool=pool)
    assert pool.default == runtime.default_stream
    a, b = pool.acquire(), pool.acquire(priority=-1)
    assert len({pool.default, a, b}) == 3
    assert [s.id for s in (pool.default, a, b)] == [0, 1, 2]
    assert pool.acquire() == a                          # the only one of its priority
    with pytest.raises(StreamMisuseError, match=r"stream pool at capacity \(max=2\)"):
        pool.acquire(discipline="opaque")
    assert len(pool) == 2
    assert pool.stream(1) == a
    assert a.__cuda_stream__() == (0, a.handle)
    with pytest.raises(StreamMisuseError, match="unknown"):
        pool.stream(9)
    with pytest.raises(ValueError, match="discipline"):
        pool.acquire(discipline="careless")
    assert StreamPool(max_streams=-3).max_streams == 1


@pytest.mark.promise(80)
def test_composition_is_checked():
    pool = StreamPool()
    runtime = DeviceRuntime(stream_pool=pool)
    with pytest.raises(StreamMisuseError, match="another runtime"):
        DeviceRuntime(stream_pool=pool)
    with pytest.raises(ValueError, match="policy"):
        DeviceRuntime(policy="hasty")
    with pytest.raises(ValueError, match="device 99 is not here"):
        DeviceRuntime(99)
    with pytest.raises(StreamMisuseError, match="belongs to no runtime"):
        LaunchRecorder(StreamPool().acquire())
    assert runtime.policy == "adaptive"


@pytest.mark.simulator
@pytest.mark.promise(80)
def test_parts_on_different_devices_are_refused():
    with pytest.raises(StreamMisuseError, match="device 1"):
        DeviceRuntime(stream_pool=StreamPool(0), resource=AsyncMemoryResource(1))
    with pytest.raises(StreamMisuseError, match="on device 1, and device_id is 0"):
        DeviceRuntime(0, stream_pool=StreamPool(1), resource=AsyncMemoryResource(1))


def test_resources_work_by_themselves():
    pool = StreamPool()
    stream = pool.acquire()
    for resource in (AsyncMemoryResource(release_threshold=0), DirectMemoryResource()):
        ptr = resource.allocate(4096, stream)
        assert ptr % 256 == 0
        resource.deallocate(ptr, 4096, stream)
        assert resource.device_id == 0


def test_handles_made_around_their_factories_do_not_crash():
    block, stream, pool = (kind.__new__(kind) for kind in (DeviceBlock, Stream, StreamPool))
    repr(block), repr(stream), repr(pool)
    runtime = DeviceRuntime()
    calls = [lambda: stream.handle, lambda: LaunchRecorder(stream), lambda: use(runtime.default_stream, read=block),
             lambda: runtime.deallocate(block), lambda: runtime.allocate(64, stream), block.free, lambda: block.id,
             lambda: pool.acquire(), lambda: DeviceRuntime(stream_pool=pool)]
    for wrong in calls:
        with pytest.raises((StreamMisuseError, TypeError, ValueError, AttributeError)):
            wrong()
    assert block.state is BlockState.FREED
    assert block.frontier == {}


@pytest.mark.promise(8, 11)
def test_copies():
    runtime = DeviceRuntime()
    block = runtime.allocate(64)
    assert copy.copy(block.id) == copy.deepcopy(block.id) == block.id
    for owner in (runtime.stream_pool, block, block.stream, runtime):
        with pytest.raises(TypeError):
            copy.copy(owner)
    with pytest.raises(TypeError):
        pickle.dumps(block.id)


def test_bad_input_is_refused_before_anything_happens():
    runtime = DeviceRuntime()
    for wrong in (lambda: runtime.allocate(64, tag=3), lambda: runtime.allocate(1.5), lambda: runtime.find_block(1.5),
                  lambda: runtime.allocate(64, "x"), lambda: runtime.deallocate(None)):
        with pytest.raises(TypeError):
            wrong()
    assert runtime.counters()["allocations"] == 0
    with pytest.raises(StreamMisuseError, match="unknown"):
        runtime.stream_pool.stream(-1)
    with pytest.raises(ValueError, match="release_threshold"):
        AsyncMemoryResource(release_threshold=-1)
    for address in (-1, 1 << 70):
        with pytest.raises(ValueError, match="not an address"):
            use(runtime.default_stream, read=address)
        with pytest.raises(ValueError, match="not an address"):
            runtime.find_block(address)


@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource])
@pytest.mark.parametrize("nbytes", [1 << 50, 1 << 62, 2**64 - 512, 2**64 - 1])
def test_huge_sizes_are_out_of_memory(resource, nbytes):
    runtime = DeviceRuntime(resource=resource())
    with pytest.raises(DriverError):
        runtime.allocate(nbytes)
    assert runtime.bytes_outstanding == 0
    runtime.allocate(64).free()
