"""What a launch recorder may be given: names of blocks, accesses, untracked memory, labels."""
from __future__ import annotations

import pytest
from arrays import Column, CudaArray, External
from four_streams import READ, READ_WRITE, WRITE, nothing_happens

from xlogmem import (
    Access,
    BlockState,
    DeviceRuntime,
    DirectMemoryResource,
    LaunchRecorder,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)


@pytest.mark.promise(93, 96, 99)
@pytest.mark.parametrize("kind", [None, DirectMemoryResource])
def test_ignoring_skips_untracked_memory(kind):
    """Nothing is recorded, preflight and commit succeed, on any runtime."""
    runtime = DeviceRuntime(resource=kind and kind())
    stream = runtime.acquire_stream()
    recorder = LaunchRecorder(stream, untracked="ignore").read(External()).write(4711).read_write(External())
    assert recorder.recorded_count == 0
    recorder.preflight()
    recorder.commit()
    assert runtime.counters()["uses"] == 0


@pytest.mark.simulator
@pytest.mark.promise(94, 95, 96, 98, 100)
def test_untracked_memory_is_refused(driver):
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
            assert text.count("is not tracked by") == 2
            assert text.index("read=: ") < text.index("read_write=: ")
            assert not recorder.preflighted
    good.free()
    assert good.state is BlockState.FREED               # no window was opened


@pytest.mark.promise(95)
def test_what_can_never_be_memory_is_refused_at_the_call():
    """A wrong type, or another runtime's block, is an error of the line that names it; nothing is added."""
    runtime = DeviceRuntime()
    recorder = LaunchRecorder(runtime.default_stream)
    theirs = DeviceRuntime().allocate(64)
    for what, error in (("x", TypeError), (None, TypeError), (1.5, TypeError), (theirs, StreamMisuseError)):
        for method in ("read", "write", "read_write"):
            with pytest.raises(error, match=rf"{method}"):
                getattr(recorder, method)(what)
    assert recorder.recorded_count == 0
    recorder.commit()


@pytest.mark.simulator
@pytest.mark.promise(103, 104, 106)
@pytest.mark.parametrize(("accesses", "merged"), [
    ((READ, READ), READ), ((WRITE, WRITE), WRITE), ((READ, WRITE), READ_WRITE), ((WRITE, READ), READ_WRITE),
    ((READ_WRITE, READ), READ_WRITE), ((WRITE, READ_WRITE), READ_WRITE), ((READ, READ, WRITE, READ), READ_WRITE)])
def test_registrations_of_one_block_are_one_use(four, accesses, merged):
    """However often and however it is named: one set of waits, one entry, the strongest access."""
    def used(kinds) -> tuple[int, set, int]:
        x = four()
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


@pytest.mark.promise(103)
def test_first_seen_order_is_kept():
    """The first block that cannot be used is the one that is named, whatever comes behind it."""
    runtime = DeviceRuntime()
    blocks = [runtime.allocate(64) for _ in range(3)]
    recorder = LaunchRecorder(runtime.default_stream)
    for block in (blocks[0], blocks[2], blocks[1], blocks[2]):
        recorder.read(block)
    blocks[2].free()
    blocks[1].free()
    with pytest.raises(UseAfterFreeError, match="number 2 of ") as error:
        recorder.preflight()
    assert error.value.generation == blocks[2].generation


@pytest.mark.simulator
@pytest.mark.promise(90, 108, 166)
@pytest.mark.parametrize("name", [lambda b: b, lambda b: b.id, lambda b: b.ptr, lambda b: b.ptr + 511,
                                  lambda b: Column(b, 0, 512), lambda b: [b], lambda b: (b.id,)])
def test_every_name_of_a_block_protects_it(four, name):
    """A block, its identity, an address inside it, a column of all of it, in a list or not: the same waits and
    entries."""
    x = four()
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


@pytest.mark.promise(111)
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
        with pytest.raises(StreamMisuseError, match=rf"{method}=: .* is not tracked"):
            use(stream, **{method: 4711}).preflight()


@pytest.mark.promise(90, 166)
def test_every_form_of_naming_a_block():
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    block = runtime.allocate(64, S)
    for what in (block, block.id, block.ptr, block.ptr + 63, CudaArray(block.ptr + 16), [block], (block, block.id)):
        with use(T, read=what) as recorder:
            assert recorder.recorded_count == (len(what) if isinstance(what, (list, tuple)) else 1)
        assert ("has-read", T.id) in block.frontier


@pytest.mark.promise(103, 104, 106)
def test_uses_of_one_block_are_merged_to_the_strongest():
    runtime = DeviceRuntime()
    S, T = runtime.acquire_stream(), runtime.acquire_stream()
    for first, second in (("read", "write"), ("write", "read"), ("read_write", "read"), ("read", "read_write")):
        block = runtime.allocate(64, S)
        with LaunchRecorder(T) as recorder:
            recorder.cancel()
        recorder = LaunchRecorder(T)
        assert getattr(recorder, first)(block) is recorder
        getattr(recorder, second)(block.id)
        with recorder:
            pass
        assert recorder.recorded_count == 2
        assert set(block.frontier) == {("allocated", S.id), ("written", T.id)}
    block = runtime.allocate(64, S)
    with use(T, read=[block, block]):
        pass
    assert set(block.frontier) == {("allocated", S.id), ("has-read", T.id)}


@pytest.mark.promise(7)
def test_access_says_what_it_does():
    assert (Access.READ.reads, Access.READ.writes) == (True, False)
    assert (Access.WRITE.reads, Access.WRITE.writes) == (False, True)
    assert (Access.READ_WRITE.reads, Access.READ_WRITE.writes) == (True, True)
    assert Access.READ | Access.WRITE is Access.READ_WRITE


@pytest.mark.promise(94, 95)
def test_untracked_memory_is_refused_at_preflight():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    recorder = LaunchRecorder(stream).read(CudaArray(0x1234)).write(0x5678)
    with pytest.raises(StreamMisuseError, match=r"read=: .*is not tracked by.*; write=: .*is not tracked by"):
        recorder.preflight()
    with pytest.raises(StreamMisuseError, match="is not tracked by"), use(stream, read=0x1234):
        raise AssertionError("not reached")


@pytest.mark.promise(93, 96)
def test_ignoring_leaves_untracked_memory_out():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    block = runtime.allocate(64)
    with use(stream, read=[0x1234, block], write=CudaArray(0x5678), untracked="ignore") as recorder:
        assert recorder.recorded_count == 1
    assert ("has-read", stream.id) in block.frontier


def test_zero_length_arrays_are_trivially_safe():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    with use(stream, read=CudaArray(0, shape=(0, 5))) as recorder:
        assert recorder.recorded_count == 0


def test_what_is_not_memory_is_a_type_error():
    runtime = DeviceRuntime()
    stream = runtime.acquire_stream()
    with pytest.raises(TypeError, match=r"write=: 'a block' \(of type str\) is not a block"):
        use(stream, write="a block")
    with pytest.raises(TypeError):
        use("a stream", write=[])
    with pytest.raises(ValueError, match="untracked"):
        LaunchRecorder(stream, untracked="leave")
    with pytest.raises(ValueError, match="handback"):
        use(stream, handback="never")
