"""The CUDA array interface, Arrow device arrays and __cuda_stream__, both ways."""
from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from bench import READ, WRITE, ForeignStream, at
from capsules import CPU, ArrowDeviceArray, Producer, arrow_array
from cuda.bindings import driver as cuda

from xlogmem import (
    BlockState,
    DeviceRuntime,
    DeviceState,
    StaleBufferError,
    StreamMisuseError,
    from_arrow,
    from_cuda_array,
    from_dlpack,
    use,
)
from xlogmem._kernels import check

try:
    import pyarrow
except ImportError:                                     # its tests are skipped, and counted
    pyarrow = None

needs_pyarrow = pytest.mark.skipif(pyarrow is None, reason="needs pyarrow")


class Array:
    """Somebody else's array: an interface, and that is all."""

    def __init__(self, **interface) -> None:
        self.interface = {"version": 3, "shape": (16,), "typestr": "|u1", "data": (0, False), "stream": None}
        self.interface |= interface

    @property
    def __cuda_array_interface__(self):
        return self.interface


@pytest.mark.contract(94, 189, 200)
def test_what_nobody_tracks_is_refused_until_it_is_taken_over(state, memory):
    """A strict recorder refuses a foreign array at preflight, and accepts it as a buffer."""
    array = Array(data=(memory, False))
    stream = state.runtime.default_stream
    recorder = use(stream, write=array)
    with pytest.raises(StreamMisuseError, match="untracked buffer rejected"):
        recorder.preflight()
    buffer = from_cuda_array(array, state=state)
    with use(stream, write=[array, buffer]):
        pass
    assert ("written", stream.id) in buffer.access().frontier


# ---------------------------------------------------------------------------------------- interfaces out
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
def test_what_an_interface_says_outlives_a_loan_on_the_same_stream(bench):
    """Who was lent the block gives it back; who read the interface may work on that stream until the block is freed."""
    x = bench()
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
@pytest.mark.parametrize("how", ["interface", "loan", "loan given back"])
def test_what_was_lent_on_a_stream_stays_so_under_another_discipline(bench, how):
    """It is the same stream, and whoever was told of it knows nothing of our registrations."""
    x = bench()
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
    if how == "loan given back":
        del capsule
    x.use(x.T, (buffer.access(), WRITE))
    assert x.ordered(late, x.T)
    check(cuda.cuCtxSynchronize())


@pytest.mark.simulator
@pytest.mark.parametrize("given_back", [True, False])
@pytest.mark.parametrize("after", ["ordinary", "sealed", None])
def test_a_reader_who_may_have_written_stays_one_after_he_was_waited_for(bench, after, given_back):
    """What is lent to be read raises the reader's entry once more, past the time when its stream was opaque."""
    x = bench()
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
    x.use(x.V, (x.alloc(S), READ))                      # a fence for what was filed so far
    late = x.work(S, (block, WRITE))
    x.runtime.register_stream(owner, discipline=after or "sealed")
    if after is None:
        x.runtime.unregister_stream(owner)
    x.use(x.T, (block, READ))
    if given_back:
        del capsule
    x.use(x.V, (block, READ))
    assert x.ordered(late, x.V)
    check(cuda.cuCtxSynchronize())


