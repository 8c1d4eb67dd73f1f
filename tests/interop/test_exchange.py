"""`Buffer.__dlpack_c_exchange_api__`: buffers in the hands of libraries that are called in C."""
from __future__ import annotations

import ctypes
import threading
from contextlib import nullcontext, suppress

import pytest
from capsules import CPU, CUDA, settle
from cuda.bindings import driver as cuda
from exchanges import Library
from foreign_streams import ForeignStream
from four_streams import READ, READ_WRITE, WRITE, at

import xlogmem
from xlogmem import (
    Buffer,
    DeviceRuntime,
    DeviceState,
    StaleBufferError,
    UseAfterFreeError,
    use,
)
from xlogmem.sim.kernels import check

pytestmark = pytest.mark.simulator
LEGACY = 1
READ_ONLY = 1


@pytest.fixture
def x(four):
    """Four streams, a state over their runtime, and the library."""
    made = four()
    made.state = DeviceState(made.runtime)
    made.library = Library(Buffer)
    return made


def call(x, buffer, access):
    """What a library does with an argument: export, query the stream, launch, drop the tensor."""
    exported = x.library.take(buffer)
    stream = x.library.stream()
    if access == READ:
        x.kernels.count_unequal(stream, x.next_word(), exported.tensor.data, 0, 1)
    else:
        x.kernels.fill(stream, exported.tensor.data, 1, 1)
    exported.delete()
    return stream


def take_races(x):
    found = x.driver.races()
    x.driver.clear_races()
    return found


def test_the_table_is_of_dlpack_1_3_and_complete():
    table = Library(Buffer).table
    assert (table.major, table.minor, table.older) == (1, 3, None)
    assert all(bool(getattr(table, name)) for name, _ in table._fields_[3:])
    assert Buffer.__dlpack_c_exchange_api__ is Buffer.__dlpack_c_exchange_api__


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("named", ["own", "held", "legacy"])
@pytest.mark.parametrize("access", [READ, WRITE, READ_WRITE])
def test_a_library_works_on_the_stream_of_the_use(x, access, named, dropped):
    """The use orders it after earlier work elsewhere, and later uses elsewhere come after it.  The twin drops waits."""
    a = x.state.full(512, 1, "uint8", x.S)
    x.use(x.S, (a.access(), WRITE))
    foreign = ForeignStream()
    stream = {"own": x.T, "held": foreign, "legacy": LEGACY}[named]
    if named == "held":
        x.runtime.register_stream(foreign)
    keyword = {READ: "read", WRITE: "write", READ_WRITE: "read_write"}[access]
    if dropped:
        for nth in range(1, 5):
            x.driver.drop("cuStreamWaitEvent", nth)
    with use(stream, runtime=x.runtime, **{keyword: a}):
        where = call(x, a, access)
    assert where == (stream if isinstance(stream, int) else stream.handle)
    if not dropped:
        settle()
    with use(x.U, write=a):
        x.work(x.U, (a.access(), WRITE))
    assert bool(take_races(x)) == dropped
    check(cuda.cuCtxSynchronize())
    a.release()
    x.runtime.reap_pending()
    take_races(x)
    assert x.runtime.bytes_outstanding == 0


