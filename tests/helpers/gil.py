"""Which operations are done with the GIL: the simulated driver counts the calls of threads that have it.

One that was done at once made one query for a capture with the GIL, or no driver call at all; one that was not done at
once made none with it.
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest

from xlogmem import DeviceBlock, DeviceRuntime, PoolMemoryResource, use
from xlogmem.sim import Simulator

QUERY = "cuStreamIsCapturing"
# In these each call of the driver takes the GIL, whatever xlogmem does.
WITH_GIL = {"12.9.2", "13.0.0", "13.0.1"}
bindings_without_gil = pytest.mark.skipif(
    version("cuda-bindings") in WITH_GIL, reason=f"calls of cuda-bindings {version('cuda-bindings')} take the GIL")


@contextlib.contextmanager
def queries_with_gil(driver: Simulator, expected: int) -> Iterator[None]:
    before = driver.calls_with_gil().get(QUERY, 0)
    yield
    assert driver.calls_with_gil().get(QUERY, 0) - before == expected


@contextlib.contextmanager
def only_one_query(driver: Simulator) -> Iterator[None]:
    """One driver call in all, and with the GIL."""
    before = sum(driver.all_calls().values())
    with queries_with_gil(driver, 1):
        yield
    assert sum(driver.all_calls().values()) - before == 1


def pooled_runtime() -> DeviceRuntime:
    """With a pool that has memory."""
    runtime = DeviceRuntime(resource=PoolMemoryResource())
    runtime.allocate(1 << 20).free()
    return runtime


def read(stream: Any, block: DeviceBlock) -> None:
    with use(stream, read=block):
        pass
