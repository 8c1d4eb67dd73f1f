"""Batches: `allocate_many` and `deallocate_many` are what calls one by one would be."""
from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
from collections import Counter
from itertools import pairwise

import pytest
from c_table import GET_POINTER, OUT_OF_MEMORY, SIZE, VOID, Error, Hold, Refused, functions
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream, foreign
from four_streams import READ, WRITE, Capture, at, nothing_happens
from gil import QUERY, pooled_runtime, queries_with_gil
from other_threads import Beside
from stress import together

import xlogmem
from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceLostError,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StatisticsResourceAdaptor,
    StreamMisuseError,
    TrackingResourceAdaptor,
    UseAfterFreeError,
    capture,
    use,
)
from xlogmem._table import table
from xlogmem.observe.history import record_history
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
KIB = 1 << 10
ROOM = 64 << 20
UNKNOWN = 999                                           # a CUresult that does not lose the device
NOT_SUPPORTED = 801
SIZES = [KIB, 0, 300, KIB, 5000, *[KIB] * 150, 0, 70_000, 2 << 20, 1]      # more than two groups
RESOURCES = {
    "async": AsyncMemoryResource,
    "direct": DirectMemoryResource,
    "pool": lambda: PoolMemoryResource(initial_pool_size=ROOM),
    "pool that grows": lambda: PoolMemoryResource(chunk_size="1MiB"),
    "pool with a maximum": lambda: PoolMemoryResource(maximum_pool_size="8MiB"),
    "pool without caches": lambda: PoolMemoryResource(initial_pool_size=ROOM, stream_cache_size=0),
    "statistics": lambda: StatisticsResourceAdaptor(TrackingResourceAdaptor(AsyncMemoryResource())),
    "budget": lambda: LimitingResourceAdaptor(AsyncMemoryResource(), ROOM),
    "guard": lambda: GuardResourceAdaptor(AsyncMemoryResource()),
}

# The place of the two functions in the table: after its version and size, and 18 others.
PLACE = 8 + 18 * ctypes.sizeof(VOID)
ALLOCATE_MANY = ctypes.CFUNCTYPE(ctypes.c_int, VOID, SIZE, ctypes.POINTER(SIZE), VOID, ctypes.POINTER(VOID),
                                 ctypes.POINTER(Error))
DEALLOCATE_MANY = ctypes.CFUNCTYPE(None, VOID, SIZE, ctypes.POINTER(VOID), VOID)


class Batches(Hold):
    """A hold whose functions for several blocks are called, too."""

    def __init__(self, runtime) -> None:
        super().__init__(runtime)
        first, second = (VOID * 2).from_address(GET_POINTER(table, b"xlogmem._table.table") + PLACE)
        self.many, self.free_all = ALLOCATE_MANY(first), DEALLOCATE_MANY(second)

    def allocate_many(self, sizes: list[int], stream: int = 0) -> list[int]:
        ptrs, error = (VOID * len(sizes))(*[1] * len(sizes)), Error()
        if self.many(self.runtime, len(sizes), (SIZE * len(sizes))(*sizes), stream, ptrs, ctypes.byref(error)):
            assert not any(ptrs)
            raise Refused(error.kind, error.text.decode())
        return [ptr or 0 for ptr in ptrs]

    def free_many(self, ptrs: list[int], stream: int = 0) -> None:
        self.free_all(self.runtime, len(ptrs), (VOID * len(ptrs))(*ptrs), stream)


@pytest.fixture
def x(four):
    return four(resource=PoolMemoryResource(initial_pool_size=ROOM))


@pytest.fixture
def hold(x):
    hold = Batches(x.runtime)
    yield hold
    hold.close()


def warm(x, stream, sizes=(KIB,), times=3):
    """The stream has some memory of these sizes in its cache."""
    for _ in range(times):
        x.runtime.deallocate_many(x.runtime.allocate_many([*sizes] * 8, stream))


