"""`from_dlpack`: arrays of other libraries become tracked blocks, and nothing is believed."""
from __future__ import annotations

import numpy as np
import pytest
from capsules import CPU, Producer, name_of, settle
from cuda.bindings import driver as cuda
from four_streams import WRITE

from xlogmem import (
    DeviceRuntime,
    DeviceState,
    StaleBufferError,
    StreamMisuseError,
    from_dlpack,
    use,
)
from xlogmem.sim.kernels import check


@pytest.mark.promise(189, 193)
def test_a_foreign_array_becomes_a_tracked_block(state, memory):
    producer = Producer(memory, (8, 4), code=2, bits=32)
    buffer = from_dlpack(producer, state=state)
    assert (buffer.shape, buffer.dtype, buffer.strides, buffer.readonly) == ((8, 4), "float32", (16, 4), False)
    assert producer.requests == [{"stream": state.runtime.default_stream.handle, "max_version": (1, 0)}]
    block = buffer.access()
    assert (block.ptr, block.nbytes) == (memory, 128)
    assert state.runtime.live_bytes == 0                # not our bytes
    with use(state.runtime.default_stream, write=[buffer, memory + 5]):
        pass
    buffer.fill(2.5)
    assert buffer.to_numpy().tolist() == [[2.5] * 4] * 8
    assert producer.deleted == 0
    part = buffer[2:]
    del buffer, block
    state.runtime.reap_pending()
    assert producer.deleted == 0
    del part
    state.runtime.reap_pending()
    assert producer.deleted == 1


@pytest.mark.simulator
@pytest.mark.promise(189)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_our_uses_come_after_the_producer(four, driver, memory, known, dropped):
    """The first use is ordered after the producer's stream if that is known; else the producer orders our stream."""
    x = four()
    state = DeviceState(x.runtime)

    class Library(Producer):
        def __dlpack__(self, *, stream, max_version):
            if not known:
                event = check(cuda.cuEventCreate(2))
                check(cuda.cuEventRecord(event, x.S.handle))
                check(cuda.cuStreamWaitEvent(stream, event, 0))
                check(cuda.cuEventDestroy(event))
            return super().__dlpack__(stream=stream)

    x.kernels.fill(x.S.handle, memory, 1, 16)           # S is the producer's; the fill is unrecorded
    if dropped:
        driver.drop("cuStreamWaitEvent")
    producer = Library(memory, (64,))
    buffer = from_dlpack(producer, state=state, producer=x.S if known else None)
    with use(x.T, read=buffer):
        x.kernels.count_unequal(x.T.handle, x.next_word(), memory, 1, 1)
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    del buffer
    x.runtime.reap_pending()
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.simulator
@pytest.mark.promise(189)
@pytest.mark.parametrize("known", [False, True])
def test_the_producers_array_is_released_after_our_uses(four, driver, memory, known):
    """The producer's stream is ordered after them; where it is not known, the host waits for them alone."""
    x = four()
    state = DeviceState(x.runtime)
    driver.set_policy("min")
    at_the_end = []

    class Library(Producer):
        def _delete(self, address):
            at_the_end.append((known and x.ordered(done, x.S)) or driver.pending_operations())
            super()._delete(address)

    producer = Library(memory, (64,))
    buffer = from_dlpack(producer, state=state, producer=x.S if known else None, stream=x.T)
    with use(x.T, write=buffer):
        done = x.work(x.T, (buffer.access(), WRITE))
    x.work(x.V)                                         # has nothing to do with this array
    del buffer
    x.runtime.reap_pending(blocking=False)
    assert producer.deleted == 1
    assert at_the_end == [True if known else 1]
    assert driver.calls("cuCtxSynchronize") == 0


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_the_stream_that_the_import_names_may_be_used_at_once(four, driver, memory, dropped):
    x = four()
    state = DeviceState(x.runtime)
    x.kernels.fill(x.S.handle, memory, 1, 16)
    if dropped:
        driver.drop("cuStreamWaitEvent")
    buffer = from_dlpack(Producer(memory, (64,)), state=state, producer=x.S, stream=x.T)
    x.kernels.add(x.T.handle, memory, 1, 16)            # without a use
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    del buffer
    x.runtime.reap_pending()
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.promise(195)
def test_a_raw_capsule_needs_a_word_about_its_stream(state, memory):
    producer = Producer(memory, (4,))
    with pytest.raises(StreamMisuseError, match="say stream="):
        from_dlpack(producer.capsule(), state=state)
    capsule = producer.capsule()
    stream = state.runtime.acquire_stream()
    buffer = from_dlpack(capsule, stream=stream, state=state)
    assert ("written", stream.id) in buffer.access().frontier
    assert name_of(capsule) == b"used_dltensor"
    with pytest.raises(BufferError, match="used before"):
        from_dlpack(capsule, stream=stream, state=state)
    del buffer
    state.runtime.reap_pending()
    assert producer.deleted == 1


def test_producers_of_before_1_0_are_called_their_way(state, memory):
    class Old(Producer):
        def __dlpack__(self, stream=None):
            self.requests.append(stream)
            return self.capsule()

    producer = Old(memory, (4,))
    assert from_dlpack(producer, state=state).size == 4
    assert producer.requests == [state.runtime.default_stream.handle]
    state.runtime.reap_pending()
    assert producer.deleted == 1