@pytest.mark.simulator
@pytest.mark.parametrize("unregistered", [True, False])
def test_what_was_lent_on_a_stream_that_is_gone_is_over(bench, unregistered):
    """A block that lives long does not keep the registrations of all streams that its interface ever named."""
    x = bench()
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
def test_a_stream_that_an_interface_named_is_kept_as_long_as_the_buffer(bench):
    """Its consumer has nothing but the handle."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)
    owner = ForeignStream()
    gone = weakref.ref(owner)
    x.use(owner, (buffer.access(), WRITE))
    assert buffer.__cuda_array_interface__["stream"] == owner.handle
    del owner
    others = [ForeignStream() for _ in range(200)]
    for other in others[:100]:
        x.runtime.register_stream(other)                # sweeps what nobody else holds
    assert gone() is not None
    del buffer
    for other in others[100:]:
        x.runtime.register_stream(other)
    assert gone() is None


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("writer", ["own", "legacy", "raw", "two", "reader"])
def test_an_interface_names_a_stream_that_comes_after_all(bench, driver, writer, dropped):
    """Of all writers and readers, whatever streams they were on; the twin drops the wait, and the consumer races."""
    x = bench()
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
    waited = named not in (x.T.handle, 1) or writer == "reader"         # the writer's own stream waits for nobody
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
def test_what_a_consumer_orders_before_the_named_stream_is_waited_for(bench, driver, freed, dropped):
    """Version 3 has him order it after his work; from then on uses elsewhere, and the free, come after that."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    named = buffer.__cuda_array_interface__["stream"]
    event = check(cuda.cuEventCreate(2))
    check(cuda.cuEventRecord(event, named))
    check(cuda.cuStreamWaitEvent(x.V.handle, event, 0))
    x.work(x.V, (buffer.access(), WRITE))               # V is his
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


# ---------------------------------------------------------------------------------------- interfaces in
@pytest.mark.contract(189)
def test_an_array_with_an_interface_becomes_a_tracked_block(state, memory):
    array = Array(data=(memory, True), shape=(2, 8), typestr="<i4", strides=(64, 4))
    buffer = from_cuda_array(array, state=state)
    assert (buffer.shape, buffer.dtype, buffer.strides, buffer.readonly) == ((2, 8), "int32", (64, 4), True)
    assert (buffer.access().ptr, buffer.access().nbytes) == (memory, 96)
    with use(state.runtime.default_stream, read=[array, buffer]) as recorder:
        assert recorder.recorded_count == 2
    alive = weakref.ref(array)
    del array
    gc.collect()
    assert alive() is not None
    del buffer
    state.runtime.reap_pending()
    assert state.runtime.find_block(memory) is None
    gc.collect()
    assert alive() is None
    empty = from_cuda_array(Array(shape=(0, 4)), state=state)
    assert (empty.shape, empty.access()) == ((0, 4), None)


@pytest.mark.simulator
@pytest.mark.contract(189)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("kind", ["legacy", "own", "raw", "said"])
def test_our_uses_come_after_the_stream_that_an_interface_names(bench, driver, memory, kind, dropped):
    x = bench()
    state = DeviceState(x.runtime)
    other = check(cuda.cuStreamCreate(1))
    handle = {"legacy": 1, "own": x.S.handle, "raw": int(other), "said": x.S.handle}[kind]
    x.kernels.fill(handle, memory, 1, 4)
    if dropped:
        driver.drop("cuStreamWaitEvent")
    buffer = from_cuda_array(Array(data=(memory, False), stream=handle if kind != "said" else None), state=state,
                             producer=x.S if kind == "said" else None)
    check(cuda.cuStreamDestroy(other))                  # nobody has promised that it lives
    with use(x.T, read=buffer):
        x.kernels.count_unequal(x.T.handle, x.next_word(), memory, 1, 1)
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    del buffer
    x.runtime.reap_pending()
    check(cuda.cuCtxSynchronize())
    assert not [race for race in driver.races() if "DEAD" in race]
    driver.clear_races()


@pytest.mark.simulator
def test_an_interface_without_a_stream(bench, driver, memory):
    """From version 3 on it says that the array is ready; before, it says nothing, and somebody has to."""
    x = bench()
    state = DeviceState(x.runtime)
    from_cuda_array(Array(data=(memory, False)), state=state)
    x.runtime.reap_pending()
    for version in (0, 1, 2):
        old = Array(data=(memory, False), version=version)
        with pytest.raises(StreamMisuseError, match="does not say on which stream"):
            from_cuda_array(old, state=state)
        x.kernels.fill(x.S.handle, memory, 1, 4)
        buffer = from_cuda_array(old, state=state, producer=x.S)
        with use(x.T, write=buffer):
            x.kernels.fill(x.T.handle, memory, 2, 4)
        del buffer
        x.runtime.reap_pending()
    assert not driver.races()