@pytest.mark.parametrize("dropped", [False, True])
def test_a_tensor_that_is_kept_after_the_use_is_waited_for(x, dropped):
    """Its holder may go on working on the stream of the use, until the deleter runs."""
    a = x.state.full(512, 1, "uint8", x.S)
    with use(x.T, read_write=a):
        kept = x.library.take(a)
    x.kernels.fill(x.T.handle, kept.tensor.data, 1, 1)
    if dropped:
        for nth in range(1, 3):
            x.driver.drop("cuStreamWaitEvent", nth)
    with use(x.U, write=a):
        x.work(x.U, (a.access(), WRITE))
    assert bool(take_races(x)) == dropped
    block = a.access()
    block.free()
    assert block.state is xlogmem.BlockState.RETIRED    # until the deleter has run
    kept.delete()
    settle()
    x.runtime.reap_pending(blocking=False)
    assert block.state is xlogmem.BlockState.FREED
    check(cuda.cuCtxSynchronize())
    take_races(x)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_a_tensor_that_is_kept_after_a_cancelled_use_is_waited_for(x, first, dropped):
    """Nothing was launched in the use; what the library queues, before or after, counts as that of any holder."""
    a = x.state.full(512, 1, "uint8", x.S)
    recorder = x.prepare(x.T, (a.access(), WRITE))
    kept = x.library.take(a)
    if not first:
        recorder.cancel()
    x.kernels.fill(x.T.handle, kept.tensor.data, 1, 1)
    if first:
        recorder.cancel()
    if dropped:
        for nth in range(1, 3):
            x.driver.drop("cuStreamWaitEvent", nth)
    with use(x.U, write=a):
        x.work(x.U, (a.access(), WRITE))
    assert bool(take_races(x)) == dropped
    kept.delete()
    settle()
    check(cuda.cuCtxSynchronize())
    take_races(x)


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("how", ["take", "look"])
def test_a_buffer_that_no_use_names_is_ordered_first(x, how, inside, dropped):
    """Inside of a use on its stream; else on the legacy default stream, as `__dlpack__` without a stream."""
    a, b = (x.state.full(512, 1, "uint8", x.S) for _ in range(2))
    last = x.use(x.U, (b.access(), READ))               # a reader counts: the library may write
    if dropped:
        for nth in range(1, 4):
            x.driver.drop("cuStreamWaitEvent", nth)
    exported = tensor = None
    with use(x.T, read=a) if inside else nullcontext():
        stream = x.library.stream()
        if how == "take":
            exported = x.library.take(b)
            tensor = exported.tensor
        else:
            tensor = x.library.look(b)
        assert stream == (x.T.handle if inside else 0)
        if not dropped:
            assert x.ordered(last, at(stream or LEGACY))
        x.kernels.fill(stream or LEGACY, tensor.data, 1, 1)
    with use(x.V, write=b):                             # the library's work is waited for
        x.work(x.V, (b.access(), WRITE))
    assert bool(take_races(x)) == dropped
    if exported is not None:
        assert exported.managed.flags == 0
        exported.delete()
    check(cuda.cuCtxSynchronize())
    settle()
    take_races(x)


def test_a_use_that_only_reads_gives_a_read_only_tensor(x):
    a = x.state.full(512, 1, "uint8", x.S)
    flags = []
    for keyword in ("read", "write", "read_write"):
        with use(x.T, **{keyword: a}):
            exported = x.library.take(a)
            flags.append(exported.managed.flags)
            exported.delete()
    assert flags == [READ_ONLY, 0, 0]
    with use(x.T, read=a), use(x.T, write=a):           # both on one stream: as much as the two together
        exported = x.library.take(a)
        assert exported.managed.flags == 0
        exported.delete()


def test_what_a_tensor_says(x):
    a = x.state.from_numpy([[1, 2, 3], [4, 5, 6]])
    for array, shape, strides in ((a, [2, 3], [3, 1]), (a.T, [3, 2], [1, 3]), (a[1, ::2], [2], [2]), (a[0, 0], [], []),
                                  (a[:, 3:], [2, 0], [0, 1])):
        with use(x.S, read=array):
            exported, seen = x.library.take(array), x.library.look(array)
        for tensor in (exported.tensor, seen):
            assert (tensor.data or 0, tensor.byte_offset) == (array.ptr if array.size else 0, 0)
            assert (tensor.device_type, tensor.device_id) == (CUDA, 0)
            assert (tensor.ndim, tensor.code, tensor.bits, tensor.lanes) == (len(shape), 0, 64, 1)
            assert [tensor.shape[i] for i in range(len(shape))] == shape
            if array.size:
                assert [tensor.strides[i] for i in range(len(shape))] == strides
            assert bool(tensor.shape) == bool(shape)
        assert (exported.managed.major, exported.managed.flags & ~READ_ONLY) == (1, 0)
        exported.delete()
    settle()


