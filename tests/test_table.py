"""The C table, called from C: ctypes makes each call without the GIL."""
from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
from bench import ForeignStream
from conftest import SIMULATED
from cuda.bindings import driver as cuda

from xlogmem import DeviceMemoryResource, DeviceRuntime, DriverError, PoolMemoryResource, StreamMisuseError, use
from xlogmem._kernels import check
from xlogmem._table import ForeignMemoryResource, table

FAILED, OUT_OF_MEMORY, FINDS_DEVICE, CUDA_POOL = 1, 2, 1, 2         # as in xlogmem.h
VOID, SIZE, U64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64

ENVIRONMENT = {"XLOGMEM_SIMULATE": "1", "XLOGMEM_SIM_QUIET": "1"} if SIMULATED else {}

GET_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
GET_POINTER.restype, GET_POINTER.argtypes = VOID, [ctypes.py_object, ctypes.c_char_p]
NEW_CAPSULE = ctypes.pythonapi.PyCapsule_New
NEW_CAPSULE.restype, NEW_CAPSULE.argtypes = ctypes.py_object, [VOID, ctypes.c_char_p, VOID]


class Error(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("text", ctypes.c_char * 256)]


class Table(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32), ("size", ctypes.c_uint32),
        ("open", ctypes.PYFUNCTYPE(VOID, ctypes.py_object)), ("close", ctypes.CFUNCTYPE(None, VOID)),
        ("allocate", ctypes.CFUNCTYPE(ctypes.c_int, VOID, SIZE, VOID, ctypes.POINTER(VOID), ctypes.POINTER(Error))),
        ("allocate_sync", ctypes.CFUNCTYPE(ctypes.c_int, VOID, SIZE, ctypes.POINTER(VOID), ctypes.POINTER(Error))),
        ("deallocate", ctypes.CFUNCTYPE(None, VOID, VOID, VOID)),
        ("deallocate_sync", ctypes.CFUNCTYPE(None, VOID, VOID)),
    ]


ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, VOID, SIZE, VOID, ctypes.POINTER(U64), ctypes.POINTER(Error))
DEALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, VOID, U64, SIZE, VOID, ctypes.POINTER(Error))


class Upstream(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("size", ctypes.c_uint32), ("self", VOID), ("allocate", ALLOCATE),
                ("deallocate", DEALLOCATE), ("flags", U64)]


functions = Table.from_address(GET_POINTER(table, b"xlogmem._table.table"))


class Hold:
    """What a binding has of a runtime."""

    def __init__(self, runtime) -> None:
        self.runtime = functions.open(runtime)

    def allocate(self, nbytes: int, stream: int = 0) -> int:
        ptr, error = VOID(), Error()
        if functions.allocate(self.runtime, nbytes, stream, ctypes.byref(ptr), ctypes.byref(error)):
            raise Refused(error.kind, error.text.decode())
        return ptr.value

    def allocate_sync(self, nbytes: int) -> int:
        ptr, error = VOID(), Error()
        if functions.allocate_sync(self.runtime, nbytes, ctypes.byref(ptr), ctypes.byref(error)):
            raise Refused(error.kind, error.text.decode())
        return ptr.value

    def free(self, ptr: int, stream: int = 0) -> None:
        functions.deallocate(self.runtime, ptr, stream)

    def close(self) -> None:
        functions.close(self.runtime)


