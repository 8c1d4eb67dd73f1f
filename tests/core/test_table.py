"""The C table, called from C: ctypes makes each call without the GIL."""
from __future__ import annotations

import ctypes
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref

import pytest
from c_table import CAPTURING, ENVIRONMENT, Hold, Refused, Table, functions
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from places import ROOT

from xlogmem import (
    AsyncMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    PoolMemoryResource,
    use,
)
from xlogmem.sim.kernels import check


def test_the_table_says_its_version_and_size():
    assert functions.version == 1
    assert functions.size == ctypes.sizeof(Table)


def test_only_a_runtime_can_be_opened():
    assert functions.open("no runtime") is None


def test_what_is_allocated_is_a_tracked_block():
    runtime = DeviceRuntime()
    hold = Hold(runtime)
    ptr = hold.allocate(1000)
    found = runtime.find_block(ptr + 999)
    assert found.ptr == ptr
    assert found.alloc_stream == runtime.register_stream(0)
    assert (runtime.live_bytes, runtime.counters()["allocations"]) == (1000, 1)
    hold.free(ptr)
    assert runtime.find_block(ptr) is None
    assert (runtime.live_bytes, runtime.counters()["frees"]) == (0, 1)
    runtime.reap_pending()
    hold.close()


def test_a_hold_keeps_the_runtime_until_it_is_closed():
    runtime = DeviceRuntime()
    alive = weakref.ref(runtime)
    hold = Hold(runtime)
    del runtime
    gc.collect()
    hold.free(hold.allocate(8))
    assert alive() is not None
    hold.close()                                        # without the GIL: a deferred call of the interpreter
    gc.collect()
    assert alive() is None


@pytest.mark.simulator
@pytest.mark.parametrize("resource", [AsyncMemoryResource, DirectMemoryResource, PoolMemoryResource])
def test_what_was_not_freed_is_freed_when_the_runtime_ends(driver, resource):
    """Nor could be, because the stream of the free was not to be identified.  Work there goes on meanwhile."""
    before = driver.live_bytes()
    runtime = DeviceRuntime(resource=resource())
    alive = weakref.ref(runtime)
    hold, stream = Hold(runtime), ForeignStream()
    failed, forgotten = (hold.allocate(4096, stream.handle) for _ in range(2))
    driver.set_policy("min")
    for ptr in (failed, forgotten):
        check(cuda.cuMemsetD8Async(ptr, 1, 4096, stream.handle))
    driver.fail("cuStreamGetId", 1, 999)
    hold.free(failed, stream.handle)
    assert runtime.live_bytes == 8192
    hold.close()
    del runtime
    gc.collect()
    assert alive() is None
    DeviceRuntime(resource=AsyncMemoryResource())       # may wait for the context, which a finalizer may not
    assert driver.live_bytes() == before


# ---------------------------------------------------------------------------------------- frees
@pytest.mark.simulator
def test_a_free_comes_after_every_use_on_the_stream_that_it_is_given(four_and_hold):
    b, hold = four_and_hold
    ptr = hold.allocate(512, b.S.handle)
    with use(b.U, write=ptr):
        b.kernels.fill(b.U.handle, ptr, 1, 1)
        written = b.work(b.U)
    hold.free(ptr, b.T.handle)
    assert b.ordered(written, b.T)
    assert not b.ordered(written, b.S)


@pytest.mark.simulator
def test_a_free_inside_a_use_is_carried_out_at_its_end(four_and_hold):
    b, hold = four_and_hold
    ptr = hold.allocate(512, b.S.handle)
    with use(b.T, write=ptr):
        hold.free(ptr, b.S.handle)
        b.kernels.fill(b.T.handle, ptr, 1, 1)
        assert b.runtime.live_bytes == 512
    assert b.runtime.live_bytes == 0


@pytest.mark.simulator
def test_a_free_that_fails_is_logged_raised_by_the_next_reap_and_tried_again(four_and_hold, driver, caplog):
    b, hold = four_and_hold
    ptr = hold.allocate(512, b.S.handle)
    driver.fail("cuMemFreeAsync", 1, 999)
    with caplog.at_level(logging.ERROR, logger="xlogmem"):
        hold.free(ptr, b.S.handle)
        for _ in range(100):                            # the deferred call runs between two of these
            pass
    assert "cuMemFreeAsync gave CUDA_ERROR_UNKNOWN" in caplog.text
    assert b.runtime.live_bytes == 512
    with pytest.raises(DriverError, match="CUDA_ERROR_UNKNOWN"):
        b.runtime.reap_pending()
    assert b.runtime.live_bytes == 0
    b.runtime.reap_pending()                            # reported once


