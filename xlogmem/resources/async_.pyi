from typing_extensions import disjoint_base

from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["AsyncMemoryResource"]

@disjoint_base
class AsyncMemoryResource(DeviceMemoryResource):
    def __init__(self, device_id: int = 0, *, release_threshold: int | None = None) -> None: ...
