"""A consumer goes on without a record: its stream is ordered after what is done with the memory elsewhere meanwhile."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from capsules import Taken, settle
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import READ, WRITE, FourStreams
from scenarios import Scenarios

from xlogmem import DeviceState, Stream, use
from xlogmem.interop.buffers import Buffer
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator

scenario = Scenarios()
RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED


def sealed_buffer(x: FourStreams) -> Buffer:
    """Of a sealed stream, which costs no wait of its own after the first use elsewhere."""
    x.state = DeviceState(x.runtime)                    # closed with x
    return x.state.empty(512, "uint8", x.S)


@contextlib.contextmanager
def exported(buffer: Buffer, *streams: Stream) -> Iterator[None]:
    """Consumers have it on these streams."""
    taken = [Taken(buffer.__dlpack__(stream=stream.handle)) for stream in streams]
    try:
        yield
    finally:
        for one in taken:
            one.delete()
        settle()


@scenario(sealed="S", spare=1)                          # of the two that the export and the writer on U wait for
def a_consumer_goes_on_after_a_writer_elsewhere(x: FourStreams) -> bool:
    buffer = sealed_buffer(x)
    with exported(buffer, x.T):
        x.work(x.T, (buffer.access(), WRITE))
        written = x.use(x.U, (buffer.access(), WRITE))
        return x.ordered(written, x.T)


@scenario(sealed="S", spare=1)
def a_consumer_overwrites_after_a_reader_elsewhere(x: FourStreams) -> bool:
    buffer = sealed_buffer(x)
    with exported(buffer, x.T):
        x.work(x.T, (buffer.access(), WRITE))
        read = x.use(x.U, (buffer.access(), READ))
        return x.ordered(read, x.T)


@scenario(sealed="S", spare=6)                          # the exports' own, of one after the other
def two_consumers_and_the_reader_of_an_interface(x: FourStreams) -> bool:
    buffer = sealed_buffer(x)
    x.use(x.V, (buffer.access(), WRITE))
    assert buffer.__cuda_array_interface__["stream"] == x.V.handle
    with exported(buffer, x.T, x.T):
        with x.recorder(x.U, (buffer.access(), WRITE)):
            one, two = x.work(x.U, (buffer.access(), WRITE)), x.work(x.U)
        return x.ordered(one, x.T) and x.ordered(two, x.V)


test_scenario, test_twin = scenario.tests()


def test_once_for_each_launch_and_stream_and_until_the_release(four):
    x = four(sealed="S")
    sealed_buffer(x)
    blocks = [x.state.empty(512, "uint8", x.S) for _ in range(3)]
    uses = [(buffer.access(), WRITE) for buffer in blocks]

    def cost() -> tuple[int, int]:
        before = x.records(), x.waits()
        x.use(x.U, *uses)
        return x.records() - before[0], x.waits() - before[1]

    with contextlib.ExitStack() as consumers:
        for buffer in blocks:
            consumers.enter_context(exported(buffer, x.T, x.T))
        cost()
        assert cost() == cost() == (2, 2)               # there and back
    cost()                                              # after the consumers, for the last time
    assert cost() == (0, 0)


def test_readers_hand_nothing_back_where_the_program_says_so(four):
    x = four(sealed="S")
    buffer = sealed_buffer(x)
    with exported(buffer, x.T):
        with use(x.U, read=buffer, handback="writes"):
            read = x.work(x.U, (buffer.access(), READ))
        assert not x.ordered(read, x.T)
        with use(x.U, write=buffer, handback="writes"):
            written = x.work(x.U, (buffer.access(), WRITE))
        assert x.ordered(written, x.T)


def test_a_consumer_that_captures_makes_the_host_wait(four, driver):
    x = four(sealed="S")
    buffer = sealed_buffer(x)
    with exported(buffer, x.T):
        window = x.prepare(x.U, (buffer.access(), WRITE))
        x.work(x.U, (buffer.access(), WRITE))
        check(cuda.cuStreamBeginCapture(x.T.handle, RELAXED))
        waits = driver.calls("cuEventSynchronize")
        window.commit()
        assert driver.calls("cuEventSynchronize") == waits + 1
        check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.T.handle))))
        x.work(x.T, (buffer.access(), WRITE))


@pytest.mark.parametrize("bare", [True, False])
def test_a_bare_handle_is_not_touched_again(four, bare):
    """It may be destroyed before the export is released; with an object that holds it, it is ordered."""
    x = four(sealed="S")
    buffer = sealed_buffer(x)
    owner = ForeignStream()
    if not bare:
        x.runtime.register_stream(owner)
    with exported(buffer, owner):
        if bare:
            owner.destroy()
        written = x.use(x.U, (buffer.access(), WRITE))
        assert bare or x.ordered(written, owner)
    del buffer
    x.runtime.reap_pending()


def test_a_stream_that_is_unregistered_is_not_handed_back_to(four):
    x = four(sealed="S")
    buffer = sealed_buffer(x)
    owner = ForeignStream()
    named = x.runtime.register_stream(owner)
    with exported(buffer, named):
        x.runtime.unregister_stream(named)
        owner.destroy()
        x.use(x.U, (buffer.access(), WRITE))
