"""Every CUDA call that xlogmem makes, and nothing else; only the names of error codes are queried in `_failures`.

* Calls go through ``cuda.bindings.cydriver``, but for two queries that each use makes (`find_queries`).  CUDA's runtime
  library is never used: it would bring a second notion of the current device, and it does not run on the simulated
  driver.
* A function returns 0, or 1 with a `Failure` filled in: see `_failures`.
* Functions are declared ``except -1`` because cydriver raises when the installed driver lacks a function.  `initialize`
  refuses drivers older than CUDA 12.0, the newest function used here, so that cannot happen after a successful start;
  if it did, the exception would be raised, where ``noexcept`` would turn it into CUDA_SUCCESS.
* No lock of another module is held during any call here: on a full queue the driver blocks.  Nor is the GIL, but during
  `stream_is_capturing` where docs/ordering.md says so (*query-with-gil*), and in `format_driver_failure`.

Nothing here depends on blocks, positions or uses.
"""
import atexit
import contextlib
import os
import threading

cimport cython

from libc.stdint cimport uint32_t
from libc.string cimport memset

from xlogmem._cpp cimport flag
from xlogmem._failures cimport DRIVER_FAILED, PROCESS_WAS_FORKED, error_name, raise_failure

from xlogmem._failures import FORKED
from xlogmem._units import parse_ordinal
from xlogmem.errors import DriverError, DriverNotFoundError

__all__ = ["BUILD", "ProcessLock", "active_devices", "can_access_peer", "close_to_peer", "describe_device",
           "device_count", "device_memory", "device_name", "driver_version", "forget_context", "forget_peer_access",
           "initialize", "is_simulated", "live_events", "open_to_peer", "supports_memory_pools", "synchronize_device",
           "trim_events"]


cdef inline int _check(Failure* failure, const char* call, cy.CUresult code) noexcept nogil:
    """0 for a call that succeeded; else 1, with the failure filled in."""
    if code == cy.CUDA_SUCCESS:
        return 0
    failure.kind = DRIVER_FAILED
    failure.call = call
    failure.code = code
    return 1

include "driver/forks.pxi"              # children are refused, and find no lock held
include "driver/process.pxi"            # start and exit; what the driver and the devices are
include "driver/contexts.pxi"           # the context of a device; captures on other threads
include "driver/devices.pxi"            # what a device is called, and its memory
include "driver/events.pxi"             # spare events; recording and waiting on the host
include "driver/streams.pxi"            # creating, identifying, waiting on the device
include "driver/memory.pxi"             # allocating, freeing, pointers, copies
include "driver/pools.pxi"              # memory pools of xlogmem's own
include "driver/peers.pxi"              # which device may touch another one's memory
include "driver/kernels.pxi"            # kernels of xlogmem's own