class Refused(Exception):
    def __init__(self, kind: int, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind


@pytest.fixture
def bench_and_hold(bench):
    b = bench()
    hold = Hold(b.runtime)
    yield b, hold
    hold.close()


@pytest.fixture
def foreign():
    """Makes streams of somebody else, as handles."""
    made = []

    def make() -> int:
        made.append(check(cuda.cuStreamCreate(1)))
        return int(made[-1])

    yield make
    for stream in made:
        check(cuda.cuStreamDestroy(stream))


def test_the_table_says_its_version_and_size():
    assert functions.version == 1
    assert functions.size == ctypes.sizeof(Table)


def test_only_a_runtime_can_be_opened():
    assert functions.open("no runtime") is None


def test_what_is_allocated_is_a_tracked_block():
    runtime = DeviceRuntime()
    hold = Hold(runtime)
    ptr = hold.allocate(1000)
    found = runtime.find_block(ptr + 999)
    assert found.ptr == ptr
    assert found.alloc_stream == runtime.register_stream(0)
    assert (runtime.live_bytes, runtime.counters()["allocations"]) == (1000, 1)
    hold.free(ptr)
    assert runtime.find_block(ptr) is None
    assert (runtime.live_bytes, runtime.counters()["frees"]) == (0, 1)
    runtime.reap_pending()
    hold.close()


def test_a_hold_keeps_the_runtime_and_closing_it_lets_go():
    runtime = DeviceRuntime()
    alive = weakref.ref(runtime)
    hold = Hold(runtime)
    del runtime
    gc.collect()
    hold.free(hold.allocate(8))
    assert alive() is not None
    hold.close()                                        # without the GIL: an errand for the interpreter
    gc.collect()
    assert alive() is None


# ---------------------------------------------------------------------------------------------- streams
@pytest.mark.simulator
def test_streams_first_seen_here_are_opaque(bench_and_hold, foreign):
    b, hold = bench_and_hold
    handle = foreign()
    ptr = hold.allocate(512, handle)
    stream = b.runtime.register_stream(handle)
    assert stream.discipline == "opaque"
    assert b.runtime.find_block(ptr).alloc_stream == stream
    b.kernels.fill(handle, ptr, 1, 1)                   # nobody records this
    with use(b.S, read=ptr):
        read = b.work(b.S)
        b.kernels.count_unequal(b.S.handle, b.next_word(), ptr, 0, 1)
    assert b.ordered(read, stream)                      # the hand-back
    hold.free(ptr, handle)


@pytest.mark.simulator
@pytest.mark.parametrize("first", ["python", "table"])
def test_one_registration_whoever_saw_the_stream_first(bench_and_hold, foreign, first):
    b, hold = bench_and_hold
    handle = foreign()
    if first == "python":
        stream = b.runtime.register_stream(handle)
        assert stream.discipline == "ordinary"
    before = b.runtime.stream_count()
    ptr = hold.allocate(8, handle)
    if first == "table":
        before += 1
        stream = b.runtime.register_stream(handle)
    assert b.runtime.find_block(ptr).alloc_stream == stream
    assert b.runtime.register_stream(handle) == stream
    assert b.runtime.stream_count() == before
    hold.free(ptr, handle)


@pytest.mark.simulator
def test_a_stream_that_the_table_saw_can_be_unregistered_and_registered_anew(bench_and_hold, foreign):
    b, hold = bench_and_hold
    handle = foreign()
    ptr = hold.allocate(8, handle)
    b.runtime.unregister_stream(handle, heir=b.T)
    hold.free(hold.allocate(8, handle), handle)         # first sight again
    anew = b.runtime.register_stream(handle, discipline="ordinary")
    assert anew.discipline == "ordinary"
    hold.free(hold.allocate(8, handle), handle)
    assert b.runtime.register_stream(handle) == anew
    hold.free(ptr)


@pytest.mark.simulator
def test_our_own_streams_are_known_by_their_handle(bench_and_hold):
    b, hold = bench_and_hold
    before = b.runtime.stream_count()
    ptr = hold.allocate(8, b.S.handle)
    assert b.runtime.find_block(ptr).alloc_stream == b.S
    assert b.runtime.stream_count() == before
    hold.free(ptr, b.S.handle)


def come_back(stream: cuda.CUstream) -> list[cuda.CUstream]:
    """Destroy a stream, and make others until its handle means another one."""
    made: list[cuda.CUstream] = []
    check(cuda.cuStreamDestroy(stream))
    while not made or int(made[-1]) != int(stream):
        made.append(check(cuda.cuStreamCreate(1)))
        assert len(made) < 100, "the simulated driver uses handles again, as the real one does"
    return made


@pytest.mark.simulator
def test_a_handle_that_the_driver_used_again_is_another_stream(bench_and_hold):
    b, hold = bench_and_hold
    former = check(cuda.cuStreamCreate(1))
    ptr = hold.allocate(512, int(former))
    known = b.runtime.register_stream(int(former))
    b.kernels.fill(int(former), ptr, 1, 1)
    kept = come_back(former)
    other = hold.allocate(8, int(former))
    assert not known.registered
    assert b.runtime.find_block(other).alloc_stream != known
    hold.free(other, int(former))
    hold.free(ptr, b.S.handle)                          # after the fill: else this is a race
    check(cuda.cuCtxSynchronize())
    for stream in kept:
        check(cuda.cuStreamDestroy(stream))


@pytest.mark.simulator
def test_python_tells_a_handle_that_came_back_from_the_stream_that_only_the_table_saw(bench_and_hold):
    b, hold = bench_and_hold
    former = check(cuda.cuStreamCreate(1))
    ptr = hold.allocate(512, int(former))
    b.kernels.fill(int(former), ptr, 1, 1)
    kept = come_back(former)
    b.runtime.register_stream(int(former))
    with use(b.S, write=ptr):                           # after the fill: else this is a race
        b.kernels.fill(b.S.handle, ptr, 1, 1)
    hold.free(ptr, b.S.handle)
    check(cuda.cuCtxSynchronize())
    for stream in kept:
        check(cuda.cuStreamDestroy(stream))


@pytest.mark.simulator
def test_a_stream_stays_registered_when_the_former_one_of_its_handle_cannot_go_yet(bench_and_hold, driver):
    """Somebody else may have memory there already."""
    b, hold = bench_and_hold
    former = check(cuda.cuStreamCreate(1))
    handle = int(former)
    hold.free(hold.allocate(8, handle), handle)
    kept = come_back(former)
    held_up = driver.hold("cuCtxSynchronize")
    driver.fail("cuCtxSynchronize", 1, 999)
    refused = []

    def run() -> None:
        try:
            hold.allocate(8, handle)
        except Refused as refusal:
            refused.append(refusal)

    thread = threading.Thread(target=run)
    thread.start()
    assert held_up.reached()
    block = b.runtime.allocate(8, handle)
    assert held_up.let_go()
    thread.join()
    assert "cuCtxSynchronize" in str(refused[0])
    block.free()
    before = driver.calls("cuCtxSynchronize")
    hold.free(hold.allocate(8, handle), handle)         # tries again
    assert driver.calls("cuCtxSynchronize") == before + 1
    b.runtime.reap_pending()
    assert b.runtime.live_bytes == 0
    for stream in kept:
        check(cuda.cuStreamDestroy(stream))


@pytest.mark.simulator
def test_streams_that_come_and_go_leave_nothing_behind(bench_and_hold):
    b, hold = bench_and_hold
    for _ in range(200):
        stream = check(cuda.cuStreamCreate(1))
        hold.free(hold.allocate(8, int(stream)), int(stream))
        check(cuda.cuStreamDestroy(stream))
    b.runtime.reap_pending()
    assert b.runtime.stream_count() < 20


@pytest.mark.simulator
def test_a_per_thread_default_stream_is_another_one_in_each_thread(bench_and_hold):
    b, hold = bench_and_hold
    seen = []

    def run() -> None:
        ptr = hold.allocate(8, 2)
        seen.append(b.runtime.find_block(ptr).alloc_stream)
        hold.free(ptr, 2)

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen[0] != seen[1]


@pytest.mark.simulator
def test_threads_that_come_and_go_leave_nothing_behind(bench_and_hold):
    b, hold = bench_and_hold
    for _ in range(200):
        thread = threading.Thread(target=lambda: hold.free(hold.allocate(8, 2), 2))
        thread.start()
        thread.join()
    b.runtime.reap_pending()
    assert b.runtime.live_bytes == 0
    assert b.runtime.stream_count() < 80


@pytest.mark.simulator
def test_default_streams_are_not_asked_for_their_number_twice(bench_and_hold, driver):
    b, hold = bench_and_hold
    hold.free(hold.allocate(8))
    before = driver.calls("cuStreamGetId")
    for handle in (0, 1, b.S.handle):
        hold.free(hold.allocate(8, handle), handle)
    assert driver.calls("cuStreamGetId") <= before + 1  # ours, at first sight


@pytest.mark.simulator
def test_a_stream_whose_owner_is_held_is_not_asked_for_its_number(bench_and_hold, driver):
    """It cannot have been destroyed; one that was let go of, and nobody holds, is asked again."""
    b, hold = bench_and_hold
    owner = ForeignStream()
    stream = b.runtime.register_stream(owner)
    hold.free(hold.allocate(8, owner.handle), owner.handle)
    before = driver.calls("cuStreamGetId")
    hold.free(hold.allocate(8, owner.handle), owner.handle)
    assert driver.calls("cuStreamGetId") == before
    b.runtime.unregister_stream(stream)
    for asked in (1, 3):                                # at first sight, and then with each call
        hold.free(hold.allocate(8, owner.handle), owner.handle)
        assert driver.calls("cuStreamGetId") >= before + asked


@pytest.mark.simulator
def test_a_stream_of_another_device_is_refused(bench_and_hold, driver):
    _, hold = bench_and_hold
    if check(cuda.cuDeviceGetCount()) < 2:
        pytest.skip("the simulated machine has one device")
    context = check(cuda.cuDevicePrimaryCtxRetain(1))
    check(cuda.cuCtxPushCurrent(context))
    stream = check(cuda.cuStreamCreate(1))
    check(cuda.cuCtxPopCurrent())
    with pytest.raises(Refused, match="is of another context or device"):
        hold.allocate(8, int(stream))
    check(cuda.cuStreamDestroy(stream))
    check(cuda.cuDevicePrimaryCtxRelease(1))


# ---------------------------------------------------------------------------------------------- frees
@pytest.mark.simulator
def test_a_free_comes_after_every_use_on_the_stream_that_it_is_given(bench_and_hold):
    b, hold = bench_and_hold
    ptr = hold.allocate(512, b.S.handle)
    with use(b.U, write=ptr):
        b.kernels.fill(b.U.handle, ptr, 1, 1)
        written = b.work(b.U)
    hold.free(ptr, b.T.handle)
    assert b.ordered(written, b.T)
    assert not b.ordered(written, b.S)


@pytest.mark.simulator
def test_a_free_inside_a_use_is_carried_out_at_its_end(bench_and_hold):
    b, hold = bench_and_hold
    ptr = hold.allocate(512, b.S.handle)
    with use(b.T, write=ptr):
        hold.free(ptr, b.S.handle)
        b.kernels.fill(b.T.handle, ptr, 1, 1)
        assert b.runtime.live_bytes == 512
    assert b.runtime.live_bytes == 0


@pytest.mark.simulator
def test_a_free_that_fails_is_logged_raised_by_the_next_reap_and_tried_again(bench_and_hold, driver, caplog):
    b, hold = bench_and_hold
    ptr = hold.allocate(512, b.S.handle)
    driver.fail("cuMemFreeAsync", 1, 999)
    with caplog.at_level(logging.ERROR, logger="xlogmem"):
        hold.free(ptr, b.S.handle)
        for _ in range(100):                            # the errand is run between two of these
            pass
    assert "cuMemFreeAsync gave CUDA_ERROR_UNKNOWN" in caplog.text
    assert b.runtime.live_bytes == 512
    with pytest.raises(DriverError, match="CUDA_ERROR_UNKNOWN"):
        b.runtime.reap_pending()
    assert b.runtime.live_bytes == 0
    b.runtime.reap_pending()                            # told once


@pytest.mark.simulator
def test_freeing_what_is_no_block_is_told_and_changes_nothing(bench_and_hold, caplog):
    b, hold = bench_and_hold
    ptr = hold.allocate(512)
    with caplog.at_level(logging.ERROR, logger="xlogmem"):
        hold.free(ptr + 8)
        hold.free(12345)
    assert (b.runtime.live_bytes, b.runtime.counters()["frees"]) == (512, 0)
    with pytest.raises(DriverError, match="no block"):
        b.runtime.reap_pending()
    hold.free(ptr)
    hold.free(None)
    b.runtime.reap_pending()


@pytest.mark.simulator
def test_a_free_on_a_capturing_stream_waits_for_the_end_of_the_capture(bench_and_hold):
    b, hold = bench_and_hold
    ptr = hold.allocate(512, b.S.handle)
    check(cuda.cuStreamBeginCapture(b.S.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    hold.free(ptr, b.S.handle)
    with pytest.raises(Refused, match="capturing"):
        hold.allocate(8, b.S.handle)
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(b.S.handle))))
    assert b.runtime.live_bytes == 512
    b.runtime.reap_pending()
    assert b.runtime.live_bytes == 0


