"""What other threads may do while an operation has released its locks.

Every driver call is such a moment.  The simulated driver runs a callback there, on the same thread and with no lock
held; that it can call back into the runtime at all shows that the runtime holds no lock and no GIL
across driver calls. Where a wait protects the outcome, a twin without it must be noticed.
"""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, WRITE

from xlogmem import BlockState, DeviceRuntime, DriverError, LaunchRecorder, _driver, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


@pytest.mark.parametrize("dropped", [None, 2])
@pytest.mark.promise(66)
def test_free_while_another_thread_queues_its_waits(four, driver, dropped):
    """The block is validated and pinned; before the wait is queued another thread frees it."""
    x = four()
    b = x.alloc(x.S)
    driver.on_call("cuStreamWaitEvent", lambda: b.free(x.S))
    if dropped:
        driver.drop("cuStreamWaitEvent", dropped)
    window = x.prepare(x.T, (b, READ))
    assert b.state is BlockState.RETIRED
    assert x.runtime.live_bytes == b.nbytes
    use = x.work(x.T, (b, READ))
    window.commit()
    assert b.state is BlockState.FREED
    assert bool(driver.races()) == bool(dropped)        # the free itself races without its wait
    driver.clear_races()
    assert x.ordered(use, x.S) == (not dropped)


@pytest.mark.promise(51, 54)
def test_reap_in_the_gap(four, driver):
    """Bytes must not be released before the free is queued."""
    x = four()
    b = x.alloc(x.S)
    x.use(x.T, (b, READ))
    seen = []

    def reap() -> None:
        x.runtime.reap_pending()
        seen.append(x.runtime.bytes_outstanding)

    driver.on_call("cuMemFreeAsync", reap)
    b.free()
    assert seen == [b.nbytes]
    assert (x.runtime.live_bytes, x.runtime.pending_bytes) == (0, b.nbytes)
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0


@pytest.mark.promise(51)
def test_the_marker_waits_for_the_free(four, driver):
    """A reap waits for a position that was taken after the free: the free is complete when its bytes are released."""
    x = four()
    driver.set_policy("min")
    b = x.alloc(x.S)
    b.free()
    assert driver.pending_operations() > 0
    x.runtime.reap_pending()
    assert driver.pending_operations() == 0
    assert x.runtime.bytes_outstanding == 0


def test_twin_without_the_host_wait(four, driver):
    x = four()
    driver.set_policy("min")
    x.alloc(x.S).free()
    driver.drop("cuEventSynchronize")
    x.runtime.reap_pending()
    assert driver.pending_operations() > 0


def test_a_reap_that_only_looks_releases_what_is_complete(four, driver):
    x = four()
    driver.set_policy("min")
    x.alloc(x.S).free()
    x.runtime.reap_pending(blocking=False)
    assert driver.pending_operations() > 0
    assert x.runtime.pending_bytes > 0
    x.runtime.reap_pending()
    assert x.runtime.pending_bytes == 0


@pytest.mark.parametrize("frees", [1, 64])
def test_a_fence_before_the_free_releases_nothing_of_it(four, driver, frees):
    """S has a fence that is complete and covers one free.  The frees after it are not complete, and stay pending, also
    where a stream has so many that the runtime merges their bytes."""
    x = four()
    driver.set_policy("min")
    first, other, *blocks = [x.alloc(x.S) for _ in range(2 + frees)]
    first.free()
    x.use(x.T, (other, READ))
    check(cuda.cuStreamSynchronize(x.T.handle))
    for b in blocks:
        b.free()
    x.runtime.reap_pending(blocking=False)
    assert driver.pending_operations() >= frees
    assert x.runtime.pending_bytes >= sum(b.nbytes for b in blocks)
    x.runtime.reap_pending()
    assert x.runtime.pending_bytes == 0


def test_address_comes_back_before_the_entry_is_gone(four, driver):
    """The driver has the bytes, the lock is not yet taken again, another thread gets the same address."""
    x = four()
    b = x.alloc(x.S)
    got = []
    driver.on_call("cuMemFreeAsync", lambda: got.append(x.alloc(x.S)), when="after")
    b.free()
    (c,) = got
    assert c.ptr == b.id.ptr
    assert c.generation != b.generation
    assert x.runtime.find_block(c.ptr) == c.id
    assert (b.state, c.state) == (BlockState.FREED, BlockState.LIVE)
    assert x.runtime.live_bytes == c.nbytes


