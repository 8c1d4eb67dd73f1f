from typing import SupportsIndex

from typing_extensions import disjoint_base

from xlogmem.resources.adaptor import ResourceAdaptor
from xlogmem.resources.base import DeviceMemoryResource
from xlogmem.resources.counts import Outstanding

__all__ = ["TrackingResourceAdaptor"]

@disjoint_base
class TrackingResourceAdaptor(ResourceAdaptor):
    def __init__(self, upstream: DeviceMemoryResource, *, depth: SupportsIndex = 16,
                 report_at_exit: bool = False) -> None: ...
    @property
    def outstanding_bytes(self) -> int: ...
    def outstanding_allocations(self) -> list[Outstanding]: ...
    def outstanding_text(self) -> str: ...
    def log_outstanding(self, level: int = 30) -> None: ...
    def memory_summary(self) -> str: ...
