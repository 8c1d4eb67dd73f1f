"""Streams that change their discipline."""
from __future__ import annotations

import itertools

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import NON_BLOCKING, ForeignStream, foreign
from four_streams import READ, WRITE

from xlogmem import (
    PoolMemoryResource,
    StreamMisuseError,
)
from xlogmem.sim.kernels import check


@pytest.mark.simulator
def test_another_discipline_is_the_same_registration(four, driver):
    x = four()
    owner, S = foreign(x)
    b = x.alloc(S)
    fill = x.work(S, (b, WRITE))
    assert x.runtime.register_stream(owner, discipline="opaque") == S
    assert S.registered
    assert S.discipline == "opaque"
    assert x.runtime.register_stream(owner) == x.runtime.register_stream(S, discipline="opaque") == S
    x.use(x.T, (b, READ))
    assert x.ordered(fill, x.T)
    with x.recorder(S, (b, READ)), pytest.raises(StreamMisuseError, match="in use while changing its discipline"):
        x.runtime.register_stream(owner, discipline="sealed")
    b.free()
    for what in (owner, S):
        with pytest.raises(ValueError, match="discipline"):
            x.runtime.register_stream(what, discipline="careless")
    for own in (x.T, x.T.handle):
        with pytest.raises(StreamMisuseError, match="keep their discipline"):
            x.runtime.register_stream(own, discipline="opaque")
    x.runtime.unregister_stream(S)
    with pytest.raises(StreamMisuseError, match="unregistered while changing its discipline"):
        x.runtime.register_stream(S, discipline="sealed")


def covered_so_far(x, stream):
    """There is a fence for what was recorded there; what is queued later needs another one."""
    block = x.alloc(stream)
    x.use(x.V, (block, READ))
    block.free()


DISCIPLINES = ("ordinary", "opaque", "sealed")


@pytest.mark.simulator
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("last", [READ, WRITE])
@pytest.mark.parametrize("first", ["allocated", "written", "read", "elsewhere", "replaced"])
def test_what_a_discipline_allowed_is_waited_for_under_another(four, first, last, registered):
    """Whatever disciplines the stream has one after the other: the work that each of them hides comes before T's."""
    x = four()
    for chain in itertools.product(DISCIPLINES, repeat=4):
        owner, S = foreign(x)
        block = x.alloc(x.T if first == "elsewhere" else S)
        if first in ("written", "read"):
            x.use(S, (block, WRITE if first == "written" else READ))
        elif first == "replaced":                       # by a writer: S, where it will be freed, has no entry
            x.use(x.U, (block, WRITE))
            check(cuda.cuStreamSynchronize(x.U.handle))
        hidden = []
        for turn, discipline in enumerate(chain):
            x.runtime.register_stream(owner, discipline=discipline)
            covered_so_far(x, S)
            if first == "elsewhere" and turn == 0:
                x.use(S, (block, READ))
            if discipline == "opaque" or (discipline == "ordinary" and first not in ("elsewhere", "replaced")):
                hidden.append(x.work(S, (block, WRITE)))
            elif turn:
                x.use(S, (block, READ))                 # what is recorded here replaces no older entry that hides work
        if not registered:
            x.runtime.unregister_stream(owner)
        x.use(x.T, (block, last))
        for operation in hidden:
            assert x.ordered(operation, x.T), chain
        block.free()


@pytest.mark.simulator
@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(DISCIPLINES, 2)))
def test_a_discipline_that_changes_inside_a_window(four, before, after):
    """A writer removes the entries that it was ordered after, and not what was hidden behind them meanwhile."""
    x = four()
    owner, S = foreign(x)
    x.runtime.register_stream(owner, discipline=before)
    block = x.alloc(x.U)
    x.use(S, (block, WRITE))
    covered_so_far(x, S)
    with x.recorder(x.T, (block, WRITE)):
        hidden = [x.work(S, (block, READ))] if before == "opaque" else []
        x.runtime.register_stream(owner, discipline=after)
    hidden += [x.work(S, (block, READ))] if after == "opaque" else []
    x.use(x.U, (block, WRITE))
    assert all(x.ordered(operation, x.U) for operation in hidden)
    check(cuda.cuCtxSynchronize())
    x.driver.clear_races()                              # of hidden readers and T's writer, which is theirs to order


@pytest.mark.simulator
def test_an_opaque_successor_may_have_unrecorded_work_as_on_its_own_blocks(four):
    x = four(opaque="S")
    owner, former = foreign(x)
    block = x.alloc(former)
    x.use(x.T, (block, WRITE))
    x.runtime.unregister_stream(owner, successor=x.S)
    x.use(x.T, (block, WRITE))                          # with a hand-back to the successor
    late = x.work(x.S, (block, WRITE))
    x.use(x.T, (block, WRITE))
    assert x.ordered(late, x.T)
    block.free()


@pytest.mark.simulator
@pytest.mark.parametrize("how", ["use", "free", "drop"])
@pytest.mark.parametrize("policy", ["adaptive", "precise", "lazy"])
def test_a_raw_stream_that_changed_its_discipline_may_be_destroyed(four, policy, how):
    """As before: what was recorded there is covered by a fence that is there."""
    x = four(policy=policy)
    stream = check(cuda.cuStreamCreate(NON_BLOCKING))
    S = x.runtime.register_stream(int(stream))
    block = x.alloc(x.T)
    wrote = x.use(S, (block, WRITE))
    x.runtime.register_stream(int(stream), discipline="sealed")
    check(cuda.cuStreamDestroy(stream))
    if how == "use":
        x.use(x.T, (block, READ))
        block.free()
    elif how == "free":
        block.free()
    else:
        del block
        x.runtime.reap_pending()
    assert x.ordered(wrote, x.T)
    x.runtime.reap_pending()


@pytest.mark.simulator
def test_a_sealed_free_hands_over_what_was_hidden_before(four):
    """Into a pool, which gives the bytes to another stream: its own entries are not enough for what came before."""
    x = four(resource=PoolMemoryResource(maximum_pool_size=1024))
    owner, S = foreign(x)
    block = x.alloc(S)
    covered_so_far(x, S)
    x.alloc(x.V).free()                                 # the other half of the pool is V's, which is not done with it
    fill = x.work(S, (block, WRITE))
    x.runtime.register_stream(owner, discipline="sealed")
    block.free()
    again = x.alloc(x.T)
    assert x.ordered(fill, x.T)
    again.free()


@pytest.mark.simulator
def test_a_stream_of_many_disciplines_keeps_one_place(four):
    x = four()
    owner, _S = foreign(x)
    block = x.alloc(x.S)
    places = x.runtime.stream_count()
    for turn in range(300):
        x.use(x.runtime.register_stream(owner, discipline=DISCIPLINES[turn % 3]), (block, READ))
    assert x.runtime.stream_count() == places
    assert len(block.frontier) == 3
    block.free()


@pytest.mark.simulator
def test_an_opaque_stream_stays_opaque(four, driver):
    x = four()
    opaque = ForeignStream()
    x.runtime.register_stream(opaque.handle, discipline="opaque")
    others = [ForeignStream() for _ in range(80)]
    for other in others:
        x.runtime.register_stream(other)
    assert x.runtime.register_stream(opaque.handle).discipline == "opaque"
