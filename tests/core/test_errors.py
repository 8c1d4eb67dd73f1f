"""The classes of errors."""
from __future__ import annotations

import pytest

from xlogmem import (
    DeviceRuntime,
    DriverError,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    StreamMisuseError,
    UseAfterFreeError,
    XlogmemError,
)


@pytest.mark.promise(14, 15)
def test_errors_differ_by_class():
    """Each kind is a class of its own with the documented text, and all are XlogmemErrors."""
    kinds = {DriverError, OutOfBudgetError, StreamMisuseError, UseAfterFreeError}
    assert all(issubclass(kind, XlogmemError) for kind in kinds)
    assert not any(issubclass(a, b) for a in kinds for b in kinds if a is not b)
    assert issubclass(OutOfDeviceMemoryError, DriverError)
    assert str(StreamMisuseError("why")) == "stream-ordered contract violated: why"
    error = UseAfterFreeError(37)
    assert (str(error), error.generation) == ("use-after-free on generation 37", 37)
    runtime = DeviceRuntime()
    with pytest.raises(DriverError, match=r"^CUDA driver error: ") as failed:
        runtime.allocate(1 << 50)
    assert failed.value.call
    assert failed.value.code


@pytest.mark.promise(14, 15)
def test_errors_of_budgets_and_bounds():
    """A refused budget says what was requested and what remains; a write out of bounds names the generation."""
    error = OutOfBudgetError(100, 28, current=100, limit=128)
    assert isinstance(error, XlogmemError)
    assert isinstance(error, MemoryError)
    assert (error.requested, error.remaining, error.current, error.limit) == (100, 28, 100, 128)
    assert str(error).startswith("out of budget: requested 100 bytes, remaining 28 bytes")
