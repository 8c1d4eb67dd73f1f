"""Streams that come and go, and whose owners go."""
from __future__ import annotations

import threading

import pytest
from cuda.bindings import driver as cuda
from foreign_streams import NON_BLOCKING, ForeignStream
from four_streams import READ, READ_WRITE, WRITE

from xlogmem import (
    DeviceRuntime,
    use,
)
from xlogmem.sim.kernels import check


class Named:
    """Names a stream, as Numba's ``external_stream`` does, and does not keep it alive."""

    external = True

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def synchronize(self) -> None: ...


ExternalStream = type("ExternalStream", (Named,), {"external": None})   # CuPy's and PyTorch's class is called that


@pytest.mark.simulator
@pytest.mark.parametrize("kind", [Named, ExternalStream, int])
def test_an_object_that_only_names_a_stream_keeps_none_alive(four, driver, kind):
    """The registry's sweep queries streams that only it holds; these may be destroyed, and a query would crash."""
    x = four()
    block = x.alloc(x.S)
    streams = [check(cuda.cuStreamCreate(NON_BLOCKING)) for _ in range(40)]
    for stream in streams[:20]:
        x.use(x.runtime.register_stream(kind(int(stream))), (block, READ))
    for stream in streams[:20]:
        check(cuda.cuStreamDestroy(stream))
    for stream in streams[20:]:
        x.use(x.runtime.register_stream(kind(int(stream))), (block, READ))
    x.use(x.T, (block, WRITE))                          # by fences that are there
    for stream in streams[20:]:
        check(cuda.cuStreamDestroy(stream))
    block.free()
    x.runtime.reap_pending()
    assert driver.races() == []


@pytest.mark.simulator
def test_unregistered_streams_release_their_places(four, driver):
    """A thousand short-lived streams, each used: the tables do not grow, old positions keep their meaning."""
    x = four()
    b = x.alloc(x.S)
    for turn in range(1000):
        owner = ForeignStream()
        T = x.runtime.register_stream(owner)
        with use(T, read_write=b):
            x.kernels.add(T.handle, b.ptr, 1, 1)
        x.runtime.unregister_stream(T)
        owner.destroy()
        del T
        if turn % 10 == 9:
            x.runtime.reap_pending()
    assert not driver.races()
    x.use(x.V, (b, READ_WRITE))
    assert not driver.races()
    assert x.runtime.stream_count() < 40


@pytest.mark.simulator
@pytest.mark.parametrize("foreign_streams", [1, 4])
def test_random_lives_of_streams(four, driver, foreign_streams):
    """Register, use, unregister and destroy in random order: no race, whatever the order."""
    import random

    x = four()
    rng = random.Random(foreign_streams)
    owners, blocks = [], []
    for _ in range(1500):
        if len(owners) < foreign_streams:
            owners.append(ForeignStream())
        streams = [x.S, x.T, *owners]
        action = rng.randrange(6)
        if action == 0:
            blocks.append(x.runtime.allocate(256, rng.choice(streams)))
        elif action in (1, 2, 3) and blocks:
            stream, block = rng.choice(streams), rng.choice(blocks)
            handle = x.runtime.register_stream(stream).handle
            write = rng.random() < 0.5
            with use(stream, **{"read_write" if write else "read": block}):
                if write:
                    x.kernels.add(handle, block.ptr, 1, 1)
                else:
                    x.kernels.count_unequal(handle, x.next_word(), block.ptr, 0, 1)
        elif action == 4 and blocks:
            blocks.pop(rng.randrange(len(blocks))).free()
        elif action == 5:
            owner = owners.pop(rng.randrange(len(owners)))
            x.runtime.register_stream(owner)
            x.runtime.unregister_stream(owner, successor=rng.choice([x.S, x.T]))
            owner.destroy()
    assert not driver.races()
    block = None
    blocks.clear()
    x.runtime.reap_pending()
    assert x.runtime.bytes_outstanding == 0


def test_default_streams_of_ended_threads_are_released():
    runtime = DeviceRuntime()

    def work():
        runtime.allocate(256, 2).free()

    for _ in range(200):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    runtime.reap_pending()
    assert runtime.stream_count() < 80


@pytest.mark.simulator
def test_raw_handles_are_not_touched_by_the_sweep(driver):
    """They may be destroyed, and on a GPU the driver crashes in a query of a destroyed stream."""
    runtime = DeviceRuntime()
    owners = [ForeignStream() for _ in range(40)]
    for owner in owners[:-1]:
        runtime.register_stream(owner.handle)
    for owner in owners[:-1]:
        owner.destroy()
    before = driver.calls("cuStreamIsCapturing")
    runtime.register_stream(owners[-1])
    assert driver.calls("cuStreamIsCapturing") - before == 1
