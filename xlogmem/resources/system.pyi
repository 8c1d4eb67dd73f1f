from xlogmem.resources.base import DeviceMemoryResource

__all__ = ["SystemMemoryResource"]

class SystemMemoryResource(DeviceMemoryResource):
    def __init__(self, device_id: int = 0) -> None: ...