@pytest.mark.simulator
def test_freeing_what_is_not_a_block_is_reported_and_changes_nothing(four_and_hold, caplog):
    b, hold = four_and_hold
    ptr = hold.allocate(512)
    with caplog.at_level(logging.ERROR, logger="xlogmem"):
        hold.free(ptr + 8)
        hold.free(12345)
    assert (b.runtime.live_bytes, b.runtime.counters()["frees"]) == (512, 0)
    with pytest.raises(DriverError, match="no block"):
        b.runtime.reap_pending()
    hold.free(ptr)
    hold.free(None)
    b.runtime.reap_pending()


@pytest.mark.simulator
def test_a_free_on_a_capturing_stream_waits_for_the_end_of_the_capture(four_and_hold):
    b, hold = four_and_hold
    ptr = hold.allocate(512, b.S.handle)
    check(cuda.cuStreamBeginCapture(b.S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    hold.free(ptr, b.S.handle)
    with pytest.raises(Refused, match="capturing") as refused:
        hold.allocate(8, b.S.handle)
    assert refused.value.kind == CAPTURING
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(b.S.handle))))
    assert b.runtime.live_bytes == 512
    b.runtime.reap_pending()
    assert b.runtime.live_bytes == 0


# ---------------------------------------------------------------------------------------- sizes, synchronous calls
def test_zero_bytes_are_null_and_not_a_block():
    runtime = DeviceRuntime()
    hold = Hold(runtime)
    assert hold.allocate(0) is None
    assert hold.allocate_sync(0) is None
    assert runtime.counters()["allocations"] == 0
    hold.close()


@pytest.mark.simulator
def test_a_synchronous_allocation_is_ready_on_every_stream(four_and_hold, driver):
    b, hold = four_and_hold
    ptr = hold.allocate_sync(512)
    b.kernels.fill(b.T.handle, ptr, 1, 1)               # a race with the allocation, had the host not waited
    check(cuda.cuStreamSynchronize(b.T.handle))
    functions.deallocate_sync(hold.runtime, ptr)
    driver.fail("cuEventSynchronize", 1, 999)
    with pytest.raises(Refused, match="cuEventSynchronize"):
        hold.allocate_sync(512)
    assert b.runtime.live_bytes == 0


@pytest.mark.simulator
def test_a_synchronous_allocation_that_is_not_waited_for_is_a_race(four_and_hold, driver):
    b, hold = four_and_hold
    driver.drop("cuEventSynchronize")
    ptr = hold.allocate_sync(512)
    b.kernels.fill(b.T.handle, ptr, 1, 1)
    assert any("alloc/use" in race for race in driver.races())
    driver.clear_races()
    check(cuda.cuCtxSynchronize())
    hold.free(ptr)


# ---------------------------------------------------------------------------------------- threads, end
@pytest.mark.simulator
def test_many_threads(four_and_hold, foreign):
    b, hold = four_and_hold
    failures = []

    def run(handle: int) -> None:
        try:
            for turn in range(200):
                mine = [hold.allocate(256 + turn, handle) for _ in range(4)]
                for ptr in mine:
                    hold.free(ptr, handle)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(handle,)) for handle in (0, 2, foreign(), foreign(), b.S.handle)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    counters = b.runtime.counters()
    assert counters["allocations"] == counters["frees"] == 4000
    assert b.runtime.live_bytes == 0


def test_the_end_of_the_process_leaves_the_driver_alone():
    program = """
import builtins, sys, xlogmem
sys.path.insert(0, "tests/helpers")
from c_table import Hold

hold = Hold(xlogmem.DeviceRuntime())
ptr = hold.allocate(100)

class Late:
    def __del__(self):
        hold.free(ptr)
        hold.close()

builtins.late = Late()
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=100,
                         cwd=ROOT, env=os.environ | ENVIRONMENT)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")      # of forking beside threads, in Python 3.12 and later
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")   # JAX, where another test has imported it
def test_a_forked_child_is_refused_before_the_lock():
    hold = Hold(DeviceRuntime())
    ptr = hold.allocate(8)
    child = os.fork()
    if child == 0:
        try:
            hold.free(ptr)                              # does nothing
            hold.allocate(8)
        except Refused as refused:
            os._exit(0 if "forked" in str(refused) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    hold.free(ptr)
    hold.close()
