from typing_extensions import disjoint_base

from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["PinnedMemoryResource"]

@disjoint_base
class PinnedMemoryResource(DeviceMemoryResource):
    def __init__(self, numa_id: int | None = None, *, portable: bool = True, device_id: int = 0) -> None: ...
