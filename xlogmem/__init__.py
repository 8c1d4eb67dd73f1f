"""xlogmem: a runtime for stream-ordered GPU memory that knows who is using it.

    runtime = xlogmem.get_runtime()
    block = runtime.allocate(nbytes, stream)
    with xlogmem.use(stream, read=block):
        launch(...)

Importing this package does not touch the driver, nor rmm, cupy or torch.
"""
from os import environ
from typing import TYPE_CHECKING, Any

from xlogmem import _bindings as _bindings  # first: it says what is missing
from xlogmem import _table as _table  # PyCapsule_Import finds it as an attribute
from xlogmem._driver import driver_version, is_simulated
from xlogmem.blocks import Access, BlockId, BlockState, DeviceBlock, register_resolver
from xlogmem.errors import (
    BlockingStreamWarning,
    BlockingWindowWarning,
    DeviceLostError,
    DriverError,
    DriverNotFoundError,
    MemoryCorruptionError,
    MemoryGuardWarning,
    OutOfBudgetError,
    OutOfDeviceMemoryError,
    StaleBufferError,
    StreamMisuseError,
    TokenError,
    UnknownBufferError,
    UnknownDeviceError,
    UnknownNodeError,
    UseAfterFreeError,
    XlogmemError,
)
from xlogmem.interop.buffers import Buffer
from xlogmem.interop.devices import DeviceState, Watch, get_device_state
from xlogmem.interop.interchange import from_arrow, from_cuda_array, from_dlpack
from xlogmem.interop.tokens import BufferToken
from xlogmem.launch import LaunchRecorder, use
from xlogmem.peers import can_access_peer, disable_peer_access, enable_peer_access
from xlogmem.resources import (
    AllocationRecord,
    AsyncMemoryResource,
    DeviceMemoryResource,
    DirectMemoryResource,
    ForeignMemoryResource,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    PoolMemoryResource,
    ResourceAdaptor,
    StatisticsResourceAdaptor,
    TrackingResourceAdaptor,
)
from xlogmem.runtime import MAX_DEVICE_ORDINALS, DeviceRuntime, get_runtime, snapshot
from xlogmem.streams import Event, Stream, StreamPool, current_stream

if TYPE_CHECKING:
    from xlogmem import history as history
    from xlogmem import statistics as statistics
    from xlogmem.allocators import disable, enable
    from xlogmem.device_pool import Device, DevicePool, devices
    from xlogmem.history import record_history, why
    from xlogmem.live.publishing import publish
    from xlogmem.nvtx import record_nvtx
    from xlogmem.resources import GuardViolation
    from xlogmem.scopes import scope
    from xlogmem.snapshots import Snapshot

__version__ = "0.1.0"

__all__ = [
    "MAX_DEVICE_ORDINALS",
    "Access",
    "AllocationRecord",
    "AsyncMemoryResource",
    "BlockId",
    "BlockState",
    "BlockingStreamWarning",
    "BlockingWindowWarning",
    "Buffer",
    "BufferToken",
    "Device",
    "DeviceBlock",
    "DeviceLostError",
    "DeviceMemoryResource",
    "DevicePool",
    "DeviceRuntime",
    "DeviceState",
    "DirectMemoryResource",
    "DriverError",
    "DriverNotFoundError",
    "Event",
    "ForeignMemoryResource",
    "GuardResourceAdaptor",
    "GuardViolation",
    "LaunchRecorder",
    "LimitingResourceAdaptor",
    "LoggingResourceAdaptor",
    "MemoryCorruptionError",
    "MemoryGuardWarning",
    "OutOfBudgetError",
    "OutOfDeviceMemoryError",
    "PoolMemoryResource",
    "ResourceAdaptor",
    "Snapshot",
    "StaleBufferError",
    "StatisticsResourceAdaptor",
    "Stream",
    "StreamMisuseError",
    "StreamPool",
    "TokenError",
    "TrackingResourceAdaptor",
    "UnknownBufferError",
    "UnknownDeviceError",
    "UnknownNodeError",
    "UseAfterFreeError",
    "Watch",
    "XlogmemError",
    "can_access_peer",
    "current_stream",
    "devices",
    "disable",
    "disable_peer_access",
    "driver_version",
    "enable",
    "enable_peer_access",
    "from_arrow",
    "from_cuda_array",
    "from_dlpack",
    "get_device_state",
    "get_runtime",
    "is_simulated",
    "publish",
    "record_history",
    "record_nvtx",
    "register_resolver",
    "scope",
    "snapshot",
    "use",
    "why",
]


def __getattr__(name: str) -> Any:
    """Import on first use the modules that take longer to import than the rest and that not every program needs."""
    from importlib import import_module

    if name in ("history", "statistics"):
        return import_module(f"xlogmem.{name}")
    if name in ("record_history", "why"):
        return getattr(import_module("xlogmem.history"), name)
    if name == "publish":
        return import_module("xlogmem.live.publishing").publish
    if name == "record_nvtx":
        return import_module("xlogmem.nvtx").record_nvtx
    if name in ("disable", "enable"):
        return getattr(import_module("xlogmem.allocators"), name)
    if name in ("Device", "DevicePool", "devices"):
        return getattr(import_module("xlogmem.device_pool"), name)
    if name == "Snapshot":
        return import_module("xlogmem.snapshots").Snapshot
    if name == "scope":
        return import_module("xlogmem.scopes").scope
    if name == "GuardViolation":
        return import_module("xlogmem.resources.violations").GuardViolation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _begin_as_wanted() -> None:
    """Start `record_nvtx` and `publish` where XLOGMEM_NVTX and XLOGMEM_PUBLISH request them at import."""
    for variable, module, begin in (("XLOGMEM_NVTX", "xlogmem.nvtx", "record_or_warn"),
                                    ("XLOGMEM_PUBLISH", "xlogmem.live.publishing", "publish_or_warn")):
        if environ.get(variable, "0") not in ("", "0"):
            from importlib import import_module

            getattr(import_module(module), begin)()


_begin_as_wanted()
