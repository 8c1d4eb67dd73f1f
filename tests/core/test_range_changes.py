"""Launches that name ranges of a block while something else changes: the program fills the other bytes, a library gets
the memory, or a stream is destroyed or becomes opaque."""
from __future__ import annotations

import pytest
from arrays import Column
from c_table import Hold
from capsules import Taken
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import READ, WRITE
from ranges import HALF, SIZE, use_range, work

from xlogmem import LaunchRecorder, StreamMisuseError, use
from xlogmem.interop.devices import DeviceState
from xlogmem.observe.history import record_history
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

EIGHTH = SIZE // 8


@pytest.fixture
def x(four):
    return four(policy="lazy")


def fence(x, stream):
    """Have another stream wait for all work of this one so far, so that a fence covers it."""
    other = x.alloc(stream)
    x.use(stream, (other, WRITE))
    x.use(x.V, (other, READ))
    other.close()


# ---------------------------------------------------------------- bytes that the program fills
def more(block):
    """More than the first half: the launch shares a part with it."""
    return Column(block, 0, HALF + EIGHTH)


def all_of_it(block):
    return block


def use_beside(x, block, reads, access=READ):
    """U uses the first half while a launch is open that reads what `reads` names, so that nothing is cut."""
    reader = LaunchRecorder(x.T, on_conflict="count").read(reads(block))
    reader.preflight()
    use_range(x, x.U, block, 0, HALF, access, on_conflict="count")
    reader.cancel()


@pytest.mark.parametrize("reads", [more, all_of_it])
def test_a_fill_beside_a_range_that_another_stream_has_used(x, reads):
    """Until another stream uses them the program may fill bytes without a use."""
    block = x.alloc(x.S, SIZE)
    use_beside(x, block, reads)
    fence(x, x.S)
    fill = work(x, x.S, block, HALF, EIGHTH)
    with use(x.U, read=Column(block, HALF, EIGHTH)):
        assert x.ordered(fill, x.U)


def test_a_fill_beside_a_range_with_a_history(x, tmp_path):
    """A range stands for all of its block there."""
    block = x.alloc(x.S, SIZE)
    with record_history(tmp_path / "history"):
        use_range(x, x.T, block, 0, HALF, READ)
        fence(x, x.S)
        fill = work(x, x.S, block, HALF, HALF)
        with use(x.T, read=Column(block, HALF, HALF)):
            assert x.ordered(fill, x.T)


@pytest.mark.parametrize("names", ["all", "halves"])
def test_freshness_ends_with_a_use_of_all_bytes(x, names, tmp_path):
    """In one launch, by one name or by several: later users wait for no unrecorded work."""
    block = x.alloc(x.S, SIZE)
    with record_history(tmp_path / "history"):
        with use(x.T, read=block if names == "all" else [Column(block, 0, HALF), Column(block, HALF, HALF)]):
            pass
        for _ in range(2):
            waits = x.waits()
            x.work(x.S)
            x.use(x.T, (block, READ))
            x.use(x.U, (block, READ))
    assert x.waits() == waits


def test_a_fill_beside_a_range_of_several(x):
    """The launch reads two ranges of each of two blocks, in parts that others share."""
    blocks = [x.alloc(x.S, SIZE) for _ in range(2)]
    readers = [LaunchRecorder(x.T, on_conflict="count").read(more(block)) for block in blocks]
    for reader in readers:
        reader.preflight()
    with use(x.U, read=[Column(block, first, EIGHTH) for block in blocks for first in (0, EIGHTH)]):
        pass
    for reader in readers:
        reader.cancel()
    fence(x, x.S)
    fills = [work(x, x.S, block, HALF, EIGHTH) for block in blocks]
    with use(x.U, read=[Column(block, HALF, EIGHTH) for block in blocks]):
        assert all(x.ordered(fill, x.U) for fill in fills)


@pytest.mark.parametrize("reads", [None, more, all_of_it])
@pytest.mark.parametrize("access", [READ, WRITE])
@pytest.mark.parametrize("discipline", ["sealed", "opaque"])
def test_a_fill_by_a_stream_that_is_ordinary_again(x, reads, access, discipline):
    """The other stream has used its range under another discipline; in a part of its own that never mattered."""
    owner = ForeignStream()
    home = x.runtime.register_stream(owner)
    block = x.alloc(home, SIZE)
    x.runtime.register_stream(owner, discipline=discipline)
    if reads is None:
        use_range(x, x.U, block, 0, HALF, access)
    else:
        use_beside(x, block, reads, access)
    x.runtime.register_stream(owner, discipline="ordinary")
    fence(x, home)
    fill = work(x, home, block, HALF, EIGHTH)
    with use(x.U, read=Column(block, HALF, EIGHTH)):
        assert x.ordered(fill, x.U)


