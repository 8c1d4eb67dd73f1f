"""Arguments that make no sense are refused, and nothing happens."""
from __future__ import annotations

from collections.abc import Callable

import pytest
from cuda.bindings import driver as cuda
from four_streams import nothing_happens

from xlogmem import (
    Access,
    AsyncMemoryResource,
    BlockId,
    BlockState,
    DeviceBlock,
    DeviceRuntime,
    DirectMemoryResource,
    LaunchRecorder,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    UseAfterFreeError,
    use,
)
from xlogmem.sim import Simulator
from xlogmem.sim.kernels import check


class World:
    """A runtime with everything that an argument can be mistaken for."""

    def __init__(self, resource: str) -> None:
        kind = {"async": AsyncMemoryResource, "direct": DirectMemoryResource}[resource]
        self.mine, self.other, self.device1 = (DeviceRuntime(n, resource=kind(n)) for n in (0, 0, 1))
        self.stream, self.foreign = self.mine.acquire_stream(), self.other.acquire_stream()
        self.raw = check(cuda.cuStreamCreate(1))
        self.gone = self.mine.register_stream(self.raw)
        self.mine.unregister_stream(self.gone)
        self.block, self.theirs, self.far = (x.allocate(64) for x in (self.mine, self.other, self.device1))
        self.freed = self.mine.allocate(64)
        self.stale = self.freed.id
        self.freed.free()
        self.mine.reap_pending()
        self.done = use(self.stream, read=[])
        self.done.preflight()
        self.done.commit()
        self.late = LaunchRecorder(self.stream).read(self.block)
        self.late.preflight()


