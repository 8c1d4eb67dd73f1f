"""A library that is called in C inside of a use over several devices."""
from __future__ import annotations

import pytest
from capsules import settle
from exchanges import Library
from two_devices import COUNT

from xlogmem import Buffer, DeviceState, use
from xlogmem._driver import device_count

pytestmark = pytest.mark.skipif(device_count() < 2, reason="needs two devices")
READ_ONLY = 1


@pytest.fixture
def x(devices):
    """Two devices, a buffer on each, and the library."""
    made = devices()
    made.library = Library(Buffer)
    made.states = [DeviceState(runtime) for runtime in made.runtimes]
    made.buffers = [state.empty(COUNT, "uint32", streams[0])
                    for state, streams in zip(made.states, made.streams, strict=True)]
    yield made
    for buffer in made.buffers:
        buffer.release()
    settle()


def far(x):
    """A stream of device 0, and the buffer of device 1."""
    return x.streams[0][1], x.buffers[1]


@pytest.mark.parametrize("dropped", [False, True])
def test_far_memory_is_exported_on_the_stream_of_the_use(x, driver, dropped):
    """Its holder may go on working there until the tensor is deleted; work elsewhere comes after that."""
    T, b = far(x)
    U = x.streams[1][1]
    with use(T, write=[*x.buffers]):
        exported = x.library.take(b)
        assert x.library.stream(0) == T.handle
        x.write(T, b)
    x.write(T, b, 2)
    if dropped:
        for nth in range(1, 4):
            driver.drop("cuStreamWaitEvent", nth)
    with use(U, write=b):
        x.write(U, b, 3)
    assert bool(driver.races()) == dropped
    driver.clear_races()
    exported.delete()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_free_comes_after_the_work_of_the_library(x, driver, dropped):
    T, b = far(x)
    with use(T, write=b):
        exported = x.library.take(b)
    x.write(T, b)
    b.release()
    assert x.runtimes[1].live_bytes == 4 * COUNT
    exported.delete()
    settle()
    if dropped:
        driver.drop("cuStreamWaitEvent", 1)
    x.runtimes[1].reap_pending()
    assert x.runtimes[1].live_bytes == 0
    assert bool(driver.races()) == dropped
    driver.clear_races()


def test_a_far_use_that_only_reads_gives_a_read_only_tensor(x):
    T, b = far(x)
    with use(T, read=b):
        exported = x.library.take(b)
    assert exported.managed.flags == READ_ONLY
    exported.delete()


def test_the_far_device_has_no_stream_meanwhile(x):
    """A library that works there would not wait for what the use waits for."""
    T, b = far(x)
    other = x.states[1].empty(4, "uint8", x.streams[1][0])
    with use(T, read=[*x.buffers]):
        for take in (lambda: x.library.stream(1), lambda: x.library.take(other), lambda: x.library.look(other)):
            with pytest.raises(BufferError, match=r"memory of device 1 on a stream of device 0.*Leave the use"):
                take()
        assert x.library.stream(0) == T.handle
        x.library.look(b)
        with use(x.streams[1][0], read=other), pytest.raises(BufferError, match="several streams"):
            x.library.stream(1)
    assert x.library.stream(1) == 0
    x.library.take(other).delete()
    with use(T, read=x.buffers[0]):                     # of device 0 alone
        assert (x.library.stream(0), x.library.stream(1)) == (T.handle, 0)
    other.release()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_use_of_far_memory_alone(x, driver, dropped):
    """It is on a stream of device 0 all the same, on which memory of device 0 is ordered first."""
    T, b = far(x)
    a, S = x.buffers[0], x.streams[0][0]
    other = x.states[1].empty(4, "uint8", x.streams[1][0])
    with use(S, write=a):
        x.write(S, a)
    if dropped:
        driver.drop("cuStreamWaitEvent", 1)
    with use(T, write=b):
        assert x.library.stream(0) == T.handle
        exported = [x.library.take(a), x.library.take(b)]
        x.write(T, a)
        x.write(T, b)
        with use(S, read=a), pytest.raises(BufferError, match="several streams"):
            x.library.stream(0)
        with use(x.streams[1][0], read=other), pytest.raises(BufferError, match="several streams"):
            x.library.stream(0)
    assert bool(driver.races()) == dropped
    driver.clear_races()
    for each in exported:
        each.delete()
    other.release()
