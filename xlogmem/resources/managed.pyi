from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["ManagedMemoryResource"]

class ManagedMemoryResource(DeviceMemoryResource):
    def __init__(self, device_id: int = 0) -> None: ...
