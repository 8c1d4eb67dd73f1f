"""`GuardResourceAdaptor`: what it finds, with which words, and that it finds nothing else."""
from __future__ import annotations

import logging
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from c_table import Hold
from cuda.bindings import driver as cuda

import xlogmem
from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceMemoryResource,
    DeviceRuntime,
    DirectMemoryResource,
    DriverError,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    MemoryCorruptionError,
    MemoryGuardWarning,
    PoolMemoryResource,
    StreamMisuseError,
    StreamPool,
    UseAfterFreeError,
)
from xlogmem._kernels import check

NBYTES = 1000                                           # the canary behind begins in the middle of a word
MEMORIES = {"async": AsyncMemoryResource, "direct": DirectMemoryResource, "pool": PoolMemoryResource}


@pytest.fixture(params=MEMORIES)
def x(request):
    """A guard and its runtime."""
    guard = GuardResourceAdaptor(MEMORIES[request.param]())
    x = SimpleNamespace(guard=guard, runtime=DeviceRuntime(resource=guard))
    del guard
    yield x
    x.__dict__.clear()                                  # pytest keeps it


def write(runtime: DeviceRuntime, ptr: int, value: int = 7, count: int = 1) -> None:
    """Unrecorded, as a kernel with a bug does, but no race: complete when this returns, and after all before it."""
    check(cuda.cuCtxSynchronize())
    check(cuda.cuMemsetD8Async(ptr, value, count, runtime.default_stream.handle))
    check(cuda.cuCtxSynchronize())


def read(ptr: int, count: int) -> bytes:
    target = bytearray(count)
    check(cuda.cuMemcpyDtoH(target, ptr, count))
    return bytes(target)


def only(guard: GuardResourceAdaptor) -> Any:
    (violation,) = guard.violations()
    return violation


def freed_by_a_function_with_a_name(block: Any) -> None:
    block.free()


def allocated_by_a_function_with_a_name(runtime: DeviceRuntime, tag: str | None = "table") -> Any:
    return runtime.allocate(NBYTES, tag=tag)


# ---------------------------------------------------------------------------------------------- what it finds
@pytest.mark.parametrize(("offset", "kind"), [(-1, "underrun"), (-256, "underrun"), (NBYTES, "overrun"),
                                              (NBYTES + 200, "overrun"), (1024 + 255, "overrun")])
@pytest.mark.parametrize("when", ["free", "check", "reap"])
def test_one_byte_past_either_end(x, offset, kind, when):
    guard, runtime = x.guard, x.runtime
    block = allocated_by_a_function_with_a_name(runtime)
    ptr, generation = block.ptr, block.generation
    write(runtime, ptr + offset)
    if when == "free":
        freed_by_a_function_with_a_name(block)
        check(cuda.cuCtxSynchronize())
        assert runtime.allocate(64).state is BlockState.LIVE      # a call that sees the result; nothing is raised
    with pytest.raises(MemoryCorruptionError) as raised:
        guard.check() if when == "check" else runtime.reap_pending()
    (violation,) = raised.value.violations
    assert violation == only(guard)
    assert (violation.kind, violation.tag, violation.generation) == (kind, "table", generation)
    assert (violation.offset, violation.value, violation.count) == (offset, 7, 1)
    assert (violation.ptr, violation.nbytes) == (ptr, NBYTES)
    assert "allocated_by_a_function_with_a_name" in violation.allocated_at
    if when == "free":
        assert "freed_by_a_function_with_a_name" in violation.freed_at
    else:
        assert violation.freed_at is None
    for word in (kind, "table", str(generation), str(offset), str(NBYTES), "allocated at", "test_guard.py"):
        assert word in str(raised.value)
    runtime.reap_pending()                              # reported once
    assert guard.check() == []
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize("offset", [0, 511, NBYTES - 1])
@pytest.mark.parametrize("when", ["trim", "check", "reap"])
def test_write_long_after_a_free(x, offset, when):
    guard, runtime = x.guard, x.runtime
    block = allocated_by_a_function_with_a_name(runtime)
    ptr, generation = block.ptr, block.generation
    freed_by_a_function_with_a_name(block)
    for _ in range(20):
        runtime.allocate(4096).free()
    assert block.state is BlockState.QUARANTINED
    write(runtime, ptr + offset, 9)
    if when == "trim":
        assert guard.trim() > 0
        assert block.state is BlockState.FREED
    with pytest.raises(MemoryCorruptionError, match="write after free of table"):
        runtime.reap_pending() if when == "reap" else guard.check()
    violation = only(guard)
    assert (violation.kind, violation.generation, violation.offset) == ("write after free", generation, offset)
    assert (violation.value, violation.count, violation.tag) == (9, 1, "table")
    assert "allocated_by_a_function_with_a_name" in violation.allocated_at
    assert "freed_by_a_function_with_a_name" in violation.freed_at