# ---------------------------------------------------------------------------------------------- as calls one by one
def figures(x, driver) -> dict[str, object]:
    calls = {name: driver.calls(name) for name in (
        "cuMemAllocFromPoolAsync", "cuMemAlloc", "cuMemFreeAsync", "cuMemFree", "cuEventRecord", "cuEventQuery",
        "cuEventSynchronize", "cuStreamWaitEvent", "cuStreamSynchronize", "cuCtxSynchronize")}
    known = x.runtime.counters()
    resource = x.runtime.resource
    return {"calls": calls, "counters": known, "live": x.runtime.live_bytes, "pending": x.runtime.pending_bytes,
            "peak": x.runtime.peak_bytes, "tags": {tag: tuple(record) for tag, record
                                                   in x.runtime.snapshot().by_tag().items()},
            "pool": resource.statistics() if isinstance(resource, PoolMemoryResource) else None,
            "counts": getattr(resource, "allocation_counts", None)}


def of_python(x, sizes, stream, batch):
    """Allocate with a tag in every other round, use, and free on the home or elsewhere; figures after each step."""
    for number in range(6):
        tag = f"table {number}" if number % 2 else None
        if batch:
            blocks = x.runtime.allocate_many(sizes, stream, tag=tag)
        else:
            blocks = [x.runtime.allocate(nbytes, stream, tag=tag) for nbytes in sizes]
        yield
        if number in (1, 4):
            x.use(x.T, *((block, WRITE) for block in blocks[2:7] if block.nbytes))
        window = x.prepare(x.U, (blocks[3], READ)) if number == 4 else None
        elsewhere = x.V if number in (2, 5) else None
        if batch:
            x.runtime.deallocate_many(blocks, elsewhere)
        else:
            for block in blocks:
                block.free(elsewhere)
        yield
        if window is not None:
            window.commit()
        yield
    x.runtime.reap_pending()
    yield


def of_table(x, sizes, stream, batch):
    hold = Batches(x.runtime)
    for number in range(6):
        ptrs = hold.allocate_many(sizes, stream) if batch else [nbytes and hold.allocate(nbytes, stream)
                                                                for nbytes in sizes]
        yield
        if number in (1, 4):
            x.use(x.T, (x.runtime.find_block(ptrs[2]), READ))
        on = x.V.handle if number in (2, 5) else stream
        if batch:
            hold.free_many(ptrs, on)
        else:
            for ptr in filter(None, ptrs):
                hold.free(ptr, on)
        yield
    x.runtime.reap_pending()
    yield
    hold.close()


@pytest.mark.parametrize("resource", ["async", "pool", "pool with a maximum"])
def test_a_batch_on_a_stream_that_may_be_destroyed_is_as_well(four, driver, resource):
    """Fences behind frees on an unowned stream, which the C table records, are those of single frees."""
    seen = []
    for batch in (True, False):
        driver.reset("eager")
        x = four(resource=RESOURCES[resource]())
        unowned = ForeignStream()
        steps = [figures(x, driver) for _ in of_table(x, [KIB] * 100, unowned.handle, batch)]
        seen.append([{name: step[name] for name in ("counters", "live", "pending", "peak", "pool")} for step in steps])
    assert seen[0] == seen[1]
    if resource != "async":
        assert seen[0][-1]["counters"]["records"] >= 4 * 100 // 16


def test_the_events_of_a_history_are_those_of_calls_one_by_one(four):
    def events(batch, program):
        x = four(resource=PoolMemoryResource(initial_pool_size=ROOM))
        with record_history() as recording:
            for _ in program(x, SIZES, x.S if program is of_python else x.S.handle, batch):
                pass
        return Counter((event.kind, event.nbytes, event.tag) for event in recording.events()
                       if event.runtime == x.runtime.stream_pool.ordering.number)

    for program in (of_python, of_table):
        seen = events(True, program)
        assert seen == events(False, program)
        assert seen["allocate", KIB, None] > 6 * 75


def test_a_log_has_the_lines_of_calls_one_by_one(four):
    def lines(batch):
        records = []
        x = four(resource=LoggingResourceAdaptor(AsyncMemoryResource(), records.append))
        for _ in of_python(x, SIZES, x.S, batch):
            pass
        x.runtime.resource.flush()
        return [(record.action, record.bytes, record.tag, record.result) for record in records]

    seen = lines(True)
    assert seen == lines(False)
    assert ("allocate", KIB, "table 1", "Ok") in seen


