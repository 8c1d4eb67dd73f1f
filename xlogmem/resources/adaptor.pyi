from typing import Any

from typing_extensions import disjoint_base

from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["ResourceAdaptor"]

@disjoint_base
class ResourceAdaptor(DeviceMemoryResource):
    @property
    def upstream(self) -> DeviceMemoryResource: ...
    @property
    def upstream_mr(self) -> Any: ...