def test_every_region_is_reported_and_the_first_wrong_byte(x):
    guard, runtime = x.guard, x.runtime
    block = runtime.allocate(NBYTES)
    ptr = block.ptr
    write(runtime, ptr - 5, 1, 3)
    write(runtime, ptr + NBYTES + 1, 2, 2)
    block.free()
    write(runtime, ptr + 100, 3, 17)
    with pytest.raises(MemoryCorruptionError, match="and 2 more"):
        guard.check()
    found = {violation.kind: (violation.offset, violation.value, violation.count) for violation in guard.violations()}
    assert found == {"underrun": (-5, 1, 3), "overrun": (NBYTES + 1, 2, 2), "write after free": (100, 3, 17)}
    guard.trim()
    assert guard.check() == []                          # each once, however often it is seen


def test_large_memory_is_compared_to_its_end(x):
    guard, runtime = x.guard, x.runtime
    nbytes = 3_000_001
    first, second = runtime.allocate(nbytes), runtime.allocate(nbytes)
    write(runtime, first.ptr + nbytes, 5)
    second_ptr = second.ptr
    second.free()
    write(runtime, second_ptr + nbytes - 1, 6)
    with pytest.raises(MemoryCorruptionError):
        guard.check()
    assert [(v.kind, v.offset, v.value) for v in sorted(guard.violations(), key=lambda v: v.value)] == [
        ("overrun", nbytes, 5), ("write after free", nbytes - 1, 6)]


def test_a_copied_canary_is_noticed(x):
    guard, runtime = x.guard, x.runtime
    one, other = runtime.allocate(256), runtime.allocate(256)
    stream = runtime.default_stream.handle
    check(cuda.cuMemcpyDtoDAsync(other.ptr - 256, one.ptr - 256, 256, stream))
    check(cuda.cuCtxSynchronize())
    with pytest.raises(MemoryCorruptionError, match="underrun"):
        guard.check()


@pytest.mark.parametrize("name", ["async", "direct"])
def test_double_free_by_address(name):
    guard = GuardResourceAdaptor(MEMORIES[name]())
    streams = StreamPool()
    stream = streams.default
    ptr = guard.allocate(NBYTES, stream)
    guard.deallocate(ptr, NBYTES, stream)
    with pytest.raises(DriverError, match="was freed before"):
        guard.deallocate(ptr, NBYTES, stream)
    violation = only(guard)
    assert (violation.kind, violation.ptr, violation.nbytes, violation.generation) == ("double free", ptr, NBYTES, 0)
    for stack in (violation.allocated_at, violation.freed_at, violation.freed_again_at):
        assert "test_double_free_by_address" in stack
    with pytest.raises(MemoryCorruptionError, match="double free"):
        guard.check()
    with pytest.raises(DriverError, match="no memory of the guard is alive at 0x10"):
        guard.deallocate(0x10, 1, stream)


def test_double_free_through_the_c_table(x):
    guard, runtime = x.guard, x.runtime
    hold = Hold(runtime)
    ptr = hold.allocate(NBYTES)
    hold.free(ptr)
    hold.free(ptr)
    violation = only(guard)
    assert (violation.kind, violation.ptr) == ("double free", ptr)
    assert "test_double_free_through_the_c_table" in violation.freed_at
    assert "test_double_free_through_the_c_table" in violation.freed_again_at
    with pytest.raises(xlogmem.XlogmemError):           # the failed free, and the violation
        runtime.reap_pending()
    runtime.reap_pending()
    hold.close()


