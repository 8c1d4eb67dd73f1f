"""A pool that serves streams which are given as bare handles: they may be destroyed at any time.

What such a stream has freed since its last fence can only be waited for with the whole context.  So it is kept apart
from what other streams can wait for, and the pool expands only when there is nothing else.
"""
from __future__ import annotations

import random

import pytest
from c_table import Hold, Refused
from cuda.bindings import driver as cuda
from pools import Counted

from xlogmem import DeviceRuntime, PoolMemoryResource
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
MIB = 1 << 20
FENCED, UNFENCED = 64 * MIB, 8 * MIB                    # a free of as much has a fence at once, or has none


class Served:
    """A pool of chunks of 128 MiB, and what the driver does for it from now on."""

    def __init__(self, driver, upstream=None) -> None:
        self.driver, self.runtime = driver, DeviceRuntime(resource=PoolMemoryResource(upstream, chunk_size=128 * MIB))
        self.hold, self.held = Hold(self.runtime), []
        self.before = self.calls()

    def calls(self) -> tuple[int, int]:
        return self.driver.calls("cuStreamWaitEvent"), self.driver.calls("cuCtxSynchronize")

    def allocate(self, nbytes: int, stream: int) -> int:
        self.held.append((self.hold.allocate(nbytes, stream), stream))
        return self.held[-1][0]

    def free(self, ptr: int, stream: int) -> None:
        self.held.remove((ptr, stream))
        self.hold.free(ptr, stream)

    def seen(self) -> tuple[int, int, int]:
        """Chunks, waits of streams, and waits for the whole context."""
        waits, syncs = (after - before for after, before in zip(self.calls(), self.before, strict=True))
        return self.runtime.resource.statistics()["chunks"], waits, syncs

    def close(self) -> None:
        for ptr, stream in self.held:
            self.hold.free(ptr, stream)
        self.runtime.reap_pending()                     # drops the exceptions of `Counted`, and what they refer to
        self.hold.close()


@pytest.fixture
def served(driver, foreign):                            # whose streams outlive it
    made = []

    def make(upstream=None) -> Served:
        made.append(Served(driver, upstream))
        return made[-1]

    yield make
    while made:
        made.pop().close()


def test_a_pool_waits_on_the_device_for_bare_handles_which_have_a_fence_for_sixteen_frees(foreign, driver):
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=64 * MIB))
    hold, one, other = Hold(runtime), foreign(), foreign()
    for _ in range(4):
        for ptr in [hold.allocate(MIB, one) for _ in range(16)]:
            hold.free(ptr, one)
    assert driver.calls("cuEventRecord") == 1 + 4       # the first for the rest of the chunk
    syncs = driver.calls("cuCtxSynchronize")
    held = [hold.allocate(MIB, other) for _ in range(20)]
    assert (driver.calls("cuStreamWaitEvent"), driver.calls("cuCtxSynchronize")) == (1, syncs)
    for ptr in held:
        hold.free(ptr, other)
    hold.close()


@pytest.mark.parametrize("room", [True, False])
def test_memory_of_a_bare_handle_without_a_fence_is_left_alone_while_there_is_other(foreign, driver, room):
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=8 * MIB,
                                                        maximum_pool_size=None if room else 8 * MIB))
    hold, one, other = Hold(runtime), foreign(), foreign()
    hold.free(hold.allocate(8 * MIB, one), one)         # the stream may be destroyed from here on
    syncs = driver.calls("cuCtxSynchronize")
    ptr = hold.allocate(8 * MIB, other)
    assert driver.calls("cuEventRecord") == 2           # for each chunk; where there is a maximum, for each free too
    assert driver.calls("cuStreamWaitEvent") == (0 if room else 1)
    assert driver.calls("cuCtxSynchronize") == syncs
    hold.free(ptr, other)
    hold.close()


def test_what_is_freed_without_a_fence_does_not_keep_back_its_neighbours(served, foreign):
    x, one, other = served(), foreign(), foreign()
    large, small = x.allocate(FENCED, one), x.allocate(UNFENCED, one)
    x.free(large, one)
    x.free(small, one)
    x.allocate(FENCED, other)
    assert x.seen() == (1, 1, 0)


def test_a_larger_span_that_can_be_waited_for_comes_before_a_new_chunk(served, foreign):
    x, one, other = served(), foreign(), foreign()
    sizes = UNFENCED, MIB, FENCED, 128 * MIB - UNFENCED - MIB - FENCED
    small, _, large, _ = (x.allocate(nbytes, one) for nbytes in sizes)
    x.free(large, one)
    x.free(small, one)                                  # the tighter fit
    x.allocate(UNFENCED, other)
    assert x.seen() == (1, 1, 0)


