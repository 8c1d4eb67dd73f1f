"""A budget counts what cannot be used by others, to the byte, and is never exceeded."""
from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Callable

import pytest
from at_the_limit import STEPS, AtTheLimit
from c_table import OUT_OF_MEMORY, Hold, Refused
from cuda.bindings import driver as cuda
from stress import held_up
from which_driver import SIMULATED

from xlogmem import (
    AllocationRecord,
    AsyncMemoryResource,
    DeviceBlock,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
    StreamMisuseError,
    sim,
)
from xlogmem._base.labels import label_count
from xlogmem.sim.kernels import check

KIB = 1 << 10
UPSTREAMS = [AsyncMemoryResource, DirectMemoryResource, PoolMemoryResource]


class Rounding(DeviceMemoryResource):
    """Takes more of the device than is requested, as every allocator does."""

    order = "stream"

    def __init__(self) -> None:
        super().__init__()
        self.upstream = AsyncMemoryResource()

    def allocate(self, nbytes: int, stream: int) -> int:
        return self.upstream.allocate(nbytes + 4096, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: int) -> None:
        self.upstream.deallocate(ptr, nbytes + 4096, stream)


def limited(upstream: Callable[[], DeviceMemoryResource], limit: int) -> tuple[DeviceRuntime, LimitingResourceAdaptor]:
    budget = LimitingResourceAdaptor(upstream(), limit)
    return DeviceRuntime(resource=budget), budget


@pytest.mark.promise(144, 146, 149, 154)
@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_the_limit_itself_is_admitted_and_the_next_byte_is_not(upstream):
    own, budget = limited(upstream, 64 * KIB)
    block = own.allocate(63 * KIB)
    last = own.allocate(KIB)
    assert (budget.current_bytes, budget.remaining_bytes, budget.limit) == (64 * KIB, 0, 64 * KIB)
    with pytest.raises(OutOfBudgetError, match="requested 1 byte, remaining 0 bytes") as caught:
        own.allocate(1)
    error = caught.value
    assert (error.requested, error.remaining, error.current, error.limit) == (1, 0, 64 * KIB, 64 * KIB)
    assert isinstance(error, MemoryError)
    assert budget.current_bytes == 64 * KIB
    del block, last


@pytest.mark.promise(149)
def test_the_refusal_names_the_largest_holders_by_tag():
    own, _ = limited(AsyncMemoryResource, 100 * KIB)
    blocks = [own.allocate(size * KIB, tag=tag) for size, tag in
              ((1, "a"), (2, "b"), (30, "c"), (4, None), (5, "d"), (6, "e"), (7, "f"), (8, "c"), (9, None))]
    with pytest.raises(OutOfBudgetError) as caught:
        own.allocate(50 * KIB, tag="g")
    assert caught.value.holders == [("c", 38 * KIB), (None, 13 * KIB), ("f", 7 * KIB), ("e", 6 * KIB), ("d", 5 * KIB)]
    assert "Held by c: 38.0 KiB (38912 bytes), memory without a tag: 13.0 KiB (13312 bytes), f: " in str(caught.value)
    del blocks


@pytest.mark.promise(147)
def test_what_can_never_fit_is_refused_without_a_wait(four, driver):
    x = four(resource=LimitingResourceAdaptor(AsyncMemoryResource(), 64 * KIB))
    x.alloc(x.S, 60 * KIB).free()
    before = driver.all_calls()
    with pytest.raises(OutOfBudgetError):
        x.runtime.allocate(64 * KIB + 1, x.S)
    made = {call for call, count in driver.all_calls().items() if count != before.get(call, 0)}
    assert not made & {"cuEventRecord", "cuEventQuery", "cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize",
                       "cuMemAllocFromPoolAsync"}


@pytest.mark.promise(148, 150)
def test_one_that_does_not_fit_waits_once_for_what_is_pending():
    own, budget = limited(AsyncMemoryResource, 64 * KIB)
    stream = own.acquire_stream()
    own.allocate(60 * KIB, stream).free()
    assert budget.current_bytes == 60 * KIB
    block = own.allocate(8 * KIB, stream)
    assert budget.current_bytes == 8 * KIB
    del block