def test_double_free_of_a_handle(x):
    guard, runtime = x.guard, x.runtime
    block = runtime.allocate(64)
    block.free()
    with pytest.raises(UseAfterFreeError):
        block.free()
    assert guard.check() == []


# ---------------------------------------------------------------------------------------------- what users see
def test_poison(x):
    guard, runtime = x.guard, x.runtime
    block = runtime.allocate(NBYTES)
    check(cuda.cuCtxSynchronize())
    assert read(block.ptr, NBYTES) == b"\xcd" * NBYTES
    assert all(0x80 <= byte <= 0xBF for byte in read(block.ptr + NBYTES, 24))
    ptr = block.ptr
    block.free()
    check(cuda.cuCtxSynchronize())
    assert read(ptr, NBYTES) == b"\xdd" * NBYTES


def test_without_poison_canaries_remain():
    guard = GuardResourceAdaptor(AsyncMemoryResource(), poison=False)
    runtime = DeviceRuntime(resource=guard)
    block = runtime.allocate(NBYTES)
    ptr = block.ptr
    write(runtime, ptr, 5, NBYTES)
    block.free()
    check(cuda.cuCtxSynchronize())
    assert read(ptr, NBYTES) == b"\x05" * NBYTES
    write(runtime, ptr, 6)
    write(runtime, ptr + NBYTES, 6)
    with pytest.raises(MemoryCorruptionError, match="overrun"):
        guard.check()
    assert len(guard.violations()) == 1


def test_rightful_work_is_no_violation(x):
    guard, runtime = x.guard, x.runtime
    streams = [runtime.acquire_stream() for _ in range(3)]
    for i in range(60):
        block = runtime.allocate(1 + 37 * i, streams[i % 3])
        with xlogmem.use(streams[(i + 1) % 3], write=block):
            check(cuda.cuMemsetD8Async(block.ptr, i, block.nbytes, streams[(i + 1) % 3].handle))
        block.free(streams[(i + 2) % 3] if i % 2 else None)
        if i % 10 == 0:
            guard.check(blocking=i % 20 == 0)
    guard.trim()
    runtime.reap_pending()
    assert guard.violations() == []
    assert guard.quarantined_bytes == guard.quarantined_blocks == 0


def test_quarantine_by_bytes():
    guard = GuardResourceAdaptor(AsyncMemoryResource(), quarantine_bytes=4 * (1024 + 512))
    runtime = DeviceRuntime(resource=guard)
    blocks = [runtime.allocate(1024) for _ in range(6)]
    for block in blocks:
        block.free()
    assert guard.quarantined_bytes == 4 * (1024 + 512)
    assert guard.quarantined_blocks == 4
    assert [block.state for block in blocks] == [BlockState.FREED] * 2 + [BlockState.QUARANTINED] * 4


def test_quarantine_by_age():
    guard = GuardResourceAdaptor(AsyncMemoryResource(), quarantine_age=2)
    runtime = DeviceRuntime(resource=guard)
    blocks = [runtime.allocate(1024) for _ in range(5)]
    for block in blocks:
        block.free()
    assert [block.state for block in blocks] == [BlockState.FREED] * 3 + [BlockState.QUARANTINED] * 2


def test_no_quarantine():
    guard = GuardResourceAdaptor(AsyncMemoryResource(), quarantine_bytes=0)
    runtime = DeviceRuntime(resource=guard)
    block = runtime.allocate(NBYTES)
    write(runtime, block.ptr + NBYTES)
    block.free()
    assert block.state is BlockState.FREED
    assert guard.quarantined_bytes == 0
    with pytest.raises(MemoryCorruptionError, match="overrun"):
        runtime.reap_pending()


def test_violations_are_logged(x, caplog):
    guard, runtime = x.guard, x.runtime
    block = runtime.allocate(NBYTES, tag="logged")
    write(runtime, block.ptr - 1)
    with caplog.at_level(logging.ERROR, "xlogmem"), pytest.raises(MemoryCorruptionError):
        guard.check()
    assert "underrun of logged" in caplog.text


