"""Reports of a guard: nothing that happens in one changes the call that it is made in, and none is lost."""
from __future__ import annotations

import ctypes
import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from c_table import VOID, Error, Hold, functions
from cuda.bindings import driver as cuda
from guarded import NBYTES, write

from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceRuntime,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    MemoryCorruptionError,
    PoolMemoryResource,
)
from xlogmem.sim.kernels import check

LOGGER = logging.getLogger("xlogmem")
ERRORS = [KeyboardInterrupt, SystemExit, ValueError]


class Failing(logging.Handler, logging.Filter):
    """Raises for the first records."""

    def __init__(self, error: type[BaseException], times: int = 1) -> None:
        super().__init__()
        self.error, self.times = error, times

    def fail(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise self.error

    def emit(self, record: logging.LogRecord) -> None:
        self.fail()

    def filter(self, record: Any) -> bool:
        self.fail()
        return True


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """A shell lets what it runs in the background ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def fails_in(monkeypatch) -> Iterator[Any]:
    """Where a report fails; gives the `on_violation` for that."""
    added: list[Failing] = []

    def make(place: str, error: type[BaseException]) -> Any:
        failing = Failing(error, 3)
        added.append(failing)
        if place == "callable":
            return lambda violation: failing.fail()
        (LOGGER.addHandler if place == "handler" else LOGGER.addFilter)(failing)
        return "raise"

    monkeypatch.setattr(LOGGER, "propagate", False)
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: None)
    yield make
    for failing in added:
        LOGGER.removeHandler(failing)
        LOGGER.removeFilter(failing)


def spin() -> None:
    """Interrupts are raised between the bytecodes of the main thread."""
    for _ in range(1000):
        pass


def carried_out(call: Any, error: type[BaseException]) -> None:
    """An interrupt comes all the same, once the call is over; what else was raised does not."""
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            call()
            spin()
    else:
        call()


@pytest.mark.simulator
@pytest.mark.parametrize("memory", [AsyncMemoryResource, PoolMemoryResource])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("place", ["callable", "handler", "filter"])
def test_a_free_is_carried_out_whatever_its_report_raises(place, error, memory, fails_in):
    guard = GuardResourceAdaptor(memory(), on_violation=fails_in(place, error))
    runtime = DeviceRuntime(resource=guard)
    stream = check(cuda.cuStreamCreate(1))
    block = runtime.allocate(NBYTES, int(stream))
    write(runtime, block.ptr - 1)
    carried_out(block.free, error)
    assert block.state is BlockState.QUARANTINED
    assert (runtime.live_bytes, runtime.counters()["live_blocks"]) == (0, 0)
    assert len(guard.violations()) == 1
    runtime.unregister_stream(int(stream))              # no call is in flight on it
    check(cuda.cuStreamDestroy(stream))
    with pytest.raises(MemoryCorruptionError) if guard.violations() and place != "callable" else _nothing():
        runtime.reap_pending()


@pytest.mark.simulator
@pytest.mark.parametrize("error", ERRORS)
def test_an_allocation_that_finds_a_violation_succeeds(error, driver, fails_in):
    """Through the C table too, whose callers would take the error for success without memory."""
    guard = GuardResourceAdaptor(AsyncMemoryResource(), on_violation=fails_in("callable", error))
    runtime = DeviceRuntime(resource=guard)
    hold = Hold(runtime)
    ptr = hold.allocate(NBYTES)
    write(runtime, ptr - 1)
    driver.set_policy("min")                            # the check is queued, and a later call sees the result
    hold.free(ptr)
    check(cuda.cuCtxSynchronize())
    found, failed = VOID(), Error()
    carried_out(lambda: functions.allocate(hold.runtime, 64, 0, ctypes.byref(found), ctypes.byref(failed)), error)
    assert len(guard.violations()) == 1
    assert runtime.find_block(found.value) is not None
    assert runtime.live_bytes == 64
    hold.free(found.value)
    runtime.reap_pending()
    hold.close()


def test_an_interrupt_loses_no_violation(monkeypatch):
    """The one that is being logged, and those behind it."""
    monkeypatch.setattr(LOGGER, "propagate", False)
    handler = Failing(KeyboardInterrupt)
    LOGGER.addHandler(handler)
    try:
        guard = GuardResourceAdaptor(AsyncMemoryResource())
        runtime = DeviceRuntime(resource=guard)
        blocks = [runtime.allocate(NBYTES, tag=str(i)) for i in range(5)]
        for block in blocks:
            write(runtime, block.ptr - 1)
        with pytest.raises(KeyboardInterrupt):
            guard.check()
            spin()
        with pytest.raises(MemoryCorruptionError, match="and 4 more") as caught:
            guard.check()
        assert sorted(violation.tag for violation in caught.value.violations) == list("01234")
        assert len(guard.violations()) == 5
    finally:
        LOGGER.removeHandler(handler)


def test_after_a_thousand_violations_there_are_more(monkeypatch):
    """Figures are bounded; what is raised is not over."""
    monkeypatch.setattr(LOGGER, "disabled", True)
    guard = GuardResourceAdaptor(AsyncMemoryResource(), depth=0)
    runtime = DeviceRuntime(resource=guard)
    blocks = [runtime.allocate(16) for _ in range(1003)]
    check(cuda.cuCtxSynchronize())
    for block in blocks:
        check(cuda.cuMemsetD8(block.ptr + 16, 7, 1))
    check(cuda.cuCtxSynchronize())
    with pytest.raises(MemoryCorruptionError, match="and 1002 more") as caught:
        guard.check()
    assert (len(caught.value.violations), caught.value.left_out) == (1000, 3)
    assert len(guard.violations()) == 1000
    write(runtime, blocks[0].ptr - 1)
    with pytest.raises(MemoryCorruptionError, match="underrun") as caught:
        runtime.reap_pending()
    assert (len(caught.value.violations), caught.value.left_out) == (1, 0)
    runtime.reap_pending()


# ---------------------------------------------------------------------------------------------- beside other failures
def test_a_reap_raises_the_corruption_before_other_failures():
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=guard)
    hold = Hold(runtime)
    ptr = hold.allocate(NBYTES)
    hold.free(ptr)
    functions.deallocate(hold.runtime, ptr, 0)          # which has no way to report that
    with pytest.raises(MemoryCorruptionError, match="double free") as caught:
        runtime.reap_pending()
    assert ["no block of the runtime is alive" in note for note in caught.value.__notes__] == [True]
    runtime.reap_pending()
    hold.close()


@pytest.mark.simulator
def test_other_failures_leave_the_corruption_to_be_raised(driver):
    """Those of an allocation that is out of memory, and those of the reap itself."""
    guard = GuardResourceAdaptor(LimitingResourceAdaptor(AsyncMemoryResource(), 4096))
    runtime = DeviceRuntime(resource=guard)
    kept = runtime.allocate(NBYTES)
    block = runtime.allocate(NBYTES)
    write(runtime, block.ptr - 1)
    block.free()
    with pytest.raises(MemoryError):
        runtime.allocate(3000)
    kept.free()
    for call in ("cuEventRecord", "cuEventSynchronize"):
        driver.fail(call)
    raised: list[type[BaseException]] = []
    for _ in range(3):
        try:
            runtime.reap_pending()
        except Exception as error:
            raised.append(type(error))
    assert MemoryCorruptionError in raised


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