def test_handles_come_in_the_order_of_the_sizes(x):
    for sizes in (SIZES, [], [0], (KIB,), (n for n in SIZES), ["1KiB", 2.0]):
        sizes = list(sizes)
        blocks = x.runtime.allocate_many(iter(sizes), x.S, tag="columns")
        assert [block.nbytes for block in blocks] == [KIB if n == "1KiB" else int(n) for n in sizes]
        assert all((block.stream, block.tag, block.state) == (x.S, "columns", BlockState.LIVE) for block in blocks)
        ranges = sorted((block.ptr, block.nbytes) for block in blocks if block.nbytes)
        assert all(ptr + nbytes <= following for (ptr, nbytes), (following, _) in pairwise(ranges))
        x.runtime.deallocate_many(iter(blocks))
        assert {block.state for block in blocks} <= {BlockState.FREED}
    with xlogmem.scope("here"):
        assert [block.tag for block in x.runtime.allocate_many([KIB, 0], x.S)] == ["here", "here"]


def test_no_bytes_need_no_driver(x, hold, driver):
    with nothing_happens(driver, x.runtime):
        x.runtime.deallocate_many(x.runtime.allocate_many([0] * 3, x.S))
        hold.free_many(hold.allocate_many([0] * 3, x.S.handle), x.S.handle)
        x.runtime.deallocate_many([])
        hold.free_many(hold.allocate_many([]), x.S.handle)


