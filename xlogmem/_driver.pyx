"""Every CUDA call that xlogmem makes, and nothing else; only the names of error codes are queried in `_base/failures`.

* Calls go through ``cuda.bindings.cydriver``, except for two queries that each use makes (`find_queries`).  CUDA's
  runtime library is never used: it would bring a second notion of the current device, and it does not run on the
  simulated driver.
* A function returns 0, or 1 with a `Failure` filled in: see `_base/failures`.
* Functions are declared ``except -1`` because cydriver raises when the installed driver lacks a function.  `initialize`
  refuses drivers older than CUDA 12.0, which has every function used here, so a function cannot be missing after a
  successful start.  If one were, the exception would be raised; ``noexcept`` would turn it into CUDA_SUCCESS.
* No lock of another module is held during any call here: on a full queue the driver blocks.  The GIL is not held
  either, except during `stream_is_capturing` where docs/ordering.md says so (*query-with-gil*), and in
  `format_driver_failure`.

Nothing here depends on blocks, positions or uses.
"""

from xlogmem._base.failures cimport DRIVER_FAILED


__all__ = ["BUILD", "ProcessLock", "active_devices", "can_access_peer", "close_to_peer", "describe_device",
           "device_count", "device_memory", "device_name", "driver_version", "forget_context", "forget_peer_access",
           "initialize", "is_simulated", "live_events", "no_driver", "no_driver_for", "open_to_peer",
           "reaches_system_memory", "supports_memory_pools", "synchronize_device", "trim_events"]


cdef inline int _check(Failure* failure, const char* call, cy.CUresult code) noexcept nogil:
    """Return 0 for a call that succeeded; else 1, with the failure filled in."""
    if code == cy.CUDA_SUCCESS:
        return 0
    failure.kind = DRIVER_FAILED
    failure.call = call
    failure.code = code
    return 1

include "driver/forks.pxi"     # fork handlers: no lock is held in a child, which is refused
include "driver/process.pxi"   # initialisation and exit; driver and device properties
include "driver/contexts.pxi"  # primary contexts; captures on other threads
include "driver/devices.pxi"   # names and memory sizes of devices
include "driver/events.pxi"    # event cache; recording, host waits
include "driver/streams.pxi"   # creation, identification, device-side waits
include "driver/memory.pxi"    # allocation, frees, pointer attributes, copies
include "driver/system.pxi"    # ordinary memory of the host, which some devices reach
include "driver/pools.pxi"     # memory pools of the driver
include "driver/peers.pxi"     # peer access between devices
include "driver/graphs.pxi"     # captures, executable graphs
include "driver/kernels.pxi"   # loading and launching xlogmem's own kernels
