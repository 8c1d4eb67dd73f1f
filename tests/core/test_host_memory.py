"""Memory for the host: idle when it is handed out, of no stream, and freed without a wait."""
from __future__ import annotations

import ctypes
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy
import pytest
from cuda.bindings import driver as cuda
from four_streams import Capture

from xlogmem import (
    AsyncMemoryResource,
    DeviceBlock,
    DeviceState,
    DriverError,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    ManagedMemoryResource,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    PinnedMemoryResource,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    StreamMisuseError,
    TrackingResourceAdaptor,
    host,
    record_history,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
NBYTES = 4096
QUERIES, WAITS, RECORDS = "cuEventQuery", "cuEventSynchronize", "cuEventRecord"


class Uploads:
    """A pool of page-locked memory that expands by one block, and uploads of it that run as late as they may."""

    def __init__(self, x: Any, maximum: int | None = None, **options: Any) -> None:
        x.driver.set_policy("min")
        self.x = x
        self.pool = PoolMemoryResource(PinnedMemoryResource(), maximum_pool_size=maximum,
                                       **{"chunk_size": NBYTES, **options})
        self.targets: list[DeviceBlock] = []

    def allocate(self, where: Any = host, nbytes: int = NBYTES) -> DeviceBlock:
        return self.x.runtime.allocate(nbytes, where, resource=self.pool)

    def copy(self, block: DeviceBlock, stream: Any) -> None:
        """To a block of the device of its own."""
        target = self.x.alloc(stream, block.nbytes)
        with use(stream, read=block, write=target):
            check(cuda.cuMemcpyHtoDAsync(target.ptr, block.ptr, block.nbytes, stream.handle))
        self.targets.append(target)

    def upload(self, value: int, stream: Any, nbytes: int = NBYTES) -> int:
        """Fill a new block, copy it and free it at once; its address."""
        block = self.allocate(nbytes=nbytes)
        with use(host, write=block):
            ctypes.memset(block.ptr, value, block.nbytes)
        self.copy(block, stream)
        address = block.ptr
        block.free()
        return address

    def arrived(self) -> list[int]:
        check(cuda.cuCtxSynchronize())
        return [self.x.driver.peek(target.ptr, 1)[0] for target in self.targets]

    def calls(self, *names: str) -> list[int]:
        return [self.x.driver.calls(name) for name in names]

    def close(self) -> None:
        check(cuda.cuCtxSynchronize())
        for target in self.targets:
            target.close()
        self.x.runtime.reap_pending()
        self.pool.trim()
        self.__dict__.clear()                           # pytest keeps this object, which must not keep the runtime


@pytest.fixture
def uploads(four):
    made = []

    def make(maximum: int | None = None, streams: dict[str, str] | None = None, **options: Any) -> Uploads:
        made.append(Uploads(four(**streams or {}), maximum, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


# ---------------------------------------------------------------------------------------------- allocations
@pytest.mark.parametrize("idle", [True, False])
def test_new_memory_is_idle(uploads, idle):
    """An access makes no driver call; it does where the memory was allocated on a stream, for which the host waits."""
    u = uploads()
    block = u.allocate(host if idle else u.x.S)
    before = u.x.driver.all_calls()
    with use(host, write=block):
        pass
    assert (u.x.driver.all_calls() == before) == idle
    block.free()


@pytest.mark.parametrize("where", ["host", "stream"])
def test_the_host_gets_other_memory_while_a_copy_reads(uploads, where):
    """Twin: memory of a stream is ordered for the stream alone, and the host writes while the copy still reads."""
    u = uploads(None if where == "host" else NBYTES)
    first = u.upload(1, u.x.S)
    block = u.allocate(host if where == "host" else u.x.T)
    ctypes.memset(block.ptr, 2, NBYTES)                 # no access: the memory is idle, or not
    assert (block.ptr == first) == (where == "stream")
    assert u.arrived() == ([1] if where == "host" else [2])
    assert u.calls(WAITS) == [0]
    block.free()


def test_memory_of_a_copy_that_is_complete_is_used_again(uploads):
    """A query finds out: the program has waited by itself."""
    u = uploads()
    first = u.upload(1, u.x.S)
    second = u.upload(2, u.x.T)
    check(cuda.cuStreamSynchronize(u.x.S.handle))
    assert u.upload(3, u.x.T) == first != second
    assert u.calls(WAITS, "cuMemHostAlloc") == [0, 2]
    assert u.calls(QUERIES)[0] > 0
    assert u.arrived() == [1, 2, 3]


@pytest.mark.parametrize("dropped", [False, True])
def test_the_host_waits_where_the_pool_may_not_grow(uploads, dropped):
    u = uploads(NBYTES)
    first = u.upload(1, u.x.S)
    if dropped:
        u.x.driver.drop(WAITS)
    assert u.upload(2, u.x.S) == first
    assert u.calls(WAITS) == [1]
    assert u.arrived() == ([2, 2] if dropped else [1, 2])


def test_the_host_waits_for_the_oldest_memory_alone(uploads):
    """Fences lie between the uses of each block, so a wait ends with the first upload, and the others go on."""
    u = uploads(4 * NBYTES)
    addresses = [u.upload(value, u.x.S) for value in range(1, 5)]
    assert len(set(addresses)) == 4
    assert u.upload(5, u.x.S) == addresses[0]
    assert u.calls(WAITS) == [1]
    assert u.x.driver.pending_operations() > 2
    assert u.arrived() == [1, 2, 3, 4, 5]


def test_the_pool_expands_as_far_as_the_host_may_run_ahead(uploads):
    """Up to 64 MiB, or twice what was in use; then the host waits."""
    size = 1 << 20
    u = uploads(chunk_size=8 * size)
    for value in range(100):
        u.upload(value, (u.x.S, u.x.T)[value % 2], size)
        check(cuda.cuMemsetD8Async(u.targets[-1].ptr, value, size, u.targets[-1].stream.handle))    # later work
    assert u.pool.statistics()["pool_size"] == 64 * size
    assert 0 < u.calls(WAITS)[0] <= 100 - 64
    large = u.allocate(nbytes=40 * size)
    more = u.allocate(nbytes=40 * size)
    assert u.pool.statistics()["pool_size"] > 64 * size
    large.free()
    more.free()
    assert u.arrived() == list(range(100))


def test_a_wait_for_memory_holds_no_thread_up(uploads):
    """Others allocate from the same pool meanwhile."""
    u = uploads(2 * NBYTES)
    other = u.allocate()
    u.upload(1, u.x.S)
    held = u.x.driver.hold(WAITS)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(u.upload, 2, u.x.S)
        assert held.reached()
        other.free()
        u.allocate().free()
        assert held.release()
        waiting.result(30)
    assert u.arrived() == [1, 2]
    assert WAITS not in u.x.driver.calls_with_gil()


def test_memory_that_another_call_takes_during_a_query_is_not_handed_out_twice(uploads):
    u = uploads(2 * NBYTES)
    first = u.upload(1, u.x.S)
    check(cuda.cuStreamSynchronize(u.x.S.handle))
    taken: list[DeviceBlock] = []
    u.x.driver.on_call(QUERIES, lambda: taken.append(u.allocate()), when="after")
    block = u.allocate()
    assert taken[0].ptr == first != block.ptr
    taken[0].free()
    block.free()


def test_memory_of_the_driver_itself_is_for_the_host_too(uploads):
    u = uploads()
    for resource in (PinnedMemoryResource(), ManagedMemoryResource(), GuardResourceAdaptor(PinnedMemoryResource()),
                     StatisticsResourceAdaptor(u.pool), TrackingResourceAdaptor(u.pool)):
        block = u.x.runtime.allocate(NBYTES, host, resource=resource)
        assert (block.stream, block.resource) == (None, resource)
        before = u.x.driver.all_calls()
        with use(host, write=block):
            ctypes.memset(block.ptr, 5, NBYTES)
        assert u.x.driver.all_calls() == before
        u.copy(block, u.x.S)
        block.free()
        assert u.arrived()[-1] == 5


@pytest.mark.parametrize("dropped", [False, True])
def test_memory_that_is_ordered_on_a_stream_is_waited_for(uploads, dropped):
    """A guard over a pool fills new memory on a stream of its own, and hands it out on the default stream."""
    u = uploads()
    guard = GuardResourceAdaptor(u.pool)
    if dropped:
        u.x.driver.drop(WAITS)
    block = u.x.runtime.allocate(NBYTES, host, resource=guard)
    ctypes.memset(block.ptr, 5, NBYTES)
    check(cuda.cuCtxSynchronize())
    assert (ctypes.c_uint8.from_address(block.ptr).value == 5) != dropped
    ctypes.memset(block.ptr, 5, NBYTES)
    block.free()


# ---------------------------------------------------------------------------------------------- frees
def test_a_free_makes_no_driver_call_and_delays_no_stream(uploads):
    u = uploads()
    block = u.allocate()
    before = u.x.driver.all_calls()
    block.free()
    assert u.x.driver.all_calls() == before
    u.allocate(u.x.T).free()
    assert u.calls("cuStreamWaitEvent", RECORDS) == [0, 0]


@pytest.mark.parametrize("dropped", [False, True])
def test_the_next_stream_waits_for_the_uses(uploads, dropped):
    u = uploads(NBYTES)
    first = u.upload(1, u.x.S)
    if dropped:
        u.x.driver.drop("cuStreamWaitEvent")
    block = u.allocate(u.x.T)
    assert block.ptr == first
    u.x.work(u.x.T, (block, "write"))
    assert (u.x.driver.races() == []) != dropped
    u.x.driver.clear_races()
    block.free()


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("resource", [PinnedMemoryResource, ManagedMemoryResource])
def test_a_free_into_the_driver_waits_on_the_host(uploads, resource, dropped):
    u = uploads()
    block = u.x.runtime.allocate(NBYTES, host, resource=resource())
    u.copy(block, u.x.S)
    driver, left = u.x.driver, []
    for name in ("cuMemFreeHost", "cuMemFree"):
        driver.on_call(name, lambda: left.append(driver.pending_operations()))
    if dropped:
        u.x.driver.drop(WAITS)
    block.free()
    assert (left[0] > 0) == dropped
    u.x.driver.clear_races()


def test_unrecorded_work_on_an_opaque_stream_comes_before_the_next_owner(uploads):
    u = uploads(NBYTES, {"opaque": "T", "policy": "precise"})
    block = u.allocate()
    with use(u.x.T, read=block):
        pass
    mark = u.x.work(u.x.T)                              # behind the use and its fence, and unknown
    block.free()
    again = u.allocate(u.x.S)
    assert u.x.ordered(mark, u.x.S)
    again.free()


def test_frees_that_come_late_or_name_a_stream(uploads):
    """Inside of a use, dropped, and on a stream, of which the next owner is ordered after all work."""
    u = uploads(NBYTES)
    block = u.allocate()
    with use(u.x.S, read=block):
        block.free()
    assert u.pool.statistics()["used_bytes"] == 0
    block = u.allocate()
    del block
    block = u.allocate()
    block.free(u.x.S)
    mark = u.x.work(u.x.S)                              # behind the free
    late = u.x.work(u.x.T)
    again = u.allocate(u.x.S)
    assert not u.x.ordered(late, u.x.S)
    assert u.x.ordered(mark, u.x.S)
    again.free()


def test_a_capture_keeps_the_memory_of_its_stream(uploads):
    """Its fences cannot be recorded: the host gets new memory, or an error."""
    u = uploads(2 * NBYTES)
    first = u.upload(1, u.x.S)
    with Capture(u.x.S):
        second = u.upload(2, u.x.T)
        assert first != second
        check(cuda.cuStreamSynchronize(u.x.T.handle))
        assert u.upload(3, u.x.T) == second
        kept = u.allocate()
        assert kept.ptr == second
        with pytest.raises(OutOfDeviceMemoryError, match=r"stream \d+, which used them, is capturing a graph"):
            u.allocate()
    kept.free()
    assert u.arrived() == [1, 2, 3]


# ---------------------------------------------------------------------------------------------- what is said
def test_blocks_for_the_host_belong_to_no_stream(uploads):
    u = uploads()
    block = u.x.runtime.allocate(NBYTES, host, tag="staging", resource=u.pool)
    assert block.stream is None
    assert "stream=None" in repr(block)
    assert u.x.runtime.find_block(block.ptr + 5).generation == block.generation
    assert block.ready
    [seen] = [row for row in u.x.runtime.snapshot().blocks if row.generation == block.generation]
    assert (seen.stream, seen.home, seen.tag) == (None, None, "staging")
    assert pickle.loads(pickle.dumps(host)) is host
    block.free()


def test_a_history_has_them(uploads):
    u = uploads()
    with record_history() as recording:
        u.upload(1, u.x.S)
    mine = [(event.kind, event.stream) for event in recording.events() if event.nbytes == NBYTES]
    assert mine[0] == ("allocate", None)
    assert mine[-1] == ("free", None)


def test_no_bytes(uploads):
    u = uploads()
    block = u.allocate(nbytes=0)
    assert (block.nbytes, block.ptr) == (0, 0)
    with use(host, write=block, runtime=u.x.runtime):
        pass
    block.free()
    assert u.calls("cuMemHostAlloc") == [0]
    empty = u.x.runtime.allocate(0, host)               # it is memory of nothing, the device's own neither
    assert empty.nbytes == 0
    with pytest.raises(TypeError, match="resource must be a DeviceMemoryResource"):
        u.x.runtime.allocate(0, host, resource=7)


def test_buffers_for_the_host(uploads):
    """`full` and `from_numpy` write by the host itself, behind the work on memory that they read."""
    u = uploads()
    state = DeviceState(u.x.runtime)
    empty = state.empty((2, 3), "float32", host, resource=u.pool)
    assert empty.access().stream is None
    full = state.full((2, 3), 7, "float32", host, resource=u.pool)
    wide = state.full(3000, 1 + 2j, "complex64", host, resource=u.pool)
    copied = state.from_numpy(numpy.arange(6, dtype="int16")[::2], host, resource=u.pool)
    assert u.calls("cuMemcpyHtoDAsync", WAITS) == [0, 0]
    for buffer, values in ((full, [[7] * 3] * 2), (copied, [0, 2, 4]), (wide, [1 + 2j] * 3000)):
        with buffer.map() as array:
            assert array.tolist() == values
        assert buffer.tolist(host) == values
    assert state.empty((0, 3), "float32", host, resource=u.pool).tolist() == []
    for buffer in (empty, full, copied, wide):
        buffer.release()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_copy_by_the_host_waits_for_its_source(uploads, dropped):
    u = uploads()
    state = DeviceState(u.x.runtime)
    source = u.allocate()
    ctypes.memset(source.ptr, 1, NBYTES)
    array = numpy.frombuffer((ctypes.c_uint8 * NBYTES).from_address(source.ptr), numpy.uint8)
    target = u.x.alloc(u.x.S, NBYTES)
    check(cuda.cuMemsetD8Async(target.ptr, 5, NBYTES, u.x.S.handle))
    with use(u.x.S, read=target, write=source):
        check(cuda.cuMemcpyDtoHAsync(source.ptr, target.ptr, NBYTES, u.x.S.handle))
    if dropped:
        u.x.driver.drop(WAITS)
    made = state.from_numpy(array, host, resource=u.pool)
    with made.map() as copied:
        assert copied[0] == (1 if dropped else 5)
    u.x.driver.clear_races()
    made.release()
    del array
    source.free()
    target.free()


@pytest.mark.parametrize(("dtype", "wrong"), [
    ("int32", 1.5), ("int32", "7"), ("int32", [1, 2]), ("int32", None), ("uint8", 300), ("float32", 1j)])
def test_a_value_is_an_element_on_the_host_as_on_a_stream(uploads, dtype, wrong):
    u = uploads()
    state = DeviceState(u.x.runtime)
    said = []
    for where in (host, u.x.S):
        with pytest.raises((TypeError, ValueError)) as refused:
            state.full(4, wrong, dtype, where, resource=u.pool)
        said.append(str(refused.value))
    assert said[0] == said[1]
    made = state.full(4, 1.0, "bfloat16", host, resource=u.pool)
    assert made.view("uint16").tolist(host) == [0x3F80] * 4
    made.release()


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("how", ["fill", "copy_from", "copy_to", "to_numpy"])
def test_copies_and_fills_by_the_host_wait(uploads, how, dropped):
    """... for the copies that use the memory, and make no call that copies."""
    u = uploads()
    state = DeviceState(u.x.runtime)
    buffer = state.full(NBYTES, 1, "uint8", host, resource=u.pool)
    other = u.x.alloc(u.x.S, NBYTES)
    check(cuda.cuMemsetD8Async(other.ptr, 5, NBYTES, u.x.S.handle))
    writes = how in ("fill", "copy_from")
    first, second = (other, buffer) if writes else (buffer, other)
    with use(u.x.S, read=second, write=first):
        check(cuda.cuMemcpyAsync(first.ptr, second.ptr, NBYTES, u.x.S.handle))
    if dropped:
        u.x.driver.drop(WAITS)
    seen = numpy.zeros(NBYTES, "uint8")
    if how == "fill":
        buffer.fill(7, host)
    elif how == "copy_from":
        buffer.copy_from(numpy.full(NBYTES, 7, "uint8"), host)
    elif how == "copy_to":
        buffer.copy_to(seen, host)
    else:
        seen = buffer.to_numpy(host)
    check(cuda.cuCtxSynchronize())
    found = u.x.driver.peek(other.ptr, 1)[0] if writes else seen[0]
    assert found == ((7 if dropped else 1) if writes else (1 if dropped else 5))
    u.x.driver.clear_races()
    buffer.release()
    other.free()


# ---------------------------------------------------------------------------------------------- what is refused
def test_memory_of_the_device_alone_is_refused(uploads):
    u = uploads()
    wrong = AsyncMemoryResource()
    before = u.x.driver.calls("cuMemAllocFromPoolAsync")
    for resource, text in ((None, r"xlogmem\.host: no resource is named, and <AsyncMemoryResource device=0> has memory "
                                  "of the device alone"),
                           (wrong, "resource: <AsyncMemoryResource device=0> has memory of the device alone")):
        with pytest.raises(ValueError, match=text):
            u.x.runtime.allocate(NBYTES, host, resource=resource)
    with pytest.raises(TypeError, match=r"xlogmem\.host is not a CUDA stream: give it to use\(\)"):
        u.x.runtime.allocate_many([NBYTES], host)
    assert u.x.driver.calls("cuMemAllocFromPoolAsync") == before
    assert wrong not in u.x.runtime.resources
    with pytest.raises(StreamMisuseError, match=r"resource: .*never initialised"):
        u.x.runtime.allocate(NBYTES, host, resource=PoolMemoryResource.__new__(PoolMemoryResource))
    state = DeviceState(u.x.runtime)
    on_device = state.empty(4, "uint8", u.x.S)
    for call in (lambda: on_device.fill(1, host), lambda: on_device.copy_from(bytes(4), host),
                 lambda: on_device.to_numpy(host)):
        with pytest.raises(TypeError, match="is device memory, which the host cannot read or write"):
            call()
    on_device.release()


def test_failures_leave_nothing(uploads):
    u = uploads()
    for turn in range(1, 5):
        u.x.driver.fail("cuMemHostAlloc", turn)
    with pytest.raises(OutOfDeviceMemoryError, match=r"allocating 4\.0 KiB \(4096 bytes\) for the host from <Pool"):
        u.allocate()
    budget = LimitingResourceAdaptor(PinnedMemoryResource(), NBYTES)
    with pytest.raises(OutOfBudgetError, match=r"out of budget: .* for the host from"):
        u.x.runtime.allocate(2 * NBYTES, host, resource=budget)
    assert u.x.runtime.live_bytes == 0
    u.allocate().free()


def test_a_wait_that_fails_gives_the_memory_back(uploads):
    u = uploads(2 * NBYTES)
    guard = GuardResourceAdaptor(u.pool)
    u.x.driver.fail(WAITS, code=1)
    with pytest.raises(DriverError, match=r"cuEventSynchronize .* for the host from <GuardResourceAdaptor"):
        u.x.runtime.allocate(64, host, resource=guard)
    u.upload(1, u.x.S)
    u.upload(2, u.x.S)
    u.x.driver.fail(WAITS, code=1)
    with pytest.raises(DriverError, match=r"cuEventSynchronize .* for the host from <PoolMemoryResource"):
        u.allocate()
    assert u.x.runtime.live_bytes == 2 * NBYTES         # the targets
    assert u.upload(3, u.x.S)
    assert u.arrived() == [1, 2, 3]


def test_threads_upload_from_one_pool(uploads):
    u = uploads(8 * NBYTES)

    def run(number: int) -> None:
        for turn in range(50):
            u.upload(number * 50 + turn, (u.x.S, u.x.T, u.x.U, u.x.V)[number])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert sorted(u.arrived()) == list(range(200))