@pytest.mark.promise(150)
@pytest.mark.parametrize(("upstream", "counted"), [(AsyncMemoryResource, KIB), (DirectMemoryResource, 0),
                                                   (PoolMemoryResource, 0), (Rounding, KIB)])
def test_freed_bytes_count_until_the_device_has_completed_the_free(upstream, counted):
    """A synchronous resource has completed it; a pool may hand the memory out again, after its users."""
    own, budget = limited(upstream, 64 * KIB)
    stream = own.acquire_stream()
    block = own.allocate(KIB, stream)
    check(cuda.cuCtxSynchronize())
    with held_up(stream) if counted else contextlib.nullcontext():
        block.free()
        own.reap_pending(blocking=False)
        assert budget.current_bytes == counted == own.bytes_outstanding
        assert budget.holders() == {}
    own.reap_pending()
    assert budget.current_bytes == 0


@pytest.mark.promise(145)
@pytest.mark.parametrize("upstream", [*UPSTREAMS, Rounding])
def test_what_counts_is_what_is_outstanding(upstream):
    own, budget = limited(upstream, 1 << 20)
    streams = [own.acquire_stream() for _ in range(3)]
    draw = random.Random(145)
    blocks: list[DeviceBlock] = []
    refused = 0
    for _ in range(400):
        if draw.random() < .6:
            try:
                blocks.append(own.allocate(draw.randint(1, 1 << 17), draw.choice(streams)))
            except OutOfBudgetError:
                refused += 1
        elif blocks:
            blocks.pop(draw.randrange(len(blocks))).free(draw.choice([None, *streams]))
        assert own.bytes_outstanding == budget.current_bytes <= budget.limit         # looks first
    assert refused
    blocks.clear()
    own.reap_pending()
    assert budget.current_bytes == 0
    assert budget.holders() == {}


@pytest.mark.promise(146, 173)
@pytest.mark.simulator
def test_an_allocation_that_fails_below_is_discharged(driver):
    own, budget = limited(AsyncMemoryResource, 64 * KIB)
    driver.fail("cuMemAllocFromPoolAsync", 1, 999)
    with pytest.raises(DriverError):
        own.allocate(KIB)
    assert budget.current_bytes == 0
    for time in (1, 2, 3):
        driver.fail("cuMemAllocFromPoolAsync", time, 2)
    with pytest.raises(OutOfDeviceMemoryError):
        own.allocate(KIB)
    assert budget.current_bytes == 0


@pytest.mark.promise(151, 177)
@pytest.mark.simulator
def test_a_free_that_fails_stays_charged(driver):
    own, budget = limited(AsyncMemoryResource, 64 * KIB)
    block = own.allocate(KIB, tag="kept")
    driver.fail("cuMemFreeAsync", 1, 999)
    with pytest.raises(DriverError):
        block.free()
    assert budget.current_bytes == KIB
    assert budget.holders() == {"kept": KIB}
    block.free()
    own.reap_pending()
    assert budget.current_bytes == 0
    assert budget.holders() == {}


@pytest.mark.promise(16)
@pytest.mark.parametrize("policy", ["eager", "min"] if SIMULATED else ["hardware"])
@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_threads_at_the_limit(upstream, policy):
    """Never above, and equal at rest; every refusal was one.  `at_the_limit.py --seconds 10` does more of it."""
    if SIMULATED:
        sim.simulator().set_policy(policy)              # "min": frees are pending until a thread waits for them
    program = AtTheLimit(upstream())
    program.run(rounds=3)
    assert not program.wrong
    assert program.counted["rounds"] == 3
    assert program.counted["allocations"] + program.counted["refusals"] == 3 * 8 * STEPS
    assert program.counted["refusals"] > STEPS


def test_runtimes_share_a_budget():
    budget = LimitingResourceAdaptor(AsyncMemoryResource(), 64 * KIB)
    first, second = DeviceRuntime(resource=budget), DeviceRuntime(resource=budget)
    block = first.allocate(40 * KIB)
    with pytest.raises(OutOfBudgetError):
        second.allocate(40 * KIB)
    block.free()
    del block, first                                    # pending at its end
    second.allocate(40 * KIB).free()
    second.reap_pending()
    assert budget.current_bytes == 0


