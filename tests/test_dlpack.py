"""DLPack both ways: consumers come after the writers, memory stays until the deleter, and nothing is believed."""
from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from bench import READ, WRITE, ForeignStream, at
from capsules import CPU, CUDA, Producer, Taken, look, name_of
from cuda.bindings import driver as cuda

from xlogmem import (
    BlockState,
    DeviceRuntime,
    DeviceState,
    StaleBufferError,
    StreamMisuseError,
    UseAfterFreeError,
    from_dlpack,
    use,
)
from xlogmem._dtypes import DTYPES
from xlogmem._kernels import check

LEGACY, PER_THREAD = 1, 2


def settle() -> None:
    """Let the interpreter's main thread collect what was given back."""
    for _ in range(3):
        gc.collect()


# ---------------------------------------------------------------------------------------- streams of consumers
@pytest.mark.simulator
@pytest.mark.contract(190, 195)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("named", ["None", "legacy", "per-thread", "own", "held", "raw"])
@pytest.mark.parametrize("access", [WRITE, READ])
def test_the_consumers_stream_comes_after_all_who_use_the_memory(bench, driver, access, named, dropped):
    """Every value that names a stream.  The twin: the driver drops the wait, and the consumer's first work races."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.empty(512, "uint8", x.S)
    block = buffer.access()
    x.use(x.S, (block, WRITE))
    last = x.use(x.U, (block, access))                  # a reader counts too: the consumer may write
    foreign = ForeignStream()
    stream, handle = {"None": (None, LEGACY), "legacy": (1, LEGACY), "per-thread": (2, PER_THREAD),
                      "own": (x.T.handle, x.T.handle), "held": (foreign.handle, foreign.handle),
                      "raw": (foreign.handle, foreign.handle)}[named]
    if named == "held":
        x.runtime.register_stream(foreign)
    if dropped:
        for nth in (1, 2, 3):
            driver.drop("cuStreamWaitEvent", nth)
    taken = Taken(buffer.__dlpack__(stream=stream))
    if not dropped:
        assert x.ordered(last, at(handle))
    x.kernels.fill(handle, taken.tensor.data, 1, 1)
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    check(cuda.cuCtxSynchronize())
    taken.delete()
    del block, buffer
    x.runtime.reap_pending()
    driver.clear_races()
    assert x.runtime.bytes_outstanding == 0


@pytest.mark.simulator
@pytest.mark.contract(195)
def test_minus_one_orders_nothing(bench, driver):
    """The consumer said that he takes care of it; if he does not, it is a race."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    calls = driver.calls("cuStreamWaitEvent"), driver.calls("cuEventRecord")
    taken = Taken(buffer.__dlpack__(stream=-1))
    assert (driver.calls("cuStreamWaitEvent"), driver.calls("cuEventRecord")) == calls
    x.kernels.fill(x.T.handle, taken.tensor.data, 1, 1)
    assert driver.races()
    driver.clear_races()
    taken.delete()
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.contract(195)
def test_streams_that_nobody_may_name(state):
    buffer = state.full(4, 1, "int32")
    uses = state.runtime.counters()["uses"]
    with pytest.raises(ValueError, match="stream 0 is ambiguous"):
        buffer.__dlpack__(stream=0)
    for value in (-2, -100, 1 << 64):
        with pytest.raises(ValueError, match="no CUDA stream handle"):
            buffer.__dlpack__(stream=value)
    for value in (1.0, "1", True, [], object()):
        with pytest.raises(TypeError, match="stream is an integer"):
            buffer.__dlpack__(stream=value)
    assert state.runtime.counters()["uses"] == uses
    stream = state.runtime.default_stream
    Taken(buffer.__dlpack__(stream=stream)).delete()     # not in the standard, and clear enough