def test_warnings_instead_of_errors():
    guard = GuardResourceAdaptor(AsyncMemoryResource(), on_violation="warn")
    runtime = DeviceRuntime(resource=guard)
    block = runtime.allocate(NBYTES)
    write(runtime, block.ptr - 1)
    with pytest.warns(MemoryGuardWarning, match="underrun"):
        (violation,) = guard.check()
    assert violation == only(guard)
    runtime.reap_pending()


def test_a_callable_instead_of_errors():
    seen = []

    def note(violation):
        seen.append(violation)
        runtime.reap_pending()                          # no lock is held

    guard = GuardResourceAdaptor(AsyncMemoryResource(), on_violation=note)
    runtime = DeviceRuntime(resource=guard)
    block = runtime.allocate(NBYTES)
    write(runtime, block.ptr - 1)
    guard.check()
    assert seen == guard.violations()


def test_what_a_callable_raises_is_logged(caplog):
    def fail(violation):
        raise ValueError("not again")

    guard = GuardResourceAdaptor(AsyncMemoryResource(), on_violation=fail)
    runtime = DeviceRuntime(resource=guard)
    block = runtime.allocate(NBYTES)
    write(runtime, block.ptr - 1)
    assert guard.check() == guard.violations()
    assert "not again" in caplog.text


# ---------------------------------------------------------------------------------------------- among other resources
class Small(DeviceMemoryResource):
    """Has room for so many bytes."""

    order = "stream"

    def __init__(self, room: int) -> None:
        super().__init__(0)
        self.upstream = AsyncMemoryResource()
        self.room = room

    def allocate(self, nbytes: int, stream: Any) -> int:
        if nbytes > self.room:
            raise MemoryError("no room")
        self.room -= nbytes
        return self.upstream.allocate(nbytes, stream)

    def deallocate(self, ptr: int, nbytes: int, stream: Any) -> None:
        self.upstream.deallocate(ptr, nbytes, stream)
        self.room += nbytes


def test_quarantine_is_returned_before_there_is_no_memory():
    small = Small(4 * (1024 + 512))
    guard = GuardResourceAdaptor(small)
    runtime = DeviceRuntime(resource=guard)
    for _ in range(9):
        runtime.allocate(1024).free()
    assert small.room < 4 * (1024 + 512)
    kept = runtime.allocate(2048)
    assert kept.state is BlockState.LIVE
    assert runtime.counters()["allocations"] == 10
    with pytest.raises(MemoryError, match="no room"):
        runtime.allocate(1 << 20)
    del kept
    runtime.reap_pending()
    guard.trim()
    assert small.room == 4 * (1024 + 512)


def test_budgets_above_and_below():
    below = LimitingResourceAdaptor(AsyncMemoryResource(), "1MiB")
    guard = GuardResourceAdaptor(below)
    above = LimitingResourceAdaptor(guard, 1 << 19)
    runtime = DeviceRuntime(resource=above)
    block = runtime.allocate(1000)
    assert above.current_bytes == 1000
    assert below.current_bytes == 1024 + 512
    block.free()
    runtime.reap_pending()
    assert above.current_bytes == 0                     # free, for its user
    assert below.current_bytes == 1024 + 512            # and kept
    assert block.state is BlockState.QUARANTINED        # the adaptor above passes the question on
    guard.trim()
    assert below.current_bytes == 0
    for _ in range(20):                                 # the quarantine makes room in the budget below
        runtime.allocate(1 << 17).free()
    runtime.reap_pending()


def test_violation_under_an_adaptor_and_below_a_pool():
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=LimitingResourceAdaptor(PoolMemoryResource(guard, chunk_size=1 << 20), "8MiB"))
    block = runtime.allocate(1024)
    write(runtime, block.ptr - 1)                       # the chunk begins with it
    with pytest.raises(MemoryCorruptionError, match="underrun of memory without a tag, generation 0, 1048576 bytes"):
        runtime.reap_pending()
    block.free()