def test_below_a_pool_chunks_count():
    budget = LimitingResourceAdaptor(AsyncMemoryResource(), 1 << 20)
    own = DeviceRuntime(resource=PoolMemoryResource(budget, chunk_size=512 * KIB))
    blocks = [own.allocate(200 * KIB) for _ in range(4)]
    assert budget.current_bytes == 1 << 20
    with pytest.raises(OutOfBudgetError):
        own.allocate(200 * KIB)
    blocks.clear()
    own.reap_pending()
    own.resource.trim()
    assert budget.current_bytes == 0


def test_a_smaller_chunk_is_tried_where_the_budget_has_no_more():
    budget = LimitingResourceAdaptor(AsyncMemoryResource(), 1 << 20)
    own = DeviceRuntime(resource=PoolMemoryResource(budget, chunk_size=4 << 20))
    block = own.allocate(600 * KIB)
    assert 600 * KIB <= budget.current_bytes <= 1 << 20
    del block


@pytest.mark.promise(152)
def test_each_budget_of_a_stack_holds():
    outer = LimitingResourceAdaptor(LimitingResourceAdaptor(AsyncMemoryResource(), 64 * KIB), 128 * KIB)
    own = DeviceRuntime(resource=outer)
    block = own.allocate(60 * KIB)
    with pytest.raises(OutOfBudgetError) as caught:
        own.allocate(60 * KIB)
    assert caught.value.limit == 64 * KIB
    assert outer.current_bytes == outer.upstream.current_bytes == 60 * KIB
    del block


@pytest.mark.promise(153)
def test_what_a_budget_refuses_is_not_logged_below_it():
    records: list[AllocationRecord] = []
    log = LoggingResourceAdaptor(AsyncMemoryResource(), records.append)
    own = DeviceRuntime(resource=LimitingResourceAdaptor(log, KIB))
    with pytest.raises(OutOfBudgetError):
        own.allocate(2 * KIB)
    own.allocate(KIB).free()
    log.close()
    assert [record.action for record in records] == ["allocate", "free"]


def test_without_a_runtime_a_free_counts_when_it_is_queued(_context):
    budget = LimitingResourceAdaptor(AsyncMemoryResource(), KIB)
    stream = check(cuda.cuStreamCreate(1))
    ptr = budget.allocate(KIB, int(stream))
    with pytest.raises(OutOfBudgetError):
        budget.allocate(1, int(stream))
    budget.deallocate(ptr, KIB, int(stream))
    assert budget.current_bytes == 0
    check(cuda.cuStreamDestroy(stream))


def test_through_the_c_table_it_is_out_of_memory():
    """RMM's users handle that: cuDF spills."""
    own, budget = limited(PoolMemoryResource, 64 * KIB)
    hold = Hold(own)
    ptr = hold.allocate(60 * KIB)
    for nbytes in (8 * KIB, 65 * KIB):
        with pytest.raises(Refused, match="out of budget: requested") as caught:
            hold.allocate(nbytes)
        assert caught.value.args[0] == OUT_OF_MEMORY
    hold.free(ptr)
    assert budget.current_bytes == 0
    hold.close()


@pytest.mark.parametrize(("tags", "says"), [
    (["index", "join"], ". Held by index: 32768 bytes, join: 16384 bytes"),
    (["a\x1b[31mb", None], ". Held by a?[31mb: 32768 bytes, memory without a tag: 16384 bytes"),
    (["x" * 200, "y"], f". Held by {'x' * 64}: 32768 bytes"),       # whole entries, as far as there is room
])
def test_a_refusal_through_the_c_table_says_who_holds_what(tags, says):
    own, _ = limited(AsyncMemoryResource, 64 * KIB)
    blocks = [own.allocate(nbytes * KIB, tag=tag) for nbytes, tag in zip((32, 16), tags, strict=True)]
    hold = Hold(own)
    with pytest.raises(Refused) as caught:
        hold.allocate(60 * KIB)
    text = caught.value.args[1]
    assert says in text
    assert text.isprintable()
    for block in blocks:
        block.free()
    hold.close()