@pytest.mark.contract(194)
def test_what_a_capsule_says(state):
    """Shape, strides in elements, dtype, device; version and flags from 1.0 on."""
    buffer = state.from_numpy(np.arange(24, dtype="float32").reshape(4, 6))
    assert buffer.__dlpack_device__() == (CUDA, 0)
    ptr = buffer.access().ptr
    for version, name, inside in ((None, b"dltensor", None), ((0, 8), b"dltensor", None),
                                  ((1, 0), b"dltensor_versioned", (1, 0)), ((1, 3), b"dltensor_versioned", (1, 0)),
                                  ((2, 1), b"dltensor_versioned", (1, 0))):
        capsule = buffer[1:, ::2].__dlpack__(max_version=version, stream=1)
        assert name_of(capsule) == name
        seen = look(capsule)
        tensor = seen.tensor
        assert (tensor.data, tensor.byte_offset) == (ptr + 24, 0)
        assert (tensor.device_type, tensor.device_id) == (CUDA, 0)
        assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim) == (2, 32, 1, 2)
        assert (tensor.shape[:2], tensor.strides[:2]) == ([3, 3], [6, 2])
        if inside:
            assert (seen.major, seen.minor, seen.flags) == (*inside, 0)
    point = buffer[2, 3].__dlpack__(stream=1)
    assert look(point).tensor.ndim == 0
    for wrong in (1, (1,), (1, "x"), "10x"):
        with pytest.raises(TypeError, match="max_version is a pair"):
            buffer.__dlpack__(max_version=wrong)
    for name, row in DTYPES.items():
        tensor = look(state.empty(3, name).__dlpack__(stream=1)).tensor
        assert (tensor.code, tensor.bits, tensor.lanes) == (row.code, 8 * row.itemsize, 1)


def test_read_only_memory_is_exported_only_to_those_who_can_be_told(state):
    buffer = state.full(4, 1, "int32")
    seen = from_dlpack(Producer(buffer.access().ptr, (4,), code=0, bits=32, version=(1, 0), flags=1), state=state)
    assert seen.readonly
    with pytest.raises(BufferError, match="read-only"):
        seen.__dlpack__(stream=1)
    assert look(seen.__dlpack__(stream=1, max_version=(1, 0))).flags == 1
    assert look(seen.__dlpack__(stream=1, max_version=(1, 0), copy=True)).flags == 2
    assert seen.__dlpack__(stream=1, copy=True) is not None
    for call in (lambda: seen.fill(1), lambda: seen.copy_from(bytes(16)), lambda: seen.record_write(1)):
        with pytest.raises(ValueError, match="read-only"):
            call()
    assert seen.__cuda_array_interface__["data"][1] is True


def test_copies_and_other_devices(state):
    buffer = state.from_numpy(np.arange(6, dtype="int16").reshape(2, 3))
    copied = Taken(buffer.__dlpack__(stream=1, copy=True, max_version=(1, 0)))
    assert copied.tensor.data != buffer.access().ptr
    assert copied.managed.flags == 2
    buffer.fill(0)
    again = from_dlpack(Producer(copied.tensor.data, (2, 3), code=0, bits=16), state=state)
    assert again.to_numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    del again
    copied.delete()
    assert look(buffer.__dlpack__(stream=1, copy=False)).tensor.data == buffer.access().ptr
    assert buffer.__dlpack__(dl_device=(CUDA, 0)) is not None
    for device in ((CUDA, 1), (10, 0), (CPU, 1)):
        with pytest.raises(BufferError, match="cannot be exported"):
            buffer.__dlpack__(dl_device=device)
    with pytest.raises(BufferError, match="can only be a copy"):
        buffer.__dlpack__(dl_device=(CPU, 0), copy=False)
    with pytest.raises(TypeError, match="dl_device is a pair"):
        buffer.__dlpack__(dl_device=1)
    with pytest.raises(BufferError, match="only a contiguous"):
        buffer[:, ::2].__dlpack__(copy=True)


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_numpy_gets_a_copy_after_the_writers(bench, driver, dropped):
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.empty((3, 4), "int32", x.S)
    buffer.copy_from(np.arange(12, dtype="int32").reshape(3, 4), x.T)
    x.use(x.U, (buffer.access(), READ))
    if dropped:
        driver.drop("cuStreamWaitEvent")
    host = np.from_dlpack(buffer[:, 1::2], device="cpu")
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    if not dropped:
        assert host.tolist() == [[1, 3], [5, 7], [9, 11]]
    assert np.from_dlpack(state.empty((0, 3), "int8"), device="cpu").shape == (0, 3)
    with pytest.raises((RuntimeError, BufferError)):
        np.from_dlpack(buffer)                          # on the device: NumPy says that it cannot
    del host
    settle()


