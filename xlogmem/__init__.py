"""xlogmem: a runtime for stream-ordered GPU memory that knows who is using it.

    runtime = xlogmem.get_runtime()
    block = runtime.allocate(nbytes, stream)
    with xlogmem.use(stream, read=block):
        launch(...)

Importing this package does not touch the driver, nor rmm, cupy or torch.
"""
from os import environ
from typing import TYPE_CHECKING, Any

import xlogmem._base.bindings  # noqa: F401  first: it says what is missing
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
from xlogmem.runtime import MAX_DEVICES, DeviceRuntime, get_runtime, snapshot
from xlogmem.streams import Event, Stream, StreamPool, current_stream

if TYPE_CHECKING:
    from xlogmem._devices import (
        Device,
        DevicePool,
        can_access_peer,
        devices,
        disable_peer_access,
        enable_peer_access,
    )
    from xlogmem.allocators import disable, enable
    from xlogmem.observe import history as history
    from xlogmem.observe import statistics as statistics
    from xlogmem.observe.history import record_history, why
    from xlogmem.observe.live.publishing import publish
    from xlogmem.observe.nvtx import record_nvtx
    from xlogmem.observe.scopes import scope
    from xlogmem.observe.snapshots import Snapshot
    from xlogmem.resources import GuardViolation

__version__ = "0.1.0"

__all__ = [
    "MAX_DEVICES",
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
        return import_module(f"xlogmem.observe.{name}")
    if name in ("record_history", "why"):
        return getattr(import_module("xlogmem.observe.history"), name)
    if name == "publish":
        return import_module("xlogmem.observe.live.publishing").publish
    if name == "record_nvtx":
        return import_module("xlogmem.observe.nvtx").record_nvtx
    if name in ("disable", "enable"):
        return getattr(import_module("xlogmem.allocators"), name)
    if name in ("Device", "DevicePool", "can_access_peer", "devices", "disable_peer_access", "enable_peer_access"):
        return getattr(import_module("xlogmem._devices"), name)
    if name == "Snapshot":
        return import_module("xlogmem.observe.snapshots").Snapshot
    if name == "scope":
        return import_module("xlogmem.observe.scopes").scope
    if name == "GuardViolation":
        return import_module("xlogmem.resources.violations").GuardViolation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _begin_as_wanted() -> None:
    """Start `record_nvtx` and `publish` where XLOGMEM_NVTX and XLOGMEM_PUBLISH request them at import."""
    for variable, module, begin in (("XLOGMEM_NVTX", "xlogmem.observe.nvtx", "record_or_warn"),
                                    ("XLOGMEM_PUBLISH", "xlogmem.observe.live.publishing", "publish_or_warn")):
        if environ.get(variable, "0") not in ("", "0"):
            from importlib import import_module

            getattr(import_module(module), begin)()


_begin_as_wanted()