def test_a_use_in_another_thread_is_not_meant(x):
    a = x.state.full(512, 1, "uint8", x.S)
    seen = []
    with use(x.T, read=a):
        thread = threading.Thread(target=lambda: seen.append(x.library.stream()))
        thread.start()
        thread.join()
        assert x.library.stream() == x.T.handle
    assert seen == [0]
    assert x.library.stream() == 0
    assert x.library.stream(device_type=CPU) == 0


def test_uses_on_several_streams_are_refused(x):
    a, b, c = (x.state.full(512, 1, "uint8", x.S) for _ in range(3))
    with use(x.T, read=a), use(x.U, read=b):
        with pytest.raises(BufferError, match=r"several streams.*leave the others first"):
            x.library.stream()
        for take in (x.library.take, x.library.look):
            for buffer in (a, c):
                with pytest.raises(BufferError, match="several streams"):
                    take(buffer)
    with use(x.T, read=a), use(x.T, read=b):            # one stream, twice
        assert x.library.stream() == x.T.handle
        x.library.take(b).delete()
    settle()


def test_bad_arguments_are_refused(x):
    a = x.state.full(512, 1, "uint8", x.S)
    with pytest.raises(TypeError, match="called with a list"):
        x.library.take([])
    with pytest.raises(TypeError, match="called with a list"):
        x.library.look([])
    block = a.access()
    block.free()
    for take in (x.library.take, x.library.look):
        with pytest.raises(UseAfterFreeError):
            take(a)
    b = x.state.full(512, 1, "uint8", x.S)
    b.release()
    for take in (x.library.take, x.library.look):
        with pytest.raises(StaleBufferError):
            take(b)
    settle()


@pytest.mark.parametrize("dropped", [False, True])
def test_a_bare_handle_is_refused_but_for_the_time_of_a_call(x, dropped):
    """Nothing is known to keep its stream alive, so work of a holder would not be waited for."""
    a, b = (x.state.full(512, 1, "uint8", x.S) for _ in range(2))
    stream = ForeignStream()
    if dropped:
        x.driver.drop("cuStreamWaitEvent", 1)
    with use(stream.handle, runtime=x.runtime, write=a):
        for take, what in ((x.library.take, a), (x.library.take, b), (x.library.look, b)):
            with pytest.raises(BufferError, match=r"nothing is known to keep that stream alive.*the stream's object"):
                take(what)
        seen = x.library.look(a)
        x.kernels.fill(x.library.stream(), seen.data, 1, 1)
    assert bool(take_races(x)) == dropped
    with use(x.U, write=a):
        x.work(x.U, (a.access(), WRITE))
    assert dropped or not take_races(x)
    x.runtime.register_stream(stream)
    with use(stream.handle, runtime=x.runtime, write=a):
        call(x, a, WRITE)
    take_races(x)
    check(cuda.cuCtxSynchronize())
    settle()


# ------------------------------------------------------------------------------------------------ results
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.usefixtures("_own")
def test_a_result_is_allocated_where_the_library_works(driver, kernels, dropped):
    """It comes back as a buffer; later uses elsewhere come after the library's work."""
    own = xlogmem.get_device_state()
    library = Library(Buffer)
    one, other = (own.runtime.acquire_stream() for _ in range(2))
    live = own.runtime.live_bytes
    a = own.full(4, 1.0, "float32", one)
    with use(one, read=a):
        result = library.allocate((2, 3))
        kernels.fill(library.stream(), result.tensor.data, 1, 1)
        b = library.give(result)
    assert (b.shape, b.dtype, b.ptr) == ((2, 3), "float32", result.tensor.data)
    assert b.strides == (12, 4)
    settle()
    if dropped:
        for nth in range(1, 3):
            driver.drop("cuStreamWaitEvent", nth)
    with use(other, read=b):
        kernels.count_unequal(other.handle, a.ptr, b.ptr, 0, 1)
    found = driver.races()
    driver.clear_races()
    assert bool(found) == dropped
    check(cuda.cuCtxSynchronize())
    a.release()
    b.release()
    own.runtime.reap_pending()
    driver.clear_races()
    assert own.runtime.live_bytes == live