# ---------------------------------------------------------------------------------------- how long memory lives
@pytest.mark.simulator
@pytest.mark.contract(190, 194)
def test_an_export_outlives_all_its_owners(driver):
    """Buffer, state, runtime: the deleter lets go of the last."""
    runtime = DeviceRuntime()
    state = DeviceState(runtime)
    buffer = state.full(1000, 7, "uint8")
    taken = Taken(buffer[100:].__dlpack__(stream=1, max_version=(1, 0)))
    buffer.to_numpy()
    del buffer, state, runtime
    settle()
    assert driver.live_bytes() == 1000
    assert driver.peek(taken.tensor.data, 900) == b"\7" * 900
    taken.delete()
    settle()
    assert driver.live_bytes() == 0


@pytest.mark.simulator
@pytest.mark.contract(190)
def test_a_capsule_that_nobody_takes_gives_back(driver, state):
    buffer = state.full(1000, 7, "uint8")
    for _ in range(50):
        buffer.__dlpack__(stream=1)
        buffer.__dlpack__(stream=1, max_version=(1, 0))
        buffer.__dlpack__(dl_device=(CPU, 0))
    del buffer
    settle()
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0
    assert driver.live_bytes() == 0


@pytest.mark.contract(194)
@pytest.mark.parametrize("library", [ctypes.CFUNCTYPE, ctypes.PYFUNCTYPE])
@pytest.mark.parametrize("where", ["here", "a thread"])
def test_deleters_run_anywhere(state, library, where):
    """In a thread that Python does not know of as well, with the GIL and without."""
    runtime = state.runtime
    for turn in range(20):
        buffer = state.full(1000, turn, "uint8")
        taken = Taken(buffer.__dlpack__(stream=1, max_version=(1, 0) if turn % 2 else None))
        del buffer
        if where == "here":
            taken.delete(library)
        else:
            thread = threading.Thread(target=taken.delete, args=(library,))
            thread.start()
            thread.join()
    settle()
    runtime.reap_pending()
    assert runtime.bytes_outstanding == 0


def test_deleters_run_in_threads_that_python_never_saw(state):
    """pthread_create calls the deleter itself, many at once."""
    libc = ctypes.CDLL(None)
    libc.pthread_create.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    libc.pthread_join.argtypes = (ctypes.c_ulong, ctypes.c_void_p)
    for _ in range(10):
        taken = [Taken(state.full(64, 1, "uint8").__dlpack__(stream=1)) for _ in range(8)]
        threads = [ctypes.c_ulong() for _ in taken]
        for one, thread in zip(taken, threads, strict=True):
            assert libc.pthread_create(ctypes.byref(thread), None, one.managed.deleter, one.address) == 0
        for thread in threads:
            libc.pthread_join(thread, None)
    settle()
    state.runtime.reap_pending()
    assert state.runtime.bytes_outstanding == 0


