"""The launch recorder: preflight, commit, cancel, and recorders that are dropped."""
from __future__ import annotations

import gc
import subprocess
import sys
import warnings
import weakref

import pytest
from arrays import Column, External
from children import variables
from four_streams import READ, WRITE, nothing_happens

from xlogmem import (
    BlockState,
    DeviceRuntime,
    DriverError,
    LaunchRecorder,
    StreamMisuseError,
    UseAfterFreeError,
    register_resolver,
    use,
)

UNTRACKED = ["raise", "ignore", "adopt"]


@pytest.mark.promise(88, 89, 90)
@pytest.mark.parametrize("untracked", UNTRACKED)
def test_a_recorder_says_what_it_is_and_covers_one_launch(untracked):
    """Stream, choice and count can be read; the methods chain; a second launch needs a second recorder."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    a, b, c = (runtime.allocate(64) for _ in range(3))
    recorder = LaunchRecorder(stream, untracked=untracked)
    assert (recorder.stream, recorder.untracked, recorder.recorded_count) == (stream, untracked, 0)
    assert recorder.read(a).write(b).read_write(c) is recorder
    assert recorder.recorded_count == 3
    assert LaunchRecorder(stream).untracked == "raise"
    with recorder:
        pass
    assert [set(block.frontier) - {("allocated", 0)} for block in (a, b, c)] == [
        {("has-read", stream.id)}, {("written", stream.id)}, {("written", stream.id)}]
    for again in (recorder.preflight, recorder.commit, lambda: recorder.read(a)):
        with pytest.raises(StreamMisuseError):
            again()


@pytest.mark.promise(91, 110)
def test_recording_keeps_no_hold():
    """The identity is noted at once: the buffer may be dropped, and a block that is gone is found at preflight."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    column = Column(block)
    gone, generation = weakref.ref(column), block.generation
    recorder = LaunchRecorder(stream).read(column)
    del column
    gc.collect()
    assert gone() is None
    del block
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    kept = runtime.allocate(64)                         # the address may be back: the generation is not
    with pytest.raises(UseAfterFreeError, match=r"=: block|=, number 1 of") as error:
        recorder.preflight()
    assert error.value.generation == generation
    assert set(kept.frontier) == {("allocated", 0)}


@pytest.mark.simulator
@pytest.mark.promise(92, 109)
@pytest.mark.parametrize("commit_first", [False, True])
def test_a_fresh_output_is_written_and_then_read_elsewhere(four, driver, commit_first):
    """Register, preflight, launch, commit: the reader elsewhere is ordered after the launch.  A commit that comes
    before the launch protects nothing."""
    x = four(policy="precise", sealed="S")             # on a sealed stream nothing covers the mistake
    out = x.alloc(x.S)
    recorder = LaunchRecorder(x.S).write(out)
    recorder.preflight()
    if commit_first:
        recorder.commit()
    write = x.work(x.S, (out, WRITE))
    if not commit_first:
        recorder.commit()
    x.use(x.T, (out, READ))
    assert bool(driver.races()) == commit_first
    driver.clear_races()
    assert x.ordered(write, x.T) == (not commit_first)


