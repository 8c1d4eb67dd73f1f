"""Where bytes come from.

A resource hands out device memory and takes it back, in the shape of RMM's ``DeviceMemoryResource``; it knows
nothing of blocks and uses.  Tracking is the core's business, so every resource is tracked alike.
"""
from xlogmem.resources.async_ import AsyncMemoryResource
from xlogmem.resources.base import DeviceMemoryResource
from xlogmem.resources.direct import DirectMemoryResource
from xlogmem.resources.foreign import ForeignMemoryResource
from xlogmem.resources.pool import PoolMemoryResource

__all__ = ["AsyncMemoryResource", "DeviceMemoryResource", "DirectMemoryResource", "ForeignMemoryResource",
           "PoolMemoryResource"]