INTERFACES = {
    "no mapping": 5, "shape": {"shape": None}, "a shape of floats": {"shape": (1.5,)},
    "a negative extent": {"shape": (-1,)}, "too many dimensions": {"shape": (1,) * 65}, "typestr": {"typestr": None},
    "big endian": {"typestr": ">i4"},
    "a struct": {"typestr": "|V12"}, "no such type": {"typestr": "<i3"}, "dates": {"typestr": "<M8[ns]"},
    "data": {"data": None}, "data of one": {"data": (0,)}, "a name as data": {"data": ("x", False)},
    "no memory": {"data": (0, False)}, "nowhere": {"data": (1 << 40, False)}, "beyond": {"data": (1 << 70, False)},
    "below": {"data": (-8, False)}, "misaligned": {"typestr": "<i4", "odd": 2}, "stream 0": {"stream": 0},
    "stream -1": {"stream": -1}, "a stream by name": {"stream": "1"}, "a stream too far": {"stream": 1 << 64},
    "a mask": {"mask": (0, 1)}, "strides": {"strides": (1, 2)}, "odd strides": {"typestr": "<i4", "strides": (3,)},
    "strides of text": {"strides": ("1",)}, "strides to nowhere": {"strides": (1 << 62,)}, "version": {"version": "3"},
    "version -1": {"version": -1}, "too much": {"shape": (1 << 62, 1 << 62)}, "outside": {"shape": (5000,)},
    "everywhere at once": {"shape": (1 << 62, 1 << 62), "strides": (0, 0)},
}


@pytest.mark.simulator
@pytest.mark.parametrize("wrong", INTERFACES)
def test_interfaces_that_are_refused(state, memory, wrong):
    fields = INTERFACES[wrong]
    array = Array(data=(memory, False))
    if isinstance(fields, dict):
        fields = dict(fields)
        array.interface |= {"data": (memory + fields.pop("odd", 0), False)} | fields
    else:
        array.interface = fields
    with pytest.raises((ValueError, TypeError, BufferError)):
        from_cuda_array(array, state=state)
    assert state.runtime.find_block(memory) is None
    with pytest.raises(TypeError, match="has no __cuda_array_interface__"):
        from_cuda_array(object(), state=state)


def test_every_key_is_missed(state):
    for key in ("shape", "typestr", "data", "version"):
        array = Array()
        del array.interface[key]
        with pytest.raises(ValueError, match=f"lacks {key}"):
            from_cuda_array(array, state=state)


# ---------------------------------------------------------------------------------------- Arrow out
@pytest.mark.contract(196)
def test_the_struct_is_the_standards(state):
    """What the seeds' sibling had was not ABI-compatible: the array is embedded, and there is an event."""
    buffer = state.from_numpy(np.arange(5, dtype="int32"))
    _, capsule = buffer[1:].__arrow_c_device_array__()
    seen = arrow_array(capsule)
    assert ctypes.sizeof(ArrowDeviceArray) == 128
    assert (seen.device_type, seen.device_id) == (2, 0)
    assert (seen.array.length, seen.array.null_count, seen.array.offset, seen.array.n_buffers) == (4, 0, 0, 2)
    assert seen.array.buffers[0] is None
    assert seen.array.buffers[1] == buffer.access().ptr + 4
    assert seen.sync_event
    event = ctypes.c_uint64.from_address(seen.sync_event).value
    check(cuda.cuEventSynchronize(event))
    assert not any(seen.reserved)
    _, empty = state.empty(0, "int8").__arrow_c_device_array__()
    assert (arrow_array(empty).array.length, arrow_array(empty).sync_event) == (0, None)
    for wrong, error in ((lambda: state.empty((2, 2)).__arrow_c_device_array__(), TypeError),
                         (lambda: buffer[::2].__arrow_c_device_array__(), TypeError),
                         (lambda: state.empty(3, "bool").__arrow_c_device_array__(), TypeError),
                         (lambda: state.empty(3, "complex64").__arrow_c_schema__(), TypeError),
                         (lambda: buffer.__arrow_c_device_array__(None, offset=3), NotImplementedError)):
        with pytest.raises(error):
            wrong()
    assert buffer.__arrow_c_device_array__(None, later=None)


