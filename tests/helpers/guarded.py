"""Guarded memory for tests: writes that break the rules, and what the guard found."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cuda.bindings import driver as cuda

from xlogmem import AsyncMemoryResource, DeviceRuntime, DirectMemoryResource, GuardResourceAdaptor, PoolMemoryResource
from xlogmem.sim.kernels import check

__all__ = ["MEMORIES", "NBYTES", "guarded", "only", "read", "write"]

NBYTES = 1000                                           # the canary behind begins in the middle of a word
MEMORIES = {"async": AsyncMemoryResource, "direct": DirectMemoryResource, "pool": PoolMemoryResource}


def guarded(name: str) -> SimpleNamespace:
    """A guard and its runtime."""
    guard = GuardResourceAdaptor(MEMORIES[name]())
    return SimpleNamespace(guard=guard, runtime=DeviceRuntime(resource=guard))


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