# ---------------------------------------------------------------------------------------------- out of memory, errors
@pytest.mark.simulator
def test_out_of_memory_is_told_apart(bench_and_hold, driver):
    b, hold = bench_and_hold
    driver.fail("cuMemAllocFromPoolAsync", 1, 2)
    hold.free(hold.allocate(8))                         # tried once more, after pending frees
    driver.fail("cuMemAllocFromPoolAsync", 1, 2)
    driver.fail("cuMemAllocFromPoolAsync", 2, 2)
    with pytest.raises(Refused) as refused:
        hold.allocate(8)
    assert refused.value.kind == OUT_OF_MEMORY
    driver.fail("cuMemAllocFromPoolAsync", 1, 999)
    with pytest.raises(Refused, match="cuMemAllocFromPoolAsync gave CUDA_ERROR_UNKNOWN") as refused:
        hold.allocate(8)
    assert refused.value.kind == FAILED
    assert b.runtime.live_bytes == 0


def test_what_a_python_resource_raises_is_told():
    class Mine(DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes, stream):
            raise MemoryError("no more of mine") if nbytes > 8 else ValueError("not that few")

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    hold = Hold(DeviceRuntime(resource=Mine()))
    with pytest.raises(Refused, match="MemoryError: no more of mine") as refused:
        hold.allocate(16)
    assert refused.value.kind == OUT_OF_MEMORY
    with pytest.raises(Refused, match="ValueError: not that few") as refused:
        hold.allocate(8)
    assert refused.value.kind == FAILED
    hold.close()