@pytest.mark.usefixtures("_own")
def test_a_result_that_is_dropped_is_freed():
    own = xlogmem.get_device_state()
    library = Library(Buffer)
    live = own.runtime.live_bytes
    for shape in ((4,), (), (2, 0)):
        result = library.allocate(shape)
        assert (own.runtime.live_bytes > live) is (0 not in shape)
        result.delete()
        settle()
        own.runtime.reap_pending()
        assert own.runtime.live_bytes == live


@pytest.mark.usefixtures("_own")
def test_results_that_cannot_be_had(driver):
    library = Library(Buffer)
    for wrong, text in (({"bits": 7}, "BufferError: no buffer has DLPack code 2 with 7 bits"),
                        ({"lanes": 2}, r"2 lane\(s\)"), ({"device": (CPU, 0)}, r"DLPack device \(1, 0\)"),
                        ({"device": (CUDA, -1)}, r"DLPack device \(2, -1\)")):
        with pytest.raises(RuntimeError, match=text):
            library.allocate((4,), **wrong)
    with pytest.raises(RuntimeError, match="negative extent"):
        library.allocate((4, -1))
    for nth in (1, 2):
        driver.fail("cuMemAllocFromPoolAsync", nth, code=2)
    with pytest.raises(RuntimeError, match=r"MemoryError: .*OUT_OF_MEMORY"):
        library.allocate((1 << 20,))


@pytest.mark.usefixtures("_own")
def test_an_interrupt_of_an_allocation_is_not_lost(monkeypatch):
    """A library knows two kinds of errors, and drops the others."""
    def interrupted(*_):
        raise KeyboardInterrupt

    own = xlogmem.get_device_state()
    library = Library(Buffer)
    monkeypatch.setattr(type(own), "empty", interrupted)
    with pytest.raises(KeyboardInterrupt):
        with suppress(RuntimeError):         # of the library
            library.allocate((4,))
        settle()


@pytest.mark.usefixtures("_own")
def test_a_tensor_that_cannot_become_a_buffer_is_still_the_librarys():
    library = Library(Buffer)
    result = library.allocate((4,))
    for field, value in (("major", 2),):
        before = getattr(result.managed, field)
        setattr(result.managed, field, value)
        with pytest.raises(BufferError, match="cannot become a buffer"):
            library.give(result)
        setattr(result.managed, field, before)
    result.managed.tensor.device_type = CPU
    with pytest.raises(BufferError, match="cannot become a buffer"):
        library.give(result)
    result.managed.tensor.device_type = CUDA
    result.managed.tensor.bits = 7
    with pytest.raises(BufferError, match="not a supported dtype"):
        library.give(result)
    result.managed.tensor.bits = 32
    assert library.give(result).shape == (4,)


@pytest.mark.usefixtures("_own")
def test_a_tensor_of_another_library_becomes_a_buffer_that_deletes_it(driver, kernels):
    """It lies in memory of the library's own; after an exception it is not deleted."""
    own = xlogmem.get_device_state()
    library = Library(Buffer)
    deleted = []
    memory = int(check(cuda.cuMemAlloc(64)))
    foreign = library.allocate((4,))                    # with a deleter of its own

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def delete(address):
        deleted.append(address)

    ours = foreign.managed.deleter
    foreign.managed.deleter = ctypes.cast(delete, ctypes.c_void_p).value
    own_memory, foreign.managed.tensor.data = foreign.managed.tensor.data, memory + 2
    with pytest.raises(BufferError, match="not aligned"):
        library.give(foreign)
    assert not deleted
    foreign.managed.tensor.data = memory
    stream = own.runtime.acquire_stream()
    b = library.give(foreign)
    with use(stream, write=b):
        kernels.fill(stream.handle, b.ptr, 1, 1)
    b.release()
    own.runtime.reap_pending()
    assert deleted == [foreign.address]
    foreign.managed.tensor.data = own_memory
    foreign.managed.deleter = ours
    foreign.delete()
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemFree(memory))