@pytest.mark.promise(97, 101)
@pytest.mark.parametrize("untracked", UNTRACKED)
def test_a_late_registration_is_refused_and_costs_nothing(untracked):
    """Tracked or not, with each choice: the call raises, the count stays, and commit records what was preflighted."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block, late = runtime.allocate(64), runtime.allocate(64)
    recorder = LaunchRecorder(stream, untracked=untracked).write(block)
    recorder.preflight()
    for what in (late, late.id, block, 4711, External(), []):
        with pytest.raises(StreamMisuseError, match="entered before, and takes no more memory"):
            recorder.read(what)
    assert recorder.recorded_count == 1
    recorder.commit()
    assert ("written", stream.id) in block.frontier
    assert set(late.frontier) == {("allocated", 0)}


@pytest.mark.simulator
@pytest.mark.promise(98, 100, 110)
def test_a_stale_block_is_found_before_any_wait(four, driver):
    """Nothing is queued for the blocks before it, no window is left, and the others may be used again."""
    x = four()
    good = [x.alloc(stream) for stream in (x.S, x.U, x.V)]
    dead = x.alloc(x.S)
    recorder = x.recorder(x.T, *[(block, WRITE) for block in good], (dead, READ))
    dead.free()
    x.runtime.reap_pending()
    before = [block.frontier for block in good]
    with nothing_happens(driver, x.runtime), pytest.raises(UseAfterFreeError, match="number 4 of "):
        recorder.preflight()
    assert not recorder.preflighted
    assert [block.frontier for block in good] == before
    with pytest.raises(StreamMisuseError, match=r"preflight\(\) was not called"):
        recorder.commit()
    x.use(x.T, *[(block, WRITE) for block in good])


@pytest.mark.simulator
@pytest.mark.promise(100, 101)
def test_a_commit_without_preflight_records_nothing_and_may_be_repeated(four, driver):
    """Refused with no effect; after the preflight that was missing it is accepted, and only once."""
    x = four()
    block = x.alloc(x.S)
    recorder = x.recorder(x.T, (block, WRITE))
    with nothing_happens(driver, x.runtime), pytest.raises(StreamMisuseError, match=r"preflight\(\) was not called"):
        recorder.commit()
    driver.fail("cuStreamWaitEvent", code=999)
    with pytest.raises(DriverError):
        recorder.preflight()
    with pytest.raises(StreamMisuseError, match=r"preflight\(\) was not called"):
        recorder.commit()
    recorder.preflight()
    recorder.commit()
    assert block.frontier.keys() == {("allocated", x.S.id), ("written", x.T.id)}
    with pytest.raises(StreamMisuseError, match="was left before"):
        recorder.commit()
    assert x.runtime.counters()["uses"] == 1


@pytest.mark.simulator
@pytest.mark.promise(99, 102)
@pytest.mark.parametrize("untracked", UNTRACKED)
@pytest.mark.parametrize("preflighted", [True, False])
def test_an_empty_recorder_does_nothing(driver, untracked, preflighted):
    """Commit succeeds with and without preflight, and neither touches the driver."""
    runtime = DeviceRuntime()
    recorder = LaunchRecorder(runtime.acquire_stream(), untracked=untracked).read([]).write(())
    with nothing_happens(driver, runtime):
        if preflighted:
            recorder.preflight()
        recorder.commit()


@pytest.mark.simulator
@pytest.mark.promise(107)
def test_a_dropped_recorder_protects_what_it_prepared(four):
    """Never raises; warns with the number of uses, the stream and the choice; the launch counts as committed."""
    x = four()
    block = x.alloc(x.S)
    recorder = x.prepare(x.T, (block, READ))
    launch = x.work(x.T, (block, READ))
    with pytest.warns(ResourceWarning, match=rf"on stream {x.T.id}, untracked='raise': 1 use, .*dropped without"):
        del recorder
        gc.collect()
    block.free(x.S)
    assert x.ordered(launch, x.S)
    assert x.runtime.counters()["abandoned"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.recorder(x.T, (x.alloc(x.S), READ))           # never preflighted: nothing was launched
        gc.collect()


@pytest.mark.parametrize("untracked", UNTRACKED)
@pytest.mark.promise(102)
def test_empty(untracked):
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    LaunchRecorder(stream, untracked=untracked).commit()
    with LaunchRecorder(stream, untracked=untracked) as recorder:
        assert recorder.recorded_count == 0


def test_a_stream_keeps_its_runtime():
    stream = DeviceRuntime().acquire_stream()
    with use(stream, read=[]) as recorder:
        assert recorder.stream == stream
    assert recorder.runtime.allocate(64, stream).stream == stream


@pytest.mark.promise(97)
def test_registering_after_preflight_is_refused_and_nothing_is_lost():
    """W7: the late call raises at once; what was preflighted is recorded all the same."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block, late = runtime.allocate(64), runtime.allocate(64)
    recorder = LaunchRecorder(stream).write(block)
    recorder.preflight()
    with pytest.raises(StreamMisuseError, match="entered before, and takes no more memory"):
        recorder.read(late)
    recorder.commit()
    assert ("written", stream.id) in block.frontier
    assert ("has-read", stream.id) not in late.frontier


@pytest.mark.promise(101)
def test_commit_needs_a_preflight():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    recorder = LaunchRecorder(stream).write(block)
    with pytest.raises(StreamMisuseError, match=r"preflight\(\) was not called"):
        recorder.commit()
    recorder.preflight()                                # nothing was lost
    recorder.commit()
    for again in (recorder.preflight, recorder.commit, recorder.cancel):
        with pytest.raises(StreamMisuseError):
            again()


