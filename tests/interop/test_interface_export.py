"""The CUDA array interface of buffers."""
from __future__ import annotations

import weakref

import numpy as np
import pytest
from arrays import Array
from cuda.bindings import driver as cuda
from foreign_streams import ForeignStream
from four_streams import READ, WRITE, at

from xlogmem import (
    DeviceState,
    from_cuda_array,
    use,
)
from xlogmem.sim.kernels import check


def test_what_an_interface_says(state):
    host = np.arange(24, dtype="int16").reshape(4, 6)
    buffer = state.from_numpy(host)
    for part, same in ((buffer, host), (buffer[1:3, ::2], host[1:3, ::2]), (buffer[::-1], host[::-1]),
                       (buffer[0, 3], host[0, 3:4].reshape(())), (buffer.view("complex64"), host.ravel().view("c8"))):
        seen = part.__cuda_array_interface__
        assert seen["version"] == 3
        assert seen["shape"] == same.shape
        assert seen["typestr"] == same.__array_interface__["typestr"]
        assert seen["strides"] == same.__array_interface__["strides"]
        assert seen["data"] == (buffer.access().ptr + same.__array_interface__["data"][0]
                                - host.__array_interface__["data"][0], False)
        assert seen["mask"] is None
        assert seen["stream"] == state.runtime.default_stream.handle
    with pytest.raises(AttributeError, match="export it with DLPack"):
        assert state.empty(1, "bfloat16").__cuda_array_interface__
    empty = state.empty((0, 3)).__cuda_array_interface__
    assert (empty["data"], empty["shape"], empty["stream"]) == ((0, False), (0, 3), 1)


@pytest.mark.simulator
def test_what_an_interface_says_outlives_an_export_on_the_same_stream(four):
    """The export is released; a reader of the interface may work on that stream until the block is freed."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)
    capsule = buffer.__dlpack__(stream=x.S.handle)
    assert buffer.__cuda_array_interface__["stream"] == x.S.handle
    del capsule
    x.use(x.T, (buffer.access(), READ))                 # not fresh any more, and T knows S
    late = x.work(x.S, (buffer.access(), READ))
    x.use(x.T, (buffer.access(), WRITE))
    assert x.ordered(late, x.T)


@pytest.mark.simulator
@pytest.mark.parametrize("how", ["interface", "export", "released export"])
def test_what_was_exported_on_a_stream_stays_so_under_another_discipline(four, how):
    """It is the same stream, and a consumer that knows its handle knows nothing of our registrations."""
    x = four()
    owner = ForeignStream()
    x.runtime.register_stream(owner, discipline="opaque")
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", owner)
    if how == "interface":
        assert buffer.__cuda_array_interface__["stream"] == owner.handle
    else:
        capsule = buffer.__dlpack__(stream=owner.handle)
    x.runtime.register_stream(owner, discipline="ordinary")
    x.use(x.T, (buffer.access(), READ))                 # not fresh any more
    late = x.work(at(owner.handle), (buffer.access(), READ))
    if how == "released export":
        del capsule
    x.use(x.T, (buffer.access(), WRITE))
    assert x.ordered(late, x.T)
    check(cuda.cuCtxSynchronize())


@pytest.mark.simulator
@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("after", ["ordinary", "sealed", None])
def test_a_reader_that_may_have_written_stays_one_after_it_was_waited_for(four, after, released):
    """A read-only export raises the reader's entry once more, past the time when its stream was opaque."""
    x = four()
    owner = ForeignStream()
    S = x.runtime.register_stream(owner)
    block = x.alloc(x.U)
    x.use(x.U, (block, WRITE))
    x.use(S, (block, READ))
    array = Array(shape=(512,), data=(block.ptr, True))
    state = DeviceState(x.runtime)
    buffer = from_cuda_array(array, producer=x.U, state=state)
    capsule = buffer.__dlpack__(stream=S.handle, max_version=(1, 0))
    x.runtime.register_stream(owner, discipline="opaque")
    x.use(x.V, (x.alloc(S), READ))                      # a fence for what was recorded so far
    late = x.work(S, (block, WRITE))
    x.runtime.register_stream(owner, discipline=after or "sealed")
    if after is None:
        x.runtime.unregister_stream(owner)
    x.use(x.T, (block, READ))
    if released:
        del capsule
    x.use(x.V, (block, READ))
    assert x.ordered(late, x.V)
    check(cuda.cuCtxSynchronize())