def test_what_a_python_resource_raises_is_let_go():
    raised = []

    class Weak(Exception):
        pass

    class Mine(DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes, stream):
            failure = Weak()
            raised.append(weakref.ref(failure))
            raise failure

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    runtime = DeviceRuntime(resource=Mine())
    hold = Hold(runtime)
    with pytest.raises(Refused):
        hold.allocate(8)
    with pytest.raises(Weak):
        runtime.allocate(8)                             # a call that has the GIL
    gc.collect()
    assert raised[0]() is None
    hold.close()


def test_an_exception_that_cannot_be_printed_is_told_by_its_name():
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError

    class Mine(DeviceMemoryResource):
        order = "stream"

        def allocate(self, nbytes, stream):
            raise Unprintable

        def deallocate(self, ptr, nbytes, stream):
            raise AssertionError

    hold = Hold(DeviceRuntime(resource=Mine()))
    with pytest.raises(Refused, match="Unprintable"):
        hold.allocate(8)
    hold.close()


def test_zero_bytes_are_null_and_no_block():
    runtime = DeviceRuntime()
    hold = Hold(runtime)
    assert hold.allocate(0) is None
    assert hold.allocate_sync(0) is None
    assert runtime.counters()["allocations"] == 0
    hold.close()


@pytest.mark.simulator
def test_a_synchronous_allocation_is_ready_on_every_stream(bench_and_hold, driver):
    b, hold = bench_and_hold
    ptr = hold.allocate_sync(512)
    b.kernels.fill(b.T.handle, ptr, 1, 1)               # a race with the allocation, had the host not waited
    check(cuda.cuStreamSynchronize(b.T.handle))
    functions.deallocate_sync(hold.runtime, ptr)
    driver.fail("cuEventSynchronize", 1, 999)
    with pytest.raises(Refused, match="cuEventSynchronize"):
        hold.allocate_sync(512)
    assert b.runtime.live_bytes == 0


