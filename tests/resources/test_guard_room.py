"""Freed memory that a guard has makes room, also while other threads return or check it."""
from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from cuda.bindings import driver as cuda

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    OutOfBudgetError,
)
from xlogmem.sim.kernels import check

TOTAL = 9000 + 216 + 512                                # of an allocation of 9,000 bytes, with its canaries


def in_thread(work: Any, failures: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))))
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def free_in_quarantine() -> tuple[GuardResourceAdaptor, DeviceRuntime]:
    """Nothing is alive, and there is room for one allocation at a time."""
    guard = GuardResourceAdaptor(LimitingResourceAdaptor(AsyncMemoryResource(), TOTAL))
    runtime = DeviceRuntime(resource=guard)
    runtime.allocate(9000).free()
    assert guard.quarantined_bytes == TOTAL
    return guard, runtime


@pytest.mark.simulator
@pytest.mark.parametrize(("call", "work"), [
    ("cuMemFreeAsync", lambda guard: guard.trim()), ("cuLaunchKernel", lambda guard: guard.check())])
def test_an_allocation_waits_for_what_another_thread_returns_or_checks(call, work, driver):
    guard, runtime = free_in_quarantine()
    failures: list[BaseException] = []
    held = driver.hold(call)
    first = in_thread(lambda: work(guard), failures)
    assert held.reached()
    second = in_thread(lambda: runtime.allocate(9000).free(), failures)
    second.join(.3)                                     # one that does not wait has failed by then
    assert held.release()
    first.join()
    second.join()
    assert not failures
    runtime.reap_pending()


@pytest.mark.simulator
def test_an_allocation_waits_for_a_look_at_memory_that_is_freed_meanwhile(driver):
    """While the first thread queries the event behind the first fill of `early`, `early` does not leave."""
    driver.set_policy("min")
    guard = GuardResourceAdaptor(LimitingResourceAdaptor(AsyncMemoryResource(), 2 * TOTAL))
    runtime = DeviceRuntime(resource=guard)
    failures: list[BaseException] = []
    early = runtime.allocate(9000)                      # whose fill is not complete
    held = driver.hold("cuEventQuery")
    first = in_thread(lambda: runtime.allocate(9000).free(), failures)
    assert held.reached()
    early.free()
    assert guard.quarantined_bytes == TOTAL
    second = in_thread(lambda: runtime.allocate(9000).free(), failures)
    second.join(.3)                                     # one that does not wait has failed by then
    assert held.release()
    first.join()
    second.join()
    assert not failures
    runtime.reap_pending()


@pytest.mark.parametrize("memory", [AsyncMemoryResource, DirectMemoryResource])
def test_what_fits_is_not_refused_under_threads(memory):
    guard = GuardResourceAdaptor(LimitingResourceAdaptor(memory(), 4 * TOTAL))
    runtime = DeviceRuntime(resource=guard)
    failures: list[BaseException] = []

    def work() -> None:
        for _ in range(150):
            runtime.allocate(9000).free()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in [in_thread(work, failures) for _ in range(4)]:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failures
    with pytest.raises(OutOfBudgetError):
        runtime.allocate(6 * TOTAL)
    runtime.reap_pending()


def test_a_resource_may_allocate_from_the_guard_above_it():
    """The thread that returns memory does not wait for itself."""
    answers: list[str] = []

    class Upstream(DeviceMemoryResource):
        order = "stream"

        def __init__(self) -> None:
            super().__init__(0)
            self.upstream = AsyncMemoryResource()
            self.used = 0

        def allocate(self, nbytes: int, stream: Any) -> int:
            if self.used:
                raise MemoryError("no room")
            self.used = nbytes
            return self.upstream.allocate(nbytes, stream)

        def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
            if not answers:
                answers.append("refused")
                with pytest.raises(MemoryError, match="no room"):
                    runtime.allocate(64)
            self.used = 0
            self.upstream.deallocate(ptr, nbytes, stream)

    guard = GuardResourceAdaptor(Upstream())
    runtime = DeviceRuntime(resource=guard)
    runtime.allocate(64).free()
    guard.trim()
    assert answers == ["refused"]
    runtime.allocate(64).free()
    runtime.reap_pending()