def test_the_stream_itself_gets_both_in_one_piece(served, foreign):
    x, one = served(), foreign()
    large, small = x.allocate(FENCED, one), x.allocate(128 * MIB - FENCED, one)
    x.free(small, one)                                  # with a fence
    x.free(large, one)
    small = x.allocate(UNFENCED, one)
    x.free(small, one)
    x.allocate(128 * MIB, one)
    assert x.seen() == (1, 0, 0)


def test_where_upstream_has_no_more_a_reap_helps(served, foreign):
    x, one, other = served(Counted(128 * MIB)), foreign(), foreign()
    rest = 128 * MIB - MIB - UNFENCED
    _, large, small = (x.allocate(nbytes, one) for nbytes in (MIB, rest, UNFENCED))
    x.free(large, one)
    x.free(small, one)
    with pytest.raises(Refused, match=r"reap_pending\(\) may wait for more"):
        x.allocate(rest + UNFENCED, other)
    x.runtime.reap_pending()
    x.allocate(rest + UNFENCED, other)
    assert x.seen()[0] == 1


def test_a_request_that_is_refused_takes_nothing_from_others(served, foreign):
    """Nor does the trim of the whole pool that goes with it, nor one that no pool could have."""
    x, a, b, c = served(Counted(128 * MIB)), foreign(), foreign(), foreign()
    large, small = x.allocate(128 * MIB - UNFENCED, a), x.allocate(UNFENCED, a)
    x.free(large, a)
    x.free(small, a)
    with pytest.raises(Refused):
        x.allocate(1 << 40, c)
    with pytest.raises(Refused, match=r"reap_pending\(\) may wait for more"):
        x.allocate(128 * MIB, c)
    for _ in range(3):
        x.allocate(32 * MIB, c)
    assert x.seen() == (1, 1, 0)
    large = x.allocate(UNFENCED, b)
    x.free(large, b)                                    # without a fence, beside memory of `a` and `c`
    with pytest.raises(Refused):
        x.allocate(128 * MIB, c)
    x.allocate(8 * MIB, c)
    assert x.seen()[0] == 1


def test_a_request_is_refused_again_after_a_reap(served, foreign):
    """What the host has seen complete is left out of one frontier, and still in another."""
    x, a, b, c = served(Counted(128 * MIB)), foreign(), foreign(), foreign()
    _, first, second = x.allocate(128 * MIB - 2 * UNFENCED, c), x.allocate(UNFENCED, a), x.allocate(UNFENCED, b)
    x.free(first, a)
    with pytest.raises(Refused, match=r"reap_pending\(\) may wait for more"):
        x.allocate(UNFENCED, c)
    x.runtime.reap_pending()
    x.free(second, b)
    with pytest.raises(Refused, match=r"reap_pending\(\) may wait for more"):
        x.allocate(12 * MIB, c)
    x.allocate(UNFENCED, c)


def test_a_stream_gets_one_place_in_one_piece_and_leaves_the_others(served, foreign):
    x, one, other = served(), foreign(), foreign()
    blocks = [(x.allocate(128 * MIB - UNFENCED // 4, one), x.allocate(UNFENCED // 4, one)) for _ in range(4)]
    for half in range(2):
        for pair in blocks:
            x.free(pair[half], one)
    x.allocate(128 * MIB, one)
    for _ in range(3):
        x.allocate(100 * MIB, other)
    assert x.seen()[0] == 4


def test_the_rest_of_what_a_stream_took_from_others_stays_in_their_reach(served, foreign):
    x, a, b, taker, other = served(Counted(128 * MIB)), foreign(), foreign(), foreign(), foreign()
    first, second = x.allocate(64 * MIB, a), x.allocate(64 * MIB, b)
    x.free(first, a)
    x.free(second, b)
    x.allocate(65 * MIB, taker)                         # after both
    x.allocate(32 * MIB, other)
    assert x.seen()[0] == 1


def test_a_pool_stays_small_where_streams_come_and_go(served):
    """As under engines that make streams for themselves: each is used a little, and destroyed with its last frees
    behind no fence."""
    x, chance = served(), random.Random(1)
    for _ in range(4):
        handles = [int(check(cuda.cuStreamCreate(1))) for _ in range(16)]
        live, nbytes = [], 0
        for _ in range(1500):
            stream, wanted = chance.choice(handles), MIB * chance.choice((1, 1, 4, 30, 120)) // chance.choice((1, 64))
            while live and nbytes + wanted > 1500 * MIB:
                ptr, home, freed = live.pop(chance.randrange(len(live)))
                x.free(ptr, home)
                nbytes -= freed
            live.append((x.allocate(wanted, stream), stream, wanted))
            nbytes += wanted
        for ptr, home, _ in live:
            x.free(ptr, home)
        for handle in handles:
            check(cuda.cuStreamDestroy(handle))
    figures = x.runtime.resource.statistics()
    assert figures["pool_size"] < 2.5 * figures["peak_bytes"]
    x.runtime.reap_pending()                            # nothing is behind the destroyed streams any more