@pytest.mark.simulator
@pytest.mark.parametrize("unregistered", [True, False])
def test_an_export_on_a_stream_that_is_gone_is_over(four, unregistered):
    """A block that lives long does not keep the registrations of all streams that its interface ever named."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)
    for _ in range(200):
        owner = ForeignStream()
        x.use(x.runtime.register_stream(owner), (buffer.access(), WRITE))
        assert buffer.__cuda_array_interface__["stream"] == owner.handle
        late = x.work(at(owner.handle), (buffer.access(), WRITE))
        if unregistered:
            x.runtime.unregister_stream(owner)
            x.use(x.T, (buffer.access(), WRITE))
            assert x.ordered(late, x.T)
        x.runtime.reap_pending()
    assert x.runtime.stream_count() < 100
    assert len(buffer.access().frontier) < 100


@pytest.mark.simulator
def test_a_stream_that_an_interface_named_is_kept_as_long_as_the_buffer(four):
    """Its consumer has nothing but the handle."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)
    owner = ForeignStream()
    gone = weakref.ref(owner)
    x.use(owner, (buffer.access(), WRITE))
    assert buffer.__cuda_array_interface__["stream"] == owner.handle
    del owner
    others = [ForeignStream() for _ in range(200)]
    for other in others[:100]:
        x.runtime.register_stream(other)                # sweeps streams without another reference
    assert gone() is not None
    del buffer
    for other in others[100:]:
        x.runtime.register_stream(other)
    assert gone() is None


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("writer", ["own", "legacy", "raw", "two", "reader"])
def test_an_interface_names_a_stream_that_comes_after_all(four, driver, writer, dropped):
    """Of all writers and readers, whatever streams they were on; the twin drops the wait, and the consumer races."""
    x = four()
    state = DeviceState(x.runtime)
    raw = check(cuda.cuStreamCreate(1))
    buffer = state.empty(512, "uint8", x.S)
    done = []
    for stream, access in {"own": [(x.T, WRITE)], "legacy": [(1, WRITE)], "raw": [(int(raw), WRITE)],
                           "two": [(x.T, WRITE), (x.U, "record")], "reader": [(x.T, WRITE), (x.U, READ), (x.V, READ)],
                           }[writer]:
        place = x.runtime.register_stream(stream)
        if access == "record":
            check(cuda.cuCtxSynchronize())
            done.append(x.work(place, (buffer.access(), WRITE)))
            x.runtime.record_block_use(buffer, place)
            x.runtime.record_block_use(buffer, x.S)     # the newest writer is not the only one
        else:
            done.append(x.use(place, (buffer.access(), access)))
    if dropped:
        for nth in (1, 2):
            driver.drop("cuStreamWaitEvent", nth)
    named = buffer.__cuda_array_interface__["stream"]
    assert named not in (0, None, int(raw))
    if not dropped:
        assert all(x.ordered(one, at(named)) for one in done)
    x.kernels.fill(named, buffer.access().ptr, 3, 1)
    races = driver.races()
    driver.clear_races()
    waited = named not in (x.T.handle, 1) or writer == "reader"         # the writer's own stream waits for nothing
    assert bool(races) == (dropped and waited)
    check(cuda.cuCtxSynchronize())
    x.runtime.reap_pending()
    if writer == "raw":
        x.runtime.unregister_stream(int(raw))
    check(cuda.cuStreamDestroy(raw))
    driver.clear_races()


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("freed", [False, True])
def test_what_a_consumer_orders_before_the_named_stream_is_waited_for(four, driver, freed, dropped):
    """Version 3 has the consumer order that stream after its work; later uses and the free come after it too."""
    x = four()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    named = buffer.__cuda_array_interface__["stream"]
    event = check(cuda.cuEventCreate(2))
    check(cuda.cuEventRecord(event, named))
    check(cuda.cuStreamWaitEvent(x.V.handle, event, 0))
    x.work(x.V, (buffer.access(), WRITE))               # V is the consumer's stream
    check(cuda.cuEventRecord(event, x.V.handle))
    check(cuda.cuStreamWaitEvent(named, event, 0))
    if dropped:
        driver.drop("cuStreamWaitEvent")
    if freed:
        buffer.access().free(x.T)
    else:
        with use(x.T, write=buffer):
            x.work(x.T, (buffer.access(), WRITE))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    check(cuda.cuEventDestroy(event))
    check(cuda.cuCtxSynchronize())
    driver.clear_races()
