"""Uses that have nothing to wait for, because all that is filed of their block is their own stream's: the short way to
prepare and file them, and where it ends."""
from __future__ import annotations

import pytest
from four_streams import READ, READ_WRITE, WRITE

from xlogmem import UseAfterFreeError, use

pytestmark = pytest.mark.simulator


def test_what_a_plain_write_removes(four):
    """All that its own stream has filed."""
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, READ))
    assert block.frontier.keys() == {("allocated", x.S.id), ("has-read", x.S.id)}
    x.use(x.S, (block, WRITE))
    assert block.frontier.keys() == {("written", x.S.id)}
    first = block.frontier["written", x.S.id]
    x.use(x.S, (block, READ_WRITE))
    assert block.frontier == {("written", x.S.id): first + 1}
    x.use(x.S, (block, READ))
    x.use(x.S, (block, READ))
    assert block.frontier == {("written", x.S.id): first + 1, ("has-read", x.S.id): first + 3}
    x.use(x.S, (block, WRITE))
    assert block.frontier == {("written", x.S.id): first + 4}
    assert (x.records(), x.waits()) == (0, 0)


def test_a_write_waits_for_a_reader_whose_entry_stands_behind_its_own(four):
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    read = x.use(x.T, (block, READ))
    assert block.frontier.keys() == {("written", x.S.id), ("has-read", x.T.id)}
    x.use(x.S, (block, WRITE))
    assert x.ordered(read, x.S)
    assert block.frontier.keys() == {("written", x.S.id)}


@pytest.mark.parametrize("access", [READ, WRITE])
def test_what_is_filed_inside_the_window_stays(four, access):
    x = four()
    block = x.alloc(x.S)
    x.use(x.T, (x.alloc(x.S), READ))                    # T is ordered after the allocation of both
    for before in (READ, WRITE):
        x.use(x.S, (block, before))
    window = x.prepare(x.S, (block, access))
    other = x.use(x.T, (block, READ))
    window.commit()
    assert ("has-read", x.T.id) in block.frontier
    x.use(x.U, (block, WRITE))
    assert x.ordered(other, x.U)


def test_two_windows_of_one_stream(four):
    """A read that is filed inside a write's window comes before the write's position, which stands for it."""
    x = four()
    block = x.alloc(x.S)
    x.use(x.S, (block, WRITE))
    window = x.prepare(x.S, (block, WRITE))
    read = x.use(x.S, (block, READ))
    window.commit()
    assert block.frontier.keys() == {("written", x.S.id)}
    x.use(x.T, (block, WRITE))
    assert x.ordered(read, x.T)


@pytest.mark.parametrize("first", ["outer", "inner"])
def test_launches_that_overlap(four, first):
    """Each is filed at its own position, also where the other was prepared or filed in between."""
    x = four()
    blocks = [x.alloc(x.S) for _ in range(4)]
    for _ in range(2):
        for block in blocks:
            x.use(x.S, (block, WRITE))
            x.use(x.S, (block, READ))
    last = max(position for block in blocks for position in block.frontier.values())
    outer = x.prepare(x.S, (blocks[0], WRITE), (blocks[1], READ))
    inner = x.prepare(x.S, (blocks[2], WRITE), (blocks[3], READ))
    for window in (outer, inner) if first == "outer" else (inner, outer):
        window.commit()
    for place in (0, 2):
        position = last + 1 + ((place == 0) != (first == "outer"))
        assert blocks[place].frontier == {("written", x.S.id): position}
        assert blocks[place + 1].frontier["has-read", x.S.id] == position


@pytest.mark.parametrize("access", [READ, WRITE])
@pytest.mark.parametrize("count", [1, 3])
def test_blocks_that_are_freed_inside_the_window(four, access, count):
    """The close of the launch frees them."""
    x = four()
    blocks = [x.alloc(x.S) for _ in range(count)]
    for block in blocks:
        x.use(x.S, (block, access))
    window = x.prepare(x.S, *((block, access) for block in blocks))
    blocks[-1].free()
    assert blocks[-1].state.value == "retired"
    window.commit()
    assert blocks[-1].state.value == "freed"


def test_a_block_is_named_twice(four):
    """Both accesses count, and a block is counted once: it can be freed afterwards."""
    x = four()
    block, other = x.alloc(x.S), x.alloc(x.S)
    with use(x.S, read=[block, other, block], write=[block]):
        pass
    assert block.frontier.keys() == {("written", x.S.id)}
    assert other.frontier.keys() == {("allocated", x.S.id), ("has-read", x.S.id)}
    for one in (block, other):
        one.free()
        assert one.state.value == "freed"


def test_a_refused_launch_leaves_no_window(four):
    """A stale block behind others that were plain."""
    x = four()
    blocks = [x.alloc(x.S) for _ in range(3)]
    recorder = x.recorder(x.S, *((block, WRITE) for block in blocks))
    blocks[2].free()
    with pytest.raises(UseAfterFreeError):
        recorder.preflight()
    for block in blocks[:2]:
        assert block.frontier.keys() == {("allocated", x.S.id)}
        block.free()
        assert block.state.value == "freed"


def test_an_opaque_stream_keeps_its_entries(four):
    x = four(opaque="S")
    block = x.alloc(x.S)
    for _ in range(2):
        x.use(x.S, (block, WRITE))
    assert block.frontier.keys() == {("allocated", x.S.id), ("written", x.S.id)}


def test_more_entries_than_lie_in_the_block(four):
    """Of ten streams, twice: the entries move to memory of their own, and all are waited for."""
    x = four()
    streams = [x.runtime.acquire_stream() for _ in range(10)]
    block = x.alloc(x.S)
    for _ in range(2):
        reads = [x.use(stream, (block, READ)) for stream in streams]
        assert {key for key in block.frontier if key[0] == "has-read"} == {("has-read", s.id) for s in streams}
        x.use(x.U, (block, WRITE))
        assert all(x.ordered(read, x.U) for read in reads)
        assert block.frontier.keys() == {("written", x.U.id)}
