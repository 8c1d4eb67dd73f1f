"""Allocating: the accounting, failures, and addresses that are handed out twice."""
from __future__ import annotations

import gc

import pytest
from c_table import Hold
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import nothing_happens

from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

UNKNOWN = 999                                           # a CUresult that does not lose the device
RESOURCES = [AsyncMemoryResource, DirectMemoryResource]


@pytest.mark.promise(34, 35, 44)
def test_the_accounting_starts_at_zero_and_follows_each_allocation():
    """A new runtime has no blocks; each allocation adds its bytes as requested."""
    runtime = DeviceRuntime()
    assert set(runtime.counters().values()) == {0}
    assert (runtime.live_bytes, runtime.pending_bytes, runtime.bytes_outstanding) == (0, 0, 0)
    stream = runtime.acquire_stream()
    blocks, total = [], 0
    for nbytes in (1, 1000, 64, 1 << 20):
        blocks.append(runtime.allocate(nbytes, stream, tag=str(nbytes)))
        total += nbytes
        assert (runtime.live_bytes, runtime.pending_bytes, runtime.bytes_outstanding) == (total, 0, total)
        assert (blocks[-1].nbytes, blocks[-1].tag) == (nbytes, str(nbytes))
    assert runtime.counters()["live_blocks"] == runtime.counters()["allocations"] == 4
    assert runtime.stream_pool.default == runtime.default_stream
    assert isinstance(runtime.resource, DeviceMemoryResource)


@pytest.mark.simulator
@pytest.mark.promise(37, 38, 128)
@pytest.mark.parametrize("resource", RESOURCES)
def test_zero_bytes_are_a_block_without_memory(driver, resource):
    """It is named, freed and refused like any other, on a stream that has to be right; the driver is not called."""
    runtime, foreign = DeviceRuntime(resource=resource()), DeviceRuntime()
    stream = runtime.acquire_stream()
    real = runtime.allocate(64, stream)
    with nothing_happens(driver, runtime, foreign):
        block = runtime.allocate(0, stream, tag="nothing")
        assert (block.ptr, block.nbytes, block.size, block.stream, block.tag) == (0, 0, 0, stream, "nothing")
        assert (block.state, block.device_id, block.frontier, block.core) == (BlockState.LIVE, 0, {}, None)
        assert block.generation not in (0, real.generation, runtime.allocate(0).generation)
        assert block.id == block.id != real.id
        assert block.ready
        block.synchronize()
        assert block.__cuda_array_interface__["shape"] == (0,)
        runtime.deallocate(runtime.allocate(0))
        with runtime.allocate(0) as closed:
            pass
        assert closed.state is BlockState.FREED
        with pytest.raises(StreamMisuseError, match="another runtime"):
            foreign.deallocate(block)
        with pytest.raises(StreamMisuseError, match="another runtime"):
            use(foreign.default_stream, read=block)
        for nbytes in (0, 64):
            with pytest.raises(StreamMisuseError, match="another runtime"):
                runtime.allocate(nbytes, foreign.default_stream)
            with pytest.raises(TypeError, match="not a CUDA stream"):
                runtime.allocate(nbytes, "no stream")
        recorder = use(stream, read=[block, block.id], write=block)
        assert recorder.recorded_count == 0
        block.free()
        for call in (block.free, block.synchronize, lambda: block.ready, lambda: runtime.deallocate(block),
                     lambda: use(stream, read=block)):
            with pytest.raises(UseAfterFreeError):
                call()
        assert runtime.resource.allocate(0, stream) == 0
        runtime.resource.deallocate(0, 0, stream)
    with use(stream, read=[runtime.allocate(0), real]):
        pass
    assert real.frontier[("has-read", stream.id)]


def test_zero_bytes_do_not_decide_which_runtime_is_meant():
    """Where other blocks are named; alone they name theirs."""
    runtime = DeviceRuntime()
    stream, foreign = runtime.acquire_stream(), ForeignStream()
    nothing, real = runtime.allocate(0, stream), runtime.allocate(64, stream)
    for things in ([nothing, real], [real, nothing], [nothing, nothing], nothing):
        with use(foreign, read=things) as recorder:
            assert recorder.runtime is runtime
    assert ("has-read", runtime.register_stream(foreign).id) in real.frontier
    runtime.unregister_stream(foreign)


@pytest.mark.promise(39)
def test_zero_bytes_on_an_unregistered_stream_are_refused():
    runtime, foreign = DeviceRuntime(), ForeignStream()
    stream = runtime.register_stream(foreign)
    runtime.unregister_stream(foreign)
    with pytest.raises(StreamMisuseError, match="unregistered"):
        runtime.allocate(0, stream)


@pytest.mark.simulator
@pytest.mark.promise(18, 39)
@pytest.mark.parametrize(("resource", "call"), [(AsyncMemoryResource, "cuMemAllocFromPoolAsync"),
                                                (DirectMemoryResource, "cuMemAlloc")])
