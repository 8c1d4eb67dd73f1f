"""Pools of one chunk, and upstreams that count."""
from __future__ import annotations

import contextlib

import pytest
from four_streams import QUERIES

from xlogmem import (
    AsyncMemoryResource,
    DeviceMemoryResource,
    DirectMemoryResource,
    OutOfDeviceMemoryError,
    PoolMemoryResource,
)

WHOLE, HALF, QUARTER, GRAIN = 4096, 2048, 1024, 256     # bytes of the one chunk that most tests have, and parts of it
simulated = pytest.mark.simulator


def one_chunk() -> PoolMemoryResource:
    """An allocation of WHOLE gets what the last owner had."""
    return PoolMemoryResource(maximum_pool_size=WHOLE, chunk_size=WHOLE)


class Recycling(DeviceMemoryResource):
    """Looks at no stream: what is freed is handed out again at once."""

    order = "host"

    def __init__(self):
        super().__init__(0)
        self.below = DirectMemoryResource()
        self.kept = []

    def allocate(self, nbytes, stream):
        return self.kept.pop() if self.kept else self.below.allocate(WHOLE, stream)

    def deallocate(self, ptr, nbytes, stream):
        self.kept.append(ptr)


@contextlib.contextmanager
def no_driver_call(driver, *but):
    """But queries, which change nothing."""
    before = driver.all_calls()
    yield
    after = {name: count - before.get(name, 0) for name, count in driver.all_calls().items()}
    assert {name for name, count in after.items() if count} <= QUERIES | set(but), after


class Counted(DeviceMemoryResource):
    """An upstream of so many bytes, which remembers the requested sizes."""

    order = "stream"

    def __init__(self, nbytes=1 << 40, skew=0):
        super().__init__(0)
        self.left = nbytes
        self.skew = skew
        self.requests = []
        self.given = {}
        self.fail_frees = 0
        self.below = AsyncMemoryResource()

    def allocate(self, nbytes, stream):
        self.requests.append(nbytes)
        if nbytes > self.left:
            raise OutOfDeviceMemoryError(f"no {nbytes} bytes here")
        self.left -= nbytes
        ptr = self.below.allocate(nbytes + self.skew, stream) + self.skew
        self.given[ptr] = nbytes
        return ptr

    def deallocate(self, ptr, nbytes, stream):
        if self.fail_frees:
            self.fail_frees -= 1
            raise ZeroDivisionError("not now")
        assert self.given.pop(ptr) == nbytes
        self.left += nbytes
        self.below.deallocate(ptr - self.skew, nbytes + self.skew, stream)