@pytest.mark.simulator
def test_a_synchronous_allocation_that_nobody_waits_for_is_a_race(bench_and_hold, driver):
    b, hold = bench_and_hold
    driver.drop("cuEventSynchronize")
    ptr = hold.allocate_sync(512)
    b.kernels.fill(b.T.handle, ptr, 1, 1)
    assert any("alloc/use" in race for race in driver.races())
    driver.clear_races()
    check(cuda.cuCtxSynchronize())
    hold.free(ptr)


# ---------------------------------------------------------------------------------------------- threads, end
@pytest.mark.simulator
def test_many_threads(bench_and_hold, foreign):
    b, hold = bench_and_hold
    failures = []

    def run(handle: int) -> None:
        try:
            for turn in range(200):
                mine = [hold.allocate(256 + turn, handle) for _ in range(4)]
                for ptr in mine:
                    hold.free(ptr, handle)
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(handle,)) for handle in (0, 2, foreign(), foreign(), b.S.handle)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    counters = b.runtime.counters()
    assert counters["allocations"] == counters["frees"] == 4000
    assert b.runtime.live_bytes == 0


def test_the_end_of_the_process_leaves_the_driver_alone():
    program = """
import builtins, sys, xlogmem
sys.path.insert(0, "tests")
from test_table import Hold

hold = Hold(xlogmem.DeviceRuntime())
ptr = hold.allocate(100)

class Late:
    def __del__(self):
        hold.free(ptr)
        hold.close()

builtins.late = Late()
"""
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=100,
                         cwd=Path(__file__).parents[1], env=os.environ | ENVIRONMENT)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")      # of forking beside threads, in Python 3.12 and later
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")   # JAX, where another test has imported it
def test_a_forked_child_is_refused_before_the_lock():
    hold = Hold(DeviceRuntime())
    ptr = hold.allocate(8)
    child = os.fork()
    if child == 0:
        try:
            hold.free(ptr)                              # does nothing
            hold.allocate(8)
        except Refused as refused:
            os._exit(0 if "forked" in str(refused) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    hold.free(ptr)
    hold.close()


# ---------------------------------------------------------------------------------------------- on a pool
MIB = 1 << 20


@pytest.mark.simulator
def test_a_pool_waits_on_the_device_for_bare_handles_which_have_a_fence_for_sixteen_frees(foreign, driver):
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=64 * MIB))
    hold, one, other = Hold(runtime), foreign(), foreign()
    for _ in range(4):
        for ptr in [hold.allocate(MIB, one) for _ in range(16)]:
            hold.free(ptr, one)
    assert driver.calls("cuEventRecord") == 4
    syncs = driver.calls("cuCtxSynchronize")
    held = [hold.allocate(MIB, other) for _ in range(20)]
    assert (driver.calls("cuStreamWaitEvent"), driver.calls("cuCtxSynchronize")) == (1, syncs)
    for ptr in held:
        hold.free(ptr, other)
    hold.close()