def test_an_address_being_freed_is_not_found(four, driver):
    x = four()
    b = x.alloc(x.S)
    found = []
    driver.on_call("cuMemFreeAsync", lambda: found.append(x.runtime.find_block(b.id.ptr)))
    b.free()
    assert found == [None]


def test_two_windows_close_at_once(four, driver):
    """b is retired with two windows.  While the first close makes its driver call the second one closes; the free
    fails, and is tried again exactly once."""
    x = four(policy="precise")
    b = x.alloc(x.S)
    one, two = x.prepare(x.T, (b, READ)), x.prepare(x.U, (b, READ))
    b.free()
    driver.on_call("cuEventRecord", two.commit)
    driver.fail("cuMemFreeAsync")
    one.commit()
    assert driver.calls("cuMemFreeAsync") == 1
    assert b.state is BlockState.RETIRED
    assert x.runtime.live_bytes == b.nbytes
    x.runtime.reap_pending()
    assert driver.calls("cuMemFreeAsync") == 2
    assert b.state is BlockState.FREED
    assert x.runtime.bytes_outstanding == 0


def test_interleaved_windows_on_one_stream(four):
    """Two threads, one stream: uses are recorded in another order than they were launched; both consumers are right."""
    for policy in ("lazy", "precise", "adaptive"):
        x = four(policy=policy)
        b, c = x.alloc(x.S), x.alloc(x.S)
        first_window, second_window = x.prepare(x.T, (b, WRITE)), x.prepare(x.T, (c, WRITE))
        first, second = x.work(x.T, (b, WRITE)), x.work(x.T, (c, WRITE))
        second_window.commit()
        x.use(x.U, (c, READ))
        first_window.commit()
        x.use(x.V, (b, READ))
        assert x.ordered(second, x.U)
        assert x.ordered(first, x.V)


def test_use_inside_use_from_another_place(four, driver):
    """A second use is prepared and recorded while the first one is queueing its waits."""
    x = four()
    b, c = x.alloc(x.S), x.alloc(x.S)
    inner = []
    driver.on_call("cuStreamWaitEvent", lambda: inner.append(x.use(x.U, (b, READ), (c, WRITE))))
    outer = x.use(x.T, (b, READ))
    b.free()
    c.free()
    assert x.ordered(inner[0], x.S)
    assert x.ordered(outer, x.S)


# ---------------------------------------------------------------------------------------- failures of the driver
def test_failed_free_keeps_the_block(four, driver):
    x = four()
    b = x.alloc(x.S)
    driver.fail("cuMemFreeAsync", code=999)
    with pytest.raises(DriverError, match="cuMemFreeAsync gave CUDA_ERROR_UNKNOWN") as error:
        b.free()
    assert (error.value.call, error.value.code, error.value.name) == ("cuMemFreeAsync", 999, "CUDA_ERROR_UNKNOWN")
    assert b.state is BlockState.LIVE
    assert x.runtime.find_block(b.ptr) == b.id
    assert (x.runtime.live_bytes, x.runtime.pending_bytes) == (b.nbytes, 0)
    b.free()
    assert b.state is BlockState.FREED


@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent", "cuStreamIsCapturing"])
@pytest.mark.promise(29, 64, 100)
def test_failed_prepare_leaves_nothing_open(four, driver, call):
    x = four()
    b, c = x.alloc(x.S), x.alloc(x.V)
    driver.fail(call, code=999)
    window = x.recorder(x.T, (b, READ), (c, WRITE))
    with pytest.raises(DriverError, match=call):
        window.preflight()
    b.free()
    assert b.state is BlockState.FREED                  # no window was left on it
    window = x.recorder(x.T, (c, WRITE))
    window.preflight()
    launch = x.work(x.T, (c, WRITE))
    window.commit()
    c.free(x.V)
    assert x.ordered(launch, x.V)


def test_an_event_that_cannot_be_made_leaves_nothing_open(driver):
    runtime = DeviceRuntime()
    _driver.trim_events()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    b = runtime.allocate(64, S)
    driver.fail("cuEventCreate", code=999)
    with pytest.raises(DriverError, match="cuEventCreate"):
        LaunchRecorder(T).read(b).preflight()
    with use(T, read=b):
        pass
    assert driver.calls("cuEventCreate") == 2


