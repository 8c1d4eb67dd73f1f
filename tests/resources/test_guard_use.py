"""`GuardResourceAdaptor`: what users see of it, and how it stands among other resources."""
from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from cuda.bindings import driver as cuda
from guarded import NBYTES, only, read, write

import xlogmem
from xlogmem import (
    AsyncMemoryResource,
    BlockState,
    DeviceMemoryResource,
    DeviceRuntime,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    MemoryCorruptionError,
    MemoryGuardWarning,
    PoolMemoryResource,
    StreamMisuseError,
    StreamPool,
)
from xlogmem.sim.kernels import check


def test_poison(x):
    runtime = x.runtime
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


def test_quarantine_is_returned_to_callers_without_a_runtime_too():
    streams = StreamPool()
    small = Small(1024 + 512)
    guard = GuardResourceAdaptor(small)
    guard.deallocate(guard.allocate(1024, streams.default), 1024, streams.default)
    assert (guard.quarantined_blocks, small.room) == (1, 0)
    ptr = guard.allocate(1024, streams.default)
    assert (guard.quarantined_blocks, small.room) == (0, 0)
    guard.deallocate(ptr, 1024, streams.default)


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
    with pytest.raises(MemoryCorruptionError, match=r"block 0, 1.0 MiB \(1048576 bytes\)"):
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
    ({"canary": 100}, "canary must be a number"), ({"canary": 300}, "canary must be a multiple of 256"),
    ({"canary": 0}, "canary"), ({"canary": 1 << 21}, "canary"),
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