Call = Callable[[World], object]
ALLOCATE: list[tuple[str, type[Exception], str, Call]] = [
    ("zero bytes there", StreamMisuseError, "another runtime", lambda w: w.mine.allocate(0, w.foreign)),
    ("negative", ValueError, "negative", lambda w: w.mine.allocate(-64)),
    ("too many to count", OverflowError, "nbytes must be below", lambda w: w.mine.allocate(1 << 70)),
    ("text", ValueError, "nbytes must be a number and a unit", lambda w: w.mine.allocate("64")),
    ("a fraction", TypeError, "nbytes must be a whole number", lambda w: w.mine.allocate(64.5)),
    ("no number", TypeError, "nbytes must be a whole number", lambda w: w.mine.allocate(float("nan"))),
    ("nothing", TypeError, "nbytes must be a whole number", lambda w: w.mine.allocate(None)),
    ("a tag of bytes", TypeError, "", lambda w: w.mine.allocate(64, tag=b"x")),
    ("a stream of text", TypeError, "not a CUDA stream", lambda w: w.mine.allocate(64, "x")),
    ("a negative stream", ValueError, "not the handle of a CUDA stream", lambda w: w.mine.allocate(64, -5)),
    ("a huge stream", ValueError, "not the handle of a CUDA stream", lambda w: w.mine.allocate(64, 1 << 64)),
    ("a foreign stream", StreamMisuseError, "another runtime", lambda w: w.mine.allocate(64, w.foreign)),
    ("an unregistered stream", StreamMisuseError, "unregistered", lambda w: w.mine.allocate(64, w.gone)),
]
FREE: list[tuple[str, type[Exception], str, Call]] = [
    ("nothing", TypeError, "", lambda w: w.mine.deallocate(None)),
    ("an identity", TypeError, "", lambda w: w.mine.deallocate(w.block.id)),
    ("an address", TypeError, "", lambda w: w.mine.deallocate(w.block.ptr)),
    ("another runtime's", StreamMisuseError, "another runtime", lambda w: w.mine.deallocate(w.theirs)),
    ("another device's", StreamMisuseError, "another runtime", lambda w: w.mine.deallocate(w.far)),
    ("twice", UseAfterFreeError, "was freed", lambda w: w.freed.free()),
    ("on a foreign stream", StreamMisuseError, "another runtime", lambda w: w.block.free(w.foreign)),
    ("on an unregistered stream", StreamMisuseError, "unregistered", lambda w: w.block.free(w.gone)),
    ("on no stream", TypeError, "not a CUDA stream", lambda w: w.block.free("x")),
    ("twice, on no stream", TypeError, "not a CUDA stream", lambda w: w.freed.free("x")),
    ("a forged block", StreamMisuseError, "", lambda w: w.mine.deallocate(DeviceBlock.__new__(DeviceBlock))),
]
USE: list[tuple[str, type[Exception], str, Call]] = [
    ("text", TypeError, "is not a block", lambda w: use(w.stream, read="x")),
    ("a set", TypeError, "is not a block", lambda w: use(w.stream, read={1})),
    ("nothing", TypeError, "is not a block", lambda w: use(w.stream, read=None)),
    ("an untracked address", StreamMisuseError, "is not tracked", lambda w: use(w.stream, read=4711).preflight()),
    ("a negative address", ValueError, "is not an address", lambda w: use(w.stream, write=-1)),
    ("a huge address", ValueError, "is not an address", lambda w: use(w.stream, write=1 << 70)),
    ("a foreign block", StreamMisuseError, "another runtime", lambda w: use(w.stream, read=w.theirs)),
    ("a foreign identity", StreamMisuseError, "another runtime", lambda w: use(w.stream, read=w.theirs.id)),
    ("a forged identity", StreamMisuseError, "another runtime",
     lambda w: use(w.stream, read=BlockId.__new__(BlockId))),
    ("a stale block", UseAfterFreeError, "number 2 of 2", lambda w: use(w.stream, [w.block, w.freed]).preflight()),
    ("a stale identity", UseAfterFreeError, "number 2 of 2", lambda w: use(w.stream, [w.block, w.stale]).preflight()),
    ("an unregistered stream", StreamMisuseError, "unregistered", lambda w: use(w.gone, read=w.block).preflight()),
    ("no stream", TypeError, "", lambda w: use(None, read=w.block)),
    ("a stream of text", TypeError, "not a CUDA stream", lambda w: use("x", read=w.block)),
    ("an unknown choice", ValueError, "untracked", lambda w: use(w.stream, untracked="careless")),
    ("a late use", StreamMisuseError, "entered before, and takes no more memory", lambda w: w.late.read(w.block)),
    ("a late address", StreamMisuseError, "entered before, and takes no more memory", lambda w: w.late.write(4711)),
    ("a second preflight", StreamMisuseError, "entered before", lambda w: w.late.preflight()),
    ("a second commit", StreamMisuseError, "was left before", lambda w: w.done.commit()),
    ("a cancel after the commit", StreamMisuseError, "was left before", lambda w: w.done.cancel()),
    ("a commit without preflight", StreamMisuseError, r"preflight\(\) was not called",
     lambda w: LaunchRecorder(w.stream).read(w.block).commit()),
]
SINGLE: list[tuple[str, type[Exception], str, Call]] = [
    ("record: nothing", TypeError, "", lambda w: w.mine.record_block_use(None, w.stream)),
    ("record: untracked", StreamMisuseError, "", lambda w: w.mine.record_block_use(4711, w.stream)),
    ("record: foreign", StreamMisuseError, "another runtime", lambda w: w.mine.record_block_use(w.theirs, w.stream)),
    ("record: stale", UseAfterFreeError, "", lambda w: w.mine.record_block_use(w.stale, w.stream)),
    ("record: unregistered stream", StreamMisuseError, "unregistered",
     lambda w: w.mine.record_block_use(w.block, w.gone)),
    ("record: foreign stream", StreamMisuseError, "another", lambda w: w.mine.record_block_use(w.block, w.foreign)),
    ("finish: stale", UseAfterFreeError, "", lambda w: w.mine.finish_block_use(w.stale, w.stream, Access.WRITE)),
    ("finish: unregistered stream", StreamMisuseError, "unregistered",
     lambda w: w.mine.finish_block_use(w.block, w.gone, Access.WRITE)),
    ("prepare: stale", UseAfterFreeError, "", lambda w: w.mine.prepare_block_use(w.stale, w.stream, Access.WRITE)),
    ("prepare: unregistered stream", StreamMisuseError, "unregistered",
     lambda w: w.mine.prepare_block_use(w.block, w.gone, Access.WRITE)),
    ("prepare: foreign", StreamMisuseError, "another runtime",
     lambda w: w.mine.prepare_block_use(w.far.id, w.stream, Access.WRITE)),
    ("find: text", TypeError, "", lambda w: w.mine.find_block("x")),
    ("adopt: inside out", ValueError, "not a range", lambda w: w.mine.adopt(1 << 40, -1)),
    ("adopt: overlap", StreamMisuseError, "overlaps", lambda w: w.mine.adopt(w.block.ptr + 32, 64)),
    ("adopt: unregistered stream", StreamMisuseError, "unregistered", lambda w: w.mine.adopt(w.theirs.ptr, 64, w.gone)),
    ("register: text", TypeError, "not a CUDA stream", lambda w: w.mine.register_stream("x")),
    ("unregister: our own", StreamMisuseError, "pool's own", lambda w: w.mine.unregister_stream(w.stream)),
    ("unregister: twice", StreamMisuseError, "not registered", lambda w: w.mine.unregister_stream(w.gone)),
]
NONSENSE = [pytest.param(error, match, call, id=f"{group}-{name}", marks=pytest.mark.promise(*items))
            for group, items, cases in (("allocate", (37, 38), ALLOCATE), ("free", (46, 48), FREE),
                                        ("use", (97, 101, 110), USE), ("single", (26, 64, 66), SINGLE))
            for name, error, match, call in cases]