def test_our_own_exports_come_home(state):
    """Another handle of the same block: nothing is adopted, and the export ends with it."""
    buffer = state.from_numpy(np.arange(10))
    seen = from_dlpack(buffer[2:6], state=state)
    assert seen.access().generation == buffer.access().generation
    seen.fill(7)
    assert buffer.to_numpy().tolist() == [0, 1, 7, 7, 7, 7, 6, 7, 8, 9]
    other = DeviceState(DeviceRuntime())
    there = from_dlpack(buffer, state=other)            # another runtime adopts it
    assert there.to_numpy().tolist() == buffer.to_numpy().tolist()
    del buffer, seen
    settle()
    state.runtime.reap_pending()
    assert state.runtime.live_bytes == 80
    del there
    other.runtime.reap_pending()
    settle()
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0


WRONG = {
    "another device": {"device_id": 1}, "the host": {"device_type": CPU}, "page-locked": {"device_type": 3},
    "lanes": {"lanes": 2}, "no lanes": {"lanes": 0}, "bits": {"bits": 7},
    "sub-byte": {"code": 1, "bits": 4}, "an opaque handle": {"code": 3, "bits": 64}, "a code": {"code": 200},
    "no memory": {}, "ndim -1": {"ndim": -1}, "ndim 65": {"ndim": 65}, "no shape": {"shape": None},
    "a negative extent": {"shape": (4, -1)}, "more than there is": {"shape": (1 << 62,)},
    "overflow": {"shape": (1 << 40, 1 << 40)}, "misaligned": {"bits": 32},
    "misaligned by its offset": {"byte_offset": 3, "bits": 32}, "an offset": {"byte_offset": (1 << 64) - 1},
    "strides to nowhere": {"shape": (2,), "strides": (1 << 60,)},
    "strides below": {"shape": (3,), "strides": (-1 << 50,)},
    "outside": {"byte_offset": 1 << 40}, "the end outside": {"shape": (4097,)},
}


@pytest.mark.simulator
@pytest.mark.promise(189, 193)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_tensors_that_are_refused(state, memory, wrong, version):
    """By BufferError, before anything is taken: the capsule stays its producer's."""
    fields = dict(WRONG[wrong])
    ptr = {"no memory": 0, "misaligned": memory + 1}.get(wrong, memory)
    producer = Producer(ptr, **{"shape": (4,), "version": version, **fields})
    capsule = producer.capsule()
    with pytest.raises(BufferError):
        from_dlpack(capsule, stream=1, state=state)
    assert name_of(capsule) == producer.name
    assert producer.deleted == 0
    assert state.runtime.find_block(memory) is None


@pytest.mark.parametrize("wrong", ["no memory", "ndim -1", "ndim 65", "no shape", "a negative extent"])
def test_a_use_refuses_in_the_words_of_an_import(state, memory, wrong):
    fields = {"shape": (4,), **WRONG[wrong]}
    producer = Producer(0 if wrong == "no memory" else memory, **fields)
    with pytest.raises(BufferError) as imported:
        from_dlpack(producer.capsule(), stream=1, state=state)
    with pytest.raises(BufferError) as used:
        use(state.runtime.default_stream, read=producer)
    assert str(used.value).endswith(f"Producer gave {imported.value}")


@pytest.mark.promise(193)
def test_shapes_and_strides_that_are_right(state, memory):
    host = np.arange(1024, dtype="int32")
    check(cuda.cuMemcpyHtoD(memory, host.tobytes(), 4096))
    check(cuda.cuCtxSynchronize())                      # of pageable memory: it returns when the copy has been staged
    for shape, strides, offset, want in (
            ((4,), None, 0, [0, 1, 2, 3]), ((2, 2), (1, 2), 0, [[0, 2], [1, 3]]), ((), None, 8, 2), ((), (), 4, 1),
            ((3,), (-2,), 40, [10, 8, 6]), ((2, 3), (0, 1), 0, [[0, 1, 2]] * 2), ((1, 2), (999999, 1), 0, [[0, 1]]),
            ((1024,), (1,), 0, host.tolist())):
        buffer = from_dlpack(Producer(memory, shape, strides, code=0, bits=32, byte_offset=offset), state=state)
        assert buffer.shape == shape
        assert buffer.to_numpy().tolist() == want
        del buffer
        state.runtime.reap_pending()
    empty = from_dlpack(Producer(0, (4, 0), code=0, bits=32), state=state)
    assert (empty.size, empty.access()) == (0, None)
    producer = Producer(memory, (4,), version=(2, 0))
    with pytest.raises(BufferError, match=r"DLPack 2\.0"):
        from_dlpack(producer, state=state)


@pytest.mark.simulator
def test_what_is_not_an_array_is_refused(state, memory):
    for what in (5, "x", None, object(), memory):
        with pytest.raises(TypeError):
            from_dlpack(what, stream=1, state=state)
    for name in (b"another", b"dltensor "):
        with pytest.raises(BufferError, match="is not a DLPack capsule"):
            from_dlpack(Producer(memory, (4,), name=name).capsule(), stream=1, state=state)
    with pytest.raises(BufferError, match="is not a CUDA device"):
        from_dlpack(np.arange(3), state=state)
    block = state.runtime.adopt(memory + 32, 64)
    with pytest.raises(StreamMisuseError, match="overlaps"):
        from_dlpack(Producer(memory, (64,)), state=state)
    del block
    state.begin_shutdown()
    with pytest.raises(StaleBufferError):
        from_dlpack(Producer(memory, (4,)), state=state)
