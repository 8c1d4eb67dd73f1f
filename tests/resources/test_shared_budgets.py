"""One budget for several runtimes, and what happens to it when a resource hands out memory twice."""
from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest
from c_table import Hold
from cuda.bindings import driver as cuda

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    MemoryCorruptionError,
    OutOfBudgetError,
    StatisticsResourceAdaptor,
    TrackingResourceAdaptor,
)
from xlogmem.sim.kernels import check

KIB = 1 << 10


@pytest.mark.parametrize("memory", [AsyncMemoryResource, DirectMemoryResource])
@pytest.mark.parametrize("by_table", [False, True])
@pytest.mark.parametrize("stacks", [(lambda below: below,) * 2, (TrackingResourceAdaptor, StatisticsResourceAdaptor)])
def test_what_another_runtime_has_freed_is_there(memory, by_table, stacks):
    """Whether that was complete already or has to be waited for."""
    budget = LimitingResourceAdaptor(memory(), 100 * KIB)
    first, second = (DeviceRuntime(resource=stack(budget)) for stack in stacks)
    for complete in (True, False, True):
        second.allocate(80 * KIB).free()
        if complete:
            check(cuda.cuCtxSynchronize())
        if by_table:
            hold = Hold(first)
            hold.free(hold.allocate(50 * KIB))
            hold.close()
        else:
            first.allocate(50 * KIB).free()
        assert second.pending_bytes == 0
        first.reap_pending()
    assert budget.current_bytes == 0


def test_live_blocks_of_another_runtime_count():
    budget = LimitingResourceAdaptor(AsyncMemoryResource(), 100 * KIB)
    first, second, third = (DeviceRuntime(resource=budget) for _ in range(3))
    kept = second.allocate(60 * KIB, tag="kept")
    third.allocate(20 * KIB).free()
    with pytest.raises(OutOfBudgetError, match=r"Held by kept: 60\.0 KiB \(61440 bytes\);") as caught:
        first.allocate(50 * KIB)
    assert (caught.value.current, caught.value.pending) == (60 * KIB, 0)
    del third, kept
    first.allocate(100 * KIB).free()
    first.reap_pending()
    assert budget.current_bytes == 0


def test_what_fails_there_is_reported_there(driver):
    """The free of another runtime cannot be seen complete: it stays pending, and its own reap has the rest."""
    budget = LimitingResourceAdaptor(GuardResourceAdaptor(AsyncMemoryResource()), 100 * KIB)
    first, second = DeviceRuntime(resource=budget), DeviceRuntime(resource=budget)
    block = second.allocate(80 * KIB)
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemsetD8(block.ptr - 1, 7, 1))
    check(cuda.cuCtxSynchronize())
    block.free()
    first.allocate(50 * KIB).free()
    with pytest.raises(MemoryCorruptionError):
        second.reap_pending()
    first.reap_pending()
    assert budget.current_bytes == 0


def test_threads_of_runtimes_that_share_a_budget(driver):
    budget = LimitingResourceAdaptor(AsyncMemoryResource(), 4 * 9 * KIB)

    def work() -> None:
        runtime = DeviceRuntime(resource=budget)
        for _ in range(60):
            with suppress(OutOfBudgetError):            # others may be quicker to take what was released
                runtime.allocate(9 * KIB).free()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.current_bytes == 0


@pytest.mark.filterwarnings("ignore:.*handed out memory of a live block")
@pytest.mark.parametrize("stack", [lambda budget: budget, StatisticsResourceAdaptor, TrackingResourceAdaptor])
def test_a_block_that_was_evicted_holds_nothing(stack):
    class Twice(DeviceMemoryResource):
        order = "stream"

        def __init__(self) -> None:
            super().__init__(0)
            self.upstream = AsyncMemoryResource()
            self.ptr = self.upstream.allocate(4096, 1)

        def allocate(self, nbytes: int, stream: Any) -> int:
            return self.ptr

        def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
            pass

    twice = Twice()
    budget = LimitingResourceAdaptor(twice, 4096)
    runtime = DeviceRuntime(resource=stack(budget))
    first = runtime.allocate(1000, tag="first")
    second = runtime.allocate(500, tag="second")
    assert runtime.counters()["evictions"] == 1
    assert (budget.current_bytes, budget.holders()) == (500, {"second": 500})
    second.free()
    runtime.reap_pending()
    assert (budget.current_bytes, budget.holders()) == (0, {})
    twice.upstream.deallocate(twice.ptr, 4096, 1)
    del first
