"""What `use`, `adopt` and `find_block` take: every way in which libraries name device memory, by stand-ins."""
from __future__ import annotations

import array as arrays_of_python
import ctypes
import sys

import numpy
import pytest
from arrays import Array
from capsules import name_of
from cuda.bindings import driver as cuda
from four_streams import READ, nothing_happens
from stand_ins import (
    BARE,
    NBYTES,
    SIZED,
    Buffer,
    CountedPointer,
    Memory,
    MemoryPointer,
    Storage,
    Tensor,
    device_pointer,
)

from xlogmem import DeviceRuntime, DeviceState, StreamMisuseError, register_resolver, use

EVERY = SIZED | BARE


def scene():
    runtime = DeviceRuntime()
    return runtime, runtime.allocate(NBYTES), runtime.acquire_stream()


def used(block, stream, kind: str = "has-read") -> bool:
    return (kind, stream.id) in block.frontier


# ---------------------------------------------------------------------------------------------- the three
@pytest.mark.parametrize("kind", EVERY)
def test_every_way_of_naming_memory_names_its_block(kind):
    runtime, block, stream = scene()
    what = EVERY[kind](block.ptr)
    assert runtime.find_block(what) == block.id
    assert runtime.adopt(what, 16).generation == block.generation
    with use(stream, read=what) as recorder:
        assert recorder.recorded_count == 1
    assert used(block, stream)
    with use(stream, write=[what]):
        pass
    assert used(block, stream, "written")
    runtime.record_block_use(what, runtime.default_stream)
    block.free()
    assert runtime.find_block(what) is None
    with pytest.raises(StreamMisuseError, match="untracked"):
        use(stream, read=what).preflight()


@pytest.mark.simulator
@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("dropped", [False, True])
def test_a_launch_is_ordered_after_uses_by_any_other_name(four, driver, kind, dropped):
    x = four()
    block = x.alloc(x.S, NBYTES)
    what = EVERY[kind](block.ptr)
    with use(x.S, write=what):
        x.kernels.fill(x.S.handle, block.ptr, 1, 1)
    if dropped:
        driver.drop("cuStreamWaitEvent")
    with use(x.T, read=what):
        x.work(x.T, (block, READ))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    driver.reset("eager")


@pytest.mark.parametrize("kind", SIZED)
def test_what_says_its_size_is_adopted_by_itself(memory, kind):
    runtime, _, stream = scene()
    what = SIZED[kind](memory)
    references = sys.getrefcount(what)
    block = runtime.adopt(what, stream=stream)
    assert (block.ptr, block.nbytes, block.stream) == (memory, NBYTES, stream)
    assert sys.getrefcount(what) > references           # it is the owner
    assert runtime.find_block(what) == block.id
    block.free()
    assert sys.getrefcount(what) == references
    assert runtime.find_block(what) is None


@pytest.mark.parametrize("kind", BARE)
def test_an_address_does_not_say_how_much(memory, kind):
    runtime, *_ = scene()
    with pytest.raises(ValueError, match="does not say how many bytes"):
        runtime.adopt(BARE[kind](memory))
    assert runtime.adopt(BARE[kind](memory), 64).nbytes == 64


def test_nested_lists_tuples_and_dicts():
    runtime, block, stream = scene()
    a, b, c = (runtime.allocate(NBYTES) for _ in range(3))
    nested = {"x": [block, (a.ptr, {"y": Tensor(b.ptr)})], "z": ([], {}, [[c.id]])}
    assert runtime.find_block(nested) == {"x": [block.id, (a.id, {"y": b.id})], "z": ([], {}, [[c.id]])}
    for wrap in (lambda what: what, lambda what: [what], lambda what: ({"in": what},)):
        with use(stream, read=wrap(nested)) as recorder:
            assert recorder.recorded_count == 4
    assert all(used(one, stream) for one in (a, b, c, block))
    with use(stream.handle, write=nested, runtime=runtime) as recorder:
        assert recorder.recorded_count == 4
    with use(int(stream.handle), write=nested) as recorder:         # the runtime of the first block inside
        assert recorder.runtime is runtime
    for call in (lambda: runtime.record_block_use([block], stream), lambda: runtime.adopt([block.ptr], 64)):
        with pytest.raises(TypeError, match="may consist of several blocks"):
            call()


