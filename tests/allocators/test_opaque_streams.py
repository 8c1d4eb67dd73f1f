"""The table of the streams on which a library allocates: they come and go, and none is taken for another."""
from __future__ import annotations

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from other_threads import Beside

from xlogmem import StreamMisuseError, use
from xlogmem.allocators._opaque import SWEEP_AT, OpaqueStreams
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator


@pytest.fixture
def streams():
    return OpaqueStreams()


def test_streams_come_and_go_and_those_in_use_stay(x, streams, driver):
    """A program that makes a stream for each request, and keeps one."""
    kept = ForeignStream()
    block = x.runtime.allocate(64, streams.find(x.runtime, kept))
    before = driver.live_streams()
    for _ in range(5 * SWEEP_AT):
        owner = ForeignStream()
        x.runtime.allocate(64, streams.find(x.runtime, owner)).free()
        assert streams.find(x.runtime, owner).handle == owner.handle
    assert len(streams) <= SWEEP_AT
    assert driver.live_streams() <= before + SWEEP_AT
    known = streams.find(x.runtime, kept)
    assert known.registered
    assert known == block.stream
    block.free()


def test_memory_of_a_stream_that_went_is_freed_after_its_work(x, streams):
    owner = ForeignStream()
    block = x.runtime.allocate(512, streams.find(x.runtime, owner))
    x.kernels.fill(owner.handle, block.ptr, 1, 1)       # unrecorded
    del owner
    streams.sweep()
    assert len(streams) == 0
    with use(x.T, read_write=block):
        x.kernels.add(x.T.handle, block.ptr, 1, 1)
    block.free()                                        # the twin is in the driver: a race fails any test


def test_without_the_wait_for_a_stream_that_went_there_is_a_race(x, streams, driver):
    owner = ForeignStream()
    block = x.runtime.allocate(512, streams.find(x.runtime, owner))
    x.kernels.fill(owner.handle, block.ptr, 1, 1)
    del owner
    streams.sweep()
    driver.drop("cuStreamWaitEvent")
    with use(x.T, read_write=block):
        x.kernels.add(x.T.handle, block.ptr, 1, 1)
    assert driver.races()
    driver.clear_races()
    check(cuda.cuCtxSynchronize())
    block.free()


def test_what_cannot_be_unregistered_now_is_looked_at_again(x, streams):
    owner = ForeignStream()
    stream = streams.find(x.runtime, owner)
    block = x.runtime.allocate(64, stream)
    with use(stream, write=block):
        del owner
        streams.sweep()
        assert stream.registered
        assert len(streams) == 1
    streams.sweep()
    assert not stream.registered
    assert len(streams) == 0


def test_a_stream_that_the_program_unregistered_is_registered_anew(x, streams):
    owner = ForeignStream()
    first = streams.find(x.runtime, owner)
    x.runtime.unregister_stream(owner)
    second = streams.find(x.runtime, owner)
    assert (first.registered, second.registered, second.discipline) == (False, True, "opaque")
    x.runtime.unregister_stream(owner)
    streams.sweep()
    assert len(streams) == 0


def test_the_program_may_name_another_discipline(x, streams):
    owner = ForeignStream()
    streams.find(x.runtime, owner)
    x.runtime.register_stream(owner, discipline="sealed")
    assert streams.find(x.runtime, owner).discipline == "sealed"


@pytest.mark.parametrize("discipline", ["ordinary", "sealed", "opaque"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_discipline_that_the_program_names_stays(x, streams, discipline, when):
    """... whether it names that before the library first allocates there, or after; unnamed, the stream is opaque."""
    owner = ForeignStream()
    if when == "after":
        assert streams.find(x.runtime, owner).discipline == "opaque"
    x.runtime.register_stream(owner, discipline=discipline)
    assert streams.find(x.runtime, owner).discipline == discipline
    x.runtime.allocate(64, streams.find(x.runtime, owner)).free()
    assert x.runtime.register_stream(owner).discipline == discipline


def test_a_stream_that_the_program_registers_without_a_discipline_becomes_opaque(x, streams):
    owner = ForeignStream()
    assert x.runtime.register_stream(owner).discipline == "ordinary"
    assert streams.find(x.runtime, owner).discipline == "opaque"


def test_an_object_that_owns_no_stream_is_not_kept(x, streams):
    """Its handle may be another stream's tomorrow."""
    external = type("ExternalStream", (), {"__cuda_stream__": lambda self: (0, self.handle)})()
    stream = check(cuda.cuStreamCreate(1))
    external.handle = int(stream)
    assert streams.find(x.runtime, external).discipline == "opaque"
    assert len(streams) == 0
    x.runtime.unregister_stream(external)
    check(cuda.cuStreamDestroy(stream))


def test_own_streams_and_sealed_ones_keep_their_discipline(x, streams):
    external = type("ExternalStream", (), {"__cuda_stream__": lambda self: (0, x.S.handle)})()
    assert streams.find(x.runtime, external) == x.S
    assert x.S.discipline == "ordinary"
    owner = ForeignStream()
    x.runtime.register_stream(owner, discipline="sealed")
    assert streams.find(x.runtime, owner).discipline == "sealed"


def test_threads_that_make_and_drop_streams_share_a_table(x, streams, _busy_interpreter):
    context = check(cuda.cuCtxGetCurrent())

    def work():
        check(cuda.cuCtxSetCurrent(context))
        for _ in range(2 * SWEEP_AT):
            owner = ForeignStream()
            x.runtime.allocate(64, streams.find(x.runtime, owner)).free()
            assert streams.find(x.runtime, owner).handle == owner.handle

    for thread in [Beside(work) for _ in range(4)]:
        thread.result()
    streams.sweep()
    assert len(streams) == 0


def test_default_streams_are_named_by_their_objects(x, streams):
    for handle in (0, 1, 2):
        owner = type("Default", (), {"__cuda_stream__": lambda self, handle=handle: (0, handle)})()
        assert streams.find(x.runtime, owner) is owner
    assert len(streams) == 0


def test_a_stream_of_another_runtime_is_not_taken(x, four, streams):
    owner = ForeignStream()
    first = streams.find(x.runtime, owner)
    other = four()
    second = streams.find(other.runtime, owner)
    assert first.ordering is not second.ordering
    with pytest.raises(StreamMisuseError, match="another runtime"):
        x.runtime.allocate(64, second)