def test_a_failed_prepare_may_be_repeated(four, driver):
    """What was queued stays known: only the wait that failed is queued again."""
    x = four()
    blocks = [x.alloc(stream) for stream in (x.S, x.U, x.V)]
    window = x.recorder(x.T, *[(b, READ) for b in blocks])
    driver.fail("cuStreamWaitEvent", 3)
    with pytest.raises(DriverError):
        window.preflight()
    before = x.waits()
    window.preflight()
    assert x.waits() - before <= 3
    window.commit()


def test_a_fence_that_fails_at_commit_is_recorded_when_needed(four, driver):
    x = four(policy="precise")
    b = x.alloc(x.S)
    window = x.prepare(x.T, (b, WRITE))
    launch = x.work(x.T, (b, WRITE))
    driver.fail("cuEventRecord")
    window.commit()
    x.use(x.U, (b, READ))
    assert x.ordered(launch, x.U)


def test_failed_hand_back_falls_back_to_the_host(four, driver):
    x = four(opaque="S")
    b = x.alloc(x.S)
    window = x.prepare(x.T, (b, WRITE))
    launch = x.work(x.T, (b, WRITE))
    driver.fail("cuStreamWaitEvent")
    window.commit()
    assert x.ordered(launch, x.S)


def test_hand_back_that_fails_twice_is_reported_and_records_all_the_same(four, driver):
    x = four(opaque="S")
    b = x.alloc(x.S)
    window = x.prepare(x.T, (b, WRITE))
    launch = x.work(x.T, (b, WRITE))
    driver.fail("cuStreamWaitEvent")
    driver.fail("cuEventSynchronize")
    with pytest.raises(DriverError, match="handing blocks back"):
        window.commit()
    x.use(x.U, (b, READ))
    assert x.ordered(launch, x.U)


def test_hand_back_of_writes_only_leaves_readers_overlapping(four):
    x = four(opaque="S")
    b = x.alloc(x.S)
    window = x.prepare(x.T, (b, READ), handback="writes")
    read = x.work(x.T)
    window.commit()
    assert not x.ordered(read, x.S)
    read = x.use(x.T, (b, READ))                        # the default hands back after reads too
    assert x.ordered(read, x.S)


@pytest.mark.promise(39)
def test_a_driver_that_refuses_the_allocation_leaves_nothing(four, driver):
    x = four()
    driver.fail("cuMemAllocFromPoolAsync", code=999)
    with pytest.raises(DriverError, match="allocating 512 bytes"):
        x.alloc(x.S)
    assert x.runtime.bytes_outstanding == 0


# ---------------------------------------------------------------------------------------- liveness
@pytest.mark.parametrize(("policy", "sealed", "waits_for_later_work"), [
    ("lazy", "", True), ("precise", "", True), ("lazy", "S", True), ("precise", "S", False)])
def test_only_precise_commits_on_a_sealed_stream_never_wait_for_later_work(four, policy, sealed, waits_for_later_work):
    """S writes b, then spins until T sets a flag; T reads b, then would set the flag.  If the reader waits for the
    spinning the program deadlocks: a limit of lazy fences that the documentation states."""
    x = four(policy=policy, sealed=sealed)
    b = x.alloc(x.S)
    write = x.use(x.S, (b, WRITE))
    spinning = x.work(x.S)
    x.use(x.T, (b, READ))
    assert x.ordered(write, x.T)
    assert x.ordered(spinning, x.T) == waits_for_later_work


def test_a_fence_claims_nothing_that_its_stream_waited_for_after_the_record(four, driver):
    """While S records, S is ordered after T by another thread: the event was recorded before that wait, so what waits
    for it is not ordered after T."""
    x = four(policy="lazy")
    a, b = x.alloc(x.S), x.alloc(x.T)
    for block, home in ((a, x.S), (b, x.T)):
        x.use(x.V, (block, WRITE))                      # they are not fresh any more
        written = x.use(home, (block, WRITE))
    driver.on_call("cuEventRecord", lambda: x.use(x.S, (b, READ)), when="after")
    x.use(x.U, (a, READ))                               # records on S
    x.use(x.U, (b, READ))
    assert x.ordered(written, x.U)