def test_nested_adoptions_come_in_the_same_arrangement_or_not_at_all(memory):
    runtime, _, stream = scene()
    low, high = Storage(memory, 1024), Storage(memory + 2048, 1024)
    handles = runtime.adopt({"low": low, "high": [high]}, stream=stream)
    assert (handles["low"].ptr, handles["high"][0].ptr) == (memory, memory + 2048)
    handles = None
    runtime.reap_pending()
    with pytest.raises(TypeError, match="is not a block"):
        runtime.adopt([low, "text"])
    runtime.reap_pending()
    assert runtime.find_block(memory) is None


def test_containers_without_an_end():
    runtime, block, stream = scene()
    inside: list[object] = [block]
    inside.append({"again": inside})
    with pytest.raises(RecursionError, match=r"read=: lists, tuples and dicts"):
        use(stream, read=inside)
    for call in (lambda: use(stream.handle, read=inside), lambda: runtime.find_block(inside),
                 lambda: runtime.adopt(inside)):
        with pytest.raises(RecursionError):
            call()


def test_a_resolver_inside_of_a_dict_and_a_dict_inside_of_a_resolver():
    _, block, stream = scene()

    class Table:
        pass

    register_resolver(Table, lambda table, hold: [{"column": Tensor(block.ptr)}])
    try:
        with use(stream, write={"table": [Table()]}) as recorder:
            assert recorder.recorded_count == 1
        with pytest.raises(StreamMisuseError, match="Table at 0x1267 is not tracked"):
            register_resolver(Table, lambda table, hold: ([4711],))
            use(stream, write={"table": [Table()]}).preflight()
    finally:
        register_resolver(Table, None)


# ---------------------------------------------------------------------------------------------- DLPack
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_is_read_and_not_consumed(version):
    _, block, stream = scene()
    given = []

    class Watched(Buffer):
        def __dlpack__(self, **options):
            given.append(super().__dlpack__(**options))
            return given[-1]

    what = Watched(block.ptr, version=version)
    with use(stream, read=what) as recorder:
        assert recorder.recorded_count == 1
    assert what.producer.requests == [{"stream": -1, "max_version": (1, 0)}]
    assert name_of(given[0]) == (b"dltensor_versioned" if version else b"dltensor")
    references = sys.getrefcount(given[0])
    assert references == 2                              # it dies with the list, and its producer's deleter runs
    assert what.producer.deleted == 0


def test_a_capsule_that_is_dropped_is_the_producers_to_delete():
    """Of xlogmem's own exports a capsule is one: its end releases the export, and the block can be freed."""
    runtime, *_ = scene()
    state = DeviceState(runtime)
    buffer = state.empty(64, "uint8")

    class Only:
        def __init__(self, buffer):
            self.__dlpack__, self.__dlpack_device__ = buffer.__dlpack__, buffer.__dlpack_device__

    found = runtime.find_block(Only(buffer))
    assert found is not None
    del buffer
    runtime.reap_pending()
    assert runtime.find_block(found.ptr) is None


def test_producers_from_before_max_version():
    runtime, block, _ = scene()

    class Old(Buffer):
        def __dlpack__(self, stream=None):
            return super().__dlpack__(stream=stream)

    assert runtime.find_block(Old(block.ptr)) == block.id


# ---------------------------------------------------------------------------------------------- extents
OFFSETS = {"data_ptr": lambda ptr: Tensor(ptr, (2, 8), (2048, 1)), "ptr": lambda ptr: MemoryPointer(ptr, 64),
           "backwards": lambda ptr: Tensor(ptr + NBYTES - 1, (NBYTES,), (-1,)),
           "dlpack": lambda ptr: Buffer(ptr, NBYTES - 8, byte_offset=8)}


@pytest.mark.parametrize("kind", OFFSETS)
def test_parts_of_a_block_are_the_block(kind):
    runtime, block, _ = scene()
    assert runtime.find_block(OFFSETS[kind](block.ptr)) == block.id