@pytest.mark.simulator
@pytest.mark.parametrize("room", [True, False])
def test_memory_of_a_bare_handle_without_a_fence_is_left_alone_while_there_is_other(foreign, driver, room):
    most = (16 if room else 8) * MIB
    runtime = DeviceRuntime(resource=PoolMemoryResource(chunk_size=8 * MIB, maximum_pool_size=most))
    hold, one, other = Hold(runtime), foreign(), foreign()
    hold.free(hold.allocate(8 * MIB, one), one)         # the stream may be destroyed from here on
    syncs = driver.calls("cuCtxSynchronize")
    ptr = hold.allocate(8 * MIB, other)
    assert driver.calls("cuEventRecord") == 0
    assert driver.calls("cuCtxSynchronize") - syncs == (0 if room else 1)
    hold.free(ptr, other)
    hold.close()


# ---------------------------------------------------------------------------------------------- resources from outside
class Bump:
    """A resource in C: hands out memory of the driver, and notes the stream and context of each call."""

    def __init__(self, version: int = 1, flags: int = 0) -> None:
        self.calls: list[tuple[str, int]] = []
        self.contexts: list[int] = []
        self.flags = flags
        self.refuse: tuple[int, bytes] | None = None
        self.pool: cuda.CUmemoryPool | None = None
        if flags & CUDA_POOL:
            properties = cuda.CUmemPoolProps()
            properties.allocType = cuda.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            properties.location.type = cuda.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            self.pool = check(cuda.cuMemPoolCreate(properties))
        self.functions = ALLOCATE(self.allocate), DEALLOCATE(self.deallocate)
        self.upstream = Upstream(version, ctypes.sizeof(Upstream), None, *self.functions, flags)
        self.capsule = NEW_CAPSULE(ctypes.addressof(self.upstream), b"xlogmem.upstream", None)

    def close(self, hold: Hold) -> None:
        hold.close()
        check(cuda.cuCtxSynchronize())
        check(cuda.cuMemPoolDestroy(self.pool))

    @contextlib.contextmanager
    def on_device(self):
        """As CUDA's runtime does for its callers."""
        current = check(cuda.cuCtxGetCurrent())
        self.contexts.append(int(current))
        if self.flags & FINDS_DEVICE and not int(current):
            check(cuda.cuCtxPushCurrent(check(cuda.cuDevicePrimaryCtxRetain(0))))
        yield
        if self.flags & FINDS_DEVICE and not int(current):
            check(cuda.cuCtxPopCurrent())
            check(cuda.cuDevicePrimaryCtxRelease(0))

    def allocate(self, _self, nbytes, stream, ptr, error):
        self.calls.append(("allocate", stream or 0))
        if self.refuse:
            error[0].kind, error[0].text = self.refuse
            return 1
        with self.on_device():
            ptr[0] = int(check(cuda.cuMemAllocFromPoolAsync(nbytes, self.pool, stream) if self.pool is not None
                               else cuda.cuMemAllocAsync(nbytes, stream)))
        return 0

    def deallocate(self, _self, ptr, nbytes, stream, error):
        self.calls.append(("deallocate", stream or 0))
        if self.refuse:
            error[0].kind, error[0].text = self.refuse
            return 1
        with self.on_device():
            check(cuda.cuMemFreeAsync(ptr, stream))
        return 0