# ---------------------------------------------------------------- streams that are destroyed
@pytest.mark.parametrize("kept", ["bare", "promise"])
@pytest.mark.parametrize("named", ["range", "all"])
def test_a_stream_may_be_destroyed_after_the_first_use_elsewhere(x, kept, named):
    """Its owner keeps it until another stream has used the block, or has promised to.  A use of the other bytes needs
    no new fence of it."""
    stream = check(cuda.cuStreamCreate(1))
    hold = Hold(x.runtime) if kept == "promise" else None
    if hold is not None:
        hold.hold_stream(int(stream))
    home = x.runtime.register_stream(int(stream))
    block = x.alloc(home, SIZE)
    fill = work(x, home, block, 0, SIZE)
    use_range(x, x.T, block, 0, HALF if named == "range" else SIZE, READ)
    if hold is not None:
        hold.release_stream(int(stream))
    check(cuda.cuStreamDestroy(stream))
    synchronized = x.driver.calls("cuCtxSynchronize")
    with use(x.U, read=Column(block, HALF, HALF)):
        assert x.ordered(fill, x.U)
    assert x.driver.calls("cuCtxSynchronize") == synchronized
    use_range(x, x.V, block, 0, EIGHTH)
    use_range(x, x.U, block, HALF, EIGHTH)
    assert x.driver.calls("cuCtxSynchronize") == synchronized
    block.free(x.U)
    x.runtime.reap_pending()
    if hold is not None:
        hold.close()


def test_ranges_of_a_bare_stream_after_its_memory_was_used_elsewhere(x, foreign):
    """From then on they have an order of their own."""
    home = x.runtime.register_stream(foreign())
    block = x.alloc(home, SIZE)
    x.use(x.T, (block, READ))
    for _ in range(2):
        operations = [use_range(x, x.T, block, 0, HALF), use_range(x, x.U, block, HALF, HALF)]
        waits = x.waits()
    with use(x.T, write=Column(block, 0, HALF)):
        assert not x.ordered(operations[1], x.T)
    assert x.waits() == waits
    block.free(x.V)
    x.runtime.reap_pending()


# ---------------------------------------------------------------- libraries that get the memory
@pytest.mark.parametrize("access", [READ, WRITE])
@pytest.mark.parametrize("named", ["range", "all"])
def test_memory_is_exported_inside_of_a_use_on_its_stream(x, access, named):
    """The consumer's stream is ordered after that launch, too, when its use ends."""
    state = DeviceState(x.runtime)
    buffer = state.empty(SIZE, "uint8", x.S)
    name = buffer[:HALF] if named == "range" else buffer
    for _ in range(2):
        with use(x.S, **{access: name}):
            pass
    launch = getattr(LaunchRecorder(x.S, on_conflict="count"), access)(name)
    launch.preflight()
    taken = Taken(buffer.__dlpack__(stream=x.V.handle))
    operation = work(x, x.S, buffer.access(), 0, HALF, access)
    launch.commit()
    assert x.ordered(operation, x.V)
    taken.delete()


# ---------------------------------------------------------------- streams that are opaque for a time
def used(x):
    block = x.alloc(x.S, SIZE)
    x.use(x.S, (block, WRITE))
    return block


class Opaque:
    """A stream that is opaque for a time, in which it queues work on the first half of a block."""

    def __init__(self, x):
        self.x = x
        self.owner = ForeignStream()
        self.stream = x.runtime.register_stream(self.owner)

    def work(self, block):
        self.x.runtime.register_stream(self.owner, discipline="opaque")
        operation = work(self.x, self.stream, block, 0, HALF)
        self.x.runtime.register_stream(self.owner, discipline="ordinary")
        return operation


@pytest.mark.parametrize("named", ["ranges", "all"])
def test_unrecorded_work_on_a_range_before_a_join(x, named):
    """A newer read of the other half says nothing about work behind the older one."""
    opaque, block = Opaque(x), used(x)
    names = (Column(block, 0, HALF), Column(block, HALF, HALF)) if named == "ranges" else (block, block)
    with use(opaque.stream, read=names[0]):
        pass
    operation = opaque.work(block)
    with use(opaque.stream, read=names[1]):
        pass
    with use(x.U, read=block):
        assert x.ordered(operation, x.U)


def test_unrecorded_work_on_a_range_before_a_merge(x):
    opaque, block = Opaque(x), used(x)
    for first in range(0, SIZE - EIGHTH, EIGHTH // 2):
        use_range(x, x.S, block, first, EIGHTH // 2)
    use_range(x, opaque.stream, block, 0, EIGHTH // 2, READ)
    operation = opaque.work(block)
    use_range(x, opaque.stream, block, HALF, EIGHTH // 2, READ)
    use_range(x, x.S, block, 0, SIZE - EIGHTH, READ)            # merges them
    with use(x.V, read=Column(block, 0, SIZE - EIGHTH)):
        assert x.ordered(operation, x.V)


def test_unrecorded_work_on_a_range_that_outlives_a_join(x):
    """The parts are joined inside of a window on one, by something that orders nothing."""
    opaque, block = Opaque(x), used(x)
    use_range(x, opaque.stream, block, 0, HALF, READ)
    operation = opaque.work(block)
    with use(opaque.stream, read=Column(block, HALF, HALF)):
        assert block.frontier
    with use(x.U, read=block):
        assert x.ordered(operation, x.U)


def test_an_open_use_keeps_the_discipline(x):
    """So no window on a part has one of its own."""
    opaque, block = Opaque(x), used(x)
    refused = pytest.raises(StreamMisuseError, match="is in use while changing its discipline")
    with use(opaque.stream, read=Column(block, HALF, HALF)), refused:
        opaque.work(block)