BEYOND = {"data_ptr": lambda ptr: Tensor(ptr, (NBYTES + 1,)), "strides": lambda ptr: Tensor(ptr, (2,), (NBYTES,)),
          "storage": lambda ptr: Storage(ptr + 1), "dlpack": lambda ptr: Buffer(ptr, byte_offset=1),
          "handle": lambda ptr: CountedPointer(device_pointer(ptr + 8)),
          "huge": lambda ptr: Tensor(ptr, (1 << 60, 1 << 60), (1 << 60, 1 << 60))}


@pytest.mark.parametrize("kind", BEYOND)
def test_what_reaches_beyond_its_block_is_refused(kind):
    runtime, block, stream = scene()
    what = BEYOND[kind](block.ptr)
    assert runtime.find_block(what) is None
    for untracked in ("raise", "adopt"):
        with pytest.raises(StreamMisuseError, match="is not in one block"):
            use(stream, read=what, untracked=untracked).preflight()


EMPTY = {"data_ptr": Tensor(0, (0, 5), (1, 1)), "storage": Storage(0, 0), "interface": Array(shape=(0,)),
         "dlpack": Buffer(0, 0), "handle": CountedPointer(0, 0)}


@pytest.mark.parametrize("kind", EMPTY)
def test_what_has_no_elements_names_nothing(kind):
    runtime, _, stream = scene()
    what = EMPTY[kind]
    assert runtime.find_block(what) is None
    with use(stream, read=what, write=[what]) as recorder:
        assert recorder.recorded_count == 0
    with pytest.raises(ValueError, match="no elements"):
        runtime.adopt(what)


# ---------------------------------------------------------------------------------------------- what is refused
class Pinned:
    """As CuPy's pointers to pinned memory: an address and a size, and the protocol of host buffers."""

    def __new__(cls):
        kind = type("PinnedMemoryPointer", (bytearray,), {"ptr": 1 << 40, "size": 64})
        return kind(64)


HOST = {"NumPy": numpy.zeros(4), "bytes": b"abc", "memoryview": memoryview(b"abc"),
        "array": arrays_of_python.array("b", b"abc"), "a tensor": Tensor(1 << 40, device=(1, 0)),
        "a pinned tensor": Tensor(1 << 40, device=(3, 0)),
        "a capsule": Buffer(1 << 40, device_type=1), "a pinned capsule": Buffer(1 << 40, device_type=3),
        "a storage": type("Storage", (Storage,), {"is_cuda": False})(1 << 40), "pinned": Pinned()}


@pytest.mark.simulator
@pytest.mark.parametrize("name", HOST)
def test_host_memory_is_refused_by_that_name(driver, name):
    runtime, _, stream = scene()
    for call in (lambda what: use(stream, write=what), lambda what: use(stream, read=[{1: what}], untracked="adopt"),
                 runtime.find_block, runtime.adopt, lambda what: use(stream, read=what, untracked="ignore")):
        with nothing_happens(driver, runtime), pytest.raises(TypeError, match="is host memory"):
            call(HOST[name])


def said(**fields) -> Array:
    return Array(**{"data": (1 << 40, False), **fields})