def test_stacks_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="a guard below already"):
        GuardResourceAdaptor(GuardResourceAdaptor(AsyncMemoryResource()))
    with pytest.raises(ValueError, match="a guard below already"):
        GuardResourceAdaptor(PoolMemoryResource(GuardResourceAdaptor(AsyncMemoryResource())))
    with pytest.raises(TypeError, match="upstream must be a DeviceMemoryResource"):
        GuardResourceAdaptor(object())
    with pytest.raises(StreamMisuseError, match="unsupported"):
        GuardResourceAdaptor(PoolMemoryResource()).allocate(64, 1)


@pytest.mark.parametrize(("options", "match"), [
    ({"canary": 100}, "canary must be a multiple of 256"), ({"canary": 0}, "canary"), ({"canary": 1 << 21}, "canary"),
    ({"quarantine_age": 0}, "quarantine_age"), ({"depth": -1}, "depth"), ({"on_violation": "shout"}, "on_violation"),
    ({"quarantine_bytes": -1}, "quarantine_bytes"), ({"quarantine_bytes": "many"}, "quarantine_bytes")])
def test_bad_arguments(options, match):
    with pytest.raises(ValueError, match=match):
        GuardResourceAdaptor(AsyncMemoryResource(), **options)


@pytest.mark.parametrize("canary", [256, 4096])
@pytest.mark.parametrize("nbytes", [1, 7, 8, 255, 256, 257, 4096])
def test_sizes(canary, nbytes):
    guard = GuardResourceAdaptor(AsyncMemoryResource(), canary=canary)
    runtime = DeviceRuntime(resource=guard)
    block = runtime.allocate(nbytes)
    assert block.ptr % 256 == 0
    write(runtime, block.ptr, 0, nbytes)                # all that is the user's
    ptr = block.ptr
    block.free()
    assert guard.check() == []
    write(runtime, ptr + nbytes, 0)
    write(runtime, ptr - canary, 0)
    with pytest.raises(MemoryCorruptionError):
        guard.check()
    assert sorted(violation.offset for violation in guard.violations()) == [-canary, nbytes]


def test_allocation_on_a_capturing_stream_is_refused():
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    stream = check(cuda.cuStreamCreate(1))
    ptr = guard.allocate(64, int(stream))
    check(cuda.cuStreamBeginCapture(stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED))
    with pytest.raises(StreamMisuseError, match="capturing"):
        guard.allocate(64, int(stream))
    with pytest.raises(StreamMisuseError, match="capturing"):
        guard.deallocate(ptr, 64, int(stream))
    check(cuda.cuGraphDestroy(check(cuda.cuStreamEndCapture(stream))))
    guard.deallocate(ptr, 64, int(stream))
    assert guard.check() == []
    check(cuda.cuStreamDestroy(stream))


def test_whole_process(monkeypatch):
    monkeypatch.setenv("XLOGMEM_RESOURCE", "guard")
    runtime = DeviceRuntime()
    assert isinstance(runtime.resource, GuardResourceAdaptor)
    block = runtime.allocate(64)
    write(runtime, block.ptr + 64)
    with pytest.raises(MemoryCorruptionError):
        runtime.reap_pending()


