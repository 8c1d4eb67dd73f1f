"""`record_block_use`, `prepare_block_use` and `finish_block_use`: uses of one block without a recorder."""
from __future__ import annotations

import gc
import threading
import weakref

import pytest
from cuda.bindings import driver as cuda
from four_streams import READ, READ_WRITE, WRITE, nothing_happens

from xlogmem import (
    Access,
    BlockState,
    DeviceRuntime,
    LaunchRecorder,
    StreamMisuseError,
    UseAfterFreeError,
)
from xlogmem.sim.kernels import check


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [None, 1, 3])
@pytest.mark.promise(24, 63)
def test_record_block_use_protects_the_free_and_later_readers(four, driver, dropped):
    """W5: work of unknown access counts as a write."""
    x = four()
    b = x.alloc(x.S)
    own_event = check(cuda.cuEventCreate(2))
    check(cuda.cuEventRecord(own_event, x.S.handle))
    check(cuda.cuStreamWaitEvent(x.T.handle, own_event, 0))
    if dropped:
        driver.drop("cuStreamWaitEvent", dropped)
    done = x.work(x.T, (b, WRITE))
    x.runtime.record_block_use(b, x.T)
    x.use(x.U, (b, READ))
    b.free(x.S)
    races = driver.races()
    driver.clear_races()
    assert bool(races) == bool(dropped)
    if not dropped:
        assert x.ordered(done, x.S)
    check(cuda.cuEventDestroy(own_event))


@pytest.mark.simulator
@pytest.mark.promise(26)
def test_record_block_use_on_a_retired_block(four, driver):
    """The work is in flight already: refusing to file it would leave it unprotected."""
    x = four()
    b = x.alloc(x.S)
    window = x.prepare(x.T, (b, READ))
    own = x.work(x.U)
    identity = b.id
    b.free()
    with pytest.raises(UseAfterFreeError):
        x.runtime.record_block_use(identity, x.U)
    window.commit()
    assert b.state is BlockState.FREED
    assert x.ordered(own, x.S)
    with pytest.raises(UseAfterFreeError):
        x.runtime.record_block_use(identity, x.U)


@pytest.mark.simulator
@pytest.mark.promise(28, 66)
def test_prepare_and_finish_of_one_block(four, driver):
    x = four()
    b = x.alloc(x.S)
    write = x.use(x.S, (b, WRITE))
    x.runtime.prepare_block_use(b, x.T, Access.READ)
    assert x.ordered(write, x.T)
    read = x.work(x.T, (b, READ))
    identity = b.id
    b.free(x.S)
    assert b.state is BlockState.RETIRED
    x.runtime.finish_block_use(identity, x.T, Access.READ)
    assert b.state is BlockState.FREED
    assert x.ordered(read, x.S)
    with pytest.raises(UseAfterFreeError):
        x.runtime.prepare_block_use(identity, x.T, Access.WRITE)


@pytest.mark.simulator
@pytest.mark.promise(30, 67)
def test_w4_finish_without_prepare_removes_nothing(four, driver):
    x = four()
    b = x.alloc(x.S)
    read = x.use(x.U, (b, READ))
    x.runtime.finish_block_use(b, x.S, Access.WRITE)
    b.free(x.S)
    assert x.ordered(read, x.S)


def test_conflicting_windows_are_counted_or_refused():
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)

    def second(stream, access, on_conflict="raise"):
        recorder = LaunchRecorder(stream, on_conflict=on_conflict)
        getattr(recorder, access)(block)
        recorder.preflight()
        recorder.cancel()

    for first, access, conflict in ((READ, READ, False), (READ, WRITE, True), (WRITE, READ, True),
                                    (WRITE, READ_WRITE, True)):
        with LaunchRecorder(S) as recorder:
            recorder.cancel()
        recorder = LaunchRecorder(S)
        getattr(recorder, first)(block)
        recorder.preflight()
        second(S, access)                               # the same stream orders them
        before = runtime.counters()["conflicts"]
        if conflict:
            with pytest.raises(StreamMisuseError, match=r"=: block .* in another use that is still open"):
                second(T, access)
        else:
            second(T, access)
        second(T, access, "count")
        assert runtime.counters()["conflicts"] - before == 2 * conflict
        recorder.commit()
        second(T, access)
    with pytest.raises(ValueError, match="on_conflict"):
        LaunchRecorder(S, on_conflict="ignore")


