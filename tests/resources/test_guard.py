"""`GuardResourceAdaptor`: what it finds, with which words, and that it finds nothing else."""
from __future__ import annotations

import pickle
from typing import Any

import pytest
from c_table import Hold
from cuda.bindings import driver as cuda
from guarded import MEMORIES, NBYTES, only, write

import xlogmem
from xlogmem import (
    BlockState,
    DeviceRuntime,
    DriverError,
    GuardResourceAdaptor,
    MemoryCorruptionError,
    StreamPool,
    UseAfterFreeError,
)
from xlogmem.sim.kernels import check


def freed_by_a_function_with_a_name(block: Any) -> None:
    block.free()


def allocated_by_a_function_with_a_name(runtime: DeviceRuntime, tag: str | None = "table") -> Any:
    return runtime.allocate(NBYTES, tag=tag)


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
        runtime.allocate(64).free()                     # a call that sees the result; nothing is raised
        assert only(guard).kind == kind
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
