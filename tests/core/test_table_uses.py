"""`record_use` of the C table: work on another stream that is recorded by the address alone."""
from __future__ import annotations

import pytest
from c_table import NOT_FOUND, Hold, Refused
from cuda.bindings import driver as cuda
from four_streams import at

from xlogmem import PoolMemoryResource, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
RESOURCES = pytest.mark.parametrize("resource", [None, PoolMemoryResource])


@pytest.fixture
def named(four, request, foreign):
    """Memory that was allocated on a stream of another library, and a second stream of its own."""
    def make(resource=None):
        b = four(resource=resource and resource())
        hold, home, side = Hold(b.runtime), foreign(), foreign()
        request.addfinalizer(hold.close)
        return b, hold, hold.allocate(512, home), home, side
    return make


@RESOURCES
@pytest.mark.parametrize("recorded", [True, False])
def test_memory_is_given_out_again_after_all_that_is_queued_there_by_the_free(named, driver, resource, recorded):
    b, hold, ptr, home, side = named(resource)
    b.kernels.fill(home, ptr, 1, 1)
    check(cuda.cuStreamSynchronize(home))
    if recorded:
        hold.record_use(ptr + 511, side)
    b.kernels.count_unequal(side, b.next_word(), ptr, 1, 1)     # after the call
    hold.free(ptr, home)
    again = hold.allocate(512, home)
    b.kernels.fill(home, again, 2, 1)
    check(cuda.cuCtxSynchronize())
    raced = bool(driver.races())
    driver.clear_races()
    hold.free(again, home)
    assert raced != recorded


def test_nothing_waits_before_the_free(named, driver):
    b, hold, ptr, _, side = named()
    before = driver.calls("cuStreamWaitEvent")
    for _ in range(3):
        hold.record_use(ptr, side)
    assert driver.calls("cuStreamWaitEvent") == before
    for call in ("cuEventQuery", "cuEventSynchronize", "cuStreamSynchronize", "cuCtxSynchronize"):
        assert driver.calls(call) == 0
    hold.free(ptr, side)
    b.runtime.reap_pending()


@pytest.mark.parametrize("recorded", [True, False])
def test_a_use_begins_after_it(named, driver, recorded):
    b, hold, ptr, home, side = named()
    if recorded:
        hold.record_use(ptr, side)
    late = b.work(at(side))
    with use(b.T, read=ptr):
        pass
    assert b.ordered(late, b.T) == recorded
    driver.clear_races()
    hold.free(ptr, home)


def test_the_stream_becomes_opaque(named):
    b, hold, ptr, home, side = named()
    hold.record_use(ptr, side)
    stream = b.runtime.register_stream(side)
    assert stream.discipline == "opaque"
    with use(b.T, read_write=ptr):
        read = b.work(b.T)
    assert not b.ordered(read, stream)                  # not its home: it is not ordered after uses elsewhere
    b.driver.clear_races()
    hold.free(ptr, home)


@pytest.mark.parametrize("recorded", [True, False])
def test_an_ordinary_home_gets_one(named, driver, recorded):
    b, hold, ptr, home, _ = named()
    stream = b.runtime.register_stream(home, discipline="ordinary")
    with use(b.T, read=ptr):
        pass
    late = b.work(stream)
    if recorded:
        hold.record_use(ptr, home)
    with use(b.U, read=ptr):
        pass
    assert b.ordered(late, b.U) == recorded
    driver.clear_races()
    hold.free(ptr, home)


def test_memory_of_others_and_freed_memory_are_not_found(named):
    b, hold, ptr, home, side = named()
    elsewhere = int(check(cuda.cuMemAlloc(64)))
    hold.free(ptr, home)
    for wrong in (elsewhere, ptr, 0, 2**64 - 1):
        with pytest.raises(Refused, match=f"no block of the runtime is alive at {hex(wrong) if wrong else '.nil.'}"
                           ) as caught:
            hold.record_use(wrong, side)
        assert caught.value.kind == NOT_FOUND
    check(cuda.cuMemFree(elsewhere))
    b.runtime.reap_pending()


def test_a_stream_that_captures_is_refused(named):
    _, hold, ptr, home, side = named()
    hold.record_use(ptr, side)
    check(cuda.cuStreamBeginCapture(side, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    with pytest.raises(Refused, match="captur"):
        hold.record_use(ptr, side)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(side))))
    hold.free(ptr, home)


def test_a_free_while_a_recorded_stream_captures_is_put_off_and_not_a_failure(named, caplog):
    b, hold, ptr, home, side = named()
    hold.record_use(ptr, side)
    check(cuda.cuStreamBeginCapture(side, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    hold.free(ptr, home)
    assert (b.runtime.live_bytes, b.runtime.counters()["deferred_frees"]) == (512, 1)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(side))))
    b.runtime.reap_pending()
    assert (b.runtime.live_bytes, b.runtime.counters()["failed_frees"], caplog.text) == (0, 0, "")


def test_a_failure_of_the_driver_files_nothing_and_leaves_no_stream_busy(named, driver):
    b, hold, ptr, home, side = named()
    driver.fail("cuStreamGetId", 1, 999)
    with pytest.raises(Refused, match="cuStreamGetId"):
        hold.record_use(ptr, side)
    hold.record_use(ptr, side)
    hold.free(ptr, home)
    b.runtime.unregister_stream(side, successor=b.T)    # refused while it is busy