# ------------------------------------------------------------------------------------------------ captures
@pytest.mark.usefixtures("_own")
def test_a_library_is_called_inside_a_capture(driver, kernels):
    own = xlogmem.get_device_state()
    library = Library(Buffer)
    one, other = (own.runtime.acquire_stream() for _ in range(2))
    a = own.full(4, 1.0, "float32", one)
    with xlogmem.capture(one) as graph, use(one, read_write=a):
        exported = library.take(a)
        assert library.stream() == one.handle
        kernels.fill(one.handle, exported.tensor.data, 1, 1)
        exported.delete()
    for stream in (one, other):
        graph.launch(stream)
    assert not driver.races()
    graph.close()
    check(cuda.cuCtxSynchronize())


@pytest.mark.usefixtures("_own")
def test_a_capture_on_a_stream_of_others_is_refused():
    own, stream = xlogmem.get_device_state(), ForeignStream()
    library = Library(Buffer)
    a = own.full(4, 1.0, "float32")
    check(cuda.cuCtxSynchronize())
    refused = pytest.raises(BufferError, match=r"not a stream of the runtime.*acquire_stream")
    with xlogmem.capture(stream) as graph, use(stream, read_write=a), refused:
        library.take(a)
    graph.close()
    a.release()
    check(cuda.cuCtxSynchronize())


@pytest.mark.usefixtures("_own")
def test_a_runtime_of_ones_own_and_that_of_the_process():
    """The thread is inside of a use of one, and the buffer is the other's: refused as elsewhere."""
    own = xlogmem.get_device_state()
    mine = DeviceRuntime()
    library = Library(Buffer)
    stream, home = mine.acquire_stream(), own.runtime.acquire_stream()
    b = own.full(4, 1.0, "float32", home)
    block = mine.allocate(64, stream)
    with use(stream, read=block):
        assert library.stream() == stream.handle
        with pytest.raises(BufferError, match=r"of another runtime than .*: call it in a use of that one"):
            library.take(b)
        with use(home, read=b), pytest.raises(BufferError, match="several streams"):
            library.stream()
    b.release()
    check(cuda.cuCtxSynchronize())
    del block


@pytest.mark.usefixtures("_own")
def test_a_tensor_of_another_runtime_comes_back_only_on_its_stream(kernels):
    """Its release files what was done there, and nothing else that the process's runtime knows of."""
    own = xlogmem.get_device_state()
    mine = DeviceState(DeviceRuntime())
    library = Library(Buffer)
    one, two, other = mine.runtime.acquire_stream(), mine.runtime.acquire_stream(), own.runtime.acquire_stream()
    a = mine.full(4, 1.0, "float32", one)
    with use(one, write=a):
        kept = library.take(a)
    with pytest.raises(BufferError, match=r"another runtime.*from_dlpack\(buffer\) orders"):
        library.give(kept)                              # the library works on the legacy default stream now
    kept.delete()
    settle()
    for take in (xlogmem.from_dlpack, lambda a: library.give(library.take(a))):
        b = take(a)
        with use(other, write=b):
            kernels.fill(other.handle, b.ptr, 1, 1)
        b.release()
        own.runtime.reap_pending()
        settle()
        with use(two, write=a):
            kernels.fill(two.handle, a.ptr, 1, 1)
    a.release()
    check(cuda.cuCtxSynchronize())


@pytest.mark.usefixtures("_own")
def test_a_tensor_without_elements_comes_back_on_any_stream():
    """Also where its structure lies in the memory of one that was exported on another stream."""
    own = xlogmem.get_device_state()
    library = Library(Buffer)
    one, two = own.runtime.acquire_stream(), own.runtime.acquire_stream()
    a, empty = own.full(4, 1.0, "float32", one), own.empty((0,), "float32", one)
    for _ in range(20):
        with use(one, write=a):
            library.take(a).delete()
        settle()
        with use(two, write=a):
            back = library.give(library.take(empty))
        assert back.shape == (0,)
    a.release()
    check(cuda.cuCtxSynchronize())