@pytest.mark.simulator
@pytest.mark.parametrize("resource", ["async", "direct"])
@pytest.mark.parametrize(("error", "match", "call"), NONSENSE)
def test_nonsense_is_refused_and_nothing_happens(driver: Simulator, resource, error, match, call):
    """The documented error, no driver call but queries, every counter as before, and everything still works."""
    w = World(resource)
    before = w.block.frontier
    with nothing_happens(driver, w.mine, w.other, w.device1), pytest.raises(error, match=match or None) as raised:
        call(w)
    assert type(raised.value) is error
    del raised
    assert w.block.frontier == before
    assert w.block.state is w.theirs.state is w.far.state is BlockState.LIVE
    w.late.commit()                                     # its own use is recorded all the same
    assert ("has-read", w.stream.id) in w.block.frontier
    with use(w.stream, write=w.block):
        pass
    for block in (w.block, w.theirs, w.far):
        block.free()
        assert block.state is BlockState.FREED
    assert w.mine.counters()["frees"] == 2
    check(cuda.cuStreamDestroy(w.raw))


@pytest.mark.simulator
@pytest.mark.promise(39)
def test_more_than_there_is(driver):
    """A size that no device has is out of memory, also after the second attempt, and nothing is counted."""
    mine = DeviceRuntime()
    for nbytes in (1 << 50, 1 << 63):
        with pytest.raises(OutOfDeviceMemoryError, match=rf"allocating .* \({nbytes} bytes\)"):
            mine.allocate(nbytes)
    assert driver.calls("cuMemAllocFromPoolAsync") == 4
    assert set(mine.counters().values()) == {0}


@pytest.mark.parametrize("access", ["read", None, 1, Access(0)])
def test_what_is_not_an_access(access):
    """What is not an access is a TypeError, for prepare and finish, and opens or records nothing."""
    mine = DeviceRuntime()
    block = mine.allocate(64)
    raised = []
    for call in ("prepare_block_use", "finish_block_use"):
        try:
            getattr(mine, call)(block, mine.default_stream, access)
        except Exception as error:
            raised.append(type(error))
    entries = set(block.frontier)
    del mine, block                                     # a failing test keeps its frame
    assert all(kind in (TypeError, ValueError) for kind in raised), raised
    assert len(raised) == 2
    assert entries == {("allocated", 0)}