@pytest.mark.simulator
def test_a_deleter_waits_for_nothing(driver, state):
    """While the runtime's lock is somebody's, or a driver call is held up; it makes no driver call itself."""
    buffer = state.full(64, 1, "uint8")
    taken = Taken(buffer.__dlpack__(stream=1))
    hold = driver.hold("cuMemAllocFromPoolAsync")
    thread = threading.Thread(target=lambda: state.empty(64, "uint8"))
    thread.start()
    assert hold.reached()
    calls = driver.all_calls()
    taken.delete(ctypes.PYFUNCTYPE)                     # keeps the GIL: no pending call gets in
    assert driver.all_calls() == calls
    assert hold.let_go()
    thread.join()


@pytest.mark.parametrize("when", ["alive", "at exit", "after exit", "never"])
@pytest.mark.parametrize("kind", ["dlpack", "arrow"])
def test_a_deleter_at_the_end_of_the_process_is_silent(when, kind):
    """In a destructor of the C library, after the interpreter was finalized, at the latest."""
    program = f"""
import atexit, ctypes, sys
sys.path[:0] = {[os.path.dirname(__file__)]!r}
import xlogmem.sim
try:
    from xlogmem import _driver; _driver.initialize()
except xlogmem.DriverNotFoundError:
    xlogmem.sim.install()
import xlogmem
from capsules import Taken, arrow_array
state = xlogmem.get_device_state()
buffer = state.full(100, 1, "uint8")
if {kind!r} == "dlpack":
    capsule = buffer.__dlpack__(stream=1)
    taken = Taken(capsule)
    function, address = taken.managed.deleter, taken.address
else:
    schema, capsule = buffer.__arrow_c_device_array__()
    array = arrow_array(capsule)
    moved = type(array).from_buffer_copy(array)
    array.array.release = None
    function, address = moved.array.release, ctypes.addressof(moved)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(moved))
del buffer
when = {when!r}
if when == "alive":
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(address)
elif when == "at exit":
    atexit.register(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function), address)
elif when == "after exit":
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    assert libc.__cxa_atexit(function, address, id(libc)) == 0      # by the C library, when Python is no more
print("done", flush=True)
"""
    run = subprocess.run([sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=100,
                         env=os.environ | {"XLOGMEM_SIM_QUIET": "1"})
    assert (run.returncode, run.stdout, run.stderr) == (0, "done\n", "")


# ---------------------------------------------------------------------------------------- while somebody has it
@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("when", ["while he has it", "after a write elsewhere", "when he has given it back", "freed"])
def test_what_a_consumer_does_on_his_stream_is_waited_for(bench, driver, when, dropped):
    """He need not tell: his stream counts as opaque for this block until the deleter, whose time is his last word."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    taken = Taken(buffer.__dlpack__(stream=x.T.handle))
    if when == "after a write elsewhere":
        x.use(x.S, (buffer.access(), WRITE))
        event = check(cuda.cuEventCreate(2))            # he orders himself after it, and goes on
        check(cuda.cuEventRecord(event, x.S.handle))
        check(cuda.cuStreamWaitEvent(x.T.handle, event, 0))
        check(cuda.cuEventDestroy(event))
    done = x.work(x.T, (buffer.access(), WRITE))
    if when in ("when he has given it back", "freed"):
        taken.delete()
        settle()
        x.work(x.T)                                     # later work of his stream is not the block's
    if dropped:
        for nth in (1, 2):
            driver.drop("cuStreamWaitEvent", nth)
    if when == "freed":
        del buffer
        x.runtime.reap_pending()
    else:
        with use(x.U, write=buffer):
            x.work(x.U, (buffer.access(), WRITE))
    races = driver.races()
    driver.clear_races()
    assert bool(races) == dropped
    if when != "freed" and not dropped:
        assert x.ordered(done, x.U)
    if when in ("while he has it", "after a write elsewhere"):
        taken.delete()
        settle()
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.simulator
@pytest.mark.contract(194)
def test_a_free_waits_for_the_deleter(bench, driver):
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    block = buffer.access()
    taken = [Taken(buffer.__dlpack__(stream=stream)) for stream in (1, x.T.handle, x.T.handle)]
    block.free()
    assert block.state is BlockState.RETIRED
    with pytest.raises(UseAfterFreeError):
        buffer.__dlpack__(stream=1)
    with pytest.raises(UseAfterFreeError):
        buffer.__dlpack__(stream=-1)
    for number, one in enumerate(taken):
        last = x.work(x.T)
        assert block.state is BlockState.RETIRED
        one.delete()
        settle()
        x.runtime.reap_pending(blocking=False)
        assert (block.state is BlockState.FREED) == (number == 2)
    assert x.ordered(last, x.S)                         # freed there, after him


@pytest.mark.simulator
@pytest.mark.parametrize("stream", ["raw", "minus one"])
def test_where_nobody_keeps_the_consumers_stream_it_is_never_touched_again(bench, driver, stream):
    """It may be destroyed before the deleter runs.  The block is freed by a blocking reap, after the whole context."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    other = check(cuda.cuStreamCreate(1))
    taken = Taken(buffer.__dlpack__(stream=int(other) if stream == "raw" else -1))
    if stream == "minus one":
        check(cuda.cuStreamSynchronize(x.S.handle))
    x.kernels.fill(int(other), taken.tensor.data, 1, 1)
    check(cuda.cuStreamDestroy(other))
    taken.delete()
    settle()
    del buffer
    x.runtime.reap_pending(blocking=False)
    assert x.runtime.live_bytes == 512                  # it is not known what he was at
    syncs = driver.calls("cuCtxSynchronize")
    x.runtime.reap_pending()
    assert driver.calls("cuCtxSynchronize") == syncs + 1
    assert x.runtime.bytes_outstanding == 0
    x.runtime.reap_pending()
    assert driver.calls("cuCtxSynchronize") == syncs + 1
    assert not driver.races()                           # nor a dead stream


@pytest.mark.simulator
def test_what_nobody_said_where_is_freed_when_memory_runs_out(bench, driver):
    x = bench()
    state = DeviceState(x.runtime)
    Taken(state.full(512, 1, "uint8", x.S).__dlpack__(stream=-1)).delete()
    settle()
    assert x.runtime.live_bytes == 512
    driver.fail("cuMemAllocFromPoolAsync", code=2)
    buffer = state.empty(64, "uint8")
    assert x.runtime.live_bytes == 64
    assert buffer.size == 64


@pytest.mark.simulator
def test_a_runtime_ends_with_what_nobody_said_where(driver):
    state = DeviceState(DeviceRuntime())
    Taken(state.full(512, 1, "uint8").__dlpack__(stream=-1)).delete()
    del state
    settle()
    assert driver.live_bytes() == 0


@pytest.mark.simulator
def test_exports_cost_no_event_in_a_steady_state(bench, driver):
    """One wait where the consumer's stream is not ordered yet, and no event made."""
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    for turn in range(20):
        if turn == 10:
            before = driver.all_calls()
        buffer.fill(turn, x.S)
        Taken(buffer.__dlpack__(stream=x.T.handle)).delete()
        settle()
    after = driver.all_calls()
    assert after.get("cuEventCreate", 0) == before.get("cuEventCreate", 0)
    assert after["cuStreamWaitEvent"] - before["cuStreamWaitEvent"] == 20    # there and back, ten times
    before = driver.all_calls()
    for _ in range(10):                                 # nothing new to wait for
        Taken(buffer.__dlpack__(stream=x.T.handle)).delete()
        settle()
    after = driver.all_calls()
    assert after["cuStreamWaitEvent"] == before["cuStreamWaitEvent"]


@pytest.mark.simulator
def test_a_consumer_who_captures_is_refused(bench, driver):
    x = bench()
    state = DeviceState(x.runtime)
    buffer = state.full(512, 1, "uint8", x.S)
    check(cuda.cuStreamBeginCapture(x.T.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(StreamMisuseError, match="capturing"):
        buffer.__dlpack__(stream=x.T.handle)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(x.T.handle))))
    Taken(buffer.__dlpack__(stream=x.T.handle)).delete()
    settle()


