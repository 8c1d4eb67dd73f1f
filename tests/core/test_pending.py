"""How soon freed bytes stop counting as pending, and what is waited for with them."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from four_streams import WRITE, FourStreams

from xlogmem import AsyncMemoryResource
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
MIB = 1 << 20


def free_much(x: FourStreams, how: str) -> int:
    """As much on S as is followed by a fence; returns the bytes."""
    nbytes, count = (128 * MIB, 1) if how == "bytes" else (4096, 1024)
    for _ in range(count):
        x.runtime.allocate(nbytes, x.S).free()
    return nbytes * count


def long_kernel(x: FourStreams) -> tuple[int, object]:
    """Work on S that is done only when it is waited for; returns where it writes."""
    block = x.alloc(x.V)
    with x.recorder(x.S, (block, WRITE)):
        x.kernels.fill(x.S.handle, block.ptr, 7, 1)
    return block.ptr, block


@pytest.mark.parametrize("how", ["frees", "bytes"])
@pytest.mark.parametrize("blocking", [True, False])
def test_a_reap_does_not_wait_for_what_was_queued_after_many_frees(four, driver, how, blocking):
    x = four()
    driver.set_policy("min")
    free_much(x, how)
    assert x.records() == 1
    check(cuda.cuStreamSynchronize(x.S.handle))
    at, kept = long_kernel(x)
    x.runtime.reap_pending(blocking=blocking)
    assert x.runtime.pending_bytes == 0
    assert driver.peek(at, 1) != b"\7"
    del kept


@pytest.mark.parametrize("left", [0, 1])
def test_an_allocation_without_memory_waits_for_many_frees_and_not_for_what_came_after(four, driver, left):
    """Though there are frees behind it that have no fence yet."""
    x = four()
    driver.set_policy("min")
    free_much(x, "bytes")
    at, kept = long_kernel(x)
    for _ in range(left):
        x.runtime.allocate(64, x.S).free()
    driver.fail("cuMemAllocFromPoolAsync", code=2)
    x.alloc(x.T).free()
    assert driver.peek(at, 1) != b"\7"
    del kept


def test_few_frees_cost_no_record(four):
    x = four()
    for _ in range(1023):
        x.runtime.allocate(64, x.S).free()
    assert x.records() == 0
    x.runtime.allocate(64, x.S).free()
    assert x.records() == 1


@pytest.mark.parametrize("figure", ["pending_bytes", "bytes_outstanding", "memory_summary"])
def test_figures_are_of_what_the_device_still_holds(four, driver, figure):
    """Many frees, and no reap; the queries wait for nothing."""
    x = four()
    for _ in range(20):
        free_much(x, "frees")
    check(cuda.cuStreamSynchronize(x.S.handle))
    before = x.records(), driver.calls("cuEventSynchronize"), driver.calls("cuCtxSynchronize")
    if figure == "memory_summary":
        assert " 0 B, freed" in x.runtime.memory_summary()
    else:
        assert getattr(x.runtime, figure) == 0
    assert (x.records(), driver.calls("cuEventSynchronize"), driver.calls("cuCtxSynchronize")) == before


def test_figures_count_what_is_not_complete(four, driver):
    """However often markers are coalesced: bytes are released by a fence that is behind their free."""
    x = four(policy="precise")
    blocks = [x.runtime.allocate(MIB, x.S) for _ in range(256)]
    driver.set_policy("min")                            # each query runs a little of what is queued
    kept = long_kernel(x)
    for number, block in enumerate(blocks, 1):
        block.free()
        if number % 4 == 0:
            x.runtime.reap_pending(blocking=False)
            held = sum(driver.peek(freed.id.ptr, 1) != b"\xdd" for freed in blocks[:number])
            assert x.runtime.pending_bytes >= held * MIB
    x.runtime.reap_pending()
    assert x.runtime.pending_bytes == 0
    del kept


def test_figures_of_a_stream_that_captures(four, driver):
    """Nothing is queried that could end the capture."""
    x = four()
    free_much(x, "frees")
    mode = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    check(cuda.cuStreamBeginCapture(x.S.handle, mode))
    x.runtime.memory_summary()
    assert x.runtime.pending_bytes == 0
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))


def test_a_fence_that_cannot_be_recorded_behind_frees_is_recorded_later(four, driver):
    x = four(resource=AsyncMemoryResource())
    driver.fail("cuEventRecord", code=999)
    freed = free_much(x, "frees")
    assert x.runtime.bytes_outstanding == freed
    x.runtime.reap_pending(blocking=False)
    assert x.runtime.bytes_outstanding == 0
