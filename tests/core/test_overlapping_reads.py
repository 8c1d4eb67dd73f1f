"""Launches that read a block of another stream: at the same time, and without a wait."""
from __future__ import annotations

import pytest
from four_streams import READ, READ_WRITE, WRITE

from xlogmem import StreamMisuseError, use
from xlogmem.observe.history import record_history

pytestmark = pytest.mark.simulator


@pytest.fixture
def x(four):
    return four(policy="lazy")


def written(x, count=1):
    """Blocks that S has written, and that T, U and V were ordered after."""
    blocks = [x.alloc(x.S) for _ in range(count)]
    x.use(x.S, *[(block, WRITE) for block in blocks])
    for stream in (x.T, x.U, x.V):
        for _ in range(2):
            x.use(stream, *[(block, READ) for block in blocks])
    return blocks


def test_a_read_that_is_ordered_waits_for_nothing_and_is_counted(x):
    blocks = written(x, 4)
    before, waits = x.runtime.counters(), x.waits()
    x.use(x.T, *[(block, READ) for block in blocks])
    after = x.runtime.counters()
    assert (x.waits(), after["uses"] - before["uses"]) == (waits, 1)
    assert after["known"] - before["known"] == 4      # a wait for S, for each block


def test_a_refused_launch_counts_no_wait_that_was_left_out(x):
    """The last of five blocks was freed: nothing was opened."""
    blocks = written(x, 5)
    blocks[-1].free()
    before = x.runtime.counters()
    recorder = x.recorder(x.T, *[(block, READ) for block in blocks])
    with pytest.raises(Exception, match="freed"):
        recorder.preflight()
    after = x.runtime.counters()
    assert (after["known"], after["uses"]) == (before["known"], before["uses"])
    for block in blocks[:-1]:
        block.free()                                    # no window is open
    assert x.runtime.live_bytes == 0


def test_what_a_read_on_another_stream_has_filed_is_waited_for(x):
    (block,) = written(x)
    reads = {stream: x.use(stream, (block, READ)) for stream in (x.T, x.U)}
    x.use(x.S, (block, WRITE))
    assert all(x.ordered(read, x.S) for read in reads.values())


def test_readers_overlap_and_a_writer_waits_for_all_of_them(x):
    (block,) = written(x)
    first, second = x.prepare(x.T, (block, READ)), x.prepare(x.U, (block, READ))
    reads = x.work(x.T, (block, READ)), x.work(x.U, (block, READ))
    second.commit()
    with pytest.raises(StreamMisuseError, match="in another use"), use(x.S, write=block, on_conflict="raise"):
        pass
    first.commit()
    x.use(x.S, (block, WRITE))                          # the windows of both are closed
    assert all(x.ordered(read, x.S) for read in reads)


def test_a_read_beside_an_open_write_is_a_conflict(x):
    """... although T is ordered after all that was filed."""
    (block,) = written(x)
    write = x.prepare(x.S, (block, WRITE))
    with pytest.raises(StreamMisuseError, match="in another use"), use(x.T, read=block, on_conflict="raise"):
        pass
    work = x.work(x.S, (block, WRITE))
    write.commit()
    x.use(x.T, (block, READ))
    assert x.ordered(work, x.T)


@pytest.mark.parametrize("second", [READ, READ_WRITE])
def test_a_block_that_is_named_twice_is_one_use(x, second):
    """... also while others read it."""
    (block,) = written(x)
    other = x.prepare(x.U, (block, READ), on_conflict="count")
    with record_history() as recording:
        launch = x.prepare(x.T, (block, READ), (block, second), on_conflict="count")
        work = x.work(x.T, (block, second))
        launch.commit()
    other.commit()
    uses = [event for event in recording.events() if event.kind == "use" and event.generation == block.generation]
    assert len(uses) == 1
    x.use(x.S, (block, WRITE))
    assert x.ordered(work, x.S)


def test_a_read_of_what_is_filled_meanwhile_waits(x):
    """The clock of T covers the entry of S, but S may have filled the new block since."""
    block, other = x.alloc(x.S), x.alloc(x.S)
    x.use(x.S, (block, WRITE), (other, WRITE))
    x.use(x.T, (other, READ))                           # T is ordered after both
    fill = x.work(x.S, (block, WRITE))
    x.use(x.T, (block, READ))
    assert x.ordered(fill, x.T)