WRONG = {
    "text": ("x", "is not a block"), "a set": ({1}, "is not a block"), "a stream": (cuda.CUstream(5), "is not a block"),
    "a pointer without a size": (type("Kernel", (), {"handle": 1 << 40})(), "is not a block"),
    "another device": (Buffer(1 << 40, device_type=10), r"DLPack device \(10, 0\)"),
    "a negative device": (Buffer(1 << 40, device_id=-1), r"DLPack device \(2, -1\)"),
    "a version": (said(version=4), "version 4"), "no version": (said(version="3"), "version"),
    "an interface of three": (said(data=(1, 2, 3)), "is a pair"), "data of none": (said(data=None), "is a pair"),
    "an address of none": (said(data=(None, False)), "is an integer"),
    "a negative address": (said(data=(-1, False)), "gives -1 as its address"),
    "a huge address": (said(data=(1 << 64, False)), "as its address"),
    "a tensor's address": (Tensor(-8), "gives -8 as its address"), "no address": (Tensor(None), "data_ptr"),
    "strides of text": (Tensor(8, (4,), ("1",)), "stride"), "too few strides": (Tensor(8, (4, 4), (1,)), "has shape"),
    "a negative extent": (Tensor(8, (-4,)), "has shape"),
    "a negative size": (Storage(8, -4), "not a range"), "a size of text": (Storage(8, "4"), "the size"),
    "a size beyond": (Storage((1 << 64) - 8, 16), "not a range"),
    "a freed pointer": (CountedPointer(0), "address is 0"),
    "a ctypes null": (CountedPointer(ctypes.c_void_p(None)), "address is 0"),
    "a null tensor": (Buffer(0), "no memory"), "dimensions": (Buffer(8, ndim=65), "dimension"),
    "a dead capsule": (Buffer(8, name=b"used_dltensor"), "was used before"),
    "a newer capsule": (Buffer(8, version=(2, 0)), "DLPack 2.0"),
    "no capsule": (type("Wrong", (Buffer,), {"__dlpack__": lambda self, **_: 5})(8), "not a DLPack capsule"),
    "no device": (type("Wrong", (), {"__dlpack__": 1})(), "no method __dlpack_device__"),
}


@pytest.mark.simulator
@pytest.mark.parametrize("name", WRONG)
def test_what_contradicts_itself_is_refused_before_any_driver_call(driver, name):
    runtime, block, stream = scene()
    what, says = WRONG[name]
    for call in (lambda: use(stream, read=[block, what]), lambda: use(stream, write=what, untracked="adopt"),
                 lambda: runtime.find_block(what), lambda: runtime.adopt(what),
                 lambda: use(stream, read=what, untracked="ignore")):
        with nothing_happens(driver, runtime), pytest.raises((TypeError, ValueError, BufferError), match=says):
            call()


def test_what_was_closed_is_refused():
    _, block, stream = scene()
    what = Buffer(block.ptr)
    what.close()
    with pytest.raises(ValueError, match="is closed"):
        use(stream, read=what)


READ_ONLY = {"interface": lambda ptr: Array(data=(ptr, True)),
             "dlpack": lambda ptr: Buffer(ptr, version=(1, 0), flags=1)}


@pytest.mark.parametrize("kind", READ_ONLY)
def test_what_says_that_it_is_read_only_is_read_and_not_written(memory, kind):
    runtime, block, stream = scene()
    tracked, untracked = READ_ONLY[kind](block.ptr), READ_ONLY[kind](memory)
    assert runtime.find_block(tracked) == block.id
    runtime.record_block_use(tracked, stream)
    with use(stream, read=[tracked, untracked], untracked="adopt"):
        pass
    for option in ("write", "read_write"):
        for what in (tracked, untracked):
            with pytest.raises(StreamMisuseError, match=f"{option}=: .* says that it is read-only"):
                use(stream, **{option: what}, untracked="adopt")


def test_memory_of_another_device_is_not_adopted():
    runtime, _, _ = scene()
    for what in (Buffer(1 << 40, device_id=1), Tensor(1 << 40, device=(2, 1))):
        with pytest.raises(StreamMisuseError, match="is on device 1"):
            runtime.adopt(what)


def test_the_first_description_is_read_and_no_other():
    """A tensor whose interface refuses, an array whose capsule is not made, a buffer whose handle is not needed."""
    runtime, block, _ = scene()

    class Both(Array):
        def __dlpack__(self, **_):
            raise AssertionError("made a capsule although there is an interface")

        __dlpack_device__ = __dlpack__

    class Handled(Buffer):
        handle = property(lambda self: 1 / 0, lambda self, value: None)

    for what in (Tensor(block.ptr), Both(data=(block.ptr, False)), Handled(block.ptr)):
        assert runtime.find_block(what) == block.id


def test_pointers_of_ctypes_and_memory_of_cupy():
    runtime, block, _ = scene()
    for what in (CountedPointer(ctypes.c_void_p(block.ptr)), CountedPointer(ctypes.c_uint64(block.ptr)),
                 Memory(block.ptr), numpy.uint64(block.ptr)):
        assert runtime.find_block(what) == block.id
