"""Driver calls of an import, counted by the simulated driver, and one snapshot of the device for all of it."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from capsules import Producer, name_of
from cuda.bindings import driver as cuda
from stale import reason

from xlogmem import DeviceState, from_arrow, from_cuda_array, from_dlpack
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


def calls_without_a_context(driver, context, work: Callable[[], object]) -> Counter[str]:
    """The driver calls of `work` in a thread without a current context, which has none afterwards either."""
    check(cuda.cuCtxSetCurrent(cuda.CUcontext(0)))
    try:
        before = Counter(driver.all_calls())
        work()
        calls = Counter(driver.all_calls()) - before
        assert int(check(cuda.cuCtxGetCurrent())) == 0
        return calls
    finally:
        check(cuda.cuCtxSetCurrent(context))


@pytest.mark.parametrize(("elsewhere", "most"), [(False, 12), (True, 17)])
def test_the_driver_calls_of_an_import_by_dlpack(state: DeviceState, driver, _context, elsewhere, most):
    """Of an exporter of ours, to the stream where the memory is, and to another one that is ordered after it."""
    buffer = state.full(64, 1, "uint8")
    stream = state.runtime.acquire_stream() if elsewhere else None
    calls = calls_without_a_context(driver, _context, lambda: from_dlpack(buffer, stream=stream, state=state))
    assert calls.total() <= most, calls
    assert calls["cuPointerGetAttributes"] == 1
    assert calls["cuStreamWaitEvent"] == elsewhere
    assert calls["cuCtxPushCurrent"] == calls["cuCtxPopCurrent"]


@pytest.mark.parametrize("what", [from_cuda_array, from_arrow, from_dlpack])
def test_the_context_of_the_caller_is_restored_by_every_import(state: DeviceState, driver, _context, what):
    """Of memory that is imported, and of memory that is refused."""
    buffer = state.full(64, 1, "uint8")

    def refused() -> None:
        driver.fail("cuPointerGetAttributes", code=1)
        with pytest.raises(Exception, match="cuPointerGetAttributes"):
            what(buffer, state=state)

    for work in (lambda: what(buffer, state=state), refused):
        calls = calls_without_a_context(driver, _context, work)
        assert calls["cuCtxPushCurrent"] == calls["cuCtxPopCurrent"]
        assert calls["cuCtxPushCurrent"] > 0 or work is refused      # no query of memory needs one


@pytest.mark.promise(189, 218)
@pytest.mark.parametrize("recovered", [False, True])
def test_a_loss_while_the_producer_exports_makes_the_import_stale(state: DeviceState, memory, recovered):
    """The import goes on with the runtime that it began with: nothing of the old context gets into the new one."""

    class Library(Producer):
        def __dlpack__(self, **options):
            state.mark_lost()
            if recovered:
                state.recover()
            self.made = super().__dlpack__(**options)
            return self.made

    producer = Library(memory)
    assert reason(lambda: from_dlpack(producer, state=state)) == ("context rebuilt" if recovered else "context lost")
    assert name_of(producer.made) == producer.name      # not consumed
    assert producer.deleted == 0
    if recovered:
        assert from_dlpack(Producer(memory), state=state).epoch == 2
        state.runtime.reap_pending()
