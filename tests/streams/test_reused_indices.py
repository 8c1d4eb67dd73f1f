"""Streams that take over the index of a dead one, and blocks that the dead one used."""
from __future__ import annotations

import threading

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import NON_BLOCKING, ForeignStream, foreign
from four_streams import READ, WRITE

from xlogmem import PoolMemoryResource
from xlogmem.sim.kernels import check


def used_by_a_dead_stream(x, access=WRITE):
    """A block of S with an entry of a stream that was unregistered, which the host has seen complete."""
    _owner, dead = foreign(x)
    block = x.alloc(x.S)
    x.use(dead, (block, access))
    x.runtime.unregister_stream(dead)
    x.runtime.reap_pending()
    return block


def taken_over(x, register):
    """What `register` does, which has to take over the index of a dead stream."""
    before = x.runtime.stream_count()
    result = register()
    assert x.runtime.stream_count() == before
    return result


@pytest.mark.simulator
@pytest.mark.parametrize("access", [READ, WRITE])
def test_a_stream_does_not_answer_for_the_one_before_it(four, access):
    """An opaque stream has the index: uses of the block neither record there nor wait, and a write drops the entry."""
    x = four()
    block = used_by_a_dead_stream(x)
    owner = ForeignStream()
    taken_over(x, lambda: x.runtime.register_stream(owner, discipline="opaque"))
    records, waits = x.records(), x.waits()
    for _ in range(3):
        x.use(x.S, (block, access))
    assert (x.records(), x.waits()) == (records, waits)
    assert len(block.frontier) <= 2
    x.use(x.S, (block, WRITE))
    assert block.frontier.keys() == {("written", x.S.id)}


@pytest.mark.simulator
def test_a_stream_that_was_destroyed_does_not_answer_for_the_one_before_it(four):
    x = four()
    block = used_by_a_dead_stream(x)
    stream = check(cuda.cuStreamCreate(NON_BLOCKING))
    taken_over(x, lambda: x.runtime.register_stream(int(stream), discipline="opaque"))
    check(cuda.cuStreamDestroy(stream))
    x.use(x.T, (block, READ))
    block.free()


@pytest.mark.simulator
def test_another_threads_default_stream_does_not_answer_for_the_one_before_it(four, driver):
    """The host would synchronize the context in each use."""
    x = four()
    block = used_by_a_dead_stream(x)
    context = check(cuda.cuCtxGetCurrent())
    done, go_on = threading.Event(), threading.Event()

    def other():
        check(cuda.cuCtxSetCurrent(context))
        x.runtime.allocate(64, 2).free()
        done.set()
        go_on.wait()

    thread = threading.Thread(target=other, daemon=True)
    taken_over(x, lambda: (thread.start(), done.wait()))
    before = driver.calls("cuCtxSynchronize")
    x.use(x.T, (block, READ))
    x.use(x.T, (block, WRITE))
    assert driver.calls("cuCtxSynchronize") == before
    go_on.set()
    thread.join()


@pytest.mark.simulator
def test_a_discipline_that_changes_says_nothing_about_the_stream_before(four):
    x = four()
    block = used_by_a_dead_stream(x)
    owner, _ = taken_over(x, lambda: foreign(x))
    for discipline in ("opaque", "sealed"):
        x.runtime.register_stream(owner, discipline=discipline)
        records, waits = x.records(), x.waits()
        x.use(x.S, (block, READ))
        assert (x.records(), x.waits()) == (records, waits)


@pytest.mark.simulator
def test_a_home_that_became_opaque_is_waited_for_beside_the_stream_before(four):
    """The block has an entry at the index of its home, which is not the home's."""
    x = four()
    _first, dead = foreign(x)
    _second, home = foreign(x)
    block = x.alloc(home)
    x.use(dead, (block, WRITE))
    x.runtime.unregister_stream(dead)
    del dead
    x.runtime.reap_pending()
    owner, successor = taken_over(x, lambda: foreign(x))
    x.runtime.unregister_stream(home, successor=successor)
    read = x.use(x.T, (block, READ))                    # the successor is the home from now on
    check(cuda.cuStreamSynchronize(x.T.handle))
    x.runtime.register_stream(owner, discipline="opaque")
    late = x.work(successor, (block, WRITE))
    x.use(x.U, (block, WRITE))
    assert x.ordered(late, x.U)
    assert x.ordered(read, x.U)


@pytest.mark.simulator
def test_a_chunk_is_not_returned_on_a_stream_that_has_nothing_to_do_with_it(four):
    """The frontier of the free memory has the index of a stream that is capturing, and means the one before it."""
    pool = PoolMemoryResource(chunk_size=1024)
    x = four(resource=pool)
    _owner, dead = foreign(x)
    x.alloc(dead).free()
    x.runtime.unregister_stream(dead)
    del dead
    x.runtime.reap_pending()
    _owner, successor = taken_over(x, lambda: foreign(x))
    check(cuda.cuStreamBeginCapture(successor.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    assert pool.trim() > 0
    assert pool.pool_size() == 0
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(successor.handle))))


@pytest.mark.simulator
def test_an_index_has_many_streams_one_after_the_other(four):
    """Of each the work is waited for as long as it is not complete, and later it is not."""
    x = four()
    blocks = [x.alloc(x.S) for _ in range(5)]
    counts = set()
    for turn, block in enumerate(blocks):
        owner = ForeignStream()
        stream = x.runtime.register_stream(owner, discipline="opaque")
        write = x.work(stream, (block, WRITE)) if turn % 2 else x.use(stream, (block, WRITE))
        if turn % 2:
            x.runtime.record_block_use(block, stream)
        x.use(x.T, (block, READ))
        assert x.ordered(write, x.T)
        waits = x.waits()
        for earlier in blocks[:turn]:
            x.use(x.S, (earlier, READ))
        assert x.waits() == waits
        x.runtime.unregister_stream(stream)
        del stream
        x.runtime.reap_pending()
        counts.add(x.runtime.stream_count())
    assert len(counts) == 1