@pytest.mark.simulator
@pytest.mark.contract(190, 196)
@pytest.mark.parametrize("dropped", [None, "cuStreamWaitEvent", "cuEventRecord"])
def test_the_event_comes_after_all_writers(bench, driver, dropped):
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.empty(128, "int32", x.S)
    x.use(x.S, (buffer.access(), WRITE))
    done = x.use(x.T, (buffer.access(), WRITE))
    x.runtime.record_block_use(buffer, x.S)             # the newest entry; T's write has to be joined
    if dropped:
        driver.drop(dropped)
    _, capsule = buffer.__arrow_c_device_array__()
    seen = arrow_array(capsule)
    check(cuda.cuStreamWaitEvent(x.V.handle, ctypes.c_uint64.from_address(seen.sync_event).value, 0))
    if dropped is None:
        assert x.ordered(done, x.V)
    x.work(x.V, (buffer.access(), READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == bool(dropped)
    check(cuda.cuCtxSynchronize())
    del capsule, seen, buffer
    gc.collect()
    x.runtime.reap_pending()
    driver.clear_races()
    assert x.runtime.bytes_outstanding == 0


@pytest.mark.contract(190)
@pytest.mark.parametrize("where", ["here", "a thread"])
def test_a_released_array_gives_the_block_and_the_event_back(state, where):
    buffer = state.full(100, 1, "int8")
    block = buffer.access()
    _, capsule = buffer.__arrow_c_device_array__()
    seen = arrow_array(capsule)
    moved = ArrowDeviceArray.from_buffer_copy(seen)
    seen.array.release = None                           # as a consumer does who moves it
    del capsule, seen
    block.free()
    assert block.state is BlockState.RETIRED
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(moved.array.release)
    if where == "here":
        release(ctypes.addressof(moved))
    else:
        thread = threading.Thread(target=release, args=(ctypes.addressof(moved),))
        thread.start()
        thread.join()
    assert moved.array.release is None
    gc.collect()
    state.runtime.reap_pending()
    assert block.state is BlockState.FREED


# ---------------------------------------------------------------------------------------- Arrow in
@pytest.mark.contract(189, 196)
def test_our_own_arrays_come_home(state):
    buffer = state.from_numpy(np.arange(10, dtype="float64"))
    seen = from_arrow(buffer[3:], state=state)
    assert (seen.dtype, seen.shape, seen.readonly) == ("float64", (7,), True)
    assert seen.to_numpy().tolist() == list(range(3, 10))
    pair = buffer.__arrow_c_device_array__()
    assert from_arrow(pair, state=state).size == 10
    with pytest.raises(BufferError, match="used before"):
        from_arrow(pair, state=state)
    assert from_arrow(state.empty(0, "int8"), state=state).size == 0
    del seen, buffer, pair
    gc.collect()
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0


@pytest.mark.simulator
@pytest.mark.contract(196)
@pytest.mark.parametrize("dropped", [False, True])
def test_our_uses_wait_for_the_arrays_event(bench, driver, dropped):
    x = bench()
    state, other = DeviceState(x.runtime), DeviceState(DeviceRuntime())
    buffer = other.empty(64, "int32")
    place = other.runtime.default_stream
    with use(place, write=buffer):
        x.kernels.fill(place.handle, buffer.access().ptr, 1, 64)
    pair = buffer.__arrow_c_device_array__()
    if dropped:
        driver.drop("cuStreamWaitEvent")
    seen = from_arrow(pair, state=state)
    with use(x.T, read=seen):
        x.work(x.T, (seen.access(), READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    check(cuda.cuCtxSynchronize())
    del seen, pair, buffer
    x.runtime.reap_pending()
    gc.collect()
    other.runtime.reap_pending()
    driver.clear_races()


def edit(state, **fields):
    """A pair of ours in which somebody has changed something."""
    pair = state.full(16, 1, "int32").__arrow_c_device_array__()
    seen = arrow_array(pair[1])
    for name, value in fields.items():
        setattr(seen if hasattr(seen, name) else seen.array, name, value)
    return pair


@pytest.mark.contract(189, 193)
def test_arrays_that_are_refused(state):
    for fields in ({"device_type": 1}, {"device_type": 3}, {"device_id": 5}, {"n_buffers": 3}, {"n_children": 1},
                   {"length": -1}, {"offset": -1}, {"null_count": 3}, {"length": 1 << 61}, {"offset": 1 << 61},
                   {"length": 1 << 40}):
        pair = edit(state, **fields)
        with pytest.raises(BufferError):
            from_arrow(pair, state=state)
        assert arrow_array(pair[1]).array.release       # still the producer's
    schema, array = state.full(4, 1, "int8").__arrow_c_device_array__()
    for what in (5, None, (1, 2), (schema, schema), (array, array), (schema,), object(), "xy"):
        with pytest.raises(TypeError):
            from_arrow(what, state=state)


@needs_pyarrow
@pytest.mark.contract(189)
def test_pyarrow_reads_our_schema_and_its_host_arrays_are_refused(state):
    for name, text in (("int32", "int32"), ("float64", "double"), ("uint8", "uint8"), ("float16", "halffloat")):
        field = pyarrow.Field._import_from_c_capsule(state.empty(3, name).__arrow_c_schema__())
        assert str(field.type) == text
    with pytest.raises(BufferError, match="Arrow device type 1"):
        from_arrow(pyarrow.array([1, 2, 3]), state=state)
    with pytest.raises(TypeError, match="no dtype here"):
        from_arrow(pyarrow.array(["a"]), state=state)


@needs_pyarrow
@pytest.mark.contract(194)
def test_pyarrow_reads_and_releases_our_array(state):
    """The struct, made to point to host memory: pyarrow takes it, reads it and releases it in its own time."""
    buffer = state.from_numpy(np.arange(8, dtype="int32"))
    schema, capsule = buffer[2:].__arrow_c_device_array__()
    host = np.arange(2, 8, dtype="int32")
    seen = arrow_array(capsule)
    seen.device_type, seen.device_id, seen.sync_event = CPU, -1, None
    seen.array.buffers[1] = host.ctypes.data
    array = pyarrow.Array._import_from_c_device_capsule(schema, capsule)
    assert array.to_pylist() == [2, 3, 4, 5, 6, 7]
    block = buffer.access()
    block.free()
    assert block.state is BlockState.RETIRED
    del array, schema, capsule, seen
    gc.collect()
    state.runtime.reap_pending()
    assert block.state is BlockState.FREED


# ---------------------------------------------------------------------------------------- __cuda_stream__
def test_streams_follow_the_protocol_both_ways(state):
    own = state.runtime.acquire_stream()
    assert own.__cuda_stream__() == (0, own.handle)

    class Theirs:
        def __init__(self, answer):
            self.answer = answer

        def __cuda_stream__(self):
            return self.answer

    buffer = state.full(4, 1, "int32", Theirs((0, 1)))
    assert buffer.last_write_stream.handle == 1
    assert buffer.to_numpy(Theirs((0, 1))).tolist() == [1] * 4
    for wrong in (None, 0, (0,), ("0", 1), (0, None), (0, 1.5), "01", {}):
        with pytest.raises(TypeError, match=r"not \(0, handle\)"):
            buffer.fill(1, Theirs(wrong))
    with pytest.raises(ValueError, match="is version 1"):
        buffer.fill(1, Theirs((1, 1)))
    for wrong in ((0, -1), (0, 1 << 64)):
        with pytest.raises(ValueError, match="no CUDA stream handle"):
            buffer.fill(1, Theirs(wrong))


# ---------------------------------------------------------------------------------------- neighbours
class Stream:
    def __init__(self, handle):
        self.ptr = self.cuda_stream = self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


def library(name: str, **parts) -> SimpleNamespace:
    """A module as far as it is asked, and the class of its arrays."""
    kind = type("Array", (Array,), {"__module__": f"{name}.core"})
    return SimpleNamespace(Array=kind, **parts)


@pytest.fixture(params=["cupy", "torch", "jax"])
def neighbour(request, monkeypatch):
    """A library that works on a stream of its own, and tells nobody but who asks."""
    stream = Stream(int(check(cuda.cuStreamCreate(1))))
    if request.param == "cupy":
        found = library("cupy", cuda=SimpleNamespace(get_current_stream=lambda: stream, ExternalStream=int))
    elif request.param == "torch":
        found = library("torch", cuda=SimpleNamespace(current_stream=lambda device: stream,
                                                      is_initialized=lambda: True))
    else:
        device = SimpleNamespace(platform="gpu", local_hardware_id=0,
                                 get_stream_for_external_ready_events=lambda: stream.handle)
        found = library("jax", local_devices=lambda: [SimpleNamespace(platform="cpu"), device])
        monkeypatch.setitem(sys.modules, "jax._src.xla_bridge",
                            SimpleNamespace(backends_are_initialized=lambda: True))
    found.stream, found.Array.device = stream, 0
    monkeypatch.setitem(sys.modules, request.param, found)
    yield found
    check(cuda.cuCtxSynchronize())
    check(cuda.cuStreamDestroy(stream.handle))


@pytest.mark.simulator
def test_what_a_neighbours_stream_does_with_ours_is_waited_for(bench, driver, neighbour):
    """He names it by a handle; the object that keeps it alive is found, so it counts as opaque until the deleter."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    capsule = buffer.__dlpack__(stream=neighbour.stream.handle)
    x.kernels.fill(neighbour.stream.handle, buffer.access().ptr, 1, 1)
    with use(x.T, write=buffer):
        x.work(x.T, (buffer.access(), WRITE))
    del capsule, buffer
    x.runtime.reap_pending(blocking=False)
    assert x.runtime.live_bytes == 0                    # nobody had to wait for the context
    assert driver.calls("cuCtxSynchronize") == 0
    x.runtime.unregister_stream(neighbour.stream.handle)


@pytest.mark.simulator
@pytest.mark.parametrize("neighbour", ["cupy", "torch"], indirect=True)
@pytest.mark.parametrize("dropped", [False, True])
def test_a_neighbours_arrays_come_with_the_stream_that_he_works_on(bench, driver, memory, neighbour, dropped):
    """PyTorch's interface is of version 2 and names none; CuPy's names the current one."""
    x = bench()
    state = DeviceState(x.runtime)
    x.kernels.fill(neighbour.stream.handle, memory, 1, 1)
    if dropped:
        driver.drop("cuStreamWaitEvent")
    buffer = from_cuda_array(neighbour.Array(data=(memory, False), version=2), state=state)
    with use(x.T, write=buffer):
        x.kernels.fill(x.T.handle, memory, 2, 1)
    del buffer
    x.runtime.reap_pending(blocking=False)
    x.kernels.fill(neighbour.stream.handle, memory, 3, 1)               # his again, after our use
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    check(cuda.cuCtxSynchronize())
    driver.clear_races()
    x.runtime.unregister_stream(neighbour.stream.handle)


@pytest.mark.simulator
def test_numbas_arrays_are_the_legacy_streams_unless_they_say_another(bench, driver, memory, monkeypatch):
    x = bench()
    state = DeviceState(x.runtime)
    numba = library("numba")
    monkeypatch.setitem(sys.modules, "numba", numba)
    for stream, handle in ((0, 1), (Stream(x.S.handle), x.S.handle)):
        array = numba.Array(data=(memory, False))
        array.stream = stream
        x.kernels.fill(handle, memory, 1, 1)
        buffer = from_cuda_array(array, state=state)
        with use(x.T, write=buffer):
            x.kernels.fill(x.T.handle, memory, 2, 1)
        del buffer
        x.runtime.reap_pending(blocking=False)
        x.kernels.fill(handle, memory, 3, 1)
        check(cuda.cuCtxSynchronize())
    assert not driver.races()


def test_everything_is_refused_on_a_device_that_shuts_down(state, memory):
    pair = state.full(4, 1, "int8").__arrow_c_device_array__()
    state.begin_shutdown()
    for call in (lambda: from_dlpack(Producer(memory, (4,)), state=state), lambda: from_arrow(pair, state=state),
                 lambda: from_cuda_array(Array(data=(memory, False)), state=state)):
        with pytest.raises(StaleBufferError, match="device shutting down"):
            call()