# ---------------------------------------------------------------------------------------------- ordering
def freed_by_another(x):
    """Memory of half of the pool, which T may still use."""
    block = x.alloc(x.T, ROOM // 2 + ROOM // 4)
    late = x.work(x.T, (block, WRITE))
    block.free()
    return late


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("from_c", [False, True])
def test_a_batch_waits_for_the_former_user_of_its_memory(four, driver, from_c, dropped):
    x = four(resource=PoolMemoryResource(initial_pool_size=ROOM, maximum_pool_size=ROOM))
    hold = Batches(x.runtime)
    warm(x, x.S)
    late = freed_by_another(x)
    if dropped:
        driver.drop("cuStreamWaitEvent")
    sizes = [ROOM // 1024] * 512                        # more than T has left
    if from_c:
        ptrs = hold.allocate_many(sizes, x.S.handle)
    else:
        blocks = x.runtime.allocate_many(sizes, x.S)
    assert x.ordered(late, x.S) == (not dropped)
    if from_c:
        hold.free_many(ptrs, x.S.handle)
    else:
        x.runtime.deallocate_many(blocks)
    hold.close()


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("resource", ["async", "pool"])
def test_a_freed_batch_is_handed_out_after_its_uses(four, driver, resource, dropped):
    """Freed on S and used on T: with the driver's pool S waits, with ours the next owner does."""
    x = four(resource=AsyncMemoryResource() if resource == "async" else PoolMemoryResource(
        initial_pool_size=ROOM, maximum_pool_size=ROOM))
    blocks = x.runtime.allocate_many([ROOM // 128] * 100, x.S)
    late = x.use(x.T, *((block, READ) for block in blocks))
    if dropped:
        driver.drop("cuStreamWaitEvent")
    x.runtime.deallocate_many(blocks, x.S)
    again = x.alloc(x.S, ROOM // 2)
    driver.clear_races()                                # the driver's own, of the free
    assert x.ordered(late, x.S) == (not dropped)
    again.free()


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("from_c", [False, True])
def test_another_stream_is_ordered_after_a_fill_of_a_local_block(x, hold, driver, from_c, dropped):
    """The blocks come from the cache of S: no position stands for the fill yet."""
    warm(x, x.S)
    if from_c:
        hold.free_many(hold.allocate_many([KIB] * 8, x.S.handle), x.S.handle)
    before = x.runtime.counters()["cached"]
    blocks = ([x.runtime.find_block(ptr) for ptr in hold.allocate_many([KIB] * 8, x.S.handle)] if from_c
              else x.runtime.allocate_many([KIB] * 8, x.S))
    assert x.runtime.counters()["cached"] == before + 8
    other = x.alloc(x.U)
    x.use(x.S, (other, WRITE))
    x.use(x.T, (other, READ))                           # T is ordered after every position of S so far
    fill = x.work(x.S, (blocks[5], WRITE))              # without a record
    if dropped:
        driver.drop("cuStreamWaitEvent")
    x.use(x.T, *((block, READ) for block in blocks))
    driver.clear_races()
    assert x.ordered(fill, x.T) == (not dropped)
    if from_c:
        hold.free_many([block.ptr for block in blocks], x.S.handle)


@pytest.mark.parametrize("from_c", [False, True])
def test_a_batch_that_is_freed_elsewhere_is_not_cached(x, hold, from_c):
    """The blocks are local ones of S, and T may still be at them when S allocates again."""
    warm(x, x.S)
    blocks = x.runtime.allocate_many([KIB] * 8, x.S)
    late = x.work(x.T)
    if from_c:
        hold.free_many([hold.allocate(KIB, x.T.handle)], x.T.handle)    # T has a cache
        hold.free_many([block.ptr for block in blocks], x.T.handle)
    else:
        x.runtime.deallocate_many(blocks, x.T)
    before = x.runtime.counters()["cached"]
    again = x.runtime.allocate_many([KIB] * 8, x.S)
    assert x.runtime.counters()["cached"] == before or x.ordered(late, x.S)
    x.runtime.deallocate_many(again)


def test_blocks_in_a_window_or_exported_are_freed_after_it(x, hold):
    blocks = x.runtime.allocate_many([KIB] * 70, x.S)
    with use(x.T, read=blocks[3:5]):
        x.runtime.deallocate_many(blocks)
        assert x.runtime.live_bytes == 2 * KIB
        assert [block.state for block in blocks[2:6]] == [
            BlockState.FREED, BlockState.RETIRED, BlockState.RETIRED, BlockState.FREED]
    assert x.runtime.live_bytes == 0
    ptrs = hold.allocate_many([KIB] * 70, x.S.handle)
    with use(x.T, read=ptrs[3]):
        hold.free_many(ptrs, x.S.handle)
        assert x.runtime.live_bytes == KIB
    assert x.runtime.live_bytes == 0


@pytest.mark.parametrize("sizes", [[KIB] * 8, [3 * KIB] * 100])
def test_a_capturing_stream_is_refused(x, hold, driver, sizes):
    """Also where a cache has all of the memory.  A free into a pool is carried out."""
    warm(x, x.S)
    hold.free_many(hold.allocate_many(sizes, x.S.handle), x.S.handle)
    ptrs = hold.allocate_many(sizes, x.S.handle)
    with Capture(x.S):
        with nothing_happens(driver, x.runtime):
            with pytest.raises(Refused, match="capturing"):
                hold.allocate_many(sizes, x.S.handle)
            with pytest.raises(StreamMisuseError, match="capturing"):
                x.runtime.allocate_many(sizes, x.S)
        hold.free_many(ptrs, x.S.handle)
        assert x.runtime.live_bytes == 0


def test_a_batch_of_a_stream_that_was_unregistered_is_refused(x):
    owner, S = foreign(x)
    blocks = x.runtime.allocate_many([KIB] * 8, S)
    x.runtime.unregister_stream(S, successor=x.T)
    for sizes in ([KIB], [0]):
        with pytest.raises(StreamMisuseError, match="unregistered"):
            x.runtime.allocate_many(sizes, S)
    x.runtime.deallocate_many(blocks)
    assert x.runtime.live_bytes == 0
    del owner


# ---------------------------------------------------------------------------------------------- failures
class Fails(DeviceMemoryResource):
    """Fails once, at a certain allocation or free."""

    order = "stream"

    def __init__(self, allocation=0, free=0):
        super().__init__()
        self.below, self.left, self.frees = AsyncMemoryResource(), allocation, free

    def allocate(self, nbytes, stream):
        self.left -= 1
        if self.left == 0:
            raise LookupError("no more")
        return self.below.allocate(nbytes, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.frees -= 1
        if self.frees == 0:
            raise LookupError("not now")
        self.below.deallocate(ptr, nbytes, stream)


OUT = {"pool": lambda: PoolMemoryResource(maximum_pool_size=1 << 20, initial_pool_size=1 << 20),
       "pool without caches": lambda: PoolMemoryResource(maximum_pool_size=1 << 20, stream_cache_size=0),
       "budget": lambda: LimitingResourceAdaptor(AsyncMemoryResource(), 1 << 20)}


@pytest.mark.parametrize("place", [0, 1, 63, 64, 70, 129])
@pytest.mark.parametrize("resource", OUT)
def test_a_batch_without_memory_for_all_leaves_nothing(four, resource, place):
    x = four(resource=OUT[resource]())
    hold = Batches(x.runtime)
    kept = x.runtime.allocate(KIB, x.S, tag="kept")
    sizes = [KIB] * place + [1 << 20] + [KIB] * 5
    with pytest.raises((OutOfDeviceMemoryError, OutOfBudgetError), match=r"1\.0 MiB") as caught:
        x.runtime.allocate_many(sizes, x.S)
    assert caught.value.__notes__ == [f"in allocate_many: it is block {place} of {len(sizes)}, and none was allocated"]
    with pytest.raises(Refused) as refused:
        hold.allocate_many(sizes, x.S.handle)
    assert refused.value.kind == OUT_OF_MEMORY
    x.runtime.reap_pending()
    assert (x.runtime.live_bytes, x.runtime.counters()["live_blocks"], x.runtime.pending_bytes) == (KIB, 1, 0)
    assert x.runtime.counters()["failed_frees"] == 0
    sizes = [KIB] * 1020                                # all there is
    x.runtime.deallocate_many(x.runtime.allocate_many(sizes, x.S))
    x.runtime.reap_pending()
    hold.free_many(hold.allocate_many(sizes, x.S.handle), x.S.handle)
    assert x.runtime.live_bytes == KIB
    kept.free()
    hold.close()


def test_an_error_of_the_driver_or_of_a_resource_leaves_nothing(four, driver):
    x = four(resource=Fails(allocation=70))
    with pytest.raises(LookupError, match="no more") as caught:
        x.runtime.allocate_many([KIB] * 100, x.S)
    assert "block 69 of 100" in caught.value.__notes__[-1]
    assert (x.runtime.live_bytes, x.runtime.counters()["live_blocks"]) == (0, 0)
    y = four()
    driver.fail("cuMemAllocFromPoolAsync", nth=70, code=UNKNOWN)
    with pytest.raises(DriverError):
        y.runtime.allocate_many([KIB] * 100, y.S)
    hold = Batches(y.runtime)
    driver.fail("cuMemAllocFromPoolAsync", nth=70, code=UNKNOWN)
    with pytest.raises(Refused):
        hold.allocate_many([KIB] * 100)
    assert (y.runtime.live_bytes, y.runtime.counters()["live_blocks"]) == (0, 0)
    assert y.runtime.counters()["allocations"] == y.runtime.counters()["frees"] == 2 * 69
    hold.close()


def test_wrong_sizes_allocate_nothing(x, driver):
    for sizes, error in (([KIB, -1], ValueError), ([KIB, None], TypeError), ([KIB, 1 << 70], OverflowError),
                         (KIB, TypeError), ("1KiB", TypeError), ([[KIB]], TypeError)):
        with nothing_happens(driver, x.runtime), pytest.raises(error):
            x.runtime.allocate_many(sizes, x.S)
    with pytest.raises(OutOfDeviceMemoryError):
        x.runtime.allocate_many([(1 << 64) - 2] * 3, x.S)


@pytest.mark.parametrize("local", [False, True])
def test_if_one_block_is_wrong_none_is_freed(four, x, hold, driver, local):
    if local:
        warm(x, x.S)
    blocks = x.runtime.allocate_many([KIB] * 8 + [0], x.S)
    stale, empty, other = *x.runtime.allocate_many([KIB, 0], x.S), four().runtime.allocate(KIB)
    by_address = x.runtime.allocate(KIB, x.S)
    hold.free(by_address.ptr, x.S.handle)
    x.runtime.deallocate_many([stale, empty])
    for wrong, error, text in (
            (stale, UseAfterFreeError, "freed"), (empty, UseAfterFreeError, "freed"),
            (by_address, UseAfterFreeError, "freed"),
            (blocks[2], ValueError, r"blocks\[9\] is blocks\[2\] once more"),
            (blocks[8], ValueError, r"blocks\[9\] is blocks\[8\] once more"),
            (other, StreamMisuseError, r"blocks\[9\]: .* another runtime"), (blocks[0].ptr, TypeError, "DeviceBlock"),
            (None, TypeError, "DeviceBlock"), (x.runtime.adopt(blocks[1].ptr, 16), UseAfterFreeError, None)):
        with nothing_happens(driver, x.runtime):
            with pytest.raises(error, match=text):
                x.runtime.deallocate_many([*blocks, wrong])
            assert [block.state for block in blocks] == [BlockState.LIVE] * 9
    for wrong in (blocks[0], "blocks", 3):
        with pytest.raises(TypeError):
            x.runtime.deallocate_many(wrong)
    with pytest.raises(TypeError, match="not a CUDA stream"):
        x.runtime.deallocate_many(blocks, "stream")
    x.runtime.deallocate_many(blocks)                   # they are as they were
    assert x.runtime.live_bytes == 0
    with pytest.raises(UseAfterFreeError):
        blocks[0].free()


def test_frees_that_fail_leave_their_blocks_and_no_others(four):
    x = four(resource=Fails(free=70))
    blocks = x.runtime.allocate_many([KIB] * 100, x.S)
    with pytest.raises(LookupError, match="not now"):
        x.runtime.deallocate_many(blocks)
    assert [number for number, block in enumerate(blocks) if block.state is BlockState.LIVE] == [69]
    blocks[69].free()
    assert x.runtime.live_bytes == 0


def test_a_block_that_was_freed_by_its_address_inside_a_use_is_reported_after_the_others(x, hold):
    blocks = x.runtime.allocate_many([KIB] * 70, x.S)
    with use(x.S, read=blocks[3]):
        hold.free(blocks[3].ptr, x.S.handle)
        with pytest.raises(UseAfterFreeError):
            x.runtime.deallocate_many(blocks)
        assert x.runtime.live_bytes == KIB
    assert x.runtime.live_bytes == 0


def test_addresses_that_are_wrong_are_reported_and_the_others_freed(x, hold, caplog):
    warm(x, x.S)
    ptrs = hold.allocate_many([KIB] * 100, x.S.handle)
    with caplog.at_level(logging.ERROR, "xlogmem"):
        hold.free_many([0, ptrs[0], 12345, *ptrs, 0], x.S.handle)
        functions.open(None)                            # writes the log
    assert x.runtime.live_bytes == 0
    assert [f"{ptr:#x}" in caplog.text for ptr in (ptrs[0], 12345, ptrs[1])] == [True, True, False]
    with pytest.raises(DriverError, match="no block of the runtime is alive"):
        x.runtime.reap_pending()


def test_a_lost_device_refuses_a_batch_and_keeps_what_it_had(four, driver):
    x = four()
    hold = Batches(x.runtime)
    blocks = x.runtime.allocate_many([KIB] * 100, x.S)
    ptrs = [block.ptr for block in blocks]
    driver.fail("cuMemFreeAsync", nth=10, code=700)
    before = driver.calls("cuMemFreeAsync")
    with pytest.raises(DeviceLostError) as caught:
        x.runtime.deallocate_many(blocks)
    assert driver.calls("cuMemFreeAsync") == before + 10
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(DeviceLostError):
        x.runtime.allocate_many([KIB], x.S)
    with pytest.raises(Refused):
        hold.allocate_many([KIB] * 2, x.S.handle)
    with pytest.raises(DeviceLostError):
        x.runtime.deallocate_many(blocks[9:])
    hold.free_many(ptrs[9:], x.S.handle)
    assert driver.calls("cuMemFreeAsync") == before + 10
    for ptr in ptrs[9:]:                                # the error was made up
        check(cuda.cuMemFreeAsync(ptr, x.S.handle))
    hold.close()


# ---------------------------------------------------------------------------------------------- what it costs
def calls_of(driver, function, *arguments):
    before = driver.all_calls()
    result = function(*arguments)
    return result, {name: count - before.get(name, 0) for name, count in driver.all_calls().items()
                    if count != before.get(name, 0)}


@pytest.mark.parametrize("sizes", [[KIB] * 1000, [KIB * number for number in range(1, 201)]])
def test_a_batch_from_a_pool_makes_one_query(x, hold, driver, sizes):
    hold.free_many(hold.allocate_many([KIB] * 100, x.S.handle), x.S.handle)     # S has a cache, and is known
    hold.free_many(hold.allocate_many([KIB] * 2, x.S.handle), x.S.handle)
    ptrs, calls = calls_of(driver, hold.allocate_many, sizes, x.S.handle)
    assert calls == {QUERY: 1}
    _, calls = calls_of(driver, hold.free_many, ptrs, x.S.handle)
    assert calls == {}


def test_a_batch_from_the_driver_looks_its_stream_up_once(four, driver):
    x = four()
    hold = Batches(x.runtime)
    unowned = ForeignStream()
    ptrs, calls = calls_of(driver, hold.allocate_many, [KIB] * 200, unowned.handle)
    assert (calls["cuStreamGetId"], calls["cuMemAllocFromPoolAsync"]) == (1, 200)
    assert calls[QUERY] <= 2
    _, calls = calls_of(driver, hold.free_many, ptrs, unowned.handle)
    assert (calls["cuStreamGetId"], calls["cuMemFreeAsync"]) == (1, 200)
    x.runtime.reap_pending()
    hold.close()


@pytest.mark.parametrize(("count", "with_gil"), [(256, 1), (257, 0)])
def test_the_gil_is_kept_for_a_bounded_batch(driver, count, with_gil):
    runtime = pooled_runtime()
    stream = runtime.acquire_stream()
    runtime.deallocate_many(runtime.allocate_many([KIB] * count, stream))
    with queries_with_gil(driver, with_gil):
        blocks, calls = calls_of(driver, runtime.allocate_many, [KIB] * count, stream)
    assert calls[QUERY] == 1
    _, calls = calls_of(driver, runtime.deallocate_many, blocks)
    assert calls == {} if with_gil else QUERY not in calls
    assert runtime.live_bytes == 0


def test_a_table_of_a_thousand_columns_comes_from_the_cache(x, hold):
    """And again, also by single calls; each is found by its address, and each figure counts it."""
    def round_of(allocate, free):
        before = x.runtime.counters()["cached"]
        free(allocate())
        return x.runtime.counters()["cached"] - before

    for _ in range(2):
        hold.free_many(hold.allocate_many([KIB] * 1000, x.S.handle), x.S.handle)
    assert round_of(lambda: hold.allocate_many([KIB] * 1000, x.S.handle),
                    lambda ptrs: hold.free_many(ptrs, x.S.handle)) >= 990
    assert round_of(lambda: x.runtime.allocate_many([KIB] * 1000, x.S), x.runtime.deallocate_many) >= 990
    assert round_of(lambda: [x.alloc(x.S, KIB) for _ in range(1000)],
                    lambda blocks: [block.free() for block in blocks]) >= 990
    blocks = x.runtime.allocate_many([KIB] * 1000, x.S)
    snapshot = x.runtime.snapshot()
    assert (len(snapshot.blocks), snapshot.live_bytes, x.runtime.live_bytes) == (1000, 1000 * KIB, 1000 * KIB)
    assert [x.runtime.find_block(block.ptr).generation for block in blocks] == [block.generation for block in blocks]
    x.use(x.T, *((block, WRITE) for block in blocks))
    x.runtime.deallocate_many(blocks)
    assert x.runtime.live_bytes == 0


@pytest.mark.parametrize("resource", [AsyncMemoryResource, PoolMemoryResource])
def test_a_batch_of_many_thousands(four, resource):
    x = four(resource=resource())
    hold = Batches(x.runtime)
    count = 20_000
    for _ in range(2):
        blocks = x.runtime.allocate_many([256] * count, x.S)
        assert (x.runtime.live_bytes, len({block.ptr for block in blocks})) == (256 * count, count)
        x.runtime.deallocate_many(blocks)
        del blocks
        ptrs = hold.allocate_many([256] * count, x.S.handle)
        assert len(set(ptrs)) == count
        hold.free_many(ptrs, x.S.handle)
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0
    hold.close()


# ---------------------------------------------------------------------------------------------- threads
@pytest.mark.parametrize("resource", ["async", "pool", "pool with a maximum"])
@pytest.mark.usefixtures("_busy_interpreter")
def test_batches_in_threads(resource):
    """Each thread sees its own memory alone, on a stream that all share and on its own."""
    runtime = DeviceRuntime(resource=RESOURCES[resource]())
    hold = Batches(runtime)
    shared, owners = runtime.acquire_stream(), {}

    def work(number):
        own = runtime.acquire_stream()
        for turn in range(12):
            stream = (shared, own)[turn % 2]
            blocks = runtime.allocate_many([KIB * (1 + turn % 3)] * 100, stream)
            ptrs = hold.allocate_many([KIB] * 100, stream.handle)
            mine = {block.ptr for block in blocks} | set(ptrs)
            assert len(mine) == 200
            for ptr in mine:
                assert owners.setdefault(ptr, number) == number
            for ptr in mine:
                del owners[ptr]
            runtime.deallocate_many(blocks, shared if turn % 4 == 0 else None)
            hold.free_many(ptrs, stream.handle)
        return 12 * 200

    counted = sum(together(work, 6))
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    assert runtime.counters()["allocations"] == runtime.counters()["frees"] == counted
    hold.close()


def test_a_block_is_freed_by_one_of_two_batches(x):
    """Two threads free the same blocks: each block once, and the other thread hears of it."""
    for _ in range(20):
        blocks = x.runtime.allocate_many([KIB] * 300, x.S)

        def work(number, blocks=blocks):
            with contextlib.suppress(UseAfterFreeError):
                x.runtime.deallocate_many(blocks)
                return 1
            return 0

        assert sum(together(work, 2)) == 1
        assert x.runtime.live_bytes == 0


def test_a_stream_is_named_by_its_handle(x, hold):
    """As any stream argument."""
    owner = ForeignStream()
    blocks = x.runtime.allocate_many([KIB] * 3, owner)
    late = x.work(at(owner.handle), (blocks[0], WRITE))
    x.runtime.deallocate_many(blocks, owner)
    again = x.runtime.allocate_many([KIB] * 3, owner)
    assert x.ordered(late, at(owner.handle))
    x.runtime.deallocate_many(again)


@pytest.mark.parametrize("kind", ["ordinary", "opaque", "sealed", "default"])
@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("program", [of_python, of_table])
def test_a_batch_is_what_its_calls_one_by_one_are(four, driver, program, resource, kind):
    """The same driver calls, positions, counts, figures of the resource, tags and peaks, after each step."""
    seen = []
    for batch in (True, False):
        driver.reset("eager")
        x = four(resource=RESOURCES[resource](), opaque="S" if kind == "opaque" else "",
                 sealed="S" if kind == "sealed" else "")
        stream = x.runtime.default_stream if kind == "default" else x.S
        before = figures(x, driver)["calls"]
        steps = []
        for _ in program(x, SIZES, stream if program is of_python else stream.handle, batch):
            steps.append(figures(x, driver))
            steps[-1]["calls"] = {name: count - before[name] for name, count in steps[-1]["calls"].items()}
        seen.append(steps)
        x.runtime.reap_pending()
        assert x.runtime.bytes_outstanding == 0
    for number, (many, one) in enumerate(zip(*seen, strict=True)):
        assert many == one, f"after step {number}"


@pytest.mark.simulator
def test_a_block_that_another_thread_is_freeing_gets_no_owner_back(four, driver):
    """The free is put off by a window, and ends while the batch is at another block: the drop of the handle then has
    nothing to free."""
    x = four()
    other, block = x.alloc(x.S), x.alloc(x.S)
    identity = block.id
    recorder = x.prepare(x.T, (block, "write"))
    freeing = driver.hold("cuCtxGetCurrent")
    beside = Beside(block.free)
    assert freeing.reached()
    at_other = driver.hold("cuMemFreeAsync")
    handles = [other, block]
    batch = Beside(lambda: x.runtime.deallocate_many(handles))
    assert at_other.reached()
    freeing.release()
    beside.result()
    at_other.release()
    with pytest.raises(UseAfterFreeError):
        batch.result()
    with pytest.raises(UseAfterFreeError), block:       # only an owner enters
        pass
    handles.clear()
    del block, batch, beside
    gc.collect()
    x.runtime.reap_pending()
    assert x.runtime.find_block(identity) is not None   # the window has it still
    recorder.commit()
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0


def test_a_batch_of_the_table_that_fails_in_a_capture_leaves_nothing_to_the_graph(four):
    """What it had is free when the capture ends, and not when the graph is closed."""
    x = four()
    hold, live = Batches(x.runtime), x.runtime.live_bytes
    with capture(x.S) as graph:
        (kept,) = hold.allocate_many([512], x.S.handle)
        for nth in (2, 3):
            x.driver.fail("cuMemAllocFromPoolAsync", nth, code=NOT_SUPPORTED)
            with pytest.raises(Refused, match="cuMemAllocFromPoolAsync"):
                hold.allocate_many([64, 0, 64, 64], x.S.handle)
    assert len(graph.writes) == 1
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == live + 512
    hold.free(kept, x.S.handle)
    graph.close()
    x.runtime.reap_pending()
    assert x.runtime.live_bytes == live
    hold.close()
