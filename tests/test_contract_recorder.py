"""Contract 88 to 111 and 166: the launch recorder, item by item."""
from __future__ import annotations

import gc
import warnings
import weakref

import pytest
from bench import READ, READ_WRITE, WRITE, Bench, nothing_happens

from xlogmem import (
    BlockState,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    LaunchRecorder,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)

MODES = ["strict", "permissive"]


class Column:
    """An owned column: a buffer of one runtime, as libraries hold it."""

    def __init__(self, block, offset: int = 0, length: int = 4) -> None:
        self.block = block
        self.__cuda_array_interface__ = {"data": (block.ptr + offset, False), "shape": (length,), "typestr": "|u1",
                                         "version": 3}


class External:
    """A column of somebody else's memory."""

    __cuda_array_interface__ = {"data": (0x7f0000001000, False), "shape": (4,), "typestr": "|u1",   # noqa: RUF012
                                "version": 3}


@pytest.mark.contract(88, 89, 90)
@pytest.mark.parametrize("mode", MODES)
def test_a_recorder_says_what_it_is_and_covers_one_launch(mode):
    """Stream, mode and count can be asked; the methods chain; a second launch needs a second recorder."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    a, b, c = (runtime.allocate(64) for _ in range(3))
    recorder = LaunchRecorder(stream, mode=mode)
    assert (recorder.stream, recorder.mode, recorder.recorded_count) == (stream, mode, 0)
    assert recorder.read(a).write(b).read_write(c) is recorder
    assert recorder.recorded_count == 3
    assert LaunchRecorder(stream).mode == "strict"
    with recorder:
        pass
    assert [set(block.frontier) - {("allocated", 0)} for block in (a, b, c)] == [
        {("has-read", stream.id)}, {("written", stream.id)}, {("written", stream.id)}]
    for again in (recorder.preflight, recorder.commit, lambda: recorder.read(a)):
        with pytest.raises(StreamMisuseError):
            again()


@pytest.mark.contract(91, 110)
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
    with pytest.raises(UseAfterFreeError, match="argument 1") as error:
        recorder.preflight()
    assert error.value.generation == generation
    assert set(kept.frontier) == {("allocated", 0)}


@pytest.mark.simulator
@pytest.mark.contract(92, 109)
@pytest.mark.parametrize("commit_first", [False, True])
def test_a_fresh_output_is_written_and_then_read_elsewhere(bench, driver, commit_first):
    """Register, preflight, launch, commit: the reader elsewhere is ordered after the launch.  A commit that comes
    before the launch protects nothing."""
    x = bench(policy="precise", sealed="S")             # on a sealed stream nothing covers the mistake
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


@pytest.mark.contract(93, 96, 99)
@pytest.mark.parametrize("kind", [None, DirectMemoryResource])
def test_permissive_skips_what_nobody_tracks(kind):
    """Nothing is recorded, preflight and commit succeed, on any runtime."""
    runtime = DeviceRuntime(resource=kind and kind())
    stream = runtime.acquire_stream()
    recorder = LaunchRecorder(stream, mode="permissive").read(External()).write(4711).read_write(External())
    assert recorder.recorded_count == 0
    recorder.preflight()
    recorder.commit()
    assert runtime.counters()["uses"] == 0


@pytest.mark.simulator
@pytest.mark.contract(94, 95, 96, 98, 100)
def test_strict_refuses_what_nobody_tracks(driver):
    """Not at the call, but at preflight, all together and before anything else; the recorder stays refused."""
    runtime = DeviceRuntime()
    stream, elsewhere = runtime.acquire_stream(), runtime.acquire_stream()
    good, dead = runtime.allocate(64, elsewhere), runtime.allocate(64)
    identity = dead.id
    dead.free()
    recorder = LaunchRecorder(stream).read(good).read(External()).write(identity).read_write(4711)
    assert recorder.recorded_count == 2
    with nothing_happens(driver, runtime):
        for call in (recorder.preflight, recorder.preflight, recorder.commit):
            with pytest.raises(StreamMisuseError) as error:
                call()
            text = str(error.value)
            assert text.count("untracked buffer rejected") == 2
            assert text.count("stream-ordered contract violated") == 1
            assert text.index("LaunchRecorder.read: ") < text.index("LaunchRecorder.read_write: ")
            assert not recorder.preflighted
    good.free()
    assert good.state is BlockState.FREED               # no window was opened


@pytest.mark.contract(95)
def test_what_can_never_be_memory_is_refused_at_the_call():
    """A wrong type, or another runtime's block, is an error of the line that names it; nothing is added."""
    runtime = DeviceRuntime()
    recorder = LaunchRecorder(runtime.default_stream)
    theirs = DeviceRuntime().allocate(64)
    for what, error in (("x", TypeError), (None, TypeError), (1.5, TypeError), (theirs, StreamMisuseError)):
        for method in ("read", "write", "read_write"):
            with pytest.raises(error, match=rf"LaunchRecorder\.{method}"):
                getattr(recorder, method)(what)
    assert recorder.recorded_count == 0
    recorder.commit()


