"""Resources: sources of bytes.

A resource allocates device memory and frees it, in the shape of RMM's ``device_memory_resource``.  It knows nothing of
blocks, windows and exports: tracking is the core's task, so memory of every resource is tracked alike.  Of uses it has
to know nothing either, because the core orders every free after them; the pool alone does, since its free memory keeps
what its next owner has to be ordered after.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xlogmem.resources.adaptor import ResourceAdaptor
from xlogmem.resources.async_ import AsyncMemoryResource
from xlogmem.resources.base import DeviceMemoryResource
from xlogmem.resources.direct import DirectMemoryResource
from xlogmem.resources.foreign import ForeignMemoryResource
from xlogmem.resources.guard import GuardResourceAdaptor
from xlogmem.resources.limiting import LimitingResourceAdaptor
from xlogmem.resources.logging import LoggingResourceAdaptor
from xlogmem.resources.managed import ManagedMemoryResource
from xlogmem.resources.pinned import PinnedMemoryResource
from xlogmem.resources.pool import PoolMemoryResource
from xlogmem.resources.sinks import AllocationRecord
from xlogmem.resources.statistics import StatisticsResourceAdaptor
from xlogmem.resources.system import SystemMemoryResource
from xlogmem.resources.tracking import TrackingResourceAdaptor

if TYPE_CHECKING:
    from xlogmem.resources.counts import Outstanding, Statistics
    from xlogmem.resources.violations import GuardViolation

__all__ = ["AllocationRecord", "AsyncMemoryResource", "DeviceMemoryResource", "DirectMemoryResource",
           "ForeignMemoryResource", "GuardResourceAdaptor", "GuardViolation", "LimitingResourceAdaptor",
           "LoggingResourceAdaptor", "ManagedMemoryResource", "Outstanding", "PinnedMemoryResource",
           "PoolMemoryResource", "ResourceAdaptor", "Statistics", "StatisticsResourceAdaptor",
           "SystemMemoryResource", "TrackingResourceAdaptor"]

LATER = {"GuardViolation": "violations", "Outstanding": "counts", "Statistics": "counts"}


def __getattr__(name: str) -> Any:
    """Classes of records, which need dataclasses: these take longer to import than the rest of xlogmem."""
    from importlib import import_module

    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{LATER[name]}"), name)