# ---------------------------------------------------------------------------------------- taking over
@pytest.mark.contract(189, 193)
def test_a_foreign_array_becomes_a_tracked_block(state, memory):
    producer = Producer(memory, (8, 4), code=2, bits=32)
    buffer = from_dlpack(producer, state=state)
    assert (buffer.shape, buffer.dtype, buffer.strides, buffer.readonly) == ((8, 4), "float32", (16, 4), False)
    assert producer.asked == [{"stream": state.runtime.default_stream.handle, "max_version": (1, 0)}]
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
@pytest.mark.contract(189)
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_our_uses_come_after_the_producer(bench, driver, memory, known, dropped):
    """Where he says his stream, the first use is ordered after it; else he has ordered the stream that we named."""
    x = bench()
    state = DeviceState(x.runtime)

    class Library(Producer):
        def __dlpack__(self, *, stream, max_version):
            if not known:
                event = check(cuda.cuEventCreate(2))
                check(cuda.cuEventRecord(event, x.S.handle))
                check(cuda.cuStreamWaitEvent(stream, event, 0))
                check(cuda.cuEventDestroy(event))
            return super().__dlpack__(stream=stream)

    x.kernels.fill(x.S.handle, memory, 1, 16)           # S is his, and nobody told us
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
@pytest.mark.contract(189)
@pytest.mark.parametrize("known", [False, True])
def test_the_producer_gets_his_memory_back_after_our_uses(bench, driver, memory, known):
    """His stream is ordered after them; where it is not known, the host waits for them and for nothing else."""
    x = bench()
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
    x.work(x.V)                                         # nobody's business
    del buffer
    x.runtime.reap_pending(blocking=False)
    assert producer.deleted == 1
    assert at_the_end == [True if known else 1]
    assert driver.calls("cuCtxSynchronize") == 0