def test_a_resource_in_c():
    bump = Bump()
    runtime = DeviceRuntime(resource=ForeignMemoryResource(bump.capsule))
    stream = runtime.acquire_stream()
    block = runtime.allocate(100, stream)
    bump.refuse = FAILED, b"not today"
    with pytest.raises(DriverError, match="not today"):
        block.free()
    with pytest.raises(DriverError, match="not today"):
        runtime.allocate(100, stream)
    bump.refuse = OUT_OF_MEMORY, b"nothing left"
    with pytest.raises(MemoryError, match="nothing left"):
        runtime.allocate(100, stream)
    bump.refuse = None
    block.free()
    kinds = [name for name, _ in bump.calls]
    assert kinds == ["allocate", "deallocate", "allocate", "allocate", "allocate", "deallocate"]    # one twice
    assert {handle for _, handle in bump.calls} == {stream.handle}


def in_a_thread_without_context(function) -> None:
    def run() -> None:
        function()
        assert not int(check(cuda.cuCtxGetCurrent()))   # what the caller has stays

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def over_c(flags: int, order: str = "stream") -> tuple[Bump, DeviceRuntime, Hold]:
    bump = Bump(flags=flags)
    runtime = DeviceRuntime(resource=ForeignMemoryResource(bump.capsule, order=order))
    return bump, runtime, Hold(runtime)


@pytest.mark.simulator
def test_a_pair_on_the_legacy_stream_makes_no_driver_call_of_ours_over_a_resource_that_finds_its_device(driver):
    _, runtime, hold = over_c(FINDS_DEVICE)
    hold.free(hold.allocate(8))
    before = driver.all_calls()
    hold.free(hold.allocate(8))
    made = {name for name, count in driver.all_calls().items() if count > before.get(name, 0)}
    of_the_resource = {"cuMemAllocAsync", "cuMemFreeAsync", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent",
                       "cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease"}
    assert driver.calls("cuCtxGetCurrent") - before["cuCtxGetCurrent"] == 2
    assert made <= of_the_resource
    assert runtime.live_bytes == 0
    hold.close()


@pytest.mark.simulator
def test_a_free_that_has_to_wait_has_the_device_current():
    bump, runtime, hold = over_c(FINDS_DEVICE)
    stream = runtime.acquire_stream()
    hold.free(hold.allocate(8))
    ptr = hold.allocate(8)
    runtime.record_block_use(ptr, stream)               # without a hand-back
    waits = runtime.counters()["waits"]
    in_a_thread_without_context(lambda: hold.free(ptr))
    runtime.reap_pending()                              # would raise what went wrong
    assert (runtime.live_bytes, runtime.counters()["waits"]) == (0, waits + 1)
    assert bump.contexts[-1]
    hold.close()


@pytest.mark.simulator
@pytest.mark.parametrize("flags", [0, FINDS_DEVICE])
def test_a_resource_is_called_with_the_device_current_unless_it_finds_it(flags):
    bump, _, hold = over_c(flags)
    hold.free(hold.allocate(8))                         # the core has a look at a stream that it has not seen
    bump.contexts.clear()
    in_a_thread_without_context(lambda: hold.free(hold.allocate(8)))
    assert [bool(context) for context in bump.contexts] == [not flags] * 2
    hold.close()


@pytest.mark.simulator
def test_a_free_that_waits_on_the_host_has_the_device_current():
    _, runtime, hold = over_c(FINDS_DEVICE, order="host")
    in_a_thread_without_context(lambda: hold.free(hold.allocate(8)))
    ptr = hold.allocate(8)
    in_a_thread_without_context(lambda: hold.free(ptr))
    runtime.reap_pending()                              # would raise what went wrong
    assert (runtime.live_bytes, runtime.pending_bytes) == (0, 0)
    hold.close()