def test_a_failed_allocation_names_call_and_size_and_counts_nothing(driver, resource, call):
    """The error has the driver function, its code and the bytes; nothing is counted, the next call succeeds."""
    runtime = DeviceRuntime(resource=resource())
    stream = runtime.acquire_stream()
    before = runtime.counters()
    driver.fail(call, code=UNKNOWN)
    with pytest.raises(DriverError, match=f"{call} gave CUDA_ERROR_UNKNOWN.*allocating .*\\(4711 bytes\\)") as error:
        runtime.allocate(4711, stream)
    assert (error.value.call, error.value.code) == (call, UNKNOWN)
    assert runtime.counters() == before
    assert runtime.bytes_outstanding == 0
    with pytest.raises(OutOfDeviceMemoryError):
        runtime.allocate(1 << 63, stream)
    assert runtime.allocate(64, stream).state is BlockState.LIVE


@pytest.mark.simulator
@pytest.mark.promise(40, 41)
@pytest.mark.parametrize("policy", ["lazy", "precise", "adaptive"])
def test_an_allocation_records_no_event(driver, policy):
    """It is one call of the driver, and no event that could fail; the block's entry is a position."""
    runtime = DeviceRuntime(policy=policy)
    stream = runtime.acquire_stream()
    driver.fail("cuEventRecord", code=UNKNOWN)
    first, second = runtime.allocate(64, stream), runtime.allocate(64, stream)
    assert driver.calls("cuEventRecord") == driver.calls("cuEventCreate") == 0
    assert driver.calls("cuMemAllocFromPoolAsync") == 2
    (one,), (two,) = first.frontier.values(), second.frontier.values()
    assert 0 < one < two


@pytest.mark.simulator
@pytest.mark.promise(42, 130)
@pytest.mark.parametrize("order", ["stream", "host"])
def test_an_address_handed_out_twice_poisons_the_older_block(driver, order):
    """The old block is never freed, its handles are stale; the new one lives and is freed once (W19)."""
    class Twice(DeviceMemoryResource):
        given: list[int]

        def allocate(self, nbytes, stream):
            return self.given[0]

        def deallocate(self, ptr, nbytes, stream):
            self.given.append(ptr)

    Twice.order = order
    resource = Twice()
    resource.given = [int(check(cuda.cuMemAlloc(64)))]
    runtime = DeviceRuntime(resource=resource)
    old = runtime.allocate(64)
    with pytest.warns(RuntimeWarning, match=rf"<Twice device=0> handed out .* 64 bytes at {old.ptr:#x}\."):
        new = runtime.allocate(64)
    assert runtime.counters()["evictions"] == 1
    assert old.id.ptr == new.ptr
    assert (old.state, new.state) == (BlockState.FREED, BlockState.LIVE)
    assert runtime.live_bytes == 64
    with pytest.raises(UseAfterFreeError):
        old.free()
    assert len(resource.given) == 1
    new.free()
    assert resource.given == [new.id.ptr] * 2
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    check(cuda.cuMemFree(resource.given[0]))


class Again(DeviceMemoryResource):
    """Has one address."""

    order = "host"
    ptr = 0

    def allocate(self, nbytes, stream):
        return self.ptr

    def deallocate(self, ptr, nbytes, stream):
        pass


def test_collisions_are_counted_and_a_runtime_warns_of_the_first_one(memory):
    """At once, or where the C table allocated, which does not raise, at the next allocation."""
    runtime = DeviceRuntime(resource=Again())
    runtime.resource.ptr = memory
    hold = Hold(runtime)
    first = runtime.allocate(64)
    assert hold.allocate(128) == memory
    assert runtime.counters()["evictions"] == 1
    with pytest.warns(RuntimeWarning, match=f"64 bytes at {memory:#x}"):
        third = runtime.allocate(256)
    newest = runtime.allocate(64)
    assert runtime.counters()["evictions"] == 3
    assert (first.state, third.state, newest.state) == (BlockState.FREED, BlockState.FREED, BlockState.LIVE)
    hold.close()


def test_a_collision_that_is_an_error_leaves_no_block_behind(memory):
    runtime = DeviceRuntime(resource=Again())
    runtime.resource.ptr = memory
    kept = runtime.allocate(64)
    with pytest.raises(RuntimeWarning, match="handed out memory of a live block"):
        runtime.allocate(64)
    gc.collect()
    runtime.reap_pending()
    assert (runtime.live_bytes, kept.state) == (0, BlockState.FREED)


@pytest.mark.promise(43, 45)
def test_the_table_knows_the_generation_that_the_handle_has():
    """Handle, identity and lookup agree; after the free the entry is not found."""
    runtime = DeviceRuntime()
    blocks = [runtime.allocate(100 * n) for n in range(1, 20)]
    for block in blocks:
        found = runtime.find_block(block.ptr + block.nbytes - 1)
        assert (found.generation, found.ptr) == (block.generation, block.ptr)
    for block in blocks[::2]:
        block.free()
    assert [runtime.find_block(block.id.ptr) is None for block in blocks] == [n % 2 == 0 for n in range(19)]
