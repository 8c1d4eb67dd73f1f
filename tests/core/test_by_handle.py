"""Callers of the C table on a stream that has a cache, where the cache does not have what they want."""
from __future__ import annotations

import pytest
from c_table import Hold, Refused
from cuda.bindings import driver as cuda
from foreign_streams import foreign
from four_streams import WRITE

from xlogmem import PoolMemoryResource, use
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
KIB = 1 << 10
ROOM = 64 << 20


@pytest.fixture
def x(four):
    return four(resource=PoolMemoryResource(initial_pool_size=ROOM, maximum_pool_size=ROOM))


@pytest.fixture
def hold(x):
    """One through which S and T are known; each has memory of its own in the pool, and 1 KiB in its cache."""
    hold = Hold(x.runtime)
    streams = (x.S.handle, x.T.handle)
    for nbytes in (ROOM // 4, KIB, KIB, KIB):
        for ptr, stream in [(hold.allocate(nbytes, stream), stream) for stream in streams]:
            hold.free(ptr, stream)
    yield hold
    hold.close()


def made_by(driver, call, *arguments):
    before = driver.all_calls()
    result = call(*arguments)
    after = driver.all_calls()
    return result, {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}


def test_the_only_driver_call_is_the_query_of_the_capture(x, hold, driver):
    for nbytes in range(3 * KIB, 40 * KIB, KIB):                # sizes that no cache has
        ptr, calls = made_by(driver, hold.allocate, nbytes, x.S.handle)
        assert calls == {"cuStreamIsCapturing": 1}
        _, calls = made_by(driver, hold.free, ptr, x.S.handle)
        assert calls == {}
    assert x.runtime.live_bytes == 0


def test_a_free_elsewhere_moves_the_home(x, hold):
    ptr = hold.allocate(3 * KIB, x.S.handle)
    hold.free(ptr, x.T.handle)
    late = x.work(x.T)                                          # T may still be at it
    again = hold.allocate(3 * KIB, x.S.handle)
    assert again != ptr or x.ordered(late, x.S)
    hold.free(again, x.S.handle)


def test_memory_of_another_stream_is_waited_for(x, hold, driver):
    rest = x.alloc(x.T, ROOM // 2)
    late = x.work(x.T, (rest, WRITE))
    rest.free()
    ptr = hold.allocate(ROOM // 2, x.S.handle)
    assert x.ordered(late, x.S)
    hold.free(ptr, x.S.handle)


def test_a_block_inside_a_window_is_freed_after_it(x, hold):
    ptr = hold.allocate(3 * KIB, x.S.handle)
    with use(x.S, write=ptr):
        hold.free(ptr, x.S.handle)
        assert x.runtime.live_bytes == 3 * KIB
    assert x.runtime.live_bytes == 0


def test_a_capturing_stream_is_refused(x, hold):
    check(cuda.cuStreamBeginCapture(x.S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(Refused, match="capturing"):
        hold.allocate(3 * KIB, x.S.handle)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.S.handle))))
    assert x.runtime.live_bytes == 0


def test_a_stream_that_was_unregistered_is_not_meant(x, hold):
    """Its cache was closed, and another stream has it by now."""
    owner, S = foreign(x)
    for nbytes in (ROOM // 8, KIB, KIB, 3 * KIB):
        hold.free(hold.allocate(nbytes, owner.handle), owner.handle)
    x.runtime.unregister_stream(S, successor=x.T)
    x.alloc(x.U, KIB).free()
    ptr = hold.allocate(3 * KIB, owner.handle)
    assert not S.registered
    hold.free(ptr, owner.handle)


def test_many_streams_are_known_at_once(x, hold):
    """Those whose handles meet in the table keep their places, as far as there are any."""
    streams = [foreign(x)[1] for _ in range(32)]

    def rounds(count):
        before = x.runtime.counters()["cached"]
        for _ in range(count):
            for stream in streams:
                hold.free(hold.allocate(KIB, stream.handle), stream.handle)
        return x.runtime.counters()["cached"] - before

    rounds(8)
    assert rounds(4) == 4 * len(streams)