@pytest.mark.simulator
def test_a_resource_built_before_there_were_flags_has_none():
    bump = Bump()
    bump.upstream.flags = FINDS_DEVICE | CUDA_POOL      # what happens to stand behind it
    bump.upstream.size -= ctypes.sizeof(U64)
    hold = Hold(DeviceRuntime(resource=ForeignMemoryResource(bump.capsule)))
    hold.free(hold.allocate(8))
    in_a_thread_without_context(lambda: hold.free(hold.allocate(8)))
    assert all(bump.contexts)
    assert len(bump.calls) == 4
    hold.close()


# ---------------------------------------------------------------------------------------------- ... that are CUDA pools
every_pool = pytest.mark.parametrize("flags", [CUDA_POOL, FINDS_DEVICE | CUDA_POOL])


@every_pool
@pytest.mark.simulator
def test_a_cuda_pool_is_called_once_and_the_driver_from_then_on(flags):
    bump, runtime, hold = over_c(flags)
    pointers = [hold.allocate(8) for _ in range(3)]
    assert bump.calls == [("allocate", 1)]
    pool = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
    assert {int(check(cuda.cuPointerGetAttribute(pool, ptr))) for ptr in pointers} == {int(bump.pool)}
    for ptr in pointers:
        hold.free(ptr)
    assert len(bump.calls) == 1
    assert runtime.live_bytes == 0
    bump.close(hold)


@every_pool
@pytest.mark.simulator
def test_what_the_driver_refuses_a_cuda_pool_is_asked_for(flags, driver):
    """It says what is wrong in its own words, or knows what to do."""
    bump, runtime, hold = over_c(flags)
    hold.free(hold.allocate(8))
    for code in (OUT_OF_MEMORY, 201, 700):
        driver.fail("cuMemAllocFromPoolAsync", code=code)
        ptr = hold.allocate(8)
        driver.fail("cuMemFreeAsync", code=code)
        hold.free(ptr)
    assert [name for name, _ in bump.calls] == ["allocate", *["allocate", "deallocate"] * 3]
    bump.refuse = FAILED, b"not today"
    driver.fail("cuMemAllocFromPoolAsync", code=999)
    with pytest.raises(Refused, match="not today"):
        hold.allocate(8)
    bump.refuse = None
    hold.free(hold.allocate(8))
    assert runtime.live_bytes == 0
    assert not runtime.lost
    bump.close(hold)


@pytest.mark.simulator
def test_a_cuda_pool_that_finds_its_device_is_asked_by_threads_that_have_none_current():
    bump, _, hold = over_c(FINDS_DEVICE | CUDA_POOL)
    hold.free(hold.allocate(8))
    bump.calls.clear()
    in_a_thread_without_context(lambda: hold.free(hold.allocate(8)))
    assert [name for name, _ in bump.calls] == ["allocate", "deallocate"]
    bump.close(hold)


@every_pool
@pytest.mark.simulator
def test_memory_of_no_cuda_pool_is_its_resource_s(flags, driver):
    """Whatever its flags say: there is no pool to ask instead."""
    bump, _, hold = over_c(flags)
    for _ in range(2):
        driver.fail("cuPointerGetAttribute", code=1)
        hold.free(hold.allocate(8))
    assert [name for name, _ in bump.calls] == ["allocate", "deallocate"] * 2
    bump.close(hold)


@pytest.mark.simulator
def test_the_legacy_stream_stays_registered_while_a_hold_is_open():
    _, runtime, hold = over_c(FINDS_DEVICE)
    other = Hold(runtime)
    for each in (hold, other):
        each.free(each.allocate(8))
        each.free(each.allocate(8))
    legacy = runtime.register_stream(0)
    for each in (hold, other):
        with pytest.raises(StreamMisuseError, match="in use"):
            runtime.unregister_stream(legacy)
        each.close()
        Hold(DeviceRuntime()).close()                   # an open runs what the close has left
    runtime.unregister_stream(legacy)


def test_only_capsules_of_this_version_are_taken():
    with pytest.raises(TypeError, match="capsule"):
        ForeignMemoryResource(table)
    with pytest.raises(ImportError, match=r"version 2 .* build it again"):
        ForeignMemoryResource(Bump(version=2).capsule)
    with pytest.raises(ValueError, match="unknown"):
        ForeignMemoryResource(Bump().capsule, order="maybe")
    with pytest.raises(StreamMisuseError, match="unsupported"):
        ForeignMemoryResource.__new__(ForeignMemoryResource).allocate(8, 0)
