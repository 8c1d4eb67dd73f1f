"""Reaping: pending bytes are released when their frees are complete."""
from __future__ import annotations

from itertools import combinations

import pytest
from cuda.bindings import driver as cuda
from four_streams import WRITE, FourStreams, nothing_happens

from xlogmem import (
    DriverError,
)
from xlogmem.sim.kernels import check

UNKNOWN = 999                                           # a CUresult that does not lose the device


def pending_on(x: FourStreams) -> dict[int, int]:
    """Pending bytes on three streams: their id and how many."""
    blocks = [x.runtime.allocate(100 << n, stream) for n, stream in enumerate((x.S, x.T, x.U))]
    for block in blocks:
        block.free()
    return {block.stream.id: block.nbytes for block in blocks}


@pytest.mark.simulator
@pytest.mark.promise(56, 57, 58, 60, 61)
@pytest.mark.parametrize("call", ["cuEventSynchronize", "cuEventRecord"])
@pytest.mark.parametrize("failing", [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)])
def test_a_reap_that_fails_on_some_streams_releases_the_others(four, driver, failing, call):
    """Every stream is visited; the failed ones alone stay pending, the error says so, and the next reap drains."""
    x = four()
    driver.set_policy("min")
    kept = x.alloc(x.V)
    sizes = pending_on(x)
    for nth in failing:
        driver.fail(call, nth, code=UNKNOWN)
    with pytest.raises(DriverError, match=f"{call} gave CUDA_ERROR_UNKNOWN.*while reaping") as error:
        x.runtime.reap_pending()
    assert error.value.call == call
    left = x.runtime.pending_bytes
    assert left in {sum(some) for some in combinations(sizes.values(), len(failing))}
    assert x.runtime.live_bytes == kept.nbytes
    late = x.runtime.allocate(7, x.S)
    late.free()                                         # what arrives meanwhile is added
    assert x.runtime.pending_bytes == left + 7
    x.runtime.reap_pending()
    assert (x.runtime.pending_bytes, x.runtime.bytes_outstanding) == (0, kept.nbytes)


@pytest.mark.simulator
@pytest.mark.promise(56, 57)
def test_a_reap_that_only_looks_may_fail_too(four, driver):
    """Without waiting: a stream that cannot be queried keeps its bytes, the others are released."""
    x = four()
    sizes = pending_on(x)
    driver.fail("cuEventQuery", 2, code=UNKNOWN)
    with pytest.raises(DriverError, match="cuEventQuery"):
        x.runtime.reap_pending(blocking=False)
    driver.fail("cuEventQuery", code=UNKNOWN)           # figures are given all the same
    assert x.runtime.pending_bytes in sizes.values()
    x.runtime.reap_pending(blocking=False)
    assert x.runtime.pending_bytes == 0


@pytest.mark.simulator
@pytest.mark.promise(55, 58)
def test_a_reap_waits_once_for_each_stream_with_frees(four, driver):
    """Streams without frees are not waited for; many frees of one stream are one wait."""
    x = four()
    for _ in range(10):
        pending_on(x)
    x.use(x.V, (x.alloc(x.V), WRITE))
    before = driver.calls("cuEventSynchronize")
    x.runtime.reap_pending()
    assert driver.calls("cuEventSynchronize") - before == 3 + 1     # and the block of V, dropped above
    with nothing_happens(driver, x.runtime):
        x.runtime.reap_pending()


@pytest.mark.simulator
@pytest.mark.promise(59)
def test_bytes_of_a_stream_that_is_gone_stay_until_they_are_seen(four, driver):
    """A free on a stream that was unregistered is pending until the host has seen the stream's last event."""
    x = four()
    driver.set_policy("min")
    raw = check(cuda.cuStreamCreate(1))
    S = x.runtime.register_stream(raw)
    x.alloc(S, 100).free()
    x.runtime.unregister_stream(S)
    driver.fail("cuEventQuery", 1, code=UNKNOWN)
    assert x.runtime.pending_bytes == 100
    for nth in (1, 2):                                  # for the bytes, and for the stream
        driver.fail("cuEventSynchronize", nth, code=UNKNOWN)
    with pytest.raises(DriverError):
        x.runtime.reap_pending()
    driver.fail("cuEventQuery", 1, code=UNKNOWN)
    assert x.runtime.pending_bytes == 100
    x.runtime.reap_pending()
    assert x.runtime.pending_bytes == 0
    check(cuda.cuStreamDestroy(raw))
