"""What each use waits for, and what is kept of it."""
from __future__ import annotations

import pytest
from four_streams import READ, READ_WRITE, WRITE

from xlogmem import (
    Access,
    BlockState,
    DriverError,
    UseAfterFreeError,
)

UNKNOWN = 999                                           # a CUresult that does not lose the device


@pytest.mark.simulator
@pytest.mark.promise(28, 65)
def test_what_each_access_waits_for(four):
    """A reader waits for the writer, not for readers; a writer for all of them; none waits for its own stream."""
    x = four()
    block = x.alloc(x.S)
    waits = []

    def used(stream, access):
        before = x.waits()
        operation = x.use(stream, (block, access))
        waits.append(x.waits() - before)
        return operation

    write = used(x.S, WRITE)                            # its own allocation
    first, second = used(x.T, READ), used(x.U, READ)
    assert x.ordered(write, x.T)
    assert not x.ordered(first, x.U)
    assert waits == [0, 1, 1]
    last = used(x.V, WRITE)                             # both readers, and through them the writer
    assert waits[3] == 2
    assert all(x.ordered(before, x.V) for before in (write, first, second))
    again = used(x.V, READ_WRITE)
    assert waits[4] == 0
    assert used(x.S, READ)
    assert x.ordered(last, x.S)
    assert x.ordered(again, x.S)
    assert waits[5] == 1


@pytest.mark.simulator
@pytest.mark.promise(65)
def test_the_first_use_of_a_fresh_block(four):
    """Elsewhere one wait, which covers the fill too, also where S was waited for before it; on S itself none."""
    x = four()
    block, earlier = x.alloc(x.S), x.alloc(x.S)
    x.use(x.S, (earlier, READ))
    assert (x.records(), x.waits()) == (0, 0)
    x.use(x.T, (earlier, READ))                         # T knows the allocation of both now
    fill = x.work(x.S, (block, WRITE))
    x.use(x.S, (block, READ))
    assert x.waits() == 1
    x.use(x.T, (block, READ))
    assert x.waits() == 2
    assert x.ordered(fill, x.T)


@pytest.mark.simulator
@pytest.mark.promise(30, 36, 45, 67)
def test_what_is_kept_of_uses(four):
    """One entry for each kind and stream; a write removes what it was ordered after, a read removes nothing."""
    x = four()
    block = x.alloc(x.S)
    assert set(block.frontier) == {("allocated", x.S.id)}
    for _ in range(100):
        x.use(x.T, (block, READ))
    x.use(x.U, (block, READ))
    assert set(block.frontier) == {("allocated", x.S.id), ("has-read", x.T.id), ("has-read", x.U.id)}
    newest = block.frontier["has-read", x.T.id]
    window = x.prepare(x.V, (block, WRITE))
    x.use(x.T, (block, READ))                           # slips in: not in the writer's ticket
    window.commit()
    assert block.frontier.keys() == {("written", x.V.id), ("has-read", x.T.id)}
    assert block.frontier["has-read", x.T.id] > newest
    x.use(x.U, (block, READ_WRITE))
    assert block.frontier.keys() == {("written", x.U.id)}
    block.free()
    assert block.frontier == {}


@pytest.mark.simulator
@pytest.mark.promise(29, 64)
def test_a_prepare_whose_wait_fails_changes_nothing(four, driver):
    """DriverError; the block's frontier is the same, no window is open, and the call may be repeated."""
    x = four()
    block = x.alloc(x.S)
    write = x.use(x.S, (block, WRITE))
    kinds = block.frontier.keys()
    driver.fail("cuStreamWaitEvent", code=UNKNOWN)
    with pytest.raises(DriverError, match="cuStreamWaitEvent"):
        x.runtime.prepare_block_use(block, x.T, Access.READ)
    assert block.frontier.keys() == kinds
    x.runtime.prepare_block_use(block, x.T, Access.READ)
    assert x.ordered(write, x.T)
    x.runtime.finish_block_use(block, x.T, Access.READ)
    block.free()
    assert block.state is BlockState.FREED


@pytest.mark.simulator
@pytest.mark.promise(66, 68)
def test_what_was_prepared_cannot_vanish(four):
    """A free between prepare and finish waits for the finish, which is never refused."""
    x = four()
    block = x.alloc(x.S)
    x.runtime.prepare_block_use(block, x.T, Access.WRITE)
    write = x.work(x.T, (block, WRITE))
    block.free(x.S)
    other = x.alloc(x.S)
    assert other.ptr != block.ptr
    x.runtime.finish_block_use(block, x.T, Access.WRITE)
    assert block.state is BlockState.FREED
    assert x.ordered(write, x.S)
    with pytest.raises(UseAfterFreeError):
        x.runtime.finish_block_use(block.id, x.T, Access.WRITE)
