"""What the programs here that use `cuda.bindings` begin with."""
from __future__ import annotations

import ctypes
from typing import Any

import numpy
from cuda.bindings import driver as cuda


def ok(result: tuple[Any, ...]) -> Any:
    """What a call of the driver returns, without its error code, which has to be zero."""
    if int(result[0]):
        raise RuntimeError(result[0])
    return result[1] if len(result) == 2 else result[1:] or None


def begin() -> None:
    """Make the first device's context current."""
    ok(cuda.cuInit(0))
    ok(cuda.cuCtxSetCurrent(ok(cuda.cuDevicePrimaryCtxRetain(0))))


def stream() -> Any:
    """A stream that the default stream does not wait for, as PyTorch, CuPy and RMM make them."""
    return ok(cuda.cuStreamCreate(cuda.CUstream_flags.CU_STREAM_NON_BLOCKING))


def wait(later: Any, earlier: Any) -> None:
    """The one stream waits for all that is queued on the other one."""
    event = ok(cuda.cuEventCreate(cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING))
    ok(cuda.cuEventRecord(event, earlier))
    ok(cuda.cuStreamWaitEvent(later, event, 0))


def page_locked(size: int) -> Any:
    """Page-locked memory of the host, as an array of bytes."""
    return numpy.frombuffer((ctypes.c_char * size).from_address(int(ok(cuda.cuMemHostAlloc(size, 0)))), numpy.uint8)