@pytest.mark.simulator
@pytest.mark.promise(24, 26, 63)
@pytest.mark.parametrize("recorded", [True, False])
def test_record_block_use_protects_later_users_and_the_free(four, driver, recorded):
    """Work of unknown access is recorded as written: a reader elsewhere and the free wait for it."""
    x = four()
    block = x.alloc(x.S)
    x.use(x.T, (block, READ))                           # T knows S
    done = x.work(x.T, (block, WRITE))
    if recorded:
        with pytest.raises(StreamMisuseError, match="is not tracked"):
            x.runtime.record_block_use(4711, x.T)
        with pytest.raises(StreamMisuseError, match="another runtime"):
            x.runtime.record_block_use(block, DeviceRuntime().default_stream)
        calls = x.records(), x.waits()
        x.runtime.record_block_use(block, x.T)
        assert (x.records(), x.waits()) == calls        # no event, none that could fail
        assert ("written", x.T.id) in block.frontier
    x.use(x.U, (block, READ))
    assert bool(driver.races()) == (not recorded)
    driver.clear_races()
    if recorded:
        assert x.ordered(done, x.U)
    identity = block.id
    block.free()
    driver.clear_races()
    with pytest.raises(UseAfterFreeError):
        x.runtime.record_block_use(identity, x.T)


@pytest.mark.simulator
@pytest.mark.promise(64, 100)
@pytest.mark.parametrize("call", ["prepare_block_use", "finish_block_use"])
def test_single_uses_check_before_they_act(driver, call):
    """Another device's block, then another runtime's stream, then a stale identity: refused with no effect."""
    runtime, elsewhere = DeviceRuntime(), DeviceRuntime(1)
    stream, block = runtime.acquire_stream(), runtime.allocate(64)
    beside = DeviceRuntime()
    theirs, gone = elsewhere.allocate(64), runtime.allocate(64)
    identity = gone.id
    gone.free()
    before = block.frontier
    single = getattr(runtime, call)
    with nothing_happens(driver, runtime, elsewhere):
        for what, where, error in ((theirs, stream, StreamMisuseError), (theirs.id, stream, StreamMisuseError),
                                   (block, beside.default_stream, StreamMisuseError),
                                   (identity, beside.default_stream, StreamMisuseError),
                                   (identity, stream, UseAfterFreeError), (gone, stream, UseAfterFreeError),
                                   ("a block", stream, TypeError), (4711, stream, StreamMisuseError)):
            with pytest.raises(error):
                single(what, where, Access.WRITE)
    assert block.frontier == before
    block.free()
    assert block.state is BlockState.FREED              # no window was left on it


def test_windows_of_two_threads_on_one_block_and_stream_are_both_closed():
    """A thread that finishes while another one notes its window waits for that note."""
    runtime = DeviceRuntime()
    block, stream = runtime.allocate(64), runtime.acquire_stream()
    finish = threading.Thread(target=runtime.finish_block_use, args=(block, stream, Access.WRITE))

    class Interrupted(dict):
        def setdefault(self, key, default):
            found = super().setdefault(key, default)
            finish.start()
            finish.join(.2)                             # without a lock it takes the first window, and the list with it
            return found

    runtime.prepare_block_use(block, stream, Access.WRITE)
    runtime._prepared = Interrupted(runtime._prepared)
    runtime.prepare_block_use(block, stream, Access.WRITE)
    finish.join()
    runtime._prepared = dict(runtime._prepared)
    block.free()
    assert block.state is BlockState.RETIRED            # one window is open
    runtime.finish_block_use(block, stream, Access.WRITE)
    assert block.state is BlockState.FREED
    assert (runtime.counters()["uses"], runtime.counters()["abandoned"], runtime._prepared) == (2, 0, {})


@pytest.mark.simulator
@pytest.mark.parametrize("collected", [False, True])
def test_a_use_that_is_never_finished_does_not_keep_its_runtime(driver, kernels, collected):
    """It is filed when the runtime ends, as if launched: the block is freed after it."""
    before = driver.live_bytes()
    runtime = DeviceRuntime()
    alive = weakref.ref(runtime)
    stream, block = runtime.acquire_stream(), runtime.allocate(64)
    if collected:                                       # by the collector, with a reference of its own
        runtime.itself = runtime
    driver.set_policy("min")
    runtime.prepare_block_use(block, stream, Access.WRITE)
    kernels.fill(stream.handle, block.ptr, 1, 16)
    with pytest.warns(ResourceWarning, match="dropped without being left"):
        del runtime, stream, block
        gc.collect()
    assert alive() is None
    assert driver.live_bytes() == before


def test_a_use_outlives_what_the_program_holds_of_its_runtime():
    """A block keeps the runtime, and the window its block."""
    runtime = DeviceRuntime()
    stream, block = runtime.acquire_stream(), runtime.allocate(64)
    runtime.prepare_block_use(block, stream, Access.WRITE)
    del runtime
    gc.collect()
    block.core.finish_block_use(block, stream, Access.WRITE)
    assert block.core.counters()["uses"] == 1
    assert block.frontier.keys() == {("allocated", 0), ("written", stream.id)}
