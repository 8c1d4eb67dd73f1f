"""xlogmem: a runtime for stream-ordered GPU memory that knows who is using it.

    runtime = xlogmem.get_runtime()
    block = runtime.allocate(nbytes, stream)
    with xlogmem.use(stream, read=block):
        launch(...)

Importing this package does not touch the driver, nor rmm, cupy or torch.
"""
from os import environ
from typing import TYPE_CHECKING, Any

import xlogmem._base.bindings  # noqa: F401  first: its errors name missing parts
from xlogmem import _table as _table  # PyCapsule_Import finds it as an attribute
from xlogmem._base.variables import warn_of_unknown
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
    UntestedReleaseWarning,
    UseAfterFreeError,
    XlogmemError,
)
from xlogmem.interop.buffers import Buffer
from xlogmem.interop.devices import DeviceState, Watch, asarray, empty, from_numpy, get_device_state, upload
from xlogmem.interop.interchange import from_arrow, from_cuda_array, from_dlpack
from xlogmem.interop.tokens import BufferToken
from xlogmem.launch import Graph, LaunchRecorder, capture, capturing, use
from xlogmem.resources import (
    AllocationRecord,
    AsyncMemoryResource,
    DeviceMemoryResource,
    DirectMemoryResource,
    ForeignMemoryResource,
    GuardResourceAdaptor,
    LimitingResourceAdaptor,
    LoggingResourceAdaptor,
    ManagedMemoryResource,
    PinnedMemoryResource,
    PoolMemoryResource,
    ResourceAdaptor,
    StatisticsResourceAdaptor,
    SystemMemoryResource,
    TrackingResourceAdaptor,
)
from xlogmem.runtime import MAX_DEVICES, DeviceRuntime, get_runtime, snapshot
from xlogmem.streams import Event, Host, Stream, StreamPool, current_stream, host

if TYPE_CHECKING:
    from xlogmem._devices import (
        Device,
        DevicePool,
        can_access_peer,
        devices,
        disable_peer_access,
        enable_peer_access,
    )
    from xlogmem._include import get_cmake_dir, get_include
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
    "Graph",
    "GuardResourceAdaptor",
    "GuardViolation",
    "Host",
    "LaunchRecorder",
    "LimitingResourceAdaptor",
    "LoggingResourceAdaptor",
    "ManagedMemoryResource",
    "MemoryCorruptionError",
    "MemoryGuardWarning",
    "OutOfBudgetError",
    "OutOfDeviceMemoryError",
    "PinnedMemoryResource",
    "PoolMemoryResource",
    "ResourceAdaptor",
    "Snapshot",
    "StaleBufferError",
    "StatisticsResourceAdaptor",
    "Stream",
    "StreamMisuseError",
    "StreamPool",
    "SystemMemoryResource",
    "TokenError",
    "TrackingResourceAdaptor",
    "UnknownBufferError",
    "UnknownDeviceError",
    "UnknownNodeError",
    "UntestedReleaseWarning",
    "UseAfterFreeError",
    "Watch",
    "XlogmemError",
    "asarray",
    "can_access_peer",
    "capture",
    "capturing",
    "current_stream",
    "devices",
    "disable",
    "disable_peer_access",
    "driver_version",
    "empty",
    "enable",
    "enable_peer_access",
    "from_arrow",
    "from_cuda_array",
    "from_dlpack",
    "from_numpy",
    "get_cmake_dir",
    "get_device_state",
    "get_include",
    "get_runtime",
    "host",
    "is_simulated",
    "publish",
    "record_history",
    "record_nvtx",
    "register_resolver",
    "scope",
    "snapshot",
    "upload",
    "use",
    "why",
]


# What takes longer to import than the rest, and not every program needs, by the module that has it.
_LATER = {
    "xlogmem._devices": ("Device", "DevicePool", "can_access_peer", "devices", "disable_peer_access",
                         "enable_peer_access"),
    "xlogmem._include": ("get_cmake_dir", "get_include"),
    "xlogmem.allocators": ("disable", "enable"),
    "xlogmem.observe.history": ("record_history", "why"),
    "xlogmem.observe.live.publishing": ("publish",),
    "xlogmem.observe.nvtx": ("record_nvtx",),
    "xlogmem.observe.scopes": ("scope",),
    "xlogmem.observe.snapshots": ("Snapshot",),
    "xlogmem.resources.violations": ("GuardViolation",),
}
# Modules that programs use by name, and the libraries without which the import of one fails.
_MODULES = {
    "allocators": "xlogmem.allocators", "check": "xlogmem.check", "cudf": "xlogmem.cudf", "dask": "xlogmem.dask",
    "history": "xlogmem.observe.history", "nvtx": "xlogmem.observe.nvtx", "prometheus": "xlogmem.observe.prometheus",
    "rmm": "xlogmem.rmm", "sim": "xlogmem.sim", "statistics": "xlogmem.observe.statistics",
}
_NEEDED = {"cudf": "cudf", "dask": "distributed", "prometheus": "prometheus_client", "rmm": "rmm"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(_MODULES[name])
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from importlib.util import find_spec

    modules = [name for name in _MODULES if name not in _NEEDED or find_spec(_NEEDED[name]) is not None]
    return sorted([*__all__, *modules, *(name for name in globals() if name.startswith("__"))])


def _begin_as_wanted() -> None:
    """Warn of unknown variables of the environment; install the simulated driver and start `record_nvtx` and `publish`
    where XLOGMEM_SIMULATE, XLOGMEM_NVTX and XLOGMEM_PUBLISH request them at import."""
    warn_of_unknown()
    for variable, module, begin in (("XLOGMEM_SIMULATE", "xlogmem.sim", "install"),
                                    ("XLOGMEM_NVTX", "xlogmem.observe.nvtx", "record_or_warn"),
                                    ("XLOGMEM_PUBLISH", "xlogmem.observe.live.publishing", "publish_or_warn")):
        if environ.get(variable, "0") not in ("", "0"):
            from importlib import import_module

            getattr(import_module(module), begin)()


_begin_as_wanted()