def test_threads(x):
    guard, runtime = x.guard, x.runtime
    failures = []

    def work(number):
        try:
            stream = runtime.acquire_stream()
            for i in range(150):
                block = runtime.allocate(1 + 100 * (i % 7), stream, tag=str(number))
                check(cuda.cuMemsetD8Async(block.ptr, number, block.nbytes, stream.handle))
                if i % 40 == number:
                    guard.check(blocking=bool(i % 2))
                if i % 50 == number:
                    guard.trim()
                block.free()
        except BaseException as error:
            failures.append(error)

    def in_context(number):
        primary = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(0))))
        check(cuda.cuCtxSetCurrent(primary))
        work(number)

    threads = [threading.Thread(target=in_context, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    runtime.reap_pending()
    assert guard.violations() == []


# ---------------------------------------------------------------------------------------------- order and cost
@pytest.mark.simulator
@pytest.mark.parametrize("policy", ["eager", "min", "max", "seeded"])
def test_fills_and_checks_are_ordered(x, driver, policy):
    """Whatever the schedule: no race of the guard's own, and no false alarm."""
    guard, runtime = x.guard, x.runtime
    driver.set_policy(policy, 3)
    streams = [runtime.acquire_stream() for _ in range(3)]
    blocks = []
    for i in range(40):
        blocks.append(runtime.allocate(256 * (1 + i % 5), streams[i % 3]))
        with xlogmem.use(streams[(i + 1) % 3], write=blocks[-1]):
            check(cuda.cuMemsetD8Async(blocks[-1].ptr, i, blocks[-1].nbytes, streams[(i + 1) % 3].handle))
        if i % 2:
            blocks.pop(0).free(streams[i % 3])
        if i % 9 == 0:
            guard.trim()
        if i % 7 == 0:
            guard.check(blocking=False)
    assert not driver.races()
    guard.check()


@pytest.mark.simulator
def test_a_lost_wait_is_a_race(driver):
    """The twin: without the wait for the poison, what leaves the quarantine races with it."""
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=guard)
    runtime.allocate(1024, runtime.acquire_stream()).free()
    driver.drop("cuStreamWaitEvent")
    guard.trim()
    assert any("xlogmem_guard" in race for race in driver.races())
    check(cuda.cuCtxSynchronize())
    driver.clear_races()


@pytest.mark.simulator
def test_canaries_that_are_not_there_yet_are_not_compared(driver):
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=guard)
    stream = runtime.acquire_stream()
    driver.set_policy("min")                            # nothing runs before somebody waits for it
    block = runtime.allocate(1024, stream)
    assert guard.check() == []
    assert not driver.races()
    check(cuda.cuCtxSynchronize())
    write(runtime, block.ptr - 1)
    with pytest.raises(MemoryCorruptionError):
        guard.check()


@pytest.mark.simulator
def test_contents_survive_a_free_that_fails(driver):
    """The poison is the last that may fail; behind it one failure is made good, and two keep the memory for ever."""
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=guard)
    for call, nth in (("cuLaunchKernel", 1), ("cuLaunchKernel", 2), ("cuEventRecord", 1)):
        block = runtime.allocate(1024)
        write(runtime, block.ptr, 5, 1024)
        driver.fail(call, nth=nth, code=999)
        try:
            block.free()
        except DriverError:
            assert block.state is BlockState.LIVE
            assert read(block.ptr, 1024) == b"\x05" * 1024
            block.free()
        else:
            assert call == "cuEventRecord"
        assert block.state is BlockState.QUARANTINED
    assert guard.check() == []
    guard.trim()
    assert guard.quarantined_blocks == 0


@pytest.mark.simulator
def test_the_host_does_not_wait(driver):
    guard = GuardResourceAdaptor(AsyncMemoryResource(), quarantine_bytes=4096)
    runtime = DeviceRuntime(resource=guard)
    driver.set_policy("min")
    before = driver.all_calls()
    for _ in range(20):
        runtime.allocate(1024).free()
    waits = {name for name, count in driver.all_calls().items() if "Synchronize" in name and count > before.get(name, 0)}
    assert not waits


@pytest.mark.simulator
def test_freeing_is_refused_whole_where_a_kernel_cannot_be_launched(driver):
    guard = GuardResourceAdaptor(AsyncMemoryResource())
    runtime = DeviceRuntime(resource=guard)
    block = runtime.allocate(1024)
    for nth in (1, 2):
        driver.fail("cuLaunchKernel", nth=nth, code=999)
        with pytest.raises(DriverError, match="cuLaunchKernel"):
            block.free()
        assert block.state is BlockState.LIVE
    driver.fail("cuLaunchKernel", code=999)
    with pytest.raises(DriverError, match="cuLaunchKernel"):
        runtime.allocate(1024)
    block.free()
    driver.fail("cuMemFreeAsync", code=999)
    with pytest.raises(DriverError, match="cuMemFreeAsync"):
        guard.trim()
    assert guard.quarantined_blocks == 1                # it stays
    guard.trim()
    assert guard.quarantined_blocks == 0
    assert guard.check() == []
