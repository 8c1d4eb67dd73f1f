from typing_extensions import disjoint_base

from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["AsyncMemoryResource"]

@disjoint_base
class AsyncMemoryResource(DeviceMemoryResource):
    def __init__(self, ordinal: int = 0, *, device_id: int | None = None,
                 release_threshold: int | None = None) -> None: ...
