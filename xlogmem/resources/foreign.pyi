from typing_extensions import disjoint_base

from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["ForeignMemoryResource"]

ORDERS: dict[str, int]

@disjoint_base
class ForeignMemoryResource(DeviceMemoryResource):
    def __init__(self, capsule: object, device_id: int = 0, *, order: str = "stream") -> None: ...
    @property
    def capsule(self) -> object: ...