def test_a_refusal_through_the_c_table_keeps_no_tag():
    """It names the holders by tag, and what is written of it does not."""
    own, _ = limited(AsyncMemoryResource, 64 * KIB)
    hold = Hold(own)
    before = label_count()
    for number in range(20_000):
        block = own.allocate(KIB, tag=f"refused {number}")
        with pytest.raises(Refused):
            hold.allocate(65 * KIB)
        block.free()
    assert label_count() < before + 10_000
    hold.close()


@pytest.mark.promise(183)
@pytest.mark.parametrize(("limit", "nbytes"), [("8GiB", 8 << 30), ("500 MB", 500_000_000), ("1.5kib", 1536), (0, 0),
                                               (12345, 12345)])
def test_limits_are_written_in_many_ways(limit, nbytes):
    assert LimitingResourceAdaptor(AsyncMemoryResource(), limit).limit == nbytes


@pytest.mark.promise(183)
def test_a_limit_may_be_a_share_of_the_device():
    total = check(cuda.cuDeviceTotalMem(0))
    assert LimitingResourceAdaptor(AsyncMemoryResource(), .5).limit == total // 2
    assert LimitingResourceAdaptor(AsyncMemoryResource(), 1.).limit == total
    assert LimitingResourceAdaptor(AsyncMemoryResource(), 1e6).limit == 10 ** 6     # a whole number of bytes


@pytest.mark.parametrize(("limit", "error", "said"), [
    (-1, ValueError, "limit must be a number of bytes, at least 0"), (1 << 63, ValueError, "limit must be a number"),
    (1.5, ValueError, "above 0 and at most 1"), (0., ValueError, "above 0"), (float("nan"), ValueError, "above 0"),
    ("8 apples", ValueError, "a number and a unit"), ("GiB", ValueError, "a number and a unit"),
    ("-8GiB", ValueError, "a number and a unit"), (None, TypeError, "limit is missing"), ([], TypeError, "not list")])
def test_what_is_no_limit_is_refused(limit, error, said):
    with pytest.raises(error, match=said):
        LimitingResourceAdaptor(AsyncMemoryResource(), limit)


def test_what_is_no_resource_is_refused():
    class Undeclared(DeviceMemoryResource):
        pass

    with pytest.raises(TypeError, match="upstream must be a DeviceMemoryResource of xlogmem, not object"):
        LimitingResourceAdaptor(object(), 1)
    with pytest.raises(StreamMisuseError, match="Undeclared does not support an adaptor on it"):
        LimitingResourceAdaptor(Undeclared(), 1)
    budget = LimitingResourceAdaptor(AsyncMemoryResource(), 1)
    with pytest.raises(RuntimeError, match="initialised once"):
        budget.__init__(AsyncMemoryResource(), 2)
    with pytest.raises(StreamMisuseError, match="PoolMemoryResource does not support allocate"):
        LimitingResourceAdaptor(PoolMemoryResource(), 1 << 20).allocate(1, 0)
    with pytest.raises(StreamMisuseError):
        DeviceRuntime(resource=LimitingResourceAdaptor.__new__(LimitingResourceAdaptor))


def test_the_summary_says_who_holds_it():
    own, budget = limited(AsyncMemoryResource, 64 * KIB)
    block = own.allocate(KIB, tag="mine")
    assert "64.0 KiB" in budget.memory_summary()
    assert "mine" in budget.memory_summary()
    del block


@pytest.mark.parametrize("upstream", UPSTREAMS)
def test_a_collector_ends_a_runtime_before_the_resources_below_its_adaptors(upstream):
    """In whatever order it finds them: the end of a runtime frees, and settles, down the whole stack."""
    for _ in range(10):
        own, budget = limited(upstream, 64 * KIB)
        block = own.allocate(KIB)
        block.free()
        cycle = [own, budget, budget.upstream]
        cycle.append(cycle)
        del own, budget, block, cycle
        gc.collect()
