"""The classes of errors."""
from __future__ import annotations

import copy
import multiprocessing
import pickle

import pytest

from xlogmem import (
    BlockingStreamWarning,
    DeviceLostError,
    DeviceRuntime,
    DriverError,
    DriverNotFoundError,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    StaleBufferError,
    StreamMisuseError,
    UseAfterFreeError,
    XlogmemError,
    errors,
)


@pytest.mark.promise(14, 15)
def test_errors_differ_by_class():
    """Each kind is a class of its own with the documented text, and all are XlogmemErrors."""
    kinds = {DriverError, OutOfBudgetError, StreamMisuseError, UseAfterFreeError}
    assert all(issubclass(kind, XlogmemError) for kind in kinds)
    assert not any(issubclass(a, b) for a in kinds for b in kinds if a is not b)
    assert issubclass(OutOfDeviceMemoryError, DriverError)
    assert str(StreamMisuseError("why")) == "why"
    error = UseAfterFreeError(37)
    assert (str(error), error.generation) == ("block 37 was freed, and cannot be used any more", 37)
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


# ---------------------------------------------------------------------------------------- copies
MADE = [
    XlogmemError(), XlogmemError("a text", 2),
    DriverError("zero bytes"), DriverError("refused", call="cuMemAlloc", code=1, name="CUDA_ERROR_INVALID_VALUE"),
    DeviceLostError("lost to an earlier error"), DeviceLostError("now", call="cuMemAlloc", code=700, name="ADDRESS"),
    DriverNotFoundError("no driver"), DriverNotFoundError("too old", call="cuInit", code=100, name="NO_DEVICE"),
    OutOfDeviceMemoryError("full", code=2), OutOfBudgetError(100, 28, current=100, limit=128),
    errors.MemoryCorruptionError(["an overrun"]), errors.MemoryGuardWarning("an overrun"),
    StreamMisuseError("why"), StaleBufferError("context lost"), UseAfterFreeError(37), UseAfterFreeError(37, "freed"),
    errors.TokenError("which"), errors.UnknownNodeError("where"), errors.UnknownDeviceError("none"),
    errors.UnknownBufferError("gone"), BlockingStreamWarning("blocking"), errors.UntestedReleaseWarning("newer"),
]


def parts(error: BaseException) -> tuple[object, ...]:
    return type(error), str(error), error.args, vars(error)


def test_all_classes_are_tried():
    assert {type(error).__name__ for error in MADE} == set(errors.__all__)


@pytest.mark.parametrize("error", MADE, ids=lambda error: f"{type(error).__name__}-{error}")
def test_an_error_survives_pickling_and_copying(error):
    """Its class, its text (once), its arguments and its attributes."""
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert parts(pickle.loads(pickle.dumps(error, protocol))) == parts(error)
    assert parts(copy.copy(error)) == parts(copy.deepcopy(error)) == parts(error)
    again = copy.copy(error)
    again.add_note("of a caller")
    assert pickle.loads(pickle.dumps(again)).__notes__ == ["of a caller"]


def test_errors_that_the_runtime_raises_survive_it_too():
    runtime = DeviceRuntime()
    block = runtime.allocate(64)
    block.free()
    for call in (lambda: runtime.allocate(1 << 50), block.free,
                 lambda: runtime.allocate(0, DeviceRuntime().default_stream),
                 lambda: runtime.record_block_use(block.id, None), lambda: runtime.unregister_stream(12345)):
        with pytest.raises(XlogmemError) as raised:
            call()
        assert parts(pickle.loads(pickle.dumps(raised.value))) == parts(raised.value)


def test_an_error_comes_back_from_a_pool_of_processes():
    """One that could not be made again ended the thread that waits for answers."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        error = pool.apply_async(OutOfBudgetError, (100, 28, 100, 128)).get(60)
    assert (error.requested, error.limit) == (100, 128)