@pytest.mark.promise(100, 110)
def test_a_stale_block_is_found_before_anything_opens():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    alive, dead = runtime.allocate(64), runtime.allocate(64)
    recorder = LaunchRecorder(stream).read(alive).write(dead)
    dead.free()
    with pytest.raises(UseAfterFreeError, match="number 2 of "):
        recorder.preflight()
    alive.free()
    assert alive.state is BlockState.FREED
    assert runtime.counters()["waits"] == 0


def test_cancel_records_nothing():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    before = block.frontier.keys()
    with use(stream, write=block) as recorder:
        recorder.cancel()
    assert block.frontier.keys() == before
    assert runtime.counters()["cancelled"] == 1


def test_an_exception_records_and_goes_on():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    with pytest.raises(KeyError), use(stream, write=block):
        raise KeyError
    assert ("written", stream.id) in block.frontier


@pytest.mark.promise(107)
def test_a_recorder_dropped_in_its_window_warns_and_is_recorded_by_the_next_call():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    recorder = LaunchRecorder(stream).write(block)
    recorder.preflight()
    with pytest.warns(ResourceWarning, match="dropped without being left"):
        del recorder
        gc.collect()
    assert ("written", stream.id) not in block.frontier
    runtime.reap_pending()
    assert ("written", stream.id) in block.frontier
    block.free()
    assert block.state is BlockState.FREED


def test_a_recorder_dropped_before_preflight_is_silent():
    runtime = DeviceRuntime()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LaunchRecorder(runtime.acquire_stream()).write(runtime.allocate(64))
        gc.collect()


@pytest.mark.promise(91)
def test_a_recorder_keeps_its_runtime_and_no_block():
    runtime = DeviceRuntime()
    recorder = LaunchRecorder(runtime.acquire_stream()).read(runtime.allocate(64))
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0
    del runtime
    with pytest.raises(UseAfterFreeError):
        recorder.preflight()


# ---------------------------------------------------------------------------------------------- code of others
class Calls:
    """An array, or an object with a resolver, that calls the recorder which it is being registered with."""

    def __init__(self, call, block) -> None:
        self.call, self.block = call, block

    @property
    def __cuda_array_interface__(self):
        self.call()
        return {"data": (self.block.ptr, False), "shape": (self.block.nbytes,), "typestr": "|u1", "version": 3}


class Resolved(Calls):
    pass


@pytest.mark.simulator
@pytest.mark.parametrize("kind", [Calls, Resolved])
@pytest.mark.parametrize("ends", ["preflight", "commit", "cancel"])
def test_a_use_is_late_if_the_argument_itself_has_called_the_recorder(four, kind, ends):
    """It names no memory that the preflight has not seen, and neither does what stands behind it in a list."""
    x = four()
    seen, unseen = x.alloc(x.S), x.alloc(x.S)
    recorder = x.recorder(x.T, (seen, WRITE))

    def call() -> None:
        if ends != "cancel":
            recorder.preflight()
        if ends != "preflight":
            getattr(recorder, ends)()

    def resolve(what, hold):
        what.call()
        return ()

    register_resolver(Resolved, resolve)
    try:
        with pytest.raises(StreamMisuseError, match="takes no more memory"):
            recorder.write([kind(call, unseen), unseen])
    finally:
        register_resolver(Resolved, None)
    assert recorder.recorded_count == 1
    if ends == "preflight":
        x.work(x.T, (seen, WRITE))
        recorder.commit()


@pytest.mark.parametrize("keep", ["", "sys.kept = w", "sys.modules['kept'] = w"])
def test_a_recorder_that_the_exit_drops_prints_nothing(tmp_path, keep):
    """Between preflight and commit; also one that is dropped when nothing can be printed any more."""
    script = tmp_path / "program.py"
    script.write_text("import sys, xlogmem\nfrom xlogmem import sim\nsim.install()\n"
                      "r = xlogmem.get_runtime(); a = r.acquire_stream(); b = r.allocate(64, a)\n"
                      f"w = xlogmem.use(a, write=b); w.__enter__()\n{keep}\n")
    done = subprocess.run([sys.executable, "-W", "always", str(script)], capture_output=True, text=True, check=False,
                          env=variables())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