@pytest.mark.simulator
@pytest.mark.parametrize("dropped", [False, True])
def test_a_stream_that_was_asked_for_may_be_used_at_once(bench, driver, memory, dropped):
    x = bench()
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


@pytest.mark.contract(195)
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


def test_producers_of_before_1_0_are_asked_their_way(state, memory):
    class Old(Producer):
        def __dlpack__(self, stream=None):
            self.asked.append(stream)
            return self.capsule()

    producer = Old(memory, (4,))
    assert from_dlpack(producer, state=state).size == 4
    assert producer.asked == [state.runtime.default_stream.handle]
    state.runtime.reap_pending()
    assert producer.deleted == 1


def test_our_own_exports_come_home(state):
    """Another handle of the same block: nothing is adopted, and the loan ends with it."""
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
    "managed": {"device_type": 13}, "lanes": {"lanes": 2}, "no lanes": {"lanes": 0}, "bits": {"bits": 7},
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
@pytest.mark.contract(189, 193)
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


@pytest.mark.contract(193)
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
def test_what_is_no_array_is_refused(state, memory):
    for what in (5, "x", None, object(), memory):
        with pytest.raises(TypeError):
            from_dlpack(what, stream=1, state=state)
    for name in (b"another", b"dltensor "):
        with pytest.raises(BufferError, match="is no DLPack capsule"):
            from_dlpack(Producer(memory, (4,), name=name).capsule(), stream=1, state=state)
    with pytest.raises(BufferError, match="is no CUDA device"):
        from_dlpack(np.arange(3), state=state)
    block = state.runtime.adopt(memory + 32, 64)
    with pytest.raises(StreamMisuseError, match="overlaps"):
        from_dlpack(Producer(memory, (64,)), state=state)
    del block
    state.begin_shutdown()
    with pytest.raises(StaleBufferError):
        from_dlpack(Producer(memory, (4,)), state=state)