@pytest.mark.contract(97, 101)
@pytest.mark.parametrize("mode", MODES)
def test_a_late_registration_is_refused_and_costs_nothing(mode):
    """Tracked or not, in either mode: the call raises, the count stays, and commit files what was preflighted."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block, late = runtime.allocate(64), runtime.allocate(64)
    recorder = LaunchRecorder(stream, mode=mode).write(block)
    recorder.preflight()
    for what in (late, late.id, block, 4711, External(), []):
        with pytest.raises(StreamMisuseError, match="recorded after preflight"):
            recorder.read(what)
    assert recorder.recorded_count == 1
    recorder.commit()
    assert ("written", stream.id) in block.frontier
    assert set(late.frontier) == {("allocated", 0)}


@pytest.mark.simulator
@pytest.mark.contract(98, 100, 110)
def test_a_stale_block_is_found_before_any_wait(bench, driver):
    """Nothing is queued for the blocks before it, no window is left, and the others may be used again."""
    x = bench()
    good = [x.alloc(stream) for stream in (x.S, x.U, x.V)]
    dead = x.alloc(x.S)
    recorder = x.recorder(x.T, *[(block, WRITE) for block in good], (dead, READ))
    dead.free()
    x.runtime.reap_pending()
    before = [block.frontier for block in good]
    with nothing_happens(driver, x.runtime), pytest.raises(UseAfterFreeError, match="argument 4"):
        recorder.preflight()
    assert not recorder.preflighted
    assert [block.frontier for block in good] == before
    with pytest.raises(StreamMisuseError, match="without a successful preflight"):
        recorder.commit()
    x.use(x.T, *[(block, WRITE) for block in good])


@pytest.mark.simulator
@pytest.mark.contract(100, 101)
def test_a_commit_without_preflight_files_nothing_and_may_be_repeated(bench, driver):
    """Refused with no effect; after the preflight that was missing it is accepted, and only once."""
    x = bench()
    block = x.alloc(x.S)
    recorder = x.recorder(x.T, (block, WRITE))
    with nothing_happens(driver, x.runtime), pytest.raises(StreamMisuseError, match="without a successful preflight"):
        recorder.commit()
    driver.fail("cuStreamWaitEvent", code=999)
    with pytest.raises(DriverError):
        recorder.preflight()
    with pytest.raises(StreamMisuseError, match="without a successful preflight"):
        recorder.commit()
    recorder.preflight()
    recorder.commit()
    assert block.frontier.keys() == {("written", x.T.id)}
    with pytest.raises(StreamMisuseError, match="committed or cancelled before"):
        recorder.commit()
    assert x.runtime.counters()["uses"] == 1


@pytest.mark.simulator
@pytest.mark.contract(99, 102)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("preflighted", [True, False])
def test_an_empty_recorder_does_nothing(driver, mode, preflighted):
    """Commit succeeds with and without preflight, and neither touches the driver."""
    runtime = DeviceRuntime()
    recorder = LaunchRecorder(runtime.acquire_stream(), mode=mode).read([]).write(())
    with nothing_happens(driver, runtime):
        if preflighted:
            recorder.preflight()
        recorder.commit()


@pytest.mark.simulator
@pytest.mark.contract(103, 104, 106)
@pytest.mark.parametrize(("accesses", "merged"), [
    ((READ, READ), READ), ((WRITE, WRITE), WRITE), ((READ, WRITE), READ_WRITE), ((WRITE, READ), READ_WRITE),
    ((READ_WRITE, READ), READ_WRITE), ((WRITE, READ_WRITE), READ_WRITE), ((READ, READ, WRITE, READ), READ_WRITE)])
def test_registrations_of_one_block_are_one_use(bench, accesses, merged):
    """However often and however it is named: one set of waits, one entry, the strongest access."""
    def used(kinds) -> tuple[int, set, int]:
        x = bench()
        block = x.alloc(x.S)
        x.use(x.U, (block, READ))
        names = [block, block.id, block.ptr + 5, Column(block, 9)]
        waits = x.waits()
        recorder = LaunchRecorder(x.T)
        for kind, name in zip(kinds, names, strict=False):
            getattr(recorder, kind)(name)
        assert recorder.recorded_count == len(kinds)
        with recorder:
            pass
        assert x.runtime.counters()["uses"] == 2
        return x.waits() - waits, set(block.frontier)

    assert used(accesses) == used((merged,))


@pytest.mark.contract(103)
def test_first_seen_order_is_kept():
    """The first block that cannot be used is the one that is named, whatever comes behind it."""
    runtime = DeviceRuntime()
    blocks = [runtime.allocate(64) for _ in range(3)]
    recorder = LaunchRecorder(runtime.default_stream)
    for block in (blocks[0], blocks[2], blocks[1], blocks[2]):
        recorder.read(block)
    blocks[2].free()
    blocks[1].free()
    with pytest.raises(UseAfterFreeError, match="argument 2") as error:
        recorder.preflight()
    assert error.value.generation == blocks[2].generation


@pytest.mark.simulator
@pytest.mark.contract(107)
def test_a_dropped_recorder_protects_what_it_prepared(bench):
    """Never raises; warns with the number of uses, the stream and the mode; the launch is filed as if committed."""
    x = bench()
    block = x.alloc(x.S)
    recorder = x.prepare(x.T, (block, READ))
    launch = x.work(x.T, (block, READ))
    with pytest.warns(ResourceWarning, match=rf"strict on stream {x.T.id}: 1 uses.*dropped between"):
        del recorder
        gc.collect()
    block.free()
    assert x.ordered(launch, x.S)
    assert x.runtime.counters()["abandoned"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x.recorder(x.T, (x.alloc(x.S), READ))           # never preflighted: nothing was launched
        gc.collect()


@pytest.mark.simulator
@pytest.mark.contract(90, 108, 166)
@pytest.mark.parametrize("name", [lambda b: b, lambda b: b.id, lambda b: b.ptr, lambda b: b.ptr + 511,
                                  lambda b: Column(b), lambda b: Column(b, 100), lambda b: [b], lambda b: (b.id,)])
def test_every_name_of_a_block_protects_it(bench: Bench, name):
    """A block, its identity, an address inside it, a column on it, in a list or not: the same waits and entries."""
    x = bench()
    block = x.alloc(x.S)
    write = x.use(x.S, (block, WRITE))
    with use(x.T, read=name(block)) as recorder:
        read = x.work(x.T, (block, READ))
    assert recorder.recorded_count == 1
    assert x.ordered(write, x.T)
    with use(x.U, read_write=name(block)):
        x.work(x.U, (block, WRITE))
    assert x.ordered(read, x.U)
    assert block.frontier.keys() == {("written", x.U.id)}


@pytest.mark.contract(111)
def test_labels_are_for_messages():
    """Tags and names of methods appear in messages and decide nothing: blocks of one tag stay two blocks."""
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    a, b = runtime.allocate(64, tag="same"), runtime.allocate(64, tag="same")
    with use(stream, read=a, write=b):
        pass
    assert ("has-read", stream.id) in a.frontier
    assert ("written", stream.id) in b.frontier
    a.free()
    assert b.state is BlockState.LIVE
    assert ("same" in repr(b), "same" in repr(b.id)) == (True, False)
    for method in ("read", "write"):
        with pytest.raises(StreamMisuseError, match=rf"LaunchRecorder\.{method}: untracked"):
            use(stream, **{method: 4711}).preflight()
